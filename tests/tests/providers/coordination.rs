//! `Etcd` against the fake cloud and a real etcd, over sockets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fake_cloud::etcd::{EtcdStore, Fault, Options, Put, serve_with};
use fake_cloud::faults::Rule;
use fake_cloud::{Clock, FakeCloud, Pace};
use lcm_sdk::FailureKind;
use lcm_sdk::conformance::coordination::{CoordinationWorld, suite};
use lcm_sdk::ports::{Claim, Coordination, WatchUpdate};
use lcm_sdk::providers::etcd::{ClientCertificate, Etcd, EtcdOptions, EtcdTls, EtcdUser};
use lcm_tests::etcd::{Certificates, Keys, PATIENCE, RealEtcd};
use serde_json::json;
use tokio::time::{Instant, timeout};

struct EtcdServer {
    endpoint: String,
    keys: Keys,
}

impl EtcdServer {
    async fn connect(endpoint: String) -> Self {
        Self { keys: Keys::connect(&endpoint).await, endpoint }
    }
}

#[async_trait::async_trait]
impl CoordinationWorld for EtcdServer {
    fn coordination(&self) -> Arc<dyn Coordination> {
        Arc::new(etcd([&self.endpoint]))
    }

    async fn put(&self, key: &str, value: &str) {
        self.keys.put(key, value).await;
    }

    async fn delete(&self, key: &str) {
        self.keys.delete(key).await;
    }

    async fn compact(&self) {
        self.keys.compact().await;
    }
}

fn etcd<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Etcd {
    Etcd::new(EtcdOptions::new(endpoints)).expect("valid options")
}

async fn fake_cloud() -> FakeCloud {
    FakeCloud::builder().pace(Pace::Real).start().await.expect("started")
}

fn fault(cloud: &FakeCloud, rule: serde_json::Value) {
    let rule: Rule = serde_json::from_value(rule).expect("a rule");
    cloud.world().faults().add(rule).expect("a valid rule");
}

/// An address with a closed port.
fn closed_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

#[tokio::test]
async fn etcd_conforms_on_the_fake_cloud() {
    let cloud = fake_cloud().await;
    suite(&EtcdServer::connect(cloud.endpoints().etcd_endpoint.clone()).await).await;
}

#[tokio::test]
async fn etcd_conforms_on_a_real_server() {
    let real = RealEtcd::start().await;
    suite(&EtcdServer::connect(real.endpoint()).await).await;
}

#[tokio::test]
async fn refused_connection_is_unreachable() {
    let failure = etcd([closed_port()]).grant(Duration::from_secs(15)).await.expect_err("connection refused");
    assert_eq!(failure.kind, FailureKind::Unreachable, "{failure}");
    assert!(failure.to_string().contains("could not grant a lease at 127.0.0.1:"), "{failure}");
}

#[tokio::test]
async fn dead_member_is_skipped() {
    let cloud = fake_cloud().await;
    let etcd = etcd([closed_port(), cloud.endpoints().etcd_endpoint.clone(), closed_port()]);
    for _ in 0..20 {
        etcd.list("/").await.expect("the live member responds");
    }
    cloud.stop().await;
    assert!(etcd.list("/").await.is_err(), "no member is left");
}

#[tokio::test]
async fn hanging_server_times_out() {
    let real = RealEtcd::start().await;
    let mut options = EtcdOptions::new([real.endpoint()]);
    options.call_timeout = Duration::from_secs(1);
    let etcd = Etcd::new(options).expect("valid options");
    let lease = etcd.grant(Duration::from_secs(60)).await.expect("a lease");
    real.pause();
    let before = Instant::now();
    let failure = etcd.renew(lease.id).await.expect_err("the server is paused");
    assert_eq!(failure.kind, FailureKind::Unclear, "it may have been renewed: {failure}");
    assert!(before.elapsed() < Duration::from_secs(10), "waited for {:?}", before.elapsed());
    real.resume();
    let back = async {
        while etcd.renew(lease.id).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(30), back).await.expect("the client reconnects");
}

#[tokio::test]
async fn lost_claim_response_is_recovered() {
    let cloud = fake_cloud().await;
    let etcd = etcd([&cloud.endpoints().etcd_endpoint]);
    let lease = etcd.grant(Duration::from_secs(60)).await.expect("a lease");
    fault(&cloud, json!({"service": "etcd", "operation": "Txn", "times": 1, "action": {"kind": "drop-response"}}));
    let failure = etcd.claim("/leader", "one", lease.id).await.expect_err("the response is lost");
    assert!(!failure.kind.did_nothing(), "{failure:?}");
    assert_eq!(etcd.claim("/leader", "one", lease.id).await, Ok(Claim::Won { revision: 2 }));
}

#[tokio::test]
async fn paged_list_has_one_revision() {
    let cloud = fake_cloud().await;
    for number in 0..12_345 {
        cloud.etcd().put(&Put::new(format!("/workers/w-{number:05}"), "x".repeat(200))).expect("a put");
    }
    let listing = etcd([&cloud.endpoints().etcd_endpoint]).list("/workers/").await.expect("a listing");
    assert_eq!(listing.keys.len(), 12_345);
    assert_eq!(listing.revision, 12_346);
    assert!(listing.keys.is_sorted());
    let all = etcd([&cloud.endpoints().etcd_endpoint]).list("").await.expect("a listing");
    assert_eq!(all.keys, listing.keys);
}

#[tokio::test]
async fn fragmented_watch_events_are_complete() {
    // More data than one message can hold.
    let cloud = fake_cloud().await;
    for number in 0..40 {
        cloud.etcd().put(&Put::new(format!("/workers/w-{number:02}"), "x".repeat(200_000))).expect("a put");
    }
    let etcd = etcd([&cloud.endpoints().etcd_endpoint]);
    let (mut names, mut from) = (BTreeSet::new(), 2);
    while names.len() < 40 {
        // Each fragment is followed by a new watch, as after a broken stream.
        let mut watch = etcd.watch("/workers/", from).await.expect("a watch");
        match timeout(Duration::from_secs(30), watch.next()).await.expect("an update in time") {
            WatchUpdate::Changed { revision, keys } => {
                assert!(revision >= from, "revision {revision} is before {from}");
                from = revision + 1;
                names.extend(keys);
                let reported = names.len() as i64;
                assert!(revision - 1 <= reported, "revision {revision} after {reported} keys");
            }
            unexpected => panic!("expected changes: {unexpected:?}"),
        }
    }
}

#[tokio::test]
async fn password_is_required() {
    let real = RealEtcd::start().await;
    require_password(&real.endpoint()).await;
}

#[tokio::test]
async fn password_is_required_by_the_fake() {
    let cloud = fake_cloud().await;
    require_password(&cloud.endpoints().etcd_endpoint).await;
}

async fn require_password(endpoint: &str) {
    enable_authentication(endpoint).await;
    let anonymous = etcd([endpoint]);
    let failure = anonymous.list("/").await.expect_err("no user");
    assert_eq!(failure.kind, FailureKind::Refused, "{failure}");
    let wrong = etcd_as_root(endpoint, "swordfish");
    let failure = wrong.list("/").await.expect_err("not the password");
    assert_eq!(failure.kind, FailureKind::Refused, "{failure}");
    assert!(!format!("{failure:?} {wrong:?}").contains("swordfish"));
    let right = etcd_as_root(endpoint, "hunter2");
    let lease = right.grant(Duration::from_secs(60)).await.expect("a lease");
    assert!(matches!(right.claim("/leader", "one", lease.id).await, Ok(Claim::Won { .. })));
    right.renew(lease.id).await.expect("renewed");
}

/// Creates the user root with the password `hunter2`, and enables authentication.
async fn enable_authentication(endpoint: &str) {
    let mut admin = etcd_client::Client::connect([endpoint], None).await.expect("a client");
    admin.user_add("root", "hunter2", None).await.expect("a user");
    admin.user_grant_role("root", "root").await.expect("a role");
    admin.auth_enable().await.expect("authentication");
}

fn etcd_as_root(endpoint: &str, password: &str) -> Etcd {
    let options = EtcdOptions::new([endpoint]).with_user(EtcdUser::new("root", password));
    Etcd::new(options).expect("options")
}

/// A server that was restarted, or was idle for five minutes, has forgotten the token.
#[tokio::test]
async fn expired_token_is_renewed() {
    let cloud = fake_cloud().await;
    let endpoint = &cloud.endpoints().etcd_endpoint;
    enable_authentication(endpoint).await;
    let etcd = etcd_as_root(endpoint, "hunter2");
    let lease = etcd.grant(Duration::from_secs(60)).await.expect("a lease");
    assert!(cloud.etcd().inject(Fault::TokensLost));
    assert_eq!(etcd.claim("/leader", "one", lease.id).await.map(|claim| matches!(claim, Claim::Won { .. })), Ok(true));
}

#[tokio::test]
async fn mutual_tls_is_verified() {
    let (real, certificates) = RealEtcd::start_with_tls();
    require_certificate(&format!("https://{}", real.endpoint()), certificates).await;
}

#[tokio::test]
async fn mutual_tls_is_verified_by_the_fake() {
    let directory = std::env::temp_dir().join(format!("lcm-fake-etcd-{}", std::process::id()));
    let certificates = Certificates::issue(&directory);
    let (certificate, key) = &certificates.server;
    let tls =
        fake_cloud::etcd::EtcdTls::from_files(certificate, key, Some(&certificates.authority)).expect("PEM files");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let endpoint = format!("https://{}", listener.local_addr().expect("an address"));
    let store = EtcdStore::new(Clock::new(Pace::Real));
    let server = serve_with(listener, store, Options::default().with_tls(tls), std::future::pending());
    let server = tokio::spawn(server);
    require_certificate(&endpoint, certificates).await;
    server.abort();
    std::fs::remove_dir_all(directory).expect("removed");
}

async fn require_certificate(endpoint: &str, certificates: Certificates) {
    let (certificate_file, key_file) = certificates.client;
    let with = |ca_file, client| {
        let mut tls = EtcdTls::default();
        (tls.ca_file, tls.client) = (ca_file, client);
        let mut options = EtcdOptions::new([endpoint]);
        options.tls = Some(tls);
        Etcd::new(options).expect("options")
    };
    let client = Some(ClientCertificate { certificate_file, key_file });
    let known = with(Some(certificates.authority.clone()), client.clone());
    let lease = async {
        loop {
            match known.grant(Duration::from_secs(60)).await {
                Ok(lease) => return lease,
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    };
    let lease = timeout(PATIENCE, lease).await.expect("a connection in time");
    assert!(matches!(known.claim("/leader", "one", lease.id).await, Ok(Claim::Won { .. })));
    let anonymous = with(Some(certificates.authority), None);
    assert!(anonymous.list("/").await.is_err(), "a client certificate is required");
    let without_ca = with(None, client);
    let failure = without_ca.list("/").await.expect_err("the server's CA is unknown");
    assert_eq!(failure.kind, FailureKind::Unreachable, "nothing was sent: {failure}");
}
