//! Tests of the whole stack over sockets on the fake cloud.

mod agreement;
mod concurrent_changes;
mod day;
mod discovery;
mod draining;
mod etcd_faults;
mod idle;
mod isolation;
mod launch;
mod leaders;
mod license;
mod lifecycle;
mod notes;
mod orphans;
mod secrets;
mod sharding;
mod startup;
mod stopping;
mod time_skipping;
mod watch;
