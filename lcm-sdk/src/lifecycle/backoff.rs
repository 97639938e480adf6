//! Delay before a retry.

use std::time::Duration;

/// `min(base × multiplier^retries, max)`: 1, 2, 4, 8, 16, 32, 60, 60 … seconds by default.
///
/// ```
/// use lcm_sdk::Backoff;
///
/// let seconds: Vec<_> = (0..8).map(|retries| Backoff::default().delay(retries).as_secs()).collect();
/// assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// Delay before the first retry.
    pub base: Duration,
    /// Factor between one delay and the next.
    pub multiplier: f64,
    /// Upper bound of the delay.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_secs(1), multiplier: 2.0, max: Duration::from_secs(60) }
    }
}

impl Backoff {
    /// The delay before retry number `retries`, counted from zero. Any settings give a delay up to `max`.
    pub fn delay(&self, retries: u32) -> Duration {
        let factor = self.multiplier.powi(i32::try_from(retries).unwrap_or(i32::MAX));
        let seconds = self.base.as_secs_f64() * factor;
        // Overflow and nonsense settings (a negative or undefined factor) mean the longest delay, not none.
        Duration::try_from_secs_f64(seconds).map_or(self.max, |delay| delay.min(self.max))
    }

    /// The delay spread over its upper half by `fraction`, a random number from 0 to 1 that the caller draws, so
    /// that workers that failed together do not come back together.
    pub fn delay_with_jitter(&self, retries: u32, fraction: f64) -> Duration {
        let delay = self.delay(retries);
        let fraction = if fraction.is_finite() { fraction.clamp(0.0, 1.0) } else { 1.0 };
        delay.mul_f64(0.5 + fraction / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_minute() {
        let seconds = |backoff: Backoff| (0..8).map(|retries| backoff.delay(retries).as_secs()).collect::<Vec<_>>();
        assert_eq!(seconds(Backoff::default()), [1, 2, 4, 8, 16, 32, 60, 60]);
        let (base, max) = (Duration::from_secs(2), Duration::from_secs(20));
        assert_eq!(seconds(Backoff { base, multiplier: 3.0, max }), [2, 6, 18, 20, 20, 20, 20, 20]);
    }

    #[test]
    fn no_setting_and_no_count_breaks_the_formula() {
        let default = Backoff::default();
        assert_eq!(default.delay(u32::MAX), default.max);
        for multiplier in [f64::NAN, f64::INFINITY, -2.0, 0.0, 1e300] {
            let odd = Backoff { multiplier, ..default };
            for retries in [0, 1, 2, 3, 1000, u32::MAX] {
                assert!(odd.delay(retries) <= odd.max, "{multiplier} {retries}");
            }
        }
    }

    #[test]
    fn jitter_stays_in_the_upper_half() {
        let default = Backoff::default();
        assert_eq!(default.delay_with_jitter(3, 0.0), Duration::from_secs(4));
        assert_eq!(default.delay_with_jitter(3, 1.0), Duration::from_secs(8));
        assert_eq!(default.delay_with_jitter(3, f64::NAN), Duration::from_secs(8));
    }
}
