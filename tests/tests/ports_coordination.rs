//! The etcd adapter over real sockets: against the fake cloud, and against a real etcd.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fake_cloud::etcd::Put;
use fake_cloud::faults::Rule;
use fake_cloud::{FakeCloud, Pace};
use lcm_sdk::FailureKind;
use lcm_sdk::conformance::coordination::{CoordinationWorld, suite};
use lcm_sdk::ports::{Claim, Coordination, WatchUpdate};
use lcm_sdk::providers::etcd::{ClientCertificate, Etcd, EtcdOptions, EtcdTls, EtcdUser};
use lcm_tests::etcd::{Keys, PATIENCE, RealEtcd};
use serde_json::json;
use tokio::time::{Instant, timeout};

struct OverSockets {
    endpoint: String,
    keys: Keys,
}

impl OverSockets {
    async fn at(endpoint: String) -> Self {
        Self { keys: Keys::of(&endpoint).await, endpoint }
    }
}

#[async_trait::async_trait]
impl CoordinationWorld for OverSockets {
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
    Etcd::new(EtcdOptions::new(endpoints)).expect("options that can be meant")
}

async fn fake_cloud() -> FakeCloud {
    FakeCloud::builder().pace(Pace::Real).start().await.expect("it starts on free ports")
}

fn fault(cloud: &FakeCloud, rule: serde_json::Value) {
    let rule: Rule = serde_json::from_value(rule).expect("a rule");
    cloud.world().faults().add(rule).expect("a rule that can be meant");
}

/// An address nobody listens at.
fn nobody() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

#[tokio::test]
async fn on_the_fake_cloud_it_does_what_every_etcd_does() {
    let cloud = fake_cloud().await;
    suite(&OverSockets::at(cloud.endpoints().etcd_endpoint.clone()).await).await;
}

#[tokio::test]
async fn on_a_real_etcd_it_does_what_every_etcd_does() {
    let real = RealEtcd::start().await;
    suite(&OverSockets::at(real.endpoint()).await).await;
}

#[tokio::test]
async fn nobody_there_is_unreachable_and_certainly_did_nothing() {
    let failure = etcd([nobody()]).grant(Duration::from_secs(15)).await.expect_err("nobody is there");
    assert_eq!(failure.kind, FailureKind::Unreachable, "{failure}");
    assert!(failure.to_string().contains("could not grant a lease at 127.0.0.1:"), "{failure}");
}

#[tokio::test]
async fn a_dead_member_is_passed_over() {
    let cloud = fake_cloud().await;
    let etcd = etcd([nobody(), cloud.endpoints().etcd_endpoint.clone(), nobody()]);
    for _ in 0..20 {
        etcd.list("/").await.expect("the one that lives answers");
    }
    cloud.stop().await;
    assert!(etcd.list("/").await.is_err(), "nobody is left");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_not_waited_for_longer_than_a_call_may_take() {
    let real = RealEtcd::start().await;
    let mut options = EtcdOptions::new([real.endpoint()]);
    options.call_timeout = Duration::from_secs(1);
    let etcd = Etcd::new(options).expect("options that can be meant");
    let lease = etcd.grant(Duration::from_secs(60)).await.expect("a lease");
    real.pause();
    let before = Instant::now();
    let failure = etcd.renew(lease.id).await.expect_err("it is frozen");
    assert_eq!(failure.kind, FailureKind::Unclear, "it may have been renewed: {failure}");
    assert!(before.elapsed() < Duration::from_secs(10), "waited for {:?}", before.elapsed());
    real.resume();
    let back = async {
        while etcd.renew(lease.id).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(30), back).await.expect("the same client finds it again");
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_found_by_asking_again() {
    let cloud = fake_cloud().await;
    let etcd = etcd([&cloud.endpoints().etcd_endpoint]);
    let lease = etcd.grant(Duration::from_secs(60)).await.expect("a lease");
    fault(&cloud, json!({"service": "etcd", "operation": "Txn", "times": 1, "action": {"kind": "drop-response"}}));
    let failure = etcd.claim("/leader", "one", lease.id).await.expect_err("the answer is lost");
    assert!(!failure.kind.did_nothing(), "{failure:?}");
    assert_eq!(etcd.claim("/leader", "one", lease.id).await, Ok(Claim::Won { revision: 2 }));
}

#[tokio::test]
async fn more_keys_than_fit_on_a_page_are_listed_at_one_revision() {
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
async fn a_history_told_in_pieces_is_complete_up_to_the_revision_it_says() {
    // Large values: far more than one message can hold.
    let cloud = fake_cloud().await;
    for number in 0..40 {
        cloud.etcd().put(&Put::new(format!("/workers/w-{number:02}"), "x".repeat(200_000))).expect("a put");
    }
    let etcd = etcd([&cloud.endpoints().etcd_endpoint]);
    let (mut names, mut from) = (BTreeSet::new(), 2);
    while names.len() < 40 {
        // Every piece is followed by a new watch, as if the stream had ended there.
        let mut watch = etcd.watch("/workers/", from).await.expect("a watch");
        match timeout(Duration::from_secs(30), watch.next()).await.expect("there is something to hear") {
            WatchUpdate::Changed { revision, keys } => {
                assert!(revision >= from, "nothing was told up to {revision} that begins at {from}");
                from = revision + 1;
                names.extend(keys);
                let told = names.len() as i64;
                assert!(revision - 1 <= told, "{told} keys were told, and it claims to be at revision {revision}");
            }
            unexpected => panic!("the past is told: {unexpected:?}"),
        }
    }
}

#[tokio::test]
async fn a_user_is_let_in_by_password_and_nobody_without() {
    let real = RealEtcd::start().await;
    let mut admin = etcd_client::Client::connect([real.endpoint()], None).await.expect("a client");
    admin.user_add("root", "hunter2", None).await.expect("a user");
    admin.user_grant_role("root", "root").await.expect("a role");
    admin.auth_enable().await.expect("authentication");
    let stranger = etcd([real.endpoint()]);
    let failure = stranger.list("/").await.expect_err("no user");
    assert_eq!(failure.kind, FailureKind::Refused, "{failure}");
    let with = |password: &str| {
        let user = EtcdUser { name: "root".to_owned(), password: password.into() };
        let mut options = EtcdOptions::new([real.endpoint()]);
        options.user = Some(user);
        Etcd::new(options).expect("options")
    };
    let wrong = with("swordfish");
    let failure = wrong.list("/").await.expect_err("not the password");
    assert_eq!(failure.kind, FailureKind::Refused, "{failure}");
    assert!(!format!("{failure:?} {wrong:?}").contains("swordfish"));
    let right = with("hunter2");
    let lease = right.grant(Duration::from_secs(60)).await.expect("a lease");
    assert!(matches!(right.claim("/leader", "one", lease.id).await, Ok(Claim::Won { .. })));
    right.renew(lease.id).await.expect("renewed");
}

#[tokio::test]
async fn a_protected_server_and_its_client_show_each_other_their_papers() {
    let (real, papers) = RealEtcd::start_protected();
    let endpoint = format!("https://{}", real.endpoint());
    let (certificate_file, key_file) = papers.client;
    let with = |ca_file, client| {
        let tls = EtcdTls { ca_file, client, ..EtcdTls::default() };
        let mut options = EtcdOptions::new([&endpoint]);
        options.tls = Some(tls);
        Etcd::new(options).expect("options")
    };
    let client = Some(ClientCertificate { certificate_file, key_file });
    let known = with(Some(papers.authority.clone()), client.clone());
    let lease = async {
        loop {
            match known.grant(Duration::from_secs(60)).await {
                Ok(lease) => return lease,
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    };
    let lease = timeout(PATIENCE, lease).await.expect("let in");
    assert!(matches!(known.claim("/leader", "one", lease.id).await, Ok(Claim::Won { .. })));
    let stranger = with(Some(papers.authority), None);
    assert!(stranger.list("/").await.is_err(), "nobody is let in without papers");
    let trusting = with(None, client);
    let failure = trusting.list("/").await.expect_err("nobody vouches for the server");
    assert_eq!(failure.kind, FailureKind::Unreachable, "nothing was sent: {failure}");
}
