//! `etcdserverpb.Cluster`, `etcdserverpb.Maintenance` and `etcdserverpb.Auth`: a cluster of one, in good health,
//! without passwords.

use super::super::VERSION;
use super::super::proto::{auth, cluster, maintenance};
use super::context::{Context, RAFT_TERM};

/// What the smallest database file of a real server takes on disk.
const DATABASE_SIZE: i64 = 20_480;

/// The header of this answer has no revision, as in a real server.
pub(super) fn member_list(context: &Context) -> cluster::MemberListResponse {
    let url = format!("http://{}", context.address);
    let member = cluster::Member {
        id: context.store.member_id(),
        name: "default".to_owned(),
        peer_urls: vec![url.clone()],
        client_urls: vec![url],
        is_learner: false,
    };
    cluster::MemberListResponse { header: context.header(0), members: vec![member] }
}

pub(super) fn status(context: &Context) -> maintenance::StatusResponse {
    let revision = context.store.revision();
    // A fresh server has written four entries of its own to its log.
    let raft_index = u64::try_from(revision).unwrap_or(0) + 3;
    maintenance::StatusResponse {
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

pub(super) fn alarm(context: &Context) -> maintenance::AlarmResponse {
    maintenance::AlarmResponse { header: context.header(context.store.revision()), alarms: Vec::new() }
}

/// This answer alone has no header at all, as in a real server.
pub(super) fn defragment() -> maintenance::DefragmentResponse {
    maintenance::DefragmentResponse { header: None }
}

pub(super) fn auth_status(context: &Context) -> auth::AuthStatusResponse {
    auth::AuthStatusResponse { header: context.header(context.store.revision()), enabled: false, auth_revision: 1 }
}
