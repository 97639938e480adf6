//! One watched prefix: connected, lost, connected again.

use std::fmt;
use std::ops::ControlFlow;

use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use super::pending::Pending;
use super::state::States;
use super::{KeyReader, ResyncCause, WatchConfig, WatchState};
use crate::lifecycle::failure::CallFailure;
use crate::ports::{Coordination, WatchStream, WatchUpdate};
use crate::telemetry::{Anomaly, Telemetry};

/// One watched prefix.
pub(crate) struct Connection<'a, K> {
    pub(crate) number: usize,
    pub(crate) prefix: &'a str,
    pub(crate) coordination: &'a dyn Coordination,
    pub(crate) config: &'a WatchConfig,
    pub(crate) reader: &'a KeyReader<K>,
    pub(crate) pending: &'a Pending<K>,
    pub(crate) states: &'a States,
    pub(crate) telemetry: &'a Telemetry,
}

/// How far the past is known.
#[derive(Debug, Clone, Copy)]
struct Progress {
    /// Everything up to here was seen; `None` before the first listing.
    seen: Option<i64>,
    /// Failed attempts since the server last said something.
    failed: u32,
    /// When it was connected, while it is.
    connected: Option<Instant>,
}

/// Why a watch ended.
enum Lost {
    Failed(CallFailure),
    Silent,
    Rewound,
    Compacted,
}

impl<K: Ord> Connection<'_, K> {
    /// Watches for ever. What it saw is collected before anything else happens, so it can be dropped at any time.
    pub(crate) async fn keep(&self) {
        let mut progress = Progress { seen: None, failed: 0, connected: None };
        loop {
            let lost = self.watch(&mut progress).await;
            self.states.set(self.number, WatchState::Connecting);
            // Something on the way may end quiet connections. One that outlived the longest pause was a good one.
            let longest_pause = self.config.reconnect_delay.saturating_mul(self.config.max_reconnect_attempts);
            if progress.connected.take().is_some_and(|since| since.elapsed() > longest_pause) {
                progress.failed = 0;
            }
            if matches!(lost, Lost::Compacted) && progress.failed == 0 {
                // Nothing is wrong with the server: go on at once. A second time in a row it has to wait.
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

    /// Connects and collects what changes until the watch is lost.
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
            if let ControlFlow::Break(lost) = self.take(update, progress) {
                return lost;
            }
            self.connected(progress);
        }
    }

    /// Lists the prefix, so that nothing before the watch is missed, and watches what comes behind.
    async fn connect(&self, progress: &mut Progress) -> Result<Box<dyn WatchStream>, Lost> {
        let listing = self.coordination.list(self.prefix).await.map_err(Lost::Failed)?;
        let seen = match progress.seen {
            None => {
                self.pending.resync(ResyncCause::Began);
                listing.revision
            }
            Some(seen) if listing.revision < seen => {
                // Restored from a backup, or another cluster: a watch from here on would wait for the future.
                self.telemetry.count_anomaly(Anomaly::WatchRelisted);
                self.pending.resync(ResyncCause::Rewound);
                listing.revision
            }
            Some(seen) => {
                self.telemetry.count_anomaly(Anomaly::WatchRelisted);
                let newer = listing.keys.iter().filter(|(_, modified)| *modified > seen);
                self.pending.changed(newer.filter_map(|(key, _)| (self.reader)(self.prefix, key)));
                // Not from the listing on: what was deleted since is in no listing, but in the history.
                seen
            }
        };
        progress.seen = Some(seen);
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

    fn take(&self, update: WatchUpdate, progress: &mut Progress) -> ControlFlow<Lost> {
        match update {
            WatchUpdate::Changed { revision, keys } => {
                self.pending.changed(keys.iter().filter_map(|key| (self.reader)(self.prefix, key)));
                progress.seen = progress.seen.max(Some(revision));
                ControlFlow::Continue(())
            }
            // Not further than this: some servers promise a revision before they have told everything up to it.
            WatchUpdate::Progress { revision } if Some(revision) < progress.seen => ControlFlow::Break(Lost::Rewound),
            WatchUpdate::Progress { .. } => ControlFlow::Continue(()),
            WatchUpdate::Compacted { revision } => {
                info!(target: "lcm::watch", prefix = self.prefix, revision, "the past is compacted: listing again");
                self.pending.resync(ResyncCause::Compacted);
                // What comes up to here was missed, and everything is looked at for it.
                progress.seen = progress.seen.max(Some(revision - 1));
                ControlFlow::Break(Lost::Compacted)
            }
            WatchUpdate::Ended(failure) => ControlFlow::Break(Lost::Failed(failure)),
        }
    }

    /// The server said something: whatever went wrong before is over.
    fn connected(&self, progress: &mut Progress) {
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
            Self::Silent => f.write_str("no sign of life"),
            Self::Rewound => f.write_str("the server went back in time"),
            Self::Compacted => f.write_str("the past is compacted"),
        }
    }
}
