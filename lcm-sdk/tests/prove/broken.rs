//! Controllers that are broken on purpose. A prover that misses them proves nothing.
//!
//! The flaw is put between a controller and its ports, so that no broken line is compiled into anything else.

use super::points;
use super::scenarios;
use super::schedule;
use super::summary::{Summary, Verdict};
use super::world::Setup;

/// The flaw of a controller.
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
    LicenseNotNoted,
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
        Self::LicenseNotNoted,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::NoClientToken => "no client token",
            Self::GcTrustsErrors => "errors trusted as absence",
            Self::DrainIsStop => "drain by the stop handler",
            Self::AbsentIsGone => "no consistency window",
            Self::NoLease => "lease not looked at",
            Self::NoFencing => "no fencing token",
            Self::WatchGap => "watch gap without relist",
            Self::LicenseNotNoted => "license handed over without a note",
        }
    }

    /// The script whose points reveal it, if the unbroken script does not.
    const fn haunt(self) -> &'static str {
        match self {
            Self::NoClientToken => "launch that EC2 does not show yet",
            Self::LicenseNotNoted => "license registered",
            Self::GcTrustsErrors => "garbage collection",
            Self::DrainIsStop | Self::AbsentIsGone | Self::NoLease | Self::NoFencing | Self::WatchGap => "launch",
        }
    }

    /// Searches a history in which the flaw violates a rule: the unbroken scripts, every point of one of them, random
    /// days.
    pub(crate) fn hunt(self) -> Summary {
        let mut summary = Summary::default();
        let mut tried = 0;
        let haunt = scenarios::ALL.iter().filter(|scenario| scenario.name == self.haunt());
        let found = scenarios::ALL
            .iter()
            .map(|scenario| (format!("\"{}\"", scenario.name), scenario.play(0, &[], Some(self)).verdict))
            .chain(haunt.flat_map(|scenario| {
                points::of_broken(scenario, self)
                    .into_iter()
                    .map(|point| (point.to_string(), point.play(Some(self)).verdict))
            }))
            .chain((0..DAYS).map(|seed| {
                let setup = Setup { broken: Some(self), ..schedule::setup_of(seed) };
                (format!("day {seed}"), schedule::a_day(setup))
            }))
            .inspect(|_| tried += 1)
            .find_map(|(what, verdict): (String, Verdict)| Some((what, verdict.violations.into_iter().next()?)));
        match found {
            Some((what, rule)) => {
                summary.caught.push(self.name());
                summary.notes.push(format!("{}: caught in history {tried}, {what}: {rule}", self.name()));
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
