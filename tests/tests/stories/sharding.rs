//! Sharding: several controllers divide a fleet, and each worker has one owner across crashes and joins.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fake_cloud::control_plane::Generation::{self, Extended, Original};
use fake_cloud::{LoggedRequest, RequestFilter, Service};
use lcm_sdk::WorkerStatus;
use lcm_sdk::controller::{Readiness, Shards};
use lcm_tests::etcd::RealEtcd;
use rstest::rstest;
use serde_json::json;
use tokio::time::Instant;

use crate::leaders::Process;
use lcm_tests::harness::{Harness, REGION, eventually};

const SHARDS: usize = 12;
/// Long enough that a busy machine does not lose its leases.
const TTL: Duration = Duration::from_secs(10);
/// Extra time allowed on a busy machine.
const SLACK: Duration = Duration::from_secs(30);

fn shards() -> Shards {
    Shards::new(SHARDS).expect("shard count is valid")
}

fn controller(harness: &Harness, endpoint: &str, name: &str) -> Process {
    Process::start(|| {
        harness.start_controller_on(endpoint, name, |config, _| {
            config.shards = shards();
            config.election.ttl = TTL;
        })
    })
}

/// Shards of a controller with their fencing tokens.
fn owned_shards(process: &Process) -> BTreeMap<u16, i64> {
    let owned = process.controller().shards().expect("sharding is enabled");
    owned.into_iter().map(|owned| (owned.shard, owned.fencing_token.expect("controller is elected"))).collect()
}

/// Waits until the controllers own these numbers of shards, and returns the token of every shard.
async fn wait_for_shares(controllers: &[&Process], shares: &[usize]) -> BTreeMap<u16, i64> {
    eventually(&format!("the shards are divided as {shares:?}"), || async {
        let sizes: Vec<_> = controllers.iter().map(|process| owned_shards(process).len()).collect();
        sizes == shares
    })
    .await;
    let tokens: BTreeMap<_, _> = controllers.iter().flat_map(|process| owned_shards(process)).collect();
    assert_eq!(tokens.len(), SHARDS, "every shard has one owner");
    tokens
}

fn shard_of(worker: &str) -> u16 {
    shards().shard_of(worker).0
}

async fn launch(harness: &Harness, ids: impl IntoIterator<Item = String>) -> Vec<String> {
    let ids: Vec<String> = ids.into_iter().collect();
    ids.iter().for_each(|id| harness.add_worker(id, json!({"desired_status": "running"})));
    for id in &ids {
        eventually(&format!("{id} runs"), || async { harness.status(id).await == WorkerStatus::Running }).await;
    }
    ids
}

/// Writes to workers in order: worker id and fencing token.
fn writes(harness: &Harness, known: &[String]) -> Vec<(String, i64)> {
    let filter = RequestFilter { service: Some(Service::ControlPlane), ..RequestFilter::default() };
    let parameter = |record: &LoggedRequest, wanted: &str| {
        record.parameters.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone())
    };
    let mut records = harness.cloud.requests(&filter);
    records.sort_by_key(|record| record.number);
    let write = |record: &LoggedRequest| {
        let (token, path) = (parameter(record, "fencing_token")?.parse().ok()?, parameter(record, "path")?);
        let worker = path.split('/').find(|segment| known.iter().any(|id| id == segment))?;
        Some((worker.to_owned(), token))
    };
    records.iter().filter_map(write).collect()
}

/// Asserts that each worker was launched once and its record names an active instance.
async fn assert_launched_once(harness: &Harness, workers: &[String]) {
    assert_eq!(harness.ec2_calls("RunInstances"), workers.len(), "each worker was launched once");
    let active: BTreeSet<String> = harness.active_instances().into_iter().collect();
    assert_eq!(active.len(), workers.len());
    for id in workers {
        let instance = harness.worker(id).await.ec2_instance_id.expect("instance is recorded");
        assert!(active.contains(instance.as_str()), "{id} has {instance}");
    }
}

async fn assert_shards_rebalance(generation: Generation, endpoint: Option<String>) {
    let harness = Harness::with_real_clock(generation).await;
    let endpoint = endpoint.unwrap_or_else(|| harness.cloud.endpoints().etcd_endpoint.clone());
    let [first, second, third] = ["c-1", "c-2", "c-3"].map(|name| controller(&harness, &endpoint, name));
    let before = wait_for_shares(&[&first, &second, &third], &[4, 4, 4]).await;

    let mut workers = launch(&harness, (0..60).map(|number| format!("w-{number:02}"))).await;
    assert_launched_once(&harness, &workers).await;
    for process in [&first, &second, &third] {
        let ready = || matches!(&*process.controller().readiness().borrow(), Readiness::Ready(_));
        eventually("each controller has swept its shards", || async { ready() }).await;
        let shards = owned_shards(process);
        let expected = workers.iter().filter(|id| shards.contains_key(&shard_of(id))).count();
        let launched =
            || process.actor.as_ref().expect("controller is running").telemetry.counters()["provisioned_count"];
        // A launch is counted after the write, so the counter may lag behind the record.
        eventually("each controller launched only its own workers", || async { launched() == expected as u64 }).await;
    }
    for (worker, token) in writes(&harness, &workers) {
        assert_eq!(token, before[&shard_of(&worker)], "another controller wrote to {worker}");
    }

    // One controller crashes without releasing its shards.
    let lost: BTreeSet<u16> = owned_shards(&second).into_keys().collect();
    let crashed = Instant::now();
    second.crash();
    let after = wait_for_shares(&[&first, &third], &[6, 6]).await;
    let took = crashed.elapsed();
    assert!(took < TTL + SLACK, "took over after {took:?}");
    for shard in &lost {
        assert!(after[shard] > before[shard], "the token of {shard} grows: {before:?}, {after:?}");
    }
    workers.extend(launch(&harness, (60..84).map(|number| format!("w-{number:02}"))).await);
    // Workers of the crashed controller are still reconciled.
    let inherited = workers.iter().find(|id| lost.contains(&shard_of(id))).expect("one of sixty workers").clone();
    let id = harness.worker(&inherited).await.ec2_instance_id.expect("worker has an instance");
    harness.cloud.stop_instance(REGION, id.as_str()).expect("instance stops");
    eventually("an externally stopped worker runs again", || async {
        harness.ec2_calls("StartInstances") >= 1 && harness.status(&inherited).await == WorkerStatus::Running
    })
    .await;

    let fourth = controller(&harness, &endpoint, "c-4");
    let last = wait_for_shares(&[&first, &third, &fourth], &[4, 4, 4]).await;
    for (shard, token) in owned_shards(&fourth) {
        assert!(token > after[&shard], "the token of {shard} grows: {after:?}, {last:?}");
    }
    workers.extend(launch(&harness, (84..96).map(|number| format!("w-{number:02}"))).await);
    assert_launched_once(&harness, &workers).await;

    // No write carries a token older than an earlier write to the same record.
    let mut newest: BTreeMap<String, i64> = BTreeMap::new();
    for (worker, token) in writes(&harness, &workers) {
        let newest = newest.entry(worker.clone()).or_insert(token);
        assert!(token >= *newest, "{worker} was written with {token} after {newest}");
        *newest = token;
    }
    assert_eq!(newest.len(), workers.len(), "each worker was written to");
    for process in [first, third, fourth] {
        process.stop().await;
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_rebalance_on_real_etcd(#[values(Original, Extended)] generation: Generation) {
    let etcd = RealEtcd::start().await;
    assert_shards_rebalance(generation, Some(etcd.endpoint())).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_rebalance_on_fake_etcd(#[values(Original, Extended)] generation: Generation) {
    assert_shards_rebalance(generation, None).await;
}

/// A scan returns the instances of all shards. Those of other members are neither imported nor orphans, and a missing
/// instance is handled by the owner of its shard.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_of_other_shards_are_not_orphans(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    let endpoint = harness.cloud.endpoints().etcd_endpoint.clone();
    let [first, second] = ["c-1", "c-2"].map(|name| controller(&harness, &endpoint, name));
    wait_for_shares(&[&first, &second], &[6, 6]).await;
    let workers = launch(&harness, (0..12).map(|number| format!("w-{number:02}"))).await;
    for gone in 0..4 {
        harness.add_worker(
            &format!("gone-{gone}"),
            json!({"status": "running", "desired_status": "running", "ec2_instance_id": format!("i-0000000000000000{gone}"), "created_at": "2026-01-01T00:00:00Z", "launched_at": "2026-01-01T00:00:00Z"}),
        );
    }
    for gone in 0..4 {
        let id = format!("gone-{gone}");
        eventually(&format!("{id} is terminated"), || async { harness.status(&id).await == WorkerStatus::Terminated })
            .await;
    }
    // Long enough for several scans by each controller.
    let scans = harness.ec2_calls("DescribeInstances");
    eventually("both controllers have scanned", || async { harness.ec2_calls("DescribeInstances") > scans + 8 }).await;
    for id in &workers {
        assert_eq!(harness.status(id).await, WorkerStatus::Running, "{id} is not an orphan");
    }
    let known: BTreeSet<String> = workers.iter().cloned().chain((0..4).map(|gone| format!("gone-{gone}"))).collect();
    let listed = harness
        .ports
        .control_plane
        .workers(&lcm_sdk::ports::Scope::everything())
        .await
        .expect("control plane responds");
    let imported: Vec<_> = listed.workers.iter().filter(|worker| !known.contains(worker.id.as_str())).collect();
    assert!(imported.is_empty(), "imported: {imported:?}");
    first.stop().await;
    second.stop().await;
}
