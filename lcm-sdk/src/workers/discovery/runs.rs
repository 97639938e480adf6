//! The last runs of discovery, kept in memory for operators.

use std::collections::VecDeque;

use serde::Serialize;

use super::report::{DiscoveryReport, RegionReport};
use crate::lifecycle::orphans::{Conclusion, Verdict};
use crate::lifecycle::time::Timestamp;

/// Number of runs that are kept.
const RUNS: usize = 10;

/// Maximum number of verdicts, and of workers and instances of each kind, that are kept of one region and run.
const PER_REGION: usize = 100;

/// A run of discovery.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DiscoveryRun {
    /// When the run ended.
    pub ended_at: Timestamp,
    /// One entry for each region.
    pub regions: Vec<RegionRun>,
    /// The failure that prevented the whole run, if there was one.
    pub error: Option<String>,
}

/// A run of discovery in one region. Its lists contain the first hundred entries.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RegionRun {
    /// Name of the region.
    pub region: String,
    /// Number of instances seen.
    pub seen: usize,
    /// Whether every instance that the run looked for was read.
    pub is_complete: bool,
    /// Number of instances imported.
    pub imported: usize,
    /// Number of records whose instance the scan did not show alive.
    pub doubted: usize,
    /// Verdicts on these records. Those that keep a record in doubt come first, those that found it alive last.
    pub verdicts: Vec<ExplainedVerdict>,
    /// Records marked terminated.
    pub terminated: Vec<String>,
    /// Terminated records whose instance is alive.
    pub resurrected: Vec<String>,
    /// Workers passed to the reconciler.
    pub handed_over: Vec<String>,
    /// Instances that another control plane manages.
    pub foreign: Vec<String>,
    /// The first failed call.
    pub error: Option<String>,
}

/// A verdict on one record, with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExplainedVerdict {
    /// The verdict.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The reason as a sentence.
    pub why: &'static str,
}

impl DiscoveryRun {
    fn new(report: &DiscoveryReport, ended_at: Timestamp) -> Self {
        let error = report.error.as_ref().map(ToString::to_string);
        Self { ended_at, regions: report.regions.iter().map(RegionRun::new).collect(), error }
    }
}

impl RegionRun {
    fn new(report: &RegionReport) -> Self {
        let mut verdicts: Vec<&Verdict> = report.verdicts.iter().collect();
        verdicts.sort_by_key(|verdict| verdict.conclusion == Conclusion::Alive);
        let explained =
            |verdict: &Verdict| ExplainedVerdict { verdict: verdict.clone(), why: verdict.conclusion.sentence() };
        Self {
            region: report.region.clone(),
            seen: report.seen,
            is_complete: report.is_complete,
            imported: report.imported,
            doubted: report.verdicts.len(),
            verdicts: verdicts.into_iter().take(PER_REGION).map(explained).collect(),
            terminated: first(&report.terminated),
            resurrected: first(&report.resurrected),
            handed_over: first(&report.handed_over),
            foreign: first(&report.foreign),
            error: report.error.as_ref().map(ToString::to_string),
        }
    }
}

fn first<T: ToString>(ids: &[T]) -> Vec<String> {
    ids.iter().take(PER_REGION).map(ToString::to_string).collect()
}

/// The last runs, the newest first.
#[derive(Debug, Default)]
pub(super) struct Runs(VecDeque<DiscoveryRun>);

impl Runs {
    pub(super) fn note(&mut self, report: &DiscoveryReport, ended_at: Timestamp) {
        self.0.truncate(RUNS - 1);
        self.0.push_front(DiscoveryRun::new(report, ended_at));
    }

    pub(super) fn all(&self) -> Vec<DiscoveryRun> {
        self.0.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(number: usize, conclusion: Conclusion) -> Verdict {
        let (worker_id, ec2_instance_id) = (format!("w-{number}").into(), format!("i-{number}").into());
        Verdict { worker_id, ec2_instance_id, conclusion }
    }

    #[test]
    fn runs_and_their_lists_are_bounded() {
        let mut runs = Runs::default();
        let verdicts = (0..500).map(|number| verdict(number, Conclusion::Alive));
        let verdicts = verdicts.chain([verdict(500, Conclusion::Frozen)]).collect();
        let region = RegionReport { region: "us-east-1".to_owned(), verdicts, ..RegionReport::default() };
        let report = DiscoveryReport { regions: vec![region], error: None };
        for second in 0..20 {
            runs.note(&report, Timestamp::from_timestamp(second, 0).expect("a time"));
        }
        let runs = runs.all();
        let region = &runs[0].regions[0];
        assert_eq!((runs.len(), runs[0].ended_at.timestamp()), (RUNS, 19));
        assert_eq!((region.doubted, region.verdicts.len()), (501, PER_REGION));
        assert_eq!(region.verdicts[0].verdict.conclusion, Conclusion::Frozen, "doubts come first");
        assert_eq!(region.verdicts[0].why, Conclusion::Frozen.sentence());
    }
}
