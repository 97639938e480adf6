//! What all services speak of.

use bytes::Bytes;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResponseHeader {
    #[prost(uint64, tag = "1")]
    pub(crate) cluster_id: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) member_id: u64,
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
    #[prost(uint64, tag = "4")]
    pub(crate) raft_term: u64,
}

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
