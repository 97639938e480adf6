//! How CML says no: `{"code": …, "description": …}`, or nginx in front of it with a page of HTML.

use std::fmt;

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// An error answer of CML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CmlError {
    code: u16,
    description: String,
}

impl CmlError {
    /// Any error.
    pub fn new(code: u16, description: impl Into<String>) -> Self {
        Self { code, description: description.into() }
    }

    /// The request cannot be used.
    pub fn bad_request(description: impl Into<String>) -> Self {
        Self::new(400, description)
    }

    /// The token is missing, expired or revoked: clients log in again.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized: the token is missing, invalid or has expired.")
    }

    /// The password is wrong.
    pub fn forbidden() -> Self {
        Self::new(403, "Authentication failed!")
    }

    /// There is no such thing. Clients look for the words `<kind> not found: <id>`.
    pub fn not_found(kind: &str, id: &str) -> Self {
        Self::new(404, format!("{kind} not found: {id}"))
    }

    /// Not now.
    pub fn conflict(description: impl Into<String>) -> Self {
        Self::new(409, description)
    }

    /// The HTTP status.
    pub const fn code(&self) -> u16 {
        self.code
    }

    /// What CML says about it.
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

/// What nginx says while the services behind it still start: HTML, not JSON.
pub fn bad_gateway_page() -> Response {
    const PAGE: &str = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n\
        <center><h1>502 Bad Gateway</h1></center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n";
    (StatusCode::BAD_GATEWAY, [(CONTENT_TYPE, "text/html")], PAGE).into_response()
}
