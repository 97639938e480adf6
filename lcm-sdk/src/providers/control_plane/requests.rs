//! Request bodies of the control plane.

use chrono::SecondsFormat;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::lifecycle::decision::{Addresses, Change, Changes};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::{NotesOnRecord, Worker};

/// Body of a status write: record fields, and notes for `metadata`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct StatusFields {
    /// Top-level fields of the record.
    pub(super) fields: Map<String, Value>,
    /// Entries of `metadata`; null removes one.
    pub(super) metadata: Map<String, Value>,
}

impl StatusFields {
    /// All changes that a status write can carry. Addresses and license reports have endpoints of their own.
    pub(super) fn from_changes(changes: &Changes, on_record: NotesOnRecord) -> Self {
        let Changes {
            ec2_instance_id,
            aws_region,
            addresses: _,
            desired_status,
            start_initiated_at,
            drain_started_at,
            scaled_down_at,
            launched_at,
            launch_generation,
            launch_plan,
            license_attempt,
            license_report: _,
        } = changes;
        let mut sent = Self::default();
        sent.put("ec2_instance_id", changed(ec2_instance_id, |id| id.as_str().into()));
        sent.put("aws_region", aws_region.as_deref().map(Value::from));
        sent.put("desired_status", desired_status.map(|desired| desired.as_str().into()));
        sent.put("start_initiated_at", start_initiated_at.map(timestamp));
        let notes = [
            ("drain_started_at", changed(drain_started_at, |at| timestamp(*at))),
            ("scaled_down_at", scaled_down_at.map(timestamp)),
            ("launched_at", launched_at.map(timestamp)),
            ("launch_generation", launch_generation.map(Value::from)),
            ("launch_plan", changed(launch_plan, |plan| serde_json::to_value(plan).unwrap_or_default())),
            ("license_attempt", license_attempt.as_deref().map(Value::from)),
        ];
        for (note, value) in notes {
            sent.put_note(note, value, on_record);
        }
        sent
    }

    /// Sets a field, unless `value` is `None`.
    pub(super) fn put(&mut self, field: &str, value: Option<Value>) {
        self.fields.extend(value.map(|value| (field.to_owned(), value)));
    }

    /// Sets a note unless `value` is `None`: as a field if the record has that field, else in `metadata`.
    pub(super) fn put_note(&mut self, note: &str, value: Option<Value>, on_record: NotesOnRecord) {
        let target = if on_record.contains(note) { &mut self.fields } else { &mut self.metadata };
        target.extend(value.map(|value| (note.to_owned(), value)));
    }

    /// Removes a field or note.
    pub(super) fn remove(&mut self, field: &str) -> Option<Value> {
        self.fields.remove(field).or_else(|| self.metadata.remove(field))
    }

    /// Whether a write would change nothing. A region alone does not count: no endpoint stores it.
    pub(super) fn is_empty(&self) -> bool {
        self.metadata.is_empty() && self.fields.keys().all(|field| field == "aws_region")
    }
}

/// Body for `ec2-details`. It holds every field, because the server clears those that are left out.
pub(super) fn ec2_details(worker: &Worker, addresses: &Addresses) -> Value {
    let kept = |field: &str| worker.extra.get(field).cloned().unwrap_or_default();
    let tags = (!worker.aws_tags.is_empty()).then_some(&worker.aws_tags);
    json!({
        "public_ip": addresses.public_ip,
        "private_ip": addresses.private_ip,
        "ip_address": addresses.public_ip.as_ref().or(addresses.private_ip.as_ref()),
        "instance_type": worker.instance_type,
        "ami_id": kept("ami_id"),
        "ami_name": worker.ami_name,
        "aws_tags": tags,
        "ec2_instance_state_detail": kept("ec2_instance_state_detail"),
    })
}

/// Body of a metrics report. Unknown values are null, which clears old ones.
pub(super) fn report(metrics: &impl Serialize, at: Timestamp) -> Value {
    let mut body = serde_json::to_value(metrics).unwrap_or_default();
    body["collected_at"] = timestamp(at);
    body
}

/// Body of a bulk import.
pub(super) fn import(region: &str, instances: &[Instance]) -> Value {
    let discovered = instances.iter().map(|instance| {
        json!({
            "instance_id": instance.id,
            "state": instance.state.as_str(),
            "public_ip": instance.public_ip,
            "private_ip": instance.private_ip,
            "instance_type": instance.instance_type,
            "image_id": instance.image_id,
            "launch_time": instance.launched_at.map(timestamp),
            "name": instance.tags.get("Name"),
        })
    });
    json!({
        "aws_region": region, "source": "ec2_discovery", "discovered_instances": discovered.collect::<Vec<_>>(),
    })
}

/// A timestamp in microseconds, the precision of a Python `datetime`.
pub(super) fn timestamp(moment: Timestamp) -> Value {
    moment.to_rfc3339_opts(SecondsFormat::Micros, true).into()
}

fn changed<T>(change: &Change<T>, value: impl FnOnce(&T) -> Value) -> Option<Value> {
    match change {
        Change::Keep => None,
        Change::Set(new) => Some(value(new)),
        Change::Clear => Some(Value::Null),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_sent_where_the_server_stores_them() {
        let worker = |record| Worker::try_from(record).expect("valid");
        let changes = Changes { drain_started_at: Change::Clear, launch_generation: Some(2), ..Changes::default() };
        let new = worker(json!({"id": "w", "status": "running", "drain_started_at": null, "launch_generation": 1}));
        let sent = StatusFields::from_changes(&changes, new.notes.on_record);
        assert_eq!(Value::from(sent.fields), json!({"drain_started_at": null, "launch_generation": 2}));
        assert!(sent.metadata.is_empty());
        let old = worker(json!({"id": "w", "status": "running"}));
        let sent = StatusFields::from_changes(&changes, old.notes.on_record);
        assert_eq!(Value::from(sent.metadata), json!({"drain_started_at": null, "launch_generation": 2}));
        assert!(sent.fields.is_empty());
    }

    #[test]
    fn addresses_are_sent_with_all_ec2_details() {
        let worker = Worker::try_from(json!({
            "id": "w", "status": "running", "instance_type": "m5zn.metal", "ami_id": "ami-1", "ami_name": "cml",
            "aws_tags": {"team": "a"}, "ec2_instance_state_detail": "ok",
        }));
        let addresses = Addresses { public_ip: None, private_ip: Some("10.0.0.1".into()) };
        assert_eq!(
            ec2_details(&worker.expect("valid"), &addresses),
            json!({
                "public_ip": null, "private_ip": "10.0.0.1", "ip_address": "10.0.0.1", "instance_type": "m5zn.metal",
                "ami_id": "ami-1", "ami_name": "cml", "aws_tags": {"team": "a"}, "ec2_instance_state_detail": "ok",
            })
        );
    }
}
