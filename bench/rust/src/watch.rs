//! Delay from a change to the start of its reconcile, next to the delay of the etcd client's own watch.
//!
//! A real etcd holds one key per worker, and a writer changes one key after the other. The etcd client watches them on
//! its own connection and does nothing else. LCM's watch (without debounce) enqueues the worker, and LCM's controller
//! fetches it from memory and starts its reconcile. Both delays begin when the write is sent, in the same process and
//! over the same writes.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use etcd_client::{Client, EventType, Txn, TxnOp, WatchOptions};
use lcm_sdk::controller::{
    LeaderLease, ListRequest, Resource, ResourceList, Runner, Shutdown, WatchConfig, WatchEvent, WatchState, Watcher,
    WorkResult,
};
use lcm_sdk::providers::etcd::{Etcd, EtcdOptions};
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::{CallFailure, Worker};
use serde::Serialize;

use crate::controllers::{lcm::without_cycles, name, worker};
use crate::measure::Latency;
use crate::servers::Server;
use crate::{Error, report};

const PREFIX: &str = "/workers/";
const CONCURRENCY: usize = 10;
/// Below etcd's limit of operations in one transaction.
const KEYS_PER_TXN: usize = 100;
const SWEEP_LIMIT: Duration = Duration::from_secs(60);
/// Limit for the last events to arrive.
const PATIENCE: Duration = Duration::from_secs(10);
/// A prime: stepping by it visits every worker once, far from the one before.
const STRIDE: usize = 7919;

#[derive(Debug, Serialize)]
struct Measured {
    size: usize,
    writes: usize,
    /// From a write to the start of its reconcile.
    ours: Latency,
    /// From a write to its event in the etcd client.
    etcd: Latency,
    /// Difference of the two, write by write.
    over: Latency,
}

/// Times of the first change of one worker.
#[derive(Debug, Default)]
struct Change {
    sent: OnceLock<Instant>,
    received: OnceLock<Instant>,
    started: OnceLock<Instant>,
}

/// Reconciles that only record their start.
struct Fleet {
    workers: Vec<Arc<Worker>>,
    changes: Arc<[Change]>,
}

impl Resource for Fleet {
    type Object = Arc<Worker>;

    fn key<'a>(&self, worker: &'a Arc<Worker>) -> &'a str {
        worker.id.as_str()
    }

    async fn list(&self, _: &ListRequest) -> Result<ResourceList<Arc<Worker>>, CallFailure> {
        Ok(ResourceList::from(self.workers.clone()))
    }

    async fn fetch(&self, key: &str) -> Result<Option<Arc<Worker>>, CallFailure> {
        let found = number(key).and_then(|number| self.workers.get(number));
        Ok(found.cloned())
    }

    async fn reconcile(&self, worker: Arc<Worker>, _: LeaderLease) -> WorkResult {
        record(&self.changes, worker.id.as_str(), |change| &change.started);
        WorkResult::success()
    }
}

/// Measures `writes` writes, one per `pause`, over `size` workers.
///
/// # Errors
/// If etcd cannot be run, or a change is not received in time.
pub async fn run(size: usize, writes: usize, pause: Duration) -> Result<(), Error> {
    let server = Server::real().await?;
    let mut client = server.client().await?;
    fill(&mut client, size).await?;
    let changes: Arc<[Change]> = (0..size).map(|_| Change::default()).collect();

    let workers = (0..size).map(|number| Arc::new(worker(number))).collect();
    let fleet = Fleet { workers, changes: Arc::clone(&changes) };
    let controller = Runner::new(Arc::new(fleet), without_cycles(CONCURRENCY), Telemetry::default());
    let shutdown = Shutdown::new();
    let etcd = Arc::new(Etcd::new(EtcdOptions::new([server.endpoint.as_str()]))?);
    let config = WatchConfig::new([PREFIX]).with_debounce(Duration::ZERO);
    let (watcher, handle) = Watcher::new(etcd, config, Telemetry::default());
    let queue = controller.clone();
    let handler = move |event| {
        if let WatchEvent::Changed(worker) = event {
            queue.changed(&worker);
        }
    };
    tokio::spawn(watcher.run(handler, shutdown.clone()));
    tokio::spawn({
        let (controller, shutdown) = (controller.clone(), shutdown.clone());
        async move { controller.serve(&shutdown).await }
    });
    let swept = controller.sweep(SWEEP_LIMIT).await?;
    if !swept.is_complete() {
        return Err(format!("incomplete sweep: {swept:?}").into());
    }
    handle.state().wait_for(|state| *state == WatchState::Connected).await?;
    listen(server.client().await?, Arc::clone(&changes)).await?;

    let mut rhythm = tokio::time::interval(pause);
    let written: Vec<usize> = (0..writes).map(|write| write * STRIDE % size).collect();
    for number in &written {
        rhythm.tick().await;
        // Only the first write of a worker is measured.
        let _ = changes[*number].sent.set(Instant::now());
        client.put(format!("{PREFIX}{}", name(*number)), "changed", None).await?;
    }
    let deadline = Instant::now() + PATIENCE;
    let pending = || written.iter().filter(|number| changes[**number].spans().is_none()).count();
    while pending() > 0 {
        if Instant::now() > deadline {
            return Err(format!("{} of {writes} changes were not received", pending()).into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    shutdown.request();
    let spans: Vec<_> = written.iter().filter_map(|number| changes[*number].spans()).collect();
    report(&Measured {
        size,
        writes,
        ours: Latency::from_durations(spans.iter().map(|(ours, _)| *ours).collect()),
        etcd: Latency::from_durations(spans.iter().map(|(_, etcd)| *etcd).collect()),
        over: Latency::from_durations(spans.iter().map(|(ours, etcd)| ours.saturating_sub(*etcd)).collect()),
    })
}

impl Change {
    /// Delays from the write to the reconcile and to the etcd client's event.
    fn spans(&self) -> Option<(Duration, Duration)> {
        let sent = self.sent.get()?;
        Some((*self.started.get()? - *sent, *self.received.get()? - *sent))
    }
}

async fn fill(client: &mut Client, size: usize) -> Result<(), Error> {
    let numbers: Vec<usize> = (0..size).collect();
    for chunk in numbers.chunks(KEYS_PER_TXN) {
        let puts = chunk.iter().map(|number| TxnOp::put(format!("{PREFIX}{}", name(*number)), "new", None));
        client.txn(Txn::new().and_then(puts.collect::<Vec<_>>())).await?;
    }
    Ok(())
}

/// Watches with the etcd client itself.
async fn listen(mut client: Client, changes: Arc<[Change]>) -> Result<(), Error> {
    let mut stream = client.watch(PREFIX, Some(WatchOptions::new().with_prefix())).await?;
    // The first message confirms the watch.
    stream.message().await?;
    tokio::spawn(async move {
        let _client = client;
        while let Ok(Some(message)) = stream.message().await {
            for event in message.events().iter().filter(|event| event.event_type() == EventType::Put) {
                let key = event.kv().and_then(|found| found.key_str().ok());
                if let Some(key) = key.and_then(|key| key.strip_prefix(PREFIX)) {
                    record(&changes, key, |change| &change.received);
                }
            }
        }
    });
    Ok(())
}

/// Records the time of the first event of a worker after its write.
fn record(changes: &[Change], key: &str, which: impl Fn(&Change) -> &OnceLock<Instant>) {
    let change = number(key).and_then(|number| changes.get(number));
    if let Some(change) = change.filter(|change| change.sent.get().is_some()) {
        // Later events of the same worker do not count.
        let _ = which(change).set(Instant::now());
    }
}

fn number(key: &str) -> Option<usize> {
    key.rsplit('-').next()?.parse().ok()
}
