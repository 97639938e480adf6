//! Reasons: a stable code for machines and a sentence for people.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::failure::CallFailure;
use super::status::Ec2State;
use super::time::spoken;
use super::wire_enum::vocabulary;

macro_rules! reasons {
    ($( $variant:ident = $code:literal, $sentence:literal; )+) => {
        vocabulary! {
            /// The reason of a decision. Codes are stable; logs, metrics, audit and Python use the same ones.
            ReasonCode, "reason code", non_exhaustive {
                $( #[doc = $sentence] $variant = $code ),+
            }
        }

        impl ReasonCode {
            /// The sentence for a person.
            pub const fn sentence(self) -> &'static str {
                match self { $( Self::$variant => $sentence ),+ }
            }

            /// Address of the documentation of this code: its meaning, and the next step of an operator.
            ///
            /// ```
            /// let url = lcm_sdk::ReasonCode::Drift.url();
            /// assert_eq!(url, "https://lcm-project.github.io/lcm/reference/reasons/#drift");
            /// ```
            pub const fn url(self) -> &'static str {
                match self {
                    $( Self::$variant => concat!(env!("CARGO_PKG_HOMEPAGE"), "reference/reasons/#", $code) ),+
                }
            }
        }
    };
}

reasons! {
    // Looking
    NotObserved = "not_observed", "What this decision needs has not been looked at yet.";
    Ec2Unknown = "ec2_unknown", "EC2 gave no usable answer, so nothing is concluded.";
    NotVisibleYet = "not_visible_yet", "EC2 does not show the instance, but the launch is so young that it may only be late.";
    NoInstanceNamed = "no_instance_named", "The record names no instance and no live one carries the worker's tag, so nothing is concluded.";
    LaunchTimeUnknown = "launch_time_unknown", "EC2 does not show the instance and nothing tells how old the launch is, so nothing is concluded.";
    RegionNotTrusted = "region_not_trusted", "Nothing proves that the credentials belong to the worker's account: nothing is concluded.";
    RegionUnknown = "region_unknown", "EC2 does not show the instance, and nothing tells its region: nothing is concluded.";
    UnexpectedEc2State = "unexpected_ec2_state", "EC2 shows a state that this step does not expect; waiting for it to settle.";
    // Launching
    Launch = "launch", "The worker has no instance: launching one.";
    LaunchResumed = "launch_resumed", "A launch was begun and its outcome is not known: repeating exactly the same call.";
    LaunchInFlight = "launch_in_flight", "Nobody wants the worker launched any more, but a launch may still be under way.";
    LaunchDied = "launch_died", "The launch has ended and its token is spent: the next one gets a new generation.";
    LaunchFailed = "launch_failed", "EC2 refuses the launch for good.";
    LaunchDelayed = "launch_delayed", "EC2 cannot launch the instance now; the worker stays pending.";
    Adopted = "adopted", "An instance tagged for this worker exists: taking it over instead of launching.";
    InstanceRecorded = "instance_recorded", "The record names an instance already: observing it instead of launching.";
    TemplateMissing = "template_missing", "The worker's template does not exist.";
    TemplateUnknown = "template_unknown", "The worker's template could not be read.";
    InstanceTypeMissing = "instance_type_missing", "Neither the template nor the worker names an instance type.";
    RegionNotConfigured = "region_not_configured", "There is no complete configuration for the worker's region.";
    NoImage = "no_image", "No AMI of an accepted owner matches the template's pattern.";
    ImagesUnknown = "images_unknown", "The AMIs could not be listed.";
    NotWanted = "not_wanted", "The worker is not wanted any more and has no instance.";
    HeldBack = "held_back", "The desired status is stopped and there is no instance: nothing is launched.";
    // Coming up
    ComingUp = "coming_up", "The instance is coming up.";
    Up = "up", "The instance is running and has an address.";
    AwaitingAddress = "awaiting_address", "The instance is running but has no address yet.";
    ProvisioningTimeout = "provisioning_timeout", "The instance did not come up in time.";
    LaunchEnded = "launch_ended", "The instance ended before it was up.";
    InstanceNeverAppeared = "instance_never_appeared", "No instance carries this worker's tag, long after the launch.";
    StartRequested = "start_requested", "The instance is stopped and should run: starting it.";
    StartUnderWay = "start_under_way", "The instance is on its way up already.";
    // In service
    InService = "in_service", "The worker is in service.";
    AddressChanged = "address_changed", "The instance has another address: recording it.";
    DesiredStopped = "desired_stopped", "The desired status is stopped.";
    DesiredTerminated = "desired_terminated", "The desired status is terminated.";
    Drift = "drift", "EC2 shows another state than the record: recording what EC2 says.";
    ExternalStop = "external_stop", "The instance was stopped from outside; the policy is to respect that.";
    Gone = "gone", "The instance is gone.";
    IdleCheckDue = "idle_check_due", "An idle check is due: the control plane judges the telemetry.";
    AutoPaused = "auto_paused", "The control plane paused the worker because it was idle.";
    LicenseSubmitted = "license_submitted", "Handing the license operation to CML.";
    LicenseInProgress = "license_in_progress", "CML is working on the license.";
    LicenseFinished = "license_finished", "CML has finished the license operation.";
    LicenseDelayed = "license_delayed", "The license operation could not go on; the intent stays.";
    LicenseTokenMissing = "license_token_missing", "There is no token to register.";
    LicenseTimedOut = "license_timed_out", "CML did not finish the registration in time.";
    ScaleDownDrain = "scale_down_drain", "The worker is idle and its sessions are few: draining it.";
    ScaleDownStop = "scale_down_stop", "The worker is idle and has no session: stopping it.";
    // Draining
    DrainRequested = "drain_requested", "A drain was asked for.";
    DrainCancelled = "drain_cancelled", "The drain was called off: back in service.";
    DrainWaiting = "drain_waiting", "Sessions are still active: waiting for them.";
    DrainSettling = "drain_settling", "The last sessions are being handed back, retried or given up.";
    SettleTime = "settle_time", "No session is left; they are listed once more when no late assignment can be under way.";
    Drained = "drained", "No session is left.";
    DrainTimeout = "drain_timeout", "The drain's deadline has passed: ending what remains.";
    SessionsUnknown = "sessions_unknown", "The sessions could not be listed, so the worker is not stopped.";
    // Going down
    StopRequested = "stop_requested", "The instance is running and should stop: stopping it.";
    StopUnderWay = "stop_under_way", "The instance is stopping.";
    Ec2Stopped = "ec2_stopped", "The instance is stopped.";
    NothingToStop = "nothing_to_stop", "There is no instance to stop.";
    StopOvertaken = "stop_overtaken", "The instance runs and should run: it is not stopped after all.";
    AtRest = "at_rest", "The worker is stopped, as it should be.";
    UnexpectedRestart = "unexpected_restart", "The instance was started from outside.";
    Relaunch = "relaunch", "The worker should run and has no instance: back to pending.";
    TerminateRequested = "terminate_requested", "The instance exists and should not: terminating it.";
    TerminateUnderWay = "terminate_under_way", "The instance is shutting down.";
    Ec2Terminated = "ec2_terminated", "The instance is terminated.";
    NothingToTerminate = "nothing_to_terminate", "There is no instance to terminate.";
    // Parked
    NeedsOperator = "needs_operator", "The worker failed; an operator resets it to pending or asks for termination.";
    Terminated = "terminated", "The worker is terminated.";
    SessionsLeftOpen = "sessions_left_open", "The worker is terminated and sessions of it were left open: ending them.";
    Resurrected = "resurrected", "The record says terminated, but the instance is alive: recording what EC2 says.";
    StillUnknown = "still_unknown", "EC2 still shows a state that has no name here.";
    Reidentified = "reidentified", "EC2 shows a state we know again.";
    // Doing
    NotRecorded = "not_recorded", "What was done could not be written to the record; the next pass looks again.";
    RecordKeepsChanging = "record_keeps_changing", "The record changed under every attempt to write it; the next pass looks again.";
    RecordGone = "record_gone", "The record does not exist any more.";
    RecordUnknown = "record_unknown", "The record could not be read.";
    EffectFailed = "effect_failed", "Something that had to be done was not done; the status stays.";
    NoSuchTransition = "no_such_transition", "The transition table does not allow this change.";
}

/// A reason with its details. `Display` gives the whole sentence.
///
/// ```
/// use lcm_sdk::lifecycle::{Detail, Reason, ReasonCode};
/// use std::time::Duration;
///
/// let reason = Reason::new(ReasonCode::DrainWaiting)
///     .with(Detail::Sessions { active: 2, until_deadline: Some(Duration::from_secs(11_520)) });
/// assert_eq!(
///     reason.to_string(),
///     "Sessions are still active: waiting for them (2 active, 3 h 12 min until the deadline).",
/// );
/// assert_eq!(reason.code.as_str(), "drain_waiting");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Reason {
    /// The stable code.
    pub code: ReasonCode,
    /// Details that complete the sentence.
    pub detail: Detail,
}

/// Details of a reason, kept as data and formatted on display.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub enum Detail {
    /// The sentence needs no details.
    #[default]
    None,
    /// EC2's state of the instance.
    Ec2(Ec2State),
    /// A call that failed.
    Failure(Box<CallFailure>),
    /// How long the current state has lasted.
    Since(Duration),
    /// Sessions that a drain waits for.
    Sessions {
        /// Number of active sessions.
        active: usize,
        /// Time until the deadline; `None` while the template cannot be read.
        until_deadline: Option<Duration>,
    },
    /// Any other text.
    Text(Box<str>),
}

impl Reason {
    /// A reason without details.
    pub const fn new(code: ReasonCode) -> Self {
        Self { code, detail: Detail::None }
    }

    /// A reason with a failed call as its detail.
    pub fn failed(code: ReasonCode, failure: &CallFailure) -> Self {
        Self { code, detail: Detail::Failure(Box::new(failure.clone())) }
    }

    /// The same reason with details.
    #[must_use]
    pub fn with(self, detail: Detail) -> Self {
        Self { detail, ..self }
    }
}

impl From<ReasonCode> for Reason {
    fn from(code: ReasonCode) -> Self {
        Self::new(code)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentence = self.code.sentence();
        let open = sentence.strip_suffix('.').unwrap_or(sentence);
        match &self.detail {
            Detail::None => f.write_str(sentence),
            Detail::Ec2(state) => write!(f, "{open} (EC2: {state})."),
            Detail::Failure(failure) => write!(f, "{open} ({failure})."),
            Detail::Since(duration) => write!(f, "{open} (for {}).", spoken(*duration)),
            Detail::Sessions { active, until_deadline: Some(left) } => {
                write!(f, "{open} ({active} active, {} until the deadline).", spoken(*left))
            }
            Detail::Sessions { active, until_deadline: None } => {
                write!(f, "{open} ({active} active, deadline not known).")
            }
            Detail::Text(text) => write!(f, "{open} ({text})."),
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut fields = serializer.serialize_struct("Reason", 2)?;
        fields.serialize_field("code", &self.code)?;
        fields.serialize_field("sentence", &self.to_string())?;
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn codes_are_unique_and_sentences_complete() {
        let codes: HashSet<_> = ReasonCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(codes.len(), ReasonCode::ALL.len());
        for code in ReasonCode::ALL {
            assert!(code.as_str().bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase() || byte == b'2'));
            assert!(code.sentence().ends_with('.') && code.sentence().starts_with(char::is_uppercase), "{code}");
        }
    }
}
