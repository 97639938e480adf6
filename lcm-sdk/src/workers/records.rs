//! Problems of records, for operators: logged once per change, counted, and shown by the admin server.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::Serialize;

use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::worker::Worker;
use crate::lifecycle::worker_json::UnreadableWorker;
use crate::ports::WorkerListing;

/// Maximum number of records that [`RecordStats`] describes, and of log lines per listing.
const SHOWN: usize = 100;

/// A record with fields that cannot be used as they are written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordProblem {
    /// Id of the worker, if that could be read.
    pub worker_id: Option<String>,
    /// Whether the worker is reconciled. Only an unreadable id, status or instance id prevents that.
    pub managed: bool,
    /// Description of each field.
    pub problems: Vec<String>,
}

impl RecordProblem {
    fn unmanaged(record: &UnreadableWorker) -> Self {
        let worker_id = record.id.as_ref().map(|id| id.as_str().to_owned());
        Self { worker_id, managed: false, problems: vec![record.error.to_string()] }
    }

    fn degraded(worker: &Worker) -> Self {
        let problems = worker.warnings.iter().map(ToString::to_string).collect();
        Self { worker_id: Some(worker.id.as_str().to_owned()), managed: true, problems }
    }

    fn log(&self) {
        let (worker, problems) = (self.worker_id.as_deref().unwrap_or("(no id)"), self.problems.join("; "));
        if self.managed {
            tracing::warn!(target: "lcm::fleet", worker, %problems, "a record has fields without effect");
        } else {
            tracing::warn!(target: "lcm::fleet", worker, %problems, "a record cannot be read and is not managed");
        }
    }
}

/// Problems of the records at the last listing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RecordStats {
    /// Number of unmanaged records: their id, status or instance id cannot be read.
    pub unreadable: usize,
    /// Number of managed records with a field that cannot be read or is probably misspelled.
    pub degraded: usize,
    /// The first hundred of these records.
    pub problems: Vec<RecordProblem>,
}

/// Keeps the problems of the last listing, to report each of them once.
#[derive(Debug, Default)]
pub(crate) struct RecordReports {
    /// By id, or by the error of a record without one.
    current: Mutex<BTreeMap<String, RecordProblem>>,
}

impl RecordReports {
    /// Replaces the problems and logs those that are new or changed.
    pub(crate) fn update(&self, listing: &WorkerListing) {
        let changed = self.replace(listing);
        changed.iter().take(SHOWN).for_each(RecordProblem::log);
        if let Some(more) = changed.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            tracing::warn!(target: "lcm::fleet", more, "more records have problems");
        }
    }

    /// Replaces the problems. Returns those that are new or changed.
    fn replace(&self, listing: &WorkerListing) -> Vec<RecordProblem> {
        let unmanaged = listing.unreadable.iter().map(RecordProblem::unmanaged);
        let degraded = listing.workers.iter().filter(|worker| !worker.warnings.is_empty());
        let problems = unmanaged.chain(degraded.map(RecordProblem::degraded));
        let key = |problem: &RecordProblem| problem.worker_id.clone().unwrap_or_else(|| problem.problems.join("; "));
        let latest: BTreeMap<_, _> = problems.map(|problem| (key(&problem), problem)).collect();
        let mut current = self.current.lock();
        let changed = latest.iter().filter(|(key, problem)| current.get(*key) != Some(problem));
        let changed = changed.map(|(_, problem)| problem.clone()).collect();
        *current = latest;
        changed
    }

    /// Replaces the problems of one worker that was read alone.
    pub(crate) fn update_one(&self, id: &WorkerId, worker: Option<&Worker>) {
        let mut current = self.current.lock();
        let problem = worker.filter(|worker| !worker.warnings.is_empty()).map(RecordProblem::degraded);
        let earlier = match &problem {
            Some(problem) => current.insert(id.as_str().to_owned(), problem.clone()),
            None => current.remove(id.as_str()),
        };
        drop(current);
        if let Some(problem) = problem.filter(|problem| Some(problem) != earlier.as_ref()) {
            problem.log();
        }
    }

    /// The problems of the last listing.
    pub(crate) fn stats(&self) -> RecordStats {
        let current = self.current.lock();
        let unreadable = current.values().filter(|problem| !problem.managed).count();
        let problems = current.values().take(SHOWN).cloned().collect();
        RecordStats { unreadable, degraded: current.len() - unreadable, problems }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lifecycle::worker_json::read_workers;

    fn listing(records: serde_json::Value) -> WorkerListing {
        let (workers, unreadable) = read_workers(records.as_array().expect("a list").clone());
        WorkerListing { workers, unreadable }
    }

    #[test]
    fn problems_are_reported_once_per_change() {
        let reports = RecordReports::default();
        let bad = |word: &str| {
            listing(json!([
                {"id": "w-1", "status": "running", "created_at": word},
                {"id": "w-2", "status": "asleep"},
                {"id": "w-3", "status": "running"},
                {"status": "running"},
            ]))
        };
        assert_eq!(reports.replace(&bad("noon")).len(), 3);
        assert_eq!(reports.replace(&bad("noon")), []);
        let changed = reports.replace(&bad("midnight"));
        assert_eq!(changed.len(), 1);
        assert!(changed[0].problems[0].contains("`created_at` is \"midnight\""), "{changed:?}");
        let stats = reports.stats();
        assert_eq!((stats.unreadable, stats.degraded, stats.problems.len()), (2, 1, 3));
        assert_eq!(reports.replace(&listing(json!([]))), []);
        assert_eq!(reports.stats(), RecordStats::default());
    }

    #[test]
    fn repaired_records_are_no_problem() {
        let reports = RecordReports::default();
        reports.update(&listing(json!([{"id": "w-1", "status": "running", "version": -1}])));
        let repaired = listing(json!([{"id": "w-1", "status": "running", "version": 1}]));
        reports.update_one(&"w-1".into(), repaired.workers.first());
        assert_eq!(reports.stats(), RecordStats::default());
    }
}
