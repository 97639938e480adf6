//! An answer, encoded as every endpoint needs it.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, ETAG};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::answer::{Answer, List};
use crate::control_plane::worker::Worker;

/// About how long a record is.
const ITEM_SIZE: usize = 1536;

/// What an endpoint answers.
pub struct Reply {
    status: StatusCode,
    version: Option<u64>,
    body: Answer,
}

impl Reply {
    /// Any JSON.
    pub fn json(value: &impl Serialize) -> Self {
        // Maps with text keys always serialise.
        let body = serde_json::to_vec(value).unwrap_or_default();
        Self { status: StatusCode::OK, version: None, body: body.into() }
    }

    /// A worker's record, with its version in `ETag` if it has one.
    pub fn worker(worker: &Arc<Worker>) -> Self {
        let version = worker.get("version").and_then(Value::as_u64);
        Self { status: StatusCode::OK, version, body: worker.json().to_vec().into() }
    }

    /// Many records.
    pub fn workers(workers: Vec<Arc<Worker>>) -> Self {
        Self::list(workers, |worker, answer| answer.extend_from_slice(worker.json()))
    }

    /// Many objects.
    pub fn objects(objects: Vec<Arc<Map<String, Value>>>) -> Self {
        Self::list(objects, |object, answer| {
            // Maps with text keys always serialise.
            let _ = serde_json::to_writer(answer, &**object);
        })
    }

    fn list<T: Send + 'static>(items: Vec<T>, write: fn(&T, &mut Vec<u8>)) -> Self {
        let body = Answer::list(b"[".to_vec(), Items { items, write }, b"]".to_vec(), ITEM_SIZE);
        Self { status: StatusCode::OK, version: None, body }
    }

    /// The same with another status.
    pub fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        let mut response = (self.status, [(CONTENT_TYPE, json)], Body::from(self.body)).into_response();
        if let Some(tag) = self.version.and_then(|version| HeaderValue::try_from(format!("\"{version}\"")).ok()) {
            response.headers_mut().insert(ETAG, tag);
        }
        response
    }
}

/// The items of a JSON list.
struct Items<T> {
    items: Vec<T>,
    write: fn(&T, &mut Vec<u8>),
}

impl<T: Send + 'static> List for Items<T> {
    fn len(&self) -> usize {
        self.items.len()
    }

    fn write(&self, place: usize, answer: &mut Vec<u8>) {
        if place > 0 {
            answer.push(b',');
        }
        if let Some(item) = self.items.get(place) {
            (self.write)(item, answer);
        }
    }
}
