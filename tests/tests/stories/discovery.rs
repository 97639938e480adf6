//! Discovery: what exists. Strangers are taken in, what has an owner is handed to it, and the known are left alone.

use std::time::Duration;

use fake_cloud::Service;
use lcm_sdk::WorkerStatus;
use lcm_sdk::telemetry::Anomaly;
use lcm_sdk::workers::DiscoveryReport;
use serde_json::json;

use crate::orphans::{
    ELSEWHERE, add_record, collect, ghost_instance, set_regions, ten_of_thirteen_are_gone, terminated, told,
};
use lcm_tests::harness::{Harness, REGION, eventually};

const RESURRECTED: &str = "cml_worker.orphan.resurrected.v1";
const DUPLICATE: &str = "cml_worker.instance.duplicate.v1";

#[tokio::test]
async fn a_live_instance_of_a_terminated_record_brings_it_back() {
    let harness = Harness::with_manual_clock().await;
    let instance = harness.add_running_worker("w-1").await;
    harness.cloud.update_worker("w-1", json!({"status": "terminated"})).expect("a mistake");

    let report = collect(&harness).await;
    assert_eq!(report.regions[0].resurrected, ["w-1".into()]);
    let back = harness.worker("w-1").await;
    assert_eq!((back.status, back.ec2_instance_id), (WorkerStatus::Running, Some(instance.as_str().into())));
    assert!(back.public_ip.is_some());
    assert_eq!(told(&harness, RESURRECTED), ["w-1"]);
    assert_eq!(harness.telemetry.anomalies(Anomaly::Resurrection), 1);
    assert_eq!(harness.cloud.count(Service::ControlPlane, "bulk_import"), 0, "it has an owner");
    assert_eq!(collect(&harness).await.regions[0].resurrected, []);
}

#[tokio::test]
async fn a_live_instance_of_a_terminated_record_is_only_reported_where_operators_want_that() {
    let harness = Harness::with_manual_clock().await.with_policy(|policy| policy.resurrect_terminated = false);
    harness.add_running_worker("w-1").await;
    harness.cloud.update_worker("w-1", json!({"status": "terminated"})).expect("a mistake");
    assert_eq!(collect(&harness).await.regions[0].resurrected, ["w-1".into()]);
    assert_eq!(harness.cloud.worker("w-1").expect("it exists").status(), "terminated");
    assert_eq!(told(&harness, RESURRECTED), ["w-1"]);
    assert_eq!(harness.active_instances().len(), 1);
}

#[tokio::test]
async fn strangers_are_imported_and_the_known_are_left_alone() {
    let harness = Harness::with_manual_clock().await;
    harness.add_running_worker("w-known").await;
    harness
        .cloud
        .update_worker("w-known", json!({"status": "draining", "desired_status": "stopped"}))
        .expect("a drain");
    let stranger = harness.cloud.run_instance(REGION, &[("Name", "a-stranger")]).expect("it launches").id.clone();
    let foreign =
        harness.cloud.run_instance(REGION, &[("lcm:worker_id", "nobody-here")]).expect("it launches").id.clone();
    harness.cloud.advance(Duration::from_secs(60)).await;

    let report = collect(&harness).await;
    assert_eq!((report.regions[0].seen, report.regions[0].imported), (3, 2));
    for instance in [&stranger, &foreign] {
        let workers = harness.cloud.workers();
        let imported =
            workers.iter().find(|worker| worker.instance_id() == Some(instance)).expect("it has a record now");
        assert_eq!(imported.status(), "running");
        assert_eq!(imported.text("aws_region"), Some(REGION));
    }
    let known = harness.cloud.worker("w-known").expect("it exists");
    assert_eq!((known.status(), known.desired()), ("draining", Some("stopped")), "discovery never un-drains");
    assert_eq!(harness.cloud.count(Service::ControlPlane, "bulk_import"), 1);

    let again = collect(&harness).await;
    assert_eq!((again.regions[0].imported, harness.cloud.workers().len()), (0, 3));
    assert_eq!(harness.cloud.count(Service::ControlPlane, "bulk_import"), 1, "nobody is imported twice");
}

#[tokio::test]
async fn an_instance_with_an_owner_is_handed_over_and_adopted() {
    let harness = Harness::with_real_clock().await;
    harness.add_worker("w-pending", json!({"desired_status": "stopped"}));
    let instance =
        harness.cloud.run_instance(REGION, &[("lcm:worker_id", "w-pending")]).expect("it launches").id.clone();
    let by_hand = collect(&harness).await;
    assert_eq!(by_hand.regions[0].handed_over, ["w-pending".into()]);
    assert_eq!((by_hand.regions[0].imported, harness.cloud.workers().len()), (0, 1));

    // A controller that neither polls nor watches: only discovery can tell it.
    let actor = harness.start_standalone_controller(|config| {
        config.controller.interval = Duration::from_secs(3600);
        config.controller.initial_delay = Duration::from_secs(3600);
        config.watch = None;
        config.startup.limit = None;
        config.metrics_interval = Duration::from_secs(3600);
    });
    eventually("the owner has its instance", async || {
        harness.worker("w-pending").await.ec2_instance_id == Some(instance.as_str().into())
    })
    .await;
    actor.stop().await;
    assert_eq!(harness.ec2_calls("RunInstances"), 0);
    assert_eq!(harness.active_instances(), [instance]);
}

#[tokio::test]
async fn a_second_instance_of_a_worker_is_reported_and_never_touched() {
    let harness = Harness::with_manual_clock().await;
    let own = harness.add_running_worker("w-1").await;
    let extra = harness.cloud.run_instance(REGION, &[("lcm:worker_id", "w-1")]).expect("it launches").id.clone();
    harness.cloud.advance(Duration::from_secs(60)).await;

    let report = collect(&harness).await;
    assert_eq!(report.regions[0].handed_over, ["w-1".into()]);
    assert_eq!(told(&harness, DUPLICATE), ["w-1"]);
    let duplicate = harness.cloud.records().events(None, Some(DUPLICATE));
    assert!(duplicate[0]["data"].to_string().contains(&extra), "it says which one is too many");
    assert_eq!(harness.worker("w-1").await.ec2_instance_id, Some(own.as_str().into()));
    assert_eq!(harness.active_instances().len(), 2, "which of the two to end is for people to say");
    assert_eq!((report.regions[0].imported, harness.cloud.workers().len()), (0, 1));
}

#[tokio::test]
async fn a_region_that_fails_does_not_stop_another() {
    let harness = Harness::with_manual_clock().await;
    ten_of_thirteen_are_gone(&harness).await;
    harness.cloud.run_instance(ELSEWHERE, &[]).expect("it launches");
    harness.cloud.advance(Duration::from_secs(60)).await;
    let there = json!({"ec2_instance_id": ghost_instance(99), "aws_region": ELSEWHERE});
    add_record(&harness, "w-elsewhere", there);
    set_regions(&harness, &[REGION, ELSEWHERE]);
    harness.inject(json!({
        "service": "ec2", "region": REGION, "action": {"kind": "error", "code": "UnauthorizedOperation"},
    }));

    let report = collect(&harness).await;
    assert_eq!(terminated(&report), ["w-elsewhere"]);
    let failed: Vec<_> = report.regions.iter().filter(|region| region.error.is_some()).collect();
    assert_eq!(failed.iter().map(|region| region.region.as_str()).collect::<Vec<_>>(), [REGION]);
    assert_eq!(report.regions.iter().map(|region| region.imported).sum::<usize>(), 1);

    harness.cloud.clear_faults();
    assert_eq!(collect(&harness).await.orphans_terminated(), 10);
}

#[tokio::test]
async fn without_the_records_nothing_is_concluded_and_without_permission_nothing_is_asked() {
    let harness = Harness::with_manual_clock().await;
    ten_of_thirteen_are_gone(&harness).await;
    harness.inject(
        json!({"service": "control-plane", "operation": "list_workers", "action": {"kind": "error", "code": "500"}}),
    );
    let blind = collect(&harness).await;
    assert!(blind.error.is_some());
    assert_eq!((blind.orphans_terminated(), harness.control_plane_writes()), (0, 0));

    harness.cloud.clear_faults();
    harness.cloud.set_discovery(json!({"enabled": false})).expect("a switch");
    let before = harness.ec2_calls("DescribeInstances");
    let DiscoveryReport { regions, error } = collect(&harness).await;
    assert!(regions.is_empty());
    assert!(error.is_some_and(|error| error.message.contains("switched off")));
    assert_eq!(harness.ec2_calls("DescribeInstances"), before);
}
