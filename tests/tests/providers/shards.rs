//! Sharded election over sockets, with the fake cloud's etcd and a real one, and with the in-memory implementation that
//! the faster tests use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fake_cloud::FakeCloud;
use lcm_sdk::controller::{ElectionConfig, LeaderElection, ShardedElection, ShardedHandle, Shards, Shutdown};
use lcm_sdk::ports::Coordination;
use lcm_sdk::providers::etcd::{Etcd, EtcdOptions};
use lcm_sdk::providers::memory::MemoryCoordination;
use lcm_sdk::telemetry::Telemetry;
use lcm_tests::etcd::RealEtcd;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

const TTL: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(60);
const COUNT: usize = 7;

struct Member {
    handle: ShardedHandle,
    task: JoinHandle<()>,
}

fn config(identity: &str) -> ElectionConfig {
    ElectionConfig::default()
        .with_identity(identity)
        .with_ttl(TTL)
        .with_margin(Duration::from_millis(500))
        .with_retry_interval(Duration::from_secs(1))
}

fn member(etcd: Arc<dyn Coordination>, identity: &str) -> Member {
    let shards = Shards::new(COUNT).expect("a valid number");
    let election = ShardedElection::new(etcd, config(identity), shards, Duration::from_secs(5), Telemetry::default());
    let (election, handle) = election.expect("a valid election config");
    Member { handle, task: tokio::spawn(election.run(Shutdown::new())) }
}

/// Waits until each member leads its share of the shards, and returns the fencing token of each shard.
async fn wait_for_shares(members: &[&Member], shares: &[usize]) -> BTreeMap<u16, i64> {
    let began = Instant::now();
    loop {
        let held: Vec<_> = members.iter().map(|member| member.handle.held()).collect();
        let tokens: BTreeMap<u16, i64> =
            held.iter().flatten().map(|held| (held.shard, held.fencing_token.expect("elected"))).collect();
        assert_eq!(tokens.len(), held.iter().map(Vec::len).sum::<usize>(), "a shard with two leaders: {held:?}");
        if held.iter().map(Vec::len).collect::<Vec<_>>() == shares {
            return tokens;
        }
        assert!(began.elapsed() < LIMIT, "expected shares {shares:?}, got {held:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Members join, crash and resign. Every shard has one leader, and its token increases with each new leader.
async fn assert_members_share(etcd: impl Fn() -> Arc<dyn Coordination>) {
    let first = member(etcd(), "first");
    wait_for_shares(&[&first], &[7]).await;
    let second = member(etcd(), "second");
    wait_for_shares(&[&first, &second], &[4, 3]).await;
    let third = member(etcd(), "third");
    let before = wait_for_shares(&[&first, &second, &third], &[3, 2, 2]).await;

    let (election, whole) =
        LeaderElection::new(etcd(), config("whole"), Telemetry::default()).expect("a valid election config");
    let electing = tokio::spawn(election.run(Shutdown::new()));
    sleep(Duration::from_secs(2)).await;
    assert!(whole.lease().is_none(), "an unsharded leader was elected beside the shards");
    electing.abort();

    second.task.abort();
    let lost: Vec<u16> = second.handle.held().iter().map(|held| held.shard).collect();
    let after = wait_for_shares(&[&first, &third], &[4, 3]).await;
    assert!(lost.iter().all(|shard| after[shard] > before[shard]), "{lost:?}: {before:?}, {after:?}");
    first.handle.resign().await;
    let last = wait_for_shares(&[&third], &[7]).await;
    assert!(last.iter().all(|(shard, token)| *token >= after[shard]), "{after:?}, {last:?}");
    third.handle.resign().await;
    third.task.await.expect("no panic");
}

fn client(endpoint: &str) -> Arc<dyn Coordination> {
    Arc::new(Etcd::new(EtcdOptions::new([endpoint])).expect("valid options"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_shards_on_a_real_etcd() {
    let etcd = RealEtcd::start().await;
    assert_members_share(|| client(&etcd.endpoint())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_shards_on_the_fake_cloud() {
    let cloud = FakeCloud::start().await.expect("started");
    assert_members_share(|| client(&cloud.endpoints().etcd_endpoint)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_shards_in_memory() {
    let etcd = MemoryCoordination::new();
    assert_members_share(|| Arc::new(etcd.new_client())).await;
}
