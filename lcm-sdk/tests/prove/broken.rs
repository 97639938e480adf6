//! Controllers that are broken on purpose: a prover that does not notice them proves nothing.
//!
//! What is wrong with them is put between a controller and its ports, so that no broken line is ever compiled into
//! anything but this.

use super::days;
use super::points;
use super::scenarios;
use super::summary::{Summary, Verdict};
use super::world::Setup;

/// What is wrong with a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Every launch has a token of its own.
    NoClientToken,
    /// No answer is taken for "there is none".
    GcTrustsErrors,
    /// A draining worker is handled like one that stops.
    DrainIsStop,
    /// What EC2 does not show yet counts as gone.
    AbsentIsGone,
    /// The lease is not looked at: who led once leads for ever.
    NoLease,
    /// Writes carry no fencing token.
    NoFencing,
    /// A watch that was interrupted goes on from now.
    WatchGap,
    /// What CML showed before a token was handed over is not noted.
    LicenceNotNoted,
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
        Self::LicenceNotNoted,
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
            Self::LicenceNotNoted => "licence handed over without a note",
        }
    }

    /// The script whose points it should be noticed at, if a script as it is does not show it.
    const fn haunt(self) -> &'static str {
        match self {
            Self::NoClientToken => "launch that EC2 does not show yet",
            Self::LicenceNotNoted => "licence registered",
            Self::GcTrustsErrors => "garbage collection",
            Self::DrainIsStop | Self::AbsentIsGone | Self::NoLease | Self::NoFencing | Self::WatchGap => "launch",
        }
    }

    /// Looks for a history in which this breaks a rule: the scripts as they are, every point of one of them, bad days.
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
                let setup = Setup { broken: Some(self), ..days::setup_of(seed) };
                (format!("day {seed}"), days::a_day(setup))
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

/// How many bad days a broken controller may survive.
const DAYS: u64 = 60;
