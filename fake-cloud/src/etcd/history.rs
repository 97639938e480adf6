//! What happened, revision by revision: the source watchers are served from.

use std::collections::VecDeque;
use std::sync::Arc;

use super::record::Event;

/// The events of each revision since the last compaction. Every revision after the first wrote something, so the
/// place of a revision in the queue is its distance from the oldest one.
#[derive(Debug)]
pub(super) struct History {
    oldest: i64,
    revisions: VecDeque<Arc<[Event]>>,
}

impl History {
    /// The history of a fresh store, whose first write will be revision 2.
    pub(super) fn new() -> Self {
        Self { oldest: 2, revisions: VecDeque::new() }
    }

    /// Adds the next revision.
    pub(super) fn push(&mut self, events: Arc<[Event]>) {
        self.revisions.push_back(events);
    }

    /// The revisions from `revision` on, with their events.
    pub(super) fn since(&self, revision: i64) -> impl Iterator<Item = (i64, &Arc<[Event]>)> {
        let first = revision.max(self.oldest);
        let skipped = usize::try_from(first - self.oldest).unwrap_or(usize::MAX).min(self.revisions.len());
        (first..).zip(self.revisions.range(skipped..))
    }

    /// Forgets what was before `revision`, and returns the events of all revisions up to and including it.
    ///
    /// Of the revision itself the puts stay, for a watcher may still start there; what they replaced is forgotten.
    pub(super) fn compact(&mut self, revision: i64) -> Vec<Arc<[Event]>> {
        let count = usize::try_from(revision - self.oldest + 1).unwrap_or(0).min(self.revisions.len());
        let dropped: Vec<_> = self.revisions.drain(..count).collect();
        if let Some(last) = dropped.last() {
            let puts = last.iter().filter(|event| !event.is_delete());
            self.revisions.push_front(puts.map(|put| Event { record: put.record.clone(), previous: None }).collect());
            self.oldest = revision;
        }
        dropped
    }
}
