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
use std::sync::OnceLock;

pub(super) use context::Context;
use http::{Request, Response};
use hyper::body::Incoming;
use tonic::Status;
use tonic::body::Body;

use super::error::EtcdError;
use super::proto::{auth, cluster, kv as kv_pb, lease as lease_pb, maintenance};
use crate::interruption::{Ending, Interruption};
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

/// The call ends without an answer, as a fault rule asked.
#[derive(Debug, thiserror::Error)]
#[error("the call ends without an answer, as a fault rule asked")]
pub(super) struct NoAnswer;

/// What a call turns out to be about, once it is decoded.
type Subject = OnceLock<String>;

/// Takes one call through what may come in between, and answers it.
pub(super) async fn answer(c: &Context, request: Request<Incoming>) -> Result<Response<Body>, NoAnswer> {
    let mut admitted = c.hook.admit(request::describe(request.uri().path()), c.store.clock().now());
    let interruption = admitted.interruption.take();
    match interruption {
        Some(Interruption::Instead(response)) => {
            let response = response.map(Body::new);
            admitted.close(request::ending(&response));
            return Ok(response);
        }
        Some(Interruption::Cut) => {
            admitted.close(Ending::Cut);
            return Err(NoAnswer);
        }
        Some(Interruption::Late(delay)) => c.store.clock().sleep(delay).await,
        Some(Interruption::Afterwards(_)) | None => {}
    }
    let subject = Subject::new();
    let response = carry_out(c, request, &subject).await;
    admitted.request.subject = subject.into_inner();
    if let Some(Interruption::Afterwards(_)) = interruption {
        admitted.close(Ending::Lost);
        return Err(NoAnswer);
    }
    admitted.close(request::ending(&response));
    Ok(response)
}

async fn carry_out(c: &Context, request: Request<Incoming>, subject: &Subject) -> Response<Body> {
    let about = |key: &[u8]| drop(subject.set(request::readable(key)));
    if c.store.is_unavailable() {
        return Status::from(EtcdError::Unavailable).into_http();
    }
    match request.uri().path() {
        "/etcdserverpb.KV/Range" => {
            let range = |asked: kv_pb::RangeRequest| {
                about(&asked.key);
                now(kv::range(c, &asked))
            };
            unary(request, range).await
        }
        "/etcdserverpb.KV/Put" => {
            let put = |asked: kv_pb::PutRequest| {
                about(&asked.key);
                kv::put(c, asked)
            };
            unary(request, put).await
        }
        "/etcdserverpb.KV/DeleteRange" => {
            let delete = |asked: kv_pb::DeleteRangeRequest| {
                about(&asked.key);
                kv::delete_range(c, asked)
            };
            unary(request, delete).await
        }
        "/etcdserverpb.KV/Txn" => {
            let txn = |asked: kv_pb::TxnRequest| {
                asked.compare.first().into_iter().for_each(|compare| about(&compare.key));
                kv::txn(c, asked)
            };
            unary(request, txn).await
        }
        "/etcdserverpb.KV/Compact" => unary(request, |asked| now(kv::compact(c, &asked))).await,
        "/etcdserverpb.Watch/Watch" => streaming(request, |asked| watch::watch(c, asked)).await,
        "/etcdserverpb.Lease/LeaseKeepAlive" => streaming(request, |asked| lease::keep_alive(c, asked)).await,
        "/v3electionpb.Election/Campaign" => unary(request, |asked| election::campaign(c.clone(), asked)).await,
        "/v3electionpb.Election/Observe" => server_streaming(request, |asked| election::observe(c, &asked)).await,
        "/v3lockpb.Lock/Lock" => unary(request, |asked| election::lock(c.clone(), asked)).await,
        _ => carry_out_rarely_asked(c, request).await,
    }
}

async fn carry_out_rarely_asked(c: &Context, request: Request<Incoming>) -> Response<Body> {
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
