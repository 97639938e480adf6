//! Messages that real etcd keeps in its database, of the packages `authpb` and `leasepb`.

use bytes::Bytes;

use super::etcdserverpb::{Permission, UserAddOptions};

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct User {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) password: Bytes,
    #[prost(string, repeated, tag = "3")]
    pub(crate) roles: Vec<String>,
    #[prost(message, optional, tag = "4")]
    pub(crate) options: Option<UserAddOptions>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Role {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) permissions: Vec<Permission>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Lease {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
    #[prost(int64, tag = "2")]
    pub(crate) ttl: i64,
    #[prost(int64, tag = "3")]
    pub(crate) remaining_ttl: i64,
}
