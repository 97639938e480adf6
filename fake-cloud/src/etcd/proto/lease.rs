//! `etcdserverpb.Lease`.

use bytes::Bytes;

use super::common::ResponseHeader;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub(crate) ttl: i64,
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseGrantResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
    #[prost(string, tag = "4")]
    pub(crate) error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseRevokeRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseRevokeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseKeepAliveRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseKeepAliveResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseTimeToLiveRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
    #[prost(bool, tag = "2")]
    pub(crate) keys: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseTimeToLiveResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
    #[prost(int64, tag = "4")]
    pub(crate) granted_ttl: i64,
    #[prost(bytes = "bytes", repeated, tag = "5")]
    pub(crate) keys: Vec<Bytes>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseLeasesRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseStatus {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseLeasesResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) leases: Vec<LeaseStatus>,
}
