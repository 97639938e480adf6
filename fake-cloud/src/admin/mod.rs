//! Admin API under `/_fake/`: reads state, moves the clock, injects faults and makes changes outside the service APIs.

mod branches;
mod console;
mod disruption;
mod services;
mod state;
pub(crate) mod ui;

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, FromRef, Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use chrono::{DateTime, Utc};
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::body::BodyProblem;
use crate::clock::Pace;
use crate::control_plane::Records;
use crate::faults::{Rule, RuleError};
use crate::names::{self, Place};
use crate::request_log::RequestFilter;
use crate::snapshot::{Secrets, Snapshot, SnapshotError};
use crate::suggest::with_suggestion;
use crate::world::{ACCOUNT, Account, AwsError, World};

pub use self::services::{ResetTo, Services};

type AdminResult<T = Value> = Result<Json<T>, AdminError>;

/// Routes of the admin API for a world with AWS only.
pub fn router(world: Arc<World>) -> Router {
    routes().with_state(AdminState { world, services: None, streams: Arc::default() })
}

/// Routes of the admin API for AWS, etcd, CML and the control plane.
pub fn full_router(world: Arc<World>, services: Services) -> Router {
    services::router(Arc::clone(&world), services.clone()).merge(routes().with_state(AdminState {
        world,
        services: Some(services),
        streams: Arc::default(),
    }))
}

/// Path to which a snapshot is sent.
pub(crate) const RESTORE: &str = "/_fake/restore";

/// Returns the time of the next change that follows from time alone: a step of the timeline, or a change of an instance or
/// a session.
pub(crate) fn next_change(world: &Arc<World>, services: &Services) -> Option<DateTime<Utc>> {
    let state = AdminState { world: Arc::clone(world), services: Some(services.clone()), streams: Arc::default() };
    ui::next_event_at(&state)
}

/// Shared state of the admin routes.
#[derive(Clone)]
struct AdminState {
    world: Arc<World>,
    services: Option<Services>,
    streams: Arc<ui::Streams>,
}

impl FromRef<AdminState> for Arc<World> {
    fn from_ref(state: &AdminState) -> Self {
        Self::clone(&state.world)
    }
}

impl AdminState {
    /// Finds an instance by its id or name, or by its worker.
    fn find(&self, region: Option<&str>, instance: &str) -> Result<Place, AwsError> {
        names::find_instance(&self.world, self.records(), region, instance)
    }

    fn records(&self) -> Option<&Records> {
        self.services.as_ref().map(|services| &services.records)
    }
}

fn routes() -> Router<AdminState> {
    Router::new()
        .route("/_fake", get(help))
        .route("/_fake/", get(help))
        .route("/_fake/state", get(state::show))
        .route("/_fake/reset", post(reset))
        .route("/_fake/snapshot", post(take_snapshot))
        // The size of the body is limited before it gets here.
        .route(RESTORE, post(restore).layer(DefaultBodyLimit::disable()))
        .route("/_fake/branch", post(branches::start))
        .route("/_fake/branches", get(branches::list))
        .route("/_fake/branches/{number}", delete(branches::stop))
        .route("/_fake/clock", get(show_clock).post(set_clock))
        .route("/_fake/clock/advance", post(advance_clock))
        .route("/_fake/accounts", get(list_accounts).post(add_account))
        .route("/_fake/faults", get(list_faults).post(add_fault).delete(clear_faults))
        .route("/_fake/faults/{id}", delete(remove_fault))
        .route("/_fake/requests", get(list_requests).delete(clear_requests))
        .merge(console::router())
        .merge(ui::router())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
}

/// Response to a request from another host, or from a web page of another origin (403).
pub fn forbidden() -> Response<Body> {
    AdminError(StatusCode::FORBIDDEN, "the admin API accepts requests from this machine only".to_owned())
        .into_response()
}

/// Response to a change without a valid admin key (401).
pub(crate) fn needs_key() -> Response<Body> {
    let message = "this cloud accepts remote requests: changes require the admin key printed at startup, in X-API-Key";
    AdminError(StatusCode::UNAUTHORIZED, message.to_owned()).into_response()
}

/// Response to a body that is too long (413) or incomplete (400).
pub(crate) fn no_body(problem: BodyProblem, limit: usize) -> Response<Body> {
    let error = match problem {
        BodyProblem::TooLong => {
            AdminError(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is longer than {limit} bytes"))
        }
        BodyProblem::Incomplete => {
            AdminError(StatusCode::BAD_REQUEST, "the body ended before it was complete".to_owned())
        }
    };
    error.into_response()
}

/// Error response of the admin API: a status and a message.
struct AdminError(StatusCode, String);

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        (self.0, Json(json!({"error": self.1}))).into_response()
    }
}

impl From<JsonRejection> for AdminError {
    fn from(rejection: JsonRejection) -> Self {
        Self(rejection.status(), with_suggestion(rejection.body_text()))
    }
}

impl From<QueryRejection> for AdminError {
    fn from(rejection: QueryRejection) -> Self {
        Self(rejection.status(), with_suggestion(rejection.body_text()))
    }
}

impl From<PathRejection> for AdminError {
    fn from(rejection: PathRejection) -> Self {
        Self(rejection.status(), rejection.body_text())
    }
}

impl From<RuleError> for AdminError {
    fn from(error: RuleError) -> Self {
        Self(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
    }
}

impl From<SnapshotError> for AdminError {
    fn from(error: SnapshotError) -> Self {
        let status = match error {
            SnapshotError::Generation { .. } => StatusCode::CONFLICT,
            SnapshotError::State(_) => StatusCode::INTERNAL_SERVER_ERROR,
            SnapshotError::Unreadable { .. }
            | SnapshotError::NotJson(_)
            | SnapshotError::NotASnapshot(_)
            | SnapshotError::Version { .. }
            | SnapshotError::Invalid { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self(status, error.to_string())
    }
}

impl From<AwsError> for AdminError {
    fn from(error: AwsError) -> Self {
        Self(StatusCode::CONFLICT, error.to_string())
    }
}

async fn help() -> Json<Value> {
    let mut routes = json!({
        "GET /_fake/state": "state of every service",
        "POST /_fake/reset": {"to": "scenario (default: the one given at startup) | empty"},
        "POST /_fake/snapshot": {"secrets": "masked (default) | included"},
        "POST /_fake/restore": "a snapshot",
        "POST /_fake/branch": "start another cloud that goes on from here",
        "GET /_fake/branches": "clouds that were started so",
        "DELETE /_fake/branches/{number}": "stop one of them",
        "GET /_fake/clock": "current time and pace",
        "POST /_fake/clock": {"pace": "real | manual | x60"},
        "POST /_fake/clock/advance": {"seconds": 60},
        "GET /_fake/accounts": "the default account and all others, with an access key",
        "POST /_fake/accounts": {"id": "999999999999", "access_key": "AKIAOTHER"},
        "GET /_fake/faults": "fault rules with their match counts",
        "POST /_fake/faults": {"service": "ec2", "operation": "RunInstances", "times": 1, "per": "attempt | call",
            "action": {"kind": "error", "code": "RequestLimitExceeded"}},
        "DELETE /_fake/faults": "remove every fault rule",
        "DELETE /_fake/faults/{id}": "remove one fault rule",
        "GET /_fake/requests?operation=RunInstances": "recorded requests",
        "DELETE /_fake/requests": "clear the request log",
        "POST /_fake/console/{start|stop|reboot|terminate}": {"region": "us-east-1", "instance": "i-…"},
        "POST /_fake/console/tag": {"region": "us-east-1", "instance": "i-…", "key": "k", "value": "v"},
        "POST /_fake/console/cml/wipe": {"instance": "i-…"},
        "POST /_fake/console/worker": {"id": "w-1", "name": "blue", "status": "running", "template_name": "metal"},
        "POST /_fake/console/worker/{id}": {"status": "running", "any_field": "any value"},
        "POST /_fake/console/session": {"id": "s-1", "worker_id": "w-1", "status": "running"},
        "POST /_fake/etcd/{compact|watch-stall|watch-resume|watch-cut|tokens-lost|unavailable|available}": "inject an etcd fault now",
        "POST /_fake/etcd/lease-lost": {"lease": "a number or hexadecimal text; default: every lease"},
        "POST /_fake/console/image": {"region": "us-east-1", "id": "ami-…", "name": "cisco-cml2.9…",
            "owner": "999999999999", "sharing": "private | shared | public"},
        "POST /_fake/console/subnet": {"region": "us-east-1", "id": "subnet-…"},
        "POST /_fake/console/security-group": {"region": "us-east-1", "id": "sg-…", "name": "cml"},
        "POST /_fake/console/metric": {"region": "us-east-1", "namespace": "AWS/EC2", "name": "CPUUtilization",
            "dimensions": {"InstanceId": "i-…"}, "value": 97.5, "unit": "Percent"},
    });
    if let (Some(routes), Value::Object(more)) = (routes.as_object_mut(), disruption::help()) {
        routes.extend(more);
        routes.extend(ui::help().map(|(route, about)| (route.to_owned(), about.into())));
    }
    Json(routes)
}

async fn not_found() -> AdminError {
    AdminError(StatusCode::NOT_FOUND, "no such path; GET /_fake/ lists all paths".to_owned())
}

async fn method_not_allowed() -> AdminError {
    AdminError(StatusCode::METHOD_NOT_ALLOWED, "method not allowed; GET /_fake/ lists all paths and methods".to_owned())
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct ResetBody {
    to: ResetTo,
}

async fn reset(State(state): State<AdminState>, body: Bytes) -> AdminResult {
    let ResetBody { to } = if body.is_empty() { ResetBody::default() } else { Json::from_bytes(&body)?.0 };
    match &state.services {
        Some(services) => services
            .reset(&state.world, to)
            .map_err(|error| AdminError(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?,
        None => state.world.reset(),
    }
    Ok(Json(json!({"reset": true})))
}

/// Parts of a cloud that has all services.
fn services(state: &AdminState) -> Result<&Services, AdminError> {
    state.services.as_ref().ok_or_else(|| {
        AdminError(StatusCode::NOT_FOUND, "this cloud has AWS only: no control plane, etcd and CML".to_owned())
    })
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct SnapshotBody {
    secrets: Secrets,
}

async fn take_snapshot(State(state): State<AdminState>, body: Bytes) -> AdminResult {
    let SnapshotBody { secrets } = if body.is_empty() { SnapshotBody::default() } else { Json::from_bytes(&body)?.0 };
    Ok(Json(services(&state)?.snapshot(&state.world, secrets)?.as_json().clone()))
}

async fn restore(State(state): State<AdminState>, body: Bytes) -> AdminResult {
    let text = std::str::from_utf8(&body).map_err(|error| SnapshotError::NotJson(error.to_string()))?;
    let restored = services(&state)?.restore(&state.world, &Snapshot::parse(text)?)?;
    let mut body = state::clock(&state.world);
    body["masked"] = json!(restored.masked);
    Ok(Json(body))
}

async fn show_clock(State(world): State<Arc<World>>) -> Json<Value> {
    Json(state::clock(&world))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PaceBody {
    pace: String,
}

async fn set_clock(State(world): State<Arc<World>>, body: Result<Json<PaceBody>, JsonRejection>) -> AdminResult {
    let Json(PaceBody { pace }) = body?;
    let pace = parse_pace(&pace).map_err(|hint| AdminError(StatusCode::UNPROCESSABLE_ENTITY, hint))?;
    world.clock().set_pace(pace);
    Ok(Json(state::clock(&world)))
}

/// Parses a clock pace: `real`, `manual` or a factor such as `x60`.
///
/// # Errors
/// A message with the accepted values, if the text is none of them or the factor is out of range.
pub fn parse_pace(text: &str) -> Result<Pace, String> {
    match text {
        "real" => Ok(Pace::Real),
        "manual" => Ok(Pace::Manual),
        text => text
            .strip_prefix('x')
            .and_then(|factor| factor.parse::<f64>().ok())
            .filter(|factor| (0.001..=1_000_000.0).contains(factor))
            .map(Pace::Accelerated)
            .ok_or_else(|| {
                format!("invalid clock pace '{text}': expected 'real', 'manual' or a factor such as 'x60' (0.001 to 1000000)")
            }),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AdvanceBody {
    seconds: f64,
}

async fn advance_clock(State(state): State<AdminState>, body: Result<Json<AdvanceBody>, JsonRejection>) -> AdminResult {
    let Json(AdvanceBody { seconds }) = body?;
    let step = Duration::try_from_secs_f64(seconds).map_err(|_| {
        AdminError(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid seconds: expected a number from 0 up within the range of the clock".to_owned(),
        )
    })?;
    match &state.services {
        Some(services) => services.advance(&state.world, step),
        None => state.world.clock().advance(step),
    }
    Ok(Json(state::clock(&state.world)))
}

async fn list_accounts(State(world): State<Arc<World>>) -> Json<Value> {
    let default = json!({"id": ACCOUNT, "access_key": null});
    let others = world.accounts().into_iter().map(|account| show_account(&account));
    Json(std::iter::once(default).chain(others).collect())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewAccount {
    id: String,
    access_key: String,
}

async fn add_account(State(world): State<Arc<World>>, body: Result<Json<NewAccount>, JsonRejection>) -> AdminResult {
    let Json(NewAccount { id, access_key }) = body?;
    let account = Account::new(&id, &access_key)
        .map_err(|error| AdminError(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))?;
    world.add_account(&account);
    Ok(Json(show_account(&account)))
}

fn show_account(account: &Account) -> Value {
    json!({"id": account.id(), "access_key": account.access_key()})
}

async fn list_faults(State(world): State<Arc<World>>) -> Json<impl Serialize> {
    Json(world.faults().list())
}

async fn add_fault(State(state): State<AdminState>, body: Result<Json<Rule>, JsonRejection>) -> AdminResult {
    let Json(rule) = body?;
    let id = state.world.faults().add(rule.resolve(&state.world, state.records())?)?;
    Ok(Json(json!({"id": id})))
}

async fn clear_faults(State(world): State<Arc<World>>) -> Json<Value> {
    world.faults().clear();
    Json(json!({"faults": 0}))
}

async fn remove_fault(State(world): State<Arc<World>>, id: Result<Path<u64>, PathRejection>) -> AdminResult {
    let Path(id) = id?;
    if world.faults().remove(id) {
        Ok(Json(json!({"removed": id})))
    } else {
        Err(AdminError(StatusCode::NOT_FOUND, format!("no such fault rule: {id}")))
    }
}

async fn list_requests(
    State(state): State<AdminState>,
    filter: Result<Query<RequestFilter>, QueryRejection>,
) -> AdminResult<impl Serialize> {
    let Query(filter) = filter?;
    let filter = filter.resolve(&state.world, state.records());
    let filter = filter.map_err(|hint| AdminError(StatusCode::UNPROCESSABLE_ENTITY, hint))?;
    Ok(Json(state.world.request_log().find(&filter)))
}

async fn clear_requests(State(world): State<Arc<World>>) -> Json<Value> {
    world.request_log().clear();
    Json(json!({"requests": 0}))
}
