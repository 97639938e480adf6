use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::controller::election::{ElectionConfig, LeaderElection};
use crate::controller::hash::Shards;
use crate::controller::shutdown::Shutdown;
use crate::providers::memory::MemoryCoordination;
use crate::telemetry::Telemetry;

const TTL: Duration = Duration::from_secs(15);

struct Member {
    etcd: MemoryCoordination,
    handle: ShardedHandle,
    telemetry: Telemetry,
    shutdown: Shutdown,
    task: JoinHandle<()>,
}

impl Member {
    fn held(&self) -> Vec<u16> {
        self.handle.held().iter().map(|held| held.shard).collect()
    }
}

fn member(server: &MemoryCoordination, identity: &str, shards: usize) -> Member {
    let etcd = server.new_client();
    let config = ElectionConfig { identity: identity.to_owned(), ..ElectionConfig::default() };
    let (telemetry, shutdown) = (Telemetry::default(), Shutdown::new());
    let shards = Shards::new(shards).expect("a good number");
    let (election, handle) =
        ShardedElection::new(Arc::new(etcd.clone()), config, shards, Duration::from_secs(30), telemetry.clone())
            .expect("an election that works");
    Member { etcd, handle, telemetry, task: tokio::spawn(election.run(shutdown.clone())), shutdown }
}

/// Waits until each member leads the given number of shards.
async fn settled(members: &[&Member], shares: &[usize]) {
    let settling = async {
        while members.iter().map(|member| member.held().len()).collect::<Vec<_>>() != shares {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let held = || members.iter().map(|member| member.held()).collect::<Vec<_>>();
    assert!(timeout(Duration::from_secs(60), settling).await.is_ok(), "{shares:?} never came true: {:?}", held());
    let mut all: Vec<u16> = held().concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), shares.iter().sum::<usize>(), "no shard is led twice");
}

fn tokens(members: &[&Member]) -> BTreeMap<u16, i64> {
    let held = members.iter().flat_map(|member| member.handle.held());
    held.map(|held| (held.shard, held.fencing_token.expect("elected"))).collect()
}

#[tokio::test(start_paused = true)]
async fn new_member_gets_its_share_at_once() {
    let server = MemoryCoordination::new();
    let first = member(&server, "first", 8);
    settled(&[&first], &[8]).await;
    let before = Instant::now();
    let second = member(&server, "second", 8);
    settled(&[&first, &second], &[4, 4]).await;
    let third = member(&server, "third", 8);
    settled(&[&first, &second, &third], &[3, 3, 2]).await;
    assert!(before.elapsed() < Duration::from_secs(2), "took {:?}", before.elapsed());
    let text = third.telemetry.to_prometheus();
    assert!(text.contains("lcm_shards_held 2") && text.contains("lcm_leader 1"), "{text}");

    let before = (first.held(), second.held(), third.held(), tokens(&[&first, &second, &third]));
    sleep(Duration::from_secs(3600)).await;
    let after = (first.held(), second.held(), third.held(), tokens(&[&first, &second, &third]));
    assert_eq!(before, after, "nothing moves while the members stay");
}

#[tokio::test(start_paused = true)]
async fn shards_of_a_crashed_member_are_taken_when_leases_expire() {
    let server = MemoryCoordination::new();
    let (first, second, third) = (member(&server, "a", 16), member(&server, "b", 16), member(&server, "c", 16));
    sleep(Duration::from_secs(5)).await;
    let before = tokens(&[&first, &second, &third]);
    assert_eq!(before.len(), 16);
    let (kept, lost) = (first.held(), second.held());
    let crash = Instant::now();
    second.task.abort();
    settled(&[&first, &third], &[8, 8]).await;
    assert!(crash.elapsed() <= TTL + Duration::from_secs(1), "took over after {:?}", crash.elapsed());
    assert!(kept.iter().all(|shard| first.held().contains(shard)), "a led shard keeps its leader");
    let after = tokens(&[&first, &third]);
    for (shard, token) in after {
        match lost.contains(&shard) {
            true => assert!(token > before[&shard], "the token of {shard} grows"),
            false => assert_eq!(token, before[&shard], "{shard} did not change hands"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn resignation_hands_shards_over_at_once() {
    let server = MemoryCoordination::new();
    let (first, second) = (member(&server, "a", 6), member(&server, "b", 6));
    settled(&[&first, &second], &[3, 3]).await;
    first.shutdown.request();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(first.held().len(), 3, "work in progress still needs the leases");
    let before = Instant::now();
    first.handle.resign().await;
    settled(&[&second], &[6]).await;
    assert!(before.elapsed() < Duration::from_secs(1), "took {:?}", before.elapsed());
    first.task.await.expect("it has ended");
    assert!(first.handle.elected().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn partitioned_member_stops_before_another_begins() {
    let server = MemoryCoordination::new();
    let (first, second) = (member(&server, "a", 4), member(&server, "b", 4));
    settled(&[&first, &second], &[2, 2]).await;
    first.etcd.disconnect();
    let limit = Instant::now() + TTL * 2;
    while second.held().len() < 4 {
        assert!(first.held().iter().all(|shard| !second.held().contains(shard)), "two lead a shard");
        assert!(Instant::now() < limit, "no member took the shards");
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(first.held(), [0_u16; 0]);
    first.etcd.reconnect();
    settled(&[&first, &second], &[2, 2]).await;
}

#[tokio::test(start_paused = true)]
async fn handover_waits_for_reconciles_in_progress() {
    let server = MemoryCoordination::new();
    let first = member(&server, "first", 2);
    settled(&[&first], &[2]).await;
    let ownership = first.handle.ownership();
    let names: Vec<String> = (0..20).map(|number| format!("w-{number}")).collect();
    // A reconcile of every worker in progress.
    let leases: Vec<_> = names.iter().map(|name| ownership.lease(name).expect("ours")).collect();
    let second = member(&server, "second", 2);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(second.held(), [0_u16; 0], "work in progress is not interrupted");
    assert!(leases.iter().all(|lease| lease.is_valid()));
    let ours = |name: &String| ownership.lease(name).is_some();
    assert!(names.iter().any(ours) && !names.iter().all(ours), "nothing new begins on a retiring shard");
    drop(leases);
    settled(&[&first, &second], &[1, 1]).await;
    let theirs = second.handle.ownership();
    assert!(names.iter().all(|name| ownership.owns(name) != theirs.owns(name)), "each has one owner");
}

#[tokio::test(start_paused = true)]
async fn members_with_different_counts_never_lead_together() {
    let server = MemoryCoordination::new();
    let four = member(&server, "four", 4);
    settled(&[&four], &[4]).await;
    let eight = member(&server, "eight", 8);
    let (election, single) =
        LeaderElection::new(Arc::new(server.new_client()), ElectionConfig::default(), Telemetry::default())
            .expect("an election that works");
    tokio::spawn(election.run(Shutdown::new()));
    sleep(Duration::from_secs(120)).await;
    assert_eq!((four.held().len(), eight.held().len()), (4, 0));
    assert!(single.lease().is_none(), "the whole fleet has no leader beside them");
    four.handle.resign().await;
    let next = async {
        while eight.held().is_empty() && single.lease().is_none() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(60), next).await.expect("another member leads");
    sleep(Duration::from_secs(60)).await;
    assert!(eight.held().is_empty() != single.lease().is_none(), "one of them, and not both");
}

#[tokio::test(start_paused = true)]
async fn leader_of_the_whole_fleet_excludes_shard_leaders() {
    let server = MemoryCoordination::new();
    let (election, single) =
        LeaderElection::new(Arc::new(server.new_client()), ElectionConfig::default(), Telemetry::default())
            .expect("an election that works");
    tokio::spawn(election.run(Shutdown::new()));
    assert!(single.elected().await.is_some());
    let (first, second) = (member(&server, "a", 4), member(&server, "b", 4));
    sleep(Duration::from_secs(60)).await;
    assert_eq!((first.held().len(), second.held().len()), (0, 0));
    let before = Instant::now();
    single.resign().await;
    settled(&[&first, &second], &[2, 2]).await;
    assert!(before.elapsed() < Duration::from_secs(1), "took {:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn fleet_lock_is_exclusive() {
    let server = MemoryCoordination::new();
    let (first, second) = (member(&server, "a", 2), member(&server, "b", 2));
    settled(&[&first, &second], &[1, 1]).await;
    let lease = |member: &Member| {
        let ownership = member.handle.ownership();
        (0..20).find_map(|number| ownership.lease(&format!("w-{number}"))).expect("an owned worker")
    };
    let (here, there) = (lease(&first), lease(&second));
    let guard = here.lock_fleet().await.expect("free").expect("a divided fleet");
    assert!(guard.lease().is_valid());
    let refused = there.lock_fleet().await.expect_err("not both");
    assert!(refused.to_string().contains("another controller"), "{refused}");
    drop(guard);
    sleep(Duration::from_millis(10)).await;
    let guard = there.lock_fleet().await.expect("released").expect("a divided fleet");
    sleep(TTL).await;
    assert!(!guard.lease().is_valid(), "the lock expires");
}

#[tokio::test(start_paused = true)]
async fn shard_never_has_two_leaders_during_churn() {
    let server = MemoryCoordination::new();
    let mut members: Vec<Member> = (0..3).map(|number| member(&server, &format!("m-{number}"), 7)).collect();
    for round in 0..60_usize {
        match round % 6 {
            0 => members.push(member(&server, &format!("late-{round}"), 7)),
            1 => members[round % 3].etcd.disconnect(),
            2 => server.make_unavailable(),
            3 => server.make_available(),
            4 => members.iter().for_each(|member| member.etcd.reconnect()),
            _ => members.remove(0).task.abort(),
        }
        for _step in 0..300 {
            sleep(Duration::from_millis(50)).await;
            let mut held: Vec<u16> = members.iter().flat_map(Member::held).collect();
            let count = held.len();
            held.sort_unstable();
            held.dedup();
            assert_eq!(held.len(), count, "two lead a shard in round {round}");
        }
    }
    server.make_available();
    members.iter().for_each(|member| member.etcd.reconnect());
    let members: Vec<&Member> = members.iter().collect();
    assert_eq!(members.len(), 3);
    sleep(TTL * 3).await;
    let mut shares: Vec<usize> = members.iter().map(|member| member.held().len()).collect();
    shares.sort_unstable();
    assert_eq!(shares, [2, 2, 3]);
}
