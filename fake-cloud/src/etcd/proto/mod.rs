//! Messages of etcd's gRPC API.
//!
//! Declared by hand rather than generated: byte fields share the buffer they were decoded from, and only the messages
//! of implemented calls are needed. Names and field numbers are etcd's.

pub(super) mod backend;
pub(super) mod concurrency;
pub(super) mod etcdserverpb;

use bytes::Bytes;

use super::mvcc::Record;

// package mvccpb

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(int64, tag = "2")]
    pub(crate) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(crate) mod_revision: i64,
    #[prost(int64, tag = "4")]
    pub(crate) version: i64,
    #[prost(bytes = "bytes", tag = "5")]
    pub(crate) value: Bytes,
    #[prost(int64, tag = "6")]
    pub(crate) lease: i64,
}

/// Key and value are shared, not copied.
impl From<&Record> for KeyValue {
    fn from(record: &Record) -> Self {
        Self {
            key: record.key.clone(),
            create_revision: record.create_revision,
            mod_revision: record.mod_revision,
            version: record.version,
            value: record.value.clone(),
            lease: record.lease,
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Event {
    #[prost(int32, tag = "1")]
    pub(crate) r#type: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) kv: Option<KeyValue>,
    #[prost(message, optional, tag = "3")]
    pub(crate) prev_kv: Option<KeyValue>,
}
