//! Moves the clock, alone or together with the timers of controllers.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::FakeCloud;
use crate::admin::{self, Services};
use crate::cml::{BootStage, ListenState};
use crate::world::World;

/// Maximum real time for which [`FakeCloud::settle`] waits.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum real time for which the clock waits until a follower is idle.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A program whose timers are moved together with the clock of a cloud, such as a controller.
///
/// # Promises
/// - [`idle`](Self::idle) returns once everything that was due has been done.
/// - [`skip`](Self::skip) makes everything due that was to happen within this time.
pub trait TimeFollower: Send + Sync {
    /// Waits until nothing is in progress or due.
    fn idle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Returns the time until the next action is due; `None` if none is planned.
    fn next_due(&self) -> Option<Duration>;

    /// Moves the timers forward.
    fn skip(&self, time: Duration);
}

/// Error of a follower that did not become idle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a controller was still at work {waited:?} of real time after the clock had moved by {moved:?}: a reconcile hangs, or \
     waits for a response that a fault delays on the clock of the cloud"
)]
#[non_exhaustive]
pub struct NotIdle {
    /// Time by which the clock had moved.
    pub moved: Duration,
    /// Real time for which the clock waited.
    pub waited: Duration,
}

/// Moves the clock of a cloud; made by [`FakeCloud::advancer`].
#[derive(Debug, Clone)]
pub struct Advancer {
    world: Arc<World>,
    services: Services,
}

impl FakeCloud {
    /// Returns a handle that moves the clock, for a task that does not own the cloud.
    pub fn advancer(&self) -> Advancer {
        Advancer { world: Arc::clone(self.world()), services: self.services.clone() }
    }

    /// Advances the clock, with the steps of the scenario's timeline at their times, and waits until every CML server
    /// listens or refuses connections as its instance requires.
    ///
    /// # Guarantees
    /// Instances, leases, logins, licenses, metrics and records follow the clock immediately.
    ///
    /// # Cancel safety
    /// The first poll advances the clock. Dropping the future later ends the wait only.
    pub async fn advance(&self, duration: Duration) {
        self.advancer().advance(duration).await;
    }

    /// Advances the clock together with the timers of followers: see [`Advancer::advance_with`].
    ///
    /// # Errors
    /// A follower does not become idle.
    pub async fn advance_with(&self, duration: Duration, followers: &[&dyn TimeFollower]) -> Result<(), NotIdle> {
        self.advancer().advance_with(duration, followers).await
    }

    /// Waits until every CML server matches the state of its instance: it listens if the instance is running and has
    /// booted far enough, and otherwise refuses connections. Returns after ten seconds at the latest.
    pub async fn settle(&self) {
        self.advancer().settle().await;
    }
}

impl Advancer {
    /// Advances the clock as [`FakeCloud::advance`] does.
    ///
    /// # Cancel safety
    /// That of [`FakeCloud::advance`].
    pub async fn advance(&self, duration: Duration) {
        self.services.advance(&self.world, duration);
        self.settle().await;
    }

    /// Advances the clock together with the timers of followers. The clock goes on to the next time at which a follower,
    /// the timeline, an instance or a session has something to do, waits until the followers are idle, and goes on.
    /// Hours pass in the real time that the followers work.
    ///
    /// Leases of etcd follow real time unless the cloud was started with another [`LeaseClock`](crate::LeaseClock): with
    /// the clock of the world, a follower loses its lease in the first long step.
    ///
    /// # Errors
    /// A follower is still at work after a minute of real time. The clock then stands where it was reached.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the clock between two steps.
    pub async fn advance_with(&self, duration: Duration, followers: &[&dyn TimeFollower]) -> Result<(), NotIdle> {
        let (began, start) = (Instant::now(), self.world.clock().now());
        let (mut moved, mut skipped) = (Duration::ZERO, Duration::ZERO);
        loop {
            for follower in followers {
                let idle = tokio::time::timeout(IDLE_TIMEOUT, follower.idle()).await;
                idle.map_err(|_| NotIdle { moved, waited: IDLE_TIMEOUT })?;
            }
            if moved >= duration {
                return Ok(());
            }
            let due = followers.iter().filter_map(|follower| follower.next_due()).min();
            // Real time passes for the followers as well.
            let passed = began.elapsed() + skipped;
            let due = due.map(|due| passed.saturating_add(due));
            let change = admin::next_change(&self.world, &self.services);
            let change = change.and_then(|at| (at - start).to_std().ok()).filter(|at| *at > moved);
            let target = due.into_iter().chain(change).min().unwrap_or(duration).clamp(moved, duration);
            self.advance(target - moved).await;
            moved = target;
            let skip = target.saturating_sub(began.elapsed() + skipped);
            for follower in followers {
                follower.skip(skip);
            }
            skipped += skip;
        }
    }

    /// Waits as [`FakeCloud::settle`] does.
    pub async fn settle(&self) {
        let settled = async {
            while !self.has_settled() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        drop(tokio::time::timeout(SETTLE_TIMEOUT, settled).await);
    }

    fn has_settled(&self) -> bool {
        let servers = &self.services.cml_servers;
        let addresses = servers.addresses();
        let running: BTreeMap<String, Ipv4Addr> = self.world.with_ec2(|ec2, now| {
            let all = ec2.regions().flat_map(crate::world::Region::instances);
            all.filter_map(|instance| Some((instance.id.clone(), instance.public_ip(now)?))).collect()
        });
        let is_reachable = |(id, address): (&String, &Ipv4Addr)| match servers.listen_state(id) {
            Some(ListenState::Prevented(_)) => true,
            Some(ListenState::Listening) => addresses.get(id) == Some(&Some(*address)),
            Some(ListenState::Off) => servers.stage(id) == Some(BootStage::Refused),
            None => false,
        };
        let mut stopped = addresses.keys().filter(|id| !running.contains_key(*id));
        stopped.all(|id| servers.listen_state(id) != Some(ListenState::Listening)) && running.iter().all(is_reachable)
    }
}
