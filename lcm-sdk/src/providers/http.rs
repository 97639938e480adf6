//! HTTP clients and responses shared by the CML and control plane providers.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::{Certificate, Client, ClientBuilder, Response, StatusCode, Url, redirect};
use serde::de::DeserializeSeed;
use serde_json::Value;
use thiserror::Error;

use super::sanitize::one_line;
use crate::lifecycle::failure::{CallFailure, FailureKind};

/// Maximum length of a response body quoted in an error, in characters.
const QUOTED: usize = 200;

/// Invalid configuration of an HTTP client.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The file of certificate authorities cannot be read.
    #[error("cannot read the file of certificate authorities {path:?}")]
    AuthoritiesUnreadable {
        /// Path of the PEM file.
        path: PathBuf,
        /// Error of the file system.
        source: std::io::Error,
    },
    /// The file of certificate authorities holds none.
    #[error("the file {path:?} holds no certificate; accepted: one or more in PEM")]
    NoAuthorities {
        /// Path of the PEM file.
        path: PathBuf,
    },
    /// The URL is invalid. The error does not contain it, because it may hold credentials.
    #[error("the address of {of} cannot be used ({problem}); accepted: an http or https URL")]
    Address {
        /// Service that the URL belongs to.
        of: &'static str,
        /// Reason for refusing the URL.
        problem: String,
    },
    /// The key holds characters that a header cannot carry.
    #[error("the key of {of} cannot be sent (value not shown); accepted: visible ASCII")]
    Key {
        /// Service that the key belongs to.
        of: &'static str,
    },
    /// Reqwest failed to build the client, for example because TLS is unavailable.
    #[error("the HTTP client cannot be made")]
    Client(#[source] reqwest::Error),
}

/// Converts a reqwest error. The URL is left out, because it may hold credentials.
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

/// Converts an unsuccessful response. Only the beginning of the body is quoted, because proxies send whole HTML pages.
pub fn response_failure(status: StatusCode, body: &str) -> CallFailure {
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
    CallFailure::with_code(kind, status.as_str(), quoted)
}

/// Builds a client with a time limit per call. It follows no redirects, which could carry credentials to another host.
pub(crate) fn client(timeout: Duration) -> ClientBuilder {
    Client::builder()
        .redirect(redirect::Policy::none())
        .timeout(timeout)
        .user_agent(concat!("lcm/", env!("CARGO_PKG_VERSION")))
}

/// Builds a client for plain HTTP. It loads no certificate authorities: a minimal container has none, and loading them
/// would fail.
pub(crate) fn plain_client(timeout: Duration) -> ClientBuilder {
    client(timeout).tls_certs_only(std::iter::empty())
}

/// Reads the certificate authorities in a PEM file.
pub(crate) fn authorities(path: &Path) -> Result<Vec<Certificate>, SetupError> {
    let read = std::fs::read(path);
    let pem = read.map_err(|source| SetupError::AuthoritiesUnreadable { path: path.to_owned(), source })?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(authorities) if !authorities.is_empty() => Ok(authorities),
        Ok(_) | Err(_) => Err(SetupError::NoAuthorities { path: path.to_owned() }),
    }
}

/// Parses the URL of a service.
#[cfg(feature = "control-plane")]
pub(crate) fn address(of: &'static str, text: &str) -> Result<Url, SetupError> {
    let url = Url::parse(text).map_err(|error| SetupError::Address { of, problem: error.to_string() })?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        other => Err(SetupError::Address { of, problem: format!("its scheme is {other:?}") }),
    }
}

/// Appends escaped segments to the path of a URL.
///
/// # Errors
/// [`FailureKind::Refused`] for a segment that would address another resource.
pub(crate) fn path(base: &Url, segments: &[&str]) -> Result<Url, CallFailure> {
    let mut url = base.clone();
    if let Some(odd) = segments.iter().find(|segment| matches!(**segment, "" | "." | "..")) {
        return Err(CallFailure::new(FailureKind::Refused, format!("invalid path segment {odd:?}")));
    }
    match url.path_segments_mut() {
        Ok(mut parts) => drop(parts.pop_if_empty().extend(segments)),
        Err(()) => return Err(CallFailure::new(FailureKind::Refused, "the base URL cannot have a path")),
    }
    Ok(url)
}

/// Redacts secrets in a failure, because some servers echo the request in their error.
pub(crate) fn scrub(mut failure: CallFailure, secrets: &[&str]) -> CallFailure {
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        failure.message = failure.message.replace(secret, "[redacted]");
    }
    failure
}

/// A response with its whole body.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    /// Record version in the `ETag` header.
    #[cfg(feature = "control-plane")]
    pub(crate) version: Option<u64>,
    body: Vec<u8>,
}

impl Reply {
    /// Reads a response.
    ///
    /// # Errors
    /// [`FailureKind::Unparsable`] if the body is longer than `limit` bytes.
    pub(crate) async fn read(mut response: Response, limit: usize) -> Result<Self, CallFailure> {
        let status = response.status();
        #[cfg(feature = "control-plane")]
        let version = version(response.headers());
        // Allocated once: the list of a large fleet is tens of megabytes.
        let announced = response.content_length().and_then(|length| usize::try_from(length).ok());
        let mut body = Vec::with_capacity(announced.unwrap_or_default().min(limit));
        while let Some(chunk) = response.chunk().await.map_err(failure)? {
            if body.len() + chunk.len() > limit {
                let message = format!("the response is longer than {limit} bytes");
                return Err(CallFailure::with_code(FailureKind::Unparsable, status.as_str(), message));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Self {
            status,
            #[cfg(feature = "control-plane")]
            version,
            body,
        })
    }

    /// Parses the body as JSON.
    pub(crate) fn json(&self) -> Result<Value, CallFailure> {
        self.json_as(PhantomData)
    }

    /// Parses the body as JSON with a seed.
    pub(crate) fn json_as<'a, S: DeserializeSeed<'a>>(&'a self, seed: S) -> Result<S::Value, CallFailure> {
        let no_json = |error: &dyn std::fmt::Display| {
            let message = format!("the response is not JSON ({error}; {} bytes)", self.body.len());
            CallFailure::with_code(FailureKind::Unparsable, self.status.as_str(), message)
        };
        // Validating the whole body once is several times faster than validating each string.
        let body = std::str::from_utf8(&self.body).map_err(|error| no_json(&error))?;
        let mut json = serde_json::Deserializer::from_str(body);
        let read = seed.deserialize(&mut json).and_then(|read| json.end().map(|()| read));
        read.map_err(|error| no_json(&error))
    }

    /// Converts an unsuccessful response. A 4xx status counts as a refusal only with a JSON body: an HTML page comes from
    /// a proxy, and the service may never have received the request.
    pub(crate) fn failure(&self) -> CallFailure {
        let failure = response_failure(self.status, &String::from_utf8_lossy(&self.body));
        match failure.kind {
            FailureKind::Refused if self.json().is_err() => CallFailure { kind: FailureKind::Unclear, ..failure },
            _ => failure,
        }
    }

    /// Redacts a secret in the body of an unsuccessful response.
    pub(crate) fn redact(self, secret: &str) -> Self {
        if self.status.is_success() || secret.is_empty() {
            return self;
        }
        let body = String::from_utf8_lossy(&self.body).replace(secret, "[redacted]").into_bytes();
        Self { body, ..self }
    }

    /// Returns the response, or its failure if the status is not a success.
    pub(crate) fn success(self) -> Result<Self, CallFailure> {
        if self.status.is_success() { Ok(self) } else { Err(self.failure()) }
    }
}

#[cfg(feature = "control-plane")]
fn version(headers: &reqwest::header::HeaderMap) -> Option<u64> {
    let tag = headers.get(reqwest::header::ETAG)?.to_str().ok()?.trim();
    tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"').parse().ok()
}

/// Reads a non-negative integer. Accepts `3.0` for `3`, as some servers write it.
pub(crate) fn unsigned(value: &Value) -> Option<u64> {
    let float = || value.as_f64().filter(|float| (0.0..9e15).contains(float) && float.fract() == 0.0);
    value.as_u64().or_else(|| float().map(|float| float as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "runtime")]
    #[tokio::test]
    async fn refused_connection_is_unreachable() {
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
    fn status_decides_the_failure_kind() {
        let kind = |status| response_failure(status, "").kind;
        assert_eq!(kind(StatusCode::CONFLICT), FailureKind::Conflict);
        assert_eq!(kind(StatusCode::FORBIDDEN), FailureKind::Refused);
        assert_eq!(kind(StatusCode::TOO_MANY_REQUESTS), FailureKind::Throttled);
        assert_eq!(kind(StatusCode::SERVICE_UNAVAILABLE), FailureKind::Unclear);
        assert_eq!(response_failure(StatusCode::GATEWAY_TIMEOUT, " ").to_string(), "504: Gateway Timeout");
        assert!(response_failure(StatusCode::BAD_GATEWAY, &"é".repeat(9_000)).message.len() < 500);
        assert_eq!(response_failure(StatusCode::BAD_GATEWAY, "<h1>\r\n 502\n").message, "<h1> 502");
    }

    #[test]
    fn ids_stay_one_path_segment() {
        let base = Url::parse("http://host/base/").expect("valid");
        let url = |id| path(&base, &["workers", id, "status"]).map(String::from);
        assert_eq!(url("a/../b?c#d").expect("escaped"), "http://host/base/workers/a%2F..%2Fb%3Fc%23d/status");
        for odd in ["", ".", ".."] {
            assert_eq!(url(odd).expect_err("ambiguous").kind, FailureKind::Refused);
        }
    }

    #[test]
    fn integers_may_be_written_as_floats() {
        assert_eq!(unsigned(&serde_json::json!(3.0)), Some(3));
        assert_eq!(unsigned(&serde_json::json!(3)), Some(3));
        for odd in [serde_json::json!(3.5), serde_json::json!(-1), serde_json::json!("3"), serde_json::json!(1e300)] {
            assert_eq!(unsigned(&odd), None, "{odd}");
        }
    }
}
