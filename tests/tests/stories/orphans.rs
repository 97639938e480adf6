//! Discovery and garbage collection (ADR-014): records that have lost their instance end, and nobody else does.

use std::time::Duration;

use fake_cloud::{RequestFilter, Service};
use lcm_sdk::lifecycle::orphans::Conclusion;
use lcm_sdk::telemetry::Anomaly;
use lcm_sdk::workers::DiscoveryReport;
use lcm_sdk::{Outcome, WorkerStatus};
use serde_json::{Value, json};

use crate::stage::{REGION, Stage, eventually};

pub(crate) const ELSEWHERE: &str = "eu-west-1";
const LONG_AGO: &str = "2020-01-01T00:00:00Z";
const ORPHANED: &str = "cml_worker.orphan.terminated.v1";
const FROZEN: &str = "cml_worker.orphan.frozen.v1";

#[tokio::test]
async fn whoever_ends_an_instance_and_however_long_ago_its_record_ends_too() {
    let stage = Stage::still().await;
    let by_console = stage.add_running_worker("w-console").await;
    let by_scaling = stage.add_running_worker("w-scaling").await;
    let deleted = stage.add_running_worker("w-deleted").await;
    stage.add_running_worker("w-alive").await;
    stage.cloud.add_session(json!({"id": "s-1", "worker_id": "w-console", "status": "running"})).expect("a session");

    stage.cloud.terminate_instance(REGION, &deleted).expect("the owner deletes it");
    stage.cloud.advance(Duration::from_secs(2 * 3600)).await;
    assert!(stage.cloud.instance(REGION, &deleted).is_none(), "by now EC2 does not show it any more");
    stage.cloud.terminate_instance(REGION, &by_console).expect("somebody terminates it");
    stage.cloud.advance(Duration::from_secs(60)).await;
    stage.cloud.terminate_instance(REGION, &by_scaling).expect("auto-scaling terminates it");

    // What is still shutting down is not gone yet.
    let first = collect(&stage).await;
    assert_eq!(terminated(&first), ["w-console", "w-deleted"]);
    stage.cloud.advance(Duration::from_secs(60)).await;
    let second = collect(&stage).await;
    assert_eq!(terminated(&second), ["w-scaling"]);

    for worker in ["w-console", "w-scaling", "w-deleted"] {
        let record = stage.cloud.worker(worker).expect("the record is kept");
        assert_eq!(record.status(), "terminated", "{worker}");
        assert_eq!(record.text("terminated_by"), Some("discovery-gc"));
        assert_eq!(record.text("terminated_reason"), Some("EC2 instance not found during discovery"));
        assert!(record.text("terminated_at").is_some());
    }
    assert_eq!(stage.status("w-alive").await, WorkerStatus::Running);
    assert_eq!(stage.cloud.session("s-1").expect("it is kept")["status"], "terminated", "nobody waits for its session");
    assert_eq!(stage.counter("orphans_terminated_count"), 3);
    assert_eq!(told(&stage, ORPHANED), ["w-console", "w-deleted", "w-scaling"]);
}

#[tokio::test]
async fn thirteen_records_and_three_instances_make_exactly_ten_orphans_in_one_pass() {
    let stage = Stage::still().await;
    ten_of_thirteen_are_gone(&stage).await;

    let report = collect(&stage).await;
    assert_eq!(report.orphans_terminated(), 10);
    assert_eq!(terminated(&report), ghosts(10));
    assert_eq!(verifying_describes(&stage), 1, "one describe for all ten, not ten");
    for worker in ghosts(10) {
        let record = stage.cloud.worker(&worker).expect("soft delete only");
        assert_eq!(record.status(), "terminated");
        assert_eq!(record.text("terminated_by"), Some("discovery-gc"));
        assert_eq!(record.text("terminated_reason"), Some("EC2 instance not found during discovery"));
    }
    for worker in ["w-1", "w-2", "w-3"] {
        assert_eq!(stage.status(worker).await, WorkerStatus::Running);
    }
    assert_eq!(stage.counter("orphans_terminated_count"), 10);
    assert_eq!(told(&stage, ORPHANED), ghosts(10));

    let again = collect(&stage).await;
    assert_eq!(again.orphans_terminated(), 0);
    assert_eq!(stage.counter("orphans_terminated_count"), 10);
    assert_eq!(stage.ec2_calls("TerminateInstances"), 0, "garbage collection touches records only");
    assert_eq!(stage.cloud.count(Service::ControlPlane, "bulk_import"), 0, "known instances are not imported");
}

#[tokio::test]
async fn a_verification_that_gets_no_answer_terminates_nobody() {
    for action in [
        json!({"kind": "error", "code": "RequestLimitExceeded"}),
        json!({"kind": "error", "code": "UnauthorizedOperation"}),
        json!({"kind": "error", "code": "InternalError"}),
        json!({"kind": "reset"}),
        json!({"kind": "drop-response"}),
    ] {
        let stage = Stage::still().await;
        ten_of_thirteen_are_gone(&stage).await;
        stage.fault(json!({
            "service": "ec2", "operation": "DescribeInstances", "instance": ghost_instance(1), "action": action,
        }));
        let report = collect(&stage).await;
        assert!(stage.strikes() > 0, "{action}");
        assert_eq!(report.orphans_terminated(), 0, "{action}");
        assert_eq!(concluded(&report, Conclusion::Unknown), 10, "{action}");
        assert_eq!(stage.control_plane_writes(), 0, "{action}");
        assert_eq!(stage.counter("orphans_terminated_count"), 0);

        stage.cloud.clear_faults();
        assert_eq!(collect(&stage).await.orphans_terminated(), 10, "as soon as EC2 answers, the same ten go: {action}");
    }
}

#[tokio::test]
async fn a_scan_of_another_region_says_nothing_about_this_one() {
    let stage = Stage::still().await;
    ten_of_thirteen_are_gone(&stage).await;
    stage.cloud.run_instance(ELSEWHERE, &[]).expect("there is life elsewhere");
    set_regions(&stage, &[ELSEWHERE]);

    let report = collect(&stage).await;
    assert_eq!(report.regions.len(), 1);
    assert_eq!(report.orphans_terminated(), 0);
    assert_eq!(report.regions[0].verdicts, []);
    assert_eq!(verifying_describes(&stage), 0, "nobody is asked for in a region that is not his");
    assert_eq!(stage.cloud.worker("ghost-01").expect("it exists").status(), "running");
}

#[tokio::test]
async fn an_instance_is_verified_in_the_region_of_its_worker() {
    let stage = Stage::still().await;
    // Another kind of image, so that the scan does not show it; the default region is not its own either.
    let instance = stage.cloud.run_instance(ELSEWHERE, &[]).expect("it launches").id.clone();
    add_record(&stage, "w-far", json!({"ec2_instance_id": instance, "aws_region": ELSEWHERE}));
    stage.cloud.set_discovery(json!({"ami_name_pattern": "cisco-cml2.7*"})).expect("a pattern");
    set_regions(&stage, &[REGION, ELSEWHERE]);
    stage.cloud.advance(Duration::from_secs(60)).await;

    let report = collect(&stage).await;
    assert_eq!(report.orphans_terminated(), 0);
    assert_eq!(concluded(&report, Conclusion::Alive), 1);
    let describes = verifications(&stage);
    assert_eq!(describes.iter().map(|describe| describe.as_deref()).collect::<Vec<_>>(), [Some(ELSEWHERE)]);
}

#[tokio::test]
async fn a_scan_that_shows_nothing_at_all_freezes_the_region() {
    let stage = Stage::still().await.under(|policy| {
        let here = policy.regions.regions.get_mut(REGION).expect("it is configured");
        here.subnet_id = "subnet-0123456789abcdef0".to_owned();
    });
    (1..=10).for_each(|number| add_ghost(&stage, number));

    let report = collect(&stage).await;
    assert_eq!(report.orphans_terminated(), 0);
    assert_eq!(concluded(&report, Conclusion::Frozen), 10);
    assert_eq!(told(&stage, FROZEN), [REGION]);
    assert_eq!(stage.telemetry.anomalies(Anomaly::RegionFrozen), 1);
    assert!(stage.telemetry.to_prometheus().contains("lcm_mishaps_total{kind=\"region_frozen\"} 1"));
    assert_eq!(stage.ec2_calls("DescribeSubnets"), 1);

    // One that EC2 itself calls terminated shows that these are the right credentials.
    let ended = stage.cloud.run_instance(REGION, &[]).expect("it launches").id.clone();
    add_record(&stage, "w-ended", json!({"ec2_instance_id": ended}));
    stage.cloud.advance(Duration::from_secs(60)).await;
    stage.cloud.terminate_instance(REGION, &ended).expect("it ends");
    stage.cloud.advance(Duration::from_secs(60)).await;
    assert_eq!(collect(&stage).await.orphans_terminated(), 11);
}

#[tokio::test]
async fn an_empty_region_is_not_frozen_when_its_subnet_can_be_seen() {
    let stage = Stage::still().await;
    (1..=10).for_each(|number| add_ghost(&stage, number));
    let report = collect(&stage).await;
    assert_eq!(report.orphans_terminated(), 10);
    assert_eq!(told(&stage, FROZEN), [""; 0]);
    assert_eq!(stage.telemetry.anomalies(Anomaly::RegionFrozen), 0);
}

#[tokio::test]
async fn a_scan_that_loses_a_page_terminates_nobody() {
    let stage = Stage::still().await;
    for number in 1..=12 {
        stage.cloud.run_instance(REGION, &[]).expect("it launches");
        add_ghost(&stage, number);
    }
    stage.cloud.advance(Duration::from_secs(60)).await;
    stage.fault(
        json!({"service": "ec2", "operation": "DescribeInstances", "action": {"kind": "partial-page", "limit": 5}}),
    );
    stage.fault(json!({
        "service": "ec2", "operation": "DescribeInstances", "after": 1,
        "action": {"kind": "error", "code": "RequestLimitExceeded"},
    }));

    let report = collect(&stage).await;
    assert_eq!(report.regions[0].seen, 5, "the first page came");
    assert!(report.regions[0].error.is_some());
    assert_eq!(report.orphans_terminated(), 0);
    assert_eq!(report.regions[0].verdicts, []);
    assert_eq!(stage.telemetry.anomalies(Anomaly::ScanFailed), 1);

    // Pages alone are no trouble.
    stage.cloud.clear_faults();
    stage.fault(
        json!({"service": "ec2", "operation": "DescribeInstances", "action": {"kind": "partial-page", "limit": 5}}),
    );
    let whole = collect(&stage).await;
    assert_eq!((whole.regions[0].seen, whole.orphans_terminated()), (12, 12));
}

#[tokio::test]
async fn neither_a_young_launch_nor_a_protected_instance_is_taken_for_an_orphan() {
    let stage = Stage::still().await;
    stage.add_running_worker("w-alive").await;
    let now = stage.cloud.now().to_rfc3339();
    add_record(
        &stage,
        "w-young",
        json!({"status": "provisioning", "ec2_instance_id": ghost_instance(1), "launched_at": now}),
    );
    let kept = stage.add_running_worker("w-protected").await;
    stage.cloud.tag_instance(REGION, &kept, "lcm:protect", "true").expect("an operator protects it");
    stage.cloud.terminate_instance(REGION, &kept).expect("it ends all the same");
    stage.cloud.advance(Duration::from_secs(59)).await;

    let report = collect(&stage).await;
    assert_eq!(report.orphans_terminated(), 0);
    assert_eq!((concluded(&report, Conclusion::Young), concluded(&report, Conclusion::Protected)), (1, 1));

    // Once EC2 has had two minutes to show it, its absence counts.
    stage.cloud.advance(Duration::from_secs(61)).await;
    assert_eq!(terminated(&collect(&stage).await), ["w-young"]);
    assert_eq!(stage.status("w-protected").await, WorkerStatus::Running);
}

#[tokio::test]
async fn fifteen_hundred_suspects_cost_two_describes_and_the_cap_lets_a_few_go_at_a_time() {
    let stage = Stage::still().await.under(|policy| policy.orphans.max_terminations_per_pass = Some(4));
    stage.add_running_worker("w-alive").await;
    (1..=1500).for_each(|number| add_ghost(&stage, number));

    let report = collect(&stage).await;
    assert_eq!(verifying_describes(&stage), 2);
    assert_eq!((concluded(&report, Conclusion::Orphan), concluded(&report, Conclusion::Deferred)), (4, 1496));
    assert_eq!(report.orphans_terminated(), 4);
    assert_eq!(collect(&stage).await.orphans_terminated(), 4);
    assert_eq!(stage.counter("orphans_terminated_count"), 8);
    let over = stage.cloud.workers().iter().filter(|worker| worker.status() == "terminated").count();
    assert_eq!(over, 8);
}

#[tokio::test]
async fn an_orphan_that_cannot_be_written_is_marked_by_the_next_pass() {
    let stage = Stage::still().await;
    ten_of_thirteen_are_gone(&stage).await;
    stage.fault(json!({
        "service": "control-plane", "operation": "terminate_worker", "instance": "ghost-03",
        "action": {"kind": "error", "code": "500"},
    }));
    let report = collect(&stage).await;
    assert_eq!(report.orphans_terminated(), 9);
    assert_eq!(stage.counter("orphans_terminated_count"), 9, "counted only after it was recorded");
    assert!(!told(&stage, ORPHANED).contains(&"ghost-03".to_owned()));
    stage.cloud.clear_faults();
    assert_eq!(terminated(&collect(&stage).await), ["ghost-03"]);
    // A pass over a terminated worker asks nobody.
    let calls = stage.ec2_calls("DescribeInstances");
    assert_eq!(stage.pass("ghost-03").await.outcome, Outcome::Skip);
    assert_eq!(stage.ec2_calls("DescribeInstances"), calls);
}

#[tokio::test]
async fn a_record_that_changes_while_it_is_verified_is_left_alone() {
    let stage = Stage::still().await;
    a_relaunch_during_the_verification_survives(&stage).await;
}

/// While EC2 takes its time to say that an instance is gone, the worker gets a new one.
pub(crate) async fn a_relaunch_during_the_verification_survives(stage: &Stage) {
    stage.add_running_worker("w-alive").await;
    add_ghost(stage, 1);
    stage.fault(json!({
        "service": "ec2", "operation": "DescribeInstances", "instance": ghost_instance(1), "times": 1,
        "action": {"kind": "latency", "seconds": 5},
    }));
    let discovery = stage.discovery();
    let verifying = tokio::spawn(async move { discovery.run_once().await });
    eventually("the describe is under way", async || stage.strikes() == 1).await;
    let new = stage.cloud.run_instance(REGION, &[("lcm:worker_id", "ghost-01")]).expect("it launches").id.clone();
    stage.cloud.update_worker("ghost-01", json!({"ec2_instance_id": new})).expect("a relaunch");
    stage.cloud.advance(Duration::from_secs(5)).await;

    let report = verifying.await.expect("it ends");
    assert_eq!(report.orphans_terminated(), 0);
    let record = stage.cloud.worker("ghost-01").expect("it exists");
    assert_eq!((record.status(), record.instance_id()), ("running", Some(new.as_str())));
    assert_eq!(stage.counter("orphans_terminated_count"), 0);
}

/// ADR-014's own case: three workers with an instance, ten whose instance nobody knows any more.
pub(crate) async fn ten_of_thirteen_are_gone(stage: &Stage) {
    for worker in ["w-1", "w-2", "w-3"] {
        stage.add_running_worker(worker).await;
    }
    (1..=10).for_each(|number| add_ghost(stage, number));
}

pub(crate) async fn collect(stage: &Stage) -> DiscoveryReport {
    stage.discovery().run_once().await
}

pub(crate) fn terminated(report: &DiscoveryReport) -> Vec<&str> {
    let mut ids: Vec<&str> =
        report.regions.iter().flat_map(|region| &region.terminated).map(|id| id.as_str()).collect();
    ids.sort_unstable();
    ids
}

/// The ids of so many ghosts.
pub(crate) fn ghosts(count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("ghost-{number:02}")).collect()
}

fn add_ghost(stage: &Stage, number: usize) {
    add_record(stage, &format!("ghost-{number:02}"), json!({"ec2_instance_id": ghost_instance(number)}));
}

/// An id that has the right form and that no instance has.
pub(crate) fn ghost_instance(number: usize) -> String {
    format!("i-0dead{number:012x}")
}

pub(crate) fn add_record(stage: &Stage, id: &str, fields: Value) {
    let mut record = json!({
        "status": "running", "desired_status": "running", "created_at": LONG_AGO, "launched_at": LONG_AGO,
    });
    let own = record.as_object_mut().expect("an object");
    own.extend(fields.as_object().expect("an object").clone());
    stage.add_worker(id, record);
}

pub(crate) fn set_regions(stage: &Stage, regions: &[&str]) {
    stage.cloud.set_discovery(json!({"regions": regions})).expect("regions");
}

fn concluded(report: &DiscoveryReport, conclusion: Conclusion) -> usize {
    let verdicts = report.regions.iter().flat_map(|region| &region.verdicts);
    verdicts.filter(|verdict| verdict.conclusion == conclusion).count()
}

/// Whom events of a type are about, in order.
pub(crate) fn told(stage: &Stage, kind: &str) -> Vec<String> {
    let events = stage.cloud.records().events(None, Some(kind));
    let mut subjects: Vec<_> =
        events.iter().filter_map(|event| Some(event.get("subject")?.as_str()?.to_owned())).collect();
    subjects.sort_unstable();
    subjects
}

/// The describes that name instances: not the scans.
fn verifying_describes(stage: &Stage) -> usize {
    verifications(stage).len()
}

/// The region of each.
fn verifications(stage: &Stage) -> Vec<Option<String>> {
    let filter = RequestFilter { operation: Some("DescribeInstances".to_owned()), ..RequestFilter::default() };
    let describes = stage.cloud.requests(&filter);
    let by_id =
        describes.into_iter().filter(|record| record.parameters.iter().any(|(name, _)| name.starts_with("InstanceId")));
    by_id.map(|record| record.region).collect()
}
