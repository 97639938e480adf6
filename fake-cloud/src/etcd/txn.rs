//! Transactions: compare, then do one list of operations or the other, all in one revision.

use std::cmp::Ordering;
use std::collections::HashSet;

use bytes::Bytes;

use super::error::EtcdError;
use super::key_range::KeyRange;
use super::keyspace::Keyspace;
use super::range::{Range, RangeAnswer};
use super::record::Record;
use super::write::{Delete, DeleteAnswer, Put, PutAnswer};

/// The most compares, or operations of one branch, in a transaction and those nested in it.
pub const MAX_OPERATIONS: usize = 128;

/// A transaction.
#[derive(Debug, Clone, Default)]
pub struct Txn {
    /// What must hold for `success` to be done.
    pub compares: Vec<Compare>,
    /// What is done if all compares hold.
    pub success: Vec<Operation>,
    /// What is done otherwise.
    pub failure: Vec<Operation>,
}

/// One step of a transaction.
#[derive(Debug, Clone)]
pub enum Operation {
    /// Read.
    Range(Range),
    /// Write.
    Put(Put),
    /// Delete.
    Delete(Delete),
    /// A transaction inside the transaction.
    Txn(Txn),
}

/// What a transaction did.
#[derive(Debug, Clone)]
pub struct TxnAnswer {
    /// The revision it made, or the newest one if it wrote nothing.
    pub revision: i64,
    /// Whether all compares held.
    pub succeeded: bool,
    /// One answer for each operation of the branch that was done.
    pub answers: Vec<OperationAnswer>,
}

/// What one step of a transaction did.
#[derive(Debug, Clone)]
pub enum OperationAnswer {
    /// What was read.
    Range(RangeAnswer),
    /// What was written.
    Put(PutAnswer),
    /// What was deleted.
    Delete(DeleteAnswer),
    /// What the inner transaction did.
    Txn(TxnAnswer),
}

/// A condition on a key, or on all keys of a range.
#[derive(Debug, Clone)]
pub struct Compare {
    /// The keys.
    pub keys: KeyRange,
    /// How the key's field relates to the operand.
    pub relation: Relation,
    /// Which field, and what it is compared with.
    pub operand: Operand,
}

/// How two things compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// They are equal.
    Equal,
    /// The key's is greater.
    Greater,
    /// The key's is less.
    Less,
    /// They differ.
    NotEqual,
}

/// A field of a key, and what it is compared with.
#[derive(Debug, Clone)]
pub enum Operand {
    /// How often it was written.
    Version(i64),
    /// The revision that created it.
    CreateRevision(i64),
    /// The revision that last wrote it.
    ModRevision(i64),
    /// Its value.
    Value(Bytes),
    /// Its lease.
    Lease(i64),
}

impl Compare {
    pub(super) fn holds(&self, keyspace: &Keyspace) -> bool {
        let mut found = keyspace.now(&self.keys).peekable();
        if found.peek().is_none() {
            // A key that does not exist has no value, so nothing can be said about it, not even that it differs.
            return !matches!(self.operand, Operand::Value(_)) && self.holds_for(&Record::tombstone(Bytes::new(), 0));
        }
        found.all(|record| self.holds_for(record))
    }

    fn holds_for(&self, record: &Record) -> bool {
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
    /// Refuses what no state of the store could make right.
    pub(super) fn check(&self) -> Result<(), EtcdError> {
        self.check_size_and_keys(MAX_OPERATIONS)?;
        written(&self.success)?;
        written(&self.failure)?;
        Ok(())
    }

    /// Whether it may write anything, as far as the real one sees: it does not look into inner transactions.
    pub(super) fn may_write(&self) -> bool {
        self.success.iter().chain(&self.failure).any(|operation| match operation {
            Operation::Range(_) => false,
            Operation::Put(_) | Operation::Delete(_) | Operation::Txn(_) => true,
        })
    }

    fn check_size_and_keys(&self, allowed: usize) -> Result<(), EtcdError> {
        let operations = self.compares.len().max(self.success.len()).max(self.failure.len());
        let Some(left) = allowed.checked_sub(operations) else { return Err(EtcdError::TooManyOperations) };
        if self.compares.iter().any(|compare| is_empty_key(&compare.keys)) {
            return Err(EtcdError::EmptyKey);
        }
        for operation in self.success.iter().chain(&self.failure) {
            match operation {
                Operation::Range(range) if is_empty_key(&range.keys) => return Err(EtcdError::EmptyKey),
                Operation::Delete(delete) if is_empty_key(&delete.keys) => return Err(EtcdError::EmptyKey),
                Operation::Range(_) | Operation::Delete(_) => {}
                Operation::Put(put) => put.check()?,
                Operation::Txn(txn) => txn.check_size_and_keys(left)?,
            }
        }
        Ok(())
    }
}

/// Whether a range names no key to begin with.
pub(super) fn is_empty_key(keys: &KeyRange) -> bool {
    match keys {
        KeyRange::One(key) | KeyRange::Between(key, _) | KeyRange::From(key) => key.is_empty(),
    }
}

/// The keys and ranges a list of operations writes, or a refusal if it puts a key twice, or puts and deletes it.
/// The two branches of an inner transaction may write the same key, for only one of them is done. Deletes without an
/// end are not looked at, because the real one does not see that they meet anything.
fn written(operations: &[Operation]) -> Result<(HashSet<&Bytes>, Vec<&KeyRange>), EtcdError> {
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
            let (success_puts, success_deletes) = written(&txn.success)?;
            let (failure_puts, failure_deletes) = written(&txn.failure)?;
            let either: HashSet<_> = success_puts.union(&failure_puts).copied().collect();
            for key in either {
                claim(key, &mut puts, &deletes)?;
            }
            deletes.extend(success_deletes.into_iter().chain(failure_deletes));
        }
    }
    for operation in operations {
        if let Operation::Put(put) = operation {
            claim(&put.key, &mut puts, &deletes)?;
        }
    }
    Ok((puts, deletes))
}

fn claim<'a>(key: &'a Bytes, puts: &mut HashSet<&'a Bytes>, deletes: &[&KeyRange]) -> Result<(), EtcdError> {
    let is_free = puts.insert(key) && !deletes.iter().any(|range| range.contains(key));
    if is_free { Ok(()) } else { Err(EtcdError::DuplicateKey) }
}
