//! Key versions, and the events that created them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::etcd::key_range::KeyRange;

/// A key at one revision.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Record {
    /// The full key.
    #[serde(with = "crate::serial::text")]
    pub key: Bytes,
    /// The value; empty for a tombstone.
    #[serde(with = "crate::serial::text")]
    pub value: Bytes,
    /// The revision that created the key; 0 for a tombstone.
    pub create_revision: i64,
    /// The revision of this version.
    pub mod_revision: i64,
    /// Number of writes since the key was created; 0 for a tombstone.
    pub version: i64,
    /// The lease the key is attached to, or 0.
    pub lease: i64,
    /// Number of changes before this one in the same revision.
    pub sub_revision: u32,
}

impl Record {
    /// The version that marks the key as deleted since `revision`.
    pub(crate) fn tombstone(key: Bytes, revision: i64, sub_revision: u32) -> Self {
        Self {
            key,
            value: Bytes::new(),
            create_revision: 0,
            mod_revision: revision,
            version: 0,
            lease: 0,
            sub_revision,
        }
    }

    /// Returns whether this version is a deletion.
    pub fn is_tombstone(&self) -> bool {
        self.version == 0
    }
}

/// A change of one key, as watchers receive it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The version the change created; a tombstone for a deletion.
    pub record: Arc<Record>,
    /// The version before the change, if the key existed.
    pub previous: Option<Arc<Record>>,
}

impl Event {
    /// Returns whether the key was deleted rather than put.
    pub fn is_delete(&self) -> bool {
        self.record.is_tombstone()
    }
}

/// Accounted size of a version in addition to its key and value.
const VERSION_OVERHEAD: usize = 200;

/// All versions, in the order of the keys.
impl serde::Serialize for Keyspace {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.all_versions())
    }
}

impl<'de> serde::Deserialize<'de> for Keyspace {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut keyspace = Self::default();
        for record in <Vec<Arc<Record>> as serde::Deserialize>::deserialize(deserializer)? {
            if keyspace.keys.get(&record.key).and_then(|known| known.last()).is_some_and(|last| {
                (last.mod_revision, last.sub_revision) >= (record.mod_revision, record.sub_revision)
            }) {
                let key = String::from_utf8_lossy(&record.key);
                return Err(serde::de::Error::custom(format!("the versions of key {key:?} are out of order")));
            }
            keyspace.push(record);
        }
        Ok(keyspace)
    }
}

/// An ordered map from key to its versions, oldest first. A deleted key stays, ending in a tombstone, until it is
/// compacted.
#[derive(Debug, Default)]
pub(crate) struct Keyspace {
    keys: BTreeMap<Bytes, Vec<Arc<Record>>>,
    bytes: usize,
}

impl Keyspace {
    /// Accounted size of all versions.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The newest version of the key, if it exists.
    pub(crate) fn latest(&self, key: &[u8]) -> Option<&Arc<Record>> {
        self.keys.get(key).and_then(|versions| newest(versions))
    }

    /// The newest version of the key older than `revision`, if it existed then.
    pub(crate) fn latest_before(&self, key: &[u8], revision: i64) -> Option<&Arc<Record>> {
        let versions = self.keys.get(key)?;
        newest(&versions[..versions.partition_point(|record| record.mod_revision < revision)])
    }

    /// The existing keys of the range, in key order.
    pub(crate) fn range<'a>(&'a self, range: &KeyRange) -> impl Iterator<Item = &'a Arc<Record>> {
        self.versions(range).filter_map(|versions| newest(versions))
    }

    /// The keys of the range that existed at `revision`, in key order.
    pub(crate) fn range_at_revision<'a>(
        &'a self,
        range: &KeyRange,
        revision: i64,
    ) -> impl Iterator<Item = &'a Arc<Record>> {
        self.versions(range).filter_map(move |versions| {
            let newer = versions.partition_point(|record| record.mod_revision <= revision);
            newest(&versions[..newer])
        })
    }

    /// All versions of all keys.
    pub(crate) fn all_versions(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.keys.values().flatten()
    }

    /// All keys that existed at `revision`, in key order.
    pub(crate) fn all_at_revision(&self, revision: i64) -> impl Iterator<Item = &Arc<Record>> {
        self.keys.values().filter_map(move |versions| {
            newest(&versions[..versions.partition_point(|record| record.mod_revision <= revision)])
        })
    }

    /// Number of existing keys and of deleted ones that are not compacted yet.
    pub(crate) fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// Adds a version. It must be newer than every version of its key.
    pub(crate) fn push(&mut self, record: Arc<Record>) {
        self.bytes += size(&record);
        match self.keys.entry(record.key.clone()) {
            Entry::Occupied(mut versions) => versions.get_mut().push(record),
            Entry::Vacant(place) => drop(place.insert(vec![record])),
        }
    }

    /// Drops the versions of a key that cannot be read at `revision` or later.
    pub(crate) fn compact(&mut self, key: &[u8], revision: i64) {
        let Some(versions) = self.keys.get_mut(key) else { return };
        let visible_from = versions.partition_point(|record| record.mod_revision <= revision).saturating_sub(1);
        let is_deleted = versions.get(visible_from).is_some_and(|r| r.is_tombstone() && r.mod_revision <= revision);
        let dropped = versions.drain(..visible_from + usize::from(is_deleted));
        self.bytes -= dropped.map(|record| size(&record)).sum::<usize>();
        if versions.is_empty() {
            self.keys.remove(key);
        }
    }

    fn versions<'a>(&'a self, range: &KeyRange) -> impl Iterator<Item = &'a Vec<Arc<Record>>> {
        range.bounds().into_iter().flat_map(|bounds| self.keys.range::<[u8], _>(bounds)).map(|(_, versions)| versions)
    }
}

fn size(record: &Record) -> usize {
    record.key.len() + record.value.len() + VERSION_OVERHEAD
}

fn newest(versions: &[Arc<Record>]) -> Option<&Arc<Record>> {
    versions.last().filter(|record| !record.is_tombstone())
}

/// Revision of the first write of a store.
const FIRST_WRITE: i64 = 2;

/// The events of each revision since the last compaction, for watchers that start in the past.
///
/// Every revision after the first has events, so the index of a revision is its distance from the oldest one.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct History {
    oldest: i64,
    /// Follows from the versions of all keys, so that a snapshot leaves it out.
    #[serde(skip)]
    revisions: VecDeque<Arc<[Event]>>,
}

impl History {
    /// The history of a new store, whose first write will be revision 2.
    pub(crate) fn new() -> Self {
        Self { oldest: FIRST_WRITE, revisions: VecDeque::new() }
    }

    /// Builds the events up to `revision` from the versions of all keys.
    ///
    /// # Errors
    /// The versions do not belong to these revisions.
    pub(crate) fn rebuild(&mut self, keyspace: &Keyspace, revision: i64) -> Result<(), String> {
        let mut by_revision: BTreeMap<i64, Vec<Event>> = BTreeMap::new();
        for versions in keyspace.keys.values() {
            for (index, record) in versions.iter().enumerate().filter(|(_, it)| it.mod_revision >= self.oldest) {
                let before = index.checked_sub(1).and_then(|index| versions.get(index));
                // The first revision after a compaction keeps no previous versions.
                let is_first = self.oldest > FIRST_WRITE && record.mod_revision == self.oldest;
                let previous = before.filter(|before| !before.is_tombstone() && !is_first).cloned();
                let event = Event { record: Arc::clone(record), previous };
                by_revision.entry(record.mod_revision).or_default().push(event);
            }
        }
        let newest = by_revision.last_key_value().map_or(0, |(newest, _)| *newest);
        // A compaction leaves its revision empty if that deleted keys only.
        let known = i64::try_from(by_revision.len()).unwrap_or(i64::MAX);
        if newest > revision || (revision >= self.oldest && revision - self.oldest > known) || self.oldest < FIRST_WRITE
        {
            return Err(format!("revision {revision} does not fit {known} revisions of keys from {} on", self.oldest));
        }
        self.revisions = (self.oldest..=revision)
            .map(|revision| {
                let mut events = by_revision.remove(&revision).unwrap_or_default();
                events.sort_by_key(|event| event.record.sub_revision);
                events.into()
            })
            .collect();
        Ok(())
    }

    /// Appends the events of the next revision.
    pub(crate) fn push(&mut self, events: Arc<[Event]>) {
        self.revisions.push_back(events);
    }

    /// The revisions from `revision` on, with their events.
    pub(crate) fn since(&self, revision: i64) -> impl Iterator<Item = (i64, &Arc<[Event]>)> {
        let first = revision.max(self.oldest);
        let skipped = usize::try_from(first - self.oldest).unwrap_or(usize::MAX).min(self.revisions.len());
        (first..).zip(self.revisions.range(skipped..))
    }

    /// Drops the revisions before `revision`, and returns the events of all revisions up to and including it.
    ///
    /// Puts of `revision` itself stay, because a watcher may still start there; their previous versions are dropped.
    pub(crate) fn compact(&mut self, revision: i64) -> Vec<Arc<[Event]>> {
        let count = usize::try_from(revision - self.oldest + 1).unwrap_or(0).min(self.revisions.len());
        let dropped: Vec<_> = self.revisions.drain(..count).collect();
        if let Some(last) = dropped.last() {
            let puts = last.iter().filter(|event| !event.is_delete());
            self.revisions.push_front(puts.map(|put| Event { record: put.record.clone(), previous: None }).collect());
            self.oldest = revision;
        }
        dropped
    }
}
