//! A fake etcd v3, compared with the real one by its conformance tests.
//!
//! From the inside out:
//! - [`KeyRange`], [`Range`], [`Put`], [`Delete`], [`Txn`]: the requests of a store;
//! - `mvcc`, with `lease` and `watch`: the rules, without clocks, threads or sockets;
//! - [`EtcdStore`]: the same behind a lock, on a clock, with [faults](Fault);
//! - `proto` and `services`: etcd's messages and gRPC calls;
//! - [`serve`]: the store on a port.
//!
//! Differences from etcd 3.5.1:
//! - The cluster has one member that is started. Added members are listed, but have no process; the cluster keeps its
//!   quorum.
//! - Database sizes and Raft positions are made up, and so is the hash of the whole database. The hash of the keys is that
//!   of real etcd.
//! - Tokens are random; those in the format of JWT are not offered. A client certificate names no user.
//! - A transaction that deletes a range without an end, and then puts a deleted key while keeping its value, crashes
//!   real etcd. Here the value is empty.

mod alarm;
mod auth;
mod contender;
mod error;
mod fault;
mod gateway;
mod key_range;
mod lease;
mod members;
mod metrics;
mod mvcc;
mod proto;
mod range;
mod server;
mod services;
mod snapshot;
mod store;
mod tls;
mod txn;
mod watch;

pub use error::EtcdError;
pub use fault::Fault;
pub use key_range::KeyRange;
pub use lease::{LeaseStatus, MAX_TTL, MIN_TTL};
pub use mvcc::{Event, Record};
pub use range::{Detail, EVERY_REVISION, Order, Range, RangeResponse, SortBy};
pub use server::{Options, serve, serve_with};
pub(crate) use services::operations;
pub use store::EtcdStore;
pub(crate) use store::{CheckedEtcd, EtcdState};
pub use tls::EtcdTls;
pub use txn::{
    Assign, Compare, Delete, DeleteResponse, MAX_OPERATIONS, Operand, Operation, OperationResponse, Put, PutResponse,
    Relation, Txn, TxnResponse,
};

/// The server version it reports, which is the one the conformance tests compare it with.
pub const VERSION: &str = "3.5.1";
/// The cluster version it reports.
const CLUSTER_VERSION: &str = "3.5.0";
