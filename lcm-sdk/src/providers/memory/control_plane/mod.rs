//! A control plane in memory: versioned records, sessions, templates, an audit, idle detection.

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

use super::fault_injection::{Fault, Trouble};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::{SessionId, WorkerId};
use crate::lifecycle::observation::{CloudMetrics, CmlMetrics};
use crate::lifecycle::session::Session;
use crate::lifecycle::template::Template;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;
use crate::ports::{Clock, DiscoverySettings, Fence, Version};

/// A model of the control plane.
///
/// # Guarantees
/// - Every call is atomic, and a refused one changes nothing.
/// - It is as inconvenient as the real one: bulk import rewrites workers it knows, a drain is refused unless the
///   worker runs, ending a worker ends its sessions, measurements leave the version alone.
/// - It has no time of its own: moments come from the clock it is given.
pub struct MemoryControlPlane {
    clock: Arc<dyn Clock>,
    versions: Versions,
    fencing: Fencing,
    idle_timeout: Duration,
    state: Mutex<State>,
    trouble: Trouble,
}

/// Whether records have versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Versions {
    /// They do; a write that expects another one is a conflict.
    #[default]
    Kept,
    /// They do not, as on an older server: every write goes through.
    NotKept,
}

/// What the server makes of the leader's fencing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fencing {
    /// Nothing.
    #[default]
    Ignored,
    /// A write with a lower one than was seen before is a conflict.
    Enforced,
}

#[derive(Default)]
struct State {
    workers: BTreeMap<WorkerId, Worker>,
    unreadable: Vec<Value>,
    sessions: BTreeMap<SessionId, Session>,
    templates: BTreeMap<String, Template>,
    discovery: Option<DiscoverySettings>,
    audit: Vec<(WorkerId, &'static str, String)>,
    metrics: BTreeMap<WorkerId, MetricsReport>,
    activity: BTreeMap<WorkerId, Timestamp>,
    highest_fence: Option<i64>,
    writes_to_cut: usize,
}

/// The latest metrics of a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricsReport {
    /// From CloudWatch.
    pub cloud: Option<CloudMetrics>,
    /// From CML.
    pub cml: Option<CmlMetrics>,
    /// When they were collected.
    pub at: Timestamp,
}

impl MemoryControlPlane {
    /// An empty one that keeps versions and ignores fencing tokens.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            versions: Versions::default(),
            fencing: Fencing::default(),
            idle_timeout: Duration::from_secs(3600),
            state: Mutex::default(),
            trouble: Trouble::default(),
        }
    }

    /// The same with or without versions.
    #[must_use]
    pub fn with_versions(self, versions: Versions) -> Self {
        Self { versions, ..self }
    }

    /// The same with another view of fencing tokens.
    #[must_use]
    pub fn with_fencing(self, fencing: Fencing) -> Self {
        Self { fencing, ..self }
    }

    /// The same with another time after which a worker counts as idle.
    #[must_use]
    pub fn with_idle_timeout(self, idle_timeout: Duration) -> Self {
        Self { idle_timeout, ..self }
    }

    /// Puts a record in, or replaces one. Its version is the server's business.
    pub fn put_worker(&self, mut worker: Worker) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        worker.created_at = worker.created_at.or(Some(now));
        worker.updated_at = worker.updated_at.or(Some(now));
        let before = state.workers.get(&worker.id).and_then(|before| before.version);
        worker.version = self.next(before);
        state.workers.insert(worker.id.clone(), worker);
    }

    /// Puts in a record that cannot be read.
    pub fn put_unreadable(&self, record: Value) {
        self.state.lock().unreadable.push(record);
    }

    /// A record as it is now.
    pub fn look(&self, id: &WorkerId) -> Option<Worker> {
        self.state.lock().workers.get(id).cloned()
    }

    /// All records as they are now.
    pub fn look_at_all(&self) -> Vec<Worker> {
        self.state.lock().workers.values().cloned().collect()
    }

    /// Somebody else writes to a record. Gives whether there is such a record.
    pub fn edit(&self, id: &WorkerId, edit: impl FnOnce(&mut Worker)) -> bool {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let Some(worker) = state.workers.get_mut(id) else { return false };
        edit(worker);
        worker.version = self.next(worker.version);
        worker.updated_at = Some(now);
        true
    }

    /// Puts a session in, or replaces one.
    pub fn put_session(&self, session: Session) {
        self.state.lock().sessions.insert(session.id.clone(), session);
    }

    /// A session as it is now.
    pub fn look_at_session(&self, id: &SessionId) -> Option<Session> {
        self.state.lock().sessions.get(id).cloned()
    }

    /// Puts a template in, or replaces the one of the same name.
    pub fn put_template(&self, template: Template) {
        self.state.lock().templates.insert(template.name.clone(), template);
    }

    /// Takes a template away.
    pub fn remove_template(&self, name: &str) {
        self.state.lock().templates.remove(name);
    }

    /// Sets what operators want of discovery; `None` is a server without such settings.
    pub fn set_discovery(&self, settings: Option<DiscoverySettings>) {
        self.state.lock().discovery = settings;
    }

    /// The audit, oldest first: worker, label, detail.
    pub fn audit_entries(&self) -> Vec<(WorkerId, &'static str, String)> {
        self.state.lock().audit.clone()
    }

    /// The latest metrics of a worker.
    pub fn metrics_of(&self, id: &WorkerId) -> Option<MetricsReport> {
        self.state.lock().metrics.get(id).cloned()
    }

    /// Notes that somebody used a worker.
    pub fn note_activity(&self, id: &WorkerId, at: Timestamp) {
        self.state.lock().saw_activity(id, at);
    }

    /// The highest fencing token any write carried.
    pub fn highest_fence(&self) -> Option<i64> {
        self.state.lock().highest_fence
    }

    /// Makes the next call fail.
    pub fn fail_next(&self, failure: CallFailure) {
        self.trouble.plan(None, Fault::Fail(failure));
    }

    /// Makes something go wrong with the next call of an operation, such as `write`.
    pub fn plan(&self, operation: &str, fault: Fault) {
        self.trouble.plan(Some(operation), fault);
    }

    /// Cuts the next write of a patch short: all of it is written but the status, and the answer is lost. The real
    /// client needs several calls for some patches, and can fail between them.
    pub fn cut_next_write(&self) {
        self.state.lock().writes_to_cut += 1;
    }

    /// What was asked, oldest first: the operation, and what it was about.
    pub fn calls(&self) -> Vec<String> {
        self.trouble.calls()
    }

    fn next(&self, version: Version) -> Version {
        match self.versions {
            Versions::Kept => Some(version.unwrap_or(0) + 1),
            Versions::NotKept => None,
        }
    }

    /// Looks, without changing anything.
    fn read<T>(
        &self,
        operation: &str,
        about: &str,
        look: impl FnOnce(&State) -> Result<T, CallFailure>,
    ) -> Result<T, CallFailure> {
        self.trouble.pass(operation, about, || look(&self.state.lock()))
    }

    /// Changes something, unless a newer leader has been here.
    fn change<T>(
        &self,
        operation: &str,
        about: &str,
        fence: Fence,
        change: impl FnOnce(&mut State, Timestamp) -> Result<T, CallFailure>,
    ) -> Result<T, CallFailure> {
        self.trouble.pass(operation, about, || {
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
    CallFailure::coded(FailureKind::Refused, "404", format!("no {kind} {id:?}"))
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
