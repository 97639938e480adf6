//! An answer, encoded as every endpoint needs it.

use std::sync::Arc;

use axum::http::header::{CONTENT_TYPE, ETAG};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::control_plane::worker::Worker;

/// What an endpoint answers.
pub struct Reply {
    status: StatusCode,
    version: Option<u64>,
    body: Vec<u8>,
}

impl Reply {
    /// Any JSON.
    pub fn json(value: &impl Serialize) -> Self {
        // Maps with text keys always serialise.
        let body = serde_json::to_vec(value).unwrap_or_default();
        Self { status: StatusCode::OK, version: None, body }
    }

    /// A worker's record, with its version in `ETag` if it has one.
    pub fn worker(worker: &Arc<Worker>) -> Self {
        let version = worker.get("version").and_then(Value::as_u64);
        Self { version, ..Self::json(worker.fields()) }
    }

    /// Many records.
    pub fn workers(workers: &[Arc<Worker>]) -> Self {
        Self::json(&workers.iter().map(|worker| worker.fields()).collect::<Vec<_>>())
    }

    /// Many objects.
    pub fn objects(objects: &[Arc<Map<String, Value>>]) -> Self {
        Self::json(&objects.iter().map(|object| &**object).collect::<Vec<_>>())
    }

    /// The same with another status.
    pub fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        let mut response = (self.status, [(CONTENT_TYPE, json)], self.body).into_response();
        if let Some(tag) = self.version.and_then(|version| HeaderValue::try_from(format!("\"{version}\"")).ok()) {
            response.headers_mut().insert(ETAG, tag);
        }
        response
    }
}
