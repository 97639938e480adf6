//! Tests that look at more than one crate. They live in `tests/`; here is what several of them need.

pub mod cluster;
pub mod etcd;
pub mod proof;
