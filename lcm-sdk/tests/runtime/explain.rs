//! Explanations and histories of workers.

use std::sync::Arc;

use lcm_sdk::admin::{AdminSource as _, Refusal};
use lcm_sdk::lifecycle::DrainRequest;
use lcm_sdk::providers::memory::ComputeOperation;
use lcm_sdk::reconciler::Explanation;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{WorkerController, WorkerControllerConfig};
use lcm_sdk::{CallFailure, DesiredStatus, Ec2State, FailureKind, ReasonCode, WorkerStatus};
use serde_json::{Value, json};

use super::harness::{Harness, worker_id};

fn then<'a>(explanation: &'a Explanation, condition: &str) -> Option<&'a str> {
    let found = explanation.what_if.iter().find(|what_if| what_if.condition == condition);
    found.map(|what_if| what_if.then.as_str())
}

#[tokio::test(start_paused = true)]
async fn explanation_names_what_would_change_the_decision() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Stopped, Ec2State::Stopped);
    let explanation = harness.reconciler().explain(&harness.record(1)).await;
    assert_eq!(explanation.plan.reason.code, ReasonCode::AtRest);
    assert_eq!(explanation.observed[0].found, "i-1 is stopped, at 10.0.0.1");
    assert_eq!(
        then(&explanation, "the desired status were running"),
        Some("stopped → starting: The instance is stopped and should run: starting it. [start_instance i-1]"),
    );
    assert!(then(&explanation, "the desired status were stopped").is_none(), "{explanation:?}");
    assert!(then(&explanation, "EC2 showed the instance as running").is_some(), "{explanation:?}");
    assert_eq!((harness.starts(), harness.record(1).status), (0, WorkerStatus::Stopped), "nothing is carried out");
}

#[tokio::test(start_paused = true)]
async fn explanation_shows_the_failed_lookup() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Stopping, Ec2State::Running);
    let throttled = CallFailure::new(FailureKind::Throttled, "slow down");
    harness.compute.fail_next(ComputeOperation::Instances, throttled);
    let explanation = harness.reconciler().explain(&harness.record(1)).await;
    assert_eq!(explanation.plan.reason.code, ReasonCode::Ec2Unknown);
    assert!(explanation.observed[0].found.starts_with("unknown: "), "{explanation:?}");
    assert_eq!(explanation.next.when, "after a backoff of 1 s to 60 s (BACKOFF_BASE, MAX_BACKOFF)");
}

#[tokio::test(start_paused = true)]
async fn history_tells_what_happened_without_secrets() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Stopped, Ec2State::Stopped);
    harness.worker(2, WorkerStatus::Stopped, Ec2State::Stopped);
    harness.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Running));
    let config = WorkerControllerConfig::default().without_discovery();
    let controller = WorkerController::new(harness.ports(), harness.policy.clone(), None, config, Telemetry::default())
        .expect("a valid configuration");
    for number in [1, 2] {
        let _ = harness.reconcile(controller.reconciler(), number).await;
    }
    let controller = Arc::new(controller);
    let quiet = controller.worker("w-2").await.expect("it exists");
    assert!(quiet.history.is_empty(), "nothing happened to it: {quiet:?}");
    let report = serde_json::to_value(controller.worker("w-1").await.expect("it exists")).expect("JSON");
    let at = "2026-02-06T08:00:00Z";
    assert_eq!(
        report["history"],
        json!([{
            "at": at, "last_at": at, "repeats": 0, "outcome": "success", "from_status": "stopped",
            "to_status": "starting", "effects": ["start_instance i-1"], "results": ["done"], "duration_ms": 0,
            "changes": {"ec2_account_id": "123456789012", "start_initiated_at": at},
            "reason": {
                "code": "start_requested", "sentence": "The instance is stopped and should run: starting it.",
            },
        }])
    );
    assert_eq!(
        (&report["id"], &report["record"]["status"], &report["queue"]),
        (&json!("w-1"), &json!("starting"), &Value::Null)
    );
    let password = harness.record(1).cml_password.expect("a password");
    assert!(!report.to_string().contains(password.expose()), "{report}");
    assert_eq!(
        controller.worker("w-9").await.expect_err("no such worker"),
        Refusal::NoSuchResource("worker w-9 does not exist".to_owned()),
    );
    let explained = controller.explain("w-1").await.expect("it exists");
    assert_eq!(explained.record.status, WorkerStatus::Starting);
    assert!(controller.explain("w-9").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn operations_and_failures_are_in_the_history() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    let reconciler = harness.reconciler();
    let request = DrainRequest { reason: "new image".to_owned(), requested_by: "alice".to_owned() };
    let _ = reconciler.drain(&worker_id(1), &request).await.expect("it runs");
    harness.worker(2, WorkerStatus::Stopping, Ec2State::Running);
    for _ in 0..3 {
        let refused = CallFailure::new(FailureKind::Refused, "no permission");
        harness.compute.fail_next(ComputeOperation::Stop, refused);
        let _ = harness.reconcile(&reconciler, 2).await;
    }
    let drained = reconciler.recent(&worker_id(1));
    let codes: Vec<&str> = drained.iter().map(|entry| entry.reason.code.as_str()).collect();
    assert_eq!(codes, ["drain_requested"], "{drained:?}");
    let failed = reconciler.recent(&worker_id(2));
    assert_eq!(
        (failed.len(), failed[0].reason.code, failed[0].repeats),
        (1, ReasonCode::EffectFailed, 2),
        "{failed:?}"
    );
    assert!(failed[0].results[0].starts_with("failed: ") && failed[0].results[0].contains("no permission"));
    let recent: Vec<String> =
        reconciler.recent_events(0).events.iter().map(|event| event.worker_id.to_string()).collect();
    assert_eq!(recent, ["w-1", "w-2"]);
}
