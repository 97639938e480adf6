//! Error responses: JSON from CML, an HTML page from the nginx in front of it.

use std::fmt;

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// Error response of CML, `{"code": …, "description": …}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CmlError {
    code: u16,
    description: String,
}

impl CmlError {
    /// Error with any HTTP status.
    pub fn new(code: u16, description: impl Into<String>) -> Self {
        Self { code, description: description.into() }
    }

    /// 400: the request is invalid.
    pub fn bad_request(description: impl Into<String>) -> Self {
        Self::new(400, description)
    }

    /// 401: the token is missing, expired or revoked. Clients log in again.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized: the token is missing, invalid or has expired.")
    }

    /// 403: the username or password is wrong.
    pub fn forbidden() -> Self {
        Self::new(403, "Authentication failed!")
    }

    /// 404. Clients match the text `<kind> not found: <id>`.
    pub fn not_found(kind: &str, id: &str) -> Self {
        Self::new(404, format!("{kind} not found: {id}"))
    }

    /// 409: not possible in the current state.
    pub fn conflict(description: impl Into<String>) -> Self {
        Self::new(409, description)
    }

    /// HTTP status of the response.
    pub const fn code(&self) -> u16 {
        self.code
    }

    /// Text of the `description` field.
    pub fn description(&self) -> &str {
        &self.description
    }
}

impl fmt::Display for CmlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.description)
    }
}

impl std::error::Error for CmlError {}

impl IntoResponse for CmlError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code).unwrap_or(StatusCode::BAD_REQUEST);
        (status, Json(json!({"code": self.code, "description": self.description}))).into_response()
    }
}

/// The 502 page of nginx while the services behind it start. HTML, not JSON.
pub fn bad_gateway_page() -> Response {
    const PAGE: &str = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n\
        <center><h1>502 Bad Gateway</h1></center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n";
    (StatusCode::BAD_GATEWAY, [(CONTENT_TYPE, "text/html")], PAGE).into_response()
}
