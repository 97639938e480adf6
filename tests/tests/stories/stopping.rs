//! Stopping in the middle of things: what was begun is finished and recorded, and no stop lasts for ever.

use std::time::Duration;

use lcm_sdk::WorkerStatus;
use serde_json::json;
use tokio::time::Instant;

use lcm_tests::harness::{Harness, eventually};

/// Waits until a fault strikes: the request it is about is under way.
async fn struck(harness: &Harness) {
    let struck = || harness.cloud.world().faults().list().iter().any(|rule| rule.struck > 0);
    eventually("the request is under way", || async { struck() }).await;
}

#[tokio::test]
async fn a_shutdown_in_the_middle_of_a_launch_leaves_a_recorded_instance_and_no_lease() {
    let harness = Harness::with_real_clock().await;
    harness.inject(json!({
        "service": "ec2", "operation": "RunInstances", "times": 1,
        "action": {"kind": "latency", "seconds": 2.0, "on": "real"},
    }));
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    let actor = harness.start_controller("first", |_| {});
    struck(&harness).await;
    assert!(harness.active_instances().is_empty(), "the launch is under way");
    actor.stop().await;

    let living = harness.active_instances();
    let worker = harness.worker("w-1").await;
    assert_eq!(living.len(), 1);
    assert_eq!(worker.ec2_instance_id.as_ref().map(|id| id.as_str()), Some(living[0].as_str()), "it is on record");
    assert_eq!(worker.status, WorkerStatus::Provisioning);
    assert!(harness.cloud.etcd().leases().is_empty(), "the lease is given up");

    let next = harness.start_controller("next", |_| {});
    eventually("it runs", || async { harness.status("w-1").await == WorkerStatus::Running }).await;
    assert_eq!(harness.ec2_calls("RunInstances"), 1);
    next.stop().await;
}

#[tokio::test]
async fn a_pass_dropped_before_the_launch_records_its_plan_and_launches_nothing() {
    let harness = Harness::with_manual_clock().await;
    // The first write is the plan of the launch.
    harness.inject(json!({
        "service": "control-plane", "operation": "write_*", "times": 1,
        "action": {"kind": "latency", "seconds": 5.0},
    }));
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    let (worker, reconciler) = (harness.worker("w-1").await, harness.reconciler().clone());
    let pass = tokio::spawn(async move { reconciler.reconcile(&worker).await });
    struck(&harness).await;
    pass.abort();
    harness.cloud.advance(Duration::from_secs(10)).await;
    let is_planned = || async { harness.worker("w-1").await.notes.launch_plan.is_some() };
    eventually("what was begun is finished", is_planned).await;

    let launch = harness.reconcile("w-1").await;
    assert_eq!(launch.to_status, WorkerStatus::Provisioning, "{}", launch.reason);
    assert_eq!(harness.ec2_calls("RunInstances"), 1, "the dropped pass launched nothing");
    assert_eq!(harness.counter("provisioned_count"), 1);
}

#[tokio::test]
async fn a_pass_dropped_in_the_middle_of_a_launch_still_records_the_instance() {
    let harness = Harness::with_manual_clock().await;
    harness.inject(json!({
        "service": "ec2", "operation": "RunInstances", "times": 1, "action": {"kind": "latency", "seconds": 5.0},
    }));
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    let (worker, reconciler) = (harness.worker("w-1").await, harness.reconciler().clone());
    let pass = tokio::spawn(async move { reconciler.reconcile(&worker).await });
    struck(&harness).await;
    pass.abort();
    harness.cloud.advance(Duration::from_secs(10)).await;
    eventually("it is on record", || async { harness.worker("w-1").await.ec2_instance_id.is_some() }).await;
    let living = harness.active_instances();
    assert_eq!(living.len(), 1);
    assert_eq!(harness.worker("w-1").await.ec2_instance_id.map(|id| id.to_string()), Some(living[0].clone()));
    harness.reconcile_until("w-1", WorkerStatus::Running).await;
    assert_eq!(harness.ec2_calls("RunInstances"), 1);
}

#[tokio::test]
async fn a_launch_that_hangs_holds_a_shutdown_up_no_longer_than_the_grace() {
    let harness = Harness::with_real_clock().await;
    harness.inject(json!({
        "service": "ec2", "operation": "RunInstances", "action": {"kind": "latency", "seconds": 300.0, "on": "real"},
    }));
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    let actor = harness.start_controller("first", |config| config.controller.grace = Duration::from_secs(1));
    struck(&harness).await;
    let asked = Instant::now();
    actor.stop().await;
    let took = asked.elapsed();
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(12), "stopped after {took:?}");
    assert!(harness.cloud.etcd().leases().is_empty(), "the lease is given up all the same");
    assert!(harness.worker("w-1").await.notes.launch_plan.is_some(), "the next leader knows what was begun");
}

#[tokio::test]
async fn a_control_plane_that_hangs_does_not_hold_a_shutdown_up() {
    let harness = Harness::with_real_clock().await;
    harness.add_running_worker("w-1").await;
    let actor = harness.start_controller("first", |config| config.controller.grace = Duration::from_secs(1));
    assert!(actor.controller.ready().await.is_complete());
    harness.inject(json!({
        "service": "control-plane", "action": {"kind": "latency", "seconds": 300.0, "on": "real"},
    }));
    struck(&harness).await;
    // Long enough for each loop to be caught in a call: polling, discovery, metrics, and a resync of the watch.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let asked = Instant::now();
    actor.stop().await;
    assert!(asked.elapsed() < Duration::from_secs(12), "stopped after {:?}", asked.elapsed());
    assert!(harness.cloud.etcd().leases().is_empty());
}
