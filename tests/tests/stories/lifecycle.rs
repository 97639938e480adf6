//! The whole lifecycle of a worker, from pending to terminated.

use std::sync::Arc;
use std::time::Duration;

use fake_cloud::FakeCloud;
use fake_cloud::control_plane::Generation::{self, Extended, Original};
use fake_cloud::world::Delays;
use lcm_sdk::lifecycle::{ControlPlaneGeneration, ExternalStopPolicy};
use lcm_sdk::providers::control_plane::{ControlPlaneClient, ControlPlaneOptions};
use lcm_sdk::reconciler::{Mode, Reconciler};
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{WorkerController, WorkerControllerConfig};
use lcm_sdk::{DesiredStatus, EffectResult, FailureKind, Outcome, Policy, Secret, WorkerStatus};
use rstest::rstest;
use serde_json::json;

use lcm_tests::harness::{Harness, REGION, eventually};

/// Checks the counters after each step. Scale-down is enabled so that idle detection has an effect.
#[rstest]
#[tokio::test]
async fn worker_completes_its_lifecycle_step_by_step(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await.with_policy(|policy| policy.scale_down.enabled = true);
    harness.add_worker("w-1", json!({"desired_status": "running"}));

    // Pending: the instance is launched once and recorded.
    let launch = harness.reconcile("w-1").await;
    assert_eq!((launch.outcome, launch.to_status), (Outcome::Success, WorkerStatus::Provisioning), "{}", launch.reason);
    let instance = harness.active_instances().pop().expect("instance exists");
    let launched = harness.worker("w-1").await;
    assert_eq!(launched.ec2_instance_id.as_ref().map(|id| id.as_str()), Some(instance.as_str()));
    assert_eq!(harness.nonzero_counters(), [("provisioned_count", 1)]);
    assert_eq!(harness.audit("w-1"), ["ec2_provisioned"]);

    // Provisioning: waiting for EC2 changes no counter.
    let waiting = harness.reconcile("w-1").await;
    assert_eq!(
        (waiting.outcome, waiting.to_status),
        (Outcome::Requeue, WorkerStatus::Provisioning),
        "{}",
        waiting.reason
    );
    assert_eq!(harness.nonzero_counters(), [("provisioned_count", 1)]);
    harness.cloud.advance(Duration::from_secs(30)).await;
    let up = harness.reconcile("w-1").await;
    assert_eq!((up.outcome, up.to_status), (Outcome::Success, WorkerStatus::Running), "{}", up.reason);
    assert!(harness.worker("w-1").await.address().is_some());
    for field in ["ami_id", "ami_name", "ami_description", "ami_creation_date"] {
        let record = harness.cloud.worker("w-1").expect("a record");
        assert!(record.text(field).is_some(), "{field} of the image is on the record: {:?}", record.fields());
    }
    assert_eq!(harness.nonzero_counters(), [("provisioned_count", 1), ("started_count", 1)]);

    // Running: metrics from CloudWatch and CML, and the first idle check.
    let serving = harness.reconcile("w-1").await;
    assert_eq!((serving.outcome, serving.to_status), (Outcome::Success, WorkerStatus::Running), "{}", serving.reason);
    assert_eq!((harness.control_plane_calls("report_metrics"), harness.control_plane_calls("report_cml_data")), (1, 1));
    assert_eq!(
        harness.nonzero_counters(),
        [("idle_detection_count", 1), ("metrics_collected_count", 1), ("provisioned_count", 1), ("started_count", 1)]
    );
    assert_eq!(harness.audit("w-1"), ["ec2_provisioned", "skipped_not_idle"]);

    // Within a minute nothing changes: no CloudWatch request and no write.
    let (writes, before) = (harness.control_plane_writes(), harness.nonzero_counters());
    let again = harness.reconcile("w-1").await;
    assert_eq!(again.reason.code.as_str(), "in_service");
    assert_eq!((harness.control_plane_writes(), harness.nonzero_counters()), (writes, before));

    // The license is submitted, then registered.
    harness.request_registration("w-1", "first-license-token");
    let submitted = harness.reconcile("w-1").await;
    assert_eq!((submitted.outcome, submitted.reason.code.as_str()), (Outcome::Requeue, "license_submitted"));
    harness.cloud.advance(Duration::from_secs(15)).await;
    let finished = harness.reconcile("w-1").await;
    assert_eq!((finished.outcome, finished.reason.code.as_str()), (Outcome::Success, "license_finished"));
    assert_eq!((harness.cml_calls("register"), harness.counter("license_registered_count")), (1, 1));

    // After an idle hour with one session that has not begun, scale-down drains the worker.
    harness.add_session("s-1", "w-1", "pending");
    harness.cloud.advance(Duration::from_secs(3700)).await;
    let idle = harness.reconcile("w-1").await;
    assert_eq!((idle.outcome, idle.to_status), (Outcome::Success, WorkerStatus::Draining), "{}", idle.reason);
    assert_eq!(harness.worker("w-1").await.desired_status, Some(DesiredStatus::Stopped));
    assert_eq!(
        harness.nonzero_counters(),
        [
            ("idle_detection_count", 2),
            ("license_registered_count", 1),
            ("metrics_collected_count", 2),
            ("provisioned_count", 1),
            ("scale_down_drain_count", 1),
            ("started_count", 1),
        ]
    );
    assert_eq!(harness.audit("w-1"), ["ec2_provisioned", "skipped_not_idle", "drain_accepted", "drained"]);
    assert_eq!(harness.ec2_calls("StopInstances"), 0);

    // The session begins all the same. The drain waits for it, then stops the worker.
    harness.move_session("s-1", "running");
    let waiting = harness.reconcile("w-1").await;
    assert_eq!((waiting.outcome, waiting.reason.code.as_str()), (Outcome::Requeue, "drain_waiting"));
    harness.end_session("s-1");
    harness.cloud.advance(harness.policy.drain_settle).await;
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Stopping);
    assert_eq!(harness.counter("stopped_count"), 0, "counted only when EC2 reports it stopped");
    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    assert_eq!((harness.ec2_calls("StopInstances"), harness.counter("stopped_count")), (1, 1));
    assert_eq!(harness.worker("w-1").await.address(), None, "a stopped worker has no address");

    // At rest: repeated reconciles make no writes.
    let writes = harness.control_plane_writes();
    for _ in 0..3 {
        assert_eq!(harness.reconcile("w-1").await.reason.code.as_str(), "at_rest");
        harness.cloud.advance(Duration::from_secs(3600)).await;
    }
    assert_eq!((harness.control_plane_writes(), harness.ec2_calls("StopInstances")), (writes, 1));

    // Started again.
    harness.cloud.update_worker("w-1", json!({"desired_status": "running"})).expect("desired status is accepted");
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Starting);
    harness.reconcile_until("w-1", WorkerStatus::Running).await;
    assert_eq!((harness.ec2_calls("StartInstances"), harness.counter("started_count")), (1, 2));
    assert!(harness.worker("w-1").await.address().is_some());
    let back = harness.reconcile("w-1").await;
    assert_eq!((back.outcome, back.to_status), (Outcome::Success, WorkerStatus::Running), "{}", back.reason);

    // Terminated.
    harness.cloud.update_worker("w-1", json!({"desired_status": "terminated"})).expect("desired status is accepted");
    harness.reconcile_until("w-1", WorkerStatus::Terminated).await;
    assert!(harness.active_instances().is_empty());
    assert_eq!((harness.ec2_calls("RunInstances"), harness.ec2_calls("TerminateInstances")), (1, 1));
    assert_eq!(
        harness.nonzero_counters(),
        [
            ("idle_detection_count", 3),
            ("license_registered_count", 1),
            ("metrics_collected_count", 3),
            ("provisioned_count", 1),
            ("scale_down_drain_count", 1),
            ("started_count", 2),
            ("stopped_count", 1),
            ("terminated_count", 1),
        ]
    );
    assert_eq!(harness.reconcile("w-1").await.outcome, Outcome::Skip);
    let events = harness.events("w-1");
    for expected in [
        "cml_worker.license.registration.completed.v1",
        "cml_worker.drain.started.v1",
        "cml_worker.drain.completed.v1",
        "cml_worker.terminated.v1",
    ] {
        assert!(events.iter().any(|event| event == expected), "{expected} is missing in {events:?}");
    }
}

/// A whole controller drives the same lifecycle from changes of the desired status.
#[rstest]
#[tokio::test]
async fn controller_drives_a_worker_through_its_lifecycle(#[values(Original, Extended)] generation: Generation) {
    let builder = FakeCloud::builder().control_plane(generation).delays(Delays::none());
    let harness = Harness::start(builder.cml(|cml| cml.licensing.registration = Duration::ZERO)).await;
    let actor = harness.start_controller("controller", |_| {});
    let counter = |name: &str| actor.telemetry.counters()[name];
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    let wait_for = async |status: WorkerStatus| {
        eventually(status.as_str(), || async { harness.status("w-1").await == status }).await;
    };

    wait_for(WorkerStatus::Running).await;
    harness.request_registration("w-1", "second-license-token");
    eventually("the license is registered", || async { counter("license_registered_count") == 1 }).await;
    eventually("metrics are collected", || async { counter("metrics_collected_count") > 0 }).await;
    eventually("the worker is counted", || async { counter("running_worker_count") == 1 }).await;

    harness.cloud.update_worker("w-1", json!({"desired_status": "stopped"})).expect("desired status is accepted");
    wait_for(WorkerStatus::Stopped).await;
    eventually("the worker is no longer counted", || async { counter("running_worker_count") == 0 }).await;
    harness.cloud.update_worker("w-1", json!({"desired_status": "running"})).expect("desired status is accepted");
    wait_for(WorkerStatus::Running).await;
    harness.cloud.update_worker("w-1", json!({"desired_status": "terminated"})).expect("desired status is accepted");
    wait_for(WorkerStatus::Terminated).await;
    eventually("the termination is counted", || async { counter("terminated_count") == 1 }).await;

    let calls = ["RunInstances", "StopInstances", "StartInstances", "TerminateInstances"];
    assert_eq!(calls.map(|call| harness.ec2_calls(call)), [1, 1, 1, 1]);
    let counters = ["provisioned_count", "started_count", "stopped_count", "terminated_count"];
    assert_eq!(counters.map(counter), [1, 2, 1, 1]);
    assert_eq!((harness.cml_calls("register"), counter("orphans_terminated_count")), (1, 0));
    actor.stop().await;
}

/// The policy `respect` writes a desired status. The original server does not store one, which the first write shows; then
/// the worker is restarted, as its desired status says.
#[rstest]
#[tokio::test]
async fn stop_from_outside_is_respected_where_it_can_be_recorded(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    let harness = harness.with_policy(|policy| policy.external_stop_policy = ExternalStopPolicy::Respect);
    let instance = harness.add_running_worker("w-1").await;
    harness.cloud.stop_instance(REGION, &instance).expect("instance stops");
    harness.cloud.advance(Duration::from_secs(60)).await;
    let (end, desired, starts) = match generation {
        Extended => (WorkerStatus::Stopped, DesiredStatus::Stopped, 0),
        Original => (WorkerStatus::Running, DesiredStatus::Running, 1),
    };
    let first = harness.reconcile("w-1").await;
    let refusal = first.error.as_ref().filter(|error| error.kind == FailureKind::NotSupported);
    assert_eq!(refusal.is_some(), generation == Original, "{first:?}");
    harness.reconcile_until("w-1", end).await;
    for _ in 0..3 {
        let _ = harness.reconcile("w-1").await;
        harness.cloud.advance(Duration::from_secs(60)).await;
    }
    let worker = harness.worker("w-1").await;
    assert_eq!((worker.status, worker.desired_status), (end, Some(desired)));
    assert_eq!(harness.ec2_calls("StartInstances"), starts);
}

#[tokio::test]
async fn policy_that_a_pinned_control_plane_cannot_carry_out_is_refused() {
    let harness = Harness::with_manual_clock(Original).await;
    let policy = Policy { external_stop_policy: ExternalStopPolicy::Respect, ..harness.policy.clone() };
    for (pinned, accepted) in [
        (ControlPlaneGeneration::Auto, true),
        (ControlPlaneGeneration::Extended, true),
        (ControlPlaneGeneration::Original, false),
    ] {
        let mut options = ControlPlaneOptions::new("http://127.0.0.1:1", Secret::from("key"));
        options.generation = pinned;
        let mut ports = harness.ports.clone();
        ports.control_plane = Arc::new(ControlPlaneClient::new(options).expect("a client"));
        let reconciler = Reconciler::new(ports.clone(), policy.clone()).map(drop);
        let config = WorkerControllerConfig::default();
        let controller = WorkerController::new(ports, policy.clone(), None, config, Telemetry::default()).map(drop);
        assert_eq!((reconciler.is_ok(), controller.is_ok()), (accepted, accepted), "{pinned}");
        for problem in
            reconciler.err().map(|e| e.to_string()).into_iter().chain(controller.err().map(|e| e.to_string()))
        {
            assert!(problem.starts_with("invalid external stop policy 'respect'"), "{problem}");
        }
    }
}

#[rstest]
#[tokio::test]
async fn metric_sources_fail_independently(#[values(Original, Extended)] generation: Generation) {
    let fault = |service: &str, code: &str| json!({"service": service, "action": {"kind": "error", "code": code}});
    let (cloudwatch, cml) = (fault("cloudwatch", "AccessDenied"), fault("cml", "500"));
    for (broken, cml_data, collected) in [
        (vec![cloudwatch.clone()], 1, 1),
        (vec![cml.clone()], 0, 1),
        // The attempt is reported, and says nothing about CML.
        (vec![cloudwatch, cml], 0, 0),
    ] {
        let harness = Harness::with_manual_clock(generation).await;
        harness.add_running_worker("w-1").await;
        for fault in &broken {
            harness.inject(fault.clone());
        }
        let result = harness.reconcile("w-1").await;
        assert_eq!((result.outcome, result.to_status), (Outcome::Success, WorkerStatus::Running), "{broken:?}");
        let calls = ["report_metrics", "report_cml_data"].map(|call| harness.control_plane_calls(call));
        assert_eq!(calls, [1, cml_data], "{broken:?}");
        assert_eq!(harness.counter("metrics_collected_count"), collected, "{broken:?}");
    }
}

/// The original server replaces all CML data with each report.
#[tokio::test]
async fn partly_failed_cml_read_erases_nothing() {
    let harness = Harness::with_manual_clock(Original).await;
    let fields = ["cml_version", "cml_ready", "cml_system_info", "cml_system_health", "cml_license_info"];
    let record = |id: &str| harness.cloud.worker(id).expect("a record");
    let report = async |id: &str| {
        harness.cloud.advance(Duration::from_secs(120)).await;
        assert_eq!(harness.reconcile(id).await.outcome, Outcome::Success);
    };
    harness.add_running_worker("w-1").await;
    report("w-1").await;
    let known = record("w-1");
    assert!(fields.iter().all(|field| known.get(field).is_some_and(|value| !value.is_null())), "{:?}", known.fields());
    assert!(known.get("cml_uptime_seconds").is_some_and(|seconds| seconds.as_u64() >= Some(120)));

    // One request of the read fails: the others are reported, and the values of that one are kept.
    for (operation, reports) in [("system_stats", 0), ("system_health", 1), ("licensing", 1), ("labs", 1)] {
        let error = json!({"kind": "error", "code": "500"});
        let fault = harness.inject(json!({"service": "cml", "operation": operation, "action": error}));
        let before = harness.control_plane_calls("report_cml_data");
        report("w-1").await;
        assert_eq!(harness.control_plane_calls("report_cml_data") - before, reports, "{operation}");
        let applied =
            harness.cloud.world().faults().list().iter().find(|rule| rule.id == fault).map(|rule| rule.applied);
        assert!(applied > Some(0), "{operation} failed");
        let now = record("w-1");
        for field in fields.into_iter().filter(|field| *field != "cml_system_info") {
            assert_eq!(now.get(field), known.get(field), "{field} after {operation} failed");
        }
        assert!(now.get("cml_system_info").is_some_and(serde_json::Value::is_object), "after {operation} failed");
        assert_eq!(now.get("declared_capacity"), known.get("declared_capacity"), "after {operation} failed");
        harness.cloud.world().faults().clear();
    }

    // A new worker is not offered without a capacity.
    harness.inject(json!({
        "service": "cml", "operation": "system_stats", "action": {"kind": "error", "code": "500"},
    }));
    harness.add_running_worker("w-2").await;
    report("w-2").await;
    let fresh = record("w-2");
    assert_ne!(fresh.text("service_status"), Some("available"));
    assert!(fresh.get("declared_capacity").is_none_or(serde_json::Value::is_null));
    harness.cloud.world().faults().clear();
    report("w-2").await;
    assert_eq!(record("w-2").text("service_status"), Some("available"));
    assert!(record("w-2").get("declared_capacity").is_some_and(|capacity| capacity["cpu_cores"].as_u64() > Some(0)));
}

/// Covers every status with planned effects: a dry run reads and plans, but changes nothing.
#[rstest]
#[tokio::test]
async fn dry_run_plans_without_writing(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await.with_policy(|policy| policy.scale_down.enabled = true);
    harness.add_worker("w-pending", json!({"desired_status": "running"}));
    let instance = harness.add_running_worker("w-idle").await;
    harness.add_running_worker("w-draining").await;
    harness.drain("w-draining");
    harness.add_session("s-late", "w-draining", "scheduled");
    harness.add_session("s-failed", "w-draining", "failed");
    let parked = harness.add_running_worker("w-stopped").await;
    harness.cloud.stop_instance(REGION, &parked).expect("instance stops");
    harness.cloud.update_worker("w-stopped", json!({"status": "stopped"})).expect("record is updated");
    harness.request_registration("w-idle", "hidden-license-token");
    harness.cloud.advance(Duration::from_secs(3700)).await;
    harness.cloud.world().request_log().clear();

    let plan = async |id: &str| {
        let worker = harness.worker(id).await;
        harness.reconciler().dry_run(&worker).await
    };
    let names = |plan: &lcm_sdk::reconciler::ReconcileResult| -> Vec<&'static str> {
        assert_eq!(plan.mode, Mode::DryRun);
        assert!(plan.effects.iter().all(|effect| effect.result == EffectResult::Planned));
        plan.effects.iter().map(|applied| applied.effect.name().as_str()).collect()
    };
    let launch = plan("w-pending").await;
    assert_eq!(
        (names(&launch), launch.to_status),
        (vec!["record_launch_plan", "launch_instance"], WorkerStatus::Provisioning)
    );
    let idle = plan("w-idle").await;
    assert_eq!(idle.to_status, WorkerStatus::Stopping, "idle and without a session: {}", idle.reason);
    assert_eq!(names(&idle), ["report_metrics", "record_license_attempt", "submit_license", "report_license"]);
    let draining = plan("w-draining").await;
    assert_eq!(
        (names(&draining), draining.to_status),
        (vec!["retry_session", "hand_back_session"], WorkerStatus::Draining)
    );
    let start = plan("w-stopped").await;
    assert_eq!((names(&start), start.to_status), (vec!["start_instance"], WorkerStatus::Starting));

    // All reads were made.
    for read in ["get_template", "list_sessions", "idle_status", "list_workers"] {
        assert!(harness.control_plane_calls(read) > 0, "{read}");
    }
    assert!(harness.ec2_calls("DescribeInstances") > 0 && harness.ec2_calls("DescribeImages") > 0);
    assert!(["system_stats", "licensing", "telemetry_events"].iter().all(|read| harness.cml_calls(read) > 0));
    // Nothing was written, started, registered or counted.
    assert_eq!(harness.control_plane_writes(), 0);
    for change in ["RunInstances", "StartInstances", "StopInstances", "TerminateInstances", "CreateTags"] {
        assert_eq!(harness.ec2_calls(change), 0, "{change}");
    }
    assert_eq!((harness.cml_calls("register"), harness.nonzero_counters()), (0, vec![]));
    assert_eq!(harness.cloud.cml_registration(&instance).as_deref(), Some("NOT_REGISTERED"));

    // The plan does not contain the token.
    assert!(!serde_json::to_string(&idle).expect("value serializes").contains("hidden-license-token"));
}
