//! Simulates a fleet event by event.

// Each worker has a `Simulation` of its own, with the instances that belong to it. This module adds what they share: time,
// sessions and the service that places them, controllers, outages, and when a worker is reconciled.

mod clock;
mod cloud;
mod placement;
mod statistics;
mod workers;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use chrono::TimeDelta;
use thiserror::Error;

use self::clock::{Event, Moment, millis};
use self::cloud::{Bucket, Describes};
use self::placement::{Delays, Ticket};
use self::statistics::StartTimes;
use super::Simulation;
use super::events::{Events, Fleet, Member, Outage};
use super::history::{Figures, History, Inputs, Refusal, Step};
use super::rng::Rng;
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::instance::{Instance, WORKER_ID_TAG};
use crate::lifecycle::policy::Policy;
use crate::lifecycle::status::{Ec2State, WorkerStatus};
use crate::lifecycle::template::Template;
use crate::lifecycle::time::{self, Timestamp};
use crate::lifecycle::worker::Worker;

/// Start of every simulation: a Monday.
const START: &str = "2026-01-05T00:00:00Z";

/// Longest simulation, in hours.
const MAX_HOURS: f64 = 24.0 * 366.0;

/// Largest fleet.
const MAX_WORKERS: usize = 100_000;

/// Most shards.
const MAX_SHARDS: usize = 1024;

/// Most sessions that may be expected of the rate.
const MAX_SESSIONS: f64 = 10_000_000.0;

/// Time from the write of a record to the reconcile that its watch event causes.
const WATCH_DELAY: Moment = 500;

/// Time from a reconcile to one that is due at once.
const SOON: Moment = 100;

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
    while let Some(event) = world.next_event() {
        world.handle(event);
    }
    Ok(world.finish(hours, seed))
}

impl Inputs {
    /// Simulates them again. The same version of LCM gives the same history.
    ///
    /// # Errors
    /// Those of [`run`].
    pub fn run(&self) -> Result<History, SimulationError> {
        run(&self.fleet, &self.events, &self.policy, self.hours, self.seed)
    }
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
    if !(1..=MAX_SHARDS).contains(&fleet.shards) {
        return range("shards", fleet.shards.to_string(), "1 to 1024");
    }
    if !(0.0..=1.0).contains(&events.fault_rate) {
        return range("fault_rate", events.fault_rate.to_string(), "0 to 1");
    }
    if let Some(Outage { share, .. }) = events.outages.iter().find(|outage| !(0.0..=1.0).contains(&outage.share)) {
        return range("outages.share", share.to_string(), "0 to 1");
    }
    if let Some(limit) = events.call_limit {
        if !(limit.per_second > 0.0 && limit.per_second.is_finite()) {
            return range("call_limit.per_second", limit.per_second.to_string(), "more than 0");
        }
        if limit.burst == 0 {
            return range("call_limit.burst", "0".to_owned(), "1 and more");
        }
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
    /// Limits of the describes and of the changes.
    describe_limit: Option<Bucket>,
    change_limit: Option<Bucket>,
    describes: Describes,
    /// Until when no controller leads, by shard.
    leaderless_until: Vec<Moment>,
    /// Workers in service.
    running: usize,
    /// Workers that were requested and are not in service yet.
    coming: usize,
    last_scale_down_at: Option<Timestamp>,
    steps: Vec<Step>,
    refused: Vec<Refusal>,
    figures: Figures,
    start_times: StartTimes,
    delays: Delays,
}

/// A worker of the fleet.
struct Node {
    simulation: Simulation,
    turn: u64,
    due: Option<Moment>,
    retries: u32,
    is_eligible: bool,
    is_polled: bool,
    /// When it was requested, until it is in service or can no longer come.
    requested_at: Option<Moment>,
    /// Since when its instance runs.
    running_since: Option<Moment>,
    /// Since when it has no active session.
    idle_since: Moment,
    /// Its latest step, to which equal ones are added.
    latest_step: Option<usize>,
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
        let members = fleet.at_start();
        let mut world = Self {
            fleet,
            events,
            policy,
            start,
            end: (hours * 3_600_000.0) as Moment,
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
            describe_limit: events.call_limit.map(Bucket::new),
            change_limit: events.call_limit.map(Bucket::new),
            describes: Describes::default(),
            leaderless_until: vec![0; fleet.shards],
            running: 0,
            coming: 0,
            last_scale_down_at: None,
            steps: Vec::new(),
            refused: Vec::new(),
            figures: Figures::default(),
            start_times: StartTimes::default(),
            delays: Delays::default(),
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
        world.push_events()?;
        Ok(world)
    }

    /// Schedules the events that have a time, after a check of the workers that they name.
    fn push_events(&mut self) -> Result<(), SimulationError> {
        let events = self.events;
        for (position, session) in events.sessions.iter().enumerate() {
            if let Some(worker) = &session.worker {
                self.position(worker)?;
            }
            self.push(millis(session.at), Event::Planned(position));
        }
        self.push_arrival();
        for (position, event) in events.console.iter().enumerate() {
            self.position(&event.worker)?;
            self.push(millis(event.at), Event::Console(position));
        }
        for (position, event) in events.desired.iter().enumerate() {
            self.position(&event.worker)?;
            self.push(millis(event.at), Event::Desired(position));
        }
        for (position, event) in events.drains.iter().enumerate() {
            self.position(&event.worker)?;
            self.push(millis(event.at), Event::Drain(position));
        }
        for (position, event) in events.licenses.iter().enumerate() {
            self.position(&event.worker)?;
            self.push(millis(event.at), Event::License(position));
        }
        for (position, at) in events.controller_failures.iter().enumerate() {
            self.push(millis(*at), Event::ControllerFails(position));
        }
        Ok(())
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

    fn handle(&mut self, event: Event) {
        let events = self.events;
        match event {
            Event::Arrival => self.arrive(),
            Event::Planned(position) => self.request(&events.sessions[position]),
            Event::Place => self.place_waiting(),
            Event::Begin(session) => self.begin(session),
            Event::End(session) => self.end_session(session),
            Event::GiveUp(session) => self.give_up(session),
            Event::Reconcile { worker, turn } => self.reconcile(worker, turn),
            Event::Settle(worker) => self.settle(worker),
            Event::Console(position) => {
                let event = &events.console[position];
                self.act_in_console(self.named(&event.worker), event.action);
            }
            Event::Desired(position) => {
                let event = &events.desired[position];
                self.desire(self.named(&event.worker), event.desired);
            }
            Event::Drain(position) => {
                let event = &events.drains[position];
                self.operate(self.named(&event.worker), event.action);
            }
            Event::License(position) => {
                let event = &events.licenses[position];
                self.license(self.named(&event.worker), event);
            }
            Event::ControllerFails(position) => self.fail_controller(position),
            Event::TakeOver(shard) => self.take_over(shard),
        }
    }
}

impl Node {
    fn new(position: usize, member: &Member, fleet: &Fleet, policy: &Policy, start: Timestamp) -> Self {
        let before = |age: Duration| start - TimeDelta::from_std(age).unwrap_or_default();
        let mut record = Worker::new(member.id.as_str(), member.status);
        record.name.clone_from(&member.name);
        record.desired_status = member.desired;
        record.aws_region.clone_from(&member.region);
        record.created_at = Some(before(member.age));
        record.is_idle_detection_enabled = policy.scale_down.enabled;
        let others = position as u64 * INSTANCES_PER_WORKER;
        let instance = member.instance.map(|state| {
            let id = member.instance_id.clone().unwrap_or_else(|| format!("i-{:017x}", others + 1));
            let mut instance = Instance::new(id, state);
            let [_, high, middle, low] = u32::try_from(position).unwrap_or_default().to_be_bytes();
            instance.private_ip = Some(format!("10.{high}.{middle}.{low}"));
            instance.instance_type.clone_from(&member.instance_type);
            instance.tags.clone_from(&member.tags);
            instance.tags.insert(WORKER_ID_TAG.to_owned(), member.id.clone());
            instance.launched_at = (!member.instance_age.is_zero()).then(|| before(member.instance_age));
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
        simulation.now = start;
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
        simulation.template =
            Some(Template { drain_timeout: member.drain_timeout.unwrap_or(fleet.drain_timeout), ..template });
        Self {
            simulation,
            turn: 0,
            due: None,
            retries: 0,
            is_eligible: false,
            is_polled: false,
            requested_at: None,
            running_since: None,
            idle_since: 0,
            latest_step: None,
        }
    }
}
