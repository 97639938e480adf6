//! Shutdown during work: calls in flight are completed and recorded, and every shutdown has a time limit.

use std::time::Duration;

use fake_cloud::control_plane::Generation::{self, Extended, Original};
use lcm_sdk::WorkerStatus;
use rstest::rstest;
use serde_json::json;
use tokio::time::Instant;

use lcm_tests::harness::{Harness, eventually};

/// Waits until an injected fault has been applied, so its request is in flight.
async fn wait_for_fault(harness: &Harness) {
    let is_applied = || harness.cloud.world().faults().list().iter().any(|rule| rule.applied > 0);
    eventually("the request is in flight", || async { is_applied() }).await;
}

#[rstest]
#[tokio::test]
async fn shutdown_during_a_launch_records_the_instance(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    harness.inject(json!({
        "service": "ec2", "operation": "RunInstances", "times": 1,
        "action": {"kind": "latency", "seconds": 2.0, "on": "real"},
    }));
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    let actor = harness.start_controller("first", |_| {});
    wait_for_fault(&harness).await;
    assert!(harness.active_instances().is_empty(), "the launch is in flight");
    actor.stop().await;

    let active = harness.active_instances();
    let worker = harness.worker("w-1").await;
    assert_eq!(active.len(), 1);
    assert_eq!(
        worker.ec2_instance_id.as_ref().map(|id| id.as_str()),
        Some(active[0].as_str()),
        "the instance is recorded"
    );
    assert_eq!(worker.status, WorkerStatus::Provisioning);
    assert!(harness.cloud.etcd().leases().is_empty(), "the lease is revoked");

    let next = harness.start_controller("next", |_| {});
    eventually("the worker runs", || async { harness.status("w-1").await == WorkerStatus::Running }).await;
    assert_eq!(harness.ec2_calls("RunInstances"), 1);
    next.stop().await;
}

#[rstest]
#[tokio::test]
async fn canceled_reconcile_before_a_launch_keeps_its_plan(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    // The first write is the launch plan.
    let mut slow_write = match generation {
        Extended => json!({"service": "control-plane", "operation": "write_*"}),
        Original => json!({"service": "etcd", "operation": "Txn", "key_prefix": "/lcm-notes/"}),
    };
    slow_write["times"] = json!(1);
    slow_write["action"] = json!({"kind": "latency", "seconds": 5.0});
    harness.inject(slow_write);
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    let (worker, reconciler) = (harness.worker("w-1").await, harness.reconciler().clone());
    let task = tokio::spawn(async move { reconciler.reconcile(&worker).await });
    wait_for_fault(&harness).await;
    task.abort();
    harness.cloud.advance(Duration::from_secs(10)).await;
    let is_planned = || async { harness.worker("w-1").await.notes.launch_plan.is_some() };
    eventually("the write in flight completes", is_planned).await;

    let launch = harness.reconcile("w-1").await;
    assert_eq!(launch.to_status, WorkerStatus::Provisioning, "{}", launch.reason);
    assert_eq!(harness.ec2_calls("RunInstances"), 1, "the canceled reconcile launched nothing");
    assert_eq!(harness.counter("provisioned_count"), 1);
}

#[rstest]
#[tokio::test]
async fn canceled_reconcile_during_a_launch_records_the_instance(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    harness.inject(json!({
        "service": "ec2", "operation": "RunInstances", "times": 1, "action": {"kind": "latency", "seconds": 5.0},
    }));
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    let (worker, reconciler) = (harness.worker("w-1").await, harness.reconciler().clone());
    let task = tokio::spawn(async move { reconciler.reconcile(&worker).await });
    wait_for_fault(&harness).await;
    task.abort();
    harness.cloud.advance(Duration::from_secs(10)).await;
    eventually("the instance is recorded", || async { harness.worker("w-1").await.ec2_instance_id.is_some() }).await;
    let active = harness.active_instances();
    assert_eq!(active.len(), 1);
    assert_eq!(harness.worker("w-1").await.ec2_instance_id.map(|id| id.to_string()), Some(active[0].clone()));
    harness.reconcile_until("w-1", WorkerStatus::Running).await;
    assert_eq!(harness.ec2_calls("RunInstances"), 1);
}

#[rstest]
#[tokio::test]
async fn hung_launch_delays_shutdown_no_longer_than_the_grace(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    harness.inject(json!({
        "service": "ec2", "operation": "RunInstances", "action": {"kind": "latency", "seconds": 300.0, "on": "real"},
    }));
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    let actor = harness.start_controller("first", |config| config.controller.grace = Duration::from_secs(1));
    wait_for_fault(&harness).await;
    let requested_at = Instant::now();
    actor.stop().await;
    let took = requested_at.elapsed();
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(12), "stopped after {took:?}");
    assert!(harness.cloud.etcd().leases().is_empty(), "the lease is revoked nevertheless");
    assert!(harness.worker("w-1").await.notes.launch_plan.is_some(), "the next leader finds the launch plan");
}

#[rstest]
#[tokio::test]
async fn hung_control_plane_does_not_block_shutdown(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    harness.add_running_worker("w-1").await;
    let actor = harness.start_controller("first", |config| config.controller.grace = Duration::from_secs(1));
    assert!(actor.controller.ready().await.is_complete());
    harness.inject(json!({
        "service": "control-plane", "action": {"kind": "latency", "seconds": 300.0, "on": "real"},
    }));
    wait_for_fault(&harness).await;
    // Long enough for each loop to block in a call: polling, discovery, metrics, and a resync of the watch.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let requested_at = Instant::now();
    actor.stop().await;
    assert!(requested_at.elapsed() < Duration::from_secs(12), "stopped after {:?}", requested_at.elapsed());
    assert!(harness.cloud.etcd().leases().is_empty());
}
