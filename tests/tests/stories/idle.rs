//! Idle workers: who is found idle, who goes, and who has to stay.

use std::time::Duration;

use fake_cloud::cml::BootStage as Boot;
use lcm_sdk::reconciler::Reconciler;
use lcm_sdk::{DesiredStatus, Outcome, Policy, WorkerStatus};
use serde_json::json;

use lcm_tests::harness::Harness;

const HOUR: Duration = Duration::from_secs(3600);

/// These workers, in service, and nobody there for more than an hour.
async fn nobody_around(workers: &[&str], change: impl FnOnce(&mut Policy)) -> Harness {
    let harness = Harness::with_manual_clock().await.with_policy(|policy| {
        policy.scale_down.enabled = true;
        change(policy);
    });
    for worker in workers {
        harness.add_running_worker(worker).await;
    }
    harness.cloud.advance(HOUR).await;
    harness
}

/// Passes over workers at the same time, as the queue makes them.
async fn pass_over(harness: &Harness, workers: &[&str]) -> Vec<WorkerStatus> {
    let read = futures_util::future::join_all(workers.iter().map(|id| harness.worker(id))).await;
    let passes = read.into_iter().map(|worker| {
        let reconciler = harness.reconciler().clone();
        tokio::spawn(async move { reconciler.reconcile(&worker).await.to_status })
    });
    futures_util::future::join_all(passes).await.into_iter().map(|to| to.expect("no panic")).collect()
}

fn in_service(statuses: &[WorkerStatus]) -> usize {
    statuses.iter().filter(|status| **status == WorkerStatus::Running).count()
}

/// Every guard would hit; each step takes the first of them away.
#[tokio::test]
async fn the_guards_stand_in_order_and_each_leaves_its_label() {
    let harness = nobody_around(&["w-1", "w-2"], |policy| policy.scale_down.min_workers = 2).await;
    let cml = harness.worker("w-1").await.ec2_instance_id.expect("it has one");
    let cml = harness.cloud.cml(cml.as_str()).expect("its CML");
    harness.cloud.update_worker("w-1", json!({"is_auto_pause_enabled": false})).expect("a record");
    let gone = json!({
        "id": "w-0", "status": "terminated", "template_name": "metal", "aws_region": lcm_tests::harness::REGION,
        "scaled_down_at": harness.cloud.now() + chrono::TimeDelta::minutes(10),
    });
    harness.cloud.add_worker(gone).expect("one that was scaled down a moment ago");
    harness.add_session("s-1", "w-1", "scheduled");
    // The next check is due five minutes after the one before.
    let check = async |harness: &Harness| {
        harness.cloud.advance(Duration::from_secs(300)).await;
        let result = harness.reconcile("w-1").await;
        (harness.audit("w-1").last().cloned().unwrap_or_default(), result.to_status)
    };

    cml.record_activity("start_lab", json!({"user_id": "a-student"}));
    assert_eq!(check(&harness).await, ("skipped_not_idle".to_owned(), WorkerStatus::Running));
    harness.cloud.advance(HOUR).await;
    assert_eq!(check(&harness).await, ("skipped_not_eligible".to_owned(), WorkerStatus::Running));
    harness.cloud.update_worker("w-1", json!({"is_auto_pause_enabled": true})).expect("a record");
    assert_eq!(check(&harness).await, ("skipped_min_workers".to_owned(), WorkerStatus::Running));
    let harness = harness.with_policy(|policy| policy.scale_down.min_workers = 1);
    let just_now = json!({"scaled_down_at": harness.cloud.now()});
    harness.cloud.update_worker("w-0", just_now).expect("a record");
    assert_eq!(check(&harness).await, ("skipped_cooldown".to_owned(), WorkerStatus::Running));
    harness.cloud.advance(Duration::from_secs(600)).await;
    assert_eq!(check(&harness).await, ("skipped_upcoming_session".to_owned(), WorkerStatus::Running));
    harness.move_session("s-1", "running");
    assert_eq!(check(&harness).await, ("drained".to_owned(), WorkerStatus::Draining));

    assert_eq!(
        harness.audit("w-1"),
        [
            "skipped_not_idle",
            "skipped_not_eligible",
            "skipped_min_workers",
            "skipped_cooldown",
            "skipped_upcoming_session",
            "drain_accepted",
            "drained",
        ]
    );
    assert_eq!((harness.counter("idle_detection_count"), harness.counter("scale_down_drain_count")), (6, 1));
    assert_eq!((harness.counter("auto_pause_count"), harness.ec2_calls("StopInstances")), (0, 0));
}

#[tokio::test]
async fn an_idle_worker_without_a_session_is_stopped_at_once() {
    let harness = nobody_around(&["w-1"], |_| {}).await;
    let stopped = harness.reconcile("w-1").await;
    assert_eq!((stopped.outcome, stopped.to_status), (Outcome::Success, WorkerStatus::Stopping), "{}", stopped.reason);
    assert_eq!(harness.audit("w-1"), ["stopped_immediately"]);
    let worker = harness.worker("w-1").await;
    assert_eq!(worker.desired_status, Some(DesiredStatus::Stopped));
    let noted = worker.notes.scaled_down_at.expect("the cooldown counts from here");
    assert_eq!(noted.timestamp_millis(), harness.cloud.now().timestamp_millis());
    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    assert_eq!((harness.ec2_calls("StopInstances"), harness.counter("stopped_count")), (1, 1));
    assert_eq!(harness.counter("scale_down_drain_count"), 0);
    assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "at_rest");
    assert_eq!(harness.worker("w-1").await.notes.drain_started_at, None);
}

#[tokio::test]
async fn a_session_soon_keeps_its_worker_and_one_far_off_does_not() {
    let at = |harness: &Harness, minutes: i64| harness.cloud.now() + chrono::TimeDelta::minutes(minutes);
    for (minutes, label) in [(30, "skipped_upcoming_session"), (31, "drained")] {
        let harness = nobody_around(&["w-1"], |_| {}).await;
        let start = at(&harness, minutes);
        let session = json!({"id": "s-1", "worker_id": "w-1", "status": "scheduled", "timeslot_start": start});
        harness.cloud.add_session(session).expect("a session");
        let _ = harness.reconcile("w-1").await;
        assert_eq!(harness.audit("w-1").last().map(String::as_str), Some(label), "in {minutes} minutes");
        assert_eq!(harness.ec2_calls("StopInstances"), 0);
    }
}

#[tokio::test]
async fn many_idle_workers_at_once_never_undercut_the_minimum() {
    let workers = ["w-1", "w-2", "w-3", "w-4", "w-5", "w-6"];
    let harness = nobody_around(&workers, |policy| {
        policy.scale_down.min_workers = 2;
        policy.scale_down.cooldown = Duration::ZERO;
    })
    .await;
    let statuses = pass_over(&harness, &workers).await;
    assert_eq!(in_service(&statuses), 2, "{statuses:?}");
    let labels: Vec<String> = workers.iter().flat_map(|worker| harness.audit(worker)).collect();
    let count = |label: &str| labels.iter().filter(|one| *one == label).count();
    assert_eq!((count("stopped_immediately"), count("skipped_min_workers")), (4, 2), "{labels:?}");

    // Neither does whoever comes next: the count is in the records.
    let harness = harness.with_policy(|_| {});
    harness.cloud.advance(Duration::from_secs(600)).await;
    let _ = pass_over(&harness, &workers).await;
    let mut left = Vec::new();
    for worker in workers {
        left.push(harness.status(worker).await);
    }
    assert_eq!(in_service(&left), 2, "{left:?}");
}

#[tokio::test]
async fn a_worker_that_an_operator_stops_meanwhile_is_not_counted_on() {
    let harness = nobody_around(&["w-1", "w-2", "w-3"], |policy| {
        policy.scale_down.min_workers = 1;
        policy.scale_down.cooldown = Duration::ZERO;
    })
    .await;
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Stopping);
    harness.cloud.update_worker("w-2", json!({"desired_status": "stopped"})).expect("an operator's wish");
    assert_eq!(harness.reconcile("w-3").await.to_status, WorkerStatus::Running);
    assert_eq!(harness.audit("w-3"), ["skipped_min_workers"]);
}

#[tokio::test]
async fn a_cooldown_lets_one_go_at_a_time_even_at_the_same_moment() {
    let workers = ["w-1", "w-2", "w-3", "w-4"];
    let harness = nobody_around(&workers, |_| {}).await;
    let statuses = pass_over(&harness, &workers).await;
    assert_eq!(in_service(&statuses), 3, "{statuses:?}");
    let labels: Vec<String> = workers.iter().flat_map(|worker| harness.audit(worker)).collect();
    assert_eq!(labels.iter().filter(|label| *label == "skipped_cooldown").count(), 3, "{labels:?}");
}

#[tokio::test]
async fn a_cooldown_survives_a_change_of_leader() {
    let harness = nobody_around(&["w-1", "w-2"], |_| {}).await;
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Stopping);
    // Another process, with nothing in its memory.
    let ports = harness.ports.clone();
    let successor = Reconciler::new(ports, harness.policy.clone());
    harness.cloud.advance(Duration::from_secs(599)).await;
    let held = successor.reconcile(&harness.worker("w-2").await).await;
    assert_eq!(held.to_status, WorkerStatus::Running);
    assert_eq!(harness.audit("w-2"), ["skipped_cooldown"]);

    harness.cloud.advance(Duration::from_secs(300)).await;
    let successor = Reconciler::new(harness.ports.clone(), harness.policy.clone());
    assert_eq!(successor.reconcile(&harness.worker("w-2").await).await.to_status, WorkerStatus::Stopping);
    assert_eq!(harness.audit("w-2"), ["skipped_cooldown", "stopped_immediately"]);
}

#[tokio::test]
async fn under_scale_down_the_server_is_asked_not_to_pause_by_itself() {
    let harness = nobody_around(&["w-1", "w-2"], |policy| policy.scale_down.min_workers = 2).await;
    for worker in ["w-1", "w-2"] {
        let result = harness.reconcile(worker).await;
        assert_eq!(result.to_status, WorkerStatus::Running);
        let kept = harness.worker(worker).await;
        assert_eq!(kept.desired_status, Some(DesiredStatus::Running), "the server has not paused it");
    }
    assert_eq!((harness.counter("idle_detection_count"), harness.counter("auto_pause_count")), (2, 0));

    // Without scale-down the server decides, and the pass counts what it did and leaves the rest to the next.
    let harness = harness.with_policy(|policy| policy.scale_down.enabled = false);
    harness.cloud.advance(Duration::from_secs(300)).await;
    let paused = harness.reconcile("w-1").await;
    assert_eq!((paused.outcome, harness.counter("auto_pause_count")), (Outcome::Success, 1), "{}", paused.reason);
    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    assert_eq!(harness.audit("w-1"), ["skipped_min_workers"], "scale-down had no part in it");
    assert_eq!(harness.ec2_calls("StopInstances"), 1);
}

#[tokio::test]
async fn telemetry_that_cannot_be_read_is_never_idle() {
    for trouble in [
        json!({"service": "cml", "operation": "telemetry_events", "action": {"kind": "error", "code": "500"}}),
        json!({"service": "cml", "operation": "telemetry_events", "action": {"kind": "reset"}}),
        json!({"service": "cml", "operation": "authenticate", "action": {"kind": "error", "code": "403"}}),
        json!({"service": "control-plane", "operation": "detect_idle", "action": {"kind": "error", "code": "500"}}),
    ] {
        let harness = nobody_around(&["w-1"], |_| {}).await;
        harness.inject(trouble.clone());
        for _ in 0..3 {
            let blind = harness.reconcile("w-1").await;
            assert_eq!((blind.outcome, blind.to_status), (Outcome::Success, WorkerStatus::Running), "{trouble}");
            harness.cloud.advance(Duration::from_secs(300)).await;
        }
        assert!(harness.audit("w-1").is_empty(), "{trouble}: no result is no verdict");
        assert_eq!(harness.worker("w-1").await.desired_status, Some(DesiredStatus::Running));
        assert_eq!((harness.ec2_calls("StopInstances"), harness.counter("auto_pause_count")), (0, 0));

        harness.cloud.clear_faults();
        assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Stopping, "{trouble}: seen at last");
    }
}

#[tokio::test]
async fn a_cml_that_is_away_does_not_make_its_worker_idle_even_where_the_server_pauses() {
    let harness = nobody_around(&["w-1"], |policy| policy.scale_down.enabled = false).await;
    let instance = harness.worker("w-1").await.ec2_instance_id.expect("it has one");
    harness.cloud.cml(instance.as_str()).expect("its CML").hold_at(Some(Boot::BadGateway));
    for _ in 0..3 {
        assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Running);
        harness.cloud.advance(Duration::from_secs(300)).await;
    }
    assert_eq!(harness.worker("w-1").await.desired_status, Some(DesiredStatus::Running));
    assert_eq!((harness.counter("auto_pause_count"), harness.ec2_calls("StopInstances")), (0, 0));
}

#[tokio::test]
async fn what_scale_down_cannot_see_it_does_not_touch() {
    for unseen in ["list_workers", "list_sessions"] {
        let harness = nobody_around(&["w-1", "w-2"], |_| {}).await;
        let no = json!({"kind": "error", "code": "500"});
        harness.inject(json!({"service": "control-plane", "operation": unseen, "action": no}));
        assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Running, "{unseen}");
        assert!(harness.audit("w-1").is_empty(), "{unseen}");
        assert_eq!((harness.ec2_calls("StopInstances"), harness.control_plane_calls("drain_worker")), (0, 0));
    }
}

#[tokio::test]
async fn a_worker_is_checked_no_more_often_than_it_should_be() {
    let harness = nobody_around(&["w-1"], |policy| policy.scale_down.min_workers = 1).await;
    for _ in 0..10 {
        let _ = harness.reconcile("w-1").await;
        harness.cloud.advance(Duration::from_secs(60)).await;
    }
    assert_eq!(harness.control_plane_calls("detect_idle"), 2, "at 0 and at 5 minutes");
    // A new leader keeps the distance too: the record knows when it was last checked.
    let successor = Reconciler::new(harness.ports.clone(), harness.policy.clone());
    harness.cloud.update_worker("w-1", json!({"last_activity_check_at": harness.cloud.now()})).expect("a record");
    let _ = successor.reconcile(&harness.worker("w-1").await).await;
    assert_eq!(harness.control_plane_calls("detect_idle"), 2);
    // And a worker that is not to be checked never is.
    harness.cloud.update_worker("w-1", json!({"is_idle_detection_enabled": false})).expect("a record");
    harness.cloud.advance(HOUR).await;
    let _ = harness.reconcile("w-1").await;
    assert_eq!(harness.control_plane_calls("detect_idle"), 2);
}
