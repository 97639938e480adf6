//! What a reconciler remembers between passes. All of it can be forgotten without harm.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::observation::Answer;
use crate::lifecycle::time::Timestamp;
use crate::reconciler::Mode;

/// How old a description of an instance may be before a pass asks EC2 itself.
const SIGHTING_FRESHNESS: Duration = Duration::from_secs(30);

/// Notes about workers, by id.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    notes: Mutex<HashMap<WorkerId, Notes>>,
}

#[derive(Debug, Default)]
struct Notes {
    idle_checked_at: Option<Timestamp>,
    metrics_reported_at: Option<Timestamp>,
    sighting: Option<Sighting>,
    /// The version up to which every change is known here: read by a pass, or made by ourselves on top of that.
    known_version: Option<u64>,
    wrote_at: Option<Instant>,
    acted_at: Option<Instant>,
    turn: Weak<tokio::sync::Mutex<()>>,
}

/// What a describe of many showed of one.
#[derive(Debug, Clone)]
struct Sighting {
    /// Which instance was asked for: the record may name another one by the time this is used.
    instance: InstanceId,
    answer: Answer<Instance>,
    /// When it was asked for.
    at: Instant,
}

/// How a write was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write {
    /// Only if the record was at the version we knew.
    Conditional,
    /// Over whatever was there.
    Over,
}

/// Whether a write that left this version came right after the one we know.
pub(crate) fn follows(known: Option<u64>, left: u64) -> bool {
    known.and_then(|known| known.checked_add(1)) == Some(left)
}

/// What is remembered about a worker at the beginning of a pass.
#[derive(Debug, Default)]
pub(crate) struct Recollection {
    pub(crate) idle_checked_at: Option<Timestamp>,
    pub(crate) metrics_reported_at: Option<Timestamp>,
    pub(crate) sighting: Option<(InstanceId, Answer<Instance>)>,
}

impl Memory {
    /// Waits for the worker's turn: passes over one worker follow each other, whoever asks for them.
    pub(crate) async fn turn(&self, id: &WorkerId) -> OwnedMutexGuard<()> {
        self.turns(id).lock_owned().await
    }

    /// The worker's turn, if nobody has it.
    pub(crate) fn turn_at_once(&self, id: &WorkerId) -> Option<OwnedMutexGuard<()>> {
        self.turns(id).try_lock_owned().ok()
    }

    fn turns(&self, id: &WorkerId) -> Arc<tokio::sync::Mutex<()>> {
        let mut notes = self.notes.lock();
        let notes = notes.entry(id.clone()).or_default();
        notes.turn.upgrade().unwrap_or_else(|| {
            let turn = Arc::new(tokio::sync::Mutex::new(()));
            notes.turn = Arc::downgrade(&turn);
            turn
        })
    }

    /// What is remembered. A sighting is given out to one real pass: whatever that does makes it old. One from before
    /// we last wrote to the record or changed the instance is old already: it may show what is no more.
    pub(crate) fn recall(&self, id: &WorkerId, mode: Mode) -> Recollection {
        let mut notes = self.notes.lock();
        let Some(notes) = notes.get_mut(id) else { return Recollection::default() };
        let sighting = match mode {
            Mode::Real => notes.sighting.take(),
            Mode::DryRun => notes.sighting.clone(),
        };
        Recollection {
            idle_checked_at: notes.idle_checked_at,
            metrics_reported_at: notes.metrics_reported_at,
            sighting: sighting
                .filter(|sighting| sighting.at.elapsed() < SIGHTING_FRESHNESS)
                .filter(|sighting| {
                    notes.wrote_at.max(notes.acted_at).is_none_or(|changed_at| changed_at <= sighting.at)
                })
                .map(|sighting| (sighting.instance, sighting.answer)),
        }
    }

    /// Notes what a describe of many showed of one.
    pub(crate) fn saw(&self, id: &WorkerId, instance: InstanceId, answer: Answer<Instance>, at: Instant) {
        self.note(id, |notes| notes.sighting = Some(Sighting { instance, answer, at }));
    }

    pub(crate) fn idle_checked(&self, id: &WorkerId, at: Timestamp) {
        self.note(id, |notes| notes.idle_checked_at = Some(at));
    }

    pub(crate) fn metrics_reported(&self, id: &WorkerId, at: Timestamp) {
        self.note(id, |notes| notes.metrics_reported_at = Some(at));
    }

    /// Notes the version of the record that a pass decides on.
    pub(crate) fn read(&self, id: &WorkerId, version: Option<u64>) {
        self.note(id, |notes| notes.known_version = version);
    }

    /// Notes the version that our own write left. If it was written over whatever was there, and the version shows
    /// that somebody else wrote in between, their change is still to be looked at.
    pub(crate) fn wrote(&self, id: &WorkerId, left: Option<u64>, how: Write) {
        self.note(id, |notes| {
            notes.wrote_at = Some(Instant::now());
            notes.known_version = match how {
                Write::Conditional => left,
                Write::Over => left.filter(|left| follows(notes.known_version, *left)),
            };
        });
    }

    /// Notes that we launched, started, stopped or terminated its instance, or may have.
    pub(crate) fn acted(&self, id: &WorkerId) {
        self.note(id, |notes| notes.acted_at = Some(Instant::now()));
    }

    /// Whether a record that is told as changed is only as we have just left it. A server without versions cannot
    /// tell, so whatever comes right after our own write passes for its echo; polling finds what that hides.
    pub(crate) fn is_echo(&self, id: &WorkerId, version: Option<u64>, window: Duration) -> bool {
        let notes = self.notes.lock();
        notes.get(id).is_some_and(|notes| {
            notes.wrote_at.is_some_and(|at| at.elapsed() < window) && notes.known_version == version
        })
    }

    /// Forgets every worker that does not exist any more.
    pub(crate) fn retain(&self, exists: impl Fn(&WorkerId) -> bool) {
        self.notes.lock().retain(|id, notes| exists(id) || notes.turn.strong_count() > 0);
    }

    fn note(&self, id: &WorkerId, change: impl FnOnce(&mut Notes)) {
        let mut notes = self.notes.lock();
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
        let (memory, id) = (Memory::default(), WorkerId::from("w-1"));
        let saw = |at| memory.saw(&id, "i-1".into(), Answer::Found(Instance::new("i-1", Ec2State::Running)), at);
        saw(Instant::now());
        assert!(memory.recall(&id, Mode::DryRun).sighting.is_some(), "a simulation uses nothing up");
        assert!(memory.recall(&id, Mode::Real).sighting.is_some());
        assert!(memory.recall(&id, Mode::Real).sighting.is_none());
        saw(Instant::now());
        tokio::time::advance(SIGHTING_FRESHNESS).await;
        assert!(memory.recall(&id, Mode::Real).sighting.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_seen_before_our_own_write_or_deed_is_not_used() {
        let wrote = |memory: &Memory, id: &WorkerId| memory.wrote(id, Some(2), Write::Conditional);
        for change in [wrote, |memory: &Memory, id: &WorkerId| memory.acted(id)] {
            let (memory, id) = (Memory::default(), WorkerId::from("w-1"));
            let asked_at = Instant::now();
            tokio::time::advance(Duration::from_secs(1)).await;
            change(&memory, &id);
            memory.saw(&id, "i-1".into(), Answer::Absent, asked_at);
            assert!(memory.recall(&id, Mode::Real).sighting.is_none());
            memory.saw(&id, "i-1".into(), Answer::Absent, Instant::now());
            assert!(memory.recall(&id, Mode::Real).sighting.is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn turns_follow_each_other() {
        let (memory, id) = (Memory::default(), WorkerId::from("w-1"));
        let first = memory.turn(&id).await;
        memory.retain(|_| false);
        let second = tokio::time::timeout(Duration::from_secs(5), memory.turn(&id)).await;
        assert!(second.is_err(), "two turns at once");
        drop(first);
        let _second = memory.turn(&id).await;
        let _other = memory.turn(&WorkerId::from("w-2")).await;
    }

    #[tokio::test(start_paused = true)]
    async fn our_own_write_is_known_from_somebody_elses() {
        let (memory, id, window) = (Memory::default(), WorkerId::from("w-1"), Duration::from_secs(2));
        memory.read(&id, Some(2));
        assert!(!memory.is_echo(&id, Some(2), window), "nothing was written");
        memory.wrote(&id, Some(3), Write::Conditional);
        assert!(memory.is_echo(&id, Some(3), window));
        assert!(!memory.is_echo(&id, Some(4), window));
        memory.wrote(&id, Some(4), Write::Over);
        assert!(memory.is_echo(&id, Some(4), window));
        memory.wrote(&id, Some(6), Write::Over);
        assert!(!memory.is_echo(&id, Some(6), window), "somebody wrote version 5");
    }

    #[tokio::test(start_paused = true)]
    async fn without_versions_an_echo_is_a_matter_of_time() {
        let (memory, id, window) = (Memory::default(), WorkerId::from("w-1"), Duration::from_secs(2));
        memory.wrote(&id, None, Write::Over);
        assert!(memory.is_echo(&id, None, window));
        tokio::time::advance(window).await;
        assert!(!memory.is_echo(&id, None, window));
    }
}
