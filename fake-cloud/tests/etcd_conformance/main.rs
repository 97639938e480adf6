//! Compares the fake etcd with real etcd.
//!
//! - `conformance`: the same calls to the fake and to real etcd; the transcripts must be equal.
//! - `etcdctl`: the real command line tool against the fake; `etcdctl_peers` compares what it prints.
//! - `faults`: injected faults and shutdown, which real etcd does not offer.
//! - `stress`: many concurrent clients, and invalid input.

mod cases;
mod conformance;
mod etcdctl;
mod etcdctl_peers;
mod faults;
mod servers;
mod session;
mod stress;
