//! Users, roles and permissions, and the tokens of users that logged in.
//!
//! Nothing here reads a clock or hashes a password: callers pass the current time and hashes.

mod permissions;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use chrono::{DateTime, Utc};

use super::error::EtcdError;
pub(super) use permissions::{Access, Permission, PermissionKind};
use tokens::Tokens;

/// The user that must exist before authentication is enabled, and the role that permits everything.
const ROOT: &str = "root";

/// A user's password.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
pub(super) enum Password {
    /// Hash in the format of bcrypt.
    Hash(String),
    /// The user cannot log in with a password.
    None,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct User {
    password: Password,
    roles: BTreeSet<String>,
}

/// Users, roles and tokens of a store.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct Auth {
    is_enabled: bool,
    /// Counts the changes of users and roles.
    revision: u64,
    users: BTreeMap<String, User>,
    roles: BTreeMap<String, Vec<Permission>>,
    tokens: Tokens,
}

/// Shows no hash and no token.
impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auth").field("is_enabled", &self.is_enabled).field("revision", &self.revision).finish()
    }
}

impl Auth {
    pub(super) fn new() -> Self {
        Self {
            is_enabled: false,
            revision: 1,
            users: BTreeMap::new(),
            roles: BTreeMap::new(),
            tokens: Tokens::default(),
        }
    }

    /// Moves the expiries of all tokens by the difference of two clocks.
    pub(super) fn rebase(&mut self, by: chrono::TimeDelta) {
        self.tokens.rebase(by);
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Enables authentication. The user root must exist and have the role root.
    pub(super) fn enable(&mut self) -> Result<(), EtcdError> {
        if self.is_enabled {
            return Ok(());
        }
        let root = self.users.get(ROOT).ok_or(EtcdError::RootUserMissing)?;
        if !root.roles.contains(ROOT) {
            return Err(EtcdError::RootRoleMissing);
        }
        self.is_enabled = true;
        Ok(())
    }

    /// Disables authentication and forgets all tokens.
    pub(super) fn disable(&mut self) {
        if std::mem::take(&mut self.is_enabled) {
            self.tokens = Tokens::default();
            self.revision += 1;
        }
    }

    /// The hash of a user's password, to be compared by the caller.
    pub(super) fn password_hash(&self, user: &str) -> Result<String, EtcdError> {
        if !self.is_enabled {
            return Err(EtcdError::AuthNotEnabled);
        }
        match &self.users.get(user).ok_or(EtcdError::AuthFailed)?.password {
            Password::Hash(hash) => Ok(hash.clone()),
            Password::None => Err(EtcdError::PasswordForPasswordless),
        }
    }

    /// Accepts `token` for a user whose password has been verified.
    pub(super) fn log_in(&mut self, user: &str, token: String, now: DateTime<Utc>) -> Result<(), EtcdError> {
        if !self.is_enabled {
            return Err(EtcdError::AuthNotEnabled);
        }
        if !self.users.contains_key(user) {
            return Err(EtcdError::AuthFailed);
        }
        self.tokens.insert(token, user, now);
        Ok(())
    }

    /// Forgets all tokens, as if they had expired.
    pub(super) fn forget_tokens(&mut self) {
        self.tokens = Tokens::default();
    }

    /// The user that a token belongs to. A use of the token renews it.
    pub(super) fn user_of_token(
        &mut self,
        token: Option<&str>,
        now: DateTime<Utc>,
    ) -> Result<Option<String>, EtcdError> {
        let Some(token) = token else { return Ok(None) };
        self.tokens.renew(token, now).map(Some).ok_or(EtcdError::InvalidToken)
    }

    /// Fails unless the user has all these permissions.
    pub(super) fn permit(&self, user: Option<&str>, accesses: &[Access<'_>]) -> Result<(), EtcdError> {
        if !self.is_enabled || accesses.is_empty() {
            return Ok(());
        }
        let user = self.users.get(user.ok_or(EtcdError::UserEmpty)?).ok_or(EtcdError::PermissionDenied)?;
        if user.roles.contains(ROOT) {
            return Ok(());
        }
        let permissions: Vec<_> = user.roles.iter().filter_map(|role| self.roles.get(role)).flatten().collect();
        let is_permitted = accesses.iter().all(|access| access.is_covered(&permissions));
        if is_permitted { Ok(()) } else { Err(EtcdError::PermissionDenied) }
    }

    /// Fails unless the user has the role root.
    pub(super) fn permit_admin(&self, user: Option<&str>) -> Result<(), EtcdError> {
        if !self.is_enabled {
            return Ok(());
        }
        let user = self.users.get(user.ok_or(EtcdError::UserEmpty)?).ok_or(EtcdError::UserNotFound)?;
        if user.roles.contains(ROOT) { Ok(()) } else { Err(EtcdError::PermissionDenied) }
    }

    /// Fails unless the user has the role root or is the user that is read.
    pub(super) fn permit_user(&self, user: Option<&str>, read: &str) -> Result<(), EtcdError> {
        self.permit_admin(user).or_else(|error| if user == Some(read) { Ok(()) } else { Err(error) })
    }

    /// Fails unless the user has the role root or the role that is read.
    pub(super) fn permit_role(&self, user: Option<&str>, read: &str) -> Result<(), EtcdError> {
        let has_role = user.and_then(|user| self.users.get(user)).is_some_and(|user| user.roles.contains(read));
        self.permit_admin(user).or_else(|error| if has_role { Ok(()) } else { Err(error) })
    }

    pub(super) fn user_add(&mut self, name: &str, password: Password) -> Result<(), EtcdError> {
        if name.is_empty() {
            return Err(EtcdError::UserEmpty);
        }
        if self.users.contains_key(name) {
            return Err(EtcdError::UserExists);
        }
        self.users.insert(name.to_owned(), User { password, roles: BTreeSet::new() });
        self.revision += 1;
        Ok(())
    }

    pub(super) fn user_delete(&mut self, name: &str) -> Result<(), EtcdError> {
        if self.is_enabled && name == ROOT {
            return Err(EtcdError::InvalidAuthManagement);
        }
        self.users.remove(name).ok_or(EtcdError::UserNotFound)?;
        self.tokens.remove_user(name);
        self.revision += 1;
        Ok(())
    }

    /// Replaces the password of a user, unless the user has none, and forgets the user's tokens.
    pub(super) fn user_change_password(&mut self, name: &str, hash: String) -> Result<(), EtcdError> {
        let user = self.users.get_mut(name).ok_or(EtcdError::UserNotFound)?;
        if let Password::Hash(old) = &mut user.password {
            *old = hash;
        }
        self.tokens.remove_user(name);
        self.revision += 1;
        Ok(())
    }

    pub(super) fn user_roles(&self, name: &str) -> Result<Vec<String>, EtcdError> {
        let user = self.users.get(name).ok_or(EtcdError::UserNotFound)?;
        Ok(user.roles.iter().cloned().collect())
    }

    /// All users with their password hashes, if they have one, and roles.
    pub(super) fn users(&self) -> impl Iterator<Item = (&str, Option<&str>, Vec<String>)> {
        self.users.iter().map(|(name, user)| {
            let hash = match &user.password {
                Password::Hash(hash) => Some(hash.as_str()),
                Password::None => None,
            };
            (name.as_str(), hash, user.roles.iter().cloned().collect())
        })
    }

    /// All roles with their permissions.
    pub(super) fn roles(&self) -> impl Iterator<Item = (&str, &[Permission])> {
        self.roles.iter().map(|(name, permissions)| (name.as_str(), permissions.as_slice()))
    }

    pub(super) fn user_names(&self) -> Vec<String> {
        self.users.keys().cloned().collect()
    }

    /// Gives a role to a user. The role root need not exist.
    pub(super) fn user_grant_role(&mut self, name: &str, role: &str) -> Result<(), EtcdError> {
        let user = self.users.get_mut(name).ok_or(EtcdError::UserNotFound)?;
        if role != ROOT && !self.roles.contains_key(role) {
            return Err(EtcdError::RoleNotFound);
        }
        self.revision += u64::from(user.roles.insert(role.to_owned()));
        Ok(())
    }

    pub(super) fn user_revoke_role(&mut self, name: &str, role: &str) -> Result<(), EtcdError> {
        if self.is_enabled && name == ROOT && role == ROOT {
            return Err(EtcdError::InvalidAuthManagement);
        }
        let user = self.users.get_mut(name).ok_or(EtcdError::UserNotFound)?;
        if !user.roles.remove(role) {
            return Err(EtcdError::RoleNotGranted);
        }
        self.revision += 1;
        Ok(())
    }

    pub(super) fn role_add(&mut self, name: &str) -> Result<(), EtcdError> {
        if name.is_empty() {
            return Err(EtcdError::RoleEmpty);
        }
        if self.roles.contains_key(name) {
            return Err(EtcdError::RoleExists);
        }
        self.roles.insert(name.to_owned(), Vec::new());
        self.revision += 1;
        Ok(())
    }

    /// Deletes a role and takes it from all users.
    pub(super) fn role_delete(&mut self, name: &str) -> Result<(), EtcdError> {
        if self.is_enabled && name == ROOT {
            return Err(EtcdError::InvalidAuthManagement);
        }
        self.roles.remove(name).ok_or(EtcdError::RoleNotFound)?;
        for user in self.users.values_mut() {
            user.roles.remove(name);
        }
        self.revision += 1;
        Ok(())
    }

    pub(super) fn role_names(&self) -> Vec<String> {
        self.roles.keys().cloned().collect()
    }

    /// The permissions of a role, by key. The role root has all keys.
    pub(super) fn role_permissions(&self, name: &str) -> Result<Vec<Permission>, EtcdError> {
        let permissions = self.roles.get(name).ok_or(EtcdError::RoleNotFound)?;
        Ok(if name == ROOT { vec![Permission::everything()] } else { permissions.clone() })
    }

    /// Gives a permission to a role, or changes its kind if the role has one for the same range.
    pub(super) fn role_grant(&mut self, name: &str, permission: Option<Permission>) -> Result<(), EtcdError> {
        let granted = permission.ok_or(EtcdError::PermissionNotGiven)?;
        let permissions = self.roles.get_mut(name).ok_or(EtcdError::RoleNotFound)?;
        // As in real etcd, only the first permission of a key is replaced.
        let index = permissions.partition_point(|permission| permission.key < granted.key);
        match permissions.get_mut(index) {
            Some(found) if found.key == granted.key && found.range_end == granted.range_end => {
                found.kind = granted.kind
            }
            _ => {
                permissions.push(granted);
                permissions.sort_by(|a, b| a.key.cmp(&b.key));
            }
        }
        self.revision += 1;
        Ok(())
    }

    pub(super) fn role_revoke(&mut self, name: &str, key: &Bytes, range_end: &Bytes) -> Result<(), EtcdError> {
        let permissions = self.roles.get_mut(name).ok_or(EtcdError::RoleNotFound)?;
        let count = permissions.len();
        permissions.retain(|permission| permission.key != key || permission.range_end != range_end);
        if permissions.len() == count {
            return Err(EtcdError::PermissionNotGranted);
        }
        self.revision += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permission(kind: PermissionKind, key: &'static str, range_end: &'static str) -> Option<Permission> {
        Some(Permission { kind, key: key.into(), range_end: range_end.into() })
    }

    /// A store with the users root and ann; ann may read from `a` to `c` and write `b`.
    fn enabled() -> Auth {
        let mut auth = Auth::new();
        for user in ["root", "ann"] {
            auth.user_add(user, Password::Hash("hash".to_owned())).expect("added");
        }
        auth.user_grant_role("root", "root").expect("granted");
        auth.role_add("reader").expect("added");
        auth.role_grant("reader", permission(PermissionKind::Read, "a", "b")).expect("granted");
        auth.role_grant("reader", permission(PermissionKind::Read, "b", "c")).expect("granted");
        auth.role_grant("reader", permission(PermissionKind::Write, "b", "")).expect("granted");
        auth.user_grant_role("ann", "reader").expect("granted");
        auth.enable().expect("enabled");
        auth
    }

    #[test]
    fn adjacent_permissions_cover_one_range() {
        let auth = enabled();
        let read = |key, end| auth.permit(Some("ann"), &[Access::read(key, end)]);
        assert_eq!(read(b"a", b"c"), Ok(()));
        assert_eq!(read(b"a", b"d"), Err(EtcdError::PermissionDenied));
        assert_eq!(read(b"a", b"\0"), Err(EtcdError::PermissionDenied));
        assert_eq!(read(b"bb", b""), Ok(()));
    }

    #[test]
    fn single_keys_have_their_own_permissions() {
        let auth = enabled();
        let write = |key| auth.permit(Some("ann"), &[Access::write(key, b"")]);
        assert_eq!(write(b"b"), Ok(()));
        assert_eq!(write(b"bb"), Err(EtcdError::PermissionDenied));
    }

    #[test]
    fn tokens_expire_unless_used() {
        let mut auth = enabled();
        let start = DateTime::UNIX_EPOCH;
        let minutes = |minutes| start + chrono::TimeDelta::minutes(minutes);
        auth.log_in("ann", "t".to_owned(), start).expect("logged in");
        for minute in [4, 8, 12] {
            assert_eq!(auth.user_of_token(Some("t"), minutes(minute)), Ok(Some("ann".to_owned())));
        }
        assert_eq!(auth.user_of_token(Some("t"), minutes(18)), Err(EtcdError::InvalidToken));
    }

    #[test]
    fn changed_password_invalidates_tokens() {
        let mut auth = enabled();
        auth.log_in("ann", "t".to_owned(), DateTime::UNIX_EPOCH).expect("logged in");
        auth.user_change_password("ann", "other".to_owned()).expect("changed");
        assert_eq!(auth.user_of_token(Some("t"), DateTime::UNIX_EPOCH), Err(EtcdError::InvalidToken));
    }
}
