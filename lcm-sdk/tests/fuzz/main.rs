//! Fuzzes every input that this crate reads from outside.
//!
//! Invalid input never causes a panic, ends in time, stays within the memory limits, is reported in a short error, and
//! no error shows a secret.

#[path = "../../../tests/support/fuzz.rs"]
mod cases;

#[cfg(any(feature = "cml", feature = "control-plane", feature = "aws"))]
mod canned_server;
#[cfg(feature = "aws")]
mod ec2;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(any(feature = "cml", feature = "control-plane"))]
mod http;
mod records;
#[cfg(feature = "runtime")]
mod settings;
#[cfg(feature = "runtime")]
mod watch;
