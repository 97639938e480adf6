//! Mirrors the records of the control plane into etcd.

use crate::control_plane::EtcdMirror;
use crate::etcd::{Delete, EtcdStore, KeyRange, Put};

/// Writes every change of a record to its key in etcd.
#[derive(Debug)]
pub(super) struct StoreMirror(pub(super) EtcdStore);

impl EtcdMirror for StoreMirror {
    fn put(&self, key: &str, value: &str) {
        // Cannot fail: the key is not empty and there is no lease.
        drop(self.0.put(&Put::new(key.to_owned(), value.to_owned())));
    }

    fn delete(&self, key: &str) {
        drop(self.0.delete(&Delete { keys: KeyRange::One(key.to_owned().into()) }));
    }
}
