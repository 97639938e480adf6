//! The web console under `/_fake/ui/`: its files, the stream of changes, and the details that its views request.

mod rows;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::header::IF_NONE_MATCH;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use chrono::{DateTime, Utc};
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::services::ResetTo;
use super::{AdminError, AdminResult, AdminState, services};
use crate::control_plane::{SessionFilter, WorkerFilter};
use crate::etcd::{KeyRange, Range};
use crate::request_log::RequestFilter;
use crate::scenario::BUILTIN;
use crate::world::World;

pub(crate) use self::stream::Stopping;
pub(super) use self::stream::Streams;

/// Path of the console.
pub(crate) const PATH: &str = "/_fake/ui/";

/// Largest number of keys that the view of etcd reads.
const MAX_KEYS: usize = 2000;

/// Longest value of a key that is shown, in characters.
const MAX_VALUE: usize = 4000;

/// Largest number of requests in the timeline of a worker.
const MAX_REQUESTS: usize = 500;

/// The environment of clients of this cloud, as the program prints it.
#[derive(Debug, Clone)]
pub(crate) struct Exports(pub(crate) Value);

pub(super) fn router() -> Router<AdminState> {
    Router::new()
        .route("/_fake/ui", get(|| async { Redirect::temporary(PATH) }))
        .route("/_fake/ui/", get(|headers: HeaderMap| async move { file("", &headers) }))
        .route("/_fake/ui/{file}", get(any_file))
        .route("/_fake/ui/config.json", get(config))
        .route("/_fake/ui/events", get(stream::events))
        .route("/_fake/ui/etcd", get(etcd))
        .route("/_fake/ui/setup", get(setup))
        .route("/_fake/ui/scenario", post(load_scenario))
        .route("/_fake/ui/workers/{id}", get(worker))
        .route("/_fake/ui/workers/{id}/drain", post(drain))
        .route("/_fake/ui/workers/{id}/cancel-drain", post(cancel_drain))
        .route("/_fake/clock/next", post(advance_to_next))
}

/// Returns the routes of the console for the list of all routes.
pub(super) fn help() -> [(&'static str, &'static str); 10] {
    [
        ("GET /_fake/ui/", "the console, for a browser"),
        ("GET /_fake/ui/events", "stream of all changes as server-sent events; the first message is the whole state"),
        ("GET /_fake/ui/config.json", "configuration of the console"),
        ("GET /_fake/ui/setup", "settings for clients of this cloud, and the built-in scenarios"),
        ("GET /_fake/ui/etcd", "keys and leases of etcd"),
        ("GET /_fake/ui/workers/{id}", "one worker: record, instance, sessions, CML, keys and what happened to it"),
        ("POST /_fake/ui/workers/{id}/drain", "begins a drain, as the public API of the control plane does"),
        ("POST /_fake/ui/workers/{id}/cancel-drain", "cancels a drain, as the public API of the control plane does"),
        (
            "POST /_fake/ui/scenario",
            "{\"name\": \"bad-day\"} replaces the state of every service by a built-in scenario",
        ),
        ("POST /_fake/clock/next", "advance the clock to the next event of an instance, a session or the timeline"),
    ]
}

/// Returns a file of the console by its path below [`PATH`], which needs no key: it contains no data.
pub(crate) fn file(path: &str, headers: &HeaderMap) -> Response {
    let Some(asset) = lcm_console::asset(path) else {
        return AdminError(StatusCode::NOT_FOUND, format!("the console has no file {path:?}")).into_response();
    };
    let file = asset.response(headers.get(IF_NONE_MATCH).map(HeaderValue::as_bytes));
    let status = StatusCode::from_u16(file.status).unwrap_or_default();
    (status, file.headers, file.body).into_response()
}

/// Returns a response that needs no key: a file of the console, or its settings. A browser cannot send the key with a
/// page; the page asks for it, and sends it with its requests.
pub(crate) fn without_key(method: &Method, path: &str, headers: &HeaderMap) -> Option<Response> {
    let path = path.strip_prefix(PATH).filter(|_| method.is_safe())?;
    match path {
        "config.json" => Some(settings().into_response()),
        path => lcm_console::asset(path).map(|_| file(path, headers)),
    }
}

async fn any_file(path: Result<Path<String>, PathRejection>, headers: HeaderMap) -> Result<Response, AdminError> {
    let Path(path) = path?;
    Ok(file(&path, &headers))
}

async fn config() -> Json<Value> {
    settings()
}

fn settings() -> Json<Value> {
    Json(json!({"server": "fake-cloud", "title": "fake cloud", "api": "/_fake/", "stream": "/_fake/ui/events"}))
}

async fn worker(State(state): State<AdminState>, id: Result<Path<String>, PathRejection>) -> AdminResult {
    let Path(id) = id?;
    let services = services(&state)?;
    let record = services.records.worker(&id)?;
    let instance = record.instance_id().and_then(|wanted| find_instance(&state.world, wanted));
    let sessions =
        services.records.sessions(&SessionFilter { worker_id: Some(id.clone()), ..SessionFilter::default() });
    let cml = record.instance_id().and_then(|wanted| {
        rows::cml(&services.cml_servers).into_iter().find_map(|(id, row)| (id == wanted).then_some(row))
    });
    let keys = services.etcd.range(&Range::new(KeyRange::prefix("")));
    let needle = format!("/{id}");
    let keys = keys.map(|found| found.records).unwrap_or_default();
    let keys = keys.iter().map(|record| rows::key(record)).filter(|key| {
        let path = key["key"].as_str().unwrap_or_default();
        path.match_indices(&needle).any(|(at, _)| {
            let rest = &path[at + needle.len()..];
            rest.is_empty() || rest.starts_with('/')
        })
    });
    let mut subjects = vec![id.clone()];
    subjects.extend(record.instance_id().map(str::to_owned));
    let log = state.world.request_log();
    let mut requests: Vec<_> = subjects
        .into_iter()
        .flat_map(|subject| {
            log.find(&RequestFilter { subject: Some(subject), limit: Some(MAX_REQUESTS), ..RequestFilter::default() })
        })
        .collect();
    requests.sort_by_key(|request| request.number);
    requests.dedup_by_key(|request| request.number);
    let listed = |objects: Vec<crate::control_plane::Object>| -> Vec<Value> {
        objects.iter().map(|object| rows::without_secrets(&Value::Object((**object).clone()))).collect()
    };
    Ok(Json(json!({
        "record": rows::without_secrets(&Value::Object(record.fields().clone())),
        "instance": instance,
        "sessions": listed(sessions),
        "cml": cml,
        "can_cancel_drain": services.records.settings().generation.is_extended(),
        "keys": keys.collect::<Vec<_>>(),
        "requests": requests,
        "audit": listed(services.records.audit(Some(&id), None)),
        "events": listed(services.records.events(Some(&id), None)),
    })))
}

fn find_instance(world: &World, id: &str) -> Option<Value> {
    world.with_ec2(|ec2, now| {
        let (region, instance) = ec2.regions().find_map(|region| Some((region.name, Arc::clone(region.find(id)?))))?;
        Some(rows::instance(region, &instance, now, rows::Detail::Full))
    })
}

/// Author and reason of an operation, for the audit of the control plane.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OperationBody {
    reason: String,
    requested_by: String,
}

async fn drain(
    State(state): State<AdminState>,
    id: Result<Path<String>, PathRejection>,
    body: Result<Json<OperationBody>, JsonRejection>,
) -> AdminResult {
    let (Path(id), Json(OperationBody { reason, requested_by })) = (id?, body?);
    let worker = services(&state)?.records.drain(&id, None, &reason, &requested_by)?;
    Ok(Json(json!({"id": worker.id(), "status": worker.status()})))
}

async fn cancel_drain(
    State(state): State<AdminState>,
    id: Result<Path<String>, PathRejection>,
    body: Result<Json<OperationBody>, JsonRejection>,
) -> AdminResult {
    let (Path(id), Json(OperationBody { reason, requested_by })) = (id?, body?);
    let worker = services(&state)?.records.cancel_drain(&id, None, &reason, &requested_by)?;
    Ok(Json(json!({"id": worker.id(), "status": worker.status()})))
}

async fn etcd(State(state): State<AdminState>) -> AdminResult {
    let services = services(&state)?;
    let found = services.etcd.range(&Range::new(KeyRange::prefix(""))).map(|found| found.records).unwrap_or_default();
    let keys: Vec<Value> = found.iter().take(MAX_KEYS).map(|record| rows::key(record)).collect();
    let watchers = services.etcd.watchers().into_iter().map(|watcher| {
        json!({"stream": watcher.stream, "range": rows::range(&watcher.keys), "revision": watcher.next_revision})
    });
    let mut body = services.show_etcd();
    body["on_world_clock"] = services.etcd.clock().is_same(state.world.clock()).into();
    body["count"] = found.len().into();
    body["keys"] = keys.into();
    body["watchers"] = watchers.collect();
    Ok(Json(body))
}

async fn setup(State(state): State<AdminState>, exports: Option<Extension<Exports>>) -> AdminResult {
    let scenarios = BUILTIN.iter().map(|builtin| {
        let about = builtin.load().map(|scenario| scenario.about().to_owned()).unwrap_or_default();
        json!({"name": builtin.name, "about": about})
    });
    let scenarios: Vec<Value> = if state.services.is_some() { scenarios.collect() } else { Vec::new() };
    let Json(routes) = super::help().await;
    let routes: Vec<&String> = routes.as_object().into_iter().flat_map(Map::keys).collect();
    let environment = exports.map_or_else(|| json!({}), |Extension(Exports(environment))| environment);
    Ok(Json(json!({"scenarios": scenarios, "routes": routes, "environment": environment})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioBody {
    name: String,
}

/// Replaces the state of every service. The seed and the generation of the control plane stay those of the start.
async fn load_scenario(
    State(state): State<AdminState>,
    body: Result<Json<ScenarioBody>, JsonRejection>,
) -> AdminResult {
    let Json(ScenarioBody { name }) = body?;
    let services = services(&state)?;
    let accepted: Vec<&str> = BUILTIN.iter().map(|builtin| builtin.name).collect();
    let builtin = BUILTIN.iter().find(|builtin| builtin.name == name).ok_or_else(|| {
        AdminError(
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("unknown scenario {name:?}: expected one of {}", accepted.join(", ")),
        )
    })?;
    let failed =
        |error: crate::scenario::ScenarioError| AdminError(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    let scenario = builtin.load().map_err(failed)?;
    let generation = services.records.settings().generation;
    if scenario.generation().is_some_and(|wanted| wanted != generation) {
        let message = format!("scenario {name:?} is for another generation of the control plane than this one has");
        return Err(AdminError(StatusCode::CONFLICT, message));
    }
    services.reset(&state.world, ResetTo::Empty).map_err(failed)?;
    if let Some(pace) = scenario.pace() {
        state.world.clock().set_pace(pace);
    }
    services.apply(&scenario, &state.world).map_err(failed)?;
    Ok(Json(json!({"scenario": name})))
}

/// Returns the time of the next change of an instance or a session.
pub(super) fn next_event_at(state: &AdminState) -> Option<DateTime<Utc>> {
    rows::next_event(state).map(|event| event.at)
}

/// Advances the clock to the next event. Reports `null` as the event, and leaves the clock alone, if nothing is due.
async fn advance_to_next(State(state): State<AdminState>) -> AdminResult {
    let now = state.world.clock().now();
    let event = rows::next_event(&state);
    let step = event.as_ref().and_then(|event| (event.at - now).to_std().ok()).unwrap_or(Duration::ZERO);
    match &state.services {
        Some(services) => services.advance(&state.world, step),
        None => state.world.clock().advance(step),
    }
    let event = event.map(|event| json!({"at": event.at, "what": event.what}));
    let mut body = super::state::clock(&state.world);
    body["event"] = event.into();
    body["advanced_seconds"] = step.as_secs_f64().into();
    Ok(Json(body))
}

/// Selects all workers, those that are terminated included.
fn all_workers() -> WorkerFilter {
    WorkerFilter { include_terminated: true, ..WorkerFilter::default() }
}
