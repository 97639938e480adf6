//! Events for subscribers and audit entries for the control plane.

use serde::Serialize;

use super::ids::{InstanceId, SessionId};
use super::license::LicenseReport;
use super::scale_down::ScaleDownVerdict;

/// An event about a worker. Its type follows the CloudEvents names of the control plane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// A drain began.
    DrainStarted {
        /// Number of sessions still served.
        running_sessions: usize,
        /// Reason given for the drain.
        reason: String,
        /// Requester of the drain.
        requested_by: String,
    },
    /// The last session ended.
    DrainCompleted,
    /// A drain was called off.
    DrainCancelled {
        /// Requester of the cancellation.
        cancelled_by: String,
        /// Reason given for the cancellation.
        reason: String,
    },
    /// The deadline of a drain passed; the remaining sessions are ended.
    DrainTimedOut {
        /// The sessions that are ended.
        remaining: Vec<SessionId>,
    },
    /// A failed session is retried on the draining worker.
    SessionRetried {
        /// Id of the session.
        session: SessionId,
        /// Number of the attempt, counted from one.
        attempt: u32,
    },
    /// A failed session was ended.
    SessionGivenUp {
        /// Id of the session.
        session: SessionId,
        /// Reason reported to the server.
        reason: SessionEnd,
    },
    /// Garbage collection marked the record of a missing instance as terminated.
    OrphanTerminated {
        /// Id of the instance.
        instance: InstanceId,
    },
    /// Instances of a region look absent, and nothing proves that the credentials belong to their account. No record of
    /// the region follows an absence while that lasts.
    RegionNotTrusted {
        /// Name of the region.
        region: String,
        /// The doubt about the account.
        doubt: String,
    },
    /// A terminated record has a live instance.
    Resurrected {
        /// Id of the instance.
        instance: InstanceId,
    },
    /// More than one live instance carries the worker's tag. The extra one is reported, never touched.
    DuplicateInstance {
        /// Id of the instance that the record does not name.
        extra: InstanceId,
    },
    /// A live instance carries the tags of a control plane that is not this one. It is reported, never touched.
    ForeignInstance {
        /// Id of the instance.
        instance: InstanceId,
        /// AWS region of the instance.
        region: String,
        /// The worker that its tags name, which has no record here.
        worker: Option<String>,
    },
    /// A license operation made progress.
    License {
        /// The step that was completed.
        report: LicenseReport,
    },
}

impl Event {
    /// The CloudEvents type.
    pub const fn event_type(&self) -> &'static str {
        match self {
            Self::DrainStarted { .. } => "cml_worker.drain.started.v1",
            Self::DrainCompleted => "cml_worker.drain.completed.v1",
            Self::DrainCancelled { .. } => "cml_worker.drain.cancelled.v1",
            Self::DrainTimedOut { .. } => "cml_worker.drain.timed_out.v1",
            Self::SessionRetried { .. } => "cml_worker.drain.session.retried.v1",
            Self::SessionGivenUp { .. } => "cml_worker.drain.session.given_up.v1",
            Self::OrphanTerminated { .. } => "cml_worker.orphan.terminated.v1",
            Self::RegionNotTrusted { .. } => "cml_worker.region.not_trusted.v1",
            Self::Resurrected { .. } => "cml_worker.orphan.resurrected.v1",
            Self::DuplicateInstance { .. } => "cml_worker.instance.duplicate.v1",
            Self::ForeignInstance { .. } => "cml_worker.instance.foreign.v1",
            Self::License { report } => match report {
                LicenseReport::StartRegistration => "cml_worker.license.registration.started.v1",
                LicenseReport::CompleteRegistration => "cml_worker.license.registration.completed.v1",
                LicenseReport::FailRegistration => "cml_worker.license.registration.failed.v1",
                LicenseReport::StartDeregistration => "cml_worker.license.deregistration.started.v1",
                LicenseReport::CompleteDeregistration => "cml_worker.license.deregistration.completed.v1",
                LicenseReport::FailDeregistration => "cml_worker.license.deregistration.failed.v1",
            },
        }
    }
}

/// Why a session is ended by its worker's lifecycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionEnd {
    /// It failed on a draining worker and has no retries left.
    MaxRetriesExceeded,
    /// It failed and its worker no longer drains.
    WorkerStoppedDuringRetry,
    /// The drain's deadline passed.
    DrainTimeout,
    /// Its worker is terminated.
    WorkerTerminated,
}

impl SessionEnd {
    /// The reason as reported to the server.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxRetriesExceeded => "max_retries_exceeded",
            Self::WorkerStoppedDuringRetry => "worker_stopped_during_retry",
            Self::DrainTimeout => "drain_timeout",
            Self::WorkerTerminated => "worker_terminated",
        }
    }
}

/// An entry in the control plane's scaling audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Audit {
    /// An instance was launched for the worker.
    Provisioned,
    /// No instance could be launched.
    ProvisionFailed,
    /// Scale-down evaluated the worker.
    ScaleDown(ScaleDownVerdict),
}

impl Audit {
    /// The label in the audit.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Provisioned => "ec2_provisioned",
            Self::ProvisionFailed => "ec2_provision_failed",
            Self::ScaleDown(verdict) => verdict.label(),
        }
    }
}

/// A notice to publish after the record is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// An event for all subscribers.
    Event(Event),
    /// An entry of the scaling audit.
    Audit(Audit),
}
