//! A cloud on your laptop.

pub mod clock;
pub mod etcd;
