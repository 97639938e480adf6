//! Certificate authority of the fake CML servers, so that clients can verify their certificates.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::ServerSessionMemoryCache;
use tokio_rustls::TlsAcceptor;

/// TLS sessions that a server keeps for resumption. Room for 256, the default, would be 35 KB for each CML server.
const SESSIONS: usize = 16;

/// Certificate authority with a generated key, which is never written out.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// TLS server configuration with a certificate for one address.
#[derive(Clone)]
pub struct Certificate {
    config: Arc<ServerConfig>,
}

impl Certificate {
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }
}

impl Authority {
    /// Generates a key and a self-signed CA certificate.
    ///
    /// # Errors
    /// The key or the certificate cannot be generated.
    pub fn new() -> io::Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name("Fake Cloud CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().map_err(io::Error::other)?;
        Ok(Self { issuer: CertifiedIssuer::self_signed(params, key).map_err(io::Error::other)? })
    }

    /// CA certificate as PEM, for the trust store of a client.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Writes [`Self::pem`] to a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_pem(&self, path: impl AsRef<Path>) -> io::Result<()> {
        std::fs::write(path, self.pem())
    }

    /// Issues a certificate that is valid for this address only.
    ///
    /// # Errors
    /// The key or the certificate cannot be generated.
    pub fn issue(&self, address: IpAddr) -> io::Result<Certificate> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(&address.to_string());
        // Clients ignore an address in the common name.
        params.subject_alt_names = vec![SanType::IpAddress(address)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // Strict clients reject a certificate without an authority key identifier.
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(io::Error::other)?;
        let chain = vec![certificate.der().clone(), self.issuer.der().clone()];
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(chain, PrivateKeyDer::from(key))
            .map_err(io::Error::other)?;
        config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Certificate { config: Arc::new(config) })
    }
}

fn name(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    name
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificate")
    }
}
