//! Configuration of an etcd client.

use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::secret::Secret;

/// Configuration of an [`Etcd`](super::Etcd) client.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtcdOptions {
    /// Members of the cluster, each as `host:port` or an `http://` or `https://` URL.
    pub endpoints: Vec<String>,
    /// Credentials, if the cluster requires authentication.
    pub user: Option<EtcdUser>,
    /// TLS configuration, whose files are read again when they change. Without it, `https://` endpoints trust no
    /// certificate authority.
    pub tls: Option<EtcdTls>,
    /// Time limit of a call, over all members. Default: 5 s.
    pub call_timeout: Duration,
    /// Time limit for connecting to one member. Default: 2 s.
    pub connect_timeout: Duration,
    /// Interval of keep-alive pings on a connection with open calls. Default: 10 s. etcd closes connections that ping more
    /// often than every 5 s.
    pub keep_alive_interval: Duration,
    /// Time limit for the response to a ping. Default: 5 s.
    pub keep_alive_timeout: Duration,
}

/// Credentials of an etcd user.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtcdUser {
    /// Name of the user.
    pub name: String,
    /// Password of the user.
    pub password: Secret,
}

/// TLS configuration of connections to etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtcdTls {
    /// PEM file with the certificate authority of the members.
    pub ca_file: Option<PathBuf>,
    /// Client certificate, if the members require one.
    pub client: Option<ClientCertificate>,
    /// Name in the certificates of the members. Default: the host of the endpoint.
    pub server_name: Option<String>,
}

/// PEM files of a client certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// PEM file with the certificate chain.
    pub certificate_file: PathBuf,
    /// PEM file with the private key.
    pub key_file: PathBuf,
}

impl EtcdOptions {
    /// Options for these members with default limits, without credentials or TLS.
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            user: None,
            tls: None,
            call_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            keep_alive_interval: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_secs(5),
        }
    }

    /// Sets the credentials.
    #[must_use]
    pub fn with_user(self, user: EtcdUser) -> Self {
        Self { user: Some(user), ..self }
    }

    /// Sets the TLS configuration.
    #[must_use]
    pub fn with_tls(self, tls: EtcdTls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// Sets the time limit of a call, over all members.
    #[must_use]
    pub fn with_call_timeout(self, call_timeout: Duration) -> Self {
        Self { call_timeout, ..self }
    }

    /// Sets the time limit for connecting to one member.
    #[must_use]
    pub fn with_connect_timeout(self, connect_timeout: Duration) -> Self {
        Self { connect_timeout, ..self }
    }

    /// Sets the interval of keep-alive pings and the time limit for their response.
    #[must_use]
    pub fn with_keep_alive(self, interval: Duration, timeout: Duration) -> Self {
        Self { keep_alive_interval: interval, keep_alive_timeout: timeout, ..self }
    }

    /// Validates the endpoints.
    pub(super) fn check(&self) -> Result<(), CallFailure> {
        if self.endpoints.is_empty() {
            return Err(refused("no etcd endpoint: expected at least one `host:port` or URL".to_owned()));
        }
        for endpoint in &self.endpoints {
            if endpoint.contains('@') {
                // The message leaves the endpoint out, because it holds a password.
                return Err(refused("an etcd endpoint holds credentials: expected them in the user".to_owned()));
            }
            let authority = endpoint.trim_start_matches("https://").trim_start_matches("http://");
            if authority.is_empty() || authority.contains(char::is_whitespace) {
                return Err(refused(format!("invalid etcd endpoint {endpoint:?}: expected `host:port` or a URL")));
            }
            if self.tls.is_some() && endpoint.starts_with("http://") {
                return Err(refused(format!(
                    "invalid etcd endpoint {endpoint}: expected https://, because TLS is configured"
                )));
            }
        }
        Ok(())
    }

    /// The PEM files of the TLS configuration.
    pub(super) fn tls_files(&self) -> Vec<PathBuf> {
        let Some(tls) = &self.tls else { return Vec::new() };
        let client = tls.client.iter().flat_map(|client| [&client.certificate_file, &client.key_file]);
        tls.ca_file.iter().chain(client).cloned().collect()
    }

    /// Converts to options of the etcd client and reads the PEM files.
    pub(super) fn connect_options(&self) -> Result<ConnectOptions, CallFailure> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.connect_timeout)
            .with_keep_alive(self.keep_alive_interval, self.keep_alive_timeout)
            // etcd closes connections that ping without an open call.
            .with_keep_alive_while_idle(false)
            .with_tcp_keepalive(self.keep_alive_interval)
            // A member without a leader then fails a watch instead of keeping it silent.
            .with_require_leader(true);
        if let Some(user) = &self.user {
            options = options.with_user(user.name.clone(), user.password.expose()).with_auto_token_refresh(true);
        }
        if let Some(tls) = &self.tls {
            options = options.with_tls(tls.options()?);
        }
        Ok(options)
    }
}

impl EtcdUser {
    /// Credentials of this user.
    pub fn new(name: impl Into<String>, password: impl Into<Secret>) -> Self {
        Self { name: name.into(), password: password.into() }
    }
}

impl EtcdTls {
    /// Sets the PEM file with the certificate authority of the members.
    #[must_use]
    pub fn with_ca_file(self, ca_file: impl Into<PathBuf>) -> Self {
        Self { ca_file: Some(ca_file.into()), ..self }
    }

    /// Sets the client certificate.
    #[must_use]
    pub fn with_client(self, client: ClientCertificate) -> Self {
        Self { client: Some(client), ..self }
    }

    /// Sets the name in the certificates of the members.
    #[must_use]
    pub fn with_server_name(self, server_name: impl Into<String>) -> Self {
        Self { server_name: Some(server_name.into()), ..self }
    }

    fn options(&self) -> Result<TlsOptions, CallFailure> {
        let mut options = TlsOptions::new();
        if let Some(file) = &self.ca_file {
            options = options.ca_certificate(Certificate::from_pem(read("authority", file)?));
        }
        if let Some(client) = &self.client {
            let certificate = read("client certificate", &client.certificate_file)?;
            options = options.identity(Identity::from_pem(certificate, read("client key", &client.key_file)?));
        }
        if let Some(name) = &self.server_name {
            options = options.domain_name(name.clone());
        }
        Ok(options)
    }
}

fn read(what: &str, file: &Path) -> Result<Vec<u8>, CallFailure> {
    std::fs::read(file).map_err(|error| refused(format!("cannot read the etcd {what} {}: {error}", file.display())))
}

fn refused(message: String) -> CallFailure {
    CallFailure::new(FailureKind::Refused, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_endpoints_are_refused() {
        let refusal = |endpoints: &[&str]| EtcdOptions::new(endpoints.iter().copied()).check().expect_err("refused");
        assert!(refusal(&[]).message.contains("at least one"));
        assert!(refusal(&["http://"]).message.contains("host:port"));
        assert!(refusal(&["a b"]).message.contains("\"a b\""));
        assert!(!refusal(&["http://root:hunter2@etcd:2379"]).message.contains("hunter2"));
        let tls = EtcdOptions { tls: Some(EtcdTls::default()), ..EtcdOptions::new(["http://etcd:2379"]) };
        assert!(tls.check().expect_err("refused").message.contains("https://"));
    }

    #[test]
    fn missing_file_is_named() {
        let tls = EtcdTls { ca_file: Some("/no/such/ca.pem".into()), ..EtcdTls::default() };
        let options = EtcdOptions { tls: Some(tls), ..EtcdOptions::new(["etcd:2379"]) };
        let error = options.connect_options().map(drop).expect_err("refused");
        assert!(error.message.contains("/no/such/ca.pem"), "{error}");
    }

    #[test]
    fn password_is_not_printed() {
        let user = EtcdUser { name: "root".to_owned(), password: "hunter2".into() };
        let options = EtcdOptions { user: Some(user), ..EtcdOptions::new(["etcd:2379"]) };
        assert!(!format!("{options:?}").contains("hunter2"));
    }
}
