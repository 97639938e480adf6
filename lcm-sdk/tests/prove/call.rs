//! A call of a controller, as far as faults and invariants depend on it.

use std::fmt::Debug;

use lcm_sdk::lifecycle::discovery::{Completeness, Scan};
use lcm_sdk::lifecycle::{LicenseReport, SessionEnd};
use lcm_sdk::ports::Fence;
use lcm_sdk::{CallFailure, FailureKind, InstanceId, Lookup, Patch, SessionId, Worker, WorkerId};

use super::faults::failure;
use super::world::World;

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
    /// A launch for a worker, from an image.
    Launch(WorkerId, String),
    Start(InstanceId),
    Stop(InstanceId),
    Terminate(InstanceId),
    /// A patch for a record.
    Write(Box<(Worker, Patch)>, Fence),
    License(WorkerId, LicenseReport, Fence),
    EndSession(SessionId, SessionEnd, Fence),
    MoveSession(SessionId, Fence),
    /// Instances of a region.
    Import(String, Vec<InstanceId>, Fence),
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
            Subject::Launch(..)
            | Subject::Start(_)
            | Subject::Stop(_)
            | Subject::Terminate(_)
            | Subject::Submit { .. } => true,
            Subject::Describe(_)
            | Subject::Read
            | Subject::Write(..)
            | Subject::License(..)
            | Subject::EndSession(..)
            | Subject::MoveSession(..)
            | Subject::Import(..)
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
            | Subject::MoveSession(_, fence)
            | Subject::Import(_, _, fence) => Some(fence),
            Subject::Describe(_)
            | Subject::Read
            | Subject::Launch(..)
            | Subject::Start(_)
            | Subject::Stop(_)
            | Subject::Terminate(_)
            | Subject::Submit { .. }
            | Subject::Note => None,
        }
    }

    /// The name whose leader may make the change: that of the worker, or of the region.
    pub(crate) fn led_by(&self, world: &World) -> Option<String> {
        let of_session = |id| {
            world.control_plane.stored_session(id).and_then(|session| Some(session.worker_id?.as_str().to_owned()))
        };
        match &self.subject {
            Subject::Launch(worker, _) | Subject::License(worker, ..) => Some(worker.as_str().to_owned()),
            Subject::Start(id) | Subject::Stop(id) | Subject::Terminate(id) => world.owner_of(id),
            Subject::Write(about, _) => Some(about.0.id.as_str().to_owned()),
            Subject::EndSession(session, ..) | Subject::MoveSession(session, _) => of_session(session),
            Subject::Import(region, ..) => Some(region.clone()),
            Subject::Submit { address, .. } => {
                let at = |worker: &Worker| worker.address() == Some(address);
                world.workers().into_iter().find(at).map(|worker| worker.id.as_str().to_owned())
            }
            Subject::Describe(_) | Subject::Read | Subject::Note => None,
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
