//! Fuzz tests of all inputs: no panic, no internal error, bounded memory, and errors in the format of the protocol.

#[path = "../../../tests/support/fuzz.rs"]
mod cases;
#[expect(dead_code, reason = "parts are used by other tests only")]
#[path = "../support/mod.rs"]
mod support;

mod admin;
mod aws;
mod client;
mod cml;
mod control_plane;
mod etcd;
mod raw;
mod scenario;
