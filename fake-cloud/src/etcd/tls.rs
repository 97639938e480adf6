//! TLS of the server, from PEM files.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// TLS of the server: its certificate, and the authority of client certificates if clients need one.
#[derive(Clone)]
pub struct EtcdTls {
    acceptor: TlsAcceptor,
}

/// Shows no key.
impl std::fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdTls").finish_non_exhaustive()
    }
}

impl EtcdTls {
    /// Reads the certificate chain and the key of the server. With `client_ca`, clients must present a certificate of
    /// that authority, as with etcd's option `--client-cert-auth`.
    ///
    /// # Errors
    /// A file is unreadable or holds no certificate or key.
    pub fn from_files(certificate: &Path, key: &Path, client_ca: Option<&Path>) -> io::Result<Self> {
        let chain = certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| invalid(key, &error))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(certificate, &error))?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path)? {
                    roots.add(authority).map_err(|error| invalid(path, &error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| invalid(path, &error))?)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| invalid(certificate, &error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    pub(super) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| invalid(path, &error))?;
    if certificates.is_empty() {
        return Err(invalid(path, &"expected at least one certificate"));
    }
    Ok(certificates)
}

fn invalid(path: &Path, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("invalid PEM file '{}': {error}", path.display()))
}
