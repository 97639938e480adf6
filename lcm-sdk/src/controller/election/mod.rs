//! Electing one leader over a lease.

mod campaign;
mod config;
mod keys;
mod seat;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use crate::controller::hash::Shards;
use crate::controller::lease::{LeaderLease, LeadershipKeeper};
use crate::controller::shutdown::Shutdown;
use crate::ports::{Coordination, Renewal};
use crate::telemetry::{Anomaly, Telemetry};

pub(crate) use self::campaign::claim;
use self::campaign::{Attempt, Campaign, Won};
pub use self::config::{ElectionConfig, ElectionConfigError};
pub(crate) use self::keys::ElectionKeys;
pub(crate) use self::seat::Seat;

const NOT_OURS: &str = "the key is gone or somebody else's";

/// Whether we lead.
#[derive(Debug, Clone)]
pub enum Role {
    /// Somebody else may.
    Standby,
    /// We do, as long as this is valid.
    Leader(LeaderLease),
}

/// A candidate for leadership.
///
/// # Flow
/// Look who holds the key → nobody: grant a lease, create the key under it, lead and renew; somebody: watch the key and
/// try again the moment it is gone. Losing and winning again can happen any number of times.
///
/// # Guarantees
/// - At most one candidate of a key has a valid [`LeaderLease`] at a time: it is counted from when the last renewal that
///   succeeded was *sent*, on the monotonic clock, and ends a margin before the server lets anybody else in.
/// - A lease that is gone, a key that is somebody else's and a resignation end it at once.
/// - While etcd cannot be reached nobody begins to lead.
/// - A claim whose answer was lost is asked about again or given back; it never blocks others for longer than a lease.
/// - The fencing token is the revision at which the key was created: it grows with every leader.
/// - Nobody leads the whole while somebody leads a shard of it, nor the other way round: see [`super::shards`].
///
/// # Assumptions
/// Nobody but candidates writes the key. If somebody does, the leader is told by its watch, or notices with its next
/// renewal at the latest; until then two may lead, and only the token tells them apart.
///
/// ```
/// use std::sync::Arc;
/// use lcm_sdk::providers::memory::MemoryCoordination;
/// use lcm_sdk::controller::election::{ElectionConfig, LeaderElection, Role};
/// use lcm_sdk::controller::shutdown::Shutdown;
/// use lcm_sdk::telemetry::Telemetry;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let etcd = Arc::new(MemoryCoordination::new());
/// let (election, handle) = LeaderElection::over(etcd, ElectionConfig::default(), Telemetry::default())?;
/// tokio::spawn(election.run(Shutdown::new()));
/// let leadership = handle.elected().await.expect("nobody else is there");
/// assert!(leadership.is_valid());
/// // Finish what is under way, then:
/// handle.resign().await;
/// assert!(!leadership.is_valid());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct LeaderElection {
    coordination: Option<Arc<dyn Coordination>>,
    config: ElectionConfig,
    telemetry: Telemetry,
    seat: Seat,
    role: watch::Sender<Role>,
    resignation: Shutdown,
}

/// The outside of an election. Clones are the same.
#[derive(Debug, Clone)]
pub struct ElectionHandle {
    role: watch::Receiver<Role>,
    resignation: Shutdown,
}

enum End {
    Resigned,
    Lost(&'static str),
}

impl LeaderElection {
    /// A candidate that competes for a key.
    ///
    /// # Errors
    /// When the election cannot work.
    pub fn over(
        coordination: Arc<dyn Coordination>,
        config: ElectionConfig,
        telemetry: Telemetry,
    ) -> Result<(Self, ElectionHandle), ElectionConfigError> {
        let whole = Seat::Fleet(ElectionKeys::new(&config.key, Shards::ONE));
        Self::for_seat(coordination, config, whole, telemetry)
    }

    /// A candidate for something else than the whole.
    pub(crate) fn for_seat(
        coordination: Arc<dyn Coordination>,
        config: ElectionConfig,
        seat: Seat,
        telemetry: Telemetry,
    ) -> Result<(Self, ElectionHandle), ElectionConfigError> {
        config.check()?;
        Ok(Self::new(Some(coordination), config, seat, telemetry))
    }

    /// A candidate that has nobody to compete with and leads at once: for an installation without etcd. Two of them do
    /// not know of each other.
    pub fn alone(telemetry: Telemetry) -> (Self, ElectionHandle) {
        let config = ElectionConfig::default();
        let whole = Seat::Fleet(ElectionKeys::new(&config.key, Shards::ONE));
        Self::new(None, config, whole, telemetry)
    }

    fn new(
        coordination: Option<Arc<dyn Coordination>>,
        config: ElectionConfig,
        seat: Seat,
        telemetry: Telemetry,
    ) -> (Self, ElectionHandle) {
        let (role, receiver) = watch::channel(Role::Standby);
        let resignation = Shutdown::new();
        let handle = ElectionHandle { role: receiver, resignation: resignation.clone() };
        (Self { coordination, config, telemetry, seat, role, resignation }, handle)
    }

    /// Competes, leads and competes again until the handle resigns. A shutdown ends a standby at once; a leader goes on
    /// renewing, because what it has under way still needs the right to be finished, until it resigns or loses.
    ///
    /// # Cancel safety
    /// Dropping it is a crash: nothing is given back, the leadership runs out, and somebody else leads when the lease
    /// has ended.
    pub async fn run(self, shutdown: Shutdown) {
        let Some(coordination) = &self.coordination else { return self.lead_alone().await };
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
            campaign.give_back(&mut lease).await;
            if shutdown.is_requested() || self.resignation.is_requested() {
                return;
            }
        }
    }

    /// Leads if nobody does, until that ends; it does not wait for whoever does.
    ///
    /// # Cancel safety
    /// As that of [`LeaderElection::run`].
    pub(crate) async fn run_once(self, shutdown: Shutdown) {
        let Some(coordination) = &self.coordination else { return self.lead_alone().await };
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
            Some(Ok(Attempt::Held { .. } | Attempt::Overruled)) | None => {}
            Some(Err(failure)) => warn!(target: "lcm::leader", key = self.config.key, %failure, "cannot compete"),
        }
        campaign.give_back(&mut lease).await;
    }

    fn campaign<'a>(&'a self, coordination: &'a dyn Coordination) -> Campaign<'a> {
        Campaign { coordination, config: &self.config, layout: self.seat.layout() }
    }

    async fn lead_alone(&self) {
        warn!(
            target: "lcm::leader",
            "no etcd is configured: leading at once and WITHOUT election; a second controller would lead as well"
        );
        self.seat.held(&self.telemetry, Some(Duration::ZERO));
        self.role.send_replace(Role::Leader(LeaderLease::unfenced()));
        self.resignation.requested().await;
        self.role.send_replace(Role::Standby);
        self.seat.held(&self.telemetry, None);
    }

    async fn lead(&self, campaign: &Campaign<'_>, won: Won) {
        let (leadership, keeper) = LeaderLease::leased(won.token, campaign.valid_until(won.sent, won.lease.ttl));
        let (key, identity, token) = (&self.config.key, &self.config.identity, won.token);
        info!(target: "lcm::leader", key, identity, token, "leading");
        self.seat.held(&self.telemetry, Some(won.sent.elapsed()));
        self.role.send_replace(Role::Leader(leadership.clone()));
        let end = tokio::select! {
            biased;
            () = self.resignation.requested() => End::Resigned,
            () = leadership.lost() => End::Lost("the lease was not renewed in time"),
            reason = self.renew(campaign, &won, &keeper) => End::Lost(reason),
            () = campaign.touched(won.token) => End::Lost(NOT_OURS),
        };
        keeper.end();
        self.role.send_replace(Role::Standby);
        self.seat.held(&self.telemetry, None);
        match end {
            End::Resigned => info!(target: "lcm::leader", key, identity, token, "resigned"),
            End::Lost(reason) => {
                self.telemetry.count_anomaly(Anomaly::LeadershipLost);
                warn!(target: "lcm::leader", key, identity, token, reason, "leading no more");
            }
        }
    }

    /// Renews until there is nothing to renew any more, and says why.
    async fn renew(&self, campaign: &Campaign<'_>, won: &Won, keeper: &LeadershipKeeper) -> &'static str {
        let mut renewed = won.sent;
        let mut ttl = won.lease.ttl;
        let mut due = renewed + ttl / 3;
        loop {
            sleep_until(due).await;
            let sent = Instant::now();
            self.seat.held(&self.telemetry, Some(renewed.elapsed()));
            match campaign.coordination.renew(won.lease.id).await {
                Ok(Renewal::Renewed(granted)) => {
                    (renewed, ttl) = (sent, granted);
                    keeper.prolong(campaign.valid_until(sent, granted));
                    self.seat.held(&self.telemetry, Some(renewed.elapsed()));
                    due = sent + ttl / 3;
                }
                Ok(Renewal::Gone) => return "the lease is gone",
                Err(failure) => {
                    warn!(target: "lcm::leader", key = self.config.key, %failure, "the lease could not be renewed");
                    due = Instant::now() + (ttl / 10).min(campaign::SHORT_PAUSE);
                    continue;
                }
            }
            // A lease can outlive its key, if somebody deletes or overwrites it by hand; and a watch can be silent.
            match campaign.coordination.list(&self.config.key).await {
                Ok(listing) if campaign.modified(&listing.keys) != Some(won.token) => {
                    return NOT_OURS;
                }
                Ok(_) => {}
                Err(failure) => debug!(target: "lcm::leader", %failure, "the key could not be looked at"),
            }
        }
    }
}

impl std::fmt::Debug for LeaderElection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaderElection").field("config", &self.config).finish_non_exhaustive()
    }
}

impl ElectionHandle {
    /// The role, and every change of it. A leader's right ends by itself: ask it, not the role, before acting.
    pub fn role(&self) -> watch::Receiver<Role> {
        self.role.clone()
    }

    /// The right to lead, if it is ours at this moment.
    pub fn leadership(&self) -> Option<LeaderLease> {
        match &*self.role.borrow() {
            Role::Leader(leadership) if leadership.is_valid() => Some(leadership.clone()),
            Role::Leader(_) | Role::Standby => None,
        }
    }

    /// Waits until we lead. `None` if the election is over.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn elected(&self) -> Option<LeaderLease> {
        let mut role = self.role.clone();
        loop {
            if let Some(leadership) = self.leadership() {
                return Some(leadership);
            }
            role.changed().await.ok()?;
        }
    }

    /// Gives leadership up, so that a standby takes over at once, and ends the election. Call it when everything that
    /// needed the right is finished.
    ///
    /// # Guarantees
    /// The right ends before the lease does. If etcd cannot be told, the lease runs out by itself.
    ///
    /// # Cancel safety
    /// Once it was polled the election ends, whether or not somebody waits for it.
    pub async fn resign(&self) {
        self.resignation.request();
        let mut role = self.role.clone();
        // The sender lives as long as the election runs.
        while role.changed().await.is_ok() {}
    }
}
