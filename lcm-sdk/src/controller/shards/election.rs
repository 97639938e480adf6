//! Taking part in the leadership of a fleet that several members share.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

use super::assignment::{Standing, share};
use super::owned::{HeldShard, OwnedShards};
use super::ownership::ShardOwnership;
use super::scale_down_lock::ScaleDownLocks;
use crate::controller::election::{ElectionConfig, ElectionConfigError, ElectionKeys, LeaderElection, Seat};
use crate::controller::hash::{Shard, Shards};
use crate::controller::shutdown::Shutdown;
use crate::lifecycle::failure::CallFailure;
use crate::ports::{Coordination, WatchStream, WatchUpdate};
use crate::telemetry::Telemetry;

/// How long is waited for more to happen before all of it is looked at: many keys change when somebody comes or goes.
const SETTLING: Duration = Duration::from_millis(20);
/// The longest pause before a watch that ended is opened again.
const SHORT_PAUSE: Duration = Duration::from_millis(500);
/// How many shards are taken before it is looked again: each costs a few calls.
const TAKEN_AT_ONCE: usize = 64;

/// A member of those who lead a fleet together.
///
/// # Flow
/// Put itself on record → look who is there and what is free → take up to its share, hand back what is too much → look
/// again whenever that changes.
///
/// # Guarantees
/// Those of [`super`]: at most one member has a valid right over a shard at a time, whatever the members believe about
/// each other.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use lcm_sdk::providers::memory::MemoryCoordination;
/// use lcm_sdk::controller::election::ElectionConfig;
/// use lcm_sdk::controller::shards::{ShardedElection, Shards};
/// use lcm_sdk::controller::shutdown::Shutdown;
/// use lcm_sdk::telemetry::Telemetry;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let etcd = Arc::new(MemoryCoordination::new());
/// let (config, grace) = (ElectionConfig::default(), Duration::from_secs(30));
/// let (election, handle) = ShardedElection::over(etcd, config, Shards::new(4)?, grace, Telemetry::default())?;
/// tokio::spawn(election.run(Shutdown::new()));
/// handle.elected().await.expect("nobody else is there");
/// // Alone, it comes to lead all four.
/// while handle.held().len() < 4 {
///     tokio::time::sleep(Duration::from_millis(10)).await;
/// }
/// assert!(handle.mandate().includes("w-1"));
/// handle.resign().await;
/// assert!(!handle.mandate().includes("w-1"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct ShardedElection {
    coordination: Arc<dyn Coordination>,
    config: ElectionConfig,
    layout: ElectionKeys,
    grace: Duration,
    telemetry: Telemetry,
    holdings: Arc<OwnedShards>,
    resignation: Shutdown,
    /// Dropped when it has ended.
    running: watch::Sender<()>,
}

/// The outside of a sharded election. Clones are the same.
#[derive(Debug, Clone)]
pub struct ShardedHandle {
    holdings: Arc<OwnedShards>,
    resignation: Shutdown,
    running: watch::Receiver<()>,
}

impl ShardedElection {
    /// A member that shares what the election's key stands for. `grace` is how long a shard that is handed over waits
    /// for what is under way.
    ///
    /// # Errors
    /// When the election cannot work.
    pub fn over(
        coordination: Arc<dyn Coordination>,
        config: ElectionConfig,
        shards: Shards,
        grace: Duration,
        telemetry: Telemetry,
    ) -> Result<(Self, ShardedHandle), ElectionConfigError> {
        config.check()?;
        let layout = ElectionKeys::new(&config.key, shards);
        let turns = ElectionConfig { key: layout.scale_down(), ..config.clone() };
        let turns = ScaleDownLocks::new(Arc::clone(&coordination), turns);
        let holdings = Arc::new(OwnedShards::new(shards, turns, config.ttl.saturating_sub(config.margin)));
        let (running, ended) = watch::channel(());
        let resignation = Shutdown::new();
        let handle =
            ShardedHandle { holdings: Arc::clone(&holdings), resignation: resignation.clone(), running: ended };
        Ok((Self { coordination, config, layout, grace, telemetry, holdings, resignation, running }, handle))
    }

    /// Takes part until the handle resigns. A shutdown takes nothing more, and keeps what it has until then: what is
    /// under way still needs the right to be finished.
    ///
    /// # Cancel safety
    /// Dropping it is a crash: nothing is given back, the rights run out, and others take the shards when the leases
    /// have ended.
    pub async fn run(self, shutdown: Shutdown) {
        let member = self.layout.member(&self.config.identity);
        let config = ElectionConfig { key: member.clone(), ..self.config.clone() };
        let registration =
            LeaderElection::for_seat(Arc::clone(&self.coordination), config, Seat::Member, self.telemetry.clone());
        let (registration, registered) = match registration {
            Ok(registration) => registration,
            // Checked when this was made.
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
        // First of all: the others know by that how much they may take.
        registered.resign().await;
        self.resignation.requested().await;
        self.holdings.resign().await;
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(target: "lcm::leader", %error, "an election ended badly");
            }
        }
        drop(self.running);
    }

    async fn take_part(&self, member: &str, tasks: &mut JoinSet<()>) {
        let mut watch: Option<Box<dyn WatchStream>> = None;
        let mut is_out = false;
        loop {
            match self.look(member, tasks).await {
                Ok(revision) => {
                    is_out = false;
                    if watch.is_none() {
                        watch = self.coordination.watch(self.layout.prefix(), revision + 1).await.ok();
                    }
                }
                Err(failure) => {
                    // Once for an outage, not once for every attempt.
                    if !std::mem::replace(&mut is_out, true) {
                        warn!(target: "lcm::leader", %failure, "cannot see who shares the fleet");
                    }
                }
            }
            self.rest(&mut watch, tasks).await;
        }
    }

    /// Looks who is there, and acts on it. Tells the revision at which that was.
    async fn look(&self, member: &str, tasks: &mut JoinSet<()>) -> Result<i64, CallFailure> {
        let listing = self.coordination.list(self.layout.prefix()).await?;
        let census = self.layout.census(&listing.keys);
        let Some(rank) = census.members.iter().position(|key| key == member) else { return Ok(listing.revision) };
        let shards = self.holdings.shards();
        let free: BTreeSet<Shard> = match census.is_contested {
            true => BTreeSet::new(),
            false => {
                shards.all().filter(|shard| !census.led.contains(shard) && !self.holdings.concerns(*shard)).collect()
            }
        };
        let standing = Standing { members: census.members.len(), rank };
        let moves = share(shards, standing, &self.holdings.wanted(), &free);
        for shard in moves.release {
            info!(target: "lcm::leader", %shard, members = standing.members, "handing a shard over");
            self.holdings.retire(shard);
            let (holdings, grace) = (Arc::clone(&self.holdings), self.grace);
            tasks.spawn(async move { holdings.hand_over(shard, grace).await });
        }
        for shard in moves.take.into_iter().take(TAKEN_AT_ONCE) {
            self.compete(shard, tasks);
        }
        Ok(listing.revision)
    }

    fn compete(&self, shard: Shard, tasks: &mut JoinSet<()>) {
        let config = ElectionConfig { key: self.layout.leader(shard), ..self.config.clone() };
        let seat = Seat::Shard(self.layout.clone(), shard);
        let election = LeaderElection::for_seat(Arc::clone(&self.coordination), config, seat, self.telemetry.clone());
        let Ok((election, handle)) = election else { return };
        self.holdings.enter(shard, handle.clone());
        let holdings = Arc::clone(&self.holdings);
        tasks.spawn(async move {
            let telling = async {
                if handle.elected().await.is_some() {
                    holdings.tell();
                }
            };
            tokio::join!(election.run_once(Shutdown::new()), telling);
            holdings.leave(shard);
        });
    }

    /// Waits until it is worth looking again.
    async fn rest(&self, watch: &mut Option<Box<dyn WatchStream>>, tasks: &mut JoinSet<()>) {
        let told = async {
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
            () = told => {}
            ended = tasks.join_next(), if !tasks.is_empty() => {
                if let Some(Err(error)) = ended {
                    tracing::error!(target: "lcm::leader", %error, "an election ended badly");
                }
            }
            // A watch can be silent for other reasons than that nothing happens.
            () = sleep(self.config.retry_interval) => {}
        }
        sleep(SETTLING).await;
    }
}

impl std::fmt::Debug for ShardedElection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardedElection").field("config", &self.config).finish_non_exhaustive()
    }
}

impl ShardedHandle {
    /// On whom we may act. It follows what is led.
    pub fn mandate(&self) -> ShardOwnership {
        ShardOwnership::shards(Arc::clone(&self.holdings))
    }

    /// The shards that we lead, in their order.
    pub fn held(&self) -> Vec<HeldShard> {
        self.holdings.held()
    }

    /// The shards that we lead, and every change of that.
    pub fn led(&self) -> watch::Receiver<BTreeSet<Shard>> {
        self.holdings.led()
    }

    /// Waits until we lead a shard. `None` if the election is over.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn elected(&self) -> Option<ShardOwnership> {
        let (mut led, mut running) = (self.holdings.led(), self.running.clone());
        tokio::select! {
            biased;
            led = led.wait_for(|led| !led.is_empty()) => led.ok().map(|_| self.mandate()),
            _ = running.changed() => None,
        }
    }

    /// Gives all shards up, so that others take them at once, and ends the election. Call it when everything that needed
    /// the rights is finished.
    ///
    /// # Cancel safety
    /// Once it was polled the election ends, whether or not somebody waits for it.
    pub async fn resign(&self) {
        self.resignation.request();
        let mut running = self.running.clone();
        while running.changed().await.is_ok() {}
    }
}
