//! The last reconciles of each worker that changed something or went wrong, kept in memory.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Map, Value};

use super::result::{Mode, ReconcileResult};
use crate::history::{RecordedStep, StepReason};
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::outcome::Outcome;
use crate::lifecycle::reason::{Reason, ReasonCode};
use crate::lifecycle::status::WorkerStatus;
use crate::lifecycle::time::Timestamp;

/// Maximum number of entries of one worker.
const PER_WORKER: usize = 20;

/// Maximum number of entries of all workers together, about five megabytes.
const IN_TOTAL: usize = 10_000;

/// One reconcile of a worker, or several in a row that ended the same.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RecentReconcile {
    /// When the reconcile began; of several, the first.
    pub at: Timestamp,
    /// When the latest of them began.
    pub last_at: Timestamp,
    /// How many more followed that ended the same.
    pub repeats: u32,
    /// Outcome of the reconcile.
    pub outcome: Outcome,
    /// The status before the reconcile.
    pub from_status: WorkerStatus,
    /// The status after it.
    pub to_status: WorkerStatus,
    /// The reason for the outcome.
    pub reason: RecentReason,
    /// The effects in order, such as `stop_instance i-1`.
    pub effects: Box<[Box<str>]>,
    /// The result of each effect: `done`, `launched i-1`, `not_tried`, or `failed: ` and the failure.
    pub results: Box<[Box<str>]>,
    /// Fields of the record besides its status that were written, by their names on the record; null cleared a field.
    pub changes: Map<String, Value>,
    /// Duration of the latest of them, in milliseconds.
    pub duration_ms: u64,
    /// Whether nothing was changed and nothing went wrong.
    #[serde(skip)]
    is_routine: bool,
}

/// The chain of reconciles that led to the status of a worker at a time.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WorkerHistory {
    /// Where it is from.
    pub source: HistorySource,
    /// The time.
    pub at: Timestamp,
    /// The reconciles, the oldest first; empty if none is known up to that time.
    pub steps: Vec<RecordedStep>,
}

/// Where the history of a worker is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HistorySource {
    /// The files of the recording, with observations.
    Recording,
    /// The memory of the controller: the last reconciles since it started, without observations.
    Memory,
}

/// The reason of a [`RecentReconcile`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecentReason {
    /// The stable code.
    pub code: ReasonCode,
    /// The sentence, with its details.
    pub sentence: Box<str>,
}

/// A recent reconcile of any worker.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkerEvent {
    /// Number of the entry, ascending over all workers.
    pub number: u64,
    /// The worker.
    pub worker_id: WorkerId,
    /// The reconcile.
    #[serde(flatten)]
    pub entry: RecentReconcile,
}

/// Recent reconciles of all workers.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RecentEvents {
    /// Number of the next entry: with it, a later request continues without a gap.
    pub next: u64,
    /// The entries, the oldest first.
    pub events: Vec<WorkerEvent>,
}

impl From<&Reason> for RecentReason {
    fn from(reason: &Reason) -> Self {
        Self { code: reason.code, sentence: reason.to_string().into() }
    }
}

impl RecentReconcile {
    fn new(result: &ReconcileResult, at: Timestamp, took: Duration) -> Self {
        Self {
            at,
            last_at: at,
            repeats: 0,
            outcome: result.outcome,
            from_status: result.from_status,
            to_status: result.to_status,
            reason: (&result.reason).into(),
            effects: result.effects.iter().map(|report| report.effect.to_string().into()).collect(),
            results: result.effects.iter().map(|report| report.result.text().into()).collect(),
            changes: result.changes.to_json(),
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            is_routine: result.is_routine(),
        }
    }

    /// The same as a step of a recording, without the observation.
    pub(super) fn into_step(self, worker: &WorkerId) -> RecordedStep {
        let texts = |texts: Box<[Box<str>]>| texts.into_iter().map(String::from).collect();
        RecordedStep {
            at: self.at,
            last_at: self.last_at,
            repeats: self.repeats,
            worker_id: worker.clone(),
            outcome: self.outcome,
            from_status: self.from_status,
            to_status: self.to_status,
            reason: StepReason { code: self.reason.code.as_str().to_owned(), sentence: self.reason.sentence.into() },
            requested_by: None,
            observed: Vec::new(),
            effects: texts(self.effects),
            results: texts(self.results),
        }
    }

    /// Whether it says the same as an earlier one. Measurements come and go with every other reconcile.
    fn repeats(&self, earlier: &Self) -> bool {
        let ending = |entry: &Self| (entry.outcome, entry.from_status, entry.to_status, entry.reason.code);
        let is_same = ending(self) == ending(earlier) && self.is_routine == earlier.is_routine;
        is_same && (self.is_routine || (&self.effects, &self.changes) == (&earlier.effects, &earlier.changes))
    }
}

/// The recent reconciles of all workers. A worker at which nothing ever happened takes no memory.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    by_worker: HashMap<WorkerId, VecDeque<(u64, RecentReconcile)>>,
    /// Every entry by age. An entry that its worker dropped stays until it is the oldest.
    by_age: VecDeque<(u64, WorkerId)>,
    next: u64,
}

impl Recent {
    /// Notes a reconcile.
    pub(super) fn note(&self, result: &ReconcileResult, at: Timestamp, took: Duration) {
        if result.mode == Mode::DryRun {
            return;
        }
        let is_routine = result.is_routine();
        let mut entries = self.0.lock();
        let entries = &mut *entries;
        if is_routine && !entries.by_worker.contains_key(&result.worker_id) {
            return;
        }
        let entry = RecentReconcile::new(result, at, took);
        let of_worker = entries.by_worker.entry(result.worker_id.clone()).or_default();
        if let Some((_, last)) = of_worker.back_mut()
            && entry.repeats(last)
        {
            *last = RecentReconcile { at: last.at, repeats: last.repeats.saturating_add(1), ..entry };
            return;
        }
        if of_worker.len() == PER_WORKER {
            of_worker.pop_front();
        }
        of_worker.push_back((entries.next, entry));
        entries.by_age.push_back((entries.next, result.worker_id.clone()));
        entries.next += 1;
        if entries.by_age.len() > IN_TOTAL {
            entries.drop_oldest();
        }
    }

    /// Returns the entries of a worker, the oldest first.
    pub(super) fn of(&self, worker: &WorkerId) -> Vec<RecentReconcile> {
        let entries = self.0.lock();
        entries.by_worker.get(worker).into_iter().flatten().map(|(_, entry)| entry.clone()).collect()
    }

    /// Returns the entries of all workers from a number on that are still held, the oldest first.
    pub(super) fn since(&self, number: u64) -> RecentEvents {
        let entries = self.0.lock();
        let first = entries.by_age.partition_point(|(at, _)| *at < number);
        let events = entries.by_age.range(first..).filter_map(|(number, worker_id)| {
            let of_worker = entries.by_worker.get(worker_id)?;
            let position = of_worker.binary_search_by_key(number, |(number, _)| *number).ok()?;
            let (number, worker_id, entry) = (*number, worker_id.clone(), of_worker.get(position)?.1.clone());
            Some(WorkerEvent { number, worker_id, entry })
        });
        RecentEvents { next: entries.next, events: events.collect() }
    }
}

impl Entries {
    fn drop_oldest(&mut self) {
        let Some((number, worker)) = self.by_age.pop_front() else { return };
        let Some(of_worker) = self.by_worker.get_mut(&worker) else { return };
        if of_worker.front().is_some_and(|(oldest, _)| *oldest == number) {
            of_worker.pop_front();
        }
        if of_worker.is_empty() {
            self.by_worker.remove(&worker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::decision::Changes;
    use crate::lifecycle::effect::{Effect, EffectResult};
    use crate::lifecycle::outcome::Requeue;
    use crate::lifecycle::worker::Worker;
    use crate::reconciler::EffectReport;

    const TOOK: Duration = Duration::from_millis(12);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_timestamp(second, 0).expect("a time")
    }

    fn result(id: &str, outcome: Outcome, code: ReasonCode) -> ReconcileResult {
        let worker = Worker::new(id, WorkerStatus::Stopped);
        ReconcileResult::unchanged(&worker, Mode::Real, outcome, Requeue::NextCycle, code.into())
    }

    fn started(id: &str) -> ReconcileResult {
        let effect =
            EffectReport { effect: Effect::StartInstance { instance: "i-1".into() }, result: EffectResult::Done };
        let to_status = WorkerStatus::Starting;
        ReconcileResult { to_status, effects: vec![effect], ..result(id, Outcome::Success, ReasonCode::StartRequested) }
    }

    #[test]
    fn idle_workers_take_no_memory() {
        let kept = Recent::default();
        kept.note(&result("w-1", Outcome::Success, ReasonCode::AtRest), at(0), TOOK);
        let dry = ReconcileResult { mode: Mode::DryRun, ..started("w-1") };
        kept.note(&dry, at(0), TOOK);
        assert!(kept.0.lock().by_worker.is_empty());
    }

    #[test]
    fn written_fields_are_no_routine() {
        let kept = Recent::default();
        let changes = Changes { drain_tries: Some(2), ..Changes::default() };
        let written = ReconcileResult {
            changes: Box::new(changes),
            ..result("w-1", Outcome::Success, ReasonCode::AddressChanged)
        };
        assert!(!written.is_routine());
        assert_eq!(written.steps(), ["✓ record drain_tries 2"]);
        kept.note(&written, at(0), TOOK);
        let entries = kept.of(&"w-1".into());
        assert_eq!(entries[0].changes["drain_tries"], 2);
    }

    #[test]
    fn same_endings_in_a_row_are_one_entry() {
        let kept = Recent::default();
        kept.note(&started("w-1"), at(0), TOOK);
        for second in 1..=5 {
            kept.note(&result("w-1", Outcome::Retry, ReasonCode::Ec2Unknown), at(second), TOOK);
        }
        kept.note(&result("w-1", Outcome::Success, ReasonCode::AtRest), at(6), TOOK);
        let entries = kept.of(&"w-1".into());
        let shown: Vec<_> = entries.iter().map(|entry| (entry.reason.code, entry.repeats, entry.last_at)).collect();
        assert_eq!(
            shown,
            [
                (ReasonCode::StartRequested, 0, at(0)),
                (ReasonCode::Ec2Unknown, 4, at(5)),
                (ReasonCode::AtRest, 0, at(6))
            ]
        );
        assert_eq!((entries[1].at, entries[0].duration_ms), (at(1), 12));
        assert_eq!((&*entries[0].effects[0], &*entries[0].results[0]), ("start_instance i-1", "done"));
    }

    #[test]
    fn number_of_entries_is_bounded() {
        let kept = Recent::default();
        let alternate = |id: &str, count: usize| {
            for turn in 0..count {
                let code = [ReasonCode::Ec2Unknown, ReasonCode::ImagesUnknown][turn % 2];
                kept.note(&result(id, Outcome::Retry, code), at(turn as i64), TOOK);
            }
        };
        alternate("w-1", 100);
        let recent = kept.since(95);
        let numbers: Vec<u64> = recent.events.iter().map(|event| event.number).collect();
        assert_eq!((numbers, recent.next), (vec![95, 96, 97, 98, 99], 100));
        assert_eq!(kept.since(100).events, []);
        let entries = kept.of(&"w-1".into());
        assert_eq!((entries.len(), entries[0].at), (PER_WORKER, at(80)));
        for worker in 0..IN_TOTAL {
            alternate(&format!("x-{worker}"), 2);
        }
        let held = kept.0.lock();
        assert_eq!(held.by_age.len(), IN_TOTAL);
        assert_eq!(held.by_worker.values().map(VecDeque::len).sum::<usize>(), IN_TOTAL);
        assert!(!held.by_worker.contains_key(&WorkerId::from("w-1")), "the oldest go first");
    }
}
