//! Isolation: a malformed record or a hung service affects only its own worker.

use std::time::Duration;

use fake_cloud::Service;
use fake_cloud::control_plane::Generation::{self, Extended, Original};
use rstest::rstest;
use serde_json::{Map, Value, json};

use lcm_tests::harness::{Harness, eventually};

const GOOD: [&str; 6] = ["w-1", "w-2", "w-3", "w-4", "w-5", "w-6"];

#[rstest]
#[tokio::test]
async fn malformed_records_do_not_block_others(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    let raw = |fields: Value| -> Map<String, Value> { fields.as_object().expect("JSON object").clone() };
    for fields in [
        json!({"id": "bad-status", "status": "hibernating", "desired_status": "running"}),
        json!({"id": "bad-type", "status": 42}),
        json!({"id": "bad-time", "status": "pending", "template_name": "metal", "created_at": "yesterday"}),
        json!({"id": "no-status"}),
    ] {
        harness.cloud.records().insert_raw(raw(fields)).expect("record is inserted");
    }
    harness.add_worker("bad-template", json!({"template_name": "unobtainium"}));
    harness.add_worker("bad-region", json!({"aws_region": "mars-north-1"}));
    harness.add_worker("bad-id", json!({"status": "running", "ec2_instance_id": "banana"}));
    harness.add_worker("odd-id", json!({"status": "running", "ec2_instance_id": "i-zzzzzzzz"}));
    harness.add_worker("unwritable", json!({"desired_status": "running"}));
    harness.inject(json!({
        "service": "control-plane", "instance": "unwritable", "operation": "write_*", "action": {"kind": "error", "code": "500"},
    }));
    GOOD.iter().for_each(|worker| harness.add_worker(worker, json!({"desired_status": "running"})));

    let actor = harness.start_standalone_controller(|config| config.controller.max_concurrent = 2);
    let report = actor.controller.ready().await;
    assert!(report.is_complete(), "{:?}", report.unfinished);
    wait_until_all_run(&harness).await;
    eventually("the worker with an unreadable time runs", async || {
        harness.cloud.worker("bad-time").is_ok_and(|record| record.status() == "running")
    })
    .await;
    for worker in ["bad-template", "bad-region"] {
        eventually("the worker has failed", async || {
            harness.cloud.worker(worker).is_ok_and(|record| record.status() == "failed")
        })
        .await;
    }
    for (worker, status) in [("bad-status", json!("hibernating")), ("bad-type", json!(42)), ("no-status", Value::Null)]
    {
        let record = harness.cloud.worker(worker).expect("record exists");
        assert_eq!(record.get("status").cloned().unwrap_or_default(), status, "{worker} is never written");
        if generation == Extended {
            assert_eq!(record.version(), 1, "{worker}");
        }
    }
    for worker in ["bad-id", "odd-id"] {
        assert_eq!(
            harness.cloud.worker(worker).expect("record exists").status(),
            "running",
            "{worker}: no response, no conclusion"
        );
    }
    assert_eq!(harness.cloud.worker("unwritable").expect("record exists").status(), "pending");
    // Where notes are kept in etcd, the plan of the unwritable record can be recorded too.
    let launched = GOOD.len() + 1;
    let accepted = launched..=launched + usize::from(generation == Original);
    let launches = harness.cloud.count(Service::Ec2, "RunInstances");
    assert!(accepted.contains(&launches), "{launches} launches of workers whose plan was recorded");
    let metrics = actor.telemetry.to_prometheus();
    assert!(metrics.contains("lcm_unreadable_records 3"), "{metrics}");
    // The original server returns a time that it can parse, or none.
    assert!(generation == Original || metrics.contains("lcm_degraded_records 1"), "{metrics}");
    actor.stop().await;
}

#[rstest]
#[tokio::test]
async fn hung_cml_blocks_only_its_own_worker(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    let stuck = harness.add_running_worker("w-stuck").await;
    harness.inject(
        json!({"service": "cml", "instance": stuck, "action": {"kind": "latency", "seconds": 600, "on": "real"}}),
    );
    GOOD.iter().for_each(|worker| harness.add_worker(worker, json!({"desired_status": "running"})));

    let actor = harness.start_standalone_controller(|config| {
        config.controller.max_concurrent = 2;
        config.startup.limit = Some(Duration::from_secs(1));
        config.metrics_interval = Duration::from_secs(3600);
    });
    let report = actor.controller.ready().await;
    assert!(report.unfinished.contains(&"w-stuck".to_owned()), "{report:?}");
    wait_until_all_run(&harness).await;

    // If the hung reconcile kept the last slot, these changes would not be applied.
    GOOD.iter().for_each(|worker| {
        harness.cloud.update_worker(worker, json!({"desired_status": "stopped"})).expect("desired status is accepted");
    });
    eventually("all workers have stopped", async || {
        GOOD.iter().all(|worker| harness.cloud.worker(worker).is_ok_and(|record| record.status() == "stopped"))
    })
    .await;
    // The hung reconcile has its own time limit. The worker stays in service until then.
    assert_eq!(harness.cloud.worker("w-stuck").expect("record exists").status(), "running");
    actor.crash();
}

#[rstest]
#[tokio::test]
async fn worker_with_a_hung_cml_can_be_stopped(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    let stuck = harness.add_running_worker("w-stuck").await;
    harness.inject(
        json!({"service": "cml", "instance": stuck, "action": {"kind": "latency", "seconds": 600, "on": "real"}}),
    );
    harness.cloud.update_worker("w-stuck", json!({"desired_status": "stopped"})).expect("desired status is accepted");
    let actor = harness.start_standalone_controller(|_| {});
    eventually("the worker has stopped", async || {
        harness.cloud.worker("w-stuck").is_ok_and(|record| record.status() == "stopped")
    })
    .await;
    actor.stop().await;
}

#[rstest]
#[tokio::test]
async fn failed_writes_are_retried_until_they_succeed(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    harness.inject(json!({
        "service": "control-plane", "instance": "w-1", "operation": "write_*", "times": 3, "action": {"kind": "error", "code": "500"},
    }));
    let actor = harness.start_standalone_controller(|_| {});
    eventually("the worker runs", async || {
        harness.cloud.worker("w-1").is_ok_and(|record| record.status() == "running")
    })
    .await;
    actor.stop().await;
    assert_eq!(harness.faults_applied(), 3);
    assert_eq!(harness.active_instances().len(), 1);
}

async fn wait_until_all_run(harness: &Harness) {
    eventually("all workers run", async || {
        GOOD.iter().all(|worker| harness.cloud.worker(worker).is_ok_and(|record| record.status() == "running"))
    })
    .await;
}
