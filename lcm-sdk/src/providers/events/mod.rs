//! Where events go: the log, an HTTP sink, the control plane's own ledger, or several of them.

#[cfg(feature = "control-plane")]
mod control_plane_sink;
mod fanout;
mod log;
#[cfg(feature = "control-plane")]
mod sink;

#[cfg(feature = "control-plane")]
pub use control_plane_sink::ControlPlaneEvents;
pub use fanout::Fanout;
pub use log::LogEvents;
#[cfg(feature = "control-plane")]
pub use sink::{HttpEvents, SinkOptions};
