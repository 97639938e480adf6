//! How to reach an etcd cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::secret::Secret;

/// How to reach an etcd cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdOptions {
    /// The members: `host:port`, or a URL with `http://` or `https://`.
    pub endpoints: Vec<String>,
    /// Who we are, if the cluster asks.
    pub user: Option<EtcdUser>,
    /// How the connection is protected. Without it, `https://` trusts no authority.
    pub tls: Option<EtcdTls>,
    /// How long a call may take, everything included.
    pub call_timeout: Duration,
    /// How long one member may take to accept a connection.
    pub connect_timeout: Duration,
    /// After how long a silent connection with calls on it is asked for a sign of life. Below five seconds etcd hangs
    /// up on us.
    pub keep_alive_interval: Duration,
    /// How long that sign may take.
    pub keep_alive_timeout: Duration,
}

/// A user of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdUser {
    /// The name.
    pub name: String,
    /// The password.
    pub password: Secret,
}

/// How the connection to etcd is protected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// The authority that vouches for the members, as a PEM file.
    pub ca_file: Option<PathBuf>,
    /// What we show them, if they ask.
    pub client: Option<ClientCertificate>,
    /// The name on their certificate, where it is not the one in the endpoint.
    pub server_name: Option<String>,
}

/// What a client shows to prove who it is, as PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate.
    pub certificate_file: PathBuf,
    /// Its key.
    pub key_file: PathBuf,
}

impl EtcdOptions {
    /// The usual options for these members.
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

    /// Refuses what cannot be meant.
    pub(super) fn check(&self) -> Result<(), CallFailure> {
        if self.endpoints.is_empty() {
            return Err(refused("no endpoint of etcd is given; accepted: at least one `host:port` or URL".to_owned()));
        }
        for endpoint in &self.endpoints {
            if endpoint.contains('@') {
                // Not quoted: it holds a password.
                return Err(refused("an endpoint of etcd holds credentials; they belong into the user".to_owned()));
            }
            let authority = endpoint.trim_start_matches("https://").trim_start_matches("http://");
            if authority.is_empty() || authority.contains(char::is_whitespace) {
                return Err(refused(format!("{endpoint:?} is no endpoint of etcd; accepted: `host:port` or a URL")));
            }
            if self.tls.is_some() && endpoint.starts_with("http://") {
                return Err(refused(format!("{endpoint} is not protected, but TLS is asked for; use https://")));
            }
        }
        Ok(())
    }

    /// The client's own options, with the files read.
    pub(super) fn connect_options(&self) -> Result<ConnectOptions, CallFailure> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.connect_timeout)
            .with_keep_alive(self.keep_alive_interval, self.keep_alive_timeout)
            // etcd hangs up on clients that ping while they have no call open.
            .with_keep_alive_while_idle(false)
            .with_tcp_keepalive(self.keep_alive_interval)
            // A member that lost its cluster says so instead of leaving a watch silent.
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

impl EtcdTls {
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
    std::fs::read(file)
        .map_err(|error| refused(format!("the {what} of etcd in {} is unreadable: {error}", file.display())))
}

fn refused(message: String) -> CallFailure {
    CallFailure::new(FailureKind::Refused, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_meant_is_refused_and_no_password_is_quoted() {
        let refusal = |endpoints: &[&str]| EtcdOptions::new(endpoints.iter().copied()).check().expect_err("refused");
        assert!(refusal(&[]).message.contains("at least one"));
        assert!(refusal(&["http://"]).message.contains("host:port"));
        assert!(refusal(&["a b"]).message.contains("\"a b\""));
        assert!(!refusal(&["http://root:hunter2@etcd:2379"]).message.contains("hunter2"));
        let tls = EtcdOptions { tls: Some(EtcdTls::default()), ..EtcdOptions::new(["http://etcd:2379"]) };
        assert!(tls.check().expect_err("refused").message.contains("https://"));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let tls = EtcdTls { ca_file: Some("/no/such/ca.pem".into()), ..EtcdTls::default() };
        let options = EtcdOptions { tls: Some(tls), ..EtcdOptions::new(["etcd:2379"]) };
        let error = options.connect_options().map(drop).expect_err("refused");
        assert!(error.message.contains("/no/such/ca.pem"), "{error}");
    }

    #[test]
    fn the_password_is_not_printed() {
        let user = EtcdUser { name: "root".to_owned(), password: "hunter2".into() };
        let options = EtcdOptions { user: Some(user), ..EtcdOptions::new(["etcd:2379"]) };
        assert!(!format!("{options:?}").contains("hunter2"));
    }
}
