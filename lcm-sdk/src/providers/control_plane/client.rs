//! HTTP client of the control plane: URL, headers and retries of one call.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::{HeaderValue, IF_MATCH};
use reqwest::{Client, Method, Url};
use serde_json::Value;

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::secret::Secret;
use crate::ports::{Fence, Version};
use crate::providers::http::{self, Reply, SetupError};

/// Configuration of a [`ControlPlaneClient`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ControlPlaneOptions {
    /// Base URL, such as `http://control-plane:8080`.
    pub url: String,
    /// Value of the `X-API-Key` header.
    pub api_key: Secret,
    /// PEM file with the only trusted certificate authorities. By default those of the machine.
    pub authorities: Option<PathBuf>,
    /// Time limit of one attempt. Default: 30 s.
    pub timeout: Duration,
    /// Delay before each retry; its length is the number of retries. Default: 1, 2 and 4 s. Only calls that are safe to
    /// repeat are retried.
    pub retries: Vec<Duration>,
    /// Maximum length of a response body in bytes. Default: 256 MiB.
    pub max_body: usize,
}

impl ControlPlaneOptions {
    /// Options with default limits, which are those of the control plane's own client.
    pub fn new(url: impl Into<String>, api_key: Secret) -> Self {
        Self {
            url: url.into(),
            api_key,
            authorities: None,
            timeout: Duration::from_secs(30),
            retries: [1, 2, 4].map(Duration::from_secs).to_vec(),
            max_body: 256 * 1024 * 1024,
        }
    }

    /// Sets the PEM file with the only trusted certificate authorities.
    #[must_use]
    pub fn with_authorities(self, authorities: impl Into<PathBuf>) -> Self {
        Self { authorities: Some(authorities.into()), ..self }
    }

    /// Sets the time limit of one attempt.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Sets the delay before each retry.
    #[must_use]
    pub fn with_retries(self, retries: Vec<Duration>) -> Self {
        Self { retries, ..self }
    }

    /// Sets the maximum length of a response body in bytes.
    #[must_use]
    pub fn with_max_body(self, max_body: usize) -> Self {
        Self { max_body, ..self }
    }
}

/// A [`ControlPlane`](crate::ports::ControlPlane) over the HTTP API. See the [module](super) for its guarantees.
///
/// # Cancel safety
/// A dropped call may still be executed by the server. A write that needs several calls may be executed in part; the
/// status comes last.
pub struct ControlPlaneClient {
    client: Client,
    base: Url,
    key: HeaderValue,
    options: ControlPlaneOptions,
}

impl ControlPlaneClient {
    /// Creates a client. Makes no connection.
    ///
    /// # Errors
    /// If the URL, the key or the file of certificate authorities is invalid.
    pub fn new(options: ControlPlaneOptions) -> Result<Self, SetupError> {
        const SERVICE: &str = "the control plane";
        let base = http::address(SERVICE, &options.url)?;
        let mut key = HeaderValue::from_str(options.api_key.expose()).map_err(|_| SetupError::Key { of: SERVICE })?;
        key.set_sensitive(true);
        if base.password().is_some() {
            // URLs are shown in logs.
            return Err(SetupError::Address { of: SERVICE, problem: "it carries a password".to_owned() });
        }
        let client = match (&options.authorities, base.scheme()) {
            (_, "http") => http::plain_client(options.timeout),
            (None, _) => http::client(options.timeout),
            (Some(file), _) => http::client(options.timeout).tls_certs_only(http::authorities(file)?),
        };
        let client = client.no_proxy().build().map_err(SetupError::Client)?;
        Ok(Self { client, base, key, options })
    }

    /// Makes a call and retries it where that is safe. Returns responses of any status.
    pub(super) async fn call(&self, call: Call<'_>) -> Result<Reply, CallFailure> {
        let mut delays = self.options.retries.iter();
        loop {
            let result = self.attempt(&call).await;
            let failure = match &result {
                // The gateway does not know whether the server executed the call.
                Ok(reply) if matches!(reply.status.as_u16(), 502..=504) => reply.failure(),
                Ok(_) => return result,
                Err(failure) => failure.clone(),
            };
            match delays.next() {
                Some(delay) if call.may_repeat(failure.kind) => {
                    let failure = http::scrub(failure, &[self.options.api_key.expose()]);
                    tracing::debug!(target: "lcm::control_plane", %failure, ?delay, "retrying");
                    tokio::time::sleep(*delay).await;
                }
                Some(_) | None => {
                    return result.map_err(|failure| http::scrub(failure, &[self.options.api_key.expose()]));
                }
            }
        }
    }

    async fn attempt(&self, call: &Call<'_>) -> Result<Reply, CallFailure> {
        let root: &[&str] = match call.api {
            Api::Internal => &["api", "internal"],
            Api::Public => &["api", "v1"],
        };
        let mut url = http::path(&self.base, &[root, &call.path].concat())?;
        for (name, value) in &call.query {
            url.query_pairs_mut().append_pair(name, value);
        }
        let mut request = self.client.request(call.method.clone(), url).header("X-API-Key", self.key.clone());
        if let Some(version) = call.version {
            request = request.header(IF_MATCH, format!("\"{version}\""));
        }
        if let Some(fence) = call.fence.0 {
            request = request.header("X-Fencing-Token", fence.to_string());
        }
        if let Some(body) = &call.body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(http::failure)?;
        let reply = Reply::read(response, self.options.max_body).await?;
        Ok(reply.redact(self.options.api_key.expose()))
    }
}

/// Shows the host only: URL and key may be secret.
impl fmt::Debug for ControlPlaneClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlPlaneClient").field("host", &self.base.host_str()).finish_non_exhaustive()
    }
}

/// Root path of an endpoint.
#[derive(Clone, Copy)]
enum Api {
    Internal,
    Public,
}

/// Whether a call that may have been executed is retried.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// The call is idempotent.
    Always,
    /// Retried only if it never reached the server.
    IfNotSent,
}

/// A request before it is sent.
pub(super) struct Call<'a> {
    api: Api,
    method: Method,
    path: Vec<&'a str>,
    query: Vec<(&'static str, String)>,
    body: Option<Value>,
    version: Version,
    fence: Fence,
    repeat: Repeat,
}

impl<'a> Call<'a> {
    /// A GET request of the internal API, retried always.
    pub(super) fn get(path: &[&'a str]) -> Self {
        Self {
            api: Api::Internal,
            method: Method::GET,
            path: path.to_vec(),
            query: Vec::new(),
            body: None,
            version: None,
            fence: Fence::default(),
            repeat: Repeat::Always,
        }
    }

    /// A POST request of the internal API, retried only if it was not sent.
    pub(super) fn post(path: &[&'a str], body: Value) -> Self {
        Self { method: Method::POST, body: Some(body), repeat: Repeat::IfNotSent, ..Self::get(path) }
    }

    /// Sends the request to the public API.
    pub(super) fn public(self) -> Self {
        Self { api: Api::Public, ..self }
    }

    /// Adds a query parameter.
    pub(super) fn query(mut self, name: &'static str, value: &str) -> Self {
        self.query.push((name, value.to_owned()));
        self
    }

    /// Makes the request conditional on the version of the record.
    pub(super) fn if_version(self, version: Version) -> Self {
        Self { version, ..self }
    }

    /// Adds the fencing token of the leader.
    pub(super) fn fenced(self, fence: Fence) -> Self {
        Self { fence, ..self }
    }

    /// Sets when the request is retried.
    pub(super) fn repeat(self, repeat: Repeat) -> Self {
        Self { repeat, ..self }
    }

    fn may_repeat(&self, kind: FailureKind) -> bool {
        match kind {
            FailureKind::Unreachable => true,
            FailureKind::Unclear => self.repeat == Repeat::Always,
            FailureKind::Throttled
            | FailureKind::NoCapacity
            | FailureKind::Unparsable
            | FailureKind::Conflict
            | FailureKind::Refused
            | FailureKind::LaunchDied => false,
        }
    }
}
