//! Authorizes changes and bounds request bodies.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest as _, Sha256};

use super::handlers::error_response;
use crate::lifecycle::secret::Secret;

/// Largest request body, in bytes. No endpoint needs one.
const MAX_BODY: usize = 64 * 1024;

/// Address and access rules of the admin server.
///
/// ```
/// use lcm_sdk::Secret;
/// use lcm_sdk::admin::{AdminOptions, Exposure};
///
/// let address = "0.0.0.0:8083".parse().unwrap();
/// let options = AdminOptions::new(address).with_exposure(Exposure::Network).with_key(Secret::from("hunter2"));
/// assert!(!format!("{options:?}").contains("hunter2"));
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AdminOptions {
    /// Address to listen on. Port 0 selects a free port.
    pub address: SocketAddr,
    /// Whether the server may listen on the network.
    pub exposure: Exposure,
    /// Key for changes, sent as `X-API-Key` or bearer token. Without a key, changes are accepted from this host only.
    pub key: Option<Secret>,
}

impl AdminOptions {
    /// Options for a loopback address without a key.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, exposure: Exposure::LoopbackOnly, key: None }
    }

    /// Sets whether the server may listen on the network.
    #[must_use]
    pub fn with_exposure(self, exposure: Exposure) -> Self {
        Self { exposure, ..self }
    }

    /// Sets the key for changes.
    #[must_use]
    pub fn with_key(self, key: Secret) -> Self {
        Self { key: Some(key), ..self }
    }
}

/// Networks from which the admin server can be reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Exposure {
    /// This host only. [`AdminServer::bind`](super::AdminServer::bind) rejects an address other than loopback.
    #[default]
    LoopbackOnly,
    /// Every network that routes to the address. Reads need no key; changes are rejected without it.
    Network,
}

/// Returns whether an address can be reached from this host only.
pub(crate) fn is_local(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Rules that the middleware applies to a change.
pub(crate) struct AccessPolicy {
    /// Hash of the key. Comparing hashes takes the same time wherever two keys differ.
    key: Option<[u8; 32]>,
    is_local: bool,
}

impl AccessPolicy {
    pub(crate) fn new(address: SocketAddr, key: Option<&Secret>) -> Arc<Self> {
        Arc::new(Self { key: key.map(|key| hash(key.expose())), is_local: is_local(address.ip()) })
    }

    /// Returns the status and message with which a change is rejected, if it is.
    fn rejection(&self, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
        match self.key {
            Some(key) => {
                let matches = presented_key(headers).is_some_and(|presented| hash(presented) == key);
                let message = "a change needs the admin key (ADMIN_KEY), as X-API-Key or as bearer token";
                (!matches).then_some((StatusCode::UNAUTHORIZED, message))
            }
            None if !self.is_local => {
                let message = "the admin server is open to the network and has no key, so changes are rejected; \
                               ADMIN_KEY sets a key";
                Some((StatusCode::FORBIDDEN, message))
            }
            // Browsers send the origin of a page. Without a key, any page could send changes to this host.
            None => headers
                .contains_key(ORIGIN)
                .then_some((StatusCode::FORBIDDEN, "a web page may not change anything here without the admin key")),
        }
    }
}

fn presented_key(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    text("x-api-key").or_else(|| text(AUTHORIZATION.as_str())?.strip_prefix("Bearer "))
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Passes a request on, unless it is an unauthorized change or its body is too large.
pub(crate) async fn authorize(State(policy): State<Arc<AccessPolicy>>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    if !head.method.is_safe()
        && let Some((status, message)) = policy.rejection(&head.headers)
    {
        return error_response(status, message);
    }
    match to_bytes(body, MAX_BODY).await {
        Ok(body) => next.run(Request::from_parts(head, Body::from(body))).await,
        Err(_) => error_response(StatusCode::PAYLOAD_TOO_LARGE, "no endpoint accepts a body of that length"),
    }
}
