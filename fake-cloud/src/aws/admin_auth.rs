//! The admin API, and who may enter it.

use std::net::IpAddr;

use hyper::{HeaderMap, Method};

use super::request;

/// The admin API of a world, and what whoever wants to change something must show.
///
/// # Guarantees
/// - Without a key only this machine is let in, and on it nobody who was sent by a web page from elsewhere.
/// - With one, every change needs it in `X-API-Key`, whoever asks, and so does every look from another machine.
#[derive(Debug, Clone)]
pub struct AdminApi {
    /// The routes.
    pub router: axum::Router,
    /// The key, where the world is open to a network.
    pub key: Option<String>,
}

/// Whether somebody may enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Granted,
    /// The API is for this machine alone.
    NotLocal,
    /// The key is missing, or is another.
    KeyRequired,
}

impl AdminApi {
    pub(super) fn authorize(&self, peer: IpAddr, method: &Method, headers: &HeaderMap) -> Access {
        let is_local =
            peer.to_canonical().is_loopback() && !is_from_another_page(headers) && is_meant_for_this_machine(headers);
        match &self.key {
            None if is_local => Access::Granted,
            None => Access::NotLocal,
            // A page from elsewhere does not know it.
            Some(key) if request::header(headers, "x-api-key") == Some(key) => Access::Granted,
            Some(_) if is_local && method.is_safe() => Access::Granted,
            Some(_) => Access::KeyRequired,
        }
    }
}

/// A name of somebody else's that has come to mean this machine brings a page from there with it.
fn is_meant_for_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = request::header(headers, "host") else { return !headers.contains_key("host") };
    let Ok(authority) = host.parse::<hyper::http::uri::Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

/// A web page from elsewhere that a browser on this machine shows must not reach in.
fn is_from_another_page(headers: &HeaderMap) -> bool {
    let origin = request::header(headers, "origin").and_then(|origin| origin.split_once("://"));
    origin.is_some_and(|(_, from)| Some(from) != request::header(headers, "host"))
        || headers.get("origin").is_some_and(|_| origin.is_none())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn asked(entrance: &AdminApi, method: &Method, peer: &str, headers: &[(&'static str, &str)]) -> Access {
        let named = headers.iter().map(|(name, value)| {
            (hyper::header::HeaderName::from_static(name), HeaderValue::from_str(value).expect("a header"))
        });
        entrance.authorize(peer.parse().expect("an address"), method, &named.collect())
    }

    #[test]
    fn only_this_machine_administers_and_only_by_a_name_of_its_own() {
        let entrance = AdminApi { router: axum::Router::new(), key: None };
        let asks = |peer: &str, host: &str| asked(&entrance, &Method::POST, peer, &[("host", host)]);
        for host in ["127.0.0.1:4566", "localhost:4566", "[::1]:4566", "LOCALHOST", "fake.localhost"] {
            assert_eq!(asks("127.0.0.1", host), Access::Granted, "{host}");
        }
        for host in ["evil.example:4566", "localhost.evil.example", "x", ""] {
            assert_eq!(asks("127.0.0.1", host), Access::NotLocal, "{host}");
        }
        assert_eq!(asks("::ffff:127.0.0.1", "localhost"), Access::Granted);
        for peer in ["10.0.0.7", "::ffff:10.0.0.7", "fe80::1"] {
            assert_eq!(asks(peer, "localhost:4566"), Access::NotLocal, "{peer}");
        }
    }

    #[test]
    fn where_others_can_come_in_every_change_needs_the_key() {
        let entrance = AdminApi { router: axum::Router::new(), key: Some("open-sesame".to_owned()) };
        let host = ("host", "localhost:4566");
        for (peer, method, key, admission) in [
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
            assert_eq!(asked(&entrance, &method, peer, &headers), admission, "{peer} {method} {key:?}");
        }
    }
}
