//! An older control plane: no record versions, no `exclude_statuses`, no `/terminate`, and notes in `metadata` only.

use std::time::Duration;

use fake_cloud::control_plane::ApiVersion;
use fake_cloud::world::Delays;
use fake_cloud::{FakeCloud, Pace, Service};
use lcm_sdk::{Outcome, WorkerStatus};
use serde_json::json;

use crate::{launch, orphans};
use lcm_tests::harness::{Harness, REGION, eventually};

#[tokio::test]
async fn worker_completes_its_lifecycle() {
    let harness = older_server().await;
    harness.add_worker("w-1", json!({"desired_status": "running", "metadata": {"rack": 9}}));
    let launch = harness.reconcile("w-1").await;
    assert_eq!((launch.outcome, launch.to_status), (Outcome::Success, WorkerStatus::Provisioning), "{}", launch.reason);
    let record = harness.cloud.worker("w-1").expect("record exists");
    assert!(record.get("version").is_none() && record.get("launched_at").is_none(), "the server stores neither");
    assert!(record.get("metadata").is_some_and(|metadata| metadata["launched_at"].is_string()));
    assert!(record.get("metadata").is_some_and(|metadata| metadata.get("launch_plan").is_none()));

    harness.cloud.advance(Duration::from_secs(30)).await;
    harness.reconcile_until("w-1", WorkerStatus::Running).await;
    assert!(harness.worker("w-1").await.address().is_some());
    for (desired, status) in [("stopped", WorkerStatus::Stopped), ("running", WorkerStatus::Running)] {
        harness.cloud.update_worker("w-1", json!({"desired_status": desired})).expect("desired status is accepted");
        harness.reconcile_until("w-1", status).await;
    }
    harness.cloud.update_worker("w-1", json!({"desired_status": "terminated"})).expect("desired status is accepted");
    harness.reconcile_until("w-1", WorkerStatus::Terminated).await;

    let record = harness.cloud.worker("w-1").expect("record is kept");
    assert_eq!(record.status(), "terminated");
    assert!(record.text("terminated_at").is_some() && record.text("terminated_reason").is_some());
    assert_eq!(record.get("metadata").map(|metadata| &metadata["rack"]), Some(&json!(9)), "foreign keys are kept");
    assert_eq!(harness.ec2_calls("RunInstances"), 1);
    assert!(harness.active_instances().is_empty());
    for (counter, count) in
        [("provisioned_count", 1), ("started_count", 2), ("stopped_count", 1), ("terminated_count", 1)]
    {
        assert_eq!(harness.counter(counter), count, "{counter}");
    }
}

#[tokio::test]
async fn drain_start_is_kept_in_metadata() {
    let harness = older_server().await;
    harness.add_running_worker("w-1").await;
    harness.cloud.add_session(json!({"id": "s-1", "worker_id": "w-1", "status": "running"})).expect("session is added");
    harness.cloud.records().drain("w-1", None, "maintenance", "operator").expect("it runs");

    let waiting = harness.reconcile("w-1").await;
    assert_eq!(
        (waiting.from_status, waiting.to_status),
        (WorkerStatus::Draining, WorkerStatus::Draining),
        "{}",
        waiting.reason
    );
    let record = harness.cloud.worker("w-1").expect("record exists");
    assert!(record.get("metadata").is_some_and(|metadata| metadata["drain_started_at"].is_string()));
    harness.cloud.advance(Duration::from_secs(3 * 3600)).await;
    assert_eq!(harness.reconcile("w-1").await.to_status, WorkerStatus::Draining);
    harness.cloud.advance(Duration::from_secs(3600)).await;
    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    assert_eq!(harness.counter("stopped_count"), 1);
    let record = harness.cloud.worker("w-1").expect("record exists");
    assert!(
        record.get("metadata").is_some_and(|metadata| metadata.get("drain_started_at").is_none()),
        "the start time is removed"
    );
}

#[tokio::test]
async fn thirteen_records_and_three_instances_yield_ten_orphans() {
    let harness = older_server().await;
    orphans::add_three_workers_and_ten_ghosts(&harness).await;
    let report = orphans::run_discovery(&harness).await;
    assert_eq!(orphans::terminated_ids(&report), orphans::ghost_ids(10));
    for worker in orphans::ghost_ids(10) {
        let record = harness.cloud.worker(&worker).expect("record is kept");
        assert_eq!(record.status(), "terminated");
        assert_eq!(record.text("terminated_by"), Some("discovery-gc"));
        assert_eq!(record.text("terminated_reason"), Some("EC2 instance not found during discovery"));
    }
    assert_eq!(harness.counter("orphans_terminated_count"), 10);
    assert_eq!(orphans::run_discovery(&harness).await.orphans_terminated(), 0);
}

#[tokio::test]
async fn record_changed_during_verification_is_kept() {
    orphans::assert_relaunch_during_verification_is_kept(&older_server().await).await;
}

#[tokio::test]
async fn crash_at_any_launch_request_leaves_one_instance() {
    launch::crash_at_every_request(&older_server().await).await;
}

#[tokio::test]
async fn overtaken_launch_creates_no_second_instance() {
    launch::overtake_at_every_request(&older_server().await).await;
}

#[tokio::test]
async fn delayed_launch_does_not_revive_a_terminated_worker() {
    launch::outlive_at_every_request(&older_server().await).await;
}

#[tokio::test]
async fn independent_processes_launch_once() {
    launch::race_processes(&older_server().await).await;
}

#[tokio::test]
async fn controller_skips_terminated_workers() {
    let harness = Harness::start(FakeCloud::builder().delays(Delays::none()).api_version(ApiVersion::Older)).await;
    let workers = ["w-1", "w-2", "w-3"];
    workers.iter().for_each(|worker| harness.add_worker(worker, json!({"desired_status": "running"})));
    harness.add_worker("w-terminated", json!({"status": "terminated"}));
    let actor = harness.start_controller("leader", |config| config.discovery = None);
    assert_eq!(actor.controller.ready().await.listed, 3, "the terminated worker is not listed");
    for (desired, status) in [("running", "running"), ("stopped", "stopped"), ("terminated", "terminated")] {
        for worker in workers {
            harness
                .cloud
                .update_worker(worker, json!({"desired_status": desired}))
                .expect("desired status is accepted");
        }
        eventually(status, async || {
            workers.iter().all(|worker| harness.cloud.worker(worker).is_ok_and(|record| record.status() == status))
        })
        .await;
    }
    actor.stop().await;
    assert!(harness.active_instances().is_empty());
    assert_eq!(harness.cloud.count(Service::Ec2, "RunInstances"), 3);
    assert_eq!(harness.cloud.instances(REGION).len(), 3);
}

async fn older_server() -> Harness {
    Harness::start(FakeCloud::builder().pace(Pace::Manual).api_version(ApiVersion::Older)).await
}
