//! Watches keys of etcd.

use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, Error, WatchOptions, WatchResponse};
use tokio::time::timeout;
use tonic::Status;

use super::client::failure;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::ports::{WatchStream, WatchUpdate};

/// Time limit for queuing a progress request.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// A watch on a gRPC stream of its own, so that no other watch can end it.
#[derive(Debug)]
pub(super) struct EtcdWatch {
    stream: etcd_client::WatchStream,
    /// Revision up to which all changes were returned.
    complete: i64,
}

impl EtcdWatch {
    /// Starts a watch and waits until the server confirms it.
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
        // The revision in the header may be ahead of the events sent so far. A revision sent in fragments is complete
        // only with the last one.
        let returned = if response.0.fragment { last - 1 } else { last };
        self.complete = self.complete.max(returned);
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
        match timeout(PROBE_TIMEOUT, self.stream.request_progress()).await {
            Ok(result) => result.map_err(|error| failure(&error)),
            Err(_) => Err(ended("the stream accepts no requests")),
        }
    }
}

fn ended(message: &str) -> CallFailure {
    CallFailure::new(FailureKind::Unclear, format!("etcd: {message}"))
}

/// Converts the reason of a cancellation, which etcd sends as text only.
fn canceled(reason: &str) -> Error {
    let message = format!("etcd canceled the watch: {reason}");
    Error::GRpcStatus(if reason.contains("permission denied") {
        Status::permission_denied(message)
    } else if reason.contains("range is empty") {
        Status::invalid_argument(message)
    } else {
        Status::unavailable(message)
    })
}
