//! Discovery, metrics and the worker controller.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lcm_sdk::admin::{AdminSource, Role, Triggered};
use lcm_sdk::controller::{
    ControllerConfig, ElectionConfig, LeaderLease, Polling, Readiness, Runner, Shards, Shutdown, WatchState,
};
use lcm_sdk::ports::{
    Claim, CloudEvent, Coordination, DiscoveryFilter, Events, Lease, LeaseId, Listing, Renewal, WatchStream,
};
use lcm_sdk::providers::memory::{ComputeCall, Fault, MemoryCoordination, Versions};
use lcm_sdk::reconciler::{Mode, Reconciler};
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{
    Discovery, DiscoveryConfig, MetricsLoop, WorkerController, WorkerControllerConfig, WorkerFleet,
};
use lcm_sdk::{CallFailure, DesiredStatus, Ec2State, FailureKind, Image, Worker, WorkerStatus};
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
    harness.worker(5, WorkerStatus::Stopped, Ec2State::Running);
    let discovery = Discovery::new(harness.reconciler(), both_regions(), |worker| panic!("{worker} was enqueued"));
    let plan = discovery.clone().with_regions(vec![REGION.to_owned()]).dry_run().await;
    assert_eq!(plan.regions.len(), 1, "{plan:?}");
    let concluded: Vec<_> = plan.regions[0].verdicts.iter().map(|verdict| verdict.conclusion.as_str()).collect();
    assert_eq!(concluded, ["orphan"]);
    assert_eq!(plan.regions[0].resurrected, [worker_id(3)]);
    assert_eq!(plan.regions[0].handed_over, [worker_id(5)]);
    assert_eq!((plan.orphans_terminated(), harness.record(1).status), (0, WorkerStatus::Running));
    assert_eq!(harness.record(3).status, WorkerStatus::Terminated);
    let real = Discovery::new(harness.reconciler(), both_regions(), |_| {});
    let real = real.with_regions(vec![REGION.to_owned()]).run_once().await;
    assert_eq!(real.regions[0].terminated, [worker_id(1)]);
    assert_eq!(harness.record(4).status, WorkerStatus::Running, "the region was not selected");
}

/// A receiver of events that never answers.
struct HungSink;

#[async_trait::async_trait]
impl Events for HungSink {
    async fn publish(&self, _: &CloudEvent) -> Result<(), CallFailure> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn hung_event_sink_delays_no_orphan() {
    let harness = Harness::new();
    for number in 0..200 {
        harness.worker(number, WorkerStatus::Running, Ec2State::Running);
    }
    for number in 1..200 {
        harness.compute.remove(REGION, &format!("i-{number}").as_str().into());
    }
    let mut ports = harness.ports();
    ports.events = Arc::new(HungSink);
    let reconciler = Reconciler::new(ports, harness.policy.clone()).expect("a supported policy");
    let discovery = Discovery::new(reconciler.clone(), both_regions().with_regions([REGION]), |_| {});
    let began = Instant::now();
    let report = discovery.run_once().await;
    assert_eq!(report.orphans_terminated(), 199);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(reconciler.flush(Duration::from_secs(5)).await, 199, "the end waits no longer than its limit");
}

#[tokio::test(start_paused = true)]
async fn hung_event_sink_delays_no_reconcile() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Draining, Ec2State::Running);
    harness.session("s-1", "running", 1);
    // The drain has timed out, which is announced before the sessions end.
    harness.control_plane.edit(&worker_id(1), |worker| worker.notes.drain_started_at = worker.created_at);
    let mut ports = harness.ports();
    ports.events = Arc::new(HungSink);
    let reconciler = Reconciler::new(ports, harness.policy.clone()).expect("a supported policy");
    let began = Instant::now();
    let result = reconciler.reconcile(&harness.record(1)).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_ne!(harness.session_state("s-1"), "running", "{result}");
    assert!(reconciler.flush(Duration::from_secs(1)).await > 0, "an event waits");
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
async fn reconciles_leave_metrics_to_the_round_under_way() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    harness.worker_in(OTHER_REGION, 2, WorkerStatus::Running, Ec2State::Running);
    harness.control_plane.edit(&worker_id(1), |worker| worker.is_idle_detection_enabled = false);
    // The region that is collected first responds after two minutes.
    harness.compute.set_delay(OTHER_REGION, Duration::from_secs(120));
    let reconciler = harness.reconciler();
    let metrics = MetricsLoop::new(reconciler.clone(), Duration::from_secs(60));
    let round = tokio::spawn(async move { metrics.run_once().await });
    pass_time(90).await;
    harness.clock.advance(Duration::from_secs(90));
    let before = harness.metrics.calls().len();
    assert_eq!(harness.reconcile(&reconciler, 1).await.to_status, WorkerStatus::Running);
    assert_eq!(harness.metrics.calls().len(), before, "the round reports them");
    assert_eq!(round.await.expect("no panic").expect("listed").reported, 2);
    harness.clock.advance(Duration::from_secs(61));
    let _result = harness.reconcile(&reconciler, 1).await;
    assert_eq!(harness.metrics.calls().len(), before + 2, "collected by a round and by a reconcile");
}

#[tokio::test(start_paused = true)]
async fn failed_collection_reports_the_attempt() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    let metrics = MetricsLoop::new(harness.reconciler(), Duration::from_secs(60));
    assert_eq!(metrics.run_once().await.expect("listed").reported, 1);
    let first = harness.control_plane.metrics_of(&worker_id(1)).expect("metrics");
    harness.clock.advance(Duration::from_secs(60));
    let away = || CallFailure::new(FailureKind::Unreachable, "unreachable");
    harness.metrics.fail_next(away());
    harness.cml.fail_next(away());
    assert_eq!(metrics.run_once().await.expect("listed").reported, 0);
    let second = harness.control_plane.metrics_of(&worker_id(1)).expect("metrics");
    assert!(second.at > first.at, "the attempt is reported");
    assert_eq!((second.cloud, second.cml), (first.cloud, first.cml), "and erases nothing");
}

#[tokio::test(start_paused = true)]
async fn stuck_worker_shows_by_the_age_of_its_status() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Stopping, Ec2State::Stopping);
    let reconciler = harness.reconciler();
    let config = ControllerConfig::default().with_initial_delay(Duration::ZERO).with_interval(Duration::from_secs(30));
    let fleet = WorkerFleet::new(reconciler.clone(), Mode::Real);
    let controller = Runner::new(Arc::new(fleet), config, Telemetry::default());
    let run = tokio::spawn(async move { controller.run(&Shutdown::new()).await });
    let age = async || {
        pass_time(31).await;
        reconciler.telemetry().longest_in_status().get("stopping").map(|longest| longest.seconds)
    };
    let first = age().await.expect("a stopping worker");
    harness.clock.advance(Duration::from_secs(3600));
    // Another write of the record does not make the status younger.
    harness.control_plane.edit(&worker_id(1), |worker| worker.name = Some("blue".to_owned()));
    assert_eq!(age().await, Some(first + 3600.0));
    harness.compute.set_state(REGION, &"i-1".into(), Ec2State::Stopped);
    harness.control_plane.edit(&worker_id(1), |worker| worker.status = WorkerStatus::Stopped);
    assert_eq!(age().await, None);
    run.abort();
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
async fn parked_worker_whose_instance_comes_up_is_followed() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Stopped, Ec2State::Pending);
    let etcd = MemoryCoordination::new();
    let controller = controller(&harness, Arc::new(etcd), WorkerControllerConfig::default().without_watch());
    let run = tokio::spawn(async move { controller.run(&Shutdown::new()).await });
    pass_time(20).await;
    assert_eq!(harness.record(1).status, WorkerStatus::Stopped, "on its way, and at rest");
    harness.compute.set_state(REGION, &"i-1".into(), Ec2State::Running);
    pass_time(60).await;
    assert_eq!(harness.record(1).status, WorkerStatus::Running);
    run.abort();
}

#[tokio::test(start_paused = true)]
async fn outage_of_the_control_plane_is_shown() {
    let harness = Harness::new();
    for _ in 0..3 {
        let away = CallFailure::new(FailureKind::Unreachable, "connection refused");
        harness.control_plane.plan("workers", Fault::Fail(away));
    }
    let controller =
        controller(&harness, Arc::new(MemoryCoordination::new()), WorkerControllerConfig::default().without_watch());
    let run = tokio::spawn({
        let controller = controller.clone();
        async move { controller.run(&Shutdown::new()).await }
    });
    pass_time(4).await;
    let outage = AdminSource::readiness(&controller).expect_err("not ready").to_string();
    for part in ["the control plane cannot be reached since 2026-02-06T08:00:00", "connection refused"] {
        assert!(outage.contains(part), "{part} is not in {outage}");
    }
    let reachable: Vec<_> = controller.stats().services.iter().map(|service| service.reachable).collect();
    assert_eq!(reachable, [Some(true), Some(false)]);
    pass_time(30).await;
    assert_eq!(AdminSource::readiness(&controller), Ok(Role::Leader));
    assert!(controller.controller().heartbeat_age().is_some_and(|age| age <= Duration::from_secs(1)));
    run.abort();
}

#[tokio::test(start_paused = true)]
async fn standby_names_the_leader_and_an_outage_of_etcd() {
    let (harness, etcd) = (Harness::new(), MemoryCoordination::new());
    let start = |identity: &str, etcd: MemoryCoordination| {
        let election = ElectionConfig::default().with_identity(identity);
        let config = WorkerControllerConfig::default().with_election(election).without_watch();
        let controller = controller(&harness, Arc::new(etcd), config);
        let run = tokio::spawn({
            let controller = controller.clone();
            async move { controller.run(&Shutdown::new()).await }
        });
        (controller, run)
    };
    let (first, _first) = start("first", etcd.clone());
    pass_time(5).await;
    let link = etcd.new_client();
    let (second, _second) = start("second", link.clone());
    pass_time(5).await;
    assert_eq!((first.stats().leader.as_deref(), second.stats().leader.as_deref()), (Some("first"), Some("first")));
    assert_eq!(AdminSource::readiness(&second), Ok(Role::Standby));
    link.disconnect();
    pass_time(20).await;
    let outage = AdminSource::readiness(&second).expect_err("not ready").to_string();
    assert!(outage.starts_with("etcd cannot be reached since"), "{outage}");
}

#[tokio::test(start_paused = true)]
async fn standby_is_ready_once_its_services_respond() {
    let (harness, etcd) = (Harness::new(), MemoryCoordination::new());
    let leader = etcd.grant(Duration::from_secs(3600)).await.expect("a lease");
    let key = ElectionConfig::default().key;
    etcd.claim(&key, "another", leader.id).await.expect("claimed");
    let controller = controller(&harness, Arc::new(etcd), WorkerControllerConfig::default().without_watch());
    let early = AdminSource::readiness(&controller).expect_err("nothing is known yet").to_string();
    assert!(early.contains("etcd has not responded yet"), "{early}");
    let run = tokio::spawn({
        let controller = controller.clone();
        async move { controller.run(&Shutdown::new()).await }
    });
    pass_time(5).await;
    assert_eq!(AdminSource::readiness(&controller), Ok(Role::Standby));
    let refused = CallFailure::with_code(FailureKind::Refused, "401", "wrong key");
    harness.control_plane.plan("discovery_settings", Fault::Fail(refused));
    pass_time(30).await;
    let outage = AdminSource::readiness(&controller).expect_err("not ready").to_string();
    assert!(outage.contains("the control plane cannot be reached") && outage.contains("wrong key"), "{outage}");
    pass_time(30).await;
    assert_eq!(AdminSource::readiness(&controller), Ok(Role::Standby));
    run.abort();
}

#[tokio::test(start_paused = true)]
async fn resignation_hands_the_lead_to_another_controller() {
    for shards in [1, 4] {
        let (harness, etcd) = (Harness::new(), MemoryCoordination::new());
        let start = |identity: &str| {
            let election = ElectionConfig::default().with_identity(identity);
            let config = WorkerControllerConfig::default().with_election(election).without_watch();
            let config = config.with_shards(Shards::new(shards).expect("a valid number"));
            let controller = controller(&harness, Arc::new(etcd.new_client()), config);
            let (running, shutdown) = (controller.clone(), Shutdown::new());
            let requested = shutdown.clone();
            tokio::spawn(async move { running.run(&requested).await });
            (controller, shutdown)
        };
        let (first, _first) = start("first");
        pass_time(5).await;
        let (second, shutdown) = start("second");
        pass_time(10).await;
        assert_eq!(first.stats().role, Role::Leader);
        if shards == 1 {
            assert!(AdminSource::resign(&second).expect_err("a standby").to_string().contains("does not lead"));
        }
        AdminSource::resign(&first).expect("it leads");
        pass_time(5).await;
        assert_eq!((first.stats().role, second.stats().role), (Role::Standby, Role::Leader), "{shards} shards");
        // It competes again after a while, and takes over when the other one ends.
        pass_time(30).await;
        assert_eq!(second.stats().role, Role::Leader);
        shutdown.request();
        pass_time(30).await;
        assert_eq!((first.stats().role, second.stats().role), (Role::Leader, Role::Standby), "{shards} shards");
    }
}

#[tokio::test(start_paused = true)]
async fn leader_without_election_cannot_resign() {
    let harness = Harness::new();
    let config = WorkerControllerConfig::default().without_discovery();
    let controller = WorkerController::new(harness.ports(), harness.policy.clone(), None, config, Telemetry::default())
        .expect("valid");
    let run = tokio::spawn({
        let controller = controller.clone();
        async move { controller.run(&Shutdown::new()).await }
    });
    pass_time(5).await;
    let refusal = AdminSource::resign(&controller).expect_err("refused").to_string();
    assert!(refusal.contains("without an election"), "{refusal}");
    assert_eq!(controller.stats().role, Role::Leader);
    run.abort();
}

#[tokio::test(start_paused = true)]
async fn only_existing_workers_are_triggered() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    let etcd = Arc::new(MemoryCoordination::new());
    let controller = controller(&harness, etcd, WorkerControllerConfig::default().without_watch());
    assert_eq!(controller.trigger("w-1").await, Triggered::NotLeading);
    let run = tokio::spawn({
        let controller = controller.clone();
        async move { controller.run(&Shutdown::new()).await }
    });
    pass_time(10).await;
    assert_eq!(controller.trigger("w-1").await, Triggered::Queued);
    assert_eq!(controller.trigger("w-9").await, Triggered::NoSuchResource);
    harness.worker(2, WorkerStatus::Running, Ec2State::Running);
    assert_eq!(controller.trigger("w-2").await, Triggered::Queued, "it was not listed yet");
    let away = CallFailure::new(FailureKind::Unreachable, "connection refused");
    harness.control_plane.plan("worker", Fault::Fail(away));
    let unknown = controller.trigger("w-9").await;
    assert!(matches!(&unknown, Triggered::Unknown(failure) if failure.contains("connection refused")), "{unknown:?}");
    run.abort();
}

/// An etcd client with a defect.
struct PanickingEtcd;

#[async_trait::async_trait]
impl Coordination for PanickingEtcd {
    async fn grant(&self, _: Duration) -> Result<Lease, CallFailure> {
        panic!("injected panic")
    }

    async fn renew(&self, _: LeaseId) -> Result<Renewal, CallFailure> {
        Ok(Renewal::Gone)
    }

    async fn revoke(&self, _: LeaseId) -> Result<(), CallFailure> {
        Ok(())
    }

    async fn claim(&self, _: &str, _: &str, _: LeaseId) -> Result<Claim, CallFailure> {
        Ok(Claim::Won { revision: 1 })
    }

    async fn list(&self, _: &str) -> Result<Listing, CallFailure> {
        Ok(Listing::default())
    }

    async fn watch(&self, _: &str, _: i64) -> Result<Box<dyn WatchStream>, CallFailure> {
        Err(CallFailure::new(FailureKind::Unreachable, "no watch"))
    }
}

#[tokio::test(start_paused = true)]
async fn panic_of_the_election_ends_the_run() {
    for shards in [1, 4] {
        let harness = Harness::new();
        let config = WorkerControllerConfig::default().with_shards(Shards::new(shards).expect("a valid number"));
        let controller = controller(&harness, Arc::new(PanickingEtcd), config.without_watch());
        let run = tokio::spawn(async move { controller.run(&Shutdown::new()).await });
        let ended = tokio::time::timeout(Duration::from_secs(60), run).await.expect("it ends");
        assert!(ended.expect_err("a panic").is_panic(), "{shards} shards");
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

#[tokio::test(start_paused = true)]
async fn degraded_record_is_managed_and_reported() {
    let harness = Harness::new();
    let mut record = harness.worker(1, WorkerStatus::Running, Ec2State::Running).to_json();
    record.insert("desired_status".to_owned(), "terminated".into());
    record.insert("license".to_owned(), serde_json::json!({"pending_operation": "transfer"}));
    record.insert("aws_tags".to_owned(), serde_json::json!({"team": null}));
    record.insert("last_activity_check_at".to_owned(), 5.into());
    record.insert("metadata".to_owned(), serde_json::json!({"scaled_down_at": "soon"}));
    harness.control_plane.put_worker(serde_json::Value::Object(record).try_into().expect("a readable record"));
    let telemetry = Telemetry::default();
    let config = WorkerControllerConfig::default().without_discovery();
    let controller =
        WorkerController::new(harness.ports(), harness.policy.clone(), None, config, telemetry.clone()).expect("valid");
    let shutdown = Shutdown::new();
    let running = tokio::spawn({
        let (controller, shutdown) = (controller.clone(), shutdown.clone());
        async move { controller.run(&shutdown).await }
    });
    pass_time(10).await;
    let stats = controller.record_stats();
    assert_eq!((stats.unreadable, stats.degraded), (0, 1));
    assert_eq!(stats.problems[0].problems.len(), 4, "{stats:?}");
    assert!(telemetry.to_prometheus().contains("lcm_degraded_records 1"));
    pass_time(300).await;
    assert_ne!(harness.ec2_state(REGION, 1), Ec2State::Running, "the desired status is followed");
    let status = harness.record(1).status;
    assert!(matches!(status, WorkerStatus::Terminating | WorkerStatus::Terminated), "{status}");
    shutdown.request();
    running.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn leader_watches_sweeps_scans_and_polls() {
    let (harness, etcd) = (Harness::new(), MemoryCoordination::new());
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    let config = WorkerControllerConfig::default().with_discovery(both_regions());
    let controller = WorkerController::new(
        harness.ports(),
        harness.policy.clone(),
        Some(Arc::new(etcd)),
        config,
        Telemetry::default(),
    )
    .expect("a valid configuration");
    let run = tokio::spawn({
        let controller = controller.clone();
        async move { controller.run(&Shutdown::new()).await }
    });
    let seen = || {
        let describes = harness.compute.calls().iter().any(|call| matches!(call, ComputeCall::Instances { .. }));
        let scans = harness.compute.calls().iter().any(|call| matches!(call, ComputeCall::Scan { .. }));
        (controller.watch_state() == Some(WatchState::Connected), !harness.metrics.calls().is_empty(), describes, scans)
    };
    let swept = || matches!(*controller.readiness().borrow(), Readiness::Ready(_));
    pass_time(1).await;
    let (watches, _, _, scans) = seen();
    assert_eq!((watches, scans, swept()), (true, false, false), "the watch comes first");
    pass_time(3).await;
    assert_eq!((seen(), swept()), ((true, true, true, false), true), "then metrics and the sweep");
    pass_time(3).await;
    assert!(seen().3, "then discovery");
    let listings = || harness.control_plane.calls().iter().filter(|call| call.starts_with("workers ")).count();
    let before = listings();
    pass_time(60).await;
    assert!(listings() >= before + 2, "then polling");
    run.abort();
}

#[tokio::test(start_paused = true)]
async fn new_worker_is_launched_within_a_second() {
    let (harness, etcd) = (Harness::new(), MemoryCoordination::new());
    let image = Image { id: "ami-1".into(), name: "cisco-cml2.9".into(), creation_date: "2026-01-01".into() };
    harness.compute.put_image(REGION, image);
    harness.compute.put_subnet(REGION, "subnet-1");
    let polling = ControllerConfig::default().with_polling(Polling::Disabled);
    let config = WorkerControllerConfig::default().with_controller(polling);
    let controller = controller(&harness, Arc::new(etcd.clone()), config);
    let run = tokio::spawn(async move { controller.run(&Shutdown::new()).await });
    pass_time(20).await;
    let mut worker = Worker::new("w-1", WorkerStatus::Pending);
    worker.template_name = Some("metal".to_owned());
    worker.desired_status = Some(DesiredStatus::Running);
    harness.control_plane.put_worker(worker);
    etcd.put("/workers/w-1", "pending");
    pass_time(1).await;
    assert_eq!((harness.record(1).status, harness.compute.all(REGION).len()), (WorkerStatus::Provisioning, 1));
    harness.compute.settle();
    pass_time(60).await;
    assert_eq!(harness.record(1).status, WorkerStatus::Running);
    run.abort();
}
