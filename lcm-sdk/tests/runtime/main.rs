//! Controller, reconciler and loops through their public API, on paused time and in-memory ports.

mod controller;
mod harness;
mod loops;
mod passes;
mod shards;
