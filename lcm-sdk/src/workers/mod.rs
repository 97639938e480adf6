//! The worker controller and the loops that run beside it.

pub mod controller;
pub mod discovery;
pub mod fleet;
pub mod metrics;
