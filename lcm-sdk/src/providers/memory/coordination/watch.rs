//! A watch of the etcd in memory.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use super::MemoryCoordination;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::ports::{WatchStream, WatchUpdate};

/// A watch of the etcd in memory.
pub(super) struct MemoryWatch {
    pub(super) client: MemoryCoordination,
    pub(super) prefix: Vec<u8>,
    pub(super) next: i64,
    pub(super) round: u64,
    pub(super) is_probed: bool,
    pub(super) is_over: bool,
}

impl MemoryWatch {
    /// What there is to hear now, and else until when nothing can happen by itself.
    fn hear(&mut self) -> Result<WatchUpdate, Option<Instant>> {
        let over = || WatchUpdate::Ended(CallFailure::new(FailureKind::Unclear, "the watch is over"));
        if self.is_over {
            return Ok(over());
        }
        let is_cut_off = self.client.link.lock().is_cut_off;
        let mut state = self.client.server.state.lock();
        state.expire();
        if is_cut_off {
            return Err(None);
        }
        if state.round != self.round {
            self.is_over = true;
            return Ok(over());
        }
        if state.is_stalled {
            return Err(state.next_expiry());
        }
        if self.next < state.compacted {
            self.is_over = true;
            return Ok(WatchUpdate::Compacted { revision: state.compacted });
        }
        let missed = state.history.iter().filter(|(revision, _)| *revision >= self.next);
        let keys: Vec<_> =
            missed.filter(|(_, key)| key.starts_with(&self.prefix)).map(|(_, key)| key.clone()).collect();
        if keys.is_empty() {
            // It may begin in the future: then nothing is due before that.
            self.next = self.next.max(state.revision + 1);
            if std::mem::take(&mut self.is_probed) {
                return Ok(WatchUpdate::Progress { revision: state.revision });
            }
            return Err(state.next_expiry());
        }
        self.next = state.revision + 1;
        Ok(WatchUpdate::Changed { revision: state.revision, keys })
    }
}

#[async_trait]
impl WatchStream for MemoryWatch {
    async fn next(&mut self) -> WatchUpdate {
        loop {
            let server = Arc::clone(&self.client.server);
            let news = server.news.notified();
            tokio::pin!(news);
            // From here on nothing is missed.
            news.as_mut().enable();
            let until = match self.hear() {
                Ok(update) => return update,
                Err(until) => until,
            };
            let expiry = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = news => {}
                () = expiry => {}
            }
        }
    }

    async fn probe(&mut self) -> Result<(), CallFailure> {
        self.is_probed = true;
        Ok(())
    }
}
