//! The generic controller and its runner, on paused time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::controller::{
    Controller, ControllerConfig, ElectionConfig, LeaderLease, ListRequest, Polling, Resource, ResourceList,
    ResourceStatus, Runner, ShardOwnership, Shutdown, StartupConfig, WatchConfig, WorkReason, WorkResult,
};
use lcm_sdk::providers::memory::MemoryCoordination;
use lcm_sdk::telemetry::{Anomaly, Telemetry};
use lcm_sdk::workers::{DiscoveryConfig, WorkerControllerConfig};
use lcm_sdk::{CallFailure, FailureKind, Requeue};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::harness::pass_time;

/// Behavior of a resource when it is reconciled.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Behavior {
    Takes(u64),
    /// Requests another reconcile after this many seconds.
    Returns(u64),
    Fails,
    /// Requests another reconcile at once, with the same result every time.
    IsStuck,
    Panics,
    Hangs,
}

#[derive(Default)]
struct State {
    behaviors: Mutex<BTreeMap<String, Behavior>>,
    reconciles: Mutex<HashMap<String, usize>>,
    running: Mutex<HashMap<String, usize>>,
    most_at_once: Mutex<usize>,
    listing_fails: Mutex<bool>,
    prepared: Mutex<Vec<usize>>,
}

#[derive(Clone, Default)]
struct FakeResource(Arc<State>);

impl FakeResource {
    fn with(behaviors: &[(&str, Behavior)]) -> Self {
        let resource = Self::default();
        *resource.0.behaviors.lock() =
            behaviors.iter().map(|(name, behavior)| ((*name).to_owned(), *behavior)).collect();
        resource
    }

    fn reconciles(&self, name: &str) -> usize {
        self.0.reconciles.lock().get(name).copied().unwrap_or_default()
    }
}

impl Resource for FakeResource {
    type Object = String;

    fn key<'a>(&self, name: &'a String) -> &'a str {
        name
    }

    async fn list(&self, _: &ListRequest) -> Result<ResourceList<String>, CallFailure> {
        if *self.0.listing_fails.lock() {
            return Err(CallFailure::new(FailureKind::Unreachable, "unreachable"));
        }
        Ok(ResourceList::from(self.0.behaviors.lock().keys().cloned().collect::<Vec<_>>()))
    }

    async fn fetch(&self, key: &str) -> Result<Option<String>, CallFailure> {
        let exists = self.0.behaviors.lock().contains_key(key);
        Ok(exists.then(|| key.to_owned()))
    }

    async fn prepare(&self, resources: &[String]) {
        self.0.prepared.lock().push(resources.len());
    }

    async fn reconcile(&self, name: String, _: LeaderLease) -> WorkResult {
        *self.0.reconciles.lock().entry(name.clone()).or_default() += 1;
        let now_running = {
            let mut running = self.0.running.lock();
            *running.entry(name.clone()).or_default() += 1;
            assert_eq!(running[&name], 1, "{name} is reconciled twice at once");
            running.values().sum::<usize>()
        };
        let most = (*self.0.most_at_once.lock()).max(now_running);
        *self.0.most_at_once.lock() = most;
        let _guard = RunningGuard(self, &name);
        let behavior = self.0.behaviors.lock().get(&name).copied();
        match behavior {
            None => WorkResult::success(),
            Some(Behavior::Takes(seconds)) => {
                sleep(Duration::from_secs(seconds)).await;
                WorkResult::success()
            }
            Some(Behavior::Returns(seconds)) => {
                WorkResult { requeue: Requeue::After(Duration::from_secs(seconds)), ..WorkResult::success() }
            }
            Some(Behavior::Fails) => WorkResult::retry(WorkReason::Custom("failing"), "injected failure"),
            Some(Behavior::IsStuck) => WorkResult { requeue: Requeue::Now, ..WorkResult::success() },
            Some(Behavior::Panics) => panic!("injected panic"),
            Some(Behavior::Hangs) => std::future::pending().await,
        }
    }
}

struct RunningGuard<'a>(&'a FakeResource, &'a str);

impl Drop for RunningGuard<'_> {
    fn drop(&mut self) {
        if let Some(running) = self.0.0.running.lock().get_mut(self.1) {
            *running -= 1;
        }
    }
}

fn start(
    resource: &FakeResource,
    config: ControllerConfig,
) -> (Runner<FakeResource>, Telemetry, Shutdown, JoinHandle<()>) {
    let telemetry = Telemetry::default();
    let controller = Runner::new(Arc::new(resource.clone()), config, telemetry.clone());
    let shutdown = Shutdown::new();
    let running = tokio::spawn({
        let (controller, shutdown) = (controller.clone(), shutdown.clone());
        async move { controller.run(&shutdown).await }
    });
    (controller, telemetry, shutdown, running)
}

fn config() -> ControllerConfig {
    ControllerConfig::default().with_timeout(Duration::from_secs(60)).with_jitter(|| 1.0)
}

#[tokio::test(start_paused = true)]
async fn polling_begins_after_the_initial_delay() {
    let resource = FakeResource::with(&[("a", Behavior::Takes(0)), ("b", Behavior::Takes(0))]);
    let (_controller, ..) = start(&resource, config());
    pass_time(4).await;
    assert_eq!(resource.reconciles("a"), 0);
    pass_time(3).await;
    assert_eq!((resource.reconciles("a"), resource.reconciles("b")), (1, 1));
    pass_time(30).await;
    assert_eq!((resource.reconciles("a"), resource.reconciles("b")), (2, 2));
    assert_eq!(*resource.0.prepared.lock(), [2, 2]);
}

#[tokio::test(start_paused = true)]
async fn trigger_during_a_reconcile_runs_it_once_more() {
    let resource = FakeResource::with(&[("a", Behavior::Takes(10))]);
    let (controller, ..) = start(&resource, config().with_initial_delay(Duration::from_secs(9999)));
    controller.changed("a");
    pass_time(1).await;
    for _ in 0..5 {
        controller.changed("a");
        controller.enqueue("a");
    }
    assert_eq!(controller.resource("a").expect("known").status, ResourceStatus::InProgress);
    pass_time(25).await;
    assert_eq!(resource.reconciles("a"), 2);
    assert_eq!(controller.resource("a").expect("known").status, ResourceStatus::Success);
}

#[tokio::test(start_paused = true)]
async fn panic_and_hang_do_not_affect_other_resources() {
    let resource =
        FakeResource::with(&[("bad", Behavior::Panics), ("good", Behavior::Takes(0)), ("stuck", Behavior::Hangs)]);
    let (controller, telemetry, ..) = start(&resource, config().with_max_concurrent(3));
    pass_time(300).await;
    assert!(telemetry.anomalies(Anomaly::Panic) >= 5, "{}", telemetry.anomalies(Anomaly::Panic));
    assert!(telemetry.anomalies(Anomaly::TimedOut) >= 2);
    assert!(resource.reconciles("good") >= 9, "{}", resource.reconciles("good"));
    let bad = controller.resource("bad").expect("known");
    assert_eq!(bad.last.expect("ran").error.as_deref(), Some("injected panic"));
}

#[tokio::test(start_paused = true)]
async fn retries_follow_the_backoff() {
    let resource = FakeResource::with(&[("a", Behavior::Fails)]);
    let (controller, ..) = start(&resource, config().with_initial_delay(Duration::from_secs(9999)));
    controller.changed("a");
    pass_time(1).await;
    // Delays of 1, 2, 4, 8, 16 and 32 seconds make seven reconciles.
    pass_time(64).await;
    assert_eq!(resource.reconciles("a"), 7);
    let state = controller.resource("a").expect("known");
    assert_eq!((state.status, state.retry_count), (ResourceStatus::Failed, 7));
    resource.0.behaviors.lock().insert("a".into(), Behavior::Takes(0));
    controller.changed("a");
    pass_time(1).await;
    assert_eq!(controller.resource("a").expect("known").retry_count, 0);
}

#[tokio::test(start_paused = true)]
async fn concurrency_is_limited() {
    let names: Vec<String> = (0..50).map(|number| format!("r-{number:02}")).collect();
    let behaviors: Vec<_> = names.iter().map(|name| (name.as_str(), Behavior::Takes(1))).collect();
    let resource = FakeResource::with(&behaviors);
    let (controller, ..) = start(&resource, config().with_max_concurrent(5));
    pass_time(20).await;
    assert_eq!(*resource.0.most_at_once.lock(), 4, "one is kept for changes");
    assert!(names.iter().all(|name| resource.reconciles(name) == 1));
    names.iter().for_each(|name| controller.changed(name));
    pass_time(12).await;
    assert_eq!(*resource.0.most_at_once.lock(), 5);
}

#[tokio::test(start_paused = true)]
async fn change_starts_within_a_second_behind_a_backlog() {
    let names: Vec<String> = (0..300).map(|number| format!("slow-{number:03}")).collect();
    let mut behaviors: Vec<_> = names.iter().map(|name| (name.as_str(), Behavior::Takes(10))).collect();
    behaviors.push(("urgent", Behavior::Takes(0)));
    let resource = FakeResource::with(&behaviors);
    let (controller, ..) = start(&resource, config().with_max_concurrent(5));
    // The backlog is older than the patience of the queue, and no listed resource has run twice.
    pass_time(120).await;
    resource.0.behaviors.lock().insert("new".to_owned(), Behavior::Takes(0));
    for key in ["new", "urgent"] {
        let before = resource.reconciles(key);
        controller.changed(key);
        pass_time(1).await;
        assert_eq!(resource.reconciles(key), before + 1, "{key}");
    }
    // The backlog makes progress behind changes that never end, too.
    let before: usize = names.iter().map(|name| resource.reconciles(name)).sum();
    for number in 0..240 {
        let name = format!("change-{number}");
        resource.0.behaviors.lock().insert(name.clone(), Behavior::Takes(5));
        controller.changed(&name);
        pass_time(1).await;
    }
    let after: usize = names.iter().map(|name| resource.reconciles(name)).sum();
    assert!(after - before > 24, "{} of the backlog in four minutes", after - before);
}

#[tokio::test(start_paused = true)]
async fn resource_without_progress_is_not_a_hot_loop() {
    let resource = FakeResource::with(&[("a", Behavior::IsStuck)]);
    let (controller, ..) = start(&resource, config());
    controller.changed("a");
    pass_time(60).await;
    let reconciles = resource.reconciles("a");
    assert!((2..10).contains(&reconciles), "{reconciles} reconciles in a minute");
    assert!(controller.resource("a").expect("known").retry_count > 3);
}

#[tokio::test(start_paused = true)]
async fn explicit_delay_outlasts_polling() {
    let resource = FakeResource::with(&[("a", Behavior::Returns(300))]);
    let (_controller, ..) = start(&resource, config());
    pass_time(290).await;
    assert_eq!(resource.reconciles("a"), 1);
    pass_time(30).await;
    assert_eq!(resource.reconciles("a"), 2);
}

#[tokio::test(start_paused = true)]
async fn stop_waits_for_reconciles_in_progress() {
    let resource = FakeResource::with(&[("slow", Behavior::Takes(20))]);
    let (controller, _, shutdown, running) = start(&resource, config());
    controller.changed("slow");
    pass_time(1).await;
    shutdown.request();
    controller.changed("late");
    pass_time(10).await;
    assert!(!running.is_finished(), "a reconcile is in progress");
    pass_time(15).await;
    running.await.expect("ends");
    assert_eq!((resource.reconciles("slow"), resource.reconciles("late")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn stop_waits_no_longer_than_the_grace() {
    let resource = FakeResource::with(&[("stuck", Behavior::Hangs)]);
    let (controller, _, shutdown, running) = start(&resource, config().with_grace(Duration::from_secs(5)));
    controller.changed("stuck");
    pass_time(1).await;
    shutdown.request();
    pass_time(6).await;
    assert!(running.is_finished());
}

#[tokio::test(start_paused = true)]
async fn sweep_names_resources_that_hang() {
    let resource = FakeResource::with(&[("a", Behavior::Takes(1)), ("b", Behavior::Fails), ("stuck", Behavior::Hangs)]);
    let (controller, ..) = start(&resource, config().with_initial_delay(Duration::from_secs(9999)));
    let sweep = controller.sweep(Duration::from_secs(10)).await.expect("listed");
    assert_eq!(sweep.listed, 3);
    assert_eq!(sweep.outcomes, BTreeMap::from([("retry", 1), ("success", 1)]));
    assert_eq!(sweep.unfinished, ["stuck"]);
    assert!(!sweep.is_complete());
}

#[tokio::test(start_paused = true)]
async fn failed_listing_is_retried_before_the_next_cycle() {
    let resource = FakeResource::with(&[("a", Behavior::Takes(0))]);
    *resource.0.listing_fails.lock() = true;
    let (_controller, ..) = start(&resource, config());
    pass_time(7).await;
    assert_eq!(resource.reconciles("a"), 0);
    *resource.0.listing_fails.lock() = false;
    pass_time(5).await;
    assert_eq!(resource.reconciles("a"), 1);
}

#[tokio::test(start_paused = true)]
async fn missing_resource_is_forgotten() {
    let resource = FakeResource::with(&[("a", Behavior::Takes(0))]);
    let (controller, ..) = start(&resource, config());
    controller.changed("missing");
    pass_time(7).await;
    let known: Vec<_> = controller.resources().into_iter().map(|state| state.resource_id.to_string()).collect();
    assert_eq!(known, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn due_resource_is_not_late_while_tasks_are_busy() {
    let resource = FakeResource::with(&[
        ("soon", Behavior::Returns(2)),
        ("stuck", Behavior::Hangs),
        ("stuck too", Behavior::Hangs),
    ]);
    let quiet = config().with_initial_delay(Duration::from_secs(9999)).with_max_concurrent(3);
    let (controller, ..) = start(&resource, quiet);
    pass_time(1).await;
    controller.changed("soon");
    pass_time(1).await;
    controller.changed("stuck");
    controller.changed("stuck too");
    pass_time(20).await;
    assert!(resource.reconciles("soon") >= 9, "{} reconciles in twenty seconds", resource.reconciles("soon"));
}

/// A controller that watches, polls only once a day, and reconciles without delay.
async fn watching(
    resource: &FakeResource,
    etcd: &MemoryCoordination,
    watch: WatchConfig,
) -> (Controller<FakeResource>, Shutdown) {
    let config = config().with_interval(Duration::from_secs(86_400));
    let controller = Controller::builder(resource.clone())
        .elect(Arc::new(etcd.clone()), "/play/leader")
        .watch(watch)
        .config(config)
        .build()
        .expect("valid settings");
    let shutdown = Shutdown::new();
    tokio::spawn({
        let (controller, shutdown) = (controller.clone(), shutdown.clone());
        async move { controller.run(&shutdown).await }
    });
    pass_time(10).await;
    assert_eq!(resource.reconciles("a"), 2, "once for the beginning of the watch, once for the first cycle");
    (controller, shutdown)
}

#[tokio::test(start_paused = true)]
async fn watched_changes_are_debounced_from_the_first_on() {
    let resource = FakeResource::with(&[("a", Behavior::Takes(0))]);
    let etcd = MemoryCoordination::new();
    let (controller, _shutdown) = watching(&resource, &etcd, WatchConfig::from(["/play/"])).await;
    for number in 0..40 {
        etcd.put("/play/a", &number.to_string());
        sleep(Duration::from_millis(100)).await;
    }
    let reconciles = resource.reconciles("a") - 2;
    assert!((7..=8).contains(&reconciles), "{reconciles} reconciles in four seconds with a debounce of half a second");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(controller.load(), Some((0, [("changed", 0), ("due", 0), ("resync", 0)])));
}

#[tokio::test(start_paused = true)]
async fn too_many_watched_changes_lead_to_one_listing() {
    let resource = FakeResource::with(&[("a", Behavior::Takes(0))]);
    let etcd = MemoryCoordination::new();
    let config = WatchConfig::from(["/play/"]).with_max_pending(10);
    let (controller, _shutdown) = watching(&resource, &etcd, config).await;
    let listings = resource.0.prepared.lock().len();
    for number in 0..11 {
        etcd.put(&format!("/play/unknown-{number}"), "1");
    }
    pass_time(5).await;
    assert_eq!(resource.0.prepared.lock().len(), listings + 1);
    assert_eq!(controller.resources().len(), 1, "unknown names are forgotten");
    assert_eq!(resource.reconciles("a"), 3);
}

#[tokio::test(start_paused = true)]
async fn controller_survives_a_lost_lease() {
    let resource = FakeResource::with(&[("a", Behavior::Takes(0))]);
    let etcd = MemoryCoordination::new();
    let (controller, shutdown) = watching(&resource, &etcd, WatchConfig::from(["/play/"])).await;
    let first = controller.term().expect("it leads");
    etcd.lose_leases();
    pass_time(1).await;
    assert!(first.end_signal().is_requested() && !first.ownership().is_valid());
    pass_time(20).await;
    let second = controller.term().expect("it leads again");
    let token = |ownership: &ShardOwnership| ownership.fleet_lease().and_then(|lease| lease.fence().0);
    assert!(token(second.ownership()).is_some());
    let before = resource.reconciles("a");
    etcd.put("/play/a", "changed in the second term");
    pass_time(2).await;
    assert_eq!(resource.reconciles("a"), before + 1);
    shutdown.request();
    pass_time(2).await;
    assert!(controller.term().is_none() && etcd.leases().is_empty(), "resigned");
    assert!(!controller.enqueue("a"), "another controller may own it");
}

/// The values of the design documents, for controllers that are not built from settings.
#[test]
fn defaults_follow_the_documents() {
    let seconds = Duration::from_secs;
    let ControllerConfig { interval, polling, initial_delay, max_concurrent, .. } = ControllerConfig::default();
    assert_eq!((interval, polling, initial_delay), (seconds(30), Polling::Enabled, seconds(5)));
    assert_eq!((max_concurrent, WorkerControllerConfig::default().controller.max_concurrent), (10, 5));
    let ElectionConfig { key, ttl, retry_interval, .. } = ElectionConfig::default();
    assert_eq!((key.as_str(), ttl, retry_interval), ("/lcm/worker-controller/leader", seconds(15), seconds(5)));
    let watch = WorkerControllerConfig::default().watch.expect("it watches");
    assert_eq!(watch.prefixes, ["/workers/", "/lcm/workers/"]);
    assert_eq!((watch.reconnect_delay, watch.max_reconnect_attempts), (seconds(1), 10));
    assert_eq!(watch.debounce, Duration::from_millis(500));
    assert_eq!(StartupConfig::default().delay, seconds(2));
    let DiscoveryConfig { interval, initial_delay, .. } = DiscoveryConfig::default();
    assert_eq!((interval, initial_delay), (seconds(300), seconds(5)));
}
