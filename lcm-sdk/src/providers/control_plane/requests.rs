//! Request bodies of the control plane.

use std::time::Duration;

use chrono::SecondsFormat;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::lifecycle::decision::{Addresses, Change, Changes};
use crate::lifecycle::drain::CONTROLLER;
use crate::lifecycle::instance::{ImageDetails, Instance};
use crate::lifecycle::license::LicenseReport;
use crate::lifecycle::observation::{CloudMetrics, CmlMetrics};
use crate::lifecycle::time::{self, Timestamp};
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
            image: _,
            desired_status,
            start_initiated_at,
            drain_started_at,
            drain_timeout_seconds,
            drain_tries,
            scaled_down_at,
            launched_at,
            launch_generation,
            launch_plan,
            license_attempt,
            license_wait,
            ec2_account_id,
            ec2_region,
            license_report: _,
            license_error: _,
        } = changes;
        let mut sent = Self::default();
        sent.put("ec2_instance_id", changed(ec2_instance_id, |id| id.as_str().into()));
        sent.put("aws_region", aws_region.as_deref().map(Value::from));
        sent.put("desired_status", desired_status.map(|desired| desired.as_str().into()));
        sent.put("start_initiated_at", start_initiated_at.map(timestamp));
        let notes = [
            ("drain_started_at", changed(drain_started_at, |at| timestamp(*at))),
            ("drain_timeout_seconds", changed(drain_timeout_seconds, |seconds| (*seconds).into())),
            ("drain_tries", drain_tries.map(Value::from)),
            ("scaled_down_at", scaled_down_at.map(timestamp)),
            ("launched_at", launched_at.map(timestamp)),
            ("launch_generation", launch_generation.map(Value::from)),
            ("launch_plan", changed(launch_plan, |plan| serde_json::to_value(plan).unwrap_or_default())),
            ("license_attempt", license_attempt.as_deref().map(Value::from)),
            ("license_wait", license_wait.as_deref().map(Value::from)),
            ("ec2_account_id", ec2_account_id.as_deref().map(Value::from)),
            ("ec2_region", ec2_region.as_deref().map(Value::from)),
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

/// Body for `ec2-details`. It holds every field of the record, because the server clears those that are left out. An AMI
/// that was not described keeps the description on the record, if that is of the same AMI.
pub(super) fn ec2_details(worker: &Worker, addresses: &Addresses, image: Option<&ImageDetails>) -> Value {
    let kept = |field: &str| worker.extra.get(field).cloned().unwrap_or_default();
    let tags = (!worker.aws_tags.is_empty()).then(|| json!(worker.aws_tags));
    let mut body = json!({
        "public_ip": addresses.public_ip,
        "private_ip": addresses.private_ip,
        "ip_address": addresses.public_ip.as_ref().or(addresses.private_ip.as_ref()),
        "instance_type": worker.instance_type,
        "ami_id": kept("ami_id"),
        "ami_name": worker.ami_name,
        "ami_description": kept("ami_description"),
        "ami_creation_date": kept("ami_creation_date"),
        "aws_tags": worker.extra.get("aws_tags").cloned().or(tags),
        "ec2_instance_state_detail": kept("ec2_instance_state_detail"),
    });
    if let Some(ImageDetails { id, name, description, creation_date }) = image {
        let is_other = body["ami_id"].as_str().is_some_and(|shown| shown != id);
        body["ami_id"] = id.as_str().into();
        let described = [("ami_name", name), ("ami_description", description), ("ami_creation_date", creation_date)];
        for (field, value) in described.into_iter().filter(|(_, value)| is_other || value.is_some()) {
            body[field] = value.as_deref().into();
        }
    }
    body
}

/// Telemetry events with their times in UTC: servers drop an event whose time has another offset.
pub(super) fn telemetry(mut events: Vec<Value>) -> Vec<Value> {
    for event in &mut events {
        let time = event["timestamp"].as_str().filter(|text| !text.ends_with('Z')).and_then(time::parse);
        if let (Some(time), Some(event)) = (time, event.as_object_mut()) {
            event.insert("timestamp".to_owned(), timestamp(time));
        }
    }
    events
}

/// Body of a metrics report. Unknown values are left out, so that the server keeps the last known ones.
pub(super) fn metrics(
    cloud: Option<&CloudMetrics>,
    cml: Option<&CmlMetrics>,
    at: Timestamp,
    interval: Option<Duration>,
) -> Value {
    let mut body = Map::from_iter([("collected_at".to_owned(), timestamp(at))]);
    let sources = [("ec2", cloud.map(known)), ("cml", cml.map(cml_utilization))];
    for (source, values) in sources {
        let values = values.filter(|values| !values.is_empty());
        body.extend(values.map(|values| (source.to_owned(), values.into())));
    }
    if let Some(interval) = interval {
        body.insert("poll_interval".to_owned(), interval.as_secs().into());
        body.insert("next_refresh_at".to_owned(), timestamp(at + interval));
    }
    body.into()
}

/// Body of a report about CML.
pub(super) fn cml_data(cml: &CmlMetrics, at: Timestamp) -> Map<String, Value> {
    let mut body = known(cml);
    body.insert("collected_at".to_owned(), timestamp(at));
    body
}

/// The fields of a value that are known.
fn known(value: &impl Serialize) -> Map<String, Value> {
    let value = serde_json::to_value(value).unwrap_or_default();
    let fields = value.as_object().cloned().unwrap_or_default();
    fields.into_iter().filter(|(_, value)| !value.is_null()).collect()
}

/// Utilization of the system in percent, as CML reports it.
fn cml_utilization(cml: &CmlMetrics) -> Map<String, Value> {
    let info = |field: &str| cml.system_info.as_ref()?.get(field)?.as_f64();
    let share = |part: &str| {
        let (used, total) = (info(&format!("all_{part}_used"))?, info(&format!("all_{part}_total"))?);
        (total > 0.0).then(|| (used / total * 1000.0).round() / 10.0)
    };
    let figures = [
        ("cpu_percent", info("all_cpu_percent")),
        ("memory_percent", share("memory")),
        ("disk_percent", share("disk")),
    ];
    figures.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?.into()))).collect()
}

/// Body of a license report. Servers require the status of a completed registration and the reason of a failure.
pub(super) fn license(report: LicenseReport, error: Option<&str>) -> Value {
    match report {
        LicenseReport::StartRegistration | LicenseReport::StartDeregistration => json!({"initiated_by": CONTROLLER}),
        LicenseReport::CompleteRegistration => json!({"registration_status": "COMPLETED"}),
        LicenseReport::CompleteDeregistration => json!({}),
        LicenseReport::FailRegistration | LicenseReport::FailDeregistration => {
            json!({"error_message": error.unwrap_or("CML refused the operation")})
        }
    }
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
            "ami_creation_date": "2026-01-01", "aws_tags": {"team": "a"}, "ec2_instance_state_detail": "ok",
        }));
        let addresses = Addresses { public_ip: None, private_ip: Some("10.0.0.1".into()) };
        assert_eq!(
            ec2_details(&worker.expect("valid"), &addresses, None),
            json!({
                "public_ip": null, "private_ip": "10.0.0.1", "ip_address": "10.0.0.1", "instance_type": "m5zn.metal",
                "ami_id": "ami-1", "ami_name": "cml", "ami_description": null, "ami_creation_date": "2026-01-01",
                "aws_tags": {"team": "a"}, "ec2_instance_state_detail": "ok",
            })
        );
    }

    #[test]
    fn described_image_replaces_that_of_the_record() {
        let record = json!({"id": "w", "status": "running", "ami_id": "ami-1", "ami_description": "old"});
        let image = ImageDetails { id: "ami-2".to_owned(), name: Some("cml".to_owned()), ..ImageDetails::default() };
        let sent = ec2_details(&Worker::try_from(record).expect("valid"), &Addresses::default(), Some(&image));
        assert_eq!((&sent["ami_id"], &sent["ami_name"]), (&json!("ami-2"), &json!("cml")));
        assert_eq!((&sent["ami_description"], &sent["ami_creation_date"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn undescribed_image_keeps_its_description() {
        let record = json!({"id": "w", "status": "running", "ami_id": "ami-1", "ami_name": "cml"});
        let image = ImageDetails { id: "ami-1".to_owned(), ..ImageDetails::default() };
        let sent = ec2_details(&Worker::try_from(record).expect("valid"), &Addresses::default(), Some(&image));
        assert_eq!((&sent["ami_id"], &sent["ami_name"]), (&json!("ami-1"), &json!("cml")));
    }
}
