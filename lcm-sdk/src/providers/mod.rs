//! Implementations of the [ports](crate::ports).
//!
//! Each module is behind the feature of the same name; [`memory`] and [`events`] need only `runtime`. Errors of client
//! libraries become a [`CallFailure`](crate::CallFailure), whose kind states whether the service may have executed the
//! call and whether a retry can succeed.

#[cfg(feature = "aws")]
pub mod aws;
#[cfg(feature = "cml")]
pub mod cml;
#[cfg(feature = "control-plane")]
pub mod control_plane;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod events;
#[cfg(any(feature = "cml", feature = "control-plane"))]
pub mod http;
pub mod memory;
pub mod notes;
#[cfg(any(feature = "cml", feature = "control-plane", feature = "etcd"))]
mod reload;
#[cfg(any(feature = "aws", feature = "cml", feature = "control-plane", feature = "etcd"))]
mod sanitize;
