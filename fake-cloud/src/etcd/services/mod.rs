//! The gRPC services of etcd: decode requests, call the store, encode responses.

mod auth;
mod cluster;
mod election;
mod grpc;
mod kv;
mod lease;
mod maintenance;
mod middleware;
mod watch;

use std::future::ready;
use std::net::SocketAddr;

use http::{Request, Response};
use tokio::sync::watch as watch_channel;
use tonic::Status;
use tonic::body::Body;

use super::error::EtcdError;
use super::proto::etcdserverpb as pb;
use super::store::{Caller, EtcdStore};
use crate::middleware::{ActiveRequest, Middleware};
use grpc::{Call, RequestBody, server_streaming, streaming, unary, unimplemented};
pub(crate) use middleware::operations;
use middleware::{Grpc, check_keys, request_info, txn_keys};

/// The Raft term of a server after its first election.
const RAFT_TERM: u64 = 2;

/// The store and the server that serves it.
#[derive(Debug, Clone)]
pub(super) struct Context {
    pub(super) store: EtcdStore,
    /// The address that clients connect to.
    pub(super) address: SocketAddr,
    /// `http`, or `https` with TLS.
    pub(super) scheme: &'static str,
    /// Becomes true when the server stops.
    pub(super) stopping: watch_channel::Receiver<bool>,
    /// Injects faults into calls and observes them.
    pub(super) middleware: Middleware,
}

impl Context {
    fn header(&self, revision: i64) -> Option<pb::ResponseHeader> {
        Some(pb::ResponseHeader {
            cluster_id: self.store.cluster_id(),
            member_id: self.store.member_id(),
            revision,
            raft_term: RAFT_TERM,
        })
    }

    /// The address that clients connect to, as a URL.
    fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// The position in the Raft log. A new server writes four entries before the first request.
    fn raft_index(&self, revision: i64) -> u64 {
        u64::try_from(revision).unwrap_or(0) + 3
    }

    /// Waits until the server stops.
    async fn stopped(&self) {
        let mut stopping = self.stopping.clone();
        // An error means that the server is already gone.
        drop(stopping.wait_for(|stopping| *stopping).await);
    }
}

/// A call that a fault rule ends without a response.
#[derive(Debug, thiserror::Error)]
#[error("the call was reset by a fault rule")]
pub(super) struct CallReset;

/// Responds to one call, with the faults the middleware injects.
pub(super) async fn respond(
    context: &Context,
    request: Request<impl RequestBody>,
) -> Result<Response<Body>, CallReset> {
    let clock = context.store.clock();
    let active = context.middleware.begin(request_info(request.uri().path()), clock.now());
    let caller = Caller::from_headers(request.headers());
    let call = async { dispatch(context, request, &caller, &active).await };
    active.respond(clock, &Grpc, call).await.map_err(|_| CallReset)
}

/// Routes KV, Watch and Lease calls, and passes the others on.
fn dispatch<'a>(
    c: &'a Context,
    request: Request<impl RequestBody>,
    caller: &'a Caller,
    active: &'a ActiveRequest<'_>,
) -> Call<'a> {
    if c.store.is_unavailable() {
        return Box::pin(ready(Status::from(EtcdError::Unavailable).into_http()));
    }
    match request.uri().path() {
        "/etcdserverpb.KV/Range" => unary(request, move |range: pb::RangeRequest| async move {
            check_keys(c, active, &[&range.key]).await?;
            kv::range(c, caller, &range)
        }),
        "/etcdserverpb.KV/Put" => unary(request, move |put: pb::PutRequest| async move {
            check_keys(c, active, &[&put.key]).await?;
            kv::put(c, caller, &put).await
        }),
        "/etcdserverpb.KV/DeleteRange" => unary(request, move |delete: pb::DeleteRangeRequest| async move {
            check_keys(c, active, &[&delete.key]).await?;
            kv::delete_range(c, caller, &delete).await
        }),
        "/etcdserverpb.KV/Txn" => unary(request, move |txn: pb::TxnRequest| async move {
            check_keys(c, active, &txn_keys(&txn)).await?;
            kv::txn(c, caller, &txn).await
        }),
        "/etcdserverpb.KV/Compact" => unary(request, move |compact| ready(kv::compact(c, caller, &compact))),
        "/etcdserverpb.Watch/Watch" => streaming(request, move |requests| watch::watch(c, caller, requests)),
        "/etcdserverpb.Lease/LeaseGrant" => unary(request, move |grant| ready(lease::grant(c, caller, &grant))),
        "/etcdserverpb.Lease/LeaseRevoke" => unary(request, move |revoke| lease::revoke(c, caller, revoke)),
        "/etcdserverpb.Lease/LeaseKeepAlive" => streaming(request, move |requests| lease::keep_alive(c, requests)),
        "/etcdserverpb.Lease/LeaseTimeToLive" => {
            unary(request, move |time_to_live| ready(Ok(lease::time_to_live(c, &time_to_live))))
        }
        "/etcdserverpb.Lease/LeaseLeases" => {
            unary(request, move |_: pb::LeaseLeasesRequest| ready(Ok(lease::leases(c))))
        }
        path if path.starts_with("/etcdserverpb.Auth/") => dispatch_auth(c, request, caller),
        path if path.starts_with("/etcdserverpb.") => dispatch_cluster(c, request, caller),
        _ => dispatch_concurrency(c, request, caller),
    }
}

/// Routes calls about users and roles. Calls that do not exist are unimplemented.
fn dispatch_auth<'a>(c: &'a Context, request: Request<impl RequestBody>, caller: &'a Caller) -> Call<'a> {
    match request.uri().path() {
        "/etcdserverpb.Auth/AuthEnable" => {
            unary(request, move |_: pb::AuthEnableRequest| ready(auth::enable(c, caller)))
        }
        "/etcdserverpb.Auth/AuthDisable" => {
            unary(request, move |_: pb::AuthDisableRequest| ready(auth::disable(c, caller)))
        }
        "/etcdserverpb.Auth/AuthStatus" => {
            unary(request, move |_: pb::AuthStatusRequest| ready(auth::status(c, caller)))
        }
        "/etcdserverpb.Auth/Authenticate" => unary(request, move |login| auth::authenticate(c, login)),
        "/etcdserverpb.Auth/UserAdd" => unary(request, move |user| auth::user_add(c, caller, user)),
        "/etcdserverpb.Auth/UserGet" => unary(request, move |user| ready(auth::user_get(c, caller, &user))),
        "/etcdserverpb.Auth/UserList" => {
            unary(request, move |_: pb::AuthUserListRequest| ready(auth::user_list(c, caller)))
        }
        "/etcdserverpb.Auth/UserDelete" => unary(request, move |user| ready(auth::user_delete(c, caller, &user))),
        "/etcdserverpb.Auth/UserChangePassword" => {
            unary(request, move |user| auth::user_change_password(c, caller, user))
        }
        "/etcdserverpb.Auth/UserGrantRole" => {
            unary(request, move |user| ready(auth::user_grant_role(c, caller, &user)))
        }
        "/etcdserverpb.Auth/UserRevokeRole" => {
            unary(request, move |user| ready(auth::user_revoke_role(c, caller, &user)))
        }
        "/etcdserverpb.Auth/RoleAdd" => unary(request, move |role| ready(auth::role_add(c, caller, &role))),
        "/etcdserverpb.Auth/RoleGet" => unary(request, move |role| ready(auth::role_get(c, caller, &role))),
        "/etcdserverpb.Auth/RoleList" => {
            unary(request, move |_: pb::AuthRoleListRequest| ready(auth::role_list(c, caller)))
        }
        "/etcdserverpb.Auth/RoleDelete" => unary(request, move |role| ready(auth::role_delete(c, caller, &role))),
        "/etcdserverpb.Auth/RoleGrantPermission" => {
            unary(request, move |role| ready(auth::role_grant_permission(c, caller, &role)))
        }
        "/etcdserverpb.Auth/RoleRevokePermission" => {
            unary(request, move |role| ready(auth::role_revoke_permission(c, caller, &role)))
        }
        path => Box::pin(ready(unimplemented(path))),
    }
}

/// Routes calls about the members and the database. Calls that do not exist are unimplemented.
fn dispatch_cluster<'a>(c: &'a Context, request: Request<impl RequestBody>, caller: &'a Caller) -> Call<'a> {
    match request.uri().path() {
        "/etcdserverpb.Cluster/MemberList" => {
            unary(request, move |_: pb::MemberListRequest| ready(Ok(cluster::member_list(c))))
        }
        "/etcdserverpb.Cluster/MemberAdd" => unary(request, move |add| ready(cluster::member_add(c, caller, &add))),
        "/etcdserverpb.Cluster/MemberRemove" => {
            unary(request, move |remove| ready(cluster::member_remove(c, caller, &remove)))
        }
        "/etcdserverpb.Cluster/MemberUpdate" => {
            unary(request, move |update| ready(cluster::member_update(c, caller, &update)))
        }
        "/etcdserverpb.Cluster/MemberPromote" => {
            unary(request, move |promote| ready(cluster::member_promote(c, caller, &promote)))
        }
        "/etcdserverpb.Maintenance/Status" => {
            unary(request, move |_: pb::StatusRequest| ready(Ok(maintenance::status(c))))
        }
        "/etcdserverpb.Maintenance/Alarm" => unary(request, move |alarm| ready(maintenance::alarm(c, caller, &alarm))),
        "/etcdserverpb.Maintenance/Defragment" => {
            unary(request, move |_: pb::DefragmentRequest| ready(maintenance::defragment(c, caller)))
        }
        "/etcdserverpb.Maintenance/Hash" => {
            unary(request, move |_: pb::HashRequest| ready(maintenance::hash(c, caller)))
        }
        "/etcdserverpb.Maintenance/HashKV" => unary(request, move |hash| ready(maintenance::hash_kv(c, caller, &hash))),
        "/etcdserverpb.Maintenance/Snapshot" => {
            server_streaming(request, move |_: pb::SnapshotRequest| maintenance::snapshot(c, caller))
        }
        "/etcdserverpb.Maintenance/MoveLeader" => {
            unary(request, move |transfer| ready(maintenance::move_leader(c, &transfer)))
        }
        path => Box::pin(ready(unimplemented(path))),
    }
}

/// Routes calls about elections and locks. Calls that do not exist are unimplemented.
fn dispatch_concurrency<'a>(c: &'a Context, request: Request<impl RequestBody>, caller: &'a Caller) -> Call<'a> {
    match request.uri().path() {
        "/v3electionpb.Election/Campaign" => unary(request, move |campaign| election::campaign(c, caller, campaign)),
        "/v3electionpb.Election/Proclaim" => {
            unary(request, move |proclaim| ready(election::proclaim(c, caller, &proclaim)))
        }
        "/v3electionpb.Election/Leader" => unary(request, move |leader| ready(election::leader(c, caller, &leader))),
        "/v3electionpb.Election/Observe" => {
            server_streaming(request, move |leader| election::observe(c, caller, &leader))
        }
        "/v3electionpb.Election/Resign" => unary(request, move |resign| ready(election::resign(c, caller, &resign))),
        "/v3lockpb.Lock/Lock" => unary(request, move |lock| election::lock(c, caller, lock)),
        "/v3lockpb.Lock/Unlock" => unary(request, move |unlock| ready(election::unlock(c, caller, &unlock))),
        path => Box::pin(ready(unimplemented(path))),
    }
}
