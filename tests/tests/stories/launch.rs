//! Launching exactly once: whatever is lost, crashes or comes twice, a worker has one living instance, and its record
//! names it.

use std::time::Duration;

use fake_cloud::RequestFilter;
use futures_util::future::join_all;
use lcm_sdk::reconciler::ReconcileResult;
use lcm_sdk::{Outcome, ReasonCode, WorkerStatus};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use lcm_tests::harness::{Harness, REGION, eventually};

/// More requests than a pass that launches makes.
const MORE_THAN_A_PASS: u64 = 30;

#[tokio::test]
async fn a_launch_whose_answer_is_lost_is_repeated_with_the_same_token() {
    let harness = Harness::with_manual_clock().await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    harness.inject(lost_answers(1));

    let launch = harness.reconcile("w-1").await;
    assert_eq!((launch.outcome, launch.to_status), (Outcome::Success, WorkerStatus::Provisioning), "{}", launch.reason);
    assert_eq!(harness.ec2_calls("RunInstances"), 2);
    assert_eq!(distinct_tokens(&harness), 1);
    assert_one_instance(&harness, "w-1").await;
    assert_eq!(harness.counter("provisioned_count"), 1);
    assert_eq!(harness.audit("w-1"), ["ec2_provisioned"]);
}

#[tokio::test]
async fn a_launch_of_which_nothing_was_heard_is_found_by_its_tag() {
    let harness = Harness::with_manual_clock().await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    harness.inject(lost_answers(3));

    let unheard = harness.reconcile("w-1").await;
    assert_eq!((unheard.outcome, unheard.to_status), (Outcome::Retry, WorkerStatus::Pending), "{}", unheard.reason);
    assert_eq!(unheard.reason.code, ReasonCode::LaunchDelayed);
    assert!(harness.worker("w-1").await.notes.launch_plan.is_some(), "the plan is kept, to be repeated byte by byte");
    assert_eq!(harness.active_instances().len(), 1, "it was launched all the same");
    assert_eq!(harness.counter("provisioned_count"), 0, "nothing is recorded, so nothing is counted");

    let found = harness.reconcile("w-1").await;
    assert_eq!((found.reason.code, found.to_status), (ReasonCode::Adopted, WorkerStatus::Provisioning));
    assert_eq!(harness.ec2_calls("RunInstances"), 3);
    assert_one_instance(&harness, "w-1").await;
    assert!(harness.worker("w-1").await.notes.launch_plan.is_none());
}

#[tokio::test]
async fn a_launch_that_nobody_can_see_yet_is_repeated_and_not_planned_anew() {
    let harness = Harness::with_manual_clock().await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    harness.inject(lost_answers(3));
    harness.inject(json!({"service": "ec2", "action": {"kind": "visibility-lag", "seconds": 90}}));
    let unheard = harness.reconcile("w-1").await;
    assert_eq!(unheard.to_status, WorkerStatus::Pending, "{}", unheard.reason);

    // Meanwhile the template says something else; a new plan would have another token.
    let template = json!({"name": "metal", "instance_type": "m5zn.large"});
    harness.cloud.add_template(template).expect("a template");
    harness.cloud.advance(Duration::from_secs(10)).await;
    let resumed = harness.reconcile("w-1").await;
    assert_eq!((resumed.reason.code, resumed.to_status), (ReasonCode::LaunchResumed, WorkerStatus::Provisioning));
    assert_eq!(distinct_tokens(&harness), 1);
    assert_one_instance(&harness, "w-1").await;
    assert_eq!(harness.cloud.instances(REGION)[0].instance_type.as_ref(), "m5zn.metal");
}

#[tokio::test]
async fn an_instance_that_ec2_does_not_show_yet_is_waited_for() {
    let harness = Harness::with_manual_clock().await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    harness.inject(json!({"service": "ec2", "action": {"kind": "visibility-lag", "seconds": 100}}));
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Provisioning);
    for _ in 0..9 {
        harness.cloud.advance(Duration::from_secs(10)).await;
        let pass = harness.reconcile("w-1").await;
        assert_eq!((pass.outcome, pass.to_status), (Outcome::Requeue, WorkerStatus::Provisioning), "{}", pass.reason);
        assert_eq!(pass.reason.code, ReasonCode::NotVisibleYet);
    }
    harness.cloud.advance(Duration::from_secs(20)).await;
    harness.reconcile_until("w-1", WorkerStatus::Running).await;
    assert_eq!(harness.ec2_calls("RunInstances"), 1);
    assert_one_instance(&harness, "w-1").await;
}

#[tokio::test]
async fn a_process_that_dies_anywhere_in_a_launch_leaves_one_instance_to_the_next() {
    crash_at_every_request(&Harness::with_manual_clock().await).await;
}

#[tokio::test]
async fn a_process_that_is_overtaken_anywhere_in_a_launch_launches_nothing_of_its_own() {
    overtake_at_every_request(&Harness::with_manual_clock().await).await;
}

#[tokio::test]
async fn a_process_that_sleeps_through_a_workers_whole_life_does_not_begin_another() {
    outlive_at_every_request(&Harness::with_manual_clock().await).await;
}

#[tokio::test]
async fn many_triggers_at_once_launch_once() {
    let harness = Harness::with_manual_clock().await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    let seen = harness.worker("w-1").await;
    let passes = join_all((0..20).map(|_| harness.reconciler().reconcile(&seen))).await;
    assert_eq!(
        passes
            .iter()
            .filter(|pass| pass.to_status != pass.from_status && pass.from_status == WorkerStatus::Pending)
            .count(),
        1
    );
    assert_eq!(harness.ec2_calls("RunInstances"), 1);
    assert_eq!(harness.counter("provisioned_count"), 1);
    assert_eq!(harness.audit("w-1"), ["ec2_provisioned"]);
    assert_one_instance(&harness, "w-1").await;
}

#[tokio::test]
async fn processes_that_know_nothing_of_each_other_launch_once() {
    let harness = Harness::with_manual_clock().await;
    race(&harness).await;
}

#[tokio::test]
async fn two_controllers_that_both_believe_to_lead_launch_once_for_each_worker() {
    let harness = Harness::with_real_clock().await;
    let workers: Vec<String> = (1..=10).map(|number| format!("w-{number:02}")).collect();
    workers.iter().for_each(|worker| harness.add_worker(worker, json!({"desired_status": "running"})));
    let actors = [harness.start_standalone_controller(|_| {}), harness.start_standalone_controller(|_| {})];
    eventually("all run", async || harness.cloud.workers().iter().all(|worker| worker.status() == "running")).await;
    for actor in actors {
        actor.stop().await;
    }
    assert_eq!(harness.active_instances().len(), 10);
    for worker in &workers {
        assert_one_instance(&harness, worker).await;
        assert_eq!(harness.audit(worker), ["ec2_provisioned"], "{worker}");
    }
}

#[tokio::test]
async fn what_can_pass_keeps_the_worker_pending_and_the_next_pass_launches() {
    for code in ["InsufficientInstanceCapacity", "RequestLimitExceeded", "InternalError", "ServiceUnavailable"] {
        let harness = Harness::with_manual_clock().await;
        harness.add_worker("w-1", json!({"desired_status": "running"}));
        harness.inject(refusal(code));
        let refused = harness.reconcile("w-1").await;
        assert_eq!(
            (refused.outcome, refused.to_status),
            (Outcome::Retry, WorkerStatus::Pending),
            "{code}: {}",
            refused.reason
        );
        assert!(refused.error.is_some_and(|error| error.code.as_deref() == Some(code)), "{code}");
        assert_eq!(harness.status("w-1").await, WorkerStatus::Pending);
        assert!(harness.active_instances().is_empty());
        assert_eq!(harness.audit("w-1"), [""; 0]);

        harness.cloud.clear_faults();
        harness.reconcile_until("w-1", WorkerStatus::Running).await;
        assert_one_instance(&harness, "w-1").await;
        assert_eq!(harness.counter("provisioned_count"), 1, "{code}");
    }
}

#[tokio::test]
async fn what_is_refused_for_good_fails_the_worker_until_an_operator_resets_it() {
    for code in ["UnauthorizedOperation", "InvalidAMIID.NotFound", "InvalidSubnetID.NotFound", "InvalidParameterValue"]
    {
        let harness = Harness::with_manual_clock().await;
        harness.add_worker("w-1", json!({"desired_status": "running"}));
        harness.inject(refusal(code));
        let refused = harness.reconcile("w-1").await;
        assert_eq!(
            (refused.reason.code, refused.to_status),
            (ReasonCode::LaunchFailed, WorkerStatus::Failed),
            "{code}"
        );
        assert_eq!(harness.audit("w-1"), ["ec2_provision_failed"], "{code}");
        assert_eq!(harness.ec2_calls("RunInstances"), 1, "{code} is not worth a second try");

        harness.cloud.clear_faults();
        assert_eq!(harness.reconcile("w-1").await.outcome, Outcome::Skip, "failed waits for an operator");
        harness.cloud.update_worker("w-1", json!({"status": "pending"})).expect("an operator resets it");
        harness.reconcile_until("w-1", WorkerStatus::Running).await;
        assert_one_instance(&harness, "w-1").await;
    }
}

#[tokio::test]
async fn what_is_missing_fails_the_worker_before_ec2_is_asked_for_anything() {
    let harness = Harness::with_manual_clock().await;
    harness.add_worker("w-template", json!({"template_name": "unobtainium"}));
    harness.add_worker("w-nameless", json!({"template_name": null}));
    harness.add_worker("w-region", json!({"aws_region": "eu-west-1"}));
    harness
        .cloud
        .add_template(json!({"name": "ancient", "instance_type": "m5.large", "ami_name_pattern": "cisco-cml1*"}))
        .expect("a template");
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
        let pass = harness.reconcile(worker).await;
        assert_eq!((pass.reason.code, pass.to_status, pass.outcome), (code, WorkerStatus::Failed, outcome), "{worker}");
        assert!(pass.reason.to_string().contains(words), "{}", pass.reason);
        assert_eq!(harness.status(worker).await, WorkerStatus::Failed);
        assert_eq!(harness.audit(worker), ["ec2_provision_failed"]);
    }
    assert_eq!(harness.ec2_calls("RunInstances"), 0);
    assert_eq!(harness.counter("provisioned_count"), 0);
}

#[tokio::test]
async fn nobody_is_launched_on_a_guess() {
    let harness = Harness::with_manual_clock().await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    for rule in [
        json!({"service": "ec2", "operation": "DescribeInstances", "action": {"kind": "error", "code": "RequestLimitExceeded"}}),
        json!({"service": "ec2", "operation": "DescribeImages", "action": {"kind": "error", "code": "UnauthorizedOperation"}}),
        json!({"service": "control-plane", "operation": "get_template", "action": {"kind": "error", "code": "500"}}),
        json!({"service": "control-plane", "operation": "write_status", "action": {"kind": "error", "code": "500"}}),
    ] {
        harness.inject(rule.clone());
        let pass = harness.reconcile("w-1").await;
        assert_eq!((pass.outcome, pass.to_status), (Outcome::Retry, WorkerStatus::Pending), "{rule}: {}", pass.reason);
        harness.cloud.clear_faults();
    }
    assert_eq!(harness.ec2_calls("RunInstances"), 0, "a launch whose plan is not written down is not made");
    harness.reconcile_until("w-1", WorkerStatus::Running).await;
    assert_one_instance(&harness, "w-1").await;
}

#[tokio::test]
async fn a_launch_that_died_gets_a_new_token() {
    let harness = Harness::with_manual_clock().await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Provisioning);
    let first = harness.active_instances()[0].clone();
    harness.cloud.advance(Duration::from_secs(30)).await;
    harness.cloud.terminate_instance(REGION, &first).expect("somebody kills it");
    harness.cloud.advance(Duration::from_secs(30)).await;
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Failed);
    harness
        .cloud
        .update_worker("w-1", json!({"status": "pending", "ec2_instance_id": null}))
        .expect("an operator resets it");
    harness.reconcile_until("w-1", WorkerStatus::Running).await;
    assert_eq!(distinct_tokens(&harness), 2);
    assert_one_instance(&harness, "w-1").await;
    assert_ne!(harness.active_instances(), [first]);
}

/// A process dies while its nth request is under way, for every n; the next process goes on from there.
pub(crate) async fn crash_at_every_request(harness: &Harness) {
    for number in 0..MORE_THAN_A_PASS {
        let worker = format!("w-{number}");
        harness.add_worker(&worker, json!({"desired_status": "running"}));
        let record = harness.worker(&worker).await;
        harness.inject(json!({"after": number, "times": 1, "action": {"kind": "latency", "seconds": 600}}));

        let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let process = process.expect("a runtime");
        let reconciler = harness.new_reconciler();
        let pass = process.spawn(async move { reconciler.reconcile(&record).await });
        eventually("it hangs or has ended", async || harness.faults_applied() == 1 || pass.is_finished()).await;
        let hung = harness.faults_applied() == 1;
        process.shutdown_background();
        harness.cloud.clear_faults();
        if !hung {
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
    panic!("the pass makes more than {MORE_THAN_A_PASS} requests");
}

/// A process that launches a worker and stands still before its nth request; none if the pass makes fewer.
async fn held_up(harness: &Harness, worker: &str, number: u64, time: Duration) -> Option<JoinHandle<ReconcileResult>> {
    harness.add_worker(worker, json!({"desired_status": "running"}));
    let record = harness.worker(worker).await;
    harness.inject(json!({"after": number, "times": 1, "action": {"kind": "latency", "seconds": time.as_secs()}}));
    let slow = harness.new_reconciler();
    let pass = tokio::spawn(async move { slow.reconcile(&record).await });
    eventually("it hangs or has ended", async || harness.faults_applied() == 1 || pass.is_finished()).await;
    if harness.faults_applied() == 0 {
        assert!(number >= 6, "a launch makes more than {number} requests");
        return None;
    }
    Some(pass)
}

/// A process stands still before its nth request, for every n; another one does all there is to do, and then the first
/// goes on as if nothing had happened.
pub(crate) async fn overtake_at_every_request(harness: &Harness) {
    for number in 0..MORE_THAN_A_PASS {
        let worker = format!("w-{number}");
        let Some(pass) = held_up(harness, &worker, number, Duration::from_secs(60)).await else { return };
        let quick = harness.new_reconciler();
        for _ in 0..3 {
            let _ = quick.reconcile(&harness.worker(&worker).await).await;
            harness.cloud.advance(Duration::from_secs(16)).await;
        }
        assert_eq!(
            harness.status(&worker).await,
            WorkerStatus::Running,
            "the other is not held up in request {number}"
        );
        harness.cloud.advance(Duration::from_secs(60)).await;
        let _ = pass.await.expect("it ends");
        harness.cloud.clear_faults();
        harness.reconcile_until(&worker, WorkerStatus::Running).await;
        assert_one_instance(harness, &worker).await;
    }
    panic!("the pass makes more than {MORE_THAN_A_PASS} requests");
}

/// A process stands still before its nth request, for every n, until the worker has been launched, wanted no more and
/// terminated by another; then it goes on.
pub(crate) async fn outlive_at_every_request(harness: &Harness) {
    for number in 0..MORE_THAN_A_PASS {
        let worker = format!("w-{number}");
        let Some(pass) = held_up(harness, &worker, number, Duration::from_secs(600)).await else { return };
        harness.reconcile_until(&worker, WorkerStatus::Running).await;
        harness.cloud.update_worker(&worker, json!({"desired_status": "terminated"})).expect("a wish");
        harness.reconcile_until(&worker, WorkerStatus::Terminated).await;

        harness.cloud.advance(Duration::from_secs(600)).await;
        let _ = pass.await.expect("it ends");
        harness.cloud.clear_faults();
        // A server without versions lets it write what it believes; that must not stand.
        harness.reconcile_until(&worker, WorkerStatus::Terminated).await;
        assert_eq!(harness.active_instances(), [""; 0], "after request {number}");
    }
    panic!("the pass makes more than {MORE_THAN_A_PASS} requests");
}

/// Three processes at once over each of ten workers, again and again.
pub(crate) async fn race(harness: &Harness) {
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

/// Exactly one living instance carries the worker's tag, and the record names it.
pub(crate) async fn assert_one_instance(harness: &Harness, worker: &str) {
    let living = harness.active_instances();
    let instances = harness.cloud.instances(REGION);
    let own: Vec<&str> = instances
        .iter()
        .filter(|instance| {
            living.contains(&instance.id) && instance.tags.get("lcm:worker_id").map(String::as_str) == Some(worker)
        })
        .map(|instance| instance.id.as_str())
        .collect();
    assert_eq!(own.len(), 1, "{worker} has {own:?}");
    let record = harness.worker(worker).await;
    assert_eq!(record.ec2_instance_id.as_ref().map(|id| id.as_str()), Some(own[0]), "{worker}");
}

fn lost_answers(times: u32) -> Value {
    json!({"service": "ec2", "operation": "RunInstances", "times": times, "action": {"kind": "drop-response"}})
}

fn refusal(code: &str) -> Value {
    json!({"service": "ec2", "operation": "RunInstances", "action": {"kind": "error", "code": code}})
}

fn distinct_tokens(harness: &Harness) -> usize {
    let filter = RequestFilter { operation: Some("RunInstances".to_owned()), ..RequestFilter::default() };
    let calls = harness.cloud.requests(&filter);
    let tokens = calls.iter().flat_map(|call| &call.parameters).filter(|(name, _)| name == "ClientToken");
    tokens.map(|(_, token)| token).collect::<std::collections::BTreeSet<_>>().len()
}
