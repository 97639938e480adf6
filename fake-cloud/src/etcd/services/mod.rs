//! The calls etcd answers. They decode, ask the store, and encode; they decide nothing.

mod context;
mod election;
mod encounter;
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
use crate::interruption::{Ending, Instead};
use encounter::Encounter;
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

/// Takes one call through what may come in between, and answers it.
pub(super) async fn answer(c: &Context, request: Request<Incoming>) -> Result<Response<Body>, NoAnswer> {
    let mut admitted = c.hook.admit(request::describe(request.uri().path()), c.store.clock().now());
    let mut fate = admitted.take_fate();
    fate.wait(c.store.clock()).await;
    let response = match fate.instead {
        Some(Instead::Cut) => {
            admitted.close(Ending::Cut);
            return Err(NoAnswer);
        }
        Some(Instead::Answer(response)) => response.map(Body::new),
        None => {
            let encounter = Encounter::new(admitted);
            let response = carry_out(c, request, &encounter).await;
            let silence;
            (admitted, silence) = encounter.end();
            if let Some(ending) = silence {
                admitted.close(ending);
                return Err(NoAnswer);
            }
            response
        }
    };
    if fate.lost.is_some() {
        admitted.close(Ending::Lost);
        return Err(NoAnswer);
    }
    admitted.close(request::ending(&response));
    Ok(response)
}

fn carry_out<'a>(c: &'a Context, request: Request<Incoming>, encounter: &'a Encounter) -> Work<'a> {
    if c.store.is_unavailable() {
        return Box::pin(ready(Status::from(EtcdError::Unavailable).into_http()));
    }
    match request.uri().path() {
        "/etcdserverpb.KV/Range" => {
            let range = move |asked: kv_pb::RangeRequest| async move {
                encounter.meet(c, &[&asked.key]).await?;
                now(kv::range(c, &asked)).await
            };
            unary(request, range)
        }
        "/etcdserverpb.KV/Put" => {
            let put = move |asked: kv_pb::PutRequest| async move {
                encounter.meet(c, &[&asked.key]).await?;
                kv::put(c, asked).await
            };
            unary(request, put)
        }
        "/etcdserverpb.KV/DeleteRange" => {
            let delete = move |asked: kv_pb::DeleteRangeRequest| async move {
                encounter.meet(c, &[&asked.key]).await?;
                kv::delete_range(c, asked).await
            };
            unary(request, delete)
        }
        "/etcdserverpb.KV/Txn" => {
            let txn = move |asked: kv_pb::TxnRequest| async move {
                encounter.meet(c, &encounter::keys_of(&asked)).await?;
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
