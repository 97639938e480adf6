//! Every endpoint of the contract, as a table.

use axum::http::StatusCode;
use chrono::TimeDelta;
use serde_json::json;

use super::Access;
use super::call::Call;
use super::reply::Reply;
use crate::control_plane::fleet::Filter;
use crate::control_plane::license::{Operation, Step};
use crate::control_plane::measurements::Report;
use crate::control_plane::problem::Problem;
use crate::control_plane::records::Records;
use crate::control_plane::sessions::SessionFilter;
use crate::control_plane::settings::{Dialect, Knows};
use crate::control_plane::words;

/// One endpoint.
#[derive(Debug)]
pub struct Endpoint {
    /// Its name: the `operationId` in the OpenAPI document, and what faults call it.
    pub operation: &'static str,
    /// Its method.
    pub verb: Verb,
    /// Its path; a part in braces is a parameter.
    pub path: &'static str,
    /// Who may call it.
    pub access: Access,
    pub(super) handler: Handler,
}

impl Endpoint {
    /// Whether a server that speaks like this has it.
    pub fn exists_in(&self, dialect: Dialect) -> bool {
        self.operation != "terminate_worker" || dialect.terminate == Knows::Yes
    }
}

type Handler = fn(&Records, &Call) -> Answer;
type Answer = Result<Reply, Problem>;

/// The methods in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Looks.
    Get,
    /// Does.
    Post,
    /// Replaces.
    Put,
    /// Takes away.
    Delete,
}

const fn open(operation: &'static str, verb: Verb, path: &'static str, handler: Handler) -> Endpoint {
    Endpoint { operation, verb, path, access: Access::Open, handler }
}

const fn keyed(operation: &'static str, verb: Verb, path: &'static str, handler: Handler) -> Endpoint {
    Endpoint { operation, verb, path, access: Access::Key, handler }
}

/// The whole contract, in the order of its document.
pub const ENDPOINTS: &[Endpoint] = &[
    open("health", Verb::Get, "/health", |_, _| Ok(Reply::json(&json!({"status": "healthy"})))),
    keyed("list_workers", Verb::Get, "/api/internal/workers", list_workers),
    keyed("create_worker", Verb::Post, "/api/internal/workers", |records, call| {
        Ok(Reply::worker(&records.create_worker(call.input()?)?).with_status(StatusCode::CREATED))
    }),
    keyed("scale_up", Verb::Post, "/api/internal/workers/scale-up", scale_up),
    keyed("bulk_import", Verb::Post, "/api/internal/workers/bulk-import", |records, call| {
        Ok(Reply::json(&records.bulk_import(&call.input()?)?))
    }),
    keyed("get_worker", Verb::Get, "/api/internal/workers/{id}", |records, call| {
        Ok(Reply::worker(&records.worker(call.subject())?))
    }),
    keyed("write_status", Verb::Post, "/api/internal/workers/{id}/status", |records, call| {
        let input = call.input()?;
        Ok(Reply::worker(&records.write_status(call.subject(), call.expected_version(&input)?, &input)?))
    }),
    keyed("set_desired_status", Verb::Post, "/api/internal/workers/{id}/desired-status", |records, call| {
        let input = call.input()?;
        Ok(Reply::worker(&records.set_desired(call.subject(), call.expected_version(&input)?, &input)?))
    }),
    keyed("write_ec2_details", Verb::Post, "/api/internal/workers/{id}/ec2-details", |records, call| {
        let input = call.input()?;
        Ok(Reply::worker(&records.write_ec2_details(call.subject(), call.expected_version(&input)?, &input)?))
    }),
    keyed("terminate_worker", Verb::Post, "/api/internal/workers/{id}/terminate", terminate_worker),
    keyed("drain_worker", Verb::Post, "/api/internal/workers/{id}/drain", drain),
    keyed("cancel_drain", Verb::Post, "/api/v1/workers/{id}/cancel-drain", cancel_drain),
    keyed("detect_idle", Verb::Post, "/api/internal/workers/{id}/detect-idle", |records, call| {
        Ok(Reply::json(&records.detect_idle(call.subject(), &call.input()?)?))
    }),
    keyed("idle_status", Verb::Get, "/api/internal/workers/{id}/idle-status", |records, call| {
        Ok(Reply::json(&records.idle_status(call.subject())?))
    }),
    keyed("report_metrics", Verb::Post, "/api/internal/workers/{id}/metrics", |records, call| {
        Ok(Reply::worker(&records.take_report(call.subject(), Report::Metrics, &call.input()?)?))
    }),
    keyed("report_cml_data", Verb::Post, "/api/internal/workers/{id}/cml-data", |records, call| {
        Ok(Reply::worker(&records.take_report(call.subject(), Report::CmlData, &call.input()?)?))
    }),
    keyed("report_activity", Verb::Post, "/api/internal/workers/{id}/activity", |records, call| {
        Ok(Reply::worker(&records.note_activity(call.subject(), &call.input()?)?))
    }),
    keyed(
        "request_registration",
        Verb::Post,
        "/api/internal/workers/{id}/license/request-registration",
        |records, call| license(records, call, Operation::Register, Step::Request),
    ),
    keyed(
        "start_registration",
        Verb::Post,
        "/api/internal/workers/{id}/license/start-registration",
        |records, call| license(records, call, Operation::Register, Step::Start),
    ),
    keyed(
        "complete_registration",
        Verb::Post,
        "/api/internal/workers/{id}/license/complete-registration",
        |records, call| license(records, call, Operation::Register, Step::Complete),
    ),
    keyed("fail_registration", Verb::Post, "/api/internal/workers/{id}/license/fail-registration", |records, call| {
        license(records, call, Operation::Register, Step::Fail)
    }),
    keyed(
        "request_deregistration",
        Verb::Post,
        "/api/internal/workers/{id}/license/request-deregistration",
        |records, call| license(records, call, Operation::Deregister, Step::Request),
    ),
    keyed(
        "start_deregistration",
        Verb::Post,
        "/api/internal/workers/{id}/license/start-deregistration",
        |records, call| license(records, call, Operation::Deregister, Step::Start),
    ),
    keyed(
        "complete_deregistration",
        Verb::Post,
        "/api/internal/workers/{id}/license/complete-deregistration",
        |records, call| license(records, call, Operation::Deregister, Step::Complete),
    ),
    keyed(
        "fail_deregistration",
        Verb::Post,
        "/api/internal/workers/{id}/license/fail-deregistration",
        |records, call| license(records, call, Operation::Deregister, Step::Fail),
    ),
    keyed("list_templates", Verb::Get, "/api/internal/worker-templates", |records, _| {
        Ok(Reply::objects(records.templates()))
    }),
    keyed("put_template", Verb::Post, "/api/internal/worker-templates", |records, call| {
        Ok(Reply::json(&*records.put_template(call.input()?)?).with_status(StatusCode::CREATED))
    }),
    keyed("get_template", Verb::Get, "/api/internal/worker-templates/by-name/{name}", |records, call| {
        Ok(Reply::json(&*records.template(call.subject())?))
    }),
    keyed("delete_template", Verb::Delete, "/api/internal/worker-templates/by-name/{name}", |records, call| {
        records.delete_template(call.subject())?;
        Ok(Reply::json(&json!({"deleted": call.subject()})))
    }),
    keyed("get_discovery_settings", Verb::Get, "/api/internal/settings/discovery", |records, _| {
        Ok(Reply::json(&*records.discovery()))
    }),
    keyed("set_discovery_settings", Verb::Put, "/api/internal/settings/discovery", |records, call| {
        Ok(Reply::json(&*records.set_discovery(call.input()?)?))
    }),
    keyed("list_sessions", Verb::Get, "/api/internal/lablet-sessions", |records, call| {
        let statuses = call.query_list("status").map(str::to_ascii_lowercase).collect();
        let filter = SessionFilter { worker_id: call.query("worker_id").map(str::to_owned), statuses };
        Ok(Reply::objects(records.sessions(&filter)))
    }),
    keyed("create_session", Verb::Post, "/api/internal/lablet-sessions", |records, call| {
        Ok(Reply::json(&*records.create_session(call.input()?)?).with_status(StatusCode::CREATED))
    }),
    keyed("imminent_deadlines", Verb::Get, "/api/internal/lablet-sessions/imminent-deadlines", imminent_deadlines),
    keyed("get_session", Verb::Get, "/api/internal/lablet-sessions/{id}", |records, call| {
        Ok(Reply::json(&*records.session(call.subject())?))
    }),
    keyed("schedule_session", Verb::Post, "/api/internal/lablet-sessions/{id}/schedule", |records, call| {
        Ok(Reply::json(&*records.schedule_session(call.subject(), &call.input()?)?))
    }),
    keyed("transition_session", Verb::Post, "/api/internal/lablet-sessions/{id}/transition", |records, call| {
        Ok(Reply::json(&*records.transition_session(call.subject(), &call.input()?)?))
    }),
    keyed("terminate_session", Verb::Post, "/api/internal/lablet-sessions/{id}/terminate", terminate_session),
    keyed("expire_session", Verb::Post, "/api/internal/lablet-sessions/{id}/expire", expire_session),
    keyed(
        "set_session_desired_status",
        Verb::Post,
        "/api/internal/lablet-sessions/{id}/desired-status",
        |records, call| Ok(Reply::json(&*records.set_session_desired(call.subject(), &call.input()?)?)),
    ),
    keyed("list_audit", Verb::Get, "/api/internal/scaling-audit", |records, call| {
        Ok(Reply::objects(records.audit(call.query("worker_id"), call.query("action"))))
    }),
    keyed("record_audit", Verb::Post, "/api/internal/scaling-audit", |records, call| {
        Ok(Reply::json(&*records.record_audit(call.input()?)?).with_status(StatusCode::CREATED))
    }),
    keyed("list_events", Verb::Get, "/api/internal/events", |records, call| {
        Ok(Reply::objects(records.events(call.query("worker_id"), call.query("type"))))
    }),
    keyed("publish_event", Verb::Post, "/api/internal/events", |records, call| {
        Ok(Reply::json(&*records.publish(&call.input()?)?).with_status(StatusCode::CREATED))
    }),
];

fn list_workers(records: &Records, call: &Call) -> Answer {
    let statuses = |name: &str| -> Result<Vec<_>, Problem> {
        call.query_list(name).map(|word| words::status(name, word)).collect()
    };
    let filter = Filter {
        statuses: statuses("status")?,
        exclude_statuses: match records.settings().dialect.exclude_statuses {
            Knows::Yes => statuses("exclude_statuses")?,
            // What a server does not know, it does not read either.
            Knows::No => Vec::new(),
        },
        aws_region: call.query("aws_region").map(str::to_owned),
        include_terminated: call.query_switch("include_terminated")?,
    };
    Ok(Reply::workers(records.workers(&filter)))
}

fn scale_up(records: &Records, call: &Call) -> Answer {
    let worker = records.scale_up(&call.input()?)?;
    let accepted = json!({"accepted": true, "worker_id": worker.id(), "worker": worker.fields()});
    Ok(Reply::json(&accepted).with_status(StatusCode::ACCEPTED))
}

fn terminate_worker(records: &Records, call: &Call) -> Answer {
    let input = call.input()?;
    let expected = call.expected_version(&input)?;
    let (reason, by) = (call.text(&input, "reason")?, call.text(&input, "terminated_by")?);
    let done = records.terminate(call.subject(), expected, reason, by)?;
    Ok(Reply::json(&json!({
        "worker_id": done.worker.id(), "status": done.worker.status(), "version": done.worker.version(),
        "already_terminated": done.already_terminated, "terminated_at": done.worker.get("terminated_at"),
        "sessions_terminated": done.sessions,
    })))
}

fn drain(records: &Records, call: &Call) -> Answer {
    let input = call.input()?;
    let expected = call.expected_version(&input)?;
    let reason = call.text(&input, "reason")?.unwrap_or("unspecified");
    let requested_by = call.text(&input, "requested_by")?.unwrap_or("unknown");
    Ok(Reply::worker(&records.drain(call.subject(), expected, reason, requested_by)?))
}

fn cancel_drain(records: &Records, call: &Call) -> Answer {
    let input = call.input()?;
    let expected = call.expected_version(&input)?;
    let reason = call.text(&input, "reason")?.unwrap_or("unspecified");
    let cancelled_by = call.text(&input, "cancelled_by")?.unwrap_or("unknown");
    Ok(Reply::worker(&records.cancel_drain(call.subject(), expected, reason, cancelled_by)?))
}

fn license(records: &Records, call: &Call, operation: Operation, step: Step) -> Answer {
    let input = call.input()?;
    let expected = call.expected_version(&input)?;
    Ok(Reply::worker(&records.license_step(call.subject(), expected, operation, step, &input)?))
}

fn imminent_deadlines(records: &Records, call: &Call) -> Answer {
    const ACCEPTED: &str = "minutes from 0 to 100000";
    let minutes = match call.query("boot_window_minutes") {
        None => 35,
        Some(text) => text
            .parse()
            .ok()
            .filter(|minutes| (0..=100_000).contains(minutes))
            .ok_or_else(|| Problem::invalid("boot_window_minutes", &text.into(), ACCEPTED))?,
    };
    Ok(Reply::objects(records.imminent_sessions(TimeDelta::minutes(minutes))))
}

fn terminate_session(records: &Records, call: &Call) -> Answer {
    let input = call.input()?;
    let (reason, by) = (call.text(&input, "reason")?, call.text(&input, "terminated_by")?);
    let (session, already_terminated) = records.terminate_session(call.subject(), reason, by)?;
    let mut body = serde_json::Map::clone(&session);
    body.insert("already_terminated".into(), already_terminated.into());
    Ok(Reply::json(&body))
}

fn expire_session(records: &Records, call: &Call) -> Answer {
    let input = call.input()?;
    let reason = call.text(&input, "reason")?;
    let (session, already_expired) = records.expire_session(call.subject(), reason)?;
    let mut body = serde_json::Map::clone(&session);
    body.insert("already_expired".into(), already_expired.into());
    Ok(Reply::json(&body))
}
