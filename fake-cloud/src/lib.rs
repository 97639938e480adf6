//! A cloud on your laptop.

pub mod clock;
pub mod cml;
pub mod control_plane;
mod http_server;
pub mod interruption;
