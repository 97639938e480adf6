//! Tracks a sweep: one reconcile of every resource, and a report when all of them have ended.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::controller::queue::Key;
use crate::lifecycle::outcome::Outcome;

/// Result of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[must_use]
pub struct SweepReport {
    /// Number of resources.
    pub listed: usize,
    /// Number of reconciles by outcome.
    pub outcomes: BTreeMap<&'static str, usize>,
    /// Names of resources that were not reconciled in time.
    pub unfinished: Vec<String>,
    /// Duration of the sweep.
    pub took: Duration,
}

impl SweepReport {
    /// Whether every resource was reconciled.
    pub fn is_complete(&self) -> bool {
        self.unfinished.is_empty()
    }
}

/// Tracks the resources of one sweep at a time.
#[derive(Debug, Default)]
pub(crate) struct SweepTracker {
    // A reconcile outside a sweep pays for this check only.
    active: AtomicBool,
    waiting: Mutex<Waiting>,
    progress: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    results: HashMap<Key, Option<Option<Outcome>>>,
    /// Number of resources without a result. Counted, because a search after every reconcile would dominate the sweep.
    left: usize,
}

impl SweepTracker {
    /// Adds a resource to the sweep.
    pub(crate) fn expect(&self, key: &Key) {
        let mut waiting = self.waiting.lock();
        if !matches!(waiting.results.insert(Key::clone(key), None), Some(None)) {
            waiting.left += 1;
        }
        self.active.store(true, Ordering::Release);
    }

    /// Records the end of a reconcile; `None` if the resource does not exist any more.
    pub(crate) fn done(&self, key: &Key, outcome: Option<Outcome>) {
        if !self.active.load(Ordering::Acquire) {
            return;
        }
        let mut waiting = self.waiting.lock();
        if let Some(result @ None) = waiting.results.get_mut(key) {
            *result = Some(outcome);
            waiting.left -= 1;
            if waiting.left == 0 {
                self.progress.notify_waiters();
            }
        }
    }

    /// Waits until every resource has a result, or until the limit.
    pub(crate) async fn wait_for(&self, listed: Vec<Key>, began: Instant, limit: Duration) -> SweepReport {
        let all_done = async {
            loop {
                let progress = self.progress.notified();
                tokio::pin!(progress);
                progress.as_mut().enable();
                if self.waiting.lock().left == 0 {
                    return;
                }
                progress.await;
            }
        };
        // The report names the resources that are late.
        let _ = tokio::time::timeout(limit, all_done).await;
        self.active.store(false, Ordering::Release);
        let Waiting { results, .. } = std::mem::take(&mut *self.waiting.lock());
        let mut report = SweepReport { listed: listed.len(), took: began.elapsed(), ..SweepReport::default() };
        for key in listed {
            match results.get(&key) {
                Some(Some(Some(outcome))) => *report.outcomes.entry(outcome.as_str()).or_default() += 1,
                Some(Some(None)) => {}
                Some(None) | None => report.unfinished.push(key.to_string()),
            }
        }
        report
    }
}
