//! Watch latency, and recovery of changes that the watch misses.

use std::time::Duration;

use fake_cloud::RequestFilter;
use fake_cloud::control_plane::Generation::{self, Extended, Original};
use fake_cloud::etcd::{Fault, KeyRange, Put, Range};
use lcm_sdk::admin::AdminSource as _;
use lcm_sdk::controller::Polling;
use lcm_sdk::controller::{WatchConfig, WatchState};
use lcm_sdk::telemetry::Anomaly;
use lcm_sdk::workers::WorkerControllerConfig;
use rstest::rstest;
use serde_json::json;
use tokio::time::Instant;

use lcm_tests::harness::{Harness, RunningController, eventually};

const DEBOUNCE: Duration = Duration::from_millis(500);

/// Disables polling, discovery and metrics, so that only watch events trigger reconciles.
fn watch_only(config: &mut WorkerControllerConfig) {
    config.controller.polling = Polling::Disabled;
    config.controller.interval = Duration::from_secs(3600);
    config.discovery = None;
    config.metrics_interval = Duration::from_secs(3600);
    config.watch = Some(fast_watch());
}

/// A watch that detects a silent connection within a second.
fn fast_watch() -> WatchConfig {
    WatchConfig::new(["/workers/", "/lcm/workers/"])
        .with_debounce(DEBOUNCE)
        .with_silence(Duration::from_secs(1))
        .with_probe_timeout(Duration::from_secs(1))
        .with_reconnect_delay(Duration::from_millis(100))
        .with_max_reconnect_attempts(2)
}

/// Starts a controller and waits until its first sweep is complete and its watch is connected.
async fn start_watching(
    harness: &Harness,
    workers: &[&str],
    change: impl FnOnce(&mut WorkerControllerConfig),
) -> RunningController {
    for id in workers.iter().chain(&["w-first"]) {
        harness.add_running_worker(id).await;
    }
    let actor = harness.start_controller("only", change);
    assert!(actor.controller.ready().await.is_complete());
    eventually("the watch is connected", || async { actor.controller.watch_state() == Some(WatchState::Connected) })
        .await;
    // A new watch triggers a reconcile of every worker. It is over when the first change has been applied.
    request_stop(harness, "w-first");
    wait_for_stop(harness, "w-first").await;
    actor
}

/// Waits until a `StopInstances` call for the worker was made.
async fn wait_for_stop(harness: &Harness, id: &str) {
    let instance = harness.worker(id).await.ec2_instance_id.expect("worker has an instance");
    let filter = RequestFilter {
        operation: Some("StopInstances".to_owned()),
        subject: Some(instance.to_string()),
        ..RequestFilter::default()
    };
    eventually(&format!("{id} is stopped"), || async { !harness.cloud.requests(&filter).is_empty() }).await;
}

fn request_stop(harness: &Harness, id: &str) {
    harness.cloud.update_worker(id, json!({"desired_status": "stopped"})).expect("desired status is accepted");
}

#[rstest]
#[tokio::test]
async fn change_is_reconciled_soon_after_the_debounce(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    let actor = start_watching(&harness, &["w-1", "w-2"], watch_only).await;
    let last_reconcile =
        |id: &str| actor.controller.controller().resource(id).and_then(|resource| resource.last_ended_at);
    let before = last_reconcile("w-2");
    let changed = Instant::now();
    request_stop(&harness, "w-1");
    wait_for_stop(&harness, "w-1").await;
    let took = changed.elapsed();
    println!("reconciled {took:?} after the change, with a debounce of {DEBOUNCE:?}");
    assert!(took < DEBOUNCE + Duration::from_secs(8), "reconciled after {took:?}");
    assert_eq!(harness.ec2_calls("StopInstances"), 2, "each worker was stopped once");
    assert_eq!(last_reconcile("w-2"), before, "the other worker was not reconciled");
    actor.stop().await;
}

/// The original control plane requests a synchronization with a key, and deletes the key when it is told to.
#[tokio::test]
async fn requested_synchronization_is_answered_and_cleared() {
    let harness = Harness::with_real_clock(Original).await;
    let actor = start_watching(&harness, &["w-1"], watch_only).await;
    let reports = || harness.control_plane_calls("report_cml_data");
    let before = reports();
    let key = "/lcm/workers/w-1/sync";
    let request = json!({"scope": "full", "include_labs": true, "reason": "stale", "requested_by": "alice"});
    harness.cloud.etcd().put(&Put::new(key.to_owned(), request.to_string())).expect("written");
    let is_cleared = || async {
        let found = harness.cloud.etcd().range(&Range::new(KeyRange::One(key.into()))).expect("a range");
        found.records.is_empty()
    };
    eventually("the request is cleared", is_cleared).await;
    assert_eq!(harness.control_plane_calls("clear_sync"), 1);
    assert!(reports() > before, "with fresh metrics");
    actor.stop().await;
}

#[rstest]
#[tokio::test]
async fn polling_finds_changes_when_watch_events_are_lost(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    let actor = start_watching(&harness, &["w-1"], |_| {}).await;
    harness.cloud.etcd().inject(Fault::WatchStall);
    request_stop(&harness, "w-1");
    wait_for_stop(&harness, "w-1").await;
    assert_eq!(harness.ec2_calls("StopInstances"), 2, "each worker was stopped once");
    assert_eq!(actor.telemetry.anomalies(Anomaly::WatchRelisted), 0, "the watch had not detected the stall yet");
    actor.stop().await;
}

#[rstest]
#[tokio::test]
async fn watch_recovers_from_stalls_cuts_and_compactions(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    let actor = start_watching(&harness, &["w-stall", "w-cut", "w-compact", "w-after"], watch_only).await;
    let etcd = harness.cloud.etcd();

    etcd.inject(Fault::WatchStall);
    request_stop(&harness, "w-stall");
    wait_for_stop(&harness, "w-stall").await;
    etcd.inject(Fault::WatchResume);
    assert!(actor.telemetry.anomalies(Anomaly::WatchRelisted) >= 1);

    etcd.inject(Fault::WatchCut);
    request_stop(&harness, "w-cut");
    wait_for_stop(&harness, "w-cut").await;

    etcd.inject(Fault::WatchStall);
    request_stop(&harness, "w-compact");
    etcd.inject(Fault::Compact);
    etcd.inject(Fault::WatchResume);
    wait_for_stop(&harness, "w-compact").await;

    request_stop(&harness, "w-after");
    wait_for_stop(&harness, "w-after").await;
    assert_eq!(harness.ec2_calls("StopInstances"), 5, "each worker was stopped once");
    assert_eq!(actor.telemetry.anomalies(Anomaly::WatchGivenUp), 0);
    actor.stop().await;
}

#[rstest]
#[tokio::test]
async fn polling_continues_after_the_watch_gives_up(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    let actor = start_watching(&harness, &["w-1", "w-2"], |config| config.watch = Some(fast_watch())).await;
    for prefix in ["/workers/", "/lcm/workers/"] {
        harness.inject(json!({
            "service": "etcd", "operation": "Range", "key_prefix": prefix,
            "action": {"kind": "error", "code": "unavailable"},
        }));
    }
    harness.cloud.etcd().inject(Fault::WatchCut);
    eventually("the watch has given up", || async { actor.controller.watch_state() == Some(WatchState::GivenUp) })
        .await;
    assert!(actor.telemetry.anomalies(Anomaly::WatchGivenUp) >= 1);
    assert_eq!(actor.controller.stats().watch, Some(WatchState::GivenUp));
    assert!(actor.telemetry.to_prometheus().contains(r#"kind="watch_given_up""#));
    assert!(actor.controller.lease().is_some(), "only the watch is affected");

    request_stop(&harness, "w-1");
    wait_for_stop(&harness, "w-1").await;
    let reported = actor.telemetry.anomalies(Anomaly::WatchGivenUp);
    assert!(reported <= 2, "reported once per prefix, not in every cycle: {reported}");

    harness.cloud.clear_faults();
    eventually("the watch is connected again", || async {
        actor.controller.watch_state() == Some(WatchState::Connected)
    })
    .await;
    request_stop(&harness, "w-2");
    wait_for_stop(&harness, "w-2").await;
    actor.stop().await;
}
