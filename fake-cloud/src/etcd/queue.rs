//! Waiting in line: what etcd's elections and locks are made of.
//!
//! Everybody puts a key of their own under the same prefix, on their own lease. Whose key was created first is in
//! front; whoever goes away, willingly or with the lease, lets the next one in.

use bytes::{BufMut, Bytes, BytesMut};

use super::delivery::Delivery;
use super::error::EtcdError;
use super::handle::EtcdStore;
use super::key_range::KeyRange;
use super::range::{Order, Range, RangeAnswer, SortBy};
use super::txn::{Compare, Operand, Operation, OperationAnswer, Relation, Txn, TxnAnswer};
use super::watch::{WatchRequest, Without};
use super::write::{Assign, Delete, Put};

/// How long the lease of somebody who brought none lasts, in seconds.
const SESSION_TTL: i64 = 60;

/// The line of that name: all keys that begin with it and a slash.
pub(super) fn line(name: &[u8]) -> KeyRange {
    KeyRange::prefix(prefix(name).freeze())
}

/// Who is in front, if anybody is.
pub(super) fn front(store: &EtcdStore, name: &[u8]) -> Result<RangeAnswer, EtcdError> {
    let sorted = Range { limit: 1, sort_by: SortBy::CreateRevision, order: Order::Ascending, ..Range::of(line(name)) };
    store.range(&sorted)
}

/// A place in line. Given up when dropped, unless it is [kept](Place::keep).
#[derive(Debug)]
pub(super) struct Place {
    store: EtcdStore,
    name: Bytes,
    /// The key that holds the place.
    pub(super) key: Bytes,
    /// The lease the key is on.
    pub(super) lease: i64,
    /// The revision that created the key: the number of the place.
    pub(super) number: i64,
    /// The revision at which the place was taken.
    pub(super) revision: i64,
    is_kept: bool,
}

impl Place {
    /// Takes the last place in line, or finds the one this lease has already.
    pub(super) fn take(store: &EtcdStore, name: &Bytes, lease: i64, value: &Bytes) -> Result<Self, EtcdError> {
        let lease = if lease == 0 { store.lease_grant(0, SESSION_TTL)?.0 } else { lease };
        let mut key = prefix(name);
        key.put_slice(format!("{lease:x}").as_bytes());
        let key = key.freeze();
        let put = Put { key: key.clone(), value: Assign::Set(value.clone()), lease: Assign::Set(lease) };
        let answer = store.txn(&Txn {
            compares: vec![created_at(&key, 0)],
            success: vec![Operation::Put(put)],
            failure: vec![Operation::Range(Range::of(KeyRange::One(key.clone())))],
        })?;
        let place = |number| Self {
            store: store.clone(),
            name: name.clone(),
            key: key.clone(),
            lease,
            number,
            revision: answer.revision,
            is_kept: false,
        };
        let Some(OperationAnswer::Range(found)) = answer.answers.first() else { return Ok(place(answer.revision)) };
        let Some(record) = found.records.first() else { return Ok(place(answer.revision)) };
        let place = place(record.create_revision);
        if record.value != value {
            overwrite(store, &key, place.number, value, lease)?;
        }
        Ok(place)
    }

    /// Waits until nobody is in front any more.
    ///
    /// # Cancel safety
    /// Dropping the future alone loses nothing; dropping the place gives it up.
    pub(super) async fn wait(&self) -> Result<(), EtcdError> {
        loop {
            let before = self.store.range(&Range {
                limit: 1,
                sort_by: SortBy::CreateRevision,
                order: Order::Descending,
                created: i64::MIN..=self.number - 1,
                ..Range::of(line(&self.name))
            })?;
            let Some(neighbour) = before.records.first() else { return Ok(()) };
            self.deletion(&neighbour.key, before.revision + 1).await;
        }
    }

    /// Whether the place is still there, and the revision at which that was seen.
    pub(super) fn is_held(&self) -> Result<(bool, i64), EtcdError> {
        let found = self.store.range(&Range::of(KeyRange::One(self.key.clone())))?;
        Ok((found.records.iter().any(|record| record.create_revision == self.number), found.revision))
    }

    /// Leaves the key where it is when this value goes.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }

    /// Waits until the key may have been deleted. The caller looks again anyway.
    async fn deletion(&self, key: &Bytes, start_revision: i64) {
        let mut stream = self.store.watch();
        let without = Without { puts: true, deletes: false };
        stream.create(&WatchRequest { without, ..WatchRequest::of(KeyRange::One(key.clone()), start_revision) });
        loop {
            match stream.deliveries.next().await {
                Some(Delivery::Created { .. } | Delivery::Progress { .. }) => {}
                Some(_) | None => return,
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_kept {
            // Refused only when the key is gone already.
            drop(give_up(&self.store, &self.key, self.number));
        }
    }
}

/// Gives a new value to the key that holds a place, if it still does.
pub(super) fn overwrite(
    store: &EtcdStore,
    key: &Bytes,
    number: i64,
    value: &Bytes,
    lease: i64,
) -> Result<TxnAnswer, EtcdError> {
    let put = Put { key: key.clone(), value: Assign::Set(value.clone()), lease: Assign::Set(lease) };
    let compares = vec![created_at(key, number)];
    store.txn(&Txn { compares, success: vec![Operation::Put(put)], failure: Vec::new() })
}

/// Deletes the key that holds a place, if it still does.
pub(super) fn give_up(store: &EtcdStore, key: &Bytes, number: i64) -> Result<TxnAnswer, EtcdError> {
    let delete = Delete { keys: KeyRange::One(key.clone()) };
    let compares = vec![created_at(key, number)];
    store.txn(&Txn { compares, success: vec![Operation::Delete(delete)], failure: Vec::new() })
}

fn created_at(key: &Bytes, revision: i64) -> Compare {
    let operand = Operand::CreateRevision(revision);
    Compare { keys: KeyRange::One(key.clone()), relation: Relation::Equal, operand }
}

fn prefix(name: &[u8]) -> BytesMut {
    let mut prefix = BytesMut::with_capacity(name.len() + 17);
    prefix.put_slice(name);
    prefix.put_u8(b'/');
    prefix
}
