//! Bad days: everything that can go wrong goes wrong, by chance, and in the end everybody is where he should be.

use lcm_sdk::providers::memory::{Fencing, Versions};
use lcm_sdk::{DesiredStatus, WorkerStatus};

use super::cluster::{Cluster, on_paused_time};
use super::summary::{Summary, Verdict};
use super::world::{Setup, World};

/// How many things happen in a day.
const MISHAPS: usize = 60;

/// The longest a drain may take, and then some.
const UNTIL_QUIET: u64 = 1800;

/// The world a day takes place in: they differ, so that none is left out.
pub(crate) fn setup_of(seed: u64) -> Setup {
    Setup {
        controllers: [2, 2, 3, 1][usize::try_from(seed % 4).expect("few")],
        versions: if seed % 5 == 4 { Versions::NotKept } else { Versions::Kept },
        scales_down: seed % 3 == 1,
        fencing: if seed.is_multiple_of(3) { Fencing::Enforced } else { Fencing::Ignored },
        ..Setup::of(seed)
    }
}

/// How many days make the quick set: more than a hundred thousand calls.
pub(crate) const QUICK: u64 = 96;

/// A whole day, and what it shows.
pub(crate) fn try_out(seed: u64, summary: &mut Summary) {
    summary.add(&format!("a bad day: LCM_FIRST_DAY={seed} LCM_DAYS=1"), a_day(setup_of(seed)));
}

/// A whole day.
pub(crate) fn a_day(setup: Setup) -> Verdict {
    on_paused_time(async {
        let cluster = Cluster::start(setup, people);
        cluster.world.trouble.lock().lag_permille = 400;
        cluster.live(10).await;
        for _ in 0..MISHAPS {
            cluster.count_anomaly();
            let pause = cluster.world.dice.lock().roll(25) + 1;
            cluster.live(pause).await;
        }
        cluster.calm_down();
        // Who is idle goes one after the other, and each may have a session to wait for.
        let until_quiet = if setup.scales_down { 2 * UNTIL_QUIET } else { UNTIL_QUIET };
        cluster.settle(until_quiet, 300).await;
        cluster.verdict()
    })
}

fn people(world: &World) {
    for number in 1..=4 {
        let id = world.add_worker(&format!("w-{number}"), WorkerStatus::Pending);
        world.want(&id, DesiredStatus::Running);
        world.number();
    }
}
