//! Effects: the complete list of changes LCM makes, as data.

use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::event::{Event, SessionEnd};
use super::failure::CallFailure;
use super::idle::{AutoPause, IdleReport};
use super::ids::{InstanceId, SessionId};
use super::license::{LicenseReport, Submission};
use super::observation::{CloudMetrics, CmlMetrics};
use super::time::Timestamp;
use super::wire_enum::vocabulary;
use super::worker::LaunchPlan;

/// One change to the cloud, a record or a session. Effects are carried out in order; [`Effect::stops_the_rest`] and
/// [`Effect::blocks_the_transition`] return the consequences of a failure.
///
/// Every effect can be repeated without harm, so a crash between any two of them is survivable.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "effect", rename_all = "snake_case")]
#[must_use]
#[non_exhaustive]
pub enum Effect {
    /// Write the plan and the time to the record before the launch, so that its age is known after a crash. Later writes
    /// use the version that this one returns.
    RecordLaunchPlan {
        /// The plan to record.
        plan: Box<LaunchPlan>,
    },
    /// Launch exactly this plan.
    LaunchInstance {
        /// The plan to launch.
        plan: Box<LaunchPlan>,
        /// The consequence of a refusal.
        if_refused: IfLaunchRefused,
    },
    /// Start a stopped instance.
    StartInstance {
        /// Id of the instance.
        instance: InstanceId,
    },
    /// Stop a running instance.
    StopInstance {
        /// Id of the instance.
        instance: InstanceId,
    },
    /// Terminate an instance.
    TerminateInstance {
        /// Id of the instance.
        instance: InstanceId,
    },
    /// Report metrics to the control plane. Without a source it reports that they could not be read.
    ReportMetrics {
        /// CloudWatch utilization, if it was read.
        cloud: Option<CloudMetrics>,
        /// CML's system report, if it was read.
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
    /// Record the attempt CML shows before ours, so that its outcome is not taken for ours.
    RecordLicenseAttempt {
        /// CML's mark of it, if it shows one, and a fingerprint of our token.
        attempted: String,
    },
    /// Report the progress of a license operation to the control plane.
    ReportLicense {
        /// The progress to report.
        report: LicenseReport,
    },
    /// Submit a license operation to CML. The token is taken from the record at that moment, never from the effect.
    SubmitLicense {
        /// The operation to submit.
        submission: Submission,
        /// The address EC2 showed in this reconcile.
        address: String,
    },
    /// Give a session that has not begun back to the scheduler.
    HandBackSession {
        /// Id of the session.
        session: SessionId,
        /// The consequence of a refusal.
        if_refused: IfRefused,
        /// The consequence of a failure.
        if_failed: IfFailed,
    },
    /// Retry a failed session on the same worker.
    RetrySession {
        /// Id of the session.
        session: SessionId,
        /// Number of the attempt, counted from one.
        attempt: u32,
    },
    /// End a session.
    TerminateSession {
        /// Id of the session.
        session: SessionId,
        /// Reason reported to the server.
        reason: SessionEnd,
        /// The consequence of a failure.
        if_failed: IfFailed,
    },
    /// Publish an event before the next effect.
    Announce {
        /// The event to publish.
        event: Event,
    },
}

vocabulary! {
    /// The name of an effect. The list is complete: LCM makes no other change.
    EffectName, "name of an effect", non_exhaustive {
        /// Write the plan to the record before the launch.
        RecordLaunchPlan = "record_launch_plan",
        /// Launch exactly the recorded plan.
        LaunchInstance = "launch_instance",
        /// Start a stopped instance.
        StartInstance = "start_instance",
        /// Stop a running instance.
        StopInstance = "stop_instance",
        /// Terminate an instance.
        TerminateInstance = "terminate_instance",
        /// Report metrics to the control plane.
        ReportMetrics = "report_metrics",
        /// Have the control plane judge whether the worker is idle.
        DetectIdle = "detect_idle",
        /// Record the attempt CML shows before ours, so that its outcome is not taken for ours.
        RecordLicenseAttempt = "record_license_attempt",
        /// Report the progress of a license operation to the control plane.
        ReportLicense = "report_license",
        /// Submit a license operation to CML.
        SubmitLicense = "submit_license",
        /// Give a session that has not begun back to the scheduler.
        HandBackSession = "hand_back_session",
        /// Retry a failed session on the same worker.
        RetrySession = "retry_session",
        /// End a session.
        TerminateSession = "terminate_session",
        /// Publish an event before the next effect.
        Announce = "announce",
    }
}

/// The consequence of a refused launch. The refused call launched nothing, but an earlier one with the same plan and an
/// unknown outcome may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IfLaunchRefused {
    /// The plan is new and will be refused again: fail the worker.
    Fail,
    /// The plan is from an earlier reconcile and launched nothing: make a new one.
    PlanAnew,
    /// An earlier call may still produce an instance: keep the plan.
    KeepPlan,
    /// The plan is new, and nothing proves that the account is the worker's: the worker stays pending.
    DoubtRegion,
}

/// The consequence of a session that the server does not take back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IfRefused {
    /// It counts as active: the drain waits for it.
    KeepWaiting,
    /// The worker does not wait for it any longer: end it, for this reason.
    Terminate(SessionEnd),
}

/// The consequence of a session that could neither be handed back nor ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IfFailed {
    /// The status of the worker stays, and the next reconcile tries again.
    Hold,
    /// The worker goes on without it.
    Proceed,
}

impl IfFailed {
    const fn holds(self) -> bool {
        match self {
            Self::Hold => true,
            Self::Proceed => false,
        }
    }
}

vocabulary! {
    /// The result of one effect.
    EffectResultKind, "result of an effect", non_exhaustive {
        /// Not carried out: part of a decision or a dry run.
        Planned = "planned",
        /// It took effect, in this attempt or an earlier one.
        Done = "done",
        /// The launch returned an instance.
        Launched = "launched",
        /// The call failed.
        Failed = "failed",
        /// It was not tried: an earlier effect failed, or the lease was lost.
        NotTried = "not_tried",
    }
}

/// Result of one effect.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EffectResult {
    /// A dry run would carry it out.
    Planned,
    /// It took effect, in this attempt or an earlier one.
    Done,
    /// The launch returned this instance.
    Launched(LaunchedInstance),
    /// The idle check returned this report.
    IdleChecked(IdleReport),
    /// The call failed.
    Failed(CallFailure),
    /// It was not tried: an earlier effect failed, or the lease was lost.
    NotTried,
}

/// An instance that a launch returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LaunchedInstance {
    /// Id of the instance.
    pub id: InstanceId,
    /// When the call was sent, by the controller's clock. EC2 may not show the instance for some time after it.
    pub requested_at: Timestamp,
}

impl EffectResult {
    /// Whether the effect took place.
    pub const fn is_success(&self) -> bool {
        match self {
            Self::Done | Self::Launched(_) | Self::IdleChecked(_) => true,
            Self::Planned | Self::Failed(_) | Self::NotTried => false,
        }
    }

    /// The stable code used in results and metrics.
    pub const fn as_str(&self) -> &'static str {
        self.kind().as_str()
    }

    /// The code, with the instance that was launched or the failure: `done`, `launched i-1`, `failed: …`, `not_tried`.
    pub fn text(&self) -> String {
        match self {
            Self::Launched(launched) => format!("launched {}", launched.id),
            Self::Failed(failure) => format!("failed: {failure}"),
            Self::Planned | Self::Done | Self::IdleChecked(_) | Self::NotTried => self.as_str().to_owned(),
        }
    }

    /// The kind, without the instance, report or failure.
    pub const fn kind(&self) -> EffectResultKind {
        match self {
            Self::Planned => EffectResultKind::Planned,
            Self::Done | Self::IdleChecked(_) => EffectResultKind::Done,
            Self::Launched(_) => EffectResultKind::Launched,
            Self::Failed(_) => EffectResultKind::Failed,
            Self::NotTried => EffectResultKind::NotTried,
        }
    }

    /// The launched instance, if there is one.
    pub const fn instance(&self) -> Option<&InstanceId> {
        match self {
            Self::Launched(launched) => Some(&launched.id),
            Self::Planned | Self::Done | Self::IdleChecked(_) | Self::Failed(_) | Self::NotTried => None,
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
    /// Whether the effects after it build on it and must not be tried if it fails.
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
            // A session that cannot be moved does not affect the next one.
            Self::HandBackSession { .. }
            | Self::RetrySession { .. }
            | Self::TerminateSession { .. }
            | Self::ReportMetrics { .. }
            | Self::DetectIdle { .. }
            | Self::Announce { .. } => false,
        }
    }

    /// Whether the status must stay as it is if this effect fails.
    pub const fn blocks_the_transition(&self) -> bool {
        match self {
            Self::RecordLaunchPlan { .. }
            | Self::LaunchInstance { .. }
            | Self::StartInstance { .. }
            | Self::StopInstance { .. }
            | Self::TerminateInstance { .. }
            | Self::RetrySession { .. } => true,
            Self::HandBackSession { if_failed, .. } | Self::TerminateSession { if_failed, .. } => if_failed.holds(),
            Self::RecordLicenseAttempt { .. }
            | Self::ReportLicense { .. }
            | Self::SubmitLicense { .. }
            | Self::ReportMetrics { .. }
            | Self::DetectIdle { .. }
            | Self::Announce { .. } => false,
        }
    }

    /// Whether it takes a session off the worker.
    pub(crate) const fn ends_session(&self) -> bool {
        match self {
            Self::HandBackSession { .. } | Self::TerminateSession { .. } => true,
            Self::RecordLaunchPlan { .. }
            | Self::LaunchInstance { .. }
            | Self::StartInstance { .. }
            | Self::StopInstance { .. }
            | Self::TerminateInstance { .. }
            | Self::ReportMetrics { .. }
            | Self::DetectIdle { .. }
            | Self::RecordLicenseAttempt { .. }
            | Self::ReportLicense { .. }
            | Self::SubmitLicense { .. }
            | Self::RetrySession { .. }
            | Self::Announce { .. } => false,
        }
    }

    /// Whether it changes the cloud and therefore needs a valid lease when it is sent.
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

    /// The stable name used in logs, metrics and Python.
    pub const fn name(&self) -> EffectName {
        match self {
            Self::RecordLaunchPlan { .. } => EffectName::RecordLaunchPlan,
            Self::LaunchInstance { .. } => EffectName::LaunchInstance,
            Self::StartInstance { .. } => EffectName::StartInstance,
            Self::StopInstance { .. } => EffectName::StopInstance,
            Self::TerminateInstance { .. } => EffectName::TerminateInstance,
            Self::ReportMetrics { .. } => EffectName::ReportMetrics,
            Self::DetectIdle { .. } => EffectName::DetectIdle,
            Self::RecordLicenseAttempt { .. } => EffectName::RecordLicenseAttempt,
            Self::ReportLicense { .. } => EffectName::ReportLicense,
            Self::SubmitLicense { .. } => EffectName::SubmitLicense,
            Self::HandBackSession { .. } => EffectName::HandBackSession,
            Self::RetrySession { .. } => EffectName::RetrySession,
            Self::TerminateSession { .. } => EffectName::TerminateSession,
            Self::Announce { .. } => EffectName::Announce,
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name().as_str())?;
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
            Self::TerminateSession { session, reason, .. } => write!(f, " {session} ({})", reason.as_str()),
            Self::Announce { event } => write!(f, " {}", event.event_type()),
        }
    }
}

/// Telemetry is large and names users, so results and logs carry the number of events only.
fn number_of_events<S: Serializer>(telemetry: &Option<Vec<Value>>, serializer: S) -> Result<S::Ok, S::Error> {
    telemetry.as_ref().map(Vec::len).serialize(serializer)
}
