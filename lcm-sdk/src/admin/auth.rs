//! Authorizes changes and the data of the console, and bounds request bodies.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest as _, Sha256};

use super::handlers::error_response;
use crate::lifecycle::secret::Secret;

/// Largest request body, in bytes. Operations take a short one.
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
    /// Key for changes and for the data of the console, sent as `X-API-Key` or bearer token. Without a key, both are for
    /// this host only.
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

    /// Sets the key for changes and for the data of the console.
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
    /// Every network that routes to the address. Changes and the data of the console are rejected without the key; other
    /// reads need none.
    Network,
}

/// Returns whether an address can be reached from this host only.
pub(crate) fn is_local(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Rules that the middleware applies to a change, and to a read of data that only the console shows.
pub(crate) struct AccessPolicy {
    /// Hash of the key. Comparing hashes takes the same time wherever two keys differ.
    key: Option<[u8; 32]>,
    is_local: bool,
}

impl AccessPolicy {
    pub(crate) fn new(address: SocketAddr, key: Option<&Secret>) -> Arc<Self> {
        Arc::new(Self { key: key.map(|key| hash(key.expose())), is_local: is_local(address.ip()) })
    }

    fn has_key(&self, headers: &HeaderMap) -> bool {
        self.key.is_some_and(|key| presented_key(headers).is_some_and(|presented| hash(presented) == key))
    }

    /// Returns the status and message with which a change is rejected, if it is.
    fn rejection(&self, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
        match self.key {
            Some(_) => {
                let message = "a change needs the admin key (ADMIN_KEY), as X-API-Key or as bearer token";
                (!self.has_key(headers)).then_some((StatusCode::UNAUTHORIZED, message))
            }
            None if !self.is_local => {
                let message = "the admin server is open to the network and has no key, so changes are rejected; \
                               ADMIN_KEY sets a key";
                Some((StatusCode::FORBIDDEN, message))
            }
            // Browsers send the origin of a page. Without a key, any page could send changes to this host.
            None if headers.contains_key(ORIGIN) && !is_own_page(headers) => Some((
                StatusCode::FORBIDDEN,
                "a web page other than the console may not change anything here without the admin key",
            )),
            None => None,
        }
    }

    /// Returns the status and message with which a read of the console's data is rejected, if it is.
    fn read_rejection(&self, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
        if self.has_key(headers) || (self.is_local && is_own_page(headers)) {
            return None;
        }
        Some(match self.key {
            Some(_) => {
                let message = "these data need the admin key (ADMIN_KEY), as X-API-Key or as bearer token";
                (StatusCode::UNAUTHORIZED, message)
            }
            None if self.is_local => {
                (StatusCode::FORBIDDEN, "these data are for the console and for clients on this host only")
            }
            None => {
                let message = "the admin server is open to the network and has no key, so these data are not served; \
                               ADMIN_KEY sets a key";
                (StatusCode::FORBIDDEN, message)
            }
        })
    }
}

/// Whether a path has data that only the console shows. The other reads are those of the original controller and of
/// probes, which send no key.
fn is_console_data(path: &str) -> bool {
    ["/admin/stream", "/admin/discovery", "/admin/events"].contains(&path) || path.starts_with("/admin/workers/")
}

/// Whether a request to a local server comes from a page of this server, or from no page.
fn is_own_page(headers: &HeaderMap) -> bool {
    // A value that is not text is opaque.
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("null"));
    let host = text(HOST);
    host.is_none_or(lcm_console::is_local_host) && !lcm_console::is_cross_origin(text(ORIGIN), host)
}

fn presented_key(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    text("x-api-key").or_else(|| text(AUTHORIZATION.as_str())?.strip_prefix("Bearer "))
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Passes a request on, unless it is unauthorized or its body is too large.
pub(crate) async fn authorize(State(policy): State<Arc<AccessPolicy>>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let rejection = match head.method.is_safe() {
        false => policy.rejection(&head.headers),
        true if is_console_data(head.uri.path()) => policy.read_rejection(&head.headers),
        true => None,
    };
    if let Some((status, message)) = rejection {
        return error_response(status, message);
    }
    match to_bytes(body, MAX_BODY).await {
        Ok(body) => next.run(Request::from_parts(head, Body::from(body))).await,
        Err(_) => error_response(StatusCode::PAYLOAD_TOO_LARGE, "no endpoint accepts a body of that length"),
    }
}
