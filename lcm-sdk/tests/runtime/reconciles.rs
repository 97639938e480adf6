//! Reconciles that overlap with others, use outdated data, or outlive their lease.

use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::controller::{ControllerConfig, LeaderLease, Resource as _, Runner, Shutdown};
use lcm_sdk::providers::memory::{Fault, Versions};
use lcm_sdk::reconciler::Mode;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{FetchedWorker, WorkerFleet};
use lcm_sdk::{CallFailure, DesiredStatus, Ec2State, FailureKind, Instance, Outcome, WorkerStatus};
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
    harness.control_plane.edit(&worker_id(1), |worker| worker.ec2_instance_id = Some("i-9".into()));
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
