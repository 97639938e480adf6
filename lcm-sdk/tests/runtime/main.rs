//! Controller, reconciler, loops, settings and admin server through their public API.

#[cfg(feature = "admin")]
mod admin;
mod controller;
mod harness;
mod loops;
mod reconciles;
mod settings;
mod shards;
