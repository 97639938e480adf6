//! The time of day of a simulated world. It follows tokio's paused clock and can be set wrong.

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
    wrong_by_ms: Arc<AtomicI64>,
}

impl SimClock {
    pub(crate) fn new() -> Self {
        let base = "2026-02-06T08:00:00Z".parse().expect("a moment");
        Self { began: Instant::now(), base, wrong_by_ms: Arc::default() }
    }

    /// Makes the clock jump, to be wrong by this many seconds.
    pub(crate) fn set_wrong_by(&self, seconds: i64) {
        self.wrong_by_ms.store(seconds * 1000, Ordering::Release);
    }

    /// The time on a clock that never jumped.
    pub(crate) fn truth(&self) -> Timestamp {
        self.base + self.began.elapsed()
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        self.truth() + TimeDelta::milliseconds(self.wrong_by_ms.load(Ordering::Acquire))
    }
}
