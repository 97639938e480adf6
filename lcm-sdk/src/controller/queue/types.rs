//! What goes into a queue and what comes out of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::lifecycle::backoff::Backoff;
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::wire_enum::vocabulary;

/// The name of a resource.
pub type Key = Arc<str>;

/// Why a resource is to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Somebody says it changed.
    Changed,
    /// Its time has come.
    Due,
    /// Everything is looked at.
    Resync,
}

impl Priority {
    /// All lanes, the most urgent first.
    pub const ALL: [Self; 3] = [Self::Changed, Self::Due, Self::Resync];

    /// The word for metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Due => "due",
            Self::Resync => "resync",
        }
    }
}

/// How a pass over a resource ended, as far as the queue cares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkResult {
    /// The outcome; only a retry counts up the backoff, everything else resets it.
    pub outcome: Outcome,
    /// When to look again.
    pub requeue: Requeue,
    /// A stable word for why.
    pub code: &'static str,
    /// What went wrong, if something did.
    pub error: Option<Box<str>>,
}

impl WorkResult {
    /// Nothing is to be done until the next cycle.
    pub const fn success() -> Self {
        Self { outcome: Outcome::Success, requeue: Requeue::NextCycle, code: "success", error: None }
    }

    /// Something went wrong: again after the backoff.
    pub fn retry(code: &'static str, error: impl Into<Box<str>>) -> Self {
        Self { outcome: Outcome::Retry, requeue: Requeue::Backoff, code, error: Some(error.into()) }
    }

    /// Whether chance has a say in when to look again.
    pub(crate) fn is_spread(&self) -> bool {
        self.outcome == Outcome::Retry || self.requeue == Requeue::Backoff
    }
}

/// A resource that was handed out.
#[derive(Debug)]
pub struct WorkItem<R> {
    /// Its name.
    pub key: Key,
    /// Why.
    pub lane: Priority,
    /// The resource as a listing gave it; without it, it has to be fetched.
    pub resource: Option<R>,
}

vocabulary! {
    /// Reconciliation status of a resource.
    ResourceStatus, "reconciliation status" {
        /// Waits for its turn.
        Pending = "PENDING",
        /// Is being reconciled.
        InProgress = "IN_PROGRESS",
        /// The last reconcile succeeded.
        Success = "SUCCESS",
        /// The last reconcile failed and will be retried.
        Failed = "FAILED",
    }
}

/// What the queue knows about a resource.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceState {
    /// Its name.
    pub resource_id: Key,
    /// Where it stands.
    pub status: ResourceStatus,
    /// Retries in a row.
    pub retry_count: u32,
    /// When it is due, if that is known.
    pub next_retry_at: Option<Instant>,
    /// When a pass last ended well.
    pub last_reconciled_at: Option<Instant>,
    /// How the last pass ended.
    pub last: Option<WorkResult>,
    /// When.
    pub last_ended_at: Option<Instant>,
}

/// Settings of a queue.
#[derive(Debug, Clone, Copy)]
pub struct QueueConfig {
    /// Waiting between retries.
    pub backoff: Backoff,
    /// How long somebody may be overtaken.
    pub patience: Duration,
    /// When to look again at a resource whose turn is the next cycle, if no cycle will come by itself.
    pub next_cycle: Option<Duration>,
}
