//! Result of one reconcile, as the queue needs it.

use std::fmt;

use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::reason::ReasonCode;

/// Result of one reconcile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkResult {
    /// Outcome. A retry counts up the backoff; only a success resets it.
    pub outcome: Outcome,
    /// When to reconcile again. A retry ignores this and follows the backoff. [`Requeue::Now`] counts as a retry if the
    /// status and the reason are those of a reconcile before it.
    pub requeue: Requeue,
    /// Status in which the reconcile left the resource, for kinds that have one.
    pub status: Option<&'static str>,
    /// Reason, with a stable code.
    pub reason: WorkReason,
    /// Error message, if the reconcile failed.
    pub error: Option<Box<str>>,
}

/// Reason of a [`WorkResult`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WorkReason {
    /// The resource returned an outcome without a reason of its own. The code is that of the outcome.
    Reported(Outcome),
    /// The lifecycle decided.
    Lifecycle(ReasonCode),
    /// The reconcile, or reading the resource, took longer than [`ControllerConfig::timeout`].
    ///
    /// [`ControllerConfig::timeout`]: crate::controller::ControllerConfig::timeout
    TimedOut,
    /// The reconcile, or reading the resource, panicked.
    Panicked,
    /// The resource could not be read.
    Unreadable,
    /// Another controller owns the resource.
    NotOwned,
    /// The lease ended before the reconcile began.
    LeaseLost,
    /// The reconcile function raised an exception.
    Raised,
    /// A reason of a resource outside this crate: a stable word in snake case.
    Custom(&'static str),
}

impl WorkReason {
    /// Stable code for logs, metrics and the admin API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reported(outcome) => outcome.as_str(),
            Self::Lifecycle(code) => code.as_str(),
            Self::TimedOut => "timed_out",
            Self::Panicked => "panicked",
            Self::Unreadable => "unreadable",
            Self::NotOwned => "not_ours",
            Self::LeaseLost => "lease_lost",
            Self::Raised => "raised",
            Self::Custom(code) => code,
        }
    }

    /// The reason as a sentence, with the error of the reconcile as its detail.
    ///
    /// ```
    /// use lcm_sdk::ReasonCode;
    /// use lcm_sdk::controller::WorkReason;
    ///
    /// let reason = WorkReason::Lifecycle(ReasonCode::ImagesUnknown);
    /// assert_eq!(reason.sentence(None), "The AMIs could not be listed.");
    /// assert_eq!(reason.sentence(Some("throttled")), "The AMIs could not be listed (throttled).");
    /// ```
    pub fn sentence(self, error: Option<&str>) -> String {
        let sentence = match self {
            Self::Reported(Outcome::Success) => "The reconcile succeeded.",
            Self::Reported(Outcome::Requeue) => "The reconcile goes on later.",
            Self::Reported(Outcome::Retry) => "The reconcile failed.",
            Self::Reported(Outcome::Skip) => "Nothing had to be done.",
            Self::Lifecycle(code) => code.sentence(),
            Self::TimedOut => "The reconcile took longer than its timeout.",
            Self::Panicked => "The reconcile panicked.",
            Self::Unreadable => "The resource could not be read.",
            Self::NotOwned => "Another controller leads the resource.",
            Self::LeaseLost => "The lease ended before the reconcile began.",
            Self::Raised => "The reconcile function raised an exception.",
            Self::Custom(code) => &format!("The resource reports {code}."),
        };
        match error {
            Some(error) => format!("{} ({error}).", sentence.trim_end_matches('.')),
            None => sentence.to_owned(),
        }
    }
}

impl fmt::Display for WorkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl WorkResult {
    /// Nothing is left to do until the next polling cycle.
    pub const fn success() -> Self {
        Self {
            outcome: Outcome::Success,
            requeue: Requeue::NextCycle,
            status: None,
            reason: WorkReason::Reported(Outcome::Success),
            error: None,
        }
    }

    /// The reconcile failed and is repeated after the backoff.
    pub fn retry(reason: WorkReason, error: impl Into<Box<str>>) -> Self {
        Self { outcome: Outcome::Retry, requeue: Requeue::Backoff, status: None, reason, error: Some(error.into()) }
    }

    /// Another controller owns the resource: nothing was done.
    pub(crate) const fn not_owned() -> Self {
        Self {
            outcome: Outcome::Skip,
            requeue: Requeue::OnChange,
            status: None,
            reason: WorkReason::NotOwned,
            error: None,
        }
    }

    /// Whether the delay until the next reconcile is spread at random.
    pub(crate) fn is_jittered(&self) -> bool {
        self.outcome == Outcome::Retry || matches!(self.requeue, Requeue::Backoff | Requeue::Now)
    }
}
