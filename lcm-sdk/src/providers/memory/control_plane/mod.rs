//! Control plane in memory.

mod idle;
mod port;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;

use super::fault_injection::{Fault, FaultInjection};
use crate::lifecycle::capabilities::{Capabilities, Support};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::{SessionId, WorkerId};
use crate::lifecycle::observation::{CloudMetrics, CmlMetrics};
use crate::lifecycle::session::Session;
use crate::lifecycle::template::Template;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::{Notes, Worker};
use crate::ports::{Clock, Fence, ScanSettings, Version};

/// A [`ControlPlane`](crate::ports::ControlPlane) port in memory, with versioned records, sessions, templates, audit and
/// idle detection.
///
/// # Guarantees
/// - Every call is atomic; a refused call changes nothing.
/// - Like the real server, bulk import rewrites known workers, only a running worker can be drained, terminating a worker
///   ends its sessions, and metrics do not change the version.
pub struct MemoryControlPlane {
    clock: Arc<dyn Clock>,
    versions: Versions,
    fencing: Fencing,
    notes: NotesKeeping,
    capabilities: Capabilities,
    idle_timeout: Duration,
    state: Mutex<State>,
    faults: FaultInjection,
}

/// Whether the server keeps versions of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Versions {
    /// A write that expects another version is a conflict.
    #[default]
    Kept,
    /// Records have no version, as on older servers.
    NotKept,
}

/// Whether the server checks the fencing token of the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fencing {
    /// Tokens are not checked.
    #[default]
    Ignored,
    /// A write with a lower token than an earlier one is a conflict.
    Enforced,
}

/// Whether the server keeps the notes of LCM on its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NotesKeeping {
    /// Notes are kept.
    #[default]
    Kept,
    /// Notes are accepted and dropped, as by the original server.
    Dropped,
}

#[derive(Default)]
struct State {
    workers: BTreeMap<WorkerId, Worker>,
    unreadable: Vec<Value>,
    sessions: BTreeMap<SessionId, Session>,
    templates: BTreeMap<String, Template>,
    discovery: Option<ScanSettings>,
    audit: Vec<(WorkerId, &'static str, String)>,
    metrics: BTreeMap<WorkerId, ReportedMetrics>,
    activity: BTreeMap<WorkerId, Timestamp>,
    highest_fence: Option<i64>,
    writes_to_cut: usize,
}

/// Latest metrics of a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportedMetrics {
    /// Metrics of the instance, from CloudWatch.
    pub cloud: Option<CloudMetrics>,
    /// Metrics of the CML system.
    pub cml: Option<CmlMetrics>,
    /// Time of collection.
    pub at: Timestamp,
}

impl MemoryControlPlane {
    /// Creates an empty control plane that keeps versions and ignores fencing tokens.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            versions: Versions::default(),
            fencing: Fencing::default(),
            notes: NotesKeeping::default(),
            capabilities: Capabilities::all(Support::Yes),
            idle_timeout: Duration::from_secs(3600),
            state: Mutex::default(),
            faults: FaultInjection::default(),
        }
    }

    /// Sets whether records have versions.
    #[must_use]
    pub fn with_versions(self, versions: Versions) -> Self {
        Self { versions, ..self }
    }

    /// Sets the optional features, except the versions. All are present by default. A missing feature is refused as such
    /// ([`Support::No`]), or its fields are ignored without a failure ([`Support::Unknown`]), as by a server that has not
    /// shown it yet.
    #[must_use]
    pub fn with_capabilities(self, capabilities: Capabilities) -> Self {
        Self { capabilities, ..self }
    }

    /// Sets whether fencing tokens are checked.
    #[must_use]
    pub fn with_fencing(self, fencing: Fencing) -> Self {
        Self { fencing, ..self }
    }

    /// Sets whether records keep notes. By default they do, unless the capabilities exclude it.
    #[must_use]
    pub fn with_notes_keeping(self, notes: NotesKeeping) -> Self {
        Self { notes, ..self }
    }

    /// Sets the time without activity after which a worker is idle. Default: 1 h.
    #[must_use]
    pub fn with_idle_timeout(self, idle_timeout: Duration) -> Self {
        Self { idle_timeout, ..self }
    }

    /// Adds or replaces a record. Its version is ignored; the server assigns the next one.
    pub fn put_worker(&self, mut worker: Worker) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        worker.created_at = worker.created_at.or(Some(now));
        worker.updated_at = worker.updated_at.or(Some(now));
        let before = state.workers.get(&worker.id).and_then(|before| before.version);
        worker.version = self.next(before);
        self.drop_notes(&mut worker);
        state.workers.insert(worker.id.clone(), worker);
    }

    /// Drops what the server does not keep.
    fn drop_notes(&self, worker: &mut Worker) {
        match self.notes {
            NotesKeeping::Kept => worker.notes.reading = None,
            NotesKeeping::Dropped => worker.notes = Notes::default(),
        }
    }

    /// Adds a record that cannot be parsed.
    pub fn put_unreadable(&self, record: Value) {
        self.state.lock().unreadable.push(record);
    }

    /// Current record of a worker. Records no call.
    pub fn stored_worker(&self, id: &WorkerId) -> Option<Worker> {
        self.state.lock().workers.get(id).cloned()
    }

    /// All current records. Records no call.
    pub fn stored_workers(&self) -> Vec<Worker> {
        self.state.lock().workers.values().cloned().collect()
    }

    /// Calls a function with each current record, in the order of their ids. Records no call. The function must not call
    /// the control plane.
    pub fn each_worker(&self, visit: impl FnMut(&Worker)) {
        self.state.lock().workers.values().for_each(visit);
    }

    /// Changes a record, as another client would. Returns whether it exists.
    pub fn edit(&self, id: &WorkerId, edit: impl FnOnce(&mut Worker)) -> bool {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let Some(worker) = state.workers.get_mut(id) else { return false };
        edit(worker);
        worker.version = self.next(worker.version);
        worker.updated_at = Some(now);
        true
    }

    /// Adds or replaces a session.
    pub fn put_session(&self, session: Session) {
        self.state.lock().sessions.insert(session.id.clone(), session);
    }

    /// Current state of a session. Records no call.
    pub fn stored_session(&self, id: &SessionId) -> Option<Session> {
        self.state.lock().sessions.get(id).cloned()
    }

    /// Adds or replaces a template.
    pub fn put_template(&self, template: Template) {
        self.state.lock().templates.insert(template.name.clone(), template);
    }

    /// Removes a template.
    pub fn remove_template(&self, name: &str) {
        self.state.lock().templates.remove(name);
    }

    /// Sets the discovery settings; `None` for a server without them.
    pub fn set_discovery(&self, settings: Option<ScanSettings>) {
        self.state.lock().discovery = settings;
    }

    /// Audit entries as worker, label and detail, oldest first.
    pub fn audit_entries(&self) -> Vec<(WorkerId, &'static str, String)> {
        self.state.lock().audit.clone()
    }

    /// Latest reported metrics of a worker.
    pub fn metrics_of(&self, id: &WorkerId) -> Option<ReportedMetrics> {
        self.state.lock().metrics.get(id).cloned()
    }

    /// Records user activity on a worker.
    pub fn note_activity(&self, id: &WorkerId, at: Timestamp) {
        self.state.lock().record_activity(id, at);
    }

    /// Highest fencing token of any write.
    pub fn highest_fence(&self) -> Option<i64> {
        self.state.lock().highest_fence
    }

    /// Fails the next call, without effect.
    pub fn fail_next(&self, failure: CallFailure) {
        self.faults.plan(None, Fault::Fail(failure));
    }

    /// Injects a fault into the next call of an operation, such as `write`, or with its argument, `worker w-1`.
    pub fn plan(&self, operation: &str, fault: Fault) {
        self.faults.plan(Some(operation), fault);
    }

    /// Interrupts the next write of a patch: all fields but the status are written, and the call fails. The HTTP client
    /// needs several calls for some patches and can fail between them.
    pub fn interrupt_next_write(&self) {
        self.state.lock().writes_to_cut += 1;
    }

    /// Recorded calls as `operation argument`, oldest first.
    pub fn calls(&self) -> Vec<String> {
        self.faults.calls()
    }

    fn next(&self, version: Version) -> Version {
        match self.versions {
            Versions::Kept => Some(version.unwrap_or(0) + 1),
            Versions::NotKept => None,
        }
    }

    /// Executes a read.
    fn read<T>(
        &self,
        operation: &str,
        argument: &str,
        read: impl FnOnce(&State) -> Result<T, CallFailure>,
    ) -> Result<T, CallFailure> {
        self.faults.call(operation, argument, || read(&self.state.lock()))
    }

    /// Executes a write, unless its fencing token is outdated.
    fn change<T>(
        &self,
        operation: &str,
        argument: &str,
        fence: Fence,
        change: impl FnOnce(&mut State, Timestamp) -> Result<T, CallFailure>,
    ) -> Result<T, CallFailure> {
        self.faults.call(operation, argument, || {
            let mut state = self.state.lock();
            if self.fencing == Fencing::Enforced && fence.0.is_some() && fence.0 < state.highest_fence {
                return Err(CallFailure::new(FailureKind::Conflict, "a newer leader has written"));
            }
            state.highest_fence = state.highest_fence.max(fence.0);
            change(&mut state, self.clock.now())
        })
    }
}

impl State {
    fn worker_mut(&mut self, id: &WorkerId) -> Result<&mut Worker, CallFailure> {
        self.workers.get_mut(id).ok_or_else(|| no_such("worker", id.as_str()))
    }
}

fn no_such(kind: &str, id: &str) -> CallFailure {
    CallFailure::with_code(FailureKind::Refused, "404", format!("no {kind} {id:?}"))
}

impl fmt::Debug for MemoryControlPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("MemoryControlPlane")
            .field("workers", &state.workers.len())
            .field("sessions", &state.sessions.len())
            .finish_non_exhaustive()
    }
}
