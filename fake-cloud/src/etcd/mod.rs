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
//! - Calls that change members, users or roles, move the leader, or read snapshots or hashes are unimplemented.
//! - Database sizes and Raft positions are made up.
//! - A store over its quota accepts writes again after a compaction, without disarming an alarm or a defragmentation.
//! - A transaction that deletes a range without an end, and then puts a deleted key while keeping its value, crashes
//!   real etcd. Here the value is empty.

mod contender;
mod error;
mod fault;
mod key_range;
mod lease;
mod mvcc;
mod proto;
mod range;
mod server;
mod services;
mod store;
mod txn;
mod watch;

pub use error::EtcdError;
pub use fault::Fault;
pub use key_range::KeyRange;
pub use lease::{LeaseStatus, MAX_TTL, MIN_TTL};
pub use mvcc::{Event, Record};
pub use range::{Detail, EVERY_REVISION, Order, Range, RangeResponse, SortBy};
pub use server::{serve, serve_with};
pub use store::EtcdStore;
pub use txn::{
    Assign, Compare, Delete, DeleteResponse, MAX_OPERATIONS, Operand, Operation, OperationResponse, Put, PutResponse,
    Relation, Txn, TxnResponse,
};

/// The server version it reports, which is the one the conformance tests compare it with.
pub const VERSION: &str = "3.5.1";
/// The cluster version it reports.
const CLUSTER_VERSION: &str = "3.5.0";
