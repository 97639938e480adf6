//! The right to change the cloud, and until when it holds.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::ports::Fence;

/// The right to change the cloud. Clones are the same right; whoever is about to change something asks
/// [`LeaderLease::is_valid`] right before.
///
/// # Guarantees
/// It ends by itself, on the monotonic clock, when it was not renewed in time: a controller that was suspended, or cut
/// off from etcd, knows that it leads no more without having to be told.
///
/// ```
/// use lcm_sdk::controller::lease::LeaderLease;
///
/// let alone = LeaderLease::unfenced();
/// assert!(alone.is_valid());
/// assert_eq!(alone.fence().0, None);
/// ```
#[derive(Debug, Clone)]
pub struct LeaderLease {
    right: Option<Arc<Right>>,
}

#[derive(Debug)]
struct Right {
    token: i64,
    valid_until: Mutex<Option<Instant>>,
    /// Wakes those who wait in the order they came, so that a simulated history can be repeated.
    changed: Notify,
}

impl LeaderLease {
    /// The right of somebody who needs no election: a script, a test, a service that runs alone.
    pub const fn unfenced() -> Self {
        Self { right: None }
    }

    /// A right that has ended: of somebody who has to get one first.
    pub(crate) fn ended() -> Self {
        let (ended, keeper) = Self::leased(0, Instant::now());
        keeper.end();
        ended
    }

    /// A right that holds until `valid_until`, and the keeper that prolongs or ends it.
    pub fn leased(token: i64, valid_until: Instant) -> (Self, LeadershipKeeper) {
        let right = Right { token, valid_until: Mutex::new(Some(valid_until)), changed: Notify::new() };
        let right = Arc::new(right);
        (Self { right: Some(Arc::clone(&right)) }, LeadershipKeeper { right })
    }

    /// Whether it holds at this moment.
    pub fn is_valid(&self) -> bool {
        match &self.right {
            None => true,
            Some(right) => right.valid_until.lock().is_some_and(|until| Instant::now() < until),
        }
    }

    /// What writes carry, so that a server can refuse a leader that was overtaken.
    pub fn fence(&self) -> Fence {
        Fence(self.right.as_ref().map(|right| right.token))
    }

    /// How long it still holds; `None` for one that needs no election.
    pub fn remaining(&self) -> Option<Duration> {
        let right = self.right.as_ref()?;
        let until = *right.valid_until.lock();
        Some(until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now())))
    }

    /// Waits until it does not hold any more; for ever if it needs no election.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn lost(&self) {
        let Some(right) = &self.right else { return std::future::pending().await };
        loop {
            let changed = right.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            let Some(until) = *right.valid_until.lock() else { return };
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(until) => {
                    if !self.is_valid() {
                        return;
                    }
                }
                () = changed => {}
            }
        }
    }
}

/// The other end of a leased right: held by the one who renews the lease.
#[derive(Debug)]
pub struct LeadershipKeeper {
    right: Arc<Right>,
}

impl LeadershipKeeper {
    /// Prolongs the right. One that has ended stays ended.
    pub fn prolong(&self, valid_until: Instant) {
        let mut until = self.right.valid_until.lock();
        if until.is_some_and(|until| Instant::now() < until) {
            *until = Some(valid_until);
            drop(until);
            self.right.changed.notify_waiters();
        }
    }

    /// Ends the right at once.
    pub fn end(&self) {
        *self.right.valid_until.lock() = None;
        self.right.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_ends_by_itself_and_cannot_be_brought_back() {
        let (leadership, keeper) = LeaderLease::leased(7, Instant::now() + Duration::from_secs(10));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(leadership.is_valid());
        keeper.prolong(Instant::now() + Duration::from_secs(10));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(leadership.is_valid());
        leadership.lost().await;
        assert!(!leadership.is_valid());
        keeper.prolong(Instant::now() + Duration::from_secs(10));
        assert!(!leadership.is_valid(), "somebody else may lead by now");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_its_end_is_told_at_once() {
        let (leadership, keeper) = LeaderLease::leased(7, Instant::now() + Duration::from_secs(3600));
        let waiting = tokio::spawn({
            let leadership = leadership.clone();
            async move { leadership.lost().await }
        });
        tokio::task::yield_now().await;
        keeper.end();
        tokio::time::timeout(Duration::from_secs(1), waiting).await.expect("told").expect("no panic");
        assert_eq!(leadership.remaining(), Some(Duration::ZERO));
    }
}
