//! What the control plane answers, and when it may be believed.

use reqwest::StatusCode;
use serde_json::Value;

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::idle::IdleReport;
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::json::{FieldError, Raw};
use crate::lifecycle::license::LicenseReport;
use crate::lifecycle::session::Session;
use crate::lifecycle::status::WorkerStatus;
use crate::lifecycle::worker_json::read_worker;
use crate::ports::{ImportSummary, Scope, Version, WorkerListing};
use crate::providers::http::{Reply, whole};
use crate::providers::sanitize::one_line;

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

/// Puts a record into a listing, once more through the filter: an older server ignores what it does not know.
pub(super) fn worker(listing: &mut WorkerListing, record: Raw<'_>, scope: &Scope) {
    if is_outside(&record, scope) {
        return;
    }
    match read_worker(record) {
        Ok(worker) => listing.workers.push(worker),
        Err(bad) => listing.unreadable.push(*bad),
    }
}

/// Whether a record is none that was asked for.
fn is_outside(record: &Raw<'_>, scope: &Scope) -> bool {
    let elsewhere = scope.region.as_deref().is_some_and(|region| match record.get("aws_region") {
        Some(Raw::Text(found)) => found != region,
        None | Some(Raw::Plain(Value::Null)) => true,
        // Not readable: not for us to leave out.
        Some(Raw::Object(_) | Raw::Plain(_)) => false,
    });
    let is_terminated = || match record.get("status") {
        Some(Raw::Text(status)) => status.trim().eq_ignore_ascii_case(WorkerStatus::Terminated.as_str()),
        Some(Raw::Object(_) | Raw::Plain(_)) | None => false,
    };
    elsewhere || (!scope.with_terminated && is_terminated())
}

/// A session, if it is one of a worker.
pub(super) fn session(record: Raw<'_>, worker: &WorkerId) -> Option<Result<Session, FieldError>> {
    // A server that does not say whose a session is was asked for this worker's.
    let is_ours = match record.get("worker_id") {
        None => true,
        Some(Raw::Text(id)) => id == worker.as_str(),
        Some(Raw::Object(_) | Raw::Plain(_)) => false,
    };
    is_ours.then(|| Session::try_from(record))
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

/// Longest reason why an answer is none; it may repeat what stands in it.
const LONGEST: usize = 400;

pub(super) fn unparsable(message: &str) -> CallFailure {
    CallFailure::new(FailureKind::Unparsable, one_line(message, LONGEST))
}
