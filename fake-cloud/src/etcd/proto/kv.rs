//! `etcdserverpb.KV`.

use bytes::Bytes;

use super::common::{KeyValue, ResponseHeader};

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) range_end: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) limit: i64,
    #[prost(int64, tag = "4")]
    pub(crate) revision: i64,
    #[prost(int32, tag = "5")]
    pub(crate) sort_order: i32,
    #[prost(int32, tag = "6")]
    pub(crate) sort_target: i32,
    #[prost(bool, tag = "7")]
    pub(crate) serializable: bool,
    #[prost(bool, tag = "8")]
    pub(crate) keys_only: bool,
    #[prost(bool, tag = "9")]
    pub(crate) count_only: bool,
    #[prost(int64, tag = "10")]
    pub(crate) min_mod_revision: i64,
    #[prost(int64, tag = "11")]
    pub(crate) max_mod_revision: i64,
    #[prost(int64, tag = "12")]
    pub(crate) min_create_revision: i64,
    #[prost(int64, tag = "13")]
    pub(crate) max_create_revision: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(crate) more: bool,
    #[prost(int64, tag = "4")]
    pub(crate) count: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) lease: i64,
    #[prost(bool, tag = "4")]
    pub(crate) prev_kv: bool,
    #[prost(bool, tag = "5")]
    pub(crate) ignore_value: bool,
    #[prost(bool, tag = "6")]
    pub(crate) ignore_lease: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PutResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, optional, tag = "2")]
    pub(crate) prev_kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DeleteRangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) range_end: Bytes,
    #[prost(bool, tag = "3")]
    pub(crate) prev_kv: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DeleteRangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub(crate) deleted: i64,
    #[prost(message, repeated, tag = "3")]
    pub(crate) prev_kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Compare {
    #[prost(int32, tag = "1")]
    pub(crate) result: i32,
    #[prost(int32, tag = "2")]
    pub(crate) target: i32,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) key: Bytes,
    #[prost(oneof = "TargetUnion", tags = "4, 5, 6, 7, 8")]
    pub(crate) target_union: Option<TargetUnion>,
    #[prost(bytes = "bytes", tag = "64")]
    pub(crate) range_end: Bytes,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum TargetUnion {
    #[prost(int64, tag = "4")]
    Version(i64),
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    #[prost(bytes = "bytes", tag = "7")]
    Value(Bytes),
    #[prost(int64, tag = "8")]
    Lease(i64),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(crate) responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RequestOp {
    #[prost(oneof = "Request", tags = "1, 2, 3, 4")]
    pub(crate) request: Option<Request>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Request {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResponseOp {
    #[prost(oneof = "Response", tags = "1, 2, 3, 4")]
    pub(crate) response: Option<Response>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Response {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(PutResponse),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeResponse),
    #[prost(message, tag = "4")]
    Txn(TxnResponse),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CompactionRequest {
    #[prost(int64, tag = "1")]
    pub(crate) revision: i64,
    #[prost(bool, tag = "2")]
    pub(crate) physical: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CompactionResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}
