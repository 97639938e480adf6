//! Random days and weeks: every fault occurs by chance, and at the end every worker has its desired status.

use std::time::Duration;

use lcm_sdk::providers::memory::{Fencing, Versions};
use lcm_sdk::{DesiredStatus, WorkerStatus};
use tokio::time::Instant;

use super::cluster::{Cluster, on_paused_time};
use super::summary::{HistoryResult, Summary};
use super::world::{OTHER_REGION, REGION, Setup, World};

/// Number of events in a day.
const EVENTS_PER_DAY: usize = 60;

/// How long the world is left alone between two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Half a minute at most: most events meet the consequences of others.
    Dense,
    /// Half an hour at most, as in operation: timers, leases and caches get old.
    Calm,
    /// Hours, for weeks: a fleet of production size with the intervals of production, where the world has settled before
    /// most events.
    Quiet,
}

impl Pace {
    const fn longest_pause(self) -> u64 {
        match self {
            Self::Dense => 25,
            Self::Calm => 1_800,
            Self::Quiet => 14_400,
        }
    }

    /// How many times as long an outage lasts as on a dense day.
    pub(crate) const fn outage(self) -> u32 {
        match self {
            Self::Dense | Self::Calm => 1,
            Self::Quiet => 20,
        }
    }

    /// Time between two steps of a session, each of which may be its last.
    pub(crate) const fn session_step(self) -> Duration {
        match self {
            Self::Dense | Self::Calm => Duration::ZERO,
            Self::Quiet => Duration::from_secs(60),
        }
    }
}

/// Longer than the longest drain of a worker with a template.
const UNTIL_QUIET: u64 = 1800;

/// Longer than any drain: an imported worker has no template, and waits four hours for its sessions.
const QUIET_EVENING: u64 = 6 * 3600;

/// Setup of a day. Setups vary with the seed, so that all options are covered.
pub(crate) fn setup_for_day(seed: u64) -> Setup {
    Setup {
        controllers: [2, 2, 3, 1][usize::try_from(seed % 4).expect("few")],
        versions: if seed % 5 == 4 { Versions::NotKept } else { Versions::Kept },
        scales_down: seed % 3 == 1,
        // Two of three fleets with several controllers have one leader.
        shards: if seed % 4 != 3 && seed % 6 > 3 { 4 } else { 1 },
        regions: if seed % 5 == 1 { &[REGION, OTHER_REGION] } else { &[REGION] },
        fencing: if seed.is_multiple_of(3) { Fencing::Enforced } else { Fencing::Ignored },
        ..Setup::new(seed)
    }
}

/// Number of days in the quick set: more than a hundred thousand calls.
pub(crate) const QUICK: u64 = 64;

/// Runs a day and adds its result to the summary.
pub(crate) fn run(seed: u64, summary: &mut Summary) {
    summary.add(&format!("random day: LCM_FIRST_DAY={seed} LCM_DAYS=1"), run_day(setup_for_day(seed)));
}

/// Runs a calm day and adds its result to the summary.
pub(crate) fn run_calm(seed: u64, summary: &mut Summary) {
    let name = format!("calm day: LCM_SOAK_SECONDS=1 LCM_JOBS=1 LCM_FIRST_DAY={seed}");
    summary.add(&name, run_day(Setup { pace: Pace::Calm, ..setup_for_day(seed) }));
}

/// Setup of some quiet weeks: fleets of three to twenty workers, and the intervals of production.
fn setup_for_weeks(seed: u64) -> Setup {
    Setup {
        pace: Pace::Quiet,
        fleet: 3 + usize::try_from(seed / 4 % 18).expect("few"),
        interval: Duration::from_secs(if seed % 7 == 6 { 300 } else { 30 }),
        discovery_interval: Duration::from_secs(300),
        ..setup_for_day(seed)
    }
}

/// Number of days in quiet weeks.
const DAYS: u64 = 28;

/// Runs some quiet weeks and adds their result to the summary. The fleet has to be as desired at the end of each day.
pub(crate) fn run_weeks(seed: u64, summary: &mut Summary) {
    let setup = setup_for_weeks(seed);
    let result = on_paused_time(async {
        let cluster = Cluster::start(setup, add_workers);
        for _ in 0..DAYS {
            cluster.world.fault_plan.lock().lag_permille = 400;
            let evening = Instant::now() + Duration::from_secs(18 * 3600);
            while Instant::now() < evening {
                let pause = cluster.world.rng.lock().roll(setup.pace.longest_pause()) + 1;
                cluster.run_for(pause).await;
                cluster.change_world();
            }
            cluster.end_day().await;
        }
        cluster.result()
    });
    summary.add(&format!("quiet weeks: LCM_SOAK_SECONDS=1 LCM_JOBS=1 LCM_FIRST_DAY={seed}"), result);
}

/// Runs a day with this setup.
pub(crate) fn run_day(setup: Setup) -> HistoryResult {
    on_paused_time(async {
        let cluster = Cluster::start(setup, add_workers);
        cluster.world.fault_plan.lock().lag_permille = 400;
        cluster.run_for(10).await;
        for _ in 0..EVENTS_PER_DAY {
            cluster.change_world();
            let pause = cluster.world.rng.lock().roll(setup.pace.longest_pause()) + 1;
            cluster.run_for(pause).await;
        }
        cluster.end_day().await;
        cluster.result()
    })
}

impl Cluster {
    /// Stops all faults, and checks that the fleet becomes as desired and stays so.
    async fn end_day(&self) {
        self.stop_faults();
        // Only in a script does a session stay that cannot be ended.
        self.world.stuck_sessions.lock().clear();
        let until_quiet = match self.world.setup.pace {
            Pace::Quiet => QUIET_EVENING,
            // Idle workers are scaled down one after the other, and each may have a session to wait for.
            Pace::Dense | Pace::Calm if self.world.setup.scales_down => 2 * UNTIL_QUIET,
            Pace::Dense | Pace::Calm => UNTIL_QUIET,
        };
        self.settle(until_quiet, 300).await;
    }
}

fn add_workers(world: &World) {
    let workers = match world.setup.pace {
        Pace::Dense | Pace::Calm => 4,
        Pace::Quiet => world.setup.fleet,
    };
    for number in 1..=workers {
        let id = world.add_worker(&format!("w-{number}"), WorkerStatus::Pending);
        world.set_desired(&id, DesiredStatus::Running);
        world.next_number();
    }
}
