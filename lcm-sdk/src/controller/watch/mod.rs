//! Watches key prefixes and reports which resources changed.

mod connection;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{Notify, watch};

use self::connection::Connection;
use crate::controller::shutdown::Shutdown;
use crate::ports::Coordination;
use crate::telemetry::Telemetry;

/// Settings of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchConfig {
    /// Key prefixes. Each has a watch of its own.
    pub prefixes: Vec<String>,
    /// Time for which changes of a resource are collected, from the first one on, before it is reconciled.
    pub debounce: Duration,
    /// Time without a message after which the server is probed.
    pub silence: Duration,
    /// Time that the response to a probe may take.
    pub probe_timeout: Duration,
    /// Delay before the first reconnect. It grows by this much with every further attempt.
    pub reconnect_delay: Duration,
    /// Attempts in a row after which the watch gives up until it is revived.
    pub max_reconnect_attempts: u32,
    /// Number of resources in their debounce above which everything is listed instead.
    pub max_pending: usize,
}

impl WatchConfig {
    /// Default settings for these prefixes.
    pub fn new<P: Into<String>>(prefixes: impl IntoIterator<Item = P>) -> Self {
        Self { prefixes: prefixes.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Sets the key prefixes.
    #[must_use]
    pub fn with_prefixes<P: Into<String>>(self, prefixes: impl IntoIterator<Item = P>) -> Self {
        Self { prefixes: prefixes.into_iter().map(Into::into).collect(), ..self }
    }

    /// Sets the time for which changes of a resource are collected before it is reconciled.
    #[must_use]
    pub fn with_debounce(self, debounce: Duration) -> Self {
        Self { debounce, ..self }
    }

    /// Sets the time without a message after which the server is probed.
    #[must_use]
    pub fn with_silence(self, silence: Duration) -> Self {
        Self { silence, ..self }
    }

    /// Sets the time that the response to a probe may take.
    #[must_use]
    pub fn with_probe_timeout(self, probe_timeout: Duration) -> Self {
        Self { probe_timeout, ..self }
    }

    /// Sets the delay before the first reconnect.
    #[must_use]
    pub fn with_reconnect_delay(self, reconnect_delay: Duration) -> Self {
        Self { reconnect_delay, ..self }
    }

    /// Sets the attempts in a row after which the watch gives up until it is revived.
    #[must_use]
    pub fn with_max_reconnect_attempts(self, max_reconnect_attempts: u32) -> Self {
        Self { max_reconnect_attempts, ..self }
    }

    /// Sets the number of resources in their debounce above which everything is listed instead.
    #[must_use]
    pub fn with_max_pending(self, max_pending: usize) -> Self {
        Self { max_pending, ..self }
    }
}

impl Default for WatchConfig {
    fn default() -> Self {
        Self {
            prefixes: vec!["/workers/".to_owned(), "/lcm/workers/".to_owned()],
            debounce: Duration::from_millis(500),
            silence: Duration::from_secs(30),
            probe_timeout: Duration::from_secs(5),
            reconnect_delay: Duration::from_secs(1),
            max_reconnect_attempts: 10,
            max_pending: 10_000,
        }
    }
}

impl<const N: usize> From<[&str; N]> for WatchConfig {
    fn from(prefixes: [&str; N]) -> Self {
        Self::new(prefixes)
    }
}

/// Event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// The resource of this name changed.
    Changed(String),
    /// Any resource may have changed: list everything.
    Resync(ResyncCause),
}

/// Why everything has to be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResyncCause {
    /// The watch began; earlier changes are unknown. A controller that lists everything later on can ignore it.
    Began,
    /// The server compacted changes that were not delivered.
    Compacted,
    /// The revision of the server went backwards: it was restored from a backup, or is another cluster.
    Rewound,
    /// More resources changed than are kept one by one.
    TooMany,
}

/// State of a watch; of several prefixes, the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchState {
    /// Changes are reported as they happen.
    Connected,
    /// The watch connects, or connects again.
    Connecting,
    /// The watch has given up until it is revived; polling goes on.
    GivenUp,
}

/// Reads the name of a resource from a prefix and a key below it.
type KeyReader = dyn Fn(&str, &[u8]) -> Option<String> + Send + Sync;

/// Watches prefixes and reports which resources changed.
///
/// # Flow
/// List at revision *r*, watch from *r + 1*. When the watch is lost, list again and continue after the last revision
/// seen. Every event goes to the handler at once; the queue debounces and deduplicates.
///
/// # Guarantees
/// - Every change is reported, by name or as a [`WatchEvent::Resync`]: across ended streams, silent servers and
///   compactions.
/// - After some failed attempts the watch gives up, logs that once, and connects again whenever it is revived.
///
/// # Assumptions
/// The controller polls as well: a watch reduces latency, and does not replace polling.
///
/// ```
/// use std::sync::Arc;
/// use lcm_sdk::providers::memory::MemoryCoordination;
/// use lcm_sdk::controller::{ResyncCause, Shutdown, WatchConfig, WatchEvent, Watcher};
/// use lcm_sdk::telemetry::Telemetry;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// let etcd = MemoryCoordination::new();
/// let (watcher, _handle) =
///     Watcher::new(Arc::new(etcd.clone()), WatchConfig::new(["/workers/"]), Telemetry::default());
/// let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
/// tokio::spawn(watcher.run(move |event| drop(sender.send(event)), Shutdown::new()));
/// assert_eq!(events.recv().await, Some(WatchEvent::Resync(ResyncCause::Began)));
/// etcd.put("/workers/w-1", "stopped");
/// assert_eq!(events.recv().await, Some(WatchEvent::Changed("w-1".to_owned())));
/// # });
/// ```
pub struct Watcher {
    coordination: Arc<dyn Coordination>,
    config: WatchConfig,
    telemetry: Telemetry,
    key_reader: Arc<KeyReader>,
    states: Arc<States>,
}

/// Handle to a running watch. Clones share one watch.
#[derive(Debug, Clone)]
pub struct WatchHandle {
    states: Arc<States>,
}

impl Watcher {
    /// Creates a watch that reads names with [`first_segment`].
    pub fn new(coordination: Arc<dyn Coordination>, config: WatchConfig, telemetry: Telemetry) -> (Self, WatchHandle) {
        let states = Arc::new(States::new(config.prefixes.len(), telemetry.clone()));
        let handle = WatchHandle { states: Arc::clone(&states) };
        (Self { coordination, config, telemetry, key_reader: Arc::new(first_segment), states }, handle)
    }

    /// Reads the names of resources with another function of prefix and key. Keys without a name are ignored. It is called
    /// with every key that changes, and with all keys when the watch begins.
    #[must_use]
    pub fn with_key_reader(mut self, reader: impl Fn(&str, &[u8]) -> Option<String> + Send + Sync + 'static) -> Self {
        self.key_reader = Arc::new(reader);
        self
    }

    /// Watches until the shutdown is requested. The handler is called in the order of events and must not block.
    ///
    /// # Cancel safety
    /// Can be dropped at any time.
    pub async fn run(self, handler: impl Fn(WatchEvent) + Send + Sync, shutdown: Shutdown) {
        let connections = self.config.prefixes.iter().enumerate().map(|(number, prefix)| Connection {
            number,
            prefix,
            coordination: &*self.coordination,
            config: &self.config,
            key_reader: &*self.key_reader,
            handler: &handler,
            states: &self.states,
            telemetry: &self.telemetry,
        });
        let connections: Vec<_> = connections.collect();
        tokio::select! {
            biased;
            () = shutdown.requested() => {}
            _ = join_all(connections.iter().map(Connection::keep)) => {}
        }
    }
}

/// However the watch ends, it is not connected any more.
impl Drop for Watcher {
    fn drop(&mut self) {
        self.telemetry.set_watch_disconnected();
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").field("config", &self.config).finish_non_exhaustive()
    }
}

impl WatchHandle {
    /// Current state and every change of it.
    pub fn state(&self) -> watch::Receiver<WatchState> {
        self.states.all.subscribe()
    }

    /// Reconnects every prefix that has given up. Others are not affected.
    pub fn reconnect(&self) {
        self.states.reconnect();
    }
}

/// Reads the first segment after the prefix. Accepts both layouts: one key per resource and one folder per resource.
///
/// ```
/// use lcm_sdk::controller::first_segment;
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

/// State of each prefix, and the worst of them.
#[derive(Debug)]
struct States {
    each: Mutex<Vec<WatchState>>,
    all: watch::Sender<WatchState>,
    revival: Vec<Notify>,
    telemetry: Telemetry,
}

impl States {
    fn new(prefixes: usize, telemetry: Telemetry) -> Self {
        Self {
            each: Mutex::new(vec![WatchState::Connecting; prefixes]),
            all: watch::Sender::new(WatchState::Connecting),
            revival: (0..prefixes).map(|_| Notify::new()).collect(),
            telemetry,
        }
    }

    /// Sets the state of a prefix. One that has given up stays so until it is connected.
    fn set(&self, number: usize, state: WatchState) {
        let mut each = self.each.lock();
        if (each[number], state) != (WatchState::GivenUp, WatchState::Connecting) {
            each[number] = state;
            self.publish(&each);
        }
    }

    /// Marks a prefix as given up. Returns whether it was not before.
    fn give_up(&self, number: usize) -> bool {
        let mut each = self.each.lock();
        let before = std::mem::replace(&mut each[number], WatchState::GivenUp);
        self.publish(&each);
        before != WatchState::GivenUp
    }

    async fn revived(&self, number: usize) {
        self.revival[number].notified().await;
    }

    fn reconnect(&self) {
        let each = self.each.lock();
        for (state, revival) in each.iter().zip(&self.revival) {
            if *state == WatchState::GivenUp {
                revival.notify_one();
            }
        }
    }

    fn publish(&self, each: &[WatchState]) {
        let worst = each.iter().copied().max().unwrap_or(WatchState::Connected);
        match worst {
            WatchState::Connected => self.telemetry.set_watch_connected(),
            WatchState::Connecting | WatchState::GivenUp => self.telemetry.set_watch_disconnected(),
        }
        self.all.send_if_modified(|all| std::mem::replace(all, worst) != worst);
    }
}
