//! Leader election among several controllers, on real etcd and on the fake one: only the leader acts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fake_cloud::control_plane::Generation::{self, Extended, Original};
use fake_cloud::{LoggedRequest, RequestFilter, Service};
use lcm_sdk::controller::ElectionConfig;
use lcm_sdk::lifecycle::discovery::Scan;
use lcm_sdk::lifecycle::launch::LaunchPlan;
use lcm_sdk::lifecycle::trust::Caller;
use lcm_sdk::lifecycle::{Image, Instance, Lookup};
use lcm_sdk::ports::{Compute, DiscoveryFilter};
use lcm_sdk::workers::WorkerController;
use lcm_sdk::{CallFailure, InstanceId, WorkerId, WorkerStatus};
use lcm_tests::etcd::RealEtcd;
use rstest::rstest;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::time::Instant;

use lcm_tests::harness::{Harness, RunningController, eventually};

const TTL: Duration = Duration::from_secs(2);
/// Extra time allowed on a busy machine.
const SLACK: Duration = Duration::from_secs(8);

/// An EC2 call that changes an instance.
#[derive(Debug, Clone)]
pub(crate) struct Mutation {
    controller: String,
    pub(crate) started_at: Instant,
    ended_at: Instant,
}

type MutationLog = Arc<Mutex<Vec<Mutation>>>;

/// Records each mutating EC2 call of one controller.
struct RecordingCompute {
    controller: String,
    ec2: Arc<dyn Compute>,
    log: MutationLog,
}

impl RecordingCompute {
    async fn record<T>(&self, call: impl Future<Output = T>) -> T {
        let started_at = Instant::now();
        let response = call.await;
        let mutation = Mutation { controller: self.controller.clone(), started_at, ended_at: Instant::now() };
        self.log.lock().expect("lock is not poisoned").push(mutation);
        response
    }
}

#[async_trait]
impl Compute for RecordingCompute {
    async fn instances(&self, region: &str, ids: &[InstanceId]) -> Vec<Lookup<Instance>> {
        self.ec2.instances(region, ids).await
    }

    async fn tagged(&self, region: &str, worker: &WorkerId) -> Result<Vec<Instance>, CallFailure> {
        self.ec2.tagged(region, worker).await
    }

    async fn images(&self, region: &str, pattern: &str) -> Result<Vec<Image>, CallFailure> {
        self.ec2.images(region, pattern).await
    }

    async fn scan(&self, region: &str, filter: &DiscoveryFilter) -> Scan {
        self.ec2.scan(region, filter).await
    }

    async fn subnet_owner(&self, region: &str, subnet_id: &str) -> Result<Option<String>, CallFailure> {
        self.ec2.subnet_owner(region, subnet_id).await
    }

    async fn caller(&self, region: &str) -> Result<Caller, CallFailure> {
        self.ec2.caller(region).await
    }

    async fn launch(&self, plan: &LaunchPlan) -> Result<InstanceId, CallFailure> {
        self.record(self.ec2.launch(plan)).await
    }

    async fn start(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        self.record(self.ec2.start(region, id)).await
    }

    async fn stop(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        self.record(self.ec2.stop(region, id)).await
    }

    async fn terminate(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        self.record(self.ec2.terminate(region, id)).await
    }
}

/// A controller on its own threads, so that it can crash like a process.
pub(crate) struct Process {
    pub(crate) actor: Option<RunningController>,
    runtime: Option<Runtime>,
}

impl Process {
    pub(crate) fn start(controller: impl FnOnce() -> RunningController) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("runtime starts");
        // Tasks spawned by the controller run on this runtime and end with it.
        let guard = runtime.enter();
        let actor = controller();
        drop(guard);
        Self { actor: Some(actor), runtime: Some(runtime) }
    }

    pub(crate) fn controller(&self) -> &WorkerController {
        &self.actor.as_ref().expect("controller is running").controller
    }

    pub(crate) fn leads(&self) -> bool {
        self.controller().lease().is_some()
    }

    pub(crate) async fn stop(mut self) {
        self.actor.take().expect("controller is running").stop().await;
    }

    /// Ends without completing any call or revoking the lease.
    pub(crate) fn crash(self) {
        drop(self);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Controllers that compete for leadership in one etcd.
pub(crate) struct ControllerGroup {
    pub(crate) harness: Harness,
    endpoint: String,
    log: MutationLog,
}

impl ControllerGroup {
    /// Uses the etcd of the fake cloud when `endpoint` is `None`.
    pub(crate) async fn new(generation: Generation, endpoint: Option<String>) -> Self {
        let harness = Harness::with_real_clock(generation).await;
        let endpoint = endpoint.unwrap_or_else(|| harness.cloud.endpoints().etcd_endpoint.clone());
        Self { harness, endpoint, log: MutationLog::default() }
    }

    fn controller(&self, name: &str, ttl: Duration) -> Process {
        self.controller_with(name, |election| election.ttl = ttl)
    }

    pub(crate) fn controller_with(&self, name: &str, change: impl FnOnce(&mut ElectionConfig)) -> Process {
        Process::start(|| {
            self.harness.start_controller_on(&self.endpoint, name, |config, ports| {
                change(&mut config.election);
                let (controller, log) = (name.to_owned(), Arc::clone(&self.log));
                ports.compute = Arc::new(RecordingCompute { controller, ec2: Arc::clone(&ports.compute), log });
            })
        })
    }

    /// Adds workers and waits until they run.
    pub(crate) async fn launch(&self, ids: &[String]) {
        for id in ids {
            self.harness.add_worker(id, json!({"desired_status": "running"}));
        }
        for id in ids {
            eventually(&format!("{id} runs"), || async { self.harness.status(id).await == WorkerStatus::Running })
                .await;
        }
    }

    /// Mutating EC2 calls of all controllers.
    pub(crate) fn mutations(&self) -> Vec<Mutation> {
        self.log.lock().expect("lock is not poisoned").clone()
    }

    /// Asserts that control plane writes and EC2 calls of different leaders do not overlap, and that each of these
    /// workers was launched once and its instance recorded.
    pub(crate) async fn assert_one_active_leader(&self, workers: &[String]) {
        let mut writes = self.fenced_writes();
        writes.sort_by_key(|(record, _)| record.at);
        assert!(!writes.is_empty(), "there are writes");
        for pair in writes.windows(2) {
            let [(before, old), (after, new)] = pair else { unreachable!("windows of two") };
            assert!(old <= new, "{new} wrote `{after}` after {old} wrote `{before}`");
        }
        let mut mutations = self.mutations();
        mutations.sort_by_key(|mutation| mutation.started_at);
        for pair in mutations.windows(2) {
            assert!(
                pair[0].controller == pair[1].controller || pair[0].ended_at <= pair[1].started_at,
                "two controllers acted at once: {pair:?}"
            );
        }
        assert_eq!(self.harness.ec2_calls("RunInstances"), workers.len(), "each worker was launched once");
        let active = self.harness.active_instances();
        assert_eq!(active.len(), workers.len());
        for id in workers {
            let instance = self.harness.worker(id).await.ec2_instance_id.expect("instance is recorded");
            assert!(active.iter().any(|known| known == instance.as_str()));
        }
    }

    /// Control plane writes of leaders, each with its fencing token.
    fn fenced_writes(&self) -> Vec<(LoggedRequest, i64)> {
        let filter = RequestFilter { service: Some(Service::ControlPlane), ..RequestFilter::default() };
        let token = |record: &LoggedRequest| {
            let named = record.parameters.iter().find(|(name, _)| name == "fencing_token");
            named.and_then(|(_, token)| token.parse().ok())
        };
        let records = self.harness.cloud.requests(&filter);
        records.into_iter().filter_map(|record| token(&record).map(|token| (record, token))).collect()
    }
}

/// Waits for a leader and returns its index.
async fn leader_index(processes: &[Process]) -> usize {
    let leading = || processes.iter().position(Process::leads);
    eventually("a controller leads", || async { leading().is_some() }).await;
    leading().unwrap_or_default()
}

/// Crashes and stops leaders in turn while workers are launched.
async fn assert_controllers_act_one_at_a_time(generation: Generation, endpoint: Option<String>, controllers: usize) {
    let group = ControllerGroup::new(generation, endpoint).await;
    let mut processes: Vec<_> = (0..controllers).map(|number| group.controller(&format!("c-{number}"), TTL)).collect();
    let mut workers = Vec::new();
    for round in 0..4 {
        let leading = leader_index(&processes).await;
        let added: Vec<_> = (0..2).map(|number| format!("w-{round}-{number}")).collect();
        group.launch(&added).await;
        workers.extend(added);
        let removed = processes.remove(leading);
        if round % 2 == 0 {
            removed.crash();
        } else {
            removed.stop().await;
        }
        processes.push(group.controller(&format!("c-{}", controllers + round), TTL));
    }
    leader_index(&processes).await;
    group.assert_one_active_leader(&workers).await;
    let tokens: std::collections::BTreeSet<_> = group.fenced_writes().into_iter().map(|(_, token)| token).collect();
    assert!(tokens.len() >= 4, "each round had its own leader: {tokens:?}");
    for process in processes {
        process.stop().await;
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_controllers_on_real_etcd_act_one_at_a_time(#[values(Original, Extended)] generation: Generation) {
    let etcd = RealEtcd::start().await;
    assert_controllers_act_one_at_a_time(generation, Some(etcd.endpoint()), 2).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_controllers_on_real_etcd_act_one_at_a_time(#[values(Original, Extended)] generation: Generation) {
    let etcd = RealEtcd::start().await;
    assert_controllers_act_one_at_a_time(generation, Some(etcd.endpoint()), 3).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_controllers_on_fake_etcd_act_one_at_a_time(#[values(Original, Extended)] generation: Generation) {
    assert_controllers_act_one_at_a_time(generation, None, 2).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_controllers_on_fake_etcd_act_one_at_a_time(#[values(Original, Extended)] generation: Generation) {
    assert_controllers_act_one_at_a_time(generation, None, 3).await;
}

/// A crashed leader is replaced after its lease expires, a stopped one immediately.
async fn assert_leader_is_replaced(generation: Generation, endpoint: Option<String>, etcd: &str) {
    let group = ControllerGroup::new(generation, endpoint).await;
    let first = group.controller("first", TTL);
    eventually("the first leads", || async { first.leads() }).await;
    // The lease is long enough to distinguish its expiry from a clean stop.
    let second = group.controller("second", Duration::from_secs(30));
    group.launch(&["w-1".to_owned()]).await;

    let crashed = Instant::now();
    first.crash();
    eventually("the second leads", || async { second.leads() }).await;
    let took = crashed.elapsed();
    println!("on {etcd}: took over {took:?} after a crash, with a lease of {TTL:?}");
    assert!(took < TTL + Duration::from_secs(1) + SLACK, "took over {took:?} after a crash");
    assert!(second.controller().ready().await.is_complete());

    let third = group.controller("third", TTL);
    group.launch(&["w-2".to_owned()]).await;
    let stopped = Instant::now();
    second.stop().await;
    eventually("the third leads", || async { third.leads() }).await;
    let took = stopped.elapsed();
    println!("on {etcd}: took over {took:?} after a clean stop, with a lease of 30s");
    assert!(took < Duration::from_secs(1) + SLACK, "took over {took:?} after a clean stop");
    group.launch(&["w-3".to_owned()]).await;
    third.stop().await;
    group.assert_one_active_leader(&["w-1", "w-2", "w-3"].map(str::to_owned)).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_on_real_etcd_is_replaced_after_a_crash_or_stop(#[values(Original, Extended)] generation: Generation) {
    let etcd = RealEtcd::start().await;
    assert_leader_is_replaced(generation, Some(etcd.endpoint()), "real etcd").await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_on_fake_etcd_is_replaced_after_a_crash_or_stop(#[values(Original, Extended)] generation: Generation) {
    assert_leader_is_replaced(generation, None, "fake etcd").await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_do_not_act_before_etcd_is_available(#[values(Original, Extended)] generation: Generation) {
    let mut etcd = RealEtcd::reserve();
    let group = ControllerGroup::new(generation, Some(etcd.endpoint())).await;
    group.harness.add_worker("w-1", json!({"desired_status": "running"}));
    let processes = [group.controller("first", TTL), group.controller("second", TTL)];
    // Long enough for several election attempts and a sweep.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!processes.iter().any(Process::leads));
    let requests = group.harness.cloud.requests(&RequestFilter::default());
    // A standby probes the control plane, for its readiness.
    let probe = |request: &&LoggedRequest| request.operation != "get_discovery_settings";
    assert_eq!(requests.iter().find(probe), None, "no other requests were made");

    etcd.restart().await;
    let runs = || async { group.harness.status("w-1").await == WorkerStatus::Running };
    eventually("w-1 runs", runs).await;
    group.assert_one_active_leader(&["w-1".to_owned()]).await;
    for process in processes {
        process.stop().await;
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_stops_acting_when_etcd_freezes(#[values(Original, Extended)] generation: Generation) {
    let etcd = RealEtcd::start().await;
    let group = ControllerGroup::new(generation, Some(etcd.endpoint())).await;
    let first = group.controller("first", TTL);
    eventually("the first leads", || async { first.leads() }).await;
    let second = group.controller("second", TTL);
    group.launch(&["w-1".to_owned()]).await;
    let old = first.controller().lease().expect("the first still leads");

    etcd.pause();
    old.lost().await;
    // Calls in flight may still be recorded.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (writes, launches) = (group.fenced_writes().len(), group.harness.ec2_calls("RunInstances"));
    group.harness.add_worker("w-2", json!({"desired_status": "running"}));
    tokio::time::sleep(TTL + Duration::from_secs(1)).await;
    assert!(!first.leads() && !second.leads());
    assert_eq!(group.fenced_writes().len(), writes, "no write without a lease");
    assert_eq!(group.harness.ec2_calls("RunInstances"), launches, "no launch without a lease");
    assert_eq!(group.harness.status("w-2").await, WorkerStatus::Pending);

    etcd.resume();
    eventually("w-2 runs", || async { group.harness.status("w-2").await == WorkerStatus::Running }).await;
    let newest = group.fenced_writes().into_iter().map(|(_, token)| token).max();
    assert!(newest > old.fence().0, "the new leader has a newer token");
    group.assert_one_active_leader(&["w-1".to_owned(), "w-2".to_owned()]).await;
    first.stop().await;
    second.stop().await;
}
