use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use parking_lot::Mutex;

use crate::lifecycle::time::Timestamp;
use crate::ports::Clock;

/// A clock that moves only when told to. Clones show the same time.
///
/// ```
/// use std::time::Duration;
/// use lcm_sdk::providers::memory::ManualClock;
/// use lcm_sdk::ports::Clock;
///
/// let clock = ManualClock::at("2026-02-06T08:00:00Z".parse().unwrap());
/// clock.advance(Duration::from_secs(90));
/// assert_eq!(clock.now().to_rfc3339(), "2026-02-06T08:01:30+00:00");
/// ```
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Mutex<Timestamp>>);

impl ManualClock {
    /// A clock that shows a moment.
    pub fn at(moment: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(moment)))
    }

    /// Moves it on. At the end of time it stays.
    pub fn advance(&self, by: Duration) {
        let mut now = self.0.lock();
        let moved = TimeDelta::from_std(by).ok().and_then(|by| now.checked_add_signed(by));
        *now = moved.unwrap_or(Timestamp::MAX_UTC);
    }

    /// Sets it, back in time too: real clocks jump.
    pub fn set(&self, moment: Timestamp) {
        *self.0.lock() = moment;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}
