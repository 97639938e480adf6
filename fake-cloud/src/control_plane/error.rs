//! Everything the control plane refuses, and how it says so.

use std::fmt;

use serde_json::{Map, Value, json};

/// Longest piece of a refused value that is shown.
const SHOWN: usize = 200;

/// Fields whose values are never shown, whatever is wrong with them.
const SECRET_FIELDS: [&str; 3] = ["token", "password", "secret"];

/// Why a request was refused. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiError {
    /// The API key is missing or wrong.
    Unauthorized,
    /// There is no such thing.
    NotFound {
        /// What kind of thing, such as `worker`.
        kind: &'static str,
        /// Its id or name.
        id: String,
    },
    /// No endpoint lives at this path.
    NoSuchPath(String),
    /// The path exists, the method does not.
    MethodNotAllowed(String),
    /// Somebody wrote in between.
    VersionConflict {
        /// The version the caller had read.
        expected: u64,
        /// The version of the record now.
        current: u64,
    },
    /// The thing is not in a state in which this can be done.
    WrongState {
        /// What was asked for, such as `drain`.
        action: &'static str,
        /// The state it is in.
        current: String,
        /// The states in which it can be done.
        accepted: String,
    },
    /// The id or name is taken.
    Exists {
        /// What kind of thing.
        kind: &'static str,
        /// Its id or name.
        id: String,
    },
    /// A field of the request cannot be used.
    Invalid {
        /// Which field.
        field: String,
        /// What it was, cut short, or a placeholder if it is secret.
        value: String,
        /// What would have been accepted.
        accepted: String,
    },
    /// The body is larger than the server reads.
    TooLarge {
        /// How many bytes it reads.
        limit: usize,
    },
}

impl ApiError {
    /// A field that cannot be used. The value is cut short, and not shown at all where it may be a secret.
    pub fn invalid(field: &str, value: &Value, accepted: &str) -> Self {
        let secret = SECRET_FIELDS.iter().any(|word| field.contains(word));
        let shown = if secret { "(not shown)".to_owned() } else { cut(&value.to_string()) };
        Self::Invalid { field: field.to_owned(), value: shown, accepted: accepted.to_owned() }
    }

    /// A field that is not there.
    pub fn missing(field: &str, accepted: &str) -> Self {
        Self::Invalid { field: field.to_owned(), value: "(missing)".to_owned(), accepted: accepted.to_owned() }
    }

    /// The HTTP status.
    pub const fn http_status(&self) -> u16 {
        match self {
            Self::Unauthorized => 401,
            Self::NotFound { .. } | Self::NoSuchPath(_) => 404,
            Self::MethodNotAllowed(_) => 405,
            Self::VersionConflict { .. } | Self::WrongState { .. } | Self::Exists { .. } => 409,
            Self::TooLarge { .. } => 413,
            Self::Invalid { .. } => 422,
        }
    }

    /// The stable, machine-readable name.
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
            Self::Invalid { .. } => "invalid_input",
        }
    }

    /// The HTTP status a machine-readable name travels with, if it is one of ours.
    pub(crate) fn usual_status(code: &str) -> Option<u16> {
        Some(match code {
            "unauthorized" => 401,
            "not_found" | "no_such_path" => 404,
            "method_not_allowed" => 405,
            "version_conflict" | "wrong_state" | "already_exists" => 409,
            "body_too_large" => 413,
            "invalid_input" => 422,
            _ => return None,
        })
    }

    /// The body of the answer.
    pub fn to_json(&self) -> Value {
        let mut body = Map::new();
        body.insert("error".into(), self.code().into());
        body.insert("detail".into(), self.to_string().into());
        let facts = match self {
            Self::Unauthorized | Self::NoSuchPath(_) | Self::MethodNotAllowed(_) => json!({}),
            Self::NotFound { kind, id } | Self::Exists { kind, id } => json!({"kind": kind, "id": cut(id)}),
            Self::VersionConflict { expected, current } => {
                json!({"expected_version": expected, "current_version": current})
            }
            Self::WrongState { action, current, accepted } => {
                json!({"action": action, "current_state": current, "accepted": accepted})
            }
            Self::Invalid { field, value, accepted } => json!({"field": field, "value": value, "accepted": accepted}),
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
            Self::NotFound { kind, id } => write!(f, "no {kind} with id or name {:?}", cut(id)),
            Self::NoSuchPath(path) => write!(f, "no endpoint at {:?}; see openapi/control-plane.yaml", cut(path)),
            Self::MethodNotAllowed(method) => write!(f, "method {method} is not served at this path"),
            Self::VersionConflict { expected, current } => write!(
                f,
                "the record is at version {current}, not at the expected version {expected}: read it again and decide anew"
            ),
            Self::WrongState { action, current, accepted } => {
                write!(f, "cannot {action}: the state is {current:?}; accepted: {accepted}")
            }
            Self::Exists { kind, id } => write!(f, "a {kind} with id or name {:?} exists already", cut(id)),
            Self::Invalid { field, value, accepted } => {
                write!(f, "field `{field}` is {value}; accepted: {accepted}")
            }
            Self::TooLarge { limit } => write!(f, "the body is larger than {limit} bytes"),
        }
    }
}

impl std::error::Error for ApiError {}

fn cut(text: &str) -> String {
    if text.len() <= SHOWN {
        return text.to_owned();
    }
    let shown: String = text.chars().take(SHOWN).collect();
    format!("{shown}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_secret_is_not_repeated() {
        let problem = ApiError::invalid("license.token", &json!({"plain": "hunter2"}), "text");
        assert!(!problem.to_json().to_string().contains("hunter2"));
    }

    #[test]
    fn a_huge_value_is_cut() {
        let problem = ApiError::invalid("status", &"é".repeat(100_000).into(), "running");
        assert!(problem.to_json().to_string().len() < 2_000);
    }

    #[test]
    fn a_conflict_names_both_versions() {
        let body = ApiError::VersionConflict { expected: 3, current: 5 }.to_json();
        assert_eq!((&body["expected_version"], &body["current_version"]), (&json!(3), &json!(5)));
        assert!(body["detail"].as_str().is_some_and(|detail| detail.contains('3') && detail.contains('5')), "{body}");
    }
}
