//! HTTP handlers of the admin server, one function per endpoint.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::source::{AdminSource, ControllerStats, NotReady, Triggered};
use crate::controller::ResourceStatus;
use crate::telemetry::Telemetry;

/// Default number of listed resources.
const DEFAULT_LIMIT: usize = 1_000;

/// Largest number of listed resources.
const MAX_LIMIT: usize = 10_000;

/// Content type that `prometheus-client` writes. Prometheus does not recognize counters under another type.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const TOTAL_COUNT: HeaderName = HeaderName::from_static("x-total-count");

/// State shared by all handlers.
pub(crate) struct AdminState {
    pub(crate) source: Arc<dyn AdminSource>,
    pub(crate) telemetry: Telemetry,
    pub(crate) started: Instant,
}

type SharedState = State<Arc<AdminState>>;

pub(crate) fn router(state: AdminState) -> axum::Router {
    axum::Router::new()
        .route("/admin/stats", get(stats))
        .route("/admin/resources", get(resources))
        .route("/admin/resources/{id}", get(resource))
        .route("/admin/resources/{id}/reconcile", post(reconcile))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(Arc::new(state))
}

#[derive(Serialize)]
struct Stats {
    version: &'static str,
    uptime_seconds: f64,
    #[serde(flatten)]
    controller: ControllerStats,
    counters: BTreeMap<&'static str, u64>,
}

async fn stats(State(state): SharedState) -> Response {
    uncached(Json(Stats {
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: state.started.elapsed().as_secs_f64(),
        controller: state.source.stats(),
        counters: state.telemetry.counters(),
    }))
}

async fn resources(State(state): SharedState, query: Result<Query<Vec<(String, String)>>, QueryRejection>) -> Response {
    let Ok(Query(query)) = query else { return error_response(StatusCode::BAD_REQUEST, "the query is not UTF-8") };
    let filter = match ResourceFilter::parse(&query) {
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
        None => unknown_resource(&id),
    }
}

async fn reconcile(State(state): SharedState, id: ResourceId) -> Response {
    let Ok(Path(id)) = id else { return invalid_id() };
    match state.source.trigger(&id) {
        Triggered::Queued => {
            tracing::info!(target: "lcm::admin", resource = %id.escape_debug(), "reconcile requested");
            (StatusCode::ACCEPTED, Json(json!({"resource_id": id, "queued": true}))).into_response()
        }
        Triggered::NoSuchResource => unknown_resource(&id),
        Triggered::NotLeading => error_response(
            StatusCode::CONFLICT,
            "this controller does not lead this resource and leaves it alone; ask the leader",
        ),
        Triggered::ShuttingDown => error_response(StatusCode::SERVICE_UNAVAILABLE, "this controller is shutting down"),
    }
}

async fn metrics(State(state): SharedState) -> Response {
    ([(CONTENT_TYPE, OPEN_METRICS)], state.telemetry.to_prometheus()).into_response()
}

async fn healthz() -> Response {
    uncached(Json(json!({"alive": true})))
}

async fn readyz(State(state): SharedState) -> Response {
    match state.source.readiness() {
        Ok(role) => uncached(Json(json!({"ready": true, "role": role}))),
        Err(NotReady { reason }) => {
            uncached((StatusCode::SERVICE_UNAVAILABLE, Json(json!({"ready": false, "reason": reason}))))
        }
    }
}

async fn not_found(uri: Uri) -> Response {
    let endpoints = "/admin/stats, /admin/resources, /metrics, /healthz, /readyz";
    error_response(StatusCode::NOT_FOUND, &format!("no endpoint at {}; endpoints: {endpoints}", uri.path()))
}

async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    error_response(StatusCode::METHOD_NOT_ALLOWED, &format!("{} does not accept {method}", uri.path()))
}

fn invalid_id() -> Response {
    error_response(StatusCode::BAD_REQUEST, "the id in the path is not UTF-8")
}

fn unknown_resource(id: &str) -> Response {
    error_response(StatusCode::NOT_FOUND, &format!("no resource {id:?} is known here"))
}

pub(crate) fn error_response(status: StatusCode, message: &str) -> Response {
    (status, Json(Value::from_iter([("error", message)]))).into_response()
}

/// Forbids caching of a response.
fn uncached(response: impl IntoResponse) -> Response {
    ([(CACHE_CONTROL, "no-store")], response).into_response()
}
