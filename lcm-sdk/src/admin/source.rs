//! The data that the admin server requests from a controller.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize, Serializer};
use thiserror::Error;

use crate::controller::{HeldShard, ResourceStatus, WatchState};
use crate::lifecycle::capabilities::Capabilities;
use crate::lifecycle::outcome::Outcome;
use crate::lifecycle::policy::ExternalStopPolicy;
use crate::lifecycle::session::Session;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::wire_enum::vocabulary;
use crate::ports::{Clock as _, NotesStatus, SystemClock};
use crate::reconciler::{
    Explanation, KnownWorker, RecentEvents, RecentReconcile, RecordSummary, UntrustedRegion, WorkerHistory,
};
use crate::resilience::ServiceStatus;
use crate::workers::RecordStats;
use crate::workers::discovery::{DiscoveryRun, DiscoveryStats};

/// A controller that the admin server can report on.
///
/// # Assumptions
/// Every method that is not `async` returns at once, from memory: the server calls them on the tasks that serve its
/// connections.
#[async_trait]
pub trait AdminSource: Send + Sync + 'static {
    /// Returns the state of the controller as a whole.
    fn stats(&self) -> ControllerStats;

    /// Returns the state of every known resource, ordered by id.
    fn resources(&self) -> Vec<ResourceSummary>;

    /// Returns the state of a resource, or `None` if it is not known.
    fn resource(&self, id: &str) -> Option<ResourceSummary>;

    /// Returns the workers that the controller leads as it last saw them, in any order. A worker that did not change since
    /// is the same allocation. By default none.
    fn known_workers(&self) -> Vec<Arc<KnownWorker>> {
        Vec::new()
    }

    /// Returns the last runs of discovery, the newest first. By default none.
    fn discovery_runs(&self) -> Vec<DiscoveryRun> {
        Vec::new()
    }

    /// Returns the time until the lease over the whole fleet expires; `None` without such a lease. By default `None`.
    fn lease_remaining(&self) -> Option<Duration> {
        None
    }

    /// Returns the time on the clock of the controller. By default that of the system.
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    /// Queues a resource for a reconcile at once. Returns before the reconcile.
    async fn trigger(&self, id: &str) -> Triggered;

    /// Gives up the lead, so that another controller takes over. Returns before it has. By default refused.
    ///
    /// # Errors
    /// [`Refusal`] if there is no lead to give up.
    fn resign(&self) -> Result<(), Refusal> {
        Err(Refusal::NotAllowed("this controller takes part in no election".to_owned()))
    }

    /// Carries out an operation on a resource. By default there are none.
    ///
    /// # Errors
    /// [`Refusal`] if it was not carried out.
    async fn operate(&self, id: &str, operation: Operation, request: OperationRequest) -> Result<(), Refusal> {
        let _ = (request, id);
        Err(Refusal::NotAllowed(format!("this controller has no operation '{operation}'")))
    }

    /// Returns a worker with its record, its place in the queue and its last reconciles. By default refused.
    ///
    /// # Errors
    /// [`Refusal`] if there is neither a record nor a history of it, or the record cannot be read.
    async fn worker(&self, id: &str) -> Result<WorkerReport, Refusal> {
        Err(Refusal::NoSuchResource(format!("worker {id} does not exist: this controller has no workers")))
    }

    /// Explains what a reconcile of a worker would do now, without doing it. By default refused.
    ///
    /// # Errors
    /// [`Refusal`] if the worker does not exist or its record cannot be read.
    async fn explain(&self, id: &str) -> Result<Explanation, Refusal> {
        Err(Refusal::NoSuchResource(format!("worker {id} does not exist: this controller has no workers")))
    }

    /// Returns the chain of reconciles that led to the status of a worker at a time. By default refused.
    ///
    /// # Errors
    /// [`Refusal`] if the history cannot be read.
    async fn history(&self, id: &str, at: Timestamp) -> Result<WorkerHistory, Refusal> {
        let _ = at;
        Err(Refusal::NoSuchResource(format!("worker {id} does not exist: this controller has no workers")))
    }

    /// Returns the reconciles that changed something or went wrong from a number on, of all workers. By default none.
    fn events(&self, from: u64) -> RecentEvents {
        RecentEvents { next: from, events: Vec::new() }
    }

    /// Returns the role of a controller that is ready. A standby is ready.
    ///
    /// # Errors
    /// If the controller leads and its first sweep is not done, if it is about to end, or if a service cannot be reached
    /// that it needs.
    fn readiness(&self) -> Result<Role, NotReady>;

    /// Returns the time since the last sign of life of the run loop, which gives one every second; `None` if it does not
    /// run. By default returns `None`.
    fn heartbeat_age(&self) -> Option<Duration> {
        None
    }
}

/// State of a controller as a whole.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ControllerStats {
    /// Identity in the election.
    pub instance_id: String,
    /// Whether the controller leads.
    pub role: Role,
    /// Identity of the leader, as far as this controller knows. Unknown without an election and with several shards.
    pub leader: Option<String>,
    /// Whether etcd and the control plane can be reached, with URL, last error and begin of an outage.
    pub services: Vec<ServiceStatus>,
    /// Fencing token of its writes while it leads by election.
    pub fencing_token: Option<i64>,
    /// Shards that it leads, each with a fencing token; omitted if the fleet has one shard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<Vec<HeldShard>>,
    /// Load of the work queue.
    pub queue: QueueStats,
    /// State of the watch; `None`, serialized as `off`, if it is disabled or the controller does not lead.
    #[serde(serialize_with = "watch_or_off")]
    pub watch: Option<WatchState>,
    /// The last sweep that ended.
    pub last_sweep: Option<SweepSummary>,
    /// Problems of the records at the last listing.
    pub records: RecordStats,
    /// Where the notes about workers are kept.
    pub notes: NotesStatus,
    /// Runs of discovery and garbage collection; `None` if the controller has none.
    pub discovery: Option<DiscoveryStats>,
    /// Optional features of the control plane, as far as its responses have shown them.
    pub control_plane: Capabilities,
    /// The policy for stops from outside, as configured and as carried out.
    pub external_stop_policy: ExternalStopStatus,
    /// Regions whose absences are not believed, because nothing proves the account of the credentials.
    pub untrusted_regions: Vec<UntrustedRegion>,
}

/// The external-stop policy. It lapses if the control plane does not store a desired status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ExternalStopStatus {
    /// The policy of the settings.
    pub configured: ExternalStopPolicy,
    /// The policy that workers are reconciled with.
    pub effective: ExternalStopPolicy,
}

fn watch_or_off<S: Serializer>(watch: &Option<WatchState>, serializer: S) -> Result<S::Ok, S::Error> {
    match watch {
        Some(state) => state.serialize(serializer),
        None => serializer.serialize_str("off"),
    }
}

vocabulary! {
    /// Role of a controller in the election.
    Role, "role" {
        /// May change the cloud and the records.
        Leader = "leader",
        /// Waits to take over.
        Standby = "standby",
    }
}

/// Load of a work queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct QueueStats {
    /// Reconciles in progress.
    pub active: usize,
    /// Waiting resources by priority.
    pub waiting: BTreeMap<&'static str, usize>,
}

/// Result of a sweep over all resources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SweepSummary {
    /// Time at which the sweep began.
    pub started_at: Timestamp,
    /// Time at which the sweep ended.
    pub finished_at: Timestamp,
    /// Number of listed resources.
    pub resources: usize,
    /// Number of resources that were not reconciled in time or have to be retried.
    pub failed: usize,
}

/// Reconciliation state of a resource, with wall-clock times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResourceSummary {
    /// Id of the resource.
    pub resource_id: String,
    /// Status of its reconciliation.
    pub status: ResourceStatus,
    /// Its place in the queue; omitted if it does not wait for its turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// Number of consecutive failures.
    pub retry_count: u32,
    /// Earliest time of the next attempt.
    pub next_retry_at: Option<Timestamp>,
    /// Time of the last successful reconcile.
    pub last_reconciled_at: Option<Timestamp>,
    /// Outcome of the last reconcile.
    pub last_outcome: Option<LastOutcome>,
}

/// A resource waits for its turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// Why it waits: `changed`, a change was reported; `due`, its delay is over or a reconcile was requested; `resync`, a
    /// listing contained it.
    pub priority: &'static str,
    /// Whether a reconcile was requested, by an operator or by discovery.
    pub requested: bool,
    /// Since when.
    pub since: Timestamp,
}

/// A worker as a controller knows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Id of the worker.
    pub id: String,
    /// The record, without secrets; none if it does not exist any more.
    pub record: Option<RecordSummary>,
    /// Its place in the queue; none if this controller does not lead it.
    pub queue: Option<ResourceSummary>,
    /// Its last reconciles that changed something or went wrong, the oldest first.
    pub history: Vec<RecentReconcile>,
    /// Its instance and its CML as this controller last saw them; none if it does not lead the worker.
    pub known: Option<Arc<KnownWorker>>,
    /// The sessions assigned to it.
    pub sessions: Vec<Session>,
    /// Why the sessions could not be listed.
    pub sessions_error: Option<String>,
}

/// Outcome of the last reconcile of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LastOutcome {
    /// Whether it succeeded, was a no-op or has to be retried.
    pub outcome: Outcome,
    /// Reason of the outcome.
    pub reason: OutcomeReason,
    /// Time at which the reconcile ended.
    pub at: Timestamp,
}

/// Reason of the outcome of a reconcile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutcomeReason {
    /// The stable code.
    pub code: String,
    /// The sentence, with its details.
    pub sentence: String,
}

vocabulary! {
    /// An operation on a worker.
    Operation, "operation" {
        /// Take a running worker out of placement, wait for its sessions and stop it.
        Drain = "drain",
        /// Put a draining worker back in service.
        CancelDrain = "cancel-drain",
    }
}

/// Author and reason of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OperationRequest {
    /// Reason given by the requester.
    pub reason: String,
    /// Requester of the operation.
    pub requested_by: String,
}

impl Default for OperationRequest {
    fn default() -> Self {
        Self { reason: "operator".to_owned(), requested_by: "admin".to_owned() }
    }
}

/// Why an operation was not carried out, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The resource does not exist.
    #[error("{0}")]
    NoSuchResource(String),
    /// The state of the resource does not allow it, or another controller leads the resource.
    #[error("{0}")]
    NotAllowed(String),
    /// The control plane lacks the operation. The sentence names an alternative.
    #[error("{0}")]
    NotSupported(String),
    /// A call failed.
    #[error("{0}")]
    Failed(String),
}

/// Result of [`AdminSource::trigger`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Triggered {
    /// The resource is queued.
    Queued,
    /// The resource does not exist.
    NoSuchResource,
    /// It is not known whether the resource exists: a call failed, for this reason.
    Unknown(String),
    /// Another controller leads the resource.
    NotLeading,
    /// The controller is about to end and accepts no work.
    ShuttingDown,
}

/// The controller is not ready.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct NotReady {
    /// Reason as a sentence, such as `the first sweep is under way, 3 workers to go`.
    pub reason: String,
}
