//! Watching keys, and telling which resources changed.

mod config;
mod connection;
mod pending;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures_util::future::join_all;
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep_until;

use self::connection::Connection;
use self::pending::Pending;
use self::state::States;
use crate::controller::shutdown::Shutdown;
use crate::ports::Coordination;
use crate::telemetry::Telemetry;

pub use self::config::WatchConfig;

/// How many notices wait for somebody to take them. What changes meanwhile is collected.
const NOTICES: usize = 16;

/// Which resource a key under a prefix speaks of, if any.
type KeyReader<K> = dyn Fn(&str, &[u8]) -> Option<K> + Send + Sync;

/// What a watcher tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchNotice<K> {
    /// These resources changed, each named once.
    Changed(Vec<K>),
    /// Anything may have changed: look at everything.
    Resync(ResyncCause),
}

/// Why everything has to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResyncCause {
    /// The watch began: what changed before it did is not known. Whoever looks at everything anyway when it starts can
    /// pass over it, if it starts later than this arrives.
    Began,
    /// The server forgot what happened while nobody watched.
    Compacted,
    /// The server went back in time: it was restored from a backup, or is another one.
    Rewound,
    /// More changed than can be remembered one by one.
    TooMany,
}

/// How a watch is doing; of several prefixes, the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchState {
    /// It hears what changes.
    Connected,
    /// It is trying to.
    Connecting,
    /// It has tried often enough and waits to be revived.
    GivenUp,
}

/// Watches prefixes and tells which resources changed, in batches.
///
/// # Flow
/// List at revision *r*, watch from *r + 1*; when the watch is lost, list again and go on behind what was seen. Changes
/// are collected for a debounce window that begins with the first of them.
///
/// # Guarantees
/// - A change is told, or a [`WatchNotice::Resync`] is: across ended streams, silent servers and compactions.
/// - A resource is named once per batch, however often it changed.
/// - Whoever takes notices slowly slows nobody else down: memory is bounded, and too much becomes a resync.
/// - It gives up after some attempts, says so once, and tries again whenever it is revived.
///
/// # Assumptions
/// Somebody polls as well: a watch makes things fast, not certain.
///
/// ```
/// use std::sync::Arc;
/// use lcm_sdk::providers::memory::MemoryCoordination;
/// use lcm_sdk::controller::shutdown::Shutdown;
/// use lcm_sdk::telemetry::Telemetry;
/// use lcm_sdk::controller::watch::{WatchConfig, WatchNotice, Watcher};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// let etcd = MemoryCoordination::new();
/// let second_segment = |prefix: &str, key: &[u8]| {
///     let rest = key.strip_prefix(prefix.as_bytes())?;
///     String::from_utf8(rest.to_vec()).ok()
/// };
/// let config = WatchConfig::new(["/workers/"]);
/// let (watcher, _handle, mut notices) =
///     Watcher::new(Arc::new(etcd.clone()), config, Telemetry::default(), second_segment);
/// tokio::spawn(watcher.run(Shutdown::new()));
/// assert!(matches!(notices.recv().await, Some(WatchNotice::Resync(_))));
/// etcd.put("/workers/w-1", "stopped");
/// assert_eq!(notices.recv().await, Some(WatchNotice::Changed(vec!["w-1".to_owned()])));
/// # });
/// ```
pub struct Watcher<K> {
    coordination: Arc<dyn Coordination>,
    config: WatchConfig,
    telemetry: Telemetry,
    reader: Box<KeyReader<K>>,
    notices: mpsc::Sender<WatchNotice<K>>,
    states: Arc<States>,
}

/// The outside of a watcher. Clones are the same.
#[derive(Debug, Clone)]
pub struct WatchHandle {
    states: Arc<States>,
}

impl<K: Ord + Send + 'static> Watcher<K> {
    /// A watcher, its handle, and what it will tell. `reader` says which resource a key under a prefix speaks of.
    pub fn new(
        coordination: Arc<dyn Coordination>,
        config: WatchConfig,
        telemetry: Telemetry,
        reader: impl Fn(&str, &[u8]) -> Option<K> + Send + Sync + 'static,
    ) -> (Self, WatchHandle, mpsc::Receiver<WatchNotice<K>>) {
        let (notices, receiver) = mpsc::channel(NOTICES);
        let states = Arc::new(States::new(config.prefixes.len(), telemetry.clone()));
        let handle = WatchHandle { states: Arc::clone(&states) };
        (Self { coordination, config, telemetry, reader: Box::new(reader), notices, states }, handle, receiver)
    }

    /// Watches until it is asked to stop, or nobody listens any more.
    ///
    /// # Cancel safety
    /// Can be dropped at any time; what was collected and not told is lost.
    pub async fn run(self, shutdown: Shutdown) {
        let pending = Pending::new(self.config.most_pending);
        let connections = self.config.prefixes.iter().enumerate().map(|(number, prefix)| Connection {
            number,
            prefix,
            coordination: &*self.coordination,
            config: &self.config,
            reader: &*self.reader,
            pending: &pending,
            states: &self.states,
            telemetry: &self.telemetry,
        });
        let connections: Vec<_> = connections.collect();
        tokio::select! {
            biased;
            () = shutdown.requested() => {}
            () = self.tell(&pending) => {}
            _ = join_all(connections.iter().map(Connection::keep)) => {}
        }
    }

    /// Tells what was collected, one window after the other, until nobody listens.
    async fn tell(&self, pending: &Pending<K>) {
        loop {
            let first = tokio::select! {
                biased;
                first = pending.first() => first,
                () = self.notices.closed() => return,
            };
            // The timer counts in milliseconds: whoever wants no debounce is not to wait for the next one.
            if !self.config.debounce.is_zero() {
                sleep_until(first + self.config.debounce).await;
            }
            // Room first: what changes while nobody takes anything joins the batch.
            let Ok(room) = self.notices.reserve().await else { return };
            if let Some(notice) = pending.take() {
                room.send(notice);
            }
        }
    }
}

/// However it ends, it is not connected any more.
impl<K> Drop for Watcher<K> {
    fn drop(&mut self) {
        self.telemetry.set_watch_disconnected();
    }
}

impl<K> std::fmt::Debug for Watcher<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher").field("config", &self.config).finish_non_exhaustive()
    }
}

impl WatchHandle {
    /// How it is doing, and every change of that.
    pub fn state(&self) -> watch::Receiver<WatchState> {
        self.states.subscribe()
    }

    /// Has every prefix that has given up try once more. Others do not notice.
    pub fn revive(&self) {
        self.states.revive();
    }
}

/// The resource a key speaks of: the first segment after the prefix. Both layouts are understood, one key for a resource
/// and a folder for a resource.
///
/// ```
/// use lcm_sdk::controller::watch::first_segment;
///
/// assert_eq!(first_segment("/workers/", b"/workers/w-1"), Some("w-1".to_owned()));
/// assert_eq!(first_segment("/lcm/workers/", b"/lcm/workers/w-1/desired_state"), Some("w-1".to_owned()));
/// assert_eq!(first_segment("/workers/", b"/sessions/s-1"), None);
/// ```
pub fn first_segment(prefix: &str, key: &[u8]) -> Option<String> {
    let rest = std::str::from_utf8(key).ok()?.strip_prefix(prefix)?;
    let id = rest.trim_start_matches('/').split('/').next()?;
    Some(id).filter(|id| !id.is_empty()).map(str::to_owned)
}
