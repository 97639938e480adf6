//! Time-limited right to act as leader.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedRwLockReadGuard};
use tokio::time::Instant;

use crate::controller::lease_clock::LeaseClock;
use crate::lifecycle::failure::CallFailure;
use crate::ports::Fence;

/// Longest time after which a waiting task notices that the machine was suspended.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Right to change the cloud, limited in time. Clones share one lease.
///
/// Check [`LeaderLease::is_valid`] right before every change.
///
/// # Guarantees
/// The lease expires on the [`LeaseClock`] unless it is renewed in time. A controller that was suspended, or cut off
/// from etcd, stops acting without a message from outside.
///
/// ```
/// use lcm_sdk::controller::LeaderLease;
///
/// let lease = LeaderLease::unfenced();
/// assert!(lease.is_valid());
/// assert_eq!(lease.fence().0, None);
/// ```
#[derive(Debug, Clone)]
pub struct LeaderLease {
    term: Option<Arc<Term>>,
    hold: Option<ShardHold>,
}

#[derive(Debug)]
struct Term {
    token: i64,
    clock: LeaseClock,
    valid_until: Mutex<Option<Instant>>,
    /// Wakes waiting tasks in the order they came, so that a simulated history can be repeated.
    changed: Notify,
}

impl LeaderLease {
    /// Lease of a process that needs no election: a script, a test, a service with a single instance. Never expires.
    pub const fn unfenced() -> Self {
        Self { term: None, hold: None }
    }

    /// Lease that has expired already.
    pub(crate) fn expired() -> Self {
        let (expired, keeper) = Self::new(0, Instant::now());
        keeper.end();
        expired
    }

    /// Lease that is valid until the given instant of the default [`LeaseClock`], and the keeper that renews or ends it.
    pub fn new(token: i64, valid_until: Instant) -> (Self, LeaseKeeper) {
        Self::with_clock(token, valid_until, LeaseClock::default())
    }

    /// Lease that is valid until the given instant of a clock, and the keeper that renews or ends it.
    pub fn with_clock(token: i64, valid_until: Instant, clock: LeaseClock) -> (Self, LeaseKeeper) {
        let term = Term { token, clock, valid_until: Mutex::new(Some(valid_until)), changed: Notify::new() };
        let term = Arc::new(term);
        (Self { term: Some(Arc::clone(&term)), hold: None }, LeaseKeeper { term })
    }

    /// The same lease, limited to one shard, which is not handed over before every clone is dropped.
    #[must_use]
    pub(crate) fn with_hold(self, hold: ShardHold) -> Self {
        Self { hold: Some(hold), ..self }
    }

    /// Whether the lease is valid at this moment.
    pub fn is_valid(&self) -> bool {
        match &self.term {
            None => true,
            Some(term) => term.valid_until.lock().is_some_and(|until| term.clock.now() < until),
        }
    }

    /// Fencing token that writes carry, so that a server can refuse a leader that was replaced.
    pub fn fence(&self) -> Fence {
        Fence(self.term.as_ref().map(|term| term.token))
    }

    /// Time until the lease expires; `None` if it never does.
    pub fn remaining(&self) -> Option<Duration> {
        let term = self.term.as_ref()?;
        let until = *term.valid_until.lock();
        Some(until.map_or(Duration::ZERO, |until| until.saturating_duration_since(term.clock.now())))
    }

    /// Waits until the lease has expired or was ended.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn lost(&self) {
        let Some(term) = &self.term else { return std::future::pending().await };
        loop {
            let changed = term.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            let Some(until) = *term.valid_until.lock() else { return };
            tokio::select! {
                biased;
                // In short steps: a timer stands still while the machine is suspended.
                () = tokio::time::sleep(until.saturating_duration_since(term.clock.now()).min(CHECK_INTERVAL)) => {
                    if !self.is_valid() {
                        return;
                    }
                }
                () = changed => {}
            }
        }
    }

    /// Acquires the exclusive right to count the fleet and take one member out of service. `None` where a single leader
    /// holds the whole fleet: it needs no lock.
    ///
    /// # Errors
    /// If another controller holds the lock, or etcd cannot be reached.
    pub(crate) async fn lock_fleet(&self) -> Result<Option<FleetLockGuard>, CallFailure> {
        match &self.hold {
            None => Ok(None),
            Some(hold) => hold.fleet_lock.acquire().await.map(Some),
        }
    }
}

/// Renewing end of a lease, held by the election.
#[derive(Debug)]
pub struct LeaseKeeper {
    term: Arc<Term>,
}

impl LeaseKeeper {
    /// Extends the lease. A lease that has expired stays expired.
    pub fn renew(&self, valid_until: Instant) {
        let mut until = self.term.valid_until.lock();
        if until.is_some_and(|until| self.term.clock.now() < until) {
            *until = Some(valid_until);
            drop(until);
            self.term.changed.notify_waiters();
        }
    }

    /// Ends the lease at once.
    pub fn end(&self) {
        *self.term.valid_until.lock() = None;
        self.term.changed.notify_waiters();
    }
}

/// Keeps a shard from being handed over. Clones share one hold.
#[derive(Debug, Clone)]
pub(crate) struct ShardHold {
    _in_progress: Arc<OwnedRwLockReadGuard<()>>,
    fleet_lock: Arc<dyn FleetLock>,
}

impl ShardHold {
    pub(crate) fn new(in_progress: OwnedRwLockReadGuard<()>, fleet_lock: Arc<dyn FleetLock>) -> Self {
        Self { _in_progress: Arc::new(in_progress), fleet_lock }
    }
}

/// Serializes decisions about the whole fleet between the leaders of its shards.
#[async_trait]
pub(crate) trait FleetLock: fmt::Debug + Send + Sync {
    /// Acquires the lock.
    ///
    /// # Errors
    /// If another controller holds it, or etcd cannot be reached.
    async fn acquire(&self) -> Result<FleetLockGuard, CallFailure>;
}

/// A held fleet lock. Expires like any lease, and is released when dropped.
pub(crate) struct FleetLockGuard {
    lease: LeaderLease,
    release: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl FleetLockGuard {
    pub(crate) fn new(lease: LeaderLease, release: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { lease, release: Some(Box::new(release)) }
    }

    pub(crate) const fn lease(&self) -> &LeaderLease {
        &self.lease
    }
}

impl Drop for FleetLockGuard {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release();
        }
    }
}

impl fmt::Debug for FleetLockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetLockGuard").field("lease", &self.lease).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn expired_lease_cannot_be_renewed() {
        let (lease, keeper) = LeaderLease::new(7, Instant::now() + Duration::from_secs(10));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(lease.is_valid());
        keeper.renew(Instant::now() + Duration::from_secs(10));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(lease.is_valid());
        lease.lost().await;
        assert!(!lease.is_valid());
        keeper.renew(Instant::now() + Duration::from_secs(10));
        assert!(!lease.is_valid(), "another controller may lead by now");
    }

    #[tokio::test(start_paused = true)]
    async fn suspended_time_counts_against_the_lease() {
        let suspended = Arc::new(AtomicU64::new(0));
        let clock = LeaseClock::with_suspended({
            let suspended = Arc::clone(&suspended);
            move || Duration::from_secs(suspended.load(Ordering::Relaxed))
        });
        let (lease, keeper) = LeaderLease::with_clock(7, clock.now() + Duration::from_secs(10), clock.clone());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(lease.is_valid());
        // The machine sleeps for an hour, and its monotonic clock stands still.
        suspended.store(3600, Ordering::Relaxed);
        assert!(!lease.is_valid());
        assert_eq!(lease.remaining(), Some(Duration::ZERO));
        let resumed = Instant::now();
        lease.lost().await;
        assert!(resumed.elapsed() <= Duration::from_secs(1), "{:?}", resumed.elapsed());
        keeper.renew(clock.now() + Duration::from_secs(10));
        assert!(!lease.is_valid(), "another controller may lead by now");
    }

    #[tokio::test(start_paused = true)]
    async fn ending_a_lease_wakes_waiting_tasks_at_once() {
        let (lease, keeper) = LeaderLease::new(7, Instant::now() + Duration::from_secs(3600));
        let waiting = tokio::spawn({
            let lease = lease.clone();
            async move { lease.lost().await }
        });
        tokio::task::yield_now().await;
        keeper.end();
        tokio::time::timeout(Duration::from_secs(1), waiting).await.expect("woken").expect("no panic");
        assert_eq!(lease.remaining(), Some(Duration::ZERO));
    }
}
