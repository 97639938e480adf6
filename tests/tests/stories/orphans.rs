//! Discovery and garbage collection (ADR-014): records that have lost their instance end, and nobody else does.

use std::time::Duration;

use fake_cloud::{RequestFilter, Service};
use lcm_sdk::lifecycle::orphans::Conclusion;
use lcm_sdk::telemetry::Anomaly;
use lcm_sdk::workers::DiscoveryReport;
use lcm_sdk::{Outcome, WorkerStatus};
use serde_json::{Value, json};

use lcm_tests::harness::{Harness, REGION, eventually};

pub(crate) const ELSEWHERE: &str = "eu-west-1";
const LONG_AGO: &str = "2020-01-01T00:00:00Z";
const ORPHANED: &str = "cml_worker.orphan.terminated.v1";
const FROZEN: &str = "cml_worker.orphan.frozen.v1";

#[tokio::test]
async fn whoever_ends_an_instance_and_however_long_ago_its_record_ends_too() {
    let harness = Harness::with_manual_clock().await;
    let by_console = harness.add_running_worker("w-console").await;
    let by_scaling = harness.add_running_worker("w-scaling").await;
    let deleted = harness.add_running_worker("w-deleted").await;
    harness.add_running_worker("w-alive").await;
    harness.cloud.add_session(json!({"id": "s-1", "worker_id": "w-console", "status": "running"})).expect("a session");

    harness.cloud.terminate_instance(REGION, &deleted).expect("the owner deletes it");
    harness.cloud.advance(Duration::from_secs(2 * 3600)).await;
    assert!(harness.cloud.instance(REGION, &deleted).is_none(), "by now EC2 does not show it any more");
    harness.cloud.terminate_instance(REGION, &by_console).expect("somebody terminates it");
    harness.cloud.advance(Duration::from_secs(60)).await;
    harness.cloud.terminate_instance(REGION, &by_scaling).expect("auto-scaling terminates it");

    // What is still shutting down is not gone yet.
    let first = collect(&harness).await;
    assert_eq!(terminated(&first), ["w-console", "w-deleted"]);
    harness.cloud.advance(Duration::from_secs(60)).await;
    let second = collect(&harness).await;
    assert_eq!(terminated(&second), ["w-scaling"]);

    for worker in ["w-console", "w-scaling", "w-deleted"] {
        let record = harness.cloud.worker(worker).expect("the record is kept");
        assert_eq!(record.status(), "terminated", "{worker}");
        assert_eq!(record.text("terminated_by"), Some("discovery-gc"));
        assert_eq!(record.text("terminated_reason"), Some("EC2 instance not found during discovery"));
        assert!(record.text("terminated_at").is_some());
    }
    assert_eq!(harness.status("w-alive").await, WorkerStatus::Running);
    assert_eq!(
        harness.cloud.session("s-1").expect("it is kept")["status"],
        "terminated",
        "nobody waits for its session"
    );
    assert_eq!(harness.counter("orphans_terminated_count"), 3);
    assert_eq!(told(&harness, ORPHANED), ["w-console", "w-deleted", "w-scaling"]);
}

#[tokio::test]
async fn thirteen_records_and_three_instances_make_exactly_ten_orphans_in_one_pass() {
    let harness = Harness::with_manual_clock().await;
    ten_of_thirteen_are_gone(&harness).await;

    let report = collect(&harness).await;
    assert_eq!(report.orphans_terminated(), 10);
    assert_eq!(terminated(&report), ghosts(10));
    assert_eq!(verifying_describes(&harness), 1, "one describe for all ten, not ten");
    for worker in ghosts(10) {
        let record = harness.cloud.worker(&worker).expect("soft delete only");
        assert_eq!(record.status(), "terminated");
        assert_eq!(record.text("terminated_by"), Some("discovery-gc"));
        assert_eq!(record.text("terminated_reason"), Some("EC2 instance not found during discovery"));
    }
    for worker in ["w-1", "w-2", "w-3"] {
        assert_eq!(harness.status(worker).await, WorkerStatus::Running);
    }
    assert_eq!(harness.counter("orphans_terminated_count"), 10);
    assert_eq!(told(&harness, ORPHANED), ghosts(10));

    let again = collect(&harness).await;
    assert_eq!(again.orphans_terminated(), 0);
    assert_eq!(harness.counter("orphans_terminated_count"), 10);
    assert_eq!(harness.ec2_calls("TerminateInstances"), 0, "garbage collection touches records only");
    assert_eq!(harness.cloud.count(Service::ControlPlane, "bulk_import"), 0, "known instances are not imported");
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
        let harness = Harness::with_manual_clock().await;
        ten_of_thirteen_are_gone(&harness).await;
        harness.inject(json!({
            "service": "ec2", "operation": "DescribeInstances", "instance": ghost_instance(1), "action": action,
        }));
        let report = collect(&harness).await;
        assert!(harness.faults_applied() > 0, "{action}");
        assert_eq!(report.orphans_terminated(), 0, "{action}");
        assert_eq!(concluded(&report, Conclusion::Unknown), 10, "{action}");
        assert_eq!(harness.control_plane_writes(), 0, "{action}");
        assert_eq!(harness.counter("orphans_terminated_count"), 0);

        harness.cloud.clear_faults();
        assert_eq!(
            collect(&harness).await.orphans_terminated(),
            10,
            "as soon as EC2 answers, the same ten go: {action}"
        );
    }
}

#[tokio::test]
async fn a_scan_of_another_region_says_nothing_about_this_one() {
    let harness = Harness::with_manual_clock().await;
    ten_of_thirteen_are_gone(&harness).await;
    harness.cloud.run_instance(ELSEWHERE, &[]).expect("there is life elsewhere");
    set_regions(&harness, &[ELSEWHERE]);

    let report = collect(&harness).await;
    assert_eq!(report.regions.len(), 1);
    assert_eq!(report.orphans_terminated(), 0);
    assert_eq!(report.regions[0].verdicts, []);
    assert_eq!(verifying_describes(&harness), 0, "nobody is asked for in a region that is not his");
    assert_eq!(harness.cloud.worker("ghost-01").expect("it exists").status(), "running");
}

#[tokio::test]
async fn an_instance_is_verified_in_the_region_of_its_worker() {
    let harness = Harness::with_manual_clock().await;
    // Another kind of image, so that the scan does not show it; the default region is not its own either.
    let instance = harness.cloud.run_instance(ELSEWHERE, &[]).expect("it launches").id.clone();
    add_record(&harness, "w-far", json!({"ec2_instance_id": instance, "aws_region": ELSEWHERE}));
    harness.cloud.set_discovery(json!({"ami_name_pattern": "cisco-cml2.7*"})).expect("a pattern");
    set_regions(&harness, &[REGION, ELSEWHERE]);
    harness.cloud.advance(Duration::from_secs(60)).await;

    let report = collect(&harness).await;
    assert_eq!(report.orphans_terminated(), 0);
    assert_eq!(concluded(&report, Conclusion::Alive), 1);
    let describes = verifications(&harness);
    assert_eq!(describes.iter().map(|describe| describe.as_deref()).collect::<Vec<_>>(), [Some(ELSEWHERE)]);
}

#[tokio::test]
async fn a_scan_that_shows_nothing_at_all_freezes_the_region() {
    let harness = Harness::with_manual_clock().await.with_policy(|policy| {
        let here = policy.regions.regions.get_mut(REGION).expect("it is configured");
        here.subnet_id = "subnet-0123456789abcdef0".to_owned();
    });
    (1..=10).for_each(|number| add_ghost(&harness, number));

    let report = collect(&harness).await;
    assert_eq!(report.orphans_terminated(), 0);
    assert_eq!(concluded(&report, Conclusion::Frozen), 10);
    assert_eq!(told(&harness, FROZEN), [REGION]);
    assert_eq!(harness.telemetry.anomalies(Anomaly::RegionFrozen), 1);
    assert!(harness.telemetry.to_prometheus().contains("lcm_anomalies_total{kind=\"region_frozen\"} 1"));
    assert_eq!(harness.ec2_calls("DescribeSubnets"), 1);

    // One that EC2 itself calls terminated shows that these are the right credentials.
    let ended = harness.cloud.run_instance(REGION, &[]).expect("it launches").id.clone();
    add_record(&harness, "w-ended", json!({"ec2_instance_id": ended}));
    harness.cloud.advance(Duration::from_secs(60)).await;
    harness.cloud.terminate_instance(REGION, &ended).expect("it ends");
    harness.cloud.advance(Duration::from_secs(60)).await;
    assert_eq!(collect(&harness).await.orphans_terminated(), 11);
}

#[tokio::test]
async fn an_empty_region_is_not_frozen_when_its_subnet_can_be_seen() {
    let harness = Harness::with_manual_clock().await;
    (1..=10).for_each(|number| add_ghost(&harness, number));
    let report = collect(&harness).await;
    assert_eq!(report.orphans_terminated(), 10);
    assert_eq!(told(&harness, FROZEN), [""; 0]);
    assert_eq!(harness.telemetry.anomalies(Anomaly::RegionFrozen), 0);
}

#[tokio::test]
async fn a_scan_that_loses_a_page_terminates_nobody() {
    let harness = Harness::with_manual_clock().await;
    for number in 1..=12 {
        harness.cloud.run_instance(REGION, &[]).expect("it launches");
        add_ghost(&harness, number);
    }
    harness.cloud.advance(Duration::from_secs(60)).await;
    harness.inject(
        json!({"service": "ec2", "operation": "DescribeInstances", "action": {"kind": "partial-page", "limit": 5}}),
    );
    harness.inject(json!({
        "service": "ec2", "operation": "DescribeInstances", "after": 1,
        "action": {"kind": "error", "code": "RequestLimitExceeded"},
    }));

    let report = collect(&harness).await;
    assert_eq!(report.regions[0].seen, 5, "the first page came");
    assert!(report.regions[0].error.is_some());
    assert_eq!(report.orphans_terminated(), 0);
    assert_eq!(report.regions[0].verdicts, []);
    assert_eq!(harness.telemetry.anomalies(Anomaly::ScanFailed), 1);

    // Pages alone are no trouble.
    harness.cloud.clear_faults();
    harness.inject(
        json!({"service": "ec2", "operation": "DescribeInstances", "action": {"kind": "partial-page", "limit": 5}}),
    );
    let whole = collect(&harness).await;
    assert_eq!((whole.regions[0].seen, whole.orphans_terminated()), (12, 12));
}

#[tokio::test]
async fn neither_a_young_launch_nor_a_protected_instance_is_taken_for_an_orphan() {
    let harness = Harness::with_manual_clock().await;
    harness.add_running_worker("w-alive").await;
    let now = harness.cloud.now().to_rfc3339();
    add_record(
        &harness,
        "w-young",
        json!({"status": "provisioning", "ec2_instance_id": ghost_instance(1), "launched_at": now}),
    );
    let kept = harness.add_running_worker("w-protected").await;
    harness.cloud.tag_instance(REGION, &kept, "lcm:protect", "true").expect("an operator protects it");
    harness.cloud.terminate_instance(REGION, &kept).expect("it ends all the same");
    harness.cloud.advance(Duration::from_secs(59)).await;

    let report = collect(&harness).await;
    assert_eq!(report.orphans_terminated(), 0);
    assert_eq!((concluded(&report, Conclusion::Young), concluded(&report, Conclusion::Protected)), (1, 1));

    // Once EC2 has had two minutes to show it, its absence counts.
    harness.cloud.advance(Duration::from_secs(61)).await;
    assert_eq!(terminated(&collect(&harness).await), ["w-young"]);
    assert_eq!(harness.status("w-protected").await, WorkerStatus::Running);
}

#[tokio::test]
async fn fifteen_hundred_suspects_cost_two_describes_and_the_cap_lets_a_few_go_at_a_time() {
    let harness =
        Harness::with_manual_clock().await.with_policy(|policy| policy.orphans.max_terminations_per_pass = Some(4));
    harness.add_running_worker("w-alive").await;
    (1..=1500).for_each(|number| add_ghost(&harness, number));

    let report = collect(&harness).await;
    assert_eq!(verifying_describes(&harness), 2);
    assert_eq!((concluded(&report, Conclusion::Orphan), concluded(&report, Conclusion::Deferred)), (4, 1496));
    assert_eq!(report.orphans_terminated(), 4);
    assert_eq!(collect(&harness).await.orphans_terminated(), 4);
    assert_eq!(harness.counter("orphans_terminated_count"), 8);
    let over = harness.cloud.workers().iter().filter(|worker| worker.status() == "terminated").count();
    assert_eq!(over, 8);
}

#[tokio::test]
async fn an_orphan_that_cannot_be_written_is_marked_by_the_next_pass() {
    let harness = Harness::with_manual_clock().await;
    ten_of_thirteen_are_gone(&harness).await;
    harness.inject(json!({
        "service": "control-plane", "operation": "terminate_worker", "instance": "ghost-03",
        "action": {"kind": "error", "code": "500"},
    }));
    let report = collect(&harness).await;
    assert_eq!(report.orphans_terminated(), 9);
    assert_eq!(harness.counter("orphans_terminated_count"), 9, "counted only after it was recorded");
    assert!(!told(&harness, ORPHANED).contains(&"ghost-03".to_owned()));
    harness.cloud.clear_faults();
    assert_eq!(terminated(&collect(&harness).await), ["ghost-03"]);
    // A pass over a terminated worker asks nobody.
    let calls = harness.ec2_calls("DescribeInstances");
    assert_eq!(harness.reconcile("ghost-03").await.outcome, Outcome::Skip);
    assert_eq!(harness.ec2_calls("DescribeInstances"), calls);
}

#[tokio::test]
async fn a_record_that_changes_while_it_is_verified_is_left_alone() {
    let harness = Harness::with_manual_clock().await;
    a_relaunch_during_the_verification_survives(&harness).await;
}

/// While EC2 takes its time to say that an instance is gone, the worker gets a new one.
pub(crate) async fn a_relaunch_during_the_verification_survives(harness: &Harness) {
    harness.add_running_worker("w-alive").await;
    add_ghost(harness, 1);
    harness.inject(json!({
        "service": "ec2", "operation": "DescribeInstances", "instance": ghost_instance(1), "times": 1,
        "action": {"kind": "latency", "seconds": 5},
    }));
    let discovery = harness.discovery();
    let verifying = tokio::spawn(async move { discovery.run_once().await });
    eventually("the describe is under way", async || harness.faults_applied() == 1).await;
    let new = harness.cloud.run_instance(REGION, &[("lcm:worker_id", "ghost-01")]).expect("it launches").id.clone();
    harness.cloud.update_worker("ghost-01", json!({"ec2_instance_id": new})).expect("a relaunch");
    harness.cloud.advance(Duration::from_secs(5)).await;

    let report = verifying.await.expect("it ends");
    assert_eq!(report.orphans_terminated(), 0);
    let record = harness.cloud.worker("ghost-01").expect("it exists");
    assert_eq!((record.status(), record.instance_id()), ("running", Some(new.as_str())));
    assert_eq!(harness.counter("orphans_terminated_count"), 0);
}

/// ADR-014's own case: three workers with an instance, ten whose instance nobody knows any more.
pub(crate) async fn ten_of_thirteen_are_gone(harness: &Harness) {
    for worker in ["w-1", "w-2", "w-3"] {
        harness.add_running_worker(worker).await;
    }
    (1..=10).for_each(|number| add_ghost(harness, number));
}

pub(crate) async fn collect(harness: &Harness) -> DiscoveryReport {
    harness.discovery().run_once().await
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

fn add_ghost(harness: &Harness, number: usize) {
    add_record(harness, &format!("ghost-{number:02}"), json!({"ec2_instance_id": ghost_instance(number)}));
}

/// An id that has the right form and that no instance has.
pub(crate) fn ghost_instance(number: usize) -> String {
    format!("i-0dead{number:012x}")
}

pub(crate) fn add_record(harness: &Harness, id: &str, fields: Value) {
    let mut record = json!({
        "status": "running", "desired_status": "running", "created_at": LONG_AGO, "launched_at": LONG_AGO,
    });
    let own = record.as_object_mut().expect("an object");
    own.extend(fields.as_object().expect("an object").clone());
    harness.add_worker(id, record);
}

pub(crate) fn set_regions(harness: &Harness, regions: &[&str]) {
    harness.cloud.set_discovery(json!({"regions": regions})).expect("regions");
}

fn concluded(report: &DiscoveryReport, conclusion: Conclusion) -> usize {
    let verdicts = report.regions.iter().flat_map(|region| &region.verdicts);
    verdicts.filter(|verdict| verdict.conclusion == conclusion).count()
}

/// Whom events of a type are about, in order.
pub(crate) fn told(harness: &Harness, kind: &str) -> Vec<String> {
    let events = harness.cloud.records().events(None, Some(kind));
    let mut subjects: Vec<_> =
        events.iter().filter_map(|event| Some(event.get("subject")?.as_str()?.to_owned())).collect();
    subjects.sort_unstable();
    subjects
}

/// The describes that name instances: not the scans.
fn verifying_describes(harness: &Harness) -> usize {
    verifications(harness).len()
}

/// The region of each.
fn verifications(harness: &Harness) -> Vec<Option<String>> {
    let filter = RequestFilter { operation: Some("DescribeInstances".to_owned()), ..RequestFilter::default() };
    let describes = harness.cloud.requests(&filter);
    let by_id =
        describes.into_iter().filter(|record| record.parameters.iter().any(|(name, _)| name.starts_with("InstanceId")));
    by_id.map(|record| record.region).collect()
}
