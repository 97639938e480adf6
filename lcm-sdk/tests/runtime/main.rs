//! Controller, reconciler, loops, settings and admin server through their public API.

#[cfg(feature = "admin")]
mod admin;
mod controller;
mod discovery;
mod explain;
mod harness;
mod history;
mod images;
#[cfg(feature = "logging")]
mod logs;
mod loops;
mod notes;
mod reconciles;
mod requests;
mod settings;
mod shards;
mod signals;
mod trust;
