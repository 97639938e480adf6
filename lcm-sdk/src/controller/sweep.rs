//! A sweep: everything is looked at once, and somebody waits for that.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::controller::queue::Key;
use crate::lifecycle::outcome::Outcome;

/// What a sweep came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[must_use]
pub struct SweepReport {
    /// How many resources there were.
    pub listed: usize,
    /// How many passes ended in each outcome.
    pub outcomes: BTreeMap<&'static str, usize>,
    /// Those that were not looked at in time.
    pub unfinished: Vec<String>,
    /// How long it took.
    pub took: Duration,
}

impl SweepReport {
    /// Whether everything was looked at.
    pub fn is_complete(&self) -> bool {
        self.unfinished.is_empty()
    }
}

/// Keeps track of who was looked at during a sweep. One sweep at a time.
#[derive(Debug, Default)]
pub(crate) struct SweepTracker {
    // A pass in quiet times costs no more than a look at this.
    active: AtomicBool,
    waiting: Mutex<Waiting>,
    progress: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    results: HashMap<Key, Option<Option<Outcome>>>,
    /// How many have no result: counted, because looking for them after every pass would take longer than the passes.
    left: usize,
}

impl SweepTracker {
    /// A resource belongs to the sweep.
    pub(crate) fn expect(&self, key: &Key) {
        let mut waiting = self.waiting.lock();
        if !matches!(waiting.results.insert(Key::clone(key), None), Some(None)) {
            waiting.left += 1;
        }
        self.active.store(true, Ordering::Release);
    }

    /// A pass over a resource ended; `None` if it does not exist any more.
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
        // Late ones are named in the report.
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
