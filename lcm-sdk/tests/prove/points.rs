//! Every point of every script, and everything that can happen there.

use std::fmt;

use lcm_sdk::FailureKind;

use super::broken::Broken;
use super::call::Does;
use super::faults::{Fault, What};
use super::pairs::Pair;
use super::scenarios::{ALL, Run, Scenario};
use super::summary::Summary;

/// One script, broken at one point in one way.
#[derive(Clone, Copy)]
pub(crate) struct Point {
    pub(crate) scenario: &'static Scenario,
    pub(crate) at: u64,
    pub(crate) what: What,
}

impl Point {
    /// The word it is counted under.
    fn word(self) -> &'static str {
        match self.what {
            What::Happens(Fault::CrashBefore | Fault::CrashAfter) => "crash",
            What::Happens(Fault::Stale) => "old answer",
            What::Happens(_) => "failed call or lost answer",
            What::Pair(_) => "pair of events nobody saw",
        }
    }

    /// Plays it and adds what it shows.
    pub(crate) fn try_out(self, broken: Option<Broken>, summary: &mut Summary) {
        let run = self.play(broken);
        if run.struck {
            *summary.points.entry(self.word()).or_default() += 1;
        }
        summary.add(&self.to_string(), run.verdict);
    }

    pub(crate) fn play(self, broken: Option<Broken>) -> Run {
        self.scenario.play(Some((self.at, self.what)), broken)
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at call {} of \"{}\"", self.what, self.at, self.scenario.name)
    }
}

/// Plays every script as it is, and lists all points at which it can be broken.
pub(crate) fn all(broken: Option<Broken>, summary: &mut Summary) -> Vec<Point> {
    ALL.iter().flat_map(|scenario| of(scenario, broken, summary)).collect()
}

/// The same for one script.
pub(crate) fn of(scenario: &'static Scenario, broken: Option<Broken>, summary: &mut Summary) -> Vec<Point> {
    let run = scenario.play(None, broken);
    summary.add(scenario.name, run.verdict);
    let mut points = Vec::new();
    let mut before = Does::Change;
    for (at, does) in (1..).zip(run.calls) {
        let faults: &[Fault] = match does {
            Does::Ask => &[Fault::CrashBefore, Fault::Stale, Fault::Fail(FailureKind::Unclear)],
            Does::Change => &CHANGE,
            Does::Write => &WRITE,
        };
        points.extend(faults.iter().map(|fault| Point { scenario, at, what: What::Happens(*fault) }));
        // Between two questions that follow each other nothing is gained by trying both.
        if (before, does) != (Does::Ask, Does::Ask) {
            points.extend(Pair::ALL.map(|pair| Point { scenario, at, what: What::Pair(pair) }));
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
