//! Why a call gave no answer.
//!
//! "EC2 said no" and "we could not ask" are different things. A [`CallFailure`] keeps them apart for good: its
//! kind says whether the far side definitely did nothing, and whether asking again can ever help.

use std::fmt;

use serde::Serialize;
use thiserror::Error;

/// What kind of failure it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The far side asked us to slow down. It did nothing.
    Throttled,
    /// No capacity now. It did nothing.
    NoCapacity,
    /// The call may or may not have been carried out: time-out, reset, 5xx.
    Unclear,
    /// Nobody was there to ask: refused, unresolvable.
    Unreachable,
    /// The answer could not be understood.
    Unparsable,
    /// The record or resource changed in between. Nothing was done; look again.
    Conflict,
    /// It was refused and the same call will be refused again: no permission, invalid argument, no such thing.
    Refused,
    /// The launch token belongs to an instance that is terminated. Nothing was launched.
    LaunchDied,
}

impl FailureKind {
    /// Every kind.
    pub const ALL: &'static [Self] = &[
        Self::Throttled,
        Self::NoCapacity,
        Self::Unclear,
        Self::Unreachable,
        Self::Unparsable,
        Self::Conflict,
        Self::Refused,
        Self::LaunchDied,
    ];

    /// Whether repeating the same call can never succeed.
    pub const fn is_permanent(self) -> bool {
        match self {
            Self::Refused => true,
            Self::Throttled
            | Self::NoCapacity
            | Self::Unclear
            | Self::Unreachable
            | Self::Unparsable
            | Self::Conflict
            | Self::LaunchDied => false,
        }
    }

    /// Whether repeating the same call may succeed.
    pub const fn is_retryable(self) -> bool {
        !self.is_permanent()
    }

    /// Whether it is certain that the far side did nothing.
    pub const fn did_nothing(self) -> bool {
        match self {
            Self::Throttled
            | Self::NoCapacity
            | Self::Unreachable
            | Self::Conflict
            | Self::Refused
            | Self::LaunchDied => true,
            Self::Unclear | Self::Unparsable => false,
        }
    }

    /// The word used in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Throttled => "throttled",
            Self::NoCapacity => "no_capacity",
            Self::Unclear => "unclear",
            Self::Unreachable => "unreachable",
            Self::Unparsable => "unparsable",
            Self::Conflict => "conflict",
            Self::Refused => "refused",
            Self::LaunchDied => "launch_died",
        }
    }
}

/// A call that gave no answer, and why.
///
/// The message must be free of secrets; adapters build it from what the far side said, never from what was sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Error)]
pub struct CallFailure {
    /// What kind of failure.
    pub kind: FailureKind,
    /// The far side's own code, such as `RequestLimitExceeded`.
    pub code: Option<String>,
    /// What happened, for a person.
    pub message: String,
}

impl CallFailure {
    /// A failure without a code of its own.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, code: None, message: message.into() }
    }

    /// A failure with the far side's code.
    pub fn coded(kind: FailureKind, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, code: Some(code.into()), message: message.into() }
    }
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.code {
            Some(code) => write!(f, "{code}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}
