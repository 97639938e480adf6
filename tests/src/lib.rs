//! Support of the tests that cover more than one crate; the tests are in `tests/`.

pub mod cluster;
pub mod etcd;
pub mod harness;
pub mod log_capture;
pub mod proof;
pub mod recorded;
