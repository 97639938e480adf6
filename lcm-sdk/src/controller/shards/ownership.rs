//! The resources a controller may act on, and the lease for each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::{RwLock, watch};
use tokio::time::timeout;

use crate::controller::election::{ElectionConfig, ElectionHandle, claim};
use crate::controller::hash::{Shard, Shards};
use crate::controller::lease::{FleetLock, FleetLockGuard, LeaderLease, ShardHold};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::ports::Coordination;

/// The resources a controller may act on, and the lease for each. Clones share one ownership.
///
/// ```
/// use lcm_sdk::controller::{LeaderLease, ShardOwnership};
///
/// let ownership = ShardOwnership::from_lease(LeaderLease::unfenced());
/// assert!(ownership.owns("w-1"));
/// ```
#[derive(Debug, Clone)]
pub struct ShardOwnership(Scope);

#[derive(Debug, Clone)]
enum Scope {
    Fleet(LeaderLease),
    Shards(Arc<OwnedShards>),
}

impl ShardOwnership {
    /// Owns every resource under one lease.
    pub const fn from_lease(lease: LeaderLease) -> Self {
        Self(Scope::Fleet(lease))
    }

    pub(crate) const fn from_shards(shards: Arc<OwnedShards>) -> Self {
        Self(Scope::Shards(shards))
    }

    /// Whether a resource of this name is owned at this moment.
    pub fn owns(&self, name: &str) -> bool {
        match &self.0 {
            Scope::Fleet(_) => true,
            Scope::Shards(shards) => shards.owns(name),
        }
    }

    /// Lease for actions on a resource; `None` if another member owns it. A shard is not handed over before the lease is
    /// dropped.
    pub fn lease(&self, name: &str) -> Option<LeaderLease> {
        match &self.0 {
            Scope::Fleet(lease) => Some(lease.clone()),
            Scope::Shards(shards) => shards.lease(name),
        }
    }

    /// Lease over the whole fleet; `None` where the fleet is divided or the lease is lost.
    pub fn fleet_lease(&self) -> Option<LeaderLease> {
        match &self.0 {
            Scope::Fleet(lease) => Some(lease.clone()).filter(LeaderLease::is_valid),
            Scope::Shards(_) => None,
        }
    }

    /// Whether any resource can be owned at this moment.
    pub fn is_valid(&self) -> bool {
        match &self.0 {
            Scope::Fleet(lease) => lease.is_valid(),
            Scope::Shards(shards) => !shards.held().is_empty(),
        }
    }

    /// The owned shards in ascending order; `None` where the fleet is not divided.
    pub fn held(&self) -> Option<Vec<HeldShard>> {
        match &self.0 {
            Scope::Fleet(_) => None,
            Scope::Shards(shards) => Some(shards.held()),
        }
    }

    /// Waits until nothing is owned any more.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn lost(&self) {
        match &self.0 {
            Scope::Fleet(lease) => lease.lost().await,
            Scope::Shards(shards) => {
                // The sender lives as long as the shards.
                let _ = shards.subscribe().wait_for(BTreeSet::is_empty).await;
            }
        }
    }

    /// Subscribes to shards that are gained from now on.
    pub fn changes(&self) -> OwnershipChanges {
        match &self.0 {
            Scope::Fleet(_) => OwnershipChanges { known: BTreeSet::new(), led: None },
            Scope::Shards(shards) => {
                let mut led = shards.subscribe();
                let known = led.borrow_and_update().clone();
                OwnershipChanges { known, led: Some(led) }
            }
        }
    }
}

/// Subscription to gained shards.
#[derive(Debug)]
pub struct OwnershipChanges {
    known: BTreeSet<Shard>,
    led: Option<watch::Receiver<BTreeSet<Shard>>>,
}

impl OwnershipChanges {
    /// Waits until a shard is gained. Never returns where the fleet is not divided.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn gained(&mut self) {
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

/// A shard that a member leads, as operators see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeldShard {
    /// Number of the shard.
    pub shard: u16,
    /// Fencing token of writes to its resources.
    pub fencing_token: Option<i64>,
    /// Time since its lease was last renewed.
    pub lease_age_seconds: f64,
}

/// Shards that a member leads, competes for or hands over.
#[derive(Debug)]
pub(crate) struct OwnedShards {
    shards: Shards,
    owned: Mutex<BTreeMap<Shard, OwnedShard>>,
    led: watch::Sender<BTreeSet<Shard>>,
    fleet_lock: Arc<dyn FleetLock>,
    /// Validity of a lease right after a renewal.
    validity: Duration,
}

#[derive(Debug, Clone)]
struct OwnedShard {
    election: ElectionHandle,
    /// Read by every reconcile, written by the handover.
    in_progress: Arc<RwLock<()>>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Wanted,
    Retiring,
}

impl OwnedShards {
    pub(crate) fn new(shards: Shards, fleet_lock: Arc<dyn FleetLock>, validity: Duration) -> Self {
        let (led, _) = watch::channel(BTreeSet::new());
        Self { shards, owned: Mutex::default(), led, fleet_lock, validity }
    }

    pub(crate) const fn shards(&self) -> Shards {
        self.shards
    }

    /// Subscribes to the set of led shards.
    pub(crate) fn subscribe(&self) -> watch::Receiver<BTreeSet<Shard>> {
        self.led.subscribe()
    }

    /// Shards that are led or competed for, without those being handed over.
    pub(crate) fn wanted(&self) -> BTreeSet<Shard> {
        let owned = self.owned.lock();
        owned.iter().filter(|(_, owned)| owned.stage == Stage::Wanted).map(|(shard, _)| *shard).collect()
    }

    /// Whether an election for the shard runs in this process.
    pub(crate) fn contains(&self, shard: Shard) -> bool {
        self.owned.lock().contains_key(&shard)
    }

    pub(crate) fn insert(&self, shard: Shard, election: ElectionHandle) {
        let owned = OwnedShard { election, in_progress: Arc::default(), stage: Stage::Wanted };
        self.owned.lock().insert(shard, owned);
    }

    /// Removes a shard whose election has ended.
    pub(crate) fn remove(&self, shard: Shard) {
        self.owned.lock().remove(&shard);
        self.publish();
    }

    /// Publishes the set of led shards to subscribers.
    pub(crate) fn publish(&self) {
        let now = {
            let owned = self.owned.lock();
            let is_led = |owned: &OwnedShard| owned.stage == Stage::Wanted && owned.election.lease().is_some();
            owned.iter().filter(|(_, owned)| is_led(owned)).map(|(shard, _)| *shard).collect()
        };
        self.led.send_if_modified(|led| {
            let changed = *led != now;
            *led = now;
            changed
        });
    }

    /// Stops new reconciles on a shard.
    pub(crate) fn retire(&self, shard: Shard) {
        if let Some(owned) = self.owned.lock().get_mut(&shard) {
            owned.stage = Stage::Retiring;
        }
        self.publish();
    }

    /// Hands a retired shard over once its reconciles have ended or the grace is over.
    pub(crate) async fn hand_over(&self, shard: Shard, grace: Duration) {
        let Some(owned) = self.owned.lock().get(&shard).cloned() else { return };
        if timeout(grace, owned.in_progress.write()).await.is_err() {
            tracing::error!(target: "lcm::leader", %shard, "reconciles did not end within the grace; handing over all the same");
        }
        owned.election.resign().await;
    }

    /// Resigns from all shards at once.
    pub(crate) async fn resign(&self) {
        let owned: Vec<OwnedShard> = self.owned.lock().values().cloned().collect();
        futures_util::future::join_all(owned.iter().map(|owned| owned.election.resign())).await;
    }

    fn lease(&self, name: &str) -> Option<LeaderLease> {
        let (lease, in_progress) = {
            let owned = self.owned.lock();
            let owned = owned.get(&self.shards.shard_of(name)).filter(|owned| owned.stage == Stage::Wanted)?;
            (owned.election.lease()?, Arc::clone(&owned.in_progress))
        };
        let in_progress = in_progress.try_read_owned().ok()?;
        Some(lease.with_hold(ShardHold::new(in_progress, Arc::clone(&self.fleet_lock))))
    }

    fn owns(&self, name: &str) -> bool {
        let owned = self.owned.lock();
        let owned = owned.get(&self.shards.shard_of(name)).filter(|owned| owned.stage == Stage::Wanted);
        owned.is_some_and(|owned| owned.election.lease().is_some())
    }

    pub(crate) fn held(&self) -> Vec<HeldShard> {
        let owned = self.owned.lock();
        let led = owned.iter().filter_map(|(shard, owned)| Some((shard, owned.election.lease()?)));
        led.map(|(shard, lease)| HeldShard {
            shard: shard.0,
            fencing_token: lease.fence().0,
            lease_age_seconds: self.validity.saturating_sub(lease.remaining().unwrap_or_default()).as_secs_f64(),
        })
        .collect()
    }
}

/// Lock on scale-down decisions, held in etcd.
pub(crate) struct ScaleDownLock {
    coordination: Arc<dyn Coordination>,
    config: ElectionConfig,
}

impl ScaleDownLock {
    pub(crate) fn new(coordination: Arc<dyn Coordination>, config: ElectionConfig) -> Self {
        Self { coordination, config }
    }
}

#[async_trait]
impl FleetLock for ScaleDownLock {
    async fn acquire(&self) -> Result<FleetLockGuard, CallFailure> {
        let Some((right, lease)) = claim(&*self.coordination, &self.config).await? else {
            return Err(CallFailure::new(FailureKind::Conflict, "another controller is about to scale the fleet down"));
        };
        let coordination = Arc::clone(&self.coordination);
        Ok(FleetLockGuard::new(right, move || {
            // Without a runtime the process is ending, and the lease expires by itself.
            if let Ok(runtime) = Handle::try_current() {
                runtime.spawn(async move {
                    if let Err(failure) = coordination.revoke(lease).await {
                        tracing::debug!(target: "lcm::leader", %failure, "a scale-down lock could not be revoked; it expires");
                    }
                });
            }
        }))
    }
}

impl fmt::Debug for ScaleDownLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScaleDownLock").field("config", &self.config).finish_non_exhaustive()
    }
}
