use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::providers::memory::MemoryCoordination;
use crate::telemetry::Anomaly;

struct Watching {
    etcd: MemoryCoordination,
    handle: WatchHandle,
    events: mpsc::UnboundedReceiver<WatchEvent>,
    telemetry: Telemetry,
    shutdown: Shutdown,
    task: tokio::task::JoinHandle<()>,
}

/// A watch that has begun.
async fn watching(etcd: &MemoryCoordination, config: WatchConfig) -> Watching {
    let prefixes = config.prefixes.len();
    let mut watching = starting(etcd, config);
    for _ in 0..prefixes {
        assert_eq!(next(&mut watching).await, WatchEvent::Resync(ResyncCause::Began));
    }
    watching
}

fn starting(etcd: &MemoryCoordination, config: WatchConfig) -> Watching {
    let (telemetry, shutdown) = (Telemetry::default(), Shutdown::new());
    let (watcher, handle) = Watcher::new(Arc::new(etcd.clone()), config, telemetry.clone());
    let (sender, events) = mpsc::unbounded_channel();
    let task = tokio::spawn(watcher.run(move |event| drop(sender.send(event)), shutdown.clone()));
    Watching { etcd: etcd.clone(), handle, events, telemetry, shutdown, task }
}

fn workers() -> WatchConfig {
    WatchConfig::new(["/workers/"])
}

async fn next(watching: &mut Watching) -> WatchEvent {
    let event = timeout(Duration::from_secs(300), watching.events.recv()).await;
    event.expect("an event within five minutes").expect("the watch runs")
}

async fn silence(watching: &mut Watching, duration: Duration) {
    let event = timeout(duration, watching.events.recv()).await;
    assert!(event.is_err(), "unexpected {event:?}");
}

fn changed(id: &str) -> WatchEvent {
    WatchEvent::Changed(id.to_owned())
}

async fn reached(watching: &Watching, state: WatchState) {
    let mut states = watching.handle.state();
    let reached = timeout(Duration::from_secs(600), states.wait_for(|now| *now == state)).await;
    drop(reached.expect("within ten minutes").expect("the watch runs"));
}

#[tokio::test(start_paused = true)]
async fn change_is_reported_at_once() {
    let etcd = MemoryCoordination::new();
    let mut watching = watching(&etcd, WatchConfig::default()).await;
    let begun = Instant::now();
    for number in 0..3 {
        etcd.put("/workers/w-1", &number.to_string());
        assert_eq!(next(&mut watching).await, changed("w-1"));
        etcd.put("/lcm/workers/w-2/desired_state", &number.to_string());
        assert_eq!(next(&mut watching).await, changed("w-2"));
        etcd.put("/elsewhere/w-3", "1");
    }
    assert_eq!(begun.elapsed(), Duration::ZERO, "no timer was waited for");
}

#[tokio::test(start_paused = true)]
async fn changes_during_a_lost_connection_are_reported() {
    let etcd = MemoryCoordination::new();
    etcd.put("/workers/old", "1");
    etcd.put("/workers/gone", "1");
    let mut watching = watching(&etcd, workers()).await;
    etcd.disconnect_watches();
    sleep(Duration::from_millis(100)).await;
    etcd.put("/workers/new", "1");
    etcd.delete("/workers/gone");
    let mut names = BTreeSet::new();
    while let Ok(Some(event)) = timeout(Duration::from_secs(60), watching.events.recv()).await {
        match event {
            WatchEvent::Changed(name) => names.insert(name),
            WatchEvent::Resync(cause) => panic!("nothing was hidden, yet {cause:?}"),
        };
    }
    let expected = BTreeSet::from(["gone".to_owned(), "new".to_owned()]);
    assert_eq!(names, expected, "deletions as well, and nothing that did not change");
    assert!(watching.telemetry.anomalies(Anomaly::WatchRelisted) >= 1);
}

#[tokio::test(start_paused = true)]
async fn silent_watch_is_probed_and_replaced() {
    let etcd = MemoryCoordination::new();
    let mut watching = watching(&etcd, workers()).await;
    silence(&mut watching, Duration::from_secs(3_600)).await;
    assert_eq!(watching.telemetry.anomalies(Anomaly::WatchRelisted), 0, "a server that responds to probes is kept");
    etcd.stall_watches();
    etcd.put("/workers/w-1", "1");
    let begun = Instant::now();
    assert_eq!(next(&mut watching).await, changed("w-1"), "found by the listing");
    assert!(begun.elapsed() < Duration::from_secs(40), "noticed after {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn compaction_that_hides_changes_leads_to_a_resync() {
    let etcd = MemoryCoordination::new();
    etcd.put("/workers/gone", "1");
    let mut watching = watching(&etcd, workers()).await;
    etcd.stall_watches();
    etcd.delete("/workers/gone");
    etcd.put("/elsewhere", "1");
    etcd.compact();
    etcd.resume_watches();
    assert_eq!(next(&mut watching).await, WatchEvent::Resync(ResyncCause::Compacted));
    etcd.put("/workers/w-1", "1");
    assert_eq!(next(&mut watching).await, changed("w-1"), "the watch goes on");
    while timeout(Duration::from_secs(60), watching.events.recv()).await.is_ok() {}
    etcd.compact();
    silence(&mut watching, Duration::from_secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn watch_that_gave_up_can_be_revived() {
    let etcd = MemoryCoordination::new();
    let config = WatchConfig { max_reconnect_attempts: 3, ..workers() };
    let mut watching = watching(&etcd, config).await;
    let begun = Instant::now();
    etcd.make_unavailable();
    reached(&watching, WatchState::GivenUp).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(1 + 2 + 3), "the delay grows by one delay with every attempt");
    for _ in 0..5 {
        watching.handle.reconnect();
        sleep(Duration::from_secs(30)).await;
    }
    assert_eq!(watching.telemetry.anomalies(Anomaly::WatchGivenUp), 1, "counted once");
    assert!(watching.telemetry.to_prometheus().contains("lcm_watch_connected 0"));
    etcd.make_available();
    etcd.put("/workers/w-1", "1");
    silence(&mut watching, Duration::from_secs(300)).await;
    watching.handle.reconnect();
    assert_eq!(next(&mut watching).await, changed("w-1"), "changes during the outage are reported");
    reached(&watching, WatchState::Connected).await;
    assert!(watching.telemetry.to_prometheus().contains("lcm_watch_connected 1"));
}

#[tokio::test(start_paused = true)]
async fn server_that_accepts_and_hangs_up_counts_as_failing() {
    let etcd = MemoryCoordination::new();
    let config = WatchConfig { max_reconnect_attempts: 3, ..workers() };
    let watching = watching(&etcd, config).await;
    let cutting = tokio::spawn(async move {
        loop {
            etcd.disconnect_watches();
            sleep(Duration::from_millis(10)).await;
        }
    });
    reached(&watching, WatchState::GivenUp).await;
    cutting.abort();
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_a_watch() {
    let etcd = MemoryCoordination::new();
    etcd.make_unavailable();
    let waiting = starting(&etcd, workers());
    sleep(Duration::from_secs(1)).await;
    waiting.shutdown.request();
    timeout(Duration::from_secs(1), waiting.task).await.expect("it stops while it waits").expect("no panic");
    etcd.make_available();
    let connected = watching(&etcd, workers()).await;
    connected.shutdown.request();
    timeout(Duration::from_secs(1), connected.task).await.expect("it stops while it watches").expect("no panic");
    assert!(connected.telemetry.to_prometheus().contains("lcm_watch_connected 0"));
    assert_eq!(connected.etcd.leases(), []);
}

#[tokio::test(start_paused = true)]
async fn idle_connections_that_end_now_and_then_are_tolerated() {
    let etcd = MemoryCoordination::new();
    let mut watching = watching(&etcd, workers()).await;
    for _ in 0..100 {
        sleep(Duration::from_secs(20)).await;
        etcd.disconnect_watches();
    }
    assert_eq!(watching.telemetry.anomalies(Anomaly::WatchGivenUp), 0);
    etcd.put("/workers/w-1", "1");
    assert_eq!(next(&mut watching).await, changed("w-1"));
}

#[test]
fn keys_without_a_segment_name_no_resource() {
    for key in ["/workers/", "/workers//", "/workers", "", "workers/w-1"] {
        assert_eq!(first_segment("/workers/", key.as_bytes()), None, "{key}");
    }
    assert_eq!(first_segment("/workers/", b"/workers/\xff"), None);
}
