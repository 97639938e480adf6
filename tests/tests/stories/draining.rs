//! Draining: active sessions are kept, and a draining worker does not return to service.

use std::time::Duration;

use lcm_sdk::{DesiredStatus, Outcome, WorkerStatus};
use serde_json::json;

use lcm_tests::harness::{Harness, REGION, eventually};

const HOUR: Duration = Duration::from_secs(3600);

/// A draining worker with these sessions, and the id of its instance.
async fn draining_worker(sessions: &[(&str, &str)]) -> (Harness, String) {
    let harness = Harness::with_manual_clock().await;
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

#[tokio::test]
async fn drain_waits_for_all_active_sessions() {
    let (harness, _) = draining_worker(&[("s-run", "running"), ("s-grade", "grading"), ("s-odd", "hibernating")]).await;
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

#[tokio::test]
async fn template_deadline_terminates_remaining_sessions() {
    let harness = Harness::with_manual_clock().await;
    harness
        .cloud
        .add_template(json!({"name": "short", "instance_type": "m5zn.metal", "drain_timeout_hours": 2}))
        .expect("template is valid");
    harness.add_running_worker("w-1").await;
    harness.cloud.update_worker("w-1", json!({"template_name": "short"})).expect("record is updated");
    harness.add_session("s-run", "w-1", "running");
    harness.add_session("s-stuck", "w-1", "stopping");
    harness.drain("w-1");

    harness.cloud.advance(2 * HOUR - Duration::from_secs(1)).await;
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_waiting");
    assert_untouched(&harness);

    harness.cloud.advance(Duration::from_secs(1)).await;
    let forced = harness.reconcile("w-1").await;
    assert_eq!((forced.to_status, forced.reason.code.as_str()), (WorkerStatus::Stopping, "drain_timeout"));
    for session in ["s-run", "s-stuck"] {
        assert_eq!(harness.session_field(session, "status"), "terminated");
        assert_eq!(harness.session_field(session, "status_reason"), "drain_timeout");
    }
    // The timeout is published before the first session is terminated.
    let expected = [
        "cml_worker.drain.started.v1",
        "cml_worker.drain.timed_out.v1",
        "lablet_session.terminated.v1",
        "lablet_session.terminated.v1",
    ];
    assert_eq!(harness.events("w-1"), expected);
    let notice = harness.cloud.records().events(Some("w-1"), Some("cml_worker.drain.timed_out.v1"));
    assert_eq!(notice[0]["data"]["remaining"], json!(["s-run", "s-stuck"]));
    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    assert_eq!(harness.control_plane_calls("terminate_session"), 2);
}

#[tokio::test]
async fn drain_deadline_defaults_to_four_hours() {
    let (harness, _) = draining_worker(&[("s-run", "running")]).await;
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

#[tokio::test]
async fn unreadable_deadline_terminates_no_session() {
    let (harness, _) = draining_worker(&[("s-run", "running")]).await;
    harness.inject(
        json!({"service": "control-plane", "operation": "get_template", "action": {"kind": "error", "code": "500"}}),
    );
    harness.cloud.advance(100 * HOUR).await;
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_waiting");
    assert_untouched(&harness);
}

#[tokio::test]
async fn canceled_drain_does_not_resume() {
    let (harness, _) = draining_worker(&[("s-run", "running")]).await;
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Draining);
    harness.cloud.update_worker("w-1", json!({"is_idle_detection_enabled": false})).expect("record is updated");
    harness.cloud.records().cancel_drain("w-1", None, "the class goes on", "alice").expect("worker is draining");

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
    assert_eq!(published[0]["data"], json!({"cancelled_by": "alice", "reason": "the class goes on"}));
    let again = harness.cloud.records().cancel_drain("w-1", None, "", "").expect_err("worker is not draining");
    assert!(again.to_string().contains("running"), "{again}");
}

#[tokio::test]
async fn failed_session_is_retried_three_times_on_its_worker() {
    let (harness, _) = draining_worker(&[("s-bad", "failed"), ("s-run", "running")]).await;
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

#[tokio::test]
async fn unstarted_sessions_return_to_the_scheduler() {
    let (harness, _) = draining_worker(&[("s-pending", "pending"), ("s-soon", "scheduled")]).await;
    let settling = harness.reconcile("w-1").await;
    assert_eq!((settling.outcome, settling.reason.code.as_str()), (Outcome::Requeue, "drain_settling"));
    for session in ["s-pending", "s-soon"] {
        let session = harness.cloud.session(session).expect("session exists");
        assert_eq!((&session["status"], &session["worker_id"]), (&json!("pending"), &json!(null)));
    }
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Stopping);
    assert_eq!(harness.control_plane_calls("terminate_session"), 0, "no session is terminated");
}

#[tokio::test]
async fn drain_waits_for_rejected_handbacks_until_the_deadline() {
    let (harness, _) = draining_worker(&[("s-soon", "scheduled")]).await;
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

#[tokio::test]
async fn failed_session_listing_is_not_an_empty_one() {
    for action in [json!({"kind": "error", "code": "500"}), json!({"kind": "error", "code": "404"})] {
        let (harness, _) = draining_worker(&[("s-run", "running")]).await;
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

#[tokio::test]
async fn failed_describe_changes_nothing_past_the_deadline() {
    let (harness, _) = draining_worker(&[("s-run", "running")]).await;
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

#[tokio::test]
async fn discovery_does_not_return_draining_workers_to_service() {
    let (harness, _) = draining_worker(&[("s-run", "running")]).await;
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
#[tokio::test]
async fn controller_drains_while_discovery_runs() {
    let harness = Harness::with_real_clock().await;
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

/// The state of a drain is kept in the record, not in memory.
#[tokio::test]
async fn drain_start_survives_a_change_of_leader() {
    let harness = Harness::with_real_clock().await;
    harness.add_running_worker("w-1").await;
    harness.add_session("s-run", "w-1", "running");
    harness.drain("w-1");
    let started_at = drain_started_at(&harness).await;
    let first = harness.start_controller("first", |_| {});
    eventually("the drain is reconciled", || async { harness.control_plane_calls("list_sessions") > 0 }).await;
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

#[tokio::test]
async fn instance_stopped_during_a_drain_is_recorded() {
    let (harness, instance) = draining_worker(&[("s-bad", "failed"), ("s-run", "running")]).await;
    harness.cloud.stop_instance(REGION, &instance).expect("instance stops");
    harness.cloud.advance(Duration::from_secs(30)).await;

    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    assert_eq!(harness.session_field("s-bad", "status_reason"), "worker_stopped_during_retry");
    assert_eq!(harness.worker("w-1").await.notes.drain_started_at, None);
    assert_eq!(
        harness.reconcile("w-1").await.reason.code.as_str(),
        "at_rest",
        "the desired status is stopped, so it is not started"
    );
    assert_eq!((harness.ec2_calls("StartInstances"), harness.ec2_calls("StopInstances")), (0, 0));
}

#[tokio::test]
async fn instance_terminated_during_a_drain_ends_its_sessions() {
    let (harness, instance) = draining_worker(&[("s-run", "running")]).await;
    harness.cloud.terminate_instance(REGION, &instance).expect("instance terminates");
    harness.cloud.advance(Duration::from_secs(60)).await;

    let gone = harness.reconcile("w-1").await;
    assert_eq!((gone.outcome, gone.to_status), (Outcome::Success, WorkerStatus::Terminated), "{}", gone.reason);
    assert_eq!(harness.session_field("s-run", "status_reason"), "worker_terminated");
    assert!(harness.events("w-1").iter().any(|event| event == "cml_worker.terminated.v1"));
}

#[tokio::test]
async fn drain_before_termination_waits_for_sessions() {
    let (harness, _) = draining_worker(&[("s-run", "running")]).await;
    harness.cloud.update_worker("w-1", json!({"desired_status": "terminated"})).expect("desired status is accepted");
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_waiting");
    assert_untouched(&harness);
    harness.end_session("s-run");
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Terminating);
    harness.reconcile_until("w-1", WorkerStatus::Terminated).await;
    assert_eq!((harness.ec2_calls("StopInstances"), harness.ec2_calls("TerminateInstances")), (0, 1));
}

#[tokio::test]
async fn older_server_without_versions_supports_draining() {
    let older = fake_cloud::control_plane::ApiVersion::Older;
    let harness =
        Harness::start(fake_cloud::FakeCloud::builder().pace(fake_cloud::Pace::Manual).api_version(older)).await;
    harness.add_running_worker("w-1").await;
    harness.add_session("s-run", "w-1", "running");
    harness.drain("w-1");
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_waiting");
    assert_eq!(drain_started_at(&harness).await, harness.cloud.now().timestamp_millis(), "recorded by the controller");
    harness.cloud.advance(4 * HOUR).await;
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "drain_timeout");
    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    assert_eq!(harness.worker("w-1").await.notes.drain_started_at, None);
}
