//! How a pass ended, and when to look again.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::wire_enum::vocabulary;

vocabulary! {
    /// How a pass over a worker ended.
    Outcome, "outcome" {
        /// The worker is where it should be, or moved on. Resets the backoff.
        Success = "success",
        /// Not there yet and nothing is wrong: look again, without backoff.
        Requeue = "requeue",
        /// Something went wrong: look again after the backoff.
        Retry = "retry",
        /// Nothing to do until somebody changes the record.
        Skip = "skip",
    }
}

/// When to look at the worker again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Requeue {
    /// At once: more is known to be due.
    Now,
    /// After this long, or at the next cycle if that comes first.
    After(Duration),
    /// At the next cycle.
    NextCycle,
    /// When the backoff allows.
    Backoff,
    /// When the record or the cloud changes.
    OnChange,
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
