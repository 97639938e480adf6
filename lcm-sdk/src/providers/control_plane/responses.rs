//! Parses responses of the control plane.
//!
//! A list is deserialized record by record from the response body. A list of a large fleet is tens of megabytes, and
//! several times that as a tree of JSON values.

use std::fmt;
use std::marker::PhantomData;

use reqwest::StatusCode;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::idle::IdleReport;
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::json::{FieldError, Name, Raw};
use crate::lifecycle::license::LicenseReport;
use crate::lifecycle::session::Session;
use crate::lifecycle::status::{DesiredStatus, WorkerStatus};
use crate::lifecycle::worker_json::read_worker;
use crate::ports::{ImportSummary, Scope, Version, WorkerListing};
use crate::providers::http::{Reply, unsigned};
use crate::providers::sanitize::one_line;

/// Maximum length of a parse error, in characters. It may quote the response.
const MAX_ERROR_LENGTH: usize = 400;

/// Field names that known servers use for the list. The first one present wins.
const LIST_FIELDS: [&str; 6] = ["items", "data", "results", "workers", "sessions", "lablet_sessions"];

/// Envelope fields that report further pages or the total length.
const PAGING_FIELDS: [&str; 7] = ["next", "next_page", "next_cursor", "has_more", "has_next", "total", "total_count"];

/// Reads a resource; `None` if the service itself reported that it does not exist.
pub(super) fn found(reply: Reply, name: &str) -> Result<Option<Value>, CallFailure> {
    if is_absence(&reply, name) {
        return Ok(None);
    }
    reply.success()?.json().map(Some)
}

/// Whether the service reported that the resource with this id or name does not exist. A 404 of a gateway or for an
/// unknown path names no resource.
pub(super) fn is_absence(reply: &Reply, name: &str) -> bool {
    if reply.status != StatusCode::NOT_FOUND {
        return false;
    }
    let Ok(problem) = reply.json() else { return false };
    let has_text = |field: &str| problem[field].is_string();
    // The service's own errors have title, status, detail and type; the detail quotes the id.
    let is_of_service = problem["status"] == 404 && has_text("title") && has_text("type");
    let is_quoted = |detail: &str| ["'", "\""].iter().any(|quote| detail.contains(&format!("{quote}{name}{quote}")));
    let is_named = is_of_service && problem["detail"].as_str().is_some_and(is_quoted);
    is_named || (problem["error"] == "not_found" && has_text("kind") && problem["id"] == name)
}

/// Whether the service reported, in JSON, that the endpoint does not exist.
pub(super) fn is_route_missing(reply: &Reply) -> bool {
    let Ok(problem) = reply.json() else { return false };
    match reply.status {
        StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => true,
        // FastAPI and Starlette send exactly this body for an unknown path.
        StatusCode::NOT_FOUND => {
            problem["error"] == "no_such_path" || problem == serde_json::json!({"detail": "Not Found"})
        }
        _ => false,
    }
}

/// Whether the service itself refused the request as one that it never accepts, with an error of its own.
pub(super) fn is_bad_request(reply: &Reply) -> bool {
    let Ok(problem) = reply.json() else { return false };
    reply.status == StatusCode::BAD_REQUEST && problem["status"] == 400 && problem["type"].is_string()
}

/// The desired status in the response to a write, if it shows one.
pub(super) fn desired_status(reply: &Reply) -> Option<DesiredStatus> {
    reply.json().ok()?["desired_status"].as_str()?.parse().ok()
}

/// Version of the record after a write, from the `ETag` header or the record in the body.
pub(super) fn version(reply: &Reply) -> Version {
    reply.version.or_else(|| reply.json().ok().and_then(|record| unsigned(&record["version"])))
}

/// Adds a record to a listing if it is in scope. Older servers ignore filters they do not know.
pub(super) fn worker(listing: &mut WorkerListing, record: Raw<'_>, scope: &Scope) {
    if is_outside(&record, scope) {
        return;
    }
    match read_worker(record) {
        Ok(worker) => listing.workers.push(worker),
        Err(unreadable) => listing.unreadable.push(*unreadable),
    }
}

fn is_outside(record: &Raw<'_>, scope: &Scope) -> bool {
    let is_elsewhere = scope.region.as_deref().is_some_and(|region| match record.get("aws_region") {
        Some(Raw::Text(found)) => found != region,
        // An unreadable region counts as absent.
        None | Some(Raw::Object(_) | Raw::Plain(_)) => true,
    });
    let is_terminated = || match record.get("status") {
        Some(Raw::Text(status)) => status.trim().eq_ignore_ascii_case(WorkerStatus::Terminated.as_str()),
        Some(Raw::Object(_) | Raw::Plain(_)) | None => false,
    };
    is_elsewhere || (!scope.with_terminated && is_terminated())
}

/// Reads a session; `None` if it belongs to another worker.
pub(super) fn session(record: Raw<'_>, worker: &WorkerId) -> Option<Result<Session, FieldError>> {
    // A server that leaves the field out has filtered by worker.
    let is_assigned = match record.get("worker_id") {
        None => true,
        Some(Raw::Text(id)) => id == worker.as_str(),
        Some(Raw::Object(_) | Raw::Plain(_)) => false,
    };
    is_assigned.then(|| Session::try_from(record))
}

/// Reads the result of idle detection.
pub(super) fn idle(body: Value) -> Result<IdleReport, CallFailure> {
    serde_json::from_value(body).map_err(|error| unparsable(&format!("invalid idle report: {error}")))
}

/// Reads the result of an import. Each field is a total or the list of imported instances.
pub(super) fn import(body: &Value) -> ImportSummary {
    let count = |field: &str| {
        let listed = || body[field].as_array().map(|list| list.len() as u64);
        let total = unsigned(&body[format!("total_{field}")]);
        total.or_else(|| unsigned(&body[field])).or_else(listed).unwrap_or(0) as usize
    };
    ImportSummary { imported: count("imported"), skipped: count("skipped"), updated: count("updated") }
}

/// Reads a switch; `None` if the field is missing or null.
///
/// # Errors
/// [`FailureKind::Unparsable`] for any other value: a switch must not turn on by mistake.
pub(super) fn switch(body: &Value, field: &str) -> Result<Option<bool>, CallFailure> {
    match &body[field] {
        Value::Null => Ok(None),
        Value::Bool(switch) => Ok(Some(*switch)),
        other => Err(unparsable(&format!("invalid {field} '{other}': expected true or false"))),
    }
}

/// Strings of a JSON array, without its other elements.
pub(super) fn texts(value: &Value) -> Vec<String> {
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Path segment of the endpoint for a license report.
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

fn unparsable(message: &str) -> CallFailure {
    CallFailure::new(FailureKind::Unparsable, one_line(message, MAX_ERROR_LENGTH))
}

/// Reads a complete list, bare or in an envelope, and folds its records into `T` with `add`.
///
/// # Errors
/// [`FailureKind::Unparsable`] if the body holds no list, or reports further pages.
pub(super) fn list<T: Default>(reply: &Reply, add: impl FnMut(&mut T, Raw<'_>)) -> Result<T, CallFailure> {
    match page(reply, 0, add)? {
        (_, Rest::More) => Err(partial()),
        (records, Rest::None | Rest::Unknown) => Ok(records),
    }
}

/// Records of a list that follow a page, as far as the response reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    None,
    More,
    Unknown,
}

/// Reads one page of a list after `skip` records.
///
/// # Errors
/// [`FailureKind::Unparsable`] if the body holds no list.
pub(super) fn page<T: Default>(
    reply: &Reply,
    skip: usize,
    mut add: impl FnMut(&mut T, Raw<'_>),
) -> Result<(T, Rest), CallFailure> {
    match reply.json_as(ListReader(&mut add, PhantomData))? {
        Body::List(list) => Ok((list.records, Rest::Unknown)),
        Body::Envelope(envelope) => envelope.into_page(skip as u64),
        Body::Other => Err(unparsable("the response is not a list")),
    }
}

/// The failure of a list without its end.
pub(super) fn partial() -> CallFailure {
    unparsable("the response is only part of the list")
}

enum Body<T> {
    List(List<T>),
    Envelope(Envelope<T>),
    Other,
}

struct List<T> {
    records: T,
    length: u64,
}

struct Envelope<T> {
    lists: Vec<(&'static str, List<T>)>,
    paging: Map<String, Value>,
}

impl<T> Envelope<T> {
    fn into_page(mut self, skip: u64) -> Result<(T, Rest), CallFailure> {
        let place = LIST_FIELDS.iter().find_map(|name| self.lists.iter().position(|(found, _)| found == name));
        let Some(place) = place else { return Err(unparsable("the response holds no list")) };
        let (_, list) = self.lists.swap_remove(place);
        let paging = self.paging;
        let has_next = ["next", "next_page", "next_cursor"]
            .iter()
            .any(|field| paging.get(*field).is_some_and(|next| !next.is_null() && next != false && next != ""));
        let total = paging.get("total").or_else(|| paging.get("total_count")).and_then(unsigned);
        let more = paging.get("has_more").or_else(|| paging.get("has_next")).and_then(Value::as_bool);
        let is_short = total.is_some_and(|total| total > skip + list.length);
        let rest = if has_next || more == Some(true) || is_short {
            Rest::More
        } else if more == Some(false) || total.is_some() {
            Rest::None
        } else {
            Rest::Unknown
        };
        Ok((list.records, rest))
    }
}

struct ListReader<'f, T, F>(&'f mut F, PhantomData<T>);

impl<'de, T: Default, F: FnMut(&mut T, Raw<'_>)> DeserializeSeed<'de> for ListReader<'_, T, F> {
    type Value = Body<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Body<T>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Default, F: FnMut(&mut T, Raw<'_>)> Visitor<'de> for ListReader<'_, T, F> {
    type Value = Body<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Body<T>, A::Error> {
        let mut list = List { records: T::default(), length: 0 };
        while let Some(record) = items.next_element::<Raw<'de>>()? {
            list.length += 1;
            (self.0)(&mut list.records, record);
        }
        Ok(Body::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Body<T>, A::Error> {
        let mut envelope = Envelope { lists: Vec::new(), paging: Map::new() };
        while let Some(Name(name)) = map.next_key::<Name<'de>>()? {
            if let Some(known) = LIST_FIELDS.iter().copied().find(|known| *known == name) {
                // The last of duplicate fields counts, even if it is not a list.
                envelope.lists.retain(|(earlier, _)| *earlier != known);
                if let Body::List(list) = map.next_value_seed(ListReader(&mut *self.0, PhantomData))? {
                    envelope.lists.push((known, list));
                }
            } else if PAGING_FIELDS.contains(&name.as_ref()) {
                envelope.paging.insert(name.into_owned(), map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Body::Envelope(envelope))
    }

    fn visit_unit<E: Error>(self) -> Result<Body<T>, E> {
        Ok(Body::Other)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Body<T>, E> {
        Ok(Body::Other)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Body<T>, E> {
        Ok(Body::Other)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Body<T>, E> {
        Ok(Body::Other)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Body<T>, E> {
        Ok(Body::Other)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Body<T>, E> {
        Ok(Body::Other)
    }
}
