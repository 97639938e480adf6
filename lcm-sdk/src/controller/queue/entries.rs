//! What the queue knows about each resource, found by name once and by number from then on.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::types::{Key, Priority, ResourceState, ResourceStatus, WorkResult};
use crate::lifecycle::outcome::Outcome;

/// The number of a resource, for as long as it is known. Later somebody else may get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot(usize);

/// All resources. Names are long and far apart in memory; a pass looks its own up only when it begins and ends.
#[derive(Debug)]
pub(crate) struct Entries<R> {
    names: HashMap<Key, Slot>,
    slots: Vec<Option<Entry<R>>>,
    free: Vec<Slot>,
}

#[derive(Debug)]
pub(crate) struct Entry<R> {
    pub(crate) key: Key,
    pub(crate) stage: Stage,
    /// It has to be looked at even if it has not changed: who only told of a change is not the only one waiting.
    pub(crate) owed: bool,
    /// Boxed, because most of the time most resources have none.
    pub(crate) resource: Option<Box<R>>,
    pub(crate) due_at: Option<Instant>,
    pub(crate) retries: u32,
    /// The last listing that named it.
    pub(crate) listing: u32,
    pub(crate) last_reconciled_at: Option<Instant>,
    pub(crate) last: Option<WorkResult>,
    pub(crate) last_ended_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Resting,
    /// In a lane under a ticket; a lane's place with another ticket is left over and skipped.
    Waiting {
        lane: Priority,
        ticket: u64,
        since: Instant,
    },
    /// `again` if it was told to have changed since, `offered` if a resync has met it.
    Running {
        again: bool,
        offered: bool,
    },
}

impl<R> Default for Entries<R> {
    fn default() -> Self {
        Self { names: HashMap::new(), slots: Vec::new(), free: Vec::new() }
    }
}

impl<R> Entries<R> {
    /// The number of a resource, known or new.
    pub(crate) fn known(&mut self, name: &str) -> Slot {
        if let Some(slot) = self.names.get(name) {
            return *slot;
        }
        let key: Key = name.into();
        let entry = Some(Entry::new(Arc::clone(&key)));
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot.0] = entry;
                slot
            }
            None => {
                let slot = Slot(self.slots.len());
                self.slots.push(entry);
                slot
            }
        };
        self.names.insert(key, slot);
        slot
    }

    pub(crate) fn find(&self, name: &str) -> Option<Slot> {
        self.names.get(name).copied()
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&Entry<R>> {
        self.slots.get(slot.0)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut Entry<R>> {
        self.slots.get_mut(slot.0)?.as_mut()
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Option<Entry<R>> {
        let entry = self.slots.get_mut(slot.0)?.take()?;
        self.names.remove(&entry.key);
        self.free.push(slot);
        Some(entry)
    }

    /// All of them, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &Entry<R>)> {
        (0..).map(Slot).zip(&self.slots).filter_map(|(slot, entry)| Some((slot, entry.as_ref()?)))
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }
}

impl<R> Entry<R> {
    fn new(key: Key) -> Self {
        Self {
            key,
            stage: Stage::Resting,
            owed: false,
            resource: None,
            due_at: None,
            retries: 0,
            listing: 0,
            last_reconciled_at: None,
            last: None,
            last_ended_at: None,
        }
    }

    pub(crate) fn holds(&self, place: u64) -> bool {
        matches!(self.stage, Stage::Waiting { ticket, .. } if ticket == place)
    }

    pub(crate) fn state(&self) -> ResourceState {
        let status = match (self.stage, self.last.as_ref().map(|last| last.outcome)) {
            (Stage::Running { .. }, _) => ResourceStatus::InProgress,
            (Stage::Waiting { .. }, _) | (Stage::Resting, None | Some(Outcome::Requeue)) => ResourceStatus::Pending,
            (Stage::Resting, Some(Outcome::Retry)) => ResourceStatus::Failed,
            (Stage::Resting, Some(Outcome::Success | Outcome::Skip)) => ResourceStatus::Success,
        };
        ResourceState {
            resource_id: Arc::clone(&self.key),
            status,
            retry_count: self.retries,
            next_retry_at: self.due_at,
            last_reconciled_at: self.last_reconciled_at,
            last: self.last.clone(),
            last_ended_at: self.last_ended_at,
        }
    }
}
