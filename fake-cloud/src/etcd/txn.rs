//! Puts, deletes, and transactions of them.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;

use super::error::EtcdError;
use super::key_range::KeyRange;
use super::mvcc::{Keyspace, Record};
use super::range::{Range, RangeResponse};

/// The most compares, or operations of one branch, in a transaction including nested ones.
pub const MAX_OPERATIONS: usize = 128;

/// A write of one key.
#[derive(Debug, Clone)]
pub struct Put {
    /// The key to write; must not be empty.
    pub key: Bytes,
    /// The new value, or the current one.
    pub value: Assign<Bytes>,
    /// The lease to attach the key to (0 is none), or the current one.
    pub lease: Assign<i64>,
}

impl Put {
    /// A put of a value without a lease.
    pub fn new(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { key: key.into(), value: Assign::Set(value.into()), lease: Assign::Set(0) }
    }

    /// Returns whether the put is valid only if the key exists.
    pub(super) fn needs_existing(&self) -> bool {
        matches!(self.value, Assign::Keep) || matches!(self.lease, Assign::Keep)
    }

    pub(super) fn validate(&self) -> Result<(), EtcdError> {
        if self.key.is_empty() { Err(EtcdError::EmptyKey) } else { Ok(()) }
    }
}

/// A field that a put sets, or keeps as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assign<T> {
    /// Sets the field to this value.
    Set(T),
    /// Keeps the current value; the key must exist.
    Keep,
}

/// Result of a put.
#[derive(Debug, Clone)]
pub struct PutResponse {
    /// The revision the put created.
    pub revision: i64,
    /// The version before the put, if the key existed.
    pub previous: Option<Arc<Record>>,
}

/// A deletion of all keys in a range.
#[derive(Debug, Clone)]
pub struct Delete {
    /// The keys to delete; must not be empty.
    pub keys: KeyRange,
}

impl Delete {
    pub(super) fn validate(&self) -> Result<(), EtcdError> {
        if self.keys.is_empty_key() { Err(EtcdError::EmptyKey) } else { Ok(()) }
    }
}

/// Result of a delete.
#[derive(Debug, Clone)]
pub struct DeleteResponse {
    /// The revision the delete created, or the newest one if no key was deleted.
    pub revision: i64,
    /// The deleted versions, in key order.
    pub previous: Vec<Arc<Record>>,
}

/// Compares, and the operations to apply depending on their result. All writes share one revision.
#[derive(Debug, Clone, Default)]
pub struct Txn {
    /// Conditions that must all hold for `success` to be applied.
    pub compares: Vec<Compare>,
    /// Applied if every compare holds.
    pub success: Vec<Operation>,
    /// Applied if a compare does not hold.
    pub failure: Vec<Operation>,
}

/// One operation of a transaction.
#[derive(Debug, Clone)]
pub enum Operation {
    /// Reads the keys of a range.
    Range(Range),
    /// Writes a key.
    Put(Put),
    /// Deletes the keys of a range.
    Delete(Delete),
    /// Runs a nested transaction.
    Txn(Txn),
}

/// Result of a transaction.
#[derive(Debug, Clone)]
pub struct TxnResponse {
    /// The revision the transaction created, or the newest one if it wrote nothing.
    pub revision: i64,
    /// Whether every compare held.
    pub succeeded: bool,
    /// One response per operation of the applied branch.
    pub responses: Vec<OperationResponse>,
}

/// Result of one operation of a transaction.
#[derive(Debug, Clone)]
pub enum OperationResponse {
    /// Result of a range.
    Range(RangeResponse),
    /// Result of a put.
    Put(PutResponse),
    /// Result of a delete.
    Delete(DeleteResponse),
    /// Result of a nested transaction.
    Txn(TxnResponse),
}

/// A condition that must hold for every key of a range.
#[derive(Debug, Clone)]
pub struct Compare {
    /// The keys to check. If none exists, a record with zero fields is compared.
    pub keys: KeyRange,
    /// How the field of the record relates to the operand.
    pub relation: Relation,
    /// The field and the value to compare it with.
    pub operand: Operand,
}

/// A comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// The field equals the operand.
    Equal,
    /// The field is greater than the operand.
    Greater,
    /// The field is less than the operand.
    Less,
    /// The field differs from the operand.
    NotEqual,
}

/// A field of a record, with the value to compare it with.
#[derive(Debug, Clone)]
pub enum Operand {
    /// Number of writes since the key was created.
    Version(i64),
    /// The revision that created the key.
    CreateRevision(i64),
    /// The revision that last wrote the key.
    ModRevision(i64),
    /// The value, in byte order. Never holds for a key that does not exist.
    Value(Bytes),
    /// The lease the key is attached to.
    Lease(i64),
}

impl Compare {
    pub(super) fn holds(&self, keyspace: &Keyspace) -> bool {
        let mut found = keyspace.range(&self.keys).peekable();
        if found.peek().is_none() {
            // A missing key has no value, so no comparison of values holds, not even `NotEqual`.
            return !matches!(self.operand, Operand::Value(_)) && self.matches(&Record::tombstone(Bytes::new(), 0, 0));
        }
        found.all(|record| self.matches(record))
    }

    fn matches(&self, record: &Record) -> bool {
        let ordering = match &self.operand {
            Operand::Version(version) => record.version.cmp(version),
            Operand::CreateRevision(revision) => record.create_revision.cmp(revision),
            Operand::ModRevision(revision) => record.mod_revision.cmp(revision),
            Operand::Value(value) => record.value.cmp(value),
            Operand::Lease(lease) => record.lease.cmp(lease),
        };
        match self.relation {
            Relation::Equal => ordering == Ordering::Equal,
            Relation::Greater => ordering == Ordering::Greater,
            Relation::Less => ordering == Ordering::Less,
            Relation::NotEqual => ordering != Ordering::Equal,
        }
    }
}

impl Txn {
    /// Checks everything that does not depend on the contents of the store.
    pub(super) fn validate(&self) -> Result<(), EtcdError> {
        self.validate_size_and_keys(MAX_OPERATIONS)?;
        written_keys(&self.success)?;
        written_keys(&self.failure)?;
        Ok(())
    }

    /// Returns whether either branch may write. Like real etcd, counts every nested transaction as a write.
    pub(super) fn may_write(&self) -> bool {
        self.success.iter().chain(&self.failure).any(|operation| match operation {
            Operation::Range(_) => false,
            Operation::Put(_) | Operation::Delete(_) | Operation::Txn(_) => true,
        })
    }

    /// Returns whether either branch has a put, without those of nested transactions, as real etcd counts the cost of a
    /// transaction.
    pub(super) fn has_put(&self) -> bool {
        self.success.iter().chain(&self.failure).any(|operation| matches!(operation, Operation::Put(_)))
    }

    fn validate_size_and_keys(&self, allowed: usize) -> Result<(), EtcdError> {
        let operations = self.compares.len().max(self.success.len()).max(self.failure.len());
        let Some(left) = allowed.checked_sub(operations) else { return Err(EtcdError::TooManyOperations) };
        if self.compares.iter().any(|compare| compare.keys.is_empty_key()) {
            return Err(EtcdError::EmptyKey);
        }
        for operation in self.success.iter().chain(&self.failure) {
            match operation {
                Operation::Range(range) if range.keys.is_empty_key() => return Err(EtcdError::EmptyKey),
                Operation::Range(_) => {}
                Operation::Delete(delete) => delete.validate()?,
                Operation::Put(put) => put.validate()?,
                Operation::Txn(txn) => txn.validate_size_and_keys(left)?,
            }
        }
        Ok(())
    }
}

/// Collects the keys and ranges that a list of operations writes.
///
/// Fails if a key is put twice, or both put and deleted. The branches of a nested transaction may write the same key,
/// because only one of them is applied. Deletes with an open end are ignored, as in real etcd.
fn written_keys(operations: &[Operation]) -> Result<(HashSet<&Bytes>, Vec<&KeyRange>), EtcdError> {
    let mut puts = HashSet::new();
    let mut deletes: Vec<&KeyRange> = operations
        .iter()
        .filter_map(|operation| match operation {
            Operation::Delete(Delete { keys: KeyRange::From(_) }) => None,
            Operation::Delete(delete) => Some(&delete.keys),
            Operation::Range(_) | Operation::Put(_) | Operation::Txn(_) => None,
        })
        .collect();
    for operation in operations {
        if let Operation::Txn(txn) = operation {
            let (success_puts, success_deletes) = written_keys(&txn.success)?;
            let (failure_puts, failure_deletes) = written_keys(&txn.failure)?;
            let either: HashSet<_> = success_puts.union(&failure_puts).copied().collect();
            for key in either {
                add_put(key, &mut puts, &deletes)?;
            }
            deletes.extend(success_deletes.into_iter().chain(failure_deletes));
        }
    }
    for operation in operations {
        if let Operation::Put(put) = operation {
            add_put(&put.key, &mut puts, &deletes)?;
        }
    }
    Ok((puts, deletes))
}

fn add_put<'a>(key: &'a Bytes, puts: &mut HashSet<&'a Bytes>, deletes: &[&KeyRange]) -> Result<(), EtcdError> {
    let is_new = puts.insert(key) && !deletes.iter().any(|range| range.contains(key));
    if is_new { Ok(()) } else { Err(EtcdError::DuplicateKey) }
}
