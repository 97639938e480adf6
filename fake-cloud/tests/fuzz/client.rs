//! A request to a router, without a socket.

use axum::Router;
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

/// Status and body of a response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Response {
    /// Body as JSON; null if it is not JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Percent-encodes a path segment.
pub(crate) fn segment(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    text.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Sends a request; `None` if it cannot be built.
pub(crate) fn send(
    runtime: &Runtime,
    router: &Router,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> Option<Response> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body)).ok()?;
    let (status, body) = runtime.block_on(async {
        let response: http::Response<Body> = match router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let status = response.status().as_u16();
        (status, response.into_body().collect().await.expect("a body in memory").to_bytes().to_vec())
    });
    Some(Response { status, body })
}

/// A runtime on the current thread, with I/O and time.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}
