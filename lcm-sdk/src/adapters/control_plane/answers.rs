//! What the control plane answers, and when it may be believed.

use reqwest::StatusCode;
use serde_json::Value;

use crate::adapters::http::{Reply, whole};
use crate::adapters::quote::one_line;
use crate::core::failure::{CallFailure, FailureKind};
use crate::core::idle::IdleReport;
use crate::core::ids::WorkerId;
use crate::core::license::LicenseReport;
use crate::core::session::Session;
use crate::core::worker_json::read_workers;
use crate::ports::{ImportSummary, Scope, Version, WorkerListing};

/// The names a list goes by in the servers of the field.
const LISTS: [&str; 6] = ["items", "data", "results", "workers", "sessions", "lablet_sessions"];

/// The thing that was asked for; `None` if the server said that there is none.
pub(super) fn found(reply: Reply) -> Result<Option<Value>, CallFailure> {
    if reply.status == StatusCode::NOT_FOUND && reply.json().is_ok() && !is_route_missing(&reply) {
        return Ok(None);
    }
    reply.success()?.json().map(Some)
}

/// Whether the server says, in its own words, that it has no such endpoint at all.
pub(super) fn is_route_missing(reply: &Reply) -> bool {
    let Ok(problem) = reply.json() else { return false };
    match reply.status {
        StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => true,
        // `Not Found` and nothing else is what a Python server says about a path it does not know.
        StatusCode::NOT_FOUND => {
            problem["error"] == "no_such_path" || problem == serde_json::json!({"detail": "Not Found"})
        }
        _ => false,
    }
}

/// The version of the record after a write.
pub(super) fn version(reply: &Reply) -> Version {
    reply.version.or_else(|| reply.json().ok().and_then(|record| whole(&record["version"])))
}

/// A listing, once more through the filter: an older server ignores what it does not know.
pub(super) fn workers(listing: Value, scope: &Scope) -> Result<WorkerListing, CallFailure> {
    let mut records = list(listing)?;
    records.retain(|record| {
        let elsewhere = scope.region.as_deref().is_some_and(|region| match &record["aws_region"] {
            Value::String(found) => found != region,
            Value::Null => true,
            // Not readable: told apart below, never dropped.
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => false,
        });
        let status = record["status"].as_str().unwrap_or_default();
        let hidden = !scope.with_terminated && status.trim().eq_ignore_ascii_case("terminated");
        !elsewhere && !hidden
    });
    let (workers, unreadable) = read_workers(records);
    Ok(WorkerListing { workers, unreadable })
}

/// The sessions of a worker. One that cannot be read spoils the listing: it may be somebody's work.
pub(super) fn sessions(listing: Value, worker: &WorkerId) -> Result<Vec<Session>, CallFailure> {
    let mut records = list(listing)?;
    // A server that does not say whose a session is was asked for this worker's.
    records.retain(|record| record.get("worker_id").is_none_or(|id| id == worker.as_str()));
    let read = records.into_iter().map(Session::try_from).collect::<Result<_, _>>();
    read.map_err(|error| CallFailure::new(FailureKind::Unparsable, error.to_string()))
}

/// A verdict of idle detection.
pub(super) fn idle(answer: Value) -> Result<IdleReport, CallFailure> {
    serde_json::from_value(answer).map_err(|error| unparsable(&format!("no report of idle detection ({error})")))
}

/// What became of an import: totals, or the lists themselves.
pub(super) fn import(answer: &Value) -> ImportSummary {
    let count = |field: &str| {
        let listed = || answer[field].as_array().map(|list| list.len() as u64);
        let total = whole(&answer[format!("total_{field}")]);
        total.or_else(|| whole(&answer[field])).or_else(listed).unwrap_or(0) as usize
    };
    ImportSummary { imported: count("imported"), skipped: count("skipped"), updated: count("updated") }
}

/// The texts in a list; anything else in it is left out.
pub(super) fn texts(value: &Value) -> Vec<String> {
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The endpoint of a licence report.
pub(super) const fn license_step(report: LicenseReport) -> &'static str {
    match report {
        LicenseReport::StartRegistration => "start-registration",
        LicenseReport::CompleteRegistration => "complete-registration",
        LicenseReport::FailRegistration => "fail-registration",
        LicenseReport::StartDeregistration => "start-deregistration",
        LicenseReport::CompleteDeregistration => "complete-deregistration",
        LicenseReport::FailDeregistration => "fail-deregistration",
    }
}

/// A whole list, bare or in an envelope.
fn list(answer: Value) -> Result<Vec<Value>, CallFailure> {
    match answer {
        Value::Array(items) => Ok(items),
        Value::Object(mut envelope) => {
            let name = LISTS.iter().find(|name| envelope.get(**name).is_some_and(Value::is_array));
            let items = name.and_then(|name| envelope.remove(*name));
            let Some(Value::Array(items)) = items else { return Err(unparsable("there is no list in the answer")) };
            let more = ["next", "next_page", "next_cursor"]
                .iter()
                .any(|hint| envelope.get(*hint).is_some_and(|hint| !hint.is_null() && hint != false && hint != ""));
            let told = envelope.get("total").or_else(|| envelope.get("total_count")).and_then(whole);
            let has_more = envelope.get("has_more").or_else(|| envelope.get("has_next")) == Some(&Value::Bool(true));
            if more || has_more || told.is_some_and(|total| total > items.len() as u64) {
                return Err(unparsable("the answer is only a part of the list"));
            }
            Ok(items)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(unparsable("the answer is no list")),
    }
}

/// Longest reason why an answer is none; it may repeat what stands in it.
const LONGEST: usize = 400;

fn unparsable(message: &str) -> CallFailure {
    CallFailure::new(FailureKind::Unparsable, one_line(message, LONGEST))
}
