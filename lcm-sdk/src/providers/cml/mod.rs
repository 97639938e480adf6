//! The CML on a worker, over its HTTP API.
//!
//! # Guarantees
//! - One sign-in serves all concurrent calls to the same system as the same user; a token that is no longer accepted
//!   is replaced once for a call, never in a loop.
//! - Whom we talk to is verified unless [`Security`] says otherwise by name. No redirect is followed and no proxy is
//!   used, so a password goes nowhere but to the worker.
//! - Neither password nor token shows in an error, in `Debug` or in a log, not even where CML repeats them.
//! - What is not CML's own word is no refusal. While a worker boots, something in front of CML answers with pages of
//!   HTML; taken at their word they would fail a licence for good.

mod login;
mod responses;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::{Client, Method, StatusCode, Url};
use serde_json::{Value, json};

use self::login::Logins;
use super::http::{self, Reply, SetupError};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::license::RegistrationStatus;
use crate::lifecycle::observation::CmlMetrics;
use crate::lifecycle::secret::Secret;
use crate::ports::{Cml, CmlTarget};

/// How every CML is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How the connection is secured.
    pub security: Security,
    /// The port.
    pub port: u16,
    /// How long one call of the port may take, signing in included.
    pub timeout: Duration,
    /// How long a connection may take to come about.
    pub connect_timeout: Duration,
    /// The longest answer that is read, in bytes.
    pub max_body: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            security: Security::Verified,
            port: 443,
            timeout: Duration::from_secs(15),
            connect_timeout: Duration::from_secs(5),
            max_body: 16 * 1024 * 1024,
        }
    }
}

/// How a connection to CML is secured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Security {
    /// HTTPS; the certificate must come from an authority this machine trusts.
    #[default]
    Verified,
    /// HTTPS; the certificate must come from an authority in this PEM file, and from no other.
    VerifiedWith(PathBuf),
    /// HTTPS with whoever answers. CML ships with a certificate that nobody can verify; what is sent can then be read
    /// by whoever sits in between.
    Unverified,
    /// No encryption at all.
    PlainHttp,
}

/// Talks to every CML of a fleet.
///
/// # Errors
/// A sign-in that CML does not accept is a failure of kind [`FailureKind::Unreachable`]: nobody could be asked as this
/// user. It is never a refusal of what was to be asked, because the refusal of a licence is the last word on it. For
/// the same reason "not while nodes are running" is a [`FailureKind::Conflict`].
///
/// # Cancel safety
/// Dropping a call abandons its answer. A sign-in that is dropped is made by the next caller that waits for it.
#[derive(Debug)]
pub struct CmlClient {
    options: Options,
    client: Client,
    logins: Logins,
}

impl CmlClient {
    /// A client for all workers.
    ///
    /// # Errors
    /// When the file of authorities cannot be read or holds none, or the machine trusts nobody and should.
    pub fn new(options: Options) -> Result<Self, SetupError> {
        let limit = options.timeout;
        let builder = match &options.security {
            Security::Verified => http::client(limit).https_only(true),
            Security::VerifiedWith(file) => {
                http::client(limit).https_only(true).tls_certs_only(http::authorities(file)?)
            }
            Security::Unverified => http::client(limit).https_only(true).tls_danger_accept_invalid_certs(true),
            Security::PlainHttp => http::plain_client(limit),
        };
        let builder = builder.connect_timeout(options.connect_timeout).no_proxy();
        Ok(Self { client: builder.build().map_err(SetupError::Client)?, options, logins: Logins::default() })
    }

    /// An endpoint of a system.
    fn url(&self, at: &CmlTarget, path: &[&str]) -> Result<Url, CallFailure> {
        let refused = || {
            let message = format!("{:?} is no address of a CML; accepted: an IP address or a host name", at.address);
            CallFailure::new(FailureKind::Refused, message)
        };
        let scheme = match self.options.security {
            Security::Verified | Security::VerifiedWith(_) | Security::Unverified => "https",
            Security::PlainHttp => "http",
        };
        let host = match at.address.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => format!("[{address}]"),
            Ok(IpAddr::V4(address)) => address.to_string(),
            Err(_) => at.address.clone(),
        };
        let is_name = |text: &str| text.chars().all(|sign| sign.is_ascii_alphanumeric() || "-._".contains(sign));
        if !host.starts_with('[') && !is_name(&host) {
            return Err(refused());
        }
        let base = Url::parse(&format!("{scheme}://{host}:{}/api/v0", self.options.port)).map_err(|_| refused())?;
        http::path(&base, path)
    }

    /// Sends a request as it is.
    async fn send(
        &self,
        method: Method,
        url: Url,
        token: Option<&Secret>,
        body: Option<&Value>,
    ) -> Result<Reply, CallFailure> {
        let mut request = self.client.request(method, url);
        if let Some(token) = token {
            request = request.bearer_auth(token.expose());
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let reply = Reply::read(request.send().await.map_err(http::failure)?, self.options.max_body).await?;
        Ok(reply.without(token.map(Secret::expose).unwrap_or_default()))
    }

    /// Sends a request as the target's user, signing in if need be, and once more if the token is no longer good.
    async fn ask(&self, at: &CmlTarget, method: Method, url: Url, body: Option<&Value>) -> Asked {
        let login = self.logins.of(at);
        let first = login.token(|| self.sign_in(at)).await?;
        let reply = self.send(method.clone(), url.clone(), Some(&first.token), body).await?;
        if reply.status != StatusCode::UNAUTHORIZED {
            return Ok(reply);
        }
        let second = login.token_after(&first, || self.sign_in(at)).await?;
        let reply = self.send(method, url, Some(&second.token), body).await?;
        if reply.status == StatusCode::UNAUTHORIZED {
            let message = "CML does not accept a token it has just given out";
            return Err(CallFailure::coded(FailureKind::Unreachable, "401", message));
        }
        Ok(reply)
    }

    async fn sign_in(&self, at: &CmlTarget) -> Result<Secret, CallFailure> {
        let body = json!({"username": at.username, "password": at.password.expose()});
        let reply = self.send(Method::POST, self.url(at, &["authenticate"])?, None, Some(&body)).await?;
        responses::token(&reply)
    }

    /// One call of the port: it ends in time, and its failure holds no secret.
    async fn within<T>(&self, secrets: &[&Secret], call: impl Future<Output = Result<T, CallFailure>>) -> Told<T> {
        let limit = self.options.timeout;
        let told = match tokio::time::timeout(limit, call).await {
            Ok(told) => told,
            Err(_) => Err(CallFailure::new(FailureKind::Unclear, format!("CML gave no answer within {limit:?}"))),
        };
        let secrets: Vec<&str> = secrets.iter().map(|secret| secret.expose()).collect();
        told.map_err(|failure| http::scrub(failure, &secrets))
    }

    async fn submit(&self, at: &CmlTarget, token: &Secret, reregister: Value) -> Result<(), CallFailure> {
        let body = json!({"token": token.expose(), "reregister": reregister});
        let call = async {
            let url = self.url(at, &["licensing", "registration"])?;
            let reply = self.ask(at, Method::POST, url, Some(&body)).await?;
            reply.success().map(drop)
        };
        self.within(&[&at.password, token], call).await
    }
}

type Asked = Result<Reply, CallFailure>;
type Told<T> = Result<T, CallFailure>;

#[async_trait]
impl Cml for CmlClient {
    async fn system(&self, at: &CmlTarget) -> Result<CmlMetrics, CallFailure> {
        let call = async {
            let url = self.url(at, &["system_information"])?;
            let information = self.send(Method::GET, url, None, None).await?.success()?.json()?;
            let mut labs = self.url(at, &["labs"])?;
            // Without it only the labs of this very user are listed.
            labs.set_query(Some("show_all=true"));
            // One part that hangs must not take the others with it.
            let patience = self.options.timeout.mul_f64(0.6);
            let get = async |url| {
                let asked = tokio::time::timeout(patience, self.ask(at, Method::GET, url, None)).await;
                let late = |_| CallFailure::new(FailureKind::Unclear, format!("no answer within {patience:?}"));
                asked.map_err(late)??.success()?.json()
            };
            let (stats, labs) = tokio::join!(get(self.url(at, &["system_stats"])?), get(labs));
            for failure in [stats.as_ref().err(), labs.as_ref().err()].into_iter().flatten() {
                let failure = http::scrub(failure.clone(), &[at.password.expose()]);
                tracing::warn!(target: "lcm::cml", address = at.address, %failure, "CML tells only a part");
            }
            responses::metrics(&information, stats.ok().as_ref(), labs.ok().as_ref())
        };
        self.within(&[&at.password], call).await
    }

    async fn telemetry(&self, at: &CmlTarget) -> Result<Vec<Value>, CallFailure> {
        let call = async {
            let reply = self.ask(at, Method::GET, self.url(at, &["telemetry", "events"])?, None).await?;
            responses::events(reply.success()?.json()?)
        };
        self.within(&[&at.password], call).await
    }

    async fn registration(&self, at: &CmlTarget) -> Result<RegistrationStatus, CallFailure> {
        let call = async {
            let reply = self.ask(at, Method::GET, self.url(at, &["licensing"])?, None).await?;
            responses::registration(&reply.success()?.json()?)
        };
        self.within(&[&at.password], call).await
    }

    async fn register(&self, at: &CmlTarget, token: &Secret) -> Result<(), CallFailure> {
        self.submit(at, token, false.into()).await
    }

    async fn reregister(&self, at: &CmlTarget, token: &Secret) -> Result<(), CallFailure> {
        self.submit(at, token, true.into()).await
    }

    async fn deregister(&self, at: &CmlTarget) -> Result<(), CallFailure> {
        let call = async {
            let url = self.url(at, &["licensing", "deregistration"])?;
            let reply = self.ask(at, Method::DELETE, url, None).await?;
            responses::deregistered(&reply)
        };
        self.within(&[&at.password], call).await
    }
}
