//! Leader election over sockets, with the fake cloud's etcd and a real one.

use std::sync::Arc;
use std::time::Duration;

use fake_cloud::etcd::Fault;
use fake_cloud::faults::Rule;
use fake_cloud::{FakeCloud, Pace};
use lcm_sdk::controller::LeaderLease;
use lcm_sdk::controller::Shutdown;
use lcm_sdk::controller::{ElectionConfig, ElectionHandle, LeaderElection};
use lcm_sdk::providers::etcd::{Etcd, EtcdOptions};
use lcm_sdk::telemetry::{Anomaly, Telemetry};
use lcm_tests::etcd::{Keys, PATIENCE, RealEtcd};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(5);
/// Extra time allowed on a busy machine. `make bench` measures the actual fail-over time.
const SLACK: Duration = Duration::from_secs(8);

struct Candidate {
    handle: ElectionHandle,
    telemetry: Telemetry,
    task: JoinHandle<()>,
}

fn candidate(endpoint: &str, identity: &str) -> Candidate {
    let mut options = EtcdOptions::new([endpoint]);
    options.call_timeout = Duration::from_secs(1);
    let etcd = Arc::new(Etcd::new(options).expect("valid options"));
    let config = ElectionConfig::default()
        .with_identity(identity)
        .with_ttl(TTL)
        .with_margin(Duration::from_millis(300))
        .with_retry_interval(Duration::from_secs(1));
    let telemetry = Telemetry::default();
    let (election, handle) = LeaderElection::new(etcd, config, telemetry.clone()).expect("a valid election config");
    Candidate { handle, telemetry, task: tokio::spawn(election.run(Shutdown::new())) }
}

async fn elected(candidate: &Candidate) -> LeaderLease {
    timeout(PATIENCE, candidate.handle.elected()).await.expect("elected in time").expect("a running election")
}

/// Polls all candidates in a thread. Panics if two of them lead at the same time or a fencing token decreases.
struct LeaderCheck {
    candidates: tokio::sync::watch::Sender<Vec<ElectionHandle>>,
    task: JoinHandle<()>,
}

impl LeaderCheck {
    fn start(candidates: &[Candidate]) -> Self {
        let handles: Vec<_> = candidates.iter().map(|candidate| candidate.handle.clone()).collect();
        let (sender, receiver) = tokio::sync::watch::channel(handles);
        let poll = move || {
            let mut newest = None;
            loop {
                if receiver.has_changed().is_err() {
                    return;
                }
                // An ended lease never becomes valid again. So a lease that is valid in both reads was valid in between,
                // and two such leases overlapped.
                let leases: Vec<_> = receiver.borrow().iter().filter_map(ElectionHandle::lease).collect();
                let valid: Vec<_> = leases.iter().filter(|lease| lease.is_valid()).collect();
                assert!(valid.len() < 2, "two leaders at the same time: {valid:?}");
                for lease in leases {
                    let token = lease.fence().0;
                    assert!(token >= newest, "token {token:?} after {newest:?}");
                    newest = token;
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        };
        Self { candidates: sender, task: tokio::task::spawn_blocking(poll) }
    }

    fn add(&self, candidate: &Candidate) {
        self.candidates.send_modify(|candidates| candidates.push(candidate.handle.clone()));
    }

    async fn finish(self) {
        drop(self.candidates);
        self.task.await.expect("one leader at a time");
    }
}

async fn fake_cloud() -> (FakeCloud, String) {
    let cloud = FakeCloud::builder().pace(Pace::Real).start().await.expect("started");
    let endpoint = cloud.endpoints().etcd_endpoint.clone();
    (cloud, endpoint)
}

/// Leaders resign or crash in turn; there is never more than one.
async fn assert_one_leader_at_a_time(endpoint: &str) {
    let mut candidates: Vec<_> = (0..3).map(|number| candidate(endpoint, &format!("c-{number}"))).collect();
    let check = LeaderCheck::start(&candidates);
    let mut tokens = Vec::new();
    for round in 0..6 {
        let leading = async {
            loop {
                let leading = candidates.iter().position(|candidate| candidate.handle.lease().is_some());
                match leading {
                    Some(leading) => return leading,
                    None => sleep(Duration::from_millis(5)).await,
                }
            }
        };
        let leading = timeout(PATIENCE, leading).await.expect("a leader in time");
        let leader = candidates.swap_remove(leading);
        tokens.extend(leader.handle.lease().and_then(|lease| lease.fence().0));
        sleep(Duration::from_millis(200 * round)).await;
        if round % 2 == 0 {
            leader.handle.resign().await;
        } else {
            leader.task.abort();
        }
        let next = candidate(endpoint, &format!("r-{round}"));
        check.add(&next);
        candidates.push(next);
    }
    check.finish().await;
    assert!(tokens.len() >= 4 && tokens.is_sorted_by(|one, next| one < next), "tokens do not increase: {tokens:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_candidate_leads_at_a_time_on_a_real_etcd() {
    assert_one_leader_at_a_time(&RealEtcd::start().await.endpoint()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_candidate_leads_at_a_time_on_the_fake_cloud() {
    let (_cloud, endpoint) = fake_cloud().await;
    assert_one_leader_at_a_time(&endpoint).await;
}

/// A standby takes over at once after a resignation, and after a crash when the lease has expired.
async fn assert_standby_takes_over(endpoint: &str) {
    let first = candidate(endpoint, "first");
    let one = elected(&first).await;
    let second = candidate(endpoint, "second");
    // Time to become a standby.
    sleep(Duration::from_millis(500)).await;
    let before = Instant::now();
    first.handle.resign().await;
    let other = elected(&second).await;
    let took = before.elapsed();
    assert!(took < TTL, "take-over took {took:?} after a resignation: it waited for the lease");
    assert!(other.fence().0 > one.fence().0);

    let third = candidate(endpoint, "third");
    sleep(Duration::from_millis(500)).await;
    let before = Instant::now();
    second.task.abort();
    let last = elected(&third).await;
    let took = before.elapsed();
    assert!(!other.is_valid(), "the lease of a crashed leader is still valid");
    assert!(took < TTL + SLACK, "take-over took {took:?} after a crash");
    assert!(last.fence().0 > other.fence().0);
}

#[tokio::test]
async fn standby_takes_over_on_a_real_etcd() {
    assert_standby_takes_over(&RealEtcd::start().await.endpoint()).await;
}

#[tokio::test]
async fn standby_takes_over_on_the_fake_cloud() {
    let (_cloud, endpoint) = fake_cloud().await;
    assert_standby_takes_over(&endpoint).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn election_waits_for_etcd() {
    let mut etcd = RealEtcd::reserve();
    let candidates = [candidate(&etcd.endpoint(), "first"), candidate(&etcd.endpoint(), "second")];
    let check = LeaderCheck::start(&candidates);
    sleep(Duration::from_secs(2)).await;
    assert!(candidates.iter().all(|candidate| candidate.handle.lease().is_none()));
    etcd.restart().await;
    let [first, second] = candidates.each_ref().map(elected);
    let elected = timeout(PATIENCE, async {
        tokio::select! { one = first => one, other = second => other }
    })
    .await;
    assert!(elected.expect("a leader in time").is_valid());
    sleep(Duration::from_secs(1)).await;
    check.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_of_a_paused_etcd_stops_before_the_next_starts() {
    let etcd = RealEtcd::start().await;
    let first = candidate(&etcd.endpoint(), "first");
    let lease = elected(&first).await;
    let second = candidate(&etcd.endpoint(), "second");
    sleep(Duration::from_millis(500)).await;
    let candidates = [first, second];
    let check = LeaderCheck::start(&candidates);
    etcd.pause();
    timeout(TTL + SLACK, lease.lost()).await.expect("the lease expires");
    sleep(TTL).await;
    assert!(
        candidates.iter().all(|candidate| candidate.handle.lease().is_none()),
        "there is a leader while etcd is paused"
    );
    assert_eq!(candidates[0].telemetry.anomalies(Anomaly::LeadershipLost), 1);
    etcd.resume();
    let [first, second] = candidates.each_ref().map(elected);
    let next = tokio::select! { one = first => one, other = second => other };
    assert!(next.fence().0 > lease.fence().0);
    assert!(!lease.is_valid(), "an ended lease became valid again");
    sleep(Duration::from_secs(1)).await;
    check.finish().await;
}

#[tokio::test]
async fn lead_can_be_won_again_after_a_lost_lease() {
    let (cloud, endpoint) = fake_cloud().await;
    let only = candidate(&endpoint, "only");
    let mut token = None;
    for round in 1..=3 {
        let lease = elected(&only).await;
        assert!(lease.fence().0 > token);
        token = lease.fence().0;
        cloud.etcd().inject(Fault::LeaseLost(None));
        timeout(PATIENCE, lease.lost()).await.expect("the loss is noticed");
        assert_eq!(only.telemetry.anomalies(Anomaly::LeadershipLost), round);
    }
}

#[tokio::test]
async fn deleted_key_ends_the_lead() {
    let (_cloud, endpoint) = fake_cloud().await;
    let only = candidate(&endpoint, "only");
    let lease = elected(&only).await;
    Keys::connect(&endpoint).await.delete(ElectionConfig::WORKER_CONTROLLER).await;
    timeout(PATIENCE, lease.lost()).await.expect("the loss is noticed");
    assert!(elected(&only).await.fence().0 > lease.fence().0);
}

#[tokio::test]
async fn lost_claim_response_does_not_stop_an_election() {
    let (cloud, endpoint) = fake_cloud().await;
    let rule = json!({"service": "etcd", "operation": "Txn", "times": 1, "action": {"kind": "drop-response"}});
    let rule: Rule = serde_json::from_value(rule).expect("a rule");
    cloud.world().faults().add(rule).expect("a valid rule");
    let lease = elected(&candidate(&endpoint, "only")).await;
    assert_eq!(lease.fence().0, Some(2), "the first claim was applied");
    assert_eq!(cloud.etcd().leases().len(), 1);
}
