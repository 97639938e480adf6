//! Client of the admin server of a running controller.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use lcm_sdk::Secret;
use lcm_sdk::settings::Settings;
use reqwest::{Client, Method, Url};
use serde_json::Value;

use crate::exit::{ExitStatus, Failure};

/// Time in which the admin server must respond. It is usually on the same host.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Client of an admin server. Requests carry the admin key: changes need it, and so do details on an exposed server.
pub(crate) struct AdminClient {
    base: Url,
    key: Option<Secret>,
    http: Client,
}

/// A request to the admin server that was not carried out.
#[derive(Debug)]
pub(crate) enum AdminError {
    /// No admin server responds at the address.
    Unreachable(String),
    /// The server refused, with its status and its sentence.
    Refused(u16, String),
}

impl AdminClient {
    /// A client of the server at `url`, which defaults to the address in the settings.
    pub(crate) fn new(settings: &Settings, url: Option<&str>) -> Result<Self, Failure> {
        let admin = &settings.admin;
        let host = match admin.admin_host {
            unspecified if unspecified.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            host => host,
        };
        let text =
            url.map_or_else(|| format!("http://{}", std::net::SocketAddr::new(host, admin.admin_port)), str::to_owned);
        let invalid = |problem: &dyn std::fmt::Display| {
            let message =
                format!("invalid --admin '{text}' ({problem}): expected an http or https URL without credentials");
            Failure::new(ExitStatus::Usage, &message)
        };
        let base = Url::parse(&text).map_err(|error| invalid(&error))?;
        if !matches!(base.scheme(), "http" | "https") || !base.username().is_empty() || base.password().is_some() {
            return Err(Failure::new(
                ExitStatus::Usage,
                &"invalid --admin: expected an http or https URL without credentials; ADMIN_KEY holds the key",
            ));
        }
        let http = Client::builder().timeout(TIMEOUT).redirect(reqwest::redirect::Policy::none());
        // A proxy cannot reach the loopback address of this host.
        let http = if is_loopback(&base) { http.no_proxy() } else { http };
        // A minimal container has no certificate authorities, and plain HTTP needs none.
        let http = if base.scheme() == "http" { http.tls_certs_only(std::iter::empty()) } else { http };
        let http = http.build().map_err(|error| Failure::new(ExitStatus::Failure, &error.without_url()))?;
        Ok(Self { base, key: admin.admin_key.clone(), http })
    }

    /// Address of the server, for messages.
    pub(crate) fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    pub(crate) async fn get(&self, path: &[&str], query: &[(&str, String)]) -> Result<Value, AdminError> {
        self.request(Method::GET, path, query, None).await
    }

    pub(crate) async fn post(&self, path: &[&str], body: &Value) -> Result<Value, AdminError> {
        self.request(Method::POST, path, &[], Some(body)).await
    }

    async fn request(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<Value, AdminError> {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        for (name, value) in query {
            url.query_pairs_mut().append_pair(name, value);
        }
        let mut request = self.http.request(method, url);
        if let Some(body) = body {
            request = request.json(body);
        }
        if let Some(key) = &self.key {
            request = request.header("x-api-key", key.expose());
        }
        let unreachable = |error: reqwest::Error| {
            let error = error.without_url();
            let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
            let cause = causes.last().map_or_else(|| error.to_string(), ToString::to_string);
            AdminError::Unreachable(format!("no controller's admin server responds at {} ({cause})", self.url()))
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(unreachable)?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|_| {
            AdminError::Unreachable(format!(
                "{} is no admin server of a controller: the response is not JSON",
                self.url()
            ))
        })?;
        if status.is_success() {
            return Ok(value);
        }
        let sentence = value["error"].as_str().unwrap_or("no reason given").to_owned();
        Err(AdminError::Refused(status.as_u16(), sentence))
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
