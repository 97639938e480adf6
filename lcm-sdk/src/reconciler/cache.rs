//! State that a reconciler keeps between reconciles. All of it can be dropped without harm.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::guards::Guards;
use super::result::Mode;
use crate::controller::timers::Timers;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::fleet::FleetView;
use crate::lifecycle::idle::{AutoPause, IdleReport};
use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::patch::Patch;
use crate::lifecycle::status::{DesiredStatus, WorkerStatus};
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;
use crate::ports::IdleCheck;

/// Maximum age of a cached describe. A reconcile calls EC2 itself after that.
const DESCRIBE_MAX_AGE: Duration = Duration::from_secs(30);

/// One entry per worker: versions and recent calls, beside the guards of the process.
#[derive(Debug, Default)]
pub(crate) struct WorkerCache {
    guards: Guards,
    entries: Mutex<HashMap<WorkerId, Entry>>,
    metrics_rounds: AtomicUsize,
    /// Time of all instants here.
    timers: Timers,
}

/// A round of the metrics loop, under way until it is dropped.
#[derive(Debug)]
pub(crate) struct MetricsRound<'a>(&'a AtomicUsize);

impl Drop for MetricsRound<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Debug, Default)]
struct Entry {
    idle_checked_at: Option<Timestamp>,
    metrics_reported_at: Option<Timestamp>,
    describe: Option<CachedDescribe>,
    /// The status at the last listing, and since when.
    status: Option<(WorkerStatus, Timestamp)>,
    tagged: Option<CachedTagged>,
    /// The latest version whose changes are all known: read by a reconcile, or written by us right after that.
    known_version: Option<u64>,
    /// The desired status that the last reconcile read.
    known_demand: Option<DesiredStatus>,
    written_at: Option<Instant>,
    /// Our last write and the record before it, until a later read shows what was kept.
    unconfirmed: Option<Box<(Worker, Patch)>>,
    /// Fields of which a later read showed that the control plane does not keep them.
    unkept: BTreeSet<&'static str>,
    mutated_at: Option<Instant>,
    /// The last idle check, if it paused the worker or may have, until the record shows another status.
    pause: Lookup<IdleReport>,
    /// The AMI whose details were written to the record, for a server that does not show them.
    image_written: Option<String>,
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

/// Instances with a worker's tag that a scan found.
#[derive(Debug, Clone)]
struct CachedTagged {
    instances: Vec<Instance>,
    /// When the scan began.
    at: Instant,
}

/// The fleet as last counted, with our own scale-downs since.
#[derive(Debug, Default)]
pub(super) struct CachedFleet {
    pub(super) snapshot: Option<FleetSnapshot>,
}

/// The latest known scale-down. A record that carries its time may be terminated, and is then no longer listed.
#[derive(Debug, Default)]
pub(super) struct ScaleDowns(Mutex<ScaleDownHistory>);

#[derive(Debug, Default)]
struct ScaleDownHistory {
    last: Option<Timestamp>,
    /// Whether terminated records were read once. Later scale-downs are noted as they happen.
    is_complete: bool,
}

impl ScaleDowns {
    /// Notes the latest scale-down that a listing showed, or one of our own. One in the future no longer counts: the clock
    /// was set back.
    pub(super) fn note(&self, at: Option<Timestamp>, now: Timestamp) {
        let mut history = self.0.lock();
        history.last = history.last.filter(|last| *last <= now).max(at);
    }

    /// Notes that terminated records were read, or need not be.
    pub(super) fn mark_complete(&self) {
        self.0.lock().is_complete = true;
    }

    pub(super) fn is_complete(&self) -> bool {
        self.0.lock().is_complete
    }

    pub(super) fn last(&self) -> Option<Timestamp> {
        self.0.lock().last
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        *self.0.lock() = ScaleDownHistory::default();
    }
}

impl Entry {
    /// Whether a record is as the last reconcile left it.
    fn knows(&self, worker: &Worker) -> bool {
        match worker.version {
            Some(version) => self.known_version == Some(version),
            None => self.known_demand == worker.desired_status,
        }
    }
}

/// A count of the fleet and its age.
#[derive(Debug, Clone, Copy)]
pub(super) struct FleetSnapshot {
    pub(super) view: FleetView,
    pub(super) at: Instant,
    /// How many workers we had taken out of service when the count began.
    pub(super) scale_down_epoch: u64,
}

/// The precondition of a write, and its effect on the version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// Refused unless the record was at the version we knew.
    Conditional,
    /// Accepted at any version, which it raises.
    Unconditional,
    /// Accepted at any version, which it leaves as it is.
    Measurement,
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
    pub(crate) tagged: Option<Vec<Instance>>,
    /// The last idle check, if it paused the worker or may have.
    pub(crate) pause: Lookup<IdleReport>,
}

impl WorkerCache {
    /// An empty cache beside the guards of the process.
    pub(super) fn new(guards: Guards, timers: Timers) -> Self {
        Self { guards, timers, ..Self::default() }
    }

    pub(super) fn guards(&self) -> &Guards {
        &self.guards
    }

    /// The time of all instants here.
    pub(crate) fn timers(&self) -> &Timers {
        &self.timers
    }

    /// Waits for the worker's lock, which serializes its reconciles.
    pub(crate) async fn lock(&self, id: &WorkerId) -> OwnedMutexGuard<()> {
        self.guards.lock(id).await
    }

    /// The cached state of a worker. A real reconcile consumes what EC2 returned, because its effects outdate it. A
    /// response to a call before our last write or change is not returned: it may show the state before that.
    pub(crate) fn load(&self, id: &WorkerId, mode: Mode) -> CachedState {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(id) else { return CachedState::default() };
        let (describe, tagged) = match mode {
            Mode::Real => (entry.describe.take(), entry.tagged.take()),
            Mode::DryRun => (entry.describe.clone(), entry.tagged.clone()),
        };
        let changed_at = entry.written_at.max(entry.mutated_at);
        let is_current = |at: Instant| {
            self.timers.elapsed(at) < DESCRIBE_MAX_AGE && changed_at.is_none_or(|changed_at| changed_at <= at)
        };
        CachedState {
            idle_checked_at: entry.idle_checked_at,
            metrics_reported_at: entry.metrics_reported_at,
            describe: describe
                .filter(|describe| is_current(describe.at))
                .map(|describe| (describe.instance, describe.response)),
            tagged: tagged.filter(|tagged| is_current(tagged.at)).map(|tagged| tagged.instances),
            pause: entry.pause.clone(),
        }
    }

    /// Stores the part of a batched describe that concerns one worker.
    pub(crate) fn store_describe(&self, id: &WorkerId, instance: InstanceId, response: Lookup<Instance>, at: Instant) {
        self.update(id, |entry| entry.describe = Some(CachedDescribe { instance, response, at }));
    }

    /// Stores the instances with a worker's tag that a scan found.
    pub(crate) fn store_tagged(&self, id: &WorkerId, instances: Vec<Instance>, at: Instant) {
        self.update(id, |entry| entry.tagged = Some(CachedTagged { instances, at }));
    }

    pub(crate) fn mark_idle_checked(&self, id: &WorkerId, at: Timestamp) {
        self.update(id, |entry| entry.idle_checked_at = Some(at));
    }

    /// Notes an idle check that paused the worker, or may have. The next reconcile could not tell the pause from an
    /// operator's stop.
    pub(crate) fn note_pause(&self, id: &WorkerId, checked: &Result<IdleCheck, CallFailure>, auto_pause: AutoPause) {
        let pause = match checked {
            Ok(IdleCheck { report, .. }) if report.auto_pause_triggered => Lookup::Found(IdleReport {
                // A check that must not pause is counted at once.
                idle_check_performed: auto_pause == AutoPause::ServerDecides && report.idle_check_performed,
                ..report.clone()
            }),
            Err(failure) if !failure.kind.did_nothing() => Lookup::Unknown(failure.clone()),
            Ok(_) | Err(_) => Lookup::NotRequested,
        };
        self.update(id, |entry| entry.pause = pause);
    }

    /// Begins a round of the metrics loop.
    pub(crate) fn begin_metrics_round(&self) -> MetricsRound<'_> {
        self.metrics_rounds.fetch_add(1, Ordering::AcqRel);
        MetricsRound(&self.metrics_rounds)
    }

    /// Whether a round of the metrics loop is under way.
    pub(crate) fn is_collecting_metrics(&self) -> bool {
        self.metrics_rounds.load(Ordering::Acquire) > 0
    }

    /// Since when the worker has its status, as far as is known. A status that is seen for the first time is at least as
    /// old as the last write of the record.
    pub(crate) fn status_since(&self, worker: &Worker, now: Timestamp) -> Timestamp {
        let mut since = now;
        self.update(&worker.id, |entry| {
            since = match entry.status {
                Some((status, since)) if status == worker.status => since,
                Some(_) | None => worker.updated_at.map_or(now, |written| written.min(now)),
            };
            entry.status = Some((worker.status, since));
        });
        since
    }

    pub(crate) fn mark_metrics_reported(&self, id: &WorkerId, at: Timestamp) {
        self.update(id, |entry| entry.metrics_reported_at = Some(at));
    }

    /// Notes the record that a reconcile decides on.
    pub(crate) fn mark_read(&self, worker: &Worker) {
        self.update(&worker.id, |entry| {
            entry.known_version = worker.version;
            entry.known_demand = worker.desired_status;
            if worker.status != WorkerStatus::Running {
                entry.pause = Lookup::NotRequested;
            }
        });
    }

    /// Whether a listed record is as its last reconcile left it. Without versions, only another desired status is news.
    pub(crate) fn is_known(&self, worker: &Worker) -> bool {
        self.entries.lock().get(&worker.id).is_some_and(|entry| entry.knows(worker))
    }

    /// Notes the version that our own write left. After an unconditional write whose version shows another writer in
    /// between, that change is still to be reconciled and the version is not known.
    pub(crate) fn mark_written(&self, id: &WorkerId, left: Option<u64>, kind: WriteKind) {
        self.update(id, |entry| {
            entry.written_at = Some(self.timers.now());
            entry.known_version = match kind {
                WriteKind::Conditional => left,
                WriteKind::Unconditional => left.filter(|left| follows(entry.known_version, *left)),
                WriteKind::Measurement => entry.known_version.filter(|known| left == Some(*known)),
            };
        });
    }

    /// Notes a write to be compared with the next read.
    pub(crate) fn mark_unconfirmed(&self, before: &Worker, patch: &Patch) {
        self.update(&before.id, |entry| entry.unconfirmed = Some(Box::new((before.clone(), patch.clone()))));
    }

    /// Compares a record that was read at `read_at` with our last write, if that is older. Returns the fields that were
    /// not kept, without those of earlier writes.
    pub(crate) fn confirm(&self, worker: &Worker, read_at: Instant) -> Vec<&'static str> {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&worker.id) else { return Vec::new() };
        if entry.written_at.is_some_and(|written_at| written_at >= read_at) {
            return Vec::new();
        }
        let Some(written) = entry.unconfirmed.take() else { return Vec::new() };
        let (before, patch) = *written;
        let mut unkept = patch.unkept(&before, worker);
        unkept.retain(|field| entry.unkept.insert(field));
        unkept
    }

    /// Whether the control plane did not keep a field of this worker.
    pub(crate) fn has_unkept(&self, id: &WorkerId) -> bool {
        self.entries.lock().get(id).is_some_and(|entry| !entry.unkept.is_empty())
    }

    /// Notes that the details of an AMI were written to the record.
    pub(crate) fn mark_image_written(&self, id: &WorkerId, image: &str) {
        self.update(id, |entry| entry.image_written = Some(image.to_owned()));
    }

    /// The AMI whose details were last written to the record.
    pub(crate) fn image_written(&self, id: &WorkerId) -> Option<String> {
        self.entries.lock().get(id)?.image_written.clone()
    }

    /// Notes that we launched, started, stopped or terminated its instance, or may have.
    pub(crate) fn mark_mutated(&self, id: &WorkerId) {
        self.update(id, |entry| entry.mutated_at = Some(self.timers.now()));
    }

    /// Whether a change event reports our own write. Without versions every event within `window` of our write counts
    /// as its echo, unless the record shows another desired status; polling finds the other changes that this hides.
    pub(crate) fn is_echo(&self, worker: &Worker, window: Duration) -> bool {
        let entries = self.entries.lock();
        entries.get(&worker.id).is_some_and(|entry| {
            entry.written_at.is_some_and(|at| self.timers.elapsed(at) < window) && entry.knows(worker)
        })
    }

    /// Drops the entries of workers that no longer exist, unless they are locked.
    pub(crate) fn retain(&self, exists: impl Fn(&WorkerId) -> bool) {
        self.entries.lock().retain(|id, _| exists(id) || self.guards.is_locked(id));
        self.guards.retain(exists);
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
    use crate::lifecycle::status::{Ec2State, WorkerStatus};

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
        let mut read = Worker::new("w-1", WorkerStatus::Running);
        read.version = Some(2);
        cache.mark_read(&read);
        assert!(!cache.is_echo(&at_version(Some(2)), window), "nothing was written");
        cache.mark_written(&id, Some(3), WriteKind::Conditional);
        assert!(cache.is_echo(&at_version(Some(3)), window));
        assert!(!cache.is_echo(&at_version(Some(4)), window));
        cache.mark_written(&id, Some(4), WriteKind::Unconditional);
        assert!(cache.is_echo(&at_version(Some(4)), window));
        cache.mark_written(&id, Some(6), WriteKind::Unconditional);
        assert!(!cache.is_echo(&at_version(Some(6)), window), "another client wrote version 5");
    }

    fn at_version(version: Option<u64>) -> Worker {
        let mut worker = Worker::new("w-1", WorkerStatus::Running);
        worker.version = version;
        worker
    }

    #[test]
    fn measurement_hides_no_write_of_another_client() {
        let (cache, id, window) = (WorkerCache::default(), WorkerId::from("w-1"), Duration::from_secs(2));
        cache.mark_written(&id, Some(3), WriteKind::Conditional);
        cache.mark_written(&id, Some(3), WriteKind::Measurement);
        assert!(cache.is_echo(&at_version(Some(3)), window), "the version is as our write left it");
        cache.mark_written(&id, Some(4), WriteKind::Measurement);
        assert!(!cache.is_echo(&at_version(Some(4)), window), "another client wrote version 4");
    }

    #[test]
    fn listed_record_is_known_until_it_changes() {
        let cache = WorkerCache::default();
        let mut worker = Worker::new("w-1", WorkerStatus::Running);
        assert!(!cache.is_known(&worker), "it was never reconciled");
        cache.mark_read(&worker);
        assert!(cache.is_known(&worker));
        worker.desired_status = Some(DesiredStatus::Stopped);
        assert!(!cache.is_known(&worker), "a demand is news without versions too");
        worker.version = Some(2);
        cache.mark_read(&worker);
        cache.mark_written(&worker.id, Some(3), WriteKind::Conditional);
        worker.version = Some(3);
        assert!(cache.is_known(&worker), "our own write");
        worker.version = Some(4);
        assert!(!cache.is_known(&worker));
    }

    #[tokio::test(start_paused = true)]
    async fn without_versions_an_echo_expires() {
        let (cache, id, window) = (WorkerCache::default(), WorkerId::from("w-1"), Duration::from_secs(2));
        cache.mark_written(&id, None, WriteKind::Unconditional);
        assert!(cache.is_echo(&at_version(None), window));
        tokio::time::advance(window).await;
        assert!(!cache.is_echo(&at_version(None), window));
    }

    #[test]
    fn without_versions_another_desired_status_is_no_echo() {
        let (cache, window) = (WorkerCache::default(), Duration::from_secs(2));
        let mut worker = at_version(None);
        cache.mark_read(&worker);
        cache.mark_written(&worker.id, None, WriteKind::Conditional);
        assert!(cache.is_echo(&worker, window));
        worker.desired_status = Some(DesiredStatus::Stopped);
        assert!(!cache.is_echo(&worker, window));
    }
}
