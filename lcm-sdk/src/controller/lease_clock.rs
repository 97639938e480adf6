//! Clock of leases, which goes on while the machine is suspended.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// Clock on which leases expire: the monotonic clock plus the time for which the machine was suspended since this
/// process began to use it. The monotonic clock stands still during a suspend, while etcd admits another leader.
///
/// On Linux the time is that of `CLOCK_BOOTTIME`. On other systems it is the monotonic clock plus the time by which the wall
/// clock ran ahead of it: a wall clock that is set forward ends a lease early, and one that is set back never prolongs it.
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
    use std::sync::{LazyLock, Mutex, PoisonError};
    use std::time::{Duration, Instant, SystemTime};

    use super::Lead;

    struct Start {
        wall: SystemTime,
        monotonic: Instant,
        lead: Mutex<Lead>,
    }

    static START: LazyLock<Start> =
        LazyLock::new(|| Start { wall: SystemTime::now(), monotonic: Instant::now(), lead: Mutex::default() });

    /// Time for which the machine was suspended since the first call, at least.
    pub(super) fn suspended() -> Duration {
        let wall = SystemTime::now().duration_since(START.wall).unwrap_or_default();
        let mut lead = START.lead.lock().unwrap_or_else(PoisonError::into_inner);
        lead.observe(wall, START.monotonic.elapsed())
    }
}

/// The time by which the wall clock ran ahead of the monotonic one. It never becomes less.
#[cfg(any(test, not(target_os = "linux")))]
#[derive(Debug, Default)]
struct Lead {
    /// The difference of the two clocks when it was last read.
    difference: i128,
    total: Duration,
}

#[cfg(any(test, not(target_os = "linux")))]
impl Lead {
    /// Steps that are too small for a suspend: the clocks are read one after the other, and the wall clock is slewed.
    const STEP_MILLIS: i128 = 100;

    /// Adds the step since the last reading. Both times count from the same moment.
    fn observe(&mut self, wall: Duration, monotonic: Duration) -> Duration {
        let millis = |time: Duration| i128::try_from(time.as_millis()).unwrap_or(i128::MAX);
        let difference = millis(wall) - millis(monotonic);
        let step = difference - self.difference;
        if step.abs() >= Self::STEP_MILLIS {
            self.difference = difference;
            self.total += Duration::from_millis(u64::try_from(step).unwrap_or_default());
        }
        self.total
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

    #[test]
    fn lead_of_the_wall_clock_never_becomes_less() {
        let (mut lead, second) = (Lead::default(), Duration::from_secs);
        assert_eq!(lead.observe(second(10), second(10)), Duration::ZERO);
        assert_eq!(lead.observe(second(10) + Duration::from_millis(99), second(10)), Duration::ZERO, "jitter");
        assert_eq!(lead.observe(second(620), second(20)), second(600), "suspended for ten minutes");
        assert_eq!(lead.observe(second(30), second(30)), second(600), "set back");
        assert_eq!(lead.observe(second(100), second(40)), second(660), "suspended again");
    }
}
