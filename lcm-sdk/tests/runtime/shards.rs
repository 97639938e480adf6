//! Members that share a fleet: what concerns the whole of it is done once, and by whom it belongs to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::controller::election::ElectionConfig;
use lcm_sdk::controller::queue::WorkResult;
use lcm_sdk::controller::shards::{ShardOwnership, ShardedElection, ShardedHandle, ShardedResource, Shards};
use lcm_sdk::controller::shutdown::Shutdown;
use lcm_sdk::controller::{Controller, ControllerConfig, Fetched, ListScope, Listing, Reconcile};
use lcm_sdk::lifecycle::ScaleDownPolicy;
use lcm_sdk::ports::DiscoveryFilter;
use lcm_sdk::providers::memory::MemoryCoordination;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{Discovery, DiscoveryConfig, MetricsLoop, WorkerController, WorkerControllerConfig};
use lcm_sdk::{CallFailure, DesiredStatus, Ec2State, Instance, WorkerStatus};
use parking_lot::Mutex;

use super::bench::{Bench, HERE, pass_time};

/// Members that each lead a part.
async fn members(count: usize, shards: usize) -> Vec<ShardedHandle> {
    let etcd = MemoryCoordination::new();
    let shards = Shards::new(shards).expect("a good number");
    let mut members = Vec::new();
    for number in 0..count {
        let config = ElectionConfig { identity: format!("m-{number}"), ..ElectionConfig::default() };
        let client = Arc::new(etcd.another_client());
        let (election, handle) =
            ShardedElection::over(client, config, shards, Duration::from_secs(30), Telemetry::default())
                .expect("an election that works");
        tokio::spawn(election.run(Shutdown::new()));
        members.push(handle);
    }
    pass_time(5).await;
    assert!(members.iter().all(|member| !member.held().is_empty()), "each leads something");
    members
}

fn here() -> DiscoveryConfig {
    DiscoveryConfig {
        regions: vec![HERE.to_owned()],
        filter: DiscoveryFilter { tags: vec![("lcm:worker_id".to_owned(), None)], ..DiscoveryFilter::default() },
        ..DiscoveryConfig::default()
    }
}

fn discovery(bench: &Bench, mandate: &ShardOwnership) -> Discovery {
    Discovery::new(bench.reconciler(), here(), |_| {}).within(mandate.clone())
}

/// ADR-014's case, shared: 13 records, 3 instances.
#[tokio::test(start_paused = true)]
async fn each_marks_its_own_orphans_and_together_they_mark_all() {
    let bench = Bench::new();
    (1..=13).for_each(|number| drop(bench.worker(number, WorkerStatus::Running, Ec2State::Running)));
    (4..=13).for_each(|number| bench.compute.forget(HERE, &format!("i-{number}").as_str().into()));
    let stranger = Instance::new("i-99", Ec2State::Running);
    let tags = BTreeMap::from([("lcm:worker_id".to_owned(), "somebody-else".to_owned())]);
    bench.compute.put(HERE, Instance { tags, ..stranger });
    let mandates: Vec<_> = members(3, 8).await.iter().map(ShardedHandle::mandate).collect();
    let mut terminated = Vec::new();
    let mut imported = 0;
    for mandate in &mandates {
        let report = discovery(&bench, mandate).run_once().await;
        let region = &report.regions[0];
        assert_eq!(region.error, None);
        assert!(region.terminated.iter().all(|worker| mandate.includes(worker.as_str())), "{region:?}");
        terminated.extend(region.terminated.iter().map(ToString::to_string));
        imported += region.imported;
    }
    terminated.sort_unstable();
    let mut orphans: Vec<_> = (4..=13).map(|number| format!("w-{number}")).collect();
    orphans.sort_unstable();
    assert_eq!(terminated, orphans, "each once, by the one it belongs to");
    assert_eq!(imported, 1, "a stranger is the region's");
    (1..=3).for_each(|number| assert_eq!(bench.look(number).status, WorkerStatus::Running));
}

#[tokio::test(start_paused = true)]
async fn a_region_is_frozen_by_all_of_its_records_not_by_those_of_a_shard() {
    let bench = Bench::new();
    // Three records over eight shards: hardly anybody has as many as freeze a region.
    (1..=3).for_each(|number| drop(bench.worker(number, WorkerStatus::Running, Ec2State::Running)));
    (1..=3).for_each(|number| bench.compute.forget(HERE, &format!("i-{number}").as_str().into()));
    let mandates: Vec<_> = members(3, 8).await.iter().map(ShardedHandle::mandate).collect();
    for mandate in &mandates {
        let report = discovery(&bench, mandate).run_once().await;
        assert_eq!(report.orphans_terminated(), 0, "{report:?}");
    }
    (1..=3).for_each(|number| assert_eq!(bench.look(number).status, WorkerStatus::Running));
    let frozen = bench.events.kinds().iter().filter(|kind| kind.contains("frozen")).count();
    assert_eq!(frozen, 1, "told once");
}

#[tokio::test(start_paused = true)]
async fn metrics_are_collected_once_for_each() {
    let bench = Bench::new();
    (1..=12).for_each(|number| drop(bench.worker(number, WorkerStatus::Running, Ec2State::Running)));
    let mut looked_at = 0;
    for member in &members(3, 8).await {
        let metrics = MetricsLoop::new(bench.reconciler(), Duration::from_secs(60)).within(member.mandate());
        looked_at += metrics.run_once().await.expect("it can be listed").workers;
    }
    assert_eq!(looked_at, 12);
}

/// Both see a fleet that can spare one, at the same moment.
#[tokio::test(start_paused = true)]
async fn together_they_do_not_scale_down_below_the_minimum() {
    let mut bench = Bench::new();
    bench.policy.scale_down =
        ScaleDownPolicy { enabled: true, min_workers: 3, cooldown: Duration::ZERO, ..ScaleDownPolicy::default() };
    bench.policy.idle_detection_interval = Duration::from_secs(10);
    for number in 1..=8 {
        let mut worker = bench.worker(number, WorkerStatus::Running, Ec2State::Running);
        worker.desired_status = Some(DesiredStatus::Running);
        bench.control_plane.put_worker(worker);
    }
    let etcd = MemoryCoordination::new();
    let shutdown = Shutdown::new();
    let mut controllers = Vec::new();
    for number in 0..4 {
        let config = WorkerControllerConfig {
            shards: Shards::new(8).expect("a good number"),
            election: ElectionConfig { identity: format!("m-{number}"), ..ElectionConfig::default() },
            discovery: None,
            ..WorkerControllerConfig::default()
        };
        let client = Arc::new(etcd.another_client());
        let controller =
            WorkerController::new(bench.ports(), bench.policy.clone(), Some(client), config, Telemetry::default())
                .expect("can be elected");
        let (running, shutdown) = (controller.clone(), shutdown.clone());
        tokio::spawn(async move { running.run(&shutdown).await });
        controllers.push(controller);
    }
    // Idle since yesterday, and looked at again and again.
    for _ in 0..60 {
        bench.clock.advance(Duration::from_secs(30));
        pass_time(30).await;
    }
    let in_service = (1..=8).filter(|number| bench.look(*number).status == WorkerStatus::Running).count();
    assert_eq!(in_service, 3, "five were spared, and no more");
    shutdown.request();
}

struct Names(Arc<Mutex<Vec<String>>>);

impl Reconcile for Names {
    type Resource = String;

    fn key<'a>(&self, name: &'a String) -> &'a str {
        name
    }

    async fn list(&self, _: ListScope) -> Result<Listing<String>, CallFailure> {
        Ok(Listing { resources: (0..40).map(|number| format!("r-{number}")).collect(), resting: Vec::new() })
    }

    async fn fetch(&self, key: &str) -> Result<Fetched<String>, CallFailure> {
        Ok(Fetched::Resource(key.to_owned()))
    }

    async fn reconcile(&self, name: String) -> WorkResult {
        self.0.lock().push(name);
        WorkResult::success()
    }
}

#[tokio::test(start_paused = true)]
async fn any_controller_can_share_its_resources() {
    let members = members(3, 8).await;
    let mut seen = Vec::new();
    for member in &members {
        let names = Arc::<Mutex<Vec<String>>>::default();
        let resources = ShardedResource::new(Names(Arc::clone(&names)), member.mandate());
        let controller = Controller::new(resources, ControllerConfig::default(), Telemetry::default());
        let shutdown = Shutdown::new();
        let sweeping = async {
            let report = controller.sweep(Duration::from_secs(60)).await.expect("it can be listed");
            assert!(report.is_complete());
            shutdown.request();
        };
        tokio::join!(controller.serve(&shutdown), sweeping);
        seen.append(&mut names.lock());
    }
    seen.sort_unstable();
    let mut all: Vec<_> = (0..40).map(|number| format!("r-{number}")).collect();
    all.sort_unstable();
    assert_eq!(seen, all, "each once");
}
