//! The loops beside the passes: discovery, metrics, and the controller that holds them together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lcm_sdk::controller::lease::LeaderLease;
use lcm_sdk::controller::shutdown::Shutdown;
use lcm_sdk::controller::{ControllerConfig, Polling};
use lcm_sdk::ports::{Claim, Coordination, DiscoveryFilter, Lease, LeaseId, Listing, Renewal, WatchStream};
use lcm_sdk::providers::memory::{Fault, MemoryCoordination, Versions};
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{Discovery, DiscoveryConfig, MetricsLoop, WorkerController, WorkerControllerConfig};
use lcm_sdk::{CallFailure, DesiredStatus, Ec2State, FailureKind, WorkerStatus};
use tokio::time::Instant;

use super::bench::{Bench, ELSEWHERE, HERE, pass_time, worker_id};

fn everywhere() -> DiscoveryConfig {
    let tags = vec![("lcm:worker_id".to_owned(), None)];
    DiscoveryConfig {
        regions: vec![HERE.to_owned(), ELSEWHERE.to_owned()],
        filter: DiscoveryFilter { tags, ..DiscoveryFilter::default() },
        ..DiscoveryConfig::default()
    }
}

fn controller(bench: &Bench, etcd: Arc<dyn Coordination>, config: WorkerControllerConfig) -> WorkerController {
    let config = WorkerControllerConfig { discovery: None, ..config };
    WorkerController::new(bench.ports(), bench.policy.clone(), Some(etcd), config, Telemetry::default())
        .expect("can be elected")
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_was_terminated_during_a_scan_is_not_brought_back() {
    let bench = Bench::new();
    bench.worker(1, WorkerStatus::Terminating, Ec2State::Running);
    bench.compute.slow_down(ELSEWHERE, Duration::from_secs(60));
    let discovery = Discovery::new(bench.reconciler(), everywhere(), |_| {});
    let pass = tokio::spawn(async move { discovery.run_once().await });
    pass_time(5).await;
    // One region is scanned; while the other one takes its time, the worker comes to its end.
    bench.compute.set_state(HERE, &"i-1".into(), Ec2State::Terminated);
    bench.control_plane.edit(&worker_id(1), |worker| worker.status = WorkerStatus::Terminated);
    let report = pass.await.expect("no panic");
    assert_eq!(bench.look(1).status, WorkerStatus::Terminated);
    assert!(report.regions.iter().all(|region| region.resurrected.is_empty()), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn without_versions_an_orphan_that_has_a_new_instance_is_left_alone() {
    let bench = Bench::with(|control_plane| control_plane.with_versions(Versions::NotKept));
    bench.worker(1, WorkerStatus::Running, Ec2State::Running);
    bench.worker(2, WorkerStatus::Running, Ec2State::Running);
    bench.compute.forget(HERE, &"i-1".into());
    bench.compute.slow_down(HERE, Duration::from_secs(20));
    let config = DiscoveryConfig { regions: vec![HERE.to_owned()], ..everywhere() };
    let discovery = Discovery::new(bench.reconciler(), config, |_| {});
    let pass = tokio::spawn(async move { discovery.run_once().await });
    // Scanned after twenty seconds, listed then, verified after forty.
    pass_time(30).await;
    bench.control_plane.edit(&worker_id(1), |worker| worker.ec2_instance_id = Some("i-9".into()));
    let report = pass.await.expect("no panic");
    assert_eq!(report.orphans_terminated(), 0);
    assert_eq!(bench.look(1).status, WorkerStatus::Running);
}

#[tokio::test(start_paused = true)]
async fn a_rehearsal_of_discovery_says_what_it_would_do_and_does_nothing() {
    let bench = Bench::new();
    bench.worker(1, WorkerStatus::Running, Ec2State::Running);
    bench.worker(2, WorkerStatus::Running, Ec2State::Running);
    bench.compute.forget(HERE, &"i-1".into());
    bench.worker(3, WorkerStatus::Terminated, Ec2State::Running);
    bench.worker_in(ELSEWHERE, 4, WorkerStatus::Running, Ec2State::Running);
    bench.compute.forget(ELSEWHERE, &"i-4".into());
    let discovery = Discovery::new(bench.reconciler(), everywhere(), |worker| panic!("{worker} was asked for"));
    let plan = discovery.clone().only_in(vec![HERE.to_owned()]).dry_run().await;
    assert_eq!(plan.regions.len(), 1, "{plan:?}");
    let concluded: Vec<_> = plan.regions[0].verdicts.iter().map(|verdict| verdict.conclusion.as_str()).collect();
    assert_eq!(concluded, ["orphan"]);
    assert_eq!(plan.regions[0].resurrected, [worker_id(3)]);
    assert_eq!((plan.orphans_terminated(), bench.look(1).status), (0, WorkerStatus::Running));
    assert_eq!(bench.look(3).status, WorkerStatus::Terminated);
    let real = discovery.only_in(vec![HERE.to_owned()]).run_once().await;
    assert_eq!(real.regions[0].terminated, [worker_id(1)]);
    assert_eq!(bench.look(4).status, WorkerStatus::Running, "nobody asked about that region");
}

#[tokio::test(start_paused = true)]
async fn metrics_that_had_to_wait_are_not_reported_without_the_lead() {
    let bench = Bench::new();
    bench.worker(1, WorkerStatus::Running, Ec2State::Running);
    bench.worker(2, WorkerStatus::Stopped, Ec2State::Stopped);
    let (leadership, keeper) = LeaderLease::leased(7, Instant::now() + Duration::from_secs(600));
    let reconciler = bench.reconciler();
    let metrics = MetricsLoop::new(reconciler.with_lease(leadership), Duration::from_secs(60));
    // A pass over the same worker takes a minute.
    bench.compute.slow_down(HERE, Duration::from_secs(60));
    let worker = bench.look(1);
    let (_pass, (), report) = tokio::join!(
        reconciler.reconcile(&worker),
        async {
            bench.compute.slow_down(HERE, Duration::ZERO);
            tokio::time::sleep(Duration::from_secs(30)).await;
            keeper.end();
        },
        metrics.run_once(),
    );
    assert_eq!(report.expect("listed").reported, 0);
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_is_dropped_leads_no_more() {
    let (bench, etcd) = (Bench::new(), MemoryCoordination::new());
    let controller = controller(&bench, Arc::new(etcd.clone()), WorkerControllerConfig::default());
    let run = tokio::spawn({
        let controller = controller.clone();
        async move { controller.run(&Shutdown::new()).await }
    });
    pass_time(5).await;
    assert!(controller.leadership().is_some());
    run.abort();
    // As after a crash: nothing is given back, and nobody renews it.
    pass_time(20).await;
    assert_eq!(etcd.leases(), [], "somebody else can lead");
    assert!(controller.leadership().is_none());
}

/// An etcd that elects, and shows no workers until it is opened.
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
async fn a_watch_that_begins_after_the_sweep_makes_up_for_what_it_missed() {
    let bench = Bench::new();
    let etcd = Arc::new(LateWatch { etcd: MemoryCoordination::new(), is_open: AtomicBool::new(false) });
    let config = WorkerControllerConfig {
        controller: ControllerConfig { polling: Polling::Disabled, ..ControllerConfig::default() },
        ..WorkerControllerConfig::default()
    };
    let controller = controller(&bench, Arc::clone(&etcd) as _, config);
    let run = tokio::spawn(async move { controller.run(&Shutdown::new()).await });
    pass_time(20).await;
    bench.worker(1, WorkerStatus::Stopped, Ec2State::Stopped);
    bench.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Running));
    // By now the watch may have given up; nobody polls, and it is revived all the same. The first listing fails.
    pass_time(300).await;
    assert_eq!(bench.look(1).status, WorkerStatus::Stopped, "nobody could know");
    let away = CallFailure::new(FailureKind::Unreachable, "nobody home");
    bench.control_plane.plan("workers", Fault::Fail(away));
    etcd.is_open.store(true, Ordering::Release);
    pass_time(120).await;
    assert_eq!(bench.starts(), 1);
    run.abort();
}
