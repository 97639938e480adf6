//! Certificate verification of the clients of CML, the control plane and etcd: authority, name and validity period. A
//! server that fails it receives no byte of a request.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fake_cloud::cml::{self, CmlServer};
use fake_cloud::{Clock, FakeCloud, Pace};
use lcm_sdk::ports::{Cml as _, CmlTarget, ControlPlane as _, Coordination as _, Scope};
use lcm_sdk::providers::cml::{CmlClient, CmlOptions, Security};
use lcm_sdk::providers::control_plane::{ControlPlaneClient, ControlPlaneOptions};
use lcm_sdk::providers::etcd::{Etcd, EtcdOptions, EtcdTls};
use lcm_sdk::{CallFailure, FailureKind, Secret};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// A certificate authority and its PEM file.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    file: PathBuf,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        let file = std::env::temp_dir().join(format!("lcm-tls-{}-{name}.pem", std::process::id()));
        std::fs::write(&file, issuer.pem()).expect("a file");
        Self { issuer, file }
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.file));
    }
}

/// Kind of certificate that a server presents.
#[derive(Debug, Clone, Copy)]
enum Certificate {
    /// Valid for the server's address.
    Valid,
    /// Issued for the address of another host.
    AnotherHost,
    /// Issued for the server's address, but expired.
    Expired,
}

/// A TLS proxy in front of a service without TLS, with the number of bytes that clients sent through it.
struct TlsProxy {
    address: SocketAddr,
    received: Arc<AtomicUsize>,
}

impl TlsProxy {
    async fn start(upstream: SocketAddr, authority: &Authority, kind: Certificate) -> Self {
        let name = match kind {
            Certificate::Valid | Certificate::Expired => "127.0.0.1",
            Certificate::AnotherHost => "192.0.2.7",
        };
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        if let Certificate::Expired = kind {
            (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &authority.issuer).expect("a certificate");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let config = ServerConfig::builder().with_no_client_auth();
        let mut config = config.with_single_cert(vec![certificate.der().clone()], key).expect("a configuration");
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let received = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&received);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(forward(acceptor.clone(), stream, upstream, Arc::clone(&counter)));
            }
        });
        Self { address, received }
    }
}

async fn forward(acceptor: TlsAcceptor, stream: TcpStream, upstream: SocketAddr, received: Arc<AtomicUsize>) {
    let Ok(client) = acceptor.accept(stream).await else { return };
    let service = TcpStream::connect(upstream).await.expect("a running service");
    let ((mut from_client, mut to_client), (mut from_service, mut to_service)) =
        (tokio::io::split(client), service.into_split());
    let mut bytes = vec![0; 16 * 1024];
    let requests = async {
        while let Ok(read @ 1..) = from_client.read(&mut bytes).await {
            received.fetch_add(read, Ordering::SeqCst);
            if to_service.write_all(&bytes[..read]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = requests => {}
        _ = tokio::io::copy(&mut from_service, &mut to_client) => {}
    }
}

/// Calls a service through a proxy with each kind of certificate. `call` receives the proxy's address and the CA file to
/// trust.
async fn assert_verifies(
    client: &str,
    upstream: SocketAddr,
    call: impl AsyncFn(SocketAddr, PathBuf) -> Result<(), CallFailure>,
) {
    let trusted = Authority::new(&format!("{client}-trusted"));
    let untrusted = Authority::new(&format!("{client}-untrusted"));
    let proxy = TlsProxy::start(upstream, &trusted, Certificate::Valid).await;
    call(proxy.address, trusted.file.clone()).await.unwrap_or_else(|failure| panic!("{client}: {failure}"));
    assert!(proxy.received.load(Ordering::SeqCst) > 0, "{client}: the call bypassed the proxy");
    for (case, issuer, certificate) in [
        ("an unknown authority", &untrusted, Certificate::Valid),
        ("the name of another host", &trusted, Certificate::AnotherHost),
        ("an expired certificate", &trusted, Certificate::Expired),
    ] {
        let proxy = TlsProxy::start(upstream, issuer, certificate).await;
        let failure = call(proxy.address, trusted.file.clone()).await.expect_err(case);
        assert_eq!(failure.kind, FailureKind::Unreachable, "{client}, {case}: {failure}");
        assert_eq!(
            proxy.received.load(Ordering::SeqCst),
            0,
            "{client}, {case}: bytes were sent to an untrusted server"
        );
    }
}

/// Asserts that the failure names the certificate as its cause.
fn assert_names_certificate(failure: CallFailure) -> CallFailure {
    assert!(failure.message.contains("certificate"), "{failure}");
    failure
}

#[tokio::test]
async fn cml_client_verifies_certificates() {
    let system = CmlServer::new(Clock::new(Pace::Manual), cml::Options::default());
    system.power_on();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let upstream = listener.local_addr().expect("an address");
    tokio::spawn(cml::serve_http(listener, system, std::future::pending()));
    let call = async |proxy: SocketAddr, trusted: PathBuf| {
        let mut options = CmlOptions::default();
        options.security = Security::VerifiedWith(trusted);
        options.port = proxy.port();
        options.timeout = Duration::from_secs(60);
        options.connect_timeout = Duration::from_secs(30);
        let client = CmlClient::new(options).expect("a client");
        let (username, password) = ("admin".to_owned(), Secret::from("admin"));
        let target = CmlTarget { address: "127.0.0.1".to_owned(), username, password };
        client.telemetry(&target).await.map(drop).map_err(assert_names_certificate)
    };
    assert_verifies("cml", upstream, call).await;
}

#[tokio::test]
async fn control_plane_client_verifies_certificates() {
    let cloud = FakeCloud::start().await.expect("a cloud");
    let key = cloud.endpoints().control_plane_api_key.clone();
    let upstream = cloud.endpoints().control_plane_url.trim_start_matches("http://").parse().expect("an address");
    let call = async |proxy: SocketAddr, trusted: PathBuf| {
        let mut options = ControlPlaneOptions::new(format!("https://{proxy}"), Secret::from(key.as_str()));
        (options.authorities, options.retries) = (Some(trusted), Vec::new());
        options.timeout = Duration::from_secs(60);
        let client = ControlPlaneClient::new(options).expect("a client");
        client.workers(&Scope::active()).await.map(drop).map_err(assert_names_certificate)
    };
    assert_verifies("control-plane", upstream, call).await;
    cloud.stop().await;
}

#[tokio::test]
async fn etcd_client_verifies_certificates() {
    let cloud = FakeCloud::start().await.expect("a cloud");
    let upstream = cloud.endpoints().etcd_endpoint.parse().expect("an address");
    let call = async |proxy: SocketAddr, trusted: PathBuf| {
        let tls = EtcdTls::default().with_ca_file(trusted);
        let mut options = EtcdOptions::new([format!("https://{proxy}")]);
        options.tls = Some(tls);
        options.call_timeout = Duration::from_secs(60);
        options.connect_timeout = Duration::from_secs(30);
        Etcd::new(options).expect("a client").list("/").await.map(drop)
    };
    assert_verifies("etcd", upstream, call).await;
    cloud.stop().await;
}

/// Lets a client trust another authority than the server's, then replaces the contents of its CA file.
async fn assert_reads_again<C>(
    client: &str,
    upstream: SocketAddr,
    connect: impl Fn(SocketAddr, PathBuf) -> C,
    call: impl AsyncFn(&C) -> Result<(), CallFailure>,
) {
    let old = Authority::new(&format!("{client}-old"));
    let new = Authority::new(&format!("{client}-new"));
    let proxy = TlsProxy::start(upstream, &new, Certificate::Valid).await;
    let made = connect(proxy.address, old.file.clone());
    call(&made).await.expect_err("the server's authority is unknown");
    std::fs::copy(&new.file, &old.file).expect("a copy");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    call(&made).await.unwrap_or_else(|failure| panic!("{client}: {failure}"));
}

#[tokio::test]
async fn changed_ca_files_are_read_again() {
    let cloud = FakeCloud::start().await.expect("a cloud");
    let key = cloud.endpoints().control_plane_api_key.clone();
    let upstream = cloud.endpoints().control_plane_url.trim_start_matches("http://").parse().expect("an address");
    let connect = |proxy, trusted| {
        let mut options = ControlPlaneOptions::new(format!("https://{proxy}"), Secret::from(key.as_str()));
        (options.authorities, options.retries) = (Some(trusted), Vec::new());
        ControlPlaneClient::new(options).expect("a client")
    };
    let call = async |client: &ControlPlaneClient| client.workers(&Scope::active()).await.map(drop);
    assert_reads_again("control-plane", upstream, connect, call).await;

    let upstream = cloud.endpoints().etcd_endpoint.parse().expect("an address");
    let connect = |proxy, trusted| {
        let options = EtcdOptions::new([format!("https://{proxy}")]);
        let tls = EtcdTls::default().with_ca_file(trusted);
        Etcd::new(options.with_tls(tls).with_call_timeout(Duration::from_secs(60))).expect("a client")
    };
    assert_reads_again("etcd", upstream, connect, async |client: &Etcd| client.list("/").await.map(drop)).await;
    cloud.stop().await;

    let system = CmlServer::new(Clock::new(Pace::Manual), cml::Options::default());
    system.power_on();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let upstream = listener.local_addr().expect("an address");
    tokio::spawn(cml::serve_http(listener, system, std::future::pending()));
    let connect = |proxy: SocketAddr, trusted| {
        let options = CmlOptions::default().with_security(Security::VerifiedWith(trusted)).with_port(proxy.port());
        let client = CmlClient::new(options.with_timeout(Duration::from_secs(60))).expect("a client");
        let (username, password) = ("admin".to_owned(), Secret::from("admin"));
        (client, CmlTarget { address: "127.0.0.1".to_owned(), username, password })
    };
    let call = async |(client, target): &(CmlClient, CmlTarget)| client.telemetry(target).await.map(drop);
    assert_reads_again("cml", upstream, connect, call).await;
}
