//! The controller's process is killed again and again, in the middle of whatever it does, while a fleet of two hundred
//! workers churns. At the end every rule holds on the cloud's own state.
//!
//! `LCM_KILLS` says how often, `LCM_SEED` with which dice. Real processes keep no time: the same seed makes the same
//! wishes and the same intentions to kill, not the same history.

mod churn;
mod fixture;
mod hosts;
mod journal;
mod pair;
mod rules;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_cloud::world::SeededRng;
use lcm_tests::proof;

use self::churn::Churn;
use self::fixture::Fixture;
use self::pair::Pair;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// When a controller is killed.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// This long after it began to lead.
    After(Duration),
    /// As soon as it has changed this many things, if it does so in good time: the last one is not on record yet.
    Changes(u64),
}

impl Moment {
    /// How long a kill waits for changes that do not come.
    const GOOD_TIME: Duration = Duration::from_secs(2);

    fn by_chance(dice: &mut SeededRng) -> Self {
        if dice.chance(0.4) {
            Self::After(Duration::from_millis(dice.below(1500)))
        } else {
            Self::Changes(1 + dice.below(32))
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_can_be_killed_at_any_moment_and_every_rule_holds_in_the_end() {
    let (kills, seed) = (proof::how_many("LCM_KILLS", 10), proof::how_many("LCM_SEED", 1));
    let fixture = Arc::new(Fixture::prepare(seed).await);
    let told = tokio::task::spawn_blocking(move || drama(&fixture, kills, seed)).await.expect("the rules hold");
    proof::report("21-live-kills.md", &told);
}

fn drama(fixture: &Arc<Fixture>, kills: u64, seed: u64) -> Vec<(&'static str, String)> {
    let began = Instant::now();
    let mut pair = Pair::start(fixture);
    let at_first = fixture.instances().len();
    let churn = Churn::begin(Arc::clone(fixture), seed);
    let mut dice = SeededRng::new(seed, "kills");
    let mut in_the_midst = 0;
    for _ in 0..kills {
        let leader = pair.leader(PATIENCE);
        let changed = fixture.journal.changes();
        match Moment::by_chance(&mut dice) {
            Moment::After(time) => std::thread::sleep(time),
            Moment::Changes(number) => {
                in_the_midst += u64::from(fixture.journal.wait_for(changed + number, Moment::GOOD_TIME));
            }
        }
        pair.kill(&leader);
        // Nothing can be learned from waiting for the lease of somebody dead; now and then it runs out by itself.
        if !dice.chance(0.05) {
            pair.bury(&leader);
        }
        pair.start_another();
    }
    let mut churned = churn.end();
    fixture.cloud.clear_faults();
    let verdict = std::mem::take(&mut churned.verdict).and(rules::judge(fixture, &churned));
    verdict.assert_clean(seed);
    let settled = settle(fixture, &pair);
    let verdict = verdict.and(rules::judge(fixture, &churned));
    verdict.assert_clean(seed);
    pair.assert_alive();
    let new = fixture.instances().len() - at_first;
    println!("{kills} kills in {:.0?}, {settled:.0?} of it until all was as desired", began.elapsed());
    vec![
        ("kills of a leading controller survived, SIGKILL while 200 workers churn", kills.to_string()),
        ("– of them right after a change it had made", in_the_midst.to_string()),
        ("wishes and mishaps meanwhile: desired states, drains, sessions, hands of others", churned.steps.to_string()),
        ("faults of EC2 and of the control plane meanwhile", churned.faults.to_string()),
        ("changes made by controllers, instances that came to be", format!("{}, {new}", fixture.journal.changes())),
        ("rules checked on the cloud's own state", verdict.checked.to_string()),
        ("violations of them", verdict.violations.len().to_string()),
    ]
}

/// Waits until everybody is as desired and nobody changes anything any more. Operators look after what has failed.
fn settle(fixture: &Fixture, pair: &Pair) -> Duration {
    let began = Instant::now();
    loop {
        fixture.reset_failed();
        let changed = fixture.journal.changes();
        let unsettled = rules::unsettled(fixture);
        if unsettled.is_empty() && !fixture.journal.wait_for(changed + 1, fixture::QUIET) {
            return began.elapsed();
        }
        if began.elapsed() > PATIENCE {
            panic!("not as desired after {PATIENCE:?}:\n{}\n{}", unsettled.join("\n"), pair.last_words());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
