//! Getting hold of the key, and keeping an eye on it.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tracing::{debug, info, warn};

use super::config::ElectionConfig;
use super::keys::ElectionKeys;
use crate::controller::lease::LeaderLease;
use crate::lifecycle::failure::CallFailure;
use crate::ports::{Claim, Coordination, Lease, LeaseId, WatchUpdate};

/// How often a claim whose answer was lost is asked about before its lease is given back.
const CLAIM_ATTEMPTS: u32 = 3;
/// The longest pause before something that failed at once is tried again.
pub(crate) const SHORT_PAUSE: Duration = Duration::from_millis(500);

/// Getting hold of a key.
pub(crate) struct Campaign<'a> {
    pub(crate) coordination: &'a dyn Coordination,
    pub(crate) config: &'a ElectionConfig,
    /// Who else may lead what this is about; `None` if it is nobody's but our own.
    pub(crate) layout: Option<&'a ElectionKeys>,
}

/// A key that was claimed.
pub(crate) struct Won {
    pub(crate) lease: Lease,
    pub(crate) token: i64,
    /// When what the lease counts from was sent.
    pub(crate) sent: Instant,
}

/// How a try to get hold of it ended.
pub(crate) enum Attempt {
    Won(Won),
    Held {
        revision: i64,
    },
    /// The fleet is led by another number of shards.
    Overruled,
}

impl Campaign<'_> {
    /// Competes until the key is ours. `held` is the lease that has to be given back if this is abandoned.
    pub(crate) async fn win(&self, held: &mut Option<LeaseId>) -> Won {
        let mut is_out = false;
        loop {
            match self.attempt(held).await {
                Ok(Attempt::Won(won)) => return won,
                Ok(Attempt::Held { revision }) => {
                    is_out = false;
                    debug!(target: "lcm::leader", key = self.config.key, "somebody else leads: standing by");
                    self.stand_by(revision).await;
                }
                Ok(Attempt::Overruled) => {
                    is_out = false;
                    sleep(self.config.retry_interval).await;
                }
                Err(failure) => {
                    // Once for an outage, not once for every attempt.
                    if !std::mem::replace(&mut is_out, true) {
                        warn!(target: "lcm::leader", key = self.config.key, %failure, "cannot compete: standing by");
                    }
                    sleep(self.config.retry_interval).await;
                }
            }
        }
    }

    pub(crate) async fn attempt(&self, held: &mut Option<LeaseId>) -> Result<Attempt, CallFailure> {
        // Whoever may not lead now does not leave a lease behind with every look.
        let listing = self.coordination.list(&self.config.key).await?;
        if self.modified(&listing.keys).is_some() {
            return Ok(Attempt::Held { revision: listing.revision });
        }
        let sent = Instant::now();
        let lease = self.coordination.grant(self.config.ttl).await?;
        *held = Some(lease.id);
        match self.claim(&lease, self.valid_until(sent, lease.ttl)).await {
            Ok(Claim::Won { revision: token }) => match self.is_overruled(token).await {
                Ok(false) => Ok(Attempt::Won(Won { lease, token, sent })),
                Ok(true) => {
                    warn!(target: "lcm::leader", key = self.config.key, "the fleet is led by another number of shards: standing by");
                    self.give_back(held).await;
                    Ok(Attempt::Overruled)
                }
                Err(failure) => {
                    self.give_back(held).await;
                    Err(failure)
                }
            },
            Ok(Claim::Held { by, revision }) => {
                info!(target: "lcm::leader", key = self.config.key, by, "somebody else was faster");
                self.give_back(held).await;
                Ok(Attempt::Held { revision })
            }
            Err(failure) => {
                self.give_back(held).await;
                Err(failure)
            }
        }
    }

    /// Whether the key that we have just created gives way to somebody who leads by another number of shards. It has
    /// to be asked after the claim: before it, nobody would see us.
    async fn is_overruled(&self, token: i64) -> Result<bool, CallFailure> {
        let Some(layout) = self.layout else { return Ok(false) };
        let listing = self.coordination.list(layout.prefix()).await?;
        Ok(layout.is_overruled(&listing.keys, token))
    }

    /// Claims the key, and asks again if the answer was lost: the key may be ours without our knowing.
    async fn claim(&self, lease: &Lease, valid_until: Instant) -> Result<Claim, CallFailure> {
        let mut asked = 0;
        loop {
            asked += 1;
            match self.coordination.claim(&self.config.key, &self.config.identity, lease.id).await {
                Err(lost) if !lost.kind.did_nothing() && asked < CLAIM_ATTEMPTS && Instant::now() < valid_until => {
                    sleep((lease.ttl / 10).min(SHORT_PAUSE)).await;
                }
                answer => return answer,
            }
        }
    }

    /// Waits until it is worth looking at the key again.
    async fn stand_by(&self, revision: i64) {
        let key = self.config.key.as_str();
        let mut watch = match self.coordination.watch(key, revision + 1).await {
            Ok(watch) => watch,
            Err(failure) => {
                debug!(target: "lcm::leader", key, %failure, "the key cannot be watched");
                return sleep(self.config.retry_interval).await;
            }
        };
        let mut look = interval_at(Instant::now() + self.config.retry_interval, self.config.retry_interval);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
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
                // A watch can be silent for other reasons than that nothing happens.
                _ = look.tick() => match self.coordination.list(key).await {
                    Ok(listing) => {
                        if self.modified(&listing.keys).is_none() {
                            return;
                        }
                    }
                    Err(failure) => debug!(target: "lcm::leader", key, %failure, "the key cannot be looked at"),
                },
            }
        }
    }

    /// Waits until somebody touches the key that was created at this revision: its lease ended, or it was changed by
    /// hand. Renewals look as well, so a watch that fails is merely opened again.
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

    /// Gives a lease back that is not needed any more. If nobody can be told, it runs out by itself.
    pub(crate) async fn give_back(&self, held: &mut Option<LeaseId>) {
        let Some(lease) = *held else { return };
        if let Err(failure) = self.coordination.revoke(lease).await {
            debug!(target: "lcm::leader", key = self.config.key, %failure, "a lease could not be given back");
        }
        *held = None;
    }

    /// The revision of the last change of the key, if it exists. Others may have keys that begin with it.
    pub(crate) fn modified(&self, keys: &[(Vec<u8>, i64)]) -> Option<i64> {
        keys.iter().find(|(key, _)| key == self.config.key.as_bytes()).map(|(_, modified)| *modified)
    }

    pub(crate) fn valid_until(&self, sent: Instant, ttl: Duration) -> Instant {
        sent + ttl.saturating_sub(self.config.margin)
    }
}

/// Claims a key once, for what takes less than a lease: nobody renews it. `None` if somebody else has it.
///
/// # Errors
/// If the server cannot be asked.
pub(crate) async fn claim(
    coordination: &dyn Coordination,
    config: &ElectionConfig,
) -> Result<Option<(LeaderLease, LeaseId)>, CallFailure> {
    let campaign = Campaign { coordination, config, layout: None };
    match campaign.attempt(&mut None).await? {
        Attempt::Won(Won { lease, token, sent }) => {
            let (right, _) = LeaderLease::leased(token, campaign.valid_until(sent, lease.ttl));
            Ok(Some((right, lease.id)))
        }
        Attempt::Held { .. } | Attempt::Overruled => Ok(None),
    }
}
