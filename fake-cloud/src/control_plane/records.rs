//! Store of all records of one control plane, behind one lock.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::etcd_mirror::{self, EtcdMirror, NoMirror};
use super::input::format_time;
use super::settings::{Generation, Settings};
use super::settings_and_audit::default_templates;
use super::worker::Worker;
use crate::clock::Clock;
use crate::world::SeededRng;

/// Maximum number of events, and of audit entries; older ones are dropped.
const MAX_EVENTS: usize = 10_000;

/// Maximum number of status changes in a record.
const MAX_HISTORY: usize = 50;

/// A inner JSON object: listing ten thousand records copies none of them.
pub type Object = Arc<Map<String, Value>>;

/// Records of one control plane. Clones share the records.
///
/// # Guarantees
/// Every call is atomic: it sees one state of the records and applies all of its changes or none. A rejected call
/// changes no record. Changes reach the mirror in the order in which they were made.
#[derive(Clone)]
pub struct Records {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    settings: Settings,
    mirror: Box<dyn EtcdMirror>,
    state: Mutex<State>,
}

#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct State {
    /// Seed of the initial state.
    seed: u64,
    pub(super) workers: BTreeMap<String, Arc<Worker>>,
    pub(super) sessions: BTreeMap<String, Object>,
    pub(super) templates: BTreeMap<String, Object>,
    pub(super) discovery: Object,
    pub(super) audit: VecDeque<Object>,
    pub(super) events: VecDeque<Object>,
    pub(super) ids: IdGenerator,
}

/// All records of a snapshot.
#[derive(serde::Deserialize)]
#[serde(transparent)]
pub(crate) struct RecordsState(State);

/// Generator of ids.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct IdGenerator(SeededRng);

impl IdGenerator {
    pub(super) fn new_id(&mut self) -> String {
        self.0.uuid()
    }
}

/// Whether a change affects decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangeKind {
    /// Raises the version, so that a decision based on the previous record is rejected.
    Change,
    /// Keeps the version: otherwise every metrics report would invalidate every decision.
    Measurement,
}

/// Change of one worker in progress.
pub(super) struct Draft<'a> {
    pub(super) worker: Worker,
    pub(super) now: DateTime<Utc>,
    pub(super) settings: &'a Settings,
    pub(super) weight: ChangeKind,
    pub(super) others: &'a mut State,
    events: Vec<(&'static str, Value)>,
}

impl Draft<'_> {
    pub(super) fn add_event(&mut self, event: &'static str, data: Value) {
        self.events.push((event, data));
    }

    /// Sets the status and adds it to the status history.
    pub(super) fn set_status(&mut self, status: &str, reason: Option<&str>) {
        let from = self.worker.status().to_owned();
        if from == status {
            return;
        }
        let at = format_time(self.now);
        let entry = json!({"from": from, "to": status, "at": at, "reason": reason});
        self.worker.append("state_history", entry, MAX_HISTORY);
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
        self.add_event("cml_worker.status.updated.v1", json!({"from": from, "to": status}));
    }
}

impl Records {
    /// Creates a control plane with the default templates, no workers and no mirror.
    pub fn new(clock: Clock) -> Self {
        Self::with_settings(clock, Settings::default(), NoMirror)
    }

    /// Creates a control plane with the given settings and mirror.
    pub fn with_settings(clock: Clock, settings: Settings, mirror: impl EtcdMirror + 'static) -> Self {
        let state = State::initial(clock.now(), settings.seed);
        Self { inner: Arc::new(Inner { clock, settings, mirror: Box::new(mirror), state: Mutex::new(state) }) }
    }

    /// Clock of all timestamps.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Settings given at creation.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// The worker with this id.
    pub fn worker(&self, id: &str) -> Result<Arc<Worker>, ApiError> {
        self.read(|state| state.workers.get(id).cloned()).ok_or_else(|| unknown_worker(id))
    }

    /// Resets all records to the initial state and deletes the mirrored keys.
    pub fn reset(&self) {
        self.write(|state, now| {
            let settings = &self.inner.settings;
            let workers = state.workers.values().map(|worker| etcd_mirror::worker_keys(settings, worker));
            let sessions = state.sessions.values().map(|session| etcd_mirror::session_keys(settings, session));
            for key in workers.chain(sessions).flat_map(BTreeMap::into_keys) {
                self.inner.mirror.delete(&key);
            }
            *state = State::initial(now, state.seed);
        });
    }

    /// Runs `work` on the state for a snapshot. No record changes until it returns.
    pub(crate) fn capture<T>(&self, work: impl FnOnce(serde_json::Result<Value>) -> T) -> T {
        let state = self.inner.state.lock();
        work(serde_json::to_value(&*state))
    }

    /// Replaces all records. The mirrored keys are part of the restored etcd.
    pub(crate) fn restore(&self, state: RecordsState) {
        *self.inner.state.lock() = state.0;
    }

    pub(super) fn read<T>(&self, f: impl FnOnce(&State) -> T) -> T {
        f(&self.inner.state.lock())
    }

    /// Changes objects other than workers. Changed sessions must be stored with [`Self::put_session`].
    pub(super) fn write<T>(&self, change: impl FnOnce(&mut State, DateTime<Utc>) -> T) -> T {
        let mut state = self.inner.state.lock();
        // Read the time under the lock, so that timestamps are in the order of the changes.
        change(&mut state, self.inner.clock.now())
    }

    /// Changes one worker if it is still at the expected version.
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
                settings: &self.inner.settings,
                weight: ChangeKind::Change,
                others: state,
                events: Vec::new(),
            };
            let result = change(&mut draft)?;
            let Draft { mut worker, weight, events, .. } = draft;
            if weight == ChangeKind::Change {
                self.touch(&mut worker, now);
            }
            let worker = self.put_worker(state, worker);
            for (event, data) in events {
                state.add_event(event, Some(id), data, now);
            }
            Ok((worker, result))
        })
    }

    /// Rejects a change of an outdated version. A server without versions accepts every change.
    pub(super) fn check_version(&self, worker: &Worker, expected: Option<u64>) -> Result<(), ApiError> {
        let current = worker.version();
        match expected.filter(|_| self.inner.settings.generation.is_extended()) {
            Some(expected) if expected != current => Err(ApiError::VersionConflict { expected, current }),
            Some(_) | None => Ok(()),
        }
    }

    /// Sets the time of the last change.
    pub(super) fn touch(&self, worker: &mut Worker, now: DateTime<Utc>) {
        if self.inner.settings.generation.is_extended() {
            worker.set("version", worker.version() + 1);
        }
        if self.inner.settings.generation == Generation::Original {
            // Shown, but no request is conditional on it.
            worker.increment("state_version");
        }
        worker.set("updated_at", format_time(now));
    }

    /// Stores a worker and mirrors it.
    pub(super) fn put_worker(&self, state: &mut State, worker: Worker) -> Arc<Worker> {
        let worker = Arc::new(worker);
        let settings = &self.inner.settings;
        let before = state.workers.insert(worker.id().to_owned(), Arc::clone(&worker));
        let before = before.map(|before| etcd_mirror::worker_keys(settings, &before)).unwrap_or_default();
        etcd_mirror::mirror(&*self.inner.mirror, &before, &etcd_mirror::worker_keys(settings, &worker));
        worker
    }

    /// Stores an imported worker. The original server does not mirror an import.
    pub(super) fn put_imported(&self, state: &mut State, worker: Worker) -> Arc<Worker> {
        match self.inner.settings.generation {
            Generation::Extended => self.put_worker(state, worker),
            Generation::Original => {
                let worker = Arc::new(worker);
                state.workers.insert(worker.id().to_owned(), Arc::clone(&worker));
                worker
            }
        }
    }

    /// Deletes a key of a worker that a client has written to etcd.
    pub(super) fn delete_key(&self, worker: &str, name: &str) {
        self.inner.mirror.delete(&format!("{}/workers/{worker}/{name}", self.inner.settings.etcd_prefix));
    }

    /// Stores a session with the time of the change, and mirrors it.
    pub(super) fn put_session(&self, state: &mut State, mut session: Map<String, Value>, now: DateTime<Utc>) -> Object {
        if self.inner.settings.generation.is_extended() {
            let version = session.get("version").and_then(Value::as_u64).unwrap_or(0);
            session.insert("version".into(), (version + 1).into());
        }
        session.insert("updated_at".into(), format_time(now));
        let session = Arc::new(session);
        let id = session.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
        let settings = &self.inner.settings;
        let before = state.sessions.insert(id, Arc::clone(&session));
        let before = before.map(|before| etcd_mirror::session_keys(settings, &before)).unwrap_or_default();
        etcd_mirror::mirror(&*self.inner.mirror, &before, &etcd_mirror::session_keys(settings, &session));
        session
    }
}

impl State {
    /// Initial state of a control plane.
    fn initial(now: DateTime<Utc>, seed: u64) -> Self {
        Self {
            seed,
            workers: BTreeMap::new(),
            sessions: BTreeMap::new(),
            templates: default_templates(now).map(|(name, fields)| (name, Arc::new(fields))).collect(),
            discovery: Arc::new(Map::from_iter([
                ("enabled".to_owned(), Value::from(true)),
                ("regions".to_owned(), json!(["us-east-1"])),
                ("ami_name_pattern".to_owned(), "cisco-cml2.9*".into()),
                ("scan_interval_seconds".to_owned(), 300.into()),
            ])),
            audit: VecDeque::new(),
            events: VecDeque::new(),
            ids: IdGenerator(SeededRng::new(seed, "control plane")),
        }
    }

    /// Adds an event, as a CloudEvent.
    pub(super) fn add_event(&mut self, event: &str, worker: Option<&str>, data: Value, now: DateTime<Utc>) -> Object {
        let id = self.ids.new_id();
        let event = Map::from_iter([
            ("specversion".to_owned(), Value::from("1.0")),
            ("id".to_owned(), id.into()),
            ("type".to_owned(), event.into()),
            ("source".to_owned(), "io.system.cml-cloud-manager/control-plane".into()),
            ("subject".to_owned(), worker.into()),
            ("time".to_owned(), format_time(now)),
            ("data".to_owned(), data),
        ]);
        push_bounded(&mut self.events, event)
    }

    /// Adds an entry to the scaling audit.
    pub(super) fn add_audit_entry(&mut self, mut entry: Map<String, Value>, now: DateTime<Utc>) -> Object {
        entry.insert("id".into(), self.ids.new_id().into());
        entry.insert("recorded_at".into(), format_time(now));
        push_bounded(&mut self.audit, entry)
    }
}

fn push_bounded(list: &mut VecDeque<Object>, entry: Map<String, Value>) -> Object {
    let entry = Arc::new(entry);
    list.push_back(Arc::clone(&entry));
    if list.len() > MAX_EVENTS {
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
