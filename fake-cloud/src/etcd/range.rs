//! Reading keys.

use std::cmp::Ordering;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::key_range::KeyRange;
use super::keyspace::Keyspace;
use super::record::Record;

/// What to read, and how to show it.
#[derive(Debug, Clone)]
pub struct Range {
    /// The keys.
    pub keys: KeyRange,
    /// The revision to read at; 0 is now.
    pub revision: i64,
    /// The most keys to return; 0 is all.
    pub limit: i64,
    /// What to sort by.
    pub sort_by: SortBy,
    /// Which way to sort.
    pub order: Order,
    /// Only keys last written by these revisions.
    pub modified: RangeInclusive<i64>,
    /// Only keys created by these revisions.
    pub created: RangeInclusive<i64>,
    /// How much of them to return.
    pub detail: Detail,
}

impl Range {
    /// Everything about these keys, as they are now, in key order.
    pub fn of(keys: KeyRange) -> Self {
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

    fn wants(&self, record: &Record) -> bool {
        self.modified.contains(&record.mod_revision) && self.created.contains(&record.create_revision)
    }
}

/// The filter that lets every key through.
pub const EVERY_REVISION: RangeInclusive<i64> = i64::MIN..=i64::MAX;

/// What a range is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortBy {
    /// The key.
    Key,
    /// How often it was written.
    Version,
    /// The revision that created it.
    CreateRevision,
    /// The revision that last wrote it.
    ModRevision,
    /// The value.
    Value,
}

/// Which way a range is sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As the store has them: by key.
    Unsorted,
    /// Smallest first.
    Ascending,
    /// Largest first.
    Descending,
}

/// How much of the keys is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Keys with values.
    Full,
    /// Keys without values.
    KeysOnly,
    /// Only how many there are.
    CountOnly,
}

/// What was read.
#[derive(Debug, Clone, Default)]
pub struct RangeAnswer {
    /// The newest revision at the time of reading, also when an older one was asked for.
    pub revision: i64,
    /// The keys.
    pub records: Vec<Arc<Record>>,
    /// Whether the limit cut some off.
    pub more: bool,
    /// How many keys are in the range, whatever limit and filters say.
    pub count: i64,
}

/// Reads. `revision` is the newest one; what the range asks for is known to be readable.
pub(super) fn read(keyspace: &Keyspace, range: &Range, revision: i64) -> RangeAnswer {
    let mut answer = RangeAnswer { revision, ..RangeAnswer::default() };
    if let (KeyRange::One(key), 0) = (&range.keys, range.revision) {
        collect(keyspace.latest(key).into_iter(), range, &mut answer);
    } else if range.revision > 0 && range.revision < revision {
        collect(keyspace.at(&range.keys, range.revision), range, &mut answer);
    } else {
        collect(keyspace.now(&range.keys), range, &mut answer);
    }
    answer
}

fn collect<'a>(found: impl Iterator<Item = &'a Arc<Record>>, range: &Range, answer: &mut RangeAnswer) {
    let limit = usize::try_from(range.limit).ok().filter(|limit| *limit > 0);
    // Like the real one: only an explicit order or a filter makes it look beyond the first keys.
    let fetched = match limit {
        Some(limit) if range.order == Order::Unsorted && !range.is_filtered() => limit.saturating_add(1),
        Some(_) | None => usize::MAX,
    };
    for record in found {
        answer.count += 1;
        if range.detail != Detail::CountOnly && answer.records.len() < fetched && range.wants(record) {
            answer.records.push(record.clone());
        }
    }
    match (range.order, range.sort_by) {
        (Order::Unsorted | Order::Ascending, SortBy::Key) => {}
        (Order::Unsorted | Order::Ascending, by) => answer.records.sort_by(|a, b| compare(by, a, b)),
        (Order::Descending, by) => answer.records.sort_by(|a, b| compare(by, b, a)),
    }
    if let Some(limit) = limit
        && answer.records.len() > limit
    {
        answer.records.truncate(limit);
        answer.more = true;
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
