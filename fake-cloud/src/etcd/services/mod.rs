//! The calls etcd answers. They decode, ask the store, and encode; they decide nothing.

mod context;
mod election;
mod grpc;
mod kv;
mod lease;
mod members;
mod request;
mod watch;

use std::future::ready;

pub(super) use context::Context;
use http::{Request, Response};
use hyper::body::Incoming;
use tonic::Status;
use tonic::body::Body;

use super::error::EtcdError;
use super::proto::{auth, cluster, kv as kv_pb, lease as lease_pb, maintenance};
use crate::middleware::ActiveRequest;
use grpc::{Work, now, server_streaming, streaming, unary, unknown};

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

/// The call ends without an answer, as a fault rule asked.
#[derive(Debug, thiserror::Error)]
#[error("the call ends without an answer, as a fault rule asked")]
pub(super) struct NoAnswer;

/// Responds to one call, with the faults the middleware injects.
pub(super) async fn answer(c: &Context, request: Request<Incoming>) -> Result<Response<Body>, NoAnswer> {
    let clock = c.store.clock();
    let active = c.middleware.begin(request::describe(request.uri().path()), clock.now());
    let work = async { carry_out(c, request, &active).await };
    active.respond(clock, &request::Grpc, work).await.map_err(|_| NoAnswer)
}

/// Applies the faults of the keys that a decoded call names, before it is carried out.
async fn check_keys(c: &Context, active: &ActiveRequest<'_>, keys: &[&[u8]]) -> Result<(), Status> {
    active.set_subject(keys.first().map(|key| request::readable(key)));
    active.check_keys(c.store.clock(), keys).await.map_err(request::replacement_status)
}

fn carry_out<'a>(c: &'a Context, request: Request<Incoming>, active: &'a ActiveRequest<'_>) -> Work<'a> {
    if c.store.is_unavailable() {
        return Box::pin(ready(Status::from(EtcdError::Unavailable).into_http()));
    }
    match request.uri().path() {
        "/etcdserverpb.KV/Range" => {
            let range = move |asked: kv_pb::RangeRequest| async move {
                check_keys(c, active, &[&asked.key]).await?;
                now(kv::range(c, &asked)).await
            };
            unary(request, range)
        }
        "/etcdserverpb.KV/Put" => {
            let put = move |asked: kv_pb::PutRequest| async move {
                check_keys(c, active, &[&asked.key]).await?;
                kv::put(c, asked).await
            };
            unary(request, put)
        }
        "/etcdserverpb.KV/DeleteRange" => {
            let delete = move |asked: kv_pb::DeleteRangeRequest| async move {
                check_keys(c, active, &[&asked.key]).await?;
                kv::delete_range(c, asked).await
            };
            unary(request, delete)
        }
        "/etcdserverpb.KV/Txn" => {
            let txn = move |asked: kv_pb::TxnRequest| async move {
                check_keys(c, active, &request::txn_keys(&asked)).await?;
                kv::txn(c, asked).await
            };
            unary(request, txn)
        }
        "/etcdserverpb.KV/Compact" => unary(request, move |asked| now(kv::compact(c, &asked))),
        "/etcdserverpb.Watch/Watch" => streaming(request, move |asked| watch::watch(c, asked)),
        "/etcdserverpb.Lease/LeaseKeepAlive" => streaming(request, move |asked| lease::keep_alive(c, asked)),
        "/v3electionpb.Election/Campaign" => unary(request, move |asked| election::campaign(c.clone(), asked)),
        "/v3electionpb.Election/Observe" => server_streaming(request, move |asked| election::observe(c, &asked)),
        "/v3lockpb.Lock/Lock" => unary(request, move |asked| election::lock(c.clone(), asked)),
        _ => carry_out_rarely_asked(c, request),
    }
}

fn carry_out_rarely_asked(c: &Context, request: Request<Incoming>) -> Work<'_> {
    match request.uri().path() {
        "/etcdserverpb.Lease/LeaseGrant" => unary(request, move |asked| now(lease::grant(c, &asked))),
        "/etcdserverpb.Lease/LeaseRevoke" => unary(request, move |asked| lease::revoke(c, asked)),
        "/etcdserverpb.Lease/LeaseTimeToLive" => unary(request, move |asked| now(Ok(lease::time_to_live(c, &asked)))),
        "/etcdserverpb.Lease/LeaseLeases" => {
            unary(request, move |_: lease_pb::LeaseLeasesRequest| now(Ok(lease::leases(c))))
        }
        "/etcdserverpb.Cluster/MemberList" => {
            unary(request, move |_: cluster::MemberListRequest| now(Ok(members::member_list(c))))
        }
        "/etcdserverpb.Maintenance/Status" => {
            unary(request, move |_: maintenance::StatusRequest| now(Ok(members::status(c))))
        }
        "/etcdserverpb.Maintenance/Alarm" => {
            unary(request, move |_: maintenance::AlarmRequest| now(Ok(members::alarm(c))))
        }
        "/etcdserverpb.Maintenance/Defragment" => {
            unary(request, move |_: maintenance::DefragmentRequest| now(Ok(members::defragment())))
        }
        "/etcdserverpb.Auth/Authenticate" => {
            let refused = Err::<auth::AuthenticateResponse, _>(EtcdError::AuthNotEnabled);
            unary(request, move |_: auth::AuthenticateRequest| now(refused.clone()))
        }
        "/etcdserverpb.Auth/AuthStatus" => {
            unary(request, move |_: auth::AuthStatusRequest| now(Ok(members::auth_status(c))))
        }
        "/v3electionpb.Election/Leader" => unary(request, move |asked| ready(election::leader(c, &asked))),
        "/v3electionpb.Election/Proclaim" => unary(request, move |asked| ready(election::proclaim(c, &asked))),
        "/v3electionpb.Election/Resign" => unary(request, move |asked| ready(election::resign(c, &asked))),
        "/v3lockpb.Lock/Unlock" => unary(request, move |asked| ready(election::unlock(c, &asked))),
        path => Box::pin(ready(unknown(path))),
    }
}
