//! HTTP with reqwest: what CML and the control plane say when they do not answer.

use reqwest::StatusCode;

use crate::core::failure::{CallFailure, FailureKind};

/// Longest part of an error page that is quoted.
const QUOTED: usize = 200;

/// Puts a reqwest error into the core's words. The address is left out: it may carry credentials.
pub fn failure(error: reqwest::Error) -> CallFailure {
    let kind = if error.is_connect() {
        FailureKind::Unreachable
    } else if error.is_decode() {
        FailureKind::Unparsable
    } else if error.is_builder() {
        FailureKind::Refused
    } else {
        FailureKind::Unclear
    };
    let error = error.without_url();
    let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
    let message = causes.fold(error.to_string(), |message, cause| format!("{message}: {cause}"));
    CallFailure::new(kind, message)
}

/// Puts an answer that is no success into the core's words. A server that is starting answers with HTML: only the
/// beginning of the body is quoted, and none of its markup is trusted to mean anything.
///
/// ```
/// use lcm_sdk::adapters::http::failure_of_answer;
/// use lcm_sdk::FailureKind;
/// use reqwest::StatusCode;
///
/// let starting = failure_of_answer(StatusCode::BAD_GATEWAY, "<html><h1>502 Bad Gateway</h1>");
/// assert_eq!(starting.kind, FailureKind::Unclear);
/// assert_eq!(starting.code.as_deref(), Some("502"));
/// ```
pub fn failure_of_answer(status: StatusCode, body: &str) -> CallFailure {
    let kind = match status {
        StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => FailureKind::Conflict,
        StatusCode::TOO_MANY_REQUESTS => FailureKind::Throttled,
        _ if status.is_client_error() => FailureKind::Refused,
        _ => FailureKind::Unclear,
    };
    let body = body.trim();
    let quoted = match body.char_indices().nth(QUOTED) {
        Some((cut, _)) => format!("{}…", &body[..cut]),
        None if body.is_empty() => status.canonical_reason().unwrap_or("no reason given").to_owned(),
        None => body.to_owned(),
    };
    CallFailure::coded(kind, status.as_str(), quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "runtime")]
    #[tokio::test]
    async fn nobody_home_is_unreachable_and_the_address_is_not_quoted() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let error = client.get(format!("http://admin:hunter2@127.0.0.1:{port}/")).send().await.expect_err("refused");
        let failure = failure(error);
        assert_eq!(failure.kind, FailureKind::Unreachable, "{failure}");
        assert!(failure.kind.did_nothing());
        assert!(!failure.message.contains("hunter2"), "{failure}");
    }

    #[test]
    fn a_status_says_whether_to_ask_again() {
        let kind = |status| failure_of_answer(status, "").kind;
        assert_eq!(kind(StatusCode::CONFLICT), FailureKind::Conflict);
        assert_eq!(kind(StatusCode::FORBIDDEN), FailureKind::Refused);
        assert_eq!(kind(StatusCode::TOO_MANY_REQUESTS), FailureKind::Throttled);
        assert_eq!(kind(StatusCode::SERVICE_UNAVAILABLE), FailureKind::Unclear);
        assert_eq!(failure_of_answer(StatusCode::GATEWAY_TIMEOUT, " ").to_string(), "504: Gateway Timeout");
        assert!(failure_of_answer(StatusCode::BAD_GATEWAY, &"é".repeat(9_000)).message.len() < 500);
    }
}
