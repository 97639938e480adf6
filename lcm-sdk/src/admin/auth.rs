//! Who may ask the admin server for a change, and how much they may say.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest as _, Sha256};

use super::handlers::refuse;
use crate::lifecycle::secret::Secret;

/// The longest body that is read. Nothing here needs one.
const LONGEST_BODY: usize = 64 * 1024;

/// Where the admin server listens, and who may change something there.
///
/// ```
/// use lcm_sdk::Secret;
/// use lcm_sdk::admin::{AdminOptions, Exposure};
///
/// let address = "0.0.0.0:8083".parse().unwrap();
/// let options =
///     AdminOptions { exposure: Exposure::Network, key: Some(Secret::from("hunter2")), ..AdminOptions::at(address) };
/// assert!(!format!("{options:?}").contains("hunter2"));
/// ```
#[derive(Debug, Clone)]
pub struct AdminOptions {
    /// Where to listen. Port 0 takes any free one.
    pub address: SocketAddr,
    /// Whether others than this machine may reach it.
    pub exposure: Exposure,
    /// What a change needs as `X-API-Key` or bearer token. Without one, only this machine may change something.
    pub key: Option<Secret>,
}

impl AdminOptions {
    /// For this machine alone, without a key.
    pub fn at(address: SocketAddr) -> Self {
        Self { address, exposure: Exposure::LoopbackOnly, key: None }
    }
}

/// Who can reach the admin server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Exposure {
    /// This machine alone: an address that others could reach is refused.
    #[default]
    LoopbackOnly,
    /// Whoever reaches the address. They may look; a change needs the key.
    Network,
}

/// Whether only this machine can reach an address.
pub(crate) fn is_local(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// What the middleware knows of who may do what.
pub(crate) struct Door {
    /// Only the key's hash: comparing hashes takes the same time wherever two keys differ.
    key: Option<[u8; 32]>,
    is_local: bool,
}

impl Door {
    pub(crate) fn new(address: SocketAddr, key: Option<&Secret>) -> Arc<Self> {
        Arc::new(Self { key: key.map(|key| hash(key.expose())), is_local: is_local(address.ip()) })
    }

    /// Why somebody may not change anything.
    fn objection(&self, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
        match self.key {
            Some(key) => {
                let shown = shown(headers).is_some_and(|shown| hash(shown) == key);
                let problem = "a change needs the admin key (ADMIN_KEY), as X-API-Key or as bearer token";
                (!shown).then_some((StatusCode::UNAUTHORIZED, problem))
            }
            None if !self.is_local => {
                let problem = "the admin server is open to the network and has no key, so nobody may change anything; \
                               ADMIN_KEY sets one";
                Some((StatusCode::FORBIDDEN, problem))
            }
            // A browser says where a page comes from; no page is meant to reach in.
            None => headers
                .contains_key(ORIGIN)
                .then_some((StatusCode::FORBIDDEN, "a web page may not change anything here without the admin key")),
        }
    }
}

fn shown(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    text("x-api-key").or_else(|| text(AUTHORIZATION.as_str())?.strip_prefix("Bearer "))
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Lets a request in, if it is not too long and may do what it wants.
pub(crate) async fn admit(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    if !head.method.is_safe()
        && let Some((status, problem)) = door.objection(&head.headers)
    {
        return refuse(status, problem);
    }
    match to_bytes(body, LONGEST_BODY).await {
        Ok(body) => next.run(Request::from_parts(head, Body::from(body))).await,
        Err(_) => refuse(StatusCode::PAYLOAD_TOO_LARGE, "nothing here takes a body of that length"),
    }
}
