//! The checksum by which members of a cluster compare their keys.

use std::collections::HashSet;
use std::sync::Arc;

use prost::Message;

use super::keyspace::{Keyspace, Record};
use crate::etcd::proto::KeyValue;

/// Name of the table that real etcd keeps versions in; the checksum begins with it.
const TABLE: &[u8] = b"key";

/// Returns the checksum of all versions up to `revision` that a compaction at `compact_revision` keeps.
///
/// Equals that of a real server with the same history, compacted or not.
pub(super) fn hash_up_to(keyspace: &Keyspace, revision: i64, compact_revision: i64) -> u32 {
    let mut versions: Vec<&Arc<Record>> =
        keyspace.all_versions().filter(|record| record.mod_revision <= revision).collect();
    versions.sort_unstable_by_key(|record| (record.mod_revision, record.sub_revision));
    // Versions at or before the compaction count only while they are what a read at `revision` finds.
    let readable: HashSet<_> = keyspace.all_at_revision(revision).map(Arc::as_ptr).collect();
    let counts = |record: &Arc<Record>| {
        record.mod_revision > compact_revision || readable.is_empty() || readable.contains(&Arc::as_ptr(record))
    };
    versions.into_iter().filter(|record| counts(record)).fold(crc32c::crc32c(TABLE), |hash, record| {
        let hash = crc32c::crc32c_append(hash, &row_key(record));
        crc32c::crc32c_append(hash, &row_value(record))
    })
}

/// The name of a version in the table of a real server.
pub(in crate::etcd) fn row_key(record: &Record) -> Vec<u8> {
    let mut key = record.mod_revision.to_be_bytes().to_vec();
    key.push(b'_');
    key.extend(i64::from(record.sub_revision).to_be_bytes());
    if record.is_tombstone() {
        key.push(b't');
    }
    key
}

/// The row of a version in the table of a real server. That of a deletion has nothing but the key.
pub(in crate::etcd) fn row_value(record: &Record) -> Vec<u8> {
    let row = if record.is_tombstone() {
        KeyValue { key: record.key.clone(), ..KeyValue::default() }
    } else {
        KeyValue::from(record)
    };
    row.encode_to_vec()
}
