//! Divides a fleet into shards, each with a leader of its own.
//!
//! # Flow
//! The name of a resource determines its shard ([`Shards::shard_of`]). Every member registers under a lease, lists the
//! other members, takes free shards up to its fair share ([`assign`]) and hands back the excess. Each shard is a
//! [`LeaderElection`](crate::controller::LeaderElection) with a key, a lease and a fencing token of its own.
//!
//! The rest of the crate sees [`ShardOwnership`] only: it answers whether a resource is owned, and under which lease.
//!
//! # Guarantees
//! - The guarantees of an election hold for each shard: two members never act on the same resource, and a partitioned
//!   member stops before another begins.
//! - A shard is drained before it is handed over: no new reconcile begins, those in progress are recorded, then the lease
//!   is revoked and a member with capacity takes the shard at once.
//! - The shards of a crashed member are taken when its leases expire.
//! - Members configured with different counts of shards, one included, never act at the same time: the later one stands
//!   by until the last leader of the other count has resigned.
//!
//! # Work that concerns the whole fleet
//! - **Sweep, polling, watch and metrics** cover the owned shards only; a shard that is gained is swept. Gauges of workers
//!   by status count these: their sum over the members is the fleet.
//! - **Discovery and garbage collection** read everything and write their own: every member scans the regions and lists
//!   all records, so that instances of other shards are not mistaken for strangers, and a region is frozen by all of its
//!   records. A member then writes to records of its own shards only, each under the lease of that shard. Instances
//!   without a record belong to the region: the owner of the region's name imports them and announces a freeze. The cap
//!   on terminations holds for each member's run.
//! - **Scale-down** counts the whole fleet. A member holds a lock in etcd between the count and the write, so that two of
//!   them never remove the last spare worker twice.
//!
//! # Assumptions
//! Fencing tokens grow for each shard, and therefore for each resource, not over the whole fleet: a server that refuses
//! older tokens remembers the newest for each record. All members know of shards; a version without them would lead
//! beside them.

mod assignment;
mod election;
mod ownership;
#[cfg(test)]
mod tests;

pub use super::hash::{Shard, Shards, ShardsError};

pub use self::assignment::{Assignment, MemberRank, assign, fair_share};
pub(crate) use self::election::{Candidate, ElectionSetup};
pub use self::election::{ShardedElection, ShardedHandle};
pub use self::ownership::{HeldShard, OwnershipChanges, ShardOwnership};
