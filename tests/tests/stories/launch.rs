//! Launching exactly once: whatever is lost, crashes or comes twice, a worker has one living instance, and its record
//! names it.

use std::time::Duration;

use fake_cloud::RequestFilter;
use futures_util::future::join_all;
use lcm_sdk::reconciler::ReconcileResult;
use lcm_sdk::{Outcome, ReasonCode, WorkerStatus};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::stage::{REGION, Stage, eventually};

/// More requests than a pass that launches makes.
const MORE_THAN_A_PASS: u64 = 30;

#[tokio::test]
async fn a_launch_whose_answer_is_lost_is_repeated_with_the_same_token() {
    let stage = Stage::still().await;
    stage.add_worker("w-1", json!({"desired_status": "running"}));
    stage.fault(lost_answers(1));

    let launch = stage.pass("w-1").await;
    assert_eq!((launch.outcome, launch.to_status), (Outcome::Success, WorkerStatus::Provisioning), "{}", launch.reason);
    assert_eq!(stage.ec2_calls("RunInstances"), 2);
    assert_eq!(distinct_tokens(&stage), 1);
    assert_one_instance(&stage, "w-1").await;
    assert_eq!(stage.counter("provisioned_count"), 1);
    assert_eq!(stage.audit("w-1"), ["ec2_provisioned"]);
}

#[tokio::test]
async fn a_launch_of_which_nothing_was_heard_is_found_by_its_tag() {
    let stage = Stage::still().await;
    stage.add_worker("w-1", json!({"desired_status": "running"}));
    stage.fault(lost_answers(3));

    let unheard = stage.pass("w-1").await;
    assert_eq!((unheard.outcome, unheard.to_status), (Outcome::Retry, WorkerStatus::Pending), "{}", unheard.reason);
    assert_eq!(unheard.reason.code, ReasonCode::LaunchDelayed);
    assert!(stage.worker("w-1").await.notes.launch_plan.is_some(), "the plan is kept, to be repeated byte by byte");
    assert_eq!(stage.living_instances().len(), 1, "it was launched all the same");
    assert_eq!(stage.counter("provisioned_count"), 0, "nothing is recorded, so nothing is counted");

    let found = stage.pass("w-1").await;
    assert_eq!((found.reason.code, found.to_status), (ReasonCode::Adopted, WorkerStatus::Provisioning));
    assert_eq!(stage.ec2_calls("RunInstances"), 3);
    assert_one_instance(&stage, "w-1").await;
    assert!(stage.worker("w-1").await.notes.launch_plan.is_none());
}

#[tokio::test]
async fn a_launch_that_nobody_can_see_yet_is_repeated_and_not_planned_anew() {
    let stage = Stage::still().await;
    stage.add_worker("w-1", json!({"desired_status": "running"}));
    stage.fault(lost_answers(3));
    stage.fault(json!({"service": "ec2", "action": {"kind": "visibility-lag", "seconds": 90}}));
    let unheard = stage.pass("w-1").await;
    assert_eq!(unheard.to_status, WorkerStatus::Pending, "{}", unheard.reason);

    // Meanwhile the template says something else; a new plan would have another token.
    let template = json!({"name": "metal", "instance_type": "m5zn.large"});
    stage.cloud.add_template(template).expect("a template");
    stage.cloud.advance(Duration::from_secs(10)).await;
    let resumed = stage.pass("w-1").await;
    assert_eq!((resumed.reason.code, resumed.to_status), (ReasonCode::LaunchResumed, WorkerStatus::Provisioning));
    assert_eq!(distinct_tokens(&stage), 1);
    assert_one_instance(&stage, "w-1").await;
    assert_eq!(stage.cloud.instances(REGION)[0].instance_type.as_ref(), "m5zn.metal");
}

#[tokio::test]
async fn an_instance_that_ec2_does_not_show_yet_is_waited_for() {
    let stage = Stage::still().await;
    stage.add_worker("w-1", json!({"desired_status": "running"}));
    stage.fault(json!({"service": "ec2", "action": {"kind": "visibility-lag", "seconds": 100}}));
    assert_eq!(stage.pass("w-1").await.to_status, WorkerStatus::Provisioning);
    for _ in 0..9 {
        stage.cloud.advance(Duration::from_secs(10)).await;
        let pass = stage.pass("w-1").await;
        assert_eq!((pass.outcome, pass.to_status), (Outcome::Requeue, WorkerStatus::Provisioning), "{}", pass.reason);
        assert_eq!(pass.reason.code, ReasonCode::NotVisibleYet);
    }
    stage.cloud.advance(Duration::from_secs(20)).await;
    stage.pass_until("w-1", WorkerStatus::Running).await;
    assert_eq!(stage.ec2_calls("RunInstances"), 1);
    assert_one_instance(&stage, "w-1").await;
}

#[tokio::test]
async fn a_process_that_dies_anywhere_in_a_launch_leaves_one_instance_to_the_next() {
    crash_at_every_request(&Stage::still().await).await;
}

#[tokio::test]
async fn a_process_that_is_overtaken_anywhere_in_a_launch_launches_nothing_of_its_own() {
    overtake_at_every_request(&Stage::still().await).await;
}

#[tokio::test]
async fn a_process_that_sleeps_through_a_workers_whole_life_does_not_begin_another() {
    outlive_at_every_request(&Stage::still().await).await;
}

#[tokio::test]
async fn many_triggers_at_once_launch_once() {
    let stage = Stage::still().await;
    stage.add_worker("w-1", json!({"desired_status": "running"}));
    let seen = stage.worker("w-1").await;
    let passes = join_all((0..20).map(|_| stage.reconciler().reconcile(&seen))).await;
    assert_eq!(
        passes
            .iter()
            .filter(|pass| pass.to_status != pass.from_status && pass.from_status == WorkerStatus::Pending)
            .count(),
        1
    );
    assert_eq!(stage.ec2_calls("RunInstances"), 1);
    assert_eq!(stage.counter("provisioned_count"), 1);
    assert_eq!(stage.audit("w-1"), ["ec2_provisioned"]);
    assert_one_instance(&stage, "w-1").await;
}

#[tokio::test]
async fn processes_that_know_nothing_of_each_other_launch_once() {
    let stage = Stage::still().await;
    race(&stage).await;
}

#[tokio::test]
async fn two_controllers_that_both_believe_to_lead_launch_once_for_each_worker() {
    let stage = Stage::live().await;
    let workers: Vec<String> = (1..=10).map(|number| format!("w-{number:02}")).collect();
    workers.iter().for_each(|worker| stage.add_worker(worker, json!({"desired_status": "running"})));
    let actors = [stage.lone_controller(|_| {}), stage.lone_controller(|_| {})];
    eventually("all run", async || stage.cloud.workers().iter().all(|worker| worker.status() == "running")).await;
    for actor in actors {
        actor.stop().await;
    }
    assert_eq!(stage.living_instances().len(), 10);
    for worker in &workers {
        assert_one_instance(&stage, worker).await;
        assert_eq!(stage.audit(worker), ["ec2_provisioned"], "{worker}");
    }
}

#[tokio::test]
async fn what_can_pass_keeps_the_worker_pending_and_the_next_pass_launches() {
    for code in ["InsufficientInstanceCapacity", "RequestLimitExceeded", "InternalError", "ServiceUnavailable"] {
        let stage = Stage::still().await;
        stage.add_worker("w-1", json!({"desired_status": "running"}));
        stage.fault(refusal(code));
        let refused = stage.pass("w-1").await;
        assert_eq!(
            (refused.outcome, refused.to_status),
            (Outcome::Retry, WorkerStatus::Pending),
            "{code}: {}",
            refused.reason
        );
        assert!(refused.error.is_some_and(|error| error.code.as_deref() == Some(code)), "{code}");
        assert_eq!(stage.status("w-1").await, WorkerStatus::Pending);
        assert!(stage.living_instances().is_empty());
        assert_eq!(stage.audit("w-1"), [""; 0]);

        stage.cloud.clear_faults();
        stage.pass_until("w-1", WorkerStatus::Running).await;
        assert_one_instance(&stage, "w-1").await;
        assert_eq!(stage.counter("provisioned_count"), 1, "{code}");
    }
}

#[tokio::test]
async fn what_is_refused_for_good_fails_the_worker_until_an_operator_resets_it() {
    for code in ["UnauthorizedOperation", "InvalidAMIID.NotFound", "InvalidSubnetID.NotFound", "InvalidParameterValue"]
    {
        let stage = Stage::still().await;
        stage.add_worker("w-1", json!({"desired_status": "running"}));
        stage.fault(refusal(code));
        let refused = stage.pass("w-1").await;
        assert_eq!(
            (refused.reason.code, refused.to_status),
            (ReasonCode::LaunchFailed, WorkerStatus::Failed),
            "{code}"
        );
        assert_eq!(stage.audit("w-1"), ["ec2_provision_failed"], "{code}");
        assert_eq!(stage.ec2_calls("RunInstances"), 1, "{code} is not worth a second try");

        stage.cloud.clear_faults();
        assert_eq!(stage.pass("w-1").await.outcome, Outcome::Skip, "failed waits for an operator");
        stage.cloud.update_worker("w-1", json!({"status": "pending"})).expect("an operator resets it");
        stage.pass_until("w-1", WorkerStatus::Running).await;
        assert_one_instance(&stage, "w-1").await;
    }
}

#[tokio::test]
async fn what_is_missing_fails_the_worker_before_ec2_is_asked_for_anything() {
    let stage = Stage::still().await;
    stage.add_worker("w-template", json!({"template_name": "unobtainium"}));
    stage.add_worker("w-nameless", json!({"template_name": null}));
    stage.add_worker("w-region", json!({"aws_region": "eu-west-1"}));
    stage
        .cloud
        .add_template(json!({"name": "ancient", "instance_type": "m5.large", "ami_name_pattern": "cisco-cml1*"}))
        .expect("a template");
    stage.add_worker("w-image", json!({"template_name": "ancient"}));
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
        let pass = stage.pass(worker).await;
        assert_eq!((pass.reason.code, pass.to_status, pass.outcome), (code, WorkerStatus::Failed, outcome), "{worker}");
        assert!(pass.reason.to_string().contains(words), "{}", pass.reason);
        assert_eq!(stage.status(worker).await, WorkerStatus::Failed);
        assert_eq!(stage.audit(worker), ["ec2_provision_failed"]);
    }
    assert_eq!(stage.ec2_calls("RunInstances"), 0);
    assert_eq!(stage.counter("provisioned_count"), 0);
}

#[tokio::test]
async fn nobody_is_launched_on_a_guess() {
    let stage = Stage::still().await;
    stage.add_worker("w-1", json!({"desired_status": "running"}));
    for rule in [
        json!({"service": "ec2", "operation": "DescribeInstances", "action": {"kind": "error", "code": "RequestLimitExceeded"}}),
        json!({"service": "ec2", "operation": "DescribeImages", "action": {"kind": "error", "code": "UnauthorizedOperation"}}),
        json!({"service": "control-plane", "operation": "get_template", "action": {"kind": "error", "code": "500"}}),
        json!({"service": "control-plane", "operation": "write_status", "action": {"kind": "error", "code": "500"}}),
    ] {
        stage.fault(rule.clone());
        let pass = stage.pass("w-1").await;
        assert_eq!((pass.outcome, pass.to_status), (Outcome::Retry, WorkerStatus::Pending), "{rule}: {}", pass.reason);
        stage.cloud.clear_faults();
    }
    assert_eq!(stage.ec2_calls("RunInstances"), 0, "a launch whose plan is not written down is not made");
    stage.pass_until("w-1", WorkerStatus::Running).await;
    assert_one_instance(&stage, "w-1").await;
}

#[tokio::test]
async fn a_launch_that_died_gets_a_new_token() {
    let stage = Stage::still().await;
    stage.add_worker("w-1", json!({"desired_status": "running"}));
    assert_eq!(stage.pass("w-1").await.to_status, WorkerStatus::Provisioning);
    let first = stage.living_instances()[0].clone();
    stage.cloud.advance(Duration::from_secs(30)).await;
    stage.cloud.terminate_instance(REGION, &first).expect("somebody kills it");
    stage.cloud.advance(Duration::from_secs(30)).await;
    assert_eq!(stage.pass("w-1").await.to_status, WorkerStatus::Failed);
    stage
        .cloud
        .update_worker("w-1", json!({"status": "pending", "ec2_instance_id": null}))
        .expect("an operator resets it");
    stage.pass_until("w-1", WorkerStatus::Running).await;
    assert_eq!(distinct_tokens(&stage), 2);
    assert_one_instance(&stage, "w-1").await;
    assert_ne!(stage.living_instances(), [first]);
}

/// A process dies while its nth request is under way, for every n; the next process goes on from there.
pub(crate) async fn crash_at_every_request(stage: &Stage) {
    for number in 0..MORE_THAN_A_PASS {
        let worker = format!("w-{number}");
        stage.add_worker(&worker, json!({"desired_status": "running"}));
        let record = stage.worker(&worker).await;
        stage.fault(json!({"after": number, "times": 1, "action": {"kind": "latency", "seconds": 600}}));

        let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let process = process.expect("a runtime");
        let reconciler = stage.another_reconciler();
        let pass = process.spawn(async move { reconciler.reconcile(&record).await });
        eventually("it hangs or has ended", async || stage.strikes() == 1 || pass.is_finished()).await;
        let hung = stage.strikes() == 1;
        process.shutdown_background();
        stage.cloud.clear_faults();
        if !hung {
            assert!(number >= 6, "a launch makes more than {number} requests");
            return;
        }
        let next = stage.another_reconciler();
        for _ in 0..20 {
            let record = stage.worker(&worker).await;
            if record.status == WorkerStatus::Running {
                break;
            }
            let _ = next.reconcile(&record).await;
            stage.cloud.advance(Duration::from_secs(20)).await;
        }
        assert_eq!(stage.status(&worker).await, WorkerStatus::Running, "after a crash in request {number}");
        assert_one_instance(stage, &worker).await;
    }
    panic!("the pass makes more than {MORE_THAN_A_PASS} requests");
}

/// A process that launches a worker and stands still before its nth request; none if the pass makes fewer.
async fn held_up(stage: &Stage, worker: &str, number: u64, time: Duration) -> Option<JoinHandle<ReconcileResult>> {
    stage.add_worker(worker, json!({"desired_status": "running"}));
    let record = stage.worker(worker).await;
    stage.fault(json!({"after": number, "times": 1, "action": {"kind": "latency", "seconds": time.as_secs()}}));
    let slow = stage.another_reconciler();
    let pass = tokio::spawn(async move { slow.reconcile(&record).await });
    eventually("it hangs or has ended", async || stage.strikes() == 1 || pass.is_finished()).await;
    if stage.strikes() == 0 {
        assert!(number >= 6, "a launch makes more than {number} requests");
        return None;
    }
    Some(pass)
}

/// A process stands still before its nth request, for every n; another one does all there is to do, and then the first
/// goes on as if nothing had happened.
pub(crate) async fn overtake_at_every_request(stage: &Stage) {
    for number in 0..MORE_THAN_A_PASS {
        let worker = format!("w-{number}");
        let Some(pass) = held_up(stage, &worker, number, Duration::from_secs(60)).await else { return };
        let quick = stage.another_reconciler();
        for _ in 0..3 {
            let _ = quick.reconcile(&stage.worker(&worker).await).await;
            stage.cloud.advance(Duration::from_secs(16)).await;
        }
        assert_eq!(stage.status(&worker).await, WorkerStatus::Running, "the other is not held up in request {number}");
        stage.cloud.advance(Duration::from_secs(60)).await;
        let _ = pass.await.expect("it ends");
        stage.cloud.clear_faults();
        stage.pass_until(&worker, WorkerStatus::Running).await;
        assert_one_instance(stage, &worker).await;
    }
    panic!("the pass makes more than {MORE_THAN_A_PASS} requests");
}

/// A process stands still before its nth request, for every n, until the worker has been launched, wanted no more and
/// terminated by another; then it goes on.
pub(crate) async fn outlive_at_every_request(stage: &Stage) {
    for number in 0..MORE_THAN_A_PASS {
        let worker = format!("w-{number}");
        let Some(pass) = held_up(stage, &worker, number, Duration::from_secs(600)).await else { return };
        stage.pass_until(&worker, WorkerStatus::Running).await;
        stage.cloud.update_worker(&worker, json!({"desired_status": "terminated"})).expect("a wish");
        stage.pass_until(&worker, WorkerStatus::Terminated).await;

        stage.cloud.advance(Duration::from_secs(600)).await;
        let _ = pass.await.expect("it ends");
        stage.cloud.clear_faults();
        // A server without versions lets it write what it believes; that must not stand.
        stage.pass_until(&worker, WorkerStatus::Terminated).await;
        assert_eq!(stage.living_instances(), [""; 0], "after request {number}");
    }
    panic!("the pass makes more than {MORE_THAN_A_PASS} requests");
}

/// Three processes at once over each of ten workers, again and again.
pub(crate) async fn race(stage: &Stage) {
    let processes = [stage.another_reconciler(), stage.another_reconciler(), stage.another_reconciler()];
    for number in 1..=10 {
        let worker = format!("w-{number}");
        stage.add_worker(&worker, json!({"desired_status": "running"}));
        for _ in 0..6 {
            let record = stage.worker(&worker).await;
            join_all(processes.iter().map(|process| process.reconcile(&record))).await;
            stage.cloud.advance(Duration::from_secs(10)).await;
        }
        stage.pass_until(&worker, WorkerStatus::Running).await;
        assert_one_instance(stage, &worker).await;
    }
    assert_eq!(stage.living_instances().len(), 10);
    assert_eq!(distinct_tokens(stage), 10);
}

/// Exactly one living instance carries the worker's tag, and the record names it.
pub(crate) async fn assert_one_instance(stage: &Stage, worker: &str) {
    let living = stage.living_instances();
    let instances = stage.cloud.instances(REGION);
    let own: Vec<&str> = instances
        .iter()
        .filter(|instance| {
            living.contains(&instance.id) && instance.tags.get("lcm:worker_id").map(String::as_str) == Some(worker)
        })
        .map(|instance| instance.id.as_str())
        .collect();
    assert_eq!(own.len(), 1, "{worker} has {own:?}");
    let record = stage.worker(worker).await;
    assert_eq!(record.ec2_instance_id.as_ref().map(|id| id.as_str()), Some(own[0]), "{worker}");
}

fn lost_answers(times: u32) -> Value {
    json!({"service": "ec2", "operation": "RunInstances", "times": times, "action": {"kind": "drop-response"}})
}

fn refusal(code: &str) -> Value {
    json!({"service": "ec2", "operation": "RunInstances", "action": {"kind": "error", "code": code}})
}

fn distinct_tokens(stage: &Stage) -> usize {
    let filter = RequestFilter { operation: Some("RunInstances".to_owned()), ..RequestFilter::default() };
    let calls = stage.cloud.requests(&filter);
    let tokens = calls.iter().flat_map(|call| &call.parameters).filter(|(name, _)| name == "ClientToken");
    tokens.map(|(_, token)| token).collect::<std::collections::BTreeSet<_>>().len()
}
