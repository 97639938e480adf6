//! Records as the original server returns them: flat, without nulls and without the fields of later servers.

use chrono::{DateTime, Utc};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::control_plane::input::parse_time;
use crate::control_plane::worker::Worker;

/// The first fields of a worker, in the order of the response. The others follow.
const FIRST_FIELDS: [&str; 16] = [
    "id",
    "name",
    "aws_region",
    "aws_instance_id",
    "instance_type",
    "state_version",
    "status",
    "desired_status",
    "service_status",
    "ami_id",
    "ami_name",
    "ami_description",
    "ami_creation_date",
    "template_name",
    "public_ip",
    "private_ip",
];

/// A JSON object whose fields have an order.
#[derive(Debug)]
pub(super) struct Ordered(Vec<(String, Value)>);

impl Serialize for Ordered {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(field, value)| (field, value)))
    }
}

/// Fields of a worker that are returned as they are stored.
const WORKER_FIELDS: [&str; 23] = [
    "id",
    "name",
    "aws_region",
    "instance_type",
    "status",
    "service_status",
    "ami_id",
    "ami_name",
    "ami_description",
    "ami_creation_date",
    "template_name",
    "public_ip",
    "private_ip",
    "cml_version",
    "cml_ready",
    "cml_labs_count",
    "cml_uptime_seconds",
    "cml_system_info",
    "cml_system_health",
    "cml_license_info",
    "poll_interval",
    "next_refresh_at",
    "declared_capacity",
];

/// Times of a worker, which are returned without an offset.
const WORKER_TIMES: [&str; 3] = ["created_at", "updated_at", "terminated_at"];

/// Returns a worker. Its guard, its notes, its origin and its pending license operation are not part of the record.
pub(super) fn worker(worker: &Worker, session_ids: &[String]) -> Ordered {
    let mut view: Map<String, Value> = WORKER_FIELDS
        .iter()
        .filter_map(|field| Some(((*field).to_owned(), worker.get(field)?.clone())))
        .filter(|(_, value)| !value.is_null())
        .collect();
    view.entry("service_status").or_insert_with(|| "unavailable".into());
    view.insert("desired_status".into(), desired(worker).into());
    view.insert("state_version".into(), worker.get("state_version").and_then(Value::as_u64).unwrap_or(0).into());
    view.insert("session_ids".into(), session_ids.into());
    let license = worker.get("license");
    let license = |field: &str| license.and_then(|license| license.get(field)).cloned();
    let times = WORKER_TIMES.map(|field| (field, worker.time(field).map(|time| Value::from(naive(time)))));
    let derived = [
        ("aws_instance_id", worker.instance_id().map(Value::from)),
        ("license_status", license("status")),
        ("license_token", license("token")),
        ("cpu_utilization", utilization(worker, "cpu").map(Value::from)),
        ("memory_utilization", utilization(worker, "memory").map(Value::from)),
        ("network_in_bytes", worker.get("cloudwatch_network_in_bytes").cloned()),
        ("network_out_bytes", worker.get("cloudwatch_network_out_bytes").cloned()),
    ];
    for (field, value) in derived.into_iter().chain(times) {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            view.insert(field.into(), value);
        }
    }
    let first = FIRST_FIELDS.iter().filter_map(|field| view.remove_entry(*field));
    let mut ordered: Vec<(String, Value)> = first.collect();
    ordered.extend(view);
    Ordered(ordered)
}

/// Returns the desired status, which every worker of the original server has.
pub(super) fn desired(worker: &Worker) -> &str {
    worker.desired().unwrap_or("running")
}

/// Returns a utilization in percent: from CML if it reported one, otherwise from CloudWatch.
fn utilization(worker: &Worker, resource: &str) -> Option<f64> {
    let info = |field: &str| worker.get("cml_system_info")?.get(format!("all_{resource}_{field}"))?.as_f64();
    let from_cml =
        info("percent").or_else(|| Some(info("used")? / info("total").filter(|total| *total > 0.0)? * 100.0));
    from_cml.or_else(|| worker.get(&format!("cloudwatch_{resource}_utilization"))?.as_f64())
}

/// Returns the capacity that the server derives from the system information of CML.
pub(super) fn declared_capacity(system_info: &Map<String, Value>) -> Option<Value> {
    let count = |field: &str| system_info.get(field).and_then(Value::as_u64);
    let gigabytes = |field: &str| count(field).map(|bytes| bytes / (1024 * 1024 * 1024));
    Some(json!({
        "cpu_cores": count("all_cpu_count")?, "memory_gb": gigabytes("all_memory_total")?,
        "storage_gb": gigabytes("all_disk_total"), "max_nodes": null,
    }))
}

/// Session states in which a session occupies its worker.
const ACTIVE: [&str; 6] = ["instantiating", "ready", "running", "collecting", "grading", "stopping"];
/// Session states that a session never leaves.
const TERMINAL: [&str; 3] = ["archived", "terminated", "expired"];

/// Returns a session. It has no retry counter.
pub(super) fn session(session: &Map<String, Value>) -> Value {
    let text = |field: &str| session.get(field).and_then(Value::as_str);
    let status = text("status").unwrap_or_default();
    let mut view = Map::from_iter([
        ("is_active".to_owned(), ACTIVE.contains(&status).into()),
        ("is_terminal".to_owned(), TERMINAL.contains(&status).into()),
    ]);
    for field in ["id", "definition_id", "definition_name", "definition_version", "owner_id", "status", "worker_id"] {
        if let Some(value) = session.get(field).filter(|value| !value.is_null()) {
            view.insert(field.to_owned(), value.clone());
        }
    }
    for field in ["timeslot_start", "timeslot_end", "created_at"] {
        if let Some(time) = text(field).and_then(parse_time) {
            view.insert(field.to_owned(), aware(time).into());
        }
    }
    view.into()
}

/// Fields of a template. The drain timeout and the license are not among them.
const TEMPLATE_FIELDS: [&str; 11] = [
    "id",
    "name",
    "description",
    "instance_type",
    "ami_name_pattern",
    "capacity",
    "cost_per_hour_usd",
    "enabled",
    "deleted",
    "created_at",
    "updated_at",
];

/// Returns a template.
pub(super) fn template(template: &Map<String, Value>) -> Value {
    let field = |name: &&str| Some(((*name).to_owned(), template.get(*name)?.clone()));
    Value::Object(TEMPLATE_FIELDS.iter().filter_map(field).collect())
}

/// Formats a time with its offset, as `2026-02-06T08:00:00+00:00`. Microseconds are left out if they are zero.
pub(super) fn aware(time: DateTime<Utc>) -> String {
    let precision =
        if time.timestamp_subsec_micros() == 0 { "%Y-%m-%dT%H:%M:%S+00:00" } else { "%Y-%m-%dT%H:%M:%S%.6f+00:00" };
    time.format(precision).to_string()
}

/// Formats a time without an offset, as `2026-02-06T08:00:00.000000`.
fn naive(time: DateTime<Utc>) -> String {
    time.format("%Y-%m-%dT%H:%M:%S%.6f").to_string()
}
