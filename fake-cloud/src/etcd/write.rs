//! Writing keys.

use std::sync::Arc;

use bytes::Bytes;

use super::error::EtcdError;
use super::key_range::KeyRange;
use super::record::Record;
use super::txn::is_empty_key;

/// A key to write.
#[derive(Debug, Clone)]
pub struct Put {
    /// The key.
    pub key: Bytes,
    /// What becomes of the value.
    pub value: Assign<Bytes>,
    /// What becomes of the lease; 0 is none.
    pub lease: Assign<i64>,
}

impl Put {
    /// A key with a value and no lease.
    pub fn new(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { key: key.into(), value: Assign::Set(value.into()), lease: Assign::Set(0) }
    }

    /// Whether the key must exist already for this put to mean something.
    pub(super) fn needs_existing(&self) -> bool {
        matches!(self.value, Assign::Keep) || matches!(self.lease, Assign::Keep)
    }

    pub(super) fn check(&self) -> Result<(), EtcdError> {
        if self.key.is_empty() { Err(EtcdError::EmptyKey) } else { Ok(()) }
    }
}

/// A field that is written, or left as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assign<T> {
    /// Write this.
    Set(T),
    /// Leave what is there.
    Keep,
}

/// What a put did.
#[derive(Debug, Clone)]
pub struct PutAnswer {
    /// The revision it made.
    pub revision: i64,
    /// The key before it, if it existed.
    pub previous: Option<Arc<Record>>,
}

/// Keys to delete.
#[derive(Debug, Clone)]
pub struct Delete {
    /// The keys.
    pub keys: KeyRange,
}

impl Delete {
    pub(super) fn check(&self) -> Result<(), EtcdError> {
        if is_empty_key(&self.keys) { Err(EtcdError::EmptyKey) } else { Ok(()) }
    }
}

/// What a delete did.
#[derive(Debug, Clone)]
pub struct DeleteAnswer {
    /// The revision it made, or the newest one if there was nothing to delete.
    pub revision: i64,
    /// The keys before it, in key order.
    pub previous: Vec<Arc<Record>>,
}
