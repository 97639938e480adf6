//! Parses responses of CML.
//!
//! Real systems write floats for integers, leave fields out and use undocumented spellings; all are accepted.

use reqwest::StatusCode;
use serde_json::{Map, Value};

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::license::RegistrationStatus;
use crate::lifecycle::observation::CmlMetrics;
use crate::lifecycle::secret::Secret;
use crate::providers::http::{Reply, unsigned};

/// Reads the token of a login, a bare JSON string.
pub(super) fn token(reply: &Reply) -> Result<Secret, CallFailure> {
    if !reply.status.is_success() {
        let failure = reply.failure();
        return Err(match failure.kind {
            // See the errors of `CmlClient`.
            FailureKind::Refused => {
                let message = format!("CML rejected the login: {}", failure.message);
                CallFailure { kind: FailureKind::Unreachable, message, ..failure }
            }
            FailureKind::Throttled
            | FailureKind::NoCapacity
            | FailureKind::RefusedForNow
            | FailureKind::Unclear
            | FailureKind::Unreachable
            | FailureKind::Unparsable
            | FailureKind::Conflict
            | FailureKind::NotSupported
            | FailureKind::LaunchDied => failure,
        });
    }
    match reply.json()?.as_str() {
        Some(token) if !token.is_empty() => Ok(Secret::from(token)),
        Some(_) | None => Err(unparsable("the login response holds no token")),
    }
}

/// Combines the metrics of a system. Missing responses and fields are `None`.
pub(super) fn metrics(
    information: &Value,
    stats: Option<&Value>,
    health: Option<Value>,
    labs: Option<&Value>,
    licensing: Option<Value>,
) -> Result<CmlMetrics, CallFailure> {
    if !information.is_object() {
        return Err(unparsable("system_information is not an object"));
    }
    Ok(CmlMetrics {
        cml_version: information["version"].as_str().map(str::to_owned),
        ready: information["ready"].as_bool(),
        labs_count: labs.and_then(Value::as_array).map(|labs| labs.len() as u64),
        nodes_count: stats.and_then(nodes),
        system_info: stats.map(system_info).filter(|info| !info.is_empty()),
        system_health: health.and_then(object),
        license_info: licensing.and_then(object),
        uptime_seconds: None,
    })
}

fn object(value: Value) -> Option<Map<String, Value>> {
    if let Value::Object(fields) = value { Some(fields) } else { None }
}

/// Capacity and use of the whole system, under the names that the control plane reads. Unknown values are left out.
fn system_info(stats: &Value) -> Map<String, Value> {
    let mut info = Map::new();
    let mut put = |field: String, value: Option<Value>| info.extend(value.map(|value| (field, value)));
    let all = &stats["all"];
    put("all_cpu_count".to_owned(), unsigned(&all["cpu"]["count"]).map(Value::from));
    put("all_cpu_percent".to_owned(), all["cpu"]["percent"].as_f64().map(Value::from));
    for part in ["memory", "disk"] {
        for figure in ["total", "used", "free"] {
            put(format!("all_{part}_{figure}"), unsigned(&all[part][figure]).map(Value::from));
        }
    }
    put("computes".to_owned(), stats["computes"].as_object().cloned().map(Value::from));
    info
}

/// Total number of nodes; `None` if no compute reports it.
fn nodes(stats: &Value) -> Option<u64> {
    let computes = stats["computes"].as_object()?;
    let counts = computes.values().filter_map(|compute| unsigned(&compute["stats"]["dominfo"]["total_nodes"]));
    counts.reduce(u64::saturating_add)
}

/// Reads telemetry events. An empty list means that the lab is idle, so any other JSON value is an error.
pub(super) fn events(body: Value) -> Result<Vec<Value>, CallFailure> {
    match body {
        Value::Array(events) => Ok(events),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            Err(unparsable("telemetry/events is not a list"))
        }
    }
}

/// Reads the registration status and the time of the latest attempt.
pub(super) fn registration(body: &Value) -> Result<RegistrationStatus, CallFailure> {
    let registration = &body["registration"];
    let word = registration["status"].as_str().ok_or_else(|| unparsable("licensing has no registration.status"))?;
    let status = RegistrationStatus::from_wire(word);
    Ok(match &registration["register_time"]["attempted"] {
        Value::String(mark) if !mark.is_empty() => status.attempted(mark),
        Value::Number(mark) => status.attempted(&mark.to_string()),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => status,
    })
}

/// Reads the result of a deregistration: done, done locally only (202), or done earlier (400 with a message).
pub(super) fn deregistered(reply: &Reply) -> Result<(), CallFailure> {
    if reply.status.is_success() {
        return Ok(());
    }
    let failure = reply.failure();
    if reply.status != StatusCode::BAD_REQUEST || failure.kind != FailureKind::Refused {
        return Err(failure);
    }
    let message = failure.message.to_ascii_lowercase();
    if message.contains("already been de-registered") || message.contains("already been deregistered") {
        return Ok(());
    }
    // Temporary: a refusal would cancel the deregistration for good.
    let is_temporary = message.contains("nodes are running");
    Err(if is_temporary { CallFailure { kind: FailureKind::Conflict, ..failure } } else { failure })
}

fn unparsable(message: &str) -> CallFailure {
    CallFailure::new(FailureKind::Unparsable, message)
}
