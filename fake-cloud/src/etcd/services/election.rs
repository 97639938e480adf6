//! `v3electionpb.Election` and `v3lockpb.Lock`.
//!
//! A real server is a client of itself here, and passes on the words of a refusal without its code.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status};

use super::super::delivery::Delivery;
use super::super::error::EtcdError;
use super::super::key_range::KeyRange;
use super::super::proto::{election as pb, lock};
use super::super::queue::{self, Place};
use super::super::record::Record;
use super::super::watch::WatchRequest;
use super::super::write::Delete;
use super::context::{Context, key_value};
use super::grpc::Answer;

/// How many leaders may wait to be seen by a slow observer before the observation itself waits.
const UNSEEN_LEADERS: usize = 16;

/// Stands for election and waits until elected. Whoever stops waiting steps back.
pub(super) async fn campaign(context: Context, request: pb::CampaignRequest) -> Answer<pb::CampaignResponse> {
    let place = Place::take(&context.store, &request.name, request.lease, &request.value).map_err(secondhand)?;
    wait(&context, &place).await?;
    let header = context.header(place.revision);
    let (key, rev, lease) = (place.key.clone(), place.number, place.lease);
    place.keep();
    let leader = Some(pb::LeaderKey { name: request.name, key, rev, lease });
    Ok(Response::new(pb::CampaignResponse { header, leader }))
}

pub(super) fn leader(context: &Context, request: &pb::LeaderRequest) -> Answer<pb::LeaderResponse> {
    let front = queue::front(&context.store, &request.name).map_err(secondhand)?;
    let record = front.records.first().ok_or(EtcdError::NoLeader)?;
    Ok(Response::new(pb::LeaderResponse { header: context.header(front.revision), kv: Some(key_value(record)) }))
}

pub(super) fn proclaim(context: &Context, request: &pb::ProclaimRequest) -> Answer<pb::ProclaimResponse> {
    let leader = given(request.leader.as_ref())?;
    let answer =
        queue::overwrite(&context.store, &leader.key, leader.rev, &request.value, leader.lease).map_err(secondhand)?;
    if !answer.succeeded {
        return Err(EtcdError::NotLeader.into());
    }
    Ok(Response::new(pb::ProclaimResponse { header: context.header(answer.revision) }))
}

pub(super) fn resign(context: &Context, request: &pb::ResignRequest) -> Answer<pb::ResignResponse> {
    let leader = given(request.leader.as_ref())?;
    let answer = queue::give_up(&context.store, &leader.key, leader.rev).map_err(secondhand)?;
    Ok(Response::new(pb::ResignResponse { header: context.header(answer.revision) }))
}

/// Tells who leads, and what they say, as it changes.
pub(super) fn observe(
    context: &Context,
    request: &pb::LeaderRequest,
) -> ReceiverStream<Result<pb::LeaderResponse, Status>> {
    let (sender, receiver) = mpsc::channel(UNSEEN_LEADERS);
    let (context, name) = (context.clone(), request.name.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = sender.closed() => {}
            () = context.stopped() => drop(sender.send(Err(EtcdError::Stopped.into())).await),
            () = follow(&context, &name, &sender) => {}
        }
    });
    ReceiverStream::new(receiver)
}

type Leaders = mpsc::Sender<Result<pb::LeaderResponse, Status>>;

async fn follow(context: &Context, name: &Bytes, seen: &Leaders) {
    let mut leader: Option<Arc<Record>> = None;
    loop {
        let Ok(mut front) = queue::front(&context.store, name) else { return };
        let mut stream = context.store.watch();
        stream.create(&WatchRequest::of(queue::line(name), front.revision + 1));
        let found = front.records.pop();
        if found != leader
            && let Some(record) = &found
        {
            report(context, seen, front.revision, record).await;
        }
        leader = found;
        // Until the stream is cut, or tells of a change of leaders.
        'told: loop {
            let events = match stream.deliveries.next().await {
                Some(Delivery::Events { events, .. }) => events,
                Some(Delivery::Created { .. } | Delivery::Progress { .. }) => continue,
                Some(_) | None => break,
            };
            for event in events.iter() {
                let is_news = leader.as_ref().is_none_or(|leader| leader.key == event.record.key);
                if is_news && !event.is_delete() {
                    report(context, seen, event.record.mod_revision, &event.record).await;
                    leader = Some(Arc::clone(&event.record));
                } else if is_news && leader.is_some() {
                    break 'told;
                }
            }
        }
    }
}

async fn report(context: &Context, seen: &Leaders, revision: i64, record: &Record) {
    let response = pb::LeaderResponse { header: context.header(revision), kv: Some(key_value(record)) };
    // An observer that is gone ends the observation at its next wait.
    drop(seen.send(Ok(response)).await);
}

/// Waits for the lock. Whoever stops waiting leaves the line.
pub(super) async fn lock(context: Context, request: lock::LockRequest) -> Answer<lock::LockResponse> {
    let place = Place::take(&context.store, &request.name, request.lease, &Bytes::new()).map_err(secondhand)?;
    let front = queue::front(&context.store, &request.name).map_err(secondhand)?;
    let mut revision = place.revision;
    if front.records.first().is_some_and(|first| first.create_revision != place.number) {
        wait(&context, &place).await?;
        let (is_held, seen_at) = place.is_held().map_err(secondhand)?;
        if !is_held {
            return Err(EtcdError::SessionExpired.into());
        }
        revision = seen_at;
    }
    let key = place.key.clone();
    place.keep();
    Ok(Response::new(lock::LockResponse { header: context.header(revision), key }))
}

pub(super) fn unlock(context: &Context, request: &lock::UnlockRequest) -> Answer<lock::UnlockResponse> {
    let answer = context.store.delete(&Delete { keys: KeyRange::One(request.key.clone()) }).map_err(secondhand)?;
    Ok(Response::new(lock::UnlockResponse { header: context.header(answer.revision) }))
}

async fn wait(context: &Context, place: &Place) -> Result<(), EtcdError> {
    tokio::select! {
        turn = place.wait() => turn,
        () = context.stopped() => Err(EtcdError::Stopped),
    }
}

fn secondhand(error: EtcdError) -> Status {
    Status::unknown(error.to_string())
}

fn given(leader: Option<&pb::LeaderKey>) -> Result<&pb::LeaderKey, Status> {
    leader.ok_or_else(|| Status::unknown("\"leader\" field must be provided"))
}
