//! What is done to the world: the only things LCM ever does, as data.

use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::event::{Event, SessionEnd};
use super::failure::CallFailure;
use super::idle::{AutoPause, IdleReport};
use super::ids::{InstanceId, SessionId};
use super::launch::LaunchPlan;
use super::license::{LicenseReport, Submission};
use super::observation::{CloudMetrics, CmlMetrics};
use super::time::Timestamp;

/// One thing to do. Effects are carried out in order; [`Effect::stops_the_rest`] and
/// [`Effect::blocks_the_transition`] say what one that fails takes down with it.
///
/// Each can be carried out twice without harm: that is what makes a crash between any two of them survivable.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "effect", rename_all = "snake_case")]
#[must_use]
#[non_exhaustive]
pub enum Effect {
    /// Write the plan to the record, before anything is launched. The pass goes on with the version this write gives.
    RecordLaunchPlan {
        /// The plan.
        plan: Box<LaunchPlan>,
        /// The moment the launch begins: written with the plan, so that its age is known after a crash.
        begun_at: Timestamp,
    },
    /// Launch exactly this plan.
    LaunchInstance {
        /// The plan.
        plan: Box<LaunchPlan>,
        /// What a refusal means.
        if_refused: IfLaunchRefused,
    },
    /// Start a stopped instance.
    StartInstance {
        /// Which.
        instance: InstanceId,
    },
    /// Stop a running instance.
    StopInstance {
        /// Which.
        instance: InstanceId,
    },
    /// Terminate an instance.
    TerminateInstance {
        /// Which.
        instance: InstanceId,
    },
    /// Report metrics to the control plane.
    ReportMetrics {
        /// From CloudWatch, if it answered.
        cloud: Option<CloudMetrics>,
        /// From CML, if it answered.
        cml: Option<CmlMetrics>,
    },
    /// Have the control plane judge whether the worker is idle. It writes the verdict to the record, so this is an
    /// effect although its report is an input of the next decision: put [`EffectResult::IdleChecked`] into
    /// [`Observation::idle`](super::observation::Observation::idle) and decide again.
    DetectIdle {
        /// CML's telemetry events; `None` if they could not be read, which is not the same as no activity.
        /// Serialized as their number.
        #[serde(rename = "telemetry_events", serialize_with = "number_of_events")]
        telemetry: Option<Vec<Value>>,
        /// Whether the control plane may pause an idle worker by itself.
        auto_pause: AutoPause,
    },
    /// Note which attempt CML shows before ours, so that its outcome is not taken for ours.
    RecordLicenseAttempt {
        /// CML's mark of it, if it shows one, and a fingerprint of our token.
        attempted: String,
    },
    /// Tell the control plane how a licence operation goes.
    ReportLicense {
        /// What to tell.
        report: LicenseReport,
    },
    /// Hand a licence operation to CML. The token comes from the record at that moment, never from here.
    SubmitLicense {
        /// What to do.
        submission: Submission,
        /// Where: the address EC2 showed in this very pass.
        address: String,
    },
    /// Give a session that has not begun back to the scheduler.
    HandBackSession {
        /// Which.
        session: SessionId,
        /// What to do if the server refuses.
        if_refused: IfRefused,
    },
    /// Try a failed session again on the same worker.
    RetrySession {
        /// Which.
        session: SessionId,
        /// Which attempt, counted from one.
        attempt: u32,
    },
    /// End a session.
    TerminateSession {
        /// Which.
        session: SessionId,
        /// Why.
        reason: SessionEnd,
    },
    /// Announce something before going on.
    Announce {
        /// What.
        event: Event,
    },
}

/// What it means that EC2 refuses a launch. The call that was refused launched nothing, but an earlier one with the
/// same plan, whose outcome nobody knows, may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IfLaunchRefused {
    /// The plan is new: it will be refused again.
    Fail,
    /// The plan is from before, and nothing has come of it: a new plan may fare better.
    PlanAnew,
    /// An earlier call may still show an instance: nothing is given up yet.
    KeepPlan,
}

/// What to do with a session that the server does not take back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IfRefused {
    /// It counts as active: the drain waits for it.
    KeepWaiting,
    /// The deadline has passed: end it.
    Terminate,
}

/// How one effect went.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectResult {
    /// A dry run would carry it out.
    Planned,
    /// It took effect, in this attempt or an earlier one.
    Done,
    /// The launch returned this instance.
    Launched(InstanceId),
    /// The idle check returned this report.
    IdleChecked(IdleReport),
    /// The call failed.
    Failed(CallFailure),
    /// It was not tried: an earlier effect failed, or the lease was lost.
    NotTried,
}

impl EffectResult {
    /// Whether the effect took place.
    pub const fn is_success(&self) -> bool {
        match self {
            Self::Done | Self::Launched(_) | Self::IdleChecked(_) => true,
            Self::Planned | Self::Failed(_) | Self::NotTried => false,
        }
    }

    /// The failed call, if there was one.
    pub const fn failure(&self) -> Option<&CallFailure> {
        match self {
            Self::Failed(failure) => Some(failure),
            Self::Planned | Self::Done | Self::Launched(_) | Self::IdleChecked(_) | Self::NotTried => None,
        }
    }
}

impl Effect {
    /// Whether the effects after it must not be tried if it fails, because they build on it.
    pub const fn stops_the_rest(&self) -> bool {
        match self {
            Self::RecordLaunchPlan { .. }
            | Self::LaunchInstance { .. }
            | Self::StartInstance { .. }
            | Self::StopInstance { .. }
            | Self::TerminateInstance { .. }
            | Self::RecordLicenseAttempt { .. }
            | Self::ReportLicense { .. }
            | Self::SubmitLicense { .. } => true,
            // One session that cannot be moved says nothing about the next.
            Self::HandBackSession { .. }
            | Self::RetrySession { .. }
            | Self::TerminateSession { .. }
            | Self::ReportMetrics { .. }
            | Self::DetectIdle { .. }
            | Self::Announce { .. } => false,
        }
    }

    /// Whether the status must stay as it is if it fails.
    pub const fn blocks_the_transition(&self) -> bool {
        match self {
            Self::RecordLaunchPlan { .. }
            | Self::LaunchInstance { .. }
            | Self::StartInstance { .. }
            | Self::StopInstance { .. }
            | Self::TerminateInstance { .. }
            | Self::HandBackSession { .. }
            | Self::RetrySession { .. }
            | Self::TerminateSession { .. } => true,
            Self::RecordLicenseAttempt { .. }
            | Self::ReportLicense { .. }
            | Self::SubmitLicense { .. }
            | Self::ReportMetrics { .. }
            | Self::DetectIdle { .. }
            | Self::Announce { .. } => false,
        }
    }

    /// Whether it changes the cloud, and so needs valid leadership at that moment.
    pub const fn changes_cloud(&self) -> bool {
        match self {
            Self::LaunchInstance { .. }
            | Self::StartInstance { .. }
            | Self::StopInstance { .. }
            | Self::TerminateInstance { .. }
            | Self::SubmitLicense { .. } => true,
            Self::RecordLaunchPlan { .. }
            | Self::ReportMetrics { .. }
            | Self::DetectIdle { .. }
            | Self::RecordLicenseAttempt { .. }
            | Self::ReportLicense { .. }
            | Self::HandBackSession { .. }
            | Self::RetrySession { .. }
            | Self::TerminateSession { .. }
            | Self::Announce { .. } => false,
        }
    }

    /// Whether it would do harm if the record had changed since it was read. Reports and announcements do not.
    pub const fn relies_on_record(&self) -> bool {
        match self {
            Self::RecordLaunchPlan { .. }
            | Self::LaunchInstance { .. }
            | Self::StartInstance { .. }
            | Self::StopInstance { .. }
            | Self::TerminateInstance { .. }
            | Self::RecordLicenseAttempt { .. }
            | Self::ReportLicense { .. }
            | Self::SubmitLicense { .. }
            | Self::HandBackSession { .. }
            | Self::RetrySession { .. }
            | Self::TerminateSession { .. } => true,
            Self::ReportMetrics { .. } | Self::DetectIdle { .. } | Self::Announce { .. } => false,
        }
    }

    /// The stable name used in logs and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::RecordLaunchPlan { .. } => "record_launch_plan",
            Self::LaunchInstance { .. } => "launch_instance",
            Self::StartInstance { .. } => "start_instance",
            Self::StopInstance { .. } => "stop_instance",
            Self::TerminateInstance { .. } => "terminate_instance",
            Self::ReportMetrics { .. } => "report_metrics",
            Self::DetectIdle { .. } => "detect_idle",
            Self::RecordLicenseAttempt { .. } => "record_license_attempt",
            Self::ReportLicense { .. } => "report_license",
            Self::SubmitLicense { .. } => "submit_license",
            Self::HandBackSession { .. } => "hand_back_session",
            Self::RetrySession { .. } => "retry_session",
            Self::TerminateSession { .. } => "terminate_session",
            Self::Announce { .. } => "announce",
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::RecordLaunchPlan { plan, .. } | Self::LaunchInstance { plan, .. } => {
                write!(f, " {} {} in {}", plan.instance_type, plan.image_id, plan.region)
            }
            Self::StartInstance { instance }
            | Self::StopInstance { instance }
            | Self::TerminateInstance { instance } => write!(f, " {instance}"),
            Self::ReportMetrics { .. } | Self::RecordLicenseAttempt { .. } => Ok(()),
            Self::DetectIdle { telemetry: Some(events), .. } => write!(f, " ({} telemetry events)", events.len()),
            Self::DetectIdle { telemetry: None, .. } => f.write_str(" (no telemetry)"),
            Self::ReportLicense { report } => write!(f, " {report:?}"),
            Self::SubmitLicense { submission, address } => write!(f, " {submission:?} at {address}"),
            Self::HandBackSession { session, .. } => write!(f, " {session}"),
            Self::RetrySession { session, attempt } => write!(f, " {session} (attempt {attempt})"),
            Self::TerminateSession { session, reason } => write!(f, " {session} ({})", reason.as_str()),
            Self::Announce { event } => write!(f, " {}", event.event_type()),
        }
    }
}

/// Telemetry is large and names users, so results and logs carry the number of events only.
fn number_of_events<S: Serializer>(telemetry: &Option<Vec<Value>>, serializer: S) -> Result<S::Ok, S::Error> {
    telemetry.as_ref().map(Vec::len).serialize(serializer)
}
