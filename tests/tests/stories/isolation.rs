//! One bad record never holds the others up.

use std::time::Duration;

use fake_cloud::Service;
use serde_json::{Map, Value, json};

use lcm_tests::harness::{Harness, eventually};

const GOOD: [&str; 6] = ["w-1", "w-2", "w-3", "w-4", "w-5", "w-6"];

#[tokio::test]
async fn records_that_are_wrong_in_every_way_are_left_alone_and_the_others_go_on() {
    let harness = Harness::with_real_clock().await;
    let raw = |fields: Value| -> Map<String, Value> { fields.as_object().expect("an object").clone() };
    for fields in [
        json!({"id": "bad-status", "status": "hibernating", "desired_status": "running"}),
        json!({"id": "bad-type", "status": 42}),
        json!({"id": "bad-time", "status": "pending", "template_name": "metal", "created_at": "yesterday"}),
        json!({"id": "no-status"}),
    ] {
        harness.cloud.records().insert_raw(raw(fields)).expect("it is put in as it is");
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
    all_run(&harness).await;
    eventually("the failure is known", async || {
        harness.cloud.worker("bad-template").is_ok_and(|record| record.status() == "failed")
    })
    .await;
    for (worker, status) in [("bad-status", json!("hibernating")), ("bad-type", json!(42)), ("no-status", Value::Null)]
    {
        let record = harness.cloud.worker(worker).expect("it exists");
        assert_eq!(record.get("status").cloned().unwrap_or_default(), status, "{worker} is never written");
        assert_eq!(record.version(), 1, "{worker}");
    }
    for worker in ["bad-id", "odd-id"] {
        assert_eq!(
            harness.cloud.worker(worker).expect("it exists").status(),
            "running",
            "{worker}: no answer, no conclusion"
        );
    }
    for worker in ["unwritable", "bad-region"] {
        assert_eq!(harness.cloud.worker(worker).expect("it exists").status(), "pending", "{worker}");
    }
    assert_eq!(harness.cloud.count(Service::Ec2, "RunInstances"), GOOD.len(), "only for those that could be recorded");
    let metrics = actor.telemetry.to_prometheus();
    assert!(metrics.contains("lcm_unreadable_records 3") || metrics.contains("lcm_unreadable_records 4"), "{metrics}");
    actor.stop().await;
}

#[tokio::test]
async fn a_cml_that_hangs_holds_up_nobody_but_its_own_worker() {
    let harness = Harness::with_real_clock().await;
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
    all_run(&harness).await;

    // With the last slot taken for good they would not follow a wish any more.
    GOOD.iter().for_each(|worker| {
        harness.cloud.update_worker(worker, json!({"desired_status": "stopped"})).expect("a wish");
    });
    eventually("all have stopped", async || {
        GOOD.iter().all(|worker| harness.cloud.worker(worker).is_ok_and(|record| record.status() == "stopped"))
    })
    .await;
    // The stuck pass has a time limit of its own; the worker stays in service meanwhile.
    assert_eq!(harness.cloud.worker("w-stuck").expect("it exists").status(), "running");
    actor.crash();
}

#[tokio::test]
async fn a_worker_whose_cml_hangs_is_still_stopped_when_that_is_wanted() {
    let harness = Harness::with_real_clock().await;
    let stuck = harness.add_running_worker("w-stuck").await;
    harness.inject(
        json!({"service": "cml", "instance": stuck, "action": {"kind": "latency", "seconds": 600, "on": "real"}}),
    );
    harness.cloud.update_worker("w-stuck", json!({"desired_status": "stopped"})).expect("a wish");
    let actor = harness.start_standalone_controller(|_| {});
    eventually("it has stopped", async || harness.cloud.worker("w-stuck").is_ok_and(|it| it.status() == "stopped"))
        .await;
    actor.stop().await;
}

#[tokio::test]
async fn a_worker_that_cannot_be_written_is_tried_again_and_recovers() {
    let harness = Harness::with_real_clock().await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    harness.inject(json!({
        "service": "control-plane", "instance": "w-1", "operation": "write_*", "times": 3, "action": {"kind": "error", "code": "500"},
    }));
    let actor = harness.start_standalone_controller(|_| {});
    eventually("it runs", async || harness.cloud.worker("w-1").is_ok_and(|record| record.status() == "running")).await;
    actor.stop().await;
    assert_eq!(harness.faults_applied(), 3);
    assert_eq!(harness.active_instances().len(), 1);
}

async fn all_run(harness: &Harness) {
    eventually("all run", async || {
        GOOD.iter().all(|worker| harness.cloud.worker(worker).is_ok_and(|record| record.status() == "running"))
    })
    .await;
}
