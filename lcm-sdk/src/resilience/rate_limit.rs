//! Asking slowly enough: one token bucket per API and region, shared by everybody who asks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::telemetry::{Anomaly, Telemetry};

/// What a throttled bucket's rate is multiplied by.
const SLOW_DOWN: f64 = 0.5;
/// The slowest a bucket becomes, as a share of its allowance: throttling can never silence an API for good.
const SLOWEST: f64 = 1.0 / 32.0;
/// How long a bucket takes from standing still to its full rate, growing by the same amount every second.
const RECOVERY: Duration = Duration::from_secs(60);
/// Throttled answers within this time count as one: they answer calls that were under way together.
const ONE_EVENT: Duration = Duration::from_secs(1);

/// How often an API may be called.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateLimit {
    /// Calls that may be made at once after a quiet time.
    pub burst: f64,
    /// Calls per second in the long run.
    pub per_second: f64,
}

impl RateLimit {
    /// An allowance; numbers that make no sense become the least that works: a burst of one, one call in a thousand
    /// seconds.
    pub fn new(burst: f64, per_second: f64) -> Self {
        Self { burst: burst.max(1.0), per_second: per_second.max(0.001) }
    }

    /// The same, this many times faster.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self::new(self.burst * factor, self.per_second * factor)
    }
}

/// The buckets of one account. Clones share them.
///
/// # Guarantees
/// - Each API in each region has a bucket of its own: a busy one never delays another.
/// - Whoever waits first goes first.
/// - When the far side throttles, the rate is halved, down to 1/32 of the allowance, at most once a second; it grows
///   back by 1/60 of the allowance every second, up to the allowance.
#[derive(Debug, Clone)]
pub struct Limiter {
    telemetry: Telemetry,
    buckets: Arc<Mutex<HashMap<String, Arc<Bucket>>>>,
}

impl Limiter {
    /// No bucket yet.
    pub fn new(telemetry: Telemetry) -> Self {
        Self { telemetry, buckets: Arc::default() }
    }

    /// The bucket of an API in a region; the allowance counts when it is asked for the first time.
    pub fn bucket(&self, api: &str, region: &str, allowance: RateLimit) -> Arc<Bucket> {
        let mut buckets = self.buckets.lock();
        let make = || Arc::new(Bucket::new(allowance, self.telemetry.clone()));
        Arc::clone(buckets.entry(format!("{api}/{region}")).or_insert_with(make))
    }
}

/// One token bucket.
#[derive(Debug)]
pub struct Bucket {
    allowance: RateLimit,
    telemetry: Telemetry,
    /// Held by whoever is next; the others wait in order.
    turn: tokio::sync::Mutex<()>,
    level: Mutex<Level>,
}

#[derive(Debug)]
struct Level {
    tokens: f64,
    rate: f64,
    at: Instant,
    throttled_at: Option<Instant>,
}

impl Bucket {
    fn new(allowance: RateLimit, telemetry: Telemetry) -> Self {
        let level =
            Level { tokens: allowance.burst, rate: allowance.per_second, at: Instant::now(), throttled_at: None };
        Self { allowance, telemetry, turn: tokio::sync::Mutex::default(), level: Mutex::new(level) }
    }

    /// Waits until a call may be made.
    ///
    /// # Cancel safety
    /// Whoever stops waiting takes no token and loses its place in the line; nobody behind it waits longer for it.
    pub async fn acquire(&self) {
        let _turn = self.turn.lock().await;
        while let Some(wait) = self.take() {
            sleep(wait).await;
        }
    }

    /// The far side asked us to slow down.
    pub fn throttled(&self) {
        self.telemetry.count_anomaly(Anomaly::Throttled);
        let mut level = self.level.lock();
        let now = Instant::now();
        self.refill(&mut level, now);
        level.tokens = level.tokens.min(0.0);
        if level.throttled_at.is_none_or(|last| now.duration_since(last) >= ONE_EVENT) {
            level.throttled_at = Some(now);
            level.rate = (level.rate * SLOW_DOWN).max(self.allowance.per_second * SLOWEST);
        }
    }

    /// Calls per second that are let through now.
    pub fn rate(&self) -> f64 {
        let mut level = self.level.lock();
        self.refill(&mut level, Instant::now());
        level.rate
    }

    /// Takes a token, or says how long until there is one.
    fn take(&self) -> Option<Duration> {
        let mut level = self.level.lock();
        self.refill(&mut level, Instant::now());
        if level.tokens >= 1.0 {
            level.tokens -= 1.0;
            return None;
        }
        // A little more than needed, so that rounding never makes a waiter spin.
        Some(Duration::from_secs_f64((1.0 - level.tokens) / level.rate) + Duration::from_millis(1))
    }

    fn refill(&self, level: &mut Level, now: Instant) {
        let passed = now.duration_since(level.at).as_secs_f64();
        level.at = now;
        level.tokens = (level.tokens + passed * level.rate).min(self.allowance.burst);
        let growth = self.allowance.per_second / RECOVERY.as_secs_f64();
        level.rate = (level.rate + passed * growth).min(self.allowance.per_second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(burst: f64, per_second: f64) -> (Telemetry, Arc<Bucket>) {
        let telemetry = Telemetry::default();
        let bucket = Limiter::new(telemetry.clone()).bucket("ec2", "here", RateLimit::new(burst, per_second));
        (telemetry, bucket)
    }

    async fn time_for(bucket: &Bucket, calls: usize) -> f64 {
        let start = Instant::now();
        for _ in 0..calls {
            bucket.acquire().await;
        }
        start.elapsed().as_secs_f64()
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let (_, bucket) = bucket(10.0, 5.0);
        assert!(time_for(&bucket, 10).await < 0.01);
        let took = time_for(&bucket, 20).await;
        assert!((3.9..4.3).contains(&took), "{took}");
    }

    #[tokio::test(start_paused = true)]
    async fn throttling_halves_the_rate_once_a_second_down_to_a_floor_and_it_grows_back() {
        let (telemetry, bucket) = bucket(10.0, 32.0);
        bucket.throttled();
        bucket.throttled();
        assert_eq!(bucket.rate(), 16.0);
        for _ in 0..20 {
            sleep(ONE_EVENT).await;
            bucket.throttled();
        }
        assert!((1.0..2.0).contains(&bucket.rate()), "{}", bucket.rate());
        sleep(RECOVERY / 2).await;
        let half = bucket.rate();
        assert!((16.0..19.0).contains(&half), "{half}");
        sleep(RECOVERY).await;
        assert_eq!(bucket.rate(), 32.0);
        assert_eq!(telemetry.anomalies(Anomaly::Throttled), 22);
    }

    #[tokio::test(start_paused = true)]
    async fn after_throttling_nothing_is_left_of_the_burst() {
        let (_, bucket) = bucket(10.0, 2.0);
        bucket.throttled();
        assert!(time_for(&bucket, 1).await > 0.9);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_stops_waiting_takes_nothing_and_holds_nobody_up() {
        let (_, bucket) = bucket(1.0, 1.0);
        bucket.acquire().await;
        let impatient = tokio::time::timeout(Duration::from_millis(500), bucket.acquire()).await;
        assert!(impatient.is_err());
        let took = time_for(&bucket, 1).await;
        assert!(took < 0.6, "{took}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_exhausted_bucket_delays_no_other_region_and_no_other_api() {
        let limiter = Limiter::new(Telemetry::default());
        let least = RateLimit::new(1.0, 0.001);
        time_for(&limiter.bucket("run", "here", least), 1).await;
        for (api, region) in [("run", "there"), ("describe", "here")] {
            assert!(time_for(&limiter.bucket(api, region, least), 1).await < 0.01);
        }
        assert!(limiter.bucket("run", "here", least).take().is_some());
    }
}
