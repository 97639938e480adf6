//! Several controllers that share one fleet: shards, each with a leader of its own.
//!
//! # Flow
//! A worker belongs to a shard by its name ([`Shards::of`]). Every member puts itself on record under a lease, looks who
//! else is there, takes free shards up to its fair share ([`share`]) and hands back what it has too much. Each shard is a
//! [`LeaderElection`](crate::controller::election::LeaderElection) with a key, a lease and a fencing token of its own.
//!
//! # Guarantees
//! - All that an election promises holds for each shard: two members never act on the same worker, and a member that is
//!   cut off stops before anybody else begins.
//! - A shard that is handed over is finished first: nothing new is begun, what is under way is recorded, then the lease is
//!   given back, and whoever has room takes it at once.
//! - The shards of a member that dies are taken when its leases end.
//! - Members that are configured with different numbers of shards, one among them, never act at the same time: whoever
//!   comes later stands by until the last leader of the other number has gone.
//!
//! # What concerns the fleet as a whole
//! - **The sweep, polling, the watch and metrics** look at the workers of the own shards alone; a shard that is gained is
//!   swept. The gauges of workers by status count these: their sum over the members is the fleet.
//! - **Discovery and garbage collection** look at everything and act on their own: every member scans the regions and
//!   lists all records, so that no shard takes another one's instance for a stranger, and a frozen region is frozen by
//!   the whole of its records, not by the few of a shard. It then writes to the records of its own shards only, each under
//!   the right of that shard. What has no worker yet belongs to the region: strangers are imported, and a freeze is
//!   announced, by whoever leads the shard that the region's name belongs to. The cap on terminations holds for each
//!   member's pass.
//! - **Scale-down** counts the whole fleet. Between the count and the record a member holds a key in etcd, so that two of
//!   them never let the last spare worker go twice.
//!
//! # Assumptions
//! Fencing tokens grow for each shard, and with that for each worker, not over the whole fleet: a server that refuses
//! older ones remembers the newest for each record. All members know of shards; a version from before would lead beside
//! them.

mod assignment;
mod candidacy;
mod election;
mod owned;
mod ownership;
mod scale_down_lock;
mod sharded_resource;
#[cfg(test)]
mod tests;

pub use super::hash::{Shard, Shards, ShardsError};

pub use self::assignment::{Share, Standing, fair_share, share};
pub use self::candidacy::Candidate;
pub use self::election::{ShardedElection, ShardedHandle};
pub use self::owned::HeldShard;
pub(crate) use self::ownership::{Hold, ShardGuard};
pub use self::ownership::{OwnershipChanges, ShardOwnership};
pub(crate) use self::scale_down_lock::ScaleDownLock;
pub(crate) use self::sharded_resource::NOT_OURS;
pub use self::sharded_resource::ShardedResource;
