//! Reads of a range of keys: filters, order and limit.

use std::cmp::Ordering;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::key_range::KeyRange;
use super::mvcc::{Keyspace, Record};

/// A read of a range of keys.
#[derive(Debug, Clone)]
pub struct Range {
    /// The keys to read; must not be empty.
    pub keys: KeyRange,
    /// The revision to read at; 0 is the newest.
    pub revision: i64,
    /// The most keys to return; 0 is no limit.
    pub limit: i64,
    /// The field to sort by.
    pub sort_by: SortBy,
    /// The sort direction.
    pub order: Order,
    /// Returns only keys last written within these revisions.
    pub modified: RangeInclusive<i64>,
    /// Returns only keys created within these revisions.
    pub created: RangeInclusive<i64>,
    /// The parts of each record to return.
    pub detail: Detail,
}

impl Range {
    /// A read of the newest version of these keys, with values, in key order and without a limit.
    pub fn new(keys: KeyRange) -> Self {
        Self {
            keys,
            revision: 0,
            limit: 0,
            sort_by: SortBy::Key,
            order: Order::Unsorted,
            modified: EVERY_REVISION,
            created: EVERY_REVISION,
            detail: Detail::Full,
        }
    }

    fn is_filtered(&self) -> bool {
        self.modified != EVERY_REVISION || self.created != EVERY_REVISION
    }

    fn matches(&self, record: &Record) -> bool {
        self.modified.contains(&record.mod_revision) && self.created.contains(&record.create_revision)
    }
}

/// The revision filter that matches every key.
pub const EVERY_REVISION: RangeInclusive<i64> = i64::MIN..=i64::MAX;

/// The field a range is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortBy {
    /// The key, in byte order.
    Key,
    /// Number of writes since the key was created.
    Version,
    /// The revision that created the key.
    CreateRevision,
    /// The revision that last wrote the key.
    ModRevision,
    /// The value, in byte order.
    Value,
}

/// The direction a range is sorted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// In store order, which is by key. Sorts ascending when sorting by another field.
    Unsorted,
    /// From smallest to largest.
    Ascending,
    /// From largest to smallest.
    Descending,
}

/// The parts of a record that a range returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Keys with values.
    Full,
    /// Keys without values.
    KeysOnly,
    /// The number of keys only.
    CountOnly,
}

/// Result of a range.
#[derive(Debug, Clone, Default)]
pub struct RangeResponse {
    /// The newest revision at the time of reading, also when an older one was read.
    pub revision: i64,
    /// The matching records, sorted and limited.
    pub records: Vec<Arc<Record>>,
    /// Whether the limit cut off records.
    pub more: bool,
    /// The number of keys in the range, regardless of limit and filters.
    pub count: i64,
}

/// Reads a range. `revision` is the newest one; the requested revision must be readable.
pub(super) fn read(keyspace: &Keyspace, range: &Range, revision: i64) -> RangeResponse {
    let mut response = RangeResponse { revision, ..RangeResponse::default() };
    if let (KeyRange::One(key), 0) = (&range.keys, range.revision) {
        collect(keyspace.latest(key).into_iter(), range, &mut response);
    } else if range.revision > 0 && range.revision < revision {
        collect(keyspace.range_at_revision(&range.keys, range.revision), range, &mut response);
    } else {
        collect(keyspace.range(&range.keys), range, &mut response);
    }
    response
}

fn collect<'a>(found: impl Iterator<Item = &'a Arc<Record>>, range: &Range, response: &mut RangeResponse) {
    let limit = usize::try_from(range.limit).ok().filter(|limit| *limit > 0);
    // As in real etcd, only an explicit order or a filter looks beyond the first `limit` keys.
    let fetched = match limit {
        Some(limit) if range.order == Order::Unsorted && !range.is_filtered() => limit.saturating_add(1),
        Some(_) | None => usize::MAX,
    };
    for record in found {
        response.count += 1;
        if range.detail != Detail::CountOnly && response.records.len() < fetched && range.matches(record) {
            response.records.push(record.clone());
        }
    }
    match (range.order, range.sort_by) {
        (Order::Unsorted | Order::Ascending, SortBy::Key) => {}
        (Order::Unsorted | Order::Ascending, by) => response.records.sort_by(|a, b| compare(by, a, b)),
        (Order::Descending, by) => response.records.sort_by(|a, b| compare(by, b, a)),
    }
    if let Some(limit) = limit
        && response.records.len() > limit
    {
        response.records.truncate(limit);
        response.more = true;
    }
}

fn compare(by: SortBy, a: &Record, b: &Record) -> Ordering {
    match by {
        SortBy::Key => a.key.cmp(&b.key),
        SortBy::Version => a.version.cmp(&b.version),
        SortBy::CreateRevision => a.create_revision.cmp(&b.create_revision),
        SortBy::ModRevision => a.mod_revision.cmp(&b.mod_revision),
        SortBy::Value => a.value.cmp(&b.value),
    }
}
