//! Whom the clients of CML, the control plane and etcd trust: the right authority for the right name at the right time,
//! and nobody else. A server that is not trusted gets not a byte of a request.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fake_cloud::cml::{self, CmlServer};
use fake_cloud::{Clock, FakeCloud, Pace};
use lcm_sdk::ports::{Cml as _, CmlTarget, ControlPlane as _, Coordination as _, Scope};
use lcm_sdk::providers::cml::{CmlClient, Security};
use lcm_sdk::providers::control_plane::{self, ControlPlaneClient};
use lcm_sdk::providers::etcd::{Etcd, EtcdOptions, EtcdTls};
use lcm_sdk::{CallFailure, FailureKind, Secret};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// An authority, and the file that says whom to trust.
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

/// What a server shows.
#[derive(Debug, Clone, Copy)]
enum Papers {
    /// For the address it is at.
    Right,
    /// For another.
    AnotherHost,
    /// Once right.
    Expired,
}

/// A door with TLS in front of a service that has none, and how much came through it.
struct Door {
    address: SocketAddr,
    let_in: Arc<AtomicUsize>,
}

impl Door {
    async fn open(behind: SocketAddr, authority: &Authority, papers: Papers) -> Self {
        let name = match papers {
            Papers::Right | Papers::Expired => "127.0.0.1",
            Papers::AnotherHost => "192.0.2.7",
        };
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        if let Papers::Expired = papers {
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
        let let_in = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&let_in);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass_on(acceptor.clone(), stream, behind, Arc::clone(&counted)));
            }
        });
        Self { address, let_in }
    }
}

async fn pass_on(acceptor: TlsAcceptor, stream: TcpStream, behind: SocketAddr, let_in: Arc<AtomicUsize>) {
    let Ok(outside) = acceptor.accept(stream).await else { return };
    let inside = TcpStream::connect(behind).await.expect("the service is there");
    let ((mut from_client, mut to_client), (mut from_service, mut to_service)) =
        (tokio::io::split(outside), inside.into_split());
    let mut bytes = vec![0; 16 * 1024];
    let asking = async {
        while let Ok(read @ 1..) = from_client.read(&mut bytes).await {
            let_in.fetch_add(read, Ordering::SeqCst);
            if to_service.write_all(&bytes[..read]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = asking => {}
        _ = tokio::io::copy(&mut from_service, &mut to_client) => {}
    }
}

/// Asks a service through every kind of door. `ask` is told where the door is and which authorities to trust.
async fn knock(who: &str, behind: SocketAddr, ask: impl AsyncFn(SocketAddr, PathBuf) -> Result<(), CallFailure>) {
    let ours = Authority::new(&format!("{who}-ours"));
    let strangers = Authority::new(&format!("{who}-strangers"));
    let right = Door::open(behind, &ours, Papers::Right).await;
    ask(right.address, ours.file.clone()).await.unwrap_or_else(|failure| panic!("{who} is let in: {failure}"));
    assert!(right.let_in.load(Ordering::SeqCst) > 0, "{who}: it went through the door");
    for (what, issuer, papers) in [
        ("an authority that is not ours", &strangers, Papers::Right),
        ("the name of another host", &ours, Papers::AnotherHost),
        ("papers that have expired", &ours, Papers::Expired),
    ] {
        let door = Door::open(behind, issuer, papers).await;
        let failure = ask(door.address, ours.file.clone()).await.expect_err(what);
        assert_eq!(failure.kind, FailureKind::Unreachable, "{who}, {what}: {failure}");
        assert_eq!(door.let_in.load(Ordering::SeqCst), 0, "{who}, {what}: nothing is sent to whoever it is");
    }
}

fn told_about_certificates(failure: CallFailure) -> CallFailure {
    assert!(failure.message.contains("certificate"), "it says what is wrong: {failure}");
    failure
}

#[tokio::test]
async fn cml_is_trusted_by_authority_name_and_time() {
    let system = CmlServer::new(Clock::new(Pace::Manual), cml::Options::default());
    system.power_on();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let behind = listener.local_addr().expect("an address");
    tokio::spawn(cml::serve_http(listener, system, std::future::pending()));
    let ask = async |door: SocketAddr, trusted: PathBuf| {
        let mut options = lcm_sdk::providers::cml::Options::default();
        options.security = Security::VerifiedWith(trusted);
        options.port = door.port();
        options.timeout = Duration::from_secs(60);
        options.connect_timeout = Duration::from_secs(30);
        let client = CmlClient::new(options).expect("a client");
        let (username, password) = ("admin".to_owned(), Secret::from("admin"));
        let at = CmlTarget { address: "127.0.0.1".to_owned(), username, password };
        client.telemetry(&at).await.map(drop).map_err(told_about_certificates)
    };
    knock("cml", behind, ask).await;
}

#[tokio::test]
async fn the_control_plane_is_trusted_by_authority_name_and_time() {
    let cloud = FakeCloud::start().await.expect("a cloud");
    let key = cloud.endpoints().control_plane_api_key.clone();
    let behind = cloud.endpoints().control_plane_url.trim_start_matches("http://").parse().expect("an address");
    let ask = async |door: SocketAddr, trusted: PathBuf| {
        let mut options = control_plane::Options::new(format!("https://{door}"), Secret::from(key.as_str()));
        (options.authorities, options.retries) = (Some(trusted), Vec::new());
        options.timeout = Duration::from_secs(60);
        let client = ControlPlaneClient::new(options).expect("a client");
        client.workers(&Scope::active()).await.map(drop).map_err(told_about_certificates)
    };
    knock("control-plane", behind, ask).await;
    cloud.stop().await;
}

#[tokio::test]
async fn etcd_is_trusted_by_authority_name_and_time() {
    let cloud = FakeCloud::start().await.expect("a cloud");
    let behind = cloud.endpoints().etcd_endpoint.parse().expect("an address");
    let ask = async |door: SocketAddr, trusted: PathBuf| {
        let tls = EtcdTls::default().with_ca_file(trusted);
        let mut options = EtcdOptions::new([format!("https://{door}")]);
        options.tls = Some(tls);
        options.call_timeout = Duration::from_secs(60);
        options.connect_timeout = Duration::from_secs(30);
        Etcd::new(options).expect("a client").list("/").await.map(drop)
    };
    knock("etcd", behind, ask).await;
    cloud.stop().await;
}
