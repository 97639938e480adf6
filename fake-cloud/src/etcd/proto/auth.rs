//! `etcdserverpb.Auth`, as far as a server without passwords needs it.

use super::common::ResponseHeader;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AuthenticateResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    pub(crate) token: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AuthStatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AuthStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(crate) enabled: bool,
    #[prost(uint64, tag = "3")]
    pub(crate) auth_revision: u64,
}
