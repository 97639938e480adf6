//! Draining: active sessions are kept, and a draining worker does not return to service.

use std::time::Duration;

use fake_cloud::control_plane::Generation::{self, Extended, Original};
use lcm_sdk::lifecycle::{DrainRequest, Support};
use lcm_sdk::reconciler::OperationError;
use lcm_sdk::{DesiredStatus, Outcome, WorkerStatus};
use rstest::rstest;
use serde_json::json;

use lcm_tests::harness::{Harness, REGION, eventually};

const HOUR: Duration = Duration::from_secs(3600);

/// A draining worker with these sessions, and the id of its instance.
async fn draining_worker(generation: Generation, sessions: &[(&str, &str)]) -> (Harness, String) {
    let harness = Harness::with_manual_clock(generation).await;
    let instance = harness.add_running_worker("w-1").await;
    for (id, status) in sessions {
        harness.add_session(id, "w-1", status);
    }
    harness.drain("w-1");
    (harness, instance)
}

/// Recorded start of the drain, in milliseconds.
async fn drain_started_at(harness: &Harness) -> i64 {
    harness.worker("w-1").await.notes.drain_started_at.expect("drain start is recorded").timestamp_millis()
}

/// Asserts that no instance was started, stopped or terminated, and that no session was terminated.
pub(crate) fn assert_untouched(harness: &Harness) {
    for change in ["StopInstances", "StartInstances", "TerminateInstances"] {
        assert_eq!(harness.ec2_calls(change), 0, "{change}");
    }
    assert_eq!(harness.control_plane_calls("terminate_session"), 0);
}

#[rstest]
#[tokio::test]
async fn drain_waits_for_all_active_sessions(#[values(Original, Extended)] generation: Generation) {
    let (harness, _) =
        draining_worker(generation, &[("s-run", "running"), ("s-grade", "grading"), ("s-odd", "hibernating")]).await;
    assert_eq!(harness.worker("w-1").await.desired_status, Some(DesiredStatus::Stopped));
    for (ends, left) in [("s-run", "3 active"), ("s-grade", "2 active"), ("s-odd", "1 active")] {
        let waiting = harness.reconcile("w-1").await;
        assert_eq!((waiting.outcome, waiting.to_status), (Outcome::Requeue, WorkerStatus::Draining));
        assert!(waiting.reason.to_string().contains(left), "{}", waiting.reason);
        harness.cloud.advance(Duration::from_secs(600)).await;
        harness.end_session(ends);
    }
    assert_untouched(&harness);

    let drained = harness.reconcile("w-1").await;
    assert_eq!((drained.outcome, drained.to_status), (Outcome::Success, WorkerStatus::Stopping), "{}", drained.reason);
    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    assert_eq!((harness.ec2_calls("StopInstances"), harness.counter("stopped_count")), (1, 1));
    assert_eq!(harness.events("w-1"), ["cml_worker.drain.started.v1", "cml_worker.drain.completed.v1"]);
    // The worker stays stopped, and the next drain gets its own start time.
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "at_rest");
    assert_eq!(harness.worker("w-1").await.notes.drain_started_at, None);
}

#[rstest]
#[tokio::test]
async fn template_deadline_terminates_remaining_sessions(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    harness
        .cloud
        .add_template(json!({"name": "short", "instance_type": "m5zn.metal", "drain_timeout_hours": 2}))
        .expect("template is valid");
    harness.add_running_worker("w-1").await;
    harness.cloud.update_worker("w-1", json!({"template_name": "short"})).expect("record is updated");
    harness.add_session("s-run", "w-1", "running");
    harness.add_session("s-stuck", "w-1", "stopping");
    harness.drain("w-1");
    // Templates of the original server have no drain timeout, and its drains no start time.
    let deadline = match generation {
        Extended => 2 * HOUR,
        Original => 4 * HOUR,
    };
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_waiting");

    harness.cloud.advance(deadline - Duration::from_secs(1)).await;
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_waiting");
    assert_untouched(&harness);

    harness.cloud.advance(Duration::from_secs(1)).await;
    let forced = harness.reconcile("w-1").await;
    assert_eq!((forced.to_status, forced.reason.code.as_str()), (WorkerStatus::Stopping, "drain_timeout"));
    for session in ["s-run", "s-stuck"] {
        assert_eq!(harness.session_field(session, "status"), "terminated");
        assert_eq!(harness.session_field(session, "status_reason"), "drain_timeout");
    }
    // Our events are delivered beside the reconcile, so their place among the server's own is open.
    let mut published = harness.events("w-1");
    published.sort_unstable();
    let expected = [
        "cml_worker.drain.started.v1",
        "cml_worker.drain.timed_out.v1",
        "lablet_session.terminated.v1",
        "lablet_session.terminated.v1",
    ];
    assert_eq!(published, expected);
    let notice = harness.cloud.records().events(Some("w-1"), Some("cml_worker.drain.timed_out.v1"));
    assert_eq!(notice[0]["data"]["remaining"], json!(["s-run", "s-stuck"]));
    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    assert_eq!(harness.control_plane_calls("terminate_session"), 2);
}

#[rstest]
#[tokio::test]
async fn drain_deadline_defaults_to_four_hours(#[values(Original, Extended)] generation: Generation) {
    let (harness, _) = draining_worker(generation, &[("s-run", "running")]).await;
    let odd = json!({"template_name": "gone", "drain_started_at": null});
    harness.cloud.update_worker("w-1", odd).expect("record is updated");
    harness.cloud.advance(9 * HOUR).await;

    let first = harness.reconcile("w-1").await;
    assert_eq!(first.reason.code.as_str(), "drain_waiting", "a missing start time is set to now");
    assert_eq!(drain_started_at(&harness).await, harness.cloud.now().timestamp_millis());
    harness.cloud.advance(4 * HOUR - Duration::from_secs(1)).await;
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_waiting");
    assert_untouched(&harness);
    harness.cloud.advance(Duration::from_secs(1)).await;
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_timeout");
}

#[rstest]
#[tokio::test]
async fn unreadable_deadline_terminates_no_session(#[values(Original, Extended)] generation: Generation) {
    let (harness, _) = draining_worker(generation, &[("s-run", "running")]).await;
    harness.inject(
        json!({"service": "control-plane", "operation": "get_template", "action": {"kind": "error", "code": "500"}}),
    );
    harness.cloud.advance(100 * HOUR).await;
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_waiting");
    assert_untouched(&harness);
}

#[rstest]
#[tokio::test]
async fn canceled_drain_does_not_resume(#[values(Original, Extended)] generation: Generation) {
    let (harness, _) = draining_worker(generation, &[("s-run", "running")]).await;
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Draining);
    harness.cloud.update_worker("w-1", json!({"is_idle_detection_enabled": false})).expect("record is updated");
    match generation {
        Extended => {
            let records = harness.cloud.records();
            records.cancel_drain("w-1", None, "the class goes on", "alice").expect("worker is draining");
        }
        // An operator requests the desired status instead.
        Original => {
            let running = json!({"desired_status": "running", "is_auto_pause_enabled": false});
            harness.cloud.update_worker("w-1", running).expect("record is updated");
        }
    }

    for _ in 0..3 {
        let result = harness.reconcile("w-1").await;
        assert_eq!((result.outcome, result.to_status), (Outcome::Success, WorkerStatus::Running), "{}", result.reason);
        harness.cloud.advance(2 * HOUR).await;
    }
    let worker = harness.worker("w-1").await;
    assert_eq!((worker.status, worker.desired_status), (WorkerStatus::Running, Some(DesiredStatus::Running)));
    assert_eq!(worker.notes.drain_started_at, None);
    assert_untouched(&harness);
    let published = harness.cloud.records().events(Some("w-1"), Some("cml_worker.drain.cancelled.v1"));
    let expected = match generation {
        Extended => json!({"cancelled_by": "alice", "reason": "the class goes on"}),
        Original => {
            json!({"cancelled_by": "worker-controller", "event": "drain_cancelled", "reason": "desired_running"})
        }
    };
    assert_eq!((published.len(), &published[0]["data"]), (1, &expected));
}

/// On the original server sessions do not fail, and none can be retried.
#[rstest]
#[tokio::test]
async fn failed_session_is_retried_three_times_on_its_worker(#[values(Extended)] generation: Generation) {
    let (harness, _) = draining_worker(generation, &[("s-bad", "failed"), ("s-run", "running")]).await;
    for attempt in 1..=3_u64 {
        let retried = harness.reconcile("w-1").await;
        assert_eq!(
            (retried.outcome, retried.to_status),
            (Outcome::Requeue, WorkerStatus::Draining),
            "{}",
            retried.reason
        );
        let session = harness.cloud.session("s-bad").expect("session exists");
        assert_eq!((&session["status"], &session["retry_count"]), (&json!("instantiating"), &json!(attempt)));
        assert_eq!(session["worker_id"], json!("w-1"), "on the same worker");
        harness.move_session("s-bad", "failed");
    }
    let given_up = harness.reconcile("w-1").await;
    assert_eq!(
        (given_up.outcome, given_up.to_status),
        (Outcome::Requeue, WorkerStatus::Draining),
        "the other session continues"
    );
    assert_eq!(harness.session_field("s-bad", "status"), "terminated");
    assert_eq!(harness.session_field("s-bad", "status_reason"), "max_retries_exceeded");
    assert_eq!(harness.session_field("s-run", "status"), "running");
    let count_events = |kind: &str| harness.events("w-1").iter().filter(|event| *event == kind).count();
    assert_eq!(count_events("cml_worker.drain.session.retried.v1"), 3);
    assert_eq!(count_events("cml_worker.drain.session.given_up.v1"), 1);
    harness.end_session("s-run");
    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    assert_eq!(harness.control_plane_calls("terminate_session"), 1);
}

/// On the original server none can: see `original_server_keeps_unstarted_sessions_until_the_deadline`.
#[rstest]
#[tokio::test]
async fn unstarted_sessions_return_to_the_scheduler(#[values(Extended)] generation: Generation) {
    let (harness, _) = draining_worker(generation, &[("s-pending", "pending"), ("s-soon", "scheduled")]).await;
    let settling = harness.reconcile("w-1").await;
    assert_eq!((settling.outcome, settling.reason.code.as_str()), (Outcome::Requeue, "drain_settling"));
    for session in ["s-pending", "s-soon"] {
        let session = harness.cloud.session(session).expect("session exists");
        assert_eq!((&session["status"], &session["worker_id"]), (&json!("pending"), &json!(null)));
    }
    harness.cloud.advance(harness.policy.drain_settle).await;
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Stopping);
    assert_eq!(harness.control_plane_calls("terminate_session"), 0, "no session is terminated");
}

/// The original server cannot take a session back: it counts as active until the deadline, and is asked once only.
#[tokio::test]
async fn original_server_keeps_unstarted_sessions_until_the_deadline() {
    let (harness, _) = draining_worker(Original, &[("s-soon", "scheduled")]).await;
    for _ in 0..4 {
        let waiting = harness.reconcile("w-1").await;
        assert_eq!(waiting.to_status, WorkerStatus::Draining, "{}", waiting.reason);
        assert_eq!(harness.session_field("s-soon", "status"), "scheduled");
        harness.cloud.advance(Duration::from_secs(3000)).await;
    }
    assert_eq!(harness.control_plane_calls("transition_session"), 1);
    assert_untouched(&harness);
    assert_eq!(harness.ports.control_plane.capabilities().session_moves, Support::No);
    harness.cloud.advance(HOUR).await;
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_timeout");
    assert_eq!(harness.session_field("s-soon", "status_reason"), "drain_timeout");
}

/// The refusal names what to do instead, and that works.
#[tokio::test]
async fn original_server_cannot_cancel_a_drain() {
    let (harness, _) = draining_worker(Original, &[("s-run", "running")]).await;
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Draining);
    let request = DrainRequest { reason: "the class goes on".to_owned(), requested_by: "alice".to_owned() };
    for _ in 0..2 {
        let refused = harness.reconciler().cancel_drain(&"w-1".into(), &request).await.expect_err("not supported");
        assert!(matches!(refused, OperationError::NotSupported(_)), "{refused:?}");
        let sentence = "canceling a drain is not supported by this control plane; request the desired status 'running' \
                        from the control plane itself, or let the worker drain and start it again";
        assert_eq!(refused.to_string(), sentence);
    }
    let worker = harness.worker("w-1").await;
    assert_eq!((worker.status, worker.desired_status), (WorkerStatus::Draining, Some(DesiredStatus::Stopped)));
    assert_eq!(harness.control_plane_calls("unknown"), 1, "the missing endpoint is called once");
    assert_eq!(harness.ports.control_plane.capabilities().cancel_drain, Support::No);

    harness.cloud.update_worker("w-1", json!({"desired_status": "running"})).expect("desired status is accepted");
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Running);
    assert_untouched(&harness);
}

/// The scheduler read `running` just before the drain and assigns a session just after it.
#[rstest]
#[tokio::test]
async fn late_assignment_is_found_after_the_settle_time(#[values(Original, Extended)] generation: Generation) {
    let (harness, _) = draining_worker(generation, &[]).await;
    let settling = harness.reconcile("w-1").await;
    assert_eq!((settling.to_status, settling.reason.code.as_str()), (WorkerStatus::Draining, "settle_time"));
    harness.cloud.advance(harness.policy.drain_settle / 2).await;
    harness.add_session("s-late", "w-1", "instantiating");
    harness.cloud.advance(harness.policy.drain_settle / 2).await;
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_waiting");
    assert_untouched(&harness);
    harness.end_session("s-late");
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Stopping);
}

#[rstest]
#[tokio::test]
async fn worker_desired_running_again_leaves_its_drain(#[values(Original, Extended)] generation: Generation) {
    let (harness, _) = draining_worker(generation, &[("s-run", "running"), ("s-soon", "scheduled")]).await;
    harness.cloud.update_worker("w-1", json!({"desired_status": "running"})).expect("desired status is accepted");
    harness.cloud.advance(100 * HOUR).await;
    let back = harness.reconcile("w-1").await;
    assert_eq!((back.to_status, back.reason.code.as_str()), (WorkerStatus::Running, "drain_cancelled"));
    let worker = harness.worker("w-1").await;
    assert_eq!((worker.status, worker.notes.drain_started_at), (WorkerStatus::Running, None));
    assert_untouched(&harness);
    assert_eq!(harness.session_field("s-soon", "status"), "scheduled");
    assert!(harness.events("w-1").iter().any(|event| event == "cml_worker.drain.cancelled.v1"));
}

#[rstest]
#[tokio::test]
async fn unending_session_delays_the_stop_three_times(#[values(Original, Extended)] generation: Generation) {
    let (harness, _) = draining_worker(generation, &[("s-stuck", "running")]).await;
    harness.inject(json!({
        "service": "control-plane", "operation": "terminate_session", "action": {"kind": "error", "code": "422"},
    }));
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_waiting");
    harness.cloud.advance(5 * HOUR).await;
    for _ in 0..3 {
        let held = harness.reconcile("w-1").await;
        assert_eq!((held.outcome, held.to_status), (Outcome::Retry, WorkerStatus::Draining), "{}", held.reason);
        assert_eq!(harness.ec2_calls("StopInstances"), 0);
    }
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Stopping);
    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    let announced = harness.cloud.records().events(Some("w-1"), Some("cml_worker.drain.timed_out.v1"));
    assert_eq!(announced.len(), 1);
    assert_eq!(harness.worker("w-1").await.notes.drain_tries, 0);
}

/// Templates of the original server have no drain timeout.
#[rstest]
#[tokio::test]
async fn deleted_template_does_not_shorten_the_drain(#[values(Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    let long = json!({"name": "long", "instance_type": "m5zn.metal", "drain_timeout_hours": 24});
    harness.cloud.add_template(long).expect("template is valid");
    harness.add_running_worker("w-1").await;
    harness.cloud.update_worker("w-1", json!({"template_name": "long"})).expect("record is updated");
    harness.add_session("s-run", "w-1", "running");
    harness.drain("w-1");
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_waiting");
    // The record names a template that does not exist any more.
    harness.cloud.update_worker("w-1", json!({"template_name": "deleted"})).expect("record is updated");
    harness.cloud.advance(23 * HOUR).await;
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_waiting");
    assert_untouched(&harness);
    harness.cloud.advance(HOUR).await;
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_timeout");
}

#[rstest]
#[tokio::test]
async fn drain_waits_for_rejected_handbacks_until_the_deadline(#[values(Original, Extended)] generation: Generation) {
    let (harness, _) = draining_worker(generation, &[("s-soon", "scheduled")]).await;
    harness.inject(json!({
        "service": "control-plane", "operation": "transition_session", "action": {"kind": "error", "code": "422"},
    }));
    for _ in 0..3 {
        let waiting = harness.reconcile("w-1").await;
        assert_eq!(
            (waiting.outcome, waiting.to_status),
            (Outcome::Retry, WorkerStatus::Draining),
            "{}",
            waiting.reason
        );
        harness.cloud.advance(HOUR).await;
    }
    assert_untouched(&harness);
    assert_eq!(harness.session_field("s-soon", "status"), "scheduled");

    // Past the deadline the session is terminated.
    harness.cloud.advance(2 * HOUR).await;
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Stopping);
    assert_eq!(harness.session_field("s-soon", "status_reason"), "drain_timeout");
}

#[rstest]
#[tokio::test]
async fn failed_session_listing_is_not_an_empty_one(#[values(Original, Extended)] generation: Generation) {
    for action in [json!({"kind": "error", "code": "500"}), json!({"kind": "error", "code": "404"})] {
        let (harness, _) = draining_worker(generation, &[("s-run", "running")]).await;
        assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_waiting");
        harness.inject(json!({"service": "control-plane", "operation": "list_sessions", "action": action}));
        harness.cloud.advance(100 * HOUR).await;
        for _ in 0..3 {
            let result = harness.reconcile("w-1").await;
            assert_eq!(
                (result.outcome, result.to_status),
                (Outcome::Retry, WorkerStatus::Draining),
                "{}",
                result.reason
            );
            assert_eq!(result.reason.code.as_str(), "sessions_unknown");
        }
        assert_untouched(&harness);

        harness.cloud.clear_faults();
        harness.end_session("s-run");
        assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Stopping);
    }
}

#[rstest]
#[tokio::test]
async fn failed_describe_changes_nothing_past_the_deadline(#[values(Original, Extended)] generation: Generation) {
    let (harness, _) = draining_worker(generation, &[("s-run", "running")]).await;
    let denied = json!({"kind": "error", "code": "UnauthorizedOperation"});
    harness.inject(json!({"service": "ec2", "operation": "DescribeInstances", "action": denied}));
    harness.cloud.advance(100 * HOUR).await;
    for _ in 0..2 {
        let result = harness.reconcile("w-1").await;
        assert_eq!((result.outcome, result.to_status), (Outcome::Retry, WorkerStatus::Draining), "{}", result.reason);
    }
    assert_untouched(&harness);
    assert_eq!(harness.session_field("s-run", "status"), "running");
}

#[rstest]
#[tokio::test]
async fn discovery_does_not_return_draining_workers_to_service(#[values(Original, Extended)] generation: Generation) {
    let (harness, _) = draining_worker(generation, &[("s-run", "running")]).await;
    for _ in 0..3 {
        let found = harness.discovery().run_once().await;
        assert_eq!((found.error.clone(), found.regions[0].seen), (None, 1));
        assert_eq!(harness.status("w-1").await, WorkerStatus::Draining);
        assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Draining);
        harness.cloud.advance(Duration::from_secs(300)).await;
    }
    assert_eq!(harness.control_plane_calls("bulk_import"), 0, "a repeated import may overwrite the record");
    assert_eq!(harness.worker("w-1").await.desired_status, Some(DesiredStatus::Stopped));
    assert_untouched(&harness);
}

/// Runs a whole controller with all loops on the real clock.
#[rstest]
#[tokio::test]
async fn controller_drains_while_discovery_runs(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    harness.add_running_worker("w-1").await;
    harness.add_session("s-run", "w-1", "running");
    let actor = harness.start_controller("controller", |_| {});
    eventually("the worker is in service", || async { actor.telemetry.counters()["running_worker_count"] == 1 }).await;
    harness.drain("w-1");
    let scans = || harness.ec2_calls("DescribeInstances");
    let before = scans();
    eventually("discovery has run several times", || async { scans() >= before + 6 }).await;
    assert_eq!(harness.status("w-1").await, WorkerStatus::Draining);
    assert_untouched(&harness);

    harness.end_session("s-run");
    eventually("the worker has stopped", || async { harness.status("w-1").await == WorkerStatus::Stopped }).await;
    assert_eq!(harness.ec2_calls("StopInstances"), 1);
    eventually("the stop is counted", || async { actor.telemetry.counters()["stopped_count"] == 1 }).await;
    assert_eq!(harness.worker("w-1").await.desired_status, Some(DesiredStatus::Stopped));
    actor.stop().await;
}

#[rstest]
#[tokio::test]
async fn operator_drains_a_worker_through_the_controller(#[values(Original, Extended)] generation: Generation) {
    use lcm_sdk::admin::{AdminSource as _, Operation, OperationRequest, Refusal};
    let harness = Harness::with_real_clock(generation).await;
    harness.add_running_worker("w-1").await;
    harness.add_session("s-run", "w-1", "running");
    let request = || OperationRequest { reason: "new image".to_owned(), requested_by: "alice".to_owned() };
    let actor = harness.start_controller("controller", |_| {});
    eventually("the worker is in service", || async { actor.telemetry.counters()["running_worker_count"] == 1 }).await;

    let refused = actor.controller.operate("w-1", Operation::CancelDrain, request()).await;
    assert!(matches!(refused, Err(Refusal::NotAllowed(_))), "{refused:?}");
    actor.controller.operate("w-1", Operation::Drain, request()).await.expect("it runs");
    assert_eq!(harness.status("w-1").await, WorkerStatus::Draining);
    match generation {
        Extended => {
            actor.controller.operate("w-1", Operation::CancelDrain, request()).await.expect("it drains");
            assert_eq!(harness.worker("w-1").await.desired_status, Some(DesiredStatus::Running));
            actor.controller.operate("w-1", Operation::Drain, request()).await.expect("it runs");
        }
        Original => {
            let refused = actor.controller.operate("w-1", Operation::CancelDrain, request()).await;
            assert!(matches!(refused, Err(Refusal::NotSupported(_))), "{refused:?}");
            assert_eq!(harness.status("w-1").await, WorkerStatus::Draining);
        }
    }
    assert_untouched(&harness);
    harness.end_session("s-run");
    eventually("the worker has stopped", || async { harness.status("w-1").await == WorkerStatus::Stopped }).await;
    actor.stop().await;
}

/// The state of a drain is kept in the record or in the store of notes, not in memory.
#[rstest]
#[tokio::test]
async fn drain_start_survives_a_change_of_leader(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    harness.add_running_worker("w-1").await;
    harness.add_session("s-run", "w-1", "running");
    harness.drain("w-1");
    let first = harness.start_controller("first", |_| {});
    eventually("the drain is reconciled", || async { harness.control_plane_calls("list_sessions") > 0 }).await;
    let is_noted = || async { harness.worker("w-1").await.notes.drain_started_at.is_some() };
    eventually("the start is noted", is_noted).await;
    let started_at = drain_started_at(&harness).await;
    first.stop().await;
    let second = harness.start_controller("second", |_| {});
    eventually("the second controller leads", || async { second.controller.lease().is_some() }).await;
    let listed = harness.control_plane_calls("list_sessions");
    eventually("the drain is reconciled again", || async { harness.control_plane_calls("list_sessions") > listed })
        .await;
    assert_eq!((harness.status("w-1").await, drain_started_at(&harness).await), (WorkerStatus::Draining, started_at));
    assert_untouched(&harness);

    harness.end_session("s-run");
    eventually("the worker has stopped", || async { harness.status("w-1").await == WorkerStatus::Stopped }).await;
    assert_eq!(harness.ec2_calls("StopInstances"), 1);
    second.stop().await;
}

#[rstest]
#[tokio::test]
async fn instance_stopped_during_a_drain_is_recorded(#[values(Original, Extended)] generation: Generation) {
    let sessions = [("s-bad", "failed"), ("s-run", "running"), ("s-soon", "scheduled")];
    let known = match generation {
        Extended => &sessions[..],
        // Its sessions do not fail.
        Original => &sessions[1..],
    };
    let (harness, instance) = draining_worker(generation, known).await;
    harness.cloud.stop_instance(REGION, &instance).expect("instance stops");
    harness.cloud.advance(Duration::from_secs(30)).await;

    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    match generation {
        Extended => {
            assert_eq!(harness.session_field("s-bad", "status_reason"), "worker_stopped_during_retry");
            assert_eq!(harness.session_field("s-soon", "status"), "pending", "handed back, not lost");
        }
        Original => assert_eq!(harness.session_field("s-soon", "status"), "scheduled", "kept, not lost"),
    }
    assert_eq!(harness.worker("w-1").await.notes.drain_started_at, None);
    assert_eq!(
        harness.reconcile("w-1").await.reason.code.as_str(),
        "at_rest",
        "the desired status is stopped, so it is not started"
    );
    assert_eq!((harness.ec2_calls("StartInstances"), harness.ec2_calls("StopInstances")), (0, 0));
}

#[rstest]
#[tokio::test]
async fn instance_terminated_during_a_drain_ends_its_sessions(#[values(Original, Extended)] generation: Generation) {
    let (harness, instance) = draining_worker(generation, &[("s-run", "running")]).await;
    harness.cloud.terminate_instance(REGION, &instance).expect("instance terminates");
    harness.cloud.advance(Duration::from_secs(60)).await;

    let gone = harness.reconcile("w-1").await;
    assert_eq!((gone.outcome, gone.to_status), (Outcome::Success, WorkerStatus::Terminated), "{}", gone.reason);
    assert_eq!(harness.session_field("s-run", "status_reason"), "worker_terminated");
    assert!(harness.events("w-1").iter().any(|event| event == "cml_worker.terminated.v1"));
}

#[rstest]
#[tokio::test]
async fn unending_session_does_not_delay_a_termination(#[values(Original, Extended)] generation: Generation) {
    for operation in ["list_sessions", "terminate_session"] {
        let (harness, instance) = draining_worker(generation, &[("s-run", "running")]).await;
        harness.inject(json!({
            "service": "control-plane", "operation": operation, "action": {"kind": "error", "code": "500"},
        }));
        harness.cloud.terminate_instance(REGION, &instance).expect("instance terminates");
        harness.cloud.advance(Duration::from_secs(60)).await;
        let gone = harness.reconcile("w-1").await;
        assert_eq!(gone.to_status, WorkerStatus::Terminated, "{operation}: {}", gone.reason);
        assert!(matches!(gone.requeue, lcm_sdk::Requeue::After(_)), "{operation}: its sessions are tried again");
    }
}

#[rstest]
#[tokio::test]
async fn drain_before_termination_waits_for_sessions(#[values(Original, Extended)] generation: Generation) {
    let (harness, _) = draining_worker(generation, &[("s-run", "running")]).await;
    harness.cloud.update_worker("w-1", json!({"desired_status": "terminated"})).expect("desired status is accepted");
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_waiting");
    assert_untouched(&harness);
    harness.end_session("s-run");
    harness.cloud.advance(harness.policy.drain_settle).await;
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Terminating);
    harness.reconcile_until("w-1", WorkerStatus::Terminated).await;
    assert_eq!((harness.ec2_calls("StopInstances"), harness.ec2_calls("TerminateInstances")), (0, 1));
}
