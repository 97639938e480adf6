//! Providers over sockets: conformance suites against the fake cloud and real etcd, TLS, election, watch and shards.

mod aws_sdk;
mod cml;
mod compute;
mod control_plane;
mod coordination;
mod election;
mod metrics;
mod notes;
mod shards;
mod tls;
mod watch;
