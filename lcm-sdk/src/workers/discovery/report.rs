//! The report of a discovery run.

use serde::Serialize;

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::orphans::{Conclusion, Verdict};

/// The report of a discovery run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[must_use]
pub struct DiscoveryReport {
    /// One entry for each region.
    pub regions: Vec<RegionReport>,
    /// The failure that prevented the whole run, if there was one.
    pub error: Option<CallFailure>,
}

/// The report of one region.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RegionReport {
    /// Name of the region.
    pub region: String,
    /// Number of instances seen.
    pub seen: usize,
    /// Whether every instance that the run looked for was read.
    pub is_complete: bool,
    /// Number of instances imported; in a dry run, of those that would be.
    pub imported: usize,
    /// Instances with the tags of a control plane that is not this one. They are reported, never touched.
    pub foreign: Vec<InstanceId>,
    /// Workers passed to the reconciler.
    pub handed_over: Vec<WorkerId>,
    /// Terminated records whose instance is alive.
    pub resurrected: Vec<WorkerId>,
    /// Records marked terminated; empty in a dry run.
    pub terminated: Vec<WorkerId>,
    /// Whether the region is frozen: nothing proves that the credentials belong to the account of its records, so no
    /// absence in it is believed.
    pub is_frozen: bool,
    /// Verdicts on every record whose instance the scan did not show alive.
    pub verdicts: Vec<Verdict>,
    /// The first failed call: an incomplete scan, or a failed write.
    pub error: Option<CallFailure>,
}

impl RegionReport {
    /// Number of records that were kept because the region is frozen.
    pub(crate) fn frozen(&self) -> usize {
        self.verdicts.iter().filter(|verdict| verdict.conclusion == Conclusion::Frozen).count()
    }
}

impl DiscoveryReport {
    /// A report of a run that was refused.
    pub(crate) fn refused(why: &str) -> Self {
        Self { regions: Vec::new(), error: Some(CallFailure::new(FailureKind::Refused, why)) }
    }

    /// Number of records marked terminated.
    pub fn orphans_terminated(&self) -> usize {
        self.regions.iter().map(|region| region.terminated.len()).sum()
    }
}
