//! Exactly-once launches: despite lost responses, crashes and duplicate triggers, a worker has one active instance and
//! its record names it.

use std::time::Duration;

use fake_cloud::RequestFilter;
use fake_cloud::control_plane::Generation::{self, Extended, Original};
use futures_util::future::join_all;
use lcm_sdk::reconciler::ReconcileResult;
use lcm_sdk::{Outcome, ReasonCode, WorkerStatus};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use lcm_tests::harness::{Harness, REGION, eventually};

/// Upper bound for the requests of a reconcile that launches.
const MAX_REQUESTS: u64 = 30;

#[rstest]
#[tokio::test]
async fn lost_launch_response_is_retried_with_the_same_token(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    harness.inject(lost_responses(1));

    let launch = harness.reconcile("w-1").await;
    assert_eq!((launch.outcome, launch.to_status), (Outcome::Success, WorkerStatus::Provisioning), "{}", launch.reason);
    assert_eq!(harness.ec2_calls("RunInstances"), 2);
    assert_eq!(distinct_tokens(&harness), 1);
    assert_one_instance(&harness, "w-1").await;
    assert_eq!(harness.counter("provisioned_count"), 1);
    assert_eq!(harness.audit("w-1"), ["ec2_provisioned"]);
}

#[rstest]
#[tokio::test]
async fn unacknowledged_launch_is_found_by_its_tag(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    harness.inject(lost_responses(3));

    let lost = harness.reconcile("w-1").await;
    assert_eq!((lost.outcome, lost.to_status), (Outcome::Retry, WorkerStatus::Pending), "{}", lost.reason);
    assert_eq!(lost.reason.code, ReasonCode::LaunchDelayed);
    assert!(harness.worker("w-1").await.notes.launch_plan.is_some(), "the plan is kept for an identical retry");
    assert_eq!(harness.active_instances().len(), 1, "the instance was launched nevertheless");
    assert_eq!(harness.counter("provisioned_count"), 0, "counted only after the write");

    let found = harness.reconcile("w-1").await;
    assert_eq!((found.reason.code, found.to_status), (ReasonCode::Adopted, WorkerStatus::Provisioning));
    assert_eq!(harness.ec2_calls("RunInstances"), 3);
    assert_one_instance(&harness, "w-1").await;
    assert!(harness.worker("w-1").await.notes.launch_plan.is_none());
}

#[rstest]
#[tokio::test]
async fn invisible_launch_is_retried_with_the_original_plan(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    harness.inject(lost_responses(3));
    harness.inject(json!({"service": "ec2", "action": {"kind": "visibility-lag", "seconds": 90}}));
    let lost = harness.reconcile("w-1").await;
    assert_eq!(lost.to_status, WorkerStatus::Pending, "{}", lost.reason);

    // The template changes in between. A new plan would have another token.
    let template = json!({"name": "metal", "instance_type": "m5zn.large"});
    harness.cloud.add_template(template).expect("template is valid");
    harness.cloud.advance(Duration::from_secs(10)).await;
    let resumed = harness.reconcile("w-1").await;
    assert_eq!((resumed.reason.code, resumed.to_status), (ReasonCode::LaunchResumed, WorkerStatus::Provisioning));
    assert_eq!(distinct_tokens(&harness), 1);
    assert_one_instance(&harness, "w-1").await;
    assert_eq!(harness.cloud.instances(REGION)[0].instance_type.as_ref(), "m5zn.metal");
}

#[rstest]
#[tokio::test]
async fn reconcile_waits_until_an_instance_is_visible(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    harness.inject(json!({"service": "ec2", "action": {"kind": "visibility-lag", "seconds": 100}}));
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Provisioning);
    for _ in 0..9 {
        harness.cloud.advance(Duration::from_secs(10)).await;
        let result = harness.reconcile("w-1").await;
        assert_eq!(
            (result.outcome, result.to_status),
            (Outcome::Requeue, WorkerStatus::Provisioning),
            "{}",
            result.reason
        );
        assert_eq!(result.reason.code, ReasonCode::NotVisibleYet);
    }
    harness.cloud.advance(Duration::from_secs(20)).await;
    harness.reconcile_until("w-1", WorkerStatus::Running).await;
    assert_eq!(harness.ec2_calls("RunInstances"), 1);
    assert_one_instance(&harness, "w-1").await;
}

#[rstest]
#[tokio::test]
async fn crash_at_any_launch_request_leaves_one_instance(#[values(Original, Extended)] generation: Generation) {
    crash_at_every_request(&Harness::with_manual_clock(generation).await).await;
}

#[rstest]
#[tokio::test]
async fn overtaken_launch_creates_no_second_instance(#[values(Original, Extended)] generation: Generation) {
    overtake_at_every_request(&Harness::with_manual_clock(generation).await).await;
}

#[rstest]
#[tokio::test]
async fn delayed_launch_does_not_revive_a_terminated_worker(#[values(Original, Extended)] generation: Generation) {
    outlive_at_every_request(&Harness::with_manual_clock(generation).await).await;
}

#[rstest]
#[tokio::test]
async fn concurrent_triggers_launch_once(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    let record = harness.worker("w-1").await;
    let results = join_all((0..20).map(|_| harness.reconciler().reconcile(&record))).await;
    assert_eq!(
        results
            .iter()
            .filter(|result| result.to_status != result.from_status && result.from_status == WorkerStatus::Pending)
            .count(),
        1
    );
    assert_eq!(harness.ec2_calls("RunInstances"), 1);
    assert_eq!(harness.counter("provisioned_count"), 1);
    assert_eq!(harness.audit("w-1"), ["ec2_provisioned"]);
    assert_one_instance(&harness, "w-1").await;
}

#[rstest]
#[tokio::test]
async fn independent_processes_launch_once(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    race_processes(&harness).await;
}

#[rstest]
#[tokio::test]
async fn two_active_controllers_launch_each_worker_once(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    let workers: Vec<String> = (1..=10).map(|number| format!("w-{number:02}")).collect();
    workers.iter().for_each(|worker| harness.add_worker(worker, json!({"desired_status": "running"})));
    let actors = [harness.start_standalone_controller(|_| {}), harness.start_standalone_controller(|_| {})];
    eventually("all workers run", async || harness.cloud.workers().iter().all(|worker| worker.status() == "running"))
        .await;
    for actor in actors {
        actor.stop().await;
    }
    assert_eq!(harness.active_instances().len(), 10);
    for worker in &workers {
        assert_one_instance(&harness, worker).await;
        assert_eq!(harness.audit(worker), ["ec2_provisioned"], "{worker}");
    }
}

#[rstest]
#[tokio::test]
async fn transient_launch_error_keeps_the_worker_pending(#[values(Original, Extended)] generation: Generation) {
    for code in [
        "InsufficientInstanceCapacity",
        "VolumeLimitExceeded",
        "RequestLimitExceeded",
        "InternalError",
        "ServiceUnavailable",
        "RequestExpired",
        "AuthFailure",
        "PendingVerification",
        "InvalidAMIID.NotFound",
        "SomethingNew",
    ] {
        let harness = Harness::with_manual_clock(generation).await;
        harness.add_worker("w-1", json!({"desired_status": "running"}));
        harness.inject(launch_error(code));
        let failed = harness.reconcile("w-1").await;
        assert_eq!(
            (failed.outcome, failed.to_status),
            (Outcome::Retry, WorkerStatus::Pending),
            "{code}: {}",
            failed.reason
        );
        assert!(failed.error.is_some_and(|error| error.code.as_deref() == Some(code)), "{code}");
        assert_eq!(harness.status("w-1").await, WorkerStatus::Pending);
        assert!(harness.active_instances().is_empty());
        assert_eq!(harness.audit("w-1"), [""; 0]);

        harness.cloud.clear_faults();
        harness.reconcile_until("w-1", WorkerStatus::Running).await;
        assert_one_instance(&harness, "w-1").await;
        assert_eq!(harness.counter("provisioned_count"), 1, "{code}");
    }
}

/// The first attempt launched and its response was lost; the second was refused before EC2 looked at the token.
#[rstest]
#[tokio::test]
async fn refusal_after_a_lost_response_leaves_no_instance_behind(#[values(Original, Extended)] generation: Generation) {
    for code in ["UnauthorizedOperation", "RequestExpired", "InsufficientInstanceCapacity"] {
        let harness = Harness::with_manual_clock(generation).await;
        harness.add_worker("w-1", json!({"desired_status": "running"}));
        harness.inject(lost_responses(1));
        let mut refused = launch_error(code);
        refused["after"] = json!(1);
        harness.inject(refused);
        let lost = harness.reconcile("w-1").await;
        assert_eq!((lost.outcome, lost.to_status), (Outcome::Retry, WorkerStatus::Pending), "{code}: {}", lost.reason);
        assert_eq!(harness.active_instances().len(), 1, "{code}: it was launched nevertheless");
        let found = harness.reconcile("w-1").await;
        assert_eq!((found.reason.code, found.to_status), (ReasonCode::Adopted, WorkerStatus::Provisioning), "{code}");
        assert_one_instance(&harness, "w-1").await;
    }
}

#[rstest]
#[tokio::test]
async fn failed_worker_records_the_instance_with_its_tag(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    harness.inject(lost_responses(3));
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Pending);
    harness.cloud.update_worker("w-1", json!({"status": "failed"})).expect("written");
    assert_eq!(harness.reconcile("w-1").await.reason.code, ReasonCode::NeedsOperator);
    match generation {
        Extended => {}
        // It stores an instance only together with another status. The operator's reset is one.
        Original => {
            assert_eq!(harness.worker("w-1").await.ec2_instance_id, None);
            assert_eq!(harness.reconcile("w-1").await.reason.code, ReasonCode::NeedsOperator);
            harness.cloud.update_worker("w-1", json!({"status": "pending"})).expect("record is reset");
            assert_eq!(harness.reconcile("w-1").await.reason.code, ReasonCode::Adopted);
        }
    }
    assert_one_instance(&harness, "w-1").await;
}

#[rstest]
#[tokio::test]
async fn permanent_launch_error_fails_the_worker(#[values(Original, Extended)] generation: Generation) {
    for code in ["UnauthorizedOperation", "InvalidSubnetID.NotFound", "InvalidParameterValue"] {
        let harness = Harness::with_manual_clock(generation).await;
        harness.add_worker("w-1", json!({"desired_status": "running"}));
        harness.inject(launch_error(code));
        let failed = harness.reconcile("w-1").await;
        assert_eq!((failed.reason.code, failed.to_status), (ReasonCode::LaunchFailed, WorkerStatus::Failed), "{code}");
        assert_eq!(harness.audit("w-1"), ["ec2_provision_failed"], "{code}");
        assert_eq!(harness.ec2_calls("RunInstances"), 1, "{code} is not retried");

        harness.cloud.clear_faults();
        assert_eq!(harness.reconcile("w-1").await.outcome, Outcome::Skip, "a failed worker waits for an operator");
        harness.cloud.update_worker("w-1", json!({"status": "pending"})).expect("record is reset");
        harness.reconcile_until("w-1", WorkerStatus::Running).await;
        assert_one_instance(&harness, "w-1").await;
    }
}

#[rstest]
#[tokio::test]
async fn missing_prerequisite_fails_the_worker_before_a_launch(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    harness.add_worker("w-template", json!({"template_name": "unobtainium"}));
    harness.add_worker("w-nameless", json!({"template_name": null}));
    harness.add_worker("w-region", json!({"aws_region": "eu-west-1"}));
    harness
        .cloud
        .add_template(json!({"name": "ancient", "instance_type": "m5.large", "ami_name_pattern": "cisco-cml1*"}))
        .expect("template is valid");
    harness.add_worker("w-image", json!({"template_name": "ancient"}));
    for (worker, code, outcome, words) in [
        ("w-template", ReasonCode::TemplateMissing, Outcome::Retry, "unobtainium"),
        ("w-nameless", ReasonCode::TemplateMissing, Outcome::Retry, "none named"),
        (
            "w-region",
            ReasonCode::RegionNotConfigured,
            Outcome::Success,
            "eu-west-1 is not configured; configured: us-east-1",
        ),
        ("w-image", ReasonCode::NoImage, Outcome::Success, "cisco-cml1*"),
    ] {
        let result = harness.reconcile(worker).await;
        assert_eq!(
            (result.reason.code, result.to_status, result.outcome),
            (code, WorkerStatus::Failed, outcome),
            "{worker}"
        );
        assert!(result.reason.to_string().contains(words), "{}", result.reason);
        assert_eq!(harness.status(worker).await, WorkerStatus::Failed);
        assert_eq!(harness.audit(worker), ["ec2_provision_failed"]);
    }
    assert_eq!(harness.ec2_calls("RunInstances"), 0);
    assert_eq!(harness.counter("provisioned_count"), 0);
}

/// The server saves the status and the instance id one after the other, and another request may save the record between.
#[tokio::test]
async fn launch_survives_the_write_races_of_the_original_server() {
    for race in ["split-write", "write-conflict"] {
        let harness = Harness::with_manual_clock(Original).await;
        harness.add_worker("w-1", json!({"desired_status": "running"}));
        harness.inject(json!({
            "service": "control-plane", "operation": "write_status", "times": 1,
            "action": {"kind": "custom", "name": race},
        }));
        let raced = harness.reconcile("w-1").await;
        assert_eq!((raced.outcome, harness.faults_applied()), (Outcome::Retry, 1), "{race}: {}", raced.reason);
        let record = harness.worker("w-1").await;
        let status = if race == "split-write" { WorkerStatus::Provisioning } else { WorkerStatus::Pending };
        assert_eq!((record.status, record.ec2_instance_id), (status, None), "{race}");
        harness.reconcile_until("w-1", WorkerStatus::Running).await;
        assert_one_instance(&harness, "w-1").await;
        assert_eq!(harness.ec2_calls("RunInstances"), 1, "{race}: the instance is found by its tag");
    }
}

#[rstest]
#[tokio::test]
async fn unknown_state_prevents_a_launch(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    let unwritable_plan = match generation {
        Extended => json!({
            "service": "control-plane", "operation": "write_status", "action": {"kind": "error", "code": "500"},
        }),
        // The plan is in the store of notes.
        Original => json!({
            "service": "etcd", "operation": "Txn", "key_prefix": "/lcm-notes/",
            "action": {"kind": "error", "code": "unavailable"},
        }),
    };
    for rule in [
        json!({"service": "ec2", "operation": "DescribeInstances", "action": {"kind": "error", "code": "RequestLimitExceeded"}}),
        json!({"service": "ec2", "operation": "DescribeImages", "action": {"kind": "error", "code": "UnauthorizedOperation"}}),
        json!({"service": "control-plane", "operation": "get_template", "action": {"kind": "error", "code": "500"}}),
        unwritable_plan,
    ] {
        harness.inject(rule.clone());
        let result = harness.reconcile("w-1").await;
        assert_eq!(
            (result.outcome, result.to_status),
            (Outcome::Retry, WorkerStatus::Pending),
            "{rule}: {}",
            result.reason
        );
        harness.cloud.clear_faults();
    }
    assert_eq!(harness.ec2_calls("RunInstances"), 0, "no launch without a recorded plan");
    harness.reconcile_until("w-1", WorkerStatus::Running).await;
    assert_one_instance(&harness, "w-1").await;
}

#[rstest]
#[tokio::test]
async fn relaunch_after_a_termination_uses_a_new_token(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Provisioning);
    let first = harness.active_instances()[0].clone();
    harness.cloud.advance(Duration::from_secs(30)).await;
    harness.cloud.terminate_instance(REGION, &first).expect("instance terminates");
    harness.cloud.advance(Duration::from_secs(30)).await;
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Failed);
    harness.cloud.update_worker("w-1", json!({"status": "pending", "ec2_instance_id": null})).expect("record is reset");
    harness.reconcile_until("w-1", WorkerStatus::Running).await;
    assert_eq!(distinct_tokens(&harness), 2);
    assert_one_instance(&harness, "w-1").await;
    assert_ne!(harness.active_instances(), [first]);
}

/// Crashes a process during its nth request, for every n. The next process continues from there.
pub(crate) async fn crash_at_every_request(harness: &Harness) {
    for number in 0..MAX_REQUESTS {
        let worker = format!("w-{number}");
        harness.add_worker(&worker, json!({"desired_status": "running"}));
        let record = harness.worker(&worker).await;
        harness.inject(json!({"after": number, "times": 1, "action": {"kind": "latency", "seconds": 600}}));

        let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let process = process.expect("runtime starts");
        let reconciler = harness.new_reconciler();
        let task = process.spawn(async move { reconciler.reconcile(&record).await });
        eventually("the request hangs or the reconcile has ended", async || {
            harness.faults_applied() == 1 || task.is_finished()
        })
        .await;
        let is_hung = harness.faults_applied() == 1;
        process.shutdown_background();
        harness.cloud.clear_faults();
        if !is_hung {
            assert!(number >= 6, "a launch makes more than {number} requests");
            return;
        }
        let next = harness.new_reconciler();
        for _ in 0..20 {
            let record = harness.worker(&worker).await;
            if record.status == WorkerStatus::Running {
                break;
            }
            let _ = next.reconcile(&record).await;
            harness.cloud.advance(Duration::from_secs(20)).await;
        }
        assert_eq!(harness.status(&worker).await, WorkerStatus::Running, "after a crash in request {number}");
        assert_one_instance(harness, &worker).await;
    }
    panic!("the reconcile makes more than {MAX_REQUESTS} requests");
}

/// Starts a reconcile that launches a worker and hangs before its nth request.
///
/// Returns `None` if the reconcile makes fewer requests.
async fn start_hung_launch(
    harness: &Harness,
    worker: &str,
    number: u64,
    delay: Duration,
) -> Option<JoinHandle<ReconcileResult>> {
    harness.add_worker(worker, json!({"desired_status": "running"}));
    let record = harness.worker(worker).await;
    harness.inject(json!({"after": number, "times": 1, "action": {"kind": "latency", "seconds": delay.as_secs()}}));
    let slow = harness.new_reconciler();
    let task = tokio::spawn(async move { slow.reconcile(&record).await });
    eventually("the request hangs or the reconcile has ended", async || {
        harness.faults_applied() == 1 || task.is_finished()
    })
    .await;
    if harness.faults_applied() == 0 {
        assert!(number >= 6, "a launch makes more than {number} requests");
        return None;
    }
    Some(task)
}

/// Delays a process before its nth request, for every n, until another process has completed the launch.
pub(crate) async fn overtake_at_every_request(harness: &Harness) {
    for number in 0..MAX_REQUESTS {
        let worker = format!("w-{number}");
        let Some(task) = start_hung_launch(harness, &worker, number, Duration::from_secs(60)).await else { return };
        let quick = harness.new_reconciler();
        for _ in 0..3 {
            let _ = quick.reconcile(&harness.worker(&worker).await).await;
            harness.cloud.advance(Duration::from_secs(16)).await;
        }
        assert_eq!(
            harness.status(&worker).await,
            WorkerStatus::Running,
            "the other process is not delayed in request {number}"
        );
        harness.cloud.advance(Duration::from_secs(60)).await;
        let _ = task.await.expect("task completes");
        harness.cloud.clear_faults();
        harness.reconcile_until(&worker, WorkerStatus::Running).await;
        assert_one_instance(harness, &worker).await;
    }
    panic!("the reconcile makes more than {MAX_REQUESTS} requests");
}

/// Delays a process before its nth request, for every n, until another process has launched and terminated the worker.
pub(crate) async fn outlive_at_every_request(harness: &Harness) {
    for number in 0..MAX_REQUESTS {
        let worker = format!("w-{number}");
        let Some(task) = start_hung_launch(harness, &worker, number, Duration::from_secs(600)).await else { return };
        harness.reconcile_until(&worker, WorkerStatus::Running).await;
        harness
            .cloud
            .update_worker(&worker, json!({"desired_status": "terminated"}))
            .expect("desired status is accepted");
        harness.reconcile_until(&worker, WorkerStatus::Terminated).await;

        harness.cloud.advance(Duration::from_secs(600)).await;
        let _ = task.await.expect("task completes");
        harness.cloud.clear_faults();
        // A server without versions accepts the outdated write. The next reconcile must correct it.
        harness.reconcile_until(&worker, WorkerStatus::Terminated).await;
        assert_eq!(harness.active_instances(), [""; 0], "after request {number}");
    }
    panic!("the reconcile makes more than {MAX_REQUESTS} requests");
}

/// Reconciles each of ten workers in three processes concurrently, several times.
pub(crate) async fn race_processes(harness: &Harness) {
    let processes = [harness.new_reconciler(), harness.new_reconciler(), harness.new_reconciler()];
    for number in 1..=10 {
        let worker = format!("w-{number}");
        harness.add_worker(&worker, json!({"desired_status": "running"}));
        for _ in 0..6 {
            let record = harness.worker(&worker).await;
            join_all(processes.iter().map(|process| process.reconcile(&record))).await;
            harness.cloud.advance(Duration::from_secs(10)).await;
        }
        harness.reconcile_until(&worker, WorkerStatus::Running).await;
        assert_one_instance(harness, &worker).await;
    }
    assert_eq!(harness.active_instances().len(), 10);
    assert_eq!(distinct_tokens(harness), 10);
}

/// Asserts that exactly one active instance carries the worker's tag and that the record names it.
pub(crate) async fn assert_one_instance(harness: &Harness, worker: &str) {
    let active = harness.active_instances();
    let instances = harness.cloud.instances(REGION);
    let own: Vec<&str> = instances
        .iter()
        .filter(|instance| {
            active.contains(&instance.id) && instance.tags.get("lcm:worker_id").map(String::as_str) == Some(worker)
        })
        .map(|instance| instance.id.as_str())
        .collect();
    assert_eq!(own.len(), 1, "{worker} has {own:?}");
    let record = harness.worker(worker).await;
    assert_eq!(record.ec2_instance_id.as_ref().map(|id| id.as_str()), Some(own[0]), "{worker}");
}

fn lost_responses(times: u32) -> Value {
    json!({"service": "ec2", "operation": "RunInstances", "times": times, "action": {"kind": "drop-response"}})
}

fn launch_error(code: &str) -> Value {
    json!({"service": "ec2", "operation": "RunInstances", "action": {"kind": "error", "code": code}})
}

fn distinct_tokens(harness: &Harness) -> usize {
    let filter = RequestFilter { operation: Some("RunInstances".to_owned()), ..RequestFilter::default() };
    let calls = harness.cloud.requests(&filter);
    let tokens = calls.iter().flat_map(|call| &call.parameters).filter(|(name, _)| name == "ClientToken");
    tokens.map(|(_, token)| token).collect::<std::collections::BTreeSet<_>>().len()
}
