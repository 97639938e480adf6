//! Random numbers that are the same on every machine.

use std::time::Duration;

/// A generator with a period of 2⁶⁴: each number is a mixed counter.
#[derive(Debug, Clone)]
pub(super) struct Rng(u64);

impl Rng {
    /// A generator for one purpose. Those of other purposes are independent of it, so that a policy that draws more
    /// numbers changes no arrival.
    pub(super) fn new(seed: u64, purpose: u64) -> Self {
        let mut rng = Self(seed ^ purpose.wrapping_mul(0xd134_2543_de82_ef95));
        rng.next();
        rng
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ (mixed >> 32)
    }

    /// A number from 0, inclusive, to 1, exclusive.
    pub(super) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A time with an exponential distribution.
    pub(super) fn exponential(&mut self, mean: Duration) -> Duration {
        let drawn = -(1.0 - self.fraction()).ln() * mean.as_secs_f64();
        Duration::try_from_secs_f64(drawn).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_fill_the_unit_interval() {
        let mut rng = Rng::new(7, 1);
        let drawn: Vec<f64> = (0..10_000).map(|_| rng.fraction()).collect();
        assert!(drawn.iter().all(|fraction| (0.0..1.0).contains(fraction)));
        let mean = drawn.iter().sum::<f64>() / 10_000.0;
        assert!((0.49..0.51).contains(&mean), "{mean}");
    }

    #[test]
    fn exponential_times_have_their_mean() {
        let mut rng = Rng::new(7, 2);
        let total: f64 = (0..20_000).map(|_| rng.exponential(Duration::from_secs(100)).as_secs_f64()).sum();
        assert!((97.0..103.0).contains(&(total / 20_000.0)), "{total}");
    }
}
