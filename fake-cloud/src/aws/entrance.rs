//! The admin API, and who may enter it.

use std::net::IpAddr;

use hyper::{HeaderMap, Method};

use super::incoming;

/// The admin API of a world, and what whoever wants to change something must show.
///
/// # Guarantees
/// - Without a key only this machine is let in, and on it nobody who was sent by a web page from elsewhere.
/// - With one, every change needs it in `X-API-Key`, whoever asks, and so does every look from another machine.
#[derive(Debug, Clone)]
pub struct Entrance {
    /// The routes.
    pub router: axum::Router,
    /// The key, where the world is open to a network.
    pub key: Option<String>,
}

/// Whether somebody may enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Granted,
    /// The API is for this machine alone.
    NotFromHere,
    /// The key is missing, or is another.
    NeedsKey,
}

impl Entrance {
    pub(super) fn admit(&self, peer: IpAddr, method: &Method, headers: &HeaderMap) -> Admission {
        let is_local =
            peer.to_canonical().is_loopback() && !is_from_another_page(headers) && is_meant_for_this_machine(headers);
        match &self.key {
            None if is_local => Admission::Granted,
            None => Admission::NotFromHere,
            // A page from elsewhere does not know it.
            Some(key) if incoming::header(headers, "x-api-key") == Some(key) => Admission::Granted,
            Some(_) if is_local && method.is_safe() => Admission::Granted,
            Some(_) => Admission::NeedsKey,
        }
    }
}

/// A name of somebody else's that has come to mean this machine brings a page from there with it.
fn is_meant_for_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = incoming::header(headers, "host") else { return !headers.contains_key("host") };
    let Ok(authority) = host.parse::<hyper::http::uri::Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

/// A web page from elsewhere that a browser on this machine shows must not reach in.
fn is_from_another_page(headers: &HeaderMap) -> bool {
    let origin = incoming::header(headers, "origin").and_then(|origin| origin.split_once("://"));
    origin.is_some_and(|(_, from)| Some(from) != incoming::header(headers, "host"))
        || headers.get("origin").is_some_and(|_| origin.is_none())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn asked(entrance: &Entrance, method: &Method, peer: &str, headers: &[(&'static str, &str)]) -> Admission {
        let named = headers.iter().map(|(name, value)| {
            (hyper::header::HeaderName::from_static(name), HeaderValue::from_str(value).expect("a header"))
        });
        entrance.admit(peer.parse().expect("an address"), method, &named.collect())
    }

    #[test]
    fn only_this_machine_administers_and_only_by_a_name_of_its_own() {
        let entrance = Entrance { router: axum::Router::new(), key: None };
        let asks = |peer: &str, host: &str| asked(&entrance, &Method::POST, peer, &[("host", host)]);
        for host in ["127.0.0.1:4566", "localhost:4566", "[::1]:4566", "LOCALHOST", "fake.localhost"] {
            assert_eq!(asks("127.0.0.1", host), Admission::Granted, "{host}");
        }
        for host in ["evil.example:4566", "localhost.evil.example", "x", ""] {
            assert_eq!(asks("127.0.0.1", host), Admission::NotFromHere, "{host}");
        }
        assert_eq!(asks("::ffff:127.0.0.1", "localhost"), Admission::Granted);
        for peer in ["10.0.0.7", "::ffff:10.0.0.7", "fe80::1"] {
            assert_eq!(asks(peer, "localhost:4566"), Admission::NotFromHere, "{peer}");
        }
    }

    #[test]
    fn where_others_can_come_in_every_change_needs_the_key() {
        let entrance = Entrance { router: axum::Router::new(), key: Some("open-sesame".to_owned()) };
        let host = ("host", "localhost:4566");
        for (peer, method, key, admission) in [
            ("127.0.0.1", Method::GET, None, Admission::Granted),
            ("127.0.0.1", Method::POST, None, Admission::NeedsKey),
            ("127.0.0.1", Method::DELETE, Some("open-sesam"), Admission::NeedsKey),
            ("127.0.0.1", Method::POST, Some("open-sesame"), Admission::Granted),
            ("10.0.0.7", Method::GET, None, Admission::NeedsKey),
            ("10.0.0.7", Method::GET, Some("open-sesame"), Admission::Granted),
            ("10.0.0.7", Method::POST, Some(""), Admission::NeedsKey),
            ("10.0.0.7", Method::POST, Some("open-sesame"), Admission::Granted),
        ] {
            let headers: Vec<_> = [host].into_iter().chain(key.map(|key| ("x-api-key", key))).collect();
            assert_eq!(asked(&entrance, &method, peer, &headers), admission, "{peer} {method} {key:?}");
        }
    }
}
