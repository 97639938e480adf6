//! One suite per port: what the port promises, as code that every implementation must pass.
//!
//! An implementation brings a small world of its own (a fixture that sets the far side up) and calls `suite`. What is
//! not kept panics with the promise that was broken.

pub mod clock;
pub mod cml;
pub mod compute;
pub mod control_plane;
pub mod coordination;
pub mod events;
pub mod metrics;
