//! HTTP client of the control plane: URL, headers and retries of one call.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::header::{HeaderValue, IF_MATCH, LOCATION};
use reqwest::{Client, Method, Response, StatusCode, Url};
use serde_json::Value;
use tokio::time::Instant;
use tracing::Span;

use super::capabilities::{Feature, Known};
use super::responses;

use crate::lifecycle::capabilities::{Capabilities, ControlPlaneGeneration, Support};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::secret::Secret;
use crate::ports::{Fence, Version};
use crate::providers::http::{self, Reply, SetupError};
use crate::providers::reload::FromFiles;
use crate::spans::{self, traced};

/// Configuration of a [`ControlPlaneClient`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ControlPlaneOptions {
    /// Base URL, such as `http://control-plane:8080`.
    pub url: String,
    /// Value of the `X-API-Key` header.
    pub api_key: Secret,
    /// PEM file with the only trusted certificate authorities, read again when it changes. By default those of the
    /// machine.
    pub authorities: Option<PathBuf>,
    /// Time limit of one attempt. Default: 30 s.
    pub timeout: Duration,
    /// Delay before each retry; its length is the number of retries. Default: 1, 2 and 4 s. Only calls that are safe to
    /// repeat are retried.
    pub retries: Vec<Duration>,
    /// Maximum length of a response body in bytes. Default: 256 MiB.
    pub max_body: usize,
    /// Time between two metrics reports, announced with each of them. By default it is not announced.
    pub metrics_interval: Option<Duration>,
    /// API of the server. Default: its features are read off responses.
    pub generation: ControlPlaneGeneration,
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
            metrics_interval: None,
            generation: ControlPlaneGeneration::Auto,
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

    /// Sets the time between two metrics reports, which each of them announces.
    #[must_use]
    pub fn with_metrics_interval(self, interval: Duration) -> Self {
        Self { metrics_interval: Some(interval), ..self }
    }

    /// Sets the API of the server, instead of reading its features off responses.
    #[must_use]
    pub fn with_generation(self, generation: ControlPlaneGeneration) -> Self {
        Self { generation, ..self }
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
    client: FromFiles<Client>,
    base: Url,
    key: HeaderValue,
    options: ControlPlaneOptions,
    pub(super) audits: OptionalEndpoint,
    pub(super) events: OptionalEndpoint,
    pub(super) known: Known,
    /// Whether the path of the session list ends with a slash on this server.
    pub(super) sessions_path: SessionsPath,
}

impl ControlPlaneClient {
    /// The base URL without credentials.
    pub(super) fn public_url(&self) -> String {
        let mut url = self.base.clone();
        // Fails only for URLs that cannot have credentials.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_query(None);
        url.into()
    }

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
        let files = match base.scheme() {
            "http" => Vec::new(),
            _ => options.authorities.iter().cloned().collect(),
        };
        let client = FromFiles::new(files, || Self::connect(&base, &options))?;
        let (audits, events) = (OptionalEndpoint::new("scaling-audit"), OptionalEndpoint::new("events"));
        let (known, sessions_path) = (Known::new(options.generation), SessionsPath::default());
        Ok(Self { client, base, key, options, audits, events, known, sessions_path })
    }

    fn connect(base: &Url, options: &ControlPlaneOptions) -> Result<Client, SetupError> {
        let client = match (&options.authorities, base.scheme()) {
            (_, "http") => http::plain_client(options.timeout),
            (None, _) => http::client(options.timeout),
            (Some(file), _) => http::client(options.timeout).tls_certs_only(http::authorities(file)?),
        };
        client.no_proxy().build().map_err(SetupError::Client)
    }

    /// Time between two metrics reports, if it is announced.
    pub(super) fn metrics_interval(&self) -> Option<Duration> {
        self.options.metrics_interval
    }

    /// Makes a call and retries it where that is safe. Returns responses of any status.
    pub(super) async fn call(&self, call: Call<'_>) -> Result<Reply, CallFailure> {
        traced(call.span(), self.attempts(&call)).await
    }

    async fn attempts(&self, call: &Call<'_>) -> Result<Reply, CallFailure> {
        let mut delays = self.options.retries.iter();
        loop {
            let result = self.attempt(call).await;
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

    /// Posts to an endpoint that some servers lack. Its absence is reported once, and the call is then left out for a
    /// while: the body is discarded.
    pub(super) async fn post_optional(&self, endpoint: &OptionalEndpoint, call: Call<'_>) -> Result<(), CallFailure> {
        if endpoint.is_missing() {
            return Ok(());
        }
        let reply = self.call(call).await?;
        if responses::is_route_missing(&reply) {
            endpoint.report_missing();
            self.known.learn(Feature::Audits, Support::No);
            return Ok(());
        }
        reply.success()?;
        self.known.learn(Feature::Audits, Support::Yes);
        Ok(())
    }

    /// Features of the server, as far as they are known.
    pub(super) fn known_capabilities(&self) -> Capabilities {
        self.known.get()
    }

    /// Sends a call once. A GET follows redirects within the origin of the server: elsewhere they would carry the key to
    /// another host.
    async fn attempt(&self, call: &Call<'_>) -> Result<Reply, CallFailure> {
        let root: &[&str] = match call.api {
            Api::Internal => &["api", "internal"],
            Api::Public => &["api", "v1"],
        };
        let mut url = http::path(&self.base, &[root, &call.path].concat())?;
        // Fails only for URLs without a path.
        if call.has_slash
            && let Ok(mut segments) = url.path_segments_mut()
        {
            segments.push("");
        }
        for (name, value) in &call.query {
            url.query_pairs_mut().append_pair(name, value);
        }
        let client = self.client.get(|| Self::connect(&self.base, &self.options));
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(&client, call, &url).await?;
            match redirect(call, &url, &response)? {
                Some(target) => url = target,
                None => {
                    let reply = Reply::read(response, self.options.max_body).await?;
                    return Ok(reply.redact(self.options.api_key.expose()));
                }
            }
        }
        Err(CallFailure::new(
            FailureKind::Unclear,
            format!("the control plane redirected more than {MAX_REDIRECTS} times"),
        ))
    }

    async fn send(&self, client: &Client, call: &Call<'_>, url: &Url) -> Result<Response, CallFailure> {
        let mut request = client.request(call.method.clone(), url.clone()).header("X-API-Key", self.key.clone());
        if let Some(version) = call.version {
            request = request.header(IF_MATCH, format!("\"{version}\""));
        }
        if let Some(fence) = call.fence.0 {
            request = request.header("X-Fencing-Token", fence.to_string());
        }
        if let Some(body) = &call.body {
            request = request.json(body);
        }
        request.send().await.map_err(http::failure)
    }
}

/// Maximum number of redirects of one call.
const MAX_REDIRECTS: usize = 3;

/// Target of a redirected GET.
///
/// # Errors
/// If the target has another origin.
fn redirect(call: &Call<'_>, url: &Url, response: &Response) -> Result<Option<Url>, CallFailure> {
    let status = response.status();
    if call.method != Method::GET || !matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT)
    {
        return Ok(None);
    }
    let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
    let Some(target) = location.and_then(|location| url.join(location).ok()) else { return Ok(None) };
    if target.origin() == url.origin() {
        return Ok(Some(target));
    }
    let origin = target.origin().ascii_serialization();
    let message = format!("the control plane redirects to another origin, {origin}, which is not followed");
    Err(CallFailure::with_code(FailureKind::Refused, status.as_str(), message))
}

/// The path of the session list. Servers differ in the slash at its end, and some redirect from the other form.
#[derive(Debug, Default)]
pub(super) struct SessionsPath(AtomicBool);

impl SessionsPath {
    pub(super) fn has_slash(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }

    /// Notes that the server has no path with a slash.
    pub(super) fn drop_slash(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Shows the host only: URL and key may be secret.
impl fmt::Debug for ControlPlaneClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlPlaneClient").field("host", &self.base.host_str()).finish_non_exhaustive()
    }
}

/// Time for which an endpoint that the server lacks is not called.
const MISSING_ENDPOINT_PAUSE: Duration = Duration::from_secs(3600);

/// An endpoint that some servers lack.
pub(super) struct OptionalEndpoint {
    name: &'static str,
    missing_since: Mutex<Option<Instant>>,
}

impl OptionalEndpoint {
    const fn new(name: &'static str) -> Self {
        Self { name, missing_since: Mutex::new(None) }
    }

    fn is_missing(&self) -> bool {
        self.missing_since.lock().is_some_and(|since| since.elapsed() < MISSING_ENDPOINT_PAUSE)
    }

    fn report_missing(&self) {
        if self.missing_since.lock().replace(Instant::now()).is_none() {
            let (endpoint, pause) = (self.name, MISSING_ENDPOINT_PAUSE);
            tracing::info!(target: "lcm::control_plane", endpoint, ?pause, "the control plane has no such endpoint; what is sent to it is discarded, and it is tried again after a pause");
        }
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

/// The path of a request for people.
struct Path<'a>(&'a [&'a str]);

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|segment| write!(f, "/{segment}"))
    }
}

/// A request before it is sent.
pub(super) struct Call<'a> {
    api: Api,
    method: Method,
    path: Vec<&'a str>,
    has_slash: bool,
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
            has_slash: false,
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

    /// A DELETE request of the internal API, retried always.
    pub(super) fn delete(path: &[&'a str]) -> Self {
        Self { method: Method::DELETE, ..Self::get(path) }
    }

    /// Sends the request to the public API.
    pub(super) fn public(self) -> Self {
        Self { api: Api::Public, ..self }
    }

    /// Ends the path with a slash.
    pub(super) fn slash(self) -> Self {
        Self { has_slash: true, ..self }
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

    /// Its span. The name has the method and the kind of the resource; ids are in the path.
    fn span(&self) -> Span {
        let kind = self.path.first().copied().unwrap_or_default();
        spans::call("control-plane", format_args!("{} {kind}", self.method), Path(&self.path))
    }

    fn may_repeat(&self, kind: FailureKind) -> bool {
        match kind {
            FailureKind::Unreachable => true,
            FailureKind::Unclear => self.repeat == Repeat::Always,
            FailureKind::Throttled
            | FailureKind::NoCapacity
            | FailureKind::RefusedForNow
            | FailureKind::Unparsable
            | FailureKind::Conflict
            | FailureKind::Refused
            | FailureKind::NotSupported
            | FailureKind::LaunchDied => false,
        }
    }
}
