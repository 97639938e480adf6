//! Stories: the whole stack over sockets on the fake cloud.

mod discovery;
mod draining;
mod etcd_faults;
mod idle;
mod isolation;
mod launch;
mod leaders;
mod license;
mod lifecycle;
mod older_server;
mod orphans;
mod same_moment;
mod secrets;
mod sharing;
mod startup;
mod stopping;
mod watching;
