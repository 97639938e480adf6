//! The worker controller and the loops that run beside it.

mod admin_source;
pub mod controller;
pub mod discovery;
pub mod fleet;
pub mod metrics;
