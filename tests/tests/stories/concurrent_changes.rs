//! Changes between the read and the write of a reconcile: no session is lost. A server with versions refuses the write;
//! on the original one, the next reconcile finds the change before anything is stopped.

use std::time::Duration;

use fake_cloud::control_plane::Generation::{self, Extended, Original};
use fake_cloud::control_plane::Input;
use lcm_sdk::reconciler::ReconcileResult;
use lcm_sdk::{DesiredStatus, Outcome, WorkerStatus};
use serde_json::json;

use crate::draining::assert_untouched;
use lcm_tests::harness::{Harness, REGION, eventually};

/// The scheduler assigns the session after the reconcile has listed sessions and before it writes the status.
#[tokio::test]
async fn session_assigned_during_a_scale_down_is_kept() {
    let harness = idle_worker().await;
    harness.cloud.add_session(json!({"id": "s-new"})).expect("session is added");
    let decided = reconcile_with_change(&harness, BEFORE_WRITE, || {
        let assignment = Input::from_value(json!({"worker_id": "w-1"})).expect("JSON object");
        harness.cloud.records().schedule_session("s-new", &assignment).expect("worker is running");
    })
    .await;
    assert_eq!(decided.to_status, WorkerStatus::Stopping, "{}", decided.reason);

    // A stopping worker gets no new sessions. The one assigned before is found after the settle time.
    harness.cloud.advance(harness.policy.drain_settle).await;
    let reverted = harness.reconcile("w-1").await;
    assert_eq!(
        (reverted.outcome, reverted.to_status),
        (Outcome::Success, WorkerStatus::Running),
        "{}",
        reverted.reason
    );
    assert_eq!(harness.worker("w-1").await.desired_status, Some(DesiredStatus::Running));
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Running);
    assert_untouched(&harness);
    assert_eq!(harness.session_field("s-new", "status"), "scheduled");
}

/// Servers list sessions in the worker record, so the write conflicts and the reconcile decides again.
#[tokio::test]
async fn session_that_changes_the_record_repeats_the_decision() {
    let harness = idle_worker().await;
    let decided = reconcile_with_change(&harness, BEFORE_WRITE, || begin_session(&harness)).await;
    assert_eq!(decided.to_status, WorkerStatus::Running, "{}", decided.reason);
    assert_untouched(&harness);
    // The next idle check observes the session.
    harness.cloud.advance(Duration::from_secs(300)).await;
    let stays = harness.reconcile("w-1").await;
    assert_eq!(stays.to_status, WorkerStatus::Running, "{}", stays.reason);
    assert_eq!(harness.session_field("s-new", "status"), "running");
}

/// Scale-down reads the verdict of idle detection after the sessions.
#[tokio::test]
async fn session_started_after_the_listing_keeps_the_worker() {
    let harness = idle_worker().await;
    let decided = reconcile_with_change(&harness, AFTER_LISTING, || begin_session(&harness)).await;
    assert_eq!(decided.to_status, WorkerStatus::Running, "{}", decided.reason);
    assert_untouched(&harness);
    assert_eq!(harness.session_field("s-new", "status"), "running");
}

#[tokio::test]
async fn drain_canceled_during_a_reconcile_keeps_the_worker_running() {
    let harness = Harness::with_manual_clock(Extended).await;
    harness.add_running_worker("w-1").await;
    harness.drain("w-1");
    harness.cloud.advance(harness.policy.drain_settle).await;
    let read_before = harness.worker("w-1").await;
    harness.cloud.records().cancel_drain("w-1", None, "wait", "alice").expect("worker is draining");

    let result = harness.reconciler().reconcile(&read_before).await;
    let statuses = (result.from_status, result.to_status);
    assert_eq!(statuses, (WorkerStatus::Running, WorkerStatus::Running), "{}", result.reason);
    assert_untouched(&harness);
}

/// The original server cannot take a scheduled session back: it keeps the worker from stopping.
#[tokio::test]
async fn session_assigned_before_the_original_drain_is_kept() {
    let harness = idle_worker_of(Original).await;
    harness.cloud.add_session(json!({"id": "s-new"})).expect("session is added");
    let decided = reconcile_with_change(&harness, BEFORE_DRAIN, || {
        let assignment = Input::from_value(json!({"worker_id": "w-1"})).expect("JSON object");
        harness.cloud.records().schedule_session("s-new", &assignment).expect("worker is running");
    })
    .await;
    assert_eq!(decided.to_status, WorkerStatus::Draining, "{}", decided.reason);
    assert_session_is_waited_for(&harness, "scheduled").await;
}

#[tokio::test]
async fn session_started_after_the_original_listing_is_kept() {
    let harness = idle_worker_of(Original).await;
    let decided =
        reconcile_with_change(&harness, AFTER_LISTING, || harness.add_session("s-new", "w-1", "running")).await;
    assert_eq!(decided.to_status, WorkerStatus::Draining, "{}", decided.reason);
    assert_session_is_waited_for(&harness, "running").await;
}

/// Nothing guards the write of the original server, and it never contains the desired status.
#[tokio::test]
async fn desired_status_changed_during_an_original_reconcile_is_carried_out() {
    let harness = Harness::with_manual_clock(Original).await;
    let instance = harness.add_running_worker("w-1").await;
    harness.cloud.stop_instance(REGION, &instance).expect("instance stops");
    harness.cloud.advance(Duration::from_secs(60)).await;
    harness.cloud.update_worker("w-1", json!({"status": "stopped"})).expect("record is updated");
    let point = PausePoint { operation: "write_status", previous: "get_worker" };
    let decided = reconcile_with_change(&harness, point, || {
        harness.cloud.update_worker("w-1", json!({"desired_status": "stopped"})).expect("record is updated");
    })
    .await;
    assert_eq!(decided.to_status, WorkerStatus::Starting, "{}", decided.reason);
    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    assert_eq!(harness.worker("w-1").await.desired_status, Some(DesiredStatus::Stopped));
    assert_eq!((harness.ec2_calls("StartInstances"), harness.ec2_calls("StopInstances")), (1, 1));
}

/// Asserts that the drain waits for the new session, and stops the worker after it.
async fn assert_session_is_waited_for(harness: &Harness, state: &str) {
    for _ in 0..5 {
        harness.cloud.advance(harness.policy.drain_settle).await;
        let waiting = harness.reconcile("w-1").await;
        assert_eq!(waiting.to_status, WorkerStatus::Draining, "{}", waiting.reason);
    }
    assert_untouched(harness);
    assert_eq!(harness.session_field("s-new", "status"), state);
    harness.end_session("s-new");
    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    assert_eq!(harness.session_field("s-new", "status"), "stopped");
}

async fn idle_worker() -> Harness {
    idle_worker_of(Extended).await
}

async fn idle_worker_of(generation: Generation) -> Harness {
    let harness = Harness::with_manual_clock(generation).await.with_policy(|policy| {
        policy.scale_down.enabled = true;
        policy.scale_down.cooldown = Duration::ZERO;
    });
    harness.add_running_worker("w-1").await;
    harness.cloud.advance(Duration::from_secs(3600)).await;
    if generation == Original {
        // The first write shows that no desired status is stored: idle workers are drained instead.
        assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Running);
        harness.cloud.advance(harness.policy.idle_detection_interval).await;
        harness.cloud.world().request_log().clear();
    }
    harness
}

fn begin_session(harness: &Harness) {
    harness.add_session("s-new", "w-1", "running");
    harness.cloud.update_worker("w-1", json!({"session_ids": ["s-new"]})).expect("record is updated");
}

/// Point at which a reconcile is delayed.
struct PausePoint {
    /// Operation whose first call is delayed.
    operation: &'static str,
    /// Operation called right before it.
    previous: &'static str,
}

/// Addresses are written before the status, after the decision.
const BEFORE_WRITE: PausePoint = PausePoint { operation: "write_status", previous: "write_ec2_details" };
/// The server is about to begin the drain of a worker without sessions.
const BEFORE_DRAIN: PausePoint = PausePoint { operation: "drain_worker", previous: "idle_status" };
/// The sessions were listed.
const AFTER_LISTING: PausePoint = PausePoint { operation: "idle_status", previous: "list_sessions" };

/// Reconciles `w-1` and applies a change while the reconcile is delayed.
async fn reconcile_with_change(harness: &Harness, point: PausePoint, change: impl FnOnce()) -> ReconcileResult {
    let (worker, reconciler) = (harness.worker("w-1").await, harness.reconciler().clone());
    // The delay is on the world's clock, so it ends only after the change.
    let latency = json!({"kind": "latency", "seconds": 1.0});
    harness.inject(json!({"service": "control-plane", "operation": point.operation, "times": 1, "action": latency}));
    let task = tokio::spawn(async move { reconciler.reconcile(&worker).await });
    eventually("the reconcile is delayed", || async {
        harness.control_plane_calls(point.previous) >= 1 && harness.faults_applied() == 1
    })
    .await;
    change();
    while !task.is_finished() {
        harness.cloud.advance(Duration::from_secs(1)).await;
        tokio::task::yield_now().await;
    }
    let result = task.await.expect("task does not panic");
    harness.deliver(harness.reconciler()).await;
    result
}
