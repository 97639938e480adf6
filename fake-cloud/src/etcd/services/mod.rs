//! The calls etcd answers. They decode, ask the store, and encode; they decide nothing.

mod context;
mod election;
mod grpc;
mod kv;
mod lease;
mod members;
mod watch;

use std::future::ready;

pub(super) use context::Context;
use http::{Request, Response};
use hyper::body::Incoming;
use tonic::Status;
use tonic::body::Body;

use super::error::EtcdError;
use super::proto::{auth, cluster, lease as lease_pb, maintenance};
use grpc::{now, server_streaming, streaming, unary, unknown};

/// The services that are known, whole or in part.
const SERVICES: [&str; 8] = [
    "etcdserverpb.KV",
    "etcdserverpb.Watch",
    "etcdserverpb.Lease",
    "etcdserverpb.Cluster",
    "etcdserverpb.Maintenance",
    "etcdserverpb.Auth",
    "v3electionpb.Election",
    "v3lockpb.Lock",
];

/// Answers one call.
pub(super) async fn answer(c: &Context, request: Request<Incoming>) -> Response<Body> {
    if c.store.is_unavailable() {
        return Status::from(EtcdError::Unavailable).into_http();
    }
    match request.uri().path() {
        "/etcdserverpb.KV/Range" => unary(request, |asked| now(kv::range(c, &asked))).await,
        "/etcdserverpb.KV/Put" => unary(request, |asked| kv::put(c, asked)).await,
        "/etcdserverpb.KV/DeleteRange" => unary(request, |asked| kv::delete_range(c, asked)).await,
        "/etcdserverpb.KV/Txn" => unary(request, |asked| kv::txn(c, asked)).await,
        "/etcdserverpb.KV/Compact" => unary(request, |asked| now(kv::compact(c, &asked))).await,
        "/etcdserverpb.Watch/Watch" => streaming(request, |asked| watch::watch(c, asked)).await,
        "/etcdserverpb.Lease/LeaseKeepAlive" => streaming(request, |asked| lease::keep_alive(c, asked)).await,
        "/v3electionpb.Election/Campaign" => unary(request, |asked| election::campaign(c.clone(), asked)).await,
        "/v3electionpb.Election/Observe" => server_streaming(request, |asked| election::observe(c, &asked)).await,
        "/v3lockpb.Lock/Lock" => unary(request, |asked| election::lock(c.clone(), asked)).await,
        _ => answer_rarely_asked(c, request).await,
    }
}

async fn answer_rarely_asked(c: &Context, request: Request<Incoming>) -> Response<Body> {
    match request.uri().path() {
        "/etcdserverpb.Lease/LeaseGrant" => unary(request, |asked| now(lease::grant(c, &asked))).await,
        "/etcdserverpb.Lease/LeaseRevoke" => unary(request, |asked| lease::revoke(c, asked)).await,
        "/etcdserverpb.Lease/LeaseTimeToLive" => unary(request, |asked| now(Ok(lease::time_to_live(c, &asked)))).await,
        "/etcdserverpb.Lease/LeaseLeases" => {
            unary(request, |_: lease_pb::LeaseLeasesRequest| now(Ok(lease::leases(c)))).await
        }
        "/etcdserverpb.Cluster/MemberList" => {
            unary(request, |_: cluster::MemberListRequest| now(Ok(members::member_list(c)))).await
        }
        "/etcdserverpb.Maintenance/Status" => {
            unary(request, |_: maintenance::StatusRequest| now(Ok(members::status(c)))).await
        }
        "/etcdserverpb.Maintenance/Alarm" => {
            unary(request, |_: maintenance::AlarmRequest| now(Ok(members::alarm(c)))).await
        }
        "/etcdserverpb.Maintenance/Defragment" => {
            unary(request, |_: maintenance::DefragmentRequest| now(Ok(members::defragment()))).await
        }
        "/etcdserverpb.Auth/Authenticate" => {
            let refused = Err::<auth::AuthenticateResponse, _>(EtcdError::AuthNotEnabled);
            unary(request, move |_: auth::AuthenticateRequest| now(refused.clone())).await
        }
        "/etcdserverpb.Auth/AuthStatus" => {
            unary(request, |_: auth::AuthStatusRequest| now(Ok(members::auth_status(c)))).await
        }
        "/v3electionpb.Election/Leader" => unary(request, |asked| ready(election::leader(c, &asked))).await,
        "/v3electionpb.Election/Proclaim" => unary(request, |asked| ready(election::proclaim(c, &asked))).await,
        "/v3electionpb.Election/Resign" => unary(request, |asked| ready(election::resign(c, &asked))).await,
        "/v3lockpb.Lock/Unlock" => unary(request, |asked| ready(election::unlock(c, &asked))).await,
        path => unknown(path),
    }
}
