//! What happens between the look and the write: nobody's session is lost to it.

use std::time::Duration;

use fake_cloud::control_plane::Input;
use lcm_sdk::reconciler::ReconcileResult;
use lcm_sdk::{DesiredStatus, Outcome, WorkerStatus};
use serde_json::json;

use crate::draining::assert_untouched;
use lcm_tests::harness::{Harness, eventually};

/// The scheduler places it while the worker still runs; the pass has looked a moment before.
#[tokio::test]
async fn a_session_assigned_in_the_very_moment_of_a_scale_down_is_not_killed() {
    let harness = idle_for_an_hour().await;
    harness.cloud.add_session(json!({"id": "s-new"})).expect("a session nobody serves yet");
    let decided = while_held(&harness, BEFORE_THE_WRITE, || {
        let place = Input::from_value(json!({"worker_id": "w-1"})).expect("an object");
        harness.cloud.records().schedule_session("s-new", &place).expect("the worker still runs");
    })
    .await;
    assert_eq!(decided.to_status, WorkerStatus::Stopping, "{}", decided.reason);

    // From here on nobody places anything on it; what came in before is seen, and kept.
    let seen = harness.reconcile("w-1").await;
    assert_eq!((seen.outcome, seen.to_status), (Outcome::Success, WorkerStatus::Running), "{}", seen.reason);
    assert_eq!(harness.worker("w-1").await.desired_status, Some(DesiredStatus::Running));
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Running);
    assert_untouched(&harness);
    assert_eq!(harness.session_field("s-new", "status"), "scheduled");
}

/// Servers keep what is on a worker on its record: then the write itself is refused, and decided anew.
#[tokio::test]
async fn a_session_that_touches_the_record_has_an_immediate_stop_decided_anew() {
    let harness = idle_for_an_hour().await;
    let decided = while_held(&harness, BEFORE_THE_WRITE, || begin_session(&harness)).await;
    assert_eq!(decided.to_status, WorkerStatus::Running, "{}", decided.reason);
    assert_untouched(&harness);
    // The next idle check sees it from the beginning.
    harness.cloud.advance(Duration::from_secs(300)).await;
    let drains = harness.reconcile("w-1").await;
    assert_eq!(drains.to_status, WorkerStatus::Draining, "{}", drains.reason);
    assert_eq!(harness.session_field("s-new", "status"), "running");
}

/// An idle check changes the record, so it is read again, and the sessions are listed after that.
#[tokio::test]
async fn a_session_that_begins_before_the_record_is_read_again_is_seen_with_it() {
    let harness = idle_for_an_hour().await;
    let decided = while_held(&harness, BEFORE_THE_SECOND_READ, || begin_session(&harness)).await;
    assert_eq!(decided.to_status, WorkerStatus::Draining, "{}", decided.reason);
    assert_eq!(harness.audit("w-1"), ["drain_accepted", "drained"]);
    assert_untouched(&harness);
    assert_eq!(harness.session_field("s-new", "status"), "running");
}

#[tokio::test]
async fn a_drain_called_off_while_a_pass_decides_to_stop_is_not_stopped() {
    let harness = Harness::with_manual_clock().await;
    harness.add_running_worker("w-1").await;
    harness.drain("w-1");
    let read_before = harness.worker("w-1").await;
    harness.cloud.records().cancel_drain("w-1", None, "wait", "alice").expect("it drains");

    let result = harness.reconciler().reconcile(&read_before).await;
    let decided_anew = (result.from_status, result.to_status);
    assert_eq!(decided_anew, (WorkerStatus::Running, WorkerStatus::Running), "{}", result.reason);
    assert_untouched(&harness);
}

async fn idle_for_an_hour() -> Harness {
    let harness = Harness::with_manual_clock().await.with_policy(|policy| policy.scale_down.enabled = true);
    harness.add_running_worker("w-1").await;
    harness.cloud.advance(Duration::from_secs(3600)).await;
    harness
}

fn begin_session(harness: &Harness) {
    harness.add_session("s-new", "w-1", "running");
    harness.cloud.update_worker("w-1", json!({"session_ids": ["s-new"]})).expect("a record");
}

/// Where a pass is held up: at the first call of one operation, which comes right after a call of another.
struct Hold {
    at: &'static str,
    after: &'static str,
}

/// Addresses are written before the status: by then it has decided.
const BEFORE_THE_WRITE: Hold = Hold { at: "write_status", after: "write_ec2_details" };
/// The idle check has changed the record.
const BEFORE_THE_SECOND_READ: Hold = Hold { at: "get_worker", after: "detect_idle" };

/// A pass during which something happens.
async fn while_held(harness: &Harness, hold: Hold, happens: impl FnOnce()) -> ReconcileResult {
    let (worker, reconciler) = (harness.worker("w-1").await, harness.reconciler().clone());
    // It waits on the world's clock, which gives everybody else all the time they need.
    let late = json!({"kind": "latency", "seconds": 1.0});
    harness.inject(json!({"service": "control-plane", "operation": hold.at, "times": 1, "action": late}));
    let pass = tokio::spawn(async move { reconciler.reconcile(&worker).await });
    eventually("the pass is held up", || async { harness.control_plane_calls(hold.after) == 1 }).await;
    happens();
    while !pass.is_finished() {
        harness.cloud.advance(Duration::from_secs(1)).await;
        tokio::task::yield_now().await;
    }
    pass.await.expect("no panic")
}
