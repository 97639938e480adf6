//! Reconciles that overlap with others, use outdated data, or outlive their lease.

use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::controller::{ControllerConfig, LeaderLease, Resource as _, Runner, Shutdown};
use lcm_sdk::lifecycle::drain::DrainError;
use lcm_sdk::lifecycle::{
    Capabilities, CloudMetrics, CmlMetrics, DrainRequest, LicenseOperation, RegistrationStatus, Support,
};
use lcm_sdk::ports::{Clock as _, Cml, CmlTarget, Metrics};
use lcm_sdk::providers::memory::{Fault, NotesKeeping, Versions};
use lcm_sdk::reconciler::{Hints, Mode, OperationError, Reconciler};
use lcm_sdk::telemetry::{Anomaly, Telemetry};
use lcm_sdk::workers::{FetchedWorker, WorkerFleet};
use lcm_sdk::{
    CallFailure, DesiredStatus, Ec2State, FailureKind, Image, Instance, InstanceId, Lookup, Outcome, ReasonCode,
    Requeue, Secret, Timestamp, Worker, WorkerStatus,
};
use tokio::time::Instant;

use super::harness::{Harness, OTHER_REGION, REGION, pass_time, worker_id};

fn read_now(worker: lcm_sdk::Worker) -> FetchedWorker {
    FetchedWorker { worker, read_at: Instant::now() }
}

#[tokio::test(start_paused = true)]
async fn waiting_reconcile_reads_the_record_again() {
    // Without versions a changed record causes no conflict.
    let harness = Harness::with_control_plane(|control_plane| control_plane.with_versions(Versions::NotKept));
    harness.worker(1, WorkerStatus::Stopped, Ec2State::Stopped);
    harness.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Running));
    harness.compute.set_delay(REGION, Duration::from_secs(5));
    let (reconciler, worker) = (harness.reconciler(), harness.record(1));
    let (first, second) = tokio::join!(reconciler.reconcile(&worker), reconciler.reconcile(&worker));
    assert_eq!((first.from_status, first.to_status), (WorkerStatus::Stopped, WorkerStatus::Starting));
    assert_eq!(second.from_status, WorkerStatus::Starting);
    assert_eq!(harness.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn outdated_record_is_read_again_before_effects() {
    let harness = Harness::new();
    harness.worker_in(OTHER_REGION, 1, WorkerStatus::Running, Ec2State::Running);
    harness.control_plane.edit(&worker_id(1), |worker| worker.is_idle_detection_enabled = false);
    harness.compute.set_delay(OTHER_REGION, Duration::from_secs(60));
    harness.worker(2, WorkerStatus::Draining, Ec2State::Running);
    harness.session("s-1", "running", 2);
    harness.control_plane.edit(&worker_id(2), |worker| {
        worker.desired_status = Some(DesiredStatus::Stopped);
        worker.notes.drain_started_at = worker.created_at;
    });
    let config = ControllerConfig::default()
        .with_max_concurrent(1)
        .with_initial_delay(Duration::ZERO)
        .with_interval(Duration::from_secs(600));
    let fleet = WorkerFleet::new(harness.reconciler(), Mode::Real);
    let controller = Runner::new(Arc::new(fleet), config, Telemetry::default());
    let shutdown = Shutdown::new();
    let running = tokio::spawn({
        let (controller, shutdown) = (controller.clone(), shutdown.clone());
        async move { controller.run(&shutdown).await }
    });
    pass_time(5).await;
    // The drain is canceled while its worker waits behind a slow one.
    harness.control_plane.edit(&worker_id(2), |worker| {
        worker.status = WorkerStatus::Running;
        worker.desired_status = Some(DesiredStatus::Running);
        worker.notes.drain_started_at = None;
    });
    pass_time(120).await;
    assert!(controller.resource("w-2").is_some_and(|state| state.last.is_some()), "it was reconciled");
    assert_eq!(harness.session_state("s-1"), "running");
    assert_eq!((harness.record(2).status, harness.stops()), (WorkerStatus::Running, 0));
    shutdown.request();
    pass_time(90).await;
    assert!(running.is_finished());
}

/// A control plane that ignores notes, and has not shown it yet.
fn harness_without_notes() -> Harness {
    let mut capabilities = Capabilities::all(Support::Yes);
    capabilities.notes = Support::Unknown;
    Harness::with_control_plane(|control_plane| {
        control_plane
            .with_versions(Versions::NotKept)
            .with_notes_keeping(NotesKeeping::Dropped)
            .with_capabilities(capabilities)
    })
}

#[tokio::test(start_paused = true)]
async fn unkept_fields_are_reported_once_per_worker() {
    let harness = harness_without_notes();
    harness.worker(1, WorkerStatus::Draining, Ec2State::Running);
    harness.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Stopped));
    harness.session("s-1", "running", 1);
    let telemetry = Telemetry::default();
    let reconciler = Reconciler::builder(harness.ports(), harness.policy.clone())
        .telemetry(telemetry.clone())
        .build()
        .expect("a supported policy");
    let mut counted = Vec::new();
    for _ in 0..4 {
        tokio::time::advance(Duration::from_secs(1)).await;
        let hints = Hints { read_at: Some(Instant::now()), ..Hints::default() };
        let result = reconciler.reconcile_with(&harness.record(1), hints, Mode::Real).await;
        assert_eq!(result.reason.code, ReasonCode::DrainWaiting);
        assert_ne!(result.requeue, Requeue::Now, "the same field is written again");
        counted.push(telemetry.anomalies(Anomaly::WriteNotKept));
    }
    // The start of the drain and the account of the instance, which every reconcile writes anew.
    assert_eq!(counted, [0, 2, 2, 2]);
}

#[tokio::test(start_paused = true)]
async fn record_without_a_read_time_reports_nothing() {
    let harness = harness_without_notes();
    harness.worker(1, WorkerStatus::Draining, Ec2State::Running);
    harness.session("s-1", "running", 1);
    let (reconciler, worker) = (harness.reconciler(), harness.record(1));
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(1)).await;
        let _waiting = reconciler.reconcile(&worker).await;
    }
    assert_eq!(reconciler.telemetry().anomalies(Anomaly::WriteNotKept), 0, "it may be older than our write");
}

#[tokio::test(start_paused = true)]
async fn missing_cancellation_is_refused_with_an_alternative() {
    let mut capabilities = Capabilities::all(Support::Yes);
    capabilities.cancel_drain = Support::No;
    let harness = Harness::with_control_plane(|control_plane| control_plane.with_capabilities(capabilities));
    harness.worker(1, WorkerStatus::Draining, Ec2State::Running);
    harness.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Stopped));
    harness.session("s-1", "running", 1);
    let (reconciler, before) = (harness.reconciler(), harness.record(1));
    let request = DrainRequest { reason: "class goes on".to_owned(), requested_by: "alice".to_owned() };
    let refused = reconciler.cancel_drain(&worker_id(1), &request).await.expect_err("it cannot be canceled");
    assert!(matches!(refused, OperationError::NotSupported(_)), "{refused:?}");
    assert!(refused.to_string().contains("; request the desired status 'running'"), "{refused}");
    assert_eq!(harness.record(1), before);
    // The owner requests it, and no session is touched.
    harness.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Running));
    let back = reconciler.cancel_drain(&worker_id(1), &request).await.expect("its owner wants it to run");
    assert_eq!((back.to_status, harness.session_state("s-1").as_str()), (WorkerStatus::Running, "running"));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_without_a_valid_lease() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Running, Ec2State::Terminated);
    harness.session("s-1", "running", 1);
    let (lease, keeper) = LeaderLease::new(7, Instant::now() + Duration::from_secs(10));
    keeper.end();
    let result = harness.reconcile(&harness.reconciler().with_lease(lease), 1).await;
    assert_eq!(result.outcome, Outcome::Retry, "{}", result.reason);
    assert_eq!(harness.record(1).status, WorkerStatus::Running);
    assert_eq!(harness.session_state("s-1"), "running");
}

#[tokio::test(start_paused = true)]
async fn call_that_outlives_the_lease_is_not_sent() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Stopping, Ec2State::Running);
    harness.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Stopped));
    harness.compute.set_delay(REGION, Duration::from_secs(20));
    let (lease, _keeper) = LeaderLease::new(7, Instant::now() + Duration::from_secs(30));
    // Observing takes twenty of the thirty seconds, and stopping would take another twenty.
    let result = harness.reconcile(&harness.reconciler().with_lease(lease), 1).await;
    assert_eq!(result.outcome, Outcome::Retry, "{}", result.reason);
    pass_time(60).await;
    assert_eq!(harness.ec2_state(REGION, 1), Ec2State::Running);
}

#[tokio::test(start_paused = true)]
async fn dry_run_does_not_turn_a_change_into_an_echo() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Stopped, Ec2State::Stopped);
    harness.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Running));
    let reconciler = harness.reconciler();
    let fleet = WorkerFleet::new(reconciler.clone(), Mode::Real);
    assert_eq!(harness.reconcile(&reconciler, 1).await.to_status, WorkerStatus::Starting);
    assert!(fleet.is_echo(&read_now(harness.record(1))));
    harness.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Stopped));
    let _planned = reconciler.dry_run(&harness.record(1)).await;
    assert!(!fleet.is_echo(&read_now(harness.record(1))), "the change is not applied yet");
}

#[tokio::test(start_paused = true)]
async fn cached_describe_of_a_former_instance_is_ignored() {
    let harness = Harness::new();
    for number in [1, 2] {
        harness.worker(number, WorkerStatus::Running, Ec2State::Running);
    }
    harness.compute.remove(REGION, &"i-1".into());
    let reconciler = harness.reconciler();
    let fleet = WorkerFleet::new(reconciler.clone(), Mode::Real);
    fleet.prepare(&[read_now(harness.record(1)), read_now(harness.record(2))]).await;
    // The worker gets another instance, which runs.
    let mut successor = Instance::new("i-9", Ec2State::Running);
    successor.private_ip = Some("10.0.0.1".to_owned());
    harness.compute.put(REGION, successor);
    harness.control_plane.edit(&worker_id(1), |worker| {
        worker.ec2_instance_id = Some("i-9".into());
        worker.is_idle_detection_enabled = false;
    });
    assert_eq!(harness.reconcile(&reconciler, 1).await.to_status, WorkerStatus::Running);
    assert_eq!(harness.record(1).status, WorkerStatus::Running);
}

#[tokio::test(start_paused = true)]
async fn stopped_worker_no_longer_counts_for_the_minimum() {
    let mut harness = Harness::new();
    harness.policy.scale_down.enabled = true;
    harness.policy.scale_down.min_workers = 2;
    harness.policy.scale_down.cooldown = Duration::ZERO;
    for number in 1..=4 {
        harness.worker(number, WorkerStatus::Running, Ec2State::Running);
    }
    let reconciler = harness.reconciler();
    let first = harness.reconcile(&reconciler, 1).await;
    assert_ne!(first.to_status, WorkerStatus::Running, "{}: {first:?}", first.reason);
    harness.compute.set_state(REGION, &"i-2".into(), Ec2State::Terminated);
    assert_eq!(harness.reconcile(&reconciler, 2).await.to_status, WorkerStatus::Terminated);
    let third = harness.reconcile(&reconciler, 3).await;
    assert_eq!(third.to_status, WorkerStatus::Running, "two workers are left: {}", third.reason);
}

fn scaled_down_and_terminated() -> Harness {
    let mut harness = Harness::new();
    harness.policy.scale_down.enabled = true;
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    harness.worker(2, WorkerStatus::Running, Ec2State::Running);
    harness.worker(3, WorkerStatus::Terminated, Ec2State::Terminated);
    harness
}

fn listings(harness: &Harness) -> Vec<String> {
    harness.control_plane.calls().into_iter().filter(|call| call.starts_with("workers ")).collect()
}

#[tokio::test(start_paused = true)]
async fn cooldown_counts_from_a_terminated_record() {
    let harness = scaled_down_and_terminated();
    let now = harness.record(1).updated_at;
    harness.control_plane.edit(&worker_id(3), |worker| worker.notes.scaled_down_at = now);
    let reconciler = harness.reconciler();
    assert_eq!(harness.reconcile(&reconciler, 1).await.to_status, WorkerStatus::Running);
    // The cached view expires. The terminated record is not read again.
    pass_time(10).await;
    assert_eq!(harness.reconcile(&reconciler, 2).await.to_status, WorkerStatus::Running);
    assert_eq!(listings(&harness), ["workers * with terminated", "workers *"]);
    harness.clock.advance(Duration::from_secs(600));
    assert_ne!(harness.reconcile(&reconciler, 1).await.to_status, WorkerStatus::Running);
}

#[tokio::test(start_paused = true)]
async fn unlisted_terminated_records_begin_a_cooldown() {
    let harness = scaled_down_and_terminated();
    let too_long = CallFailure::new(FailureKind::Unparsable, "the response is too long");
    harness.control_plane.plan("workers * with terminated", Fault::Fail(too_long));
    let reconciler = harness.reconciler();
    assert_eq!(harness.reconcile(&reconciler, 1).await.to_status, WorkerStatus::Running);
    pass_time(10).await;
    harness.clock.advance(Duration::from_secs(600));
    assert_ne!(harness.reconcile(&reconciler, 1).await.to_status, WorkerStatus::Running);
}

#[tokio::test(start_paused = true)]
async fn throttled_handback_does_not_end_a_session() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Draining, Ec2State::Running);
    harness.session("s-1", "scheduled", 1);
    harness.control_plane.edit(&worker_id(1), |worker| {
        worker.desired_status = Some(DesiredStatus::Stopped);
        worker.notes.drain_started_at = worker.created_at;
    });
    let busy = CallFailure::new(FailureKind::Throttled, "slow down");
    harness.control_plane.plan("move_session", Fault::Fail(busy));
    let reconciler = harness.reconciler();
    let result = harness.reconcile(&reconciler, 1).await;
    assert_eq!(result.outcome, Outcome::Retry, "{}", result.reason);
    assert_eq!(harness.session_state("s-1"), "scheduled");
    assert_eq!(harness.record(1).status, WorkerStatus::Draining);
    let _again = harness.reconcile(&reconciler, 1).await;
    assert_eq!(harness.session_state("s-1"), "pending", "handed back");
}

/// A reconcile may wait for minutes before it calls EC2. The patience with an instance that EC2 does not show yet begins
/// with the call.
#[tokio::test(start_paused = true)]
async fn launch_time_is_that_of_the_call() {
    let harness = Harness::new();
    let image = Image { id: "ami-1".into(), name: "cisco-cml2.9".into(), creation_date: "2026-01-01".into() };
    harness.compute.put_image(REGION, image);
    harness.compute.put_subnet(REGION, "subnet-1");
    harness.compute.set_delay(REGION, Duration::from_secs(60));
    let mut worker = Worker::new("w-1", WorkerStatus::Pending);
    worker.template_name = Some("metal".to_owned());
    worker.created_at = Some(harness.clock.now());
    harness.control_plane.put_worker(worker);

    let (clock, start) = (harness.clock.clone(), harness.clock.now());
    let ticking = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            clock.advance(Duration::from_secs(1));
        }
    });
    let reconciler = harness.reconciler();
    let launch = harness.reconcile(&reconciler, 1).await;
    assert_eq!(launch.to_status, WorkerStatus::Provisioning, "{}", launch.reason);
    // After the search by tag and the search for an image, a minute each.
    let launched_at = harness.record(1).notes.launched_at.expect("recorded");
    assert!(launched_at >= start + Duration::from_secs(118), "{launched_at}");

    let id = harness.record(1).ec2_instance_id.expect("recorded");
    harness.compute.hide(REGION, &id);
    let later = harness.reconcile(&reconciler, 1).await;
    assert_eq!((later.reason.code, later.to_status), (ReasonCode::NotVisibleYet, WorkerStatus::Provisioning));
    ticking.abort();
}

/// EC2 moves the address of a worker between the describe of a cycle and the reconcile.
#[tokio::test(start_paused = true)]
async fn credentials_go_only_to_an_address_of_this_reconcile() {
    let harness = Harness::new();
    for number in [1, 2] {
        harness.worker(number, WorkerStatus::Running, Ec2State::Running);
    }
    harness.control_plane.edit(&worker_id(1), |worker| {
        worker.license.pending_operation = Some(LicenseOperation::Register);
        worker.license.pending_token = Some(Secret::from("t0ken"));
        // Not idle yet.
        worker.created_at = "2026-02-06T07:59:00Z".parse().ok();
    });
    let reconciler = harness.reconciler();
    let fleet = WorkerFleet::new(reconciler.clone(), Mode::Real);
    fleet.prepare(&[read_now(harness.record(1)), read_now(harness.record(2))]).await;
    let mut moved =
        harness.compute.all(REGION).into_iter().find(|found| found.id == "i-1".into()).expect("an instance");
    moved.private_ip = Some("10.0.0.9".to_owned());
    harness.compute.put(REGION, moved);
    let stranger = harness.cml.remove("10.0.0.1").expect("a system");
    harness.cml.install("10.0.0.1", stranger.clone());
    harness.cml.install("10.0.0.9", stranger);
    pass_time(9).await;
    let result = harness.reconcile(&reconciler, 1).await;
    assert_eq!(result.reason.code.as_str(), "license_submitted", "{}", result.reason);
    let calls = harness.cml.calls();
    assert!(calls.iter().any(|call| call.starts_with("register")), "{calls:?}");
    assert!(calls.iter().all(|call| call.ends_with("10.0.0.9")), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn idle_check_without_a_verdict_is_not_repeated() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    let unparsable = CallFailure::new(FailureKind::Unparsable, "invalid idle report");
    harness.control_plane.plan("detect_idle", Fault::Fail(unparsable));
    let reconciler = harness.reconciler();
    let checks = || harness.control_plane.calls().iter().filter(|call| call.starts_with("detect_idle")).count();
    for _ in 0..3 {
        let _result = harness.reconcile(&reconciler, 1).await;
        assert_eq!(checks(), 1);
    }
    harness.clock.advance(harness.policy.idle_detection_interval);
    let _result = harness.reconcile(&reconciler, 1).await;
    assert_eq!(checks(), 2);
}

/// The response to the check that paused the worker is lost, and the record shows the same as after an operator's stop.
#[tokio::test(start_paused = true)]
async fn pause_by_an_unanswered_check_settles_before_the_stop() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    harness.control_plane.plan("detect_idle", Fault::LoseResponse);
    let reconciler = harness.reconciler();
    let _unanswered = harness.reconcile(&reconciler, 1).await;
    assert_eq!(harness.record(1).desired_status, Some(DesiredStatus::Stopped), "the worker is paused");
    while harness.record(1).status == WorkerStatus::Running {
        let _stopping = harness.reconcile(&reconciler, 1).await;
    }
    harness.session("s-1", "running", 1);
    assert_eq!(harness.reconcile(&reconciler, 1).await.reason.code.as_str(), "settle_time");
    harness.clock.advance(harness.policy.drain_settle);
    let result = harness.reconcile(&reconciler, 1).await;
    assert_eq!((result.to_status, harness.stops()), (WorkerStatus::Running, 0), "{result:?}");
    assert_eq!(harness.record(1).desired_status, Some(DesiredStatus::Running));
}

#[tokio::test(start_paused = true)]
async fn operators_drain_workers_and_cancel_drains() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    harness.session("s-1", "running", 1);
    let (reconciler, id) = (harness.reconciler(), worker_id(1));
    let request = DrainRequest { reason: "new image".to_owned(), requested_by: "alice".to_owned() };

    let refused = reconciler.cancel_drain(&id, &request).await.expect_err("it does not drain");
    assert!(matches!(refused, OperationError::Drain(DrainError::NotDraining { .. })), "{refused}");
    let drained = reconciler.drain(&id, &request).await.expect("it runs");
    assert_eq!((drained.from_status, drained.to_status), (WorkerStatus::Running, WorkerStatus::Draining));
    let record = harness.record(1);
    assert_eq!((record.status, record.desired_status), (WorkerStatus::Draining, Some(DesiredStatus::Stopped)));
    let refused = reconciler.drain(&id, &request).await.expect_err("it drains");
    assert!(matches!(refused, OperationError::Drain(DrainError::NotRunning { .. })), "{refused}");

    let back = reconciler.cancel_drain(&id, &request).await.expect("it drains");
    assert_eq!(back.to_status, WorkerStatus::Running);
    let record = harness.record(1);
    assert_eq!((record.status, record.notes.drain_started_at), (WorkerStatus::Running, None));
    assert_eq!(harness.session_state("s-1"), "running", "no session is touched");

    let missing = reconciler.drain(&"w-9".into(), &request).await.expect_err("there is none");
    assert_eq!(missing.to_string(), "worker w-9 does not exist");
    let (lease, keeper) = LeaderLease::new(7, Instant::now() + Duration::from_secs(10));
    keeper.end();
    let elsewhere = reconciler.with_lease(lease).drain(&id, &request).await;
    assert!(matches!(elsewhere, Err(OperationError::NotLeading(_))), "{elsewhere:?}");
}

/// A source of metrics that never responds.
struct HungSource;

#[async_trait::async_trait]
impl Metrics for HungSource {
    async fn utilization(&self, _: &str, _: &[InstanceId], _: Timestamp) -> Vec<Lookup<CloudMetrics>> {
        std::future::pending().await
    }
}

#[async_trait::async_trait]
impl Cml for HungSource {
    async fn system(&self, _: &CmlTarget) -> Result<CmlMetrics, CallFailure> {
        std::future::pending().await
    }

    async fn telemetry(&self, _: &CmlTarget) -> Result<Vec<serde_json::Value>, CallFailure> {
        std::future::pending().await
    }

    async fn registration(&self, _: &CmlTarget) -> Result<RegistrationStatus, CallFailure> {
        std::future::pending().await
    }

    async fn register(&self, _: &CmlTarget, _: &Secret) -> Result<(), CallFailure> {
        std::future::pending().await
    }

    async fn reregister(&self, _: &CmlTarget, _: &Secret) -> Result<(), CallFailure> {
        std::future::pending().await
    }

    async fn deregister(&self, _: &CmlTarget) -> Result<(), CallFailure> {
        std::future::pending().await
    }
}

/// Neither source waits for the other: each is called while the other one hangs.
#[tokio::test(start_paused = true)]
async fn metric_sources_are_read_concurrently() {
    for is_cml_hung in [false, true] {
        let harness = Harness::new();
        harness.worker(1, WorkerStatus::Running, Ec2State::Running);
        let mut ports = harness.ports();
        if is_cml_hung {
            ports.cml = Arc::new(HungSource);
        } else {
            ports.metrics = Arc::new(HungSource);
        }
        let (reconciler, worker) =
            (Reconciler::new(ports, harness.policy.clone()).expect("a supported policy"), harness.record(1));
        let run = tokio::spawn(async move { reconciler.reconcile(&worker).await });
        pass_time(1).await;
        let system_calls = harness.cml.calls().iter().filter(|call| call.starts_with("system ")).count();
        let expected = if is_cml_hung { (1, 0) } else { (0, 1) };
        assert_eq!((harness.metrics.calls().len(), system_calls), expected);
        run.abort();
    }
}
