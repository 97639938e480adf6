//! etcd's messages, as they are on the wire.
//!
//! Written by hand rather than taken from a client: values are shared, not copied, and a mistake of the client's
//! generated code is not repeated here. Only what is answered is here; field numbers are etcd's.

pub(super) mod auth;
pub(super) mod cluster;
pub(super) mod common;
pub(super) mod election;
pub(super) mod kv;
pub(super) mod lease;
pub(super) mod lock;
pub(super) mod maintenance;
pub(super) mod watch;
