//! Everything this crate reads from outside, with whatever somebody might send: it never panics, ends in time, holds no
//! more than its limits allow, says what is wrong in few words, and never shows a secret.

#[path = "../../../tests/support/fuzz.rs"]
mod cases;

#[cfg(feature = "aws")]
mod ec2;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(any(feature = "cml", feature = "control-plane"))]
mod http;
#[cfg(feature = "aws")]
mod instances;
#[cfg(any(feature = "cml", feature = "control-plane", feature = "aws"))]
mod parrot;
mod records;
#[cfg(feature = "runtime")]
mod settings;
#[cfg(feature = "runtime")]
mod watch;
