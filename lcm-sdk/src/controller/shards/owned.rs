//! The shards that a member leads, competes for or is about to hand over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{RwLock, watch};
use tokio::time::timeout;

use super::ownership::{Hold, ShardGuard};
use super::scale_down_lock::ScaleDownLocks;
use crate::controller::election::ElectionHandle;
use crate::controller::hash::{Shard, Shards};

/// A shard that a member leads, as operators see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeldShard {
    /// Which.
    pub shard: u16,
    /// What writes to its workers carry.
    pub fencing_token: Option<i64>,
    /// Time since its lease was last renewed.
    pub lease_age_seconds: f64,
}

/// The shards of a member.
#[derive(Debug)]
pub(crate) struct OwnedShards {
    shards: Shards,
    seats: Mutex<BTreeMap<Shard, Seat>>,
    led: watch::Sender<BTreeSet<Shard>>,
    turns: Arc<ScaleDownLocks>,
    /// How long a right holds after a renewal.
    validity: Duration,
}

#[derive(Debug, Clone)]
struct Seat {
    election: ElectionHandle,
    /// Read by every pass, written by whoever hands the shard over.
    passes: Arc<RwLock<()>>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Wanted,
    Leaving,
}

impl OwnedShards {
    pub(crate) fn new(shards: Shards, turns: ScaleDownLocks, validity: Duration) -> Self {
        let (led, _) = watch::channel(BTreeSet::new());
        Self { shards, seats: Mutex::default(), led, turns: Arc::new(turns), validity }
    }

    pub(crate) const fn shards(&self) -> Shards {
        self.shards
    }

    /// The shards that are led, and every change of that.
    pub(crate) fn led(&self) -> watch::Receiver<BTreeSet<Shard>> {
        self.led.subscribe()
    }

    /// What is led or competed for, and not about to be handed over.
    pub(crate) fn wanted(&self) -> BTreeSet<Shard> {
        let seats = self.seats.lock();
        seats.iter().filter(|(_, seat)| seat.stage == Stage::Wanted).map(|(shard, _)| *shard).collect()
    }

    /// Whether anything goes on about a shard here.
    pub(crate) fn concerns(&self, shard: Shard) -> bool {
        self.seats.lock().contains_key(&shard)
    }

    pub(crate) fn enter(&self, shard: Shard, election: ElectionHandle) {
        let seat = Seat { election, passes: Arc::default(), stage: Stage::Wanted };
        self.seats.lock().insert(shard, seat);
    }

    /// An election has ended.
    pub(crate) fn leave(&self, shard: Shard) {
        self.seats.lock().remove(&shard);
        self.tell();
    }

    /// Tells whoever waits for it what is led by now.
    pub(crate) fn tell(&self) {
        let now = {
            let seats = self.seats.lock();
            let led = |seat: &Seat| seat.stage == Stage::Wanted && seat.election.leadership().is_some();
            seats.iter().filter(|(_, seat)| led(seat)).map(|(shard, _)| *shard).collect()
        };
        self.led.send_if_modified(|led| {
            let changed = *led != now;
            *led = now;
            changed
        });
    }

    /// From here on nothing new is begun on a shard.
    pub(crate) fn retire(&self, shard: Shard) {
        if let Some(seat) = self.seats.lock().get_mut(&shard) {
            seat.stage = Stage::Leaving;
        }
        self.tell();
    }

    /// Hands a retired shard over, when what is under way has ended or the grace is over.
    pub(crate) async fn hand_over(&self, shard: Shard, grace: Duration) {
        let Some(seat) = self.seats.lock().get(&shard).cloned() else { return };
        if timeout(grace, seat.passes.write()).await.is_err() {
            tracing::error!(target: "lcm::leader", %shard, "passes did not end within the grace; handing over all the same");
        }
        seat.election.resign().await;
    }

    /// Gives everything up at once.
    pub(crate) async fn resign(&self) {
        let seats: Vec<Seat> = self.seats.lock().values().cloned().collect();
        futures_util::future::join_all(seats.iter().map(|seat| seat.election.resign())).await;
    }

    /// The right to act on a worker, if its shard is led here; the shard is not handed over before it is dropped.
    pub(crate) fn over(&self, name: &str) -> Option<ShardGuard> {
        let (leadership, passes) = {
            let seats = self.seats.lock();
            let seat = seats.get(&self.shards.of(name)).filter(|seat| seat.stage == Stage::Wanted)?;
            (seat.election.leadership()?, Arc::clone(&seat.passes))
        };
        let pass = passes.try_read_owned().ok()?;
        Some(ShardGuard { leadership, hold: Some(Hold::new(pass, Arc::clone(&self.turns))) })
    }

    /// Whether the shard of a worker is led here.
    pub(crate) fn includes(&self, name: &str) -> bool {
        let seats = self.seats.lock();
        let seat = seats.get(&self.shards.of(name)).filter(|seat| seat.stage == Stage::Wanted);
        seat.is_some_and(|seat| seat.election.leadership().is_some())
    }

    pub(crate) fn held(&self) -> Vec<HeldShard> {
        let seats = self.seats.lock();
        let led = seats.iter().filter_map(|(shard, seat)| Some((shard, seat.election.leadership()?)));
        led.map(|(shard, leadership)| HeldShard {
            shard: shard.0,
            fencing_token: leadership.fence().0,
            lease_age_seconds: self.validity.saturating_sub(leadership.remaining().unwrap_or_default()).as_secs_f64(),
        })
        .collect()
    }
}
