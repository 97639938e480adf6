//! What every call needs to know.

use std::net::SocketAddr;

use tokio::sync::watch;

use super::super::handle::EtcdStore;
use super::super::proto::common::{KeyValue, ResponseHeader};
use super::super::record::Record;
use crate::middleware::Middleware;

/// The term of a server that was elected once, by itself.
pub(super) const RAFT_TERM: u64 = 2;

/// The store, and the server it is served by.
#[derive(Debug, Clone)]
pub(in super::super) struct Context {
    pub(in super::super) store: EtcdStore,
    /// Where clients find this server.
    pub(in super::super) address: SocketAddr,
    /// Becomes true when the server stops.
    pub(in super::super) stopping: watch::Receiver<bool>,
    /// Injects faults into calls and observes them.
    pub(in super::super) middleware: Middleware,
}

impl Context {
    pub(super) fn header(&self, revision: i64) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: self.store.cluster_id(),
            member_id: self.store.member_id(),
            revision,
            raft_term: RAFT_TERM,
        })
    }

    /// Waits until the server stops.
    pub(super) fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stopping = self.stopping.clone();
        // An error means that the server is gone altogether.
        async move { drop(stopping.wait_for(|stopping| *stopping).await) }
    }
}

/// A record as a message. The bytes are shared, not copied.
pub(super) fn key_value(record: &Record) -> KeyValue {
    KeyValue {
        key: record.key.clone(),
        create_revision: record.create_revision,
        mod_revision: record.mod_revision,
        version: record.version,
        value: record.value.clone(),
        lease: record.lease,
    }
}
