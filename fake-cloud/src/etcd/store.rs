//! The store: keys, history, leases and watchers, moved together, one revision at a time.
//!
//! Nothing here waits, and nothing here knows the time: whoever calls says what time it is.

use std::sync::Arc;

use bytes::Bytes;
use chrono::{DateTime, Utc};

use super::delivery::Deliveries;
use super::error::EtcdError;
use super::history::History;
use super::key_range::KeyRange;
use super::keyspace::Keyspace;
use super::lease::{LeaseStatus, Leases};
use super::range::{self, Range, RangeAnswer};
use super::record::{Event, Record};
use super::txn::{Operation, OperationAnswer, Txn, TxnAnswer, is_empty_key};
use super::watch::{Position, WatchRequest, Watchers};
use super::write::{Assign, Delete, DeleteAnswer, Put, PutAnswer};

/// How many bytes of keys and values a server with default settings keeps before it refuses to take more.
const QUOTA: usize = 2 * 1024 * 1024 * 1024;

/// A multi-version store with etcd's rules.
#[derive(Debug)]
pub(super) struct Store {
    keyspace: Keyspace,
    history: History,
    leases: Leases,
    watchers: Watchers,
    revision: i64,
    compacted: i64,
    was_heard: bool,
    quota: usize,
}

/// The revision being made: its events so far. It becomes real when it is committed with at least one.
struct Draft {
    revision: i64,
    events: Vec<Event>,
}

impl Draft {
    /// The newest revision, seen from inside the draft.
    fn newest(&self) -> i64 {
        if self.events.is_empty() { self.revision - 1 } else { self.revision }
    }
}

impl Store {
    pub(super) fn new() -> Self {
        Self::with_quota(QUOTA)
    }

    /// One that keeps so many bytes.
    pub(super) fn with_quota(quota: usize) -> Self {
        Self {
            quota,
            keyspace: Keyspace::default(),
            history: History::new(),
            leases: Leases::default(),
            watchers: Watchers::default(),
            revision: 1,
            compacted: 0,
            was_heard: false,
        }
    }

    /// Becomes a fresh store. All watch streams end.
    pub(super) fn reset(&mut self) {
        // The watchers stay, empty: streams that are still being closed must not be taken for new ones.
        let mut watchers = std::mem::take(&mut self.watchers);
        watchers.cut();
        watchers.stall(false, Position { revision: 1, compacted: 0, history: &History::new() });
        *self = Self { watchers, ..Self::with_quota(self.quota) };
    }

    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    /// Whether watchers were told something since this was last asked.
    pub(super) fn take_heard(&mut self) -> bool {
        std::mem::take(&mut self.was_heard)
    }

    pub(super) fn range(&self, range: &Range) -> Result<RangeAnswer, EtcdError> {
        if is_empty_key(&range.keys) {
            return Err(EtcdError::EmptyKey);
        }
        self.check_range(range)?;
        Ok(range::read(&self.keyspace, range, self.revision))
    }

    pub(super) fn put(&mut self, put: &Put) -> Result<PutAnswer, EtcdError> {
        put.check()?;
        self.check_space()?;
        self.check_put(put)?;
        let mut draft = self.draft();
        let answer = self.draft_put(put, &mut draft);
        self.commit(draft);
        Ok(answer)
    }

    pub(super) fn delete(&mut self, delete: &Delete) -> Result<DeleteAnswer, EtcdError> {
        delete.check()?;
        let mut draft = self.draft();
        let answer = self.draft_delete(&delete.keys, &mut draft);
        self.commit(draft);
        Ok(answer)
    }

    /// Carries out a transaction that was [checked](Txn::check), which takes its time and nothing from here.
    pub(super) fn txn(&mut self, txn: &Txn) -> Result<TxnAnswer, EtcdError> {
        if txn.may_write() {
            self.check_space()?;
        }
        // All compares, also those of inner transactions, look at the store as it was before.
        let plan = self.plan(txn);
        self.check_plan(&plan)?;
        let mut draft = self.draft();
        let mut answer = self.draft_plan(&plan, &mut draft);
        answer.revision = draft.newest();
        self.commit(draft);
        Ok(answer)
    }

    pub(super) fn compact(&mut self, revision: i64) -> Result<(), EtcdError> {
        if revision <= self.compacted {
            return Err(EtcdError::Compacted);
        }
        if revision > self.revision {
            return Err(EtcdError::FutureRevision);
        }
        self.compacted = revision;
        for event in self.history.compact(revision).iter().flat_map(|events| events.iter()) {
            self.keyspace.compact(&event.record.key, revision);
        }
        Ok(())
    }

    pub(super) fn lease_grant(&mut self, id: i64, ttl: i64, now: DateTime<Utc>) -> Result<i64, EtcdError> {
        self.check_space()?;
        self.leases.grant(id, ttl, now)
    }

    pub(super) fn lease_exists(&self, id: i64) -> bool {
        self.leases.contains(id)
    }

    /// Ends a lease: its keys go in one revision, in key order.
    pub(super) fn lease_revoke(&mut self, id: i64) -> Result<(), EtcdError> {
        let keys = self.leases.remove(id).ok_or(EtcdError::LeaseNotFound)?;
        let mut draft = self.draft();
        for key in keys {
            self.draft_delete(&KeyRange::One(key), &mut draft);
        }
        self.commit(draft);
        Ok(())
    }

    pub(super) fn lease_keep_alive(&mut self, id: i64, now: DateTime<Utc>) -> Option<i64> {
        self.leases.keep_alive(id, now)
    }

    pub(super) fn lease_status(&self, id: i64, now: DateTime<Utc>) -> Option<LeaseStatus> {
        self.leases.status(id, now)
    }

    pub(super) fn lease_ids(&self) -> Vec<i64> {
        self.leases.ids()
    }

    /// Ends the leases whose time has come, in that order.
    pub(super) fn expire(&mut self, now: DateTime<Utc>) {
        while let Some((_, id)) = self.leases.next_expiry().filter(|(due, _)| *due <= now) {
            let _ = self.lease_revoke(id);
        }
    }

    /// When the next lease ends.
    pub(super) fn next_expiry(&self) -> Option<DateTime<Utc>> {
        self.leases.next_expiry().map(|(due, _)| due)
    }

    pub(super) fn watch_open(&mut self) -> Deliveries {
        self.watchers.open()
    }

    pub(super) fn watch_close(&mut self, stream: u64) {
        self.watchers.close(stream);
    }

    pub(super) fn watch_create(&mut self, stream: u64, request: &WatchRequest) -> Option<i64> {
        let (watchers, position) = self.watchers_and_position();
        watchers.create(stream, request, position)
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
        let (watchers, position) = self.watchers_and_position();
        watchers.catch_up_stream(stream, position);
    }

    pub(super) fn watch_stall(&mut self, stalled: bool) {
        let (watchers, position) = self.watchers_and_position();
        watchers.stall(stalled, position);
    }

    pub(super) fn watch_cut(&mut self) {
        self.watchers.cut();
    }

    fn watchers_and_position(&mut self) -> (&mut Watchers, Position<'_>) {
        let position = Position { revision: self.revision, compacted: self.compacted, history: &self.history };
        (&mut self.watchers, position)
    }

    fn check_range(&self, range: &Range) -> Result<(), EtcdError> {
        if range.revision > self.revision {
            return Err(EtcdError::FutureRevision);
        }
        if range.revision > 0 && range.revision < self.compacted {
            return Err(EtcdError::Compacted);
        }
        Ok(())
    }

    /// Deletions are always taken, and compaction makes room.
    fn check_space(&self) -> Result<(), EtcdError> {
        if self.keyspace.bytes() < self.quota { Ok(()) } else { Err(EtcdError::NoSpace) }
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

    fn draft(&self) -> Draft {
        Draft { revision: self.revision + 1, events: Vec::new() }
    }

    fn commit(&mut self, draft: Draft) {
        if draft.events.is_empty() {
            return;
        }
        let events: Arc<[Event]> = draft.events.into();
        self.revision = draft.revision;
        self.history.push(Arc::clone(&events));
        self.was_heard |= self.watchers.publish(self.revision, &events);
    }

    fn draft_put(&mut self, put: &Put, draft: &mut Draft) -> PutAnswer {
        let previous = self.keyspace.latest(&put.key).cloned();
        let value = match (&put.value, &previous) {
            // A copy, so that a small value does not keep the whole buffer of its request alive.
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
                mod_revision: draft.revision,
                version: previous.version + 1,
                lease,
            },
            None => Record {
                key: Bytes::copy_from_slice(&put.key),
                value,
                create_revision: draft.revision,
                mod_revision: draft.revision,
                version: 1,
                lease,
            },
        });
        if lease != old_lease {
            self.leases.detach(old_lease, &record.key);
            self.leases.attach(lease, &record.key);
        }
        let event = self.event(record, &previous, draft);
        draft.events.push(event);
        PutAnswer { revision: draft.revision, previous }
    }

    fn draft_delete(&mut self, keys: &KeyRange, draft: &mut Draft) -> DeleteAnswer {
        let previous: Vec<_> = self.keyspace.now(keys).cloned().collect();
        for record in &previous {
            self.leases.detach(record.lease, &record.key);
            let tombstone = Arc::new(Record::tombstone(record.key.clone(), draft.revision));
            let event = self.event(tombstone, &Some(Arc::clone(record)), draft);
            draft.events.push(event);
        }
        DeleteAnswer { revision: draft.newest(), previous }
    }

    /// Adds a version to the keyspace. If the key is changed twice in one revision, watchers are told what was there
    /// before the first change; and never that there was something before a creation.
    fn event(&mut self, record: Arc<Record>, previous: &Option<Arc<Record>>, draft: &Draft) -> Event {
        let is_creation = record.version == 1;
        let previous = match previous {
            previous if draft.events.is_empty() => previous.clone(),
            _ if is_creation => None,
            _ => self.keyspace.before(&record.key, draft.revision).cloned(),
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

    fn draft_plan(&mut self, plan: &Plan<'_>, draft: &mut Draft) -> TxnAnswer {
        let answers = plan.steps.iter().map(|step| match step {
            Step::Range(range) => OperationAnswer::Range(range::read(&self.keyspace, range, draft.newest())),
            Step::Put(put) => OperationAnswer::Put(self.draft_put(put, draft)),
            Step::Delete(delete) => OperationAnswer::Delete(self.draft_delete(&delete.keys, draft)),
            Step::Txn(plan) => OperationAnswer::Txn(self.draft_plan(plan, draft)),
        });
        TxnAnswer { revision: 0, succeeded: plan.succeeded, answers: answers.collect() }
    }
}

/// A transaction whose branches are chosen.
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
