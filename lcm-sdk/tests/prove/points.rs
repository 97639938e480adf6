//! The points of scripts at which an event can be injected.

use std::fmt;

use lcm_sdk::FailureKind;

use super::broken::Broken;
use super::call::CallEffect;
use super::faults::{Fault, Injection};
use super::pairs::Pair;
use super::rng::Rng;
use super::scenarios::{self, Points, Scenario, ScriptRun};
use super::summary::Summary;

/// An event at one call of one script.
#[derive(Clone, Copy)]
pub(crate) struct Point {
    pub(crate) scenario: &'static Scenario,
    /// Seed of the world.
    pub(crate) round: u64,
    /// Number of the call.
    pub(crate) call: u64,
    pub(crate) injection: Injection,
}

impl Point {
    /// The label of its counter.
    fn label(self) -> &'static str {
        match self.injection {
            Injection::Fault(Fault::CrashBefore | Fault::CrashAfter) => "crash",
            Injection::Fault(Fault::Stale) => "outdated response",
            Injection::Fault(Fault::Suspend) => "suspended machine",
            Injection::Fault(_) => "failed call or lost response",
            Injection::Pair(_) => "unobserved pair of events",
        }
    }

    /// Runs the script and adds its result to the summary.
    pub(crate) fn run_into(self, summary: &mut Summary) {
        let run = self.run(None);
        if run.injected {
            *summary.points.entry(self.label()).or_default() += 1;
        }
        summary.add(&self.to_string(), run.result);
    }

    pub(crate) fn run(self, broken: Option<Broken>) -> ScriptRun {
        self.scenario.run(self.round, &[(self.call, self.injection)], broken)
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, round, call, injection } = self;
        write!(f, "{injection:?}: LCM_SCRIPT={:?} LCM_CALL={call} LCM_ROUND={round}", scenario.name)
    }
}

/// Runs a script without events, and lists all points at which an event can be injected.
pub(crate) fn list(scenario: &'static Scenario, round: u64, summary: &mut Summary) -> Vec<Point> {
    let run = scenario.run(round, &[], None);
    summary.add(scenario.name, run.result);
    let mut points = points_of_calls(scenario, round, &run.calls);
    match scenario.points {
        Points::Every => {}
        Points::OneIn(share) => {
            let mut place = 0;
            points.retain(|_| {
                place += 1;
                place % share == 0
            });
        }
        Points::None => points.clear(),
    }
    points
}

/// Runs a random script with events at two points: the second may fall into the recovery from the first.
pub(crate) fn run_two_points(seed: u64, summary: &mut Summary) {
    let mut rng = Rng::new(seed);
    let scripts: Vec<_> = scenarios::all().filter(|scenario| scenario.points != Points::None).collect();
    let scenario = rng.pick(&scripts);
    let points = list(scenario, seed, summary);
    let [first, second] = [rng.pick(&points), rng.pick(&points)];
    // Recovery takes calls of its own, so the second point may come later than the script was long.
    let second = Point { call: second.call + rng.roll(10), ..second };
    let planned = [(first.call, first.injection), (second.call, second.injection)];
    let run = scenario.run(seed, &planned, None);
    if run.injected {
        *summary.points.entry("two points in one script").or_default() += 1;
    }
    summary.add(
        &format!(
            "{first}, and {:?} at call {}: LCM_SOAK_SECONDS=1 LCM_FIRST_DAY={seed}",
            second.injection, second.call
        ),
        run.result,
    );
}

/// Lists all points of a script, for a controller with a defect.
pub(crate) fn list_broken(scenario: &'static Scenario, broken: Broken) -> Vec<Point> {
    match scenario.points {
        Points::None => Vec::new(),
        Points::Every | Points::OneIn(_) => points_of_calls(scenario, 0, &scenario.run(0, &[], Some(broken)).calls),
    }
}

fn points_of_calls(scenario: &'static Scenario, round: u64, calls: &[CallEffect]) -> Vec<Point> {
    let mut points = Vec::new();
    let mut before = CallEffect::Change;
    for (call, effect) in (1..).zip(calls.iter().copied()) {
        let faults: &[Fault] = match effect {
            CallEffect::Read => &[Fault::CrashBefore, Fault::Stale, Fault::Suspend, Fault::Fail(FailureKind::Unclear)],
            CallEffect::Change => &CHANGE_FAULTS,
            CallEffect::Write => &WRITE_FAULTS,
        };
        let faults = faults.iter().filter(|fault| **fault != Fault::Suspend || scenario.has_standby());
        points.extend(faults.map(|fault| Point { scenario, round, call, injection: Injection::Fault(*fault) }));
        // Between two consecutive reads, a pair before the first covers both.
        if (before, effect) != (CallEffect::Read, CallEffect::Read) {
            points.extend(Pair::ALL.map(|pair| Point { scenario, round, call, injection: Injection::Pair(pair) }));
        }
        before = effect;
    }
    points
}

const CHANGE_FAULTS: [Fault; 6] = [
    Fault::CrashBefore,
    Fault::CrashAfter,
    Fault::Suspend,
    Fault::LoseResponse,
    Fault::Fail(FailureKind::Throttled),
    Fault::Fail(FailureKind::Unclear),
];

const WRITE_FAULTS: [Fault; 8] = [
    Fault::CrashBefore,
    Fault::CrashAfter,
    Fault::Suspend,
    Fault::LoseResponse,
    Fault::Fail(FailureKind::Throttled),
    Fault::Fail(FailureKind::Unclear),
    Fault::PartialWrite,
    Fault::ConflictingWrite,
];
