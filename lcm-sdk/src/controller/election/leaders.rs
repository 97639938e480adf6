//! Reads who leads, without taking part in the election.

use serde::Serialize;

use super::keys::ElectionKeys;
use crate::controller::hash::Shards;
use crate::lifecycle::failure::CallFailure;
use crate::ports::Coordination;

/// The holder of the lead over a fleet, or over one shard of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Leader {
    /// Identity of the controller.
    pub identity: String,
    /// Key that it holds.
    pub key: String,
    /// The shard it leads, counted from 0; always 0 in a fleet that is not divided.
    pub shard: u16,
    /// Number of shards that it is configured with.
    pub shards: u16,
    /// Fencing token: the revision at which the key was created.
    pub fencing_token: i64,
}

/// Reads the leaders of the election with this key, ordered by shard. A shard without a leader is missing.
///
/// # Errors
/// If a call to etcd fails.
///
/// ```
/// use lcm_sdk::controller::leaders;
/// use lcm_sdk::providers::memory::MemoryCoordination;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let etcd = MemoryCoordination::new();
/// etcd.put("/lcm/worker-controller/leader", "host-1");
/// let leaders = leaders(&etcd, "/lcm/worker-controller/leader").await?;
/// assert_eq!((leaders[0].identity.as_str(), leaders[0].shards), ("host-1", 1));
/// # Ok::<(), lcm_sdk::CallFailure>(())
/// # }).unwrap();
/// ```
pub async fn leaders(coordination: &dyn Coordination, key: &str) -> Result<Vec<Leader>, CallFailure> {
    let keys = ElectionKeys::new(key, Shards::ONE);
    let mut leaders = Vec::new();
    for (key, fencing_token) in coordination.list(keys.prefix()).await?.keys {
        let Ok(key) = String::from_utf8(key) else { continue };
        let Some((shards, shard)) = keys.parse_leader(&key) else { continue };
        // A leader that resigned in between has no value.
        if let Some(identity) = coordination.value(&key).await? {
            leaders.push(Leader { identity, key, shard: shard.0, shards: shards.count(), fencing_token });
        }
    }
    leaders.sort_by_key(|leader| (leader.shards, leader.shard));
    Ok(leaders)
}
