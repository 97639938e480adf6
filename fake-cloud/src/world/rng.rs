//! Seeded random numbers. A seed yields the same numbers on every machine and in every release.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};

/// A seeded random number generator.
///
/// ```
/// use fake_cloud::world::SeededRng;
///
/// assert_eq!(SeededRng::new(7, "ids").hex(8), SeededRng::new(7, "ids").hex(8));
/// assert_ne!(SeededRng::new(7, "ids").hex(8), SeededRng::new(7, "faults").hex(8));
/// ```
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct SeededRng {
    source: Xoshiro256PlusPlus,
}

impl SeededRng {
    /// Creates the generator of one purpose. Purposes have independent streams, so that an additional draw for one
    /// purpose does not change another.
    pub fn new(seed: u64, purpose: &str) -> Self {
        Self { source: Xoshiro256PlusPlus::seed_from_u64(mix(seed ^ hash_text(purpose))) }
    }

    /// Returns the next random number.
    pub fn next_u64(&mut self) -> u64 {
        self.source.next_u64()
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// Returns `true` with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        to_fraction(self.next_u64()) < probability
    }

    /// Returns a string of this many hexadecimal digits.
    pub fn hex(&mut self, digits: usize) -> String {
        let mut hex = String::with_capacity(digits);
        self.push_hex(&mut hex, digits);
        hex
    }

    fn push_hex(&mut self, text: &mut String, digits: usize) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        text.extend((0..digits).map(|_| char::from(DIGITS[(self.next_u64() >> 60) as usize])));
    }

    /// Returns an id in AWS's long form: a prefix and 17 hexadecimal digits, the first of which is 0.
    pub fn id(&mut self, prefix: &str) -> String {
        let mut id = String::with_capacity(prefix.len() + 18);
        id.push_str(prefix);
        id.push_str("-0");
        self.push_hex(&mut id, 16);
        id
    }

    /// Returns a version 4 UUID.
    pub fn uuid(&mut self) -> String {
        let (high, low) = (self.next_u64(), self.next_u64());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | (low >> 50),
            low & 0xffff_ffff_ffff
        )
    }

    /// Shuffles the items in place.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// Distributes the entropy of a number over all its bits (the finalizer of SplitMix64).
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Hashes a text. The hash of the standard library may change between releases.
pub(crate) fn hash_text(text: &str) -> u64 {
    mix(text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)))
}

/// Maps a random number to a fraction in `0.0..1.0`.
pub(crate) fn to_fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_has_version_4() {
        let uuid = SeededRng::new(1, "test").uuid();
        let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(&uuid[14..15], "4");
    }

    #[test]
    fn probabilities_0_and_1_are_exact() {
        let mut rng = SeededRng::new(1, "test");
        assert!((0..1000).all(|_| rng.chance(1.0)));
        assert!(!(0..1000).any(|_| rng.chance(0.0)));
    }

    #[test]
    fn shuffle_keeps_all_items() {
        let mut items: Vec<u32> = (0..100).collect();
        SeededRng::new(1, "test").shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
