//! Several whole controllers, one of which acts: seen from the cloud's side, on a real etcd and on the fake one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fake_cloud::{LoggedRequest, RequestFilter, Service};
use lcm_sdk::controller::ElectionConfig;
use lcm_sdk::lifecycle::discovery::Scan;
use lcm_sdk::lifecycle::launch::LaunchPlan;
use lcm_sdk::lifecycle::{Image, Instance, Lookup};
use lcm_sdk::ports::{Compute, DiscoveryFilter};
use lcm_sdk::workers::WorkerController;
use lcm_sdk::{CallFailure, InstanceId, WorkerId, WorkerStatus};
use lcm_tests::etcd::RealEtcd;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::time::Instant;

use lcm_tests::harness::{Harness, RunningController, eventually};

const TTL: Duration = Duration::from_secs(2);
/// What a busy machine may add to anything that is measured.
const SLACK: Duration = Duration::from_secs(8);

/// A change of the cloud: by whom, and from when to when it was under way.
#[derive(Debug, Clone)]
pub(crate) struct Deed {
    by: String,
    pub(crate) began: Instant,
    ended: Instant,
}

type Journal = Arc<Mutex<Vec<Deed>>>;

/// EC2 as one controller reaches it; notes each change it makes.
struct Witnessed {
    by: String,
    ec2: Arc<dyn Compute>,
    journal: Journal,
}

impl Witnessed {
    async fn note<T>(&self, deed: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let done = deed.await;
        let deed = Deed { by: self.by.clone(), began, ended: Instant::now() };
        self.journal.lock().expect("no panic while it was held").push(deed);
        done
    }
}

#[async_trait]
impl Compute for Witnessed {
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

    async fn sees_subnet(&self, region: &str, subnet_id: &str) -> Result<bool, CallFailure> {
        self.ec2.sees_subnet(region, subnet_id).await
    }

    async fn launch(&self, plan: &LaunchPlan) -> Result<InstanceId, CallFailure> {
        self.note(self.ec2.launch(plan)).await
    }

    async fn start(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        self.note(self.ec2.start(region, id)).await
    }

    async fn stop(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        self.note(self.ec2.stop(region, id)).await
    }

    async fn terminate(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        self.note(self.ec2.terminate(region, id)).await
    }
}

/// A controller with threads of its own, which can end without a word as a process can.
pub(crate) struct Process {
    pub(crate) actor: Option<RunningController>,
    runtime: Option<Runtime>,
}

impl Process {
    pub(crate) fn start(controller: impl FnOnce() -> RunningController) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        // Whatever is begun from here on runs there, and ends with it.
        let inside = runtime.enter();
        let actor = controller();
        drop(inside);
        Self { actor: Some(actor), runtime: Some(runtime) }
    }

    pub(crate) fn controller(&self) -> &WorkerController {
        &self.actor.as_ref().expect("it runs").controller
    }

    pub(crate) fn leads(&self) -> bool {
        self.controller().lease().is_some()
    }

    pub(crate) async fn stop(mut self) {
        self.actor.take().expect("it runs").stop().await;
    }

    /// Nothing is finished, nothing is given back.
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

/// Controllers that compete on one etcd.
pub(crate) struct Contest {
    pub(crate) harness: Harness,
    endpoint: String,
    journal: Journal,
}

impl Contest {
    pub(crate) async fn on(endpoint: Option<String>) -> Self {
        let harness = Harness::with_real_clock().await;
        let endpoint = endpoint.unwrap_or_else(|| harness.cloud.endpoints().etcd_endpoint.clone());
        Self { harness, endpoint, journal: Journal::default() }
    }

    fn controller(&self, name: &str, ttl: Duration) -> Process {
        self.controller_with(name, |election| election.ttl = ttl)
    }

    pub(crate) fn controller_with(&self, name: &str, change: impl FnOnce(&mut ElectionConfig)) -> Process {
        Process::start(|| {
            self.harness.start_controller_on(&self.endpoint, name, |config, ports| {
                change(&mut config.election);
                let (by, journal) = (name.to_owned(), Arc::clone(&self.journal));
                ports.compute = Arc::new(Witnessed { by, ec2: Arc::clone(&ports.compute), journal });
            })
        })
    }

    /// Has workers launched, each by whoever leads.
    pub(crate) async fn launch(&self, ids: &[String]) {
        for id in ids {
            self.harness.add_worker(id, json!({"desired_status": "running"}));
        }
        for id in ids {
            eventually(&format!("{id} runs"), || async { self.harness.status(id).await == WorkerStatus::Running })
                .await;
        }
    }

    /// Every change of EC2 that a controller made.
    pub(crate) fn deeds(&self) -> Vec<Deed> {
        self.journal.lock().expect("no panic while it was held").clone()
    }

    /// Nobody acted before the last one had stopped: neither by what the control plane was told, nor by what was done
    /// to EC2; and each of these workers was launched once and is on record.
    pub(crate) async fn assert_one_at_a_time(&self, workers: &[String]) {
        let mut writes = self.fenced();
        writes.sort_by_key(|(record, _)| record.at);
        assert!(!writes.is_empty(), "somebody wrote");
        for pair in writes.windows(2) {
            let [(before, old), (after, new)] = pair else { unreachable!("windows of two") };
            assert!(old <= new, "{new} wrote `{after}` after {old} wrote `{before}`");
        }
        let mut deeds = self.deeds();
        deeds.sort_by_key(|deed| deed.began);
        for pair in deeds.windows(2) {
            assert!(pair[0].by == pair[1].by || pair[0].ended <= pair[1].began, "two acted at once: {pair:?}");
        }
        assert_eq!(self.harness.ec2_calls("RunInstances"), workers.len(), "each was launched once");
        let living = self.harness.active_instances();
        assert_eq!(living.len(), workers.len());
        for id in workers {
            let instance = self.harness.worker(id).await.ec2_instance_id.expect("on record");
            assert!(living.iter().any(|known| known == instance.as_str()));
        }
    }

    /// Every write of a leader, with its token.
    fn fenced(&self) -> Vec<(LoggedRequest, i64)> {
        let filter = RequestFilter { service: Some(Service::ControlPlane), ..RequestFilter::default() };
        let token = |record: &LoggedRequest| {
            let named = record.parameters.iter().find(|(name, _)| name == "fencing_token");
            named.and_then(|(_, token)| token.parse().ok())
        };
        let records = self.harness.cloud.requests(&filter);
        records.into_iter().filter_map(|record| token(&record).map(|token| (record, token))).collect()
    }
}

/// Where the one that leads stands among the others.
async fn leader(actors: &[Process]) -> usize {
    let leading = || actors.iter().position(Process::leads);
    eventually("somebody leads", || async { leading().is_some() }).await;
    leading().unwrap_or_default()
}

/// Leaders come and go, some with a word and some without, and workers are wanted all the while.
async fn one_acts_at_a_time(endpoint: Option<String>, controllers: usize) {
    let contest = Contest::on(endpoint).await;
    let mut actors: Vec<_> = (0..controllers).map(|number| contest.controller(&format!("c-{number}"), TTL)).collect();
    let mut workers = Vec::new();
    for round in 0..4 {
        let leading = leader(&actors).await;
        let wanted: Vec<_> = (0..2).map(|number| format!("w-{round}-{number}")).collect();
        contest.launch(&wanted).await;
        workers.extend(wanted);
        let gone = actors.remove(leading);
        if round % 2 == 0 {
            gone.crash();
        } else {
            gone.stop().await;
        }
        actors.push(contest.controller(&format!("c-{}", controllers + round), TTL));
    }
    leader(&actors).await;
    contest.assert_one_at_a_time(&workers).await;
    let tokens: std::collections::BTreeSet<_> = contest.fenced().into_iter().map(|(_, token)| token).collect();
    assert!(tokens.len() >= 4, "each round had a leader of its own: {tokens:?}");
    for actor in actors {
        actor.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_controllers_on_a_real_etcd_one_acts_at_a_time() {
    let etcd = RealEtcd::start().await;
    one_acts_at_a_time(Some(etcd.endpoint()), 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_three_controllers_on_a_real_etcd_one_acts_at_a_time() {
    let etcd = RealEtcd::start().await;
    one_acts_at_a_time(Some(etcd.endpoint()), 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_controllers_on_the_fake_etcd_one_acts_at_a_time() {
    one_acts_at_a_time(None, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_three_controllers_on_the_fake_etcd_one_acts_at_a_time() {
    one_acts_at_a_time(None, 3).await;
}

/// A crash is followed when the lease has ended, a clean stop long before.
async fn is_followed(endpoint: Option<String>, on: &str) {
    let contest = Contest::on(endpoint).await;
    let first = contest.controller("first", TTL);
    eventually("the first leads", || async { first.leads() }).await;
    // So long a lease that nobody could mistake its end for a clean stop.
    let second = contest.controller("second", Duration::from_secs(30));
    contest.launch(&["w-1".to_owned()]).await;

    let crashed = Instant::now();
    first.crash();
    eventually("the second follows", || async { second.leads() }).await;
    let took = crashed.elapsed();
    println!("on {on}: took over {took:?} after a crash, with a lease of {TTL:?}");
    assert!(took < TTL + Duration::from_secs(1) + SLACK, "took over {took:?} after a crash");
    assert!(second.controller().ready().await.is_complete());

    let third = contest.controller("third", TTL);
    contest.launch(&["w-2".to_owned()]).await;
    let stopped = Instant::now();
    second.stop().await;
    eventually("the third follows", || async { third.leads() }).await;
    let took = stopped.elapsed();
    println!("on {on}: took over {took:?} after a clean stop, with a lease of 30s");
    assert!(took < Duration::from_secs(1) + SLACK, "took over {took:?} after a clean stop");
    contest.launch(&["w-3".to_owned()]).await;
    third.stop().await;
    contest.assert_one_at_a_time(&["w-1", "w-2", "w-3"].map(str::to_owned)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_of_a_real_etcd_is_followed_after_a_crash_and_at_once_after_a_clean_stop() {
    let etcd = RealEtcd::start().await;
    is_followed(Some(etcd.endpoint()), "a real etcd").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_of_the_fake_etcd_is_followed_after_a_crash_and_at_once_after_a_clean_stop() {
    is_followed(None, "the fake etcd").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_etcd_nobody_leads_and_nothing_is_touched_until_it_is_there() {
    let mut etcd = RealEtcd::reserved();
    let contest = Contest::on(Some(etcd.endpoint())).await;
    contest.harness.add_worker("w-1", json!({"desired_status": "running"}));
    let actors = [contest.controller("first", TTL), contest.controller("second", TTL)];
    // Nothing can be waited for that must not happen: long enough for several tries and a sweep.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!actors.iter().any(Process::leads));
    assert_eq!(contest.harness.cloud.requests(&RequestFilter::default()), [], "nobody was even asked anything");

    etcd.begin().await;
    let runs = || async { contest.harness.status("w-1").await == WorkerStatus::Running };
    eventually("w-1 runs", runs).await;
    contest.assert_one_at_a_time(&["w-1".to_owned()]).await;
    for actor in actors {
        actor.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_etcd_freezes_stops_before_anybody_else_begins_and_goes_on_when_it_is_back() {
    let etcd = RealEtcd::start().await;
    let contest = Contest::on(Some(etcd.endpoint())).await;
    let first = contest.controller("first", TTL);
    eventually("the first leads", || async { first.leads() }).await;
    let second = contest.controller("second", TTL);
    contest.launch(&["w-1".to_owned()]).await;
    let old = first.controller().lease().expect("it still leads");

    etcd.pause();
    old.lost().await;
    // What was begun before may still be written down.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (written, acted) = (contest.fenced().len(), contest.harness.ec2_calls("RunInstances"));
    contest.harness.add_worker("w-2", json!({"desired_status": "running"}));
    tokio::time::sleep(TTL + Duration::from_secs(1)).await;
    assert!(!first.leads() && !second.leads());
    assert_eq!(contest.fenced().len(), written, "nobody writes without a lead");
    assert_eq!(contest.harness.ec2_calls("RunInstances"), acted, "nobody launches without a lead");
    assert_eq!(contest.harness.status("w-2").await, WorkerStatus::Pending);

    etcd.resume();
    eventually("w-2 runs", || async { contest.harness.status("w-2").await == WorkerStatus::Running }).await;
    let newest = contest.fenced().into_iter().map(|(_, token)| token).max();
    assert!(newest > old.fence().0, "a new leader has a new token");
    contest.assert_one_at_a_time(&["w-1".to_owned(), "w-2".to_owned()]).await;
    first.stop().await;
    second.stop().await;
}
