//! One call: its address, its headers, and how often it is tried.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::{HeaderValue, IF_MATCH};
use reqwest::{Client, Method, Url};
use serde_json::Value;

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::secret::Secret;
use crate::ports::{Fence, Version};
use crate::providers::http::{self, Onlooker, Reply, SetupError};

/// How the control plane is reached.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its address, such as `http://control-plane:8080`.
    pub url: String,
    /// What it wants to see in `X-API-Key`.
    pub api_key: Secret,
    /// A PEM file of the only authorities that may vouch for it; without one, those this machine trusts.
    pub authorities: Option<PathBuf>,
    /// How long one try may take.
    pub timeout: Duration,
    /// How long to wait before each repetition; as many as there are. Only what is safe to repeat is repeated.
    pub retries: Vec<Duration>,
    /// The longest answer that is read, in bytes.
    pub max_body: usize,
}

impl Options {
    /// The timeouts and retries of the control plane's own client: 30 s, and three repetitions after 1, 2 and 4 s.
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
}

/// Talks to the control plane. See the [module](super) for what it promises.
///
/// # Cancel safety
/// Dropping a call abandons its answer; what was sent may still be carried out. A write of several calls may then
/// have been carried out in part, the status last.
pub struct ControlPlaneClient {
    client: Client,
    base: Url,
    key: HeaderValue,
    options: Options,
}

impl ControlPlaneClient {
    /// A client.
    ///
    /// # Errors
    /// When address, key or the file of authorities cannot be used.
    pub fn new(options: Options) -> Result<Self, SetupError> {
        const OF: &str = "the control plane";
        let base = http::address(OF, &options.url)?;
        let mut key = HeaderValue::from_str(options.api_key.expose()).map_err(|_| SetupError::Key { of: OF })?;
        key.set_sensitive(true);
        if base.password().is_some() {
            // It would show wherever the address does.
            return Err(SetupError::Address { of: OF, problem: "it carries a password".to_owned() });
        }
        let client = match (&options.authorities, base.scheme()) {
            (_, "http") => http::plain_client(options.timeout),
            (None, _) => http::client(options.timeout),
            (Some(file), _) => http::client(options.timeout).tls_certs_only(http::authorities(file)?),
        };
        let client = client.no_proxy().build().map_err(SetupError::Client)?;
        Ok(Self { client, base, key, options })
    }

    /// Makes a call, and repeats it where that is safe. Any status is an answer here.
    pub(super) async fn call(&self, call: Call<'_>) -> Result<Reply, CallFailure> {
        self.call_before(&mut (), call).await
    }

    /// The same while somebody looks on.
    pub(super) async fn call_before(&self, onlooker: &mut dyn Onlooker, call: Call<'_>) -> Result<Reply, CallFailure> {
        let mut waits = self.options.retries.iter();
        loop {
            let outcome = self.attempt(onlooker, &call).await;
            let trouble = match &outcome {
                // A gateway that has lost its server says nothing about what became of the call.
                Ok(reply) if matches!(reply.status.as_u16(), 502..=504) => reply.failure(),
                Ok(_) => return outcome,
                Err(failure) => failure.clone(),
            };
            match waits.next() {
                Some(wait) if call.may_repeat(trouble.kind) => {
                    let failure = http::scrub(trouble, &[self.options.api_key.expose()]);
                    tracing::debug!(target: "lcm::control_plane", %failure, ?wait, "asking again");
                    tokio::time::sleep(*wait).await;
                }
                Some(_) | None => {
                    return outcome.map_err(|failure| http::scrub(failure, &[self.options.api_key.expose()]));
                }
            }
        }
    }

    async fn attempt(&self, onlooker: &mut dyn Onlooker, call: &Call<'_>) -> Result<Reply, CallFailure> {
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
        let reply = Reply::read_before(onlooker, response, self.options.max_body).await?;
        Ok(reply.without(self.options.api_key.expose()))
    }
}

/// Shows where it talks to. The key is not shown, nor is an address that may carry one.
impl fmt::Debug for ControlPlaneClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlPlaneClient").field("host", &self.base.host_str()).finish_non_exhaustive()
    }
}

/// Under which root an endpoint lives.
#[derive(Clone, Copy)]
enum Api {
    Internal,
    Public,
}

/// Whether a call whose fate is not known may be sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Doing it twice is doing it once.
    Freely,
    /// Only if it certainly never arrived.
    IfNotSent,
}

/// A call to be made.
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
    /// A read.
    pub(super) fn get(path: &[&'a str]) -> Self {
        Self {
            api: Api::Internal,
            method: Method::GET,
            path: path.to_vec(),
            query: Vec::new(),
            body: None,
            version: None,
            fence: Fence::default(),
            repeat: Repeat::Freely,
        }
    }

    /// A write.
    pub(super) fn post(path: &[&'a str], body: Value) -> Self {
        Self { method: Method::POST, body: Some(body), repeat: Repeat::IfNotSent, ..Self::get(path) }
    }

    /// The same under the public root.
    pub(super) fn public(self) -> Self {
        Self { api: Api::Public, ..self }
    }

    /// The same with a parameter.
    pub(super) fn query(mut self, name: &'static str, value: &str) -> Self {
        self.query.push((name, value.to_owned()));
        self
    }

    /// The same, on the condition that the record is at a version.
    pub(super) fn if_at(self, version: Version) -> Self {
        Self { version, ..self }
    }

    /// The same with the leader's token.
    pub(super) fn fenced(self, fence: Fence) -> Self {
        Self { fence, ..self }
    }

    /// The same with another rule for repeating it.
    pub(super) fn repeat(self, repeat: Repeat) -> Self {
        Self { repeat, ..self }
    }

    fn may_repeat(&self, kind: FailureKind) -> bool {
        match kind {
            FailureKind::Unreachable => true,
            FailureKind::Unclear => self.repeat == Repeat::Freely,
            FailureKind::Throttled
            | FailureKind::NoCapacity
            | FailureKind::Unparsable
            | FailureKind::Conflict
            | FailureKind::Refused
            | FailureKind::LaunchDied => false,
        }
    }
}
