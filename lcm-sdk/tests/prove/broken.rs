//! Controllers with a deliberate defect, each of which the prover must catch.
//!
//! The defect is in the layer between a controller and its ports. No other code contains it.

use super::points;
use super::rules::Rule;
use super::scenarios::{self, Scenario};
use super::schedule;
use super::summary::{Caught, HistoryResult, Summary};
use super::world::Setup;

/// Declares the defects: each with a name, the numbers of the defects in `docs/defects.md` that it puts back, and the
/// script that is searched first.
macro_rules! broken {
    ($($variant:ident = $name:literal, [$($defect:literal),*], $script:literal;)*) => {
        /// The defect of a controller.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Broken {
            $(#[doc = $name] $variant,)*
        }

        impl Broken {
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),*];

            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Numbers of the defects that it puts back.
            pub(crate) const fn defects(self) -> &'static [u8] {
                match self { $(Self::$variant => &[$($defect),*]),* }
            }

            /// Name of the script that reveals the defect, without injected events or at one of its points.
            const fn script(self) -> &'static str {
                match self { $(Self::$variant => $script),* }
            }
        }
    };
}

broken! {
    NoClientToken = "every launch has its own token", [], "launch with visibility lag";
    GcTrustsErrors = "an unanswered call counts as absence", [], "garbage collection";
    DrainIsStop = "a draining worker is handled like a stopping one", [], "drain";
    AbsentIsGone = "no consistency window", [], "launch with visibility lag";
    NoLease = "the lease is not checked", [], "launch with a standby controller";
    NoFencing = "writes carry no fencing token", [], "launch with a standby controller";
    WatchGap = "an interrupted watch continues without a listing", [], "change during a watch gap without polling";
    LicenseAttemptNotRecorded = "the attempt before a registration is not recorded", [], "license registered";
    AbsenceNeedsNoProof = "an absence needs no proof of the account", [1], "start with credentials of another account";
    DefaultRegionIsBelieved = "a record without a region is looked up in the default region", [1], "changed default region";
    OneForeignInstanceProves = "one instance of another account proves the account", [2], "start with credentials of another account";
    ImagesOfAnyone = "images of any account are launched", [3], "launch beside a public image";
    LastAttemptCounts = "the last attempt of a launch counts alone", [4], "launch refused after a lost response";
    FailedIsForgotten = "a failed worker is not searched by tag", [4], "failed worker that lost its instance";
    ExpiredIsRefused = "expired credentials refuse a launch for good", [5], "launch with expired credentials";
    DrainOutlivesDemand = "a drain goes on although the worker is wanted again", [6], "drain overtaken by a demand";
    NamelessIsGone = "a record without an instance id counts as gone", [7], "record without its instance id";
    OneQueue = "no slot is kept for changes", [8], "change behind a slow fleet";
    RepeatsAtOnce = "a write that does not stick is repeated at once", [9], "launch on a server without notes";
    StuckSessionBlocks = "a session that cannot be ended holds a drain forever", [10], "drain with a session that cannot be ended";
    LaunchTimeIsEarly = "a launch counts from before the search", [11], "launch with visibility lag";
    DiscoveryFailsOpen = "a failed read switches discovery on", [12], "discovery switched off";
    PendingIsAtRest = "a stopped worker is at rest while its instance starts", [14], "stopped worker on its way up";
    EventsInTheWay = "a reconcile waits for its events", [15], "events that are not accepted";
    LicenseNeverFails = "a registration without a token is tried forever", [16], "license without a token";
    LicenseWaitForgotten = "a registration has no deadline", [16], "license that never ends";
    NoSettleTime = "a drained worker is stopped at once", [17], "session placed at the last moment";
    RegionIsAssumed = "a region counts as configured", [18], "launch in an unknown region";
    AddressIsRemembered = "CML is called at an earlier address", [19], "address that moves";
    LeaseStandsStill = "a lease does not count suspended time", [20], "launch with a standby controller";
    ErrorIsNoTemplate = "any error of the template endpoint is an absence", [21], "template behind a failing gateway";
    ForeignImported = "instances of another control plane are imported", [22], "instances of another control plane";
    NoDiscoveryWithoutFilter = "no garbage collection without a filter", [23], "garbage collection without a filter";
    GarbageIsUnmanaged = "an unreadable field makes a worker unmanaged", [24], "record with unreadable fields";
    WithdrawnImageIsRefused = "a withdrawn image refuses a launch for good", [26], "launch of a withdrawn image";
    KeyOfTheService = "the key of the leader depends on the service", [27], "launch with a standby controller";
    WaitingSessionsForgotten = "waiting sessions of a stopped worker are forgotten", [28], "drain stopped from outside";
    NoIntervalFloor = "a scan interval of zero is accepted", [29], "scan interval of zero";
    HeldShardIsWon = "a held shard counts as won", [], "launches in shards";
}

impl Broken {
    /// Searches for a history in which the defect violates a rule: the revealing script without injected events and at
    /// every point, the other scripts, random days.
    pub(crate) fn search(self) -> Summary {
        let mut summary = Summary::default();
        let mut tried = 0;
        let scripts = || scenarios::all().filter(|scenario| scenario.name == self.script());
        let others = scenarios::all().filter(|scenario| scenario.name != self.script());
        let without_events = |scenario: &'static Scenario| {
            (format!("script \"{}\"", scenario.name), scenario.name, scenario.run(0, &[], Some(self)).result)
        };
        let found = scripts()
            .map(without_events)
            .chain(scripts().flat_map(|scenario| {
                points::list_broken(scenario, self)
                    .into_iter()
                    .map(|point| (point.to_string(), scenario.name, point.run(Some(self)).result))
            }))
            .chain(others.map(without_events))
            .chain((0..DAYS).map(|seed| {
                let setup = Setup { broken: Some(self), ..schedule::setup_for_day(seed) };
                (format!("day {seed}"), "random day", schedule::run_day(setup))
            }))
            .inspect(|_| tried += 1)
            .find_map(|(name, script, result): (String, &'static str, HistoryResult)| {
                Some((name, script, result.violations.into_iter().next()?))
            });
        match found {
            Some((name, script, violation)) => {
                summary.notes.push(format!("{}: caught in history {tried}, {name}: {}", self.name(), violation.text));
                let rule: Rule = violation.rule;
                summary.caught.push(Caught {
                    variant: self.name(),
                    defects: self.defects(),
                    script,
                    rule: rule.text(),
                });
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
