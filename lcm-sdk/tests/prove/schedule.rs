//! Random days: every fault occurs by chance, and at the end every worker has its desired status.

use lcm_sdk::providers::memory::{Fencing, Versions};
use lcm_sdk::{DesiredStatus, WorkerStatus};

use super::cluster::{Cluster, on_paused_time};
use super::summary::{HistoryResult, Summary};
use super::world::{Setup, World};

/// Number of events in a day.
const EVENTS_PER_DAY: usize = 60;

/// Longer than the longest drain.
const UNTIL_QUIET: u64 = 1800;

/// Setup of a day. Setups vary with the seed, so that all options are covered.
pub(crate) fn setup_for_day(seed: u64) -> Setup {
    Setup {
        controllers: [2, 2, 3, 1][usize::try_from(seed % 4).expect("few")],
        versions: if seed % 5 == 4 { Versions::NotKept } else { Versions::Kept },
        scales_down: seed % 3 == 1,
        fencing: if seed.is_multiple_of(3) { Fencing::Enforced } else { Fencing::Ignored },
        ..Setup::new(seed)
    }
}

/// Number of days in the quick set: more than a hundred thousand calls.
pub(crate) const QUICK: u64 = 96;

/// Runs a day and adds its result to the summary.
pub(crate) fn run(seed: u64, summary: &mut Summary) {
    summary.add(&format!("random day: LCM_FIRST_DAY={seed} LCM_DAYS=1"), run_day(setup_for_day(seed)));
}

/// Runs a day with this setup.
pub(crate) fn run_day(setup: Setup) -> HistoryResult {
    on_paused_time(async {
        let cluster = Cluster::start(setup, add_workers);
        cluster.world.fault_plan.lock().lag_permille = 400;
        cluster.run_for(10).await;
        for _ in 0..EVENTS_PER_DAY {
            cluster.change_world();
            let pause = cluster.world.rng.lock().roll(25) + 1;
            cluster.run_for(pause).await;
        }
        cluster.stop_faults();
        // Idle workers are scaled down one after the other, and each may have a session to wait for.
        let until_quiet = if setup.scales_down { 2 * UNTIL_QUIET } else { UNTIL_QUIET };
        cluster.settle(until_quiet, 300).await;
        cluster.result()
    })
}

fn add_workers(world: &World) {
    for number in 1..=4 {
        let id = world.add_worker(&format!("w-{number}"), WorkerStatus::Pending);
        world.set_desired(&id, DesiredStatus::Running);
        world.next_number();
    }
}
