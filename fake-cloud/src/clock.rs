//! The clock of a world: real, accelerated, or manual. All services measure time on it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Speed of a clock.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Pace {
    /// The pace of real time.
    Real,
    /// Real time multiplied by this factor.
    Accelerated(f64),
    /// Stands still until [`Clock::advance`] is called.
    Manual,
}

/// Time and pace of a clock in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ClockState {
    pub(crate) now: DateTime<Utc>,
    pub(crate) pace: Pace,
}

/// A clock that can be advanced. Clones share their state.
///
/// ```
/// use std::time::Duration;
/// use fake_cloud::{Clock, Pace};
///
/// let clock = Clock::new(Pace::Manual);
/// let before = clock.now();
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!((clock.now() - before).num_minutes(), 60);
/// ```
#[derive(Debug, Clone)]
pub struct Clock {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    reference: Mutex<Reference>,
    changed: watch::Sender<()>,
}

/// Time of the clock at an instant, and its pace since then.
#[derive(Debug, Clone, Copy)]
struct Reference {
    pace: Pace,
    time: DateTime<Utc>,
    instant: Instant,
}

impl Reference {
    fn now(self) -> DateTime<Utc> {
        let factor = match self.pace {
            Pace::Real => 1.0,
            Pace::Accelerated(factor) => factor,
            Pace::Manual => 0.0,
        };
        // `mul_f64` panics if the product is out of range.
        let elapsed = Duration::try_from_secs_f64(self.instant.elapsed().as_secs_f64() * factor.max(0.0));
        saturating_add(self.time, elapsed.unwrap_or(Duration::MAX))
    }
}

impl Clock {
    /// Creates a clock that starts at the current time.
    pub fn new(pace: Pace) -> Self {
        Self::with_start(pace, DateTime::<Utc>::from(std::time::SystemTime::now()))
    }

    /// Creates a clock that starts at `start`.
    pub fn with_start(pace: Pace, start: DateTime<Utc>) -> Self {
        let reference = Reference { pace, time: start, instant: Instant::now() };
        Self { inner: Arc::new(Inner { reference: Mutex::new(reference), changed: watch::Sender::new(()) }) }
    }

    /// Returns the current time of the clock.
    pub fn now(&self) -> DateTime<Utc> {
        self.inner.reference.lock().now()
    }

    /// Returns the time and the pace.
    pub(crate) fn capture(&self) -> ClockState {
        let reference = *self.inner.reference.lock();
        ClockState { now: reference.now(), pace: reference.pace }
    }

    /// Sets the time and the pace, and wakes the tasks whose time has come. The time may go back.
    pub(crate) fn restore(&self, ClockState { now, pace }: ClockState) {
        self.change(|reference| (reference.time, reference.pace) = (now, pace));
    }

    /// Returns whether both are clones of one clock.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the current pace.
    pub fn pace(&self) -> Pace {
        self.inner.reference.lock().pace
    }

    /// Changes the pace. The current time does not change.
    pub fn set_pace(&self, pace: Pace) {
        self.change(|reference| reference.pace = pace);
    }

    /// Advances the clock, at any pace, and wakes the tasks whose time has come. Saturates in the year 9999.
    pub fn advance(&self, duration: Duration) {
        self.change(|reference| reference.time = saturating_add(reference.time, duration));
    }

    /// Waits until the clock reaches `deadline`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn sleep_until(&self, deadline: DateTime<Utc>) {
        let mut changed = self.inner.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let (now, pace) = {
                let reference = self.inner.reference.lock();
                (reference.now(), reference.pace)
            };
            let Ok(left) = (deadline - now).to_std() else { return };
            if left.is_zero() {
                return;
            }
            let real = match pace {
                Pace::Real => Some(left),
                // A wait that is too long for a `Duration` ends only if the clock is changed.
                Pace::Accelerated(factor) => Duration::try_from_secs_f64(left.as_secs_f64() / factor).ok(),
                Pace::Manual => None,
            };
            // The sender lives as long as `self`, so `changed` cannot fail.
            match real {
                Some(real) => drop(tokio::time::timeout(real, changed.changed()).await),
                None => drop(changed.changed().await),
            }
        }
    }

    /// Waits for a duration on this clock.
    ///
    /// # Cancel safety
    /// Cancel safe, but the wait starts again with the next call.
    pub async fn sleep(&self, duration: Duration) {
        self.sleep_until(saturating_add(self.now(), duration)).await;
    }

    fn change(&self, change: impl FnOnce(&mut Reference)) {
        {
            let mut reference = self.inner.reference.lock();
            *reference = Reference { time: reference.now(), instant: Instant::now(), ..*reference };
            change(&mut reference);
        }
        self.inner.changed.send_replace(());
    }
}

/// Latest time of a clock. The year has four digits, as clients expect, and adding a duration does not overflow.
fn max_time() -> DateTime<Utc> {
    DateTime::from_timestamp(253_370_764_800, 0).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

fn saturating_add(time: DateTime<Utc>, by: Duration) -> DateTime<Utc> {
    let by = TimeDelta::from_std(by).unwrap_or(TimeDelta::MAX);
    time.checked_add_signed(by).unwrap_or(DateTime::<Utc>::MAX_UTC).min(max_time())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sleep_ends_when_the_clock_reaches_the_deadline() {
        let clock = Clock::new(Pace::Manual);
        let sleeper = tokio::spawn({
            let (clock, due) = (clock.clone(), clock.now() + TimeDelta::seconds(60));
            async move { clock.sleep_until(due).await }
        });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(59));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_secs(1));
        sleeper.await.expect("it wakes");
    }

    #[tokio::test]
    async fn accelerated_clock_shortens_sleep() {
        let clock = Clock::new(Pace::Accelerated(10_000.0));
        let before = clock.now();
        clock.sleep(Duration::from_secs(100)).await;
        assert!(clock.now() - before >= TimeDelta::seconds(100));
    }

    #[test]
    fn pace_change_keeps_the_time() {
        let clock = Clock::new(Pace::Manual);
        let before = clock.now();
        clock.advance(Duration::from_secs(10));
        clock.set_pace(Pace::Real);
        clock.set_pace(Pace::Manual);
        assert!(clock.now() - before >= TimeDelta::seconds(10));
    }

    #[test]
    fn advance_saturates() {
        let clock = Clock::new(Pace::Manual);
        clock.advance(Duration::MAX);
        clock.advance(Duration::MAX);
        assert_eq!(clock.now().to_rfc3339(), "9999-01-01T00:00:00+00:00");
        assert!(
            clock.now().checked_add_signed(TimeDelta::days(36_500)).is_some(),
            "a later addition does not overflow"
        );
    }

    #[tokio::test]
    async fn extreme_factors_do_not_panic() {
        for factor in [1e300, f64::INFINITY, f64::NAN, -5.0, 1e-300] {
            let clock = Clock::new(Pace::Accelerated(factor));
            let before = clock.now();
            assert!(clock.now() >= before, "{factor}");
            let long = clock.sleep(Duration::from_secs(3600));
            drop(tokio::time::timeout(Duration::from_millis(5), long).await);
        }
    }
}
