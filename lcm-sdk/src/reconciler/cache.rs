//! What a reconciler remembers between passes. All of it can be forgotten without harm.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::observation::Lookup;
use crate::lifecycle::time::Timestamp;
use crate::reconciler::Mode;

/// How old a description of an instance may be before a pass asks EC2 itself.
const DESCRIBE_MAX_AGE: Duration = Duration::from_secs(30);

/// Entry about workers, by id.
#[derive(Debug, Default)]
pub(crate) struct WorkerCache {
    entries: Mutex<HashMap<WorkerId, Entry>>,
}

#[derive(Debug, Default)]
struct Entry {
    idle_checked_at: Option<Timestamp>,
    metrics_reported_at: Option<Timestamp>,
    describe: Option<CachedDescribe>,
    /// The version up to which every change is known here: read by a pass, or made by ourselves on top of that.
    known_version: Option<u64>,
    written_at: Option<Instant>,
    mutated_at: Option<Instant>,
    lock: Weak<tokio::sync::Mutex<()>>,
}

/// What a describe of many showed of one.
#[derive(Debug, Clone)]
struct CachedDescribe {
    /// Which instance was asked for: the record may name another one by the time this is used.
    instance: InstanceId,
    answer: Lookup<Instance>,
    /// When it was asked for.
    at: Instant,
}

/// How a write was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// Only if the record was at the version we knew.
    Conditional,
    /// Over whatever was there.
    Unconditional,
}

/// Whether a write that left this version came right after the one we know.
pub(crate) fn follows(known: Option<u64>, left: u64) -> bool {
    known.and_then(|known| known.checked_add(1)) == Some(left)
}

/// What is remembered about a worker at the beginning of a pass.
#[derive(Debug, Default)]
pub(crate) struct CachedState {
    pub(crate) idle_checked_at: Option<Timestamp>,
    pub(crate) metrics_reported_at: Option<Timestamp>,
    pub(crate) describe: Option<(InstanceId, Lookup<Instance>)>,
}

impl WorkerCache {
    /// Waits for the worker's lock: passes over one worker follow each other, whoever asks for them.
    pub(crate) async fn lock(&self, id: &WorkerId) -> OwnedMutexGuard<()> {
        self.worker_lock(id).lock_owned().await
    }

    /// The worker's lock, if nobody has it.
    pub(crate) fn try_lock(&self, id: &WorkerId) -> Option<OwnedMutexGuard<()>> {
        self.worker_lock(id).try_lock_owned().ok()
    }

    fn worker_lock(&self, id: &WorkerId) -> Arc<tokio::sync::Mutex<()>> {
        let mut notes = self.entries.lock();
        let notes = notes.entry(id.clone()).or_default();
        notes.lock.upgrade().unwrap_or_else(|| {
            let lock = Arc::new(tokio::sync::Mutex::new(()));
            notes.lock = Arc::downgrade(&lock);
            lock
        })
    }

    /// What is remembered. A describe is given out to one real pass: whatever that does makes it old. One from before
    /// we last wrote to the record or changed the instance is old already: it may show what is no more.
    pub(crate) fn load(&self, id: &WorkerId, mode: Mode) -> CachedState {
        let mut notes = self.entries.lock();
        let Some(notes) = notes.get_mut(id) else { return CachedState::default() };
        let describe = match mode {
            Mode::Real => notes.describe.take(),
            Mode::DryRun => notes.describe.clone(),
        };
        CachedState {
            idle_checked_at: notes.idle_checked_at,
            metrics_reported_at: notes.metrics_reported_at,
            describe: describe
                .filter(|describe| describe.at.elapsed() < DESCRIBE_MAX_AGE)
                .filter(|describe| {
                    notes.written_at.max(notes.mutated_at).is_none_or(|changed_at| changed_at <= describe.at)
                })
                .map(|describe| (describe.instance, describe.answer)),
        }
    }

    /// Entry what a describe of many showed of one.
    pub(crate) fn store_describe(&self, id: &WorkerId, instance: InstanceId, answer: Lookup<Instance>, at: Instant) {
        self.note(id, |notes| notes.describe = Some(CachedDescribe { instance, answer, at }));
    }

    pub(crate) fn mark_idle_checked(&self, id: &WorkerId, at: Timestamp) {
        self.note(id, |notes| notes.idle_checked_at = Some(at));
    }

    pub(crate) fn mark_metrics_reported(&self, id: &WorkerId, at: Timestamp) {
        self.note(id, |notes| notes.metrics_reported_at = Some(at));
    }

    /// Entry the version of the record that a pass decides on.
    pub(crate) fn mark_read(&self, id: &WorkerId, version: Option<u64>) {
        self.note(id, |notes| notes.known_version = version);
    }

    /// Entry the version that our own write left. If it was written over whatever was there, and the version shows
    /// that somebody else wrote in between, their change is still to be looked at.
    pub(crate) fn mark_written(&self, id: &WorkerId, left: Option<u64>, kind: WriteKind) {
        self.note(id, |notes| {
            notes.written_at = Some(Instant::now());
            notes.known_version = match kind {
                WriteKind::Conditional => left,
                WriteKind::Unconditional => left.filter(|left| follows(notes.known_version, *left)),
            };
        });
    }

    /// Entry that we launched, started, stopped or terminated its instance, or may have.
    pub(crate) fn mark_mutated(&self, id: &WorkerId) {
        self.note(id, |notes| notes.mutated_at = Some(Instant::now()));
    }

    /// Whether a record that is told as changed is only as we have just left it. A server without versions cannot
    /// tell, so whatever comes right after our own write passes for its echo; polling finds what that hides.
    pub(crate) fn is_echo(&self, id: &WorkerId, version: Option<u64>, window: Duration) -> bool {
        let notes = self.entries.lock();
        notes.get(id).is_some_and(|notes| {
            notes.written_at.is_some_and(|at| at.elapsed() < window) && notes.known_version == version
        })
    }

    /// Forgets every worker that does not exist any more.
    pub(crate) fn retain(&self, exists: impl Fn(&WorkerId) -> bool) {
        self.entries.lock().retain(|id, notes| exists(id) || notes.lock.strong_count() > 0);
    }

    fn note(&self, id: &WorkerId, change: impl FnOnce(&mut Entry)) {
        let mut notes = self.entries.lock();
        match notes.get_mut(id) {
            Some(notes) => change(notes),
            None => change(notes.entry(id.clone()).or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::status::Ec2State;

    #[tokio::test(start_paused = true)]
    async fn a_sighting_is_used_once_and_only_while_it_is_fresh() {
        let (cache, id) = (WorkerCache::default(), WorkerId::from("w-1"));
        let saw =
            |at| cache.store_describe(&id, "i-1".into(), Lookup::Found(Instance::new("i-1", Ec2State::Running)), at);
        saw(Instant::now());
        assert!(cache.load(&id, Mode::DryRun).describe.is_some(), "a simulation uses nothing up");
        assert!(cache.load(&id, Mode::Real).describe.is_some());
        assert!(cache.load(&id, Mode::Real).describe.is_none());
        saw(Instant::now());
        tokio::time::advance(DESCRIBE_MAX_AGE).await;
        assert!(cache.load(&id, Mode::Real).describe.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_seen_before_our_own_write_or_deed_is_not_used() {
        let wrote = |cache: &WorkerCache, id: &WorkerId| cache.mark_written(id, Some(2), WriteKind::Conditional);
        for change in [wrote, |cache: &WorkerCache, id: &WorkerId| cache.mark_mutated(id)] {
            let (cache, id) = (WorkerCache::default(), WorkerId::from("w-1"));
            let asked_at = Instant::now();
            tokio::time::advance(Duration::from_secs(1)).await;
            change(&cache, &id);
            cache.store_describe(&id, "i-1".into(), Lookup::Absent, asked_at);
            assert!(cache.load(&id, Mode::Real).describe.is_none());
            cache.store_describe(&id, "i-1".into(), Lookup::Absent, Instant::now());
            assert!(cache.load(&id, Mode::Real).describe.is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn turns_follow_each_other() {
        let (cache, id) = (WorkerCache::default(), WorkerId::from("w-1"));
        let first = cache.lock(&id).await;
        cache.retain(|_| false);
        let second = tokio::time::timeout(Duration::from_secs(5), cache.lock(&id)).await;
        assert!(second.is_err(), "two turns at once");
        drop(first);
        let _second = cache.lock(&id).await;
        let _other = cache.lock(&WorkerId::from("w-2")).await;
    }

    #[tokio::test(start_paused = true)]
    async fn our_own_write_is_known_from_somebody_elses() {
        let (cache, id, window) = (WorkerCache::default(), WorkerId::from("w-1"), Duration::from_secs(2));
        cache.mark_read(&id, Some(2));
        assert!(!cache.is_echo(&id, Some(2), window), "nothing was written");
        cache.mark_written(&id, Some(3), WriteKind::Conditional);
        assert!(cache.is_echo(&id, Some(3), window));
        assert!(!cache.is_echo(&id, Some(4), window));
        cache.mark_written(&id, Some(4), WriteKind::Unconditional);
        assert!(cache.is_echo(&id, Some(4), window));
        cache.mark_written(&id, Some(6), WriteKind::Unconditional);
        assert!(!cache.is_echo(&id, Some(6), window), "somebody wrote version 5");
    }

    #[tokio::test(start_paused = true)]
    async fn without_versions_an_echo_is_a_matter_of_time() {
        let (cache, id, window) = (WorkerCache::default(), WorkerId::from("w-1"), Duration::from_secs(2));
        cache.mark_written(&id, None, WriteKind::Unconditional);
        assert!(cache.is_echo(&id, None, window));
        tokio::time::advance(window).await;
        assert!(!cache.is_echo(&id, None, window));
    }
}
