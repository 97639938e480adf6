//! Stopping in the middle of things: what was begun is finished and recorded, and no stop lasts for ever.

use std::time::Duration;

use lcm_sdk::WorkerStatus;
use serde_json::json;
use tokio::time::Instant;

use crate::stage::{Stage, eventually};

/// Waits until a fault strikes: the request it is about is under way.
async fn struck(stage: &Stage) {
    let struck = || stage.cloud.world().faults().list().iter().any(|rule| rule.struck > 0);
    eventually("the request is under way", || async { struck() }).await;
}

#[tokio::test]
async fn a_shutdown_in_the_middle_of_a_launch_leaves_a_recorded_instance_and_no_lease() {
    let stage = Stage::live().await;
    stage.fault(json!({
        "service": "ec2", "operation": "RunInstances", "times": 1,
        "action": {"kind": "latency", "seconds": 2.0, "on": "real"},
    }));
    stage.add_worker("w-1", json!({"desired_status": "running"}));
    let actor = stage.controller("first", |_| {});
    struck(&stage).await;
    assert!(stage.living_instances().is_empty(), "the launch is under way");
    actor.stop().await;

    let living = stage.living_instances();
    let worker = stage.worker("w-1").await;
    assert_eq!(living.len(), 1);
    assert_eq!(worker.ec2_instance_id.as_ref().map(|id| id.as_str()), Some(living[0].as_str()), "it is on record");
    assert_eq!(worker.status, WorkerStatus::Provisioning);
    assert!(stage.cloud.etcd().leases().is_empty(), "the lease is given up");

    let next = stage.controller("next", |_| {});
    eventually("it runs", || async { stage.status("w-1").await == WorkerStatus::Running }).await;
    assert_eq!(stage.ec2_calls("RunInstances"), 1);
    next.stop().await;
}

#[tokio::test]
async fn a_pass_dropped_before_the_launch_records_its_plan_and_launches_nothing() {
    let stage = Stage::still().await;
    // The first write is the plan of the launch.
    stage.fault(json!({
        "service": "control-plane", "operation": "write_*", "times": 1,
        "action": {"kind": "latency", "seconds": 5.0},
    }));
    stage.add_worker("w-1", json!({"desired_status": "running"}));
    let (worker, reconciler) = (stage.worker("w-1").await, stage.reconciler().clone());
    let pass = tokio::spawn(async move { reconciler.reconcile(&worker).await });
    struck(&stage).await;
    pass.abort();
    stage.cloud.advance(Duration::from_secs(10)).await;
    let is_planned = || async { stage.worker("w-1").await.notes.launch_plan.is_some() };
    eventually("what was begun is finished", is_planned).await;

    let launch = stage.pass("w-1").await;
    assert_eq!(launch.to_status, WorkerStatus::Provisioning, "{}", launch.reason);
    assert_eq!(stage.ec2_calls("RunInstances"), 1, "the dropped pass launched nothing");
    assert_eq!(stage.counter("provisioned_count"), 1);
}

#[tokio::test]
async fn a_pass_dropped_in_the_middle_of_a_launch_still_records_the_instance() {
    let stage = Stage::still().await;
    stage.fault(json!({
        "service": "ec2", "operation": "RunInstances", "times": 1, "action": {"kind": "latency", "seconds": 5.0},
    }));
    stage.add_worker("w-1", json!({"desired_status": "running"}));
    let (worker, reconciler) = (stage.worker("w-1").await, stage.reconciler().clone());
    let pass = tokio::spawn(async move { reconciler.reconcile(&worker).await });
    struck(&stage).await;
    pass.abort();
    stage.cloud.advance(Duration::from_secs(10)).await;
    eventually("it is on record", || async { stage.worker("w-1").await.ec2_instance_id.is_some() }).await;
    let living = stage.living_instances();
    assert_eq!(living.len(), 1);
    assert_eq!(stage.worker("w-1").await.ec2_instance_id.map(|id| id.to_string()), Some(living[0].clone()));
    stage.pass_until("w-1", WorkerStatus::Running).await;
    assert_eq!(stage.ec2_calls("RunInstances"), 1);
}

#[tokio::test]
async fn a_launch_that_hangs_holds_a_shutdown_up_no_longer_than_the_grace() {
    let stage = Stage::live().await;
    stage.fault(json!({
        "service": "ec2", "operation": "RunInstances", "action": {"kind": "latency", "seconds": 300.0, "on": "real"},
    }));
    stage.add_worker("w-1", json!({"desired_status": "running"}));
    let actor = stage.controller("first", |config| config.controller.grace = Duration::from_secs(1));
    struck(&stage).await;
    let asked = Instant::now();
    actor.stop().await;
    let took = asked.elapsed();
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(12), "stopped after {took:?}");
    assert!(stage.cloud.etcd().leases().is_empty(), "the lease is given up all the same");
    assert!(stage.worker("w-1").await.notes.launch_plan.is_some(), "the next leader knows what was begun");
}

#[tokio::test]
async fn a_control_plane_that_hangs_does_not_hold_a_shutdown_up() {
    let stage = Stage::live().await;
    stage.add_running_worker("w-1").await;
    let actor = stage.controller("first", |config| config.controller.grace = Duration::from_secs(1));
    assert!(actor.controller.ready().await.is_complete());
    stage.fault(json!({
        "service": "control-plane", "action": {"kind": "latency", "seconds": 300.0, "on": "real"},
    }));
    struck(&stage).await;
    // Long enough for each loop to be caught in a call: polling, discovery, metrics, and a resync of the watch.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let asked = Instant::now();
    actor.stop().await;
    assert!(asked.elapsed() < Duration::from_secs(12), "stopped after {:?}", asked.elapsed());
    assert!(stage.cloud.etcd().leases().is_empty());
}
