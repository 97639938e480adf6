//! Workers with sessions: filled, drained, sometimes un-drained, and what is known about each session's life.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use fake_cloud::control_plane::{Input, Worker};
use fake_cloud::world::SeededRng;
use serde_json::json;

use crate::churn::text;
use crate::fixture::{DRAIN_TIMEOUT, Fixture};

/// A session, and when it certainly was active.
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
    /// Sessions that were promised to a worker and had not begun.
    pub(crate) scheduled: Vec<String>,
    /// When drains of a worker began.
    drains: BTreeMap<String, Vec<DateTime<Utc>>>,
    /// Workers whose drain was called off: a stop that was under way may still arrive, so nobody new goes there.
    avoided: BTreeSet<String>,
}

impl Hosts {
    pub(crate) fn new(fixture: Arc<Fixture>) -> Self {
        Self { fixture, sessions: Vec::new(), scheduled: Vec::new(), drains: BTreeMap::new(), avoided: BTreeSet::new() }
    }

    /// Whether a session may be ended at a moment: a drain that began after it is past its deadline.
    pub(crate) fn may_be_forced(&self, session: &Session, at: DateTime<Utc>) -> bool {
        // What hours as a fraction lose.
        let patience = TimeDelta::from_std(DRAIN_TIMEOUT).expect("a few seconds") - TimeDelta::milliseconds(10);
        let mut drains = self.drains.get(&session.worker).into_iter().flatten();
        drains.any(|since| *since >= session.since && *since + patience <= at)
    }

    /// Whether a session goes on, as far as its own end and the control plane tell.
    fn goes_on(&self, session: &Session) -> bool {
        let now = || self.fixture.cloud.session(&session.id).expect("it exists");
        session.until.is_none() && text(&now(), "status") == "running"
    }

    /// Something happens to a host.
    pub(crate) fn step(&mut self, worker: &Worker, dice: &mut SeededRng) {
        let id = worker.id();
        match (worker.status(), worker.desired(), dice.below(10)) {
            ("running", Some("running"), 0..5) => self.fill(id, dice),
            ("running", Some("running"), 5..7) | ("draining", _, 0..4) => self.end_one(id),
            ("running", Some("running"), _) => self.drain(id),
            ("draining", _, 4) => self.call_off(id),
            ("stopped", Some("stopped"), _) => {
                self.avoided.remove(id);
                let wish = Input::from_value(json!({"desired_status": "running"})).expect("an object");
                drop(self.fixture.cloud.records().set_desired(id, None, &wish));
            }
            _ => {}
        }
    }

    /// Sessions begin on a worker that runs and is not about to be stopped.
    fn fill(&mut self, worker: &str, dice: &mut SeededRng) {
        let busy = self.sessions.iter().any(|session| session.worker == worker && self.goes_on(session));
        if busy || self.avoided.contains(worker) {
            return;
        }
        for _ in 0..=dice.below(2) {
            let id = format!("session-{:05}", self.sessions.len());
            let fields = json!({"id": id, "worker_id": worker, "status": "running"});
            self.fixture.cloud.add_session(fields).expect("a good session");
            let since = self.fixture.cloud.now();
            self.sessions.push(Session { id, worker: worker.to_owned(), since, until: None });
        }
        if dice.chance(0.3) {
            let id = format!("scheduled-{:05}", self.scheduled.len());
            let fields = json!({"id": id, "worker_id": worker, "status": "scheduled"});
            self.fixture.cloud.add_session(fields).expect("a good session");
            self.scheduled.push(id);
        }
    }

    /// A session comes to its own end, unless somebody ended it.
    fn end_one(&mut self, worker: &str) {
        let mine = self.sessions.iter().position(|session| session.worker == worker && self.goes_on(session));
        if let Some(place) = mine {
            let session = &mut self.sessions[place];
            session.until = Some(self.fixture.cloud.now());
            let over = Input::from_value(json!({"status": "stopped"})).expect("an object");
            drop(self.fixture.cloud.records().transition_session(&session.id, &over));
        }
    }

    fn drain(&mut self, worker: &str) {
        if let Ok(drained) = self.fixture.cloud.records().drain(worker, None, "maintenance", "operator") {
            let since = drained.time("drain_started_at").expect("the server notes it");
            self.drains.entry(worker.to_owned()).or_default().push(since);
        }
    }

    fn call_off(&mut self, worker: &str) {
        if self.fixture.cloud.records().cancel_drain(worker, None, "not now", "operator").is_ok() {
            self.avoided.insert(worker.to_owned());
        }
    }
}
