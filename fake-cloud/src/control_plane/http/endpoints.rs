//! Table of all endpoints of the API.

use axum::http::StatusCode;
use chrono::TimeDelta;
use serde_json::json;

use super::Access;
use super::codec::{ApiRequest, ApiResponse};
use crate::control_plane::enums;
use crate::control_plane::error::ApiError;
use crate::control_plane::fleet::WorkerFilter;
use crate::control_plane::license::{LicenseOperation, LicenseStep};
use crate::control_plane::original::Rejection;
use crate::control_plane::records::Records;
use crate::control_plane::reports::ReportKind;
use crate::control_plane::sessions::SessionFilter;

/// One endpoint of the API.
#[derive(Debug)]
pub struct Endpoint {
    /// Name in the OpenAPI document (`operationId`) and in fault rules.
    pub operation: &'static str,
    /// HTTP method of the endpoint.
    pub verb: Verb,
    /// Path; a segment in braces is a parameter.
    pub path: &'static str,
    /// Access control of the endpoint.
    pub access: Access,
    pub(in crate::control_plane) handler: Handler,
}

/// Handler of an endpoint, with the errors of its generation.
#[derive(Debug, Clone, Copy)]
pub(in crate::control_plane) enum Handler {
    /// Errors with a stable code.
    Extended(ExtendedHandler),
    /// Errors of the original server.
    Original(fn(&Records, &ApiRequest) -> Result<ApiResponse, Rejection>),
}

type ExtendedHandler = fn(&Records, &ApiRequest) -> EndpointResult;
type EndpointResult = Result<ApiResponse, ApiError>;

/// HTTP methods in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Reads without a change.
    Get,
    /// Creates an object or runs an operation.
    Post,
    /// Replaces an object.
    Put,
    /// Removes an object.
    Delete,
}

const fn public(operation: &'static str, verb: Verb, path: &'static str, handler: ExtendedHandler) -> Endpoint {
    Endpoint { operation, verb, path, access: Access::Open, handler: Handler::Extended(handler) }
}

const fn authenticated(operation: &'static str, verb: Verb, path: &'static str, handler: ExtendedHandler) -> Endpoint {
    Endpoint { operation, verb, path, access: Access::Key, handler: Handler::Extended(handler) }
}

/// All endpoints of the generation `extended`, in the order of the OpenAPI document.
pub const ENDPOINTS: &[Endpoint] = &[
    public("health", Verb::Get, "/health", |_, _| Ok(ApiResponse::json(&json!({"status": "healthy"})))),
    authenticated("list_workers", Verb::Get, "/api/internal/workers", list_workers),
    authenticated("create_worker", Verb::Post, "/api/internal/workers", |records, request| {
        Ok(ApiResponse::worker(&records.create_worker(request.input()?)?).with_status(StatusCode::CREATED))
    }),
    authenticated("scale_up", Verb::Post, "/api/internal/workers/scale-up", scale_up),
    authenticated("bulk_import", Verb::Post, "/api/internal/workers/bulk-import", |records, request| {
        Ok(ApiResponse::json(&records.bulk_import(&request.input()?)?))
    }),
    authenticated("get_worker", Verb::Get, "/api/internal/workers/{id}", |records, request| {
        Ok(ApiResponse::worker(&records.worker(request.subject())?))
    }),
    authenticated("write_status", Verb::Post, "/api/internal/workers/{id}/status", |records, request| {
        let input = request.input()?;
        Ok(ApiResponse::worker(&records.write_status(request.subject(), request.expected_version(&input)?, &input)?))
    }),
    authenticated("set_desired_status", Verb::Post, "/api/internal/workers/{id}/desired-status", |records, request| {
        let input = request.input()?;
        Ok(ApiResponse::worker(&records.set_desired(request.subject(), request.expected_version(&input)?, &input)?))
    }),
    authenticated("write_ec2_details", Verb::Post, "/api/internal/workers/{id}/ec2-details", |records, request| {
        let input = request.input()?;
        Ok(ApiResponse::worker(&records.write_ec2_details(
            request.subject(),
            request.expected_version(&input)?,
            &input,
        )?))
    }),
    authenticated("terminate_worker", Verb::Post, "/api/internal/workers/{id}/terminate", terminate_worker),
    authenticated("drain_worker", Verb::Post, "/api/internal/workers/{id}/drain", drain),
    authenticated("cancel_drain", Verb::Post, "/api/v1/workers/{id}/cancel-drain", cancel_drain),
    authenticated("detect_idle", Verb::Post, "/api/internal/workers/{id}/detect-idle", |records, request| {
        Ok(ApiResponse::json(&records.detect_idle(request.subject(), &request.input()?)?))
    }),
    authenticated("idle_status", Verb::Get, "/api/internal/workers/{id}/idle-status", |records, request| {
        Ok(ApiResponse::json(&records.idle_status(request.subject())?))
    }),
    authenticated("report_metrics", Verb::Post, "/api/internal/workers/{id}/metrics", |records, request| {
        Ok(ApiResponse::worker(&records.store_report(request.subject(), ReportKind::Metrics, &request.input()?)?))
    }),
    authenticated("report_cml_data", Verb::Post, "/api/internal/workers/{id}/cml-data", |records, request| {
        Ok(ApiResponse::worker(&records.store_report(request.subject(), ReportKind::CmlData, &request.input()?)?))
    }),
    authenticated("report_activity", Verb::Post, "/api/internal/workers/{id}/activity", |records, request| {
        Ok(ApiResponse::worker(&records.record_activity(request.subject(), &request.input()?)?))
    }),
    authenticated(
        "request_registration",
        Verb::Post,
        "/api/internal/workers/{id}/license/request-registration",
        |records, request| license(records, request, LicenseOperation::Register, LicenseStep::Request),
    ),
    authenticated(
        "start_registration",
        Verb::Post,
        "/api/internal/workers/{id}/license/start-registration",
        |records, request| license(records, request, LicenseOperation::Register, LicenseStep::Start),
    ),
    authenticated(
        "complete_registration",
        Verb::Post,
        "/api/internal/workers/{id}/license/complete-registration",
        |records, request| license(records, request, LicenseOperation::Register, LicenseStep::Complete),
    ),
    authenticated(
        "fail_registration",
        Verb::Post,
        "/api/internal/workers/{id}/license/fail-registration",
        |records, request| license(records, request, LicenseOperation::Register, LicenseStep::Fail),
    ),
    authenticated(
        "request_deregistration",
        Verb::Post,
        "/api/internal/workers/{id}/license/request-deregistration",
        |records, request| license(records, request, LicenseOperation::Deregister, LicenseStep::Request),
    ),
    authenticated(
        "start_deregistration",
        Verb::Post,
        "/api/internal/workers/{id}/license/start-deregistration",
        |records, request| license(records, request, LicenseOperation::Deregister, LicenseStep::Start),
    ),
    authenticated(
        "complete_deregistration",
        Verb::Post,
        "/api/internal/workers/{id}/license/complete-deregistration",
        |records, request| license(records, request, LicenseOperation::Deregister, LicenseStep::Complete),
    ),
    authenticated(
        "fail_deregistration",
        Verb::Post,
        "/api/internal/workers/{id}/license/fail-deregistration",
        |records, request| license(records, request, LicenseOperation::Deregister, LicenseStep::Fail),
    ),
    authenticated("list_templates", Verb::Get, "/api/internal/worker-templates", |records, _| {
        Ok(ApiResponse::objects(records.templates()))
    }),
    authenticated("put_template", Verb::Post, "/api/internal/worker-templates", |records, request| {
        Ok(ApiResponse::json(&*records.put_template(request.input()?)?).with_status(StatusCode::CREATED))
    }),
    authenticated("get_template", Verb::Get, "/api/internal/worker-templates/by-name/{name}", |records, request| {
        Ok(ApiResponse::json(&*records.template(request.subject())?))
    }),
    authenticated(
        "delete_template",
        Verb::Delete,
        "/api/internal/worker-templates/by-name/{name}",
        |records, request| {
            records.delete_template(request.subject())?;
            Ok(ApiResponse::json(&json!({"deleted": request.subject()})))
        },
    ),
    authenticated("get_discovery_settings", Verb::Get, "/api/internal/settings/discovery", |records, _| {
        Ok(ApiResponse::json(&*records.discovery()))
    }),
    authenticated("set_discovery_settings", Verb::Put, "/api/internal/settings/discovery", |records, request| {
        Ok(ApiResponse::json(&*records.set_discovery(request.input()?)?))
    }),
    authenticated("list_sessions", Verb::Get, "/api/internal/lablet-sessions", |records, request| {
        let statuses = request.query_list("status").map(str::to_ascii_lowercase).collect();
        let filter = SessionFilter { worker_id: request.query("worker_id").map(str::to_owned), statuses };
        Ok(ApiResponse::objects(records.sessions(&filter)))
    }),
    authenticated("create_session", Verb::Post, "/api/internal/lablet-sessions", |records, request| {
        Ok(ApiResponse::json(&*records.create_session(request.input()?)?).with_status(StatusCode::CREATED))
    }),
    authenticated(
        "imminent_deadlines",
        Verb::Get,
        "/api/internal/lablet-sessions/imminent-deadlines",
        imminent_deadlines,
    ),
    authenticated("get_session", Verb::Get, "/api/internal/lablet-sessions/{id}", |records, request| {
        Ok(ApiResponse::json(&*records.session(request.subject())?))
    }),
    authenticated("schedule_session", Verb::Post, "/api/internal/lablet-sessions/{id}/schedule", |records, request| {
        Ok(ApiResponse::json(&*records.schedule_session(request.subject(), &request.input()?)?))
    }),
    authenticated(
        "transition_session",
        Verb::Post,
        "/api/internal/lablet-sessions/{id}/transition",
        |records, request| Ok(ApiResponse::json(&*records.transition_session(request.subject(), &request.input()?)?)),
    ),
    authenticated("terminate_session", Verb::Post, "/api/internal/lablet-sessions/{id}/terminate", terminate_session),
    authenticated("expire_session", Verb::Post, "/api/internal/lablet-sessions/{id}/expire", expire_session),
    authenticated(
        "set_session_desired_status",
        Verb::Post,
        "/api/internal/lablet-sessions/{id}/desired-status",
        |records, request| Ok(ApiResponse::json(&*records.set_session_desired(request.subject(), &request.input()?)?)),
    ),
    authenticated("list_audit", Verb::Get, "/api/internal/scaling-audit", |records, request| {
        Ok(ApiResponse::objects(records.audit(request.query("worker_id"), request.query("action"))))
    }),
    authenticated("record_audit", Verb::Post, "/api/internal/scaling-audit", |records, request| {
        Ok(ApiResponse::json(&*records.record_audit(request.input()?)?).with_status(StatusCode::CREATED))
    }),
    authenticated("list_events", Verb::Get, "/api/internal/events", |records, request| {
        Ok(ApiResponse::objects(records.events(request.query("worker_id"), request.query("type"))))
    }),
    authenticated("publish_event", Verb::Post, "/api/internal/events", |records, request| {
        Ok(ApiResponse::json(&*records.publish(&request.input()?)?).with_status(StatusCode::CREATED))
    }),
];

fn list_workers(records: &Records, request: &ApiRequest) -> EndpointResult {
    let statuses = |name: &str| -> Result<Vec<_>, ApiError> {
        request.query_list(name).map(|word| enums::parse_status(name, word)).collect()
    };
    let filter = WorkerFilter {
        statuses: statuses("status")?,
        exclude_statuses: statuses("exclude_statuses")?,
        aws_region: request.query("aws_region").map(str::to_owned),
        include_terminated: request.query_flag("include_terminated")?,
    };
    Ok(ApiResponse::workers(records.workers(&filter)))
}

fn scale_up(records: &Records, request: &ApiRequest) -> EndpointResult {
    let worker = records.scale_up(&request.input()?)?;
    let accepted = json!({"accepted": true, "worker_id": worker.id(), "worker": worker.fields()});
    Ok(ApiResponse::json(&accepted).with_status(StatusCode::ACCEPTED))
}

fn terminate_worker(records: &Records, request: &ApiRequest) -> EndpointResult {
    let input = request.input()?;
    let expected = request.expected_version(&input)?;
    let (reason, by) = (request.text(&input, "reason")?, request.text(&input, "terminated_by")?);
    let done = records.terminate(request.subject(), expected, reason, by)?;
    Ok(ApiResponse::json(&json!({
        "worker_id": done.worker.id(), "status": done.worker.status(), "version": done.worker.version(),
        "already_terminated": done.already_terminated, "terminated_at": done.worker.get("terminated_at"),
        "sessions_terminated": done.sessions,
    })))
}

fn drain(records: &Records, request: &ApiRequest) -> EndpointResult {
    let input = request.input()?;
    let expected = request.expected_version(&input)?;
    let reason = request.text(&input, "reason")?.unwrap_or("unspecified");
    let requested_by = request.text(&input, "requested_by")?.unwrap_or("unknown");
    Ok(ApiResponse::worker(&records.drain(request.subject(), expected, reason, requested_by)?))
}

fn cancel_drain(records: &Records, request: &ApiRequest) -> EndpointResult {
    let input = request.input()?;
    let expected = request.expected_version(&input)?;
    let reason = request.text(&input, "reason")?.unwrap_or("unspecified");
    let cancelled_by = request.text(&input, "cancelled_by")?.unwrap_or("unknown");
    Ok(ApiResponse::worker(&records.cancel_drain(request.subject(), expected, reason, cancelled_by)?))
}

fn license(records: &Records, request: &ApiRequest, operation: LicenseOperation, step: LicenseStep) -> EndpointResult {
    let input = request.input()?;
    let expected = request.expected_version(&input)?;
    Ok(ApiResponse::worker(&records.license_step(request.subject(), expected, operation, step, &input)?))
}

fn imminent_deadlines(records: &Records, request: &ApiRequest) -> EndpointResult {
    const ACCEPTED: &str = "minutes from 0 to 100000";
    let minutes = match request.query("boot_window_minutes") {
        None => 35,
        Some(text) => text
            .parse()
            .ok()
            .filter(|minutes| (0..=100_000).contains(minutes))
            .ok_or_else(|| ApiError::invalid("boot_window_minutes", &text.into(), ACCEPTED))?,
    };
    Ok(ApiResponse::objects(records.imminent_sessions(TimeDelta::minutes(minutes))))
}

fn terminate_session(records: &Records, request: &ApiRequest) -> EndpointResult {
    let input = request.input()?;
    let (reason, by) = (request.text(&input, "reason")?, request.text(&input, "terminated_by")?);
    let (session, already_terminated) = records.terminate_session(request.subject(), reason, by)?;
    let mut body = serde_json::Map::clone(&session);
    body.insert("already_terminated".into(), already_terminated.into());
    Ok(ApiResponse::json(&body))
}

fn expire_session(records: &Records, request: &ApiRequest) -> EndpointResult {
    let input = request.input()?;
    let reason = request.text(&input, "reason")?;
    let (session, already_expired) = records.expire_session(request.subject(), reason)?;
    let mut body = serde_json::Map::clone(&session);
    body.insert("already_expired".into(), already_expired.into());
    Ok(ApiResponse::json(&body))
}
