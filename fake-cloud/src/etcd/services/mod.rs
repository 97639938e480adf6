//! The gRPC services of etcd: decode requests, call the store, encode responses.

mod cluster;
mod election;
mod grpc;
mod kv;
mod lease;
mod middleware;
mod watch;

use std::future::ready;
use std::net::SocketAddr;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::watch as watch_channel;
use tonic::Status;
use tonic::body::Body;

use super::error::EtcdError;
use super::mvcc::Record;
use super::proto::{KeyValue, etcdserverpb as pb};
use super::store::EtcdStore;
use crate::middleware::{ActiveRequest, Middleware};
use grpc::{Call, server_streaming, streaming, unary, unimplemented};
use middleware::{Grpc, check_keys, request_info, txn_keys};

/// The Raft term of a server after its first election.
const RAFT_TERM: u64 = 2;

/// The store and the server that serves it.
#[derive(Debug, Clone)]
pub(super) struct Context {
    pub(super) store: EtcdStore,
    /// The address that clients connect to.
    pub(super) address: SocketAddr,
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

    /// Waits until the server stops.
    async fn stopped(&self) {
        let mut stopping = self.stopping.clone();
        // An error means that the server is already gone.
        drop(stopping.wait_for(|stopping| *stopping).await);
    }
}

/// The message for a record. Key and value are shared, not copied.
fn key_value(record: &Record) -> KeyValue {
    KeyValue {
        key: record.key.clone(),
        create_revision: record.create_revision,
        mod_revision: record.mod_revision,
        version: record.version,
        value: record.value.clone(),
        lease: record.lease,
    }
}

/// A call that a fault rule ends without a response.
#[derive(Debug, thiserror::Error)]
#[error("the call was reset by a fault rule")]
pub(super) struct CallReset;

/// Responds to one call, with the faults the middleware injects.
pub(super) async fn respond(context: &Context, request: Request<Incoming>) -> Result<Response<Body>, CallReset> {
    let clock = context.store.clock();
    let active = context.middleware.begin(request_info(request.uri().path()), clock.now());
    let call = async { dispatch(context, request, &active).await };
    active.respond(clock, &Grpc, call).await.map_err(|_| CallReset)
}

/// Routes KV, Watch and Lease calls, and passes the others on.
fn dispatch<'a>(c: &'a Context, request: Request<Incoming>, active: &'a ActiveRequest<'_>) -> Call<'a> {
    if c.store.is_unavailable() {
        return Box::pin(ready(Status::from(EtcdError::Unavailable).into_http()));
    }
    match request.uri().path() {
        "/etcdserverpb.KV/Range" => unary(request, move |range: pb::RangeRequest| async move {
            check_keys(c, active, &[&range.key]).await?;
            kv::range(c, &range)
        }),
        "/etcdserverpb.KV/Put" => unary(request, move |put: pb::PutRequest| async move {
            check_keys(c, active, &[&put.key]).await?;
            kv::put(c, &put).await
        }),
        "/etcdserverpb.KV/DeleteRange" => unary(request, move |delete: pb::DeleteRangeRequest| async move {
            check_keys(c, active, &[&delete.key]).await?;
            kv::delete_range(c, &delete).await
        }),
        "/etcdserverpb.KV/Txn" => unary(request, move |txn: pb::TxnRequest| async move {
            check_keys(c, active, &txn_keys(&txn)).await?;
            kv::txn(c, &txn).await
        }),
        "/etcdserverpb.KV/Compact" => unary(request, move |compact| ready(kv::compact(c, &compact))),
        "/etcdserverpb.Watch/Watch" => streaming(request, move |requests| watch::watch(c, requests)),
        "/etcdserverpb.Lease/LeaseGrant" => unary(request, move |grant| ready(lease::grant(c, &grant))),
        "/etcdserverpb.Lease/LeaseRevoke" => unary(request, move |revoke| lease::revoke(c, revoke)),
        "/etcdserverpb.Lease/LeaseKeepAlive" => streaming(request, move |requests| lease::keep_alive(c, requests)),
        "/etcdserverpb.Lease/LeaseTimeToLive" => {
            unary(request, move |time_to_live| ready(Ok(lease::time_to_live(c, &time_to_live))))
        }
        "/etcdserverpb.Lease/LeaseLeases" => {
            unary(request, move |_: pb::LeaseLeasesRequest| ready(Ok(lease::leases(c))))
        }
        _ => dispatch_other(c, request),
    }
}

/// Routes calls about the cluster, elections and locks. Calls that do not exist are unimplemented.
fn dispatch_other(c: &Context, request: Request<Incoming>) -> Call<'_> {
    match request.uri().path() {
        "/etcdserverpb.Cluster/MemberList" => {
            unary(request, move |_: pb::MemberListRequest| ready(Ok(cluster::member_list(c))))
        }
        "/etcdserverpb.Maintenance/Status" => unary(request, move |_: pb::StatusRequest| ready(Ok(cluster::status(c)))),
        "/etcdserverpb.Maintenance/Alarm" => unary(request, move |_: pb::AlarmRequest| ready(Ok(cluster::alarm(c)))),
        "/etcdserverpb.Maintenance/Defragment" => {
            unary(request, move |_: pb::DefragmentRequest| ready(Ok(cluster::defragment())))
        }
        "/etcdserverpb.Auth/Authenticate" => {
            unary(request, move |_: pb::AuthenticateRequest| ready(cluster::authenticate()))
        }
        "/etcdserverpb.Auth/AuthStatus" => {
            unary(request, move |_: pb::AuthStatusRequest| ready(Ok(cluster::auth_status(c))))
        }
        "/v3electionpb.Election/Campaign" => unary(request, move |campaign| election::campaign(c, campaign)),
        "/v3electionpb.Election/Proclaim" => unary(request, move |proclaim| ready(election::proclaim(c, &proclaim))),
        "/v3electionpb.Election/Leader" => unary(request, move |leader| ready(election::leader(c, &leader))),
        "/v3electionpb.Election/Observe" => server_streaming(request, move |leader| election::observe(c, &leader)),
        "/v3electionpb.Election/Resign" => unary(request, move |resign| ready(election::resign(c, &resign))),
        "/v3lockpb.Lock/Lock" => unary(request, move |lock| election::lock(c, lock)),
        "/v3lockpb.Lock/Unlock" => unary(request, move |unlock| ready(election::unlock(c, &unlock))),
        path => Box::pin(ready(unimplemented(path))),
    }
}
