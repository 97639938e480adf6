//! The state of a store as a database file of real etcd, which `etcdctl snapshot restore` accepts.

mod bolt;

use bytes::Bytes;
use prost::Message;
use sha2::{Digest, Sha256};

use self::bolt::Rows;
use super::CLUSTER_VERSION;
use super::auth::Auth;
use super::mvcc::{Store, row_key, row_value};
use super::proto::backend;
use super::proto::etcdserverpb::{AlarmMember, Permission, UserAddOptions};
use super::store::EtcdStore;

/// Writes the database file: keys with their history since the last compaction, leases, users, roles and alarms.
///
/// Members are left out, because a restore replaces them.
pub(super) fn write(store: &EtcdStore) -> Vec<u8> {
    let mut tables = store.with(|store, _| store_tables(store));
    tables.extend(store.with_auth_unchecked(|auth, _| auth_tables(auth)));
    let mut cluster = Rows::new();
    cluster.insert(b"clusterVersion".to_vec(), CLUSTER_VERSION.as_bytes().to_vec());
    tables.extend([("cluster", cluster), ("members", Rows::new()), ("members_removed", Rows::new())]);
    bolt::write(tables)
}

/// The checksum that follows a database file in a snapshot.
pub(super) fn checksum(file: &[u8]) -> Bytes {
    Bytes::copy_from_slice(&Sha256::digest(file))
}

type Tables = Vec<(&'static str, Rows)>;

fn store_tables(store: &Store) -> Tables {
    let key = store.versions().iter().map(|record| (row_key(record), row_value(record))).collect();
    let lease = store.granted_leases().into_iter().map(|(id, ttl)| {
        let row = backend::Lease { id, ttl, remaining_ttl: 0 };
        (id.to_be_bytes().to_vec(), row.encode_to_vec())
    });
    let alarm = store
        .alarms(None)
        .into_iter()
        .map(|alarm| (AlarmMember { member_id: alarm.member, alarm: alarm.kind.number() }.encode_to_vec(), Vec::new()));
    let gauges = store.gauges();
    let mut meta = Rows::new();
    meta.insert(b"consistent_index".to_vec(), gauges.revision.to_be_bytes().to_vec());
    meta.insert(b"term".to_vec(), 2_u64.to_be_bytes().to_vec());
    if gauges.compact_revision > 0 {
        let revision = [&gauges.compact_revision.to_be_bytes()[..], b"_", &0_i64.to_be_bytes()].concat();
        meta.insert(b"scheduledCompactRev".to_vec(), revision.clone());
        meta.insert(b"finishedCompactRev".to_vec(), revision);
    }
    vec![("key", key), ("lease", lease.collect()), ("alarm", alarm.collect()), ("meta", meta)]
}

fn auth_tables(auth: &Auth) -> Tables {
    let mut state = Rows::new();
    state.insert(b"authEnabled".to_vec(), vec![u8::from(auth.is_enabled())]);
    state.insert(b"authRevision".to_vec(), auth.revision().to_be_bytes().to_vec());
    let users = auth.users().map(|(name, hash, roles)| {
        let row = backend::User {
            name: name.to_owned(),
            password: Bytes::copy_from_slice(hash.unwrap_or_default().as_bytes()),
            roles,
            options: Some(UserAddOptions { no_password: hash.is_none() }),
        };
        (name.as_bytes().to_vec(), row.encode_to_vec())
    });
    let roles = auth.roles().map(|(name, permissions)| {
        let permissions = permissions.iter().map(|permission| Permission {
            kind: permission.kind.number(),
            key: permission.key.clone(),
            range_end: permission.range_end.clone(),
        });
        let row = backend::Role { name: name.to_owned(), permissions: permissions.collect() };
        (name.as_bytes().to_vec(), row.encode_to_vec())
    });
    vec![("auth", state), ("authUsers", users.collect()), ("authRoles", roles.collect())]
}
