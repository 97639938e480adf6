//! Random days: every fault occurs by chance, and at the end every worker is in the status it should be in.

use lcm_sdk::providers::memory::{Fencing, Versions};
use lcm_sdk::{DesiredStatus, WorkerStatus};

use super::cluster::{Cluster, on_paused_time};
use super::summary::{Summary, Verdict};
use super::world::{Setup, World};

/// Number of events in a day.
const ANOMALIES: usize = 60;

/// Longer than the longest drain.
const UNTIL_QUIET: u64 = 1800;

/// The world of a day. Days differ, so that every kind of world is covered.
pub(crate) fn setup_of(seed: u64) -> Setup {
    Setup {
        controllers: [2, 2, 3, 1][usize::try_from(seed % 4).expect("few")],
        versions: if seed % 5 == 4 { Versions::NotKept } else { Versions::Kept },
        scales_down: seed % 3 == 1,
        fencing: if seed.is_multiple_of(3) { Fencing::Enforced } else { Fencing::Ignored },
        ..Setup::of(seed)
    }
}

/// Number of days in the quick set: more than a hundred thousand calls.
pub(crate) const QUICK: u64 = 96;

/// Runs a day and returns what it shows.
pub(crate) fn try_out(seed: u64, summary: &mut Summary) {
    summary.add(&format!("a bad day: LCM_FIRST_DAY={seed} LCM_DAYS=1"), a_day(setup_of(seed)));
}

/// Runs a day.
pub(crate) fn a_day(setup: Setup) -> Verdict {
    on_paused_time(async {
        let cluster = Cluster::start(setup, people);
        cluster.world.trouble.lock().lag_permille = 400;
        cluster.live(10).await;
        for _ in 0..ANOMALIES {
            cluster.count_anomaly();
            let pause = cluster.world.rng.lock().roll(25) + 1;
            cluster.live(pause).await;
        }
        cluster.calm_down();
        // Idle workers leave one after the other, and each may have a session to wait for.
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
