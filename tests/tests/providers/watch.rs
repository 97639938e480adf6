//! Watches over sockets, with the fake cloud's etcd and a real one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fake_cloud::etcd::Fault;
use fake_cloud::{FakeCloud, Pace};
use lcm_sdk::controller::{ResyncCause, Shutdown, WatchConfig, WatchEvent, WatchHandle, WatchState, Watcher};
use lcm_sdk::providers::etcd::{Etcd, EtcdOptions};
use lcm_sdk::telemetry::{Anomaly, Telemetry};
use lcm_tests::etcd::{Keys, PATIENCE, RealEtcd};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

struct RunningWatch {
    handle: WatchHandle,
    events: mpsc::UnboundedReceiver<WatchEvent>,
    /// Names reported so far: a lost connection may report a change a second time.
    reported: BTreeSet<String>,
    telemetry: Telemetry,
    shutdown: Shutdown,
    task: tokio::task::JoinHandle<()>,
}

/// Starts a watcher with short timeouts, and waits until it is connected and its first resyncs are reported.
async fn start_watch(endpoint: &str) -> RunningWatch {
    let config = WatchConfig::default()
        .with_silence(Duration::from_secs(1))
        .with_probe_timeout(Duration::from_secs(3))
        .with_reconnect_delay(Duration::from_millis(100))
        .with_max_reconnect_attempts(3);
    let mut options = EtcdOptions::new([endpoint]);
    options.call_timeout = Duration::from_secs(2);
    let etcd = Arc::new(Etcd::new(options).expect("valid options"));
    let (telemetry, shutdown) = (Telemetry::default(), Shutdown::new());
    let (watcher, handle) = Watcher::new(etcd, config, telemetry.clone());
    let (sender, events) = mpsc::unbounded_channel();
    let task = tokio::spawn(watcher.run(move |event| drop(sender.send(event)), shutdown.clone()));
    let mut watching = RunningWatch { handle, events, reported: BTreeSet::new(), telemetry, shutdown, task };
    wait_for_state(&watching, WatchState::Connected).await;
    assert_eq!(next(&mut watching).await, WatchEvent::Resync(ResyncCause::Began));
    while let Ok(event) = timeout(Duration::from_millis(800), next(&mut watching)).await {
        assert_eq!(event, WatchEvent::Resync(ResyncCause::Began));
    }
    watching
}

async fn next(watching: &mut RunningWatch) -> WatchEvent {
    timeout(PATIENCE, watching.events.recv()).await.expect("reported in time").expect("the watch runs")
}

/// Waits until all of these names were reported. Other names are accepted only if they were reported before.
async fn wait_for_changes(watching: &mut RunningWatch, ids: &[&str]) {
    let mut missing: BTreeSet<_> = ids.iter().map(|id| (*id).to_owned()).collect();
    while !missing.is_empty() {
        match next(watching).await {
            WatchEvent::Changed(id) => {
                assert!(ids.contains(&id.as_str()) || watching.reported.contains(&id), "{id} did not change");
                missing.remove(&id);
                watching.reported.insert(id);
            }
            WatchEvent::Resync(cause) => panic!("unexpected resync: {cause:?}"),
        }
    }
}

fn is_change(event: &WatchEvent, expected: &str) -> bool {
    match event {
        WatchEvent::Changed(id) => id == expected,
        WatchEvent::Resync(_) => false,
    }
}

/// Changes a key until the change is reported.
async fn assert_continues(watching: &mut RunningWatch, keys: &Keys) {
    let reported = async {
        loop {
            keys.put("/workers/afterwards", "1").await;
            if timeout(Duration::from_secs(2), next(watching)).await.is_ok_and(|event| is_change(&event, "afterwards"))
            {
                return;
            }
        }
    };
    timeout(PATIENCE, reported).await.expect("the watch continues");
}

async fn wait_for_state(watching: &RunningWatch, state: WatchState) {
    let mut states = watching.handle.state();
    let reached = timeout(PATIENCE, states.wait_for(|now| *now == state)).await;
    drop(reached.expect("in time").expect("a running watch"));
}

async fn fake_cloud() -> (FakeCloud, String) {
    let cloud = FakeCloud::builder().pace(Pace::Real).start().await.expect("started");
    let endpoint = cloud.endpoints().etcd_endpoint.clone();
    (cloud, endpoint)
}

/// Changes and deletions are reported by name.
async fn assert_changes_are_reported(endpoint: &str) {
    let keys = Keys::connect(endpoint).await;
    keys.put("/workers/old", "1").await;
    let mut watching = start_watch(endpoint).await;
    let before = Instant::now();
    for value in 0..50 {
        keys.put("/workers/w-1", &value.to_string()).await;
        keys.put("/lcm/workers/w-2/desired_state", &value.to_string()).await;
        keys.put("/sessions/s-1", "1").await;
    }
    wait_for_changes(&mut watching, &["w-1", "w-2"]).await;
    assert!(before.elapsed() < Duration::from_secs(15), "reported after {:?}", before.elapsed());
    keys.delete("/workers/old").await;
    let deleted = async {
        // Repeated changes of the other keys come first.
        while !is_change(&next(&mut watching).await, "old") {}
    };
    timeout(PATIENCE, deleted).await.expect("a deletion is reported");
    watching.shutdown.request();
    timeout(PATIENCE, watching.task).await.expect("stopped in time").expect("no panic");
}

#[tokio::test]
async fn changes_are_reported_on_the_fake_cloud() {
    let (_cloud, endpoint) = fake_cloud().await;
    assert_changes_are_reported(&endpoint).await;
}

#[tokio::test]
async fn changes_are_reported_on_a_real_etcd() {
    assert_changes_are_reported(&RealEtcd::start().await.endpoint()).await;
}

#[tokio::test]
async fn changes_survive_disconnected_watches() {
    let (cloud, endpoint) = fake_cloud().await;
    let keys = Keys::connect(&endpoint).await;
    keys.put("/workers/gone", "1").await;
    keys.put("/workers/same", "1").await;
    let mut watching = start_watch(&endpoint).await;
    for round in ["a", "b", "c"] {
        cloud.etcd().inject(Fault::WatchCut);
        keys.put(&format!("/workers/{round}"), "1").await;
        wait_for_changes(&mut watching, &[round]).await;
    }
    cloud.etcd().inject(Fault::WatchCut);
    keys.delete("/workers/gone").await;
    wait_for_changes(&mut watching, &["gone"]).await;
    assert!(watching.telemetry.anomalies(Anomaly::WatchRelisted) >= 1);
}

#[tokio::test]
async fn changes_survive_stalled_watches() {
    let (cloud, endpoint) = fake_cloud().await;
    let keys = Keys::connect(&endpoint).await;
    let mut watching = start_watch(&endpoint).await;
    // Long enough for a successful probe.
    sleep(Duration::from_millis(2_500)).await;
    assert_eq!(watching.telemetry.anomalies(Anomaly::WatchRelisted), 0, "a silent watch was reconnected");
    cloud.etcd().inject(Fault::WatchStall);
    keys.put("/workers/w-1", "1").await;
    wait_for_changes(&mut watching, &["w-1"]).await;
    cloud.etcd().inject(Fault::WatchResume);
    keys.put("/workers/w-1", "2").await;
    wait_for_changes(&mut watching, &["w-1"]).await;
}

#[tokio::test]
async fn compaction_that_hides_changes_leads_to_a_resync() {
    let (cloud, endpoint) = fake_cloud().await;
    let keys = Keys::connect(&endpoint).await;
    keys.put("/workers/gone", "1").await;
    let mut watching = start_watch(&endpoint).await;
    cloud.etcd().inject(Fault::WatchStall);
    keys.delete("/workers/gone").await;
    keys.put("/elsewhere", "1").await;
    cloud.etcd().inject(Fault::Compact);
    cloud.etcd().inject(Fault::WatchResume);
    let resync = async { while next(&mut watching).await != WatchEvent::Resync(ResyncCause::Compacted) {} };
    timeout(PATIENCE, resync).await.expect("a resync");
    assert_continues(&mut watching, &keys).await;
}

#[tokio::test]
async fn watch_that_gave_up_can_be_revived() {
    let (cloud, endpoint) = fake_cloud().await;
    let keys = Keys::connect(&endpoint).await;
    let mut watching = start_watch(&endpoint).await;
    cloud.etcd().inject(Fault::Unavailable);
    cloud.etcd().inject(Fault::WatchCut);
    wait_for_state(&watching, WatchState::GivenUp).await;
    let polling = {
        let handle = watching.handle.clone();
        tokio::spawn(async move {
            loop {
                sleep(Duration::from_millis(200)).await;
                handle.reconnect();
            }
        })
    };
    sleep(Duration::from_secs(2)).await;
    assert!(watching.telemetry.anomalies(Anomaly::WatchGivenUp) <= 2, "counted once for each prefix");
    cloud.etcd().inject(Fault::Available);
    keys.put("/workers/w-1", "1").await;
    wait_for_changes(&mut watching, &["w-1"]).await;
    wait_for_state(&watching, WatchState::Connected).await;
    polling.abort();
}

#[tokio::test]
async fn replaced_store_leads_to_a_resync() {
    let (cloud, endpoint) = fake_cloud().await;
    let keys = Keys::connect(&endpoint).await;
    for _ in 0..20 {
        keys.put("/workers/w-1", "1").await;
    }
    let mut watching = start_watch(&endpoint).await;
    cloud.etcd().reset();
    cloud.etcd().inject(Fault::WatchCut);
    let resync = async { while next(&mut watching).await != WatchEvent::Resync(ResyncCause::Rewound) {} };
    timeout(PATIENCE, resync).await.expect("a resync");
    // A watch from the old revision would wait for a revision that the new store has not reached.
    assert_continues(&mut watching, &keys).await;
}

#[tokio::test]
async fn changes_survive_a_killed_or_paused_etcd() {
    let mut etcd = RealEtcd::start().await;
    let keys = Keys::connect(&etcd.endpoint()).await;
    keys.put("/workers/gone", "1").await;
    let mut watching = start_watch(&etcd.endpoint()).await;
    etcd.kill();
    sleep(Duration::from_millis(300)).await;
    etcd.restart().await;
    Keys::connect(&etcd.endpoint()).await.delete("/workers/gone").await;
    watching.handle.reconnect();
    wait_for_changes(&mut watching, &["gone"]).await;
    etcd.pause();
    sleep(Duration::from_secs(4)).await;
    etcd.resume();
    Keys::connect(&etcd.endpoint()).await.put("/workers/w-1", "1").await;
    watching.handle.reconnect();
    wait_for_changes(&mut watching, &["w-1"]).await;
}
