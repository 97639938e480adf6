//! What stands behind the services that are not AWS, as far as the admin API reaches.

use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};
use axum::routing::post;
use axum::{Json, Router};
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{AdminError, Answer};
use crate::cml::CmlServers;
use crate::control_plane::{ApiError, Input, Records, SessionFilter, WorkerFilter};
use crate::etcd::{EtcdStore, Fault, KeyRange, Range};
use crate::scenario::{Scenario, ScenarioError};
use crate::world::World;

/// Handles to the services that are not AWS. Clones reach the same ones; none of them knows the admin API.
#[derive(Debug, Clone)]
pub struct Services {
    /// The control plane's records.
    pub records: Records,
    /// etcd.
    pub etcd: EtcdStore,
    /// The CML of every instance.
    pub cml_servers: CmlServers,
    /// What had happened before it all began.
    pub scenario: Option<Scenario>,
}

/// What a reset goes back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResetTo {
    /// The scenario it was started with; the empty world if there was none.
    #[default]
    Scenario,
    /// A world in which nothing has happened.
    Empty,
}

impl Services {
    /// Back to the beginning. The clock goes on.
    ///
    /// # Errors
    /// What the scenario cannot do.
    pub(crate) fn reset(&self, world: &World, to: ResetTo) -> Result<(), ScenarioError> {
        self.cml_servers.reset();
        self.records.reset();
        // After the records: what they had mirrored goes with the rest.
        self.etcd.reset();
        // Last: its end wakes whoever keeps the CMLs.
        world.reset();
        match (to, &self.scenario) {
            (ResetTo::Scenario, Some(scenario)) => scenario.settle(world, &self.records),
            (ResetTo::Scenario, None) | (ResetTo::Empty, _) => Ok(()),
        }
    }

    /// Everything there is, without passwords and tokens.
    pub(super) fn show(&self) -> Map<String, Value> {
        let everyone = WorkerFilter { include_terminated: true, ..WorkerFilter::default() };
        let workers = self.records.workers(&everyone);
        let sessions = self.records.sessions(&SessionFilter::default());
        let shown = |fields: &Map<String, Value>, names: &[&str]| -> Value {
            names.iter().map(|name| ((*name).to_owned(), fields.get(*name).cloned().unwrap_or_default())).collect()
        };
        let workers: Vec<_> = workers.iter().map(|worker| shown(worker.fields(), &WORKER_FIELDS)).collect();
        let sessions: Vec<_> = sessions.iter().map(|session| shown(session, &SESSION_FIELDS)).collect();
        Map::from_iter([
            ("workers".to_owned(), workers.into()),
            ("sessions".to_owned(), sessions.into()),
            ("etcd".to_owned(), self.show_etcd()),
            ("cml".to_owned(), self.cml_servers.show()),
        ])
    }

    fn show_etcd(&self) -> Value {
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

/// What is shown of a worker. Its password and its licence token are not.
const WORKER_FIELDS: [&str; 8] =
    ["id", "name", "status", "desired_status", "aws_region", "ec2_instance_id", "template_name", "version"];
/// What is shown of a session.
const SESSION_FIELDS: [&str; 5] = ["id", "status", "worker_id", "timeslot_start", "timeslot_end"];

pub(super) fn router(services: Services) -> Router {
    Router::new()
        .route("/_fake/console/worker", post(worker))
        .route("/_fake/console/worker/{id}", post(edit_worker))
        .route("/_fake/console/session", post(session))
        .route("/_fake/console/cml/wipe", post(wipe))
        .route("/_fake/etcd/{fault}", post(etcd_fault))
        .with_state(services)
}

impl From<ApiError> for AdminError {
    fn from(problem: ApiError) -> Self {
        let status = StatusCode::from_u16(problem.http_status()).unwrap_or(StatusCode::BAD_REQUEST);
        Self(status, problem.to_string())
    }
}

async fn worker(State(stage): State<Services>, body: Result<Json<Value>, JsonRejection>) -> Answer {
    let Json(fields) = body?;
    let worker = stage.records.create_worker(Input::from_value(fields)?)?;
    Ok(Json(json!({"id": worker.id(), "status": worker.status(), "version": worker.version()})))
}

async fn edit_worker(
    State(stage): State<Services>,
    id: Result<Path<String>, PathRejection>,
    body: Result<Json<Value>, JsonRejection>,
) -> Answer {
    let Path(id) = id?;
    let Json(fields) = body?;
    let worker = stage.records.edit_worker(&id, Input::from_value(fields)?)?;
    Ok(Json(json!({"id": worker.id(), "status": worker.status(), "version": worker.version()})))
}

async fn session(State(stage): State<Services>, body: Result<Json<Value>, JsonRejection>) -> Answer {
    let Json(fields) = body?;
    let session = stage.records.create_session(Input::from_value(fields)?)?;
    Ok(Json(json!({"id": session.get("id"), "status": session.get("status")})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Laboratory {
    instance: String,
}

async fn wipe(State(stage): State<Services>, body: Result<Json<Laboratory>, JsonRejection>) -> Answer {
    let Json(Laboratory { instance }) = body?;
    let system = stage.cml_servers.find(&instance).ok_or_else(|| {
        AdminError(
            StatusCode::NOT_FOUND,
            format!("instance {instance:?} has no CML: it has not run, or does not exist"),
        )
    })?;
    system.wipe();
    Ok(Json(json!({"wiped": instance})))
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Details {
    lease: Option<Value>,
}

async fn etcd_fault(
    State(stage): State<Services>,
    name: Result<Path<String>, PathRejection>,
    body: Result<Option<Json<Details>>, JsonRejection>,
) -> Answer {
    let Path(name) = name?;
    let details = body?.map(|Json(details)| details).unwrap_or_default();
    let fault = Fault::from_name(&name, details.lease.as_ref())
        .map_err(|hint| AdminError(StatusCode::UNPROCESSABLE_ENTITY, hint))?;
    if stage.etcd.inject(fault) {
        Ok(Json(json!({"fault": name, "revision": stage.etcd.revision()})))
    } else {
        Err(AdminError(StatusCode::NOT_FOUND, "there is no such lease; GET /_fake/state lists them".to_owned()))
    }
}
