//! A fake etcd v3 that real clients cannot tell from a real one.
//!
//! From the inside out:
//! - [`KeyRange`], [`Range`], [`Put`], [`Delete`], [`Txn`]: what can be asked of a store;
//! - `store` over `keyspace`, `history`, `lease` and `watch`: the rules, without time, threads or wires;
//! - [`EtcdStore`]: the same behind a lock, on the world's clock, with faults to inject;
//! - `proto` and `services`: etcd's messages and calls, decoded, passed on, encoded;
//! - [`serve`]: all of it on a port.
//!
//! What a real etcd 3.5.1 answers, and this one does not: everything that changes the cluster or its passwords
//! (members, users, roles), moving the leader, snapshots and hashes are refused as unknown calls. Sizes of the database
//! and positions in the log are made up. A full store takes writes again after a compaction, without an alarm to switch
//! off or a defragmentation. A transaction that deletes without an end and then puts a deleted key, keeping
//! its value, crashes the real one; here the value is empty.

mod calls;
mod delivery;
mod error;
mod fault;
mod handle;
mod history;
mod key_range;
mod keyspace;
mod lease;
mod outbox;
mod proto;
mod queue;
mod range;
mod record;
mod server;
mod services;
mod store;
#[cfg(test)]
mod store_tests;
mod txn;
mod watch;
mod write;

pub use error::EtcdError;
pub use fault::Fault;
pub use handle::EtcdStore;
pub use key_range::KeyRange;
pub use lease::{LeaseStatus, MAX_TTL, MIN_TTL};
pub use range::{Detail, EVERY_REVISION, Order, Range, RangeAnswer, SortBy};
pub use record::{Event, Record};
pub use server::{serve, serve_with};
pub use txn::{Compare, MAX_OPERATIONS, Operand, Operation, OperationAnswer, Relation, Txn, TxnAnswer};
pub use write::{Assign, Delete, DeleteAnswer, Put, PutAnswer};

/// The version it claims to be: the one its conformance tests compare it with.
pub const VERSION: &str = "3.5.1";
/// The version of the cluster it claims to be.
const CLUSTER_VERSION: &str = "3.5.0";
