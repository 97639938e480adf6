//! HTTP handlers of the admin server, one function per endpoint.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::source::{
    AdminSource, ControllerStats, LastOutcome, NotReady, Operation, OperationRequest, Refusal, Role, Triggered,
};
use crate::controller::{ResourceStatus, Shutdown};
use crate::lifecycle::time::{self, Timestamp};
use crate::ports::{Clock as _, SystemClock};
use crate::telemetry::{LongestInStatus, Telemetry};

/// Default number of listed resources.
const DEFAULT_LIMIT: usize = 1_000;

/// Largest number of listed resources.
const MAX_LIMIT: usize = 10_000;

/// Time without a sign of life after which the run loop counts as stuck. It gives one every second.
const MAX_HEARTBEAT_AGE: Duration = Duration::from_secs(30);

/// Content type of the text format of Prometheus.
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Largest number of operations that are remembered.
const MAX_OPERATIONS: usize = 100;

const TOTAL_COUNT: HeaderName = HeaderName::from_static("x-total-count");

/// State shared by all handlers.
pub(crate) struct AdminState {
    pub(super) source: Arc<dyn AdminSource>,
    telemetry: Telemetry,
    started: Instant,
    /// Ends the streams.
    pub(super) shutdown: Shutdown,
    /// Operations requested over this server, the newest first.
    operations: Mutex<VecDeque<OperationEntry>>,
}

impl AdminState {
    pub(crate) fn new(source: Arc<dyn AdminSource>, telemetry: Telemetry, shutdown: Shutdown) -> Self {
        Self { source, telemetry, started: Instant::now(), shutdown, operations: Mutex::default() }
    }

    /// The operations requested over this server, the newest first.
    pub(super) fn requested_operations(&self) -> Vec<OperationEntry> {
        self.operations.lock().iter().cloned().collect()
    }

    /// The worker that has each status for the longest time, at the last listing.
    pub(super) fn longest_in_status(&self) -> BTreeMap<&'static str, LongestInStatus> {
        self.telemetry.longest_in_status()
    }

    /// Notes and logs an operation, carried out or refused.
    fn note(
        &self,
        operation: &'static str,
        resource_id: Option<&str>,
        request: &OperationRequest,
        refused: Option<&str>,
    ) {
        let entry = OperationEntry {
            operation,
            resource_id: resource_id.map(str::to_owned),
            requested_by: request.requested_by.clone(),
            reason: request.reason.clone(),
            refused: refused.map(str::to_owned),
            at: SystemClock.now(),
        };
        // The list is short and in memory: the log keeps every operation with its author.
        tracing::info!(
            target: "lcm::admin", operation, resource = resource_id.map(|id| id.escape_debug().to_string()),
            requested_by = %entry.requested_by.escape_debug(), why = %entry.reason.escape_debug(), refused,
            "an operator requested {operation}"
        );
        let mut operations = self.operations.lock();
        operations.truncate(MAX_OPERATIONS - 1);
        operations.push_front(entry);
    }
}

/// An operation that was requested over this server.
#[derive(Clone, PartialEq, Serialize)]
pub(super) struct OperationEntry {
    operation: &'static str,
    /// `None` if it concerns all resources or the controller.
    resource_id: Option<String>,
    requested_by: String,
    reason: String,
    /// Why it was not carried out.
    refused: Option<String>,
    at: Timestamp,
}

pub(super) type SharedState = State<Arc<AdminState>>;

pub(crate) fn router(state: Arc<AdminState>) -> axum::Router {
    let mut router = axum::Router::new()
        .route("/admin/resources", get(resources))
        .route("/admin/resources/{id}", get(resource))
        .route("/admin/resources/{id}/reconcile", post(reconcile))
        .route("/admin/events", get(events))
        .route("/admin/workers/{id}", get(worker))
        .route("/admin/workers/{id}/explain", post(explain))
        .route("/admin/workers/{id}/history", get(history))
        .route("/admin/workers/{id}/drain", post(drain))
        .route("/admin/workers/{id}/cancel-drain", post(cancel_drain))
        .route("/api/info", get(info));
    // Also under the paths of the original controller.
    for path in ["/healthz", "/api/health"] {
        router = router.route(path, get(healthz));
    }
    for path in ["/readyz", "/api/ready"] {
        router = router.route(path, get(readyz));
    }
    for path in ["/metrics", "/api/metrics"] {
        router = router.route(path, get(metrics));
    }
    for admin in ["/admin", "/api/admin"] {
        router = router
            .route(&format!("{admin}/stats"), get(stats))
            .route(&format!("{admin}/leader-status"), get(leader_status))
            .route(&format!("{admin}/fleet"), get(resources))
            .route(&format!("{admin}/operations"), get(operations))
            .route(&format!("{admin}/trigger-reconcile"), post(trigger_reconcile))
            .route(&format!("{admin}/resign-leadership"), post(resign_leadership));
    }
    router.fallback(not_found).method_not_allowed_fallback(method_not_allowed).with_state(state)
}

#[derive(Serialize)]
struct Stats {
    version: &'static str,
    uptime_seconds: f64,
    #[serde(flatten)]
    controller: ControllerStats,
    counters: BTreeMap<&'static str, u64>,
    /// The worker that has each status for the longest time.
    longest_in_status: BTreeMap<&'static str, LongestInStatus>,
}

async fn stats(State(state): SharedState) -> Response {
    uncached(Json(Stats {
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: state.started.elapsed().as_secs_f64(),
        controller: state.source.stats(),
        counters: state.telemetry.counters(),
        longest_in_status: state.telemetry.longest_in_status(),
    }))
}

async fn info(State(state): SharedState) -> Response {
    let ControllerStats { instance_id, role, services, .. } = state.source.stats();
    let uptime = state.started.elapsed().as_secs_f64();
    uncached(Json(json!({
        "service": "worker-controller", "version": env!("CARGO_PKG_VERSION"), "instance_id": instance_id, "role": role,
        "uptime_seconds": uptime, "services": services,
    })))
}

async fn leader_status(State(state): SharedState) -> Response {
    let ControllerStats { instance_id, role, leader, fencing_token, shards, .. } = state.source.stats();
    uncached(Json(json!({
        "instance_id": instance_id, "role": role, "is_leader": role == Role::Leader, "leader": leader,
        "fencing_token": fencing_token, "shards": shards,
    })))
}

/// The last reconcile of a resource.
#[derive(Serialize)]
struct ReconcileEntry {
    resource_id: String,
    status: ResourceStatus,
    #[serde(flatten)]
    last: LastOutcome,
}

/// The last reconcile of every resource, and the operations requested here, the newest first.
async fn operations(
    State(state): SharedState,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Response {
    let filter = match ResourceFilter::from_query(query) {
        Ok(filter) => filter,
        Err(problem) => return error_response(StatusCode::BAD_REQUEST, &problem),
    };
    let entry = |resource: super::ResourceSummary| {
        let (resource_id, status) = (resource.resource_id, resource.status);
        resource.last_outcome.map(|last| ReconcileEntry { resource_id, status, last })
    };
    let mut reconciles: Vec<ReconcileEntry> = state.source.resources().into_iter().filter_map(entry).collect();
    reconciles.retain(|reconcile| filter.status.is_none_or(|status| reconcile.status == status));
    reconciles.sort_by(|a, b| b.last.at.cmp(&a.last.at).then_with(|| a.resource_id.cmp(&b.resource_id)));
    reconciles.truncate(filter.limit);
    let operations: Vec<OperationEntry> = state.operations.lock().iter().take(filter.limit).cloned().collect();
    uncached(Json(json!({"reconciles": reconciles, "operations": operations})))
}

async fn resources(State(state): SharedState, query: Result<Query<Vec<(String, String)>>, QueryRejection>) -> Response {
    let filter = match ResourceFilter::from_query(query) {
        Ok(filter) => filter,
        Err(problem) => return error_response(StatusCode::BAD_REQUEST, &problem),
    };
    let mut resources = state.source.resources();
    resources.retain(|resource| filter.status.is_none_or(|status| resource.status == status));
    let total = resources.len();
    resources.truncate(filter.limit);
    uncached(([(TOTAL_COUNT, total.to_string())], Json(resources)))
}

/// Parameters of a list request. An unknown parameter is an error: ignoring it would return the wrong resources.
struct ResourceFilter {
    status: Option<ResourceStatus>,
    limit: usize,
}

impl ResourceFilter {
    fn from_query(query: Result<Query<Vec<(String, String)>>, QueryRejection>) -> Result<Self, String> {
        let Query(query) = query.map_err(|_| "the query is not UTF-8".to_owned())?;
        Self::parse(&query)
    }

    fn parse(query: &[(String, String)]) -> Result<Self, String> {
        let mut filter = Self { status: None, limit: DEFAULT_LIMIT };
        for (name, value) in query {
            match name.as_str() {
                "status" => filter.status = Some(value.parse().map_err(|unknown| format!("status: {unknown}"))?),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
                    let problem = || format!("limit: {value:?} is not accepted; accepted: 1 to {MAX_LIMIT}");
                    filter.limit = limit.ok_or_else(problem)?;
                }
                other => return Err(format!("{other:?} is not a parameter; accepted: status, limit")),
            }
        }
        Ok(filter)
    }
}

type ResourceId = Result<Path<String>, PathRejection>;

async fn resource(State(state): SharedState, id: ResourceId) -> Response {
    let Ok(Path(id)) = id else { return invalid_id() };
    match state.source.resource(&id) {
        Some(resource) => uncached(Json(resource)),
        None => error_response(StatusCode::NOT_FOUND, &unknown_resource(&id)),
    }
}

async fn reconcile(State(state): SharedState, id: ResourceId, body: Bytes) -> Response {
    let Ok(Path(id)) = id else { return invalid_id() };
    match operation_request(&body) {
        Ok(request) => reconcile_one(&state, &id, &request).await,
        Err(problem) => error_response(StatusCode::BAD_REQUEST, problem),
    }
}

async fn reconcile_one(state: &AdminState, id: &str, request: &OperationRequest) -> Response {
    let (status, refused) = match state.source.trigger(id).await {
        Triggered::Queued => {
            state.note("reconcile", Some(id), request, None);
            return (StatusCode::ACCEPTED, Json(json!({"resource_id": id, "queued": true}))).into_response();
        }
        Triggered::NoSuchResource => (StatusCode::NOT_FOUND, unknown_resource(id)),
        Triggered::Unknown(failure) => {
            (StatusCode::BAD_GATEWAY, format!("whether resource {id:?} exists is unknown: {failure}"))
        }
        Triggered::NotLeading => (
            StatusCode::CONFLICT,
            "this controller does not lead this resource and leaves it alone; ask the leader".to_owned(),
        ),
        Triggered::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "this controller is shutting down".to_owned()),
    };
    state.note("reconcile", Some(id), request, Some(&refused));
    error_response(status, &refused)
}

/// Body of a reconcile request.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ReconcileRequest {
    /// The worker to reconcile; all if `None`.
    worker_id: Option<String>,
    reason: Option<String>,
    requested_by: Option<String>,
}

impl ReconcileRequest {
    fn operation(&self) -> OperationRequest {
        let default = OperationRequest::default();
        OperationRequest {
            reason: self.reason.clone().unwrap_or(default.reason),
            requested_by: self.requested_by.clone().unwrap_or(default.requested_by),
        }
    }
}

/// Queues one worker, or all that are known.
async fn trigger_reconcile(State(state): SharedState, body: Bytes) -> Response {
    let request = if body.is_empty() { Ok(ReconcileRequest::default()) } else { serde_json::from_slice(&body) };
    let Ok(request) = request else {
        let message =
            "invalid body: expected {\"worker_id\": text, \"reason\": text, \"requested_by\": text} or nothing";
        return error_response(StatusCode::BAD_REQUEST, message);
    };
    let operation = request.operation();
    if let Some(id) = &request.worker_id {
        return reconcile_one(&state, id, &operation).await;
    }
    if state.source.stats().role == Role::Standby {
        let refused = "this controller does not lead; ask the leader";
        state.note("reconcile-all", None, &operation, Some(refused));
        return error_response(StatusCode::CONFLICT, refused);
    }
    let mut queued = 0_usize;
    for resource in state.source.resources() {
        queued += usize::from(state.source.trigger(&resource.resource_id).await == Triggered::Queued);
    }
    state.note("reconcile-all", None, &operation, None);
    (StatusCode::ACCEPTED, Json(json!({"queued": queued}))).into_response()
}

/// Gives up the lead. The response does not wait for reconciles in progress.
async fn resign_leadership(State(state): SharedState, body: Bytes) -> Response {
    let request = match operation_request(&body) {
        Ok(request) => request,
        Err(problem) => return error_response(StatusCode::BAD_REQUEST, problem),
    };
    let resigned = state.source.resign();
    let refused = resigned.as_ref().err().map(ToString::to_string);
    state.note("resign-leadership", None, &request, refused.as_deref());
    match resigned {
        Ok(()) => (StatusCode::ACCEPTED, Json(json!({"resigning": true}))).into_response(),
        Err(refusal) => refused_response(&refusal),
    }
}

/// The reconciles from a number on that changed something or went wrong.
async fn events(State(state): SharedState, query: Result<Query<Vec<(String, String)>>, QueryRejection>) -> Response {
    let Ok(Query(query)) = query else {
        return error_response(StatusCode::BAD_REQUEST, "the query is not UTF-8");
    };
    let mut from = 0;
    for (name, value) in &query {
        let parsed = if name == "from" { value.parse().ok() } else { None };
        let Some(number) = parsed else {
            let problem = format!("{name}={value:?} is not accepted; accepted: from, a whole number");
            return error_response(StatusCode::BAD_REQUEST, &problem);
        };
        from = number;
    }
    uncached(Json(state.source.events(from)))
}

async fn worker(State(state): SharedState, id: ResourceId) -> Response {
    let Ok(Path(id)) = id else { return invalid_id() };
    match state.source.worker(&id).await {
        Ok(report) => uncached(Json(report)),
        Err(refusal) => refused_response(&refusal),
    }
}

/// The chain of reconciles that led to the status of a worker at a time; now by default.
async fn history(
    State(state): SharedState,
    id: ResourceId,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Response {
    let Ok(Path(id)) = id else { return invalid_id() };
    let Ok(Query(query)) = query else {
        return error_response(StatusCode::BAD_REQUEST, "the query is not UTF-8");
    };
    let mut at = state.source.now();
    for (name, value) in &query {
        let parsed = if name == "at" { time::parse(value) } else { None };
        let Some(time) = parsed else {
            let problem =
                format!("{name}={value:?} is not accepted; accepted: at, a time such as 2026-02-06T08:00:00Z");
            return error_response(StatusCode::BAD_REQUEST, &problem);
        };
        at = time;
    }
    match state.source.history(&id, at).await {
        Ok(history) => uncached(Json(history)),
        Err(refusal) => refused_response(&refusal),
    }
}

async fn explain(State(state): SharedState, id: ResourceId) -> Response {
    let Ok(Path(id)) = id else { return invalid_id() };
    match state.source.explain(&id).await {
        Ok(explanation) => uncached(Json(explanation)),
        Err(refusal) => refused_response(&refusal),
    }
}

async fn drain(state: SharedState, id: ResourceId, body: Bytes) -> Response {
    operate(state, id, Operation::Drain, &body).await
}

async fn cancel_drain(state: SharedState, id: ResourceId, body: Bytes) -> Response {
    operate(state, id, Operation::CancelDrain, &body).await
}

async fn operate(State(state): SharedState, id: ResourceId, operation: Operation, body: &[u8]) -> Response {
    let Ok(Path(id)) = id else { return invalid_id() };
    let request = match operation_request(body) {
        Ok(request) => request,
        Err(problem) => return error_response(StatusCode::BAD_REQUEST, problem),
    };
    let operated = state.source.operate(&id, operation, request.clone()).await;
    let refused = operated.as_ref().err().map(ToString::to_string);
    state.note(operation.as_str(), Some(&id), &request, refused.as_deref());
    match operated {
        Ok(()) => uncached(Json(json!({"worker_id": id, "operation": operation.as_str()}))),
        Err(refusal) => refused_response(&refusal),
    }
}

fn operation_request(body: &[u8]) -> Result<OperationRequest, &'static str> {
    if body.is_empty() {
        return Ok(OperationRequest::default());
    }
    serde_json::from_slice(body)
        .map_err(|_| "invalid body: expected {\"reason\": text, \"requested_by\": text} or nothing")
}

fn refused_response(refusal: &Refusal) -> Response {
    let status = match refusal {
        Refusal::NoSuchResource(_) => StatusCode::NOT_FOUND,
        Refusal::NotAllowed(_) => StatusCode::CONFLICT,
        Refusal::NotSupported(_) => StatusCode::NOT_IMPLEMENTED,
        Refusal::Failed(_) => StatusCode::BAD_GATEWAY,
    };
    error_response(status, &refusal.to_string())
}

/// Prometheus names both formats, a browser and older scrapers neither.
async fn metrics(State(state): SharedState, headers: HeaderMap) -> Response {
    let accepts = |header: &axum::http::HeaderValue| {
        header.to_str().is_ok_and(|accepted| accepted.contains("application/openmetrics-text"))
    };
    let (content_type, text) = match headers.get_all(ACCEPT).iter().any(accepts) {
        true => (Telemetry::CONTENT_TYPE, state.telemetry.to_prometheus()),
        false => (PROMETHEUS_TEXT, state.telemetry.to_prometheus_text()),
    };
    ([(CONTENT_TYPE, content_type), (VARY, "accept")], text).into_response()
}

async fn healthz(State(state): SharedState) -> Response {
    match state.source.heartbeat_age() {
        Some(age) if age > MAX_HEARTBEAT_AGE => {
            let reason = format!("the run loop has been stuck for {} s", age.as_secs());
            uncached((
                StatusCode::SERVICE_UNAVAILABLE,
                Json(json!({"status": "unhealthy", "alive": false, "reason": reason})),
            ))
        }
        Some(_) | None => uncached(Json(json!({"status": "healthy", "alive": true}))),
    }
}

async fn readyz(State(state): SharedState) -> Response {
    match state.source.readiness() {
        Ok(role) => uncached(Json(json!({"status": "ready", "ready": true, "role": role}))),
        Err(NotReady { reason }) => uncached((
            StatusCode::SERVICE_UNAVAILABLE,
            Json(json!({"status": "not_ready", "ready": false, "reason": reason})),
        )),
    }
}

async fn not_found(uri: Uri) -> Response {
    let endpoints = "/admin/stats, /admin/resources, /admin/workers/{id}, /admin/operations, /admin/leader-status, /metrics, /healthz, /readyz, and /api/…";
    error_response(StatusCode::NOT_FOUND, &format!("no endpoint at {}; endpoints: {endpoints}", uri.path()))
}

async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    error_response(StatusCode::METHOD_NOT_ALLOWED, &format!("{} does not accept {method}", uri.path()))
}

fn invalid_id() -> Response {
    error_response(StatusCode::BAD_REQUEST, "the id in the path is not UTF-8")
}

fn unknown_resource(id: &str) -> String {
    format!("no resource {id:?} is known here")
}

pub(crate) fn error_response(status: StatusCode, message: &str) -> Response {
    (status, Json(Value::from_iter([("error", message)]))).into_response()
}

/// Forbids caching of a response.
pub(super) fn uncached(response: impl IntoResponse) -> Response {
    ([(CACHE_CONTROL, "no-store")], response).into_response()
}
