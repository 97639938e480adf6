//! The edges: what the real clients say, put into the words of the core.
//!
//! Each room is behind the feature of the same name. The pure rule is the same for all of them: an answer stays an
//! answer, and everything else becomes a [`CallFailure`](crate::CallFailure) whose kind says whether the far side
//! definitely did nothing and whether asking again can help.

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
#[cfg(any(feature = "aws", feature = "cml", feature = "control-plane", feature = "etcd"))]
mod sanitize;
