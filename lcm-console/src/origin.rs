//! Tells requests of a server's own pages from those of other web pages.

use std::net::IpAddr;

/// Returns whether the value of a header `Host` names this machine by an address or as `localhost`. A web page of another
/// site can make its own host name resolve to a loopback address, and would then count as a page of the server.
///
/// ```
/// assert!(lcm_console::is_local_host("localhost:8083") && lcm_console::is_local_host("[::1]:8083"));
/// assert!(!lcm_console::is_local_host("localhost.evil.example:8083"));
/// ```
pub fn is_local_host(host: &str) -> bool {
    let is_port = |rest: &str| rest.is_empty() || rest.strip_prefix(':').is_some_and(is_number);
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let (name, rest) = bracketed.unwrap_or_else(|| host.split_at(host.find(':').unwrap_or(host.len())));
    let name = name.to_ascii_lowercase();
    let is_name = bracketed.is_none() && (name == "localhost" || name.ends_with(".localhost"));
    is_port(rest) && (is_name || name.parse::<IpAddr>().is_ok())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns whether a request comes from a web page of another origin, by the values of its headers `Origin` and `Host`.
///
/// ```
/// assert!(!lcm_console::is_cross_origin(Some("http://localhost:8083"), Some("localhost:8083")));
/// assert!(lcm_console::is_cross_origin(Some("https://evil.example"), Some("localhost:8083")));
/// assert!(!lcm_console::is_cross_origin(None, Some("localhost:8083")), "not from a page, or by a link");
/// ```
pub fn is_cross_origin(origin: Option<&str>, host: Option<&str>) -> bool {
    let Some(origin) = origin else { return false };
    let from = origin.split_once("://").map(|(_, from)| from);
    from.is_none() || from != host
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_this_machine_are_addresses_and_localhost() {
        for local in ["127.0.0.1:4566", "localhost:4566", "[::1]:4566", "LOCALHOST", "fake.localhost", "::1", "[::1]"] {
            assert_eq!(is_local_host(local), local != "::1", "{local}");
        }
        let foreign = [
            "evil.example:4566",
            "localhost.evil.example",
            "x",
            "",
            "localhost:",
            "localhost:x",
            "[localhost]",
            "[::1",
        ];
        for host in foreign {
            assert!(!is_local_host(host), "{host}");
        }
    }

    #[test]
    fn opaque_origins_are_foreign() {
        assert!(is_cross_origin(Some("null"), Some("localhost")));
        assert!(is_cross_origin(Some("http://localhost"), None));
    }
}
