//! Elections over real sockets: on the fake cloud's etcd, and on a real one.

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
/// What a busy machine may take longer; `make bench` measures what it really takes.
const SLACK: Duration = Duration::from_secs(8);

struct Candidate {
    handle: ElectionHandle,
    telemetry: Telemetry,
    task: JoinHandle<()>,
}

fn candidate(endpoint: &str, identity: &str) -> Candidate {
    let mut options = EtcdOptions::new([endpoint]);
    options.call_timeout = Duration::from_secs(1);
    let etcd = Arc::new(Etcd::new(options).expect("options that can be meant"));
    let config = ElectionConfig::default()
        .with_identity(identity)
        .with_ttl(TTL)
        .with_margin(Duration::from_millis(300))
        .with_retry_interval(Duration::from_secs(1));
    let telemetry = Telemetry::default();
    let (election, handle) = LeaderElection::new(etcd, config, telemetry.clone()).expect("an election that works");
    Candidate { handle, telemetry, task: tokio::spawn(election.run(Shutdown::new())) }
}

async fn elected(candidate: &Candidate) -> LeaderLease {
    timeout(PATIENCE, candidate.handle.elected()).await.expect("elected in time").expect("the election goes on")
}

/// Looks at all candidates as often as it can, and panics if two lead at the same time or a token does not grow.
struct Referee {
    candidates: tokio::sync::watch::Sender<Vec<ElectionHandle>>,
    task: JoinHandle<()>,
}

impl Referee {
    fn watching(candidates: &[Candidate]) -> Self {
        let handles: Vec<_> = candidates.iter().map(|candidate| candidate.handle.clone()).collect();
        let (sender, receiver) = tokio::sync::watch::channel(handles);
        let look = move || {
            let mut newest = None;
            loop {
                if receiver.has_changed().is_err() {
                    return;
                }
                // Whoever was valid in the first round and still is in the second was valid all the time in between, as
                // a right that ended never comes back. Two of them overlapped for sure.
                let rights: Vec<_> = receiver.borrow().iter().filter_map(ElectionHandle::lease).collect();
                let still: Vec<_> = rights.iter().filter(|right| right.is_valid()).collect();
                assert!(still.len() < 2, "two lead at the same time: {still:?}");
                for right in rights {
                    let token = right.fence().0;
                    assert!(token >= newest, "{token:?} leads after {newest:?}");
                    newest = token;
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        };
        Self { candidates: sender, task: tokio::task::spawn_blocking(look) }
    }

    fn also(&self, candidate: &Candidate) {
        self.candidates.send_modify(|candidates| candidates.push(candidate.handle.clone()));
    }

    async fn whistle(self) {
        drop(self.candidates);
        self.task.await.expect("one leader at a time");
    }
}

async fn fake_cloud() -> (FakeCloud, String) {
    let cloud = FakeCloud::builder().pace(Pace::Real).start().await.expect("it starts on free ports");
    let endpoint = cloud.endpoints().etcd_endpoint.clone();
    (cloud, endpoint)
}

/// Leaders come and go, some with a word and some without; there is never more than one.
async fn never_two_at_once(endpoint: &str) {
    let mut candidates: Vec<_> = (0..3).map(|number| candidate(endpoint, &format!("c-{number}"))).collect();
    let referee = Referee::watching(&candidates);
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
        let leading = timeout(PATIENCE, leading).await.expect("somebody leads");
        let leader = candidates.swap_remove(leading);
        tokens.extend(leader.handle.lease().and_then(|leadership| leadership.fence().0));
        sleep(Duration::from_millis(200 * round)).await;
        if round % 2 == 0 {
            leader.handle.resign().await;
        } else {
            leader.task.abort();
        }
        let next = candidate(endpoint, &format!("r-{round}"));
        referee.also(&next);
        candidates.push(next);
    }
    referee.whistle().await;
    assert!(tokens.len() >= 4 && tokens.is_sorted_by(|one, next| one < next), "tokens grow: {tokens:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_real_etcd_there_are_never_two_leaders() {
    never_two_at_once(&RealEtcd::start().await.endpoint()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_fake_cloud_there_are_never_two_leaders() {
    let (_cloud, endpoint) = fake_cloud().await;
    never_two_at_once(&endpoint).await;
}

/// Whoever resigns is followed at once, whoever crashes when the lease has ended.
async fn takes_over(endpoint: &str) {
    let first = candidate(endpoint, "first");
    let one = elected(&first).await;
    let second = candidate(endpoint, "second");
    // Until it stands by.
    sleep(Duration::from_millis(500)).await;
    let before = Instant::now();
    first.handle.resign().await;
    let other = elected(&second).await;
    let took = before.elapsed();
    assert!(took < TTL, "waited for the lease: took over {took:?} after a resignation");
    assert!(other.fence().0 > one.fence().0);

    let third = candidate(endpoint, "third");
    sleep(Duration::from_millis(500)).await;
    let before = Instant::now();
    second.task.abort();
    let last = elected(&third).await;
    let took = before.elapsed();
    assert!(!other.is_valid(), "a crash ends it without a word");
    assert!(took < TTL + SLACK, "took over {took:?} after a crash");
    assert!(last.fence().0 > other.fence().0);
}

#[tokio::test]
async fn on_a_real_etcd_a_standby_takes_over() {
    takes_over(&RealEtcd::start().await.endpoint()).await;
}

#[tokio::test]
async fn on_the_fake_cloud_a_standby_takes_over() {
    let (_cloud, endpoint) = fake_cloud().await;
    takes_over(&endpoint).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_leads_before_etcd_is_there_and_one_afterwards() {
    let mut etcd = RealEtcd::reserved();
    let candidates = [candidate(&etcd.endpoint(), "first"), candidate(&etcd.endpoint(), "second")];
    let referee = Referee::watching(&candidates);
    sleep(Duration::from_secs(2)).await;
    assert!(candidates.iter().all(|candidate| candidate.handle.lease().is_none()));
    etcd.begin().await;
    let [first, second] = candidates.each_ref().map(elected);
    let elected = timeout(PATIENCE, async {
        tokio::select! { one = first => one, other = second => other }
    })
    .await;
    assert!(elected.expect("one leads").is_valid());
    sleep(Duration::from_secs(1)).await;
    referee.whistle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_of_a_frozen_etcd_stops_before_anybody_else_begins() {
    let etcd = RealEtcd::start().await;
    let first = candidate(&etcd.endpoint(), "first");
    let leadership = elected(&first).await;
    let second = candidate(&etcd.endpoint(), "second");
    sleep(Duration::from_millis(500)).await;
    let candidates = [first, second];
    let referee = Referee::watching(&candidates);
    etcd.pause();
    timeout(TTL + SLACK, leadership.lost()).await.expect("it ends by itself");
    sleep(TTL).await;
    assert!(candidates.iter().all(|candidate| candidate.handle.lease().is_none()), "nobody was let in");
    assert_eq!(candidates[0].telemetry.anomalies(Anomaly::LeadershipLost), 1);
    etcd.resume();
    let [first, second] = candidates.each_ref().map(elected);
    let next = tokio::select! { one = first => one, other = second => other };
    assert!(next.fence().0 > leadership.fence().0);
    assert!(!leadership.is_valid(), "what has ended stays ended");
    sleep(Duration::from_secs(1)).await;
    referee.whistle().await;
}

#[tokio::test]
async fn a_lost_lease_ends_it_and_it_can_be_won_again() {
    let (cloud, endpoint) = fake_cloud().await;
    let only = candidate(&endpoint, "only");
    let mut token = None;
    for round in 1..=3 {
        let leadership = elected(&only).await;
        assert!(leadership.fence().0 > token);
        token = leadership.fence().0;
        cloud.etcd().inject(Fault::LeaseLost(None));
        timeout(PATIENCE, leadership.lost()).await.expect("it notices");
        assert_eq!(only.telemetry.anomalies(Anomaly::LeadershipLost), round);
    }
}

#[tokio::test]
async fn a_key_deleted_by_hand_ends_it() {
    let (_cloud, endpoint) = fake_cloud().await;
    let only = candidate(&endpoint, "only");
    let leadership = elected(&only).await;
    Keys::of(&endpoint).await.delete(ElectionConfig::WORKER_CONTROLLER).await;
    timeout(PATIENCE, leadership.lost()).await.expect("it notices");
    assert!(elected(&only).await.fence().0 > leadership.fence().0);
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_does_not_stop_an_election() {
    let (cloud, endpoint) = fake_cloud().await;
    let rule = json!({"service": "etcd", "operation": "Txn", "times": 1, "action": {"kind": "drop-response"}});
    let rule: Rule = serde_json::from_value(rule).expect("a rule");
    cloud.world().faults().add(rule).expect("a rule that can be meant");
    let leadership = elected(&candidate(&endpoint, "only")).await;
    assert_eq!(leadership.fence().0, Some(2), "the first claim was the one that counted");
    assert_eq!(cloud.etcd().leases().len(), 1);
}
