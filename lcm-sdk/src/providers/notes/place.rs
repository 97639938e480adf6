//! Decides whether notes are kept on the records or in the store.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::lifecycle::decision::Changes;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::worker::Worker;
use crate::ports::{NotesPlacement, NotesStatus, Support};

/// Time after a failed read in which the store is left alone while it may not be needed.
const PAUSE: Duration = Duration::from_secs(30);

/// Where notes are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Record,
    Store,
    /// The first note that is written decides.
    Undecided,
}

/// The decision where notes are kept, and the facts that it rests on.
pub(super) struct PlaceChoice {
    placement: NotesPlacement,
    facts: Mutex<Facts>,
}

#[derive(Default)]
struct Facts {
    /// The place for a control plane whose capabilities are unknown, and the reason.
    found: Option<(Place, &'static str)>,
    /// The last place that was logged.
    logged: Option<Place>,
    /// Notes that were written to a record, to be looked for at the next read.
    written: HashMap<WorkerId, Vec<String>>,
    /// Whether one of them was missing.
    lost: bool,
    /// End of the pause after a failed read of the store.
    paused_until: Option<Instant>,
}

impl PlaceChoice {
    pub(super) fn new(placement: NotesPlacement) -> Self {
        Self { placement, facts: Mutex::default() }
    }

    /// Where notes are kept. Logs a change once.
    pub(super) fn place(&self, support: Support, store: &str) -> Place {
        let (place, reason) = self.decide(support);
        let mut facts = self.facts.lock();
        if facts.logged != Some(place) {
            facts.logged = Some(place);
            match place {
                Place::Record => tracing::info!(target: "lcm::notes", reason, "notes are kept on the records"),
                Place::Store => tracing::info!(target: "lcm::notes", store, reason, "notes are kept in the store"),
                Place::Undecided => {
                    tracing::debug!(target: "lcm::notes", store, "the first note that is written decides where notes are kept")
                }
            }
        }
        place
    }

    pub(super) fn status(&self, support: Support, store: &'static str) -> NotesStatus {
        let (place, reason) = self.decide(support);
        let place = match place {
            Place::Record => "record",
            Place::Store => store,
            Place::Undecided => "undecided",
        };
        NotesStatus { lost: self.facts.lock().lost, ..NotesStatus::new(place, reason) }
    }

    fn decide(&self, support: Support) -> (Place, &'static str) {
        match (self.placement, support) {
            (NotesPlacement::Record, _) => (Place::Record, "NOTES_STORE says so"),
            (NotesPlacement::Etcd | NotesPlacement::Memory, _) => (Place::Store, "NOTES_STORE says so"),
            (NotesPlacement::Auto, Support::Yes) => (Place::Record, "the control plane keeps notes"),
            (NotesPlacement::Auto, Support::No) => (Place::Store, "the control plane drops notes"),
            (NotesPlacement::Auto, Support::Unknown) => {
                self.facts.lock().found.unwrap_or((Place::Undecided, "no note was written yet"))
            }
        }
    }

    /// Draws conclusions from records that were read.
    pub(super) fn note_records(&self, support: Support, workers: &[Worker]) {
        let is_undecided = self.decide(support).0 == Place::Undecided;
        let mut facts = self.facts.lock();
        if is_undecided && facts.found.is_none() && workers.iter().any(has_our_notes) {
            facts.found = Some((Place::Record, "the records show notes"));
        }
        if facts.written.is_empty() {
            return;
        }
        for worker in workers {
            let Some(written) = facts.written.remove(&worker.id) else { continue };
            let on_record = worker.notes.to_json();
            let missing = written.into_iter().find(|note| !on_record.contains_key(note));
            if let (Some(note), false) = (missing, facts.lost) {
                facts.lost = true;
                let worker = worker.id.as_str();
                tracing::warn!(target: "lcm::notes", worker, note, "the control plane dropped a note; NOTES_STORE=etcd keeps notes in etcd");
            }
        }
    }

    /// Notes a write to a record, to look for it at the next read.
    pub(super) fn note_written(&self, id: &WorkerId, changes: &Changes) {
        let notes = changes.clone().take_notes();
        let expected: Vec<String> = shown(&notes).map(str::to_owned).collect();
        if expected.is_empty() {
            self.facts.lock().written.remove(id);
        } else {
            self.facts.lock().written.insert(id.clone(), expected);
        }
    }

    /// Notes that the store has notes: an earlier process has decided.
    pub(super) fn note_stored(&self) {
        self.facts.lock().found.get_or_insert((Place::Store, "the store has notes"));
    }

    /// Notes whether a record shows the notes that were written to it. Returns whether notes are kept on the records.
    pub(super) fn note_read_back(&self, is_kept: bool) -> bool {
        let found = match is_kept {
            true => (Place::Record, "the records keep notes"),
            false => (Place::Store, "a note that was written to a record was not there afterwards"),
        };
        self.facts.lock().found.get_or_insert(found).0 == Place::Record
    }

    /// Reads from a store that may not be needed. `None` if it cannot be read; it is then left alone for a while.
    pub(super) async fn peek<T>(&self, read: impl Future<Output = Result<T, CallFailure>>) -> Option<T> {
        if self.facts.lock().paused_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        match read.await {
            Ok(read) => Some(read),
            Err(failure) => {
                self.facts.lock().paused_until = Some(Instant::now() + PAUSE);
                tracing::warn!(target: "lcm::notes", %failure, "the notes store cannot be read; notes of the records count");
                None
            }
        }
    }
}

/// Whether a record has a note that only LCM writes. Servers may set the start of a drain and the time of a launch.
fn has_our_notes(worker: &Worker) -> bool {
    let notes = &worker.notes;
    notes.drain_timeout_seconds.is_some()
        || notes.drain_tries > 0
        || notes.scaled_down_at.is_some()
        || notes.launch_generation > 0
        || notes.launch_plan.is_some()
        || notes.license_attempt.is_some()
        || notes.license_wait.is_some()
        || notes.ec2_account_id.is_some()
        || notes.ec2_region.is_some()
}

/// The names of the notes that a record shows after they were written. Zero and empty text are shown as absent.
pub(super) fn shown(notes: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let is_shown = |value: &Value| !value.is_null() && *value != 0 && *value != "";
    notes.iter().filter(move |(_, value)| is_shown(value)).map(|(note, _)| note.as_str())
}
