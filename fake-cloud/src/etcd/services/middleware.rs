//! Describes calls to the middleware, and encodes its errors as gRPC statuses.

use http::Response;
use tonic::body::Body;
use tonic::{Code, Status};

use super::super::proto::etcdserverpb::{RequestOp, RequestOpUnion, TxnRequest};
use super::Context;
use crate::middleware::{ActiveRequest, InjectedError, Protocol, Replacement, RequestInfo};
use crate::request_log::RequestOutcome;
use crate::service::Service;

/// The paths of all implemented calls.
const CALLS: [&str; 47] = [
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
    "/etcdserverpb.Cluster/MemberAdd",
    "/etcdserverpb.Cluster/MemberRemove",
    "/etcdserverpb.Cluster/MemberUpdate",
    "/etcdserverpb.Cluster/MemberPromote",
    "/etcdserverpb.Maintenance/Status",
    "/etcdserverpb.Maintenance/Alarm",
    "/etcdserverpb.Maintenance/Defragment",
    "/etcdserverpb.Maintenance/Hash",
    "/etcdserverpb.Maintenance/HashKV",
    "/etcdserverpb.Maintenance/Snapshot",
    "/etcdserverpb.Maintenance/MoveLeader",
    "/etcdserverpb.Auth/Authenticate",
    "/etcdserverpb.Auth/AuthStatus",
    "/etcdserverpb.Auth/AuthEnable",
    "/etcdserverpb.Auth/AuthDisable",
    "/etcdserverpb.Auth/UserAdd",
    "/etcdserverpb.Auth/UserGet",
    "/etcdserverpb.Auth/UserList",
    "/etcdserverpb.Auth/UserDelete",
    "/etcdserverpb.Auth/UserChangePassword",
    "/etcdserverpb.Auth/UserGrantRole",
    "/etcdserverpb.Auth/UserRevokeRole",
    "/etcdserverpb.Auth/RoleAdd",
    "/etcdserverpb.Auth/RoleGet",
    "/etcdserverpb.Auth/RoleList",
    "/etcdserverpb.Auth/RoleDelete",
    "/etcdserverpb.Auth/RoleGrantPermission",
    "/etcdserverpb.Auth/RoleRevokePermission",
    "/v3electionpb.Election/Campaign",
    "/v3electionpb.Election/Proclaim",
    "/v3electionpb.Election/Leader",
    "/v3electionpb.Election/Observe",
    "/v3electionpb.Election/Resign",
    "/v3lockpb.Lock/Lock",
    "/v3lockpb.Lock/Unlock",
];

/// Returns the names of all operations.
pub(crate) fn operations() -> impl Iterator<Item = &'static str> {
    CALLS.into_iter().filter_map(|call| call.rsplit('/').next())
}

/// Describes a call before its request is decoded.
pub(super) fn request_info(path: &str) -> RequestInfo<'static> {
    let known = CALLS.into_iter().find(|call| *call == path).and_then(|call| call.rsplit('/').next());
    RequestInfo::new(Service::Etcd, known.unwrap_or("unknown")).with_http("POST", path)
}

/// gRPC encoding of injected errors.
pub(super) struct Grpc;

impl Protocol for Grpc {
    type Body = Body;

    fn encode_error(&self, error: InjectedError) -> Response<Body> {
        status(error).into_http()
    }

    fn encode_response(&self, response: axum::response::Response) -> Response<Body> {
        response.map(Body::new)
    }

    /// Reads the gRPC status. A stream that was opened counts as served, however it ends.
    fn outcome(&self, response: &Response<Body>) -> RequestOutcome {
        let http_status = response.status().as_u16();
        match Status::from_header_map(response.headers()).map(|status| status.code()) {
            None | Some(Code::Ok) => RequestOutcome::Served { status: http_status },
            Some(code) => RequestOutcome::Refused { status: http_status, code: format!("{code:?}") },
        }
    }
}

/// Applies the faults that match the keys of a decoded request.
pub(super) async fn check_keys(context: &Context, active: &ActiveRequest<'_>, keys: &[&[u8]]) -> Result<(), Status> {
    active.set_subject(keys.first().map(|key| readable(key)));
    active.check_keys(context.store.clock(), keys).await.map_err(replacement_status)
}

/// Returns the status that a call fails with if a fault replaces its response.
fn replacement_status(replacement: Replacement) -> Status {
    let unavailable = || Status::unavailable("a fault rule");
    match replacement {
        Replacement::Error(error) => status(error),
        Replacement::Response(response) => Status::from_header_map(response.headers()).unwrap_or_else(unavailable),
        // Not sent: the middleware resets the connection.
        Replacement::Reset => unavailable(),
    }
}

fn status(error: InjectedError) -> Status {
    let code = grpc_code(&error.code);
    Status::new(code, error.message.unwrap_or(error.code))
}

/// Returns the gRPC code of a name in any spelling, or `Unavailable` for other names.
fn grpc_code(name: &str) -> Code {
    let normalized = |name: &str| name.replace(['-', '_', ' '], "").to_ascii_lowercase();
    let wanted = normalized(name);
    (1..=16).map(Code::from_i32).find(|code| normalized(&format!("{code:?}")) == wanted).unwrap_or(Code::Unavailable)
}

/// Returns a key as text: its first 256 bytes, with invalid UTF-8 replaced.
fn readable(key: &[u8]) -> String {
    String::from_utf8_lossy(&key[..key.len().min(256)]).into_owned()
}

/// Returns all keys a transaction compares, reads or writes, in both branches.
pub(super) fn txn_keys(txn: &TxnRequest) -> Vec<&[u8]> {
    let mut keys: Vec<&[u8]> = txn.compare.iter().map(|compare| &compare.key[..]).collect();
    let mut nested = vec![txn];
    while let Some(txn) = nested.pop() {
        for RequestOp { request } in txn.success.iter().chain(&txn.failure) {
            match request {
                Some(RequestOpUnion::Range(range)) => keys.push(&range.key),
                Some(RequestOpUnion::Put(put)) => keys.push(&put.key),
                Some(RequestOpUnion::DeleteRange(delete)) => keys.push(&delete.key),
                Some(RequestOpUnion::Txn(inner)) => {
                    keys.extend(inner.compare.iter().map(|compare| &compare.key[..]));
                    nested.push(inner);
                }
                None => {}
            }
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_code_is_found_in_any_spelling() {
        for name in ["deadline-exceeded", "DEADLINE_EXCEEDED", "DeadlineExceeded"] {
            assert_eq!(grpc_code(name), Code::DeadlineExceeded);
        }
        assert_eq!(grpc_code("on fire"), Code::Unavailable);
    }
}
