//! Is the fake etcd an etcd?
//!
//! - `conformance`: the same calls to the fake and to a real etcd, by the same client; the transcripts must agree.
//! - `etcdctl`: the real command line against the fake.
//! - `faults`: what can be done to the fake that cannot be done to a real one.
//! - `stress`: many clients at once, and clients that mean no good.

mod cases;
mod conformance;
mod etcdctl;
mod faults;
mod servers;
mod session;
mod stress;
