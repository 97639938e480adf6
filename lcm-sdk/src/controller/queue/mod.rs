//! Delays, debounces and deduplicates work items.
//!
//! A data structure without a clock or a task: the time is an argument, and the next deadline is returned. The runner
//! drives it; a simulation can as well.
//!
//! # Guarantees
//! - A resource is taken by one caller at a time. A trigger that arrives meanwhile makes it run once more.
//! - Changes of a resource within the debounce are one change. The debounce begins with the first of them, so changes
//!   that go on do not postpone it.
//! - A reconcile that is owed (requested, due, or part of a resync) is never dropped because a reported change turns out
//!   to be an echo.
//! - Changed resources come before due ones, and those before the ones of a resync. Resources that have waited longer
//!   than the patience of the queue get a share of the turns, so none starves and no backlog delays a change.
//! - Due and listed resources leave slots free for changed ones: see [`QueueConfig::background_limit`].
//! - A resync never shortens a delay; a change does not wait for it.
//! - A reconcile that requests the next one at once and ends as one before it did counts as a retry, so that a write
//!   without effect is not repeated in a hot loop.

mod entry;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub(crate) use self::entry::Novelty;
use self::entry::{Entries, Entry, Stage};
use crate::controller::result::WorkResult;
use crate::lifecycle::outcome::{Outcome, Requeue};

pub use self::entry::{Key, Priority, QueueConfig, ResourceState, ResourceStatus, WorkItem};

/// Every so many turns, one goes to a resource that has waited longer than the patience of the queue.
const OVERDUE_SHARE: u32 = 4;
/// Shortest time between two reconciles of a resource that requests them and ends each the same way.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Queue of resources by name.
#[derive(Debug)]
pub struct WorkQueue<R> {
    config: QueueConfig,
    entries: Entries<R>,
    lanes: [VecDeque<(usize, u64)>; 3],
    due: BTreeSet<(Instant, usize)>,
    debounced: BTreeSet<(Instant, usize)>,
    waiting: [usize; 3],
    running: usize,
    /// Number of resources being reconciled that were not taken as changed.
    background: usize,
    /// Turns since an overdue resource had one.
    turns_since_overdue: u32,
    next_ticket: u64,
    /// Number of the current or last listing.
    listing: u32,
}

impl<R> WorkQueue<R> {
    /// Creates an empty queue.
    pub fn new(config: QueueConfig) -> Self {
        Self {
            config,
            entries: Entries::default(),
            lanes: Default::default(),
            due: BTreeSet::new(),
            debounced: BTreeSet::new(),
            waiting: [0; 3],
            running: 0,
            background: 0,
            turns_since_overdue: 0,
            next_ticket: 0,
            listing: 0,
        }
    }

    /// Reports a change of a resource. Returns whether a task has to be woken for it.
    pub fn changed(&mut self, key: &str, now: Instant) -> bool {
        let slot = self.entries.get_or_insert(key);
        self.slot_changed(slot, now)
    }

    /// Reports a change of a resource that is delayed to collect further ones. Returns whether a task has to be woken
    /// for the deadline.
    pub fn changed_after(&mut self, key: &str, debounce: Duration, now: Instant) -> bool {
        if debounce.is_zero() {
            return self.changed(key, now);
        }
        let slot = self.entries.get_or_insert(key);
        let Some(entry) = self.entries.get_mut(slot) else { return false };
        // A resource that waits as changed is fetched later than now, and one in its debounce is as well.
        let is_covered =
            entry.change_due_at.is_some() || matches!(entry.stage, Stage::Waiting { priority: Priority::Changed, .. });
        if !is_covered {
            entry.change_due_at = Some(now + debounce);
            self.debounced.insert((now + debounce, slot));
        }
        !is_covered
    }

    /// Number of resources in their debounce.
    pub fn debounced(&self) -> usize {
        self.debounced.len()
    }

    /// Drops all changes in their debounce, for a listing that covers them.
    pub fn drop_debounced(&mut self) {
        for (_, slot) in std::mem::take(&mut self.debounced) {
            if let Some(entry) = self.entries.get_mut(slot) {
                entry.change_due_at = None;
            }
        }
    }

    fn slot_changed(&mut self, slot: usize, now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(slot) else { return false };
        match &mut entry.stage {
            Stage::Running { again, .. } => {
                *again = true;
                false
            }
            Stage::Waiting { priority: Priority::Changed, .. } => {
                // A listed resource is older than the change.
                entry.resource = None;
                false
            }
            Stage::Waiting { priority: Priority::Due | Priority::Resync, .. } => {
                entry.owed = true;
                entry.resource = None;
                self.wait(slot, Priority::Changed, now);
                true
            }
            Stage::Idle => {
                entry.resource = None;
                self.wait(slot, Priority::Changed, now);
                true
            }
        }
    }

    /// Requests a reconcile of a resource now, changed or not. Returns whether a task has to be woken for it.
    pub fn enqueue(&mut self, key: &str, now: Instant) -> bool {
        let slot = self.entries.get_or_insert(key);
        let Some(entry) = self.entries.get_mut(slot) else { return false };
        entry.resource = None;
        entry.is_requested = true;
        match &mut entry.stage {
            Stage::Running { again, .. } => {
                *again = true;
                entry.owed = true;
                false
            }
            Stage::Waiting { priority: Priority::Changed, .. } => {
                entry.owed = true;
                false
            }
            Stage::Waiting { priority: Priority::Due, .. } => false,
            Stage::Waiting { priority: Priority::Resync, .. } | Stage::Idle => {
                self.wait(slot, Priority::Due, now);
                true
            }
        }
    }

    /// Offers a resource of a resync that is as the last reconcile left it. Returns whether it was queued: not if it
    /// runs, waits already, or is in its delay.
    pub fn offer(&mut self, key: &str, resource: R, now: Instant) -> bool {
        let slot = self.listed(key);
        self.offer_listed(slot, resource, Novelty::Known, now)
    }

    /// Offers a resource that [`WorkQueue::listed`] has marked. News do not wait for the end of a delay.
    pub(crate) fn offer_listed(&mut self, slot: usize, resource: R, novelty: Novelty, now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(slot) else { return false };
        let is_delayed =
            novelty == Novelty::Known && entry.is_delay_explicit && entry.due_at.is_some_and(|due| due > now);
        match entry.stage {
            Stage::Running { lane, again, .. } => {
                entry.stage = Stage::Running { lane, again, offered: true };
                entry.owed |= !is_delayed;
                false
            }
            Stage::Waiting { priority: Priority::Changed, .. } => {
                entry.owed |= !is_delayed;
                false
            }
            Stage::Waiting { priority: Priority::Due, .. } => false,
            Stage::Waiting { priority: Priority::Resync, .. } => {
                entry.resource = Some(Box::new(resource));
                false
            }
            Stage::Idle if is_delayed => false,
            Stage::Idle => {
                entry.resource = Some(Box::new(resource));
                self.wait(slot, Priority::Resync, now);
                true
            }
        }
    }

    /// Takes the next resource. A changed resource that is also owed a reconcile is taken as due.
    pub fn take(&mut self, now: Instant) -> Option<WorkItem<R>> {
        self.promote_due(now);
        let lane = self.next_lane(now)?;
        let (slot, _) = self.lanes[lane as usize].pop_front()?;
        let entry = self.entries.get_mut(slot)?;
        entry.stage = Stage::Running { lane, again: false, offered: false };
        let (key, resource) = (Arc::clone(&entry.key), entry.resource.take().map(|resource| *resource));
        let owed = std::mem::take(&mut entry.owed);
        entry.is_requested = false;
        self.waiting[lane as usize] -= 1;
        self.running += 1;
        self.background += usize::from(lane != Priority::Changed);
        let priority = if owed && lane == Priority::Changed { Priority::Due } else { lane };
        Some(WorkItem { key, priority, resource })
    }

    /// Returns a resource after a reconcile. `fraction` is a random number from 0 to 1 that spreads retries. Returns
    /// whether a task has to be woken because the resource is queued again.
    pub fn finish(&mut self, key: &Key, result: WorkResult, fraction: f64, now: Instant) -> bool {
        let Some(slot) = self.entries.find(key) else { return false };
        let Some(entry) = self.entries.get_mut(slot) else { return false };
        let Stage::Running { lane, again, offered } = entry.stage else { return false };
        entry.stage = Stage::Idle;
        if let Some(due) = entry.due_at.take() {
            self.due.remove(&(due, slot));
        }
        let backoff = self.config.backoff.delay_with_jitter(entry.retries, fraction);
        let is_repeated = entry.repeats(&result);
        let delay = match result.outcome {
            Outcome::Retry => Some(backoff),
            Outcome::Success | Outcome::Requeue | Outcome::Skip => match result.requeue {
                Requeue::Now if is_repeated => Some(backoff.max(MIN_INTERVAL)),
                Requeue::Now => Some(Duration::ZERO),
                Requeue::After(delay) if is_repeated => Some(delay.max(MIN_INTERVAL)),
                Requeue::After(delay) => Some(delay),
                Requeue::NextCycle => self.config.next_cycle,
                Requeue::Backoff => Some(backoff),
                Requeue::OnChange => None,
            },
        };
        if result.outcome == Outcome::Retry || (result.requeue == Requeue::Now && is_repeated) {
            entry.retries = entry.retries.saturating_add(1);
        } else if result.outcome == Outcome::Success {
            entry.retries = 0;
        }
        if result.outcome != Outcome::Retry {
            entry.last_reconciled_at = Some(now);
        }
        entry.note_step(&result);
        entry.is_delay_explicit = result.outcome == Outcome::Retry || result.requeue != Requeue::NextCycle;
        // The reconcile may have begun with a record older than the listing; a retry reads it again anyway.
        let outdated = offered && result.outcome != Outcome::Retry;
        entry.last = Some(result);
        entry.last_ended_at = Some(now);
        if let Some(due) = delay.map(|delay| now + delay) {
            entry.due_at = Some(due);
            self.due.insert((due, slot));
        }
        self.end_running(lane);
        let Some(entry) = self.entries.get_mut(slot) else { return false };
        if again {
            entry.owed |= outdated;
            self.wait(slot, Priority::Changed, now);
            return true;
        }
        // This was the reconcile that was owed.
        entry.owed = false;
        if outdated {
            self.wait(slot, Priority::Resync, now);
            return true;
        }
        delay == Some(Duration::ZERO)
    }

    /// Returns a resource without a reconcile, because the reported change was an echo: its schedule stays as it was.
    /// Returns whether a task has to be woken because a reconcile is owed.
    pub fn release(&mut self, key: &Key, now: Instant) -> bool {
        let Some(slot) = self.entries.find(key) else { return false };
        let Some(entry) = self.entries.get_mut(slot) else { return false };
        let Stage::Running { lane, again, .. } = entry.stage else { return false };
        entry.stage = Stage::Idle;
        let again = again || entry.owed;
        self.end_running(lane);
        if again {
            self.wait(slot, Priority::Changed, now);
        }
        again
    }

    /// Removes a resource that does not exist, unless a change was reported meanwhile: it may have been created since.
    /// Returns whether a task has to be woken because the resource is queued again.
    pub fn remove_missing(&mut self, key: &Key, now: Instant) -> bool {
        let Some(slot) = self.entries.find(key) else { return false };
        let Some(entry) = self.remove(slot) else { return false };
        if let Some(due) = entry.change_due_at {
            let slot = self.entries.get_or_insert(key);
            if let Some(entry) = self.entries.get_mut(slot) {
                entry.change_due_at = Some(due);
                self.debounced.insert((due, slot));
            }
        }
        match (entry.stage, entry.owed) {
            (Stage::Running { again: true, .. }, true) => self.enqueue(key, now),
            (Stage::Running { again: true, .. }, false) => self.changed(key, now),
            (Stage::Running { again: false, .. } | Stage::Waiting { .. } | Stage::Idle, _) => false,
        }
    }

    fn end_running(&mut self, lane: Priority) {
        self.running -= 1;
        self.background -= usize::from(lane != Priority::Changed);
    }

    fn remove(&mut self, slot: usize) -> Option<Entry<R>> {
        let entry = self.entries.remove(slot)?;
        match entry.stage {
            Stage::Running { lane, .. } => self.end_running(lane),
            Stage::Waiting { priority, .. } => self.waiting[priority as usize] -= 1,
            Stage::Idle => {}
        }
        if let Some(due) = entry.due_at {
            self.due.remove(&(due, slot));
        }
        if let Some(due) = entry.change_due_at {
            self.debounced.remove(&(due, slot));
        }
        Some(entry)
    }

    /// Begins a listing. Resources that are not marked until [`WorkQueue::end_listing`] are not in it.
    pub fn begin_listing(&mut self) {
        self.listing = self.listing.wrapping_add(1);
    }

    /// Marks a resource as listed and inserts it if it is unknown.
    pub(crate) fn listed(&mut self, key: &str) -> usize {
        let slot = self.entries.get_or_insert(key);
        if let Some(entry) = self.entries.get_mut(slot) {
            entry.listing = self.listing;
        }
        slot
    }

    /// Marks a resource as listed that needs no reconcile. An unknown one is not inserted. One whose last reconcile was
    /// not finished and left the rest to the next cycle is queued all the same; returns whether it was.
    pub fn mark_idle(&mut self, key: &str, now: Instant) -> bool {
        let Some(slot) = self.entries.find(key) else { return false };
        let Some(entry) = self.entries.get_mut(slot) else { return false };
        entry.listing = self.listing;
        let is_unfinished = entry
            .last
            .as_ref()
            .is_some_and(|last| last.outcome == Outcome::Requeue && last.requeue == Requeue::NextCycle);
        let is_queued = is_unfinished && entry.stage == Stage::Idle && entry.due_at.is_none();
        if is_queued {
            self.wait(slot, Priority::Due, now);
        }
        is_queued
    }

    /// Ends a complete listing and removes every idle resource that is not in it, so that memory stays bounded. A resource
    /// that was reconciled after the listing `began` is kept: it may be younger than the listing.
    pub fn end_listing(&mut self, began: Instant) {
        let is_gone = |entry: &Entry<R>| {
            entry.listing != self.listing
                && entry.stage == Stage::Idle
                && entry.change_due_at.is_none()
                && entry.last_ended_at.is_none_or(|ended| ended < began)
        };
        let gone: Vec<usize> = self.entries.iter().filter(|(_, entry)| is_gone(entry)).map(|(slot, _)| slot).collect();
        for slot in gone {
            self.remove(slot);
        }
    }

    /// Whether a resource waits or has a deadline. Another task has to attend to it while this one reconciles.
    pub fn has_pending(&self) -> bool {
        !self.due.is_empty() || !self.debounced.is_empty() || self.waiting.iter().any(|waiting| *waiting > 0)
    }

    /// The next deadline at which a resource can be taken.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().into_iter().chain(self.debounced.first()).map(|(due, _)| *due).min()
    }

    /// Number of resources being reconciled.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Number of waiting resources by priority.
    pub fn waiting(&self) -> [(&'static str, usize); 3] {
        Priority::ALL.map(|lane| (lane.as_str(), self.waiting[lane as usize]))
    }

    /// Number of known resources.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no resource is known.
    pub fn is_empty(&self) -> bool {
        self.entries.len() == 0
    }

    /// State of one resource.
    pub fn state(&self, key: &str) -> Option<ResourceState> {
        self.entries.find(key).and_then(|slot| self.entries.get(slot)).map(Entry::state)
    }

    /// States of all resources.
    pub fn states(&self) -> impl Iterator<Item = ResourceState> {
        self.entries.iter().map(|(_, entry)| entry.state())
    }

    fn wait(&mut self, slot: usize, priority: Priority, now: Instant) {
        let Some(entry) = self.entries.get_mut(slot) else { return };
        let since = match entry.stage {
            Stage::Waiting { priority, since, .. } => {
                self.waiting[priority as usize] -= 1;
                since
            }
            Stage::Idle | Stage::Running { .. } => now,
        };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        entry.stage = Stage::Waiting { priority, ticket, since };
        self.waiting[priority as usize] += 1;
        self.lanes[priority as usize].push_back((slot, ticket));
        self.compact(priority);
    }

    /// Drops outdated places once they are the most of a lane: they would pile up behind a head that waits.
    fn compact(&mut self, lane: Priority) {
        let places = &mut self.lanes[lane as usize];
        if places.len() > 2 * self.waiting[lane as usize] + 64 {
            let entries = &self.entries;
            places.retain(|(slot, ticket)| entries.get(*slot).is_some_and(|entry| entry.holds(*ticket)));
        }
    }

    fn promote_due(&mut self, now: Instant) {
        while let Some((due, slot)) = self.debounced.first().copied().filter(|(due, _)| *due <= now) {
            self.debounced.pop_first();
            if let Some(entry) = self.entries.get_mut(slot) {
                entry.change_due_at = None;
            }
            self.slot_changed(slot, due);
        }
        while let Some((due, _)) = self.due.first()
            && *due <= now
        {
            let Some((due, slot)) = self.due.pop_first() else { return };
            let Some(entry) = self.entries.get_mut(slot) else { continue };
            entry.due_at = None;
            match &mut entry.stage {
                // Reconciled anyway, unless the change is an echo.
                Stage::Running { .. } | Stage::Waiting { priority: Priority::Changed, .. } => entry.owed = true,
                Stage::Waiting { priority: Priority::Due, .. } => {}
                Stage::Waiting { priority: Priority::Resync, .. } | Stage::Idle => self.wait(slot, Priority::Due, due),
            }
        }
    }

    /// Priority to serve: the most urgent that has a slot, or in its share of the turns another lane whose head has
    /// waited too long.
    fn next_lane(&mut self, now: Instant) -> Option<Priority> {
        let is_full = self.background >= self.config.background_limit;
        let heads = Priority::ALL.map(|lane| {
            let has_slot = lane == Priority::Changed || !is_full;
            if has_slot { self.head(lane).map(|since| (since, lane)) } else { None }
        });
        let urgent = heads.iter().flatten().next().map(|(_, lane)| *lane)?;
        let overdue = heads
            .iter()
            .flatten()
            .filter(|(since, lane)| *lane != urgent && now.saturating_duration_since(*since) > self.config.patience)
            .min();
        let Some((_, overdue)) = overdue else { return Some(urgent) };
        self.turns_since_overdue += 1;
        if self.turns_since_overdue < OVERDUE_SHARE {
            return Some(urgent);
        }
        self.turns_since_overdue = 0;
        Some(*overdue)
    }

    /// Time since which the head of a lane waits. Drops outdated places on the way.
    fn head(&mut self, lane: Priority) -> Option<Instant> {
        while let Some((slot, ticket)) = self.lanes[lane as usize].front() {
            match self.entries.get(*slot).map(|entry| entry.stage) {
                Some(Stage::Waiting { ticket: held, since, .. }) if held == *ticket => return Some(since),
                Some(Stage::Waiting { .. } | Stage::Idle | Stage::Running { .. }) | None => {
                    self.lanes[lane as usize].pop_front();
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
