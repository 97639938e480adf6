//! The runtime: drives the core on tokio.

pub mod admin;
mod apply;
pub mod batcher;
pub mod breaker;
pub mod controller;
pub mod discovery;
pub mod fleet;
pub mod leader;
pub mod leadership;
pub mod limiter;
#[cfg(feature = "logging")]
pub mod logging;
mod memory;
pub mod metrics;
mod observe;
mod operations;
pub mod queue;
pub mod reconcile;
mod reconciliation;
mod recording;
mod resource;
pub mod shards;
pub mod shutdown;
pub mod sweep;
pub mod telemetry;
pub mod watch;
pub mod worker_controller;

pub use observe::CmlDefaults;
