//! Kills the controller's process repeatedly while two hundred workers change, then checks every rule on the cloud's own
//! state.
//!
//! `LCM_KILLS` sets the number of kills, `LCM_SEED` the seed. Real processes are not deterministic: one seed produces the
//! same changes and kill times, not the same history.

mod churn;
mod fixture;
mod hosts;
mod journal;
mod pair;
mod rules;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_cloud::control_plane::Generation::{self, Extended, Original};
use fake_cloud::world::SeededRng;
use lcm_tests::proof;
use rstest::rstest;

use self::churn::Churn;
use self::fixture::Fixture;
use self::hosts::Hosts;
use self::pair::ControllerPair;

/// Limit of every wait, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Time at which a leader is killed.
#[derive(Debug, Clone, Copy)]
enum KillTime {
    /// This long after its election.
    After(Duration),
    /// After this many changes, or [`Self::CHANGE_TIMEOUT`]. The last change is not recorded yet.
    Changes(u64),
}

impl KillTime {
    /// Longest wait for the changes.
    const CHANGE_TIMEOUT: Duration = Duration::from_secs(2);

    fn random(rng: &mut SeededRng) -> Self {
        if rng.chance(0.4) {
            Self::After(Duration::from_millis(rng.below(1500)))
        } else {
            Self::Changes(1 + rng.below(32))
        }
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_hold_when_controllers_are_killed(#[values(Original, Extended)] generation: Generation) {
    let (kills, seed) = (proof::number_from_env("LCM_KILLS", 8), proof::number_from_env("LCM_SEED", 1));
    let fixture = Arc::new(Fixture::start(generation, seed).await);
    let rows =
        tokio::task::spawn_blocking(move || kill_repeatedly(&fixture, kills, seed)).await.expect("the rules hold");
    proof::report("21-live-kills", generation, &rows);
}

fn kill_repeatedly(fixture: &Arc<Fixture>, kills: u64, seed: u64) -> Vec<(&'static str, String)> {
    let started = Instant::now();
    let mut pair = ControllerPair::start(fixture);
    let instances_before = fixture.instances().len();
    let churn = Churn::start(Arc::clone(fixture), seed);
    let mut rng = SeededRng::new(seed, "kills");
    let mut after_change = 0;
    for _ in 0..kills {
        let leader = pair.leader(PATIENCE);
        let changed = fixture.journal.changes();
        match KillTime::random(&mut rng) {
            KillTime::After(time) => std::thread::sleep(time),
            KillTime::Changes(number) => {
                after_change += u64::from(fixture.journal.wait_for(changed + number, KillTime::CHANGE_TIMEOUT));
            }
        }
        pair.kill(&leader);
        // Mostly skips the wait for the lease of the killed leader; sometimes lets it expire.
        if !rng.chance(0.05) {
            pair.expire_lease(&leader);
        }
        pair.start_another();
    }
    let mut result = churn.stop();
    fixture.cloud.clear_faults();
    let report = std::mem::take(&mut result.report).merge(rules::check_all(fixture, &result));
    report.assert_clean(seed);
    let settled = settle(fixture, &mut result.hosts, &pair);
    let report = report.merge(rules::check_all(fixture, &result));
    report.assert_clean(seed);
    pair.assert_alive();
    let new = fixture.instances().len() - instances_before;
    println!("{kills} kills in {:.0?}, {settled:.0?} of it to converge", started.elapsed());
    vec![
        ("kills of a leading controller (SIGKILL while 200 workers change)", kills.to_string()),
        ("– directly after one of its changes", after_change.to_string()),
        ("changes by operators, users and the AWS console during the kills", result.steps.to_string()),
        ("faults of EC2 and the control plane during the kills", result.faults.to_string()),
        ("changes made by controllers, instances launched", format!("{}, {new}", fixture.journal.changes())),
        ("rules checked on the cloud's own state", report.checked.to_string()),
        ("violations of these rules", report.violations.len().to_string()),
    ]
}

/// Waits until every worker has its desired status and no controller makes a change. Resets failed workers meanwhile.
fn settle(fixture: &Fixture, hosts: &mut Hosts, pair: &ControllerPair) -> Duration {
    let started = Instant::now();
    loop {
        fixture.reset_failed();
        hosts.release_draining();
        let changed = fixture.journal.changes();
        let unsettled = rules::unsettled(fixture);
        if unsettled.is_empty() && !fixture.journal.wait_for(changed + 1, fixture::QUIET) {
            return started.elapsed();
        }
        if started.elapsed() > PATIENCE {
            panic!("not converged after {PATIENCE:?}:\n{}\n{}", unsettled.join("\n"), pair.log_tail());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
