//! A call that a controller makes, as far as faults and invariants care about it.

use std::fmt::Debug;

use lcm_sdk::lifecycle::discovery::{Completeness, Scan};
use lcm_sdk::lifecycle::{LicenseReport, SessionEnd};
use lcm_sdk::ports::Fence;
use lcm_sdk::{CallFailure, FailureKind, InstanceId, Lookup, Patch, SessionId, Worker, WorkerId};

use super::faults::failure;

/// One call.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) about: String,
    pub(crate) matter: Matter,
}

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Does {
    /// It changes nothing that anybody decides on.
    Ask,
    /// It changes something.
    Change,
    /// It changes a record.
    Write,
}

/// What a call is about.
#[derive(Debug, Clone)]
pub(crate) enum Matter {
    /// A question to EC2 about these instances.
    Describe(Vec<InstanceId>),
    /// Any other question.
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
    /// A licence operation handed to the CML at an address, with its token if it has one.
    Submit {
        address: String,
        token: Option<String>,
    },
    /// Measurements, audits and announcements: they may be repeated at any time and change nothing anybody decides on.
    Note,
}

impl Call {
    pub(crate) fn new(name: &'static str, about: impl Into<String>, matter: Matter) -> Self {
        Self { name, about: about.into(), matter }
    }

    pub(crate) fn read(name: &'static str, about: impl Into<String>) -> Self {
        Self::new(name, about, Matter::Read)
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self.matter, Matter::Read | Matter::Describe(_))
    }

    /// Whether only a leader may make it, at the very moment it is sent.
    pub(crate) fn changes_cloud(&self) -> bool {
        match self.matter {
            Matter::Launch | Matter::Start | Matter::Stop(_) | Matter::Terminate(_) | Matter::Submit { .. } => true,
            Matter::Describe(_)
            | Matter::Read
            | Matter::Write(..)
            | Matter::License(..)
            | Matter::EndSession(..)
            | Matter::MoveSession(_)
            | Matter::Import(_)
            | Matter::Note => false,
        }
    }

    /// What it does, as far as it matters where a script is broken.
    pub(crate) fn does(&self) -> Does {
        match self.matter {
            Matter::Write(..) => Does::Write,
            _ if self.is_effect() => Does::Change,
            _ => Does::Ask,
        }
    }

    /// Whether a fleet at rest makes no such call.
    pub(crate) fn is_effect(&self) -> bool {
        !self.is_read() && !matches!(self.matter, Matter::Note)
    }

    /// The fencing token of a write to the control plane.
    pub(crate) fn fence(&self) -> Option<Fence> {
        match self.matter {
            Matter::Write(_, fence)
            | Matter::License(_, _, fence)
            | Matter::EndSession(_, _, fence)
            | Matter::MoveSession(fence)
            | Matter::Import(fence) => Some(fence),
            Matter::Describe(_)
            | Matter::Read
            | Matter::Launch
            | Matter::Start
            | Matter::Stop(_)
            | Matter::Terminate(_)
            | Matter::Submit { .. }
            | Matter::Note => None,
        }
    }
}

/// An answer that can be replaced by a failure.
pub(crate) trait Reply: Clone + Debug + Send + 'static {
    fn failed(call: &Call, failure: CallFailure) -> Self;

    fn is_answer(&self) -> bool;

    /// Some pages of it are missing.
    fn lose_pages(&mut self) {}
}

impl<T: Clone + Debug + Send + 'static> Reply for Result<T, CallFailure> {
    fn failed(_: &Call, failure: CallFailure) -> Self {
        Err(failure)
    }

    fn is_answer(&self) -> bool {
        self.is_ok()
    }
}

impl<T: Clone + Debug + Send + 'static> Reply for Vec<Lookup<T>> {
    fn failed(call: &Call, failure: CallFailure) -> Self {
        let count = match &call.matter {
            Matter::Describe(ids) => ids.len(),
            _ => 0,
        };
        vec![Lookup::Unknown(failure); count]
    }

    fn is_answer(&self) -> bool {
        !self.iter().any(|answer| matches!(answer, Lookup::Unknown(_)))
    }
}

impl Reply for Scan {
    fn failed(call: &Call, failure: CallFailure) -> Self {
        Self { region: call.about.clone(), instances: Vec::new(), completeness: Completeness::Partial(failure) }
    }

    fn is_answer(&self) -> bool {
        self.completeness == Completeness::Complete
    }

    fn lose_pages(&mut self) {
        self.instances.truncate(self.instances.len() / 2);
        self.completeness = Completeness::Partial(failure(FailureKind::Unclear));
    }
}
