//! What a pass of discovery came to.

use serde::Serialize;

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::orphans::Verdict;

/// What a pass of discovery came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[must_use]
pub struct DiscoveryReport {
    /// One entry for each region.
    pub regions: Vec<RegionReport>,
    /// Why nothing was done at all, if so.
    pub error: Option<CallFailure>,
}

/// What discovery found in one region.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RegionReport {
    /// The region.
    pub region: String,
    /// Instances seen.
    pub seen: usize,
    /// Instances imported; in a dry run, those that would be.
    pub imported: usize,
    /// Workers that were handed to the reconciler.
    pub handed_over: Vec<WorkerId>,
    /// Workers whose instance lives although the record says terminated.
    pub resurrected: Vec<WorkerId>,
    /// Records that were marked terminated; in a dry run, none.
    pub terminated: Vec<WorkerId>,
    /// What was concluded about every record that the scan did not show alive.
    pub verdicts: Vec<Verdict>,
    /// The first call that failed, if one did: the scan is not complete, or something could not be written.
    pub error: Option<CallFailure>,
}

impl DiscoveryReport {
    /// Nothing was done, and why.
    pub(crate) fn refused(why: &str) -> Self {
        Self { regions: Vec::new(), error: Some(CallFailure::new(FailureKind::Refused, why)) }
    }

    /// How many records were marked terminated.
    pub fn orphans_terminated(&self) -> usize {
        self.regions.iter().map(|region| region.terminated.len()).sum()
    }
}
