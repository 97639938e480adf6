//! State that outlives a run of discovery and a term of its controller.

use std::collections::{BTreeMap, HashMap, HashSet};

use parking_lot::Mutex;
use serde::Serialize;

use super::report::DiscoveryReport;
use super::runs::{DiscoveryRun, Runs};
use crate::lifecycle::event::Event;
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::time::Timestamp;
use crate::ports::ScanSettings;

/// Statistics of the discovery runs of this process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DiscoveryStats {
    /// Number of runs that ended.
    pub runs: u64,
    /// Time at which the last run ended.
    pub last_run_at: Option<Timestamp>,
    /// Time at which the last run ended that scanned every region completely.
    pub last_complete_scan_at: Option<Timestamp>,
    /// Number of instances that the last run found.
    pub found: usize,
    /// Number of instances imported by all runs.
    pub imported: u64,
    /// Number of records marked terminated by all runs.
    pub orphans_terminated: u64,
    /// Regions that the last run froze.
    pub frozen_regions: Vec<String>,
    /// Statistics by region.
    pub regions: BTreeMap<String, RegionStats>,
}

/// Statistics of one region.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RegionStats {
    /// Time at which the last complete scan ended.
    pub last_complete_scan_at: Option<Timestamp>,
    /// Number of instances that the last scan found.
    pub found: usize,
    /// Number of those that another control plane manages.
    pub foreign: usize,
    /// Number of instances imported by all runs.
    pub imported: u64,
    /// Number of records marked terminated by all runs.
    pub orphans_terminated: u64,
    /// Whether the last run froze the region.
    pub is_frozen: bool,
}

/// The last settings of the control plane, reports that are not to be repeated, and statistics.
#[derive(Debug, Default)]
pub(crate) struct DiscoveryState(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    settings: Option<ScanSettings>,
    is_known_to_import_nothing: bool,
    /// Instances by region, with the type of the event that reported them.
    reported: HashMap<String, HashSet<(InstanceId, &'static str)>>,
    stats: DiscoveryStats,
    runs: Runs,
}

impl DiscoveryState {
    /// Stores settings of the control plane and returns them. A switch that they leave open stays as it was.
    pub(super) fn remember(&self, read: ScanSettings) -> ScanSettings {
        let mut state = self.0.lock();
        let last = state.settings.take().and_then(|last| last.enabled);
        let settings = ScanSettings { enabled: read.enabled.or(last), ..read };
        state.settings = Some(settings.clone());
        settings
    }

    /// Stores that the control plane has no settings, unless it had some before, and returns those that count.
    pub(super) fn remember_none(&self) -> ScanSettings {
        self.0.lock().settings.get_or_insert_default().clone()
    }

    /// The last settings that the control plane returned.
    pub(super) fn last_settings(&self) -> Option<ScanSettings> {
        self.0.lock().settings.clone()
    }

    /// Whether the missing filter is to be logged: once, until a filter was set.
    pub(super) fn notes_missing_filter(&self) -> bool {
        !std::mem::replace(&mut self.0.lock().is_known_to_import_nothing, true)
    }

    pub(super) fn note_filter(&self) {
        self.0.lock().is_known_to_import_nothing = false;
    }

    /// Whether an event about an instance is new. True once for as long as scans show the instance.
    pub(super) fn is_new(&self, region: &str, instance: &InstanceId, event: &Event) -> bool {
        let mut state = self.0.lock();
        state.reported.entry(region.to_owned()).or_default().insert((instance.clone(), event.event_type()))
    }

    /// Forgets the reports about instances that a complete scan no longer shows.
    pub(super) fn retain(&self, region: &str, is_shown: impl Fn(&InstanceId) -> bool) {
        if let Some(reported) = self.0.lock().reported.get_mut(region) {
            reported.retain(|(instance, _)| is_shown(instance));
        }
    }

    /// Adds a run to the statistics.
    pub(super) fn count(&self, report: &DiscoveryReport, at: Timestamp) {
        let state = &mut *self.0.lock();
        state.runs.note(report, at);
        let stats = &mut state.stats;
        stats.runs += 1;
        stats.last_run_at = Some(at);
        stats.found = report.regions.iter().map(|region| region.seen).sum();
        stats.imported += report.regions.iter().map(|region| region.imported as u64).sum::<u64>();
        stats.orphans_terminated += report.orphans_terminated() as u64;
        let frozen = report.regions.iter().filter(|region| region.is_frozen);
        stats.frozen_regions = frozen.map(|region| region.region.clone()).collect();
        if report.error.is_none() && report.regions.iter().all(|region| region.is_complete) {
            stats.last_complete_scan_at = Some(at);
        }
        for region in &report.regions {
            let sums = stats.regions.entry(region.region.clone()).or_default();
            *sums = RegionStats {
                last_complete_scan_at: if region.is_complete { Some(at) } else { sums.last_complete_scan_at },
                found: region.seen,
                foreign: region.foreign.len(),
                imported: sums.imported + region.imported as u64,
                orphans_terminated: sums.orphans_terminated + region.terminated.len() as u64,
                is_frozen: region.is_frozen,
            };
        }
    }

    pub(crate) fn stats(&self) -> DiscoveryStats {
        self.0.lock().stats.clone()
    }

    /// The last runs, the newest first.
    pub(crate) fn runs(&self) -> Vec<DiscoveryRun> {
        self.0.lock().runs.all()
    }
}
