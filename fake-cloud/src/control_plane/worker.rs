//! A worker's record: JSON as the server keeps it, with typed access to what the rules need.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use super::enums;
use super::error::ApiError;
use super::input::{Input, parse_moment, written};
use super::settings::{Dialect, Supported};

/// The notes of a worker's lifecycle. Newer servers keep them as fields; older ones only in `metadata`.
pub const LIFECYCLE_FIELDS: [&str; 5] =
    ["drain_started_at", "scaled_down_at", "launch_generation", "launched_at", "launch_plan"];

/// Fields of a record that hold text or nothing.
const TEXTS: [&str; 12] = [
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
    "cml_username",
    "cml_password",
];

/// Fields of a record that hold a moment or nothing.
const MOMENTS: [&str; 9] = [
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

/// One record. Fields nobody knows are kept as they came.
#[derive(Clone, PartialEq)]
pub struct Worker(Fields);

impl Worker {
    /// A new record from the fields of a request, with what is missing filled in.
    ///
    /// # Errors
    /// [`ApiError::Invalid`] for a known field of the wrong kind.
    pub fn create(input: Input, fresh_id: String, now: DateTime<Utc>, dialect: Dialect) -> Result<Self, ApiError> {
        check(&input)?;
        let status = match input.text("status")? {
            Some(word) => enums::parse_status("status", word)?,
            None => "pending",
        };
        let desired = match input.text("desired_status")? {
            Some(word) => Value::from(enums::parse_desired_status("desired_status", word)?),
            None => Value::Null,
        };
        let id = match input.text("id")? {
            Some(id) if !id.is_empty() && !id.contains('/') => id.to_owned(),
            Some(id) => return Err(ApiError::invalid("id", &id.into(), "non-empty text without a slash")),
            None => fresh_id,
        };
        let mut worker = Self::skeleton();
        worker.0.extend(input.into_fields());
        let instance = worker.0.remove("aws_instance_id").filter(|value| !value.is_null());
        if let Some(instance) = instance {
            worker.0.insert("ec2_instance_id".into(), instance);
        }
        worker.set("id", id);
        worker.set("status", status);
        worker.set("desired_status", desired);
        worker.begin_counting(dialect.versions);
        for field in ["created_at", "updated_at"] {
            if worker.0.get(field).is_none_or(Value::is_null) {
                worker.set(field, written(now));
            }
        }
        worker.settle_notes(dialect.notes);
        Ok(Self(worker.0.gathered()))
    }

    /// A record exactly as given, however wrong: for tests of what others make of it.
    ///
    /// # Errors
    /// [`ApiError::Invalid`] when not even an id can be found.
    pub fn as_given(fields: Map<String, Value>, dialect: Dialect) -> Result<Self, ApiError> {
        Input::from_value(fields.clone().into())?.required_text("id", "non-empty text")?;
        let mut worker = Self(fields.into());
        if dialect.versions == Supported::Yes {
            worker.0.entry("version").or_insert_with(|| 1.into());
        }
        Ok(worker)
    }

    /// A version is the server's to give; one that knows none has no such field.
    fn begin_counting(&mut self, versions: Supported) {
        match versions {
            Supported::Yes => self.set("version", 1),
            Supported::No => drop(self.0.remove("version")),
        }
    }

    fn skeleton() -> Self {
        let mut fields = Map::new();
        for field in TEXTS.iter().chain(&MOMENTS).filter(|field| **field != "aws_instance_id") {
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

    /// The id.
    pub fn id(&self) -> &str {
        self.text("id").unwrap_or_default()
    }

    /// The status, as stored.
    pub fn status(&self) -> &str {
        self.text("status").unwrap_or_default()
    }

    /// The desired status, if anybody has an opinion.
    pub fn desired(&self) -> Option<&str> {
        self.text("desired_status")
    }

    /// The version; every change that a decision could rest on raises it by one.
    pub fn version(&self) -> u64 {
        self.0.get("version").and_then(Value::as_u64).unwrap_or(0)
    }

    /// The EC2 instance.
    pub fn instance_id(&self) -> Option<&str> {
        self.text("ec2_instance_id").or_else(|| self.text("aws_instance_id"))
    }

    /// A text field.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.0.get(field).and_then(Value::as_str)
    }

    /// A field that holds a moment.
    pub fn moment(&self, field: &str) -> Option<DateTime<Utc>> {
        self.text(field).and_then(parse_moment)
    }

    /// A field as it is.
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field)
    }

    /// A field that is on unless it says otherwise.
    pub fn is_on(&self, field: &str) -> bool {
        self.0.get(field).and_then(Value::as_bool).unwrap_or(true)
    }

    /// All of it as JSON. Written once, and sent as often as it is asked for.
    pub fn json(&self) -> &[u8] {
        self.0.json()
    }

    /// All fields.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }

    /// Sets a field.
    pub fn set(&mut self, field: &str, value: impl Into<Value>) {
        self.0.insert(field.to_owned(), value.into());
    }

    /// Raises a counter by one.
    pub fn count(&mut self, field: &str) {
        let count = self.0.get(field).and_then(Value::as_u64).unwrap_or(0);
        self.set(field, count + 1);
    }

    /// A nested object, made if it is not there.
    pub fn object_mut(&mut self, field: &str) -> &mut Map<String, Value> {
        let slot = self.0.entry(field).or_insert_with(|| Map::new().into());
        if !slot.is_object() {
            *slot = Map::new().into();
        }
        match slot {
            Value::Object(object) => object,
            // Made an object two lines above.
            _ => unreachable!(),
        }
    }

    /// Appends to a list, made if it is not there; the oldest entries beyond `limit` go.
    pub fn append(&mut self, field: &str, entry: Value, limit: usize) {
        let slot = self.0.entry(field).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = slot {
            list.push(entry);
            let surplus = list.len().saturating_sub(limit);
            list.drain(..surplus);
        }
    }

    /// Merges into `metadata`; null takes a key away.
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

    /// Sets one of the [`LIFECYCLE_FIELDS`], where this server keeps them. Null clears it.
    pub fn set_note(&mut self, note: &str, value: Value, knows: Supported) {
        match knows {
            Supported::Yes => self.set(note, value),
            Supported::No => self.merge_metadata(&Map::from_iter([(note.to_owned(), value)])),
        }
    }

    /// Puts every note where this server keeps it: one that knows them lifts them out of `metadata`, so that there
    /// is one truth; one that does not has no such fields.
    pub fn settle_notes(&mut self, knows: Supported) {
        for note in LIFECYCLE_FIELDS {
            match knows {
                Supported::No => drop(self.0.remove(note)),
                Supported::Yes => {
                    let lifted = self.object_mut("metadata").remove(note);
                    if let Some(value) = lifted {
                        self.set(note, value);
                    } else {
                        self.0.entry(note).or_insert(Value::Null);
                    }
                }
            }
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the rest: it holds passwords and tokens.
        f.debug_struct("Worker")
            .field("id", &self.id())
            .field("status", &self.status())
            .field("version", &self.version())
            .finish_non_exhaustive()
    }
}

/// Checks the fields every reader of a record relies on.
pub(super) fn check(input: &Input) -> Result<(), ApiError> {
    for field in TEXTS {
        input.text(field)?;
    }
    for field in MOMENTS {
        input.moment(field)?;
    }
    check_notes(input)?;
    for field in ["license", "aws_tags"] {
        input.object(field)?;
    }
    input.switch("is_idle_detection_enabled").map(drop)
}

/// Checks the notes in a body, both at the top and in `metadata`.
fn check_notes(input: &Input) -> Result<(), ApiError> {
    if let Some(metadata) = input.nested("metadata")? {
        check_notes(&metadata)?;
    }
    for moment in ["drain_started_at", "scaled_down_at", "launched_at"] {
        input.moment(moment)?;
    }
    input.whole("launch_generation")?;
    input.object("launch_plan").map(drop)
}

/// The fields of a record. They look like a map; whoever may have changed it has them written anew.
#[derive(Default)]
pub(super) struct Fields {
    map: Map<String, Value>,
    json: OnceLock<Box<[u8]>>,
}

impl Fields {
    /// As JSON.
    pub(super) fn json(&self) -> &[u8] {
        // Maps with text keys always serialise.
        self.json.get_or_init(|| serde_json::to_vec(&self.map).unwrap_or_default().into())
    }

    /// The same fields in less memory: a map that grew field by field is half empty.
    pub(super) fn gathered(self) -> Self {
        self.map.into_iter().collect::<Map<_, _>>().into()
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
        // A copy is made to be changed.
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
    fn a_change_is_written_whatever_was_written_before() {
        let mut fields = Fields::from(Map::from_iter([("status".to_owned(), Value::from("running"))]));
        assert_eq!(fields.json(), br#"{"status":"running"}"#);
        fields.insert("status".into(), "stopped".into());
        assert_eq!(fields.json(), br#"{"status":"stopped"}"#);
        let mut copy = fields.clone();
        copy.entry("name").or_insert("blue".into());
        assert_eq!(copy.gathered().json(), br#"{"name":"blue","status":"stopped"}"#);
        assert_eq!(fields.json(), br#"{"status":"stopped"}"#);
    }
}
