//! Worker record: JSON as the server stores it, with typed access to the fields that the rules need.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use super::enums;
use super::error::ApiError;
use super::input::{Input, format_time, parse_time};
use super::settings::Generation;

/// Lifecycle fields of a worker, which an extended server stores.
pub const LIFECYCLE_FIELDS: [&str; 5] =
    ["drain_started_at", "scaled_down_at", "launch_generation", "launched_at", "launch_plan"];

/// Fields that hold a string or null.
const STRING_FIELDS: [&str; 14] = [
    "name",
    "ec2_instance_id",
    "aws_instance_id",
    "aws_region",
    "ip_address",
    "public_ip",
    "private_ip",
    "template_name",
    "instance_type",
    "ami_name",
    "ami_description",
    "ami_creation_date",
    "cml_username",
    "cml_password",
];

/// Fields that hold a time or null.
const TIME_FIELDS: [&str; 9] = [
    "created_at",
    "updated_at",
    "terminated_at",
    "started_at",
    "start_initiated_at",
    "last_activity_at",
    "last_activity_check_at",
    "last_resumed_at",
    "last_paused_at",
];

/// Other fields that the server reads or writes.
const OTHER_FIELDS: [&str; 27] = [
    "id",
    "status",
    "desired_status",
    "version",
    "state_version",
    "owner_id",
    "origin",
    "terminated_by",
    "terminated_reason",
    "is_idle_detection_enabled",
    "metadata",
    "state_history",
    "license",
    "aws_tags",
    "template_id",
    "declared_capacity",
    "session_ids",
    "service_status",
    "status_reason",
    "last_error",
    "error_message",
    "metrics",
    "ended_at",
    "pause_reason",
    "paused_by",
    "idle_timeout",
    "reported_at",
];

/// Returns the fields that the server knows.
pub(super) fn field_names() -> impl Iterator<Item = &'static str> + Clone {
    let groups: [&'static [&'static str]; 4] = [&STRING_FIELDS, &TIME_FIELDS, &LIFECYCLE_FIELDS, &OTHER_FIELDS];
    groups.into_iter().flatten().copied()
}

/// Worker record. Unknown fields are kept.
#[derive(Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Worker(Fields);

impl Worker {
    /// Creates a record from the fields of a request and adds defaults.
    ///
    /// # Errors
    /// [`ApiError::Invalid`] for a known field of the wrong type.
    pub fn from_input(
        input: Input,
        fresh_id: String,
        now: DateTime<Utc>,
        generation: Generation,
    ) -> Result<Self, ApiError> {
        check(&input)?;
        let status = match input.text("status")? {
            Some(word) => enums::parse_status("status", word)?,
            None => "pending",
        };
        let desired = match input.text("desired_status")? {
            Some(word) => Value::from(enums::parse_desired_status("desired_status", word)?),
            None => match generation {
                Generation::Extended => Value::Null,
                Generation::Original => "running".into(),
            },
        };
        let id = match input.text("id")? {
            Some(id) if !id.is_empty() && !id.contains('/') => id.to_owned(),
            Some(id) => return Err(ApiError::invalid("id", &id.into(), "non-empty text without a slash")),
            None => fresh_id,
        };
        let mut worker = Self::with_defaults();
        worker.0.extend(input.into_fields());
        let instance = worker.0.remove("aws_instance_id").filter(|value| !value.is_null());
        if let Some(instance) = instance {
            worker.0.insert("ec2_instance_id".into(), instance);
        }
        worker.set("id", id);
        worker.set("status", status);
        worker.set("desired_status", desired);
        worker.init_version(generation);
        for field in ["created_at", "updated_at"] {
            if worker.0.get(field).is_none_or(Value::is_null) {
                worker.set(field, format_time(now));
            }
        }
        worker.normalize_lifecycle_fields(generation);
        Ok(Self(worker.0.shrunk()))
    }

    /// Creates a record exactly as given, even if it is invalid, for tests of its readers.
    ///
    /// # Errors
    /// [`ApiError::Invalid`] without an id.
    pub fn from_raw(fields: Map<String, Value>, generation: Generation) -> Result<Self, ApiError> {
        Input::from_value(fields.clone().into())?.required_text("id", "non-empty text")?;
        let mut worker = Self(fields.into());
        if generation.is_extended() {
            worker.0.entry("version").or_insert_with(|| 1.into());
        }
        Ok(worker)
    }

    /// The version is set by the server; one without versions has no such field.
    fn init_version(&mut self, generation: Generation) {
        match generation {
            Generation::Extended => self.set("version", 1),
            Generation::Original => drop(self.0.remove("version")),
        }
    }

    fn with_defaults() -> Self {
        let mut fields = Map::new();
        for field in STRING_FIELDS.iter().chain(&TIME_FIELDS).filter(|field| **field != "aws_instance_id") {
            fields.insert((*field).to_owned(), Value::Null);
        }
        fields.insert("owner_id".into(), Value::Null);
        fields.insert("terminated_by".into(), Value::Null);
        fields.insert("origin".into(), "user_created".into());
        fields.insert("is_idle_detection_enabled".into(), true.into());
        fields.insert("metadata".into(), Map::new().into());
        fields.insert("state_history".into(), Value::Array(Vec::new()));
        fields.insert(
            "license".into(),
            serde_json::json!({
                "status": "unregistered", "token": null, "pending_token": null, "pending_operation": null,
                "operation_in_progress": false,
            }),
        );
        Self(fields.into())
    }

    /// Id of the worker.
    pub fn id(&self) -> &str {
        self.text("id").unwrap_or_default()
    }

    /// Status, as stored.
    pub fn status(&self) -> &str {
        self.text("status").unwrap_or_default()
    }

    /// Desired status; `None` if unset.
    pub fn desired(&self) -> Option<&str> {
        self.text("desired_status")
    }

    /// Version; raised by every change that affects decisions.
    pub fn version(&self) -> u64 {
        self.0.get("version").and_then(Value::as_u64).unwrap_or(0)
    }

    /// Id of the EC2 instance; `None` if unset.
    pub fn instance_id(&self) -> Option<&str> {
        self.text("ec2_instance_id").or_else(|| self.text("aws_instance_id"))
    }

    /// A string field; `None` if absent or null.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.0.get(field).and_then(Value::as_str)
    }

    /// A time field; `None` if absent, null or not a time.
    pub fn time(&self, field: &str) -> Option<DateTime<Utc>> {
        self.text(field).and_then(parse_time)
    }

    /// Value of a field, unchecked.
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field)
    }

    /// A boolean field that defaults to true.
    pub fn is_enabled(&self, field: &str) -> bool {
        self.0.get(field).and_then(Value::as_bool).unwrap_or(true)
    }

    /// The record as JSON. Serialized once and cached.
    pub fn json(&self) -> &[u8] {
        self.0.json()
    }

    /// All fields of the record.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }

    /// Sets a field.
    pub fn set(&mut self, field: &str, value: impl Into<Value>) {
        self.0.insert(field.to_owned(), value.into());
    }

    /// Increments a counter.
    pub fn increment(&mut self, field: &str) {
        let count = self.0.get(field).and_then(Value::as_u64).unwrap_or(0);
        self.set(field, count + 1);
    }

    /// A nested object, created if absent.
    pub fn object_mut(&mut self, field: &str) -> &mut Map<String, Value> {
        let slot = self.0.entry(field).or_insert_with(|| Map::new().into());
        if !slot.is_object() {
            *slot = Map::new().into();
        }
        match slot {
            Value::Object(object) => object,
            // Set to an object two lines above.
            _ => unreachable!(),
        }
    }

    /// Appends to a list, created if absent. Drops the oldest entries beyond `limit`.
    pub fn append(&mut self, field: &str, entry: Value, limit: usize) {
        let slot = self.0.entry(field).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = slot {
            list.push(entry);
            let surplus = list.len().saturating_sub(limit);
            list.drain(..surplus);
        }
    }

    /// Merges into `metadata`; null removes a key.
    pub fn merge_metadata(&mut self, changes: &Map<String, Value>) {
        let metadata = self.object_mut("metadata");
        for (key, value) in changes {
            if value.is_null() {
                metadata.remove(key);
            } else {
                metadata.insert(key.clone(), value.clone());
            }
        }
    }

    /// Moves each lifecycle field from `metadata` to the top level, or drops it if this server does not store it.
    pub fn normalize_lifecycle_fields(&mut self, generation: Generation) {
        for field in LIFECYCLE_FIELDS {
            match generation {
                Generation::Original => drop(self.0.remove(field)),
                Generation::Extended => {
                    let lifted = self.object_mut("metadata").remove(field);
                    if let Some(value) = lifted {
                        self.set(field, value);
                    } else {
                        self.0.entry(field).or_insert(Value::Null);
                    }
                }
            }
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Other fields may hold passwords and tokens.
        f.debug_struct("Worker")
            .field("id", &self.id())
            .field("status", &self.status())
            .field("version", &self.version())
            .finish_non_exhaustive()
    }
}

/// Checks the fields that every reader relies on.
pub(super) fn check(input: &Input) -> Result<(), ApiError> {
    for field in STRING_FIELDS {
        input.text(field)?;
    }
    for field in TIME_FIELDS {
        input.time(field)?;
    }
    check_lifecycle_fields(input)?;
    for field in ["license", "aws_tags"] {
        input.object(field)?;
    }
    input.boolean("is_idle_detection_enabled").map(drop)
}

/// Checks the lifecycle fields of a body, at the top level and in `metadata`.
fn check_lifecycle_fields(input: &Input) -> Result<(), ApiError> {
    if let Some(metadata) = input.nested("metadata")? {
        check_lifecycle_fields(&metadata)?;
    }
    for time in ["drain_started_at", "scaled_down_at", "launched_at"] {
        input.time(time)?;
    }
    input.unsigned("launch_generation")?;
    input.object("launch_plan").map(drop)
}

/// Fields of a record. Dereferences to a map; mutable access invalidates the cached JSON.
#[derive(Default, serde::Deserialize)]
#[serde(from = "Map<String, Value>")]
pub(super) struct Fields {
    map: Map<String, Value>,
    json: OnceLock<Box<[u8]>>,
}

impl Fields {
    /// The fields as JSON, cached.
    pub(super) fn json(&self) -> &[u8] {
        // Maps with string keys always serialize.
        self.json.get_or_init(|| serde_json::to_vec(&self.map).unwrap_or_default().into())
    }

    /// Shrinks the map: one that grew field by field is half empty.
    pub(super) fn shrunk(self) -> Self {
        self.map.into_iter().collect::<Map<_, _>>().into()
    }
}

impl serde::Serialize for Fields {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde::Serialize::serialize(&self.map, serializer)
    }
}

impl From<Map<String, Value>> for Fields {
    fn from(map: Map<String, Value>) -> Self {
        Self { map, json: OnceLock::new() }
    }
}

impl Deref for Fields {
    type Target = Map<String, Value>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl DerefMut for Fields {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.json.take();
        &mut self.map
    }
}

impl Clone for Fields {
    fn clone(&self) -> Self {
        // A clone is made to be changed, so the cache is not copied.
        self.map.clone().into()
    }
}

impl PartialEq for Fields {
    fn eq(&self, other: &Self) -> bool {
        self.map == other.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_invalidates_the_cached_json() {
        let mut fields = Fields::from(Map::from_iter([("status".to_owned(), Value::from("running"))]));
        assert_eq!(fields.json(), br#"{"status":"running"}"#);
        fields.insert("status".into(), "stopped".into());
        assert_eq!(fields.json(), br#"{"status":"stopped"}"#);
        let mut copy = fields.clone();
        copy.entry("name").or_insert("blue".into());
        assert_eq!(copy.shrunk().json(), br#"{"name":"blue","status":"stopped"}"#);
        assert_eq!(fields.json(), br#"{"status":"stopped"}"#);
    }
}
