//! A call of a controller, as far as faults and invariants depend on it.

use std::fmt::Debug;

use lcm_sdk::lifecycle::discovery::{Completeness, Scan};
use lcm_sdk::lifecycle::{LicenseReport, SessionEnd};
use lcm_sdk::ports::Fence;
use lcm_sdk::{CallFailure, FailureKind, InstanceId, Lookup, Patch, SessionId, Worker, WorkerId};

use super::faults::failure;

/// One call and its subject.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) about: String,
    pub(crate) subject: Subject,
}

/// The effect of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallEffect {
    /// It changes nothing that a decision depends on.
    Read,
    /// It changes the cloud, a session or a license.
    Change,
    /// It changes a record.
    Write,
}

/// The subject of a call.
#[derive(Debug, Clone)]
pub(crate) enum Subject {
    /// A read of these EC2 instances.
    Describe(Vec<InstanceId>),
    /// Any other read.
    Read,
    Launch,
    Start,
    Stop(InstanceId),
    Terminate(InstanceId),
    /// A patch for a record.
    Write(Box<(Worker, Patch)>, Fence),
    License(WorkerId, LicenseReport, Fence),
    EndSession(SessionId, SessionEnd, Fence),
    MoveSession(Fence),
    Import(Fence),
    /// A license operation submitted to the CML at an address, with its token if it has one.
    Submit {
        address: String,
        token: Option<String>,
    },
    /// Measurements, audits and events: repeatable at any time, and no decision depends on them.
    Note,
}

impl Call {
    pub(crate) fn new(name: &'static str, about: impl Into<String>, subject: Subject) -> Self {
        Self { name, about: about.into(), subject }
    }

    pub(crate) fn read(name: &'static str, about: impl Into<String>) -> Self {
        Self::new(name, about, Subject::Read)
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self.subject, Subject::Read | Subject::Describe(_))
    }

    /// Whether only the current leader may send it.
    pub(crate) fn changes_cloud(&self) -> bool {
        match self.subject {
            Subject::Launch | Subject::Start | Subject::Stop(_) | Subject::Terminate(_) | Subject::Submit { .. } => {
                true
            }
            Subject::Describe(_)
            | Subject::Read
            | Subject::Write(..)
            | Subject::License(..)
            | Subject::EndSession(..)
            | Subject::MoveSession(_)
            | Subject::Import(_)
            | Subject::Note => false,
        }
    }

    /// The effect, which determines the events that can be injected at this call.
    pub(crate) fn effect(&self) -> CallEffect {
        match self.subject {
            Subject::Write(..) => CallEffect::Write,
            _ if self.is_effect() => CallEffect::Change,
            _ => CallEffect::Read,
        }
    }

    /// Whether the call changes something. A settled fleet makes no such call.
    pub(crate) fn is_effect(&self) -> bool {
        !self.is_read() && !matches!(self.subject, Subject::Note)
    }

    /// The fencing token of a write to the control plane.
    pub(crate) fn fence(&self) -> Option<Fence> {
        match self.subject {
            Subject::Write(_, fence)
            | Subject::License(_, _, fence)
            | Subject::EndSession(_, _, fence)
            | Subject::MoveSession(fence)
            | Subject::Import(fence) => Some(fence),
            Subject::Describe(_)
            | Subject::Read
            | Subject::Launch
            | Subject::Start
            | Subject::Stop(_)
            | Subject::Terminate(_)
            | Subject::Submit { .. }
            | Subject::Note => None,
        }
    }
}

/// A response that can be replaced by a failure.
pub(crate) trait Reply: Clone + Debug + Send + 'static {
    /// The response to a failed call.
    fn failed(call: &Call, failure: CallFailure) -> Self;

    /// Whether the response is complete.
    fn is_success(&self) -> bool;

    /// Removes some pages of the response.
    fn lose_pages(&mut self) {}
}

impl<T: Clone + Debug + Send + 'static> Reply for Result<T, CallFailure> {
    fn failed(_: &Call, failure: CallFailure) -> Self {
        Err(failure)
    }

    fn is_success(&self) -> bool {
        self.is_ok()
    }
}

impl<T: Clone + Debug + Send + 'static> Reply for Vec<Lookup<T>> {
    fn failed(call: &Call, failure: CallFailure) -> Self {
        let count = match &call.subject {
            Subject::Describe(ids) => ids.len(),
            _ => 0,
        };
        vec![Lookup::Unknown(failure); count]
    }

    fn is_success(&self) -> bool {
        !self.iter().any(|response| matches!(response, Lookup::Unknown(_)))
    }
}

impl Reply for Scan {
    fn failed(call: &Call, failure: CallFailure) -> Self {
        Self { region: call.about.clone(), instances: Vec::new(), completeness: Completeness::Partial(failure) }
    }

    fn is_success(&self) -> bool {
        self.completeness == Completeness::Complete
    }

    fn lose_pages(&mut self) {
        self.instances.truncate(self.instances.len() / 2);
        self.completeness = Completeness::Partial(failure(FailureKind::Unclear));
    }
}
