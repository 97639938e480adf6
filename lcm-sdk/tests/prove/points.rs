//! Every point of every script, and every fault that can occur there.

use std::fmt;

use lcm_sdk::FailureKind;

use super::broken::Broken;
use super::call::Does;
use super::faults::{Fault, What};
use super::pairs::Pair;
use super::rng::Rng;
use super::scenarios::{ALL, Run, Scenario};
use super::summary::Summary;

/// One script, broken at one point in one way.
#[derive(Clone, Copy)]
pub(crate) struct Point {
    pub(crate) scenario: &'static Scenario,
    /// Seed of the world.
    pub(crate) round: u64,
    pub(crate) at: u64,
    pub(crate) what: What,
}

impl Point {
    /// The name it is counted under.
    fn word(self) -> &'static str {
        match self.what {
            What::Happens(Fault::CrashBefore | Fault::CrashAfter) => "crash",
            What::Happens(Fault::Stale) => "outdated response",
            What::Happens(_) => "failed call or lost response",
            What::Pair(_) => "unobserved pair of events",
        }
    }

    /// Plays it and adds its result.
    pub(crate) fn try_out(self, summary: &mut Summary) {
        let run = self.play(None);
        if run.struck {
            *summary.points.entry(self.word()).or_default() += 1;
        }
        summary.add(&self.to_string(), run.verdict);
    }

    pub(crate) fn play(self, broken: Option<Broken>) -> Run {
        self.scenario.play(self.round, &[(self.at, self.what)], broken)
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, round, at, what } = self;
        write!(f, "{what:?}: LCM_SCRIPT={:?} LCM_CALL={at} LCM_ROUND={round}", scenario.name)
    }
}

/// Plays an unbroken script, and lists all points at which it can be broken.
pub(crate) fn of(scenario: &'static Scenario, round: u64, summary: &mut Summary) -> Vec<Point> {
    let run = scenario.play(round, &[], None);
    summary.add(scenario.name, run.verdict);
    listed(scenario, round, &run.calls)
}

/// One script with another seed, broken at two points: the second may fall into the recovery from the first.
pub(crate) fn any_two(seed: u64, summary: &mut Summary) {
    let mut rng = Rng::new(seed);
    let place = usize::try_from(rng.roll(ALL.len() as u64)).expect("few");
    let scenario = &ALL[place];
    let points = of(scenario, seed, summary);
    let [first, second] = [rng.pick(&points), rng.pick(&points)];
    // Recovery takes calls of its own, so the second point may come later than the script was long.
    let second = Point { at: second.at + rng.roll(10), ..second };
    let planned = [(first.at, first.what), (second.at, second.what)];
    let run = scenario.play(seed, &planned, None);
    if run.struck {
        *summary.points.entry("two points in one script").or_default() += 1;
    }
    summary.add(
        &format!("{first}, and {:?} at call {}: LCM_SOAK_SECONDS=1 LCM_FIRST_DAY={seed}", second.what, second.at),
        run.verdict,
    );
}

/// Every point of a script, for a controller that is broken on purpose.
pub(crate) fn of_broken(scenario: &'static Scenario, broken: Broken) -> Vec<Point> {
    listed(scenario, 0, &scenario.play(0, &[], Some(broken)).calls)
}

fn listed(scenario: &'static Scenario, round: u64, calls: &[Does]) -> Vec<Point> {
    let mut points = Vec::new();
    let mut before = Does::Change;
    for (at, does) in (1..).zip(calls.iter().copied()) {
        let faults: &[Fault] = match does {
            Does::Ask => &[Fault::CrashBefore, Fault::Stale, Fault::Fail(FailureKind::Unclear)],
            Does::Change => &CHANGE,
            Does::Write => &WRITE,
        };
        points.extend(faults.iter().map(|fault| Point { scenario, round, at, what: What::Happens(*fault) }));
        // Between two consecutive reads, trying both points shows nothing more.
        if (before, does) != (Does::Ask, Does::Ask) {
            points.extend(Pair::ALL.map(|pair| Point { scenario, round, at, what: What::Pair(pair) }));
        }
        before = does;
    }
    points
}

const CHANGE: [Fault; 5] = [
    Fault::CrashBefore,
    Fault::CrashAfter,
    Fault::LoseAnswer,
    Fault::Fail(FailureKind::Throttled),
    Fault::Fail(FailureKind::Unclear),
];

const WRITE: [Fault; 7] = [
    Fault::CrashBefore,
    Fault::CrashAfter,
    Fault::LoseAnswer,
    Fault::Fail(FailureKind::Throttled),
    Fault::Fail(FailureKind::Unclear),
    Fault::CutWrite,
    Fault::Meddle,
];
