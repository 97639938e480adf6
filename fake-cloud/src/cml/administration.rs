//! Settings of the system: notices, maintenance, external connectors, resource pools, repositories of labs.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::error::CmlError;
use super::fields::{self, Field, required, texts};
use super::labs::derived_id;
use super::release::Release;
use super::users::Users;

/// Maximum number of notices, of resource pools and of repositories.
const MAX_ITEMS: usize = 1000;

/// Settings of one server.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct Administration {
    notices: BTreeMap<String, Map<String, Value>>,
    pools: BTreeMap<String, Map<String, Value>>,
    repositories: BTreeMap<String, Map<String, Value>>,
    connectors: BTreeMap<String, Value>,
    maintenance: bool,
    maintenance_notice: Option<String>,
    session_timeout: u32,
    /// State in which a new compute host begins.
    new_host_state: String,
    /// State of the only compute host.
    pub(super) host_state: String,
}

const ADMISSION_STATES: &[&str] = &["UNREGISTERED", "REGISTERED", "ONLINE", "READY"];

const NOTICE_FIELDS: &[Field] = &[
    Field::word("level", &["INFO", "SUCCESS", "WARNING", "ERROR"]),
    Field::text("label", 128),
    Field::text("content", 8192),
    Field::flag("enabled"),
    Field::object("acknowledged"),
    Field::texts("groups"),
    Field::texts("add_groups"),
    Field::texts("del_groups"),
];

const POOL_FIELDS: &[Field] = &[
    Field::text("label", 128),
    Field::text("description", 4096).or_null(),
    Field::integer("licenses", 0, 320).or_null(),
    Field::integer("ram", 0, 33_554_432).or_null(),
    Field::integer("cpus", 0, 4096).or_null(),
    Field::integer("disk_space", 0, 32_768).or_null(),
    Field::texts("external_connectors").or_null(),
    Field::texts("users"),
    Field::flag("shared"),
    Field::text("template", 64).or_null(),
];

const CONNECTOR_FIELDS: &[Field] =
    &[Field::text("label", 128), Field::flag("protected"), Field::flag("snooped"), Field::texts("tags")];

impl Administration {
    /// Settings of a new server, with the connectors of an unchanged host.
    pub(super) fn new() -> Self {
        let connector = |(device, label, forwarding, network): (&str, &str, &str, Option<&str>)| {
            let id = derived_id(device, "external connector");
            let connector = json!({
                "id": id, "device_name": device, "label": label, "protected": false, "snooped": true,
                "tags": [label], "allowed": true,
                "operational": {
                    "forwarding": forwarding, "label": label, "exists": true, "enabled": true, "protected": false,
                    "snooped": true, "stp": false, "interface": if forwarding == "BRIDGE" { json!("ens5") } else { Value::Null },
                    "ip_networks": network.into_iter().collect::<Vec<_>>(),
                },
            });
            (id, connector)
        };
        let connectors =
            [("virbr0", "NAT", "NAT", Some("192.168.255.0/24")), ("bridge0", "System Bridge", "BRIDGE", None)];
        Self {
            notices: BTreeMap::new(),
            pools: BTreeMap::new(),
            repositories: BTreeMap::new(),
            connectors: connectors.into_iter().map(connector).collect(),
            maintenance: false,
            maintenance_notice: None,
            session_timeout: 24 * 3600,
            new_host_state: "READY".to_owned(),
            host_state: "READY".to_owned(),
        }
    }
}

fn check_room<T>(items: &BTreeMap<String, T>) -> Result<(), CmlError> {
    if items.len() < MAX_ITEMS { Ok(()) } else { Err(CmlError::bad_request(format!("There are at most {MAX_ITEMS}."))) }
}

fn with_id(id: &str, fields: &Map<String, Value>) -> Value {
    let mut shown = fields.clone();
    shown.insert("id".to_owned(), id.into());
    shown.into()
}

/// Notices and maintenance.
impl Administration {
    fn notice(&self, id: &str) -> Result<&Map<String, Value>, CmlError> {
        self.notices.get(id).ok_or_else(|| CmlError::not_found("System notice", id))
    }

    pub(super) fn notices(&self) -> Value {
        self.notices.iter().map(|(id, notice)| with_id(id, notice)).collect()
    }

    pub(super) fn notice_json(&self, id: &str) -> Result<Value, CmlError> {
        self.notice(id).map(|notice| with_id(id, notice))
    }

    /// Adds a notice for groups of users, or for all users if it names none.
    pub(super) fn add_notice(&mut self, id: String, body: Map<String, Value>) -> Result<Value, CmlError> {
        fields::check(&body, NOTICE_FIELDS, Release::FIRST)?;
        check_room(&self.notices)?;
        required(&body, "level")?;
        required(&body, "label")?;
        let defaults = json!({"content": "", "enabled": false, "acknowledged": {}, "groups": []});
        let mut notice = defaults.as_object().cloned().unwrap_or_default();
        notice.extend(body);
        self.notices.insert(id.clone(), notice);
        self.notice_json(&id)
    }

    /// Changes a notice.
    pub(super) fn update_notice(&mut self, id: &str, mut body: Map<String, Value>) -> Result<Value, CmlError> {
        fields::check(&body, NOTICE_FIELDS, Release::FIRST)?;
        let mut notice = self.notice(id)?.clone();
        let mut groups = texts(notice.get("groups"));
        groups.extend(texts(body.remove("add_groups").as_ref()));
        let removed = texts(body.remove("del_groups").as_ref());
        groups.retain(|group| !removed.contains(group));
        notice.insert("groups".to_owned(), groups.into());
        notice.extend(body);
        self.notices.insert(id.to_owned(), notice);
        self.notice_json(id)
    }

    pub(super) fn remove_notice(&mut self, id: &str) -> Result<(), CmlError> {
        self.notice(id)?;
        self.notices.remove(id);
        if self.maintenance_notice.as_deref() == Some(id) {
            self.maintenance_notice = None;
        }
        Ok(())
    }

    pub(super) fn maintenance_json(&self) -> Value {
        let notice = self.maintenance_notice.as_ref();
        let resolved = notice.and_then(|id| self.notice_json(id).ok());
        json!({"maintenance_mode": self.maintenance, "notice": notice, "resolved_notice": resolved})
    }

    /// Turns maintenance on or off, and chooses its notice.
    pub(super) fn set_maintenance(&mut self, body: &Map<String, Value>) -> Result<Value, CmlError> {
        let known = [Field::flag("maintenance_mode"), Field::text("notice", 64).or_null()];
        fields::check(body, &known, Release::FIRST)?;
        match body.get("notice") {
            Some(Value::String(id)) => {
                self.notice(id)?;
                self.maintenance_notice = Some(id.clone());
            }
            Some(_) => self.maintenance_notice = None,
            None => {}
        }
        self.maintenance = body.get("maintenance_mode").and_then(Value::as_bool).unwrap_or(self.maintenance);
        Ok(self.maintenance_json())
    }
}

/// External connectors, compute hosts and sessions.
impl Administration {
    pub(super) fn connectors(&self) -> Value {
        self.connectors.values().cloned().collect()
    }

    pub(super) fn connector(&self, id: &str) -> Result<Value, CmlError> {
        self.connectors.get(id).cloned().ok_or_else(|| CmlError::not_found("External connector", id))
    }

    /// Changes a connector and the device behind it.
    pub(super) fn update_connector(&mut self, id: &str, body: &Map<String, Value>) -> Result<Value, CmlError> {
        fields::check(body, CONNECTOR_FIELDS, Release::FIRST)?;
        let found = self.connectors.get_mut(id).ok_or_else(|| CmlError::not_found("External connector", id))?;
        for (field, value) in body {
            found[field] = value.clone();
            if field != "tags" {
                found["operational"][field] = value.clone();
            }
        }
        Ok(found.clone())
    }

    pub(super) fn remove_connector(&mut self, id: &str) -> Result<(), CmlError> {
        self.connectors.remove(id).map(drop).ok_or_else(|| CmlError::not_found("External connector", id))
    }

    pub(super) fn session_timeout(&self) -> u32 {
        self.session_timeout
    }

    /// Sets how long a session of the web interface lasts, in seconds.
    pub(super) fn set_session_timeout(&mut self, seconds: &str) -> Result<(), CmlError> {
        let parsed = seconds.parse().ok().filter(|seconds| (60..=86_400).contains(seconds));
        let message = || format!("Invalid timeout {seconds}: expected a number of seconds from 60 to 86400.");
        self.session_timeout = parsed.ok_or_else(|| CmlError::bad_request(message()))?;
        Ok(())
    }

    pub(super) fn new_host_json(&self) -> Value {
        json!({"admission_state": self.new_host_state})
    }

    /// Sets the state in which new compute hosts begin.
    pub(super) fn set_new_host(&mut self, body: &Map<String, Value>) -> Result<Value, CmlError> {
        self.new_host_state = admission_state(body)?;
        Ok(self.new_host_json())
    }

    /// Sets the state of the compute host.
    pub(super) fn set_host(&mut self, body: &Map<String, Value>) -> Result<(), CmlError> {
        self.host_state = admission_state(body)?;
        Ok(())
    }
}

fn admission_state(body: &Map<String, Value>) -> Result<String, CmlError> {
    fields::check(body, &[Field::word("admission_state", ADMISSION_STATES)], Release::FIRST)?;
    required(body, "admission_state").map(str::to_owned)
}

/// Resource pools. They are stored and shown; nodes are not limited by them.
impl Administration {
    fn pool(&self, id: &str) -> Result<&Map<String, Value>, CmlError> {
        self.pools.get(id).ok_or_else(|| CmlError::not_found("Resource pool", id))
    }

    pub(super) fn pool_ids(&self) -> Value {
        self.pools.keys().cloned().collect()
    }

    pub(super) fn pools(&self) -> Value {
        self.pools.keys().filter_map(|id| self.pool_json(id).ok()).collect()
    }

    /// A pool with its users, or a template with the pools made from it.
    pub(super) fn pool_json(&self, id: &str) -> Result<Value, CmlError> {
        let pool = self.pool(id)?;
        let mut shown = pool.clone();
        shown.insert("id".to_owned(), id.into());
        if pool.get("template").is_none_or(Value::is_null) && !pool.contains_key("users") {
            let made: Vec<_> = self.pools.iter().filter(|(_, it)| it.get("template") == Some(&id.into())).collect();
            shown.insert("user_pools".to_owned(), made.into_iter().map(|(id, _)| id.clone()).collect());
        }
        Ok(shown.into())
    }

    /// Adds a pool: one for all of its users, or with `"shared": false` one for each of them.
    pub(super) fn add_pools(
        &mut self,
        mut body: Map<String, Value>,
        users: &Users,
        mut id: impl FnMut() -> String,
    ) -> Result<Value, CmlError> {
        fields::check(&body, POOL_FIELDS, Release::FIRST)?;
        check_room(&self.pools)?;
        required(&body, "label")?;
        let members = texts(body.get("users"));
        let is_known = |user: &&String| users.names_of(user).is_none();
        if let Some(unknown) = members.iter().find(is_known) {
            return Err(CmlError::not_found("User", unknown));
        }
        if let Some(Value::String(template)) = body.get("template") {
            self.pool(template)?;
        }
        let shared = body.remove("shared");
        let defaults = json!({
            "description": "", "licenses": null, "ram": null, "cpus": null, "disk_space": null,
            "external_connectors": null,
        });
        let mut pool = defaults.as_object().cloned().unwrap_or_default();
        pool.extend(body);
        if shared != Some(false.into()) {
            let id = id();
            self.pools.insert(id.clone(), pool);
            return self.pool_json(&id);
        }
        let mut made = Vec::with_capacity(members.len());
        for user in members {
            let id = id();
            let mut own = pool.clone();
            own.insert("users".to_owned(), json!([user]));
            self.pools.insert(id.clone(), own);
            made.push(self.pool_json(&id)?);
        }
        Ok(made.into())
    }

    pub(super) fn update_pool(&mut self, id: &str, body: Map<String, Value>) -> Result<Value, CmlError> {
        fields::check(&body, POOL_FIELDS, Release::FIRST)?;
        if let Some(fixed) = ["shared", "template", "users"].iter().find(|field| body.contains_key(**field)) {
            return Err(CmlError::bad_request(format!("Field {fixed} of a resource pool cannot change.")));
        }
        self.pools.get_mut(id).ok_or_else(|| CmlError::not_found("Resource pool", id))?.extend(body);
        self.pool_json(id)
    }

    pub(super) fn remove_pool(&mut self, id: &str) -> Result<(), CmlError> {
        self.pools.remove(id).map(drop).ok_or_else(|| CmlError::not_found("Resource pool", id))
    }

    /// Limits of a pool, and what its nodes use: nothing, because nodes are not started in pools.
    pub(super) fn pool_usage(&self, id: &str) -> Result<Value, CmlError> {
        let pool = self.pool(id)?;
        let of = |field: &str| pool.get(field).cloned().unwrap_or_default();
        Ok(json!({
            "id": id, "label": of("label"), "description": of("description"),
            "limit": {
                "licenses": of("licenses"), "cpus": of("cpus"), "ram": of("ram"), "disk_space": of("disk_space"),
                "external_connectors": of("external_connectors"),
            },
            "usage": {"licenses": 0, "cpus": 0, "ram": 0, "disk_space": 0, "external_connectors": []},
        }))
    }
}

/// Repositories of sample labs. They are listed; none is cloned.
impl Administration {
    pub(super) fn repositories(&self) -> Value {
        self.repositories.iter().map(|(id, repository)| with_id(id, repository)).collect()
    }

    pub(super) fn add_repository(&mut self, id: String, body: Map<String, Value>) -> Result<Value, CmlError> {
        let known = [Field::text("url", 2048), Field::text("name", 64), Field::text("folder", 255).or_null()];
        fields::check(&body, &known, Release::FIRST)?;
        check_room(&self.repositories)?;
        required(&body, "url")?;
        required(&body, "name")?;
        let mut repository = Map::from_iter([("folder".to_owned(), Value::Null)]);
        repository.extend(body);
        self.repositories.insert(id.clone(), repository);
        self.repositories
            .get(&id)
            .map(|found| with_id(&id, found))
            .ok_or_else(|| CmlError::not_found("Repository", &id))
    }

    pub(super) fn remove_repository(&mut self, id: &str) -> Result<(), CmlError> {
        self.repositories.remove(id).map(drop).ok_or_else(|| CmlError::not_found("Lab repository", id))
    }
}
