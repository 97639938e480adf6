//! Competes for a fair share of the shards of a fleet.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep;
use tracing::{info, warn};

use super::assignment::{MemberRank, assign};
use super::ownership::{HeldShard, OwnedShards, ScaleDownLock, ShardOwnership};
use crate::controller::election::{
    ElectionConfig, ElectionConfigError, ElectionHandle, ElectionKeys, LeaderElection, LeaseKind,
};
use crate::controller::hash::{Shard, Shards};
use crate::controller::shutdown::Shutdown;
use crate::lifecycle::failure::CallFailure;
use crate::ports::{Coordination, WatchStream, WatchUpdate};
use crate::telemetry::Telemetry;

/// Time to collect further changes before members are listed: many keys change when a member comes or goes.
const SETTLE_TIME: Duration = Duration::from_millis(20);
/// Longest pause before a watch that ended is reopened.
const SHORT_PAUSE: Duration = Duration::from_millis(500);
/// Shards taken in one round: each costs a few calls.
const MAX_TAKEN_PER_ROUND: usize = 64;

/// A member of a group that leads a fleet together: the fleet is divided into shards, each with a leader of its own.
///
/// # Flow
/// The name of a resource determines its shard ([`Shards::shard_of`]). Every member registers under a lease, lists the
/// other members, takes free shards up to its fair share ([`assign`](crate::controller::assign)) and hands back the excess. Each shard is a
/// [`LeaderElection`](crate::controller::LeaderElection) with a key, a lease and a fencing token of its own.
///
/// The rest of the crate sees [`ShardOwnership`] only: it reports whether a resource is owned, and under which lease.
///
/// # Guarantees
/// - The guarantees of an election hold for each shard: two members never act on the same resource, and a partitioned
///   member stops before another begins.
/// - A shard is drained before it is handed over: no new reconcile begins, those in progress are recorded, then the lease
///   is revoked and a member with capacity takes the shard at once.
/// - The shards of a crashed member are taken when its leases expire.
/// - Members configured with different counts of shards, one included, never act at the same time: the later one stands
///   by until the last leader of the other count has resigned.
///
/// # Work that concerns the whole fleet
/// - **Sweep, polling, watch and metrics** cover the owned shards only; a shard that is gained is swept. Gauges of workers
///   by status count these: their sum over the members is the fleet.
/// - **Discovery and garbage collection** read everything and write their own: every member scans the regions and lists
///   all records, so that instances of other shards are not mistaken for strangers, and a region is frozen by all of its
///   records. A member then writes to records of its own shards only, each under the lease of that shard. Instances
///   without a record belong to the region: the owner of the region's name imports them and announces a freeze. The cap
///   on terminations holds for each member's run.
/// - **Scale-down** counts the whole fleet. A member holds a lock in etcd between the count and the write, so that two of
///   them never remove the last spare worker twice.
///
/// # Assumptions
/// Fencing tokens grow for each shard, and therefore for each resource, not over the whole fleet: a server that refuses
/// older tokens remembers the newest for each record. All members know of shards; a version without them would lead
/// beside them.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use lcm_sdk::providers::memory::MemoryCoordination;
/// use lcm_sdk::controller::{ElectionConfig, ShardedElection, Shards, Shutdown};
/// use lcm_sdk::telemetry::Telemetry;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let etcd = Arc::new(MemoryCoordination::new());
/// let (config, grace) = (ElectionConfig::default(), Duration::from_secs(30));
/// let (election, handle) = ShardedElection::new(etcd, config, Shards::new(4)?, grace, Telemetry::default())?;
/// tokio::spawn(election.run(Shutdown::new()));
/// handle.elected().await.expect("the only member");
/// // A single member comes to lead all four shards.
/// while handle.held().len() < 4 {
///     tokio::time::sleep(Duration::from_millis(10)).await;
/// }
/// assert!(handle.ownership().owns("w-1"));
/// handle.resign().await;
/// assert!(!handle.ownership().owns("w-1"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct ShardedElection {
    coordination: Arc<dyn Coordination>,
    config: ElectionConfig,
    keys: ElectionKeys,
    grace: Duration,
    telemetry: Telemetry,
    owned: Arc<OwnedShards>,
    resignation: Shutdown,
    /// Dropped when the election has ended.
    running: watch::Sender<()>,
}

/// Handle to a running sharded election. Clones share one election.
#[derive(Debug, Clone)]
pub struct ShardedHandle {
    owned: Arc<OwnedShards>,
    resignation: Shutdown,
    running: watch::Receiver<()>,
}

impl ShardedElection {
    /// Creates a member. `grace` limits how long the handover of a shard waits for reconciles in progress.
    ///
    /// # Errors
    /// If the settings cannot work.
    pub fn new(
        coordination: Arc<dyn Coordination>,
        config: ElectionConfig,
        shards: Shards,
        grace: Duration,
        telemetry: Telemetry,
    ) -> Result<(Self, ShardedHandle), ElectionConfigError> {
        config.check()?;
        let keys = ElectionKeys::new(&config.key, shards);
        let scale_down = ElectionConfig { key: keys.scale_down(), ..config.clone() };
        let scale_down = Arc::new(ScaleDownLock::new(Arc::clone(&coordination), scale_down));
        let owned = Arc::new(OwnedShards::new(shards, scale_down, config.ttl.saturating_sub(config.margin)));
        let (running, ended) = watch::channel(());
        let resignation = Shutdown::new();
        let handle = ShardedHandle { owned: Arc::clone(&owned), resignation: resignation.clone(), running: ended };
        Ok((Self { coordination, config, keys, grace, telemetry, owned, resignation, running }, handle))
    }

    /// Takes part until the handle resigns. After a shutdown no more shards are taken, and the owned ones are kept until
    /// the resignation, because work in progress still needs their leases.
    ///
    /// # Cancel safety
    /// Dropping the future equals a crash: nothing is revoked, and other members take the shards when the leases have
    /// expired.
    pub async fn run(self, shutdown: Shutdown) {
        let member = self.keys.member(&self.config.identity);
        let config = ElectionConfig { key: member.clone(), ..self.config.clone() };
        let registration = LeaderElection::with_kind(
            Arc::clone(&self.coordination),
            config,
            LeaseKind::Member,
            self.telemetry.clone(),
        );
        let (registration, registered) = match registration {
            Ok(registration) => registration,
            // Unreachable: `new` validated the settings.
            Err(error) => return tracing::error!(target: "lcm::leader", %error, "the election cannot work"),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(registration.run(Shutdown::new()));
        tokio::select! {
            biased;
            () = self.resignation.requested() => {}
            () = shutdown.requested() => {}
            () = self.take_part(&member, &mut tasks) => {}
        }
        // The registration goes first: the other members derive their fair share from it.
        registered.resign().await;
        self.resignation.requested().await;
        self.owned.resign().await;
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                propagate_panic(error);
            }
        }
        drop(self.running);
    }

    async fn take_part(&self, member: &str, tasks: &mut JoinSet<()>) {
        let mut watch: Option<Box<dyn WatchStream>> = None;
        let mut is_out = false;
        loop {
            match self.balance(member, tasks).await {
                Ok(revision) => {
                    is_out = false;
                    if watch.is_none() {
                        watch = self.coordination.watch(self.keys.prefix(), revision + 1).await.ok();
                    }
                }
                Err(failure) => {
                    // Logged once per outage, not once per attempt.
                    if !std::mem::replace(&mut is_out, true) {
                        warn!(target: "lcm::leader", %failure, "the members of the fleet could not be listed");
                    }
                }
            }
            self.wait_for_change(&mut watch, tasks).await;
        }
    }

    /// Takes and releases shards according to the current membership. Returns the revision of the listing.
    async fn balance(&self, member: &str, tasks: &mut JoinSet<()>) -> Result<i64, CallFailure> {
        let listing = self.coordination.list(self.keys.prefix()).await?;
        let membership = self.keys.membership(&listing.keys);
        let Some(rank) = membership.members.iter().position(|key| key == member) else { return Ok(listing.revision) };
        let shards = self.owned.shards();
        let free: BTreeSet<Shard> = match membership.is_contested {
            true => BTreeSet::new(),
            false => {
                shards.all().filter(|shard| !membership.led.contains(shard) && !self.owned.contains(*shard)).collect()
            }
        };
        let rank = MemberRank { members: membership.members.len(), rank };
        let assignment = assign(shards, rank, &self.owned.wanted(), &free);
        for shard in assignment.release {
            info!(target: "lcm::leader", %shard, members = rank.members, "handing a shard over");
            self.owned.retire(shard);
            let (owned, grace) = (Arc::clone(&self.owned), self.grace);
            tasks.spawn(async move { owned.hand_over(shard, grace).await });
        }
        for shard in assignment.take.into_iter().take(MAX_TAKEN_PER_ROUND) {
            self.compete(shard, tasks);
        }
        Ok(listing.revision)
    }

    fn compete(&self, shard: Shard, tasks: &mut JoinSet<()>) {
        let config = ElectionConfig { key: self.keys.leader(shard), ..self.config.clone() };
        let kind = LeaseKind::Shard(self.keys.clone(), shard);
        let election = LeaderElection::with_kind(Arc::clone(&self.coordination), config, kind, self.telemetry.clone());
        let Ok((election, handle)) = election else { return };
        self.owned.insert(shard, handle.clone());
        let owned = Arc::clone(&self.owned);
        tasks.spawn(async move {
            let publishing = async {
                if handle.elected().await.is_some() {
                    owned.publish();
                }
            };
            tokio::join!(election.run_once(Shutdown::new()), publishing);
            owned.remove(shard);
        });
    }

    /// Waits until the membership may have changed.
    async fn wait_for_change(&self, watch: &mut Option<Box<dyn WatchStream>>, tasks: &mut JoinSet<()>) {
        let changed = async {
            match watch {
                None => std::future::pending().await,
                Some(stream) => loop {
                    match stream.next().await {
                        WatchUpdate::Changed { .. } => return,
                        WatchUpdate::Progress { .. } => {}
                        WatchUpdate::Compacted { .. } | WatchUpdate::Ended(_) => {
                            *watch = None;
                            return sleep(self.config.retry_interval.min(SHORT_PAUSE)).await;
                        }
                    }
                },
            }
        };
        tokio::select! {
            biased;
            () = changed => {}
            ended = tasks.join_next(), if !tasks.is_empty() => {
                if let Some(Err(error)) = ended {
                    propagate_panic(error);
                }
            }
            // A silent watch may also be a broken one.
            () = sleep(self.config.retry_interval) => {}
        }
        sleep(SETTLE_TIME).await;
    }
}

impl fmt::Debug for ShardedElection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardedElection").field("config", &self.config).finish_non_exhaustive()
    }
}

impl ShardedHandle {
    /// Ownership that follows the shards this member leads.
    pub fn ownership(&self) -> ShardOwnership {
        ShardOwnership::from_shards(Arc::clone(&self.owned))
    }

    /// The shards this member leads, in ascending order.
    pub fn held(&self) -> Vec<HeldShard> {
        self.owned.held()
    }

    /// Subscribes to the set of shards this member leads.
    pub fn subscribe(&self) -> watch::Receiver<BTreeSet<Shard>> {
        self.owned.subscribe()
    }

    /// Waits until this member leads a shard. `None` once the election has ended.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn elected(&self) -> Option<ShardOwnership> {
        let (mut led, mut running) = (self.owned.subscribe(), self.running.clone());
        tokio::select! {
            biased;
            led = led.wait_for(|led| !led.is_empty()) => led.ok().map(|_| self.ownership()),
            _ = running.changed() => None,
        }
    }

    /// Resigns from all shards, so that other members take them at once, and ends the election. Call it when all work
    /// that needs the leases is finished.
    ///
    /// # Cancel safety
    /// Once polled, the election ends even if the future is dropped.
    pub async fn resign(&self) {
        self.resignation.request();
        let mut running = self.running.clone();
        while running.changed().await.is_ok() {}
    }
}

/// Goes on with the panic of an election task. Swallowed, it would leave a controller that never leads again.
pub(crate) fn propagate_panic(error: JoinError) {
    tracing::error!(target: "lcm::leader", %error, "an election task failed");
    if let Ok(panic) = error.try_into_panic() {
        std::panic::resume_unwind(panic);
    }
}

/// Settings of an election, divided or not.
#[derive(Clone)]
pub(crate) struct ElectionSetup {
    pub(crate) coordination: Arc<dyn Coordination>,
    pub(crate) config: ElectionConfig,
    pub(crate) shards: Shards,
}

/// A running candidate for the whole fleet or for a share of its shards.
#[derive(Debug, Clone)]
pub(crate) enum Candidate {
    Fleet(ElectionHandle),
    Shards(ShardedHandle),
}

impl Candidate {
    /// Spawns the election; without a setup, one that leads everything at once. `grace` limits how long the handover of
    /// a shard waits for reconciles in progress.
    ///
    /// # Errors
    /// If the settings cannot work.
    pub(crate) fn spawn(
        setup: Option<&ElectionSetup>,
        grace: Duration,
        telemetry: Telemetry,
        shutdown: &Shutdown,
        tasks: &mut JoinSet<()>,
    ) -> Result<Self, ElectionConfigError> {
        let Some(ElectionSetup { coordination, config, shards }) = setup.cloned() else {
            let (election, handle) = LeaderElection::standalone(telemetry);
            tasks.spawn(election.run(shutdown.clone()));
            return Ok(Self::Fleet(handle));
        };
        if shards == Shards::ONE {
            let (election, handle) = LeaderElection::new(coordination, config, telemetry)?;
            tasks.spawn(election.run(shutdown.clone()));
            return Ok(Self::Fleet(handle));
        }
        let (election, handle) = ShardedElection::new(coordination, config, shards, grace, telemetry)?;
        tasks.spawn(election.run(shutdown.clone()));
        Ok(Self::Shards(handle))
    }

    /// Waits until the candidate leads. `None` once the election has ended.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub(crate) async fn elected(&self) -> Option<ShardOwnership> {
        match self {
            Self::Fleet(handle) => handle.elected().await.map(ShardOwnership::from_lease),
            Self::Shards(handle) => handle.elected().await,
        }
    }

    /// Identity of the leader of the whole fleet, as far as this candidate knows.
    pub(crate) fn leader(&self) -> Option<String> {
        match self {
            Self::Fleet(handle) => handle.leader(),
            Self::Shards(_) => None,
        }
    }

    /// Resigns and ends the election.
    ///
    /// # Cancel safety
    /// Once polled, the election ends even if the future is dropped.
    pub(crate) async fn resign(&self) {
        match self {
            Self::Fleet(handle) => handle.resign().await,
            Self::Shards(handle) => handle.resign().await,
        }
    }
}
