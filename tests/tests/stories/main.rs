//! The whole stack over real sockets on the fake cloud, told as stories.

mod eavesdropper;
mod stage;

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
