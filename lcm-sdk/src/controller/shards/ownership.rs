//! On whom a controller may act.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::{OwnedRwLockReadGuard, watch};

use super::owned::{HeldShard, OwnedShards};
use super::scale_down_lock::{ScaleDownLock, ScaleDownLocks};
use crate::controller::hash::Shard;
use crate::controller::lease::LeaderLease;
use crate::lifecycle::failure::CallFailure;

/// On whom a controller may act, and under which right. Clones are the same.
///
/// ```
/// use lcm_sdk::controller::lease::LeaderLease;
/// use lcm_sdk::controller::shards::ShardOwnership;
///
/// let everybody = ShardOwnership::fleet(LeaderLease::unfenced());
/// assert!(everybody.includes("w-1"));
/// ```
#[derive(Debug, Clone)]
pub struct ShardOwnership(Scope);

#[derive(Debug, Clone)]
enum Scope {
    Fleet(LeaderLease),
    Shards(Arc<OwnedShards>),
}

/// The right to act on one worker.
#[derive(Debug)]
pub(crate) struct ShardGuard {
    pub(crate) leadership: LeaderLease,
    pub(crate) hold: Option<Hold>,
}

/// Keeps a shard from being handed over. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    _pass: Arc<OwnedRwLockReadGuard<()>>,
    turns: Arc<ScaleDownLocks>,
}

impl Hold {
    pub(crate) fn new(pass: OwnedRwLockReadGuard<()>, turns: Arc<ScaleDownLocks>) -> Self {
        Self { _pass: Arc::new(pass), turns }
    }

    /// The right to count the fleet and let one of it go.
    ///
    /// # Errors
    /// If another member has it, or etcd cannot be asked.
    pub(crate) async fn scale_down(&self) -> Result<ScaleDownLock, CallFailure> {
        self.turns.take().await
    }
}

impl ShardOwnership {
    /// Everybody, under one right.
    pub const fn fleet(leadership: LeaderLease) -> Self {
        Self(Scope::Fleet(leadership))
    }

    pub(crate) const fn shards(holdings: Arc<OwnedShards>) -> Self {
        Self(Scope::Shards(holdings))
    }

    /// Whether a worker, or whatever else goes by a name, is ours at this moment.
    pub fn includes(&self, name: &str) -> bool {
        match &self.0 {
            Scope::Fleet(_) => true,
            Scope::Shards(holdings) => holdings.includes(name),
        }
    }

    /// The right to act on a worker; `None` if it is somebody else's.
    pub(crate) fn over(&self, name: &str) -> Option<ShardGuard> {
        match &self.0 {
            Scope::Fleet(leadership) => Some(ShardGuard { leadership: leadership.clone(), hold: None }),
            Scope::Shards(holdings) => holdings.over(name),
        }
    }

    /// The right over everybody; with shards there is none.
    pub fn leadership(&self) -> Option<LeaderLease> {
        match &self.0 {
            Scope::Fleet(leadership) => Some(leadership.clone()).filter(LeaderLease::is_valid),
            Scope::Shards(_) => None,
        }
    }

    /// Whether anybody is ours.
    pub fn is_valid(&self) -> bool {
        match &self.0 {
            Scope::Fleet(leadership) => leadership.is_valid(),
            Scope::Shards(holdings) => !holdings.held().is_empty(),
        }
    }

    /// The shards that are ours; `None` where there are none.
    pub fn held(&self) -> Option<Vec<HeldShard>> {
        match &self.0 {
            Scope::Fleet(_) => None,
            Scope::Shards(holdings) => Some(holdings.held()),
        }
    }

    /// Waits until nobody is ours any more.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn ended(&self) {
        match &self.0 {
            Scope::Fleet(leadership) => leadership.lost().await,
            Scope::Shards(holdings) => {
                // The sender lives as long as the holdings.
                let _ = holdings.led().wait_for(BTreeSet::is_empty).await;
            }
        }
    }

    /// What tells that shards are gained.
    pub fn gains(&self) -> OwnershipChanges {
        match &self.0 {
            Scope::Fleet(_) => OwnershipChanges { known: BTreeSet::new(), led: None },
            Scope::Shards(holdings) => {
                let mut led = holdings.led();
                let known = led.borrow_and_update().clone();
                OwnershipChanges { known, led: Some(led) }
            }
        }
    }
}

/// Tells that shards are gained.
#[derive(Debug)]
pub struct OwnershipChanges {
    known: BTreeSet<Shard>,
    led: Option<watch::Receiver<BTreeSet<Shard>>>,
}

impl OwnershipChanges {
    /// Waits until a shard is led that was not before; for ever if there are none.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn next(&mut self) {
        let Some(led) = &mut self.led else { return std::future::pending().await };
        loop {
            if led.changed().await.is_err() {
                return std::future::pending().await;
            }
            let now = led.borrow_and_update().clone();
            let gained = !now.is_subset(&self.known);
            self.known = now;
            if gained {
                return;
            }
        }
    }
}
