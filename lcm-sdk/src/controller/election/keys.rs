//! etcd keys of an election, divided or not.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::controller::hash::{Shard, Shards};
use crate::telemetry::Telemetry;

/// Keys under which a fleet is led.
///
/// The leader of the whole fleet holds the key of the election, such as `/lcm/worker-controller/leader`. With `n`
/// shards, the leader of shard `i` holds `/lcm/worker-controller/shards/n/i/leader`, and every member registers under
/// `/lcm/worker-controller/shards/n/members/`. The count is part of the keys, so that members configured with different
/// counts see each other: see [`ElectionKeys::is_superseded`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ElectionKeys {
    key: String,
    /// Common prefix of all keys, independent of the count of shards.
    prefix: String,
    /// Common prefix of the keys of shards and members, independent of the count.
    shards_prefix: String,
    shards: Shards,
}

/// Content of the keys at one revision.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Membership {
    /// Keys of the members in the order of registration.
    pub(crate) members: Vec<String>,
    /// Shards that have a leader.
    pub(crate) led: BTreeSet<Shard>,
    /// Whether a leader exists that is configured with another count of shards.
    pub(crate) is_contested: bool,
}

impl ElectionKeys {
    /// Keys of the election with this key.
    pub(crate) fn new(key: &str, shards: Shards) -> Self {
        let service = key.strip_suffix("/leader");
        let prefix = service.map_or_else(|| key.to_owned(), |service| format!("{service}/"));
        let shards_prefix = format!("{}/shards/", service.unwrap_or(key));
        Self { key: key.to_owned(), prefix, shards_prefix, shards }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn leader(&self, shard: Shard) -> String {
        format!("{}{}/{shard}/leader", self.shards_prefix, self.shards.count())
    }

    /// Key of a member. A random suffix keeps two members of the same identity apart.
    pub(crate) fn member(&self, identity: &str) -> String {
        format!("{}{identity}-{:08x}", self.members(), rand::random::<u32>())
    }

    /// Key of the lock on scale-down decisions.
    pub(crate) fn scale_down(&self) -> String {
        format!("{}{}/scale-down", self.shards_prefix, self.shards.count())
    }

    fn members(&self) -> String {
        format!("{}{}/members/", self.shards_prefix, self.shards.count())
    }

    pub(crate) fn membership(&self, keys: &[(Vec<u8>, i64)]) -> Membership {
        let members = self.members();
        let mut membership = Membership::default();
        let mut by_revision = Vec::new();
        for (key, revision) in keys {
            let Ok(key) = std::str::from_utf8(key) else { continue };
            match self.parse_leader(key) {
                Some((shards, shard)) if shards == self.shards => drop(membership.led.insert(shard)),
                Some(_) => membership.is_contested = true,
                None if key.starts_with(&members) => by_revision.push((*revision, key.to_owned())),
                None => {}
            }
        }
        by_revision.sort();
        membership.members = by_revision.into_iter().map(|(_, key)| key).collect();
        membership
    }

    /// Whether a leader key created at revision `token` yields to an older leader with another count of shards.
    ///
    /// `keys` must be listed after the key was created. Of two leaders with different counts, at least the later one
    /// sees the other; it yields before it acts, and the earlier one stays. While the count is being changed, the fleet
    /// is led with the old count until its last leader has resigned.
    pub(crate) fn is_superseded(&self, keys: &[(Vec<u8>, i64)], token: i64) -> bool {
        keys.iter().any(|(key, revision)| {
            let leader = std::str::from_utf8(key).ok().and_then(|key| self.parse_leader(key));
            *revision < token && leader.is_some_and(|(shards, _)| shards != self.shards)
        })
    }

    /// Count of shards and shard that the holder of a key leads.
    pub(super) fn parse_leader(&self, key: &str) -> Option<(Shards, Shard)> {
        if key == self.key {
            return Some((Shards::ONE, Shard(0)));
        }
        let (count, shard) = key.strip_prefix(&self.shards_prefix)?.strip_suffix("/leader")?.split_once('/')?;
        Some((Shards::new(count.parse().ok()?).ok()?, Shard(shard.parse().ok()?)))
    }
}

/// Subject of an election.
#[derive(Debug, Clone)]
pub(crate) enum LeaseKind {
    /// The whole fleet.
    Fleet(ElectionKeys),
    /// One shard of the fleet.
    Shard(ElectionKeys, Shard),
    /// Registration of a member. Grants no right to act.
    Member,
}

impl LeaseKind {
    pub(crate) const fn keys(&self) -> Option<&ElectionKeys> {
        match self {
            Self::Fleet(keys) | Self::Shard(keys, _) => Some(keys),
            Self::Member => None,
        }
    }

    /// Publishes the age of the lease; `None` if it is not held.
    pub(crate) fn publish_age(&self, telemetry: &Telemetry, age: Option<Duration>) {
        match self {
            Self::Fleet(_) => telemetry.set_lease_age(age),
            Self::Shard(_, shard) => telemetry.set_shard_lease_age(shard.0, age),
            Self::Member => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys_for(count: usize) -> ElectionKeys {
        ElectionKeys::new("/lcm/worker-controller/leader", Shards::new(count).expect("good"))
    }

    fn listed(keys: &[(&str, i64)]) -> Vec<(Vec<u8>, i64)> {
        keys.iter().map(|(key, revision)| (key.as_bytes().to_vec(), *revision)).collect()
    }

    #[test]
    fn membership_is_parsed_from_keys() {
        let four = keys_for(4);
        assert_eq!(four.leader(Shard(3)), "/lcm/worker-controller/shards/4/3/leader");
        assert_eq!(four.prefix(), "/lcm/worker-controller/");
        let (first, second) = (four.member("first"), four.member("second"));
        let membership = four.membership(&listed(&[
            (&second, 12),
            (&first, 7),
            (&four.leader(Shard(2)), 9),
            (&four.scale_down(), 13),
            ("/lcm/worker-controller/shards/4/x/leader", 9),
            ("/lcm/worker-controller/shards/8/members/other", 9),
            ("/lcm/worker-controller/something/else", 9),
        ]));
        let led = BTreeSet::from([Shard(2)]);
        assert_eq!(membership, Membership { members: vec![first, second], led, is_contested: false });
        assert!(four.membership(&listed(&[("/lcm/worker-controller/leader", 3)])).is_contested);
        assert!(four.membership(&listed(&[(&keys_for(8).leader(Shard(0)), 3)])).is_contested);
    }

    #[test]
    fn later_leader_with_another_count_yields() {
        let both = listed(&[("/lcm/worker-controller/leader", 5), (&keys_for(4).leader(Shard(1)), 6)]);
        assert!(keys_for(4).is_superseded(&both, 6));
        assert!(!keys_for(1).is_superseded(&both, 5));
        assert!(keys_for(8).is_superseded(&both, 7));
        let same = listed(&[(&keys_for(4).leader(Shard(0)), 5), (&keys_for(4).leader(Shard(1)), 6)]);
        assert!(!keys_for(4).is_superseded(&same, 6));
    }

    #[test]
    fn any_key_can_be_divided() {
        let odd = ElectionKeys::new("mine", Shards::new(2).expect("good"));
        assert_eq!((odd.prefix(), odd.leader(Shard(1)).as_str()), ("mine", "mine/shards/2/1/leader"));
        assert!(odd.membership(&listed(&[("mine", 1)])).is_contested);
    }
}
