use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::providers::memory::MemoryCoordination;
use crate::telemetry::Anomaly;

struct Watching {
    etcd: MemoryCoordination,
    handle: WatchHandle,
    notices: mpsc::Receiver<WatchNotice<String>>,
    telemetry: Telemetry,
    shutdown: Shutdown,
    task: tokio::task::JoinHandle<()>,
}

/// A watcher that has begun.
async fn watching(etcd: &MemoryCoordination, config: WatchConfig) -> Watching {
    let mut watching = starting(etcd, config);
    assert_eq!(next(&mut watching).await, WatchNotice::Resync(ResyncCause::Began));
    watching
}

fn starting(etcd: &MemoryCoordination, config: WatchConfig) -> Watching {
    let (telemetry, shutdown) = (Telemetry::default(), Shutdown::new());
    let (watcher, handle, notices) = Watcher::new(Arc::new(etcd.clone()), config, telemetry.clone(), first_segment);
    let task = tokio::spawn(watcher.run(shutdown.clone()));
    Watching { etcd: etcd.clone(), handle, notices, telemetry, shutdown, task }
}

async fn next(watching: &mut Watching) -> WatchNotice<String> {
    let notice = timeout(Duration::from_secs(300), watching.notices.recv()).await;
    notice.expect("told within five minutes").expect("it still runs")
}

async fn silence(watching: &mut Watching, long: Duration) {
    let heard = timeout(long, watching.notices.recv()).await;
    assert!(heard.is_err(), "there is nothing to tell, yet {heard:?}");
}

fn changed(ids: &[&str]) -> WatchNotice<String> {
    WatchNotice::Changed(ids.iter().map(|id| (*id).to_owned()).collect())
}

async fn reached(watching: &Watching, state: WatchState) {
    let mut states = watching.handle.state();
    let reached = timeout(Duration::from_secs(600), states.wait_for(|now| *now == state)).await;
    drop(reached.expect("within ten minutes").expect("it still runs"));
}

#[tokio::test(start_paused = true)]
async fn the_window_begins_with_the_first_change_and_a_flood_is_one_name() {
    let etcd = MemoryCoordination::new();
    let mut watching = watching(&etcd, WatchConfig::default()).await;
    let begun = Instant::now();
    etcd.put("/workers/w-1", "1");
    let flood = tokio::spawn({
        let etcd = etcd.clone();
        async move {
            for _ in 0..100 {
                etcd.put("/workers/w-1", "2");
                etcd.put("/lcm/workers/w-2/desired_state", "2");
                etcd.put("/elsewhere/w-3", "2");
                sleep(Duration::from_millis(40)).await;
            }
        }
    });
    for _ in 0..8 {
        assert_eq!(next(&mut watching).await, changed(&["w-1", "w-2"]));
    }
    assert!(begun.elapsed() >= Duration::from_secs(4), "eight windows in {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(5), "changes that go on do not put it off: {:?}", begun.elapsed());
    flood.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn without_a_debounce_a_change_is_told_at_once() {
    let etcd = MemoryCoordination::new();
    let mut watching = watching(&etcd, WatchConfig { debounce: Duration::ZERO, ..WatchConfig::default() }).await;
    let begun = Instant::now();
    for number in 0..3 {
        etcd.put("/workers/w-1", &number.to_string());
        assert_eq!(next(&mut watching).await, changed(&["w-1"]));
    }
    assert_eq!(begun.elapsed(), Duration::ZERO, "no timer was waited for");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_lost_when_the_watch_is_cut() {
    let etcd = MemoryCoordination::new();
    etcd.put("/workers/old", "1");
    etcd.put("/workers/gone", "1");
    let mut watching = watching(&etcd, WatchConfig::default()).await;
    etcd.cut_watches();
    sleep(Duration::from_millis(100)).await;
    etcd.put("/workers/new", "1");
    etcd.delete("/workers/gone");
    assert_eq!(next(&mut watching).await, changed(&["gone", "new"]), "deletions too, and nothing that did not change");
    silence(&mut watching, Duration::from_secs(60)).await;
    assert!(watching.telemetry.anomalies(Anomaly::WatchRelisted) >= 1);
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_probed_and_replaced() {
    let etcd = MemoryCoordination::new();
    let mut watching = watching(&etcd, WatchConfig::default()).await;
    silence(&mut watching, Duration::from_secs(3_600)).await;
    assert_eq!(watching.telemetry.anomalies(Anomaly::WatchRelisted), 0, "a server that answers probes is left alone");
    etcd.stall_watches();
    etcd.put("/workers/w-1", "1");
    let begun = Instant::now();
    assert_eq!(next(&mut watching).await, changed(&["w-1"]), "the listing shows it");
    assert!(begun.elapsed() < Duration::from_secs(40), "noticed after {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_compaction_that_hides_something_is_told() {
    let etcd = MemoryCoordination::new();
    etcd.put("/workers/gone", "1");
    let mut watching = watching(&etcd, WatchConfig::default()).await;
    etcd.stall_watches();
    etcd.delete("/workers/gone");
    etcd.put("/elsewhere", "1");
    etcd.compact();
    etcd.resume_watches();
    assert_eq!(next(&mut watching).await, WatchNotice::Resync(ResyncCause::Compacted));
    etcd.put("/workers/w-1", "1");
    assert_eq!(next(&mut watching).await, changed(&["w-1"]), "and it goes on");
    etcd.compact();
    silence(&mut watching, Duration::from_secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn it_gives_up_says_so_once_and_can_be_revived() {
    let etcd = MemoryCoordination::new();
    let config = WatchConfig { max_reconnect_attempts: 3, ..WatchConfig::new(["/workers/"]) };
    let mut watching = watching(&etcd, config).await;
    let begun = Instant::now();
    etcd.make_unavailable();
    reached(&watching, WatchState::GivenUp).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(1 + 2 + 3), "the delay grows by one delay with every attempt");
    for _ in 0..5 {
        watching.handle.revive();
        sleep(Duration::from_secs(30)).await;
    }
    assert_eq!(watching.telemetry.anomalies(Anomaly::WatchGivenUp), 1);
    assert!(watching.telemetry.to_prometheus().contains("lcm_watch_connected 0"));
    etcd.make_available();
    etcd.put("/workers/w-1", "1");
    silence(&mut watching, Duration::from_secs(300)).await;
    watching.handle.revive();
    assert_eq!(next(&mut watching).await, changed(&["w-1"]), "what changed meanwhile is told");
    reached(&watching, WatchState::Connected).await;
    assert!(watching.telemetry.to_prometheus().contains("lcm_watch_connected 1"));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_accepts_and_hangs_up_counts_as_failing() {
    let etcd = MemoryCoordination::new();
    let config = WatchConfig { max_reconnect_attempts: 3, ..WatchConfig::new(["/workers/"]) };
    let watching = watching(&etcd, config).await;
    let cutting = tokio::spawn(async move {
        loop {
            etcd.cut_watches();
            sleep(Duration::from_millis(10)).await;
        }
    });
    reached(&watching, WatchState::GivenUp).await;
    cutting.abort();
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_sleeps_finds_a_resync_and_not_an_endless_list() {
    let etcd = MemoryCoordination::new();
    let config = WatchConfig { most_pending: 10, ..WatchConfig::default() };
    let mut watching = watching(&etcd, config).await;
    for round in 0..40 {
        for worker in 0..5 {
            etcd.put(&format!("/workers/w-{round}-{worker}"), "1");
        }
        sleep(Duration::from_secs(1)).await;
    }
    for _ in 0..NOTICES {
        assert!(matches!(next(&mut watching).await, WatchNotice::Changed(ids) if ids.len() == 5));
    }
    assert_eq!(next(&mut watching).await, WatchNotice::Resync(ResyncCause::TooMany));
}

#[tokio::test(start_paused = true)]
async fn it_stops_when_asked_and_when_nobody_listens() {
    let etcd = MemoryCoordination::new();
    etcd.make_unavailable();
    let waiting = starting(&etcd, WatchConfig::default());
    sleep(Duration::from_secs(1)).await;
    waiting.shutdown.request();
    timeout(Duration::from_secs(1), waiting.task).await.expect("it stops while it waits").expect("no panic");
    etcd.make_available();
    let unheard = watching(&etcd, WatchConfig::default()).await;
    drop(unheard.notices);
    timeout(Duration::from_secs(1), unheard.task).await.expect("it stops when nobody listens").expect("no panic");
    assert!(unheard.telemetry.to_prometheus().contains("lcm_watch_connected 0"));
    assert_eq!(unheard.etcd.leases(), []);
}

#[tokio::test(start_paused = true)]
async fn quiet_connections_that_are_ended_now_and_then_are_no_reason_to_give_up() {
    let etcd = MemoryCoordination::new();
    let mut watching = watching(&etcd, WatchConfig::default()).await;
    for _ in 0..100 {
        sleep(Duration::from_secs(20)).await;
        etcd.cut_watches();
    }
    assert_eq!(watching.telemetry.anomalies(Anomaly::WatchGivenUp), 0);
    etcd.put("/workers/w-1", "1");
    assert_eq!(next(&mut watching).await, changed(&["w-1"]));
}

#[test]
fn odd_keys_name_nobody() {
    for key in ["/workers/", "/workers//", "/workers", "", "workers/w-1"] {
        assert_eq!(first_segment("/workers/", key.as_bytes()), None, "{key}");
    }
    assert_eq!(first_segment("/workers/", b"/workers/\xff"), None);
}
