//! State that a reconciler keeps between reconciles. All of it can be dropped without harm.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::result::Mode;
use crate::lifecycle::fleet::FleetView;
use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::time::Timestamp;

/// Maximum age of a cached describe. A reconcile calls EC2 itself after that.
const DESCRIBE_MAX_AGE: Duration = Duration::from_secs(30);

/// One entry per worker: locks, versions and recent calls.
#[derive(Debug, Default)]
pub(crate) struct WorkerCache {
    entries: Mutex<HashMap<WorkerId, Entry>>,
}

#[derive(Debug, Default)]
struct Entry {
    idle_checked_at: Option<Timestamp>,
    metrics_reported_at: Option<Timestamp>,
    describe: Option<CachedDescribe>,
    /// The latest version whose changes are all known: read by a reconcile, or written by us right after that.
    known_version: Option<u64>,
    written_at: Option<Instant>,
    mutated_at: Option<Instant>,
    lock: Weak<tokio::sync::Mutex<()>>,
}

/// The part of a batched describe that concerns one worker.
#[derive(Debug, Clone)]
struct CachedDescribe {
    /// The record may name another instance by the time this is used.
    instance: InstanceId,
    response: Lookup<Instance>,
    /// When the call was sent.
    at: Instant,
}

/// The fleet as last counted, with our own scale-downs since.
#[derive(Debug, Default)]
pub(super) struct CachedFleet {
    pub(super) snapshot: Option<FleetSnapshot>,
}

/// A count of the fleet and its age.
#[derive(Debug, Clone, Copy)]
pub(super) struct FleetSnapshot {
    pub(super) view: FleetView,
    pub(super) at: Instant,
    /// How many workers we had taken out of service when the count began.
    pub(super) scale_down_epoch: u64,
}

/// The precondition of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// Refused unless the record was at the version we knew.
    Conditional,
    /// Accepted at any version.
    Unconditional,
}

/// Whether the version that a write left directly follows the known one.
pub(crate) fn follows(known: Option<u64>, left: u64) -> bool {
    known.and_then(|known| known.checked_add(1)) == Some(left)
}

/// The cached state of a worker at the start of a reconcile.
#[derive(Debug, Default)]
pub(crate) struct CachedState {
    pub(crate) idle_checked_at: Option<Timestamp>,
    pub(crate) metrics_reported_at: Option<Timestamp>,
    pub(crate) describe: Option<(InstanceId, Lookup<Instance>)>,
}

impl WorkerCache {
    /// Waits for the worker's lock, which serializes its reconciles.
    pub(crate) async fn lock(&self, id: &WorkerId) -> OwnedMutexGuard<()> {
        self.worker_lock(id).lock_owned().await
    }

    /// The worker's lock, if it is free.
    pub(crate) fn try_lock(&self, id: &WorkerId) -> Option<OwnedMutexGuard<()>> {
        self.worker_lock(id).try_lock_owned().ok()
    }

    fn worker_lock(&self, id: &WorkerId) -> Arc<tokio::sync::Mutex<()>> {
        let mut entries = self.entries.lock();
        let entry = entries.entry(id.clone()).or_default();
        entry.lock.upgrade().unwrap_or_else(|| {
            let lock = Arc::new(tokio::sync::Mutex::new(()));
            entry.lock = Arc::downgrade(&lock);
            lock
        })
    }

    /// The cached state of a worker. A real reconcile consumes the describe, because its effects outdate it. A describe
    /// sent before our last write or change is not returned: it may show the state before that.
    pub(crate) fn load(&self, id: &WorkerId, mode: Mode) -> CachedState {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(id) else { return CachedState::default() };
        let describe = match mode {
            Mode::Real => entry.describe.take(),
            Mode::DryRun => entry.describe.clone(),
        };
        CachedState {
            idle_checked_at: entry.idle_checked_at,
            metrics_reported_at: entry.metrics_reported_at,
            describe: describe
                .filter(|describe| describe.at.elapsed() < DESCRIBE_MAX_AGE)
                .filter(|describe| {
                    entry.written_at.max(entry.mutated_at).is_none_or(|changed_at| changed_at <= describe.at)
                })
                .map(|describe| (describe.instance, describe.response)),
        }
    }

    /// Stores the part of a batched describe that concerns one worker.
    pub(crate) fn store_describe(&self, id: &WorkerId, instance: InstanceId, response: Lookup<Instance>, at: Instant) {
        self.update(id, |entry| entry.describe = Some(CachedDescribe { instance, response, at }));
    }

    pub(crate) fn mark_idle_checked(&self, id: &WorkerId, at: Timestamp) {
        self.update(id, |entry| entry.idle_checked_at = Some(at));
    }

    pub(crate) fn mark_metrics_reported(&self, id: &WorkerId, at: Timestamp) {
        self.update(id, |entry| entry.metrics_reported_at = Some(at));
    }

    /// Notes the version of the record that a reconcile decides on.
    pub(crate) fn mark_read(&self, id: &WorkerId, version: Option<u64>) {
        self.update(id, |entry| entry.known_version = version);
    }

    /// Notes the version that our own write left. After an unconditional write whose version shows another writer in
    /// between, that change is still to be reconciled and the version is not known.
    pub(crate) fn mark_written(&self, id: &WorkerId, left: Option<u64>, kind: WriteKind) {
        self.update(id, |entry| {
            entry.written_at = Some(Instant::now());
            entry.known_version = match kind {
                WriteKind::Conditional => left,
                WriteKind::Unconditional => left.filter(|left| follows(entry.known_version, *left)),
            };
        });
    }

    /// Notes that we launched, started, stopped or terminated its instance, or may have.
    pub(crate) fn mark_mutated(&self, id: &WorkerId) {
        self.update(id, |entry| entry.mutated_at = Some(Instant::now()));
    }

    /// Whether a change event reports our own write. Without versions every event within `window` of our write counts
    /// as its echo; polling finds the changes that this hides.
    pub(crate) fn is_echo(&self, id: &WorkerId, version: Option<u64>, window: Duration) -> bool {
        let entries = self.entries.lock();
        entries.get(id).is_some_and(|entry| {
            entry.written_at.is_some_and(|at| at.elapsed() < window) && entry.known_version == version
        })
    }

    /// Drops the entries of workers that no longer exist, unless they are locked.
    pub(crate) fn retain(&self, exists: impl Fn(&WorkerId) -> bool) {
        self.entries.lock().retain(|id, entry| exists(id) || entry.lock.strong_count() > 0);
    }

    fn update(&self, id: &WorkerId, change: impl FnOnce(&mut Entry)) {
        let mut entries = self.entries.lock();
        match entries.get_mut(id) {
            Some(entry) => change(entry),
            None => change(entries.entry(id.clone()).or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::status::Ec2State;

    #[tokio::test(start_paused = true)]
    async fn a_describe_is_used_once_while_it_is_fresh() {
        let (cache, id) = (WorkerCache::default(), WorkerId::from("w-1"));
        let store =
            |at| cache.store_describe(&id, "i-1".into(), Lookup::Found(Instance::new("i-1", Ec2State::Running)), at);
        store(Instant::now());
        assert!(cache.load(&id, Mode::DryRun).describe.is_some(), "a dry run does not consume it");
        assert!(cache.load(&id, Mode::Real).describe.is_some());
        assert!(cache.load(&id, Mode::Real).describe.is_none());
        store(Instant::now());
        tokio::time::advance(DESCRIBE_MAX_AGE).await;
        assert!(cache.load(&id, Mode::Real).describe.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_describe_before_our_own_write_is_not_used() {
        let wrote = |cache: &WorkerCache, id: &WorkerId| cache.mark_written(id, Some(2), WriteKind::Conditional);
        for change in [wrote, |cache: &WorkerCache, id: &WorkerId| cache.mark_mutated(id)] {
            let (cache, id) = (WorkerCache::default(), WorkerId::from("w-1"));
            let sent_at = Instant::now();
            tokio::time::advance(Duration::from_secs(1)).await;
            change(&cache, &id);
            cache.store_describe(&id, "i-1".into(), Lookup::Absent, sent_at);
            assert!(cache.load(&id, Mode::Real).describe.is_none());
            cache.store_describe(&id, "i-1".into(), Lookup::Absent, Instant::now());
            assert!(cache.load(&id, Mode::Real).describe.is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn locks_are_exclusive() {
        let (cache, id) = (WorkerCache::default(), WorkerId::from("w-1"));
        let first = cache.lock(&id).await;
        cache.retain(|_| false);
        let second = tokio::time::timeout(Duration::from_secs(5), cache.lock(&id)).await;
        assert!(second.is_err(), "two locks at once");
        drop(first);
        let _second = cache.lock(&id).await;
        let _other = cache.lock(&WorkerId::from("w-2")).await;
    }

    #[tokio::test(start_paused = true)]
    async fn our_own_write_is_an_echo() {
        let (cache, id, window) = (WorkerCache::default(), WorkerId::from("w-1"), Duration::from_secs(2));
        cache.mark_read(&id, Some(2));
        assert!(!cache.is_echo(&id, Some(2), window), "nothing was written");
        cache.mark_written(&id, Some(3), WriteKind::Conditional);
        assert!(cache.is_echo(&id, Some(3), window));
        assert!(!cache.is_echo(&id, Some(4), window));
        cache.mark_written(&id, Some(4), WriteKind::Unconditional);
        assert!(cache.is_echo(&id, Some(4), window));
        cache.mark_written(&id, Some(6), WriteKind::Unconditional);
        assert!(!cache.is_echo(&id, Some(6), window), "another client wrote version 5");
    }

    #[tokio::test(start_paused = true)]
    async fn without_versions_an_echo_expires() {
        let (cache, id, window) = (WorkerCache::default(), WorkerId::from("w-1"), Duration::from_secs(2));
        cache.mark_written(&id, None, WriteKind::Unconditional);
        assert!(cache.is_echo(&id, None, window));
        tokio::time::advance(window).await;
        assert!(!cache.is_echo(&id, None, window));
    }
}
