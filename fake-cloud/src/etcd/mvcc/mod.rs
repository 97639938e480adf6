//! The multi-version store: keys, history, leases and watchers, advanced together one revision at a time.
//!
//! Nothing here waits or reads a clock: callers pass the current time.

mod hash;
mod keyspace;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};

use super::alarm::{Alarm, AlarmKind, Alarms};
use super::error::EtcdError;
use super::key_range::KeyRange;
use super::lease::{LeaseStatus, Leases};
use super::range::{self, Range, RangeResponse};
use super::txn::{Assign, Delete, DeleteResponse, Operation, OperationResponse, Put, PutResponse, Txn, TxnResponse};
use super::watch::{StoreView, WatchReceiver, WatchRequest, WatcherStatus, Watchers};
pub(super) use hash::{row_key, row_value};
pub use keyspace::{Event, Record};
pub(super) use keyspace::{History, Keyspace};

/// Accounted size at which a server with default settings rejects writes.
const QUOTA: usize = 2 * 1024 * 1024 * 1024;

/// A multi-version store with etcd's rules.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Store {
    keyspace: Keyspace,
    history: History,
    leases: Leases,
    #[serde(skip)]
    watchers: Watchers,
    revision: i64,
    compact_revision: i64,
    #[serde(skip)]
    has_notified: bool,
    quota: usize,
    /// Accounted size of the database file: it grows with the versions, and shrinks when it is defragmented.
    file_size: usize,
    /// The member that raises an alarm when the quota is reached.
    member_id: u64,
    alarms: Alarms,
    counters: Counters,
}

/// Numbers of operations since the store was created.
#[derive(Debug, Clone, Copy, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Counters {
    pub(super) ranges: u64,
    pub(super) puts: u64,
    pub(super) deletes: u64,
    pub(super) txns: u64,
    pub(super) leases_granted: u64,
    pub(super) leases_revoked: u64,
    pub(super) leases_renewed: u64,
    pub(super) leases_expired: u64,
}

/// Sizes and positions of a store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gauges {
    pub(super) keys: usize,
    pub(super) revision: i64,
    pub(super) compact_revision: i64,
    pub(super) bytes_in_use: usize,
    pub(super) file_size: usize,
    pub(super) quota: usize,
    pub(super) watchers: usize,
    pub(super) watch_streams: usize,
}

/// The checksum of all keys up to a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeysHash {
    pub(super) hash: u32,
    pub(super) revision: i64,
    pub(super) compact_revision: i64,
}

/// An uncommitted revision with its events so far. A commit without events creates no revision.
struct WriteTxn {
    revision: i64,
    events: Vec<Event>,
}

impl WriteTxn {
    /// The newest revision as the transaction itself sees it.
    fn newest(&self) -> i64 {
        if self.events.is_empty() { self.revision - 1 } else { self.revision }
    }

    /// Number of changes so far.
    fn next_sub_revision(&self) -> u32 {
        u32::try_from(self.events.len()).unwrap_or(u32::MAX)
    }
}

impl Store {
    /// A store of the member with this id, with the quota of a server with default settings.
    pub(super) fn new(member_id: u64) -> Self {
        Self::with_quota(member_id, QUOTA)
    }

    /// A store that rejects writes once its accounted size reaches `quota` bytes.
    pub(super) fn with_quota(member_id: u64, quota: usize) -> Self {
        Self {
            quota,
            member_id,
            keyspace: Keyspace::default(),
            history: History::new(),
            leases: Leases::default(),
            watchers: Watchers::default(),
            revision: 1,
            compact_revision: 0,
            has_notified: false,
            file_size: 0,
            alarms: Alarms::default(),
            counters: Counters::default(),
        }
    }

    /// Returns to the state of a new store and closes all watch streams.
    pub(super) fn reset(&mut self) {
        // The emptied watchers are kept: their stream numbers must not be reused while old streams are being dropped.
        let mut watchers = std::mem::take(&mut self.watchers);
        watchers.close_all();
        watchers.resume(StoreView { revision: 1, compact_revision: 0, history: &History::new() });
        *self = Self { watchers, ..Self::with_quota(self.member_id, self.quota) };
    }

    /// Moves the expiry of all leases by the difference of two clocks.
    pub(super) fn rebase(&mut self, by: TimeDelta) {
        self.leases.rebase(by);
    }

    /// Completes a store that was read from a snapshot.
    ///
    /// # Errors
    /// The versions of the keys do not belong to the revisions.
    pub(super) fn rebuild(&mut self) -> Result<(), String> {
        self.history.rebuild(&self.keyspace, self.revision)
    }

    /// Takes the place of another store, and closes its watch streams.
    pub(super) fn replace(self, current: &mut Self) {
        let mut watchers = std::mem::take(&mut current.watchers);
        watchers.close_all();
        watchers.resume(StoreView {
            revision: self.revision,
            compact_revision: self.compact_revision,
            history: &self.history,
        });
        *current = Self { watchers, ..self };
    }

    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns whether a write has matched a watcher since the last call.
    pub(super) fn take_notified(&mut self) -> bool {
        std::mem::take(&mut self.has_notified)
    }

    /// Counts a range that was requested by itself.
    pub(super) fn count_range(&mut self) {
        self.counters.ranges += 1;
    }

    pub(super) fn range(&self, range: &Range) -> Result<RangeResponse, EtcdError> {
        if range.keys.is_empty_key() {
            return Err(EtcdError::EmptyKey);
        }
        self.check_range(range)?;
        Ok(range::read(&self.keyspace, range, self.revision))
    }

    pub(super) fn put(&mut self, put: &Put) -> Result<PutResponse, EtcdError> {
        put.validate()?;
        self.check_space()?;
        self.check_alarms()?;
        self.check_put(put)?;
        let mut write = self.begin();
        let response = self.apply_put(put, &mut write);
        self.commit(write);
        Ok(response)
    }

    pub(super) fn delete(&mut self, delete: &Delete) -> Result<DeleteResponse, EtcdError> {
        delete.validate()?;
        self.check_corrupt()?;
        let mut write = self.begin();
        let response = self.apply_delete(&delete.keys, &mut write);
        self.commit(write);
        Ok(response)
    }

    /// Applies a transaction that has passed [`Txn::validate`].
    pub(super) fn txn(&mut self, txn: &Txn) -> Result<TxnResponse, EtcdError> {
        if txn.may_write() {
            self.check_space()?;
            self.check_corrupt()?;
        }
        if txn.has_put() {
            self.check_alarms()?;
        }
        self.counters.txns += 1;
        // All compares, also those of nested transactions, see the store before any write.
        let plan = self.plan(txn);
        self.check_plan(&plan)?;
        let mut write = self.begin();
        let mut response = self.apply_plan(&plan, &mut write);
        response.revision = write.newest();
        self.commit(write);
        Ok(response)
    }

    pub(super) fn compact(&mut self, revision: i64) -> Result<(), EtcdError> {
        self.check_corrupt()?;
        if revision <= self.compact_revision {
            return Err(EtcdError::Compacted);
        }
        if revision > self.revision {
            return Err(EtcdError::FutureRevision);
        }
        self.compact_revision = revision;
        for event in self.history.compact(revision).iter().flat_map(|events| events.iter()) {
            self.keyspace.compact(&event.record.key, revision);
        }
        Ok(())
    }

    pub(super) fn lease_grant(&mut self, id: i64, ttl: i64, now: DateTime<Utc>) -> Result<i64, EtcdError> {
        self.check_space()?;
        self.check_alarms()?;
        let granted = self.leases.grant(id, ttl, now)?;
        self.counters.leases_granted += 1;
        Ok(granted)
    }

    /// The expiries of all leases, with their ids.
    pub(super) fn lease_expiries(&self) -> impl Iterator<Item = (DateTime<Utc>, i64)> {
        self.leases.expiries()
    }

    /// The numbers of all watchers, which are never used again.
    pub(super) fn watcher_numbers(&self) -> impl Iterator<Item = u64> {
        self.watchers.numbers()
    }

    pub(super) fn lease_exists(&self, id: i64) -> bool {
        self.leases.contains(id)
    }

    /// Removes a lease and deletes its keys in one revision, in key order.
    pub(super) fn lease_revoke(&mut self, id: i64) -> Result<(), EtcdError> {
        self.check_corrupt()?;
        self.end_lease(id)
    }

    fn end_lease(&mut self, id: i64) -> Result<(), EtcdError> {
        let keys = self.leases.remove(id).ok_or(EtcdError::LeaseNotFound)?;
        self.counters.leases_revoked += 1;
        let mut write = self.begin();
        for key in keys {
            self.apply_delete(&KeyRange::One(key), &mut write);
        }
        self.commit(write);
        Ok(())
    }

    pub(super) fn lease_keep_alive(&mut self, id: i64, now: DateTime<Utc>) -> Option<i64> {
        let renewed = self.leases.keep_alive(id, now);
        self.counters.leases_renewed += u64::from(renewed.is_some());
        renewed
    }

    pub(super) fn lease_status(&self, id: i64, now: DateTime<Utc>) -> Option<LeaseStatus> {
        self.leases.status(id, now)
    }

    pub(super) fn lease_ids(&self) -> Vec<i64> {
        self.leases.ids()
    }

    /// The ids of all leases and the TTLs they were granted with.
    pub(super) fn granted_leases(&self) -> Vec<(i64, i64)> {
        self.leases.granted()
    }

    /// The keys that are attached to a lease.
    pub(super) fn lease_keys(&self, id: i64) -> Vec<Bytes> {
        self.leases.keys(id)
    }

    /// Revokes the leases that have expired at `now`, in order of expiry.
    pub(super) fn expire(&mut self, now: DateTime<Utc>) {
        while let Some((_, id)) = self.leases.next_expiry().filter(|(due, _)| *due <= now) {
            let _ = self.end_lease(id);
            self.counters.leases_expired += 1;
        }
    }

    /// The time at which the next lease expires.
    pub(super) fn next_expiry(&self) -> Option<DateTime<Utc>> {
        self.leases.next_expiry().map(|(due, _)| due)
    }

    pub(super) fn raise_alarm(&mut self, alarm: Alarm) {
        self.alarms.raise(alarm);
    }

    /// Removes an alarm and returns whether it was raised.
    pub(super) fn disarm_alarm(&mut self, alarm: Alarm) -> bool {
        self.alarms.disarm(alarm)
    }

    /// The raised alarms of one kind, or all of them.
    pub(super) fn alarms(&self, kind: Option<AlarmKind>) -> Vec<Alarm> {
        self.alarms.list(kind)
    }

    /// Shrinks the database file to the size of the versions in it.
    pub(super) fn defragment(&mut self) {
        self.file_size = self.keyspace.bytes();
    }

    /// The checksum of all keys up to `revision`; 0 is the newest.
    pub(super) fn hash_keys(&self, revision: i64) -> Result<KeysHash, EtcdError> {
        if revision > 0 && revision <= self.compact_revision {
            return Err(EtcdError::Compacted);
        }
        if revision > self.revision {
            return Err(EtcdError::FutureRevision);
        }
        let up_to = if revision == 0 { self.revision } else { revision };
        // A real server that was never compacted reports revision -1.
        let compact_revision = if self.compact_revision == 0 { -1 } else { self.compact_revision };
        let hash = hash::hash_up_to(&self.keyspace, up_to, compact_revision);
        Ok(KeysHash { hash, revision: self.revision, compact_revision })
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    pub(super) fn gauges(&self) -> Gauges {
        let (watchers, watch_streams) = self.watchers.counts();
        Gauges {
            keys: self.keyspace.key_count(),
            revision: self.revision,
            compact_revision: self.compact_revision,
            bytes_in_use: self.keyspace.bytes(),
            file_size: self.file_size,
            quota: self.quota,
            watchers,
            watch_streams,
        }
    }

    /// All versions of all keys, oldest first.
    pub(super) fn versions(&self) -> Vec<Arc<Record>> {
        let mut versions: Vec<_> = self.keyspace.all_versions().cloned().collect();
        versions.sort_unstable_by_key(|record| (record.mod_revision, record.sub_revision));
        versions
    }

    /// All watchers.
    pub(super) fn watchers(&self) -> Vec<WatcherStatus> {
        self.watchers.list()
    }

    pub(super) fn watch_open(&mut self) -> WatchReceiver {
        self.watchers.open()
    }

    pub(super) fn watch_close(&mut self, stream: u64) {
        self.watchers.close(stream);
    }

    pub(super) fn watch_create(&mut self, stream: u64, request: &WatchRequest) {
        let (watchers, store) = self.watchers_and_view();
        watchers.create(stream, request, store);
    }

    pub(super) fn watch_cancel(&mut self, stream: u64, id: i64) {
        self.watchers.cancel(stream, id, self.revision);
    }

    pub(super) fn watch_progress(&mut self, stream: u64) {
        self.watchers.progress(stream, self.revision);
    }

    pub(super) fn watch_idle_progress(&mut self, stream: u64) {
        self.watchers.idle_progress(stream, self.revision);
    }

    pub(super) fn watch_catch_up(&mut self, stream: u64) {
        let (watchers, store) = self.watchers_and_view();
        watchers.catch_up_stream(stream, store);
    }

    pub(super) fn watch_stall(&mut self) {
        self.watchers.stall();
    }

    pub(super) fn watch_resume(&mut self) {
        let (watchers, store) = self.watchers_and_view();
        watchers.resume(store);
    }

    pub(super) fn watch_close_all(&mut self) {
        self.watchers.close_all();
    }

    fn watchers_and_view(&mut self) -> (&mut Watchers, StoreView<'_>) {
        let view =
            StoreView { revision: self.revision, compact_revision: self.compact_revision, history: &self.history };
        (&mut self.watchers, view)
    }

    fn check_range(&self, range: &Range) -> Result<(), EtcdError> {
        if range.revision > self.revision {
            return Err(EtcdError::FutureRevision);
        }
        if range.revision > 0 && range.revision < self.compact_revision {
            return Err(EtcdError::Compacted);
        }
        Ok(())
    }

    /// Checks the quota, to which deletes are not subject. Raises an alarm when it is reached.
    fn check_space(&mut self) -> Result<(), EtcdError> {
        if self.file_size < self.quota {
            return Ok(());
        }
        self.alarms.raise(Alarm { kind: AlarmKind::NoSpace, member: self.member_id });
        Err(EtcdError::NoSpace)
    }

    /// Checks the alarms that reject puts and new leases.
    fn check_alarms(&self) -> Result<(), EtcdError> {
        if self.alarms.is_raised(AlarmKind::NoSpace) { Err(EtcdError::NoSpace) } else { self.check_corrupt() }
    }

    /// Checks the alarm that rejects all writes.
    fn check_corrupt(&self) -> Result<(), EtcdError> {
        if self.alarms.is_raised(AlarmKind::Corrupt) { Err(EtcdError::Corrupt) } else { Ok(()) }
    }

    fn check_put(&self, put: &Put) -> Result<(), EtcdError> {
        if let Assign::Set(lease) = put.lease
            && lease != 0
            && !self.leases.contains(lease)
        {
            return Err(EtcdError::LeaseNotFound);
        }
        if put.needs_existing() && self.keyspace.latest(&put.key).is_none() {
            return Err(EtcdError::KeyNotFound);
        }
        Ok(())
    }

    fn begin(&self) -> WriteTxn {
        WriteTxn { revision: self.revision + 1, events: Vec::new() }
    }

    fn commit(&mut self, write: WriteTxn) {
        if write.events.is_empty() {
            return;
        }
        let events: Arc<[Event]> = write.events.into();
        self.revision = write.revision;
        self.history.push(Arc::clone(&events));
        self.file_size = self.file_size.max(self.keyspace.bytes());
        self.has_notified |= self.watchers.publish(self.revision, &events);
    }

    fn apply_put(&mut self, put: &Put, write: &mut WriteTxn) -> PutResponse {
        self.counters.puts += 1;
        let previous = self.keyspace.latest(&put.key).cloned();
        let value = match (&put.value, &previous) {
            // Copied, so that a small value does not keep the buffer of its request alive.
            (Assign::Set(value), _) => Bytes::copy_from_slice(value),
            (Assign::Keep, Some(previous)) => previous.value.clone(),
            (Assign::Keep, None) => Bytes::new(),
        };
        let old_lease = previous.as_ref().map_or(0, |previous| previous.lease);
        let lease = match put.lease {
            Assign::Set(lease) => lease,
            Assign::Keep => old_lease,
        };
        let record = Arc::new(match &previous {
            Some(previous) => Record {
                key: previous.key.clone(),
                value,
                create_revision: previous.create_revision,
                mod_revision: write.revision,
                version: previous.version + 1,
                lease,
                sub_revision: write.next_sub_revision(),
            },
            None => Record {
                key: Bytes::copy_from_slice(&put.key),
                value,
                create_revision: write.revision,
                mod_revision: write.revision,
                version: 1,
                lease,
                sub_revision: write.next_sub_revision(),
            },
        });
        if lease != old_lease {
            self.leases.detach(old_lease, &record.key);
            self.leases.attach(lease, &record.key);
        }
        let event = self.push_version(record, &previous, write);
        write.events.push(event);
        PutResponse { revision: write.revision, previous }
    }

    fn apply_delete(&mut self, keys: &KeyRange, write: &mut WriteTxn) -> DeleteResponse {
        self.counters.deletes += 1;
        let previous: Vec<_> = self.keyspace.range(keys).cloned().collect();
        for record in &previous {
            self.leases.detach(record.lease, &record.key);
            let tombstone = Arc::new(Record::tombstone(record.key.clone(), write.revision, write.next_sub_revision()));
            let event = self.push_version(tombstone, &Some(Arc::clone(record)), write);
            write.events.push(event);
        }
        DeleteResponse { revision: write.newest(), previous }
    }

    /// Adds a version to the keyspace and returns its event.
    ///
    /// If a key changes twice in one revision, the event holds the version before the first change. The event of a
    /// creation holds none.
    fn push_version(&mut self, record: Arc<Record>, previous: &Option<Arc<Record>>, write: &WriteTxn) -> Event {
        let is_creation = record.version == 1;
        let previous = match previous {
            previous if write.events.is_empty() => previous.clone(),
            _ if is_creation => None,
            _ => self.keyspace.latest_before(&record.key, write.revision).cloned(),
        };
        self.keyspace.push(Arc::clone(&record));
        Event { record, previous }
    }

    fn plan<'a>(&self, txn: &'a Txn) -> Plan<'a> {
        let succeeded = txn.compares.iter().all(|compare| compare.holds(&self.keyspace));
        let branch = if succeeded { &txn.success } else { &txn.failure };
        let steps = branch.iter().map(|operation| match operation {
            Operation::Range(range) => Step::Range(range),
            Operation::Put(put) => Step::Put(put),
            Operation::Delete(delete) => Step::Delete(delete),
            Operation::Txn(txn) => Step::Txn(self.plan(txn)),
        });
        Plan { succeeded, steps: steps.collect() }
    }

    fn check_plan(&self, plan: &Plan<'_>) -> Result<(), EtcdError> {
        plan.steps.iter().try_for_each(|step| match step {
            Step::Range(range) => self.check_range(range),
            Step::Put(put) => self.check_put(put),
            Step::Delete(_) => Ok(()),
            Step::Txn(plan) => self.check_plan(plan),
        })
    }

    fn apply_plan(&mut self, plan: &Plan<'_>, write: &mut WriteTxn) -> TxnResponse {
        let responses = plan.steps.iter().map(|step| match step {
            Step::Range(range) => OperationResponse::Range(range::read(&self.keyspace, range, write.newest())),
            Step::Put(put) => OperationResponse::Put(self.apply_put(put, write)),
            Step::Delete(delete) => OperationResponse::Delete(self.apply_delete(&delete.keys, write)),
            Step::Txn(plan) => OperationResponse::Txn(self.apply_plan(plan, write)),
        });
        TxnResponse { revision: 0, succeeded: plan.succeeded, responses: responses.collect() }
    }
}

/// A transaction with the branches its compares have selected.
struct Plan<'a> {
    succeeded: bool,
    steps: Vec<Step<'a>>,
}

enum Step<'a> {
    Range(&'a Range),
    Put(&'a Put),
    Delete(&'a Delete),
    Txn(Plan<'a>),
}
