//! The generation `original` of the control plane, compared call by call with the answers of the deployed server.

use std::time::Duration;

use fake_cloud::control_plane::{Generation, Input};
use fake_cloud::etcd::{KeyRange, Range};
use fake_cloud::{FakeCloud, Pace};
use reqwest::Method;
use reqwest::redirect::Policy;
use serde_json::{Value, json};

/// Matches any value in an expected answer.
const ANY: &str = "(any)";
/// `type` of a handler error.
const PROBLEM: &str = "https://www.w3.org/Protocols/HTTP/HTRESP.html";

/// Number of calls in the recorded conversation.
const RECORDED_CALLS: usize = 60;
/// Number of states in it: of records, of the session of an ended worker, and of the first session of a page.
const RECORDED_STATES: usize = 16;

/// One line of the recorded conversation.
enum Line {
    /// A request and its answer.
    Call(Call),
    /// A request that reads the state after an answer.
    Reads(Call),
    /// Fields of a record as the API shows it; null is an absent field.
    Shows(&'static str, Value),
    /// Fields of a record that the API does not show.
    Stores(&'static str, Value),
}

struct Call {
    label: &'static str,
    method: Method,
    path: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    body: Option<Value>,
    status: u16,
    answer: Answer,
}

enum Answer {
    /// The same keys, recursively, and the same values where they are not [`ANY`].
    Json(Value),
    /// A body that begins with this text: the record was cut there.
    Prefix(&'static str),
    /// A list of this length, whose members have these statuses.
    Sessions(usize, &'static [&'static str]),
    Text(&'static str),
    /// An empty body, and this path and query in `Location`.
    Redirect(&'static str),
}

fn call(
    label: &'static str,
    method: Method,
    path: &'static str,
    body: Option<Value>,
    status: u16,
    answer: Answer,
) -> Line {
    let headers = vec![("X-API-Key", "lcm-dev-key")];
    Line::Call(Call { label, method, path, headers, body, status, answer })
}

fn get(label: &'static str, path: &'static str, status: u16, answer: Answer) -> Line {
    call(label, Method::GET, path, None, status, answer)
}

fn post(label: &'static str, path: &'static str, body: Value, status: u16, answer: Answer) -> Line {
    call(label, Method::POST, path, Some(body), status, answer)
}

fn read(label: &'static str, path: &'static str, answer: Answer) -> Line {
    match get(label, path, 200, answer) {
        Line::Call(call) => Line::Reads(call),
        other => other,
    }
}

fn with_headers(line: Line, headers: &[(&'static str, &'static str)]) -> Line {
    match line {
        Line::Call(call) => Line::Call(Call { headers: headers.to_vec(), ..call }),
        other => other,
    }
}

/// Error of a handler.
fn problem(status: u16, title: &str, detail: &str) -> Answer {
    let fragment = match status {
        400 => "#:~:text=Bad%20Request",
        404 => "#:~:text=Not%20found%20404",
        _ => "",
    };
    let kind = format!("{PROBLEM}{fragment}");
    Answer::Json(json!({"title": title, "status": status, "detail": detail, "type": kind}))
}

/// Error of the validation of one field.
fn invalid(kind: &str, field: &str, message: &str, input: Value) -> Answer {
    Answer::Json(json!({"detail": [{"type": kind, "loc": ["body", field], "msg": message, "input": input}]}))
}

fn missing(field: &str, body: Value) -> Answer {
    invalid("missing", field, "Field required", body)
}

fn detail(text: &str) -> Answer {
    Answer::Json(json!({"detail": text}))
}

fn no_entity(kind: &str) -> Answer {
    problem(404, "Not Found", &format!("Failed to find an entity of type '{kind}' with the specified id 'nobody'"))
}

const LOOKUP: &str = "'str' object has no attribute '__name__'";

fn status_answer(id: &str, status: &str, desired: &str, instance: &str) -> Answer {
    Answer::Json(json!({
        "worker_id": id, "status": status, "desired_status": desired, "instance_state": status,
        "instance_id": instance, "aws_region": "us-east-1",
    }))
}

fn records() -> Vec<Line> {
    let listed = || {
        Answer::Prefix(concat!(
            r#"[{"id":"a","name":"r","aws_region":"us-east-1","aws_instance_id":"i-1","instance_type":"t3.small","#,
            r#""state_version":0,"status":"running","desired_status":"running","service_status":"unavailable","#,
            r#""ami_id":"ami-1","ami_name":"cisco-cml2.9-x","ami_description":"CML 2.9","#,
            r#""ami_creation_date":"2026-01-01","template_name":"small","public_ip":"203.0.113.1","priva"#,
        ))
    };
    let workers = "/api/internal/workers";
    vec![
        with_headers(get("list without a key", workers, 401, detail("Missing X-API-Key header")), &[]),
        with_headers(get("list with a wrong key", workers, 401, detail("Invalid API key")), &[("X-API-Key", "x")]),
        get("list with an unknown filter", "/api/internal/workers?exclude_statuses=terminated", 200, listed()),
        get("list by status", "/api/internal/workers?status=RUNNING", 200, listed()),
        get(
            "list by a wrong status",
            "/api/internal/workers?status=nonsense",
            400,
            problem(400, "Bad Request", "Invalid status: nonsense"),
        ),
        get("unknown worker", "/api/internal/workers/nobody", 500, problem(500, "Internal Server Error", LOOKUP)),
    ]
}

fn statuses() -> Vec<Line> {
    let path = "/api/internal/workers/a/status";
    let note =
        json!({"metadata": {"launch_plan": {"region": "us-east-1"}, "launched_at": "2026-02-06T08:00:00.000000Z"}});
    let desired = json!({"desired_status": "stopped"});
    let all = json!({
        "status": "stopping", "desired_status": "stopped", "metadata": {"drain_started_at": "2026-02-06T08:00:00Z"},
    });
    let unconditional = [("X-API-Key", "lcm-dev-key"), ("If-Match", "\"999\""), ("X-Fencing-Token", "1")];
    vec![
        post("a note alone", path, note.clone(), 422, missing("status", note)),
        post("a desired status alone", path, desired.clone(), 422, missing("status", desired)),
        with_headers(
            post("status and ignored fields", path, all, 200, status_answer("a", "stopping", "running", "i-1")),
            &unconditional,
        ),
        Line::Shows(
            "a",
            json!({"status": "stopping", "desired_status": "running", "state_version": 1, "metadata": null}),
        ),
        post(
            "instance id after addresses",
            path,
            json!({"status": "running", "ec2_instance_id": "i-1"}),
            200,
            status_answer("a", "running", "running", "i-1"),
        ),
        Line::Shows("a", json!({"status": "running", "aws_instance_id": "i-1", "public_ip": null, "private_ip": null})),
        post(
            "null does not clear the instance id",
            path,
            json!({"status": "running", "ec2_instance_id": null}),
            200,
            status_answer("a", "running", "running", "i-1"),
        ),
        Line::Shows("a", json!({"aws_instance_id": "i-1"})),
        post(
            "unknown status",
            path,
            json!({"status": "asleep"}),
            400,
            problem(400, "Bad Request", "Invalid status value: asleep"),
        ),
        post(
            "status of an unknown worker",
            "/api/internal/workers/nobody/status",
            json!({"status": "running"}),
            500,
            problem(500, "Internal Server Error", &format!("Unexpected error: {LOOKUP}")),
        ),
    ]
}

fn reports() -> Vec<Line> {
    let details = json!({
        "public_ip": "203.0.113.9", "private_ip": "10.0.0.9", "ip_address": "203.0.113.9", "instance_type": "t3.small",
        "ami_id": "ami-1", "ami_name": "cisco-cml2.9-x", "aws_tags": {"a": "b"}, "ec2_instance_state_detail": null,
    });
    let collected = json!({"worker_id": "b", "metrics_updated": true, "collected_at": "2026-02-06T08:00:00+00:00"});
    let flat = json!({
        "cpu_utilization": 42.0, "memory_utilization": 17.0, "disk_utilization": null,
        "collected_at": "2026-02-06T08:00:00.000000Z",
    });
    let nested = json!({
        "collected_at": "2026-02-06T08:00:00Z", "ec2": {"cpu_utilization": 42.0}, "cml": {"memory_percent": 17.0},
        "poll_interval": 60, "next_refresh_at": "2026-02-06T08:01:00+00:00",
    });
    let gigabyte = 1024_u64 * 1024 * 1024;
    let complete = json!({
        "cml_version": "2.9.1", "ready": true,
        "system_info": {
            "all_cpu_count": 8, "all_cpu_percent": 12.0, "all_memory_total": 16 * gigabyte,
            "all_memory_used": 4 * gigabyte, "all_disk_total": 100 * gigabyte, "all_disk_used": 10 * gigabyte,
        },
        "system_health": {"valid": true, "is_licensed": true}, "labs_count": 0, "collected_at": "2026-02-06T08:00:00Z",
    });
    let partial = |labs: Value, ready: Value| {
        json!({
            "labs_count": labs, "nodes_count": 5, "version": "2.9.1+build.7", "ready": ready,
            "collected_at": "2026-02-06T08:05:00.000000Z",
        })
    };
    let cml = |id: &str, version: Value, at: &str| {
        Answer::Json(json!({
            "worker_id": id, "cml_data_updated": true, "cml_version": version, "ready": true, "collected_at": at,
        }))
    };
    let capacity = json!({"cpu_cores": 8, "memory_gb": 16, "storage_gb": 100, "max_nodes": null});
    let data = "/api/internal/workers/b/cml-data";
    vec![
        post(
            "instance details",
            "/api/internal/workers/b/ec2-details",
            details,
            200,
            Answer::Json(json!({
                "worker_id": "b", "ec2_details_updated": true, "ami_id": "ami-1", "ami_name": "cisco-cml2.9-x",
            })),
        ),
        Line::Shows(
            "b",
            json!({
                "public_ip": "203.0.113.9", "private_ip": "10.0.0.9", "instance_type": "t3.small", "ami_id": "ami-1",
                "ami_name": "cisco-cml2.9-x", "ami_description": null, "ami_creation_date": null, "aws_tags": null,
            }),
        ),
        post(
            "instance details of an unknown worker",
            "/api/internal/workers/nobody/ec2-details",
            json!({}),
            500,
            Answer::Text("Internal Server Error"),
        ),
        post("flat metrics", "/api/internal/workers/b/metrics", flat, 200, Answer::Json(collected.clone())),
        Line::Stores("b", json!({"cloudwatch_cpu_utilization": null, "cloudwatch_memory_utilization": null})),
        post("nested metrics", "/api/internal/workers/b/metrics", nested, 200, Answer::Json(collected)),
        Line::Stores(
            "b",
            json!({
                "cloudwatch_cpu_utilization": 42.0, "cloudwatch_memory_utilization": 17.0, "poll_interval": 60,
            }),
        ),
        post("complete CML data", data, complete, 200, cml("b", "2.9.1".into(), "2026-02-06T08:00:00+00:00")),
        Line::Shows(
            "b",
            json!({
                "cml_version": "2.9.1", "cml_ready": true, "cpu_utilization": 12.0, "memory_utilization": 25.0,
                "declared_capacity": capacity, "service_status": "available",
            }),
        ),
        post(
            "partial CML data",
            data,
            partial(3.into(), true.into()),
            200,
            cml("b", Value::Null, "2026-02-06T08:05:00+00:00"),
        ),
        Line::Shows(
            "b",
            json!({
                "cml_version": null, "cml_ready": true, "cpu_utilization": 42.0, "memory_utilization": 17.0,
                "declared_capacity": capacity, "service_status": "available", "cml_labs_count": 3,
                "cml_system_health": {
                    "valid": false, "is_licensed": false, "is_enterprise": false, "computes": {}, "controller": {},
                },
            }),
        ),
        post(
            "CML data without a number of labs",
            data,
            partial(Value::Null, true.into()),
            422,
            invalid("int_type", "labs_count", "Input should be a valid integer", Value::Null),
        ),
        post(
            "CML data without readiness",
            data,
            partial(1.into(), Value::Null),
            422,
            invalid("bool_type", "ready", "Input should be a valid boolean", Value::Null),
        ),
        post(
            "partial CML data of a discovered worker",
            "/api/internal/workers/c/cml-data",
            partial(3.into(), true.into()),
            200,
            cml("c", Value::Null, "2026-02-06T08:05:00+00:00"),
        ),
        Line::Shows("c", json!({"declared_capacity": null, "cml_version": null})),
    ]
}

fn licenses() -> Vec<Line> {
    let in_progress = || Answer::Json(json!({"worker_id": "f", "status": "in_progress"}));
    let completed = json!({"worker_id": "f", "status": "completed", "message": "License deregistered successfully"});
    let license = |step: &str| -> &'static str { format!("/api/internal/workers/f/license/{step}").leak() };
    let registration = missing("registration_status", json!({}));
    let failure = || missing("error_message", json!({}));
    vec![
        Line::Shows(
            "f",
            json!({"license_status": "unregistered", "license": null, "license_token": null, "pending_operation": null}),
        ),
        post("start a registration", license("start-registration"), json!({}), 200, in_progress()),
        post("complete a registration", license("complete-registration"), json!({}), 422, registration),
        post("fail a registration", license("fail-registration"), json!({}), 422, failure()),
        post("start a deregistration", license("start-deregistration"), json!({}), 200, in_progress()),
        post("complete a deregistration", license("complete-deregistration"), json!({}), 200, Answer::Json(completed)),
        post("fail a deregistration", license("fail-deregistration"), json!({}), 422, failure()),
        Line::Shows("f", json!({"license_status": "unregistered", "license_token": null})),
    ]
}

fn drains() -> Vec<Line> {
    let drain = "/api/internal/workers/d/drain?reason=maintenance&requested_by=operator";
    let note = json!({"metadata": {"drain_started_at": "2026-02-06T08:00:00.000000Z"}});
    vec![
        post(
            "drain",
            drain,
            json!({}),
            200,
            Answer::Json(json!({
                "worker_id": "d", "status": "draining", "desired_status": "stopped", "reason": "maintenance",
                "requested_by": "operator", "drained_at": ANY,
            })),
        ),
        post(
            "drain again",
            drain,
            json!({}),
            409,
            problem(409, "Conflict", "Cannot drain worker in status 'draining'. Only RUNNING workers can be drained."),
        ),
        post("note of the drain", "/api/internal/workers/d/status", note.clone(), 422, missing("status", note)),
        post(
            "cancel the drain",
            "/api/v1/workers/d/cancel-drain",
            json!({"reason": "x", "cancelled_by": "operator"}),
            404,
            detail("Not Found"),
        ),
        post(
            "status instead of a cancellation",
            "/api/internal/workers/d/status",
            json!({"status": "running", "desired_status": "running"}),
            200,
            status_answer("d", "running", "stopped", "i-d"),
        ),
        Line::Shows("d", json!({"status": "running", "desired_status": "stopped"})),
        post("drain an unknown worker", "/api/internal/workers/nobody/drain", json!({}), 404, no_entity("CMLWorker")),
    ]
}

fn terminations() -> Vec<Line> {
    let path = "/api/internal/workers/t/terminate";
    let body = || json!({"reason": "gone", "terminated_by": "discovery-gc"});
    let again =
        || Answer::Json(json!({"worker_id": "t", "name": "t", "status": "TERMINATED", "already_terminated": true}));
    vec![
        post(
            "terminate",
            path,
            body(),
            200,
            Answer::Json(json!({
                "worker_id": "t", "name": "t", "old_status": "running", "status": "TERMINATED", "terminated_at": ANY,
                "terminated_by": "discovery-gc", "reason": "gone", "already_terminated": false,
            })),
        ),
        post("terminate again", path, body(), 200, again()),
        post("terminate with nulls", path, json!({"reason": null, "terminated_by": null}), 200, again()),
        post(
            "terminate an unknown worker",
            "/api/internal/workers/nobody/terminate",
            body(),
            500,
            problem(500, "Internal Server Error", &format!("Failed to mark worker as terminated: {LOOKUP}")),
        ),
        read(
            "session of the terminated worker",
            "/api/internal/lablet-sessions/?worker_id=t",
            Answer::Sessions(1, &["running"]),
        ),
        post(
            "status of a terminated worker",
            "/api/internal/workers/t/status",
            json!({"status": "running", "ec2_instance_id": "i-t"}),
            200,
            status_answer("t", "running", "running", "i-t"),
        ),
        Line::Shows("t", json!({"status": "running", "terminated_at": ANY, "desired_status": "running"})),
    ]
}

fn sessions() -> Vec<Line> {
    let terminate = |by: Value| json!({"reason": "drain_timeout", "terminated_by": by});
    vec![
        get(
            "sessions without the slash",
            "/api/internal/lablet-sessions?worker_id=q",
            307,
            Answer::Redirect("/api/internal/lablet-sessions/?worker_id=q"),
        ),
        get(
            "first page of the sessions",
            "/api/internal/lablet-sessions/?worker_id=q",
            200,
            Answer::Sessions(100, &["expired"]),
        ),
        read(
            "first session",
            "/api/internal/lablet-sessions/?worker_id=q&limit=1",
            Answer::Json(json!([{
                "id": "s-old-000", "definition_id": "d-1", "definition_name": "ccna", "definition_version": "1.0",
                "owner_id": "operator", "status": "expired", "worker_id": "q", "timeslot_start": ANY,
                "timeslot_end": ANY, "created_at": ANY, "is_active": false, "is_terminal": true,
            }])),
        ),
        get(
            "all sessions",
            "/api/internal/lablet-sessions/?worker_id=q&limit=1000",
            200,
            Answer::Sessions(107, &["expired", "running", "scheduled"]),
        ),
        get(
            "more sessions than allowed",
            "/api/internal/lablet-sessions/?worker_id=q&limit=1001",
            422,
            Answer::Json(json!({"detail": [{
                "type": "less_than_equal", "loc": ["query", "limit"], "input": "1001", "ctx": {"le": 1000},
                "msg": "Input should be less than or equal to 1000",
            }]})),
        ),
        post(
            "hand a session back",
            "/api/internal/lablet-sessions/s-next/transition",
            json!({"status": "pending", "worker_id": null, "reason": "worker_draining"}),
            400,
            problem(400, "Bad Request", "Transition to pending not supported via this endpoint"),
        ),
        post(
            "retry a session",
            "/api/internal/lablet-sessions/s-live/transition",
            json!({"status": "instantiating", "retry_count": 1, "reason": "retry_while_draining"}),
            400,
            problem(400, "Bad Request", "Use POST /internal/lablet-sessions/{id}/start-instantiation instead."),
        ),
        post(
            "terminate a session",
            "/api/internal/lablet-sessions/s-live/terminate",
            terminate("worker-controller".into()),
            200,
            Answer::Json(json!({
                "id": "s-live", "status": "terminated", "terminated_at": ANY, "terminated_by": "worker-controller",
                "reason": "drain_timeout",
            })),
        ),
        post(
            "terminate a session again",
            "/api/internal/lablet-sessions/s-live/terminate",
            terminate("worker-controller".into()),
            409,
            problem(409, "Conflict", "LabletSession 's-live' is already terminated"),
        ),
        post(
            "terminate a session anonymously",
            "/api/internal/lablet-sessions/s-next/terminate",
            terminate(Value::Null),
            422,
            invalid("string_type", "terminated_by", "Input should be a valid string", Value::Null),
        ),
        get("unknown session", "/api/internal/lablet-sessions/nobody", 404, no_entity("LabletSession")),
    ]
}

fn idle_checks() -> Vec<Line> {
    let path = "/api/internal/workers/i/detect-idle";
    vec![
        post(
            "idle check without telemetry",
            path,
            json!({"raw_telemetry_events": null, "suppress_auto_pause": true}),
            200,
            Answer::Json(json!({
                "worker_id": "i", "checked_at": ANY, "telemetry_fetched": false, "activity_updated": false,
                "idle_check_performed": false, "auto_pause_triggered": false, "error": "No telemetry events provided",
            })),
        ),
        get(
            "idle status",
            "/api/internal/workers/i/idle-status",
            200,
            Answer::Json(json!({
                "worker_id": "i", "is_idle": true, "idle_minutes": null, "idle_threshold_minutes": 60,
                "last_activity_at": null, "in_snooze_period": false, "snooze_until": null, "auto_pause_enabled": true,
                "eligible_for_pause": true, "next_idle_check_at": null, "target_pause_at": null, "checked_at": ANY,
            })),
        ),
        post(
            "idle check without activity",
            path,
            json!({"raw_telemetry_events": [], "suppress_auto_pause": true}),
            200,
            Answer::Json(json!({
                "worker_id": "i", "checked_at": ANY, "telemetry_fetched": true, "activity_updated": true,
                "idle_check_performed": true, "auto_pause_triggered": true, "error": null, "is_idle": true,
                "idle_minutes": null, "eligible_for_pause": true, "in_snooze_period": false,
            })),
        ),
        Line::Stores("i", json!({"desired_status": "stopped", "pause_reason": "Auto-paused after 0.0 minutes idle"})),
        post(
            "idle check of an unknown worker",
            "/api/internal/workers/nobody/detect-idle",
            json!({"raw_telemetry_events": [], "suppress_auto_pause": false}),
            200,
            Answer::Json(json!({
                "worker_id": "nobody", "checked_at": ANY, "telemetry_fetched": true, "activity_updated": false,
                "idle_check_performed": false, "auto_pause_triggered": false, "error": "Failed to update activity",
            })),
        ),
        get(
            "idle status of an unknown worker",
            "/api/internal/workers/nobody/idle-status",
            400,
            problem(400, "Bad Request", &format!("Error checking idle status: {LOOKUP}")),
        ),
    ]
}

fn others() -> Vec<Line> {
    let instance = json!({
        "instance_id": "i-new", "state": "running", "public_ip": null, "private_ip": "10.0.0.77",
        "instance_type": "t3.small", "image_id": "ami-1", "launch_time": "2026-02-06T08:00:00.000000Z", "name": null,
    });
    vec![
        post(
            "import",
            "/api/internal/workers/bulk-import",
            json!({"aws_region": "us-east-1", "source": "ec2_discovery", "discovered_instances": [instance]}),
            200,
            Answer::Json(json!({
                "imported": [ANY], "skipped": [], "updated": [], "total_found": 1, "total_imported": 1,
                "total_skipped": 0, "total_updated": 0,
            })),
        ),
        get(
            "template",
            "/api/internal/worker-templates/by-name/small",
            200,
            Answer::Json(json!({
                "id": ANY, "name": "small", "description": ANY, "instance_type": "t3.small",
                "ami_name_pattern": "cisco-cml2.9*",
                "capacity": {"cpu_cores": 2, "memory_gb": 2, "storage_gb": 50, "max_nodes": 5},
                "cost_per_hour_usd": ANY, "enabled": true, "deleted": false, "created_at": ANY, "updated_at": ANY,
            })),
        ),
        get("unknown template", "/api/internal/worker-templates/by-name/nobody", 404, no_entity("WorkerTemplate")),
        get(
            "discovery settings",
            "/api/internal/settings/discovery",
            200,
            Answer::Json(json!({
                "enabled": true, "regions": ["us-east-1"], "ami_name_pattern": "cisco-cml2.9*",
                "scan_interval_seconds": 300,
            })),
        ),
        post("audit", "/api/internal/scaling-audit", json!({"action": "ec2_provisioned"}), 404, detail("Not Found")),
        post("events", "/api/internal/events", json!({}), 404, detail("Not Found")),
    ]
}

/// Starts a cloud with the records that the conversation needs.
async fn start() -> FakeCloud {
    let cloud = FakeCloud::builder().pace(Pace::Manual).control_plane(Generation::Original).start().await;
    let cloud = cloud.expect("a cloud");
    let add = |fields: Value| drop(cloud.add_worker(fields).expect("a worker"));
    let running = |id: &str, instance: &str| {
        json!({
            "id": id, "name": id, "status": "running", "aws_region": "us-east-1", "ec2_instance_id": instance,
            "instance_type": "t3.small", "template_name": "small",
        })
    };
    let mut first = running("a", "i-1");
    for (field, value) in [
        ("name", "r"),
        ("public_ip", "203.0.113.1"),
        ("private_ip", "10.0.0.1"),
        ("ami_id", "ami-1"),
        ("ami_name", "cisco-cml2.9-x"),
        ("ami_description", "CML 2.9"),
        ("ami_creation_date", "2026-01-01"),
    ] {
        first[field] = value.into();
    }
    add(first);
    for (id, instance) in
        [("b", "i-b"), ("c", "i-c"), ("d", "i-d"), ("f", "i-f"), ("t", "i-t"), ("q", "i-q"), ("i", "i-i")]
    {
        add(running(id, instance));
    }
    let session = |id: &str, worker: &str, status: &str| {
        let fields = json!({
            "id": id, "worker_id": worker, "status": status, "definition_id": "d-1", "definition_name": "ccna",
            "definition_version": "1.0", "owner_id": "operator", "timeslot_start": "2026-11-18T05:43:12.006200Z",
            "timeslot_end": "2026-11-18T07:43:12.006200Z",
        });
        cloud.add_session(fields).expect("a session");
    };
    session("s-t", "t", "running");
    (0..105).for_each(|number| session(&format!("s-old-{number:03}"), "q", "expired"));
    cloud.world().clock().advance(Duration::from_secs(7200));
    session("s-live", "q", "running");
    session("s-next", "q", "scheduled");
    cloud
}

/// Where the fake answers differently, with the labels of the lines.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn expect(&mut self, is_same: bool, difference: impl FnOnce() -> String) {
        if !is_same {
            self.0.push(difference());
        }
    }

    /// Compares a value with the expected one: the same keys, and the same values where they are known.
    fn compare(&mut self, label: &str, found: &Value, expected: &Value) {
        match (found, expected) {
            (_, Value::String(any)) if any == ANY => {}
            (Value::Object(found), Value::Object(expected)) => {
                self.expect(found.keys().eq(expected.keys()), || format!("{label}: {found:?}, not {expected:?}"));
                for (key, value) in expected.iter().filter(|(key, _)| found.contains_key(*key)) {
                    self.compare(label, &found[key], value);
                }
            }
            (Value::Array(found), Value::Array(expected)) => {
                self.expect(found.len() == expected.len(), || format!("{label}: {found:?}, not {expected:?}"));
                found.iter().zip(expected).for_each(|(found, expected)| self.compare(label, found, expected));
            }
            (found, expected) => self.expect(found == expected, || format!("{label}: {found}, not {expected}")),
        }
    }

    /// Compares some fields of a record. An expected null is an absent field.
    fn compare_fields(&mut self, id: &str, record: &Value, expected: &Value) {
        for (key, value) in expected.as_object().expect("an object") {
            self.compare(&format!("record {id}, {key}"), &record[key], value);
            self.expect(record[key].is_null() == value.is_null(), || format!("record {id}, {key}: {record}"));
        }
    }

    /// Makes a call and compares the response.
    async fn call(&mut self, cloud: &FakeCloud, client: &reqwest::Client, call: Call) {
        let base = &cloud.endpoints().control_plane_url;
        let mut request = client.request(call.method, format!("{base}{}", call.path));
        for (name, value) in call.headers {
            request = request.header(name, value);
        }
        if let Some(body) = &call.body {
            request = request.json(body);
        }
        let response = request.send().await.expect("a response");
        let label = call.label;
        let status = response.status().as_u16();
        let location = response.headers().get("location").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let text = response.text().await.expect("a body");
        self.expect(status == call.status, || format!("{label}: {status}, not {}: {text}", call.status));
        let parsed =
            || serde_json::from_str::<Value>(&text).unwrap_or_else(|error| json!({"not JSON": error.to_string()}));
        match call.answer {
            Answer::Json(expected) => self.compare(label, &parsed(), &expected),
            Answer::Prefix(expected) => self.expect(text.starts_with(expected), || format!("{label}: {text}")),
            Answer::Sessions(count, statuses) => {
                let found = parsed();
                let list = found.as_array().map(Vec::as_slice).unwrap_or_default();
                let mut seen: Vec<&str> = list.iter().filter_map(|session| session["status"].as_str()).collect();
                seen.dedup();
                self.expect((list.len(), seen.as_slice()) == (count, statuses), || format!("{label}: {seen:?}"));
            }
            Answer::Text(expected) => self.expect(text == expected, || format!("{label}: {text}")),
            Answer::Redirect(path) => {
                let is_same = text.is_empty() && location == Some(format!("{base}{path}"));
                self.expect(is_same, || format!("{label}: {location:?}, {text:?}"));
            }
        }
    }
}

#[tokio::test]
async fn every_recorded_answer_is_the_same() {
    let cloud = start().await;
    let client = reqwest::Client::builder().no_proxy().redirect(Policy::none()).build().expect("a client");
    let parts =
        [records(), statuses(), reports(), licenses(), drains(), terminations(), sessions(), idle_checks(), others()];
    let (mut calls, mut states, mut differences) = (0, 0, Differences::default());
    for line in parts.into_iter().flatten() {
        match line {
            Line::Call(call) => {
                calls += 1;
                differences.call(&cloud, &client, call).await;
            }
            Line::Reads(call) => {
                states += 1;
                differences.call(&cloud, &client, call).await;
            }
            Line::Shows(id, fields) => {
                states += 1;
                let url = format!("{}/api/internal/workers/{id}", cloud.endpoints().control_plane_url);
                let record = client.get(url).header("X-API-Key", "lcm-dev-key").send().await.expect("a response");
                differences.compare_fields(id, &record.json().await.expect("JSON"), &fields);
            }
            Line::Stores(id, fields) => {
                states += 1;
                let record = Value::Object(cloud.worker(id).expect("a record").fields().clone());
                differences.compare_fields(id, &record, &fields);
            }
        }
    }
    cloud.stop().await;
    let found = &differences.0;
    println!("{calls} calls, {states} states of records, {} differences", found.len());
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
    assert_eq!((calls, states), (RECORDED_CALLS, RECORDED_STATES), "every line of the record has its case");
}

/// Keys of a worker or a session in etcd, without the prefix, with their values.
fn keys(cloud: &FakeCloud, parent: &str) -> Vec<(String, String)> {
    let found = cloud.etcd().range(&Range::new(KeyRange::prefix(parent.to_owned()))).expect("a range");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    found.records.iter().map(|record| (text(&record.key).replacen(parent, "", 1), text(&record.value))).collect()
}

#[tokio::test]
async fn etcd_has_the_keys_of_the_deployed_server() {
    let cloud = start().await;
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(keys(&cloud, "/lcm/workers/t/"), [pair("desired_state", "running"), pair("state", "running")]);
    assert_eq!(keys(&cloud, "/workers/"), [], "there is no summary");
    assert_eq!(keys(&cloud, "/lcm/sessions/s-live/"), [pair("state", "RUNNING")]);
    let (step, operation) =
        (fake_cloud::control_plane::LicenseStep::Request, fake_cloud::control_plane::LicenseOperation::Register);
    let token = Input::from_value(json!({"token": "smart"})).expect("an input");
    cloud.records().license_step("t", None, operation, step, &token).expect("a request");
    let intent = r#"{"operation":"register","token":"smart","reregister":false}"#;
    assert_eq!(keys(&cloud, "/lcm/workers/t/license"), [pair("", intent)]);
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let base = format!("{}/api/internal/workers", cloud.endpoints().control_plane_url);
    let send = |method: Method, path: &str, body: Value| {
        client.request(method, format!("{base}{path}")).header("X-API-Key", "lcm-dev-key").json(&body).send()
    };
    let instance = json!({"instance_id": "i-new", "state": "running"});
    let import = json!({"aws_region": "us-east-1", "discovered_instances": [instance]});
    let imported: Value =
        send(Method::POST, "/bulk-import", import).await.expect("a response").json().await.expect("JSON");
    let id = imported["imported"][0].as_str().expect("an id").to_owned();
    assert_eq!(keys(&cloud, &format!("/lcm/workers/{id}/")), [], "an import writes no keys");
    send(Method::POST, &format!("/{id}/status"), json!({"status": "stopping"})).await.expect("a response");
    assert_eq!(keys(&cloud, &format!("/lcm/workers/{id}/")), [pair("state", "stopping")]);
    send(Method::POST, "/t/terminate", json!({})).await.expect("a response");
    assert_eq!(keys(&cloud, "/lcm/workers/t/"), []);
    assert_eq!(keys(&cloud, "/lcm/sessions/s-t/"), [pair("state", "RUNNING")], "the session goes on");
    cloud.etcd().put(&fake_cloud::etcd::Put::new("/lcm/workers/a/sync".to_owned(), "{}".to_owned())).expect("a put");
    assert_eq!(send(Method::DELETE, "/a/sync", json!({})).await.expect("a response").status(), 200);
    assert_eq!(keys(&cloud, "/lcm/workers/a/sync"), []);
    cloud.stop().await;
}

#[tokio::test]
async fn telemetry_with_an_offset_is_ignored() {
    let cloud = start().await;
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let url = format!("{}/api/internal/workers/i/detect-idle", cloud.endpoints().control_plane_url);
    let now = cloud.now().format("%Y-%m-%dT%H:%M:%S");
    for (timestamp, is_idle) in [(format!("{now}+00:00"), true), (format!("{now}Z"), false), (format!("{now}"), false)]
    {
        cloud.update_worker("i", json!({"last_activity_at": null, "desired_status": "running"})).expect("a worker");
        let events = json!([{"category": "start_lab", "timestamp": timestamp}]);
        let body = json!({"raw_telemetry_events": events});
        let response = client.post(&url).header("X-API-Key", "lcm-dev-key").json(&body).send().await;
        let report: Value = response.expect("a response").json().await.expect("JSON");
        assert_eq!(report["is_idle"], is_idle, "{timestamp}");
        assert_eq!(report["auto_pause_triggered"], is_idle, "{timestamp}");
    }
    cloud.stop().await;
}

#[tokio::test]
async fn write_races_are_faults() {
    let cloud = start().await;
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let url = format!("{}/api/internal/workers/a/status", cloud.endpoints().control_plane_url);
    let body = json!({"status": "stopping", "ec2_instance_id": "i-9"});
    for (race, stored) in [("write-conflict", "running"), ("split-write", "stopping")] {
        let rule = json!({
            "service": "control-plane", "operation": "write_status", "times": 1,
            "action": {"kind": "custom", "name": race},
        });
        cloud.inject(serde_json::from_value(rule).expect("a rule")).expect("a valid rule");
        let response = client.post(&url).header("X-API-Key", "lcm-dev-key").json(&body).send().await;
        let response = response.expect("a response");
        assert_eq!(response.status(), 500, "{race}");
        let error: Value = response.json().await.expect("JSON");
        assert_eq!((&error["title"], &error["status"]), (&json!("Internal Server Error"), &json!(500)), "{race}");
        let record = cloud.worker("a").expect("a record");
        assert_eq!((record.status(), record.instance_id()), (stored, Some("i-1")), "{race}");
    }
    cloud.stop().await;
}

#[tokio::test]
async fn drain_cannot_be_canceled() {
    let cloud = start().await;
    cloud.records().drain("d", None, "maintenance", "operator").expect("it runs");
    let refused = cloud.records().cancel_drain("d", None, "wait", "operator").expect_err("no such operation");
    let expected = "the control plane of the generation 'original' cannot cancel a drain; set the desired status to \
                    running: the worker then leaves the drain";
    assert_eq!((refused.http_status(), refused.to_string().as_str()), (501, expected));
    assert_eq!(cloud.worker("d").expect("a record").status(), "draining");
    cloud.stop().await;
}

#[tokio::test]
async fn original_is_the_default() {
    let cloud = FakeCloud::start().await.expect("a cloud");
    assert_eq!(cloud.endpoints().control_plane_generation, Generation::Original);
    let state = reqwest::get(format!("{}state", cloud.endpoints().admin_url)).await.expect("a response");
    let state: Value = state.json().await.expect("JSON");
    assert_eq!(state["control_plane"], json!({"generation": "original"}));
    cloud.stop().await;
}

#[tokio::test]
async fn generation_is_reported_by_the_admin_api() {
    for (generation, name) in [(Generation::Original, "original"), (Generation::Extended, "extended")] {
        let cloud = FakeCloud::builder().control_plane(generation).start().await.expect("a cloud");
        assert_eq!(name.parse(), Ok(generation));
        let state = reqwest::get(format!("{}state", cloud.endpoints().admin_url)).await.expect("a response");
        let state: Value = state.json().await.expect("JSON");
        assert_eq!(state["control_plane"], json!({"generation": name}));
        let has_events = (generation != Generation::Original).to_string();
        assert_eq!(cloud.endpoints().environment()["CONTROL_PLANE_EVENTS"], has_events, "{name}");
        cloud.stop().await;
    }
    let error = "current".parse::<Generation>().expect_err("no generation");
    assert_eq!(error, "invalid control plane generation 'current': expected 'original' or 'extended'");
}
