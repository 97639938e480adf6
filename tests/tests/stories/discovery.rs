//! Discovery: unknown instances are imported, and owned ones are handed to their worker.

use std::time::Duration;

use fake_cloud::Service;
use fake_cloud::control_plane::Generation::{self, Extended, Original};
use lcm_sdk::WorkerStatus;
use lcm_sdk::telemetry::Anomaly;
use lcm_sdk::workers::DiscoveryReport;
use rstest::rstest;
use serde_json::json;

use crate::orphans::{
    ELSEWHERE, add_record, add_three_workers_and_ten_ghosts, event_subjects, ghost_instance, run_discovery,
    set_regions, terminated_ids,
};
use lcm_tests::harness::{Harness, REGION, eventually};

const RESURRECTED: &str = "cml_worker.orphan.resurrected.v1";
const FOREIGN: &str = "cml_worker.instance.foreign.v1";
const DUPLICATE: &str = "cml_worker.instance.duplicate.v1";

#[rstest]
#[tokio::test]
async fn live_instance_resurrects_its_terminated_record(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    let instance = harness.add_running_worker("w-1").await;
    harness.cloud.update_worker("w-1", json!({"status": "terminated"})).expect("record is updated");

    let report = run_discovery(&harness).await;
    assert_eq!(report.regions[0].resurrected, ["w-1".into()]);
    let back = harness.worker("w-1").await;
    assert_eq!((back.status, back.ec2_instance_id), (WorkerStatus::Running, Some(instance.as_str().into())));
    assert!(back.public_ip.is_some());
    assert_eq!(event_subjects(&harness, RESURRECTED), ["w-1"]);
    assert_eq!(harness.telemetry.anomalies(Anomaly::Resurrection), 1);
    assert_eq!(harness.cloud.count(Service::ControlPlane, "bulk_import"), 0, "the instance has an owner");
    assert_eq!(run_discovery(&harness).await.regions[0].resurrected, []);
}

#[rstest]
#[tokio::test]
async fn resurrection_can_be_limited_to_a_report(#[values(Original, Extended)] generation: Generation) {
    let harness =
        Harness::with_manual_clock(generation).await.with_policy(|policy| policy.resurrect_terminated = false);
    harness.add_running_worker("w-1").await;
    harness.cloud.update_worker("w-1", json!({"status": "terminated"})).expect("record is updated");
    assert_eq!(run_discovery(&harness).await.regions[0].resurrected, ["w-1".into()]);
    assert_eq!(harness.cloud.worker("w-1").expect("record exists").status(), "terminated");
    assert_eq!(event_subjects(&harness, RESURRECTED), ["w-1"]);
    assert_eq!(harness.active_instances().len(), 1);
}

#[rstest]
#[tokio::test]
async fn only_unknown_instances_are_imported(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    harness.add_running_worker("w-known").await;
    harness
        .cloud
        .update_worker("w-known", json!({"status": "draining", "desired_status": "stopped"}))
        .expect("record is updated");
    let unknown = harness.cloud.run_instance(REGION, &[("Name", "unknown")]).expect("instance launches").id.clone();
    let foreign =
        harness.cloud.run_instance(REGION, &[("lcm:worker_id", "w-missing")]).expect("instance launches").id.clone();
    harness.cloud.advance(Duration::from_secs(60)).await;

    let report = run_discovery(&harness).await;
    assert_eq!((report.regions[0].seen, report.regions[0].imported), (3, 1));
    let workers = harness.cloud.workers();
    let imported = workers.iter().find(|worker| worker.instance_id() == Some(&unknown)).expect("instance has a record");
    assert_eq!((imported.status(), imported.text("aws_region")), ("running", Some(REGION)));
    assert_eq!(report.regions[0].foreign, [foreign.as_str().into()], "another control plane manages it");
    assert_eq!(event_subjects(&harness, FOREIGN), std::slice::from_ref(&foreign));
    let known = harness.cloud.worker("w-known").expect("record exists");
    assert_eq!((known.status(), known.desired()), ("draining", Some("stopped")), "discovery does not cancel a drain");
    assert_eq!(harness.cloud.count(Service::ControlPlane, "bulk_import"), 1);

    let again = run_discovery(&harness).await;
    assert_eq!((again.regions[0].imported, harness.cloud.workers().len()), (0, 2));
    assert_eq!(harness.cloud.count(Service::ControlPlane, "bulk_import"), 1, "no instance is imported twice");
}

#[rstest]
#[tokio::test]
async fn owned_instance_is_adopted_by_its_worker(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    harness.add_worker("w-pending", json!({"desired_status": "stopped"}));
    let instance =
        harness.cloud.run_instance(REGION, &[("lcm:worker_id", "w-pending")]).expect("instance launches").id.clone();
    let report = run_discovery(&harness).await;
    assert_eq!(report.regions[0].handed_over, ["w-pending".into()]);
    assert_eq!((report.regions[0].imported, harness.cloud.workers().len()), (0, 1));

    // A controller without polling and watch, so that only discovery can trigger the reconcile.
    let actor = harness.start_standalone_controller(|config| {
        config.controller.interval = Duration::from_secs(3600);
        config.controller.initial_delay = Duration::from_secs(3600);
        config.watch = None;
        config.startup.limit = None;
        config.metrics_interval = Duration::from_secs(3600);
    });
    eventually("the owner has adopted its instance", async || {
        harness.worker("w-pending").await.ec2_instance_id == Some(instance.as_str().into())
    })
    .await;
    actor.stop().await;
    assert_eq!(harness.ec2_calls("RunInstances"), 0);
    assert_eq!(harness.active_instances(), [instance]);
}

#[rstest]
#[tokio::test]
async fn duplicate_instance_is_reported_and_kept(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    let recorded = harness.add_running_worker("w-1").await;
    let extra = harness.cloud.run_instance(REGION, &[("lcm:worker_id", "w-1")]).expect("instance launches").id.clone();
    harness.cloud.advance(Duration::from_secs(60)).await;

    let report = run_discovery(&harness).await;
    assert_eq!(report.regions[0].handed_over, ["w-1".into()]);
    assert_eq!(event_subjects(&harness, DUPLICATE), ["w-1"]);
    let duplicate = harness.cloud.records().events(None, Some(DUPLICATE));
    assert!(duplicate[0]["data"].to_string().contains(&extra), "the event names the duplicate");
    assert_eq!(harness.worker("w-1").await.ec2_instance_id, Some(recorded.as_str().into()));
    assert_eq!(harness.active_instances().len(), 2, "an operator decides which one to terminate");
    assert_eq!((report.regions[0].imported, harness.cloud.workers().len()), (0, 1));
}

#[rstest]
#[tokio::test]
async fn failed_region_does_not_block_others(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    add_three_workers_and_ten_ghosts(&harness).await;
    let [alive, _unknown] =
        [(); 2].map(|()| harness.cloud.run_instance(ELSEWHERE, &[]).expect("instance launches").id.clone());
    harness.cloud.advance(Duration::from_secs(60)).await;
    // A recorded instance proves that this is the account of the region's workers.
    add_record(&harness, "w-alive", json!({"ec2_instance_id": alive, "aws_region": ELSEWHERE}));
    let record = json!({"ec2_instance_id": ghost_instance(99), "aws_region": ELSEWHERE});
    add_record(&harness, "w-elsewhere", record);
    set_regions(&harness, &[REGION, ELSEWHERE]);
    harness.inject(json!({
        "service": "ec2", "region": REGION, "action": {"kind": "error", "code": "UnauthorizedOperation"},
    }));

    let report = run_discovery(&harness).await;
    assert_eq!(terminated_ids(&report), ["w-elsewhere"]);
    let failed: Vec<_> = report.regions.iter().filter(|region| region.error.is_some()).collect();
    assert_eq!(failed.iter().map(|region| region.region.as_str()).collect::<Vec<_>>(), [REGION]);
    assert_eq!(report.regions.iter().map(|region| region.imported).sum::<usize>(), 1);

    harness.cloud.clear_faults();
    assert_eq!(run_discovery(&harness).await.orphans_terminated(), 10);
}

#[rstest]
#[tokio::test]
async fn failed_record_listing_yields_no_conclusions(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    add_three_workers_and_ten_ghosts(&harness).await;
    harness.inject(
        json!({"service": "control-plane", "operation": "list_workers", "action": {"kind": "error", "code": "500"}}),
    );
    let report = run_discovery(&harness).await;
    assert!(report.error.is_some());
    assert_eq!((report.orphans_terminated(), harness.control_plane_writes()), (0, 0));
}

#[rstest]
#[tokio::test]
async fn disabled_discovery_makes_no_describe_calls(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    add_three_workers_and_ten_ghosts(&harness).await;
    harness.cloud.set_discovery(json!({"enabled": false})).expect("setting is accepted");
    let before = harness.ec2_calls("DescribeInstances");
    let DiscoveryReport { regions, error } = run_discovery(&harness).await;
    assert!(regions.is_empty());
    assert!(error.is_some_and(|error| error.message.contains("switched off")));
    assert_eq!(harness.ec2_calls("DescribeInstances"), before);
}
