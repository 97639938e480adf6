//! The calls etcd answers. They decode, ask the store, and encode; they decide nothing.

mod context;
mod election;
mod grpc;
mod kv;
mod lease;
mod members;
mod watch;

use std::future::ready;
use std::pin::Pin;

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

/// A call being answered.
type Answering<'a> = Pin<Box<dyn Future<Output = Response<Body>> + Send + 'a>>;

/// Answers one call. Each kind of call is boxed by itself: a future with room for all of them would be as large as the
/// largest, and moved around with every call.
pub(super) fn answer(c: &Context, request: Request<Incoming>) -> Answering<'_> {
    if c.store.is_unavailable() {
        return Box::pin(ready(Status::from(EtcdError::Unavailable).into_http()));
    }
    match request.uri().path() {
        "/etcdserverpb.KV/Range" => Box::pin(unary(request, |asked| now(kv::range(c, &asked)))),
        "/etcdserverpb.KV/Put" => Box::pin(unary(request, |asked| kv::put(c, asked))),
        "/etcdserverpb.KV/DeleteRange" => Box::pin(unary(request, |asked| kv::delete_range(c, asked))),
        "/etcdserverpb.KV/Txn" => Box::pin(unary(request, |asked| kv::txn(c, asked))),
        "/etcdserverpb.KV/Compact" => Box::pin(unary(request, |asked| now(kv::compact(c, &asked)))),
        "/etcdserverpb.Watch/Watch" => Box::pin(streaming(request, |asked| watch::watch(c, asked))),
        "/etcdserverpb.Lease/LeaseGrant" => Box::pin(unary(request, |asked| now(lease::grant(c, &asked)))),
        "/etcdserverpb.Lease/LeaseRevoke" => Box::pin(unary(request, |asked| lease::revoke(c, asked))),
        "/etcdserverpb.Lease/LeaseKeepAlive" => Box::pin(streaming(request, |asked| lease::keep_alive(c, asked))),
        "/etcdserverpb.Lease/LeaseTimeToLive" => {
            Box::pin(unary(request, |asked| now(Ok(lease::time_to_live(c, &asked)))))
        }
        "/etcdserverpb.Lease/LeaseLeases" => {
            Box::pin(unary(request, |_: lease_pb::LeaseLeasesRequest| now(Ok(lease::leases(c)))))
        }
        "/etcdserverpb.Cluster/MemberList" => {
            Box::pin(unary(request, |_: cluster::MemberListRequest| now(Ok(members::member_list(c)))))
        }
        "/etcdserverpb.Maintenance/Status" => {
            Box::pin(unary(request, |_: maintenance::StatusRequest| now(Ok(members::status(c)))))
        }
        "/etcdserverpb.Maintenance/Alarm" => {
            Box::pin(unary(request, |_: maintenance::AlarmRequest| now(Ok(members::alarm(c)))))
        }
        "/etcdserverpb.Maintenance/Defragment" => {
            Box::pin(unary(request, |_: maintenance::DefragmentRequest| now(Ok(members::defragment()))))
        }
        "/etcdserverpb.Auth/Authenticate" => {
            let refused = || now(Err::<auth::AuthenticateResponse, _>(EtcdError::AuthNotEnabled));
            Box::pin(unary(request, move |_: auth::AuthenticateRequest| refused()))
        }
        "/etcdserverpb.Auth/AuthStatus" => {
            Box::pin(unary(request, |_: auth::AuthStatusRequest| now(Ok(members::auth_status(c)))))
        }
        "/v3electionpb.Election/Campaign" => Box::pin(unary(request, |asked| election::campaign(c.clone(), asked))),
        "/v3electionpb.Election/Leader" => Box::pin(unary(request, |asked| ready(election::leader(c, &asked)))),
        "/v3electionpb.Election/Observe" => Box::pin(server_streaming(request, |asked| election::observe(c, &asked))),
        "/v3electionpb.Election/Proclaim" => Box::pin(unary(request, |asked| ready(election::proclaim(c, &asked)))),
        "/v3electionpb.Election/Resign" => Box::pin(unary(request, |asked| ready(election::resign(c, &asked)))),
        "/v3lockpb.Lock/Lock" => Box::pin(unary(request, |asked| election::lock(c.clone(), asked))),
        "/v3lockpb.Lock/Unlock" => Box::pin(unary(request, |asked| ready(election::unlock(c, &asked)))),
        path => Box::pin(ready(unknown(path))),
    }
}
