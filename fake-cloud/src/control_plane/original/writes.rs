//! Changes of a worker by the original server, where they differ from those of later servers.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Map, Value, json};

use super::view;
use crate::control_plane::error::ApiError;
use crate::control_plane::idle::{self, IdleState};
use crate::control_plane::input::format_time;
use crate::control_plane::records::{ChangeKind, Draft, Records};
use crate::control_plane::settings::AutoPause;
use crate::control_plane::worker::Worker;
use std::sync::Arc;

/// Instance details, which are overwritten together.
pub(super) const EC2_DETAILS: [&str; 7] =
    ["public_ip", "private_ip", "instance_type", "ami_id", "ami_name", "ami_description", "ami_creation_date"];

/// Addresses of a worker.
const ADDRESSES: [&str; 3] = ["public_ip", "private_ip", "ip_address"];
/// Figures that a stop clears.
const METRICS: [&str; 5] = [
    "cloudwatch_cpu_utilization",
    "cloudwatch_memory_utilization",
    "cloudwatch_network_in_bytes",
    "cloudwatch_network_out_bytes",
    "cml_system_info",
];

/// CML data, which is replaced as a whole.
#[derive(Debug, Clone)]
pub(super) struct CmlData {
    pub(super) version: Option<String>,
    pub(super) ready: Value,
    pub(super) system_info: Option<Map<String, Value>>,
    pub(super) system_health: Option<Map<String, Value>>,
    pub(super) license_info: Option<Map<String, Value>>,
    pub(super) uptime_seconds: Option<Value>,
    pub(super) labs_count: i64,
}

/// Result of a termination.
#[derive(Debug, Clone)]
pub(super) struct Terminated {
    pub(super) worker: Arc<Worker>,
    /// Status before the termination; `None` if the worker was already terminated.
    pub(super) old_status: Option<String>,
}

impl Records {
    /// Writes a status and an instance id. An unchanged status writes nothing.
    pub(super) fn original_status(
        &self,
        id: &str,
        status: &'static str,
        instance: Option<String>,
    ) -> Result<Arc<Worker>, ApiError> {
        let changed = self.change(id, None, |draft| {
            if draft.worker.status() == status {
                draft.weight = ChangeKind::Measurement;
                return Ok(());
            }
            // The time of an earlier termination is kept.
            let terminated_at = draft.worker.get("terminated_at").cloned().unwrap_or_default();
            draft.set_status(status, None);
            draft.worker.set("terminated_at", terminated_at);
            if status == "stopped" {
                clear(&mut draft.worker, &ADDRESSES);
                clear(&mut draft.worker, &METRICS);
            }
            if let Some(instance) = instance.filter(|instance| !instance.is_empty()) {
                draft.worker.set("ec2_instance_id", instance);
                clear(&mut draft.worker, &ADDRESSES);
            }
            Ok(())
        })?;
        Ok(changed.0)
    }

    /// Terminates a record. Its sessions go on.
    pub(super) fn original_terminate(
        &self,
        id: &str,
        reason: Option<&str>,
        terminated_by: Option<&str>,
    ) -> Result<Terminated, ApiError> {
        let (worker, old_status) = self.change(id, None, |draft| {
            let old_status = draft.worker.status().to_owned();
            if old_status == "terminated" {
                draft.weight = ChangeKind::Measurement;
                return Ok(None);
            }
            draft.set_status("terminated", reason);
            draft.mark_terminated(reason, terminated_by);
            Ok(Some(old_status))
        })?;
        Ok(Terminated { worker, old_status })
    }

    /// Overwrites all instance details; those that are not given become null.
    pub(super) fn original_ec2_details(
        &self,
        id: &str,
        details: [Option<String>; EC2_DETAILS.len()],
    ) -> Result<Arc<Worker>, ApiError> {
        let changed = self.change(id, None, |draft| {
            for (field, value) in EC2_DETAILS.into_iter().zip(details) {
                draft.worker.set(field, value);
            }
            Ok(())
        })?;
        Ok(changed.0)
    }

    /// Stores nested metrics; a body without them stores nothing.
    pub(super) fn original_metrics(
        &self,
        id: &str,
        ec2: &Map<String, Value>,
        cml: &Map<String, Value>,
        refresh: [(&'static str, Option<Value>); 2],
    ) -> Result<Arc<Worker>, ApiError> {
        let changed = self.change(id, None, |draft| {
            draft.weight = ChangeKind::Measurement;
            for resource in ["cpu", "memory"] {
                let given = ec2.get(&format!("{resource}_utilization")).filter(|value| !value.is_null());
                if let Some(value) = given.or_else(|| cml.get(&format!("{resource}_percent"))) {
                    draft.worker.set(&format!("cloudwatch_{resource}_utilization"), value.clone());
                }
            }
            for (field, value) in ec2.iter().filter(|(field, value)| field.starts_with("network") && !value.is_null()) {
                draft.worker.set(&format!("cloudwatch_{field}"), value.clone());
            }
            for (field, value) in refresh {
                if let Some(value) = value {
                    draft.worker.set(field, value);
                }
            }
            Ok(())
        })?;
        Ok(changed.0)
    }

    /// Replaces all CML data. The capacity is derived from the system information and kept without it.
    pub(super) fn original_cml_data(&self, id: &str, data: CmlData) -> Result<Arc<Worker>, ApiError> {
        let changed = self.change(id, None, |draft| {
            draft.weight = ChangeKind::Measurement;
            let unknown = json!({
                "valid": false, "is_licensed": false, "is_enterprise": false, "computes": {}, "controller": {},
            });
            if let Some(capacity) = data.system_info.as_ref().and_then(view::declared_capacity) {
                draft.worker.set("declared_capacity", capacity);
            }
            if data.ready == Value::Bool(true) {
                draft.worker.set("service_status", "available");
            }
            let health = data.system_health.map_or(unknown, Value::Object);
            for (field, value) in [
                ("cml_version", data.version.into()),
                ("cml_ready", data.ready),
                ("cml_system_info", data.system_info.map_or(Value::Null, Value::Object)),
                ("cml_system_health", health),
                ("cml_license_info", data.license_info.map_or(Value::Null, Value::Object)),
                ("cml_uptime_seconds", data.uptime_seconds.unwrap_or_default()),
                ("cml_labs_count", data.labs_count.into()),
            ] {
                draft.worker.set(field, value);
            }
            Ok(())
        })?;
        Ok(changed.0)
    }

    /// Checks whether a worker is idle, and pauses it if it is eligible.
    pub(super) fn original_detect_idle(&self, id: &str, events: &[Value]) -> Result<(IdleState, Paused), ApiError> {
        let latest = latest_activity(events);
        let (_, found) = self.change(id, None, |draft| {
            draft.weight = ChangeKind::Measurement;
            if let Some((at, event)) = &latest {
                draft.set_last_activity(*at, event);
            }
            let state = original_idle_state(&draft.worker, draft.settings.idle, draft.now);
            if !state.eligible_for_pause {
                return Ok((state, Paused::No));
            }
            let minutes = state.idle_minutes.unwrap_or_default();
            draft.original_pause(&format!("Auto-paused after {minutes:.1} minutes idle"))?;
            Ok((state, Paused::Yes))
        })?;
        Ok(found)
    }

    /// Returns the idle status of a worker and the end of its snooze period, without a change.
    pub(super) fn original_idle_status(&self, id: &str) -> Result<(IdleState, Option<DateTime<Utc>>), ApiError> {
        let worker = self.worker(id)?;
        let rules = self.settings().idle;
        let state = original_idle_state(&worker, rules, self.clock().now());
        let until = worker.time("last_resumed_at").zip(TimeDelta::from_std(rules.snooze).ok());
        Ok((state.clone(), until.map(|(resumed, snooze)| resumed + snooze).filter(|_| state.in_snooze_period)))
    }

    /// Returns whether the server pauses a worker that is idle.
    pub(super) fn original_auto_pause(&self, id: &str) -> bool {
        self.settings().idle.auto_pause == AutoPause::On
            && self.worker(id).is_ok_and(|worker| worker.is_enabled("is_auto_pause_enabled"))
    }
}

/// Whether idle detection paused a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Paused {
    Yes,
    No,
}

impl Draft<'_> {
    fn original_pause(&mut self, reason: &str) -> Result<(), ApiError> {
        self.weight = ChangeKind::Change;
        self.worker.set("last_paused_at", format_time(self.now));
        self.worker.set("pause_reason", reason);
        self.set_desired_status(Some("stopped"))
    }
}

/// A worker without recorded activity has an unknown idle time, even though its age counts as one.
fn original_idle_state(
    worker: &Worker,
    rules: crate::control_plane::settings::IdleRules,
    now: DateTime<Utc>,
) -> IdleState {
    let state = idle::idle_state(worker, rules, now);
    let idle_minutes = state.idle_minutes.filter(|_| worker.time("last_activity_at").is_some());
    IdleState { idle_minutes, ..state }
}

/// Returns the latest activity. Times with an offset other than `Z` are dropped, and so are events without a time.
fn latest_activity(events: &[Value]) -> Option<(DateTime<Utc>, Value)> {
    let is_read = |event: &&Value| {
        let text = event.get("timestamp").and_then(Value::as_str).unwrap_or_default();
        let time = text.split_once('T').map_or("", |(_, time)| time);
        !time.contains(['+', '-']) && event.get("category").is_some_and(Value::is_string)
    };
    let read: Vec<Value> = events.iter().filter(is_read).cloned().collect();
    idle::latest_activity(&read).ok().flatten()
}

fn clear(worker: &mut Worker, fields: &[&str]) {
    for field in fields {
        worker.set(field, Value::Null);
    }
}
