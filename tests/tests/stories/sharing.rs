//! Several controllers that share a fleet in shards: each worker has one of them, whoever comes and goes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fake_cloud::{LoggedRequest, RequestFilter, Service};
use lcm_sdk::WorkerStatus;
use lcm_sdk::controller::shards::Shards;
use lcm_sdk::workers::Readiness;
use lcm_tests::etcd::RealEtcd;
use serde_json::json;
use tokio::time::Instant;

use crate::leaders::Process;
use lcm_tests::harness::{Harness, REGION, eventually};

const SHARDS: usize = 12;
/// Long, so that no busy machine loses a lease that it should keep.
const TTL: Duration = Duration::from_secs(10);
/// What a busy machine may add to anything that is measured.
const SLACK: Duration = Duration::from_secs(30);

fn shards() -> Shards {
    Shards::new(SHARDS).expect("a good number")
}

fn controller(harness: &Harness, endpoint: &str, name: &str) -> Process {
    Process::start(|| {
        harness.start_controller_on(endpoint, name, |config, _| {
            config.shards = shards();
            config.election.ttl = TTL;
        })
    })
}

/// The shards of a controller, each with its token.
fn held(process: &Process) -> BTreeMap<u16, i64> {
    let held = process.controller().shards().expect("the fleet is divided");
    held.into_iter().map(|held| (held.shard, held.fencing_token.expect("elected"))).collect()
}

/// Waits until the controllers have so many shards each, and gives the token of every shard.
async fn settled(controllers: &[&Process], shares: &[usize]) -> BTreeMap<u16, i64> {
    eventually(&format!("the shards are shared as {shares:?}"), || async {
        let sizes: Vec<_> = controllers.iter().map(|process| held(process).len()).collect();
        sizes == shares
    })
    .await;
    let tokens: BTreeMap<_, _> = controllers.iter().flat_map(|process| held(process)).collect();
    assert_eq!(tokens.len(), SHARDS, "every shard has one leader");
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

/// Every write to a worker, in order: to whom, and with which token.
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

/// Each worker was launched once, and is on record with the instance that lives.
async fn assert_launched_once(harness: &Harness, workers: &[String]) {
    assert_eq!(harness.ec2_calls("RunInstances"), workers.len(), "each was launched once");
    let living: BTreeSet<String> = harness.active_instances().into_iter().collect();
    assert_eq!(living.len(), workers.len());
    for id in workers {
        let instance = harness.worker(id).await.ec2_instance_id.expect("on record");
        assert!(living.contains(instance.as_str()), "{id} has {instance}");
    }
}

async fn three_share_one_dies_and_a_fourth_comes(endpoint: Option<String>) {
    let harness = Harness::with_real_clock().await;
    let endpoint = endpoint.unwrap_or_else(|| harness.cloud.endpoints().etcd_endpoint.clone());
    let [first, second, third] = ["c-1", "c-2", "c-3"].map(|name| controller(&harness, &endpoint, name));
    let before = settled(&[&first, &second, &third], &[4, 4, 4]).await;

    let mut workers = launch(&harness, (0..60).map(|number| format!("w-{number:02}"))).await;
    assert_launched_once(&harness, &workers).await;
    for process in [&first, &second, &third] {
        let ready = || matches!(&*process.controller().readiness().borrow(), Readiness::Ready(_));
        eventually("each has swept its own", || async { ready() }).await;
        let mine = held(process);
        let own = workers.iter().filter(|id| mine.contains_key(&shard_of(id))).count();
        let launched = || process.actor.as_ref().expect("it runs").telemetry.counters()["provisioned_count"];
        // A launch is counted after it was recorded, which may be a moment after the record was seen.
        eventually("each launched its own and no others", || async { launched() == own as u64 }).await;
    }
    for (worker, token) in writes(&harness, &workers) {
        assert_eq!(token, before[&shard_of(&worker)], "somebody else wrote to {worker}");
    }

    // One dies without a word: nothing is given back.
    let lost: BTreeSet<u16> = held(&second).into_keys().collect();
    let crashed = Instant::now();
    second.crash();
    let after = settled(&[&first, &third], &[6, 6]).await;
    let took = crashed.elapsed();
    assert!(took < TTL + SLACK, "took over after {took:?}");
    for shard in &lost {
        assert!(after[shard] > before[shard], "the token of {shard} grows: {before:?}, {after:?}");
    }
    workers.extend(launch(&harness, (60..84).map(|number| format!("w-{number:02}"))).await);
    // One of those that the dead one had before is still looked after.
    let inherited = workers.iter().find(|id| lost.contains(&shard_of(id))).expect("one of sixty").clone();
    let id = harness.worker(&inherited).await.ec2_instance_id.expect("it runs");
    harness.cloud.stop_instance(REGION, id.as_str()).expect("it stops");
    eventually("a worker that was stopped from outside runs again", || async {
        harness.ec2_calls("StartInstances") >= 1 && harness.status(&inherited).await == WorkerStatus::Running
    })
    .await;

    let fourth = controller(&harness, &endpoint, "c-4");
    let last = settled(&[&first, &third, &fourth], &[4, 4, 4]).await;
    for (shard, token) in held(&fourth) {
        assert!(token > after[&shard], "the token of {shard} grows: {after:?}, {last:?}");
    }
    workers.extend(launch(&harness, (84..96).map(|number| format!("w-{number:02}"))).await);
    assert_launched_once(&harness, &workers).await;

    // No record was written by somebody who had been followed already.
    let mut newest: BTreeMap<String, i64> = BTreeMap::new();
    for (worker, token) in writes(&harness, &workers) {
        let newest = newest.entry(worker.clone()).or_insert(token);
        assert!(token >= *newest, "{worker} was written with {token} after {newest}");
        *newest = token;
    }
    assert_eq!(newest.len(), workers.len(), "each was written to");
    for process in [first, third, fourth] {
        process.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_real_etcd_three_share_a_fleet_one_dies_and_a_fourth_comes() {
    let etcd = RealEtcd::start().await;
    three_share_one_dies_and_a_fourth_comes(Some(etcd.endpoint())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_fake_etcd_three_share_a_fleet_one_dies_and_a_fourth_comes() {
    three_share_one_dies_and_a_fourth_comes(None).await;
}

/// A scan shows every member all instances: those of the others are neither strangers nor missing, and what is gone is
/// marked by the one it belongs to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_takes_what_belongs_to_another_shard_for_an_orphan() {
    let harness = Harness::with_real_clock().await;
    let endpoint = harness.cloud.endpoints().etcd_endpoint.clone();
    let [first, second] = ["c-1", "c-2"].map(|name| controller(&harness, &endpoint, name));
    settled(&[&first, &second], &[6, 6]).await;
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
    // Long enough for a few scans by each.
    let scans = harness.ec2_calls("DescribeInstances");
    eventually("both have scanned", || async { harness.ec2_calls("DescribeInstances") > scans + 8 }).await;
    for id in &workers {
        assert_eq!(harness.status(id).await, WorkerStatus::Running, "{id} is nobody's orphan");
    }
    let known: BTreeSet<String> = workers.iter().cloned().chain((0..4).map(|gone| format!("gone-{gone}"))).collect();
    let listed = harness.ports.control_plane.workers(&lcm_sdk::ports::Scope::everything()).await.expect("it answers");
    let strangers: Vec<_> = listed.workers.iter().filter(|worker| !known.contains(worker.id.as_str())).collect();
    assert!(strangers.is_empty(), "imported: {strangers:?}");
    first.stop().await;
    second.stop().await;
}
