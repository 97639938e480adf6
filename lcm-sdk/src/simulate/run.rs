//! Simulates a fleet event by event.

// Each worker has a `Simulation` of its own, with the instances that belong to it. This file adds what they share: time,
// sessions and the service that places them, controllers, outages, and when a worker is reconciled.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use chrono::TimeDelta;
use thiserror::Error;

use super::events::{ConsoleAction, Events, Fleet, Member, PlannedSession};
use super::history::{Figures, History, Step};
use super::rng::Rng;
use super::{Reconciled, Simulation};
use crate::lifecycle::effect::Effect;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::fleet::{Eligibility, eligibility};
use crate::lifecycle::idle::IdleReport;
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::instance::{Instance, WORKER_ID_TAG};
use crate::lifecycle::license::LicenseOperation;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::policy::Policy;
use crate::lifecycle::secret::Secret;
use crate::lifecycle::session::{KnownSessionState, Session, SessionPhase, SessionState};
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};
use crate::lifecycle::template::Template;
use crate::lifecycle::time::{self, Timestamp};
use crate::lifecycle::worker::Worker;

/// Start of every simulation: a Monday.
const START: &str = "2026-01-05T00:00:00Z";

/// Longest simulation, in hours.
const MAX_HOURS: f64 = 24.0 * 366.0;

/// Largest fleet.
const MAX_WORKERS: usize = 100_000;

/// Most sessions that may be expected of the rate.
const MAX_SESSIONS: f64 = 10_000_000.0;

/// Time from the write of a record to the reconcile that its watch event causes.
const WATCH_DELAY: u64 = 500;

/// Time from a reconcile to one that is due at once.
const SOON: u64 = 100;

/// Delay from which on a session counts as delayed.
const LATE: u64 = 60_000;

/// Number of instances that the ids of one worker are reserved for.
const INSTANCES_PER_WORKER: u64 = 1 << 20;

/// A simulation that cannot be carried out.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// A number is out of range.
    #[error("invalid {name} {value}: expected {accepted}")]
    Range {
        /// Name of the number.
        name: &'static str,
        /// The number as given.
        value: String,
        /// The accepted numbers.
        accepted: &'static str,
    },
    /// An event names a worker that does not exist.
    #[error("unknown worker '{worker}': the {workers} workers of the fleet are {first} to {last}")]
    Worker {
        /// The name as given.
        worker: String,
        /// Number of workers.
        workers: usize,
        /// Id of the first worker.
        first: String,
        /// Id of the last worker.
        last: String,
    },
}

/// Simulates a fleet for some hours, and returns everything that happened.
///
/// Workers are decided about by the functions of the controller, under the same policy. EC2, CML, the control plane and
/// the service that places sessions are models: a session goes to the fullest worker that has room, and if none has, a
/// stopped worker is requested. A reconcile that certainly changes nothing is skipped.
///
/// # Errors
/// If a number is out of range, or an event names an unknown worker.
///
/// ```
/// use lcm_sdk::Policy;
/// use lcm_sdk::simulate::{Events, Fleet, run};
///
/// let mut events = Events::default();
/// events.sessions_per_hour = 6.0;
/// let history = run(&Fleet::new(10), &events, &Policy::default(), 24.0, 7)?;
/// assert_eq!(history, run(&Fleet::new(10), &events, &Policy::default(), 24.0, 7)?);
/// let sessions = &history.figures.sessions;
/// assert!(sessions.requested > 100 && sessions.lost() == 0, "{}", history.figures);
/// # Ok::<(), lcm_sdk::simulate::SimulationError>(())
/// ```
pub fn run(fleet: &Fleet, events: &Events, policy: &Policy, hours: f64, seed: u64) -> Result<History, SimulationError> {
    check(fleet, events, hours)?;
    let mut world = World::new(fleet, events, policy, hours, seed)?;
    while let Some(Reverse((at, _, event))) = world.queue.pop() {
        if at > world.end {
            break;
        }
        world.now = at;
        world.handle(event);
    }
    world.now = world.end;
    Ok(world.finish(hours, seed))
}

fn check(fleet: &Fleet, events: &Events, hours: f64) -> Result<(), SimulationError> {
    let range = |name, value: String, accepted| Err(SimulationError::Range { name, value, accepted });
    if !(hours > 0.0 && hours <= MAX_HOURS) {
        return range("hours", hours.to_string(), "more than 0, up to 8784");
    }
    let workers = fleet.members.len().max(fleet.workers);
    if workers > MAX_WORKERS {
        return range("workers", workers.to_string(), "up to 100000");
    }
    if fleet.members.is_empty() && fleet.running > fleet.workers {
        return range("running", fleet.running.to_string(), "up to the number of workers");
    }
    if fleet.sessions_per_worker == 0 {
        return range("sessions_per_worker", "0".to_owned(), "1 and more");
    }
    if fleet.interval < Duration::from_secs(1) {
        return range("interval", fleet.interval.as_secs_f64().to_string(), "1 s and more");
    }
    if !fleet.price_per_hour.is_finite() {
        return range("price_per_hour", fleet.price_per_hour.to_string(), "a number");
    }
    if !(0.0..=1.0).contains(&events.fault_rate) {
        return range("fault_rate", events.fault_rate.to_string(), "0 to 1");
    }
    let highest = events.by_hour.iter().copied().fold(if events.by_hour.is_empty() { 1.0 } else { 0.0 }, f64::max);
    if events.by_hour.iter().any(|factor| !(factor.is_finite() && *factor >= 0.0)) {
        return range("by_hour", format!("{:?}", events.by_hour), "factors from 0 up");
    }
    let expected = events.sessions_per_hour * highest * hours;
    if !(events.sessions_per_hour >= 0.0 && expected <= MAX_SESSIONS) {
        return range("sessions_per_hour", events.sessions_per_hour.to_string(), "0 and more, in all up to 10000000");
    }
    Ok(())
}

/// Milliseconds since the start.
type Moment = u64;

fn millis(duration: Duration) -> Moment {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The next session of the rate is requested.
    Arrival,
    /// A planned session is requested.
    Planned(usize),
    /// A placed session begins.
    Begin(usize),
    /// A running session ends.
    End(usize),
    /// A waiting session is given up.
    GiveUp(usize),
    /// A worker is due; ignored if another time was set since.
    Reconcile {
        worker: usize,
        turn: u64,
    },
    /// A transition of EC2 is complete.
    Settle(usize),
    Console(usize),
    Desired(usize),
    License(usize),
    ControllerFails,
}

struct World<'a> {
    fleet: &'a Fleet,
    events: &'a Events,
    policy: &'a Policy,
    start: Timestamp,
    end: Moment,
    now: Moment,
    queue: BinaryHeap<Reverse<(Moment, u64, Event)>>,
    sequence: u64,
    nodes: Vec<Node>,
    /// Positions of the workers by id.
    positions: HashMap<String, usize>,
    first_statuses: Vec<WorkerStatus>,
    sessions: Vec<Ticket>,
    waiting: VecDeque<usize>,
    arrivals: Rng,
    faults: Rng,
    jitter: Rng,
    /// Until when no controller leads.
    leaderless_until: Moment,
    /// Workers in service.
    running: usize,
    /// Workers that were requested and are not in service yet.
    coming: usize,
    last_scale_down_at: Option<Timestamp>,
    steps: Vec<Step>,
    figures: Figures,
    times_to_running: (f64, f64),
    delays: (f64, f64, u64),
}

/// A worker of the fleet.
struct Node {
    simulation: Simulation,
    turn: u64,
    due: Option<Moment>,
    retries: u32,
    is_eligible: bool,
    /// When it was requested, until it is in service.
    requested_at: Option<Moment>,
    /// Since when its instance runs.
    running_since: Option<Moment>,
    /// Since when it has no session.
    idle_since: Moment,
    /// Its latest step, to which equal ones are added.
    latest_step: Option<usize>,
}

/// A session of the service that places them.
#[derive(Debug, Clone, Copy)]
struct Ticket {
    /// When it is to begin.
    wanted_at: Moment,
    lasts: Moment,
    place: Placement,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placement {
    Waiting,
    /// Assigned to a worker, not begun.
    Assigned(usize),
    Running(usize),
    Over,
}

impl<'a> World<'a> {
    fn new(
        fleet: &'a Fleet,
        events: &'a Events,
        policy: &'a Policy,
        hours: f64,
        seed: u64,
    ) -> Result<Self, SimulationError> {
        let start = time::parse(START).unwrap_or_default();
        let end = (hours * 3_600_000.0) as Moment;
        let members = fleet.at_start();
        let mut world = Self {
            fleet,
            events,
            policy,
            start,
            end,
            now: 0,
            queue: BinaryHeap::new(),
            sequence: 0,
            nodes: members.iter().enumerate().map(|(at, member)| Node::new(at, member, fleet, policy, start)).collect(),
            positions: members.iter().enumerate().map(|(at, member)| (member.id.clone(), at)).collect(),
            first_statuses: members.iter().map(|member| member.status).collect(),
            sessions: Vec::new(),
            waiting: VecDeque::new(),
            arrivals: Rng::new(seed, 1),
            faults: Rng::new(seed, 2),
            jitter: Rng::new(seed, 3),
            leaderless_until: 0,
            running: 0,
            coming: 0,
            last_scale_down_at: None,
            steps: Vec::new(),
            figures: Figures::default(),
            times_to_running: (0.0, 0.0),
            delays: (0.0, 0.0, 0),
        };
        for worker in 0..world.nodes.len() {
            world.note_service(worker);
            world.note_power(worker);
            world.watch_transition(worker);
            // The first sweep.
            if !world.nodes[worker].simulation.worker.is_at_rest() {
                world.schedule(worker, WATCH_DELAY);
            }
        }
        for (position, session) in events.sessions.iter().enumerate() {
            if let Some(worker) = &session.worker {
                world.position(worker)?;
            }
            world.push(millis(session.at), Event::Planned(position));
        }
        world.push_arrival();
        for (position, event) in events.console.iter().enumerate() {
            world.position(&event.worker)?;
            world.push(millis(event.at), Event::Console(position));
        }
        for (position, event) in events.desired.iter().enumerate() {
            world.position(&event.worker)?;
            world.push(millis(event.at), Event::Desired(position));
        }
        for (position, event) in events.licenses.iter().enumerate() {
            world.position(&event.worker)?;
            world.push(millis(event.at), Event::License(position));
        }
        for at in &events.controller_failures {
            world.push(millis(*at), Event::ControllerFails);
        }
        Ok(world)
    }

    /// The position of a worker.
    fn position(&self, id: &str) -> Result<usize, SimulationError> {
        let id_at = |node: Option<&Node>| node.map(|node| node.simulation.worker.id.to_string()).unwrap_or_default();
        self.positions.get(id).copied().ok_or_else(|| SimulationError::Worker {
            worker: id.to_owned(),
            workers: self.nodes.len(),
            first: id_at(self.nodes.first()),
            last: id_at(self.nodes.last()),
        })
    }

    /// The position of a worker whose id was checked.
    fn named(&self, id: &str) -> usize {
        self.position(id).unwrap_or_default()
    }

    fn push(&mut self, at: Moment, event: Event) {
        self.sequence += 1;
        self.queue.push(Reverse((at.max(self.now), self.sequence, event)));
    }

    fn timestamp(&self, at: Moment) -> Timestamp {
        self.start + TimeDelta::milliseconds(i64::try_from(at).unwrap_or(i64::MAX / 2))
    }

    fn next_cycle(&self, after: Moment) -> Moment {
        let interval = millis(self.fleet.interval);
        (after / interval + 1) * interval
    }

    /// Sets when a worker is reconciled next, unless it is due earlier.
    fn schedule(&mut self, worker: usize, at: Moment) {
        let node = &mut self.nodes[worker];
        if node.due.is_some_and(|due| due <= at) {
            return;
        }
        node.due = Some(at);
        node.turn += 1;
        let turn = node.turn;
        self.push(at, Event::Reconcile { worker, turn });
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrival => {
                let session = PlannedSession {
                    at: Duration::from_millis(self.now),
                    lasts: self.events.duration.draw(&mut self.arrivals),
                    lead: self.events.lead,
                    worker: None,
                };
                self.request(&session);
                self.push_arrival();
            }
            Event::Planned(position) => {
                let events = self.events;
                self.request(&events.sessions[position]);
            }
            Event::Begin(session) => self.begin(session),
            Event::End(session) => self.end_session(session),
            Event::GiveUp(session) => {
                if self.sessions[session].place == Placement::Waiting {
                    self.sessions[session].place = Placement::Over;
                    self.waiting.retain(|waiting| *waiting != session);
                    self.figures.sessions.given_up += 1;
                }
            }
            Event::Reconcile { worker, turn } => {
                if self.nodes[worker].turn == turn {
                    self.reconcile(worker);
                }
            }
            Event::Settle(worker) => {
                let now = self.timestamp(self.now);
                self.nodes[worker].simulation.ec2.settle(now);
                self.note_power(worker);
            }
            Event::Console(position) => {
                let event = &self.events.console[position];
                self.act_in_console(self.named(&event.worker), event.action);
            }
            Event::Desired(position) => {
                let event = &self.events.desired[position];
                self.desire(self.named(&event.worker), event.desired);
            }
            Event::License(position) => {
                let worker = self.named(&self.events.licenses[position].worker);
                let license = &mut self.nodes[worker].simulation.worker.license;
                license.pending_operation = Some(LicenseOperation::Register);
                license.pending_token = Some(Secret::from("token"));
                self.touch(worker);
            }
            Event::ControllerFails => {
                let gap = if self.fleet.controllers > 1 { self.fleet.takeover_time } else { self.fleet.restart_time };
                self.leaderless_until = self.leaderless_until.max(self.now + millis(gap));
            }
        }
    }

    // Sessions

    /// The rate is that of the busiest hour, and requests are dropped in the others.
    fn push_arrival(&mut self) {
        let factors = &self.events.by_hour;
        let highest = factors.iter().copied().fold(if factors.is_empty() { 1.0 } else { 0.0 }, f64::max);
        let rate = self.events.sessions_per_hour * highest;
        if rate <= 0.0 {
            return;
        }
        let mean = Duration::from_secs_f64(3600.0 / rate);
        let mut at = self.now;
        while at <= self.end {
            at += millis(self.arrivals.exponential(mean)).max(1);
            let kept = self.arrivals.fraction() * highest;
            let hour = usize::try_from(at / 3_600_000).unwrap_or(usize::MAX);
            if factors.is_empty() || kept < factors[hour % 24 % factors.len()] {
                self.push(at, Event::Arrival);
                return;
            }
        }
    }

    fn request(&mut self, session: &PlannedSession) {
        let wanted_at = self.now + millis(session.lead);
        let position = self.sessions.len();
        self.sessions.push(Ticket { wanted_at, lasts: millis(session.lasts), place: Placement::Waiting });
        self.figures.sessions.requested += 1;
        let assigned = session.worker.as_deref().map(|worker| self.named(worker));
        match assigned.filter(|worker| self.nodes[*worker].is_eligible) {
            Some(worker) => self.assign(position, worker),
            None => {
                self.waiting.push_back(position);
                self.push(wanted_at.saturating_add(millis(self.events.patience)), Event::GiveUp(position));
                self.place_waiting();
            }
        }
    }

    fn assign(&mut self, session: usize, worker: usize) {
        self.sessions[session].place = Placement::Assigned(worker);
        let wanted_at = self.sessions[session].wanted_at;
        let mut assigned = Session::new(format!("s-{}", session + 1), "scheduled");
        assigned.worker_id = Some(self.nodes[worker].simulation.worker.id.clone());
        assigned.timeslot_start = Some(self.timestamp(wanted_at));
        self.nodes[worker].simulation.sessions.push(assigned);
        self.push(wanted_at, Event::Begin(session));
    }

    /// Assigns waiting sessions to workers, and requests workers for those that are left.
    fn place_waiting(&mut self) {
        while let Some(session) = self.waiting.front().copied() {
            let Some(worker) = self.fullest_with_room() else { break };
            self.waiting.pop_front();
            self.assign(session, worker);
        }
        let per_worker = self.fleet.sessions_per_worker;
        let needed = self.waiting.len().div_ceil(per_worker).saturating_sub(self.coming);
        if needed == 0 {
            return;
        }
        let is_parked = |node: &Node| {
            let worker = &node.simulation.worker;
            worker.status == WorkerStatus::Stopped
                && worker.desired_status != Some(DesiredStatus::Terminated)
                && node.requested_at.is_none()
        };
        let parked = self.nodes.iter().enumerate().filter(|(_, node)| is_parked(node));
        let parked: Vec<usize> = parked.map(|(worker, _)| worker).take(needed).collect();
        for worker in parked {
            self.desire(worker, DesiredStatus::Running);
        }
    }

    /// The worker with the most sessions among those with room, so that others become idle.
    fn fullest_with_room(&self) -> Option<usize> {
        let per_worker = self.fleet.sessions_per_worker;
        let mut best: Option<(usize, usize)> = None;
        for (worker, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_eligible) {
            let held = node.simulation.sessions.len();
            if held < per_worker && best.is_none_or(|(most, _)| held > most) {
                best = Some((held, worker));
                if held + 1 == per_worker {
                    break;
                }
            }
        }
        best.map(|(_, worker)| worker)
    }

    fn begin(&mut self, session: usize) {
        let Placement::Assigned(worker) = self.sessions[session].place else { return };
        if !self.nodes[worker].is_eligible {
            // Its worker leaves: the drain hands it back.
            return;
        }
        self.sessions[session].place = Placement::Running(worker);
        if let Some(held) = self.held_session(worker, session) {
            held.state = SessionState::Known(KnownSessionState::Running);
        }
        let Ticket { wanted_at, lasts, .. } = self.sessions[session];
        let delay = self.now.saturating_sub(wanted_at);
        self.figures.sessions.delayed += u64::from(delay > LATE);
        let seconds = delay as f64 / 1000.0;
        self.delays = (self.delays.0 + seconds, self.delays.1.max(seconds), self.delays.2 + 1);
        self.push(self.now.saturating_add(lasts), Event::End(session));
    }

    fn held_session(&mut self, worker: usize, session: usize) -> Option<&mut Session> {
        let id = format!("s-{}", session + 1);
        self.nodes[worker].simulation.sessions.iter_mut().find(|held| held.id.as_str() == id)
    }

    fn end_session(&mut self, session: usize) {
        let Placement::Running(worker) = self.sessions[session].place else { return };
        self.sessions[session].place = Placement::Over;
        self.figures.sessions.served += 1;
        self.forget(worker, session);
        if self.nodes[worker].simulation.worker.status == WorkerStatus::Draining {
            self.schedule(worker, self.next_cycle(self.now));
        }
        self.place_waiting();
    }

    /// Takes a session off its worker.
    fn forget(&mut self, worker: usize, session: usize) {
        let id = format!("s-{}", session + 1);
        let node = &mut self.nodes[worker];
        node.simulation.sessions.retain(|held| held.id.as_str() != id);
        if node.simulation.sessions.is_empty() {
            node.idle_since = self.now;
            self.schedule_service(worker);
        }
    }

    /// Brings the sessions into agreement with those of a worker, whose effects may have moved or ended them.
    fn follow_sessions(&mut self, worker: usize) {
        let is_up = self.nodes[worker].running_since.is_some();
        let is_eligible = self.nodes[worker].is_eligible;
        let held = &self.nodes[worker].simulation.sessions;
        if held.is_empty() && is_eligible {
            return;
        }
        let over: Vec<usize> = held
            .iter()
            .filter(|session| session.state.phase() == SessionPhase::Over || !is_up)
            .filter_map(|session| session.id.as_str().strip_prefix("s-")?.parse::<usize>().ok())
            .map(|number| number - 1)
            .collect();
        for session in over {
            match self.sessions[session].place {
                Placement::Running(_) => {
                    self.sessions[session].place = Placement::Over;
                    self.figures.sessions.cut_short += 1;
                }
                Placement::Assigned(_) => self.wait_again(session),
                Placement::Waiting | Placement::Over => {}
            }
            self.forget(worker, session);
        }
    }

    /// A session that was handed back waits for another worker.
    fn wait_again(&mut self, session: usize) {
        self.sessions[session].place = Placement::Waiting;
        self.waiting.push_back(session);
        let give_up_at = self.sessions[session].wanted_at.saturating_add(millis(self.events.patience));
        self.push(give_up_at, Event::GiveUp(session));
    }

    // Workers

    fn desire(&mut self, worker: usize, desired: DesiredStatus) {
        let (now, node) = (self.now, &mut self.nodes[worker]);
        node.simulation.worker.desired_status = Some(desired);
        let is_wanted = desired == DesiredStatus::Running && !node.is_eligible;
        if is_wanted && node.requested_at.is_none() {
            node.requested_at = Some(now);
            self.coming += 1;
        } else if !is_wanted && node.requested_at.take().is_some() {
            self.coming -= 1;
        }
        self.touch(worker);
        self.note_service(worker);
    }

    /// A write to the record, which a watch reports.
    fn touch(&mut self, worker: usize) {
        let record = &mut self.nodes[worker].simulation.worker;
        record.version = record.version.map(|version| version + 1);
        self.schedule(worker, self.now + WATCH_DELAY);
    }

    fn act_in_console(&mut self, worker: usize, action: ConsoleAction) {
        let now = self.timestamp(self.now);
        let ec2 = &mut self.nodes[worker].simulation.ec2;
        ec2.outage = None;
        let live: Vec<_> =
            ec2.all().filter(|instance| instance.state.is_live()).map(|instance| instance.id.clone()).collect();
        for id in live {
            // A user sees a refused action on the screen; the simulation goes on.
            match action {
                ConsoleAction::Start => ec2.start(&id, now),
                ConsoleAction::Stop => ec2.stop(&id, now),
                ConsoleAction::Terminate => ec2.terminate(&id, now),
            }
            .ok();
        }
        self.note_power(worker);
        self.watch_transition(worker);
        if !self.nodes[worker].simulation.worker.is_at_rest() {
            self.schedule(worker, self.next_cycle(self.now));
        }
    }

    fn watch_transition(&mut self, worker: usize) {
        let ec2 = &self.nodes[worker].simulation.ec2;
        if ec2.is_in_transition() {
            let at = self.now + millis(ec2.transition_time);
            self.push(at, Event::Settle(worker));
        }
    }

    /// Adds the time that the instance was running, and ends the sessions of one that is not.
    fn note_power(&mut self, worker: usize) {
        let node = &mut self.nodes[worker];
        let is_up = node.simulation.ec2.all().any(|instance| instance.state == Ec2State::Running);
        match (node.running_since, is_up) {
            (None, true) => node.running_since = Some(self.now),
            (Some(since), false) => {
                node.running_since = None;
                self.figures.instance_hours += (self.now - since) as f64 / 3_600_000.0;
                self.follow_sessions(worker);
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    /// Notes whether a worker takes sessions.
    fn note_service(&mut self, worker: usize) {
        let node = &mut self.nodes[worker];
        let is_eligible = eligibility(&node.simulation.worker) == Eligibility::Eligible;
        if is_eligible == node.is_eligible {
            return;
        }
        node.is_eligible = is_eligible;
        if !is_eligible {
            self.running -= 1;
            return;
        }
        self.running += 1;
        node.idle_since = self.now;
        if let Some(requested_at) = node.requested_at.take() {
            self.coming -= 1;
            let seconds = (self.now - requested_at) as f64 / 1000.0;
            self.times_to_running = (self.times_to_running.0 + seconds, self.times_to_running.1.max(seconds));
            self.figures.starts += 1;
        }
    }

    /// Schedules the next idle check of a worker in service. A check that finds activity changes nothing and is skipped.
    fn schedule_service(&mut self, worker: usize) {
        let node = &self.nodes[worker];
        if !self.policy.scale_down.enabled || !node.is_eligible || !node.simulation.sessions.is_empty() {
            return;
        }
        let checked = node.simulation.worker.last_activity_check_at;
        let checked = checked.map_or(0, |at| millis(time::age(self.start, at)));
        let idle_at = node.idle_since + millis(self.fleet.idle_timeout);
        let due = idle_at.max(checked + millis(self.policy.idle_detection_interval)).max(self.now);
        self.schedule(worker, self.next_cycle(due));
    }

    fn reconcile(&mut self, worker: usize) {
        self.nodes[worker].due = None;
        if self.now < self.leaderless_until {
            self.schedule(worker, self.leaderless_until);
            return;
        }
        let now = self.timestamp(self.now);
        let is_out = |outage: &super::Outage| (millis(outage.from)..millis(outage.to)).contains(&self.now);
        let failure = match self.events.outages.iter().any(is_out) {
            true => Some(CallFailure::new(FailureKind::Unreachable, "no response")),
            false if self.events.fault_rate > 0.0 && self.faults.fraction() < self.events.fault_rate => {
                Some(CallFailure::with_code(FailureKind::Throttled, "RequestLimitExceeded", "Request limit exceeded."))
            }
            false => None,
        };
        let (running, last_scale_down_at) = (self.running, self.last_scale_down_at);
        let idle_timeout = millis(self.fleet.idle_timeout);
        let node = &mut self.nodes[worker];
        let simulation = &mut node.simulation;
        simulation.advance(time::age(simulation.now, now));
        simulation.ec2.outage = failure;
        simulation.running_workers = running;
        simulation.last_scale_down_at = last_scale_down_at;
        simulation.metrics_reported_at = Some(now);
        let idle_for = self.now - node.idle_since;
        let is_idle = simulation.sessions.is_empty() && idle_for >= idle_timeout;
        simulation.idle = IdleReport {
            telemetry_fetched: true,
            idle_check_performed: true,
            is_idle,
            eligible_for_pause: is_idle,
            idle_minutes: Some(idle_for as f64 / 60_000.0),
            ..IdleReport::default()
        };
        let reconciled = simulation.reconcile();
        simulation.ec2.outage = None;
        if reconciled.observation.idle.found().is_some() {
            simulation.worker.last_activity_check_at = Some(now);
        }
        if reconciled.decision.scales_down() {
            self.last_scale_down_at = Some(now);
        }
        self.note_step(worker, &reconciled);
        self.note_service(worker);
        self.note_power(worker);
        if reconciled.decision.effects.iter().any(Effect::changes_cloud) {
            self.watch_transition(worker);
        }
        self.follow_effects(worker, &reconciled);
        self.schedule_after(worker, &reconciled);
        if self.nodes[worker].is_eligible || !self.waiting.is_empty() {
            self.place_waiting();
        }
    }

    /// Moves the sessions that effects handed back or ended.
    fn follow_effects(&mut self, worker: usize, reconciled: &Reconciled) {
        let number = |id: &str| id.strip_prefix("s-")?.parse::<usize>().ok();
        for (effect, result) in reconciled.decision.effects.iter().zip(&reconciled.results) {
            if let (Effect::HandBackSession { session, .. }, true) = (effect, result.is_success())
                && let Some(number) = number(session.as_str())
            {
                self.wait_again(number - 1);
            }
        }
        self.follow_sessions(worker);
    }

    fn schedule_after(&mut self, worker: usize, reconciled: &Reconciled) {
        let record = &reconciled.record;
        let node = &mut self.nodes[worker];
        match record.outcome {
            Outcome::Success | Outcome::Skip => node.retries = 0,
            Outcome::Requeue | Outcome::Retry => {}
        }
        let is_at_rest = node.simulation.worker.is_at_rest();
        let is_settled = node.simulation.worker.status == WorkerStatus::Running
            && record.outcome == Outcome::Success
            && record.patch.is_empty()
            && !node.simulation.ec2.is_in_transition();
        let at = match record.requeue {
            Requeue::Now => Some(self.now + SOON),
            Requeue::After(delay) => Some(self.now + millis(delay).max(SOON)),
            Requeue::Backoff => {
                let delay = self.policy.backoff.delay_with_jitter(node.retries, self.jitter.fraction());
                node.retries += 1;
                Some(self.now + millis(delay).max(SOON))
            }
            Requeue::NextCycle | Requeue::OnChange if is_at_rest => None,
            Requeue::NextCycle if is_settled => {
                self.schedule_service(worker);
                None
            }
            Requeue::NextCycle | Requeue::OnChange => Some(self.next_cycle(self.now)),
        };
        if let Some(at) = at {
            self.schedule(worker, at);
        }
    }

    fn note_step(&mut self, worker: usize, reconciled: &Reconciled) {
        let Reconciled { worker: as_read, observation, decision, results, record } = reconciled;
        self.figures.reconciles += 1;
        *self.figures.reasons.entry(record.reason.code).or_default() += 1;
        for (effect, _) in decision.effects.iter().zip(results) {
            *self.figures.calls.entry(effect.name()).or_default() += 1;
        }
        let to = record.patch.status.unwrap_or(as_read.status);
        let is_routine = to == as_read.status && record.outcome != Outcome::Retry && !decision.relies_on_record();
        if is_routine && decision.changes.is_none() {
            return;
        }
        let step = Step {
            at: self.timestamp(self.now),
            worker,
            from: as_read.status,
            to,
            outcome: record.outcome,
            reason: record.reason.clone(),
            ec2: ec2_shown(&observation.instance),
            sessions: self.nodes[worker].simulation.sessions.len(),
            effects: decision.effects.iter().zip(results).map(|(effect, _)| effect.name()).collect(),
            repeats: 0,
        };
        let latest = self.nodes[worker].latest_step;
        if let Some(latest) = latest.map(|position| &mut self.steps[position])
            && (latest.from, latest.to, latest.reason.code, &latest.effects)
                == (step.from, step.to, step.reason.code, &step.effects)
            && step.from == step.to
        {
            latest.repeats += 1;
            return;
        }
        self.nodes[worker].latest_step = Some(self.steps.len());
        self.steps.push(step);
    }

    fn finish(mut self, hours: f64, seed: u64) -> History {
        for node in &self.nodes {
            if let Some(since) = node.running_since {
                self.figures.instance_hours += (self.end - since) as f64 / 3_600_000.0;
            }
        }
        let mut figures = self.figures;
        figures.cost = figures.instance_hours * self.fleet.price_per_hour;
        if figures.starts > 0 {
            figures.mean_time_to_running = Some(self.times_to_running.0 / figures.starts as f64);
            figures.longest_time_to_running = Some(self.times_to_running.1);
        }
        let (total, longest, begun) = self.delays;
        figures.sessions.mean_delay = if begun > 0 { total / begun as f64 } else { 0.0 };
        figures.sessions.longest_delay = longest;
        History {
            version: env!("CARGO_PKG_VERSION"),
            seed,
            started_at: self.start,
            hours,
            workers: self.nodes.iter().map(|node| node.simulation.worker.id.clone()).collect(),
            first_statuses: self.first_statuses,
            steps: self.steps,
            records: self.nodes.into_iter().map(|node| node.simulation.worker).collect(),
            figures,
        }
    }
}

impl Node {
    fn new(position: usize, member: &Member, fleet: &Fleet, policy: &Policy, start: Timestamp) -> Self {
        let mut record = Worker::new(member.id.as_str(), member.status);
        record.desired_status = member.desired;
        record.created_at = Some(start);
        record.is_idle_detection_enabled = policy.scale_down.enabled;
        let others = position as u64 * INSTANCES_PER_WORKER;
        let instance = member.instance.map(|state| {
            let id = member.instance_id.clone().unwrap_or_else(|| format!("i-{:017x}", others + 1));
            let mut instance = Instance::new(id, state);
            let [_, high, middle, low] = u32::try_from(position).unwrap_or_default().to_be_bytes();
            instance.private_ip = Some(format!("10.{high}.{middle}.{low}"));
            instance.tags.insert(WORKER_ID_TAG.to_owned(), member.id.clone());
            instance
        });
        record.ec2_instance_id = member.instance_id.as_deref().map(InstanceId::from);
        if let Some(instance) = &instance {
            record.ec2_instance_id = Some(instance.id.clone());
            if instance.state == Ec2State::Running {
                record.private_ip.clone_from(&instance.private_ip);
                record.ip_address.clone_from(&instance.private_ip);
            }
        }
        let mut simulation = Simulation::new(record).with_other_instances(others);
        simulation.ec2.transition_time = fleet.boot_time;
        if let Some(instance) = instance {
            simulation.ec2.place(instance, start);
        }
        let regions = std::mem::take(&mut simulation.policy.regions);
        simulation.policy = policy.clone();
        if simulation.policy.regions.regions.is_empty() {
            simulation.policy.regions = regions;
        }
        let template = Template::new("metal", "m5zn.metal");
        simulation.template = Some(Template { drain_timeout: fleet.drain_timeout, ..template });
        Self {
            simulation,
            turn: 0,
            due: None,
            retries: 0,
            is_eligible: false,
            requested_at: None,
            running_since: None,
            idle_since: 0,
            latest_step: None,
        }
    }
}

/// The observed state of an instance as a word.
fn ec2_shown(instance: &Lookup<Instance>) -> &'static str {
    match instance {
        Lookup::Found(instance) => instance.state.as_str(),
        Lookup::Absent => "absent",
        Lookup::Unknown(_) => "unknown",
        Lookup::NotRequested => "not requested",
    }
}
