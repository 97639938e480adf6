//! HTTP with reqwest: what CML and the control plane say when they do not answer.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::{Certificate, Client, ClientBuilder, Response, StatusCode, Url, redirect};
use serde::de::DeserializeSeed;
use serde_json::Value;
use thiserror::Error;

use super::sanitize::one_line;
use crate::lifecycle::failure::{CallFailure, FailureKind};

/// Longest part of an error page that is quoted.
const QUOTED: usize = 200;

/// Why a client cannot be made.
#[derive(Debug, Error)]
pub enum SetupError {
    /// The file of certificate authorities cannot be read.
    #[error("cannot read the file of certificate authorities {path:?}")]
    AuthoritiesUnreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file of certificate authorities holds none.
    #[error("the file {path:?} holds no certificate; accepted: one or more in PEM")]
    NoAuthorities {
        /// Which file.
        path: PathBuf,
    },
    /// The address is none. It is not shown: it may carry credentials.
    #[error("the address of {of} cannot be used ({problem}); accepted: an http or https URL")]
    Address {
        /// Whose address.
        of: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A key holds signs that cannot be sent in a header.
    #[error("the key of {of} cannot be sent (value not shown); accepted: visible ASCII")]
    Key {
        /// Whose key.
        of: &'static str,
    },
    /// The client itself.
    #[error("the HTTP client cannot be made")]
    Client(#[source] reqwest::Error),
}

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
/// use lcm_sdk::providers::http::failure_of_answer;
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
    let quoted = match one_line(body, QUOTED) {
        nothing if nothing.is_empty() => status.canonical_reason().unwrap_or("no reason given").to_owned(),
        something => something,
    };
    CallFailure::coded(kind, status.as_str(), quoted)
}

/// A client that follows no redirect, because credentials must not go where they were not sent, and whose calls end.
pub(crate) fn client(timeout: Duration) -> ClientBuilder {
    Client::builder()
        .redirect(redirect::Policy::none())
        .timeout(timeout)
        .user_agent(concat!("lcm/", env!("CARGO_PKG_VERSION")))
}

/// A client for addresses without encryption. It needs no authorities, and a small container has none: asking for the
/// machine's would keep it from starting.
pub(crate) fn plain_client(timeout: Duration) -> ClientBuilder {
    client(timeout).tls_certs_only(std::iter::empty())
}

/// The authorities in a PEM file.
pub(crate) fn authorities(path: &Path) -> Result<Vec<Certificate>, SetupError> {
    let read = std::fs::read(path);
    let pem = read.map_err(|source| SetupError::AuthoritiesUnreadable { path: path.to_owned(), source })?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(authorities) if !authorities.is_empty() => Ok(authorities),
        Ok(_) | Err(_) => Err(SetupError::NoAuthorities { path: path.to_owned() }),
    }
}

/// Reads the address of a service.
#[cfg(feature = "control-plane")]
pub(crate) fn address(of: &'static str, text: &str) -> Result<Url, SetupError> {
    let url = Url::parse(text).map_err(|error| SetupError::Address { of, problem: error.to_string() })?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        other => Err(SetupError::Address { of, problem: format!("its scheme is {other:?}") }),
    }
}

/// Adds segments to the path of an address, whatever signs they hold.
///
/// # Errors
/// [`FailureKind::Refused`] for a segment that would change which resource is meant.
pub(crate) fn path(base: &Url, segments: &[&str]) -> Result<Url, CallFailure> {
    let mut url = base.clone();
    if let Some(odd) = segments.iter().find(|segment| matches!(**segment, "" | "." | "..")) {
        return Err(CallFailure::new(FailureKind::Refused, format!("{odd:?} cannot be part of an address")));
    }
    match url.path_segments_mut() {
        Ok(mut parts) => drop(parts.pop_if_empty().extend(segments)),
        Err(()) => return Err(CallFailure::new(FailureKind::Refused, "the base address cannot have a path")),
    }
    Ok(url)
}

/// Takes secrets out of what the far side said: some servers repeat what they were sent.
pub(crate) fn scrub(mut failure: CallFailure, secrets: &[&str]) -> CallFailure {
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        failure.message = failure.message.replace(secret, "[redacted]");
    }
    failure
}

/// Is shown an answer while it comes. It may be cut off, or come again from its beginning.
pub(crate) trait Onlooker: Send {
    /// An answer begins.
    fn begin(&mut self);

    /// So much of it has come until now, and there may be more.
    fn look_on(&mut self, so_far: &[u8]);
}

/// Nobody.
impl Onlooker for () {
    fn begin(&mut self) {}

    fn look_on(&mut self, _so_far: &[u8]) {}
}

/// An answer, read to its end.
pub(crate) struct Reply {
    /// The status.
    pub(crate) status: StatusCode,
    /// The version in `ETag`, if there is one.
    #[cfg(feature = "control-plane")]
    pub(crate) version: Option<u64>,
    body: Vec<u8>,
}

impl Reply {
    /// Reads an answer whose body is no longer than `limit`.
    pub(crate) async fn read(response: Response, limit: usize) -> Result<Self, CallFailure> {
        Self::read_before(&mut (), response, limit).await
    }

    /// The same while somebody looks on. Only a success is shown.
    pub(crate) async fn read_before(
        onlooker: &mut dyn Onlooker,
        mut response: Response,
        limit: usize,
    ) -> Result<Self, CallFailure> {
        let status = response.status();
        #[cfg(feature = "control-plane")]
        let version = version(response.headers());
        // As long as it says, so that a listing of a large fleet is not copied again and again as it grows.
        let announced = response.content_length().and_then(|length| usize::try_from(length).ok());
        let mut body = Vec::with_capacity(announced.unwrap_or_default().min(limit));
        onlooker.begin();
        while let Some(chunk) = response.chunk().await.map_err(failure)? {
            if body.len() + chunk.len() > limit {
                let message = format!("the answer is longer than {limit} bytes");
                return Err(CallFailure::coded(FailureKind::Unparsable, status.as_str(), message));
            }
            body.extend_from_slice(&chunk);
            if status.is_success() {
                onlooker.look_on(&body);
            }
        }
        Ok(Self {
            status,
            #[cfg(feature = "control-plane")]
            version,
            body,
        })
    }

    /// An answer that somebody has made up.
    #[cfg(all(test, feature = "control-plane"))]
    pub(crate) fn of(status: StatusCode, body: Vec<u8>) -> Self {
        Self { status, version: None, body }
    }

    /// The body as it came.
    #[cfg(feature = "control-plane")]
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// The body, if it is JSON.
    pub(crate) fn json(&self) -> Result<Value, CallFailure> {
        self.json_as(PhantomData)
    }

    /// What a seed makes of the body, if it is JSON.
    pub(crate) fn json_as<'a, S: DeserializeSeed<'a>>(&'a self, seed: S) -> Result<S::Value, CallFailure> {
        let no_json = |error: &dyn std::fmt::Display| {
            let message = format!("the answer is no JSON ({error}; {} bytes)", self.body.len());
            CallFailure::coded(FailureKind::Unparsable, self.status.as_str(), message)
        };
        // All at once, which is several times faster than text by text.
        let body = std::str::from_utf8(&self.body).map_err(|error| no_json(&error))?;
        let mut json = serde_json::Deserializer::from_str(body);
        let read = seed.deserialize(&mut json).and_then(|read| json.end().map(|()| read));
        read.map_err(|error| no_json(&error))
    }

    /// Why this is no success. A refusal counts only from the service itself, which speaks JSON: a page of HTML is
    /// from whatever stands in front of it, and says nothing about what was asked.
    pub(crate) fn failure(&self) -> CallFailure {
        let failure = failure_of_answer(self.status, &String::from_utf8_lossy(&self.body));
        match failure.kind {
            FailureKind::Refused if self.json().is_err() => CallFailure { kind: FailureKind::Unclear, ..failure },
            _ => failure,
        }
    }

    /// The same with a secret that must not show in a failure.
    pub(crate) fn without(self, secret: &str) -> Self {
        if self.status.is_success() || secret.is_empty() {
            return self;
        }
        let body = String::from_utf8_lossy(&self.body).replace(secret, "[redacted]").into_bytes();
        Self { body, ..self }
    }

    /// The answer itself, or why it is no success.
    pub(crate) fn success(self) -> Result<Self, CallFailure> {
        if self.status.is_success() { Ok(self) } else { Err(self.failure()) }
    }
}

#[cfg(feature = "control-plane")]
fn version(headers: &reqwest::header::HeaderMap) -> Option<u64> {
    let tag = headers.get(reqwest::header::ETAG)?.to_str().ok()?.trim();
    tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"').parse().ok()
}

/// A whole number from zero up, also where a server writes `3.0` for `3`.
pub(crate) fn whole(value: &Value) -> Option<u64> {
    let float = || value.as_f64().filter(|float| (0.0..9e15).contains(float) && float.fract() == 0.0);
    value.as_u64().or_else(|| float().map(|float| float as u64))
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
        let client = plain_client(Duration::from_secs(30)).no_proxy().build().expect("a client");
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
        assert_eq!(failure_of_answer(StatusCode::BAD_GATEWAY, "<h1>\r\n 502\n").message, "<h1> 502");
    }

    #[test]
    fn odd_ids_stay_one_segment_of_the_path() {
        let base = Url::parse("http://host/base/").expect("valid");
        let url = |id| path(&base, &["workers", id, "status"]).map(String::from);
        assert_eq!(url("a/../b?c#d").expect("escaped"), "http://host/base/workers/a%2F..%2Fb%3Fc%23d/status");
        for odd in ["", ".", ".."] {
            assert_eq!(url(odd).expect_err("ambiguous").kind, FailureKind::Refused);
        }
    }

    #[test]
    fn numbers_are_whole_also_when_written_as_floats() {
        assert_eq!(whole(&serde_json::json!(3.0)), Some(3));
        assert_eq!(whole(&serde_json::json!(3)), Some(3));
        for odd in [serde_json::json!(3.5), serde_json::json!(-1), serde_json::json!("3"), serde_json::json!(1e300)] {
            assert_eq!(whole(&odd), None, "{odd}");
        }
    }
}
