//! Idle detection and scale-down of idle workers.

use std::time::Duration;

use fake_cloud::cml::BootStage as Boot;
use fake_cloud::control_plane::Generation::{self, Extended, Original};
use lcm_sdk::lifecycle::Support;
use lcm_sdk::reconciler::Reconciler;
use lcm_sdk::{DesiredStatus, Outcome, Policy, WorkerStatus};
use rstest::rstest;
use serde_json::json;

use lcm_tests::harness::{CML_PASSWORD, Harness, eventually};

const HOUR: Duration = Duration::from_secs(3600);

/// Running workers without activity for one hour, with scale-down enabled.
async fn idle_workers(generation: Generation, workers: &[&str], change: impl FnOnce(&mut Policy)) -> Harness {
    let harness = Harness::with_manual_clock(generation).await.with_policy(|policy| {
        policy.scale_down.enabled = true;
        change(policy);
    });
    for worker in workers {
        harness.add_running_worker(worker).await;
    }
    harness.cloud.advance(HOUR).await;
    harness
}

/// Reconciles workers concurrently, as the queue does.
async fn reconcile_all(harness: &Harness, workers: &[&str]) -> Vec<WorkerStatus> {
    let read = futures_util::future::join_all(workers.iter().map(|id| harness.worker(id))).await;
    let tasks = read.into_iter().map(|worker| {
        let reconciler = harness.reconciler().clone();
        tokio::spawn(async move { reconciler.reconcile(&worker).await.to_status })
    });
    let reconciled = futures_util::future::join_all(tasks).await;
    harness.deliver(harness.reconciler()).await;
    reconciled.into_iter().map(|to| to.expect("task does not panic")).collect()
}

fn count_running(statuses: &[WorkerStatus]) -> usize {
    statuses.iter().filter(|status| **status == WorkerStatus::Running).count()
}

/// Starts with every guard active. Each step removes the first one.
#[rstest]
#[tokio::test]
async fn scale_down_guards_apply_in_order(#[values(Original, Extended)] generation: Generation) {
    let harness = idle_workers(generation, &["w-1", "w-2"], |policy| policy.scale_down.min_workers = 2).await;
    let cml = harness.worker("w-1").await.ec2_instance_id.expect("worker has an instance");
    let cml = harness.cloud.cml(cml.as_str()).expect("CML exists");
    harness.cloud.update_worker("w-1", json!({"is_auto_pause_enabled": false})).expect("record is updated");
    let gone = json!({
        "id": "w-0", "status": "terminated", "template_name": "metal", "aws_region": lcm_tests::harness::REGION,
    });
    harness.cloud.add_worker(gone).expect("record is added");
    harness.note_scale_down("w-0", harness.cloud.now() + chrono::TimeDelta::minutes(10)).await;
    harness.add_session("s-1", "w-1", "scheduled");
    // Checks are due every five minutes.
    let check = async |harness: &Harness| {
        harness.cloud.advance(Duration::from_secs(300)).await;
        let result = harness.reconcile("w-1").await;
        (harness.audit("w-1").last().cloned().unwrap_or_default(), result.to_status)
    };

    cml.record_activity("start_lab", json!({"user_id": "a-student"}));
    assert_eq!(check(&harness).await, ("skipped_not_idle".to_owned(), WorkerStatus::Running));
    harness.cloud.advance(HOUR).await;
    assert_eq!(check(&harness).await, ("skipped_not_eligible".to_owned(), WorkerStatus::Running));
    harness.cloud.update_worker("w-1", json!({"is_auto_pause_enabled": true})).expect("record is updated");
    assert_eq!(check(&harness).await, ("skipped_min_workers".to_owned(), WorkerStatus::Running));
    let harness = harness.with_policy(|policy| policy.scale_down.min_workers = 1);
    harness.note_scale_down("w-0", harness.cloud.now()).await;
    assert_eq!(check(&harness).await, ("skipped_cooldown".to_owned(), WorkerStatus::Running));
    harness.cloud.advance(Duration::from_secs(600)).await;
    assert_eq!(check(&harness).await, ("skipped_upcoming_session".to_owned(), WorkerStatus::Running));
    harness.move_session("s-1", "running");
    assert_eq!(check(&harness).await, ("skipped_not_idle".to_owned(), WorkerStatus::Running), "it has a session");
    harness.end_session("s-1");
    let later = json!({
        "id": "s-2", "worker_id": "w-1", "status": "scheduled",
        "timeslot_start": harness.cloud.now() + chrono::TimeDelta::hours(2),
    });
    harness.cloud.add_session(later).expect("session is added");
    assert_eq!(check(&harness).await, ("drained".to_owned(), WorkerStatus::Draining));

    assert_eq!(
        harness.audit("w-1"),
        [
            "skipped_not_idle",
            "skipped_not_eligible",
            "skipped_min_workers",
            "skipped_cooldown",
            "skipped_upcoming_session",
            "skipped_not_idle",
            "drain_accepted",
            "drained",
        ]
    );
    assert_eq!((harness.counter("idle_detection_count"), harness.counter("scale_down_drain_count")), (7, 1));
    assert_eq!((harness.counter("auto_pause_count"), harness.ec2_calls("StopInstances")), (0, 0));
}

/// The original server stores no desired status: see `original_server_drains_an_idle_worker`.
#[rstest]
#[tokio::test]
async fn idle_worker_without_sessions_is_stopped_immediately(#[values(Extended)] generation: Generation) {
    let harness = idle_workers(generation, &["w-1"], |_| {}).await;
    let stopped = harness.reconcile("w-1").await;
    assert_eq!((stopped.outcome, stopped.to_status), (Outcome::Success, WorkerStatus::Stopping), "{}", stopped.reason);
    assert_eq!(harness.audit("w-1"), ["stopped_immediately"]);
    let worker = harness.worker("w-1").await;
    assert_eq!(worker.desired_status, Some(DesiredStatus::Stopped));
    let recorded = worker.notes.scaled_down_at.expect("scale-down time is recorded");
    assert_eq!(recorded.timestamp_millis(), harness.cloud.now().timestamp_millis());
    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    assert_eq!((harness.ec2_calls("StopInstances"), harness.counter("stopped_count")), (1, 1));
    assert_eq!(harness.counter("scale_down_drain_count"), 0);
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "at_rest");
    assert_eq!(harness.worker("w-1").await.notes.drain_started_at, None);
}

#[rstest]
#[tokio::test]
async fn upcoming_session_prevents_scale_down(#[values(Original, Extended)] generation: Generation) {
    let at = |harness: &Harness, minutes: i64| harness.cloud.now() + chrono::TimeDelta::minutes(minutes);
    for (minutes, label) in [(30, "skipped_upcoming_session"), (31, "drained")] {
        let harness = idle_workers(generation, &["w-1"], |_| {}).await;
        let start = at(&harness, minutes);
        let session = json!({"id": "s-1", "worker_id": "w-1", "status": "scheduled", "timeslot_start": start});
        harness.cloud.add_session(session).expect("session is added");
        let _ = harness.reconcile("w-1").await;
        assert_eq!(harness.audit("w-1").last().map(String::as_str), Some(label), "in {minutes} minutes");
        assert_eq!(harness.ec2_calls("StopInstances"), 0);
    }
}

/// For the original server see `original_server_keeps_the_minimum_of_running_workers`.
#[rstest]
#[tokio::test]
async fn concurrent_scale_downs_respect_the_minimum(#[values(Extended)] generation: Generation) {
    let workers = ["w-1", "w-2", "w-3", "w-4", "w-5", "w-6"];
    let harness = idle_workers(generation, &workers, |policy| {
        policy.scale_down.min_workers = 2;
        policy.scale_down.cooldown = Duration::ZERO;
    })
    .await;
    let statuses = reconcile_all(&harness, &workers).await;
    assert_eq!(count_running(&statuses), 2, "{statuses:?}");
    let labels: Vec<String> = workers.iter().flat_map(|worker| harness.audit(worker)).collect();
    let count = |label: &str| labels.iter().filter(|candidate| *candidate == label).count();
    assert_eq!((count("stopped_immediately"), count("skipped_min_workers")), (4, 2), "{labels:?}");

    // A new process respects it as well, because the count comes from the records.
    let harness = harness.with_policy(|_| {});
    harness.cloud.advance(Duration::from_secs(600)).await;
    let _ = reconcile_all(&harness, &workers).await;
    let mut statuses = Vec::new();
    for worker in workers {
        statuses.push(harness.status(worker).await);
    }
    assert_eq!(count_running(&statuses), 2, "{statuses:?}");
}

/// Reconciles workers until their idle interval has passed `rounds` times, and returns the number that still runs.
async fn running_after(harness: &Harness, workers: &[&str], rounds: u32) -> usize {
    for _ in 0..rounds {
        let _ = reconcile_all(harness, workers).await;
        harness.cloud.advance(Duration::from_secs(400)).await;
    }
    let mut statuses = Vec::new();
    for worker in workers {
        statuses.push(harness.status(worker).await);
    }
    count_running(&statuses)
}

/// The original server stores no desired status, so an idle worker is drained.
#[tokio::test]
async fn original_server_keeps_the_minimum_of_running_workers() {
    let workers = ["w-1", "w-2", "w-3", "w-4"];
    let harness = idle_workers(Original, &workers, |policy| {
        policy.scale_down.min_workers = 2;
        policy.scale_down.cooldown = Duration::ZERO;
    })
    .await;
    assert_eq!(running_after(&harness, &workers, 6).await, 2);
    assert_eq!(harness.ec2_calls("StopInstances"), 2);
    assert_eq!(harness.control_plane_calls("detect_idle"), 0, "a check could pause a worker");
}

#[tokio::test]
async fn original_server_drains_an_idle_worker() {
    let harness = idle_workers(Original, &["w-1"], |policy| policy.scale_down.cooldown = Duration::ZERO).await;
    assert_eq!(running_after(&harness, &["w-1"], 2).await, 0);
    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    assert_eq!((harness.ec2_calls("StopInstances"), harness.counter("scale_down_drain_count")), (1, 1));
    assert_eq!(harness.ports.control_plane.capabilities().desired_status, Support::No);
    // It stays stopped.
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "at_rest");
    assert_eq!(harness.control_plane_calls("drain_worker"), 1);
}

#[tokio::test]
async fn original_server_observes_the_cooldown() {
    let workers = ["w-1", "w-2", "w-3"];
    let harness = idle_workers(Original, &workers, |policy| policy.scale_down.cooldown = 2 * HOUR).await;
    // The attempt that shows what the server lacks begins a cooldown of its own.
    assert_eq!(running_after(&harness, &workers, 24).await, 2);
    // Another process reads the time of the last scale-down from the notes.
    let harness = harness.with_policy(|_| {});
    assert_eq!(running_after(&harness, &workers, 4).await, 2);
}

#[rstest]
#[tokio::test]
async fn worker_being_stopped_does_not_count_toward_the_minimum(#[values(Original, Extended)] generation: Generation) {
    let harness = idle_workers(generation, &["w-1", "w-2", "w-3"], |policy| {
        policy.scale_down.min_workers = 1;
        policy.scale_down.cooldown = Duration::ZERO;
    })
    .await;
    match generation {
        Extended => assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Stopping),
        Original => harness.drain("w-1"),
    }
    harness.cloud.update_worker("w-2", json!({"desired_status": "stopped"})).expect("desired status is accepted");
    assert_eq!(harness.reconcile("w-3").await.to_status, WorkerStatus::Running);
    assert_eq!(harness.audit("w-3"), ["skipped_min_workers"]);
}

/// For the original server see `original_server_observes_the_cooldown`.
#[rstest]
#[tokio::test]
async fn cooldown_limits_concurrent_scale_downs_to_one(#[values(Extended)] generation: Generation) {
    let workers = ["w-1", "w-2", "w-3", "w-4"];
    let harness = idle_workers(generation, &workers, |_| {}).await;
    let statuses = reconcile_all(&harness, &workers).await;
    assert_eq!(count_running(&statuses), 3, "{statuses:?}");
    let labels: Vec<String> = workers.iter().flat_map(|worker| harness.audit(worker)).collect();
    assert_eq!(labels.iter().filter(|label| *label == "skipped_cooldown").count(), 3, "{labels:?}");
}

/// For the original server see `original_server_observes_the_cooldown`.
#[rstest]
#[tokio::test]
async fn cooldown_survives_a_change_of_leader(#[values(Extended)] generation: Generation) {
    let harness = idle_workers(generation, &["w-1", "w-2"], |_| {}).await;
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Stopping);
    // A new process without any state in memory.
    let ports = harness.ports.clone();
    let successor = Reconciler::new(ports, harness.policy.clone()).expect("a supported policy");
    harness.cloud.advance(Duration::from_secs(599)).await;
    let held = successor.reconcile(&harness.worker("w-2").await).await;
    harness.deliver(&successor).await;
    assert_eq!(held.to_status, WorkerStatus::Running);
    assert_eq!(harness.audit("w-2"), ["skipped_cooldown"]);

    harness.cloud.advance(Duration::from_secs(300)).await;
    let successor = Reconciler::new(harness.ports.clone(), harness.policy.clone()).expect("a supported policy");
    assert_eq!(successor.reconcile(&harness.worker("w-2").await).await.to_status, WorkerStatus::Stopping);
    harness.deliver(&successor).await;
    assert_eq!(harness.audit("w-2"), ["skipped_cooldown", "stopped_immediately"]);
}

#[rstest]
#[tokio::test]
async fn scale_down_never_lets_the_server_pause_a_worker(#[values(Original, Extended)] generation: Generation) {
    let harness = idle_workers(generation, &["w-1", "w-2"], |policy| policy.scale_down.min_workers = 2).await;
    for worker in ["w-1", "w-2"] {
        let result = harness.reconcile(worker).await;
        assert_eq!(result.to_status, WorkerStatus::Running);
        let kept = harness.worker(worker).await;
        assert_eq!(kept.desired_status, Some(DesiredStatus::Running), "the server has not paused it");
    }
    assert_eq!((harness.counter("idle_detection_count"), harness.counter("auto_pause_count")), (2, 0));
    assert_eq!(harness.control_plane_calls("detect_idle"), 0, "such a check could pause a worker");

    // Without scale-down the server pauses the worker. The reconcile counts the pause; the next one stops the instance.
    let harness = harness.with_policy(|policy| policy.scale_down.enabled = false);
    harness.cloud.advance(Duration::from_secs(300)).await;
    let paused = harness.reconcile("w-1").await;
    assert_eq!((paused.outcome, harness.counter("auto_pause_count")), (Outcome::Success, 1), "{}", paused.reason);
    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    assert_eq!(harness.audit("w-1"), ["skipped_min_workers"], "scale-down did not act");
    assert_eq!(harness.ec2_calls("StopInstances"), 1);
}

#[rstest]
#[tokio::test]
async fn worker_with_an_active_session_is_not_paused(#[values(Original, Extended)] generation: Generation) {
    let harness = idle_workers(generation, &["w-1"], |policy| policy.scale_down.enabled = false).await;
    harness.add_session("s-1", "w-1", "grading");
    for _ in 0..3 {
        let result = harness.reconcile("w-1").await;
        assert_eq!((result.outcome, result.to_status), (Outcome::Success, WorkerStatus::Running), "{}", result.reason);
        harness.cloud.advance(Duration::from_secs(300)).await;
    }
    assert_eq!(harness.control_plane_calls("detect_idle"), 0, "such a check would pause it");
    assert_eq!(harness.control_plane_calls("idle_status"), 3);

    // Activity is reported all the same.
    let cml = harness.worker("w-1").await.ec2_instance_id.expect("worker has an instance");
    harness.cloud.cml(cml.as_str()).expect("CML exists").record_activity("start_lab", json!({"user_id": "a-student"}));
    let _ = harness.reconcile("w-1").await;
    assert_eq!(harness.control_plane_calls("detect_idle"), 1);
    assert_eq!(harness.worker("w-1").await.desired_status, Some(DesiredStatus::Running));

    // Once the session is over, the worker is checked and paused, and the pause is named as the reason.
    harness.end_session("s-1");
    harness.cloud.advance(HOUR).await;
    let paused = harness.reconcile("w-1").await;
    assert_eq!((paused.to_status, paused.reason.code.as_str()), (WorkerStatus::Stopping, "auto_paused"));
}

/// The scheduler places a session between the check that pauses the worker and the stop of its instance.
#[rstest]
#[tokio::test]
async fn automatic_pause_spares_a_session_of_the_last_moment(#[values(Original, Extended)] generation: Generation) {
    let harness = idle_workers(generation, &["w-1"], |policy| policy.scale_down.enabled = false).await;
    let paused = harness.reconcile("w-1").await;
    assert_eq!((paused.to_status, paused.reason.code.as_str()), (WorkerStatus::Stopping, "auto_paused"));
    harness.add_session("s-1", "w-1", "running");
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "settle_time");
    harness.cloud.advance(Duration::from_secs(10)).await;
    let spared = harness.reconcile("w-1").await;
    assert_eq!(harness.ec2_calls("StopInstances"), 0, "{spared:?}");
    match generation {
        Extended => {
            assert_eq!(spared.to_status, WorkerStatus::Running);
            assert_eq!(harness.worker("w-1").await.desired_status, Some(DesiredStatus::Running));
        }
        // The pause cannot be taken back, as the refused write shows: the session is waited for.
        Original => {
            assert_eq!((spared.to_status, spared.reason.code.as_str()), (WorkerStatus::Stopping, "not_recorded"));
            let waiting = harness.reconcile("w-1").await;
            assert_eq!((waiting.to_status, waiting.reason.code.as_str()), (WorkerStatus::Stopping, "drain_waiting"));
            assert_eq!(harness.ec2_calls("StopInstances"), 0);
            harness.end_session("s-1");
            harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
            assert_eq!(harness.ec2_calls("StopInstances"), 1);
        }
    }
    assert_eq!(harness.counter("auto_pause_count"), 1);
}

#[rstest]
#[tokio::test]
async fn unlistable_sessions_prevent_the_idle_check(#[values(Original, Extended)] generation: Generation) {
    let harness = idle_workers(generation, &["w-1"], |policy| policy.scale_down.enabled = false).await;
    harness.inject(
        json!({"service": "control-plane", "operation": "list_sessions", "action": {"kind": "error", "code": "500"}}),
    );
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Running);
    assert_eq!(harness.control_plane_calls("detect_idle"), 0);
    assert_eq!(harness.worker("w-1").await.desired_status, Some(DesiredStatus::Running));
}

/// The scenario `drain` with a controller beside it: one worker has sessions in every state, the other one has none.
#[rstest]
#[tokio::test]
async fn controller_loses_no_session_of_the_drain_scenario(#[values(Original, Extended)] generation: Generation) {
    let scenario = fake_cloud::Scenario::find("drain").expect("a built-in scenario");
    let harness = Harness::start(fake_cloud::FakeCloud::builder().control_plane(generation).scenario(scenario)).await;
    // Without telemetry no worker is idle.
    for worker in ["w-blue", "w-green"] {
        let credentials = json!({"cml_username": "admin", "cml_password": CML_PASSWORD});
        harness.cloud.update_worker(worker, credentials).expect("record is updated");
    }
    let active = ["s-running", "s-overdue", "s-grading", "s-starting"];
    let before: Vec<_> = active.iter().map(|session| harness.session_field(session, "status")).collect();
    let actor = harness.start_controller("controller", |_| {});
    eventually("the worker without sessions is paused", || async {
        harness.worker("w-green").await.desired_status == Some(DesiredStatus::Stopped)
    })
    .await;
    eventually("the other one was looked at", || async { harness.control_plane_calls("idle_status") > 0 }).await;
    let blue = harness.worker("w-blue").await;
    assert_eq!((blue.status, blue.desired_status), (WorkerStatus::Running, Some(DesiredStatus::Running)));
    let after: Vec<_> = active.iter().map(|session| harness.session_field(session, "status")).collect();
    assert_eq!(after, before);
    assert_eq!(harness.control_plane_calls("terminate_session"), 0);
    actor.stop().await;
}

#[rstest]
#[tokio::test]
async fn unreadable_telemetry_is_never_idle(#[values(Original, Extended)] generation: Generation) {
    for fault in [
        json!({"service": "cml", "operation": "telemetry_events", "action": {"kind": "error", "code": "500"}}),
        json!({"service": "cml", "operation": "telemetry_events", "action": {"kind": "reset"}}),
        json!({"service": "cml", "operation": "authenticate", "action": {"kind": "error", "code": "403"}}),
        json!({"service": "control-plane", "operation": "idle_status", "action": {"kind": "error", "code": "500"}}),
    ] {
        let harness = idle_workers(generation, &["w-1"], |_| {}).await;
        harness.inject(fault.clone());
        for _ in 0..3 {
            let result = harness.reconcile("w-1").await;
            assert_eq!((result.outcome, result.to_status), (Outcome::Success, WorkerStatus::Running), "{fault}");
            harness.cloud.advance(Duration::from_secs(300)).await;
        }
        assert!(harness.audit("w-1").is_empty(), "{fault}: a missing result is not a decision");
        assert_eq!(harness.worker("w-1").await.desired_status, Some(DesiredStatus::Running));
        assert_eq!((harness.ec2_calls("StopInstances"), harness.counter("auto_pause_count")), (0, 0));

        harness.cloud.clear_faults();
        assert_eq!(running_after(&harness, &["w-1"], 3).await, 0, "{fault}: detected after recovery");
    }
}

#[rstest]
#[tokio::test]
async fn unreachable_cml_does_not_make_its_worker_idle(#[values(Original, Extended)] generation: Generation) {
    let harness = idle_workers(generation, &["w-1"], |policy| policy.scale_down.enabled = false).await;
    let instance = harness.worker("w-1").await.ec2_instance_id.expect("worker has an instance");
    harness.cloud.cml(instance.as_str()).expect("CML exists").pin_stage(Some(Boot::BadGateway));
    for _ in 0..3 {
        assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Running);
        harness.cloud.advance(Duration::from_secs(300)).await;
    }
    assert_eq!(harness.worker("w-1").await.desired_status, Some(DesiredStatus::Running));
    assert_eq!((harness.counter("auto_pause_count"), harness.ec2_calls("StopInstances")), (0, 0));
}

#[rstest]
#[tokio::test]
async fn failed_listing_prevents_scale_down(#[values(Original, Extended)] generation: Generation) {
    for operation in ["list_workers", "list_sessions"] {
        let harness = idle_workers(generation, &["w-1", "w-2"], |_| {}).await;
        let error = json!({"kind": "error", "code": "500"});
        harness.inject(json!({"service": "control-plane", "operation": operation, "action": error}));
        assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Running, "{operation}");
        assert!(harness.audit("w-1").is_empty(), "{operation}");
        assert_eq!((harness.ec2_calls("StopInstances"), harness.control_plane_calls("drain_worker")), (0, 0));
    }
}

#[rstest]
#[tokio::test]
async fn idle_checks_respect_their_interval(#[values(Original, Extended)] generation: Generation) {
    let harness = idle_workers(generation, &["w-1"], |policy| policy.scale_down.min_workers = 1).await;
    for _ in 0..10 {
        let _ = harness.reconcile("w-1").await;
        harness.cloud.advance(Duration::from_secs(60)).await;
    }
    assert_eq!(harness.control_plane_calls("idle_status"), 2, "at 0 and at 5 minutes");
    match generation {
        // Its records show neither the time of a check nor the switch.
        Original => return,
        Extended => {}
    }
    // A new leader respects the interval too, because the record holds the time of the last check.
    let successor = Reconciler::new(harness.ports.clone(), harness.policy.clone()).expect("a supported policy");
    harness
        .cloud
        .update_worker("w-1", json!({"last_activity_check_at": harness.cloud.now()}))
        .expect("record is updated");
    let _ = successor.reconcile(&harness.worker("w-1").await).await;
    assert_eq!(harness.control_plane_calls("idle_status"), 2);
    // A worker with idle detection disabled is never checked.
    harness.cloud.update_worker("w-1", json!({"is_idle_detection_enabled": false})).expect("record is updated");
    harness.cloud.advance(HOUR).await;
    let _ = harness.reconcile("w-1").await;
    assert_eq!(harness.control_plane_calls("idle_status"), 2);
}
