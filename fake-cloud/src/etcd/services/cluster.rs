//! The service `etcdserverpb.Cluster`: this server leads, and added members are listed but have no process.

use tonic::Status;

use super::super::members::{Member, Role};
use super::super::proto::etcdserverpb as pb;
use super::super::store::Caller;
use super::Context;

pub(super) fn member_list(context: &Context) -> pb::MemberListResponse {
    pb::MemberListResponse { header: context.header(0), members: members(context) }
}

pub(super) fn member_add(
    context: &Context,
    caller: &Caller,
    request: &pb::MemberAddRequest,
) -> Result<pb::MemberAddResponse, Status> {
    context.store.with_auth(caller, |auth, user| auth.permit_admin(user))?;
    let role = if request.is_learner { Role::Learner } else { Role::Voter };
    let (id, own) = (context.store.random_id(), own_peer_urls(context));
    let added = context.store.with_members(|members| members.add(&own, id, &request.peer_urls, role))?;
    let (header, members) = (context.header(0), members(context));
    Ok(pb::MemberAddResponse { header, member: Some(message(&added)), members })
}

pub(super) fn member_remove(
    context: &Context,
    caller: &Caller,
    request: &pb::MemberRemoveRequest,
) -> Result<pb::MemberRemoveResponse, Status> {
    context.store.with_auth(caller, |auth, user| auth.permit_admin(user))?;
    context.store.with_members(|members| members.remove(context.store.member_id(), request.id))?;
    Ok(pb::MemberRemoveResponse { header: context.header(0), members: members(context) })
}

pub(super) fn member_update(
    context: &Context,
    caller: &Caller,
    request: &pb::MemberUpdateRequest,
) -> Result<pb::MemberUpdateResponse, Status> {
    context.store.with_auth(caller, |auth, user| auth.permit_admin(user))?;
    let (own_id, own) = (context.store.member_id(), own_peer_urls(context));
    context.store.with_members(|members| members.update(own_id, &own, request.id, &request.peer_urls))?;
    Ok(pb::MemberUpdateResponse { header: context.header(0), members: members(context) })
}

pub(super) fn member_promote(
    context: &Context,
    caller: &Caller,
    request: &pb::MemberPromoteRequest,
) -> Result<pb::MemberPromoteResponse, Status> {
    context.store.with_auth(caller, |auth, user| auth.permit_admin(user))?;
    context.store.with_members(|members| members.promote(context.store.member_id(), request.id))?;
    Ok(pb::MemberPromoteResponse { header: context.header(0), members: members(context) })
}

/// All members, in order of their ids. As in real etcd, the headers of this service have no revision.
fn members(context: &Context) -> Vec<pb::Member> {
    let own = pb::Member {
        id: context.store.member_id(),
        name: "default".to_owned(),
        peer_urls: own_peer_urls(context),
        client_urls: vec![context.url()],
        is_learner: false,
    };
    let mut members = context.store.with_members(|members| members.others().iter().map(message).collect::<Vec<_>>());
    members.push(own);
    members.sort_by_key(|member| member.id);
    members
}

fn own_peer_urls(context: &Context) -> Vec<String> {
    let changed = context.store.with_members(|members| members.own_peer_urls().map(<[String]>::to_vec));
    changed.unwrap_or_else(|| vec![context.url()])
}

fn message(member: &Member) -> pb::Member {
    pb::Member {
        id: member.id,
        name: String::new(),
        peer_urls: member.peer_urls.clone(),
        client_urls: Vec::new(),
        is_learner: member.is_learner,
    }
}
