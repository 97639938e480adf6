//! Elects one leader through a lease in etcd.

mod campaign;
mod config;
mod keys;
mod leaders;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use crate::controller::hash::Shards;
use crate::controller::lease::{LeaderLease, LeaseKeeper};
use crate::controller::shutdown::Shutdown;
use crate::ports::{Coordination, Renewal};
use crate::telemetry::{Anomaly, Telemetry};

pub(crate) use self::campaign::claim;
use self::campaign::{Attempt, Campaign, LeaderName, Won};
pub use self::config::{ElectionConfig, ElectionConfigError};
pub(crate) use self::keys::{ElectionKeys, LeaseKind};
pub use self::leaders::{Leader, leaders};

/// State of a candidate.
#[derive(Debug, Clone)]
pub enum ElectionState {
    /// Another candidate may lead.
    Standby,
    /// This candidate leads while the lease is valid.
    Leader(LeaderLease),
}

/// A candidate for leadership.
///
/// # Flow
/// Read the key. If it is free: grant a lease, create the key under it, lead and renew. If it is held: watch the key and
/// try again the moment it is deleted. Losing and regaining the lead can happen any number of times.
///
/// # Guarantees
/// - At most one candidate of a key has a valid [`LeaderLease`] at a time. Validity counts from the moment the last
///   successful renewal was *sent*, suspended time included, and ends a margin before etcd admits another leader.
/// - A lease that is gone, a key held by another candidate and a resignation end it at once.
/// - While etcd cannot be reached, no candidate begins to lead.
/// - A claim whose response was lost is repeated or revoked; it never blocks others for longer than a lease.
/// - The fencing token is the revision at which the key was created: it grows with every leader.
/// - The whole fleet and a shard of it never have leaders at the same time: see [`ShardedElection`](crate::controller::ShardedElection).
///
/// # Assumptions
/// Only candidates write the key. If another client does, the watch or the next renewal reports it; until then two
/// candidates may lead, and only the token distinguishes them.
///
/// ```
/// use std::sync::Arc;
/// use lcm_sdk::providers::memory::MemoryCoordination;
/// use lcm_sdk::controller::{ElectionConfig, LeaderElection, Shutdown};
/// use lcm_sdk::telemetry::Telemetry;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let etcd = Arc::new(MemoryCoordination::new());
/// let (election, handle) = LeaderElection::new(etcd, ElectionConfig::default(), Telemetry::default())?;
/// tokio::spawn(election.run(Shutdown::new()));
/// let lease = handle.elected().await.expect("the only candidate");
/// assert!(lease.is_valid());
/// // Finish the work in progress, then:
/// handle.resign().await;
/// assert!(!lease.is_valid());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct LeaderElection {
    coordination: Option<Arc<dyn Coordination>>,
    config: ElectionConfig,
    telemetry: Telemetry,
    kind: LeaseKind,
    state: watch::Sender<ElectionState>,
    leader: Arc<LeaderName>,
    resignation: Shutdown,
}

/// Handle to a running election. Clones share one election.
#[derive(Debug, Clone)]
pub struct ElectionHandle {
    state: watch::Receiver<ElectionState>,
    leader: Arc<LeaderName>,
    resignation: Shutdown,
}

/// Why a term ended.
enum TermEnd {
    Resigned,
    Lost(LossReason),
}

/// Why a lease was lost.
#[derive(Debug, Clone, Copy)]
enum LossReason {
    NotRenewed,
    LeaseGone,
    KeyTaken,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRenewed => "the lease was not renewed in time",
            Self::LeaseGone => "the lease is gone",
            Self::KeyTaken => "the key was deleted or belongs to another candidate",
        })
    }
}

impl LeaderElection {
    /// Creates a candidate for the whole fleet.
    ///
    /// # Errors
    /// If the settings cannot work.
    pub fn new(
        coordination: Arc<dyn Coordination>,
        config: ElectionConfig,
        telemetry: Telemetry,
    ) -> Result<(Self, ElectionHandle), ElectionConfigError> {
        let kind = LeaseKind::Fleet(ElectionKeys::new(&config.key, Shards::ONE));
        Self::with_kind(coordination, config, kind, telemetry)
    }

    /// Creates a candidate for the given kind of lease.
    pub(crate) fn with_kind(
        coordination: Arc<dyn Coordination>,
        config: ElectionConfig,
        kind: LeaseKind,
        telemetry: Telemetry,
    ) -> Result<(Self, ElectionHandle), ElectionConfigError> {
        config.check()?;
        Ok(Self::build(Some(coordination), config, kind, telemetry))
    }

    /// Creates a candidate that leads at once, without competition: for an installation without etcd. Two of them do
    /// not exclude each other.
    pub fn standalone(telemetry: Telemetry) -> (Self, ElectionHandle) {
        let config = ElectionConfig::default();
        let kind = LeaseKind::Fleet(ElectionKeys::new(&config.key, Shards::ONE));
        Self::build(None, config, kind, telemetry)
    }

    fn build(
        coordination: Option<Arc<dyn Coordination>>,
        config: ElectionConfig,
        kind: LeaseKind,
        telemetry: Telemetry,
    ) -> (Self, ElectionHandle) {
        let (state, receiver) = watch::channel(ElectionState::Standby);
        let resignation = Shutdown::new();
        let leader = Arc::<LeaderName>::default();
        let handle = ElectionHandle { state: receiver, leader: Arc::clone(&leader), resignation: resignation.clone() };
        (Self { coordination, config, telemetry, kind, state, leader, resignation }, handle)
    }

    /// Competes, leads and competes again until the handle resigns. A shutdown ends a standby at once. A leader keeps
    /// renewing until it resigns or loses the lease, because work in progress still needs it.
    ///
    /// # Cancel safety
    /// Dropping the future equals a crash: nothing is revoked, and another candidate leads when the lease has expired.
    pub async fn run(self, shutdown: Shutdown) {
        let Some(coordination) = &self.coordination else { return self.lead_standalone().await };
        let campaign = self.campaign(&**coordination);
        loop {
            let mut lease = None;
            let won = tokio::select! {
                biased;
                () = self.resignation.requested() => None,
                () = shutdown.requested() => None,
                won = campaign.win(&mut lease) => Some(won),
            };
            if let Some(won) = won {
                self.lead(&campaign, won).await;
            }
            campaign.revoke(&mut lease).await;
            if shutdown.is_requested() || self.resignation.is_requested() {
                return;
            }
        }
    }

    /// Tries once: leads until the term ends if the key is free, and returns if it is held.
    ///
    /// # Cancel safety
    /// Same as [`LeaderElection::run`].
    pub(crate) async fn run_once(self, shutdown: Shutdown) {
        let Some(coordination) = &self.coordination else { return self.lead_standalone().await };
        let campaign = self.campaign(&**coordination);
        let mut lease = None;
        let attempt = tokio::select! {
            biased;
            () = self.resignation.requested() => None,
            () = shutdown.requested() => None,
            attempt = campaign.attempt(&mut lease) => Some(attempt),
        };
        match attempt {
            Some(Ok(Attempt::Won(won))) => self.lead(&campaign, won).await,
            Some(Ok(Attempt::Held { .. } | Attempt::Superseded)) | None => {}
            Some(Err(failure)) => warn!(target: "lcm::leader", key = self.config.key, %failure, "cannot compete"),
        }
        campaign.revoke(&mut lease).await;
    }

    fn campaign<'a>(&'a self, coordination: &'a dyn Coordination) -> Campaign<'a> {
        Campaign { coordination, config: &self.config, keys: self.kind.keys(), leader: &self.leader }
    }

    async fn lead_standalone(&self) {
        warn!(
            target: "lcm::leader",
            "no etcd is configured: leading at once and WITHOUT election; a second controller would lead as well"
        );
        self.kind.publish_age(&self.telemetry, Some(Duration::ZERO));
        self.state.send_replace(ElectionState::Leader(LeaderLease::unfenced()));
        self.resignation.requested().await;
        self.state.send_replace(ElectionState::Standby);
        self.kind.publish_age(&self.telemetry, None);
    }

    async fn lead(&self, campaign: &Campaign<'_>, won: Won) {
        let valid_until = campaign.valid_until(won.sent, won.lease.ttl);
        let (lease, keeper) = LeaderLease::with_clock(won.token, valid_until, self.config.clock.clone());
        let (key, identity, token) = (&self.config.key, &self.config.identity, won.token);
        info!(target: "lcm::leader", key, identity, token, "leading");
        self.kind.publish_age(&self.telemetry, Some(self.config.clock.since(won.sent)));
        *self.leader.lock() = Some(identity.clone());
        self.state.send_replace(ElectionState::Leader(lease.clone()));
        let end = tokio::select! {
            biased;
            () = self.resignation.requested() => TermEnd::Resigned,
            () = lease.lost() => TermEnd::Lost(LossReason::NotRenewed),
            reason = self.renew(campaign, &won, &keeper) => TermEnd::Lost(reason),
            () = campaign.touched(won.token) => TermEnd::Lost(LossReason::KeyTaken),
        };
        keeper.end();
        *self.leader.lock() = None;
        self.state.send_replace(ElectionState::Standby);
        self.kind.publish_age(&self.telemetry, None);
        match end {
            TermEnd::Resigned => info!(target: "lcm::leader", key, identity, token, "resigned"),
            TermEnd::Lost(reason) => {
                self.telemetry.count_anomaly(Anomaly::LeadershipLost);
                warn!(target: "lcm::leader", key, identity, token, %reason, "lost the lead");
            }
        }
    }

    /// Renews the lease until that is impossible.
    async fn renew(&self, campaign: &Campaign<'_>, won: &Won, keeper: &LeaseKeeper) -> LossReason {
        let clock = &self.config.clock;
        let mut renewed = won.sent;
        let mut ttl = won.lease.ttl;
        let mut wait = (ttl / 3).saturating_sub(clock.since(renewed));
        loop {
            sleep(wait).await;
            let sent = clock.now();
            self.kind.publish_age(&self.telemetry, Some(clock.since(renewed)));
            match campaign.coordination.renew(won.lease.id).await {
                Ok(Renewal::Renewed(granted)) => {
                    (renewed, ttl) = (sent, granted);
                    keeper.renew(campaign.valid_until(sent, granted));
                    self.kind.publish_age(&self.telemetry, Some(clock.since(renewed)));
                }
                Ok(Renewal::Gone) => return LossReason::LeaseGone,
                Err(failure) => {
                    warn!(target: "lcm::leader", key = self.config.key, %failure, "the lease could not be renewed");
                    wait = (ttl / 10).min(campaign::SHORT_PAUSE);
                    continue;
                }
            }
            // A lease can outlive its key, if an operator deletes or overwrites the key; and a watch can be silent.
            match campaign.coordination.list(&self.config.key).await {
                Ok(listing) if campaign.modified(&listing.keys) != Some(won.token) => {
                    return LossReason::KeyTaken;
                }
                Ok(_) => {}
                Err(failure) => debug!(target: "lcm::leader", %failure, "the key could not be read"),
            }
            wait = (ttl / 3).saturating_sub(clock.since(sent));
        }
    }
}

impl fmt::Debug for LeaderElection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderElection").field("config", &self.config).finish_non_exhaustive()
    }
}

impl ElectionHandle {
    /// Current state and every change of it. A lease expires by itself: check the lease, not the state, before acting.
    pub fn state(&self) -> watch::Receiver<ElectionState> {
        self.state.clone()
    }

    /// The lease, if this candidate leads at this moment.
    pub fn lease(&self) -> Option<LeaderLease> {
        match &*self.state.borrow() {
            ElectionState::Leader(lease) if lease.is_valid() => Some(lease.clone()),
            ElectionState::Leader(_) | ElectionState::Standby => None,
        }
    }

    /// Identity of the leader, as far as this candidate knows.
    pub fn leader(&self) -> Option<String> {
        self.leader.lock().clone()
    }

    /// Waits until this candidate leads. `None` once the election has ended.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn elected(&self) -> Option<LeaderLease> {
        let mut state = self.state.clone();
        loop {
            if let Some(lease) = self.lease() {
                return Some(lease);
            }
            state.changed().await.ok()?;
        }
    }

    /// Resigns, so that a standby leads at once, and ends the election. Call it when all work that needs the lease is
    /// finished.
    ///
    /// # Guarantees
    /// The local lease ends before the lease in etcd. If etcd cannot be reached, the latter expires by itself.
    ///
    /// # Cancel safety
    /// Once polled, the election ends even if the future is dropped.
    pub async fn resign(&self) {
        self.resignation.request();
        let mut state = self.state.clone();
        // The sender lives as long as the election runs.
        while state.changed().await.is_ok() {}
    }
}
