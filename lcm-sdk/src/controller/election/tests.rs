use tokio::task::JoinHandle;
use tokio::time::{advance, sleep, timeout};

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
    let etcd = server.another_client();
    let config = ElectionConfig { identity: identity.to_owned(), ..ElectionConfig::default() };
    let (telemetry, shutdown) = (Telemetry::default(), Shutdown::new());
    let (election, handle) =
        LeaderElection::over(Arc::new(etcd.clone()), config, telemetry.clone()).expect("an election that works");
    Candidate { etcd, handle, telemetry, task: tokio::spawn(election.run(shutdown.clone())), shutdown }
}

async fn elected(candidate: &Candidate) -> LeaderLease {
    let elected = timeout(Duration::from_secs(60), candidate.handle.elected()).await;
    elected.expect("elected within a minute").expect("the election goes on")
}

async fn lost(leadership: &LeaderLease) {
    timeout(Duration::from_secs(60), leadership.lost()).await.expect("lost within a minute");
}

#[tokio::test(start_paused = true)]
async fn the_first_leads_and_whoever_it_resigns_for_leads_at_once() {
    let server = MemoryCoordination::new();
    let first = candidate(&server, "first");
    let leadership = elected(&first).await;
    assert_eq!(server.value(KEY).as_deref(), Some("first"));
    let second = candidate(&server, "second");
    sleep(Duration::from_secs(600)).await;
    assert!(leadership.is_valid() && second.handle.leadership().is_none(), "renewed for ten minutes");
    assert!(first.telemetry.to_prometheus().contains("lcm_leader 1"));

    let before = Instant::now();
    first.handle.resign().await;
    assert!(!leadership.is_valid());
    let next = elected(&second).await;
    assert!(before.elapsed() < Duration::from_secs(1), "took over after {:?}", before.elapsed());
    assert!(next.fence().0 > leadership.fence().0, "the token grows");
    assert_eq!(first.telemetry.anomalies(Anomaly::LeadershipLost), 0, "resigning is no count_anomaly");
    assert!(first.telemetry.to_prometheus().contains("lcm_leader 0"));
    first.task.await.expect("it has ended");
}

#[tokio::test(start_paused = true)]
async fn whoever_crashes_is_followed_when_the_lease_ends_and_not_before() {
    let server = MemoryCoordination::new();
    let (first, second) = (candidate(&server, "first"), candidate(&server, "second"));
    let leadership = elected(&first).await;
    sleep(Duration::from_secs(7)).await;
    let before = Instant::now();
    first.task.abort();
    let _ = elected(&second).await;
    assert!(!leadership.is_valid());
    assert!(before.elapsed() <= Duration::from_secs(16), "took over after {:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_before_anybody_else_begins() {
    let server = MemoryCoordination::new();
    let first = candidate(&server, "first");
    let leadership = elected(&first).await;
    let second = candidate(&server, "second");
    sleep(Duration::from_secs(12)).await;
    first.etcd.cut_off();
    let mut alone = None;
    for step in 0..4_000 {
        sleep(Duration::from_millis(10)).await;
        match (leadership.is_valid(), second.handle.leadership()) {
            (true, Some(_)) => panic!("two leaders"),
            (false, None) if alone.is_none() => alone = Some(step),
            (false, Some(_)) => {
                let gap = Duration::from_millis(10) * (step - alone.expect("nobody led in between"));
                assert!(gap >= Duration::from_millis(1_900), "the margin was only {gap:?}");
                assert_eq!(first.telemetry.anomalies(Anomaly::LeadershipLost), 1);
                return;
            }
            (true, None) | (false, None) => {}
        }
    }
    panic!("nobody took over");
}

#[tokio::test(start_paused = true)]
async fn losing_and_winning_works_any_number_of_times() {
    let server = MemoryCoordination::new();
    let candidate = candidate(&server, "only");
    let mut token = None;
    for round in 0..50 {
        let leadership = elected(&candidate).await;
        assert!(leadership.fence().0 > token, "the token grows");
        token = leadership.fence().0;
        server.lose_leases();
        lost(&leadership).await;
        assert_eq!(candidate.telemetry.anomalies(Anomaly::LeadershipLost), round + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_leads_while_etcd_is_not_there_and_somebody_when_it_is() {
    let server = MemoryCoordination::new();
    server.make_unavailable();
    let candidates = [candidate(&server, "first"), candidate(&server, "second")];
    sleep(Duration::from_secs(3_600)).await;
    assert!(candidates.iter().all(|candidate| candidate.handle.leadership().is_none()));
    server.make_available();
    sleep(Duration::from_secs(6)).await;
    let leading = candidates.iter().filter(|candidate| candidate.handle.leadership().is_some());
    assert_eq!(leading.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_is_lost_is_found_again() {
    let server = MemoryCoordination::new();
    server.put("/other", "1");
    let other = server.another_client();
    let config = ElectionConfig::default();
    other.lose_next_claim_response();
    let (election, handle) =
        LeaderElection::over(Arc::new(other), config, Telemetry::default()).expect("an election that works");
    tokio::spawn(election.run(Shutdown::new()));
    let leadership = handle.elected().await.expect("elected");
    assert_eq!(leadership.fence().0, Some(3));
    assert_eq!(server.leases().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_nobody_can_ask_about_blocks_for_no_longer_than_a_lease() {
    let server = MemoryCoordination::new();
    let unlucky = server.another_client();
    unlucky.lose_next_claim_response();
    let config = ElectionConfig::default();
    let campaign = Campaign { coordination: &unlucky, config: &config, layout: None };
    let mut held = None;
    let attempt = async {
        // As soon as the claim was carried out the way back is gone.
        let cut = async {
            for _ in 0..100 {
                if server.value(KEY).is_some() {
                    return unlucky.cut_off();
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(campaign.attempt(&mut held), cut).0
    };
    assert!(attempt.await.is_err(), "it is not known to lead");
    assert!(server.value(KEY).is_some());
    let before = Instant::now();
    let other = candidate(&server, "other");
    let _ = elected(&other).await;
    assert!(before.elapsed() <= config.ttl, "blocked for {:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_deleted_by_hand_ends_the_leadership() {
    let server = MemoryCoordination::new();
    let candidate = candidate(&server, "only");
    let first = elected(&candidate).await;
    server.compact();
    // Between two renewals.
    sleep(Duration::from_secs(61)).await;
    let before = Instant::now();
    server.delete(KEY);
    lost(&first).await;
    assert!(before.elapsed() < Duration::from_millis(100), "the watch tells at once, not after {:?}", before.elapsed());
    let second = elected(&candidate).await;
    assert!(second.fence().0 > first.fence().0);

    server.stall_watches();
    server.put(KEY, "somebody by hand");
    let before = Instant::now();
    lost(&second).await;
    assert!(before.elapsed() <= Duration::from_secs(5), "the next renewal shows it, not {:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_few_failed_renewals_are_no_loss() {
    let server = MemoryCoordination::new();
    let candidate = candidate(&server, "only");
    let leadership = elected(&candidate).await;
    for _ in 0..5 {
        candidate.etcd.fail_next(CallFailure::new(FailureKind::Unclear, "no answer"));
    }
    sleep(Duration::from_secs(60)).await;
    assert!(leadership.is_valid());
    assert_eq!(candidate.telemetry.anomalies(Anomaly::LeadershipLost), 0);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_a_standby_and_lets_a_leader_finish() {
    let server = MemoryCoordination::new();
    let first = candidate(&server, "first");
    let leadership = elected(&first).await;
    let second = candidate(&server, "second");
    sleep(Duration::from_secs(1)).await;
    first.shutdown.request();
    second.shutdown.request();
    second.task.await.expect("a standby ends");
    sleep(Duration::from_secs(600)).await;
    assert!(leadership.is_valid(), "work under way still needs the right");
    first.handle.resign().await;
    assert_eq!(server.value(KEY), None);
    assert_eq!(server.leases(), []);
    assert!(first.handle.elected().await.is_none(), "the election is over");
}

#[tokio::test(start_paused = true)]
async fn a_neighbours_key_is_not_ours() {
    let server = MemoryCoordination::new();
    server.put(&format!("{KEY}/shard-7"), "somebody");
    let _ = elected(&candidate(&server, "only")).await;
}

#[tokio::test(start_paused = true)]
async fn a_standby_whose_watch_is_silent_looks_by_itself() {
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
async fn whoever_is_alone_leads_at_once_without_a_fence() {
    let (election, handle) = LeaderElection::alone(Telemetry::default());
    let running = tokio::spawn(election.run(Shutdown::new()));
    let leadership = handle.elected().await.expect("at once");
    assert_eq!(leadership.fence().0, None);
    advance(Duration::from_secs(86_400)).await;
    assert!(leadership.is_valid());
    handle.resign().await;
    running.await.expect("it has ended");
}
