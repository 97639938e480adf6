//! Tests of the fake cloud and of its command, over sockets.

#[path = "../support/mod.rs"]
mod support;

mod accounts;
mod admin;
mod aws_server;
mod cloud;
mod cml;
mod command;
mod control_plane;
mod fault_rules;
mod handle;
mod limits;
mod openapi;
mod original;
mod request_log;
mod snapshots;
