//! Clock of leases, which goes on while the machine is suspended.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// Clock on which leases expire: the monotonic clock plus the time for which the machine was suspended since this
/// process began to use it. The monotonic clock stands still during a suspend, while etcd admits another leader.
///
/// On Linux the time is that of `CLOCK_BOOTTIME`. On other systems it is the monotonic clock alone.
#[derive(Clone, Default)]
pub struct LeaseClock {
    suspended: Option<Suspended>,
}

type Suspended = Arc<dyn Fn() -> Duration + Send + Sync>;

impl LeaseClock {
    /// A clock that takes the suspended time from a function, for tests.
    pub fn with_suspended(suspended: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { suspended: Some(Arc::new(suspended)) }
    }

    /// The current time. Only comparable to other times of this clock.
    pub fn now(&self) -> Instant {
        let suspended = self.suspended.as_ref().map_or_else(system::suspended, |suspended| suspended());
        Instant::now() + suspended
    }

    /// Time since an earlier time of this clock.
    pub(crate) fn since(&self, earlier: Instant) -> Duration {
        self.now().saturating_duration_since(earlier)
    }
}

impl fmt::Debug for LeaseClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseClock")
    }
}

impl PartialEq for LeaseClock {
    fn eq(&self, other: &Self) -> bool {
        match (&self.suspended, &other.suspended) {
            (None, None) => true,
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (None, Some(_)) | (Some(_), None) => false,
        }
    }
}

impl Eq for LeaseClock {}

#[cfg(target_os = "linux")]
mod system {
    use std::sync::OnceLock;
    use std::time::Duration;

    use rustix::time::{ClockId, Timespec, clock_gettime};

    /// Resolution of the difference of two clocks that are read one after the other.
    const STEP_MILLIS: u128 = 100;

    /// Time for which the machine was suspended since the first call.
    pub(super) fn suspended() -> Duration {
        static AT_FIRST: OnceLock<Duration> = OnceLock::new();
        let total = ahead();
        let since = total.saturating_sub(*AT_FIRST.get_or_init(|| total));
        let steps = since.as_millis() / STEP_MILLIS * STEP_MILLIS;
        Duration::from_millis(u64::try_from(steps).unwrap_or(u64::MAX))
    }

    /// Time by which the clock that counts suspended time is ahead of the one that does not.
    fn ahead() -> Duration {
        let monotonic = since_boot(clock_gettime(ClockId::Monotonic));
        since_boot(clock_gettime(ClockId::Boottime)).saturating_sub(monotonic)
    }

    fn since_boot(time: Timespec) -> Duration {
        Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) fn suspended() -> std::time::Duration {
        std::time::Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clock_follows_paused_time() {
        let (clock, began) = (LeaseClock::default(), Instant::now());
        assert_eq!(clock.now(), began);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock.since(began), Duration::from_secs(3));
    }
}
