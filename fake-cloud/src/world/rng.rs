//! The seeded random source of a world: the same seed rolls the same numbers, on every machine and in every release.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};

/// A seeded random source.
///
/// ```
/// use fake_cloud::world::SeededRng;
///
/// assert_eq!(SeededRng::new(7, "ids").hex(8), SeededRng::new(7, "ids").hex(8));
/// assert_ne!(SeededRng::new(7, "ids").hex(8), SeededRng::new(7, "faults").hex(8));
/// ```
#[derive(Debug, Clone)]
pub struct SeededRng {
    source: Xoshiro256PlusPlus,
}

impl SeededRng {
    /// The rng of one purpose. Purposes have streams of their own, so that one more request here changes nothing there.
    pub fn new(seed: u64, purpose: &str) -> Self {
        Self { source: Xoshiro256PlusPlus::seed_from_u64(mix(seed ^ hash_text(purpose))) }
    }

    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.source.next_u64()
    }

    /// A number below `bound`; 0 when there is none.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.roll() % bound }
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        unit(self.roll()) < probability
    }

    /// This many hexadecimal digits.
    pub fn hex(&mut self, digits: usize) -> String {
        let mut hex = String::with_capacity(digits);
        self.push_hex(&mut hex, digits);
        hex
    }

    fn push_hex(&mut self, text: &mut String, digits: usize) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        text.extend((0..digits).map(|_| char::from(DIGITS[(self.roll() >> 60) as usize])));
    }

    /// A fresh id in AWS's long form: a prefix and 17 hexadecimal digits, of which the first is 0.
    pub fn id(&mut self, prefix: &str) -> String {
        let mut id = String::with_capacity(prefix.len() + 18);
        id.push_str(prefix);
        id.push_str("-0");
        self.push_hex(&mut id, 16);
        id
    }

    /// A random UUID.
    pub fn uuid(&mut self) -> String {
        let (high, low) = (self.roll(), self.roll());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | (low >> 50),
            low & 0xffff_ffff_ffff
        )
    }

    /// Puts the items into another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// Spreads the bits of a number over all of it.
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A number that stands for a text. Not the standard library's: that one may change between releases.
pub(crate) fn hash_text(text: &str) -> u64 {
    mix(text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)))
}

/// The number as a fraction in `0.0..1.0`.
pub(crate) fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_looks_like_one() {
        let uuid = SeededRng::new(1, "test").uuid();
        let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(&uuid[14..15], "4");
    }

    #[test]
    fn certain_and_impossible_are_exact() {
        let mut rng = SeededRng::new(1, "test");
        assert!((0..1000).all(|_| rng.chance(1.0)));
        assert!(!(0..1000).any(|_| rng.chance(0.0)));
    }

    #[test]
    fn a_shuffle_loses_nothing() {
        let mut items: Vec<u32> = (0..100).collect();
        SeededRng::new(1, "test").shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
