//! Workers with sessions: starts and ends sessions, starts and cancels drains, and records when each session was active.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use fake_cloud::control_plane::{Input, Worker};
use fake_cloud::world::SeededRng;
use serde_json::json;

use crate::churn::text;
use crate::fixture::{DRAIN_TIMEOUT, Fixture};

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
        let timeout = TimeDelta::from_std(DRAIN_TIMEOUT).expect("a few seconds") - TimeDelta::milliseconds(10);
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
            let since = drained.time("drain_started_at").expect("a start time");
            self.drains.entry(worker.to_owned()).or_default().push(since);
        }
    }

    fn cancel_drain(&mut self, worker: &str) {
        if self.fixture.cloud.records().cancel_drain(worker, None, "not now", "operator").is_ok() {
            self.avoided.insert(worker.to_owned());
        }
    }
}
