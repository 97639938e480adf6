//! The data that the admin server requests from a controller.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use thiserror::Error;

use crate::controller::{HeldShard, ResourceStatus, WatchState};
use crate::lifecycle::outcome::Outcome;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::wire_enum::vocabulary;

/// A controller that the admin server can report on.
///
/// # Assumptions
/// Every method returns at once, from memory: the server calls them on the tasks that serve its connections.
pub trait AdminSource: Send + Sync + 'static {
    /// Returns the state of the controller as a whole.
    fn stats(&self) -> ControllerStats;

    /// Returns the state of every known resource, ordered by id.
    fn resources(&self) -> Vec<ResourceSummary>;

    /// Returns the state of a resource, or `None` if it is not known.
    fn resource(&self, id: &str) -> Option<ResourceSummary>;

    /// Queues a resource for a reconcile at once. Returns before the reconcile.
    fn trigger(&self, id: &str) -> Triggered;

    /// Returns the role of a controller that is ready. A standby is ready.
    ///
    /// # Errors
    /// If the controller leads and its first sweep is not done, or if it is about to end.
    fn readiness(&self) -> Result<Role, NotReady>;
}

/// State of a controller as a whole.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ControllerStats {
    /// Identity in the election.
    pub instance_id: String,
    /// Whether the controller leads.
    pub role: Role,
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
    /// Number of consecutive failures.
    pub retry_count: u32,
    /// Earliest time of the next attempt.
    pub next_retry_at: Option<Timestamp>,
    /// Time of the last successful reconcile.
    pub last_reconciled_at: Option<Timestamp>,
    /// Outcome of the last reconcile.
    pub last_outcome: Option<LastOutcome>,
}

/// Outcome of the last reconcile of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LastOutcome {
    /// Whether it succeeded, was a no-op or has to be retried.
    pub outcome: Outcome,
    /// Stable code of the reason.
    pub reason_code: String,
    /// Reason as a sentence.
    pub reason: String,
    /// Time at which the reconcile ended.
    pub at: Timestamp,
}

/// Result of [`AdminSource::trigger`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Triggered {
    /// The resource is queued.
    Queued,
    /// The resource does not exist.
    NoSuchResource,
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
