//! Garbage collection (ADR-014): only records whose instance no longer exists are terminated.

use std::time::Duration;

use fake_cloud::control_plane::Generation::{self, Extended, Original};
use fake_cloud::world::{ACCOUNT, Account, Catalog, IMAGE_OWNER, Image, Sharing};
use fake_cloud::{RequestFilter, Service};
use lcm_sdk::admin::AdminSource as _;
use lcm_sdk::lifecycle::ReasonCode;
use lcm_sdk::lifecycle::orphans::Conclusion;
use lcm_sdk::telemetry::Anomaly;
use lcm_sdk::workers::{DiscoveryConfig, DiscoveryReport};
use lcm_sdk::{Outcome, Policy, WorkerStatus};
use rstest::rstest;
use serde_json::{Value, json};

use lcm_tests::harness::{ACCESS_KEY, Harness, REGION, eventually};

pub(crate) const ELSEWHERE: &str = "eu-west-1";
const LONG_AGO: &str = "2020-01-01T00:00:00Z";
const ORPHANED: &str = "cml_worker.orphan.terminated.v1";
const NOT_TRUSTED: &str = "cml_worker.region.not_trusted.v1";

#[rstest]
#[tokio::test]
async fn records_of_terminated_instances_are_terminated(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    let by_console = harness.add_running_worker("w-console").await;
    let by_scaling = harness.add_running_worker("w-scaling").await;
    let deleted = harness.add_running_worker("w-deleted").await;
    harness.add_running_worker("w-alive").await;
    harness
        .cloud
        .add_session(json!({"id": "s-1", "worker_id": "w-console", "status": "running"}))
        .expect("session is added");

    harness.cloud.terminate_instance(REGION, &deleted).expect("instance terminates");
    harness.cloud.advance(Duration::from_secs(2 * 3600)).await;
    assert!(harness.cloud.instance(REGION, &deleted).is_none(), "EC2 no longer lists the instance");
    harness.cloud.terminate_instance(REGION, &by_console).expect("instance terminates");
    harness.cloud.advance(Duration::from_secs(60)).await;
    harness.cloud.terminate_instance(REGION, &by_scaling).expect("instance terminates");

    // An instance that is shutting down still exists.
    let first = run_discovery(&harness).await;
    assert_eq!(terminated_ids(&first), ["w-console", "w-deleted"]);
    harness.cloud.advance(Duration::from_secs(60)).await;
    let second = run_discovery(&harness).await;
    assert_eq!(terminated_ids(&second), ["w-scaling"]);

    for worker in ["w-console", "w-scaling", "w-deleted"] {
        let record = harness.cloud.worker(worker).expect("record is kept");
        assert_eq!(record.status(), "terminated", "{worker}");
        assert_eq!(record.text("terminated_by"), Some("discovery-gc"));
        assert_eq!(record.text("terminated_reason"), Some("EC2 instance not found during discovery"));
        assert!(record.text("terminated_at").is_some());
    }
    assert_eq!(harness.status("w-alive").await, WorkerStatus::Running);
    assert_eq!(
        harness.cloud.session("s-1").expect("record is kept")["status"],
        "terminated",
        "its session is terminated too"
    );
    assert_eq!(harness.counter("orphans_terminated_count"), 3);
    assert_eq!(event_subjects(&harness, ORPHANED), ["w-console", "w-deleted", "w-scaling"]);
}

#[rstest]
#[tokio::test]
async fn thirteen_records_and_three_instances_yield_ten_orphans(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    add_three_workers_and_ten_ghosts(&harness).await;

    let report = run_discovery(&harness).await;
    assert_eq!(report.orphans_terminated(), 10);
    assert_eq!(terminated_ids(&report), ghost_ids(10));
    assert_eq!(count_verifications(&harness), 1, "one describe for all ten, not ten");
    for worker in ghost_ids(10) {
        let record = harness.cloud.worker(&worker).expect("record is kept");
        assert_eq!(record.status(), "terminated");
        assert_eq!(record.text("terminated_by"), Some("discovery-gc"));
        assert_eq!(record.text("terminated_reason"), Some("EC2 instance not found during discovery"));
    }
    for worker in ["w-1", "w-2", "w-3"] {
        assert_eq!(harness.status(worker).await, WorkerStatus::Running);
    }
    assert_eq!(harness.counter("orphans_terminated_count"), 10);
    assert_eq!(event_subjects(&harness, ORPHANED), ghost_ids(10));

    let again = run_discovery(&harness).await;
    assert_eq!(again.orphans_terminated(), 0);
    assert_eq!(harness.counter("orphans_terminated_count"), 10);
    assert_eq!(harness.ec2_calls("TerminateInstances"), 0, "garbage collection touches records only");
    assert_eq!(harness.cloud.count(Service::ControlPlane, "bulk_import"), 0, "known instances are not imported");
}

#[rstest]
#[tokio::test]
async fn default_settings_collect_orphans(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    add_three_workers_and_ten_ghosts(&harness).await;
    let unknown = harness.cloud.run_instance(REGION, &[("Name", "unknown")]).expect("instance launches").id.clone();
    harness.cloud.set_discovery(json!({"ami_name_pattern": ""})).expect("setting is accepted");
    let actor = harness.start_standalone_controller(|config| {
        // As from an environment without any setting.
        let defaults = DiscoveryConfig::default().with_regions([REGION]);
        config.discovery = Some(defaults.with_initial_delay(Duration::from_millis(100)));
        config.controller.initial_delay = Duration::from_secs(3600);
        config.startup.limit = None;
        config.watch = None;
    });
    eventually("the orphans are terminated", async || actor.telemetry.counters()["orphans_terminated_count"] == 10)
        .await;
    eventually("the run has ended", async || {
        actor.controller.discovery_stats().is_some_and(|stats| stats.last_complete_scan_at.is_some())
    })
    .await;
    let stats = serde_json::to_value(actor.controller.stats()).expect("value serializes");
    let discovery = &stats["discovery"];
    assert_eq!((&discovery["found"], &discovery["imported"]), (&json!(3), &json!(0)));
    assert_eq!((&discovery["orphans_terminated"], &discovery["frozen_regions"]), (&json!(10), &json!([])));
    assert!(harness.cloud.workers().iter().all(|worker| worker.instance_id() != Some(&unknown)), "not imported");
    let metrics = actor.telemetry.to_prometheus();
    assert!(metrics.contains(&format!("lcm_discovery_orphans_total{{region=\"{REGION}\"}} 10")), "{metrics}");
    assert!(metrics.contains("lcm_discovery_last_complete_scan_timestamp_seconds{region="), "{metrics}");
    actor.stop().await;
}

#[rstest]
#[tokio::test]
async fn failed_verification_terminates_no_record(#[values(Original, Extended)] generation: Generation) {
    for action in [
        json!({"kind": "error", "code": "RequestLimitExceeded"}),
        json!({"kind": "error", "code": "UnauthorizedOperation"}),
        json!({"kind": "error", "code": "InternalError"}),
        json!({"kind": "reset"}),
        json!({"kind": "drop-response"}),
    ] {
        let harness = Harness::with_manual_clock(generation).await;
        add_three_workers_and_ten_ghosts(&harness).await;
        harness.inject(json!({
            "service": "ec2", "operation": "DescribeInstances", "instance": ghost_instance(1), "action": action,
        }));
        let report = run_discovery(&harness).await;
        assert!(harness.faults_applied() > 0, "{action}");
        assert_eq!(report.orphans_terminated(), 0, "{action}");
        assert_eq!(count_conclusions(&report, Conclusion::Unknown), 10, "{action}");
        assert_eq!(harness.control_plane_writes(), 0, "{action}");
        assert_eq!(harness.counter("orphans_terminated_count"), 0);

        harness.cloud.clear_faults();
        assert_eq!(
            run_discovery(&harness).await.orphans_terminated(),
            10,
            "the same ten are terminated once EC2 responds: {action}"
        );
    }
}

#[rstest]
#[tokio::test]
async fn scan_of_one_region_does_not_affect_another(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    add_three_workers_and_ten_ghosts(&harness).await;
    harness.cloud.run_instance(ELSEWHERE, &[]).expect("instance launches");
    set_regions(&harness, &[ELSEWHERE]);

    let report = run_discovery(&harness).await;
    assert_eq!(report.regions.len(), 1);
    assert_eq!(report.orphans_terminated(), 0);
    assert_eq!(report.regions[0].verdicts, []);
    assert_eq!(count_verifications(&harness), 0, "no instance is described in a foreign region");
    assert_eq!(harness.cloud.worker("ghost-01").expect("record exists").status(), "running");
}

#[rstest]
#[tokio::test]
async fn instance_is_verified_in_the_region_of_its_worker(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    // The image does not match the pattern, so the scan omits the instance. The default region is a different one.
    let instance = harness.cloud.run_instance(ELSEWHERE, &[]).expect("instance launches").id.clone();
    add_record(&harness, "w-far", json!({"ec2_instance_id": instance, "aws_region": ELSEWHERE}));
    harness.cloud.set_discovery(json!({"ami_name_pattern": "cisco-cml2.7*"})).expect("pattern is accepted");
    set_regions(&harness, &[REGION, ELSEWHERE]);
    harness.cloud.advance(Duration::from_secs(60)).await;

    let report = run_discovery(&harness).await;
    assert_eq!(report.orphans_terminated(), 0);
    assert_eq!(count_conclusions(&report, Conclusion::Alive), 1);
    let describes = verification_regions(&harness);
    assert_eq!(describes.iter().map(|describe| describe.as_deref()).collect::<Vec<_>>(), [Some(ELSEWHERE)]);
}

#[rstest]
#[tokio::test]
async fn empty_scan_freezes_the_region(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await.with_policy(|policy| {
        let here = policy.regions.regions.get_mut(REGION).expect("region is configured");
        here.subnet_id = "subnet-0123456789abcdef0".to_owned();
    });
    (1..=10).for_each(|number| add_ghost(&harness, number));

    let report = run_discovery(&harness).await;
    assert_eq!(report.orphans_terminated(), 0);
    assert_eq!(count_conclusions(&report, Conclusion::Frozen), 10);
    assert_eq!(event_subjects(&harness, NOT_TRUSTED), [REGION]);
    assert_eq!(harness.telemetry.anomalies(Anomaly::RegionNotTrusted), 1);
    assert!(harness.telemetry.to_prometheus().contains("lcm_region_untrusted{region=\"us-east-1\"} 1"));
    assert_eq!(harness.ec2_calls("DescribeSubnets"), 1);

    // An instance that EC2 reports as terminated proves that the credentials belong to this account.
    let ended = harness.cloud.run_instance(REGION, &[]).expect("instance launches").id.clone();
    add_record(&harness, "w-ended", json!({"ec2_instance_id": ended}));
    harness.cloud.advance(Duration::from_secs(60)).await;
    harness.cloud.terminate_instance(REGION, &ended).expect("instance terminates");
    harness.cloud.advance(Duration::from_secs(60)).await;
    assert_eq!(run_discovery(&harness).await.orphans_terminated(), 11);
}

#[rstest]
#[tokio::test]
async fn empty_region_with_a_visible_subnet_is_not_frozen(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    (1..=10).for_each(|number| add_ghost(&harness, number));
    let report = run_discovery(&harness).await;
    assert_eq!(report.orphans_terminated(), 10);
    assert_eq!(event_subjects(&harness, NOT_TRUSTED), [""; 0]);
    assert_eq!(harness.telemetry.anomalies(Anomaly::RegionNotTrusted), 0);
}

#[rstest]
#[tokio::test]
async fn credentials_of_another_account_change_no_record(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    let names: Vec<String> = (1..=6).map(|number| format!("w-{number}")).collect();
    for name in &names {
        harness.add_running_worker(name).await;
    }
    harness.cloud.add_session(json!({"id": "s-1", "worker_id": "w-1", "status": "running"})).expect("session is added");
    let other = Account::new("999999999999", "AKIAOTHER").expect("an account");
    harness.cloud.add_account(&other);
    harness.cloud.run_instance_in(other.id(), REGION, &[]).expect("instance launches");
    harness.cloud.advance(Duration::from_secs(300)).await;

    let harness = harness.with_access_key(other.access_key());
    for name in &names {
        let result = harness.reconcile(name).await;
        assert_eq!((result.outcome, result.reason.code), (Outcome::Retry, ReasonCode::RegionNotTrusted), "{name}");
    }
    assert_eq!(run_discovery(&harness).await.orphans_terminated(), 0);
    for name in &names {
        assert_eq!(harness.status(name).await, WorkerStatus::Running, "{name}");
    }
    assert_eq!(event_subjects(&harness, NOT_TRUSTED), [REGION]);
    assert!(harness.telemetry.to_prometheus().contains("lcm_region_untrusted{region=\"us-east-1\"} 1"));

    let harness = harness.with_access_key(ACCESS_KEY);
    let gone = harness.worker("w-6").await.ec2_instance_id.expect("an instance");
    harness.cloud.terminate_instance(REGION, gone.as_str()).expect("instance terminates");
    harness.cloud.advance(Duration::from_secs(7200)).await;
    harness.reconcile_until("w-6", WorkerStatus::Terminated).await;
    assert_eq!(harness.status("w-1").await, WorkerStatus::Running);
}

#[rstest]
#[tokio::test]
async fn credentials_of_another_account_fail_no_pending_worker(
    #[values(Original, Extended)] generation: Generation,
    #[values("without an AMI", "with an AMI")] account: &str,
) {
    let harness = Harness::with_manual_clock(generation).await;
    let other = Account::new("999999999999", "AKIAOTHER").expect("an account");
    harness.cloud.add_account(&other);
    if account == "without an AMI" {
        let images = Catalog::for_region(REGION).images;
        for image in images {
            let image = Image { owner: ACCOUNT.to_owned(), sharing: Sharing::Private, ..image };
            harness.cloud.world().console_put_image(REGION, image).expect("image is replaced");
        }
    }
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    let harness = harness.with_image_owners(["self", IMAGE_OWNER]).with_access_key(other.access_key());
    for _ in 0..3 {
        let result = harness.reconcile("w-1").await;
        assert_eq!((result.outcome, result.reason.code), (Outcome::Retry, ReasonCode::RegionNotTrusted), "{result:?}");
        assert_eq!(harness.status("w-1").await, WorkerStatus::Pending);
        harness.cloud.advance(Duration::from_secs(60)).await;
    }
    assert_eq!(event_subjects(&harness, NOT_TRUSTED), [REGION]);
    assert!(harness.telemetry.to_prometheus().contains("lcm_region_untrusted{region=\"us-east-1\"} 1"));

    let harness = harness.with_access_key(ACCESS_KEY);
    harness.reconcile_until("w-1", WorkerStatus::Running).await;
    assert_eq!(harness.active_instances().len(), 1);
}

#[rstest]
#[tokio::test]
async fn launch_waits_for_the_configured_account(#[values(Original, Extended)] generation: Generation) {
    let expected = |policy: &mut Policy| policy.aws_account_id = Some(ACCOUNT.to_owned());
    let harness = Harness::with_manual_clock(generation).await.with_policy(expected);
    let other = Account::new("999999999999", "AKIAOTHER").expect("an account");
    harness.cloud.add_account(&other);
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    let harness = harness.with_access_key(other.access_key());
    let result = harness.reconcile("w-1").await;
    assert_eq!((result.outcome, result.reason.code), (Outcome::Retry, ReasonCode::RegionNotTrusted), "{result:?}");
    assert_eq!(harness.ec2_calls("RunInstances"), 0);
    let harness = harness.with_access_key(ACCESS_KEY);
    harness.reconcile_until("w-1", WorkerStatus::Running).await;
}

#[rstest]
#[tokio::test]
async fn incomplete_scan_terminates_no_record(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    for number in 1..=12 {
        harness.cloud.run_instance(REGION, &[]).expect("instance launches");
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

    let report = run_discovery(&harness).await;
    assert_eq!(report.regions[0].seen, 5, "the first page was received");
    assert!(report.regions[0].error.is_some());
    assert_eq!(report.orphans_terminated(), 0);
    assert_eq!(report.regions[0].verdicts, []);
    assert_eq!(harness.telemetry.anomalies(Anomaly::ScanFailed), 1);

    // Paging alone does not affect the result.
    harness.cloud.clear_faults();
    harness.inject(
        json!({"service": "ec2", "operation": "DescribeInstances", "action": {"kind": "partial-page", "limit": 5}}),
    );
    let whole = run_discovery(&harness).await;
    assert_eq!((whole.regions[0].seen, whole.orphans_terminated()), (12, 12));
}

#[rstest]
#[tokio::test]
async fn young_and_protected_instances_are_not_orphans(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    harness.add_running_worker("w-alive").await;
    let now = harness.cloud.now().to_rfc3339();
    add_record(
        &harness,
        "w-young",
        json!({"status": "provisioning", "ec2_instance_id": ghost_instance(1), "launched_at": now}),
    );
    let kept = harness.add_running_worker("w-protected").await;
    harness.cloud.tag_instance(REGION, &kept, "lcm:protect", "true").expect("instance is tagged");
    harness.cloud.terminate_instance(REGION, &kept).expect("instance terminates");
    harness.cloud.advance(Duration::from_secs(59)).await;

    let report = run_discovery(&harness).await;
    assert_eq!(report.orphans_terminated(), 0);
    assert_eq!(
        (count_conclusions(&report, Conclusion::Young), count_conclusions(&report, Conclusion::Protected)),
        (1, 1)
    );

    // After two minutes a missing instance is an orphan.
    harness.cloud.advance(Duration::from_secs(61)).await;
    assert_eq!(terminated_ids(&run_discovery(&harness).await), ["w-young"]);
    assert_eq!(harness.status("w-protected").await, WorkerStatus::Running);
}

#[rstest]
#[tokio::test]
async fn orphan_terminations_are_batched_and_capped(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation)
        .await
        .with_policy(|policy| policy.orphans.max_terminations_per_pass = Some(4));
    harness.add_running_worker("w-alive").await;
    (1..=1500).for_each(|number| add_ghost(&harness, number));

    let report = run_discovery(&harness).await;
    assert_eq!(count_verifications(&harness), 2);
    assert_eq!(
        (count_conclusions(&report, Conclusion::Orphan), count_conclusions(&report, Conclusion::Deferred)),
        (4, 1496)
    );
    assert_eq!(report.orphans_terminated(), 4);
    assert_eq!(run_discovery(&harness).await.orphans_terminated(), 4);
    assert_eq!(harness.counter("orphans_terminated_count"), 8);
    let terminated = harness.cloud.workers().iter().filter(|worker| worker.status() == "terminated").count();
    assert_eq!(terminated, 8);
}

#[rstest]
#[tokio::test]
async fn unwritable_orphan_is_terminated_by_the_next_run(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    add_three_workers_and_ten_ghosts(&harness).await;
    harness.inject(json!({
        "service": "control-plane", "operation": "terminate_worker", "instance": "ghost-03",
        "action": {"kind": "error", "code": "500"},
    }));
    let report = run_discovery(&harness).await;
    assert_eq!(report.orphans_terminated(), 9);
    assert_eq!(harness.counter("orphans_terminated_count"), 9, "counted only after the write");
    assert!(!event_subjects(&harness, ORPHANED).contains(&"ghost-03".to_owned()));
    harness.cloud.clear_faults();
    assert_eq!(terminated_ids(&run_discovery(&harness).await), ["ghost-03"]);
    // A reconcile of a terminated worker makes no calls.
    let calls = harness.ec2_calls("DescribeInstances");
    assert_eq!(harness.reconcile("ghost-03").await.outcome, Outcome::Skip);
    assert_eq!(harness.ec2_calls("DescribeInstances"), calls);
}

#[rstest]
#[tokio::test]
async fn record_changed_during_verification_is_kept(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    assert_relaunch_during_verification_is_kept(&harness).await;
}

/// Relaunches the worker while EC2 delays the response that its old instance is gone.
pub(crate) async fn assert_relaunch_during_verification_is_kept(harness: &Harness) {
    harness.add_running_worker("w-alive").await;
    add_ghost(harness, 1);
    harness.inject(json!({
        "service": "ec2", "operation": "DescribeInstances", "instance": ghost_instance(1), "times": 1,
        "action": {"kind": "latency", "seconds": 5},
    }));
    let discovery = harness.discovery();
    let task = tokio::spawn(async move { discovery.run_once().await });
    eventually("the describe is in flight", async || harness.faults_applied() == 1).await;
    let new =
        harness.cloud.run_instance(REGION, &[("lcm:worker_id", "ghost-01")]).expect("instance launches").id.clone();
    harness.cloud.update_worker("ghost-01", json!({"ec2_instance_id": new})).expect("record is updated");
    harness.cloud.advance(Duration::from_secs(5)).await;

    let report = task.await.expect("task completes");
    assert_eq!(report.orphans_terminated(), 0);
    let record = harness.cloud.worker("ghost-01").expect("record exists");
    assert_eq!((record.status(), record.instance_id()), ("running", Some(new.as_str())));
    assert_eq!(harness.counter("orphans_terminated_count"), 0);
}

/// The example of ADR-014: three workers with an instance and ten whose instance no longer exists.
pub(crate) async fn add_three_workers_and_ten_ghosts(harness: &Harness) {
    for worker in ["w-1", "w-2", "w-3"] {
        harness.add_running_worker(worker).await;
    }
    (1..=10).for_each(|number| add_ghost(harness, number));
}

pub(crate) async fn run_discovery(harness: &Harness) -> DiscoveryReport {
    let report = harness.discovery().run_once().await;
    harness.deliver(harness.reconciler()).await;
    report
}

pub(crate) fn terminated_ids(report: &DiscoveryReport) -> Vec<&str> {
    let mut ids: Vec<&str> =
        report.regions.iter().flat_map(|region| &region.terminated).map(|id| id.as_str()).collect();
    ids.sort_unstable();
    ids
}

/// Ids of workers whose instance does not exist.
pub(crate) fn ghost_ids(count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("ghost-{number:02}")).collect()
}

fn add_ghost(harness: &Harness, number: usize) {
    add_record(harness, &format!("ghost-{number:02}"), json!({"ec2_instance_id": ghost_instance(number)}));
}

/// A well-formed id of an instance that does not exist.
pub(crate) fn ghost_instance(number: usize) -> String {
    format!("i-0dead{number:012x}")
}

pub(crate) fn add_record(harness: &Harness, id: &str, fields: Value) {
    let mut record = json!({
        "status": "running", "desired_status": "running", "created_at": LONG_AGO, "launched_at": LONG_AGO,
    });
    let merged = record.as_object_mut().expect("JSON object");
    merged.extend(fields.as_object().expect("JSON object").clone());
    harness.add_worker(id, record);
}

pub(crate) fn set_regions(harness: &Harness, regions: &[&str]) {
    harness.cloud.set_discovery(json!({"regions": regions})).expect("regions are accepted");
}

fn count_conclusions(report: &DiscoveryReport, conclusion: Conclusion) -> usize {
    let verdicts = report.regions.iter().flat_map(|region| &region.verdicts);
    verdicts.filter(|verdict| verdict.conclusion == conclusion).count()
}

/// Sorted subjects of all events of one type.
pub(crate) fn event_subjects(harness: &Harness, kind: &str) -> Vec<String> {
    let events = harness.cloud.records().events(None, Some(kind));
    let mut subjects: Vec<_> =
        events.iter().filter_map(|event| Some(event.get("subject")?.as_str()?.to_owned())).collect();
    subjects.sort_unstable();
    subjects
}

/// Number of `DescribeInstances` calls by id, without scans.
fn count_verifications(harness: &Harness) -> usize {
    verification_regions(harness).len()
}

/// Region of each `DescribeInstances` call by id.
fn verification_regions(harness: &Harness) -> Vec<Option<String>> {
    let filter = RequestFilter { operation: Some("DescribeInstances".to_owned()), ..RequestFilter::default() };
    let describes = harness.cloud.requests(&filter);
    let by_id =
        describes.into_iter().filter(|record| record.parameters.iter().any(|(name, _)| name.starts_with("InstanceId")));
    by_id.map(|record| record.region).collect()
}
