//! Keeps the notes of LCM in a store of its own, where the records of the control plane do not hold them.
//!
//! # Flow
//! Reads take the record first and the notes after it, one range for a whole listing. A write sets notes before it writes
//! the record, and clears them after: a launch plan is durable before EC2 is called, and outlives the write that records
//! its instance. The start of a drain is set after the drain call, because a call that fails must not shorten a later
//! drain. A terminated worker keeps the time of its scale-down only, from which the cooldown of the fleet counts.
//!
//! # Guarantees
//! - A control plane that keeps notes is passed through untouched, and the store is not called.
//! - Notes that changed since the worker was read, and a leader with a newer fencing token, are a
//!   [`Conflict`](crate::FailureKind::Conflict) before anything is written. Writes of one reconcile follow each other.
//! - A failed write of notes fails the write of the patch.
//! - A worker with unreadable notes is unmanaged: without a launch plan that exists, it would be launched twice.
//!
//! # Assumptions
//! One prefix of notes belongs to one control plane.

mod place;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use self::place::{Place, PlaceChoice, shown};
use crate::lifecycle::event::{Audit, SessionEnd};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::idle::{AutoPause, IdleReport};
use crate::lifecycle::ids::{SessionId, WorkerId};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::json::FieldError;
use crate::lifecycle::license::LicenseReport;
use crate::lifecycle::observation::{CloudMetrics, CmlMetrics};
use crate::lifecycle::patch::{Patch, Route};
use crate::lifecycle::session::Session;
use crate::lifecycle::status::WorkerStatus;
use crate::lifecycle::template::Template;
use crate::lifecycle::time::{self, Timestamp};
use crate::lifecycle::worker::{Notes, NotesReading, Worker};
use crate::lifecycle::worker_json::UnreadableWorker;
use crate::ports::{
    Capabilities, Clock, ControlPlane, Fence, IdleCheck, ImportSummary, NotesListing, NotesPlacement, NotesStatus,
    NotesStore, ScanSettings, Scope, SessionMove, StoredNotes, Version, WorkerListing,
};

/// Default of the shortest age at which the notes of an ended worker are deleted.
const RETENTION: Duration = Duration::from_secs(24 * 3600);

/// Start of a drain, which a server may set itself.
const DRAIN_STARTED_AT: &str = "drain_started_at";
/// Time of a scale-down, which outlives its worker.
const SCALED_DOWN_AT: &str = "scaled_down_at";

/// A [`ControlPlane`] with the notes of its workers in a [`NotesStore`]. See the [module](self).
///
/// ```
/// use std::sync::Arc;
/// use lcm_sdk::ports::{ControlPlane, Ports, SystemClock};
/// use lcm_sdk::providers::memory::MemoryNotes;
/// use lcm_sdk::providers::notes::NotesControlPlane;
///
/// let mut ports = Ports::in_memory(Arc::new(SystemClock));
/// let store = Arc::new(MemoryNotes::default());
/// ports.control_plane = Arc::new(NotesControlPlane::new(ports.control_plane, store, Arc::new(SystemClock)));
/// assert_eq!(ports.control_plane.notes_status().place, "record");
/// ```
pub struct NotesControlPlane {
    inner: Arc<dyn ControlPlane>,
    store: Arc<dyn NotesStore>,
    clock: Arc<dyn Clock>,
    retention: Duration,
    choice: PlaceChoice,
    /// Number of the last read.
    reads: AtomicU64,
    /// The last write of each worker's notes by this process: the read it followed, and the version it left.
    own_writes: Mutex<HashMap<WorkerId, NotesReading>>,
}

impl NotesControlPlane {
    /// Wraps a control plane. Notes stay on the records if it keeps them there.
    pub fn new(inner: Arc<dyn ControlPlane>, store: Arc<dyn NotesStore>, clock: Arc<dyn Clock>) -> Self {
        Self {
            inner,
            store,
            clock,
            retention: RETENTION,
            choice: PlaceChoice::new(NotesPlacement::Auto),
            reads: AtomicU64::new(0),
            own_writes: Mutex::default(),
        }
    }

    /// Sets where notes are kept. [`NotesPlacement::Etcd`] and [`NotesPlacement::Memory`] both select the given store.
    #[must_use]
    pub fn with_placement(self, placement: NotesPlacement) -> Self {
        Self { choice: PlaceChoice::new(placement), ..self }
    }

    /// Sets the shortest age at which the notes of an ended worker are deleted. It must not be shorter than the cooldown
    /// of scale-down. Default: 24 h.
    #[must_use]
    pub fn with_retention(self, retention: Duration) -> Self {
        Self { retention, ..self }
    }

    fn place(&self) -> Place {
        self.choice.place(self.inner.capabilities().notes, self.store.kind())
    }

    fn next_read(&self) -> u64 {
        self.reads.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The stored notes of one worker, for a worker that was read from the inner port.
    async fn overlaid(&self, worker: Worker) -> Result<Worker, CallFailure> {
        let stored = match self.place() {
            Place::Record => return Ok(worker),
            Place::Store => self.store.get(&worker.id).await?,
            Place::Undecided => {
                let Some(stored) = self.choice.peek(self.store.get(&worker.id)).await else { return Ok(worker) };
                if stored.is_some() {
                    self.choice.note_stored();
                }
                stored
            }
        };
        let id = worker.id.clone();
        let unreadable =
            |problem| CallFailure::new(FailureKind::Unparsable, format!("notes of worker {id}: {problem}"));
        overlay(worker, stored.as_ref(), self.next_read()).map_err(|(_, problem)| unreadable(problem))
    }

    /// Adds the notes to a listing.
    fn overlay_listing(&self, listing: &mut WorkerListing, notes: &NotesListing) {
        let number = self.next_read();
        for worker in std::mem::take(&mut listing.workers) {
            let read = match notes.unreadable.get(&worker.id) {
                Some(problem) => Err((Box::new(worker), problem.clone())),
                None => {
                    let stored = notes.notes.get(&worker.id);
                    overlay(worker, stored, number)
                }
            };
            match read {
                Ok(worker) => listing.workers.push(worker),
                Err((worker, problem)) => listing.unreadable.push(UnreadableWorker {
                    error: FieldError::of_record(&format!("notes of worker {:?}", worker.id.as_str()), &problem),
                    ec2_instance_id: worker.ec2_instance_id,
                    id: Some(worker.id),
                }),
            }
        }
    }

    /// Writes a patch to a control plane that may or may not keep notes, and looks whether it did.
    async fn write_and_look(&self, worker: &Worker, patch: &Patch, fence: Fence) -> Result<Version, CallFailure> {
        let mut rest = patch.clone();
        let notes = rest.changes.take_notes();
        let (version, refusal) = match self.inner.write(worker, patch, fence).await {
            // A record that cannot hold notes may refuse a write of notes alone.
            Err(failure) if failure.kind == FailureKind::Refused && rest.is_empty() => {
                (patch.expected_version, Some(failure))
            }
            written => (written?, None),
        };
        let expected: Vec<&str> = shown(&notes).collect();
        if expected.is_empty() {
            return refusal.map_or(Ok(version), Err);
        }
        let unclear = |failure: CallFailure| {
            let message = format!("the record was written, but not read back for its notes: {failure}");
            CallFailure::new(FailureKind::Unclear, message)
        };
        let read = self.inner.worker(&worker.id).await.map_err(unclear)?;
        let Some(read) = read else { return refusal.map_or(Ok(version), Err) };
        let on_record = read.notes.to_json();
        let is_kept = expected.iter().all(|note| on_record.contains_key(*note));
        if let (true, Some(refusal)) = (is_kept, refusal) {
            return Err(refusal);
        }
        if self.choice.note_read_back(is_kept) {
            return Ok(version);
        }
        self.open(worker, fence).await?.change(notes, patch.at).await?;
        Ok(version)
    }

    async fn write_to_store(&self, worker: &Worker, patch: &Patch, fence: Fence) -> Result<Version, CallFailure> {
        let mut rest = patch.clone();
        let notes = rest.changes.take_notes();
        let route = patch.route(worker.status);
        if notes.is_empty() && route != Some(Route::Terminate) {
            return self.inner.write(worker, patch, fence).await;
        }
        let mut draft = match self.open(worker, fence).await {
            // Terminated before, and the notes with it: a termination is idempotent.
            Err(_) if route == Some(Route::Terminate) && self.store.get(&worker.id).await?.is_none() => {
                return self.inner.write(worker, &rest, fence).await;
            }
            draft => draft?,
        };
        if rest.is_empty() {
            // No write of the record checks that it is as it was read.
            self.check_record(worker, patch).await?;
            draft.change(notes, patch.at).await?;
            return Ok(patch.expected_version);
        }
        if route == Some(Route::Terminate) {
            let version = self.inner.write(worker, &rest, fence).await?;
            if let Err(failure) = draft.end(patch.at).await {
                tracing::warn!(target: "lcm::notes", worker = %worker.id, %failure, "the notes of a terminated worker were not deleted; they are collected later");
            }
            return Ok(version);
        }
        let is_later =
            |note: &str, value: &Value| value.is_null() || (note == DRAIN_STARTED_AT && route == Some(Route::Drain));
        let (later, first): (Map<_, _>, Map<_, _>) = notes.into_iter().partition(|(note, value)| is_later(note, value));
        draft.change(first, patch.at).await?;
        let version = self.inner.write(worker, &rest, fence).await?;
        draft.change(later, patch.at).await.map_err(|failure| {
            let message = format!("the record was written, but its notes were not: {failure}");
            CallFailure::new(FailureKind::Unclear, message)
        })?;
        Ok(version)
    }

    /// The current notes of a worker.
    ///
    /// # Errors
    /// [`FailureKind::Conflict`] if they changed since the worker was read, or if a newer leader wrote them.
    async fn open<'a>(&'a self, worker: &'a Worker, fence: Fence) -> Result<Draft<'a>, CallFailure> {
        let reading = worker.notes.reading.unwrap_or(NotesReading { version: 0, number: 0 });
        let own = self.own_writes.lock().get(&worker.id).copied();
        let known = own.filter(|own| own.number == reading.number && own.number > 0).unwrap_or(reading).version;
        let current = self.store.get(&worker.id).await?;
        let version = current.as_ref().map_or(0, |current| current.version);
        if version != known {
            let message = format!("the notes of worker {} are at version {version}, expected {known}", worker.id);
            return Err(CallFailure::new(FailureKind::Conflict, message));
        }
        StoredNotes::next_fence(current.as_ref(), fence)?;
        Ok(Draft { store: &*self.store, own_writes: &self.own_writes, worker, reading, current, fence })
    }

    /// Checks that a record is as it was read.
    async fn check_record(&self, worker: &Worker, patch: &Patch) -> Result<(), CallFailure> {
        let gone = || CallFailure::with_code(FailureKind::Refused, "404", "the worker does not exist");
        let current = self.inner.worker(&worker.id).await?.ok_or_else(gone)?;
        let is_unchanged = match (patch.expected_version, current.version) {
            (Some(expected), Some(version)) => expected == version,
            (None, _) | (_, None) => {
                let facts = |worker: &Worker| (worker.status, worker.desired_status, worker.ec2_instance_id.clone());
                facts(&current) == facts(worker)
            }
        };
        if is_unchanged {
            return Ok(());
        }
        Err(CallFailure::new(FailureKind::Conflict, "the record changed since it was read"))
    }
}

/// The notes of one worker during a write.
struct Draft<'a> {
    store: &'a dyn NotesStore,
    own_writes: &'a Mutex<HashMap<WorkerId, NotesReading>>,
    worker: &'a Worker,
    reading: NotesReading,
    current: Option<StoredNotes>,
    fence: Fence,
}

impl Draft<'_> {
    /// Changes notes; null clears one.
    async fn change(&mut self, changes: Map<String, Value>, at: Timestamp) -> Result<(), CallFailure> {
        let before = match &self.current {
            Some(current) => current.fields.clone(),
            // Notes that the record still has, from a time when it kept them.
            None if !changes.is_empty() => self.worker.notes.to_json(),
            None => Map::new(),
        };
        let mut after = before.clone();
        after.extend(changes);
        after.retain(|_, value| !value.is_null());
        if after == before {
            return Ok(());
        }
        self.put(after, at).await
    }

    /// Reduces the notes to those that outlive the worker.
    async fn end(mut self, at: Timestamp) -> Result<(), CallFailure> {
        let Some(current) = &self.current else { return Ok(()) };
        let mut fields = current.fields.clone();
        fields.retain(|note, _| note == SCALED_DOWN_AT);
        if fields.is_empty() {
            self.store.delete(&self.worker.id, current, self.fence).await?;
            self.own_writes.lock().remove(&self.worker.id);
            return Ok(());
        }
        self.put(fields, at).await
    }

    async fn put(&mut self, fields: Map<String, Value>, at: Timestamp) -> Result<(), CallFailure> {
        let (id, over) = (&self.worker.id, self.current.as_ref());
        let version = self.store.put(id, fields.clone(), over, self.fence, at).await?;
        let fence = StoredNotes::next_fence(over, self.fence)?;
        self.current = Some(StoredNotes { fields, version, fence, written_at: at });
        self.own_writes.lock().insert(id.clone(), NotesReading { version, ..self.reading });
        Ok(())
    }
}

/// The worker with its stored notes in place of those of the record, or the worker and a description of the problem.
fn overlay(mut worker: Worker, stored: Option<&StoredNotes>, number: u64) -> Result<Worker, (Box<Worker>, String)> {
    let reading = Some(NotesReading { version: stored.map_or(0, |stored| stored.version), number });
    let Some(stored) = stored else {
        worker.notes.reading = reading;
        return Ok(worker);
    };
    let mut notes = match Notes::from_json(stored.fields.clone()) {
        Ok(notes) => notes,
        Err(problem) => return Err((Box::new(worker), problem)),
    };
    if worker.status == WorkerStatus::Draining && notes.drain_started_at.is_none() {
        // Set by a server that began the drain itself.
        notes.drain_started_at = worker.notes.drain_started_at;
    }
    worker.notes = Notes { on_record: worker.notes.on_record, reading, ..notes };
    Ok(worker)
}

#[async_trait]
impl ControlPlane for NotesControlPlane {
    async fn workers(&self, scope: &Scope) -> Result<WorkerListing, CallFailure> {
        let mut listing = self.inner.workers(scope).await?;
        self.choice.note_records(self.inner.capabilities().notes, &listing.workers);
        let notes = match self.place() {
            Place::Record => return Ok(listing),
            Place::Store => self.store.list().await?,
            Place::Undecided => {
                let Some(notes) = self.choice.peek(self.store.list()).await else { return Ok(listing) };
                if notes != NotesListing::default() {
                    self.choice.note_stored();
                }
                notes
            }
        };
        self.overlay_listing(&mut listing, &notes);
        Ok(listing)
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<Worker>, CallFailure> {
        let Some(worker) = self.inner.worker(id).await? else { return Ok(None) };
        self.choice.note_records(self.inner.capabilities().notes, std::slice::from_ref(&worker));
        self.overlaid(worker).await.map(Some)
    }

    async fn write(&self, worker: &Worker, patch: &Patch, fence: Fence) -> Result<Version, CallFailure> {
        match self.place() {
            Place::Store => self.write_to_store(worker, patch, fence).await,
            Place::Undecided => self.write_and_look(worker, patch, fence).await,
            Place::Record => {
                let version = self.inner.write(worker, patch, fence).await?;
                self.choice.note_written(&worker.id, &patch.changes);
                Ok(version)
            }
        }
    }

    async fn with_notes(&self, worker: Worker) -> Result<Worker, CallFailure> {
        match worker.notes.reading {
            Some(_) => Ok(worker),
            None => self.overlaid(worker).await,
        }
    }

    async fn collect_notes(
        &self,
        fence: &(dyn for<'w> Fn(&'w WorkerId) -> Option<Fence> + Send + Sync),
    ) -> Result<usize, CallFailure> {
        match self.place() {
            Place::Store => {}
            Place::Record | Place::Undecided => return Ok(0),
        }
        // Before the records: a worker that is created in between has its notes in neither listing.
        let notes = self.store.list().await?.notes;
        if notes.is_empty() {
            return Ok(0);
        }
        let listing = self.inner.workers(&Scope::everything()).await?;
        // A list without any worker is more likely wrong, and a record without an id may be any worker.
        if listing.workers.is_empty() || listing.unreadable.iter().any(|record| record.id.is_none()) {
            return Ok(0);
        }
        let living = listing.workers.iter().filter(|worker| worker.status != WorkerStatus::Terminated);
        let unreadable = listing.unreadable.iter().filter_map(|record| record.id.as_ref());
        let kept: HashSet<&WorkerId> = living.map(|worker| &worker.id).chain(unreadable).collect();
        let now = self.clock.now();
        let mut deleted = 0;
        for (id, stored) in &notes {
            if kept.contains(id) || time::age(stored.written_at, now) < self.retention {
                continue;
            }
            let Some(fence) = fence(id) else { continue };
            match self.store.delete(id, stored, fence).await {
                Ok(()) => {
                    self.own_writes.lock().remove(id);
                    deleted += 1;
                }
                // Written since they were listed: the worker is in use.
                Err(failure) if failure.kind == FailureKind::Conflict => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(deleted)
    }

    fn notes_status(&self) -> NotesStatus {
        let mut status = self.choice.status(self.inner.capabilities().notes, self.store.kind());
        status.url = (self.place() != Place::Record).then(|| self.store.url()).flatten();
        status
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn pinned_capabilities(&self) -> Option<Capabilities> {
        self.inner.pinned_capabilities()
    }

    fn url(&self) -> Option<String> {
        self.inner.url()
    }

    async fn template(&self, name: &str) -> Result<Option<Template>, CallFailure> {
        self.inner.template(name).await
    }

    async fn sessions(&self, worker: &WorkerId) -> Result<Vec<Session>, CallFailure> {
        self.inner.sessions(worker).await
    }

    async fn move_session(&self, session: &SessionId, to: SessionMove, fence: Fence) -> Result<(), CallFailure> {
        self.inner.move_session(session, to, fence).await
    }

    async fn terminate_session(
        &self,
        session: &SessionId,
        reason: SessionEnd,
        fence: Fence,
    ) -> Result<(), CallFailure> {
        self.inner.terminate_session(session, reason, fence).await
    }

    async fn report_metrics(
        &self,
        id: &WorkerId,
        cloud: Option<&CloudMetrics>,
        cml: Option<&CmlMetrics>,
        at: Timestamp,
        fence: Fence,
    ) -> Result<Version, CallFailure> {
        self.inner.report_metrics(id, cloud, cml, at, fence).await
    }

    async fn report_license(&self, id: &WorkerId, report: LicenseReport, fence: Fence) -> Result<Version, CallFailure> {
        self.inner.report_license(id, report, fence).await
    }

    async fn detect_idle(
        &self,
        id: &WorkerId,
        telemetry: Option<Vec<Value>>,
        auto_pause: AutoPause,
        fence: Fence,
    ) -> Result<IdleCheck, CallFailure> {
        self.inner.detect_idle(id, telemetry, auto_pause, fence).await
    }

    async fn idle_status(&self, id: &WorkerId) -> Result<IdleReport, CallFailure> {
        self.inner.idle_status(id).await
    }

    async fn import(&self, region: &str, instances: &[Instance], fence: Fence) -> Result<ImportSummary, CallFailure> {
        self.inner.import(region, instances, fence).await
    }

    async fn discovery_settings(&self) -> Result<Option<ScanSettings>, CallFailure> {
        self.inner.discovery_settings().await
    }

    async fn audit(&self, id: &WorkerId, audit: Audit, detail: &str, fence: Fence) -> Result<(), CallFailure> {
        self.inner.audit(id, audit, detail, fence).await
    }

    async fn clear_sync(&self, id: &WorkerId, fence: Fence) -> Result<(), CallFailure> {
        self.inner.clear_sync(id, fence).await
    }
}

impl fmt::Debug for NotesControlPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotesControlPlane").field("status", &self.notes_status()).finish_non_exhaustive()
    }
}
