//! The etcd client of a controller, with delays, failures, and lost, duplicated or reordered events.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lcm_sdk::ports::{Claim, Coordination, Lease, LeaseId, Listing, Renewal, WatchStream, WatchUpdate};
use lcm_sdk::{CallFailure, FailureKind};
use tokio::time::{Instant, sleep};

use super::broken::Broken;
use super::faults::failure;
use super::oracle::Term;
use super::ports::ProcessPorts;
use super::process::Process;

type Response<T> = Result<T, CallFailure>;

impl Process {
    /// Delays a call to etcd, or fails it.
    async fn delay_or_fail(&self) -> Response<()> {
        self.stop_if_crashed().await;
        let (delay, fails) = {
            let permille = self.world.fault_plan.lock().permille;
            let mut rng = self.world.rng.lock();
            (rng.millis(1, 20), rng.chance(permille / 2))
        };
        sleep(delay).await;
        self.stop_if_crashed().await;
        if fails {
            self.world.oracle.lock().fault("etcd call failed");
            return Err(failure(FailureKind::Unclear));
        }
        Ok(())
    }
}

#[async_trait]
impl Coordination for ProcessPorts {
    async fn grant(&self, ttl: Duration) -> Response<Lease> {
        self.delay_or_fail().await?;
        self.etcd.grant(ttl).await
    }

    async fn renew(&self, lease: LeaseId) -> Response<Renewal> {
        self.delay_or_fail().await?;
        if self.world.is_broken(Broken::NoLease) {
            // The defective controller believes in its lease forever.
            return Ok(Renewal::Renewed(Duration::from_secs(15)));
        }
        let renewed = self.etcd.renew(lease).await?;
        if let Renewal::Renewed(_) = renewed {
            let mut oracle = self.world.oracle.lock();
            let held = oracle.leases.get(&lease).cloned();
            if let Some(term) = held.and_then(|held| oracle.terms.get_mut(&held)) {
                term.held_at = Instant::now();
            }
        }
        Ok(renewed)
    }

    async fn revoke(&self, lease: LeaseId) -> Response<()> {
        self.delay_or_fail().await?;
        self.etcd.revoke(lease).await
    }

    async fn claim(&self, key: &str, value: &str, lease: LeaseId) -> Response<Claim> {
        self.delay_or_fail().await?;
        let mut claim = self.etcd.claim(key, value, lease).await?;
        if let (true, Claim::Held { revision, .. }) = (self.world.is_broken(Broken::HeldShardIsWon), &claim) {
            claim = Claim::Won { revision: *revision };
        }
        if let (Claim::Won { revision }, true) = (&claim, key.ends_with("/leader")) {
            self.world.log(format!("{} leads {key} with token {revision}", self.identity));
            let mut oracle = self.world.oracle.lock();
            let held = (self.number, key.to_owned());
            oracle.leases.insert(lease, held.clone());
            let fresh = || Term { tokens: Vec::new(), held_at: Instant::now() };
            let term = oracle.terms.entry(held).or_insert_with(fresh);
            term.tokens.push(*revision);
            term.held_at = Instant::now();
        }
        Ok(claim)
    }

    async fn list(&self, prefix: &str) -> Response<Listing> {
        self.delay_or_fail().await?;
        if self.world.is_broken(Broken::NoLease) && prefix.contains("leader") {
            let oracle = self.world.oracle.lock();
            let last = oracle.terms_of(self.number).find_map(|(_, term)| term.tokens.last().copied());
            drop(oracle);
            if let Some(revision) = last {
                return Ok(Listing { revision, keys: vec![(prefix.as_bytes().to_vec(), revision)] });
            }
        }
        self.etcd.list(prefix).await
    }

    async fn watch(&self, prefix: &str, from_revision: i64) -> Response<Box<dyn WatchStream>> {
        self.delay_or_fail().await?;
        if self.world.is_broken(Broken::NoLease) && prefix.contains("leader") {
            let leads = self.world.oracle.lock().terms_of(self.number).next().is_some();
            if leads {
                return Ok(Box::new(SilentStream));
            }
        }
        let stream = self.etcd.watch(prefix, from_revision).await?;
        let gapless = !self.world.is_broken(Broken::WatchGap);
        Ok(Box::new(FaultyStream {
            process: Arc::clone(&self.0),
            prefix: prefix.to_owned(),
            stream,
            held: None,
            gapless,
        }))
    }
}

/// A watch that never delivers an event.
struct SilentStream;

#[async_trait]
impl WatchStream for SilentStream {
    async fn next(&mut self) -> WatchUpdate {
        std::future::pending().await
    }

    async fn probe(&mut self) -> Response<()> {
        Ok(())
    }
}

struct FaultyStream {
    process: Arc<Process>,
    prefix: String,
    stream: Box<dyn WatchStream>,
    /// An update that is delivered after the next one, or twice.
    held: Option<WatchUpdate>,
    gapless: bool,
}

#[async_trait]
impl WatchStream for FaultyStream {
    async fn next(&mut self) -> WatchUpdate {
        loop {
            if let Some(held) = self.held.take() {
                return held;
            }
            let update = self.stream.next().await;
            self.process.stop_if_crashed().await;
            if !self.gapless && matches!(update, WatchUpdate::Compacted { .. } | WatchUpdate::Ended(_)) {
                // The defective watcher continues from now without listing again.
                match self.process.etcd.watch(&self.prefix, 0).await {
                    Ok(stream) => self.stream = stream,
                    Err(_) => sleep(Duration::from_secs(1)).await,
                }
                continue;
            }
            let WatchUpdate::Changed { revision, mut keys } = update else { return update };
            let world = &self.process.world;
            let permille = world.fault_plan.lock().permille;
            if !world.rng.lock().chance(permille * 3) {
                return WatchUpdate::Changed { revision, keys };
            }
            // Events of the leader key are only duplicated: other faults cut the leader off.
            let kind = if self.prefix.contains("leader") { 1 } else { world.rng.lock().roll(3) };
            match kind {
                0 => {
                    world.oracle.lock().fault("watch event lost");
                }
                1 => {
                    world.oracle.lock().fault("watch event duplicated");
                    self.held = Some(WatchUpdate::Changed { revision, keys: keys.clone() });
                    return WatchUpdate::Changed { revision, keys };
                }
                _ => {
                    world.oracle.lock().fault("watch events reordered");
                    keys.reverse();
                    let later = keys.split_off(keys.len() / 2);
                    self.held = Some(WatchUpdate::Changed { revision: revision - 1, keys });
                    return WatchUpdate::Changed { revision, keys: later };
                }
            }
        }
    }

    async fn probe(&mut self) -> Response<()> {
        self.process.stop_if_crashed().await;
        self.stream.probe().await
    }
}
