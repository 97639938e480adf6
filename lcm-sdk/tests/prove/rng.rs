//! Repeatable randomness: the same seed gives the same numbers on every machine.

use std::time::Duration;

/// A splitmix generator.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    /// True this many times in a thousand.
    pub(crate) fn chance(&mut self, permille: u64) -> bool {
        self.roll(1000) < permille
    }

    /// One of several values.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let place = self.roll(from.len() as u64);
        from[usize::try_from(place).expect("below the length")]
    }

    /// A duration between two.
    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.roll(to - from + 1))
    }
}
