//! Contenders for a leadership or a lock: the recipe behind etcd's election and lock services.
//!
//! Every contender creates a key under a common prefix, attached to its own lease. The contender whose key has the
//! lowest create revision is the owner. When its key is deleted, by resigning or with the lease, the next one becomes
//! the owner.

use bytes::{BufMut, Bytes, BytesMut};

use super::error::EtcdError;
use super::key_range::KeyRange;
use super::range::{Order, Range, RangeResponse, SortBy};
use super::store::EtcdStore;
use super::txn::{Assign, Compare, Delete, Operand, Operation, OperationResponse, Put, Relation, Txn, TxnResponse};
use super::watch::{EventFilters, WatchMessage, WatchRequest};

/// TTL in seconds of the lease that is granted to a contender without one.
const SESSION_TTL: i64 = 60;

/// The keys of all contenders for `name`.
pub(super) fn contender_keys(name: &[u8]) -> KeyRange {
    KeyRange::prefix(prefix(name).freeze())
}

/// The first key of all contenders for `name`, and the first key after them.
pub(super) fn contender_bounds(name: &[u8]) -> (Bytes, Bytes) {
    let mut after = BytesMut::from(name);
    after.put_u8(b'/' + 1);
    (prefix(name).freeze(), after.freeze())
}

/// Reads the key of the current owner, if there is one.
pub(super) fn owner(store: &EtcdStore, name: &[u8]) -> Result<RangeResponse, EtcdError> {
    store.range(&Range {
        limit: 1,
        sort_by: SortBy::CreateRevision,
        order: Order::Ascending,
        ..Range::new(contender_keys(name))
    })
}

/// A contender for `name`. Its key is deleted on drop, unless it is [kept](Contender::keep).
#[derive(Debug)]
pub(super) struct Contender {
    store: EtcdStore,
    name: Bytes,
    /// The key of this contender.
    pub(super) key: Bytes,
    /// The lease the key is attached to.
    pub(super) lease: i64,
    /// The create revision of the key, by which contenders are ordered.
    pub(super) create_revision: i64,
    /// The revision of the store when the contender registered.
    pub(super) revision: i64,
    is_kept: bool,
}

impl Contender {
    /// Creates the key of a contender, or finds the key that this lease already has.
    pub(super) fn register(store: &EtcdStore, name: &Bytes, lease: i64, value: &Bytes) -> Result<Self, EtcdError> {
        let lease = if lease == 0 { store.lease_grant(0, SESSION_TTL)?.0 } else { lease };
        let mut key = prefix(name);
        key.put_slice(format!("{lease:x}").as_bytes());
        let key = key.freeze();
        let put = Put { key: key.clone(), value: Assign::Set(value.clone()), lease: Assign::Set(lease) };
        let response = store.txn(&Txn {
            compares: vec![created_at(&key, 0)],
            success: vec![Operation::Put(put)],
            failure: vec![Operation::Range(Range::new(KeyRange::One(key.clone())))],
        })?;
        let existing = match response.responses.first() {
            Some(OperationResponse::Range(found)) => found.records.first(),
            _ => None,
        };
        let contender = Self {
            store: store.clone(),
            name: name.clone(),
            key,
            lease,
            create_revision: existing.map_or(response.revision, |record| record.create_revision),
            revision: response.revision,
            is_kept: false,
        };
        if existing.is_some_and(|record| record.value != value) {
            update_value(store, &contender.key, contender.create_revision, value, lease)?;
        }
        Ok(contender)
    }

    /// Waits until no earlier contender is left.
    ///
    /// # Cancel safety
    /// Can be dropped at any time; the contender keeps its key.
    pub(super) async fn wait(&self) -> Result<(), EtcdError> {
        loop {
            let earlier = self.store.range(&Range {
                limit: 1,
                sort_by: SortBy::CreateRevision,
                order: Order::Descending,
                created: i64::MIN..=self.create_revision - 1,
                ..Range::new(contender_keys(&self.name))
            })?;
            let Some(predecessor) = earlier.records.first() else { return Ok(()) };
            self.wait_for_delete(&predecessor.key, earlier.revision + 1).await;
        }
    }

    /// Returns whether the key still exists, and the revision at which it was read.
    pub(super) fn is_registered(&self) -> Result<(bool, i64), EtcdError> {
        let found = self.store.range(&Range::new(KeyRange::One(self.key.clone())))?;
        Ok((found.records.iter().any(|record| record.create_revision == self.create_revision), found.revision))
    }

    /// Consumes the contender without deleting its key.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }

    /// Waits until the key is deleted. May return early; the caller checks again.
    async fn wait_for_delete(&self, key: &Bytes, start_revision: i64) {
        let mut stream = self.store.watch();
        let filters = EventFilters { no_put: true, no_delete: false };
        stream.create(&WatchRequest { filters, ..WatchRequest::new(KeyRange::One(key.clone()), start_revision) });
        while let Some(WatchMessage::Created { .. } | WatchMessage::Progress { .. }) = stream.recv().await {}
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        if !self.is_kept {
            // Fails only if the key is already gone.
            drop(resign(&self.store, &self.key, self.create_revision));
        }
    }
}

/// Updates the value of a contender's key, if the key still has this create revision.
pub(super) fn update_value(
    store: &EtcdStore,
    key: &Bytes,
    create_revision: i64,
    value: &Bytes,
    lease: i64,
) -> Result<TxnResponse, EtcdError> {
    let put = Put { key: key.clone(), value: Assign::Set(value.clone()), lease: Assign::Set(lease) };
    let compares = vec![created_at(key, create_revision)];
    store.txn(&Txn { compares, success: vec![Operation::Put(put)], failure: Vec::new() })
}

/// Deletes a contender's key, if the key still has this create revision.
pub(super) fn resign(store: &EtcdStore, key: &Bytes, create_revision: i64) -> Result<TxnResponse, EtcdError> {
    let delete = Delete { keys: KeyRange::One(key.clone()) };
    let compares = vec![created_at(key, create_revision)];
    store.txn(&Txn { compares, success: vec![Operation::Delete(delete)], failure: Vec::new() })
}

fn created_at(key: &Bytes, create_revision: i64) -> Compare {
    let operand = Operand::CreateRevision(create_revision);
    Compare { keys: KeyRange::One(key.clone()), relation: Relation::Equal, operand }
}

fn prefix(name: &[u8]) -> BytesMut {
    let mut prefix = BytesMut::with_capacity(name.len() + 17);
    prefix.put_slice(name);
    prefix.put_u8(b'/');
    prefix
}
