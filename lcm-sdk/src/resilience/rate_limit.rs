//! Limits the rate of calls with one token bucket per API and region.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::telemetry::{Anomaly, Telemetry};

/// Factor applied to the rate of a throttled bucket.
const SLOW_DOWN: f64 = 0.5;
/// Lowest rate of a throttled bucket, relative to its limit.
const SLOWEST: f64 = 1.0 / 32.0;
/// Time in which the rate grows from zero to its limit, linearly.
const RECOVERY: Duration = Duration::from_secs(60);
/// Throttled responses within this time count as one, because their calls were concurrent.
const THROTTLE_WINDOW: Duration = Duration::from_secs(1);

/// Rate limit of an API.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateLimit {
    /// Maximum number of calls at once, after a pause.
    pub burst: f64,
    /// Sustained calls per second.
    pub per_second: f64,
}

impl RateLimit {
    /// Creates a limit of at least one call per burst and 0.001 calls per second.
    pub fn new(burst: f64, per_second: f64) -> Self {
        Self { burst: burst.max(1.0), per_second: per_second.max(0.001) }
    }

    /// Multiplies burst and rate.
    #[must_use]
    pub fn scale(self, factor: f64) -> Self {
        Self::new(self.burst * factor, self.per_second * factor)
    }
}

/// Token buckets by API and region. Clones share them.
///
/// # Guarantees
/// - Each API has its own bucket in each region, so that a busy one does not delay another.
/// - Calls proceed in the order in which they wait.
/// - Throttling halves the rate, at most once per second and down to 1/32 of the limit. The rate recovers by 1/60 of the
///   limit per second.
#[derive(Debug, Clone)]
pub struct RateLimiter {
    telemetry: Telemetry,
    buckets: Arc<Mutex<HashMap<String, Arc<TokenBucket>>>>,
}

impl RateLimiter {
    /// Creates a limiter without buckets.
    pub fn new(telemetry: Telemetry) -> Self {
        Self { telemetry, buckets: Arc::default() }
    }

    /// Returns the bucket of an API in a region. The limit applies when the bucket is created.
    pub fn bucket(&self, api: &str, region: &str, limit: RateLimit) -> Arc<TokenBucket> {
        let mut buckets = self.buckets.lock();
        let make = || Arc::new(TokenBucket::new(limit, self.telemetry.clone()));
        Arc::clone(buckets.entry(format!("{api}/{region}")).or_insert_with(make))
    }
}

/// A token bucket.
#[derive(Debug)]
pub struct TokenBucket {
    limit: RateLimit,
    telemetry: Telemetry,
    /// Held by the first waiting call; tokio's mutex is fair.
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

impl TokenBucket {
    fn new(limit: RateLimit, telemetry: Telemetry) -> Self {
        let level = Level { tokens: limit.burst, rate: limit.per_second, at: Instant::now(), throttled_at: None };
        Self { limit, telemetry, turn: tokio::sync::Mutex::default(), level: Mutex::new(level) }
    }

    /// Waits for a token.
    ///
    /// # Cancel safety
    /// A dropped call takes no token and does not delay those behind it.
    pub async fn acquire(&self) {
        let _turn = self.turn.lock().await;
        while let Some(wait) = self.take() {
            sleep(wait).await;
        }
    }

    /// Records a throttled response: empties the bucket and slows it down.
    pub fn record_throttle(&self) {
        self.telemetry.count_anomaly(Anomaly::Throttled);
        let mut level = self.level.lock();
        let now = Instant::now();
        self.refill(&mut level, now);
        level.tokens = level.tokens.min(0.0);
        if level.throttled_at.is_none_or(|last| now.duration_since(last) >= THROTTLE_WINDOW) {
            level.throttled_at = Some(now);
            level.rate = (level.rate * SLOW_DOWN).max(self.limit.per_second * SLOWEST);
        }
    }

    /// Current rate in calls per second.
    pub fn rate(&self) -> f64 {
        let mut level = self.level.lock();
        self.refill(&mut level, Instant::now());
        level.rate
    }

    /// Takes a token, or returns the time until there is one.
    fn take(&self) -> Option<Duration> {
        let mut level = self.level.lock();
        self.refill(&mut level, Instant::now());
        if level.tokens >= 1.0 {
            level.tokens -= 1.0;
            return None;
        }
        // One millisecond more, so that rounding does not cause a busy loop.
        Some(Duration::from_secs_f64((1.0 - level.tokens) / level.rate) + Duration::from_millis(1))
    }

    fn refill(&self, level: &mut Level, now: Instant) {
        let passed = now.duration_since(level.at).as_secs_f64();
        level.at = now;
        level.tokens = (level.tokens + passed * level.rate).min(self.limit.burst);
        let growth = self.limit.per_second / RECOVERY.as_secs_f64();
        level.rate = (level.rate + passed * growth).min(self.limit.per_second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(burst: f64, per_second: f64) -> (Telemetry, Arc<TokenBucket>) {
        let telemetry = Telemetry::default();
        let bucket = RateLimiter::new(telemetry.clone()).bucket("ec2", "here", RateLimit::new(burst, per_second));
        (telemetry, bucket)
    }

    async fn time_for(bucket: &TokenBucket, calls: usize) -> f64 {
        let start = Instant::now();
        for _ in 0..calls {
            bucket.acquire().await;
        }
        start.elapsed().as_secs_f64()
    }

    #[tokio::test(start_paused = true)]
    async fn burst_is_immediate_and_the_rest_is_paced() {
        let (_, bucket) = bucket(10.0, 5.0);
        assert!(time_for(&bucket, 10).await < 0.01);
        let took = time_for(&bucket, 20).await;
        assert!((3.9..4.3).contains(&took), "{took}");
    }

    #[tokio::test(start_paused = true)]
    async fn throttled_rate_is_halved_and_recovers() {
        let (telemetry, bucket) = bucket(10.0, 32.0);
        bucket.record_throttle();
        bucket.record_throttle();
        assert_eq!(bucket.rate(), 16.0);
        for _ in 0..20 {
            sleep(THROTTLE_WINDOW).await;
            bucket.record_throttle();
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
    async fn throttling_empties_the_bucket() {
        let (_, bucket) = bucket(10.0, 2.0);
        bucket.record_throttle();
        assert!(time_for(&bucket, 1).await > 0.9);
    }

    #[tokio::test(start_paused = true)]
    async fn canceled_caller_takes_no_token() {
        let (_, bucket) = bucket(1.0, 1.0);
        bucket.acquire().await;
        let impatient = tokio::time::timeout(Duration::from_millis(500), bucket.acquire()).await;
        assert!(impatient.is_err());
        let took = time_for(&bucket, 1).await;
        assert!(took < 0.6, "{took}");
    }

    #[tokio::test(start_paused = true)]
    async fn buckets_are_independent() {
        let limiter = RateLimiter::new(Telemetry::default());
        let least = RateLimit::new(1.0, 0.001);
        time_for(&limiter.bucket("run", "here", least), 1).await;
        for (api, region) in [("run", "there"), ("describe", "here")] {
            assert!(time_for(&limiter.bucket(api, region, least), 1).await < 0.01);
        }
        assert!(limiter.bucket("run", "here", least).take().is_some());
    }
}
