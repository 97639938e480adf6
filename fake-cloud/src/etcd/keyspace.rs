//! All keys with all their versions.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use bytes::Bytes;

use super::key_range::KeyRange;
use super::record::Record;

/// An ordered map from key to its versions, oldest first. Deleted keys stay, with a tombstone, until compacted away.
#[derive(Debug, Default)]
pub(super) struct Keyspace {
    keys: BTreeMap<Bytes, Vec<Arc<Record>>>,
    bytes: usize,
}

/// What a version costs beside its key and value.
const VERSION_OVERHEAD: usize = 200;

impl Keyspace {
    /// What all versions together take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The key as it is now, if it exists.
    pub(super) fn latest(&self, key: &[u8]) -> Option<&Arc<Record>> {
        self.keys.get(key).and_then(|versions| newest(versions))
    }

    /// The key as it was just before `revision`, if it existed.
    pub(super) fn before(&self, key: &[u8], revision: i64) -> Option<&Arc<Record>> {
        let versions = self.keys.get(key)?;
        newest(&versions[..versions.partition_point(|record| record.mod_revision < revision)])
    }

    /// The keys of the range as they are now, in key order.
    pub(super) fn now<'a>(&'a self, range: &KeyRange) -> impl Iterator<Item = &'a Arc<Record>> {
        self.versions(range).filter_map(|versions| newest(versions))
    }

    /// The keys of the range as they were at `revision`, in key order.
    pub(super) fn at<'a>(&'a self, range: &KeyRange, revision: i64) -> impl Iterator<Item = &'a Arc<Record>> {
        self.versions(range).filter_map(move |versions| {
            let newer = versions.partition_point(|record| record.mod_revision <= revision);
            newest(&versions[..newer])
        })
    }

    /// Adds a version. It must be newer than all versions of its key.
    pub(super) fn push(&mut self, record: Arc<Record>) {
        self.bytes += size(&record);
        match self.keys.entry(record.key.clone()) {
            Entry::Occupied(mut versions) => versions.get_mut().push(record),
            Entry::Vacant(place) => drop(place.insert(vec![record])),
        }
    }

    /// Forgets the versions of a key that no revision from `revision` on can see.
    pub(super) fn compact(&mut self, key: &[u8], revision: i64) {
        let Some(versions) = self.keys.get_mut(key) else { return };
        let visible_from = versions.partition_point(|record| record.mod_revision <= revision).saturating_sub(1);
        let is_gone = versions.get(visible_from).is_some_and(|r| r.is_tombstone() && r.mod_revision <= revision);
        let forgotten = versions.drain(..visible_from + usize::from(is_gone));
        self.bytes -= forgotten.map(|record| size(&record)).sum::<usize>();
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
