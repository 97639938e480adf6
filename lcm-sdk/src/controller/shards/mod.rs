//! Divides a fleet into shards, each with a leader of its own: see [`ShardedElection`].

mod assignment;
mod election;
mod ownership;
#[cfg(test)]
mod tests;

pub use self::assignment::{Assignment, MemberRank, assign, fair_share};
pub(crate) use self::election::{Candidate, ElectionSetup, propagate_panic};
pub use self::election::{ShardedElection, ShardedHandle};
pub use self::ownership::{HeldShard, OwnershipChanges, ShardOwnership};
