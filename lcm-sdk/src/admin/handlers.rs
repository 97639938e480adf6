//! The admin server's answers: one function for each path.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, Method, StatusCode, Uri};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::auth::{self, Door};
use super::source::{AdminSource, ControllerStats, Readiness, ResourceStatus, Role, Triggered};
use crate::telemetry::Telemetry;

/// How many resources are listed unless the caller says how many.
const LISTED: usize = 1_000;

/// How many resources are listed at most.
const LISTED_AT_MOST: usize = 10_000;

/// What `prometheus-client` writes. Under another type Prometheus would not know the counters for counters.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const TOTAL: HeaderName = HeaderName::from_static("x-total-count");

/// What every answer is made from.
pub(crate) struct Desk {
    pub(crate) source: Arc<dyn AdminSource>,
    pub(crate) telemetry: Telemetry,
    pub(crate) started: Instant,
}

type Shared = State<Arc<Desk>>;

pub(crate) fn router(desk: Desk, door: Arc<Door>) -> axum::Router {
    axum::Router::new()
        .route("/admin/stats", get(stats))
        .route("/admin/resources", get(resources))
        .route("/admin/resources/{id}", get(resource))
        .route("/admin/resources/{id}/reconcile", post(reconcile))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(door, auth::admit))
        .with_state(Arc::new(desk))
}

#[derive(Serialize)]
struct Stats {
    version: &'static str,
    uptime_seconds: f64,
    #[serde(flatten)]
    controller: ControllerStats,
    counters: BTreeMap<&'static str, u64>,
}

async fn stats(State(desk): Shared) -> Response {
    fresh(Json(Stats {
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: desk.started.elapsed().as_secs_f64(),
        controller: desk.source.stats(),
        counters: desk.telemetry.counters(),
    }))
}

async fn resources(State(desk): Shared, query: Result<Query<Vec<(String, String)>>, QueryRejection>) -> Response {
    let Ok(Query(query)) = query else { return refuse(StatusCode::BAD_REQUEST, "the query is not UTF-8") };
    let wanted = match Wanted::read(&query) {
        Ok(wanted) => wanted,
        Err(problem) => return refuse(StatusCode::BAD_REQUEST, &problem),
    };
    let mut found = desk.source.resources();
    found.retain(|resource| wanted.status.is_none_or(|status| resource.status == status));
    let total = found.len();
    found.truncate(wanted.limit);
    fresh(([(TOTAL, total.to_string())], Json(found)))
}

/// Which resources somebody asked for. A misspelled question is refused: answering another one would mislead.
struct Wanted {
    status: Option<ResourceStatus>,
    limit: usize,
}

impl Wanted {
    fn read(query: &[(String, String)]) -> Result<Self, String> {
        let mut wanted = Self { status: None, limit: LISTED };
        for (name, value) in query {
            match name.as_str() {
                "status" => wanted.status = Some(value.parse().map_err(|unknown| format!("status: {unknown}"))?),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=LISTED_AT_MOST).contains(limit));
                    let accepted = || format!("limit: {value:?} is not accepted; accepted: 1 to {LISTED_AT_MOST}");
                    wanted.limit = limit.ok_or_else(accepted)?;
                }
                other => return Err(format!("{other:?} is not a parameter; accepted: status, limit")),
            }
        }
        Ok(wanted)
    }
}

/// The id in a path, if it is text.
type Named = Result<Path<String>, PathRejection>;

async fn resource(State(desk): Shared, id: Named) -> Response {
    let Ok(Path(id)) = id else { return unnamed() };
    match desk.source.resource(&id) {
        Some(resource) => fresh(Json(resource)),
        None => unknown(&id),
    }
}

async fn reconcile(State(desk): Shared, id: Named) -> Response {
    let Ok(Path(id)) = id else { return unnamed() };
    match desk.source.trigger(&id) {
        Triggered::Queued => {
            tracing::info!(target: "lcm::admin", resource = %id.escape_debug(), "a look was asked for");
            (StatusCode::ACCEPTED, Json(json!({"resource_id": id, "queued": true}))).into_response()
        }
        Triggered::NoSuchResource => unknown(&id),
        Triggered::NotLeading => refuse(
            StatusCode::CONFLICT,
            "this controller does not lead this resource and leaves it alone; ask the leader",
        ),
        Triggered::ShuttingDown => refuse(StatusCode::SERVICE_UNAVAILABLE, "this controller is shutting down"),
    }
}

async fn metrics(State(desk): Shared) -> Response {
    ([(CONTENT_TYPE, OPEN_METRICS)], desk.telemetry.to_prometheus()).into_response()
}

async fn healthz() -> Response {
    fresh(Json(json!({"alive": true})))
}

async fn readyz(State(desk): Shared) -> Response {
    let ready = |role: Role| fresh(Json(json!({"ready": true, "role": role})));
    match desk.source.readiness() {
        Readiness::Ready => ready(Role::Leader),
        Readiness::Standby => ready(Role::Standby),
        Readiness::NotReady { reason } => {
            fresh((StatusCode::SERVICE_UNAVAILABLE, Json(json!({"ready": false, "reason": reason}))))
        }
    }
}

async fn nothing_here(uri: Uri) -> Response {
    let paths = "/admin/stats, /admin/resources, /metrics, /healthz, /readyz";
    refuse(StatusCode::NOT_FOUND, &format!("there is nothing at {}; there is: {paths}", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    refuse(StatusCode::METHOD_NOT_ALLOWED, &format!("{} cannot be asked with {method}", uri.path()))
}

fn unnamed() -> Response {
    refuse(StatusCode::BAD_REQUEST, "the id in the path is not UTF-8")
}

fn unknown(id: &str) -> Response {
    refuse(StatusCode::NOT_FOUND, &format!("no resource {id:?} is known here"))
}

pub(crate) fn refuse(status: StatusCode, problem: &str) -> Response {
    (status, Json(Value::from_iter([("error", problem)]))).into_response()
}

/// An answer that nobody may keep: the next one can differ.
fn fresh(answer: impl IntoResponse) -> Response {
    ([(CACHE_CONTROL, "no-store")], answer).into_response()
}
