//! Watch of one prefix: connects, loses the connection, connects again.

use std::fmt;
use std::ops::ControlFlow;

use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use super::{KeyReader, ResyncCause, States, WatchConfig, WatchEvent, WatchState};
use crate::lifecycle::failure::CallFailure;
use crate::ports::{Coordination, Listing, WatchStream, WatchUpdate};
use crate::telemetry::{Anomaly, Telemetry};

/// Watch of one prefix.
pub(super) struct Connection<'a, H> {
    pub(super) number: usize,
    pub(super) prefix: &'a str,
    pub(super) coordination: &'a dyn Coordination,
    pub(super) config: &'a WatchConfig,
    pub(super) key_reader: &'a KeyReader,
    pub(super) handler: &'a H,
    pub(super) states: &'a States,
    pub(super) telemetry: &'a Telemetry,
}

#[derive(Debug, Clone, Copy)]
struct Progress {
    /// Last revision of which all changes were seen; `None` before the first listing.
    seen: Option<i64>,
    /// Failed attempts since the last message of the server.
    failed: u32,
    /// Start of the current connection.
    connected: Option<Instant>,
    /// Whether changes before `seen` are missing from the history.
    has_gap: bool,
}

/// Why a watch ended.
enum Lost {
    Failed(CallFailure),
    Silent,
    Rewound,
    Compacted,
}

impl<H: Fn(WatchEvent) + Send + Sync> Connection<'_, H> {
    /// Watches without end. Every event is handled as soon as it is received, so the future can be dropped at any time.
    pub(super) async fn keep(&self) {
        let mut progress = Progress { seen: None, failed: 0, connected: None, has_gap: false };
        loop {
            let lost = self.watch(&mut progress).await;
            self.states.set(self.number, WatchState::Connecting);
            // A proxy may cut idle connections. One that outlived the longest pause was a good one.
            let longest_pause = self.config.reconnect_delay.saturating_mul(self.config.max_reconnect_attempts);
            if progress.connected.take().is_some_and(|since| since.elapsed() > longest_pause) {
                progress.failed = 0;
            }
            if matches!(lost, Lost::Compacted) && progress.failed == 0 {
                // The server is healthy: list again at once. A second compaction in a row has to wait.
                progress.failed = 1;
                continue;
            }
            progress.failed = progress.failed.saturating_add(1);
            let (prefix, attempt) = (self.prefix, progress.failed);
            if progress.failed <= self.config.max_reconnect_attempts {
                warn!(target: "lcm::watch", prefix, attempt, %lost, "the watch was lost: connecting again");
                sleep(self.config.reconnect_delay.saturating_mul(progress.failed)).await;
                continue;
            }
            if self.states.give_up(self.number) {
                self.telemetry.count_anomaly(Anomaly::WatchGivenUp);
                warn!(target: "lcm::watch", prefix, attempt, %lost, "the watch gives up until it is revived; polling carries on");
            } else {
                debug!(target: "lcm::watch", prefix, attempt, %lost, "the watch cannot be revived yet");
            }
            self.states.revived(self.number).await;
        }
    }

    /// Connects and handles events until the watch is lost.
    async fn watch(&self, progress: &mut Progress) -> Lost {
        let mut stream = match self.connect(progress).await {
            Ok(stream) => stream,
            Err(lost) => return lost,
        };
        loop {
            let update = match timeout(self.config.silence, stream.next()).await {
                Ok(update) => update,
                Err(_) => match self.probe(&mut *stream).await {
                    Ok(update) => update,
                    Err(lost) => return lost,
                },
            };
            if let ControlFlow::Break(lost) = self.handle(update, progress) {
                return lost;
            }
            self.reset_failures(progress);
        }
    }

    /// Lists the prefix, so that no change before the watch is missed, and opens the watch.
    async fn connect(&self, progress: &mut Progress) -> Result<Box<dyn WatchStream>, Lost> {
        let listing = self.coordination.list(self.prefix).await.map_err(Lost::Failed)?;
        let seen = match progress.seen {
            None => {
                self.note(&listing);
                (self.handler)(WatchEvent::Resync(ResyncCause::Began));
                listing.revision
            }
            Some(seen) if listing.revision < seen => {
                // A watch from the old revision would wait for future changes.
                self.telemetry.count_anomaly(Anomaly::WatchRelisted);
                self.note(&listing);
                (self.handler)(WatchEvent::Resync(ResyncCause::Rewound));
                listing.revision
            }
            Some(seen) => {
                self.telemetry.count_anomaly(Anomaly::WatchRelisted);
                let newer = listing.keys.iter().filter(|(_, modified)| *modified > seen);
                newer.for_each(|(key, _)| self.changed(key));
                if progress.has_gap {
                    self.note(&listing);
                    (self.handler)(WatchEvent::Resync(ResyncCause::Compacted));
                }
                // Not from the listing on: a deleted key is in no listing, but in the history.
                seen
            }
        };
        (progress.seen, progress.has_gap) = (Some(seen), false);
        let stream = self.coordination.watch(self.prefix, seen + 1).await.map_err(Lost::Failed)?;
        progress.connected = Some(Instant::now());
        self.states.set(self.number, WatchState::Connected);
        debug!(target: "lcm::watch", prefix = self.prefix, seen, "watching");
        Ok(stream)
    }

    async fn probe(&self, stream: &mut dyn WatchStream) -> Result<WatchUpdate, Lost> {
        stream.probe().await.map_err(Lost::Failed)?;
        timeout(self.config.probe_timeout, stream.next()).await.map_err(|_| Lost::Silent)
    }

    fn handle(&self, update: WatchUpdate, progress: &mut Progress) -> ControlFlow<Lost> {
        match update {
            WatchUpdate::Changed { revision, keys } => {
                keys.iter().for_each(|key| self.changed(key));
                progress.seen = progress.seen.max(Some(revision));
                ControlFlow::Continue(())
            }
            WatchUpdate::Progress { revision } if Some(revision) < progress.seen => ControlFlow::Break(Lost::Rewound),
            // `seen` stays: some servers report a revision before all changes up to it are delivered.
            WatchUpdate::Progress { .. } => ControlFlow::Continue(()),
            WatchUpdate::Compacted { revision } => {
                info!(target: "lcm::watch", prefix = self.prefix, revision, "the history is compacted: listing again");
                // The resync after the next listing covers all changes up to here.
                (progress.seen, progress.has_gap) = (progress.seen.max(Some(revision - 1)), true);
                ControlFlow::Break(Lost::Compacted)
            }
            WatchUpdate::Ended(failure) => ControlFlow::Break(Lost::Failed(failure)),
        }
    }

    /// Passes all keys to the reader. The changes are covered by a resync.
    fn note(&self, listing: &Listing) {
        listing.keys.iter().for_each(|(key, _)| drop((self.key_reader)(self.prefix, key)));
    }

    fn changed(&self, key: &[u8]) {
        if let Some(name) = (self.key_reader)(self.prefix, key) {
            (self.handler)(WatchEvent::Changed(name));
        }
    }

    /// Any message of the server ends an outage.
    fn reset_failures(&self, progress: &mut Progress) {
        if progress.failed > 0 {
            info!(target: "lcm::watch", prefix = self.prefix, "the watch is back");
            progress.failed = 0;
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => failure.fmt(f),
            Self::Silent => f.write_str("no response to a probe"),
            Self::Rewound => f.write_str("the revision of the server went backwards"),
            Self::Compacted => f.write_str("the history is compacted"),
        }
    }
}
