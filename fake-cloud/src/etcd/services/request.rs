//! A call as faults and the recorder know it: its name, and how it ended.

use std::borrow::Cow;

use http::Response;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::interruption::{Ending, RequestInfo};

/// The calls that are known, by path.
const CALLS: [&str; 24] = [
    "/etcdserverpb.KV/Range",
    "/etcdserverpb.KV/Put",
    "/etcdserverpb.KV/DeleteRange",
    "/etcdserverpb.KV/Txn",
    "/etcdserverpb.KV/Compact",
    "/etcdserverpb.Watch/Watch",
    "/etcdserverpb.Lease/LeaseGrant",
    "/etcdserverpb.Lease/LeaseRevoke",
    "/etcdserverpb.Lease/LeaseKeepAlive",
    "/etcdserverpb.Lease/LeaseTimeToLive",
    "/etcdserverpb.Lease/LeaseLeases",
    "/etcdserverpb.Cluster/MemberList",
    "/etcdserverpb.Maintenance/Status",
    "/etcdserverpb.Maintenance/Alarm",
    "/etcdserverpb.Maintenance/Defragment",
    "/etcdserverpb.Auth/Authenticate",
    "/etcdserverpb.Auth/AuthStatus",
    "/v3electionpb.Election/Campaign",
    "/v3electionpb.Election/Proclaim",
    "/v3electionpb.Election/Leader",
    "/v3electionpb.Election/Observe",
    "/v3electionpb.Election/Resign",
    "/v3lockpb.Lock/Lock",
    "/v3lockpb.Lock/Unlock",
];

/// A call, before anything of it was decoded.
pub(super) fn describe(path: &str) -> RequestInfo {
    let known = CALLS.into_iter().find(|call| *call == path).and_then(|call| call.rsplit('/').next());
    RequestInfo {
        service: "etcd",
        operation: known.unwrap_or("unknown"),
        method: "POST".to_owned(),
        path: path.to_owned(),
        subject: None,
        fencing_token: None,
    }
}

/// How a call ended. A stream that was opened counts as served: what becomes of it later is not an answer.
pub(super) fn ending(response: &Response<Body>) -> Ending {
    let refused =
        Status::from_header_map(response.headers()).map(|status| status.code()).filter(|code| *code != Code::Ok);
    Ending::Answered { status: response.status().as_u16(), code: refused.map(|code| Cow::Owned(format!("{code:?}"))) }
}

/// Text a person can read, whatever bytes a key is made of.
pub(super) fn readable(key: &[u8]) -> String {
    String::from_utf8_lossy(&key[..key.len().min(256)]).into_owned()
}
