//! Sessions and the service that places them.

use std::time::Duration;

use super::clock::{Event, Moment, millis};
use super::{Node, World};
use crate::lifecycle::drain;
use crate::lifecycle::effect::Effect;
use crate::lifecycle::session::{KnownSessionState, Session, SessionPhase, SessionState};
use crate::lifecycle::status::{DesiredStatus, WorkerStatus};
use crate::simulate::Reconciled;
use crate::simulate::events::PlannedSession;

/// Delay from which on a session counts as delayed.
const LATE: Moment = 60_000;

/// A session of the service that places them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket {
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

/// Delays of the sessions that began, in seconds.
#[derive(Debug, Default)]
pub(super) struct Delays {
    pub(super) total: f64,
    pub(super) longest: f64,
    pub(super) begun: u64,
}

impl World<'_> {
    /// Requests a session of the rate, and schedules the next one.
    pub(super) fn arrive(&mut self) {
        let session = PlannedSession {
            at: Duration::from_millis(self.now),
            lasts: self.events.duration.draw(&mut self.arrivals),
            lead: self.events.lead,
            worker: None,
        };
        self.request(&session);
        self.push_arrival();
    }

    /// The rate is that of the busiest hour, and requests are dropped in the others.
    pub(super) fn push_arrival(&mut self) {
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

    pub(super) fn request(&mut self, session: &PlannedSession) {
        let wanted_at = self.now + millis(session.lead);
        let position = self.sessions.len();
        self.sessions.push(Ticket { wanted_at, lasts: millis(session.lasts), place: Placement::Waiting });
        self.figures.sessions.requested += 1;
        let assigned = session.worker.as_deref().map(|worker| self.named(worker));
        match assigned.filter(|worker| self.nodes[*worker].is_eligible) {
            Some(worker) => self.assign(position, worker),
            None => {
                self.wait(position);
                self.place_waiting();
            }
        }
    }

    /// Puts a session at the end of those that wait for a worker.
    fn wait(&mut self, session: usize) {
        let wanted_at = self.sessions[session].wanted_at;
        self.sessions[session].place = Placement::Waiting;
        self.waiting.push_back(session);
        self.push(wanted_at.saturating_add(millis(self.events.patience)), Event::GiveUp(session));
        let ask_at = self.asks_at(session);
        if ask_at > self.now {
            self.push(ask_at, Event::Place);
        }
    }

    /// When a worker is requested for a session that waits.
    fn asks_at(&self, session: usize) -> Moment {
        self.sessions[session].wanted_at.saturating_sub(millis(self.fleet.start_ahead))
    }

    pub(super) fn give_up(&mut self, session: usize) {
        if self.sessions[session].place == Placement::Waiting {
            self.sessions[session].place = Placement::Over;
            self.waiting.retain(|waiting| *waiting != session);
            self.figures.sessions.given_up += 1;
        }
    }

    fn assign(&mut self, session: usize, worker: usize) {
        self.sessions[session].place = Placement::Assigned(worker);
        let wanted_at = self.sessions[session].wanted_at;
        let mut assigned = Session::new(id(session), "scheduled");
        assigned.worker_id = Some(self.nodes[worker].simulation.worker.id.clone());
        assigned.timeslot_start = Some(self.timestamp(wanted_at));
        self.nodes[worker].simulation.sessions.push(assigned);
        self.push(wanted_at, Event::Begin(session));
    }

    /// Assigns waiting sessions to workers, and requests workers for those that are left and begin soon.
    pub(super) fn place_waiting(&mut self) {
        while let Some(session) = self.waiting.front().copied() {
            let Some(worker) = self.fullest_with_room() else { break };
            self.waiting.pop_front();
            self.assign(session, worker);
        }
        let pressing = self.waiting.iter().filter(|session| self.asks_at(**session) <= self.now).count();
        let per_worker = self.fleet.sessions_per_worker;
        let needed = pressing.div_ceil(per_worker).saturating_sub(self.coming);
        if needed == 0 || !self.fleet.on_demand {
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

    pub(super) fn begin(&mut self, session: usize) {
        let Placement::Assigned(worker) = self.sessions[session].place else { return };
        let Ticket { wanted_at, lasts, .. } = self.sessions[session];
        // An earlier assignment of a session that was handed back, or a worker that leaves: its drain hands it back.
        if self.now < wanted_at || !self.nodes[worker].is_eligible {
            return;
        }
        self.sessions[session].place = Placement::Running(worker);
        if let Some(held) = self.held_session(worker, session) {
            held.state = SessionState::Known(KnownSessionState::Running);
        }
        let delay = self.now.saturating_sub(wanted_at);
        self.figures.sessions.delayed += u64::from(delay > LATE);
        let seconds = delay as f64 / 1000.0;
        self.delays.total += seconds;
        self.delays.longest = self.delays.longest.max(seconds);
        self.delays.begun += 1;
        self.push(self.now.saturating_add(lasts), Event::End(session));
    }

    /// Begins the sessions that were due while their worker took none.
    pub(super) fn begin_due(&mut self, worker: usize) {
        let held = &self.nodes[worker].simulation.sessions;
        let due: Vec<usize> = held.iter().filter_map(|held| position(held.id.as_str())).collect();
        for session in due {
            self.begin(session);
        }
    }

    fn held_session(&mut self, worker: usize, session: usize) -> Option<&mut Session> {
        let id = id(session);
        self.nodes[worker].simulation.sessions.iter_mut().find(|held| held.id.as_str() == id)
    }

    pub(super) fn end_session(&mut self, session: usize) {
        let Placement::Running(worker) = self.sessions[session].place else { return };
        self.sessions[session].place = Placement::Over;
        self.figures.sessions.served += 1;
        self.forget(worker, session);
        if self.nodes[worker].simulation.worker.status == WorkerStatus::Draining {
            self.schedule(worker, self.next_cycle(self.now));
        }
        self.place_waiting();
    }

    /// Takes a session off its worker, which is idle once the last active one is over.
    fn forget(&mut self, worker: usize, session: usize) {
        let id = id(session);
        let node = &mut self.nodes[worker];
        let was_active = node.is_active();
        node.simulation.sessions.retain(|held| held.id.as_str() != id);
        if was_active && !node.is_active() {
            node.idle_since = self.now;
            self.schedule_service(worker);
        }
    }

    /// Moves the sessions that effects handed back or ended.
    pub(super) fn follow_effects(&mut self, worker: usize, reconciled: &Reconciled) {
        for (effect, result) in reconciled.decision.effects.iter().zip(&reconciled.results) {
            if let (Effect::HandBackSession { session, .. }, true) = (effect, result.is_success())
                && let Some(session) = position(session.as_str())
            {
                self.figures.sessions.handed_back += 1;
                self.wait(session);
            }
        }
        self.follow_sessions(worker);
    }

    /// Brings the sessions into agreement with those of a worker, whose effects may have moved or ended them.
    pub(super) fn follow_sessions(&mut self, worker: usize) {
        let is_up = self.nodes[worker].running_since.is_some();
        let is_eligible = self.nodes[worker].is_eligible;
        let held = &self.nodes[worker].simulation.sessions;
        if held.is_empty() && is_eligible {
            return;
        }
        let over: Vec<usize> = held
            .iter()
            .filter(|session| session.state.phase() == SessionPhase::Over || !is_up)
            .filter_map(|session| position(session.id.as_str()))
            .collect();
        for session in over {
            self.forget(worker, session);
            match self.sessions[session].place {
                Placement::Running(_) => {
                    self.sessions[session].place = Placement::Over;
                    self.figures.sessions.cut_short += 1;
                }
                Placement::Assigned(_) => self.wait(session),
                Placement::Waiting | Placement::Over => {}
            }
        }
    }
}

impl Node {
    /// Whether a session is in use on the worker.
    pub(super) fn is_active(&self) -> bool {
        drain::active(&self.simulation.sessions) > 0
    }
}

/// Id of the session at a position.
fn id(session: usize) -> String {
    format!("s-{}", session + 1)
}

/// Position of the session with an id.
fn position(id: &str) -> Option<usize> {
    id.strip_prefix("s-")?.parse::<usize>().ok()?.checked_sub(1)
}
