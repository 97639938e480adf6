//! Controllers with a deliberate defect, each of which the prover must catch.
//!
//! The defect is in the layer between a controller and its ports. No other code contains it.

use super::points;
use super::scenarios;
use super::schedule;
use super::summary::{HistoryResult, Summary};
use super::world::Setup;

/// The defect of a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Every launch has its own token.
    NoClientToken,
    /// An unanswered call counts as absence.
    GcTrustsErrors,
    /// A draining worker is handled like a stopping one.
    DrainIsStop,
    /// An instance that EC2 does not show yet counts as gone.
    AbsentIsGone,
    /// The lease is not checked: a former leader leads forever.
    NoLease,
    /// Writes carry no fencing token.
    NoFencing,
    /// An interrupted watch continues from now instead of listing again.
    WatchGap,
    /// The attempt CML showed before a submission is not recorded.
    LicenseAttemptNotRecorded,
}

impl Broken {
    pub(crate) const ALL: [Self; 8] = [
        Self::NoClientToken,
        Self::GcTrustsErrors,
        Self::DrainIsStop,
        Self::AbsentIsGone,
        Self::NoLease,
        Self::NoFencing,
        Self::WatchGap,
        Self::LicenseAttemptNotRecorded,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::NoClientToken => "no client token",
            Self::GcTrustsErrors => "errors trusted as absence",
            Self::DrainIsStop => "drain handled as stop",
            Self::AbsentIsGone => "no consistency window",
            Self::NoLease => "lease not checked",
            Self::NoFencing => "no fencing token",
            Self::WatchGap => "watch gap without relist",
            Self::LicenseAttemptNotRecorded => "license attempt not recorded",
        }
    }

    /// Name of the script whose points reveal the defect, if the script without injected events does not.
    const fn revealing_script(self) -> &'static str {
        match self {
            Self::NoClientToken => "launch with visibility lag",
            Self::LicenseAttemptNotRecorded => "license registered",
            Self::GcTrustsErrors => "garbage collection",
            Self::DrainIsStop | Self::AbsentIsGone | Self::NoLease | Self::NoFencing | Self::WatchGap => "launch",
        }
    }

    /// Searches for a history in which the defect violates a rule: scripts without injected events, every point of one
    /// script, random days.
    pub(crate) fn search(self) -> Summary {
        let mut summary = Summary::default();
        let mut tried = 0;
        let revealing = scenarios::ALL.iter().filter(|scenario| scenario.name == self.revealing_script());
        let found = scenarios::ALL
            .iter()
            .map(|scenario| (format!("\"{}\"", scenario.name), scenario.run(0, &[], Some(self)).result))
            .chain(revealing.flat_map(|scenario| {
                points::list_broken(scenario, self)
                    .into_iter()
                    .map(|point| (point.to_string(), point.run(Some(self)).result))
            }))
            .chain((0..DAYS).map(|seed| {
                let setup = Setup { broken: Some(self), ..schedule::setup_for_day(seed) };
                (format!("day {seed}"), schedule::run_day(setup))
            }))
            .inspect(|_| tried += 1)
            .find_map(|(name, result): (String, HistoryResult)| Some((name, result.violations.into_iter().next()?)));
        match found {
            Some((name, rule)) => {
                summary.caught.push(self.name());
                summary.notes.push(format!("{}: caught in history {tried}, {name}: {rule}", self.name()));
            }
            None => {
                summary.missed.push(self.name());
                summary.notes.push(format!("{}: NOT caught in {tried} histories", self.name()));
            }
        }
        summary
    }
}

/// Number of random days that a broken controller may survive.
const DAYS: u64 = 60;
