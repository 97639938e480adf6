//! Who is next: a queue that knows every resource, runs none twice at once, and forgets no trigger.
//!
//! A data structure without a clock or a task: the time is an argument, and what is due next is returned. The
//! controller drives it; a simulation can as well.
//!
//! # Guarantees
//! - A resource is handed out to one caller at a time. A trigger that arrives meanwhile makes it run once more.
//! - A look that is owed (demanded, due, or part of a resync) is never given up because a change that was told in the
//!   meantime turns out to be none.
//! - Changed resources come before due ones, and those before the ones of a resync; but whoever has waited longer than
//!   the patience of the queue comes first, so nobody starves.
//! - A resync never shortens a backoff; a change does not wait for it.

mod entries;
mod types;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use self::entries::{Entries, Entry, Stage};
use crate::lifecycle::outcome::{Outcome, Requeue};

pub(crate) use entries::Slot;
pub use types::{Key, Priority, QueueConfig, ResourceState, ResourceStatus, WorkItem, WorkResult};

/// The queue itself.
#[derive(Debug)]
pub struct WorkQueue<R> {
    config: QueueConfig,
    entries: Entries<R>,
    lanes: [VecDeque<(Slot, u64)>; 3],
    due: BTreeSet<(Instant, Slot)>,
    waiting: [usize; 3],
    running: usize,
    next_ticket: u64,
    /// The listing under way, or the last one.
    listing: u32,
}

impl<R> WorkQueue<R> {
    /// An empty queue.
    pub fn new(config: QueueConfig) -> Self {
        Self {
            config,
            entries: Entries::default(),
            lanes: Default::default(),
            due: BTreeSet::new(),
            waiting: [0; 3],
            running: 0,
            next_ticket: 0,
            listing: 0,
        }
    }

    /// Somebody says that a resource changed. True if it has to be handed out now.
    pub fn changed(&mut self, key: &str, now: Instant) -> bool {
        let slot = self.entries.known(key);
        let Some(entry) = self.entries.get_mut(slot) else { return false };
        match &mut entry.stage {
            Stage::Running { again, .. } => {
                *again = true;
                false
            }
            Stage::Waiting { lane: Priority::Changed, .. } => {
                // What a listing gave is older than the change.
                entry.resource = None;
                false
            }
            Stage::Waiting { lane: Priority::Due | Priority::Resync, .. } => {
                entry.owed = true;
                entry.resource = None;
                self.wait(slot, Priority::Changed, now);
                true
            }
            Stage::Resting => {
                entry.resource = None;
                self.wait(slot, Priority::Changed, now);
                true
            }
        }
    }

    /// Somebody wants a resource looked at now, changed or not. True if it has to be handed out now.
    pub fn demand(&mut self, key: &str, now: Instant) -> bool {
        let slot = self.entries.known(key);
        let Some(entry) = self.entries.get_mut(slot) else { return false };
        entry.resource = None;
        match &mut entry.stage {
            Stage::Running { again, .. } => {
                *again = true;
                entry.owed = true;
                false
            }
            Stage::Waiting { lane: Priority::Changed, .. } => {
                entry.owed = true;
                false
            }
            Stage::Waiting { lane: Priority::Due, .. } => false,
            Stage::Waiting { lane: Priority::Resync, .. } | Stage::Resting => {
                self.wait(slot, Priority::Due, now);
                true
            }
        }
    }

    /// A resync offers a resource. True if it was taken: not if it runs, waits already, or is in its backoff.
    pub fn offer(&mut self, key: &str, resource: R, now: Instant) -> bool {
        let slot = self.listed(key);
        self.offer_listed(slot, resource, now)
    }

    /// Offers a resource that was said to be listed.
    pub(crate) fn offer_listed(&mut self, slot: Slot, resource: R, now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(slot) else { return false };
        let in_backoff = entry.retries > 0 && entry.due_at.is_some_and(|due| due > now);
        match entry.stage {
            Stage::Running { again, .. } => {
                entry.stage = Stage::Running { again, offered: true };
                entry.owed |= !in_backoff;
                false
            }
            Stage::Waiting { lane: Priority::Changed, .. } => {
                entry.owed |= !in_backoff;
                false
            }
            Stage::Waiting { lane: Priority::Due, .. } => false,
            Stage::Waiting { lane: Priority::Resync, .. } => {
                entry.resource = Some(Box::new(resource));
                false
            }
            Stage::Resting if in_backoff => false,
            Stage::Resting => {
                entry.resource = Some(Box::new(resource));
                self.wait(slot, Priority::Resync, now);
                true
            }
        }
    }

    /// Hands out who is next. One that only changed, and is owed a look besides, is handed out as due.
    pub fn take(&mut self, now: Instant) -> Option<WorkItem<R>> {
        self.promote_due(now);
        let lane = self.next_lane(now)?;
        let (slot, _) = self.lanes[lane as usize].pop_front()?;
        let entry = self.entries.get_mut(slot)?;
        entry.stage = Stage::Running { again: false, offered: false };
        let (key, resource) = (Arc::clone(&entry.key), entry.resource.take().map(|resource| *resource));
        let owed = std::mem::take(&mut entry.owed);
        self.waiting[lane as usize] -= 1;
        self.running += 1;
        let lane = if owed && lane == Priority::Changed { Priority::Due } else { lane };
        Some(WorkItem { key, lane, resource })
    }

    /// Takes a resource back after a pass. `fraction` is a random number from 0 to 1 that spreads retries. True if it
    /// has to be handed out again at once.
    pub fn finish(&mut self, key: &Key, ending: WorkResult, fraction: f64, now: Instant) -> bool {
        let Some(slot) = self.entries.find(key) else { return false };
        let Some(entry) = self.entries.get_mut(slot) else { return false };
        let Stage::Running { again, offered } = entry.stage else { return false };
        entry.stage = Stage::Resting;
        self.running -= 1;
        if let Some(due) = entry.due_at.take() {
            self.due.remove(&(due, slot));
        }
        let delay = match ending.outcome {
            Outcome::Retry => {
                let delay = self.config.backoff.delay_with_jitter(entry.retries, fraction);
                entry.retries = entry.retries.saturating_add(1);
                Some(delay)
            }
            Outcome::Success | Outcome::Requeue | Outcome::Skip => {
                entry.retries = 0;
                entry.last_reconciled_at = Some(now);
                match ending.requeue {
                    Requeue::Now => Some(Duration::ZERO),
                    Requeue::After(delay) => Some(delay),
                    Requeue::NextCycle => self.config.next_cycle,
                    Requeue::Backoff => Some(self.config.backoff.delay_with_jitter(0, fraction)),
                    Requeue::OnChange => None,
                }
            }
        };
        // The pass may have begun on a record that is older than the listing; a retry looks again by itself.
        let outdated = offered && ending.outcome != Outcome::Retry;
        entry.last = Some(ending);
        entry.last_ended_at = Some(now);
        if let Some(due) = delay.map(|delay| now + delay) {
            entry.due_at = Some(due);
            self.due.insert((due, slot));
        }
        if again {
            entry.owed |= outdated;
            self.wait(slot, Priority::Changed, now);
            return true;
        }
        // This pass was the look that was owed.
        entry.owed = false;
        if outdated {
            self.wait(slot, Priority::Resync, now);
            return true;
        }
        delay == Some(Duration::ZERO)
    }

    /// Takes a resource back that turned out not to have changed: everything stays as it was planned. True if it has to
    /// be handed out again at once, because a look was owed in the meantime.
    pub fn put_back(&mut self, key: &Key, now: Instant) -> bool {
        let Some(slot) = self.entries.find(key) else { return false };
        let Some(entry) = self.entries.get_mut(slot) else { return false };
        let Stage::Running { again, .. } = entry.stage else { return false };
        entry.stage = Stage::Resting;
        self.running -= 1;
        let again = again || entry.owed;
        if again {
            self.wait(slot, Priority::Changed, now);
        }
        again
    }

    /// Takes a resource back that does not exist, and forgets it; unless somebody told of it in the meantime: it may
    /// have come into being since. True if it has to be handed out again at once.
    pub fn gone(&mut self, key: &Key, now: Instant) -> bool {
        let Some(slot) = self.entries.find(key) else { return false };
        let is_told = |entry: &&Entry<R>| matches!(entry.stage, Stage::Running { again: true, .. });
        let owed = self.entries.get(slot).filter(is_told).map(|entry| entry.owed);
        self.forget(slot);
        match owed {
            None => false,
            Some(true) => self.demand(key, now),
            Some(false) => self.changed(key, now),
        }
    }

    fn forget(&mut self, slot: Slot) {
        if let Some(entry) = self.entries.remove(slot) {
            match entry.stage {
                Stage::Running { .. } => self.running -= 1,
                Stage::Waiting { lane, .. } => self.waiting[lane as usize] -= 1,
                Stage::Resting => {}
            }
            if let Some(due) = entry.due_at {
                self.due.remove(&(due, slot));
            }
        }
    }

    /// A listing begins: who is not named from here on is not in it.
    pub fn begin_listing(&mut self) {
        self.listing = self.listing.wrapping_add(1);
    }

    /// The listing names a resource; from then on it is known. Whoever is offered is named by that.
    pub(crate) fn listed(&mut self, key: &str) -> Slot {
        let slot = self.entries.known(key);
        if let Some(entry) = self.entries.get_mut(slot) {
            entry.listing = self.listing;
        }
        slot
    }

    /// The listing names a resource that needs no look. Nothing new is to be known about it.
    pub fn rests(&mut self, key: &str) {
        let slot = self.entries.find(key);
        if let Some(entry) = slot.and_then(|slot| self.entries.get_mut(slot)) {
            entry.listing = self.listing;
        }
    }

    /// The listing was complete. Forgets every resting resource that it did not name, so that memory stays in bounds.
    /// One that was looked at after the listing `began` exists: it is younger than the listing.
    pub fn end_listing(&mut self, began: Instant) {
        let is_gone = |entry: &Entry<R>| {
            entry.listing != self.listing
                && entry.stage == Stage::Resting
                && entry.last_ended_at.is_none_or(|ended| ended < began)
        };
        let gone: Vec<Slot> = self.entries.iter().filter(|(_, entry)| is_gone(entry)).map(|(slot, _)| slot).collect();
        for slot in gone {
            self.forget(slot);
        }
    }

    /// Whether somebody waits or will be due: then somebody else has to look after them while a pass is made.
    pub fn expects_more(&self) -> bool {
        !self.due.is_empty() || self.waiting.iter().any(|waiting| *waiting > 0)
    }

    /// When the next resource is due, if nobody can be handed out before.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// How many are being reconciled.
    pub fn running(&self) -> usize {
        self.running
    }

    /// How many wait in each lane.
    pub fn waiting(&self) -> [(&'static str, usize); 3] {
        Priority::ALL.map(|lane| (lane.as_str(), self.waiting[lane as usize]))
    }

    /// How many resources are known.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no resource is known.
    pub fn is_empty(&self) -> bool {
        self.entries.len() == 0
    }

    /// What is known about one resource.
    pub fn state(&self, key: &str) -> Option<ResourceState> {
        self.entries.find(key).and_then(|slot| self.entries.get(slot)).map(Entry::state)
    }

    /// What is known about all of them.
    pub fn states(&self) -> impl Iterator<Item = ResourceState> {
        self.entries.iter().map(|(_, entry)| entry.state())
    }

    fn wait(&mut self, slot: Slot, lane: Priority, now: Instant) {
        let Some(entry) = self.entries.get_mut(slot) else { return };
        let since = match entry.stage {
            Stage::Waiting { lane, since, .. } => {
                self.waiting[lane as usize] -= 1;
                since
            }
            Stage::Resting | Stage::Running { .. } => now,
        };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        entry.stage = Stage::Waiting { lane, ticket, since };
        self.waiting[lane as usize] += 1;
        self.lanes[lane as usize].push_back((slot, ticket));
        self.tidy(lane);
    }

    /// Drops places that were left once they are the most of a lane: they would pile up behind a head that waits.
    fn tidy(&mut self, lane: Priority) {
        let places = &mut self.lanes[lane as usize];
        if places.len() > 2 * self.waiting[lane as usize] + 64 {
            let entries = &self.entries;
            places.retain(|(slot, ticket)| entries.get(*slot).is_some_and(|entry| entry.holds(*ticket)));
        }
    }

    fn promote_due(&mut self, now: Instant) {
        while let Some((due, _)) = self.due.first()
            && *due <= now
        {
            let Some((due, slot)) = self.due.pop_first() else { return };
            let Some(entry) = self.entries.get_mut(slot) else { continue };
            entry.due_at = None;
            match &mut entry.stage {
                // Being looked at anyway, unless it has not changed at all.
                Stage::Running { .. } | Stage::Waiting { lane: Priority::Changed, .. } => entry.owed = true,
                Stage::Waiting { lane: Priority::Due, .. } => {}
                Stage::Waiting { lane: Priority::Resync, .. } | Stage::Resting => self.wait(slot, Priority::Due, due),
            }
        }
    }

    /// The lane to serve: the most urgent, unless the head of another has waited too long.
    fn next_lane(&mut self, now: Instant) -> Option<Priority> {
        let heads = Priority::ALL.map(|lane| self.head(lane).map(|since| (since, lane)));
        let overdue = heads
            .iter()
            .flatten()
            .filter(|(since, _)| now.saturating_duration_since(*since) > self.config.patience)
            .min();
        overdue.or_else(|| heads.iter().flatten().next()).map(|(_, lane)| *lane)
    }

    /// Since when the first of a lane waits, dropping places that were left for another lane.
    fn head(&mut self, lane: Priority) -> Option<Instant> {
        while let Some((slot, ticket)) = self.lanes[lane as usize].front() {
            match self.entries.get(*slot).map(|entry| entry.stage) {
                Some(Stage::Waiting { ticket: held, since, .. }) if held == *ticket => return Some(since),
                Some(Stage::Waiting { .. } | Stage::Resting | Stage::Running { .. }) | None => {
                    self.lanes[lane as usize].pop_front();
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
