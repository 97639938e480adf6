//! Messages of the packages `v3electionpb` and `v3lockpb`.

use bytes::Bytes;

use super::KeyValue;
use super::etcdserverpb::ResponseHeader;

// service Election

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaderKey {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) name: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) key: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) rev: i64,
    #[prost(int64, tag = "4")]
    pub(crate) lease: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CampaignRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) name: Bytes,
    #[prost(int64, tag = "2")]
    pub(crate) lease: i64,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) value: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CampaignResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, optional, tag = "2")]
    pub(crate) leader: Option<LeaderKey>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaderRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) name: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaderResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, optional, tag = "2")]
    pub(crate) kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProclaimRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) leader: Option<LeaderKey>,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProclaimResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResignRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) leader: Option<LeaderKey>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResignResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}

// service Lock

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
