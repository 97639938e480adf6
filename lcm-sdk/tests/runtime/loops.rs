//! Discovery, metrics and the worker controller.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lcm_sdk::controller::{ControllerConfig, LeaderLease, Polling, Shutdown};
use lcm_sdk::ports::{Claim, Coordination, DiscoveryFilter, Lease, LeaseId, Listing, Renewal, WatchStream};
use lcm_sdk::providers::memory::{Fault, MemoryCoordination, Versions};
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{Discovery, DiscoveryConfig, MetricsLoop, WorkerController, WorkerControllerConfig};
use lcm_sdk::{CallFailure, DesiredStatus, Ec2State, FailureKind, WorkerStatus};
use tokio::time::Instant;

use super::harness::{Harness, OTHER_REGION, REGION, pass_time, worker_id};

fn both_regions() -> DiscoveryConfig {
    let filter = DiscoveryFilter::default().with_tag_key("lcm:worker_id");
    DiscoveryConfig::default().with_regions([REGION, OTHER_REGION]).with_filter(filter)
}

fn controller(harness: &Harness, etcd: Arc<dyn Coordination>, config: WorkerControllerConfig) -> WorkerController {
    let config = config.without_discovery();
    WorkerController::new(harness.ports(), harness.policy.clone(), Some(etcd), config, Telemetry::default())
        .expect("a valid configuration")
}

#[tokio::test(start_paused = true)]
async fn worker_terminated_during_a_scan_is_not_resurrected() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Terminating, Ec2State::Running);
    harness.compute.set_delay(OTHER_REGION, Duration::from_secs(60));
    let discovery = Discovery::new(harness.reconciler(), both_regions(), |_| {});
    let run = tokio::spawn(async move { discovery.run_once().await });
    pass_time(5).await;
    // The first region is scanned; while the second one responds slowly, the worker is terminated.
    harness.compute.set_state(REGION, &"i-1".into(), Ec2State::Terminated);
    harness.control_plane.edit(&worker_id(1), |worker| worker.status = WorkerStatus::Terminated);
    let report = run.await.expect("no panic");
    assert_eq!(harness.record(1).status, WorkerStatus::Terminated);
    assert!(report.regions.iter().all(|region| region.resurrected.is_empty()), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn orphan_with_a_new_instance_is_kept_without_versions() {
    let harness = Harness::with_control_plane(|control_plane| control_plane.with_versions(Versions::NotKept));
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    harness.worker(2, WorkerStatus::Running, Ec2State::Running);
    harness.compute.remove(REGION, &"i-1".into());
    harness.compute.set_delay(REGION, Duration::from_secs(20));
    let config = both_regions().with_regions([REGION]);
    let discovery = Discovery::new(harness.reconciler(), config, |_| {});
    let run = tokio::spawn(async move { discovery.run_once().await });
    // The scan ends after twenty seconds, verification after forty.
    pass_time(30).await;
    harness.control_plane.edit(&worker_id(1), |worker| worker.ec2_instance_id = Some("i-9".into()));
    let report = run.await.expect("no panic");
    assert_eq!(report.orphans_terminated(), 0);
    assert_eq!(harness.record(1).status, WorkerStatus::Running);
}

#[tokio::test(start_paused = true)]
async fn dry_run_of_discovery_changes_nothing() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    harness.worker(2, WorkerStatus::Running, Ec2State::Running);
    harness.compute.remove(REGION, &"i-1".into());
    harness.worker(3, WorkerStatus::Terminated, Ec2State::Running);
    harness.worker_in(OTHER_REGION, 4, WorkerStatus::Running, Ec2State::Running);
    harness.compute.remove(OTHER_REGION, &"i-4".into());
    let discovery = Discovery::new(harness.reconciler(), both_regions(), |worker| panic!("{worker} was enqueued"));
    let plan = discovery.clone().with_regions(vec![REGION.to_owned()]).dry_run().await;
    assert_eq!(plan.regions.len(), 1, "{plan:?}");
    let concluded: Vec<_> = plan.regions[0].verdicts.iter().map(|verdict| verdict.conclusion.as_str()).collect();
    assert_eq!(concluded, ["orphan"]);
    assert_eq!(plan.regions[0].resurrected, [worker_id(3)]);
    assert_eq!((plan.orphans_terminated(), harness.record(1).status), (0, WorkerStatus::Running));
    assert_eq!(harness.record(3).status, WorkerStatus::Terminated);
    let real = discovery.with_regions(vec![REGION.to_owned()]).run_once().await;
    assert_eq!(real.regions[0].terminated, [worker_id(1)]);
    assert_eq!(harness.record(4).status, WorkerStatus::Running, "the region was not selected");
}

#[tokio::test(start_paused = true)]
async fn delayed_metrics_are_not_reported_after_the_lease() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    harness.worker(2, WorkerStatus::Stopped, Ec2State::Stopped);
    let (lease, keeper) = LeaderLease::new(7, Instant::now() + Duration::from_secs(600));
    let reconciler = harness.reconciler();
    let metrics = MetricsLoop::new(reconciler.with_lease(lease), Duration::from_secs(60));
    // A reconcile of the same worker takes a minute.
    harness.compute.set_delay(REGION, Duration::from_secs(60));
    let worker = harness.record(1);
    let (_result, (), report) = tokio::join!(
        reconciler.reconcile(&worker),
        async {
            harness.compute.set_delay(REGION, Duration::ZERO);
            tokio::time::sleep(Duration::from_secs(30)).await;
            keeper.end();
        },
        metrics.run_once(),
    );
    assert_eq!(report.expect("listed").reported, 0);
}

#[tokio::test(start_paused = true)]
async fn dropped_controller_does_not_renew_its_lease() {
    let (harness, etcd) = (Harness::new(), MemoryCoordination::new());
    let controller = controller(&harness, Arc::new(etcd.clone()), WorkerControllerConfig::default());
    let run = tokio::spawn({
        let controller = controller.clone();
        async move { controller.run(&Shutdown::new()).await }
    });
    pass_time(5).await;
    assert!(controller.lease().is_some());
    run.abort();
    // Equals a crash: the lease is neither revoked nor renewed.
    pass_time(20).await;
    assert_eq!(etcd.leases(), [], "another controller can lead");
    assert!(controller.lease().is_none());
}

/// An etcd that serves elections, and lists no workers until it is opened.
struct LateWatch {
    etcd: MemoryCoordination,
    is_open: AtomicBool,
}

#[async_trait::async_trait]
impl Coordination for LateWatch {
    async fn grant(&self, ttl: Duration) -> Result<Lease, CallFailure> {
        self.etcd.grant(ttl).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<Renewal, CallFailure> {
        self.etcd.renew(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), CallFailure> {
        self.etcd.revoke(lease).await
    }

    async fn claim(&self, key: &str, value: &str, lease: LeaseId) -> Result<Claim, CallFailure> {
        self.etcd.claim(key, value, lease).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, CallFailure> {
        if prefix.contains("workers") && !self.is_open.load(Ordering::Acquire) {
            return Err(CallFailure::new(FailureKind::Unreachable, "not yet"));
        }
        self.etcd.list(prefix).await
    }

    async fn watch(&self, prefix: &str, from_revision: i64) -> Result<Box<dyn WatchStream>, CallFailure> {
        self.etcd.watch(prefix, from_revision).await
    }
}

#[tokio::test(start_paused = true)]
async fn late_watch_lists_missed_changes() {
    let harness = Harness::new();
    let etcd = Arc::new(LateWatch { etcd: MemoryCoordination::new(), is_open: AtomicBool::new(false) });
    let config =
        WorkerControllerConfig::default().with_controller(ControllerConfig::default().with_polling(Polling::Disabled));
    let controller = controller(&harness, Arc::clone(&etcd) as _, config);
    let run = tokio::spawn(async move { controller.run(&Shutdown::new()).await });
    pass_time(20).await;
    harness.worker(1, WorkerStatus::Stopped, Ec2State::Stopped);
    harness.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Running));
    // The watch may have given up by now. It is revived without polling, and the first listing fails.
    pass_time(300).await;
    assert_eq!(harness.record(1).status, WorkerStatus::Stopped, "the change is not known yet");
    let away = CallFailure::new(FailureKind::Unreachable, "unreachable");
    harness.control_plane.plan("workers", Fault::Fail(away));
    etcd.is_open.store(true, Ordering::Release);
    pass_time(120).await;
    assert_eq!(harness.starts(), 1);
    run.abort();
}
