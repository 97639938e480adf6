//! `etcdserverpb.Maintenance`.

use super::common::ResponseHeader;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AlarmRequest {
    #[prost(int32, tag = "1")]
    pub(crate) action: i32,
    #[prost(uint64, tag = "2")]
    pub(crate) member_id: u64,
    #[prost(int32, tag = "3")]
    pub(crate) alarm: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AlarmMember {
    #[prost(uint64, tag = "1")]
    pub(crate) member_id: u64,
    #[prost(int32, tag = "2")]
    pub(crate) alarm: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AlarmResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) alarms: Vec<AlarmMember>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(int64, tag = "3")]
    pub(crate) db_size: i64,
    #[prost(uint64, tag = "4")]
    pub(crate) leader: u64,
    #[prost(uint64, tag = "5")]
    pub(crate) raft_index: u64,
    #[prost(uint64, tag = "6")]
    pub(crate) raft_term: u64,
    #[prost(uint64, tag = "7")]
    pub(crate) raft_applied_index: u64,
    #[prost(string, repeated, tag = "8")]
    pub(crate) errors: Vec<String>,
    #[prost(int64, tag = "9")]
    pub(crate) db_size_in_use: i64,
    #[prost(bool, tag = "10")]
    pub(crate) is_learner: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DefragmentRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DefragmentResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}
