//! The runtime: drives the core on tokio.

pub mod shutdown;
