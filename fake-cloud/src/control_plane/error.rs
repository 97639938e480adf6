//! Errors of the control plane and their HTTP encoding.

use std::fmt;

use serde_json::{Map, Value, json};

/// Maximum length of a rejected value in an error message.
const MAX_SHOWN: usize = 200;

/// Fields whose values are secret and never shown.
const SECRET_FIELDS: [&str; 3] = ["token", "password", "secret"];

/// Error of a request. The request changed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiError {
    /// The API key is missing or wrong.
    Unauthorized,
    /// The object does not exist.
    NotFound {
        /// Kind of object, such as `worker`.
        kind: &'static str,
        /// Requested id or name.
        id: String,
    },
    /// No object or field has this name, but one has a similar name.
    Mistyped {
        /// Kind of the name, such as `worker` or `field`.
        kind: &'static str,
        /// The unknown name.
        id: String,
        /// The similar id or name.
        similar: String,
    },
    /// No endpoint has this path.
    NoSuchPath(String),
    /// The path does not support this method.
    MethodNotAllowed(String),
    /// The record has changed since the caller read it.
    VersionConflict {
        /// Version that the caller expected.
        expected: u64,
        /// Current version of the record.
        current: u64,
    },
    /// The operation is not allowed in the current state.
    WrongState {
        /// Operation, such as `drain`.
        action: &'static str,
        /// Current state of the object.
        current: String,
        /// States in which the operation is allowed.
        accepted: String,
    },
    /// The id or name is already in use.
    Exists {
        /// Kind of object, such as `worker`.
        kind: &'static str,
        /// Requested id or name.
        id: String,
    },
    /// A field of the request is invalid.
    Invalid {
        /// Name of the field.
        field: String,
        /// Rejected value, truncated; a placeholder if it is secret.
        value: String,
        /// Description of the accepted values.
        accepted: String,
    },
    /// This generation of the control plane lacks the operation.
    NotSupported {
        /// Operation, such as `cancel a drain`.
        action: &'static str,
        /// The way to the same effect on this generation.
        instead: &'static str,
    },
    /// The body exceeds the size limit.
    TooLarge {
        /// Maximum size in bytes.
        limit: usize,
    },
}

impl ApiError {
    /// Error for an invalid field. The value is truncated, and replaced by a placeholder where it may be secret.
    pub fn invalid(field: &str, value: &Value, accepted: &str) -> Self {
        let secret = SECRET_FIELDS.iter().any(|word| field.contains(word));
        let shown = if secret { "(not shown)".to_owned() } else { truncate(&value.to_string()) };
        Self::Invalid { field: field.to_owned(), value: shown, accepted: accepted.to_owned() }
    }

    /// Error for a missing field.
    pub fn missing(field: &str, accepted: &str) -> Self {
        Self::Invalid { field: field.to_owned(), value: "(missing)".to_owned(), accepted: accepted.to_owned() }
    }

    /// HTTP status of the error.
    pub const fn http_status(&self) -> u16 {
        match self {
            Self::Unauthorized => 401,
            Self::NotFound { .. } | Self::NoSuchPath(_) => 404,
            Self::MethodNotAllowed(_) => 405,
            Self::VersionConflict { .. } | Self::WrongState { .. } | Self::Exists { .. } => 409,
            Self::TooLarge { .. } => 413,
            Self::Mistyped { kind, .. } if !matches!(kind.as_bytes(), b"field") => 404,
            Self::Invalid { .. } | Self::Mistyped { .. } => 422,
            Self::NotSupported { .. } => 501,
        }
    }

    /// Stable, machine-readable error code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::NotFound { .. } => "not_found",
            Self::NoSuchPath(_) => "no_such_path",
            Self::MethodNotAllowed(_) => "method_not_allowed",
            Self::VersionConflict { .. } => "version_conflict",
            Self::WrongState { .. } => "wrong_state",
            Self::Exists { .. } => "already_exists",
            Self::TooLarge { .. } => "body_too_large",
            Self::Invalid { .. } | Self::Mistyped { .. } => "invalid_input",
            Self::NotSupported { .. } => "not_supported",
        }
    }

    /// HTTP status of an error code; `None` for an unknown code.
    pub(crate) fn status_from_code(code: &str) -> Option<u16> {
        Some(match code {
            "unauthorized" => 401,
            "not_found" | "no_such_path" => 404,
            "method_not_allowed" => 405,
            "version_conflict" | "wrong_state" | "already_exists" => 409,
            "body_too_large" => 413,
            "invalid_input" => 422,
            "not_supported" => 501,
            _ => return None,
        })
    }

    /// JSON body of the error response.
    pub fn to_json(&self) -> Value {
        let mut body = Map::new();
        body.insert("error".into(), self.code().into());
        body.insert("detail".into(), self.to_string().into());
        let facts = match self {
            Self::Unauthorized | Self::NoSuchPath(_) | Self::MethodNotAllowed(_) => json!({}),
            Self::NotFound { kind, id } | Self::Mistyped { kind, id, .. } | Self::Exists { kind, id } => {
                json!({"kind": kind, "id": truncate(id)})
            }
            Self::VersionConflict { expected, current } => {
                json!({"expected_version": expected, "current_version": current})
            }
            Self::WrongState { action, current, accepted } => {
                json!({"action": action, "current_state": current, "accepted": accepted})
            }
            Self::Invalid { field, value, accepted } => json!({"field": field, "value": value, "accepted": accepted}),
            Self::NotSupported { action, instead } => json!({"action": action, "instead": instead}),
            Self::TooLarge { limit } => json!({"limit_bytes": limit}),
        };
        if let Value::Object(facts) = facts {
            body.extend(facts);
        }
        body.into()
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unauthorized => f.write_str("header `X-API-Key` is missing or wrong"),
            Self::NotFound { kind, id } => write!(f, "no {kind} with id or name {:?}", truncate(id)),
            Self::Mistyped { kind, id, similar } => {
                write!(f, "unknown {kind} {:?}; did you mean '{similar}'?", truncate(id))
            }
            Self::NoSuchPath(path) => {
                write!(f, "no endpoint at {:?}; see openapi/control-plane-extended.yaml", truncate(path))
            }
            Self::MethodNotAllowed(method) => write!(f, "method {method} is not served at this path"),
            Self::VersionConflict { expected, current } => write!(
                f,
                "the record is at version {current}, not at the expected version {expected}: read it again and decide anew"
            ),
            Self::WrongState { action, current, accepted } => {
                write!(f, "cannot {action}: the state is {current:?}; accepted: {accepted}")
            }
            Self::Exists { kind, id } => write!(f, "a {kind} with id or name {:?} exists already", truncate(id)),
            Self::Invalid { field, value, accepted } => {
                write!(f, "field `{field}` is {value}; accepted: {accepted}")
            }
            Self::NotSupported { action, instead } => {
                write!(f, "the control plane of the generation 'original' cannot {action}; {instead}")
            }
            Self::TooLarge { limit } => write!(f, "the body is larger than {limit} bytes"),
        }
    }
}

impl std::error::Error for ApiError {}

fn truncate(text: &str) -> String {
    if text.len() <= MAX_SHOWN {
        return text.to_owned();
    }
    let shown: String = text.chars().take(MAX_SHOWN).collect();
    format!("{shown}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_secret_is_not_echoed() {
        let error = ApiError::invalid("license.token", &json!({"plain": "hunter2"}), "text");
        assert!(!error.to_json().to_string().contains("hunter2"));
    }

    #[test]
    fn long_value_is_truncated() {
        let error = ApiError::invalid("status", &"é".repeat(100_000).into(), "running");
        assert!(error.to_json().to_string().len() < 2_000);
    }

    #[test]
    fn conflict_reports_both_versions() {
        let body = ApiError::VersionConflict { expected: 3, current: 5 }.to_json();
        assert_eq!((&body["expected_version"], &body["current_version"]), (&json!(3), &json!(5)));
        assert!(body["detail"].as_str().is_some_and(|detail| detail.contains('3') && detail.contains('5')), "{body}");
    }
}
