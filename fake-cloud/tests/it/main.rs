//! Integration tests of the fake cloud over sockets.

#[path = "../support/mod.rs"]
mod support;

mod aws_server;
mod cloud;
mod fault_rules;
mod handle;
mod limits;
mod request_log;
