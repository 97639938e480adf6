//! The service `etcdserverpb.Maintenance`.

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use tonic::Status;

use super::super::VERSION;
use super::super::alarm::{Alarm, AlarmKind};
use super::super::error::EtcdError;
use super::super::proto::etcdserverpb as pb;
use super::super::snapshot;
use super::super::store::Caller;
use super::{Context, RAFT_TERM};

/// Size in bytes of the smallest database file of real etcd.
const SMALLEST_DATABASE: usize = 20_480;
/// Size in bytes of a page of the database file.
const PAGE: usize = 4096;
/// Bytes of a snapshot that are sent in one message.
const SNAPSHOT_CHUNK: usize = 32 * 1024;

pub(super) fn status(context: &Context) -> pb::StatusResponse {
    let (gauges, alarms) = context.store.with(|store, _| (store.gauges(), store.alarms(None)));
    let raft_index = context.raft_index(gauges.revision);
    pb::StatusResponse {
        header: context.header(gauges.revision),
        version: VERSION.to_owned(),
        db_size: file_bytes(gauges.file_size),
        leader: context.store.member_id(),
        raft_index,
        raft_term: RAFT_TERM,
        raft_applied_index: raft_index,
        errors: alarms.iter().map(describe).collect(),
        db_size_in_use: file_bytes(gauges.bytes_in_use),
        is_learner: false,
    }
}

/// The size of a database file for an accounted size: whole pages, and at least the smallest file.
pub(super) fn file_bytes(accounted: usize) -> i64 {
    i64::try_from(SMALLEST_DATABASE + accounted / PAGE * PAGE).unwrap_or(i64::MAX)
}

/// An alarm as the errors of a status show it.
fn describe(alarm: &Alarm) -> String {
    let member = match alarm.member {
        0 => String::new(),
        member => format!("memberID:{member} "),
    };
    format!("{member}alarm:{} ", alarm.kind.name())
}

/// Lists, raises or disarms alarms. An alarm of no kind is listed as every kind, and neither raised nor disarmed.
pub(super) fn alarm(
    context: &Context,
    caller: &Caller,
    request: &pb::AlarmRequest,
) -> Result<pb::AlarmResponse, Status> {
    context.store.permit(caller, &[])?;
    let kind = AlarmKind::from_number(request.alarm);
    let named = kind.map(|kind| Alarm { kind, member: request.member_id });
    let (alarms, revision) = context.store.with(|store, _| {
        let alarms = match (request.action, named) {
            (0, _) => store.alarms(kind),
            (1, Some(alarm)) => {
                store.raise_alarm(alarm);
                vec![alarm]
            }
            (2, Some(alarm)) if store.disarm_alarm(alarm) => vec![alarm],
            (_, _) => Vec::new(),
        };
        (alarms, store.revision())
    });
    let message = |alarm: Alarm| pb::AlarmMember { member_id: alarm.member, alarm: alarm.kind.number() };
    Ok(pb::AlarmResponse { header: context.header(revision), alarms: alarms.into_iter().map(message).collect() })
}

/// Shrinks the database file. As in real etcd, the response has no header.
pub(super) fn defragment(context: &Context, caller: &Caller) -> Result<pb::DefragmentResponse, Status> {
    require_admin(context, caller)?;
    context.store.with(|store, _| store.defragment());
    Ok(pb::DefragmentResponse { header: None })
}

/// The checksum of the whole database. It differs from that of a real server, whose database holds its own Raft state.
pub(super) fn hash(context: &Context, caller: &Caller) -> Result<pb::HashResponse, Status> {
    require_admin(context, caller)?;
    let image = snapshot::write(&context.store);
    let revision = context.store.revision();
    Ok(pb::HashResponse { header: context.header(revision), hash: crc32c::crc32c(&image) })
}

/// The checksum of all keys, by which members compare themselves. Equals that of a real server with the same history.
pub(super) fn hash_kv(
    context: &Context,
    caller: &Caller,
    request: &pb::HashKvRequest,
) -> Result<pb::HashKvResponse, Status> {
    require_admin(context, caller)?;
    let hashed = context.store.with(|store, _| store.hash_keys(request.revision))?;
    let (header, compact_revision) = (context.header(hashed.revision), hashed.compact_revision);
    Ok(pb::HashKvResponse { header, hash: hashed.hash, compact_revision })
}

/// Sends the database file, and its SHA-256 in a message of its own.
pub(super) fn snapshot(
    context: &Context,
    caller: &Caller,
) -> impl Stream<Item = Result<pb::SnapshotResponse, Status>> + use<> {
    let file = require_admin(context, caller).map(|()| Bytes::from(snapshot::write(&context.store)));
    stream::iter(match file {
        Ok(file) => snapshot_messages(&file).into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    })
}

fn snapshot_messages(file: &Bytes) -> Vec<pb::SnapshotResponse> {
    let message = |blob, remaining: usize| pb::SnapshotResponse {
        header: None,
        remaining_bytes: u64::try_from(remaining).unwrap_or(u64::MAX),
        blob,
    };
    let mut messages = Vec::new();
    let mut rest = file.clone();
    while !rest.is_empty() {
        let chunk = rest.split_to(rest.len().min(SNAPSHOT_CHUNK));
        messages.push(message(chunk, rest.len()));
    }
    messages.push(message(snapshot::checksum(file), 0));
    messages
}

/// Moves the leadership. As in real etcd, the response has no header.
pub(super) fn move_leader(
    context: &Context,
    request: &pb::MoveLeaderRequest,
) -> Result<pb::MoveLeaderResponse, Status> {
    context.store.with_members(|members| members.move_leader(context.store.member_id(), request.target_id))?;
    Ok(pb::MoveLeaderResponse { header: None })
}

/// Fails unless the caller is an administrator. Real etcd does not translate the errors of this check.
fn require_admin(context: &Context, caller: &Caller) -> Result<(), Status> {
    context.store.with_auth(caller, |auth, user| auth.permit_admin(user)).map_err(|error| {
        Status::unknown(match error {
            EtcdError::UserNotFound => "auth: user not found".to_owned(),
            error => error.to_string().replace("etcdserver:", "auth:"),
        })
    })
}
