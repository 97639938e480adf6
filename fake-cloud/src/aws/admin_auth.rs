//! Access control of the admin API.

use std::net::IpAddr;

use hyper::{HeaderMap, Method};

use super::request;

/// The admin API and its access control.
///
/// # Guarantees
/// - Without a key, only clients on this machine have access, and browsers only from pages of this server.
/// - With a key, every change and every request from another machine requires the key in `X-API-Key`.
#[derive(Debug, Clone)]
pub struct AdminApi {
    /// Routes of the admin API.
    pub router: axum::Router,
    /// The key; `None` if the cloud accepts local clients only.
    pub key: Option<String>,
}

/// Result of an access check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Granted,
    /// The client is not on this machine.
    NotLocal,
    /// The key is missing or wrong.
    KeyRequired,
}

impl AdminApi {
    pub(super) fn authorize(&self, peer: IpAddr, method: &Method, headers: &HeaderMap) -> Access {
        let is_local = peer.to_canonical().is_loopback() && !is_cross_origin(headers) && has_local_host(headers);
        match &self.key {
            None if is_local => Access::Granted,
            None => Access::NotLocal,
            // A page of another origin does not know the key.
            Some(key) if request::header(headers, "x-api-key") == Some(key) => Access::Granted,
            Some(_) if is_local && method.is_safe() => Access::Granted,
            Some(_) => Access::KeyRequired,
        }
    }
}

/// Rejects foreign host names, which protects against DNS rebinding.
fn has_local_host(headers: &HeaderMap) -> bool {
    request::header(headers, "host").map_or_else(|| !headers.contains_key("host"), lcm_console::is_local_host)
}

/// Returns whether the request comes from a web page of another origin.
fn is_cross_origin(headers: &HeaderMap) -> bool {
    // An origin that is not text is opaque.
    let origin = headers.get("origin").map(|origin| origin.to_str().unwrap_or("null"));
    lcm_console::is_cross_origin(origin, request::header(headers, "host"))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn authorize(admin: &AdminApi, method: &Method, peer: &str, headers: &[(&'static str, &str)]) -> Access {
        let named = headers.iter().map(|(name, value)| {
            (hyper::header::HeaderName::from_static(name), HeaderValue::from_str(value).expect("a header"))
        });
        admin.authorize(peer.parse().expect("an address"), method, &named.collect())
    }

    #[test]
    fn only_local_clients_and_hosts_have_access() {
        let admin = AdminApi { router: axum::Router::new(), key: None };
        let access = |peer: &str, host: &str| authorize(&admin, &Method::POST, peer, &[("host", host)]);
        for host in ["127.0.0.1:4566", "localhost:4566", "[::1]:4566", "LOCALHOST", "fake.localhost"] {
            assert_eq!(access("127.0.0.1", host), Access::Granted, "{host}");
        }
        for host in ["evil.example:4566", "localhost.evil.example", "x", ""] {
            assert_eq!(access("127.0.0.1", host), Access::NotLocal, "{host}");
        }
        assert_eq!(access("::ffff:127.0.0.1", "localhost"), Access::Granted);
        for peer in ["10.0.0.7", "::ffff:10.0.0.7", "fe80::1"] {
            assert_eq!(access(peer, "localhost:4566"), Access::NotLocal, "{peer}");
        }
    }

    #[test]
    fn exposed_admin_api_requires_the_key_for_changes() {
        let admin = AdminApi { router: axum::Router::new(), key: Some("open-sesame".to_owned()) };
        let host = ("host", "localhost:4566");
        for (peer, method, key, expected) in [
            ("127.0.0.1", Method::GET, None, Access::Granted),
            ("127.0.0.1", Method::POST, None, Access::KeyRequired),
            ("127.0.0.1", Method::DELETE, Some("open-sesam"), Access::KeyRequired),
            ("127.0.0.1", Method::POST, Some("open-sesame"), Access::Granted),
            ("10.0.0.7", Method::GET, None, Access::KeyRequired),
            ("10.0.0.7", Method::GET, Some("open-sesame"), Access::Granted),
            ("10.0.0.7", Method::POST, Some(""), Access::KeyRequired),
            ("10.0.0.7", Method::POST, Some("open-sesame"), Access::Granted),
        ] {
            let headers: Vec<_> = [host].into_iter().chain(key.map(|key| ("x-api-key", key))).collect();
            assert_eq!(authorize(&admin, &method, peer, &headers), expected, "{peer} {method} {key:?}");
        }
    }
}
