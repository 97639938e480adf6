//! The services `etcdserverpb.Cluster`, `etcdserverpb.Maintenance` and `etcdserverpb.Auth`: a healthy cluster of one
//! member, without authentication.

use tonic::Status;

use super::super::VERSION;
use super::super::error::EtcdError;
use super::super::proto::etcdserverpb as pb;
use super::{Context, RAFT_TERM};

/// Size in bytes of the smallest database file of real etcd.
const DATABASE_SIZE: i64 = 20_480;

/// Lists this server as the only member. As in real etcd, the header has no revision.
pub(super) fn member_list(context: &Context) -> pb::MemberListResponse {
    let url = format!("http://{}", context.address);
    let member = pb::Member {
        id: context.store.member_id(),
        name: "default".to_owned(),
        peer_urls: vec![url.clone()],
        client_urls: vec![url],
        is_learner: false,
    };
    pb::MemberListResponse { header: context.header(0), members: vec![member] }
}

pub(super) fn status(context: &Context) -> pb::StatusResponse {
    let revision = context.store.revision();
    // A new server writes four Raft entries before the first request.
    let raft_index = u64::try_from(revision).unwrap_or(0) + 3;
    pb::StatusResponse {
        header: context.header(revision),
        version: VERSION.to_owned(),
        db_size: DATABASE_SIZE,
        leader: context.store.member_id(),
        raft_index,
        raft_term: RAFT_TERM,
        raft_applied_index: raft_index,
        errors: Vec::new(),
        db_size_in_use: DATABASE_SIZE,
        is_learner: false,
    }
}

pub(super) fn alarm(context: &Context) -> pb::AlarmResponse {
    pb::AlarmResponse { header: context.header(context.store.revision()), alarms: Vec::new() }
}

/// Does nothing. As in real etcd, the response has no header.
pub(super) fn defragment() -> pb::DefragmentResponse {
    pb::DefragmentResponse { header: None }
}

/// Rejects every login, because authentication is not enabled.
pub(super) fn authenticate() -> Result<pb::AuthenticateResponse, Status> {
    Err(EtcdError::AuthNotEnabled.into())
}

pub(super) fn auth_status(context: &Context) -> pb::AuthStatusResponse {
    pb::AuthStatusResponse { header: context.header(context.store.revision()), enabled: false, auth_revision: 1 }
}
