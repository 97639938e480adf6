//! The outcome of a reconcile, and the time of the next one.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::wire_enum::vocabulary;

vocabulary! {
    /// The outcome of a reconcile.
    Outcome, "outcome" {
        /// The worker is in the status it should be in, or moved on. Resets the backoff.
        Success = "success",
        /// In progress and nothing is wrong: reconcile again, without backoff. Keeps the number of retries.
        Requeue = "requeue",
        /// A problem: reconcile again after the backoff.
        Retry = "retry",
        /// Nothing to do until the record changes.
        Skip = "skip",
    }
}

vocabulary! {
    /// When to reconcile a worker again.
    RequeueKind, "kind of requeue" {
        /// At once: the next step is known.
        Now = "now",
        /// After the delay in `after`, or when the record changes.
        After = "after",
        /// At the next cycle.
        NextCycle = "next_cycle",
        /// After the backoff of the queue.
        Backoff = "backoff",
        /// When the record or the cloud changes.
        OnChange = "on_change",
    }
}

/// When to reconcile the worker again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Requeue {
    /// At once: the next step is known. Counts as a retry if the reconcile before ended with the same status and reason.
    Now,
    /// After this delay, or when the record changes.
    After(Duration),
    /// At the next cycle.
    NextCycle,
    /// After the backoff of the queue.
    Backoff,
    /// When the record or the cloud changes.
    OnChange,
}

impl Requeue {
    /// The kind, without the delay.
    pub const fn kind(self) -> RequeueKind {
        match self {
            Self::Now => RequeueKind::Now,
            Self::After(_) => RequeueKind::After,
            Self::NextCycle => RequeueKind::NextCycle,
            Self::Backoff => RequeueKind::Backoff,
            Self::OnChange => RequeueKind::OnChange,
        }
    }
}

impl fmt::Display for Requeue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now => f.pad("now"),
            Self::After(delay) => f.pad(&format!("in {}", super::time::spoken(*delay))),
            Self::NextCycle => f.pad("next cycle"),
            Self::Backoff => f.pad("after backoff"),
            Self::OnChange => f.pad("on change"),
        }
    }
}
