//! The rules that no history may violate.

use std::fmt;

/// A rule of the simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    AccountIsProved,
    AddressIsOwn,
    ChangeStartsInTime,
    CommandIsConditional,
    DesiredStatusIsReached,
    DiscoveryStaysOff,
    EdgeOfTheTable,
    EndIsReached,
    EvidenceSupportsStatus,
    ForeignInstanceIsLeftAlone,
    ImageIsOwn,
    InstanceHasAnOwner,
    LeaderActs,
    LicenseIsRegisteredOnce,
    LicenseOperationEnds,
    LiveWorkerIsNotTerminated,
    MinimumOfFleet,
    NoPanic,
    OneInstancePerWorker,
    RateIsBounded,
    SessionIsNotEndedEarly,
    SettledFleetIsLeftAlone,
    TimedOutIsAnnouncedOnce,
    TokenIsOwn,
    WriteIsTimely,
}

impl Rule {
    /// The rule as one sentence.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::AccountIsProved => "an instance of another account is not imported",
            Self::AddressIsOwn => "passwords and tokens go to an address of the worker's instance",
            Self::ChangeStartsInTime => "a change starts within a second behind any backlog",
            Self::CommandIsConditional => "a desired status is written conditionally",
            Self::DesiredStatusIsReached => "a worker ends in its desired status",
            Self::DiscoveryStaysOff => "discovery that is off does not scan",
            Self::EdgeOfTheTable => "a status changes along an edge of the table",
            Self::EndIsReached => "a script reaches its expected end",
            Self::EvidenceSupportsStatus => "a response of EC2 supports a status",
            Self::ForeignInstanceIsLeftAlone => "an instance of another control plane is left alone",
            Self::ImageIsOwn => "an image of the own account is launched",
            Self::InstanceHasAnOwner => "a live instance has one owner",
            Self::LeaderActs => "only the leader of a worker changes it",
            Self::LicenseIsRegisteredOnce => "a license token is registered once",
            Self::LicenseOperationEnds => "a license operation ends",
            Self::LiveWorkerIsNotTerminated => "a worker with a live instance is not terminated",
            Self::MinimumOfFleet => "scale-down keeps the minimum of the fleet",
            Self::NoPanic => "no reconcile panics",
            Self::OneInstancePerWorker => "a worker has one live instance",
            Self::RateIsBounded => "calls about one worker are bounded",
            Self::SessionIsNotEndedEarly => "a session is not ended early",
            Self::SettledFleetIsLeftAlone => "a settled fleet is left alone",
            Self::TimedOutIsAnnouncedOnce => "the end of a drain is announced once",
            Self::TokenIsOwn => "a write carries the fencing token of its leader",
            Self::WriteIsTimely => "effects are recorded soon after the lease ended",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
