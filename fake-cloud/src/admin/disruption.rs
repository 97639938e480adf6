//! Trouble of EC2: failed status checks, scheduled events, missing capacity, spot interruptions.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::console::JsonBody;
use super::{AdminError, AdminResult, AdminState};
use crate::names::Place;
use crate::world::{CheckResult, EventCode, ImposedChecks, Instance, InterruptionBehavior, World};

pub(super) fn router() -> Router<AdminState> {
    Router::new()
        .route("/_fake/console/status-checks", post(status_checks))
        .route("/_fake/console/event", post(event))
        .route("/_fake/console/capacity", post(capacity))
        .route("/_fake/console/spot-interruption", post(spot_interruption))
        .route("/_fake/console/rebalance", post(rebalance))
        .route("/_fake/metadata/{instance}/spot/instance-action", get(instance_action))
        .route("/_fake/metadata/{instance}/events/recommendations/rebalance", get(rebalance_notice))
        .route("/_fake/metadata/{instance}/events/maintenance/scheduled", get(scheduled_events))
}

/// Returns the routes that concern EC2 beside instances and networks.
pub(super) fn help() -> Value {
    json!({
        "POST /_fake/console/key-pair": {"region": "us-east-1", "name": "ops"},
        "POST /_fake/console/instance-profile": {"name": "cml", "exists": false},
        "POST /_fake/console/region": {"region": "eu-south-2", "opt_in_status": "opted-in | not-opted-in"},
        "POST /_fake/console/status-checks": {"region": "us-east-1", "instance": "i-…",
            "system": "ok | impaired | insufficient-data", "instance_check": "ok | impaired | insufficient-data"},
        "POST /_fake/console/event": {"region": "us-east-1", "instance": "i-…", "not_before": "2026-01-01T00:00:00Z",
            "code": "instance-reboot | system-reboot | system-maintenance | instance-retirement | instance-stop"},
        "POST /_fake/console/capacity": {"region": "us-east-1", "instance_type": "m5zn.metal",
            "availability_zone": "us-east-1a", "instances": "running instances allowed; null removes the limit"},
        "POST /_fake/console/spot-interruption": {"region": "us-east-1", "instance": "i-…", "at": "default: now"},
        "POST /_fake/console/rebalance": {"region": "us-east-1", "instance": "i-…", "at": "default: now"},
        "GET /_fake/metadata/{instance}/spot/instance-action": "the notice of a spot interruption, as the instance reads it",
        "GET /_fake/metadata/{instance}/events/recommendations/rebalance": "the recommendation to replace a spot instance",
        "GET /_fake/metadata/{instance}/events/maintenance/scheduled": "scheduled events, as the instance reads them",
    })
}

/// Result of a status check; `ok` follows the state of the instance.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Check {
    Ok,
    Impaired,
    InsufficientData,
}

impl Check {
    fn imposed(self) -> Option<CheckResult> {
        match self {
            Self::Ok => None,
            Self::Impaired => Some(CheckResult::Impaired),
            Self::InsufficientData => Some(CheckResult::InsufficientData),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewChecks {
    region: Option<String>,
    instance: String,
    #[serde(default = "passing")]
    system: Check,
    #[serde(default = "passing", rename = "instance_check")]
    check: Check,
}

fn passing() -> Check {
    Check::Ok
}

async fn status_checks(State(state): State<AdminState>, body: JsonBody<NewChecks>) -> AdminResult {
    let Json(new) = body?;
    let checks = ImposedChecks { system: new.system.imposed(), instance: new.check.imposed(), since: None };
    let Place { region, id } = state.find(new.region.as_deref(), &new.instance)?;
    state.world.console_set_checks(&region, &id, checks)?;
    Ok(Json(json!({"instance": id})))
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Code {
    InstanceReboot,
    SystemReboot,
    SystemMaintenance,
    InstanceRetirement,
    InstanceStop,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewEvent {
    region: Option<String>,
    instance: String,
    code: Code,
    not_before: Option<DateTime<Utc>>,
    not_after: Option<DateTime<Utc>>,
}

async fn event(State(state): State<AdminState>, body: JsonBody<NewEvent>) -> AdminResult {
    let Json(new) = body?;
    let code = match new.code {
        Code::InstanceReboot => EventCode::InstanceReboot,
        Code::SystemReboot => EventCode::SystemReboot,
        Code::SystemMaintenance => EventCode::SystemMaintenance,
        Code::InstanceRetirement => EventCode::InstanceRetirement,
        Code::InstanceStop => EventCode::InstanceStop,
    };
    let not_before = new.not_before.unwrap_or_else(|| state.world.clock().now() + TimeDelta::days(14));
    let not_after = new.not_after.unwrap_or(not_before + TimeDelta::hours(2));
    if not_after < not_before {
        return Err(AdminError(StatusCode::UNPROCESSABLE_ENTITY, "not_after is before not_before".to_owned()));
    }
    let Place { region, id } = state.find(new.region.as_deref(), &new.instance)?;
    let event = state.world.console_schedule_event(&region, &id, code, not_before, not_after)?;
    Ok(Json(json!({"event": event.id, "not_before": event.not_before, "not_after": event.not_after})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewCapacity {
    region: String,
    instance_type: Option<String>,
    availability_zone: Option<String>,
    instances: Option<usize>,
}

async fn capacity(State(world): State<Arc<World>>, body: JsonBody<NewCapacity>) -> AdminResult {
    let Json(new) = body?;
    world.console_set_capacity(&new.region, new.instance_type, new.availability_zone, new.instances)?;
    Ok(Json(json!({"instances": new.instances})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Notice {
    region: Option<String>,
    instance: String,
    at: Option<DateTime<Utc>>,
}

async fn spot_interruption(State(state): State<AdminState>, body: JsonBody<Notice>) -> AdminResult {
    let Json(new) = body?;
    let Place { region, id } = state.find(new.region.as_deref(), &new.instance)?;
    let at = state.world.console_interrupt_spot(&region, &id, new.at)?;
    Ok(Json(json!({"instance": id, "at": at})))
}

async fn rebalance(State(state): State<AdminState>, body: JsonBody<Notice>) -> AdminResult {
    let Json(new) = body?;
    let Place { region, id } = state.find(new.region.as_deref(), &new.instance)?;
    let at = state.world.console_recommend_rebalance(&region, &id, new.at)?;
    Ok(Json(json!({"instance": id, "at": at})))
}

/// Returns a document of the metadata service of an instance; 404 while there is none, as the service does.
fn metadata(state: &AdminState, name: &str, read: impl Fn(&Instance, DateTime<Utc>) -> Option<Value>) -> Response {
    let id = match state.find(None, name) {
        Ok(place) => place.id,
        Err(unknown) => return AdminError(StatusCode::NOT_FOUND, unknown.message).into_response(),
    };
    let found = state.world.with_ec2(|ec2, now| {
        ec2.regions().find_map(|region| region.find(&id).cloned()).and_then(|instance| read(&instance, now))
    });
    match found {
        Some(document) => Json(document).into_response(),
        None => AdminError(StatusCode::NOT_FOUND, "not found".to_owned()).into_response(),
    }
}

fn seconds(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

async fn instance_action(State(state): State<AdminState>, Path(id): Path<String>) -> Response {
    metadata(&state, &id, |instance, now| {
        let notice = instance.extra.interruption.filter(|notice| notice.noticed_at <= now)?;
        let action = instance.options.spot().map_or(InterruptionBehavior::Terminate, |spot| spot.interruption);
        Some(json!({"action": action.name(), "time": seconds(notice.at)}))
    })
}

async fn rebalance_notice(State(state): State<AdminState>, Path(id): Path<String>) -> Response {
    metadata(&state, &id, |instance, now| {
        instance.extra.rebalance_at.filter(|at| *at <= now).map(|at| json!({"noticeTime": seconds(at)}))
    })
}

async fn scheduled_events(State(state): State<AdminState>, Path(id): Path<String>) -> Response {
    metadata(&state, &id, |instance, now| {
        let events = instance.extra.events.iter().map(|event| {
            let is_active = now < event.not_after;
            json!({
                "EventId": event.id,
                "Code": event.code.name(),
                "Description": event.description(now),
                "NotBefore": event.not_before.format("%-d %b %Y %H:%M:%S GMT").to_string(),
                "NotAfter": event.not_after.format("%-d %b %Y %H:%M:%S GMT").to_string(),
                "State": if is_active { "active" } else { "completed" },
            })
        });
        Some(events.collect())
    })
}
