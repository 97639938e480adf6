//! What changed and was not told yet.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{ResyncCause, WatchNotice};

/// What changed and was not told yet: each resource once, however often it changed.
#[derive(Debug)]
pub(crate) struct Pending<K> {
    collected: Mutex<Collected<K>>,
    begun: Notify,
    most: usize,
}

#[derive(Debug)]
struct Collected<K> {
    keys: BTreeSet<K>,
    resync: Option<ResyncCause>,
    first: Option<Instant>,
}

impl<K: Ord> Pending<K> {
    pub(crate) fn new(most: usize) -> Self {
        let collected = Collected { keys: BTreeSet::new(), resync: None, first: None };
        Self { collected: Mutex::new(collected), begun: Notify::new(), most }
    }

    /// Resources changed.
    pub(crate) fn changed(&self, keys: impl Iterator<Item = K>) {
        self.collect(|collected| {
            collected.keys.extend(keys);
            if collected.keys.len() > self.most {
                collected.resync = Some(ResyncCause::TooMany);
            }
        });
    }

    /// Anything may have changed.
    pub(crate) fn resync(&self, cause: ResyncCause) {
        self.collect(|collected| collected.resync = Some(cause));
    }

    fn collect(&self, add: impl FnOnce(&mut Collected<K>)) {
        let mut collected = self.collected.lock();
        add(&mut collected);
        if collected.resync.is_some() {
            // Everything includes these.
            collected.keys.clear();
        }
        if collected.first.is_none() && (collected.resync.is_some() || !collected.keys.is_empty()) {
            collected.first = Some(Instant::now());
            self.begun.notify_one();
        }
    }

    /// Waits until something is there, and says since when.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub(crate) async fn first(&self) -> Instant {
        loop {
            let begun = self.begun.notified();
            if let Some(first) = self.collected.lock().first {
                return first;
            }
            begun.await;
        }
    }

    /// Takes everything.
    pub(crate) fn take(&self) -> Option<WatchNotice<K>> {
        let mut collected = self.collected.lock();
        collected.first.take()?;
        let keys = std::mem::take(&mut collected.keys);
        Some(match collected.resync.take() {
            Some(cause) => WatchNotice::Resync(cause),
            None => WatchNotice::Changed(keys.into_iter().collect()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_told_once_and_too_many_are_everything() {
        let pending = Pending::new(3);
        pending.changed(["b", "a", "b"].into_iter());
        pending.changed(["b"].into_iter());
        assert_eq!(pending.take(), Some(WatchNotice::Changed(vec!["a", "b"])));
        assert_eq!(pending.take(), None);
        pending.changed(["a", "b", "c", "d"].into_iter());
        pending.changed(["e"].into_iter());
        assert_eq!(pending.take(), Some(WatchNotice::Resync(ResyncCause::TooMany)));
        pending.changed(std::iter::empty());
        assert_eq!(pending.take(), None);
    }
}
