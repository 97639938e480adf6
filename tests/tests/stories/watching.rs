//! How fast a change is noticed, and that nothing depends on it.

use std::time::Duration;

use fake_cloud::RequestFilter;
use fake_cloud::etcd::Fault;
use lcm_sdk::admin::AdminSource as _;
use lcm_sdk::controller::Polling;
use lcm_sdk::controller::{WatchConfig, WatchState};
use lcm_sdk::telemetry::Anomaly;
use lcm_sdk::workers::WorkerControllerConfig;
use serde_json::json;
use tokio::time::Instant;

use lcm_tests::harness::{Harness, RunningController, eventually};

const DEBOUNCE: Duration = Duration::from_millis(500);

/// Nobody looks at anything unless the watch says so.
fn by_watch_alone(config: &mut WorkerControllerConfig) {
    config.controller.polling = Polling::Disabled;
    config.controller.interval = Duration::from_secs(3600);
    config.discovery = None;
    config.metrics_interval = Duration::from_secs(3600);
    config.watch = Some(attentive());
}

/// A watch that notices soon when it hears nothing.
fn attentive() -> WatchConfig {
    WatchConfig::new(["/workers/", "/lcm/workers/"])
        .with_debounce(DEBOUNCE)
        .with_silence(Duration::from_secs(1))
        .with_probe_timeout(Duration::from_secs(1))
        .with_reconnect_delay(Duration::from_millis(100))
        .with_max_reconnect_attempts(2)
}

/// A controller that has looked at everything and watches.
async fn watching(
    harness: &Harness,
    workers: &[&str],
    change: impl FnOnce(&mut WorkerControllerConfig),
) -> RunningController {
    for id in workers.iter().chain(&["w-first"]) {
        harness.add_running_worker(id).await;
    }
    let actor = harness.start_controller("only", change);
    assert!(actor.controller.ready().await.is_complete());
    eventually("it watches", || async { actor.controller.watch_state() == Some(WatchState::Connected) }).await;
    // A watch that has just begun has everything looked at once. That is over when the first change is acted on.
    stop(harness, "w-first");
    is_stopped(harness, "w-first").await;
    actor
}

/// EC2 was asked to stop its instance.
async fn is_stopped(harness: &Harness, id: &str) {
    let instance = harness.worker(id).await.ec2_instance_id.expect("it has an instance");
    let filter = RequestFilter {
        operation: Some("StopInstances".to_owned()),
        subject: Some(instance.to_string()),
        ..RequestFilter::default()
    };
    eventually(&format!("{id} is stopped"), || async { !harness.cloud.requests(&filter).is_empty() }).await;
}

fn stop(harness: &Harness, id: &str) {
    harness.cloud.update_worker(id, json!({"desired_status": "stopped"})).expect("an operator's wish");
}

#[tokio::test]
async fn a_change_is_acted_on_after_the_debounce_and_little_more() {
    let harness = Harness::with_real_clock().await;
    let actor = watching(&harness, &["w-1", "w-2"], by_watch_alone).await;
    let passes = |id: &str| actor.controller.controller().resource(id).and_then(|it| it.last_ended_at);
    let untouched = passes("w-2");
    let changed = Instant::now();
    stop(&harness, "w-1");
    is_stopped(&harness, "w-1").await;
    let took = changed.elapsed();
    println!("acted on {took:?} after the change, with a debounce of {DEBOUNCE:?}");
    assert!(took < DEBOUNCE + Duration::from_secs(8), "acted on after {took:?}");
    assert_eq!(harness.ec2_calls("StopInstances"), 2, "each was stopped once");
    assert_eq!(passes("w-2"), untouched, "nobody looked at the other");
    actor.stop().await;
}

#[tokio::test]
async fn when_every_event_is_lost_polling_finds_the_change() {
    let harness = Harness::with_real_clock().await;
    let actor = watching(&harness, &["w-1"], |_| {}).await;
    harness.cloud.etcd().inject(Fault::WatchStall);
    stop(&harness, "w-1");
    is_stopped(&harness, "w-1").await;
    assert_eq!(harness.ec2_calls("StopInstances"), 2, "each was stopped once");
    assert_eq!(actor.telemetry.anomalies(Anomaly::WatchRelisted), 0, "the watch had not noticed yet");
    actor.stop().await;
}

#[tokio::test]
async fn a_watch_that_stalls_is_cut_or_meets_a_compaction_misses_nothing() {
    let harness = Harness::with_real_clock().await;
    let actor = watching(&harness, &["w-stall", "w-cut", "w-compact", "w-after"], by_watch_alone).await;
    let etcd = harness.cloud.etcd();

    etcd.inject(Fault::WatchStall);
    stop(&harness, "w-stall");
    is_stopped(&harness, "w-stall").await;
    etcd.inject(Fault::WatchResume);
    assert!(actor.telemetry.anomalies(Anomaly::WatchRelisted) >= 1);

    etcd.inject(Fault::WatchCut);
    stop(&harness, "w-cut");
    is_stopped(&harness, "w-cut").await;

    etcd.inject(Fault::WatchStall);
    stop(&harness, "w-compact");
    etcd.inject(Fault::Compact);
    etcd.inject(Fault::WatchResume);
    is_stopped(&harness, "w-compact").await;

    stop(&harness, "w-after");
    is_stopped(&harness, "w-after").await;
    assert_eq!(harness.ec2_calls("StopInstances"), 5, "each was stopped once");
    assert_eq!(actor.telemetry.anomalies(Anomaly::WatchGivenUp), 0);
    actor.stop().await;
}

#[tokio::test]
async fn a_watch_that_gives_up_says_so_polling_carries_on_and_brings_it_back() {
    let harness = Harness::with_real_clock().await;
    let actor = watching(&harness, &["w-1", "w-2"], |config| config.watch = Some(attentive())).await;
    for prefix in ["/workers/", "/lcm/workers/"] {
        harness.inject(json!({
            "service": "etcd", "operation": "Range", "key_prefix": prefix,
            "action": {"kind": "error", "code": "unavailable"},
        }));
    }
    harness.cloud.etcd().inject(Fault::WatchCut);
    eventually("it has given up", || async { actor.controller.watch_state() == Some(WatchState::GivenUp) }).await;
    assert!(actor.telemetry.anomalies(Anomaly::WatchGivenUp) >= 1);
    assert_eq!(actor.controller.stats().watch, Some(WatchState::GivenUp));
    assert!(actor.telemetry.to_prometheus().contains(r#"kind="watch_given_up""#));
    assert!(actor.controller.lease().is_some(), "only the watch is in trouble");

    stop(&harness, "w-1");
    is_stopped(&harness, "w-1").await;
    let said = actor.telemetry.anomalies(Anomaly::WatchGivenUp);
    assert!(said <= 2, "said once for each prefix, not with every cycle: {said}");

    harness.cloud.clear_faults();
    eventually("it watches again", || async { actor.controller.watch_state() == Some(WatchState::Connected) }).await;
    stop(&harness, "w-2");
    is_stopped(&harness, "w-2").await;
    actor.stop().await;
}
