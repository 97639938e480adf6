//! Passes that meet other passes, old records, old sights, and the end of a lead.

use std::time::Duration;

use lcm_sdk::controller::lease::LeaderLease;
use lcm_sdk::controller::shutdown::Shutdown;
use lcm_sdk::controller::{Controller, ControllerConfig, Reconcile as _};
use lcm_sdk::providers::memory::{Fault, Versions};
use lcm_sdk::reconciler::Mode;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{Hooks, ReadWorker, WorkerFleet};
use lcm_sdk::{CallFailure, DesiredStatus, Ec2State, FailureKind, Instance, Outcome, WorkerStatus};
use tokio::time::Instant;

use super::bench::{Bench, ELSEWHERE, HERE, pass_time, worker_id};

fn read_now(worker: lcm_sdk::Worker) -> ReadWorker {
    ReadWorker { worker, read_at: Instant::now() }
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_waited_for_another_decides_on_what_that_one_left() {
    // Without versions there is no conflict that would show that the record has changed.
    let bench = Bench::with(|control_plane| control_plane.with_versions(Versions::NotKept));
    bench.worker(1, WorkerStatus::Stopped, Ec2State::Stopped);
    bench.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Running));
    bench.compute.slow_down(HERE, Duration::from_secs(5));
    let (reconciler, worker) = (bench.reconciler(), bench.look(1));
    let (first, second) = tokio::join!(reconciler.reconcile(&worker), reconciler.reconcile(&worker));
    assert_eq!((first.from_status, first.to_status), (WorkerStatus::Stopped, WorkerStatus::Starting));
    assert_eq!(second.from_status, WorkerStatus::Starting);
    assert_eq!(bench.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_waited_for_its_pass_is_read_again_before_anything_is_done() {
    let bench = Bench::new();
    bench.worker_in(ELSEWHERE, 1, WorkerStatus::Running, Ec2State::Running);
    bench.compute.slow_down(ELSEWHERE, Duration::from_secs(60));
    bench.worker(2, WorkerStatus::Draining, Ec2State::Running);
    bench.session("s-1", "running", 2);
    bench.control_plane.edit(&worker_id(2), |worker| {
        worker.desired_status = Some(DesiredStatus::Stopped);
        worker.notes.drain_started_at = worker.created_at;
    });
    let config = ControllerConfig {
        max_concurrent: 1,
        initial_delay: Duration::ZERO,
        interval: Duration::from_secs(600),
        ..ControllerConfig::default()
    };
    let fleet = WorkerFleet::new(bench.reconciler(), Mode::Real, Hooks::default());
    let controller = Controller::new(fleet, config, Telemetry::default());
    let shutdown = Shutdown::new();
    let running = tokio::spawn({
        let (controller, shutdown) = (controller.clone(), shutdown.clone());
        async move { controller.run(&shutdown).await }
    });
    pass_time(5).await;
    // The drain is cancelled while its worker waits behind one that is slow.
    bench.control_plane.edit(&worker_id(2), |worker| {
        worker.status = WorkerStatus::Running;
        worker.desired_status = Some(DesiredStatus::Running);
        worker.notes.drain_started_at = None;
    });
    pass_time(120).await;
    assert!(controller.resource("w-2").is_some_and(|state| state.last.is_some()), "it was looked at");
    assert_eq!(bench.state_of_session("s-1"), "running");
    assert_eq!((bench.look(2).status, bench.stops()), (WorkerStatus::Running, 0));
    shutdown.request();
    pass_time(90).await;
    assert!(running.is_finished());
}

#[tokio::test(start_paused = true)]
async fn without_the_lead_nothing_is_written() {
    let bench = Bench::new();
    bench.worker(1, WorkerStatus::Running, Ec2State::Terminated);
    bench.session("s-1", "running", 1);
    let (leadership, keeper) = LeaderLease::leased(7, Instant::now() + Duration::from_secs(10));
    keeper.end();
    let result = bench.pass(&bench.reconciler().with_lease(leadership), 1).await;
    assert_eq!(result.outcome, Outcome::Retry, "{}", result.reason);
    assert_eq!(bench.look(1).status, WorkerStatus::Running);
    assert_eq!(bench.state_of_session("s-1"), "running");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_beyond_the_lead_is_not_made() {
    let bench = Bench::new();
    bench.worker(1, WorkerStatus::Stopping, Ec2State::Running);
    bench.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Stopped));
    bench.compute.slow_down(HERE, Duration::from_secs(20));
    let (leadership, _keeper) = LeaderLease::leased(7, Instant::now() + Duration::from_secs(30));
    // Looking takes twenty of the thirty seconds, and stopping would take another twenty.
    let result = bench.pass(&bench.reconciler().with_lease(leadership), 1).await;
    assert_eq!(result.outcome, Outcome::Retry, "{}", result.reason);
    pass_time(60).await;
    assert_eq!(bench.ec2_state(HERE, 1), Ec2State::Running);
}

#[tokio::test(start_paused = true)]
async fn a_rehearsal_hides_no_change() {
    let bench = Bench::new();
    bench.worker(1, WorkerStatus::Stopped, Ec2State::Stopped);
    bench.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Running));
    let reconciler = bench.reconciler();
    let fleet = WorkerFleet::new(reconciler.clone(), Mode::Real, Hooks::default());
    assert_eq!(bench.pass(&reconciler, 1).await.to_status, WorkerStatus::Starting);
    assert!(fleet.is_echo(&read_now(bench.look(1))));
    bench.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Stopped));
    let _planned = reconciler.dry_run(&bench.look(1)).await;
    assert!(!fleet.is_echo(&read_now(bench.look(1))), "nobody has acted on it yet");
}

#[tokio::test(start_paused = true)]
async fn what_was_seen_of_another_instance_is_not_believed_of_this_one() {
    let bench = Bench::new();
    for number in [1, 2] {
        bench.worker(number, WorkerStatus::Running, Ec2State::Running);
    }
    bench.compute.forget(HERE, &"i-1".into());
    let reconciler = bench.reconciler();
    let fleet = WorkerFleet::new(reconciler.clone(), Mode::Real, Hooks::default());
    fleet.prepare(&[read_now(bench.look(1)), read_now(bench.look(2))]).await;
    // Somebody gives the worker another instance, which runs.
    let mut successor = Instance::new("i-9", Ec2State::Running);
    successor.private_ip = Some("10.0.0.1".to_owned());
    bench.compute.put(HERE, successor);
    bench.control_plane.edit(&worker_id(1), |worker| worker.ec2_instance_id = Some("i-9".into()));
    assert_eq!(bench.pass(&reconciler, 1).await.to_status, WorkerStatus::Running);
    assert_eq!(bench.look(1).status, WorkerStatus::Running);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_has_just_gone_counts_no_more_for_the_minimum() {
    let mut bench = Bench::new();
    bench.policy.scale_down.enabled = true;
    bench.policy.scale_down.min_workers = 2;
    bench.policy.scale_down.cooldown = Duration::ZERO;
    for number in 1..=4 {
        bench.worker(number, WorkerStatus::Running, Ec2State::Running);
    }
    let reconciler = bench.reconciler();
    let first = bench.pass(&reconciler, 1).await;
    assert_ne!(first.to_status, WorkerStatus::Running, "{}: {first:?}", first.reason);
    bench.compute.set_state(HERE, &"i-2".into(), Ec2State::Terminated);
    assert_eq!(bench.pass(&reconciler, 2).await.to_status, WorkerStatus::Terminated);
    let third = bench.pass(&reconciler, 3).await;
    assert_eq!(third.to_status, WorkerStatus::Running, "only two are left: {}", third.reason);
}

#[tokio::test(start_paused = true)]
async fn at_the_deadline_a_session_is_not_ended_because_the_server_was_busy() {
    let bench = Bench::new();
    bench.worker(1, WorkerStatus::Draining, Ec2State::Running);
    bench.session("s-1", "scheduled", 1);
    bench.control_plane.edit(&worker_id(1), |worker| {
        worker.desired_status = Some(DesiredStatus::Stopped);
        worker.notes.drain_started_at = worker.created_at;
    });
    let busy = CallFailure::new(FailureKind::Throttled, "slow down");
    bench.control_plane.plan("move_session", Fault::Fail(busy));
    let reconciler = bench.reconciler();
    let result = bench.pass(&reconciler, 1).await;
    assert_eq!(result.outcome, Outcome::Retry, "{}", result.reason);
    assert_eq!(bench.state_of_session("s-1"), "scheduled");
    assert_eq!(bench.look(1).status, WorkerStatus::Draining);
    let _again = bench.pass(&reconciler, 1).await;
    assert_eq!(bench.state_of_session("s-1"), "pending", "handed back");
}
