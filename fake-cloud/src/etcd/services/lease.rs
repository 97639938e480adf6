//! `etcdserverpb.Lease`.

use std::pin::Pin;
use std::task::{Context as Wakeup, Poll};

use tokio_stream::Stream;
use tonic::{Response, Status, Streaming};

use super::super::error::EtcdError;
use super::super::proto::lease as pb;
use super::super::store::Store;
use super::context::Context;
use super::grpc::{Answer, too_large};

pub(super) fn grant(context: &Context, request: &pb::LeaseGrantRequest) -> Result<pb::LeaseGrantResponse, EtcdError> {
    let (id, ttl) = context.store.lease_grant(request.id, request.ttl)?;
    let header = context.header(context.store.revision());
    Ok(pb::LeaseGrantResponse { header, id, ttl, error: String::new() })
}

pub(super) async fn revoke(context: &Context, request: pb::LeaseRevokeRequest) -> Answer<pb::LeaseRevokeResponse> {
    let revoke = |store: &mut Store| store.lease_revoke(request.id).map(|()| store.revision());
    let revision = context.store.write(revoke).await?;
    Ok(Response::new(pb::LeaseRevokeResponse { header: context.header(revision) }))
}

/// A lease nobody knows is no error, but a lease of -1 seconds.
pub(super) fn time_to_live(context: &Context, request: &pb::LeaseTimeToLiveRequest) -> pb::LeaseTimeToLiveResponse {
    let status = context.store.lease_status(request.id);
    let header = context.header(context.store.revision());
    let (ttl, granted_ttl, keys) = match status {
        Some(status) => (status.ttl, status.granted_ttl, status.keys),
        None => (-1, 0, Vec::new()),
    };
    let keys = if request.keys { keys } else { Vec::new() };
    pb::LeaseTimeToLiveResponse { header, id: request.id, ttl, granted_ttl, keys }
}

pub(super) fn leases(context: &Context) -> pb::LeaseLeasesResponse {
    let leases = context.store.leases().into_iter().map(|id| pb::LeaseStatus { id }).collect();
    pb::LeaseLeasesResponse { header: context.header(context.store.revision()), leases }
}

/// A stream of heartbeats: each is answered with the seconds the lease now has, or 0 if there is no such lease.
pub(super) fn keep_alive(context: &Context, beats: Streaming<pb::LeaseKeepAliveRequest>) -> KeepAlive {
    KeepAlive { context: context.clone(), beats, stopped: Box::pin(context.stopped()), is_over: false }
}

pub(super) struct KeepAlive {
    context: Context,
    beats: Streaming<pb::LeaseKeepAliveRequest>,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_over: bool,
}

impl Stream for KeepAlive {
    type Item = Result<pb::LeaseKeepAliveResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, wakeup: &mut Wakeup<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let answer = match Pin::new(&mut self.beats).poll_next(wakeup) {
            Poll::Ready(Some(Ok(_))) if self.context.store.is_unavailable() => Err(EtcdError::Unavailable.into()),
            Poll::Ready(Some(Ok(beat))) => {
                let ttl = self.context.store.lease_keep_alive(beat.id).unwrap_or(0);
                let header = self.context.header(self.context.store.revision());
                Ok(pb::LeaseKeepAliveResponse { header, id: beat.id, ttl })
            }
            Poll::Ready(Some(Err(status))) => Err(too_large(status)),
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending if self.stopped.as_mut().poll(wakeup).is_ready() => Err(EtcdError::Stopped.into()),
            Poll::Pending => return Poll::Pending,
        };
        self.is_over = answer.is_err();
        Poll::Ready(Some(answer))
    }
}
