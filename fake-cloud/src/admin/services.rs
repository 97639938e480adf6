//! Admin routes for etcd, CML and the control plane, and the reset of all services.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};
use axum::routing::post;
use axum::{Json, Router};
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::branches::Branches;
use super::{AdminError, AdminResult};
use crate::cloud::FakeCloudBuilder;
use crate::cml::CmlServers;
use crate::control_plane::{ApiError, Input, Records, SessionFilter, WorkerFilter};
use crate::etcd::{EtcdStore, Fault, KeyRange, Range};
use crate::names::{self, Place};
use crate::scenario::{Scenario, ScenarioError, Timeline};
use crate::snapshot::Snapshot;
use crate::world::World;

/// Handles to etcd, CML and the control plane. Clones share the same services.
#[derive(Debug, Clone)]
pub struct Services {
    /// Record store of the control plane.
    pub records: Records,
    /// Key-value store behind the etcd API.
    pub etcd: EtcdStore,
    /// CML server of every instance.
    pub cml_servers: CmlServers,
    /// Scenario applied at startup and by a reset.
    pub scenario: Option<Scenario>,
    pub(crate) timeline: Timeline,
    /// Snapshot from which the cloud started; a reset restores it.
    pub(crate) start: Option<Snapshot>,
    /// Clouds that the admin API started from this one.
    pub(crate) branches: Branches,
    /// Configuration of the cloud, for its branches.
    pub(crate) origin: Option<Arc<FakeCloudBuilder>>,
}

/// State that a reset restores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResetTo {
    /// The scenario or the snapshot given at startup; empty if there was none.
    #[default]
    Scenario,
    /// No instances, records or keys.
    Empty,
}

impl Services {
    /// Creates handles to services, with an empty timeline.
    pub fn new(records: Records, etcd: EtcdStore, cml_servers: CmlServers, scenario: Option<Scenario>) -> Self {
        let (timeline, branches) = (Timeline::default(), Branches::default());
        Self { records, etcd, cml_servers, scenario, timeline, start: None, branches, origin: None }
    }

    /// Resets every service. The clock keeps its time, unless the cloud started from a snapshot.
    ///
    /// # Errors
    /// The scenario cannot be applied.
    pub(crate) fn reset(&self, world: &World, to: ResetTo) -> Result<(), ScenarioError> {
        if let (ResetTo::Scenario, Some(start)) = (to, &self.start) {
            let restored = self.restore(world, start).map(drop);
            return restored.map_err(|error| ScenarioError::new("the snapshot at startup", "", error));
        }
        self.cml_servers.reset();
        self.records.reset();
        // After the records, so that their mirrored keys are dropped with all others.
        self.etcd.reset();
        // Last, because it wakes the task that supervises the CML servers.
        world.reset();
        self.timeline.load(Vec::new());
        match (to, &self.scenario) {
            (ResetTo::Scenario, Some(scenario)) => self.apply(scenario, world),
            (ResetTo::Scenario, None) | (ResetTo::Empty, _) => Ok(()),
        }
    }

    /// Applies a scenario to an empty world.
    ///
    /// # Errors
    /// The scenario cannot be applied.
    pub(crate) fn apply(&self, scenario: &Scenario, world: &World) -> Result<(), ScenarioError> {
        scenario.settle(world, &self.records)?;
        self.timeline.load(scenario.steps(world.clock().now()));
        Ok(())
    }

    /// Advances the clock, with the steps of the timeline.
    pub(crate) fn advance(&self, world: &World, duration: Duration) {
        self.timeline.advance(world, &self.records, duration);
    }

    /// Current state as JSON, without passwords and tokens.
    pub(super) fn to_json(&self) -> Map<String, Value> {
        let all = WorkerFilter { include_terminated: true, ..WorkerFilter::default() };
        let workers = self.records.workers(&all);
        let sessions = self.records.sessions(&SessionFilter::default());
        let pick = |fields: &Map<String, Value>, names: &[&str]| -> Value {
            names.iter().map(|name| ((*name).to_owned(), fields.get(*name).cloned().unwrap_or_default())).collect()
        };
        let workers: Vec<_> = workers.iter().map(|worker| pick(worker.fields(), &WORKER_FIELDS)).collect();
        let sessions: Vec<_> = sessions.iter().map(|session| pick(session, &SESSION_FIELDS)).collect();
        let generation = self.records.settings().generation;
        Map::from_iter([
            ("control_plane".to_owned(), json!({"generation": generation})),
            ("workers".to_owned(), workers.into()),
            ("sessions".to_owned(), sessions.into()),
            ("etcd".to_owned(), self.show_etcd()),
            ("cml".to_owned(), self.cml_servers.to_json()),
            ("timeline".to_owned(), json!(self.timeline.pending())),
        ])
    }

    /// Revision, number of keys and leases of etcd.
    pub(super) fn show_etcd(&self) -> Value {
        let leases = self.etcd.leases().into_iter().filter_map(|id| {
            let status = self.etcd.lease_status(id)?;
            let keys: Vec<_> = status.keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
            let (granted, left) = (status.granted_ttl, status.ttl);
            Some(json!({"id": format!("{id:x}"), "granted_seconds": granted, "seconds_left": left, "keys": keys}))
        });
        let keys = self.etcd.range(&Range::new(KeyRange::prefix(""))).map_or(0, |found| found.count);
        json!({
            "revision": self.etcd.revision(),
            "keys": keys,
            "leases": leases.collect::<Vec<_>>(),
            "available": !self.etcd.is_unavailable(),
        })
    }
}

/// Worker fields in `/_fake/state`. Passwords and license tokens are left out.
const WORKER_FIELDS: [&str; 8] =
    ["id", "name", "status", "desired_status", "aws_region", "ec2_instance_id", "template_name", "version"];
/// Session fields in `/_fake/state`.
const SESSION_FIELDS: [&str; 5] = ["id", "status", "worker_id", "timeslot_start", "timeslot_end"];

pub(super) fn router(world: Arc<World>, services: Services) -> Router {
    let wipe = Router::new().route("/_fake/console/cml/wipe", post(wipe)).with_state((world, services.clone()));
    Router::new()
        .route("/_fake/console/worker", post(worker))
        .route("/_fake/console/worker/{id}", post(edit_worker))
        .route("/_fake/console/session", post(session))
        .route("/_fake/etcd/{fault}", post(etcd_fault))
        .with_state(services)
        .merge(wipe)
}

impl From<ApiError> for AdminError {
    fn from(problem: ApiError) -> Self {
        let status = StatusCode::from_u16(problem.http_status()).unwrap_or(StatusCode::BAD_REQUEST);
        Self(status, problem.to_string())
    }
}

async fn worker(State(services): State<Services>, body: Result<Json<Value>, JsonRejection>) -> AdminResult {
    let Json(fields) = body?;
    let worker = services.records.add_worker(Input::from_value(fields)?)?;
    Ok(Json(json!({"id": worker.id(), "status": worker.status(), "version": worker.version()})))
}

async fn edit_worker(
    State(services): State<Services>,
    id: Result<Path<String>, PathRejection>,
    body: Result<Json<Value>, JsonRejection>,
) -> AdminResult {
    let Path(id) = id?;
    let Json(fields) = body?;
    let worker = services.records.change_worker(&id, Input::from_value(fields)?)?;
    Ok(Json(json!({"id": worker.id(), "status": worker.status(), "version": worker.version()})))
}

async fn session(State(services): State<Services>, body: Result<Json<Value>, JsonRejection>) -> AdminResult {
    let Json(fields) = body?;
    let session = services.records.add_session(Input::from_value(fields)?)?;
    Ok(Json(json!({"id": session.get("id"), "status": session.get("status")})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WipeBody {
    instance: String,
}

async fn wipe(
    State((world, services)): State<(Arc<World>, Services)>,
    body: Result<Json<WipeBody>, JsonRejection>,
) -> AdminResult {
    let Json(WipeBody { instance }) = body?;
    let found = names::find_instance(&world, Some(&services.records), None, &instance);
    let Place { id, .. } = found.map_err(|error| AdminError(StatusCode::NOT_FOUND, error.to_string()))?;
    let server = services.cml_servers.find(&id).ok_or_else(|| {
        AdminError(StatusCode::NOT_FOUND, format!("instance {instance:?} has no CML server: it never ran"))
    })?;
    server.wipe();
    Ok(Json(json!({"wiped": id})))
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct EtcdFaultBody {
    lease: Option<Value>,
}

async fn etcd_fault(
    State(services): State<Services>,
    name: Result<Path<String>, PathRejection>,
    body: Result<Option<Json<EtcdFaultBody>>, JsonRejection>,
) -> AdminResult {
    let Path(name) = name?;
    let details = body?.map(|Json(body)| body).unwrap_or_default();
    let fault = Fault::from_name(&name, details.lease.as_ref())
        .map_err(|hint| AdminError(StatusCode::UNPROCESSABLE_ENTITY, hint))?;
    if services.etcd.inject(fault) {
        Ok(Json(json!({"fault": name, "revision": services.etcd.revision()})))
    } else {
        Err(AdminError(StatusCode::NOT_FOUND, "no such lease; GET /_fake/state lists all leases".to_owned()))
    }
}
