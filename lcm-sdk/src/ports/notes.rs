use std::collections::BTreeMap;

use async_trait::async_trait;
use serde_json::{Map, Value};

use super::control_plane::Fence;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::wire_enum::vocabulary;

/// A store for the notes of workers, for a control plane whose records do not keep them.
///
/// Notes are one document per worker. The caller interprets the fields; the store keeps them as they are.
///
/// # Promises
/// - Notes are read back as written.
/// - Lists are complete and consistent: the notes of all workers at one moment.
/// - Unreadable notes are reported, and hide no others.
/// - Writes are conditional: if the notes changed since they were read, the write is a
///   [`Conflict`](crate::FailureKind::Conflict), and nothing is written.
/// - Older fencing tokens are refused with a conflict. A write without a token keeps the token of the notes.
/// - Deletions are conditional and idempotent.
#[async_trait]
pub trait NotesStore: Send + Sync {
    /// Lists the notes of all workers.
    async fn list(&self) -> Result<NotesListing, CallFailure>;

    /// Reads the notes of a worker; `None` if there are none. Unreadable notes are a failure.
    async fn get(&self, id: &WorkerId) -> Result<Option<StoredNotes>, CallFailure>;

    /// Writes the notes of a worker and returns their version. `over` is the notes that the write replaces; `None` if the
    /// worker has none.
    ///
    /// # Errors
    /// [`Conflict`](crate::FailureKind::Conflict) if the notes are not those of `over` any more, or if a leader with a
    /// newer fencing token wrote them.
    async fn put(
        &self,
        id: &WorkerId,
        fields: Map<String, Value>,
        over: Option<&StoredNotes>,
        fence: Fence,
        at: Timestamp,
    ) -> Result<u64, CallFailure>;

    /// Deletes the notes of a worker, if they are still those of `over`. Succeeds if the worker has none.
    ///
    /// # Errors
    /// As [`NotesStore::put`].
    async fn delete(&self, id: &WorkerId, over: &StoredNotes, fence: Fence) -> Result<(), CallFailure>;

    /// Name of the kind of store for operators. By default `custom`.
    fn kind(&self) -> &'static str {
        "custom"
    }

    /// Address of the store for operators, without credentials. By default returns `None`.
    fn url(&self) -> Option<String> {
        None
    }
}

/// Notes of all workers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NotesListing {
    /// Notes by worker.
    pub notes: BTreeMap<WorkerId, StoredNotes>,
    /// Notes that could not be read, with a description of the problem.
    pub unreadable: BTreeMap<WorkerId, String>,
}

/// Notes of one worker.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredNotes {
    /// The notes by name.
    pub fields: Map<String, Value>,
    /// Version of the notes, from 1. Grows with every write.
    pub version: u64,
    /// Newest fencing token of their writes.
    pub fence: Fence,
    /// Time of the last write.
    pub written_at: Timestamp,
}

impl StoredNotes {
    /// The failure of a write over notes that changed since they were read.
    pub fn changed(id: &WorkerId) -> CallFailure {
        CallFailure::new(FailureKind::Conflict, format!("the notes of worker {id} changed since they were read"))
    }

    /// The fencing token of notes that replace `over`. A write without a token keeps the one of `over`.
    ///
    /// # Errors
    /// [`Conflict`](crate::FailureKind::Conflict) if `fence` is older than that of `over`.
    pub fn next_fence(over: Option<&Self>, fence: Fence) -> Result<Fence, CallFailure> {
        let newest = over.map(|over| over.fence).unwrap_or_default();
        match (fence.0, newest.0) {
            (Some(ours), Some(newest)) if ours < newest => {
                let message = format!("the notes carry fencing token {newest}, newer than {ours}");
                Err(CallFailure::new(FailureKind::Conflict, message))
            }
            (Some(_), _) => Ok(fence),
            (None, _) => Ok(newest),
        }
    }
}

vocabulary! {
    /// Where the notes about workers are kept.
    NotesPlacement, "placement of notes" {
        /// On the records if the control plane keeps them there, else in etcd, or in memory without etcd.
        Auto = "auto",
        /// On the records.
        Record = "record",
        /// In etcd.
        Etcd = "etcd",
        /// In memory. A restart loses them.
        Memory = "memory",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fencing_tokens_never_decrease() {
        let stored = |token| StoredNotes {
            fields: Map::new(),
            version: 1,
            fence: Fence(token),
            written_at: Timestamp::UNIX_EPOCH,
        };
        let next = |over: Option<i64>, ours| StoredNotes::next_fence(Some(&stored(over)), Fence(ours));
        assert_eq!(next(Some(4), Some(5)), Ok(Fence(Some(5))));
        assert_eq!(next(Some(5), Some(5)), Ok(Fence(Some(5))));
        assert_eq!(next(Some(5), None), Ok(Fence(Some(5))));
        assert_eq!(next(Some(5), Some(4)).expect_err("older").kind, FailureKind::Conflict);
        assert_eq!(StoredNotes::next_fence(None, Fence(Some(4))), Ok(Fence(Some(4))));
    }
}
