//! Workers with sessions: starts and ends sessions, starts and cancels drains, and records when each session was active.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use fake_cloud::control_plane::{Generation, Input, Worker};
use fake_cloud::world::SeededRng;
use serde_json::json;

use crate::churn::text;
use crate::fixture::Fixture;

/// A session and the period in which it was certainly active.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) worker: String,
    pub(crate) since: DateTime<Utc>,
    pub(crate) until: Option<DateTime<Utc>>,
}

pub(crate) struct Hosts {
    fixture: Arc<Fixture>,
    pub(crate) sessions: Vec<Session>,
    /// Sessions that are scheduled on a worker and never start.
    pub(crate) scheduled: Vec<String>,
    /// Start times of the drains of each worker.
    drains: BTreeMap<String, Vec<DateTime<Utc>>>,
    /// Workers whose drain was canceled. They get no new session, because a stop in progress may still be applied.
    avoided: BTreeSet<String>,
}

impl Hosts {
    pub(crate) fn new(fixture: Arc<Fixture>) -> Self {
        Self { fixture, sessions: Vec::new(), scheduled: Vec::new(), drains: BTreeMap::new(), avoided: BTreeSet::new() }
    }

    /// Whether a session may be terminated at a time: a drain that started after it is past its deadline.
    pub(crate) fn may_be_terminated(&self, session: &Session, at: DateTime<Utc>) -> bool {
        // Less the rounding error of a timeout in fractions of hours.
        let timeout =
            TimeDelta::from_std(self.fixture.drain_timeout()).expect("a few hours") - TimeDelta::milliseconds(10);
        let mut drains = self.drains.get(&session.worker).into_iter().flatten();
        drains.any(|since| *since >= session.since && *since + timeout <= at)
    }

    /// Whether neither its user nor a controller has ended the session.
    fn is_active(&self, session: &Session) -> bool {
        let now = || self.fixture.cloud.session(&session.id).expect("an existing session");
        session.until.is_none() && text(&now(), "status") == "running"
    }

    /// Makes one change to a host.
    pub(crate) fn step(&mut self, worker: &Worker, rng: &mut SeededRng) {
        let id = worker.id();
        match (worker.status(), worker.desired(), rng.below(10)) {
            ("running", Some("running"), 0..5) => self.start_sessions(id, rng),
            ("running", Some("running"), 5..7) | ("draining", _, 0..4) => self.end_session(id),
            ("running", Some("running"), _) => self.drain(id),
            ("draining", _, 4) => self.cancel_drain(id),
            ("draining", _, 5..7) => self.reschedule(id),
            ("stopped", Some("stopped"), _) => {
                self.avoided.remove(id);
                let desired = Input::from_value(json!({"desired_status": "running"})).expect("an object");
                drop(self.fixture.cloud.records().set_desired(id, None, &desired));
            }
            _ => {}
        }
    }

    /// Starts sessions on a running worker that has none and is not about to be stopped.
    fn start_sessions(&mut self, worker: &str, rng: &mut SeededRng) {
        let busy = self.sessions.iter().any(|session| session.worker == worker && self.is_active(session));
        if busy || self.avoided.contains(worker) {
            return;
        }
        for _ in 0..=rng.below(2) {
            let id = format!("session-{:05}", self.sessions.len());
            let fields = json!({"id": id, "worker_id": worker, "status": "running"});
            self.fixture.cloud.add_session(fields).expect("a valid session");
            let since = self.fixture.cloud.now();
            self.sessions.push(Session { id, worker: worker.to_owned(), since, until: None });
        }
        if rng.chance(0.3) {
            let id = format!("scheduled-{:05}", self.scheduled.len());
            let fields = json!({"id": id, "worker_id": worker, "status": "scheduled"});
            self.fixture.cloud.add_session(fields).expect("a valid session");
            self.scheduled.push(id);
        }
    }

    /// Ends an active session, as its user.
    fn end_session(&mut self, worker: &str) {
        let active = self.sessions.iter().position(|session| session.worker == worker && self.is_active(session));
        if let Some(index) = active {
            let session = &mut self.sessions[index];
            session.until = Some(self.fixture.cloud.now());
            let stopped = Input::from_value(json!({"status": "stopped"})).expect("an object");
            drop(self.fixture.cloud.records().transition_session(&session.id, &stopped));
        }
    }

    fn drain(&mut self, worker: &str) {
        if let Ok(drained) = self.fixture.cloud.records().drain(worker, None, "maintenance", "operator") {
            // The original server does not note the start.
            let since = drained.time("drain_started_at").unwrap_or_else(|| self.fixture.cloud.now());
            self.drains.entry(worker.to_owned()).or_default().push(since);
        }
    }

    fn cancel_drain(&mut self, worker: &str) {
        let records = self.fixture.cloud.records();
        let canceled = match self.fixture.generation {
            Generation::Extended => records.cancel_drain(worker, None, "not now", "operator"),
            Generation::Original => {
                let running = Input::from_value(json!({"desired_status": "running"})).expect("an object");
                records.set_desired(worker, None, &running)
            }
        };
        if canceled.is_ok() {
            self.avoided.insert(worker.to_owned());
        }
    }

    /// Takes the scheduled sessions of a worker back, as a scheduler does where a controller cannot.
    fn reschedule(&self, worker: &str) {
        match self.fixture.generation {
            Generation::Extended => return,
            Generation::Original => {}
        }
        for id in &self.scheduled {
            let session = self.fixture.cloud.session(id).expect("an existing session");
            if text(&session, "worker_id") == worker {
                let back = Input::from_value(json!({"status": "pending", "worker_id": null})).expect("an object");
                drop(self.fixture.cloud.records().transition_session(id, &back));
            }
        }
    }

    /// Ends the sessions of draining workers whose deadline is hours away.
    pub(crate) fn release_draining(&mut self) {
        match self.fixture.generation {
            Generation::Extended => return,
            Generation::Original => {}
        }
        let workers = self.fixture.cloud.workers();
        for worker in workers.iter().filter(|worker| worker.status() == "draining") {
            self.end_session(worker.id());
            self.reschedule(worker.id());
        }
    }
}
