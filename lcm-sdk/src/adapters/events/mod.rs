//! Where events go: the log, an HTTP sink, the control plane's own ledger, or several of them.

mod fanout;
#[cfg(feature = "control-plane")]
mod ledger;
mod log;
#[cfg(feature = "control-plane")]
mod sink;

pub use fanout::Fanout;
#[cfg(feature = "control-plane")]
pub use ledger::ControlPlaneEvents;
pub use log::LogEvents;
#[cfg(feature = "control-plane")]
pub use sink::{HttpEvents, SinkOptions};
