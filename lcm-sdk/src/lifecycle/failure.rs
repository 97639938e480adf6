//! Failed calls.
//!
//! A refusal differs from a call without a response. The kind of a [`CallFailure`] states whether the remote side certainly
//! did nothing, and whether repeating the call can succeed.

use std::error::Error;
use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use super::wire_enum::vocabulary;

vocabulary! {
    /// The kind of a failure.
    FailureKind, "kind of failure", non_exhaustive {
        /// The remote side requested a lower rate. It did nothing.
        Throttled = "throttled",
        /// No capacity at the moment, or a quota is used up. The remote side did nothing.
        NoCapacity = "no_capacity",
        /// Refused for now, as with expired credentials or an unknown code. The remote side did nothing.
        RefusedForNow = "refused_for_now",
        /// The call may or may not have been carried out: time-out, reset, 5xx.
        Unclear = "unclear",
        /// No connection: refused, unresolvable.
        Unreachable = "unreachable",
        /// The response could not be parsed.
        Unparsable = "unparsable",
        /// The record or resource changed in between. Nothing was done.
        Conflict = "conflict",
        /// Refused, and the same call will be refused again: no permission, invalid argument, not found.
        Refused = "refused",
        /// The remote side lacks the feature, and the message states an alternative. Nothing was done.
        NotSupported = "not_supported",
        /// The launch token belongs to an instance that is terminated. Nothing was launched.
        LaunchDied = "launch_died",
    }
}

impl FailureKind {
    /// Whether repeating the same call can never succeed.
    pub const fn is_permanent(self) -> bool {
        match self {
            Self::Refused | Self::NotSupported => true,
            Self::Throttled
            | Self::NoCapacity
            | Self::RefusedForNow
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

    /// Whether the remote side certainly did nothing.
    pub const fn did_nothing(self) -> bool {
        match self {
            Self::Throttled
            | Self::NoCapacity
            | Self::RefusedForNow
            | Self::Unreachable
            | Self::Conflict
            | Self::Refused
            | Self::NotSupported
            | Self::LaunchDied => true,
            Self::Unclear | Self::Unparsable => false,
        }
    }
}

/// A failed call.
///
/// The message must be free of secrets: providers build it from the response, never from the request. The underlying
/// error may be kept as [`CallFailure::cause`].
///
/// ```
/// use std::error::Error as _;
/// use lcm_sdk::{CallFailure, FailureKind};
///
/// let plain = CallFailure::new(FailureKind::Unreachable, "nobody home");
/// let traced = plain.clone().with_cause(std::io::Error::other("the cable is cut"));
/// assert_eq!(traced, plain, "what happened is the same, however much is known about it");
/// assert!(traced.source().is_some_and(|cause| cause.is::<std::io::Error>()));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallFailure {
    /// The kind, which decides what may be concluded and repeated.
    pub kind: FailureKind,
    /// The remote side's own code, such as `RequestLimitExceeded`.
    pub code: Option<String>,
    /// Description for a person, free of secrets.
    pub message: String,
    /// The underlying error, if there is one.
    #[serde(skip)]
    pub cause: Cause,
}

impl CallFailure {
    /// A failure without an error code.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, code: None, message: message.into(), cause: Cause::default() }
    }

    /// A failure with the remote side's error code.
    pub fn with_code(kind: FailureKind, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Some(code.into()), ..Self::new(kind, message) }
    }

    /// The same failure with its underlying error, which becomes its [`source`](Error::source) and is never printed:
    /// only the message is known to be free of secrets.
    #[must_use]
    pub fn with_cause(self, error: impl Error + Send + Sync + 'static) -> Self {
        Self { cause: Cause::new(error), ..self }
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

/// Omits the cause, which may hold a secret.
impl fmt::Debug for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallFailure")
            .field("kind", &self.kind)
            .field("code", &self.code)
            .field("message", &self.message)
            .finish()
    }
}

impl Error for CallFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.error()
    }
}

#[expect(clippy::disallowed_types, reason = "an error is not ours to copy, and no decision depends on it")]
type Shared = std::sync::Arc<dyn Error + Send + Sync>;

/// The underlying error of a failure, if there is one.
///
/// It explains and does not distinguish: two causes are always equal, and none is printed or serialized.
#[derive(Clone, Default)]
pub struct Cause(Option<Shared>);

impl Cause {
    /// Keeps an error as the cause.
    pub fn new(error: impl Error + Send + Sync + 'static) -> Self {
        let boxed: Box<dyn Error + Send + Sync> = Box::new(error);
        Self(Some(boxed.into()))
    }

    /// The error, if one was kept.
    pub fn error(&self) -> Option<&(dyn Error + 'static)> {
        self.0.as_deref().map(|error| error as &(dyn Error + 'static))
    }
}

impl PartialEq for Cause {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Cause {}

impl Hash for Cause {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Cause(..)" } else { "Cause(None)" })
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};

    use super::*;

    #[test]
    fn causes_are_neither_compared_nor_printed() {
        let hash = |failure: &CallFailure| {
            let mut hasher = DefaultHasher::new();
            failure.hash(&mut hasher);
            hasher.finish()
        };
        let plain = CallFailure::with_code(FailureKind::Throttled, "SlowDown", "later");
        let caused = plain.clone().with_cause(std::io::Error::other("hunter2"));
        assert_eq!((&plain, hash(&plain)), (&caused, hash(&caused)));
        assert_eq!(format!("{plain} {plain:?}"), format!("{caused} {caused:?}"));
        assert_eq!(serde_json::to_value(&plain).ok(), serde_json::to_value(&caused).ok());
        assert!(plain.source().is_none());
        let copied = caused.clone();
        assert_eq!(copied.source().map(ToString::to_string).as_deref(), Some("hunter2"));
    }
}
