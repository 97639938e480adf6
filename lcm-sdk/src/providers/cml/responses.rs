//! What CML answers, read with patience: floats where integers belong, fields that are not there, spellings nobody
//! documented.

use reqwest::StatusCode;
use serde_json::Value;

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::license::RegistrationStatus;
use crate::lifecycle::observation::CmlMetrics;
use crate::lifecycle::secret::Secret;
use crate::providers::http::{Reply, whole};

/// The token of a sign-in: a bare JSON text.
pub(super) fn token(reply: &Reply) -> Result<Secret, CallFailure> {
    if !reply.status.is_success() {
        let failure = reply.failure();
        return Err(match failure.kind {
            // Nobody could be asked as this user; see the client's docs.
            FailureKind::Refused => {
                let message = format!("CML does not let this user in: {}", failure.message);
                CallFailure { kind: FailureKind::Unreachable, message, ..failure }
            }
            FailureKind::Throttled
            | FailureKind::NoCapacity
            | FailureKind::Unclear
            | FailureKind::Unreachable
            | FailureKind::Unparsable
            | FailureKind::Conflict
            | FailureKind::LaunchDied => failure,
        });
    }
    match reply.json()?.as_str() {
        Some(token) if !token.is_empty() => Ok(Secret::from(token)),
        Some(_) | None => Err(unparsable("the answer to a sign-in is no token")),
    }
}

/// What a system says about itself. What it does not say is missing alone; saying nothing at all is no answer.
pub(super) fn metrics(
    information: &Value,
    stats: Option<&Value>,
    labs: Option<&Value>,
) -> Result<CmlMetrics, CallFailure> {
    if !information.is_object() {
        return Err(unparsable("system_information is no object"));
    }
    Ok(CmlMetrics {
        version: information["version"].as_str().map(str::to_owned),
        ready: information["ready"].as_bool(),
        labs_count: labs.and_then(Value::as_array).map(|labs| labs.len() as u64),
        nodes_count: stats.and_then(nodes),
    })
}

/// The nodes of all computes together; unknown if no compute tells.
fn nodes(stats: &Value) -> Option<u64> {
    let computes = stats["computes"].as_object()?;
    let told = computes.values().filter_map(|compute| whole(&compute["stats"]["dominfo"]["total_nodes"]));
    told.reduce(u64::saturating_add)
}

/// Telemetry events. Anything but a list is no telemetry, and must not read as "nothing happened".
pub(super) fn events(answer: Value) -> Result<Vec<Value>, CallFailure> {
    match answer {
        Value::Array(events) => Ok(events),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            Err(unparsable("telemetry/events is no list"))
        }
    }
}

/// How a registration stands: CML's word, and its mark of the latest attempt.
pub(super) fn registration(answer: &Value) -> Result<RegistrationStatus, CallFailure> {
    let registration = &answer["registration"];
    let word = registration["status"].as_str().ok_or_else(|| unparsable("licensing has no registration.status"))?;
    let status = RegistrationStatus::from_wire(word);
    Ok(match &registration["register_time"]["attempted"] {
        Value::String(mark) if !mark.is_empty() => status.attempted(mark),
        Value::Number(mark) => status.attempted(&mark.to_string()),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => status,
    })
}

/// Whether a licence is given back: done, done locally only (202), or done before (400, in words).
pub(super) fn deregistered(reply: &Reply) -> Result<(), CallFailure> {
    if reply.status.is_success() {
        return Ok(());
    }
    let failure = reply.failure();
    if reply.status != StatusCode::BAD_REQUEST || failure.kind != FailureKind::Refused {
        return Err(failure);
    }
    let words = failure.message.to_ascii_lowercase();
    if words.contains("already been de-registered") || words.contains("already been deregistered") {
        return Ok(());
    }
    // A final refusal would clear the intent, but nodes stop.
    let passes = words.contains("nodes are running");
    Err(if passes { CallFailure { kind: FailureKind::Conflict, ..failure } } else { failure })
}

fn unparsable(message: &str) -> CallFailure {
    CallFailure::new(FailureKind::Unparsable, message)
}
