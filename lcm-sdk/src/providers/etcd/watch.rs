//! A running watch of etcd.

use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, Error, WatchOptions, WatchResponse};
use tokio::time::timeout;
use tonic::Status;

use super::failure::failure;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::ports::{WatchStream, WatchUpdate};

/// How long asking for progress may wait for room in the stream's own queue.
const PROBE_LIMIT: Duration = Duration::from_secs(5);

/// One watcher on a stream of its own: when the stream ends, so does the watch, and nobody else's.
#[derive(Debug)]
pub(super) struct EtcdWatch {
    stream: etcd_client::WatchStream,
    /// Everything up to here was told.
    complete: i64,
}

impl EtcdWatch {
    /// Begins to watch, and waits until the server says that it does.
    pub(super) async fn open(client: Client, prefix: &str, from_revision: i64) -> Result<Self, Error> {
        let mut options = WatchOptions::new().with_start_revision(from_revision).with_fragment();
        options = if prefix.is_empty() { options.with_all_keys() } else { options.with_prefix() };
        let mut stream = client.watch_client().watch(prefix, Some(options)).await?;
        let Some(first) = stream.message().await? else {
            return Err(Error::GRpcStatus(Status::unavailable("the server ended the watch before it began")));
        };
        if first.canceled() && first.compact_revision() == 0 {
            return Err(canceled(first.cancel_reason()));
        }
        Ok(Self { stream, complete: from_revision - 1 })
    }

    fn read(&mut self, response: &WatchResponse) -> Option<WatchUpdate> {
        if response.compact_revision() > 0 {
            return Some(WatchUpdate::Compacted { revision: response.compact_revision() });
        }
        if response.canceled() {
            return Some(WatchUpdate::Ended(failure(&canceled(response.cancel_reason()))));
        }
        if response.created() {
            return None;
        }
        let events = response.events().iter().filter_map(|event| event.kv());
        let Some(last) = events.clone().map(etcd_client::KeyValue::mod_revision).max() else {
            let revision = response.header().map_or(self.complete, etcd_client::ResponseHeader::revision);
            return Some(WatchUpdate::Progress { revision });
        };
        // Not the header's revision: the server is there already, but may still owe us what happened until then. And
        // of a revision that is told in pieces, the last piece may never come.
        let told = if response.0.fragment { last - 1 } else { last };
        self.complete = self.complete.max(told);
        Some(WatchUpdate::Changed { revision: self.complete, keys: events.map(|kv| kv.key().to_vec()).collect() })
    }
}

#[async_trait]
impl WatchStream for EtcdWatch {
    async fn next(&mut self) -> WatchUpdate {
        loop {
            let response = match self.stream.message().await {
                Ok(Some(response)) => response,
                Ok(None) => return WatchUpdate::Ended(ended("the server ended the watch")),
                Err(error) => return WatchUpdate::Ended(failure(&error)),
            };
            if let Some(update) = self.read(&response) {
                return update;
            }
        }
    }

    async fn probe(&mut self) -> Result<(), CallFailure> {
        match timeout(PROBE_LIMIT, self.stream.request_progress()).await {
            Ok(asked) => asked.map_err(|error| failure(&error)),
            Err(_) => Err(ended("the stream takes no more requests")),
        }
    }
}

fn ended(message: &str) -> CallFailure {
    CallFailure::new(FailureKind::Unclear, format!("etcd: {message}"))
}

/// A watcher that is canceled has no status of its own, only words.
fn canceled(reason: &str) -> Error {
    let words = format!("etcd canceled the watch: {reason}");
    Error::GRpcStatus(if reason.contains("permission denied") {
        Status::permission_denied(words)
    } else if reason.contains("range is empty") {
        Status::invalid_argument(words)
    } else {
        Status::unavailable(words)
    })
}
