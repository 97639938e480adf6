//! Result of one call, which keeps "there is none" and "the call failed" apart.

use serde::{Deserialize, Serialize};

use super::failure::CallFailure;

/// Result of looking something up.
///
/// ```
/// use lcm_sdk::lifecycle::Lookup;
///
/// let absent: Lookup<u8> = Lookup::Absent;
/// assert_ne!(absent, Lookup::NotRequested);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lookup<T> {
    /// No call was made.
    #[default]
    NotRequested,
    /// The call returned this.
    Found(T),
    /// The call returned that there is none.
    Absent,
    /// The call failed: nothing may be concluded.
    Unknown(CallFailure),
}

impl<T> Lookup<T> {
    /// The value, if it was found.
    pub const fn found(&self) -> Option<&T> {
        match self {
            Self::Found(value) => Some(value),
            Self::NotRequested | Self::Absent | Self::Unknown(_) => None,
        }
    }

    /// The failure, if the call failed.
    pub const fn failure(&self) -> Option<&CallFailure> {
        match self {
            Self::Unknown(failure) => Some(failure),
            Self::NotRequested | Self::Found(_) | Self::Absent => None,
        }
    }

    /// Whether no call was made.
    pub const fn is_not_requested(&self) -> bool {
        match self {
            Self::NotRequested => true,
            Self::Found(_) | Self::Absent | Self::Unknown(_) => false,
        }
    }
}

impl<T> From<Result<T, CallFailure>> for Lookup<T> {
    fn from(result: Result<T, CallFailure>) -> Self {
        result.map_or_else(Self::Unknown, Self::Found)
    }
}

impl<T> From<Result<Option<T>, CallFailure>> for Lookup<T> {
    fn from(result: Result<Option<T>, CallFailure>) -> Self {
        match result {
            Ok(Some(value)) => Self::Found(value),
            Ok(None) => Self::Absent,
            Err(failure) => Self::Unknown(failure),
        }
    }
}
