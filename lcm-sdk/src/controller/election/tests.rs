use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep, timeout};

use super::*;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::providers::memory::MemoryCoordination;

const KEY: &str = ElectionConfig::WORKER_CONTROLLER;

struct Candidate {
    etcd: MemoryCoordination,
    handle: ElectionHandle,
    telemetry: Telemetry,
    shutdown: Shutdown,
    task: JoinHandle<()>,
}

fn candidate(server: &MemoryCoordination, identity: &str) -> Candidate {
    let etcd = server.new_client();
    let config = ElectionConfig { identity: identity.to_owned(), ..ElectionConfig::default() };
    let (telemetry, shutdown) = (Telemetry::default(), Shutdown::new());
    let (election, handle) =
        LeaderElection::new(Arc::new(etcd.clone()), config, telemetry.clone()).expect("valid settings");
    Candidate { etcd, handle, telemetry, task: tokio::spawn(election.run(shutdown.clone())), shutdown }
}

async fn elected(candidate: &Candidate) -> LeaderLease {
    let elected = timeout(Duration::from_secs(60), candidate.handle.elected()).await;
    elected.expect("elected within a minute").expect("the election runs")
}

async fn lost(lease: &LeaderLease) {
    timeout(Duration::from_secs(60), lease.lost()).await.expect("lost within a minute");
}

#[tokio::test(start_paused = true)]
async fn resignation_lets_the_standby_lead_at_once() {
    let server = MemoryCoordination::new();
    let first = candidate(&server, "first");
    let lease = elected(&first).await;
    assert_eq!(server.value(KEY).as_deref(), Some("first"));
    let second = candidate(&server, "second");
    sleep(Duration::from_secs(600)).await;
    assert!(lease.is_valid() && second.handle.lease().is_none(), "renewed for ten minutes");
    assert!(first.telemetry.to_prometheus().contains("lcm_leader 1"));

    let before = Instant::now();
    first.handle.resign().await;
    assert!(!lease.is_valid());
    let next = elected(&second).await;
    assert!(before.elapsed() < Duration::from_secs(1), "took over after {:?}", before.elapsed());
    assert!(next.fence().0 > lease.fence().0, "the token grows");
    assert_eq!(first.telemetry.anomalies(Anomaly::LeadershipLost), 0, "a resignation is not counted");
    assert!(first.telemetry.to_prometheus().contains("lcm_leader 0"));
    first.task.await.expect("the election ends");
}

#[tokio::test(start_paused = true)]
async fn standby_leads_when_the_lease_of_a_crash_expires() {
    let server = MemoryCoordination::new();
    let (first, second) = (candidate(&server, "first"), candidate(&server, "second"));
    let lease = elected(&first).await;
    sleep(Duration::from_secs(7)).await;
    let before = Instant::now();
    first.task.abort();
    let _ = elected(&second).await;
    assert!(!lease.is_valid());
    assert!(before.elapsed() <= Duration::from_secs(16), "took over after {:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn partitioned_leader_stops_before_the_next_begins() {
    let server = MemoryCoordination::new();
    let first = candidate(&server, "first");
    let lease = elected(&first).await;
    let second = candidate(&server, "second");
    sleep(Duration::from_secs(12)).await;
    first.etcd.disconnect();
    let mut gap_began = None;
    for step in 0..4_000 {
        sleep(Duration::from_millis(10)).await;
        match (lease.is_valid(), second.handle.lease()) {
            (true, Some(_)) => panic!("two leaders"),
            (false, None) if gap_began.is_none() => gap_began = Some(step),
            (false, Some(_)) => {
                let gap = Duration::from_millis(10) * (step - gap_began.expect("a gap between the leaders"));
                assert!(gap >= Duration::from_millis(1_900), "the margin was only {gap:?}");
                assert_eq!(first.telemetry.anomalies(Anomaly::LeadershipLost), 1);
                return;
            }
            (true, None) | (false, None) => {}
        }
    }
    panic!("the standby did not lead");
}

#[tokio::test(start_paused = true)]
async fn lead_can_be_lost_and_regained_any_number_of_times() {
    let server = MemoryCoordination::new();
    let candidate = candidate(&server, "only");
    let mut token = None;
    for round in 0..50 {
        let lease = elected(&candidate).await;
        assert!(lease.fence().0 > token, "the token grows");
        token = lease.fence().0;
        server.lose_leases();
        lost(&lease).await;
        assert_eq!(candidate.telemetry.anomalies(Anomaly::LeadershipLost), round + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn no_candidate_leads_during_an_etcd_outage() {
    let server = MemoryCoordination::new();
    server.make_unavailable();
    let candidates = [candidate(&server, "first"), candidate(&server, "second")];
    sleep(Duration::from_secs(3_600)).await;
    assert!(candidates.iter().all(|candidate| candidate.handle.lease().is_none()));
    server.make_available();
    sleep(Duration::from_secs(6)).await;
    let leading = candidates.iter().filter(|candidate| candidate.handle.lease().is_some());
    assert_eq!(leading.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn claim_with_a_lost_response_is_recovered() {
    let server = MemoryCoordination::new();
    server.put("/other", "1");
    let other = server.new_client();
    let config = ElectionConfig::default();
    other.lose_next_claim_response();
    let (election, handle) =
        LeaderElection::new(Arc::new(other), config, Telemetry::default()).expect("valid settings");
    tokio::spawn(election.run(Shutdown::new()));
    let lease = handle.elected().await.expect("elected");
    assert_eq!(lease.fence().0, Some(3));
    assert_eq!(server.leases().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn abandoned_claim_blocks_no_longer_than_a_lease() {
    let server = MemoryCoordination::new();
    let unlucky = server.new_client();
    unlucky.lose_next_claim_response();
    let config = ElectionConfig::default();
    let leader = LeaderName::default();
    let campaign = Campaign { coordination: &unlucky, config: &config, keys: None, leader: &leader };
    let mut held = None;
    let attempt = async {
        // The response is lost right after the claim is carried out.
        let cut = async {
            for _ in 0..100 {
                if server.value(KEY).is_some() {
                    return unlucky.disconnect();
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(campaign.attempt(&mut held), cut).0
    };
    assert!(attempt.await.is_err(), "the claim is not confirmed");
    assert!(server.value(KEY).is_some());
    let before = Instant::now();
    let other = candidate(&server, "other");
    let _ = elected(&other).await;
    assert!(before.elapsed() <= config.ttl, "blocked for {:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn deleted_key_ends_the_lease() {
    let server = MemoryCoordination::new();
    let candidate = candidate(&server, "only");
    let first = elected(&candidate).await;
    server.compact();
    // Between two renewals.
    sleep(Duration::from_secs(61)).await;
    let before = Instant::now();
    server.delete(KEY);
    lost(&first).await;
    assert!(
        before.elapsed() < Duration::from_millis(100),
        "the watch reports it at once, not after {:?}",
        before.elapsed()
    );
    let second = elected(&candidate).await;
    assert!(second.fence().0 > first.fence().0);

    server.stall_watches();
    server.put(KEY, "an operator");
    let before = Instant::now();
    lost(&second).await;
    assert!(before.elapsed() <= Duration::from_secs(5), "the next renewal shows it, not {:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn failed_renewals_are_retried() {
    let server = MemoryCoordination::new();
    let candidate = candidate(&server, "only");
    let lease = elected(&candidate).await;
    for _ in 0..5 {
        candidate.etcd.fail_next(CallFailure::new(FailureKind::Unclear, "no response"));
    }
    sleep(Duration::from_secs(60)).await;
    assert!(lease.is_valid());
    assert_eq!(candidate.telemetry.anomalies(Anomaly::LeadershipLost), 0);
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_a_standby_but_not_a_leader() {
    let server = MemoryCoordination::new();
    let first = candidate(&server, "first");
    let lease = elected(&first).await;
    let second = candidate(&server, "second");
    sleep(Duration::from_secs(1)).await;
    first.shutdown.request();
    second.shutdown.request();
    second.task.await.expect("a standby ends");
    sleep(Duration::from_secs(600)).await;
    assert!(lease.is_valid(), "work in progress still needs the lease");
    first.handle.resign().await;
    assert_eq!(server.value(KEY), None);
    assert_eq!(server.leases(), []);
    assert!(first.handle.elected().await.is_none(), "the election is over");
}

#[tokio::test(start_paused = true)]
async fn longer_key_with_the_same_prefix_is_ignored() {
    let server = MemoryCoordination::new();
    server.put(&format!("{KEY}/shard-7"), "another");
    let _ = elected(&candidate(&server, "only")).await;
}

#[tokio::test(start_paused = true)]
async fn standby_with_a_silent_watch_polls_the_key() {
    let server = MemoryCoordination::new();
    let (first, second) = (candidate(&server, "first"), candidate(&server, "second"));
    let _ = elected(&first).await;
    sleep(Duration::from_secs(1)).await;
    server.stall_watches();
    let before = Instant::now();
    first.handle.resign().await;
    let _ = elected(&second).await;
    assert!(before.elapsed() <= Duration::from_secs(6), "took over after {:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn standalone_candidate_leads_without_a_fence() {
    let (election, handle) = LeaderElection::standalone(Telemetry::default());
    let running = tokio::spawn(election.run(Shutdown::new()));
    let lease = handle.elected().await.expect("at once");
    assert_eq!(lease.fence().0, None);
    advance(Duration::from_secs(86_400)).await;
    assert!(lease.is_valid());
    handle.resign().await;
    running.await.expect("the election ends");
}
