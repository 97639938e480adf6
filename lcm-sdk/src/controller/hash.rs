//! Which shard a worker belongs to.

use std::fmt;

use thiserror::Error;

/// One of the shards, counted from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(pub u16);

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How many shards a fleet is divided into, and which of them each worker belongs to.
///
/// # Guarantees
/// The same name gives the same shard in every version of this library, on every machine: members of different versions
/// would otherwise both take a worker for their own. The name's bytes go through FNV-1a (64 bits), its result through
/// the finalizer of SplitMix64, and that through jump consistent hashing (Lamping and Veach, 2014). With one shard more
/// only one worker in `n + 1` moves, and only to the new shard.
///
/// ```
/// use lcm_sdk::controller::shards::{Shard, Shards};
///
/// let shards = Shards::new(16)?;
/// assert_eq!(shards.of("w-1"), shards.of("w-1"));
/// assert_eq!(Shards::ONE.of("anybody"), Shard(0));
/// assert_eq!(Shards::new(0).unwrap_err().to_string(), "a fleet of 0 shards cannot be led; accepted: 1 to 1024");
/// # Ok::<(), lcm_sdk::controller::shards::ShardsError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shards(u16);

/// A number of shards that nobody can lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a fleet of {0} shards cannot be led; accepted: 1 to {max}", max = Shards::MAX)]
pub struct ShardsError(pub usize);

impl Shards {
    /// The whole fleet under one leader.
    pub const ONE: Self = Self(1);

    /// The most there can be: each costs a lease.
    pub const MAX: u16 = 1024;

    /// So many shards.
    ///
    /// # Errors
    /// If there are none, or more than [`Shards::MAX`].
    pub fn new(count: usize) -> Result<Self, ShardsError> {
        match u16::try_from(count) {
            Ok(count @ 1..=Self::MAX) => Ok(Self(count)),
            Ok(_) | Err(_) => Err(ShardsError(count)),
        }
    }

    /// How many there are.
    pub const fn count(self) -> u16 {
        self.0
    }

    /// All of them, in their order.
    pub fn all(self) -> impl Iterator<Item = Shard> {
        (0..self.0).map(Shard)
    }

    /// The shard that a worker, or anything else with a name, belongs to.
    pub fn of(self, name: &str) -> Shard {
        Shard(jump(mixed(fnv1a(name.as_bytes())), self.0))
    }
}

impl Default for Shards {
    fn default() -> Self {
        Self::ONE
    }
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// FNV leaves names that differ in their last letter close together.
const fn mixed(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as published; a bucket is below `count`")]
fn jump(mut key: u64, count: u16) -> u16 {
    let (mut bucket, mut next) = (0, 0_u64);
    while next < u64::from(count) {
        bucket = next as u16;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let draw = f64::from((key >> 33) as u32) + 1.0;
        next = ((f64::from(bucket) + 1.0) * (f64::from(1_u32 << 31) / draw)) as u64;
    }
    bucket
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Computed once with another implementation. A change here would give workers to two members while versions mix.
    #[test]
    fn the_shard_of_a_name_never_changes() {
        let names = ["", "w-1", "w-2", "worker-0001", "4b7e7a3e-6a53-4d0c-9e57-2c7c4b1f0a55", "Ünïcode"];
        let shards = |count| {
            let shards = Shards::new(count).expect("a good number");
            names.map(|name| shards.of(name).0)
        };
        assert_eq!(shards(1), [0; 6]);
        assert_eq!(shards(2), [0, 0, 0, 1, 0, 1]);
        assert_eq!(shards(16), [11, 5, 5, 10, 8, 10]);
        assert_eq!(shards(1024), [978, 772, 399, 864, 37, 960]);
    }

    #[test]
    fn what_cannot_be_led_is_refused() {
        for count in [0, 1025, 65_536, usize::MAX] {
            assert_eq!(Shards::new(count), Err(ShardsError(count)));
        }
        assert_eq!(Shards::new(1), Ok(Shards::ONE));
        assert!(Shards::new(1024).is_ok());
    }

    #[test]
    fn every_shard_gets_about_the_same() {
        let shards = Shards::new(16).expect("a good number");
        let mut sizes: BTreeMap<Shard, usize> = BTreeMap::new();
        for number in 0..16_000 {
            *sizes.entry(shards.of(&format!("worker-{number:05}"))).or_default() += 1;
        }
        assert_eq!(sizes.len(), 16);
        assert!(sizes.values().all(|size| (850..1150).contains(size)), "{sizes:?}");
    }

    proptest! {
        #[test]
        fn a_shard_more_moves_workers_only_to_itself(name in ".{0,40}", count in 1_usize..1024) {
            let (before, after) = (Shards::new(count).expect("good").of(&name), Shards::new(count + 1).expect("good").of(&name));
            prop_assert!(usize::from(before.0) < count);
            prop_assert!(after == before || usize::from(after.0) == count);
        }
    }
}
