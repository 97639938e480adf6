//! `v3electionpb.Election`.

use bytes::Bytes;

use super::common::{KeyValue, ResponseHeader};

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
