//! The time of day of a simulated world. It follows tokio's paused clock, plus an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use chrono::TimeDelta;
use lcm_sdk::Timestamp;
use lcm_sdk::ports::Clock;
use tokio::time::Instant;

/// Clones show the same time.
#[derive(Debug, Clone)]
pub(crate) struct SimClock {
    began: Instant,
    base: Timestamp,
    error_ms: Arc<AtomicI64>,
    /// How far the clock was set back in all, in seconds.
    set_back: Arc<AtomicI64>,
}

impl SimClock {
    pub(crate) fn new() -> Self {
        let base = "2026-02-06T08:00:00Z".parse().expect("a timestamp");
        Self { began: Instant::now(), base, error_ms: Arc::default(), set_back: Arc::default() }
    }

    /// Sets the clock error in seconds.
    pub(crate) fn set_error(&self, seconds: i64) {
        self.error_ms.store(seconds * 1000, Ordering::Release);
    }

    /// Sets the clock back for good: everything recorded before seems younger from then on.
    pub(crate) fn set_back(&self, seconds: i64) {
        self.set_back.fetch_add(seconds, Ordering::AcqRel);
    }

    /// The time without the clock error.
    pub(crate) fn true_time(&self) -> Timestamp {
        self.base + self.began.elapsed() - TimeDelta::seconds(self.set_back.load(Ordering::Acquire))
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        self.true_time() + TimeDelta::milliseconds(self.error_ms.load(Ordering::Acquire))
    }
}
