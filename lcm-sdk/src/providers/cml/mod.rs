//! [`Cml`] over the HTTP API of the CML system on a worker.
//!
//! # Guarantees
//! - Concurrent calls to the same system as the same user share one login. A rejected token is replaced once per call.
//! - The server certificate is verified unless [`Security`] disables that. Redirects are not followed and proxies not
//!   used, so a password is sent to the worker only.
//! - No error, `Debug` output or log line contains a password or token, even if CML echoes it.
//! - A response that is not JSON is never a refusal. While a worker boots, a web server in front of CML sends HTML error
//!   pages; a refusal would fail the license registration for good.

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
use super::reload::FromFiles;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::license::RegistrationStatus;
use crate::lifecycle::observation::CmlMetrics;
use crate::lifecycle::secret::Secret;
use crate::ports::{Cml, CmlTarget};
use crate::spans::{self, traced};

/// Configuration of a [`CmlClient`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CmlOptions {
    /// Transport security. Default: [`Security::Verified`].
    pub security: Security,
    /// TCP port. Default: 443.
    pub port: u16,
    /// Time limit of one call, including the login. Default: 15 s.
    pub timeout: Duration,
    /// Time limit for opening a connection. Default: 5 s.
    pub connect_timeout: Duration,
    /// Maximum length of a response body in bytes. Default: 16 MiB.
    pub max_body: usize,
}

impl Default for CmlOptions {
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

impl CmlOptions {
    /// Sets the transport security.
    #[must_use]
    pub fn with_security(self, security: Security) -> Self {
        Self { security, ..self }
    }

    /// Sets the TCP port.
    #[must_use]
    pub fn with_port(self, port: u16) -> Self {
        Self { port, ..self }
    }

    /// Sets the time limit of one call, including the login.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Sets the time limit for opening a connection.
    #[must_use]
    pub fn with_connect_timeout(self, connect_timeout: Duration) -> Self {
        Self { connect_timeout, ..self }
    }

    /// Sets the maximum length of a response body in bytes.
    #[must_use]
    pub fn with_max_body(self, max_body: usize) -> Self {
        Self { max_body, ..self }
    }
}

/// Transport security of connections to CML.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Security {
    /// HTTPS with a certificate from an authority that the machine trusts.
    #[default]
    Verified,
    /// HTTPS with a certificate from an authority in this PEM file; no other authority is trusted. The file is read again
    /// when it changes.
    VerifiedWith(PathBuf),
    /// HTTPS without verifying the certificate, for the self-signed one that CML ships with. Open to
    /// machine-in-the-middle attacks.
    Unverified,
    /// HTTP without encryption.
    PlainHttp,
}

/// A [`Cml`] for all workers of a fleet.
///
/// # Errors
/// A rejected login is [`FailureKind::Unreachable`], not [`FailureKind::Refused`]: a refused license request is final,
/// and here the request was never made. For the same reason "not while nodes are running" is a
/// [`FailureKind::Conflict`].
///
/// # Cancel safety
/// A dropped call may still be executed by CML. A dropped login is repeated by the next caller that waits for it.
#[derive(Debug)]
pub struct CmlClient {
    options: CmlOptions,
    client: FromFiles<Client>,
    logins: Logins,
}

impl CmlClient {
    /// Creates a client. Makes no connection.
    ///
    /// # Errors
    /// If the file of certificate authorities is unreadable or empty, or the machine has no certificate authorities.
    pub fn new(options: CmlOptions) -> Result<Self, SetupError> {
        let files = match &options.security {
            Security::VerifiedWith(file) => vec![file.clone()],
            Security::Verified | Security::Unverified | Security::PlainHttp => Vec::new(),
        };
        let client = FromFiles::new(files, || Self::connect(&options))?;
        Ok(Self { client, options, logins: Logins::default() })
    }

    fn connect(options: &CmlOptions) -> Result<Client, SetupError> {
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
        builder.build().map_err(SetupError::Client)
    }

    /// URL of an endpoint.
    fn url(&self, at: &CmlTarget, path: &[&str]) -> Result<Url, CallFailure> {
        let refused = || {
            let message = format!("invalid CML address {:?}: expected an IP address or a host name", at.address);
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
        let is_name = |text: &str| text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-._".contains(letter));
        if !host.starts_with('[') && !is_name(&host) {
            return Err(refused());
        }
        let base = Url::parse(&format!("{scheme}://{host}:{}/api/v0", self.options.port)).map_err(|_| refused())?;
        http::path(&base, path)
    }

    /// Sends one request.
    async fn send(
        &self,
        method: Method,
        url: Url,
        token: Option<&Secret>,
        body: Option<&Value>,
    ) -> Result<Reply, CallFailure> {
        let mut request = self.client.get(|| Self::connect(&self.options)).request(method, url);
        if let Some(token) = token {
            request = request.bearer_auth(token.expose());
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let reply = Reply::read(request.send().await.map_err(http::failure)?, self.options.max_body).await?;
        Ok(reply.redact(token.map(Secret::expose).unwrap_or_default()))
    }

    /// Sends a request with a token. Logs in if there is none, and once more if the token is rejected.
    async fn send_authenticated(
        &self,
        at: &CmlTarget,
        method: Method,
        url: Url,
        body: Option<&Value>,
    ) -> Result<Reply, CallFailure> {
        let login = self.logins.get(at);
        let first = login.token(|| self.log_in(at)).await?;
        let reply = self.send(method.clone(), url.clone(), Some(&first.token), body).await?;
        if reply.status != StatusCode::UNAUTHORIZED {
            return Ok(reply);
        }
        let second = login.token_after(&first, || self.log_in(at)).await?;
        let reply = self.send(method, url, Some(&second.token), body).await?;
        if reply.status == StatusCode::UNAUTHORIZED {
            let message = "CML rejected a new token";
            return Err(CallFailure::with_code(FailureKind::Unreachable, "401", message));
        }
        Ok(reply)
    }

    async fn log_in(&self, at: &CmlTarget) -> Result<Secret, CallFailure> {
        let body = json!({"username": at.username, "password": at.password.expose()});
        let reply = self.send(Method::POST, self.url(at, &["authenticate"])?, None, Some(&body)).await?;
        responses::token(&reply)
    }

    /// Limits the duration of a call and redacts secrets in its failure.
    async fn guard<T>(
        &self,
        name: &str,
        at: &CmlTarget,
        secrets: &[&Secret],
        call: impl Future<Output = Result<T, CallFailure>>,
    ) -> Result<T, CallFailure> {
        let limit = self.options.timeout;
        let guarded = async {
            let result = match tokio::time::timeout(limit, call).await {
                Ok(result) => result,
                Err(_) => Err(CallFailure::new(FailureKind::Unclear, format!("no response from CML within {limit:?}"))),
            };
            let secrets: Vec<&str> = secrets.iter().map(|secret| secret.expose()).collect();
            result.map_err(|failure| http::scrub(failure, &secrets))
        };
        traced(spans::call("cml", name, &at.address), guarded).await
    }

    async fn submit(&self, at: &CmlTarget, token: &Secret, reregister: Value) -> Result<(), CallFailure> {
        let body = json!({"token": token.expose(), "reregister": reregister});
        let call = async {
            let url = self.url(at, &["licensing", "registration"])?;
            let reply = self.send_authenticated(at, Method::POST, url, Some(&body)).await?;
            reply.success().map(drop)
        };
        self.guard("register", at, &[&at.password, token], call).await
    }
}

#[async_trait]
impl Cml for CmlClient {
    async fn system(&self, at: &CmlTarget) -> Result<CmlMetrics, CallFailure> {
        let call = async {
            let url = self.url(at, &["system_information"])?;
            let information = self.send(Method::GET, url, None, None).await?.success()?.json()?;
            let mut labs = self.url(at, &["labs"])?;
            // By default CML lists only the labs of this user.
            labs.set_query(Some("show_all=true"));
            // A request that hangs must not fail the others.
            let limit = self.options.timeout.mul_f64(0.6);
            let get = async |url| {
                let reply = tokio::time::timeout(limit, self.send_authenticated(at, Method::GET, url, None)).await;
                let late = |_| CallFailure::new(FailureKind::Unclear, format!("no response within {limit:?}"));
                reply.map_err(late)??.success()?.json()
            };
            let (stats, health) = (self.url(at, &["system_stats"])?, self.url(at, &["system_health"])?);
            let licensing = self.url(at, &["licensing"])?;
            let (stats, health, labs, licensing) = tokio::join!(get(stats), get(health), get(labs), get(licensing));
            for failure in [&stats, &health, &labs, &licensing].into_iter().filter_map(|reply| reply.as_ref().err()) {
                let failure = http::scrub(failure.clone(), &[at.password.expose()]);
                tracing::warn!(target: "lcm::cml", address = at.address, %failure, "CML metrics are incomplete");
            }
            responses::metrics(&information, stats.ok().as_ref(), health.ok(), labs.ok().as_ref(), licensing.ok())
        };
        self.guard("read metrics", at, &[&at.password], call).await
    }

    async fn telemetry(&self, at: &CmlTarget) -> Result<Vec<Value>, CallFailure> {
        let call = async {
            let reply = self.send_authenticated(at, Method::GET, self.url(at, &["telemetry", "events"])?, None).await?;
            responses::events(reply.success()?.json()?)
        };
        self.guard("read telemetry", at, &[&at.password], call).await
    }

    async fn registration(&self, at: &CmlTarget) -> Result<RegistrationStatus, CallFailure> {
        let call = async {
            let reply = self.send_authenticated(at, Method::GET, self.url(at, &["licensing"])?, None).await?;
            responses::registration(&reply.success()?.json()?)
        };
        self.guard("read the registration", at, &[&at.password], call).await
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
            let reply = self.send_authenticated(at, Method::DELETE, url, None).await?;
            responses::deregistered(&reply)
        };
        self.guard("deregister", at, &[&at.password], call).await
    }
}
