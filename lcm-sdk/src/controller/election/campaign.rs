//! Claims the key of an election and monitors it.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tracing::{debug, info, warn};

use super::config::ElectionConfig;
use super::keys::ElectionKeys;
use crate::controller::lease::LeaderLease;
use crate::lifecycle::failure::CallFailure;
use crate::ports::{Claim, Coordination, Lease, LeaseId, WatchUpdate};

/// Attempts to claim the key under one lease before the lease is revoked.
const CLAIM_ATTEMPTS: u32 = 3;
/// Longest pause before a call that failed at once is repeated.
pub(crate) const SHORT_PAUSE: Duration = Duration::from_millis(500);

/// One candidate's competition for a key.
pub(crate) struct Campaign<'a> {
    pub(crate) coordination: &'a dyn Coordination,
    pub(crate) config: &'a ElectionConfig,
    /// Keys of leaders that exclude this one; `None` if the key excludes no other.
    pub(crate) keys: Option<&'a ElectionKeys>,
    /// Identity of the leader, for operators.
    pub(crate) leader: &'a LeaderName,
}

/// Identity of the leader, as far as a candidate knows.
pub(crate) type LeaderName = Mutex<Option<String>>;

/// A claimed key.
pub(crate) struct Won {
    pub(crate) lease: Lease,
    /// Revision at which the key was created.
    pub(crate) token: i64,
    /// Time at which the grant was sent, on the clock of the election; the lease counts from here.
    pub(crate) sent: Instant,
}

/// Result of one attempt.
pub(crate) enum Attempt {
    Won(Won),
    /// Another candidate holds the key.
    Held {
        revision: i64,
    },
    /// The fleet is led with another count of shards.
    Superseded,
}

impl Campaign<'_> {
    /// Competes until the key is claimed. `held` is the lease to revoke if the future is dropped.
    pub(crate) async fn win(&self, held: &mut Option<LeaseId>) -> Won {
        let mut is_out = false;
        loop {
            match self.attempt(held).await {
                Ok(Attempt::Won(won)) => return won,
                Ok(Attempt::Held { revision }) => {
                    is_out = false;
                    self.note_leader().await;
                    self.stand_by(revision).await;
                }
                Ok(Attempt::Superseded) => {
                    is_out = false;
                    sleep(self.config.retry_interval).await;
                }
                Err(failure) => {
                    // Logged once per outage, not once per attempt.
                    if !std::mem::replace(&mut is_out, true) {
                        warn!(target: "lcm::leader", key = self.config.key, %failure, "cannot compete: standing by");
                    }
                    sleep(self.config.retry_interval).await;
                }
            }
        }
    }

    /// Notes the holder of the key.
    async fn note_leader(&self) {
        // A failed read is reported by the next call that matters.
        let Ok(leader) = self.coordination.value(&self.config.key).await else { return };
        let known = std::mem::replace(&mut *self.leader.lock(), leader.clone());
        if known != leader {
            info!(target: "lcm::leader", key = self.config.key, leader, "another candidate leads: standing by");
        }
    }

    pub(crate) async fn attempt(&self, held: &mut Option<LeaseId>) -> Result<Attempt, CallFailure> {
        // Read before a lease is granted: a standby must not create a lease with every attempt.
        let listing = self.coordination.list(&self.config.key).await?;
        if self.modified(&listing.keys).is_some() {
            return Ok(Attempt::Held { revision: listing.revision });
        }
        let sent = self.config.clock.now();
        let lease = self.coordination.grant(self.config.ttl).await?;
        *held = Some(lease.id);
        match self.claim(&lease, self.valid_until(sent, lease.ttl)).await {
            Ok(Claim::Won { revision: token }) => match self.is_superseded(token).await {
                Ok(false) => Ok(Attempt::Won(Won { lease, token, sent })),
                Ok(true) => {
                    warn!(target: "lcm::leader", key = self.config.key, "the fleet is led with another count of shards: standing by");
                    self.revoke(held).await;
                    Ok(Attempt::Superseded)
                }
                Err(failure) => {
                    self.revoke(held).await;
                    Err(failure)
                }
            },
            Ok(Claim::Held { by, revision }) => {
                info!(target: "lcm::leader", key = self.config.key, by, "another candidate was faster");
                self.revoke(held).await;
                Ok(Attempt::Held { revision })
            }
            Err(failure) => {
                self.revoke(held).await;
                Err(failure)
            }
        }
    }

    /// Whether the key that was just created yields to a leader with another count of shards. Must be checked after the
    /// claim: before it, the other leader could not see this one.
    async fn is_superseded(&self, token: i64) -> Result<bool, CallFailure> {
        let Some(keys) = self.keys else { return Ok(false) };
        let listing = self.coordination.list(keys.prefix()).await?;
        Ok(keys.is_superseded(&listing.keys, token))
    }

    /// Claims the key, and repeats a claim whose response was lost: the key may exist although no response arrived.
    async fn claim(&self, lease: &Lease, valid_until: Instant) -> Result<Claim, CallFailure> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.coordination.claim(&self.config.key, &self.config.identity, lease.id).await {
                Err(lost)
                    if !lost.kind.did_nothing()
                        && attempts < CLAIM_ATTEMPTS
                        && self.config.clock.now() < valid_until =>
                {
                    sleep((lease.ttl / 10).min(SHORT_PAUSE)).await;
                }
                result => return result,
            }
        }
    }

    /// Waits until the key may be free.
    async fn stand_by(&self, revision: i64) {
        let key = self.config.key.as_str();
        let mut watch = match self.coordination.watch(key, revision + 1).await {
            Ok(watch) => watch,
            Err(failure) => {
                debug!(target: "lcm::leader", key, %failure, "the key cannot be watched");
                return sleep(self.config.retry_interval).await;
            }
        };
        let mut poll = interval_at(Instant::now() + self.config.retry_interval, self.config.retry_interval);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                update = watch.next() => match update {
                    WatchUpdate::Changed { keys, .. } => {
                        if keys.iter().any(|changed| changed == key.as_bytes()) {
                            return;
                        }
                    }
                    WatchUpdate::Progress { .. } => {}
                    WatchUpdate::Compacted { .. } | WatchUpdate::Ended(_) => {
                        return sleep(self.config.retry_interval.min(SHORT_PAUSE)).await;
                    }
                },
                // A silent watch may also be a broken one.
                _ = poll.tick() => match self.coordination.list(key).await {
                    Ok(listing) => {
                        if self.modified(&listing.keys).is_none() {
                            return;
                        }
                    }
                    Err(failure) => debug!(target: "lcm::leader", key, %failure, "the key cannot be read"),
                },
            }
        }
    }

    /// Waits until the key created at this revision is deleted or overwritten. A watch that fails is reopened: renewals
    /// read the key as well.
    pub(crate) async fn touched(&self, token: i64) {
        let mut from = token + 1;
        loop {
            if let Ok(mut watch) = self.coordination.watch(&self.config.key, from).await {
                loop {
                    match watch.next().await {
                        WatchUpdate::Changed { keys, revision } => {
                            if keys.iter().any(|key| key == self.config.key.as_bytes()) {
                                return;
                            }
                            from = revision + 1;
                        }
                        WatchUpdate::Progress { .. } => {}
                        WatchUpdate::Compacted { revision } => {
                            from = revision;
                            break;
                        }
                        WatchUpdate::Ended(_) => break,
                    }
                }
            }
            sleep(self.config.retry_interval).await;
        }
    }

    /// Revokes a lease that is not needed any more. If etcd cannot be reached, the lease expires by itself.
    pub(crate) async fn revoke(&self, held: &mut Option<LeaseId>) {
        let Some(lease) = *held else { return };
        if let Err(failure) = self.coordination.revoke(lease).await {
            debug!(target: "lcm::leader", key = self.config.key, %failure, "a lease could not be revoked");
        }
        *held = None;
    }

    /// Revision of the last change of the key, if it exists. The listing may contain longer keys with this prefix.
    pub(crate) fn modified(&self, keys: &[(Vec<u8>, i64)]) -> Option<i64> {
        keys.iter().find(|(key, _)| key == self.config.key.as_bytes()).map(|(_, modified)| *modified)
    }

    pub(crate) fn valid_until(&self, sent: Instant, ttl: Duration) -> Instant {
        sent + ttl.saturating_sub(self.config.margin)
    }
}

/// Claims a key once, without renewal. `None` if another candidate holds it.
///
/// # Errors
/// If etcd cannot be reached.
pub(crate) async fn claim(
    coordination: &dyn Coordination,
    config: &ElectionConfig,
) -> Result<Option<(LeaderLease, LeaseId)>, CallFailure> {
    let leader = LeaderName::default();
    let campaign = Campaign { coordination, config, keys: None, leader: &leader };
    match campaign.attempt(&mut None).await? {
        Attempt::Won(Won { lease, token, sent }) => {
            let valid_until = campaign.valid_until(sent, lease.ttl);
            let (claimed, _) = LeaderLease::with_clock(token, valid_until, config.clock.clone());
            Ok(Some((claimed, lease.id)))
        }
        Attempt::Held { .. } | Attempt::Superseded => Ok(None),
    }
}
