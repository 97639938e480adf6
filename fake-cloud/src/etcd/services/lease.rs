//! The service `etcdserverpb.Lease`.

use futures_util::stream::{self, Stream};
use tonic::{Status, Streaming};

use super::super::auth::Access;
use super::super::error::EtcdError;
use super::super::proto::etcdserverpb as pb;
use super::super::store::Caller;
use super::Context;
use super::grpc::convert_size_error;

pub(super) fn grant(
    context: &Context,
    caller: &Caller,
    request: &pb::LeaseGrantRequest,
) -> Result<pb::LeaseGrantResponse, Status> {
    context.store.permit(caller, &[])?;
    let (id, ttl) = context.store.lease_grant(request.id, request.ttl)?;
    let header = context.header(context.store.revision());
    Ok(pb::LeaseGrantResponse { header, id, ttl, error: String::new() })
}

pub(super) async fn revoke(
    context: &Context,
    caller: &Caller,
    request: pb::LeaseRevokeRequest,
) -> Result<pb::LeaseRevokeResponse, Status> {
    if context.store.checks(caller) {
        let keys = context.store.with(|store, _| store.lease_keys(request.id));
        context.store.permit(caller, &keys.iter().map(|key| Access::write(key, &[])).collect::<Vec<_>>())?;
    }
    let revision = context.store.write(|store| store.lease_revoke(request.id).map(|()| store.revision())).await?;
    Ok(pb::LeaseRevokeResponse { header: context.header(revision) })
}

/// Reads the TTL of a lease. For a lease that does not exist it is -1.
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

/// Renews leases, one for each request. The TTL in the response is 0 if the lease does not exist.
pub(super) fn keep_alive(
    context: &Context,
    requests: Streaming<pb::LeaseKeepAliveRequest>,
) -> impl Stream<Item = Result<pb::LeaseKeepAliveResponse, Status>> + use<> {
    stream::try_unfold((context.clone(), requests), |(context, mut requests)| async move {
        let request = tokio::select! {
            biased;
            request = requests.message() => request.map_err(convert_size_error)?,
            () = context.stopped() => return Err(EtcdError::Stopped.into()),
        };
        let Some(request) = request else { return Ok(None) };
        if context.store.is_unavailable() {
            return Err(EtcdError::Unavailable.into());
        }
        let ttl = context.store.lease_keep_alive(request.id).unwrap_or(0);
        let header = context.header(context.store.revision());
        Ok(Some((pb::LeaseKeepAliveResponse { header, id: request.id, ttl }, (context, requests))))
    })
}
