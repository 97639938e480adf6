//! Where the leaders of a fleet and those who share it are on record.

use std::collections::BTreeSet;

use crate::controller::hash::{Shard, Shards};

/// The keys under which a fleet is led, by one or by several.
///
/// The leader of the whole fleet holds the election's own key, such as `/lcm/worker-controller/leader`. With `n` shards
/// the leader of shard `i` holds `/lcm/worker-controller/shards/n/i/leader`, and everybody who shares is on record under
/// `/lcm/worker-controller/shards/n/members/`. The number is part of the keys, so that members that are configured with
/// different numbers see each other: see [`ElectionKeys::is_overruled`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ElectionKeys {
    key: String,
    /// What every key of every layout begins with.
    prefix: String,
    /// What the keys of the shards and members of every layout begin with.
    divided: String,
    shards: Shards,
}

/// What the keys of a layout tell at one moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    /// The members' keys, of those first who are there longest.
    pub(crate) members: Vec<String>,
    /// The shards that somebody leads.
    pub(crate) led: BTreeSet<Shard>,
    /// Whether somebody leads by another layout.
    pub(crate) is_contested: bool,
}

impl ElectionKeys {
    /// The layout of a fleet whose election has this key.
    pub(crate) fn new(key: &str, shards: Shards) -> Self {
        let service = key.strip_suffix("/leader");
        let prefix = service.map_or_else(|| key.to_owned(), |service| format!("{service}/"));
        let divided = format!("{}/shards/", service.unwrap_or(key));
        Self { key: key.to_owned(), prefix, divided, shards }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn leader(&self, shard: Shard) -> String {
        format!("{}{}/{shard}/leader", self.divided, self.shards.count())
    }

    /// The key of a member. Two of the same name are two.
    pub(crate) fn member(&self, identity: &str) -> String {
        format!("{}{identity}-{:08x}", self.members(), rand::random::<u32>())
    }

    /// The key of whoever is about to let a worker go because the fleet can spare it.
    pub(crate) fn scale_down(&self) -> String {
        format!("{}{}/scale-down", self.divided, self.shards.count())
    }

    fn members(&self) -> String {
        format!("{}{}/members/", self.divided, self.shards.count())
    }

    pub(crate) fn census(&self, keys: &[(Vec<u8>, i64)]) -> Census {
        let members = self.members();
        let mut census = Census::default();
        let mut seniority = Vec::new();
        for (key, since) in keys {
            let Ok(key) = std::str::from_utf8(key) else { continue };
            match self.leads(key) {
                Some((shards, shard)) if shards == self.shards => drop(census.led.insert(shard)),
                Some(_) => census.is_contested = true,
                None if key.starts_with(&members) => seniority.push((*since, key.to_owned())),
                None => {}
            }
        }
        seniority.sort();
        census.members = seniority.into_iter().map(|(_, key)| key).collect();
        census
    }

    /// Whether a key that was created at a revision gives way to somebody who leads by another layout.
    ///
    /// Asked by whoever has just created its key, with a listing from after that. Of two leaders by different layouts at
    /// least the later one sees the other; it gives way before it acts, and the earlier one stays. So a fleet whose
    /// number of shards is being changed is led by the old number until the last of its leaders has gone.
    pub(crate) fn is_overruled(&self, keys: &[(Vec<u8>, i64)], token: i64) -> bool {
        keys.iter().any(|(key, since)| {
            let leads = std::str::from_utf8(key).ok().and_then(|key| self.leads(key));
            *since < token && leads.is_some_and(|(shards, _)| shards != self.shards)
        })
    }

    /// By which layout, and what, the holder of a key leads.
    fn leads(&self, key: &str) -> Option<(Shards, Shard)> {
        if key == self.key {
            return Some((Shards::ONE, Shard(0)));
        }
        let (count, shard) = key.strip_prefix(&self.divided)?.strip_suffix("/leader")?.split_once('/')?;
        Some((Shards::new(count.parse().ok()?).ok()?, Shard(shard.parse().ok()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(count: usize) -> ElectionKeys {
        ElectionKeys::new("/lcm/worker-controller/leader", Shards::new(count).expect("good"))
    }

    fn keys(keys: &[(&str, i64)]) -> Vec<(Vec<u8>, i64)> {
        keys.iter().map(|(key, since)| (key.as_bytes().to_vec(), *since)).collect()
    }

    #[test]
    fn a_census_reads_what_the_keys_tell() {
        let four = layout(4);
        assert_eq!(four.leader(Shard(3)), "/lcm/worker-controller/shards/4/3/leader");
        assert_eq!(four.prefix(), "/lcm/worker-controller/");
        let (elder, junior) = (four.member("elder"), four.member("junior"));
        let census = four.census(&keys(&[
            (&junior, 12),
            (&elder, 7),
            (&four.leader(Shard(2)), 9),
            (&four.scale_down(), 13),
            ("/lcm/worker-controller/shards/4/x/leader", 9),
            ("/lcm/worker-controller/shards/8/members/other", 9),
            ("/lcm/worker-controller/something/else", 9),
        ]));
        let led = BTreeSet::from([Shard(2)]);
        assert_eq!(census, Census { members: vec![elder, junior], led, is_contested: false });
        assert!(four.census(&keys(&[("/lcm/worker-controller/leader", 3)])).is_contested);
        assert!(four.census(&keys(&[(&layout(8).leader(Shard(0)), 3)])).is_contested);
    }

    #[test]
    fn of_two_layouts_the_later_gives_way() {
        let both = keys(&[("/lcm/worker-controller/leader", 5), (&layout(4).leader(Shard(1)), 6)]);
        assert!(layout(4).is_overruled(&both, 6));
        assert!(!layout(1).is_overruled(&both, 5));
        assert!(layout(8).is_overruled(&both, 7));
        let same = keys(&[(&layout(4).leader(Shard(0)), 5), (&layout(4).leader(Shard(1)), 6)]);
        assert!(!layout(4).is_overruled(&same, 6));
    }

    #[test]
    fn any_key_can_be_divided() {
        let odd = ElectionKeys::new("mine", Shards::new(2).expect("good"));
        assert_eq!((odd.prefix(), odd.leader(Shard(1)).as_str()), ("mine", "mine/shards/2/1/leader"));
        assert!(odd.census(&keys(&[("mine", 1)])).is_contested);
    }
}
