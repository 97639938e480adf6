//! A clock for tests.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use parking_lot::Mutex;

use crate::lifecycle::time::Timestamp;
use crate::ports::Clock;

/// A [`Clock`] that is set and advanced by hand. Clones share the time.
///
/// ```
/// use std::time::Duration;
/// use lcm_sdk::providers::memory::ManualClock;
/// use lcm_sdk::ports::Clock;
///
/// let clock = ManualClock::new("2026-02-06T08:00:00Z".parse().unwrap());
/// clock.advance(Duration::from_secs(90));
/// assert_eq!(clock.now().to_rfc3339(), "2026-02-06T08:01:30+00:00");
/// ```
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Mutex<Timestamp>>);

impl ManualClock {
    /// A clock that starts at `moment`.
    pub fn new(moment: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(moment)))
    }

    /// Moves the clock forward, up to [`Timestamp::MAX_UTC`].
    pub fn advance(&self, by: Duration) {
        let mut now = self.0.lock();
        let moved = TimeDelta::from_std(by).ok().and_then(|by| now.checked_add_signed(by));
        *now = moved.unwrap_or(Timestamp::MAX_UTC);
    }

    /// Sets the time, forward or back.
    pub fn set(&self, moment: Timestamp) {
        *self.0.lock() = moment;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}
