//! Runs two controllers on a cluster of three real etcd members that are killed, frozen and restarted, while operators
//! keep changing the desired status of workers. No change is lost or applied twice, and there is one leader at a time.
//!
//! `LCM_ETCD_ROUNDS` sets how often each fault is injected.

mod operators;
mod oracle;

use std::sync::Arc;
use std::time::Duration;

use fake_cloud::control_plane::Generation::{self, Extended, Original};
use lcm_tests::cluster::Cluster;
use lcm_tests::proof;
use rstest::rstest;
use tokio::time::{Instant, sleep};

use self::operators::Operators;
use self::oracle::LeaderOracle;
use crate::leaders::{ControllerGroup, Process};
use lcm_tests::harness::eventually;

const WORKERS: usize = 8;
const TTL: Duration = Duration::from_secs(4);
const MARGIN: Duration = Duration::from_secs(1);
/// Longer than the election timeout of etcd members.
const FREEZE_DURATION: Duration = Duration::from_secs(3);
/// How long the quorum stays lost after the last leader has stepped down.
const QUORUM_LOSS_DURATION: Duration = Duration::from_secs(3);
/// Extra time a busy machine may need for a failover, including etcd's own election.
const SLACK: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
enum ClusterFault {
    KillLeader,
    FreezeLeader,
    RestartAll,
    LoseQuorum,
}

impl ClusterFault {
    const ALL: [Self; 4] = [Self::KillLeader, Self::FreezeLeader, Self::RestartAll, Self::LoseQuorum];
}

struct Scenario {
    group: Arc<ControllerGroup>,
    cluster: Cluster,
    controllers: [Process; 2],
    operators: Operators,
}

impl Scenario {
    async fn start(generation: Generation, workers: &[String]) -> Self {
        let cluster = Cluster::start().await;
        let group = Arc::new(ControllerGroup::new(generation, Some(cluster.endpoints())).await);
        let controllers = ["first", "second"].map(|name| {
            group.controller_with(name, |election| {
                election.ttl = TTL;
                election.margin = MARGIN;
            })
        });
        group.launch(workers).await;
        let operators = Operators::start(Arc::clone(&group), workers, &cluster.endpoints()).await;
        Self { group, cluster, controllers, operators }
    }

    fn has_leader(&self) -> bool {
        self.controllers.iter().any(Process::leads)
    }

    /// Injects a fault and repairs the cluster. Returns the time from which the cluster was available again.
    async fn inject(&mut self, fault: ClusterFault) -> Instant {
        let started_at = Instant::now();
        let leader = self.cluster.leader().await;
        match fault {
            ClusterFault::KillLeader => {
                self.cluster.kill(&[leader]);
                // The remaining members keep the quorum, so the controllers keep working.
                self.cluster.leader().await;
                self.operators.wait_for_progress().await;
                self.cluster.restart(&[leader]).await;
                started_at
            }
            ClusterFault::FreezeLeader => {
                self.cluster.pause(leader);
                sleep(FREEZE_DURATION).await;
                self.cluster.resume(leader).await;
                started_at
            }
            ClusterFault::RestartAll => {
                self.cluster.kill(&[0, 1, 2]);
                self.cluster.restart(&[0, 1, 2]).await;
                Instant::now()
            }
            ClusterFault::LoseQuorum => {
                let lost = [leader, (leader + 1) % 3];
                self.cluster.kill(&lost);
                self.assert_no_changes_without_leader().await;
                self.cluster.restart(&lost).await;
                Instant::now()
            }
        }
    }

    /// Asserts that, once leases can no longer be renewed, no controller leads and none changes EC2.
    async fn assert_no_changes_without_leader(&self) {
        eventually("no controller leads without a quorum", || async { !self.has_leader() }).await;
        // Calls in flight may complete within the margin.
        let quiet_from = Instant::now() + MARGIN;
        sleep(MARGIN + QUORUM_LOSS_DURATION).await;
        assert!(!self.has_leader(), "a controller leads without a quorum");
        let late = self.group.mutations().into_iter().find(|mutation| mutation.started_at > quiet_from);
        assert!(late.is_none(), "changed without a leader: {late:?}");
        assert!(self.operators.pending() > 0, "no change was pending, so this check proves nothing");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_survive_etcd_faults(#[values(Original, Extended)] generation: Generation) {
    let rounds = proof::number_from_env("LCM_ETCD_ROUNDS", 1);
    let workers: Vec<_> = (1..=WORKERS).map(|number| format!("w-{number}")).collect();
    let mut scenario = Scenario::start(generation, &workers).await;
    let oracle = LeaderOracle::start(scenario.controllers.iter().map(|process| process.controller().clone()));
    let started_at = Instant::now();
    let (mut survived, mut slowest) = (0, Duration::ZERO);
    for fault in (0..rounds).flat_map(|_| ClusterFault::ALL) {
        scenario.operators.wait_for_progress().await;
        let repaired = scenario.inject(fault).await;
        eventually("a controller leads again", || async { scenario.has_leader() }).await;
        scenario.operators.wait_until_applied().await;
        let took = oracle.longest_gap_since(repaired);
        println!("{fault:?}: without a leader for {took:.1?} after etcd became available");
        assert!(took < TTL + SLACK, "{fault:?}: no controller led for {took:?}");
        slowest = slowest.max(took);
        survived += 1;
    }
    let longest = oracle.longest_gap_since(started_at);
    let requested = scenario.operators.stop().await;
    let terms = oracle.stop();
    terms.assert_no_overlap();
    scenario.group.assert_one_active_leader(&workers).await;
    let calls = scenario.group.mutations().len() - workers.len();
    // Counted by EC2 itself: a leader that loses its lease during a call does not receive the response.
    let served =
        ["StartInstances", "StopInstances"].map(|call| scenario.group.harness.ec2_calls(call)).iter().sum::<usize>();
    assert!(served >= requested, "each change needs at least one EC2 call: {requested} changes, {served} calls");
    // The next leader may repeat the call, which is idempotent.
    let repeated = calls.saturating_sub(requested);
    assert!(repeated < terms.count(), "{requested} changes took {calls} calls in {} terms", terms.count());
    for process in scenario.controllers {
        process.stop().await;
    }
    proof::report(
        "20-live-etcd",
        generation,
        &[
            (
                "faults of three real etcd members survived: leader killed, leader frozen, all restarted, quorum lost",
                survived.to_string(),
            ),
            ("changes requested by operators, EC2 calls made for them", format!("{requested}, {calls}")),
            ("leader terms, none overlapping", terms.count().to_string()),
            ("longest time without a leader, including lost quorum", format!("{:.1} s", longest.as_secs_f64())),
            (
                "slowest failover with a lease of 4 s, from when etcd was available again",
                format!("{:.1} s", slowest.as_secs_f64()),
            ),
        ],
    );
}
