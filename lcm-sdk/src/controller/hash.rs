//! Assigns names to shards.

use std::fmt;

use thiserror::Error;

/// Number of a shard, counted from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(pub u16);

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of shards that a fleet is divided into, and the assignment of names to them.
///
/// # Guarantees
/// A name is assigned to the same shard by every version of this library on every machine: members of different
/// versions would otherwise both act on a worker. The bytes of the name go through FNV-1a (64 bits), the result through
/// the finalizer of SplitMix64, and that through jump consistent hashing (Lamping and Veach, 2014). One more shard moves
/// one name in `n + 1`, and only to the new shard.
///
/// ```
/// use lcm_sdk::controller::{Shard, Shards};
///
/// let shards = Shards::new(16)?;
/// assert_eq!(shards.shard_of("w-1"), shards.shard_of("w-1"));
/// assert_eq!(Shards::ONE.shard_of("w-1"), Shard(0));
/// assert_eq!(Shards::new(0).unwrap_err().to_string(), "a fleet of 0 shards cannot be led; accepted: 1 to 1024");
/// # Ok::<(), lcm_sdk::controller::ShardsError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shards(u16);

/// Number of shards outside the accepted range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a fleet of {0} shards cannot be led; accepted: 1 to {max}", max = Shards::MAX)]
#[non_exhaustive]
pub struct ShardsError(pub usize);

impl Shards {
    /// A fleet that is not divided.
    pub const ONE: Self = Self(1);

    /// Largest number of shards: each costs a lease.
    pub const MAX: u16 = 1024;

    /// Divides a fleet into `count` shards.
    ///
    /// # Errors
    /// If `count` is zero or more than [`Shards::MAX`].
    pub fn new(count: usize) -> Result<Self, ShardsError> {
        match u16::try_from(count) {
            Ok(count @ 1..=Self::MAX) => Ok(Self(count)),
            Ok(_) | Err(_) => Err(ShardsError(count)),
        }
    }

    /// Number of shards.
    pub const fn count(self) -> u16 {
        self.0
    }

    /// All shards in ascending order.
    pub fn all(self) -> impl Iterator<Item = Shard> {
        (0..self.0).map(Shard)
    }

    /// The shard that a resource of this name belongs to.
    pub fn shard_of(self, name: &str) -> Shard {
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

/// Finalizer of SplitMix64: FNV leaves names that differ in their last letter close together.
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

    /// Expected values come from an independent implementation. A change would assign a worker to two members while
    /// versions mix.
    #[test]
    fn assignment_never_changes() {
        let names = ["", "w-1", "w-2", "worker-0001", "4b7e7a3e-6a53-4d0c-9e57-2c7c4b1f0a55", "Ünïcode"];
        let shards = |count| {
            let shards = Shards::new(count).expect("a good number");
            names.map(|name| shards.shard_of(name).0)
        };
        assert_eq!(shards(1), [0; 6]);
        assert_eq!(shards(2), [0, 0, 0, 1, 0, 1]);
        assert_eq!(shards(16), [11, 5, 5, 10, 8, 10]);
        assert_eq!(shards(1024), [978, 772, 399, 864, 37, 960]);
    }

    #[test]
    fn count_outside_the_range_is_rejected() {
        for count in [0, 1025, 65_536, usize::MAX] {
            assert_eq!(Shards::new(count), Err(ShardsError(count)));
        }
        assert_eq!(Shards::new(1), Ok(Shards::ONE));
        assert!(Shards::new(1024).is_ok());
    }

    #[test]
    fn names_spread_evenly() {
        let shards = Shards::new(16).expect("a good number");
        let mut sizes: BTreeMap<Shard, usize> = BTreeMap::new();
        for number in 0..16_000 {
            *sizes.entry(shards.shard_of(&format!("worker-{number:05}"))).or_default() += 1;
        }
        assert_eq!(sizes.len(), 16);
        assert!(sizes.values().all(|size| (850..1150).contains(size)), "{sizes:?}");
    }

    proptest! {
        #[test]
        fn new_shard_takes_names_only_for_itself(name in ".{0,40}", count in 1_usize..1024) {
            let (before, after) = (Shards::new(count).expect("good").shard_of(&name), Shards::new(count + 1).expect("good").shard_of(&name));
            prop_assert!(usize::from(before.0) < count);
            prop_assert!(after == before || usize::from(after.0) == count);
        }
    }
}
