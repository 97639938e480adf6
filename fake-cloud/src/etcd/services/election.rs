//! The services `v3electionpb.Election` and `v3lockpb.Lock`.
//!
//! In real etcd these services are clients of the server itself, and return its errors with the code `Unknown`.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::super::auth::Access;
use super::super::contender::{self, Contender};
use super::super::error::EtcdError;
use super::super::key_range::KeyRange;
use super::super::mvcc::Record;
use super::super::proto::{KeyValue, concurrency as pb};
use super::super::store::Caller;
use super::super::txn::Delete;
use super::super::watch::{WatchMessage, WatchRequest};
use super::Context;

/// Responses that may wait for a slow observer.
const OBSERVER_QUEUE: usize = 16;

/// Waits until the caller is elected. A caller that cancels the call withdraws.
pub(super) async fn campaign(
    context: &Context,
    caller: &Caller,
    request: pb::CampaignRequest,
) -> Result<pb::CampaignResponse, Status> {
    permit_contender(context, caller, &request.name)?;
    let contender =
        Contender::register(&context.store, &request.name, request.lease, &request.value).map_err(unknown)?;
    wait(context, &contender).await?;
    let header = context.header(contender.revision);
    let (key, rev, lease) = (contender.key.clone(), contender.create_revision, contender.lease);
    contender.keep();
    Ok(pb::CampaignResponse { header, leader: Some(pb::LeaderKey { name: request.name, key, rev, lease }) })
}

pub(super) fn leader(
    context: &Context,
    caller: &Caller,
    request: &pb::LeaderRequest,
) -> Result<pb::LeaderResponse, Status> {
    permit_reader(context, caller, &request.name)?;
    let owner = contender::owner(&context.store, &request.name).map_err(unknown)?;
    let record = owner.records.first().ok_or(EtcdError::NoLeader)?;
    Ok(pb::LeaderResponse { header: context.header(owner.revision), kv: Some(KeyValue::from(&**record)) })
}

pub(super) fn proclaim(
    context: &Context,
    caller: &Caller,
    request: &pb::ProclaimRequest,
) -> Result<pb::ProclaimResponse, Status> {
    let leader = require_leader(request.leader.as_ref())?;
    permit_owner(context, caller, &leader.key)?;
    let response = contender::update_value(&context.store, &leader.key, leader.rev, &request.value, leader.lease)
        .map_err(unknown)?;
    if !response.succeeded {
        return Err(EtcdError::NotLeader.into());
    }
    Ok(pb::ProclaimResponse { header: context.header(response.revision) })
}

pub(super) fn resign(
    context: &Context,
    caller: &Caller,
    request: &pb::ResignRequest,
) -> Result<pb::ResignResponse, Status> {
    let leader = require_leader(request.leader.as_ref())?;
    permit_owner(context, caller, &leader.key)?;
    let response = contender::resign(&context.store, &leader.key, leader.rev).map_err(unknown)?;
    Ok(pb::ResignResponse { header: context.header(response.revision) })
}

/// Sends the leader and its value, and every change of them.
pub(super) fn observe(
    context: &Context,
    caller: &Caller,
    request: &pb::LeaderRequest,
) -> ReceiverStream<Result<pb::LeaderResponse, Status>> {
    let (sender, receiver) = mpsc::channel(OBSERVER_QUEUE);
    let (context, name) = (context.clone(), request.name.clone());
    let permitted = permit_reader(&context, caller, &name);
    tokio::spawn(async move {
        if let Err(error) = permitted {
            return drop(sender.send(Err(error)).await);
        }
        tokio::select! {
            () = sender.closed() => {}
            () = context.stopped() => drop(sender.send(Err(EtcdError::Stopped.into())).await),
            () = follow_leader(&context, &name, &sender) => {}
        }
    });
    ReceiverStream::new(receiver)
}

type LeaderSender = mpsc::Sender<Result<pb::LeaderResponse, Status>>;

async fn follow_leader(context: &Context, name: &Bytes, sender: &LeaderSender) {
    let mut leader: Option<Arc<Record>> = None;
    loop {
        let Ok(mut owner) = contender::owner(&context.store, name) else { return };
        let mut stream = context.store.watch();
        stream.create(&WatchRequest::new(contender::contender_keys(name), owner.revision + 1));
        let found = owner.records.pop();
        if found != leader
            && let Some(record) = &found
        {
            send_leader(context, sender, owner.revision, record).await;
        }
        leader = found;
        // Ends when the leader's key is deleted or the watch stream is closed.
        'watch: loop {
            let events = match stream.recv().await {
                Some(WatchMessage::Events { events, .. }) => events,
                Some(WatchMessage::Created { .. } | WatchMessage::Progress { .. }) => continue,
                Some(_) | None => break,
            };
            for event in events.iter() {
                let is_leader = leader.as_ref().is_none_or(|leader| leader.key == event.record.key);
                if is_leader && !event.is_delete() {
                    send_leader(context, sender, event.record.mod_revision, &event.record).await;
                    leader = Some(Arc::clone(&event.record));
                } else if is_leader && leader.is_some() {
                    break 'watch;
                }
            }
        }
    }
}

async fn send_leader(context: &Context, sender: &LeaderSender, revision: i64, record: &Record) {
    let response = pb::LeaderResponse { header: context.header(revision), kv: Some(KeyValue::from(record)) };
    // Fails only if the observer is gone, which ends its task.
    drop(sender.send(Ok(response)).await);
}

/// Waits for the lock. A caller that cancels the call withdraws.
pub(super) async fn lock(
    context: &Context,
    caller: &Caller,
    request: pb::LockRequest,
) -> Result<pb::LockResponse, Status> {
    permit_contender(context, caller, &request.name)?;
    let contender =
        Contender::register(&context.store, &request.name, request.lease, &Bytes::new()).map_err(unknown)?;
    let owner = contender::owner(&context.store, &request.name).map_err(unknown)?;
    let mut revision = contender.revision;
    if owner.records.first().is_some_and(|owner| owner.create_revision != contender.create_revision) {
        wait(context, &contender).await?;
        let (is_registered, read_revision) = contender.is_registered().map_err(unknown)?;
        if !is_registered {
            return Err(EtcdError::SessionExpired.into());
        }
        revision = read_revision;
    }
    let key = contender.key.clone();
    contender.keep();
    Ok(pb::LockResponse { header: context.header(revision), key })
}

pub(super) fn unlock(
    context: &Context,
    caller: &Caller,
    request: &pb::UnlockRequest,
) -> Result<pb::UnlockResponse, Status> {
    permit_owner(context, caller, &request.key)?;
    let response = context.store.delete(&Delete { keys: KeyRange::One(request.key.clone()) }).map_err(unknown)?;
    Ok(pb::UnlockResponse { header: context.header(response.revision) })
}

async fn wait(context: &Context, contender: &Contender) -> Result<(), EtcdError> {
    tokio::select! {
        result = contender.wait() => result,
        () = context.stopped() => Err(EtcdError::Stopped),
    }
}

/// Checks the permissions of a contender: it reads and writes the keys of all contenders.
fn permit_contender(context: &Context, caller: &Caller, name: &[u8]) -> Result<(), Status> {
    let (from, to) = contender::contender_bounds(name);
    context.store.permit(caller, &[Access::read(&from, &to), Access::write(&from, &to)]).map_err(unknown)
}

fn permit_reader(context: &Context, caller: &Caller, name: &[u8]) -> Result<(), Status> {
    let (from, to) = contender::contender_bounds(name);
    context.store.permit(caller, &[Access::read(&from, &to)]).map_err(unknown)
}

/// Checks the permissions of an owner, who changes or deletes its own key.
fn permit_owner(context: &Context, caller: &Caller, key: &[u8]) -> Result<(), Status> {
    context.store.permit(caller, &[Access::read(key, &[]), Access::write(key, &[])]).map_err(unknown)
}

fn unknown(error: EtcdError) -> Status {
    Status::unknown(error.to_string())
}

fn require_leader(leader: Option<&pb::LeaderKey>) -> Result<&pb::LeaderKey, Status> {
    leader.ok_or_else(|| Status::unknown("\"leader\" field must be provided"))
}
