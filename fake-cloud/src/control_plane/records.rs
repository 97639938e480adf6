//! The store: every record of one control plane, behind one lock.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

use super::default_templates;
use super::error::ApiError;
use super::etcd_mirror::{self, EtcdMirror, NoMirror};
use super::input::written;
use super::settings::{Settings, Supported};
use super::worker::Worker;
use crate::clock::Clock;

/// How many events, and how many audit entries, are remembered.
const REMEMBERED: usize = 10_000;

/// How many status changes a record remembers.
const HISTORY: usize = 50;

/// A JSON object, shared: listing ten thousand records copies none of them.
pub type Object = Arc<Map<String, Value>>;

/// The records of one control plane. Clones show the same records.
///
/// # Guarantees
/// Every call is atomic: it sees one state of the records, and either changes all it has to or nothing. A refused
/// call changes no record. Changes reach the mirror in the order in which they happened.
#[derive(Clone)]
pub struct Records {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    settings: Settings,
    mirror: Box<dyn EtcdMirror>,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) workers: BTreeMap<String, Arc<Worker>>,
    pub(super) sessions: BTreeMap<String, Object>,
    pub(super) templates: BTreeMap<String, Object>,
    pub(super) discovery: Object,
    pub(super) audit: VecDeque<Object>,
    pub(super) events: VecDeque<Object>,
    pub(super) draw: Draw,
}

/// Where ids come from.
pub(super) struct Draw(StdRng);

impl Draw {
    pub(super) fn id(&mut self) -> String {
        let mut bytes = [0; 16];
        self.0.fill_bytes(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
    }
}

/// Whether a change is one that a decision could rest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangeKind {
    /// It raises the version: whoever read the record before has to read it again.
    Change,
    /// A measurement: the version stays, or every metrics report would make every decision stale.
    Measurement,
}

/// A change of one worker in the making.
pub(super) struct Draft<'a> {
    pub(super) worker: Worker,
    pub(super) now: DateTime<Utc>,
    pub(super) settings: &'a Settings,
    pub(super) weight: ChangeKind,
    pub(super) others: &'a mut State,
    events: Vec<(&'static str, Value)>,
}

impl Draft<'_> {
    pub(super) fn announce(&mut self, event: &'static str, data: Value) {
        self.events.push((event, data));
    }

    /// Moves to a status and remembers the move.
    pub(super) fn enter(&mut self, status: &str, reason: Option<&str>) {
        let from = self.worker.status().to_owned();
        if from == status {
            return;
        }
        let at = written(self.now);
        let entry = json!({"from": from, "to": status, "at": at, "reason": reason});
        self.worker.append("state_history", entry, HISTORY);
        self.worker.set("status", status);
        if status == "running" {
            if self.worker.get("started_at").is_none_or(Value::is_null) {
                self.worker.set("started_at", at.clone());
            }
            if matches!(from.as_str(), "starting" | "stopping" | "stopped") {
                self.worker.set("last_resumed_at", at.clone());
            }
        }
        if from == "terminated" {
            self.worker.set("terminated_at", Value::Null);
        }
        self.announce("cml_worker.status.updated.v1", json!({"from": from, "to": status}));
    }
}

impl Records {
    /// A control plane with the usual templates and no workers, which mirrors to nowhere.
    pub fn new(clock: Clock) -> Self {
        Self::with_settings(clock, Settings::default(), NoMirror)
    }

    /// A control plane set up in every detail.
    pub fn with_settings(clock: Clock, settings: Settings, mirror: impl EtcdMirror + 'static) -> Self {
        let state = State::fresh(clock.now(), settings.seed);
        Self { shared: Arc::new(Shared { clock, settings, mirror: Box::new(mirror), state: Mutex::new(state) }) }
    }

    /// The clock the records go by.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// How they are set up.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// One worker.
    pub fn worker(&self, id: &str) -> Result<Arc<Worker>, ApiError> {
        self.read(|state| state.workers.get(id).cloned()).ok_or_else(|| unknown_worker(id))
    }

    /// Forgets everything but how it is set up, as if it had just been made. The mirror forgets it too.
    pub fn reset(&self) {
        self.write(|state, now| {
            let prefix = &self.shared.settings.etcd_prefix;
            let workers = state.workers.values().map(|worker| etcd_mirror::of_worker(prefix, worker));
            let sessions = state.sessions.values().map(|session| etcd_mirror::of_session(prefix, session));
            for key in workers.chain(sessions).flat_map(BTreeMap::into_keys) {
                self.shared.mirror.delete(&key);
            }
            *state = State::fresh(now, self.shared.settings.seed);
        });
    }

    pub(super) fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.shared.state.lock())
    }

    /// Changes whatever is not a worker. Sessions changed here must be mirrored with [`Self::put_session`].
    pub(super) fn write<T>(&self, change: impl FnOnce(&mut State, DateTime<Utc>) -> T) -> T {
        let mut state = self.shared.state.lock();
        // The time is read under the lock, or two changes could carry their times in the wrong order.
        change(&mut state, self.shared.clock.now())
    }

    /// Changes one worker, if it is still at the expected version.
    pub(super) fn change<T>(
        &self,
        id: &str,
        expected: Option<u64>,
        change: impl FnOnce(&mut Draft<'_>) -> Result<T, ApiError>,
    ) -> Result<(Arc<Worker>, T), ApiError> {
        self.write(|state, now| {
            let before = state.workers.get(id).cloned().ok_or_else(|| unknown_worker(id))?;
            self.check_version(&before, expected)?;
            let mut draft = Draft {
                worker: (*before).clone(),
                now,
                settings: &self.shared.settings,
                weight: ChangeKind::Change,
                others: state,
                events: Vec::new(),
            };
            let result = change(&mut draft)?;
            let Draft { mut worker, weight, events, .. } = draft;
            if weight == ChangeKind::Change {
                self.stamp(&mut worker, now);
            }
            let worker = self.put_worker(state, worker);
            for (event, data) in events {
                state.announce(event, Some(id), data, now);
            }
            Ok((worker, result))
        })
    }

    /// Refuses what was decided on another version. A server without versions has nothing to refuse by.
    pub(super) fn check_version(&self, worker: &Worker, expected: Option<u64>) -> Result<(), ApiError> {
        let current = worker.version();
        match (self.shared.settings.dialect.versions, expected) {
            (Supported::Yes, Some(expected)) if expected != current => {
                Err(ApiError::VersionConflict { expected, current })
            }
            (Supported::Yes | Supported::No, _) => Ok(()),
        }
    }

    /// Marks a worker as changed now.
    pub(super) fn stamp(&self, worker: &mut Worker, now: DateTime<Utc>) {
        if self.shared.settings.dialect.versions == Supported::Yes {
            worker.set("version", worker.version() + 1);
        }
        worker.set("updated_at", written(now));
    }

    /// Stores a worker and mirrors it.
    pub(super) fn put_worker(&self, state: &mut State, worker: Worker) -> Arc<Worker> {
        let worker = Arc::new(worker);
        let prefix = &self.shared.settings.etcd_prefix;
        let before = state.workers.insert(worker.id().to_owned(), Arc::clone(&worker));
        let before = before.map(|before| etcd_mirror::of_worker(prefix, &before)).unwrap_or_default();
        etcd_mirror::mirror(&*self.shared.mirror, &before, &etcd_mirror::of_worker(prefix, &worker));
        worker
    }

    /// Stores a session as changed now, and mirrors it.
    pub(super) fn put_session(&self, state: &mut State, mut session: Map<String, Value>, now: DateTime<Utc>) -> Object {
        if self.shared.settings.dialect.versions == Supported::Yes {
            let version = session.get("version").and_then(Value::as_u64).unwrap_or(0);
            session.insert("version".into(), (version + 1).into());
        }
        session.insert("updated_at".into(), written(now));
        let session = Arc::new(session);
        let id = session.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
        let prefix = &self.shared.settings.etcd_prefix;
        let before = state.sessions.insert(id, Arc::clone(&session));
        let before = before.map(|before| etcd_mirror::of_session(prefix, &before)).unwrap_or_default();
        etcd_mirror::mirror(&*self.shared.mirror, &before, &etcd_mirror::of_session(prefix, &session));
        session
    }
}

impl State {
    /// What every control plane begins with.
    fn fresh(now: DateTime<Utc>, seed: u64) -> Self {
        Self {
            workers: BTreeMap::new(),
            sessions: BTreeMap::new(),
            templates: default_templates::templates(now).map(|(name, fields)| (name, Arc::new(fields))).collect(),
            discovery: Arc::new(Map::from_iter([
                ("enabled".to_owned(), Value::from(true)),
                ("regions".to_owned(), json!(["us-east-1"])),
                ("ami_name_pattern".to_owned(), "cisco-cml2.9*".into()),
                ("scan_interval_seconds".to_owned(), 300.into()),
            ])),
            audit: VecDeque::new(),
            events: VecDeque::new(),
            draw: Draw(StdRng::seed_from_u64(seed)),
        }
    }

    /// Remembers an event, as a CloudEvent.
    pub(super) fn announce(&mut self, event: &str, worker: Option<&str>, data: Value, now: DateTime<Utc>) -> Object {
        let id = self.draw.id();
        let event = Map::from_iter([
            ("specversion".to_owned(), Value::from("1.0")),
            ("id".to_owned(), id.into()),
            ("type".to_owned(), event.into()),
            ("source".to_owned(), "io.system.cml-cloud-manager/control-plane".into()),
            ("subject".to_owned(), worker.into()),
            ("time".to_owned(), written(now)),
            ("data".to_owned(), data),
        ]);
        remember(&mut self.events, event)
    }

    /// Writes an entry into the scaling audit.
    pub(super) fn enter_audit(&mut self, mut entry: Map<String, Value>, now: DateTime<Utc>) -> Object {
        entry.insert("id".into(), self.draw.id().into());
        entry.insert("recorded_at".into(), written(now));
        remember(&mut self.audit, entry)
    }
}

fn remember(list: &mut VecDeque<Object>, entry: Map<String, Value>) -> Object {
    let entry = Arc::new(entry);
    list.push_back(Arc::clone(&entry));
    if list.len() > REMEMBERED {
        list.pop_front();
    }
    entry
}

pub(super) fn unknown_worker(id: &str) -> ApiError {
    ApiError::NotFound { kind: "worker", id: id.to_owned() }
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Counts only: records hold passwords and tokens.
        let (workers, sessions) = self.read(|state| (state.workers.len(), state.sessions.len()));
        f.debug_struct("Records").field("workers", &workers).field("sessions", &sessions).finish_non_exhaustive()
    }
}
