//! The one clock of a world: real, accelerated, or moved by hand.
//!
//! Everything that takes time in the fake cloud is measured on it, so a test can make an hour pass in no time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use parking_lot::Mutex;
use tokio::sync::watch;

/// How a clock goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// As the clock on the wall.
    Real,
    /// This many times faster.
    Accelerated(f64),
    /// Not at all; [`Clock::advance`] moves it.
    Manual,
}

/// A clock that can be moved. Clones show the same time.
///
/// ```
/// use std::time::Duration;
/// use fake_cloud::clock::{Clock, Pace};
///
/// let clock = Clock::new(Pace::Manual);
/// let before = clock.now();
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!((clock.now() - before).num_minutes(), 60);
/// ```
#[derive(Debug, Clone)]
pub struct Clock {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    hand: Mutex<Hand>,
    moved: watch::Sender<()>,
}

/// Where the clock stood at an instant, and how it goes from there.
#[derive(Debug, Clone, Copy)]
struct Hand {
    pace: Pace,
    stood_at: DateTime<Utc>,
    since: Instant,
}

impl Hand {
    fn now(self) -> DateTime<Utc> {
        let factor = match self.pace {
            Pace::Real => 1.0,
            Pace::Accelerated(factor) => factor,
            Pace::Manual => 0.0,
        };
        // Not `mul_f64`, which panics where a factor is absurd.
        let passed = Duration::try_from_secs_f64(self.since.elapsed().as_secs_f64() * factor.max(0.0));
        ahead(self.stood_at, passed.unwrap_or(Duration::MAX))
    }
}

impl Clock {
    /// A clock that starts at the real time of day.
    pub fn new(pace: Pace) -> Self {
        Self::starting_at(pace, DateTime::<Utc>::from(std::time::SystemTime::now()))
    }

    /// A clock that starts at a moment of its own.
    pub fn starting_at(pace: Pace, moment: DateTime<Utc>) -> Self {
        let hand = Hand { pace, stood_at: moment, since: Instant::now() };
        Self { shared: Arc::new(Shared { hand: Mutex::new(hand), moved: watch::Sender::new(()) }) }
    }

    /// The time in this world.
    pub fn now(&self) -> DateTime<Utc> {
        self.shared.hand.lock().now()
    }

    /// How it goes.
    pub fn pace(&self) -> Pace {
        self.shared.hand.lock().pace
    }

    /// Lets it go another way from here on.
    pub fn set_pace(&self, pace: Pace) {
        self.change(|hand| hand.pace = pace);
    }

    /// Moves it forward, at any pace. Whoever waits for a moment that has come now wakes up.
    pub fn advance(&self, duration: Duration) {
        self.change(|hand| hand.stood_at = ahead(hand.stood_at, duration));
    }

    /// Waits until the clock shows `moment`.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time; nothing is lost.
    pub async fn sleep_until(&self, moment: DateTime<Utc>) {
        let mut moved = self.shared.moved.subscribe();
        loop {
            moved.mark_unchanged();
            let (now, pace) = {
                let hand = self.shared.hand.lock();
                (hand.now(), hand.pace)
            };
            let Ok(left) = (moment - now).to_std() else { return };
            if left.is_zero() {
                return;
            }
            let real = match pace {
                Pace::Real => Some(left),
                // What would take longer than any number can say is not waited for: only a moved clock brings it near.
                Pace::Accelerated(factor) => Duration::try_from_secs_f64(left.as_secs_f64() / factor).ok(),
                Pace::Manual => None,
            };
            // The sender lives as long as `self`, so `changed` fails only while everything is torn down.
            match real {
                Some(real) => drop(tokio::time::timeout(real, moved.changed()).await),
                None => drop(moved.changed().await),
            }
        }
    }

    /// Waits for a while on this clock.
    pub async fn sleep(&self, duration: Duration) {
        self.sleep_until(ahead(self.now(), duration)).await;
    }

    fn change(&self, change: impl FnOnce(&mut Hand)) {
        {
            let mut hand = self.shared.hand.lock();
            *hand = Hand { stood_at: hand.now(), since: Instant::now(), ..*hand };
            change(&mut hand);
        }
        self.shared.moved.send_replace(());
    }
}

/// The end of time. A year of four digits, so that every client can read it, and far enough from the last moment there
/// is that nothing added to it runs over.
fn end_of_time() -> DateTime<Utc> {
    DateTime::from_timestamp(253_370_764_800, 0).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

fn ahead(moment: DateTime<Utc>, by: Duration) -> DateTime<Utc> {
    let by = TimeDelta::from_std(by).unwrap_or(TimeDelta::MAX);
    moment.checked_add_signed(by).unwrap_or(DateTime::<Utc>::MAX_UTC).min(end_of_time())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sleeper_wakes_when_the_clock_is_moved_past_its_moment_and_not_before() {
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
    async fn an_accelerated_clock_makes_long_waits_short() {
        let clock = Clock::new(Pace::Accelerated(10_000.0));
        let before = clock.now();
        clock.sleep(Duration::from_secs(100)).await;
        assert!(clock.now() - before >= TimeDelta::seconds(100));
    }

    #[test]
    fn changing_the_pace_loses_no_time() {
        let clock = Clock::new(Pace::Manual);
        let before = clock.now();
        clock.advance(Duration::from_secs(10));
        clock.set_pace(Pace::Real);
        clock.set_pace(Pace::Manual);
        assert!(clock.now() - before >= TimeDelta::seconds(10));
    }

    #[test]
    fn the_end_of_time_is_not_a_panic() {
        let clock = Clock::new(Pace::Manual);
        clock.advance(Duration::MAX);
        clock.advance(Duration::MAX);
        assert_eq!(clock.now().to_rfc3339(), "9999-01-01T00:00:00+00:00");
        assert!(
            clock.now().checked_add_signed(TimeDelta::days(36_500)).is_some(),
            "what is added to it does not run over"
        );
    }

    #[tokio::test]
    async fn an_absurd_factor_is_not_a_panic() {
        for factor in [1e300, f64::INFINITY, f64::NAN, -5.0, 1e-300] {
            let clock = Clock::new(Pace::Accelerated(factor));
            let before = clock.now();
            assert!(clock.now() >= before, "{factor}");
            let long = clock.sleep(Duration::from_secs(3600));
            drop(tokio::time::timeout(Duration::from_millis(5), long).await);
        }
    }
}
