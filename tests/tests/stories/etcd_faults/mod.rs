//! Two whole controllers over three real etcds of which members are killed, frozen and started again, while operators
//! change their minds all the time. Nothing is lost, nothing is done twice, and there is one leader at a time.
//!
//! `LCM_ETCD_ROUNDS` says how often each fault strikes.

mod wishes;
mod witness;

use std::sync::Arc;
use std::time::Duration;

use lcm_tests::cluster::Cluster;
use lcm_tests::proof;
use tokio::time::{Instant, sleep};

use self::wishes::Operators;
use self::witness::Witness;
use crate::leaders::{Contest, Process};
use lcm_tests::harness::eventually;

const WORKERS: usize = 8;
const TTL: Duration = Duration::from_secs(4);
const MARGIN: Duration = Duration::from_secs(1);
/// Longer than etcd's members wait for their leader before they elect another.
const FROZEN: Duration = Duration::from_secs(3);
/// How long there is no quorum after nobody leads any more.
const SILENCE: Duration = Duration::from_secs(3);
/// What a busy machine may add to a take-over: what etcd needs to find itself, and what it takes to notice.
const SLACK: Duration = Duration::from_secs(60);

/// What is done to the cluster.
#[derive(Debug, Clone, Copy)]
enum Blow {
    KillLeader,
    FreezeLeader,
    RestartAll,
    LoseQuorum,
}

impl Blow {
    const ALL: [Self; 4] = [Self::KillLeader, Self::FreezeLeader, Self::RestartAll, Self::LoseQuorum];
}

struct Drama {
    contest: Arc<Contest>,
    cluster: Cluster,
    controllers: [Process; 2],
    operators: Operators,
}

impl Drama {
    async fn begin(workers: &[String]) -> Self {
        let cluster = Cluster::start().await;
        let contest = Arc::new(Contest::on(Some(cluster.endpoints())).await);
        let controllers = ["first", "second"].map(|name| {
            contest.controller_with(name, |election| {
                election.ttl = TTL;
                election.margin = MARGIN;
            })
        });
        contest.launch(workers).await;
        let operators = Operators::begin(Arc::clone(&contest), workers, &cluster.endpoints()).await;
        Self { contest, cluster, controllers, operators }
    }

    fn somebody_leads(&self) -> bool {
        self.controllers.iter().any(Process::leads)
    }

    /// Strikes and repairs; says from when on the cluster could be asked again.
    async fn strike(&mut self, blow: Blow) -> Instant {
        let began = Instant::now();
        let leader = self.cluster.leader().await;
        match blow {
            Blow::KillLeader => {
                self.cluster.kill(&[leader]);
                // The two that are left go on without it, and so does everybody else.
                self.cluster.leader().await;
                self.operators.see_something_done().await;
                self.cluster.restart(&[leader]).await;
                began
            }
            Blow::FreezeLeader => {
                self.cluster.pause(leader);
                sleep(FROZEN).await;
                self.cluster.resume(leader).await;
                began
            }
            Blow::RestartAll => {
                self.cluster.kill(&[0, 1, 2]);
                self.cluster.restart(&[0, 1, 2]).await;
                Instant::now()
            }
            Blow::LoseQuorum => {
                let lost = [leader, (leader + 1) % 3];
                self.cluster.kill(&lost);
                self.nothing_is_done_without_a_leader().await;
                self.cluster.restart(&lost).await;
                Instant::now()
            }
        }
    }

    /// Nobody can renew a lease: soon nobody leads, and from then on nobody touches anything, whatever is wished for.
    async fn nothing_is_done_without_a_leader(&self) {
        eventually("nobody leads without a quorum", || async { !self.somebody_leads() }).await;
        // What was begun before may come to its end.
        let silent = Instant::now() + MARGIN;
        sleep(MARGIN + SILENCE).await;
        assert!(!self.somebody_leads(), "somebody leads without a quorum");
        let late = self.contest.deeds().into_iter().find(|deed| deed.began > silent);
        assert!(late.is_none(), "done without a leader: {late:?}");
        assert!(self.operators.open() > 0, "something is wished for meanwhile, or this shows nothing");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_to_etcd_nothing_is_lost_nothing_is_doubled_and_one_leads() {
    let rounds = proof::how_many("LCM_ETCD_ROUNDS", 1);
    let workers: Vec<_> = (1..=WORKERS).map(|number| format!("w-{number}")).collect();
    let mut drama = Drama::begin(&workers).await;
    let witness = Witness::of(drama.controllers.iter().map(|process| process.controller().clone()));
    let began = Instant::now();
    let (mut survived, mut slowest) = (0, Duration::ZERO);
    for blow in (0..rounds).flat_map(|_| Blow::ALL) {
        drama.operators.see_something_done().await;
        let repaired = drama.strike(blow).await;
        eventually("somebody leads again", || async { drama.somebody_leads() }).await;
        drama.operators.let_all_come_true().await;
        let took = witness.longest_take_over_since(repaired);
        println!("{blow:?}: without a leader for {took:.1?}, counted from when etcd could be asked");
        assert!(took < TTL + SLACK, "{blow:?}: nobody led for {took:?}");
        slowest = slowest.max(took);
        survived += 1;
    }
    let longest = witness.longest_take_over_since(began);
    let wished = drama.operators.end().await;
    let terms = witness.end();
    terms.assert_one_at_a_time();
    drama.contest.assert_one_at_a_time(&workers).await;
    let done = drama.contest.deeds().len() - workers.len();
    // Counted by EC2 itself: a leader that loses its lead in the middle of a call does not hear how it went.
    let served =
        ["StartInstances", "StopInstances"].map(|call| drama.contest.harness.ec2_calls(call)).iter().sum::<usize>();
    assert!(served >= wished, "each wish is at least one call of EC2: {wished} wishes, {served} calls");
    // It may have the next one make the call again, which changes nothing.
    let repeated = done.saturating_sub(wished);
    assert!(repeated < terms.count(), "{wished} wishes took {done} calls in {} terms", terms.count());
    for process in drama.controllers {
        process.stop().await;
    }
    proof::report(
        "20-live-etcd.md",
        &[
            (
                "faults of three real etcds survived: leader killed, leader frozen, all restarted, quorum lost",
                survived.to_string(),
            ),
            ("changes operators wanted meanwhile, and calls of EC2 made for them", format!("{wished}, {done}")),
            ("terms of leaders meanwhile, no two at a time", terms.count().to_string()),
            ("longest without a leader, the time without a quorum included", format!("{:.1} s", longest.as_secs_f64())),
            (
                "slowest take-over, with a lease of 4 s, counted from when etcd answered again",
                format!("{:.1} s", slowest.as_secs_f64()),
            ),
        ],
    );
}
