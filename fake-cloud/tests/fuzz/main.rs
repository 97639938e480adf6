//! Everything the fake cloud reads from outside, with whatever somebody might send: it never panics, never answers with
//! a failure of its own, holds no more than its limits allow, and refuses in the words of the protocol.

#[path = "../../../tests/support/fuzz.rs"]
mod cases;
#[expect(dead_code, reason = "some of it is for other tests")]
#[path = "../support/mod.rs"]
mod support;

mod admin;
mod asked;
mod aws;
mod cml;
mod control_plane;
mod etcd;
mod raw;
mod scenario;
