//! Error responses of the original server, in its three shapes.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::control_plane::error::ApiError;
use crate::middleware::ErrorCode;

/// Detail of every 500 for an unknown worker.
pub(super) const LOOKUP_FAILURE: &str = "'str' object has no attribute '__name__'";

/// Detail of the 500 for a record that another request has saved since it was read.
pub(crate) const WRITE_CONFLICT: &str = "Unexpected error: the record was saved by another request";

/// Base of the `type` of a handler error.
const PROBLEM_TYPE: &str = "https://www.w3.org/Protocols/HTTP/HTRESP.html";

/// Error of a request to the original server.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::control_plane) enum Rejection {
    /// `{"detail": text}`, from the framework.
    Framework { status: u16, detail: String },
    /// `{"detail": [{type, loc, msg, input}]}`, from the validation of a body or a query.
    Invalid(Vec<Value>),
    /// `{title, status, detail, type}`, from a handler.
    Handler { status: u16, detail: String },
    /// 500 in plain text, from a handler that raised.
    Crash,
}

impl Rejection {
    pub(super) fn handler(status: StatusCode, detail: impl Into<String>) -> Self {
        Self::Handler { status: status.as_u16(), detail: detail.into() }
    }

    /// 500 of a handler that failed to look up a worker; `context` precedes the detail.
    pub(super) fn lookup(context: &str) -> Self {
        Self::handler(StatusCode::INTERNAL_SERVER_ERROR, format!("{context}{LOOKUP_FAILURE}"))
    }

    /// 500 of a handler whose record another request has saved meanwhile.
    pub(super) fn write_conflict() -> Self {
        Self::handler(StatusCode::INTERNAL_SERVER_ERROR, WRITE_CONFLICT)
    }

    /// 404 of a handler that looks up an entity properly.
    pub(super) fn no_entity(entity: &str, id: &str) -> Self {
        let detail = format!("Failed to find an entity of type '{entity}' with the specified id '{id}'");
        Self::handler(StatusCode::NOT_FOUND, detail)
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Framework { status, .. } | Self::Handler { status, .. } => {
                StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }
            Self::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Crash => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Code in the request log.
    fn code(&self) -> &'static str {
        match self {
            Self::Framework { .. } => "framework",
            Self::Invalid(_) => "invalid_input",
            Self::Handler { .. } => "handler",
            Self::Crash => "crash",
        }
    }
}

/// Errors that the server itself detects before a handler runs, and errors of the shared record store.
impl From<&ApiError> for Rejection {
    fn from(error: &ApiError) -> Self {
        let framework = |detail: &str| Self::Framework { status: error.http_status(), detail: detail.to_owned() };
        match error {
            ApiError::Unauthorized => framework("Invalid API key"),
            ApiError::NoSuchPath(_) => framework("Not Found"),
            ApiError::MethodNotAllowed(_) => framework("Method Not Allowed"),
            ApiError::TooLarge { .. } => framework("Request Entity Too Large"),
            ApiError::Invalid { .. } => Self::handler(StatusCode::BAD_REQUEST, error.to_string()),
            ApiError::NotFound { .. }
            | ApiError::Mistyped { .. }
            | ApiError::VersionConflict { .. }
            | ApiError::WrongState { .. }
            | ApiError::Exists { .. }
            | ApiError::NotSupported { .. } => Self::Handler { status: error.http_status(), detail: error.to_string() },
        }
    }
}

impl From<ApiError> for Rejection {
    fn from(error: ApiError) -> Self {
        Self::from(&error)
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let (status, code) = (self.status(), self.code());
        let mut response = match self {
            Self::Framework { detail, .. } => (status, Json(json!({"detail": detail}))).into_response(),
            Self::Invalid(problems) => (status, Json(json!({"detail": problems}))).into_response(),
            Self::Handler { detail, .. } => (status, Json(problem(status, &detail))).into_response(),
            Self::Crash => (status, "Internal Server Error").into_response(),
        };
        response.extensions_mut().insert(ErrorCode(code.into()));
        response
    }
}

/// Body of a handler error.
pub(in crate::control_plane) fn problem(status: StatusCode, detail: &str) -> Value {
    let fragment = match status {
        StatusCode::BAD_REQUEST => "#:~:text=Bad%20Request",
        StatusCode::NOT_FOUND => "#:~:text=Not%20found%20404",
        _ => "",
    };
    json!({
        "title": status.canonical_reason().unwrap_or_default(),
        "status": status.as_u16(),
        "detail": detail,
        "type": format!("{PROBLEM_TYPE}{fragment}"),
    })
}
