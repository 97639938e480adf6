//! Mirror of records in etcd, for watchers.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use super::settings::{Generation, Settings};
use super::worker::Worker;

/// Receiver of mirrored changes. Called in the order of the changes while the records are locked, so an implementation
/// must not call back into them.
pub trait EtcdMirror: Send + Sync {
    /// Sets a key to a new value.
    fn put(&self, key: &str, value: &str);
    /// Deletes a key.
    fn delete(&self, key: &str);
}

impl<P: EtcdMirror + ?Sized> EtcdMirror for Arc<P> {
    fn put(&self, key: &str, value: &str) {
        (**self).put(key, value);
    }

    fn delete(&self, key: &str) {
        (**self).delete(key);
    }
}

/// Mirror that drops every change.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoMirror;

impl EtcdMirror for NoMirror {
    fn put(&self, _key: &str, _value: &str) {}
    fn delete(&self, _key: &str) {}
}

/// Keys and values of one worker. Only listed fields are mirrored: no metrics, so that a report does not wake the
/// watchers, and no secrets except the token of a license operation on the original server.
///
/// The keys of a terminated worker are deleted; the original server keeps its capacity.
pub(super) fn worker_keys(settings: &Settings, worker: &Worker) -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    let (prefix, id) = (&settings.etcd_prefix, worker.id());
    let part = |name: &str| format!("{prefix}/workers/{id}/{name}");
    let generation = settings.generation;
    let is_terminated = worker.status() == "terminated";
    if is_terminated && generation != Generation::Original {
        return keys;
    }
    let capacity = select_fields(worker.fields(), &["allocated_capacity", "declared_capacity"]);
    if capacity != "{}" {
        keys.insert(part("capacity"), capacity);
    }
    if is_terminated {
        return keys;
    }
    keys.insert(part("state"), worker.status().to_owned());
    if let Some(desired) = worker.desired() {
        keys.insert(part("desired_state"), desired.to_owned());
    }
    if let Some(license) = worker.get("license").and_then(|license| license_value(license, generation)) {
        keys.insert(part("license"), license);
    }
    let ports = select_fields(worker.fields(), &["allocated_port_count", "available_port_count"]);
    if ports != "{}" {
        keys.insert(part("ports"), ports);
    }
    if generation != Generation::Original {
        keys.insert(format!("/workers/{id}"), summary(worker));
    }
    keys
}

/// Value of the license key: the state of the license, or the pending operation on the original server.
fn license_value(license: &Value, generation: Generation) -> Option<String> {
    let fields = license.as_object()?;
    match generation {
        Generation::Extended => Some(select_fields(fields, &["operation_in_progress", "pending_operation", "status"])),
        Generation::Original => {
            let operation = fields.get("pending_operation").filter(|operation| !operation.is_null())?;
            let token = fields.get("pending_token").cloned().unwrap_or_default();
            let reregister = fields.get("reregister").cloned().unwrap_or(Value::Bool(false));
            let members = [("operation", operation), ("token", &token), ("reregister", &reregister)];
            Some(object(members.into_iter()))
        }
    }
}

fn summary(worker: &Worker) -> String {
    let texts = [
        ("aws_region", worker.text("aws_region")),
        ("desired_status", worker.desired()),
        ("ec2_instance_id", worker.instance_id()),
        ("id", Some(worker.id())),
        ("status", Some(worker.status())),
    ];
    object(texts.iter().map(|(name, text)| (*name, text)))
}

/// Keys and values of one session; empty once it has ended.
pub(super) fn session_keys(settings: &Settings, session: &Map<String, Value>) -> BTreeMap<String, String> {
    let prefix = &settings.etcd_prefix;
    let word = |status: &str| match settings.generation {
        Generation::Extended => status.to_owned(),
        Generation::Original => status.to_ascii_uppercase(),
    };
    let text = |field: &str| session.get(field).and_then(Value::as_str);
    match (text("id"), text("status")) {
        (Some(id), Some(status)) if !super::enums::FINAL_SESSION_STATES.contains(&status) => {
            let mut keys = BTreeMap::from([(format!("{prefix}/sessions/{id}/state"), word(status))]);
            if let Some(desired) = text("desired_status") {
                keys.insert(format!("{prefix}/sessions/{id}/desired_state"), word(desired));
            }
            keys
        }
        _ => BTreeMap::new(),
    }
}

/// Sends the difference between two sets of keys to the mirror.
pub(super) fn mirror(mirror: &dyn EtcdMirror, before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) {
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        mirror.delete(key);
    }
    for (key, value) in after.iter().filter(|(key, value)| before.get(*key) != Some(value)) {
        mirror.put(key, value);
    }
}

/// The listed fields that exist, as JSON, in sorted order as everywhere on the wire.
fn select_fields(fields: &Map<String, Value>, names: &[&'static str]) -> String {
    object(
        names.iter().filter_map(|name| fields.get(*name).filter(|value| !value.is_null()).map(|value| (*name, value))),
    )
}

/// Writes a JSON object. The names need no escaping.
fn object<'a>(members: impl Iterator<Item = (&'static str, &'a (impl Serialize + 'a))>) -> String {
    let mut json = b"{".to_vec();
    for (name, value) in members {
        let comma = if json.len() > 1 { "," } else { "" };
        // Strings and maps with string keys always serialize, and writing to memory does not fail.
        let _ = write!(json, "{comma}\"{name}\":");
        let _ = serde_json::to_writer(&mut json, value);
    }
    json.push(b'}');
    String::from_utf8(json).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mirrored_values_are_valid_json() {
        let fields = json!({"b": {"z": [1, null], "a": "\"ä\n"}, "a": false, "c": null, "d": 1.5});
        let fields = fields.as_object().expect("an object");
        assert_eq!(
            select_fields(fields, &["a", "b", "c", "d", "e"]),
            json!({"a": false, "b": fields["b"], "d": 1.5}).to_string()
        );
        assert_eq!(select_fields(fields, &["c", "e"]), "{}");
        let texts = [("id", Some("w-\"1\"")), ("status", None)];
        assert_eq!(
            object(texts.iter().map(|(name, text)| (*name, text))),
            json!({"id": "w-\"1\"", "status": null}).to_string()
        );
    }
}
