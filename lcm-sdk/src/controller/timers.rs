//! Time of a controller's schedule: when resources and loops are due, and how old cached responses are.
//!
//! It follows tokio's clock. A test can skip it forward together with the clock of a fake cloud; leases, retries within a
//! call, rate limits and time limits stay on tokio's clock, because the calls that they guard take real time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Time for which nothing may happen before a controller counts as idle: a response, or an event of the watch, may be on
/// its way through a socket.
const QUIET: Duration = Duration::from_millis(3);
/// Time between two checks for idleness.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The timers of one controller. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timers {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Skipped time in nanoseconds.
    skipped: AtomicU64,
    activity: Mutex<Activity>,
    /// Notified after a skip.
    moved: Notify,
}

#[derive(Debug, Default)]
struct Activity {
    /// Deadlines of sleeping tasks, with their numbers.
    sleeping: BTreeMap<Instant, usize>,
    /// Number of tasks at work.
    busy: usize,
    /// Number of changes of the fields above.
    changes: u64,
}

impl Activity {
    fn remove(&mut self, deadline: Instant) {
        self.changes += 1;
        if let Some(sleeping) = self.sleeping.get_mut(&deadline) {
            *sleeping -= 1;
            if *sleeping == 0 {
                self.sleeping.remove(&deadline);
            }
        }
    }
}

/// Work in progress, until it is dropped.
#[derive(Debug)]
#[must_use = "the controller counts as idle once this is dropped"]
pub(crate) struct Busy {
    timers: Timers,
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut activity = self.timers.inner.activity.lock();
        activity.busy -= 1;
        activity.changes += 1;
    }
}

/// A registered deadline, until it is dropped.
struct Sleeper<'a> {
    timers: &'a Timers,
    /// `None` once the task is awake.
    deadline: Option<Instant>,
}

impl Sleeper<'_> {
    /// Turns the sleeper into work, without a moment in between in which the controller would count as idle.
    fn wake(mut self) -> Busy {
        let mut activity = self.timers.inner.activity.lock();
        if let Some(deadline) = self.deadline.take() {
            activity.remove(deadline);
        }
        activity.busy += 1;
        Busy { timers: self.timers.clone() }
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        if let Some(deadline) = self.deadline.take() {
            self.timers.inner.activity.lock().remove(deadline);
        }
    }
}

impl Timers {
    fn skipped(&self) -> Duration {
        Duration::from_nanos(self.inner.skipped.load(Ordering::Acquire))
    }

    /// The current time, with the skipped time added.
    pub(crate) fn now(&self) -> Instant {
        Instant::now() + self.skipped()
    }

    /// Time since an earlier result of [`Timers::now`].
    pub(crate) fn elapsed(&self, since: Instant) -> Duration {
        self.now().saturating_duration_since(since)
    }

    /// Begins work for which a skip of time has to wait.
    pub(crate) fn busy(&self) -> Busy {
        let mut activity = self.inner.activity.lock();
        activity.busy += 1;
        activity.changes += 1;
        Busy { timers: self.clone() }
    }

    /// Waits for a duration, and returns busy.
    pub(crate) async fn sleep(&self, duration: Duration) -> Busy {
        let now = self.now();
        // A wait beyond the range of the clock ends with the task.
        let Some(deadline) = now.checked_add(duration) else { return std::future::pending().await };
        self.sleep_until(deadline).await
    }

    /// Waits until [`Timers::now`] reaches the deadline, and returns busy.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn sleep_until(&self, deadline: Instant) -> Busy {
        let sleeper = self.register(deadline);
        loop {
            let moved = self.inner.moved.notified();
            tokio::pin!(moved);
            // From here on no skip is missed.
            moved.as_mut().enable();
            let skipped = self.skipped();
            let now = Instant::now();
            if now + skipped >= deadline {
                return sleeper.wake();
            }
            // A deadline that a skip has moved before the clock's epoch has passed.
            let real = deadline.checked_sub(skipped).unwrap_or(now);
            tokio::select! {
                biased;
                () = moved => {}
                () = tokio::time::sleep_until(real) => {}
            }
        }
    }

    fn register(&self, deadline: Instant) -> Sleeper<'_> {
        let mut activity = self.inner.activity.lock();
        *activity.sleeping.entry(deadline).or_default() += 1;
        activity.changes += 1;
        Sleeper { timers: self, deadline: Some(deadline) }
    }

    /// Skips time: tasks that sleep until then wake up.
    pub(crate) fn skip(&self, by: Duration) {
        let nanoseconds = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let add = |skipped: u64| Some(skipped.saturating_add(nanoseconds));
        // The closure always returns a value.
        let _ = self.inner.skipped.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        self.inner.moved.notify_waiters();
    }

    /// The earliest deadline of a sleeping task.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.inner.activity.lock().sleeping.first_key_value().map(|(deadline, _)| *deadline)
    }

    /// The number of changes so far, if no task is at work and none is due; else `None`.
    fn quiet_since(&self) -> Option<u64> {
        let activity = self.inner.activity.lock();
        let is_due = activity.sleeping.first_key_value().is_some_and(|(deadline, _)| *deadline <= self.now());
        (activity.busy == 0 && !is_due).then_some(activity.changes)
    }

    /// Waits until no task is at work or due, and `is_idle` holds as well, for a few milliseconds without interruption.
    pub(crate) async fn idle(&self, is_idle: impl Fn() -> bool) {
        let check = || self.quiet_since().filter(|_| is_idle());
        let mut quiet = None;
        loop {
            let seen = check();
            match (quiet, seen) {
                (Some((changes, since)), Some(seen)) if changes == seen => {
                    if Instant::now() >= since + QUIET {
                        return;
                    }
                }
                (_, seen) => quiet = seen.map(|changes| (changes, Instant::now())),
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn sleep_without_a_skip_takes_its_time() {
        let (timers, began) = (Timers::default(), Instant::now());
        drop(timers.sleep(HOUR).await);
        assert_eq!(began.elapsed(), HOUR);
    }

    #[tokio::test]
    async fn skip_wakes_tasks_whose_time_has_come() {
        let (timers, began) = (Timers::default(), Instant::now());
        let sleeping = |by: Duration| {
            let timers = timers.clone();
            tokio::spawn(async move { drop(timers.sleep(by).await) })
        };
        let (early, late) = (sleeping(HOUR), sleeping(3 * HOUR));
        timers.idle(|| true).await;
        let due = timers.next_due().expect("both sleep").saturating_duration_since(timers.now());
        assert!(due <= HOUR && due > HOUR / 2, "{due:?}");
        timers.skip(2 * HOUR);
        early.await.expect("it wakes");
        timers.idle(|| true).await;
        assert!(!late.is_finished());
        assert!(timers.elapsed(began) >= 2 * HOUR);
        late.abort();
        assert!(late.await.expect_err("aborted").is_cancelled());
        assert_eq!(timers.next_due(), None, "a dropped sleeper is not waited for");
    }

    #[tokio::test]
    async fn task_that_wakes_is_busy_until_it_drops_the_guard() {
        let timers = Timers::default();
        timers.skip(HOUR);
        let busy = timers.sleep(Duration::ZERO).await;
        let idle = tokio::time::timeout(Duration::from_millis(20), timers.idle(|| true)).await;
        assert!(idle.is_err(), "still at work");
        drop(busy);
        timers.idle(|| true).await;
    }

    #[tokio::test]
    async fn sleep_beyond_the_range_of_the_clock_does_not_panic() {
        let timers = Timers::default();
        let endless = timers.sleep(Duration::MAX);
        assert!(tokio::time::timeout(Duration::from_millis(5), endless).await.is_err());
        timers.skip(Duration::MAX);
    }
}
