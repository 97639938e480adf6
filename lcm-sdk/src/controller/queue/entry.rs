//! Work items and the state of each resource.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use tokio::time::Instant;

use crate::controller::result::{WorkReason, WorkResult};
use crate::lifecycle::backoff::Backoff;
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::wire_enum::vocabulary;

/// Name of a resource.
pub type Key = Arc<str>;

/// Urgency of a work item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// The resource is reported as changed.
    Changed,
    /// The resource was requested or its delay is over.
    Due,
    /// A listing contained the resource.
    Resync,
}

impl Priority {
    /// All priorities, most urgent first.
    pub const ALL: [Self; 3] = [Self::Changed, Self::Due, Self::Resync];

    /// Label in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Due => "due",
            Self::Resync => "resync",
        }
    }
}

/// A resource that was taken from the queue.
#[derive(Debug)]
pub struct WorkItem<R> {
    /// Name of the resource.
    pub key: Key,
    /// Reason for which it was queued.
    pub priority: Priority,
    /// The resource as a listing returned it. If absent, it has to be fetched.
    pub resource: Option<R>,
}

vocabulary! {
    /// Reconciliation status of a resource.
    ResourceStatus, "reconciliation status" {
        /// Waits for its turn.
        Pending = "PENDING",
        /// Is being reconciled.
        InProgress = "IN_PROGRESS",
        /// The last reconcile succeeded.
        Success = "SUCCESS",
        /// The last reconcile failed and will be retried.
        Failed = "FAILED",
    }
}

/// State of a resource in the queue.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceState {
    /// Name of the resource.
    pub resource_id: Key,
    /// Reconciliation status, derived from the stage and the last result.
    pub status: ResourceStatus,
    /// The urgency under which it waits for its turn, and since when.
    pub waiting: Option<(Priority, Instant)>,
    /// Whether its next reconcile was requested, rather than due or reported.
    pub is_requested: bool,
    /// Retries since the last success. A reconcile that requests the next one at once and ends as one before it did
    /// counts as a retry.
    pub retry_count: u32,
    /// Time of the next reconcile, if one is scheduled.
    pub next_retry_at: Option<Instant>,
    /// End of the last reconcile that did not have to be retried.
    pub last_reconciled_at: Option<Instant>,
    /// Result of the last reconcile.
    pub last: Option<WorkResult>,
    /// End of the last reconcile.
    pub last_ended_at: Option<Instant>,
}

/// Settings of a queue.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct QueueConfig {
    /// Delay between retries.
    pub backoff: Backoff,
    /// Time after which a waiting resource gets a share of the turns of more urgent ones.
    pub patience: Duration,
    /// Maximum number of due and listed resources that are taken at the same time. The remaining slots of a runner are
    /// kept for changed resources.
    pub background_limit: usize,
    /// Delay of [`Requeue::NextCycle`] where no polling cycle follows.
    ///
    /// [`Requeue::NextCycle`]: crate::Requeue::NextCycle
    pub next_cycle: Option<Duration>,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            backoff: Backoff::default(),
            patience: Duration::from_secs(30),
            background_limit: usize::MAX,
            next_cycle: None,
        }
    }
}

impl QueueConfig {
    /// Sets the delay between retries.
    #[must_use]
    pub fn with_backoff(self, backoff: Backoff) -> Self {
        Self { backoff, ..self }
    }

    /// Sets the time after which a waiting resource gets a share of the turns of more urgent ones.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sets the maximum number of due and listed resources that are taken at the same time.
    #[must_use]
    pub fn with_background_limit(self, background_limit: usize) -> Self {
        Self { background_limit, ..self }
    }

    /// Sets the delay of [`Requeue::NextCycle`](crate::Requeue::NextCycle) where no polling cycle follows.
    #[must_use]
    pub fn with_next_cycle(self, next_cycle: Duration) -> Self {
        Self { next_cycle: Some(next_cycle), ..self }
    }
}

/// All known resources. A slot is a stable index while its resource is known: names are long and far apart in memory,
/// so a reconcile looks its name up only when it begins and ends.
#[derive(Debug)]
pub(crate) struct Entries<R> {
    names: HashMap<Key, usize>,
    slots: Slab<Entry<R>>,
}

#[derive(Debug)]
pub(crate) struct Entry<R> {
    pub(crate) key: Key,
    pub(crate) stage: Stage,
    /// The resource has to be reconciled even if it did not change.
    pub(crate) owed: bool,
    /// A reconcile was requested, and has not begun.
    pub(crate) is_requested: bool,
    /// Boxed, because most resources have none most of the time.
    pub(crate) resource: Option<Box<R>>,
    pub(crate) due_at: Option<Instant>,
    /// End of the debounce of a change.
    pub(crate) change_due_at: Option<Instant>,
    /// Whether a listing waits for `due_at`.
    pub(crate) is_delay_explicit: bool,
    pub(crate) retries: u32,
    /// Ends of the consecutive reconciles that requested the next one at once.
    steps: Vec<Step>,
    /// The last listing that named the resource.
    pub(crate) listing: u32,
    pub(crate) last_reconciled_at: Option<Instant>,
    pub(crate) last: Option<WorkResult>,
    pub(crate) last_ended_at: Option<Instant>,
}

/// Status and reason with which a reconcile ended.
type Step = (Option<&'static str>, WorkReason);

/// Whether a listed resource differs from the one that the last reconcile left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Novelty {
    Known,
    New,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Idle,
    /// Queued under a ticket. A place in a lane with another ticket is outdated and skipped.
    Waiting {
        priority: Priority,
        ticket: u64,
        since: Instant,
    },
    /// Taken from a lane. `again` if a change was reported since, `offered` if a resync listed the resource since.
    Running {
        lane: Priority,
        again: bool,
        offered: bool,
    },
}

impl<R> Default for Entries<R> {
    fn default() -> Self {
        Self { names: HashMap::new(), slots: Slab::new() }
    }
}

impl<R> Entries<R> {
    /// Slot of a resource, which is inserted if it is unknown.
    pub(crate) fn get_or_insert(&mut self, name: &str) -> usize {
        if let Some(slot) = self.names.get(name) {
            return *slot;
        }
        let key: Key = name.into();
        let slot = self.slots.insert(Entry::new(Arc::clone(&key)));
        self.names.insert(key, slot);
        slot
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    pub(crate) fn get(&self, slot: usize) -> Option<&Entry<R>> {
        self.slots.get(slot)
    }

    pub(crate) fn get_mut(&mut self, slot: usize) -> Option<&mut Entry<R>> {
        self.slots.get_mut(slot)
    }

    pub(crate) fn remove(&mut self, slot: usize) -> Option<Entry<R>> {
        let entry = self.slots.try_remove(slot)?;
        self.names.remove(&entry.key);
        Some(entry)
    }

    /// All resources in the order of their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Entry<R>)> {
        self.slots.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}

impl<R> Entry<R> {
    fn new(key: Key) -> Self {
        Self {
            key,
            stage: Stage::Idle,
            owed: false,
            is_requested: false,
            resource: None,
            due_at: None,
            change_due_at: None,
            is_delay_explicit: false,
            retries: 0,
            steps: Vec::new(),
            listing: 0,
            last_reconciled_at: None,
            last: None,
            last_ended_at: None,
        }
    }

    /// Whether a reconcile that requests another one soon ended as one before it did, and so made no progress.
    pub(crate) fn repeats(&self, result: &WorkResult) -> bool {
        let step = (result.status, result.reason);
        match result.requeue {
            Requeue::Now => self.steps.contains(&step),
            Requeue::After(_) => self.last.as_ref().is_some_and(|last| (last.status, last.reason) == step),
            Requeue::NextCycle | Requeue::Backoff | Requeue::OnChange => false,
        }
    }

    /// Remembers the end of a reconcile, until one does not request the next at once.
    pub(crate) fn note_step(&mut self, result: &WorkResult) {
        match result.requeue {
            Requeue::Now if self.repeats(result) => {}
            Requeue::Now => self.steps.push((result.status, result.reason)),
            Requeue::After(_) | Requeue::NextCycle | Requeue::Backoff | Requeue::OnChange => self.steps = Vec::new(),
        }
    }

    pub(crate) fn holds(&self, place: u64) -> bool {
        matches!(self.stage, Stage::Waiting { ticket, .. } if ticket == place)
    }

    pub(crate) fn state(&self) -> ResourceState {
        let status = match (self.stage, self.last.as_ref().map(|last| last.outcome)) {
            (Stage::Running { .. }, _) => ResourceStatus::InProgress,
            (Stage::Waiting { .. }, _) | (Stage::Idle, None | Some(Outcome::Requeue)) => ResourceStatus::Pending,
            (Stage::Idle, Some(Outcome::Retry)) => ResourceStatus::Failed,
            (Stage::Idle, Some(Outcome::Success | Outcome::Skip)) => ResourceStatus::Success,
        };
        ResourceState {
            is_requested: self.is_requested,
            resource_id: Arc::clone(&self.key),
            status,
            waiting: match self.stage {
                Stage::Waiting { priority, since, .. } => Some((priority, since)),
                Stage::Idle | Stage::Running { .. } => None,
            },
            retry_count: self.retries,
            next_retry_at: self.due_at,
            last_reconciled_at: self.last_reconciled_at,
            last: self.last.clone(),
            last_ended_at: self.last_ended_at,
        }
    }
}
