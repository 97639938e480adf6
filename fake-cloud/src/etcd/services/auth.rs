//! The service `etcdserverpb.Auth`: users, roles, permissions and logins.

use tonic::Status;

use super::super::auth::{Auth, Password, Permission, PermissionKind};
use super::super::error::EtcdError;
use super::super::proto::etcdserverpb::{self as pb, ResponseHeader};
use super::super::store::Caller;
use super::Context;

/// Cost of hashing a password: the lowest there is. Passwords are kept in memory only, and tests log in often.
const HASH_COST: u32 = 4;
/// Letters at the beginning of a token.
const TOKEN_LETTERS: usize = 16;

type Header = Option<ResponseHeader>;

/// Runs a change or a read of users and roles for an administrator, and returns the header of its response.
fn as_admin<R>(
    context: &Context,
    caller: &Caller,
    work: impl FnOnce(&mut Auth) -> Result<R, EtcdError>,
) -> Result<(Header, R), Status> {
    let result = context.store.with_auth(caller, |auth, user| {
        auth.permit_admin(user)?;
        work(auth)
    })?;
    Ok((header(context), result))
}

fn header(context: &Context) -> Header {
    context.header(context.store.revision())
}

pub(super) fn enable(context: &Context, caller: &Caller) -> Result<pb::AuthEnableResponse, Status> {
    let (header, ()) = as_admin(context, caller, Auth::enable)?;
    Ok(pb::AuthEnableResponse { header })
}

pub(super) fn disable(context: &Context, caller: &Caller) -> Result<pb::AuthDisableResponse, Status> {
    let (header, ()) = as_admin(context, caller, |auth| {
        auth.disable();
        Ok(())
    })?;
    Ok(pb::AuthDisableResponse { header })
}

pub(super) fn status(context: &Context, caller: &Caller) -> Result<pb::AuthStatusResponse, Status> {
    let (header, (enabled, auth_revision)) =
        as_admin(context, caller, |auth| Ok((auth.is_enabled(), auth.revision())))?;
    Ok(pb::AuthStatusResponse { header, enabled, auth_revision })
}

/// Verifies a password and returns a new token.
pub(super) async fn authenticate(
    context: &Context,
    request: pb::AuthenticateRequest,
) -> Result<pb::AuthenticateResponse, Status> {
    let pb::AuthenticateRequest { name, password } = request;
    let hash = context.store.with_auth_unchecked(|auth, _| auth.password_hash(&name))?;
    let is_right = blocking(move || bcrypt::verify(password, &hash).unwrap_or(false)).await?;
    if !is_right {
        return Err(EtcdError::AuthFailed.into());
    }
    let revision = context.store.revision();
    let token = format!("{}.{}", context.store.random_letters(TOKEN_LETTERS), context.raft_index(revision));
    context.store.with_auth_unchecked(|auth, now| auth.log_in(&name, token.clone(), now))?;
    Ok(pb::AuthenticateResponse { header: context.header(revision), token })
}

pub(super) async fn user_add(
    context: &Context,
    caller: &Caller,
    request: pb::AuthUserAddRequest,
) -> Result<pb::AuthUserAddResponse, Status> {
    let pb::AuthUserAddRequest { name, password, options, hashed_password: _ } = request;
    let password = if options.is_some_and(|options| options.no_password) {
        Password::None
    } else {
        Password::Hash(hash(password).await?)
    };
    let (header, ()) = as_admin(context, caller, |auth| auth.user_add(&name, password))?;
    Ok(pb::AuthUserAddResponse { header })
}

pub(super) fn user_get(
    context: &Context,
    caller: &Caller,
    request: &pb::AuthUserGetRequest,
) -> Result<pb::AuthUserGetResponse, Status> {
    let roles = context.store.with_auth(caller, |auth, user| {
        auth.permit_user(user, &request.name)?;
        auth.user_roles(&request.name)
    })?;
    Ok(pb::AuthUserGetResponse { header: header(context), roles })
}

pub(super) fn user_list(context: &Context, caller: &Caller) -> Result<pb::AuthUserListResponse, Status> {
    let (header, users) = as_admin(context, caller, |auth| Ok(auth.user_names()))?;
    Ok(pb::AuthUserListResponse { header, users })
}

pub(super) fn user_delete(
    context: &Context,
    caller: &Caller,
    request: &pb::AuthUserDeleteRequest,
) -> Result<pb::AuthUserDeleteResponse, Status> {
    let (header, ()) = as_admin(context, caller, |auth| auth.user_delete(&request.name))?;
    Ok(pb::AuthUserDeleteResponse { header })
}

/// Changes a password. A client may send its hash instead, in base64.
pub(super) async fn user_change_password(
    context: &Context,
    caller: &Caller,
    request: pb::AuthUserChangePasswordRequest,
) -> Result<pb::AuthUserChangePasswordResponse, Status> {
    let pb::AuthUserChangePasswordRequest { name, password, hashed_password } = request;
    let hashed = if password.is_empty() {
        use base64::Engine as _;
        let decoded = base64::engine::general_purpose::STANDARD.decode(hashed_password).unwrap_or_default();
        String::from_utf8(decoded).unwrap_or_default()
    } else {
        hash(password).await?
    };
    let (header, ()) = as_admin(context, caller, |auth| auth.user_change_password(&name, hashed))?;
    Ok(pb::AuthUserChangePasswordResponse { header })
}

pub(super) fn user_grant_role(
    context: &Context,
    caller: &Caller,
    request: &pb::AuthUserGrantRoleRequest,
) -> Result<pb::AuthUserGrantRoleResponse, Status> {
    let (header, ()) = as_admin(context, caller, |auth| auth.user_grant_role(&request.user, &request.role))?;
    Ok(pb::AuthUserGrantRoleResponse { header })
}

pub(super) fn user_revoke_role(
    context: &Context,
    caller: &Caller,
    request: &pb::AuthUserRevokeRoleRequest,
) -> Result<pb::AuthUserRevokeRoleResponse, Status> {
    let (header, ()) = as_admin(context, caller, |auth| auth.user_revoke_role(&request.name, &request.role))?;
    Ok(pb::AuthUserRevokeRoleResponse { header })
}

pub(super) fn role_add(
    context: &Context,
    caller: &Caller,
    request: &pb::AuthRoleAddRequest,
) -> Result<pb::AuthRoleAddResponse, Status> {
    let (header, ()) = as_admin(context, caller, |auth| auth.role_add(&request.name))?;
    Ok(pb::AuthRoleAddResponse { header })
}

pub(super) fn role_get(
    context: &Context,
    caller: &Caller,
    request: &pb::AuthRoleGetRequest,
) -> Result<pb::AuthRoleGetResponse, Status> {
    let permissions = context.store.with_auth(caller, |auth, user| {
        auth.permit_role(user, &request.role)?;
        auth.role_permissions(&request.role)
    })?;
    let message = |permission: Permission| pb::Permission {
        kind: permission.kind.number(),
        key: permission.key,
        range_end: permission.range_end,
    };
    Ok(pb::AuthRoleGetResponse { header: header(context), perm: permissions.into_iter().map(message).collect() })
}

pub(super) fn role_list(context: &Context, caller: &Caller) -> Result<pb::AuthRoleListResponse, Status> {
    let (header, roles) = as_admin(context, caller, |auth| Ok(auth.role_names()))?;
    Ok(pb::AuthRoleListResponse { header, roles })
}

pub(super) fn role_delete(
    context: &Context,
    caller: &Caller,
    request: &pb::AuthRoleDeleteRequest,
) -> Result<pb::AuthRoleDeleteResponse, Status> {
    let (header, ()) = as_admin(context, caller, |auth| auth.role_delete(&request.role))?;
    Ok(pb::AuthRoleDeleteResponse { header })
}

pub(super) fn role_grant_permission(
    context: &Context,
    caller: &Caller,
    request: &pb::AuthRoleGrantPermissionRequest,
) -> Result<pb::AuthRoleGrantPermissionResponse, Status> {
    let permission = request.perm.as_ref().map(|permission| Permission {
        kind: PermissionKind::from_number(permission.kind),
        key: permission.key.clone(),
        range_end: permission.range_end.clone(),
    });
    let (header, ()) = as_admin(context, caller, |auth| auth.role_grant(&request.name, permission))?;
    Ok(pb::AuthRoleGrantPermissionResponse { header })
}

pub(super) fn role_revoke_permission(
    context: &Context,
    caller: &Caller,
    request: &pb::AuthRoleRevokePermissionRequest,
) -> Result<pb::AuthRoleRevokePermissionResponse, Status> {
    let (header, ()) =
        as_admin(context, caller, |auth| auth.role_revoke(&request.role, &request.key, &request.range_end))?;
    Ok(pb::AuthRoleRevokePermissionResponse { header })
}

async fn hash(password: String) -> Result<String, Status> {
    let hashed = blocking(move || bcrypt::hash(password, HASH_COST)).await?;
    hashed.map_err(|error| Status::unknown(error.to_string()))
}

/// Runs the work of hashing, which takes milliseconds, without blocking other requests.
async fn blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, Status> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Status::internal(error.to_string()))
}
