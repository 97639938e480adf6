//! Creates the templates, workers and sessions of a scenario.

use std::collections::BTreeMap;

use chrono::SecondsFormat;
use serde_json::{Map, Value};

use super::fleet::LaunchedInstance;
use super::{Scenario, ScenarioError, SessionEntry, WorkerEntry};
use crate::clock::Clock;
use crate::control_plane::{ApiError, Input, Records, SESSION_STATES};

/// Creates all records in the control plane.
pub(super) fn create(
    scenario: &Scenario,
    records: &Records,
    instances: &BTreeMap<String, LaunchedInstance>,
) -> Result<(), ScenarioError> {
    let script = &scenario.script;
    for (index, template) in script.templates.iter().enumerate() {
        Input::from_value(template.clone().into())
            .and_then(|input| records.add_template(input))
            .map_err(|error| record_error(scenario, "templates", index, &error))?;
    }
    for (index, entry) in script.workers.iter().enumerate() {
        let instance = match &entry.instance {
            None => None,
            Some(name) => Some(instances.get(name).ok_or_else(|| {
                let names: Vec<&str> = instances.keys().map(String::as_str).collect();
                let why = format!("no instance {name:?} in the fleet; accepted: {}", names.join(", "));
                scenario.error(format!("workers[{index}].instance"), why)
            })?),
        };
        let worker = Input::from_value(worker(entry, instance, records.clock()).into())
            .and_then(|input| records.add_worker(input))
            .map_err(|error| record_error(scenario, "workers", index, &error))?;
        // Serialize now, as a create request does, so that the first listing is not slower than later ones.
        worker.json();
    }
    for (index, entry) in script.sessions.iter().enumerate() {
        let status = entry.status.as_deref().unwrap_or("pending");
        if !SESSION_STATES.contains(&status) {
            let why = format!("unknown session state {status:?}; accepted: {}", SESSION_STATES.join(", "));
            return Err(scenario.error(format!("sessions[{index}].status"), why));
        }
        Input::from_value(session(entry, records.clock()).into())
            .and_then(|input| records.add_session(input))
            .map_err(|error| record_error(scenario, "sessions", index, &error))?;
    }
    Ok(())
}

fn worker(entry: &WorkerEntry, instance: Option<&LaunchedInstance>, clock: &Clock) -> Map<String, Value> {
    let region = entry.region.clone().or_else(|| instance.map(|launched| launched.region.clone()));
    let instance_id = entry.instance_id.clone().or_else(|| instance.map(|launched| launched.id.clone()));
    let created_at = entry.age.map(|age| format_time(age.before(clock.now())));
    let mut fields = entry.fields.clone();
    if let Some(created_at) = &created_at {
        // Unchanged since its creation, unless the scenario sets `updated_at`.
        fields.entry("updated_at").or_insert_with(|| created_at.as_str().into());
    }
    let named = [
        ("id", Some(entry.id.clone())),
        ("name", Some(entry.name.clone().unwrap_or_else(|| entry.id.clone()))),
        ("status", entry.status.clone()),
        ("desired_status", entry.desired_status.clone()),
        ("aws_region", Some(region.unwrap_or_else(super::default_region))),
        ("template_name", entry.template.clone()),
        ("ec2_instance_id", instance_id),
        ("created_at", created_at),
    ];
    for (field, value) in named {
        fields.extend(value.map(|value| (field.to_owned(), Value::from(value))));
    }
    fields
}

fn session(entry: &SessionEntry, clock: &Clock) -> Map<String, Value> {
    let began = entry.began.map(|age| age.before(clock.now()));
    let ends = began.zip(entry.lasts).and_then(|(began, lasts)| began.checked_add_signed(lasts.span()));
    let mut fields = entry.fields.clone();
    let named = [
        ("id", Some(entry.id.clone())),
        ("worker_id", entry.worker.clone()),
        ("status", entry.status.clone()),
        ("timeslot_start", began.map(format_time)),
        ("timeslot_end", ends.map(format_time)),
    ];
    for (field, value) in named {
        fields.extend(value.map(|value| (field.to_owned(), Value::from(value))));
    }
    fields
}

fn format_time(moment: chrono::DateTime<chrono::Utc>) -> String {
    moment.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Maps an error of the control plane to the entry and field it is about.
fn record_error(scenario: &Scenario, list: &str, index: usize, error: &ApiError) -> ScenarioError {
    match error {
        ApiError::Invalid { field, value, accepted } => {
            scenario.error(format!("{list}[{index}].{field}"), format!("{value}; accepted: {accepted}"))
        }
        ApiError::Unauthorized
        | ApiError::NotFound { .. }
        | ApiError::Mistyped { .. }
        | ApiError::NoSuchPath(_)
        | ApiError::MethodNotAllowed(_)
        | ApiError::VersionConflict { .. }
        | ApiError::WrongState { .. }
        | ApiError::Exists { .. }
        | ApiError::NotSupported { .. }
        | ApiError::TooLarge { .. } => scenario.error(format!("{list}[{index}]"), error),
    }
}
