//! Users, groups, and the permissions of both on labs.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde_json::{Map, Value, json};

use super::error::CmlError;
use super::fields::{self, Field, required, text, texts};
use super::labs::format_time;
use super::release::Release;
use super::server::ADMIN_ID;

/// Maximum number of users, and of groups.
const MAX_USERS: usize = 1000;

/// Permission on a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(super) enum Permission {
    Admin,
    Edit,
    Exec,
    View,
}

impl Permission {
    const ALL: [Self; 4] = [Self::Admin, Self::Edit, Self::Exec, Self::View];

    fn name(self) -> &'static str {
        match self {
            Self::Admin => "lab_admin",
            Self::Edit => "lab_edit",
            Self::Exec => "lab_exec",
            Self::View => "lab_view",
        }
    }

    fn parse(name: &str) -> Result<Self, CmlError> {
        Self::ALL.into_iter().find(|permission| permission.name() == name).ok_or_else(|| {
            let message = format!("Invalid permission {name}: expected lab_admin, lab_edit, lab_exec or lab_view.");
            CmlError::bad_request(message)
        })
    }
}

type Permissions = BTreeSet<Permission>;

fn names(permissions: &Permissions) -> Vec<&'static str> {
    permissions.iter().map(|permission| permission.name()).collect()
}

/// Holder of permissions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(super) enum Principal {
    User(String),
    Group(String),
}

#[derive(serde::Serialize, serde::Deserialize)]
struct User {
    username: String,
    password: String,
    /// Fields that are returned as they were given.
    profile: Map<String, Value>,
    admin: Value,
    opt_in: OptIn,
    created: DateTime<Utc>,
    modified: DateTime<Utc>,
    last_login: Option<DateTime<Utc>>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Group {
    name: String,
    description: String,
    members: BTreeSet<String>,
    created: DateTime<Utc>,
    modified: DateTime<Utc>,
}

/// Whether usage data may be collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub(super) enum OptIn {
    #[default]
    Unset,
    Accepted,
    Declined,
}

impl OptIn {
    /// A boolean or null before release 2.10, a word since.
    pub(super) fn to_json(self, release: Release) -> Value {
        match self {
            Self::Unset if release >= Release::V2_10 => "unset".into(),
            Self::Accepted if release >= Release::V2_10 => "accepted".into(),
            Self::Declined if release >= Release::V2_10 => "declined".into(),
            Self::Unset => Value::Null,
            Self::Accepted => true.into(),
            Self::Declined => false.into(),
        }
    }

    /// Words are accepted in any case: `virl2_client` sends both.
    pub(super) fn parse(value: &Value) -> Result<Self, CmlError> {
        let word = value.as_str().map(str::to_ascii_lowercase);
        match (value, word.as_deref()) {
            (Value::Null, _) | (_, Some("unset")) => Ok(Self::Unset),
            (Value::Bool(true), _) | (_, Some("accepted")) => Ok(Self::Accepted),
            (Value::Bool(false), _) | (_, Some("declined")) => Ok(Self::Declined),
            _ => Err(CmlError::bad_request("Invalid value of opt_in: expected accepted, declined or unset.")),
        }
    }
}

/// Sender of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Caller {
    /// Id of the user.
    pub(super) id: String,
    /// Role of the user.
    pub(super) role: Role,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Role {
    Admin,
    #[default]
    User,
}

/// Users and groups of one server, and their permissions on labs.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct Users {
    users: BTreeMap<String, User>,
    groups: BTreeMap<String, Group>,
    #[serde(with = "crate::serial::pairs")]
    grants: BTreeMap<(String, Principal), Permissions>,
}

const USER_FIELDS: &[Field] = &[
    Field::text("username", 64),
    Field::any("password"),
    Field::text("fullname", 128),
    Field::text("description", 4096),
    Field::text("email", 128).or_null(),
    Field::flag("admin"),
    Field::texts("groups"),
    Field::objects("associations").since(Release::V2_9),
    Field::text("resource_pool", 64).or_null(),
    Field::any("opt_in").or_null(),
    Field::text("tour_version", 128),
    Field::text("pubkey", 4300),
];

const PROFILE: [(&str, &str); 4] = [("fullname", ""), ("description", ""), ("email", ""), ("tour_version", "")];

const GROUP_FIELDS: &[Field] = &[
    Field::text("name", 64),
    Field::text("description", 4096),
    Field::texts("members"),
    Field::objects("labs").before(Release::V2_10),
    Field::objects("associations").since(Release::V2_9),
];

/// The admin that every server has.
impl Users {
    pub(super) fn new(username: String, password: String, now: DateTime<Utc>) -> Self {
        let admin = User {
            username,
            password,
            profile: Map::new(),
            admin: true.into(),
            opt_in: OptIn::Unset,
            created: now,
            modified: now,
            last_login: None,
        };
        let users = BTreeMap::from([(ADMIN_ID.to_owned(), admin)]);
        Self { users, groups: BTreeMap::new(), grants: BTreeMap::new() }
    }

    /// Checks a password and returns the id of the user.
    pub(super) fn log_in(&mut self, username: &str, password: &str, now: DateTime<Utc>) -> Result<String, CmlError> {
        let found = self.users.iter_mut().find(|(_, user)| user.username == username && user.password == password);
        let (id, user) = found.ok_or_else(CmlError::forbidden)?;
        user.last_login = Some(now);
        Ok(id.clone())
    }

    /// The user behind a token; 401 if it was deleted.
    pub(super) fn caller(&self, id: &str) -> Result<Caller, CmlError> {
        let user = self.users.get(id).ok_or_else(CmlError::unauthorized)?;
        let role = if user.admin == true { Role::Admin } else { Role::User };
        Ok(Caller { id: id.to_owned(), role })
    }

    /// Name and full name of a user.
    pub(super) fn names_of(&self, id: &str) -> Option<(&str, &str)> {
        let user = self.users.get(id)?;
        Some((&user.username, user.profile.get("fullname").and_then(Value::as_str).unwrap_or_default()))
    }

    pub(super) fn user_ids(&self) -> impl Iterator<Item = &String> {
        self.users.keys()
    }

    pub(super) fn group_ids(&self) -> impl Iterator<Item = &String> {
        self.groups.keys()
    }

    fn user(&self, id: &str) -> Result<&User, CmlError> {
        self.users.get(id).ok_or_else(|| CmlError::not_found("User", id))
    }

    fn group(&self, id: &str) -> Result<&Group, CmlError> {
        self.groups.get(id).ok_or_else(|| CmlError::not_found("Group", id))
    }

    /// Id of the user of a name.
    pub(super) fn user_id(&self, username: &str) -> Result<&String, CmlError> {
        let found = self.users.iter().find(|(_, user)| user.username == username);
        found.map(|(id, _)| id).ok_or_else(|| CmlError::not_found("User", username))
    }

    /// Id of the group of a name.
    pub(super) fn group_id(&self, name: &str) -> Result<&String, CmlError> {
        let found = self.groups.iter().find(|(_, group)| group.name == name);
        found.map(|(id, _)| id).ok_or_else(|| CmlError::not_found("Group", name))
    }

    /// Ids of the groups of a user.
    pub(super) fn groups_of(&self, user: &str) -> Vec<&String> {
        self.groups.iter().filter(|(_, group)| group.members.contains(user)).map(|(id, _)| id).collect()
    }

    /// Ids of the members of a group.
    pub(super) fn members(&self, group: &str) -> Result<&BTreeSet<String>, CmlError> {
        self.group(group).map(|group| &group.members)
    }

    /// A user as JSON; `labs` are the ids of the labs it owns.
    pub(super) fn user_json(&self, id: &str, labs: &[&String], release: Release) -> Result<Value, CmlError> {
        let user = self.user(id)?;
        let mut shown = json!({
            "id": id, "username": user.username, "admin": user.admin, "groups": self.groups_of(id), "labs": labs,
            "created": format_time(user.created), "modified": format_time(user.modified), "directory_dn": null,
            "opt_in": user.opt_in.to_json(release), "pubkey_info": "",
            "resource_pool": user.profile.get("resource_pool").cloned().unwrap_or_default(),
        });
        for (field, default) in PROFILE {
            shown[field] = user.profile.get(field).cloned().unwrap_or_else(|| default.into());
        }
        if release >= Release::V2_9 {
            shown["associations"] = self.associations(&Principal::User(id.to_owned()));
        }
        if release >= Release::V2_10 {
            shown["auth_source"] = "local".into();
            shown["last_login"] = user.last_login.map(format_time).into();
        }
        Ok(shown)
    }

    /// Creates a user.
    pub(super) fn create_user(
        &mut self,
        id: String,
        body: &Map<String, Value>,
        release: Release,
        now: DateTime<Utc>,
    ) -> Result<(), CmlError> {
        fields::check(body, USER_FIELDS, release)?;
        if self.users.len() >= MAX_USERS {
            return Err(CmlError::bad_request(format!("There are at most {MAX_USERS} users.")));
        }
        let username = required(body, "username")?.to_owned();
        let password = required(body, "password")?.to_owned();
        self.check_username(&username, None)?;
        let change = self.user_change(body)?;
        let user = User {
            username,
            password,
            profile: Map::new(),
            admin: false.into(),
            opt_in: OptIn::Unset,
            created: now,
            modified: now,
            last_login: None,
        };
        self.users.insert(id.clone(), user);
        self.apply_user_change(&id, body, change, now);
        Ok(())
    }

    /// Changes a user. Users change themselves, except for what only an admin may change; a password of one's own needs
    /// the old one.
    pub(super) fn update_user(
        &mut self,
        id: &str,
        body: &Map<String, Value>,
        caller: &Caller,
        release: Release,
        now: DateTime<Utc>,
    ) -> Result<(), CmlError> {
        fields::check(body, USER_FIELDS, release)?;
        let user = self.user(id)?;
        let is_own = caller.id == id;
        let reserved = ["username", "admin", "groups", "associations", "resource_pool"];
        if caller.role != Role::Admin && (!is_own || reserved.iter().any(|field| body.contains_key(*field))) {
            return Err(CmlError::new(403, "User does not have admin rights."));
        }
        if is_own && body.get("admin").is_some_and(|admin| *admin == false) {
            return Err(CmlError::bad_request("Users cannot take admin rights from themselves."));
        }
        let password = match body.get("password") {
            None => None,
            Some(Value::Object(password)) => {
                if is_own && password.get("old_password").and_then(Value::as_str) != Some(&user.password) {
                    return Err(CmlError::new(403, "The old password is wrong."));
                }
                Some(required(password, "new_password")?.to_owned())
            }
            Some(_) => return Err(CmlError::bad_request("password needs old_password and new_password.")),
        };
        let username = text(body, "username").filter(|name| !name.is_empty());
        if let Some(username) = &username {
            self.check_username(username, Some(id))?;
        }
        let change = self.user_change(body)?;
        if let Some(user) = self.users.get_mut(id) {
            user.password = password.unwrap_or_else(|| std::mem::take(&mut user.password));
            user.username = username.unwrap_or_else(|| std::mem::take(&mut user.username));
        }
        self.apply_user_change(id, body, change, now);
        Ok(())
    }

    /// Deletes a user who owns no labs. The caller and the built-in admin stay.
    pub(super) fn delete_user(&mut self, id: &str, labs: usize, caller: &Caller) -> Result<(), CmlError> {
        self.user(id)?;
        if id == ADMIN_ID || caller.id == id {
            return Err(CmlError::bad_request("Users cannot delete themselves or the built-in admin."));
        }
        if labs > 0 {
            return Err(CmlError::bad_request(format!("User owns labs: {id}")));
        }
        self.users.remove(id);
        for group in self.groups.values_mut() {
            group.members.remove(id);
        }
        self.revoke(&Principal::User(id.to_owned()));
        Ok(())
    }

    fn check_username(&self, username: &str, own: Option<&str>) -> Result<(), CmlError> {
        match self.users.iter().find(|(_, user)| user.username == username) {
            Some((id, _)) if Some(id.as_str()) != own => {
                Err(CmlError::conflict(format!("User already exists: {username}")))
            }
            _ => Ok(()),
        }
    }

    /// Validates what a body changes beside the profile.
    fn user_change(&self, body: &Map<String, Value>) -> Result<UserChange, CmlError> {
        // `system_information` reports the same with `allow_ssh_pubkey_auth`.
        if body.get("pubkey").is_some_and(|pubkey| *pubkey != "") {
            return Err(CmlError::bad_request("SSH public keys are not enabled on this server."));
        }
        let groups = body.contains_key("groups").then(|| texts(body.get("groups")));
        for group in groups.iter().flatten() {
            self.group(group)?;
        }
        let associations = body.get("associations").map(parse_associations).transpose()?;
        let opt_in = body.get("opt_in").map(OptIn::parse).transpose()?;
        Ok(UserChange { groups, associations, opt_in })
    }

    fn apply_user_change(&mut self, id: &str, body: &Map<String, Value>, change: UserChange, now: DateTime<Utc>) {
        if let Some(user) = self.users.get_mut(id) {
            for field in PROFILE.iter().map(|(field, _)| *field).chain(["resource_pool"]) {
                if let Some(value) = body.get(field) {
                    user.profile.insert(field.to_owned(), value.clone());
                }
            }
            if let Some(admin) = body.get("admin") {
                user.admin = admin.clone();
            }
            user.opt_in = change.opt_in.unwrap_or(user.opt_in);
            user.modified = now;
        }
        if let Some(groups) = change.groups {
            for (group, found) in &mut self.groups {
                if groups.contains(group) {
                    found.members.insert(id.to_owned());
                } else {
                    found.members.remove(id);
                }
            }
        }
        if let Some(associations) = change.associations {
            self.grant(&Principal::User(id.to_owned()), associations);
        }
    }

    /// Records whether a user accepts the collection of usage data.
    pub(super) fn set_opt_in(&mut self, id: &str, opt_in: OptIn) {
        if let Some(user) = self.users.get_mut(id) {
            user.opt_in = opt_in;
        }
    }

    pub(super) fn opt_in(&self, id: &str) -> OptIn {
        self.users.get(id).map(|user| user.opt_in).unwrap_or_default()
    }
}

/// Validated change of a user.
struct UserChange {
    groups: Option<Vec<String>>,
    associations: Option<BTreeMap<String, Permissions>>,
    opt_in: Option<OptIn>,
}

impl Users {
    /// A group as JSON.
    pub(super) fn group_json(&self, id: &str, release: Release) -> Result<Value, CmlError> {
        let group = self.group(id)?;
        let mut shown = json!({
            "id": id, "name": group.name, "description": group.description, "members": group.members,
            "created": format_time(group.created), "modified": format_time(group.modified),
            "directory_dn": null, "directory_exists": null,
        });
        if release < Release::V2_10 {
            shown["labs"] = self.labs_of_group(id);
        }
        if release >= Release::V2_9 {
            shown["associations"] = self.associations(&Principal::Group(id.to_owned()));
        }
        Ok(shown)
    }

    /// Labs of a group with `read_only` or `read_write`, as before release 2.10.
    pub(super) fn labs_of_group(&self, group: &str) -> Value {
        let principal = Principal::Group(group.to_owned());
        let grants = self.grants.iter().filter(|((_, holder), _)| *holder == principal);
        grants.map(|((lab, _), permissions)| json!({"id": lab, "permission": legacy(permissions)})).collect()
    }

    /// Groups of a lab with `read_only` or `read_write`, as before release 2.10.
    pub(super) fn groups_of_lab(&self, lab: &str) -> Value {
        let groups = self.grants.iter().filter_map(|((granted, holder), permissions)| match holder {
            Principal::Group(id) if granted == lab => {
                let name = self.groups.get(id).map(|group| &group.name);
                Some(json!({"id": id, "name": name, "permission": legacy(permissions)}))
            }
            _ => None,
        });
        groups.collect()
    }

    /// Creates a group.
    pub(super) fn create_group(
        &mut self,
        id: String,
        body: &Map<String, Value>,
        release: Release,
        now: DateTime<Utc>,
    ) -> Result<(), CmlError> {
        if self.groups.len() >= MAX_USERS {
            return Err(CmlError::bad_request(format!("There are at most {MAX_USERS} groups.")));
        }
        required(body, "name")?;
        let group = Group {
            name: String::new(),
            description: String::new(),
            members: BTreeSet::new(),
            created: now,
            modified: now,
        };
        self.change_group(&id, group, body, release, now)
    }

    /// Changes a group.
    pub(super) fn update_group(
        &mut self,
        id: &str,
        body: &Map<String, Value>,
        release: Release,
        now: DateTime<Utc>,
    ) -> Result<(), CmlError> {
        let Group { name, description, members, created, modified } = self.group(id)?;
        let (name, description, members) = (name.clone(), description.clone(), members.clone());
        let group = Group { name, description, members, created: *created, modified: *modified };
        self.change_group(id, group, body, release, now)
    }

    fn change_group(
        &mut self,
        id: &str,
        mut group: Group,
        body: &Map<String, Value>,
        release: Release,
        now: DateTime<Utc>,
    ) -> Result<(), CmlError> {
        fields::check(body, GROUP_FIELDS, release)?;
        if let Some(name) = text(body, "name") {
            if self.groups.iter().any(|(other, group)| other != id && group.name == name) {
                return Err(CmlError::conflict(format!("Group already exists: {name}")));
            }
            group.name = name;
        }
        group.description = text(body, "description").unwrap_or(group.description);
        if body.contains_key("members") {
            group.members = texts(body.get("members")).into_iter().collect();
            group.members.iter().try_for_each(|member| self.user(member).map(drop))?;
        }
        let grants = match (body.get("associations"), body.get("labs")) {
            (Some(associations), _) => Some(parse_associations(associations)?),
            (None, Some(labs)) => Some(parse_legacy(labs)?),
            (None, None) => None,
        };
        group.modified = now;
        self.groups.insert(id.to_owned(), group);
        if let Some(grants) = grants {
            self.grant(&Principal::Group(id.to_owned()), grants);
        }
        Ok(())
    }

    /// Deletes a group.
    pub(super) fn delete_group(&mut self, id: &str) -> Result<(), CmlError> {
        self.group(id)?;
        self.groups.remove(id);
        self.revoke(&Principal::Group(id.to_owned()));
        Ok(())
    }
}

/// Permissions on labs.
impl Users {
    /// Labs and permissions of a user or group.
    fn associations(&self, principal: &Principal) -> Value {
        let grants = self.grants.iter().filter(|((_, holder), _)| holder == principal);
        grants.map(|((lab, _), permissions)| json!({"id": lab, "permissions": names(permissions)})).collect()
    }

    /// Users and groups with permissions on a lab.
    pub(super) fn lab_associations(&self, lab: &str) -> Value {
        let mut shown = json!({"groups": [], "users": []});
        for ((granted, holder), permissions) in &self.grants {
            let (kind, id) = match holder {
                Principal::User(id) => ("users", id),
                Principal::Group(id) => ("groups", id),
            };
            if granted == lab
                && let Some(list) = shown[kind].as_array_mut()
            {
                list.push(json!({"id": id, "permissions": names(permissions)}));
            }
        }
        shown
    }

    /// Replaces the permissions of users, of groups, or of both, on a lab.
    pub(super) fn set_lab_associations(&mut self, lab: &str, body: &Value) -> Result<(), CmlError> {
        let body = body.as_object().ok_or_else(|| CmlError::bad_request("A JSON object is needed."))?;
        fields::check(body, &[Field::objects("groups"), Field::objects("users")], Release::FIRST)?;
        let groups = body.get("groups").map(parse_associations).transpose()?;
        let users = body.get("users").map(parse_associations).transpose()?;
        groups.iter().flat_map(BTreeMap::keys).try_for_each(|id| self.group(id).map(drop))?;
        users.iter().flat_map(BTreeMap::keys).try_for_each(|id| self.user(id).map(drop))?;
        self.grants.retain(|(granted, holder), _| match holder {
            _ if granted != lab => true,
            Principal::User(_) => users.is_none(),
            Principal::Group(_) => groups.is_none(),
        });
        let users = users.into_iter().flatten().map(|(id, permissions)| (Principal::User(id), permissions));
        let groups = groups.into_iter().flatten().map(|(id, permissions)| (Principal::Group(id), permissions));
        self.grants.extend(users.chain(groups).map(|(holder, permissions)| ((lab.to_owned(), holder), permissions)));
        Ok(())
    }

    /// Replaces the groups of a lab, as before release 2.10.
    pub(super) fn set_lab_groups(&mut self, lab: &str, groups: &Value) -> Result<(), CmlError> {
        let groups = parse_legacy(groups)?;
        groups.keys().try_for_each(|id| self.group(id).map(drop))?;
        self.grants.retain(|(granted, holder), _| granted != lab || matches!(holder, Principal::User(_)));
        let grants = groups.into_iter().map(|(id, permissions)| ((lab.to_owned(), Principal::Group(id)), permissions));
        self.grants.extend(grants);
        Ok(())
    }

    fn grant(&mut self, principal: &Principal, grants: BTreeMap<String, Permissions>) {
        self.revoke(principal);
        self.grants.extend(grants.into_iter().map(|(lab, permissions)| ((lab, principal.clone()), permissions)));
    }

    fn revoke(&mut self, principal: &Principal) {
        self.grants.retain(|(_, holder), _| holder != principal);
    }

    /// Drops the permissions on a lab that was deleted.
    pub(super) fn forget_lab(&mut self, lab: &str) {
        self.grants.retain(|(granted, _), _| granted != lab);
    }

    /// Drops the permissions on all labs.
    pub(super) fn forget_labs(&mut self) {
        self.grants.clear();
    }

    /// Permissions of a user on a lab. Admins and owners have all.
    fn permissions(&self, caller: &Caller, lab: &str, owner: &str) -> Permissions {
        if caller.role == Role::Admin || caller.id == owner {
            return Permission::ALL.into();
        }
        let groups = self.groups_of(&caller.id);
        let is_held = |holder: &Principal| match holder {
            Principal::User(id) => *id == caller.id,
            Principal::Group(id) => groups.contains(&id),
        };
        let held = self.grants.iter().filter(|((granted, holder), _)| granted == lab && is_held(holder));
        held.flat_map(|(_, permissions)| permissions.iter().copied()).collect()
    }

    /// Names of the permissions of a user on a lab.
    pub(super) fn effective_permissions(&self, caller: &Caller, lab: &str, owner: &str) -> Vec<&'static str> {
        names(&self.permissions(caller, lab, owner))
    }

    /// Whether the owner of a lab gave a user, or a group of the user, a permission on it.
    pub(super) fn is_shared_with(&self, caller: &Caller, lab: &str) -> bool {
        let user = Caller { id: caller.id.clone(), role: Role::User };
        !self.permissions(&user, lab, "").is_empty()
    }

    /// Whether a user has a permission on a lab.
    pub(super) fn is_permitted(&self, caller: &Caller, lab: &str, owner: &str, needed: Permission) -> bool {
        self.permissions(caller, lab, owner).contains(&needed)
    }
}

/// Parses `[{"id": …, "permissions": [...]}]`.
fn parse_associations(value: &Value) -> Result<BTreeMap<String, Permissions>, CmlError> {
    let fields_of = |item: &Value| {
        let item = item.as_object().ok_or_else(|| CmlError::bad_request("An association is a JSON object."))?;
        fields::check(item, &[Field::text("id", 64), Field::texts("permissions")], Release::FIRST)?;
        let permissions = texts(item.get("permissions"));
        let permissions = permissions.iter().map(|name| Permission::parse(name)).collect::<Result<_, _>>()?;
        Ok((required(item, "id")?.to_owned(), permissions))
    };
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter().map(fields_of).collect()
}

/// Parses `[{"id": …, "permission": "read_only"}]`.
fn parse_legacy(value: &Value) -> Result<BTreeMap<String, Permissions>, CmlError> {
    const WORDS: &[&str] = &["read_only", "read_write"];
    let fields_of = |item: &Value| {
        let item = item.as_object().ok_or_else(|| CmlError::bad_request("A permission is a JSON object."))?;
        let known = [Field::text("id", 64), Field::text("name", 64), Field::word("permission", WORDS)];
        fields::check(item, &known, Release::FIRST)?;
        let permissions = match required(item, "permission")? {
            "read_only" => [Permission::View].into(),
            _ => Permission::ALL.into(),
        };
        Ok((required(item, "id")?.to_owned(), permissions))
    };
    let items = value.as_array().ok_or_else(|| CmlError::bad_request("A list of permissions is needed."))?;
    items.iter().map(fields_of).collect()
}

/// The permission as it was named before release 2.9: `read_write` if the lab may be changed.
fn legacy(permissions: &Permissions) -> &'static str {
    if permissions.contains(&Permission::Edit) { "read_write" } else { "read_only" }
}
