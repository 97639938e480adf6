//! Members that share a fleet: fleet-wide work is done once, by the owner.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::controller::{
    ControllerConfig, ElectionConfig, LeaderLease, ListRequest, Resource, ResourceList, Runner, ShardOwnership,
    ShardedElection, ShardedHandle, Shards, Shutdown, WorkResult,
};
use lcm_sdk::lifecycle::ScaleDownPolicy;
use lcm_sdk::lifecycle::discovery::ForeignInstances;
use lcm_sdk::ports::DiscoveryFilter;
use lcm_sdk::providers::memory::MemoryCoordination;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{Discovery, DiscoveryConfig, MetricsLoop, WorkerController, WorkerControllerConfig};
use lcm_sdk::{CallFailure, DesiredStatus, Ec2State, Instance, WorkerStatus};
use parking_lot::Mutex;

use super::harness::{Harness, REGION, pass_time};

/// Members that lead shards of one fleet.
async fn members(count: usize, shards: usize) -> Vec<ShardedHandle> {
    let etcd = MemoryCoordination::new();
    let shards = Shards::new(shards).expect("a valid number of shards");
    let mut members = Vec::new();
    for number in 0..count {
        let config = ElectionConfig::default().with_identity(format!("m-{number}"));
        let client = Arc::new(etcd.new_client());
        let (election, handle) =
            ShardedElection::new(client, config, shards, Duration::from_secs(30), Telemetry::default())
                .expect("a valid configuration");
        tokio::spawn(election.run(Shutdown::new()));
        members.push(handle);
    }
    pass_time(5).await;
    assert!(members.iter().all(|member| !member.held().is_empty()), "each leads a shard");
    members
}

fn one_region() -> DiscoveryConfig {
    let filter = DiscoveryFilter::default().with_tag_key("lcm:worker_id");
    DiscoveryConfig::default().with_regions([REGION]).with_filter(filter).with_foreign(ForeignInstances::Import)
}

fn discovery(harness: &Harness, ownership: &ShardOwnership) -> Discovery {
    Discovery::new(harness.reconciler(), one_region(), |_| {}).with_ownership(ownership.clone())
}

/// ADR-014's case, shared: 13 records, 3 instances.
#[tokio::test(start_paused = true)]
async fn members_mark_only_orphans_they_own() {
    let harness = Harness::new();
    (1..=13).for_each(|number| drop(harness.worker(number, WorkerStatus::Running, Ec2State::Running)));
    (4..=13).for_each(|number| harness.compute.remove(REGION, &format!("i-{number}").as_str().into()));
    let unmanaged = Instance::new("i-99", Ec2State::Running);
    let tags = BTreeMap::from([("lcm:worker_id".to_owned(), "another-worker".to_owned())]);
    harness.compute.put(REGION, Instance { tags, ..unmanaged });
    let ownerships: Vec<_> = members(3, 8).await.iter().map(ShardedHandle::ownership).collect();
    let mut terminated = Vec::new();
    let mut imported = 0;
    for ownership in &ownerships {
        let report = discovery(&harness, ownership).run_once().await;
        let region = &report.regions[0];
        assert_eq!(region.error, None);
        assert!(region.terminated.iter().all(|worker| ownership.owns(worker.as_str())), "{region:?}");
        terminated.extend(region.terminated.iter().map(ToString::to_string));
        imported += region.imported;
    }
    terminated.sort_unstable();
    let mut orphans: Vec<_> = (4..=13).map(|number| format!("w-{number}")).collect();
    orphans.sort_unstable();
    assert_eq!(terminated, orphans, "each is terminated once, by its owner");
    assert_eq!(imported, 1, "an instance without a record belongs to the region");
    (1..=3).for_each(|number| assert_eq!(harness.record(number).status, WorkerStatus::Running));
}

#[tokio::test(start_paused = true)]
async fn region_is_frozen_by_the_records_of_all_shards() {
    let harness = Harness::new();
    // Three records over eight shards: hardly any member owns a record, and one owns the region.
    (1..=3).for_each(|number| drop(harness.worker(number, WorkerStatus::Running, Ec2State::Running)));
    (1..=3).for_each(|number| harness.compute.remove(REGION, &format!("i-{number}").as_str().into()));
    let ownerships: Vec<_> = members(3, 8).await.iter().map(ShardedHandle::ownership).collect();
    for ownership in &ownerships {
        let report = discovery(&harness, ownership).run_once().await;
        assert_eq!(report.orphans_terminated(), 0, "{report:?}");
    }
    (1..=3).for_each(|number| assert_eq!(harness.record(number).status, WorkerStatus::Running));
    // Events leave in a task of their own.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let frozen = harness.events.kinds().iter().filter(|kind| kind.contains("not_trusted")).count();
    assert_eq!(frozen, 1, "announced once");
}

#[tokio::test(start_paused = true)]
async fn metrics_of_a_worker_are_collected_by_one_member() {
    let harness = Harness::new();
    (1..=12).for_each(|number| drop(harness.worker(number, WorkerStatus::Running, Ec2State::Running)));
    let mut collected = 0;
    for member in &members(3, 8).await {
        let metrics =
            MetricsLoop::new(harness.reconciler(), Duration::from_secs(60)).with_ownership(member.ownership());
        collected += metrics.run_once().await.expect("listed workers").workers;
    }
    assert_eq!(collected, 12);
}

/// All members count a fleet with spare workers at the same time.
#[tokio::test(start_paused = true)]
async fn members_together_keep_the_minimum_of_workers() {
    let mut harness = Harness::new();
    harness.policy.scale_down = ScaleDownPolicy::new(3).with_cooldown(Duration::ZERO);
    harness.policy.idle_detection_interval = Duration::from_secs(10);
    for number in 1..=8 {
        let mut worker = harness.worker(number, WorkerStatus::Running, Ec2State::Running);
        worker.desired_status = Some(DesiredStatus::Running);
        harness.control_plane.put_worker(worker);
    }
    let etcd = MemoryCoordination::new();
    let shutdown = Shutdown::new();
    let mut controllers = Vec::new();
    for number in 0..4 {
        let config = WorkerControllerConfig::default()
            .with_shards(Shards::new(8).expect("a valid number of shards"))
            .with_election(ElectionConfig::default().with_identity(format!("m-{number}")))
            .without_discovery();
        let client = Arc::new(etcd.new_client());
        let controller =
            WorkerController::new(harness.ports(), harness.policy.clone(), Some(client), config, Telemetry::default())
                .expect("a valid configuration");
        let (running, shutdown) = (controller.clone(), shutdown.clone());
        tokio::spawn(async move { running.run(&shutdown).await });
        controllers.push(controller);
    }
    // Idle since yesterday, and reconciled many times.
    for _ in 0..60 {
        harness.clock.advance(Duration::from_secs(30));
        pass_time(30).await;
    }
    let running = (1..=8).filter(|number| harness.record(*number).status == WorkerStatus::Running).count();
    assert_eq!(running, 3, "five were stopped");
    shutdown.request();
}

struct Names(Arc<Mutex<Vec<String>>>);

impl Resource for Names {
    type Object = String;

    fn key<'a>(&self, name: &'a String) -> &'a str {
        name
    }

    async fn list(&self, _: &ListRequest) -> Result<ResourceList<String>, CallFailure> {
        Ok(ResourceList::from((0..40).map(|number| format!("r-{number}")).collect::<Vec<_>>()))
    }

    async fn fetch(&self, key: &str) -> Result<Option<String>, CallFailure> {
        Ok(Some(key.to_owned()))
    }

    async fn reconcile(&self, name: String, _: LeaderLease) -> WorkResult {
        self.0.lock().push(name);
        WorkResult::success()
    }
}

#[tokio::test(start_paused = true)]
async fn runner_reconciles_owned_resources_only() {
    let members = members(3, 8).await;
    let mut seen = Vec::new();
    for member in &members {
        let names = Arc::<Mutex<Vec<String>>>::default();
        let resource = Arc::new(Names(Arc::clone(&names)));
        let controller =
            Runner::with_ownership(resource, member.ownership(), ControllerConfig::default(), Telemetry::default());
        let shutdown = Shutdown::new();
        let sweeping = async {
            let report = controller.sweep(Duration::from_secs(60)).await.expect("listed workers");
            assert!(report.is_complete());
            shutdown.request();
        };
        tokio::join!(controller.serve(&shutdown), sweeping);
        seen.append(&mut names.lock());
    }
    seen.sort_unstable();
    let mut all: Vec<_> = (0..40).map(|number| format!("r-{number}")).collect();
    all.sort_unstable();
    assert_eq!(seen, all, "each is reconciled once");
}
