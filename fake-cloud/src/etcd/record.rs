//! One version of a key, and what happened to it.

use std::sync::Arc;

use bytes::Bytes;

/// A key at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The key.
    pub key: Bytes,
    /// Its value; empty when this version is a deletion.
    pub value: Bytes,
    /// The revision that created the key; 0 for a deletion.
    pub create_revision: i64,
    /// The revision of this version.
    pub mod_revision: i64,
    /// How many times the key was written since it was created; 0 for a deletion.
    pub version: i64,
    /// The lease the key lives on, or 0.
    pub lease: i64,
}

impl Record {
    /// The version that says "gone since this revision".
    pub(super) fn tombstone(key: Bytes, revision: i64) -> Self {
        Self { key, value: Bytes::new(), create_revision: 0, mod_revision: revision, version: 0, lease: 0 }
    }

    /// Whether this version is a deletion.
    pub fn is_tombstone(&self) -> bool {
        self.version == 0
    }
}

/// A change of one key, as watchers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The version the change made: a deletion when it is a tombstone.
    pub record: Arc<Record>,
    /// The version before it, if the key existed.
    pub previous: Option<Arc<Record>>,
}

impl Event {
    /// Whether the key was deleted, rather than put.
    pub fn is_delete(&self) -> bool {
        self.record.is_tombstone()
    }
}
