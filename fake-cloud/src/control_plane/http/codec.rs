//! Decoded requests and encoded responses.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::Query;
use axum::http::header::{CONTENT_TYPE, ETAG, IF_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::control_plane::error::ApiError;
use crate::control_plane::input::Input;
use crate::control_plane::worker::Worker;
use crate::response::{EncodeList, ResponseBody};

/// Typical size of a record in bytes.
const ITEM_SIZE: usize = 1536;

/// Request to an endpoint.
pub struct ApiRequest {
    subject: Option<String>,
    query: Vec<(String, String)>,
    if_match: Option<String>,
    body: Bytes,
    steps: WriteSteps,
}

/// Steps of a write that are carried out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::control_plane) enum WriteSteps {
    /// The whole write.
    #[default]
    All,
    /// Only the first step, after which the request fails.
    FirstOnly,
}

impl ApiRequest {
    /// Decodes path and query. The body and `If-Match` are parsed on first use.
    ///
    /// # Errors
    /// [`ApiError::Invalid`] for an invalid query.
    pub fn new(subject: Option<String>, parts: &Parts, body: Bytes) -> Result<Self, ApiError> {
        let query = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri)
            .map_err(|error| ApiError::invalid("(query)", &error.to_string().into(), "name=value pairs in UTF-8"))?;
        let if_match = parts.headers.get(IF_MATCH).map(|value| value.to_str().unwrap_or_default().trim().to_owned());
        Ok(Self { subject, query: query.0, if_match, body, steps: WriteSteps::All })
    }

    /// Sets the steps of a write.
    pub(in crate::control_plane) fn with_steps(self, steps: WriteSteps) -> Self {
        Self { steps, ..self }
    }

    /// Steps of the write that are carried out.
    pub(in crate::control_plane) fn steps(&self) -> WriteSteps {
        self.steps
    }

    /// Id in the path.
    pub fn subject(&self) -> &str {
        self.subject.as_deref().unwrap_or_default()
    }

    /// Returns the body as it was sent.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Parsed body.
    ///
    /// # Errors
    /// [`ApiError::Invalid`] unless it is a JSON object or empty.
    pub fn input(&self) -> Result<Input, ApiError> {
        Input::parse(&self.body)
    }

    /// First value of a query parameter; an empty one counts as absent.
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    /// All values of a query parameter, repeated or separated by commas.
    pub fn query_list(&self, name: &str) -> impl Iterator<Item = &str> {
        let values = self.query.iter().filter(move |(key, _)| key == name).flat_map(|(_, value)| value.split(','));
        values.map(str::trim).filter(|value| !value.is_empty())
    }

    /// Boolean query parameter.
    ///
    /// # Errors
    /// [`ApiError::Invalid`] unless it is a boolean.
    pub fn query_flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.query(name).map(str::to_ascii_lowercase).as_deref() {
            None | Some("false" | "0" | "no") => Ok(false),
            Some("true" | "1" | "yes") => Ok(true),
            Some(other) => Err(ApiError::invalid(name, &other.into(), "true, false")),
        }
    }

    /// Version that the caller expects, from `If-Match` or `expected_version` in the body. `None` is unconditional.
    ///
    /// # Errors
    /// [`ApiError::Invalid`] if `If-Match` is no version, or if the two disagree.
    pub fn expected_version(&self, input: &Input) -> Result<Option<u64>, ApiError> {
        let in_body = input.unsigned("expected_version")?;
        let header = match self.if_match.as_deref() {
            None | Some("*") => None,
            Some(text) => {
                let version = text.strip_prefix("W/").unwrap_or(text).trim_matches('"').parse::<u64>();
                let accepted = "a version in quotes such as \"3\", or *";
                Some(version.map_err(|_| ApiError::invalid("If-Match", &text.into(), accepted))?)
            }
        };
        match (header, in_body) {
            (Some(header), Some(body)) if header != body => {
                Err(ApiError::invalid("expected_version", &body.into(), &format!("{header}, as `If-Match` says")))
            }
            (header, body) => Ok(header.or(body)),
        }
    }

    /// A string from the query or from the body.
    ///
    /// # Errors
    /// [`ApiError::Invalid`] if the body's value is not a string.
    pub fn text<'a>(&'a self, input: &'a Input, name: &str) -> Result<Option<&'a str>, ApiError> {
        let in_body = input.text(name)?;
        Ok(self.query(name).or(in_body))
    }
}

/// Response of an endpoint.
pub struct ApiResponse {
    status: StatusCode,
    version: Option<u64>,
    body: ResponseBody,
}

impl ApiResponse {
    /// Response with any JSON value.
    pub fn json(value: &impl Serialize) -> Self {
        // Maps with string keys always serialize.
        let body = serde_json::to_vec(value).unwrap_or_default();
        Self { status: StatusCode::OK, version: None, body: body.into() }
    }

    /// Response with a worker record, and its version in `ETag` if it has one.
    pub fn worker(worker: &Arc<Worker>) -> Self {
        let version = worker.get("version").and_then(Value::as_u64);
        Self { status: StatusCode::OK, version, body: worker.json().to_vec().into() }
    }

    /// Response with a list of records.
    pub fn workers(workers: Vec<Arc<Worker>>) -> Self {
        Self::list(workers, |worker, answer| answer.extend_from_slice(worker.json()))
    }

    /// Response with a list of objects.
    pub fn objects(objects: Vec<Arc<Map<String, Value>>>) -> Self {
        Self::list(objects, |object, answer| {
            // Maps with string keys always serialize.
            let _ = serde_json::to_writer(answer, &**object);
        })
    }

    fn list<T: Send + 'static>(items: Vec<T>, write: fn(&T, &mut Vec<u8>)) -> Self {
        let body = ResponseBody::list(b"[".to_vec(), Items { items, write }, b"]".to_vec(), ITEM_SIZE);
        Self { status: StatusCode::OK, version: None, body }
    }

    /// Replaces the HTTP status.
    pub fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }
}

impl IntoResponse for ApiResponse {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        let mut response = (self.status, [(CONTENT_TYPE, json)], Body::from(self.body)).into_response();
        if let Some(tag) = self.version.and_then(|version| HeaderValue::try_from(format!("\"{version}\"")).ok()) {
            response.headers_mut().insert(ETAG, tag);
        }
        response
    }
}

/// Items of a JSON list.
struct Items<T> {
    items: Vec<T>,
    write: fn(&T, &mut Vec<u8>),
}

impl<T: Send + 'static> EncodeList for Items<T> {
    fn len(&self) -> usize {
        self.items.len()
    }

    fn encode(&self, place: usize, answer: &mut Vec<u8>) {
        if place > 0 {
            answer.push(b',');
        }
        if let Some(item) = self.items.get(place) {
            (self.write)(item, answer);
        }
    }
}
