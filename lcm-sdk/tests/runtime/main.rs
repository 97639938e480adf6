//! The runtime as its users see it, on paused time and in-memory ports.

mod bench;
mod controller;
mod loops;
mod passes;
mod shards;
