//! `v3lockpb.Lock`.

use bytes::Bytes;

use super::common::ResponseHeader;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LockRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) name: Bytes,
    #[prost(int64, tag = "2")]
    pub(crate) lease: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LockResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) key: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct UnlockRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct UnlockResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}
