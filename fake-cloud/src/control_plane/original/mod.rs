//! Generation `original`: the control plane as it is deployed today, with required and ignored fields, small responses
//! and its own errors.
//!
//! [`ENDPOINTS`] lists what the server has; the handlers below it say what each call accepts and returns. The contract
//! is `openapi/control-plane-original.yaml`.

mod rejection;
mod validate;
mod view;
mod writes;

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde_json::{Value, json};

pub(crate) use self::rejection::WRITE_CONFLICT;
pub(in crate::control_plane) use self::rejection::{Rejection, problem};

use self::rejection::LOOKUP_FAILURE;
use self::validate::{Body, Flag};
use self::writes::{CmlData, EC2_DETAILS, Paused};
use super::enums;
use super::error::ApiError;
use super::fleet::WorkerFilter;
use super::http::{Access, ApiRequest, ApiResponse, Endpoint, Handler, Verb, WriteSteps};
use super::input::Input;
use super::license::{LicenseOperation, LicenseStep};
use super::records::Records;
use super::sessions::{SessionFilter, session_status};

type Answer = Result<ApiResponse, Rejection>;

const fn get(operation: &'static str, path: &'static str, handler: fn(&Records, &ApiRequest) -> Answer) -> Endpoint {
    Endpoint { operation, verb: Verb::Get, path, access: Access::Key, handler: Handler::Original(handler) }
}

const fn post(operation: &'static str, path: &'static str, handler: fn(&Records, &ApiRequest) -> Answer) -> Endpoint {
    Endpoint { operation, verb: Verb::Post, path, access: Access::Key, handler: Handler::Original(handler) }
}

/// All endpoints, in the order of the OpenAPI document. A path that differs by a slash at its end is redirected.
pub(super) const ENDPOINTS: &[Endpoint] = &[
    get("list_workers", "/api/internal/workers", list_workers),
    post("bulk_import", "/api/internal/workers/bulk-import", bulk_import),
    get("get_worker", "/api/internal/workers/{id}", get_worker),
    post("write_status", "/api/internal/workers/{id}/status", write_status),
    post("write_ec2_details", "/api/internal/workers/{id}/ec2-details", write_ec2_details),
    post("terminate_worker", "/api/internal/workers/{id}/terminate", terminate_worker),
    post("drain_worker", "/api/internal/workers/{id}/drain", drain_worker),
    post("detect_idle", "/api/internal/workers/{id}/detect-idle", detect_idle),
    get("idle_status", "/api/internal/workers/{id}/idle-status", idle_status),
    post("report_metrics", "/api/internal/workers/{id}/metrics", report_metrics),
    post("report_cml_data", "/api/internal/workers/{id}/cml-data", report_cml_data),
    post("start_registration", "/api/internal/workers/{id}/license/start-registration", |records, request| {
        start_license(records, request, LicenseOperation::Register)
    }),
    post("complete_registration", "/api/internal/workers/{id}/license/complete-registration", complete_registration),
    post("fail_registration", "/api/internal/workers/{id}/license/fail-registration", |records, request| {
        fail_license(records, request, LicenseOperation::Register)
    }),
    post("start_deregistration", "/api/internal/workers/{id}/license/start-deregistration", |records, request| {
        start_license(records, request, LicenseOperation::Deregister)
    }),
    post(
        "complete_deregistration",
        "/api/internal/workers/{id}/license/complete-deregistration",
        complete_deregistration,
    ),
    post("fail_deregistration", "/api/internal/workers/{id}/license/fail-deregistration", |records, request| {
        fail_license(records, request, LicenseOperation::Deregister)
    }),
    Endpoint {
        operation: "clear_sync",
        verb: Verb::Delete,
        path: "/api/internal/workers/{id}/sync",
        access: Access::Key,
        handler: Handler::Original(clear_sync),
    },
    get("get_template", "/api/internal/worker-templates/by-name/{name}", get_template),
    get("get_discovery_settings", "/api/internal/settings/discovery", |records, _| {
        Ok(ApiResponse::json(&*records.discovery()))
    }),
    get("list_sessions", "/api/internal/lablet-sessions/", list_sessions),
    get("get_session", "/api/internal/lablet-sessions/{id}", get_session),
    post("transition_session", "/api/internal/lablet-sessions/{id}/transition", transition_session),
    post("terminate_session", "/api/internal/lablet-sessions/{id}/terminate", terminate_session),
];

/// Returns the rejection of an unknown worker; the server answers it in a different way for each endpoint.
fn unless_unknown(error: ApiError, unknown: Rejection) -> Rejection {
    match error {
        ApiError::NotFound { .. } => unknown,
        other => Rejection::from(other),
    }
}

fn crash_if_unknown(error: ApiError) -> Rejection {
    unless_unknown(error, Rejection::Crash)
}

/// Returns the ids of the sessions of each worker.
fn session_ids(records: &Records) -> BTreeMap<String, Vec<String>> {
    let mut ids: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for session in records.sessions(&SessionFilter::default()) {
        let text = |field: &str| session.get(field).and_then(Value::as_str);
        if let (Some(worker), Some(id), false) =
            (text("worker_id"), text("id"), session_status(&session) == "terminated")
        {
            ids.entry(worker.to_owned()).or_default().push(id.to_owned());
        }
    }
    ids
}

fn list_workers(records: &Records, request: &ApiRequest) -> Answer {
    let include_terminated = validate::query_flag(request, "include_terminated")? == Flag::True;
    let status = request.query("status");
    let statuses = status.map(|word| {
        enums::parse_status("status", word)
            .map_err(|_| Rejection::handler(StatusCode::BAD_REQUEST, format!("Invalid status: {word}")))
    });
    let filter = WorkerFilter {
        statuses: statuses.transpose()?.into_iter().collect(),
        exclude_statuses: Vec::new(),
        aws_region: request.query("aws_region").map(str::to_owned),
        include_terminated,
    };
    let ids = session_ids(records);
    let of = |id: &str| ids.get(id).map_or(&[][..], Vec::as_slice);
    let workers: Vec<view::Ordered> =
        records.workers(&filter).iter().map(|worker| view::worker(worker, of(worker.id()))).collect();
    Ok(ApiResponse::json(&workers))
}

fn get_worker(records: &Records, request: &ApiRequest) -> Answer {
    let worker = records.worker(request.subject()).map_err(|error| unless_unknown(error, Rejection::lookup("")))?;
    let ids = session_ids(records).remove(worker.id()).unwrap_or_default();
    Ok(ApiResponse::json(&view::worker(&worker, &ids)))
}

fn write_status(records: &Records, request: &ApiRequest) -> Answer {
    let mut body = Body::required(request)?;
    let status = body.required_text("status");
    let instance = body.text("ec2_instance_id");
    body.object("metrics");
    body.finish()?;
    let status = enums::parse_status("status", &status)
        .map_err(|_| Rejection::handler(StatusCode::BAD_REQUEST, format!("Invalid status value: {status}")))?;
    // The status and the instance id are saved one after the other.
    let is_cut = instance.is_some() && request.steps() == WriteSteps::FirstOnly;
    let worker = records
        .original_status(request.subject(), status, instance.filter(|_| !is_cut))
        .map_err(|error| unless_unknown(error, Rejection::lookup("Unexpected error: ")))?;
    if is_cut {
        return Err(Rejection::write_conflict());
    }
    Ok(ApiResponse::json(&json!({
        "worker_id": worker.id(), "status": worker.status(), "desired_status": view::desired(&worker),
        "instance_state": worker.status(), "instance_id": worker.instance_id(), "aws_region": worker.text("aws_region"),
    })))
}

fn write_ec2_details(records: &Records, request: &ApiRequest) -> Answer {
    let mut body = Body::required(request)?;
    let details = EC2_DETAILS.map(|field| body.text(field));
    body.finish()?;
    let worker = records.original_ec2_details(request.subject(), details).map_err(crash_if_unknown)?;
    Ok(ApiResponse::json(&json!({
        "worker_id": worker.id(), "ec2_details_updated": true, "ami_id": worker.get("ami_id"),
        "ami_name": worker.get("ami_name"),
    })))
}

fn terminate_worker(records: &Records, request: &ApiRequest) -> Answer {
    let mut body = Body::optional(request)?;
    let (reason, terminated_by) = (body.text("reason"), body.text("terminated_by"));
    body.finish()?;
    let done = records
        .original_terminate(request.subject(), reason.as_deref(), terminated_by.as_deref())
        .map_err(|error| unless_unknown(error, Rejection::lookup("Failed to mark worker as terminated: ")))?;
    let worker = &done.worker;
    let mut answer = json!({
        "worker_id": worker.id(), "name": worker.get("name"), "status": "TERMINATED",
        "already_terminated": done.old_status.is_none(),
    });
    if let Some(old_status) = done.old_status {
        answer["old_status"] = old_status.into();
        answer["terminated_at"] = worker.time("terminated_at").map(view::aware).into();
        answer["terminated_by"] = terminated_by.into();
        answer["reason"] = reason.into();
    }
    Ok(ApiResponse::json(&answer))
}

fn drain_worker(records: &Records, request: &ApiRequest) -> Answer {
    let (reason, requested_by) = (request.query("reason"), request.query("requested_by"));
    let drained = records.drain(request.subject(), None, reason.unwrap_or("manual"), requested_by.unwrap_or("api"));
    let worker = drained.map_err(|error| match error {
        ApiError::WrongState { current, .. } => Rejection::handler(
            StatusCode::CONFLICT,
            format!("Cannot drain worker in status '{current}'. Only RUNNING workers can be drained."),
        ),
        other => unless_unknown(other, Rejection::no_entity("CMLWorker", request.subject())),
    })?;
    Ok(ApiResponse::json(&json!({
        "worker_id": worker.id(), "status": worker.status(), "desired_status": view::desired(&worker),
        "reason": reason, "requested_by": requested_by, "drained_at": view::aware(records.clock().now()),
    })))
}

fn detect_idle(records: &Records, request: &ApiRequest) -> Answer {
    let mut body = Body::optional(request)?;
    body.boolean("force_check", Flag::False);
    let events = body.list("raw_telemetry_events");
    body.finish()?;
    let id = request.subject();
    let mut answer = json!({
        "worker_id": id, "checked_at": view::aware(records.clock().now()), "telemetry_fetched": events.is_some(),
        "activity_updated": false, "idle_check_performed": false, "auto_pause_triggered": false, "error": null,
    });
    let Some(events) = events else {
        answer["error"] = "No telemetry events provided".into();
        return Ok(ApiResponse::json(&answer));
    };
    match records.original_detect_idle(id, &events) {
        Ok((state, paused)) => {
            for (field, value) in [
                ("activity_updated", Value::Bool(true)),
                ("idle_check_performed", Value::Bool(true)),
                ("auto_pause_triggered", Value::Bool(paused == Paused::Yes)),
                ("is_idle", state.is_idle.into()),
                ("idle_minutes", state.idle_minutes.into()),
                ("eligible_for_pause", state.eligible_for_pause.into()),
                ("in_snooze_period", state.in_snooze_period.into()),
            ] {
                answer[field] = value;
            }
        }
        Err(_) => answer["error"] = "Failed to update activity".into(),
    }
    Ok(ApiResponse::json(&answer))
}

fn idle_status(records: &Records, request: &ApiRequest) -> Answer {
    let id = request.subject();
    let unknown = format!("Error checking idle status: {LOOKUP_FAILURE}");
    let (state, snooze_until) = records
        .original_idle_status(id)
        .map_err(|error| unless_unknown(error, Rejection::handler(StatusCode::BAD_REQUEST, unknown)))?;
    let threshold = records.settings().idle.timeout.as_secs() / 60;
    Ok(ApiResponse::json(&json!({
        "worker_id": id, "is_idle": state.is_idle, "idle_minutes": state.idle_minutes,
        "idle_threshold_minutes": threshold, "last_activity_at": state.last_activity_at,
        "in_snooze_period": state.in_snooze_period, "snooze_until": snooze_until.map(view::aware),
        "auto_pause_enabled": records.original_auto_pause(id), "eligible_for_pause": state.eligible_for_pause,
        "next_idle_check_at": null, "target_pause_at": null, "checked_at": view::aware(records.clock().now()),
    })))
}

fn report_metrics(records: &Records, request: &ApiRequest) -> Answer {
    let mut body = Body::required(request)?;
    let (ec2, cml) = (body.object("ec2").unwrap_or_default(), body.object("cml").unwrap_or_default());
    let collected_at = body.time("collected_at");
    let refresh = ["poll_interval", "next_refresh_at"].map(|field| (field, body.any(field)));
    body.finish()?;
    let worker = records.original_metrics(request.subject(), &ec2, &cml, refresh).map_err(crash_if_unknown)?;
    Ok(ApiResponse::json(&json!({
        "worker_id": worker.id(), "metrics_updated": true,
        "collected_at": view::aware(collected_at.unwrap_or_else(|| records.clock().now())),
    })))
}

fn report_cml_data(records: &Records, request: &ApiRequest) -> Answer {
    let mut body = Body::required(request)?;
    let data = CmlData {
        version: body.text("cml_version"),
        ready: body.boolean("ready", Flag::False).into(),
        system_info: body.object("system_info"),
        system_health: body.object("system_health"),
        license_info: body.object("license_info"),
        uptime_seconds: body.any("uptime_seconds"),
        labs_count: body.integer("labs_count", 0),
    };
    let collected_at = body.time("collected_at");
    body.finish()?;
    let worker = records.original_cml_data(request.subject(), data).map_err(crash_if_unknown)?;
    Ok(ApiResponse::json(&json!({
        "worker_id": worker.id(), "cml_data_updated": true, "cml_version": worker.get("cml_version"),
        "ready": worker.get("cml_ready"),
        "collected_at": view::aware(collected_at.unwrap_or_else(|| records.clock().now())),
    })))
}

/// Moves a license operation, whichever operation is pending.
fn license_step(
    records: &Records,
    request: &ApiRequest,
    operation: LicenseOperation,
    step: LicenseStep,
    input: &Input,
) -> Result<(), Rejection> {
    let stepped = records.license_step(request.subject(), None, operation, step, input);
    stepped.map(drop).map_err(crash_if_unknown)
}

fn start_license(records: &Records, request: &ApiRequest, operation: LicenseOperation) -> Answer {
    let mut body = Body::optional(request)?;
    body.text("initiated_by");
    body.finish()?;
    license_step(records, request, operation, LicenseStep::Start, &Input::default())?;
    Ok(ApiResponse::json(&json!({"worker_id": request.subject(), "status": "in_progress"})))
}

fn complete_registration(records: &Records, request: &ApiRequest) -> Answer {
    let mut body = Body::required(request)?;
    body.required_text("registration_status");
    body.finish()?;
    license_step(records, request, LicenseOperation::Register, LicenseStep::Complete, &Input::default())?;
    Ok(ApiResponse::json(&json!({"worker_id": request.subject(), "status": "completed"})))
}

fn complete_deregistration(records: &Records, request: &ApiRequest) -> Answer {
    let mut body = Body::optional(request)?;
    let message = body.text("message").unwrap_or_else(|| "License deregistered successfully".to_owned());
    body.finish()?;
    license_step(records, request, LicenseOperation::Deregister, LicenseStep::Complete, &Input::default())?;
    Ok(ApiResponse::json(&json!({"worker_id": request.subject(), "status": "completed", "message": message})))
}

fn fail_license(records: &Records, request: &ApiRequest, operation: LicenseOperation) -> Answer {
    let mut body = Body::required(request)?;
    let error_message = body.required_text("error_message");
    body.finish()?;
    let message = Input::from_value(json!({"error_message": error_message}))?;
    license_step(records, request, operation, LicenseStep::Fail, &message)?;
    let answer = json!({"worker_id": request.subject(), "status": "failed", "error_message": error_message});
    Ok(ApiResponse::json(&answer))
}

fn bulk_import(records: &Records, request: &ApiRequest) -> Answer {
    let mut body = Body::required(request)?;
    let discovered = body.required_list("discovered_instances");
    let (region, source) = (body.required_text("aws_region"), body.text("source"));
    body.finish()?;
    let input = json!({"discovered_instances": discovered, "aws_region": region, "source": source});
    let mut answer = records.bulk_import(&Input::from_value(input)?)?;
    // Instances are reported by the ids of their workers.
    for list in ["imported", "skipped", "updated"] {
        let workers = answer[list].as_array().into_iter().flatten().map(|entry| entry["worker_id"].clone());
        answer[list] = workers.collect();
    }
    Ok(ApiResponse::json(&answer))
}

fn clear_sync(records: &Records, request: &ApiRequest) -> Answer {
    records.delete_key(request.subject(), "sync");
    Ok(ApiResponse::json(&json!({"worker_id": request.subject(), "sync_cleared": true})))
}

fn get_template(records: &Records, request: &ApiRequest) -> Answer {
    let template = records
        .template(request.subject())
        .map_err(|error| unless_unknown(error, Rejection::no_entity("WorkerTemplate", request.subject())))?;
    Ok(ApiResponse::json(&view::template(&template)))
}

fn list_sessions(records: &Records, request: &ApiRequest) -> Answer {
    let limit = validate::query_integer(request, "limit", 100, 1..=1000)?;
    let skip = validate::query_integer(request, "skip", 0, 0..=i64::MAX)?;
    let all = validate::query_flag(request, "include_terminated")? == Flag::True;
    let status = request.query("status").map(str::to_ascii_lowercase);
    let filter = SessionFilter {
        worker_id: request.query("worker_id").map(str::to_owned),
        statuses: status.clone().into_iter().collect(),
    };
    let definition = request.query("definition_id");
    let mut sessions = records.sessions(&filter);
    sessions.retain(|session| {
        let is_listed = all || status.is_some() || session_status(session) != "terminated";
        is_listed && definition.is_none_or(|id| session.get("definition_id").and_then(Value::as_str) == Some(id))
    });
    // Oldest first; the store orders them by id.
    sessions.sort_by_key(|session| session.get("created_at").and_then(Value::as_str).unwrap_or_default().to_owned());
    let page: Vec<Value> = sessions.iter().skip(skip).take(limit).map(|session| view::session(session)).collect();
    Ok(ApiResponse::json(&page))
}

fn no_session(request: &ApiRequest) -> impl Fn(ApiError) -> Rejection {
    let id = request.subject().to_owned();
    move |error| unless_unknown(error, Rejection::no_entity("LabletSession", &id))
}

fn get_session(records: &Records, request: &ApiRequest) -> Answer {
    let session = records.session(request.subject()).map_err(no_session(request))?;
    Ok(ApiResponse::json(&view::session(&session)))
}

fn transition_session(records: &Records, request: &ApiRequest) -> Answer {
    let mut body = Body::required(request)?;
    let (status, reason) = (body.required_text("status"), body.text("reason"));
    body.finish()?;
    let status = status.to_ascii_lowercase();
    let refused = match status.as_str() {
        "running" | "collecting" | "stopping" | "stopped" | "archived" => None,
        "instantiating" => Some("Use POST /internal/lablet-sessions/{id}/start-instantiation instead.".to_owned()),
        other => Some(format!("Transition to {other} not supported via this endpoint")),
    };
    if let Some(detail) = refused {
        return Err(Rejection::handler(StatusCode::BAD_REQUEST, detail));
    }
    let input = Input::from_value(json!({"status": status, "reason": reason}))?;
    let session = records.transition_session(request.subject(), &input).map_err(no_session(request))?;
    Ok(ApiResponse::json(&view::session(&session)))
}

fn terminate_session(records: &Records, request: &ApiRequest) -> Answer {
    let mut body = Body::required(request)?;
    let (terminated_by, reason) = (body.required_text("terminated_by"), body.text("reason"));
    body.finish()?;
    let id = request.subject();
    let ended = records.terminate_session(id, reason.as_deref(), Some(&terminated_by)).map_err(no_session(request))?;
    match ended {
        (_, true) => {
            Err(Rejection::handler(StatusCode::CONFLICT, format!("LabletSession '{id}' is already terminated")))
        }
        (_, false) => Ok(ApiResponse::json(&json!({
            "id": id, "status": "terminated", "terminated_at": view::aware(records.clock().now()),
            "terminated_by": terminated_by, "reason": reason,
        }))),
    }
}
