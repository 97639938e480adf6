//! Tests against servers that deviate from the API specification.

mod capabilities;
mod sessions;

use wiremock::matchers::{any, header, method, path};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::*;
use crate::lifecycle::decision::Changes;
use crate::lifecycle::patch::{DrainRequest, Termination};
use crate::lifecycle::secret::Secret;
use crate::lifecycle::status::DesiredStatus;

fn client_for(server: &MockServer) -> ControlPlaneClient {
    let retries = vec![Duration::from_millis(1); 3];
    let options = ControlPlaneOptions { retries, ..ControlPlaneOptions::new(server.uri(), Secret::from("k3y")) };
    ControlPlaneClient::new(options).expect("a client")
}

fn response(status: u16, body: Value) -> ResponseTemplate {
    ResponseTemplate::new(status).set_body_json(body)
}

async fn serve(server: &MockServer, verb: &str, at: &str, response: ResponseTemplate) {
    Mock::given(method(verb)).and(path(at)).respond_with(response).mount(server).await;
}

/// The 404 of the existing control plane.
fn missing(kind: &str, id: &str) -> ResponseTemplate {
    let detail = format!("Failed to find an entity of type '{kind}' with the specified id '{id}'");
    let kind = "https://www.w3.org/Protocols/HTTP/HTRESP.html#:~:text=Not%20found%20404";
    response(404, json!({"title": "Not Found", "status": 404, "detail": detail, "type": kind}))
}

async fn requests(server: &MockServer) -> Vec<Request> {
    server.received_requests().await.expect("recorded")
}

async fn lines(server: &MockServer) -> Vec<String> {
    requests(server).await.iter().map(|request| format!("{} {}", request.method, request.url.path())).collect()
}

fn terminated(worker: &Worker) -> Patch {
    Patch {
        status: Some(WorkerStatus::Terminated),
        termination: Some(Termination { reason: "gone".into(), terminated_by: "discovery-gc".into() }),
        ..Patch::from_changes(worker, Changes::default(), Timestamp::UNIX_EPOCH)
    }
}

fn worker(version: Version) -> Worker {
    let mut worker = Worker::new("w-1", WorkerStatus::Running);
    worker.version = version;
    worker
}

#[tokio::test]
async fn missing_terminate_endpoint_falls_back_to_status() {
    for missing in
        [response(404, json!({"detail": "Not Found"})), response(405, json!({"detail": "Method Not Allowed"}))]
    {
        let server = MockServer::start().await;
        serve(&server, "POST", "/api/internal/workers/w-1/terminate", missing).await;
        serve(&server, "GET", "/api/internal/workers/w-1", response(200, json!({"id": "w-1", "status": "running"})))
            .await;
        let written = response(200, json!({"id": "w-1", "status": "terminated"}));
        serve(&server, "POST", "/api/internal/workers/w-1/status", written).await;
        let worker = worker(None);
        client_for(&server).write(&worker, &terminated(&worker), Fence(None)).await.expect("ended");
        let mut writes = requests(&server).await;
        writes.retain(|request| request.method == "POST");
        let paths: Vec<_> = writes.iter().map(|request| request.url.path()).collect();
        let workers = "/api/internal/workers/w-1";
        assert_eq!(paths, [format!("{workers}/terminate"), format!("{workers}/status")]);
        let last = writes.pop().expect("requests");
        let body: Value = serde_json::from_slice(&last.body).expect("JSON");
        let expected = json!({"status": "terminated", "terminated_by": "discovery-gc", "terminated_reason": "gone"});
        assert_eq!(body, expected);
    }
}

#[tokio::test]
async fn missing_worker_is_not_a_missing_endpoint() {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(missing("CMLWorker", "w-1")).mount(&server).await;
    let worker = worker(Some(3));
    let failure =
        client_for(&server).write(&worker, &terminated(&worker), Fence(None)).await.expect_err("connection refused");
    assert_eq!(failure.kind, FailureKind::Refused);
    assert!(lines(&server).await.iter().all(|line| !line.ends_with("/status")));
}

#[tokio::test]
async fn writes_carry_key_version_and_fence() {
    let server = MockServer::start().await;
    let matching = Mock::given(header("x-api-key", "k3y")).and(header("if-match", "\"3\""));
    let matching = matching.and(header("x-fencing-token", "42"));
    matching.respond_with(response(200, json!({"status": "terminated", "version": 4}))).mount(&server).await;
    let worker = worker(Some(3));
    let client = client_for(&server);
    assert_eq!(client.write(&worker, &terminated(&worker), Fence(Some(42))).await.expect("ended"), Some(4));
    assert!(!format!("{client:?}").contains("k3y"));
}

#[tokio::test]
async fn only_reads_are_retried_after_a_gateway_error() {
    let server = MockServer::start().await;
    let late = response(200, json!([])).set_delay(Duration::from_secs(60));
    Mock::given(any()).respond_with(late).mount(&server).await;
    let retries = vec![Duration::from_millis(1); 3];
    let timeout = Duration::from_millis(200);
    let options =
        ControlPlaneOptions { retries, timeout, ..ControlPlaneOptions::new(server.uri(), Secret::from("k3y")) };
    let client = ControlPlaneClient::new(options).expect("a client");
    let failure = client.workers(&Scope::active()).await.expect_err("late");
    assert_eq!(failure.kind, FailureKind::Unclear);
    assert_eq!(requests(&server).await.len(), 4);
    server.reset().await;
    Mock::given(any()).respond_with(response(200, json!({})).set_delay(Duration::from_secs(60))).mount(&server).await;
    client.audit(&"w-1".into(), Audit::Provisioned, "why", Fence(None)).await.expect_err("late");
    assert_eq!(requests(&server).await.len(), 1, "an audit entry must not appear twice");
}

#[tokio::test]
async fn unsent_write_is_retried() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let retries = vec![Duration::from_millis(1); 3];
    let client =
        ControlPlaneClient::new(ControlPlaneOptions { retries, ..ControlPlaneOptions::new(url, Secret::from("k3y")) });
    let client = client.expect("a client");
    let failure =
        client.audit(&"w-1".into(), Audit::Provisioned, "why", Fence(None)).await.expect_err("connection refused");
    assert_eq!(failure.kind, FailureKind::Unreachable);
}

#[tokio::test]
async fn html_404_is_a_failure() {
    let server = MockServer::start().await;
    let page = ResponseTemplate::new(404).set_body_raw("<html>404</html>", "text/html");
    Mock::given(any()).respond_with(page).mount(&server).await;
    let client = client_for(&server);
    assert_eq!(client.worker(&"w-1".into()).await.expect_err("a page").kind, FailureKind::Unclear);
    assert_eq!(client.template("metal").await.expect_err("a page").kind, FailureKind::Unclear);
    client.discovery_settings().await.expect_err("a page");
}

#[tokio::test]
async fn resource_is_absent_only_if_the_service_names_it() {
    let ours = |id: &str| response(404, json!({"error": "not_found", "kind": "x", "id": id, "detail": "no x"}));
    for absent in [missing("X", "x-1"), ours("x-1")] {
        let server = MockServer::start().await;
        Mock::given(any()).respond_with(absent).mount(&server).await;
        let client = client_for(&server);
        assert_eq!(client.template("x-1").await.expect("a response"), None);
        assert_eq!(client.worker(&"x-1".into()).await.expect("a response"), None);
        client.terminate_session(&"x-1".into(), SessionEnd::DrainTimeout, Fence(None)).await.expect("there is none");
        client.sessions(&"x-1".into()).await.expect_err("a list is never absent");
    }
    let spring =
        json!({"type": "about:blank", "title": "Not Found", "status": 404, "detail": "No static resource x-1."});
    for other in [
        response(404, json!({"message": "no Route matched with those values"})),
        response(404, json!({"detail": "Not Found"})),
        response(404, json!({"error": "not_found"})),
        response(404, json!("not found")),
        response(404, spring),
        missing("X", "another"),
        ours("another"),
    ] {
        let server = MockServer::start().await;
        Mock::given(any()).respond_with(other).mount(&server).await;
        let client = client_for(&server);
        client.template("x-1").await.expect_err("a gateway");
        client.worker(&"x-1".into()).await.expect_err("a gateway");
        client.terminate_session(&"x-1".into(), SessionEnd::DrainTimeout, Fence(None)).await.expect_err("a gateway");
        let worker = worker(Some(3));
        client.write(&worker, &terminated(&worker), Fence(None)).await.expect_err("a gateway");
        assert!(lines(&server).await.iter().all(|line| !line.ends_with("/status")), "no fallback");
    }
}

#[tokio::test]
async fn termination_after_a_lost_response_is_done() {
    let server = MockServer::start().await;
    let lost = Mock::given(method("POST")).respond_with(response(502, json!({})));
    lost.up_to_n_times(1).mount(&server).await;
    Mock::given(method("POST")).respond_with(response(409, json!({"detail": "version 4"}))).mount(&server).await;
    let ended = json!({"id": "w-1", "status": "terminated", "version": 4});
    serve(&server, "GET", "/api/internal/workers/w-1", response(200, ended)).await;
    let worker = worker(Some(3));
    let version = client_for(&server).write(&worker, &terminated(&worker), Fence(None)).await;
    assert_eq!(version.expect("terminated"), Some(4));
}

#[tokio::test]
async fn conflict_on_a_living_record_is_a_conflict() {
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(response(409, json!({"detail": "version 4"}))).mount(&server).await;
    let living = json!({"id": "w-1", "status": "running", "version": 4});
    serve(&server, "GET", "/api/internal/workers/w-1", response(200, living)).await;
    let worker = worker(Some(3));
    let failure = client_for(&server).write(&worker, &terminated(&worker), Fence(None)).await.expect_err("moved on");
    assert_eq!(failure.kind, FailureKind::Conflict);
}

#[tokio::test]
async fn missing_audit_endpoint_is_called_once_an_hour() {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(response(404, json!({"detail": "Not Found"}))).mount(&server).await;
    let client = client_for(&server);
    for _ in 0..3 {
        client.audit(&"w-1".into(), Audit::Provisioned, "why", Fence(None)).await.expect("discarded");
        client.publish(json!({})).await.expect("discarded");
    }
    assert_eq!(lines(&server).await, ["POST /api/internal/scaling-audit", "POST /api/internal/events"]);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(3601)).await;
    tokio::time::resume();
    client.audit(&"w-1".into(), Audit::Provisioned, "why", Fence(None)).await.expect("discarded");
    assert_eq!(requests(&server).await.len(), 3);
}

#[tokio::test]
async fn audit_404_of_a_gateway_is_a_failure() {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(response(404, json!({"message": "no Route matched"}))).mount(&server).await;
    let client = client_for(&server);
    for _ in 0..2 {
        client.audit(&"w-1".into(), Audit::Provisioned, "why", Fence(None)).await.expect_err("a gateway");
    }
    assert_eq!(requests(&server).await.len(), 2);
}

#[tokio::test]
async fn missing_discovery_endpoint_means_no_settings() {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(response(404, json!({"detail": "Not Found"}))).mount(&server).await;
    assert_eq!(client_for(&server).discovery_settings().await.expect("an response"), None);
    let wrong_base = client_for(&server).worker(&"w-1".into()).await;
    assert_eq!(wrong_base.expect_err("an unknown path").kind, FailureKind::Refused);
}

#[tokio::test]
async fn discovery_switch_is_true_false_or_left_open() {
    for (value, expected) in [
        (json!({"enabled": false}), Some(Some(false))),
        (json!({"enabled": true}), Some(Some(true))),
        (json!({"enabled": null}), Some(None)),
        (json!({}), Some(None)),
        (json!({"enabled": "no"}), None),
        (json!({"enabled": 0}), None),
    ] {
        let server = MockServer::start().await;
        Mock::given(any()).respond_with(response(200, value.clone())).mount(&server).await;
        let settings = client_for(&server).discovery_settings().await;
        assert_eq!(settings.ok().map(|settings| settings.expect("settings").enabled), expected, "{value}");
    }
}

#[tokio::test]
async fn partial_or_unreadable_session_list_is_a_failure() {
    let session = json!({"id": "s-1", "status": "running", "worker_id": "w-1"});
    let cases = [
        json!({"items": [session], "total": 2}),
        json!({"items": [session], "has_more": true}),
        json!({"items": [session], "next": "/page/2"}),
        json!([session, {"id": "s-2", "status": 7, "worker_id": "w-1"}]),
        json!({"oops": true}),
        json!("no"),
    ];
    for case in cases {
        let server = MockServer::start().await;
        Mock::given(any()).respond_with(response(200, case.clone())).mount(&server).await;
        let failure = client_for(&server).sessions(&"w-1".into()).await.expect_err("half an response");
        assert_eq!(failure.kind, FailureKind::Unparsable, "{case}");
    }
    let server = MockServer::start().await;
    let other = json!({"id": "s-3", "status": "running", "worker_id": "w-2"});
    let complete = json!({"sessions": [session, other], "total": 2});
    Mock::given(any()).respond_with(response(200, complete)).mount(&server).await;
    assert_eq!(client_for(&server).sessions(&"w-1".into()).await.expect("complete").len(), 1, "filtered once more");
}

#[tokio::test]
async fn metadata_is_merged_for_servers_that_replace_it() {
    let server = MockServer::start().await;
    let record = json!({"id": "w-1", "status": "running", "metadata": {"theirs": 1, "launched_at": null}});
    serve(&server, "GET", "/api/internal/workers/w-1", response(200, record)).await;
    serve(&server, "POST", "/api/internal/workers/w-1/status", response(200, json!({}))).await;
    let worker = worker(None);
    let changes = Changes { launch_generation: Some(2), ..Changes::default() };
    let patch = Patch::from_changes(&worker, changes, Timestamp::UNIX_EPOCH);
    client_for(&server).write(&worker, &patch, Fence(None)).await.expect("written");
    let last = requests(&server).await.pop().expect("requests");
    let body: Value = serde_json::from_slice(&last.body).expect("JSON");
    assert_eq!(body["metadata"]["theirs"], 1);
    assert_eq!(body["metadata"]["launch_generation"], 2);
}

#[tokio::test]
async fn stale_version_is_a_conflict_before_the_write() {
    let server = MockServer::start().await;
    let record = json!({"id": "w-1", "status": "running", "version": 9});
    serve(&server, "GET", "/api/internal/workers/w-1", response(200, record)).await;
    let worker = worker(Some(3));
    let changes = Changes { launch_generation: Some(2), ..Changes::default() };
    let patch = Patch::from_changes(&worker, changes, Timestamp::UNIX_EPOCH);
    let failure = client_for(&server).write(&worker, &patch, Fence(None)).await.expect_err("moved on");
    assert_eq!(failure.kind, FailureKind::Conflict);
    assert_eq!(lines(&server).await, ["GET /api/internal/workers/w-1"]);
}

#[tokio::test]
async fn ended_session_counts_as_terminated() {
    let server = MockServer::start().await;
    let at = "/api/internal/lablet-sessions/s-1";
    serve(&server, "POST", &format!("{at}/terminate"), response(409, json!({"detail": "over"}))).await;
    serve(&server, "GET", at, response(200, json!({"id": "s-1", "status": "archived"}))).await;
    let ended = client_for(&server).terminate_session(&"s-1".into(), SessionEnd::DrainTimeout, Fence(None)).await;
    ended.expect("it is over");
}

#[tokio::test]
async fn echoed_key_is_redacted() {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(response(401, json!({"detail": "bad key k3y"}))).mount(&server).await;
    let failure = client_for(&server).workers(&Scope::active()).await.expect_err("refused");
    assert_eq!(failure.kind, FailureKind::Refused);
    assert!(!format!("{failure:?}").contains("k3y"), "{failure:?}");
    let bad = ControlPlaneClient::new(ControlPlaneOptions::new(server.uri(), Secret::from("k3y\n")))
        .expect_err("a line break");
    assert!(!format!("{bad} {bad:?}").contains("k3y"), "{bad}");
}

#[test]
fn invalid_url_is_refused_and_not_shown() {
    for url in ["not a url", "ftp://host", "http://admin:hunter2@host"] {
        let refused = ControlPlaneClient::new(ControlPlaneOptions::new(url, Secret::from("k3y"))).expect_err(url);
        assert!(!refused.to_string().contains("hunter2"), "{refused}");
        assert!(refused.to_string().contains("accepted: an http or https URL"), "{refused}");
    }
}

#[tokio::test]
async fn list_is_filtered_again_by_the_client() {
    let server = MockServer::start().await;
    let listing = json!({"workers": [
        {"id": "here", "status": "running", "aws_region": "us-east-1"},
        {"id": "gone", "status": "TERMINATED", "aws_region": "us-east-1"},
        {"id": "there", "status": "running", "aws_region": "eu-west-1"},
        {"id": "nowhere", "status": "running", "aws_region": 7},
        {"id": "odd", "status": 7, "aws_region": "us-east-1"},
    ]});
    Mock::given(any()).respond_with(response(200, listing)).mount(&server).await;
    let scope = Scope { region: Some("us-east-1".into()), with_terminated: false };
    let listed = client_for(&server).workers(&scope).await.expect("a listing");
    let ids: Vec<_> = listed.workers.iter().map(|worker| worker.id.as_str()).collect();
    assert_eq!(ids, ["here"]);
    assert_eq!(listed.unreadable[0].id, Some("odd".into()), "unreadable records are reported");
    let worldwide = client_for(&server).workers(&Scope::active()).await.expect("a listing");
    assert_eq!(worldwide.workers.len(), 3, "a worker with an unreadable region is managed");
    let url = requests(&server).await.remove(0).url;
    assert_eq!(url.query(), Some("exclude_statuses=terminated&aws_region=us-east-1"));
}

#[tokio::test]
async fn list_is_read_from_any_known_envelope() {
    let record = |id: &str| json!({"id": id, "status": "running"});
    for (body, expected) in [
        (json!([record("w-1"), record("w-2")]), Ok((2, 0))),
        (json!({"items": [record("w-1")], "total": 1, "next": null, "has_more": false}), Ok((1, 0))),
        (json!({"page": {"workers": []}, "workers": [record("w-1")], "total_count": 1.0}), Ok((1, 0))),
        // Only the first known field counts, so records in other lists are not checked.
        (json!({"data": [record("w-1")], "workers": [record("w-2"), {"id": "w-3", "status": "asleep"}]}), Ok((1, 0))),
        (json!({"items": {"workers": [record("w-2")]}, "workers": [record("w-1")]}), Ok((1, 0))),
        (json!([record("w-1"), {"id": "w-2", "status": "asleep"}, 7]), Ok((1, 2))),
        (json!([{"id": "w-1", "status": " Terminated "}, record("w-2")]), Ok((1, 0))),
        (json!({"workers": [record("w-1")], "total": 2}), Err("the response is only part of the list")),
        (json!({"workers": [record("w-1")], "next_cursor": "c"}), Err("the response is only part of the list")),
        (json!({"workers": [record("w-1")], "has_next": true}), Err("the response is only part of the list")),
        (json!({"workers": "none"}), Err("the response holds no list")),
        (json!("none"), Err("the response is not a list")),
        (json!(7), Err("the response is not a list")),
        (json!(null), Err("the response is not a list")),
    ] {
        let server = MockServer::start().await;
        serve(&server, "GET", "/api/internal/workers", response(200, body.clone())).await;
        let found = client_for(&server).workers(&Scope::active()).await;
        let counts = found.as_ref().map(|listing| (listing.workers.len(), listing.unreadable.len()));
        assert_eq!(counts.map_err(|failure| failure.message.as_str()), expected, "{body}");
    }
}

#[tokio::test]
async fn invalid_json_is_a_failure() {
    for body in [&b"[{\"id\": \"w-1\", \"status\": \"run"[..], b"[] []", b"[\"\xff\"]", b""] {
        let server = MockServer::start().await;
        serve(&server, "GET", "/api/internal/workers", ResponseTemplate::new(200).set_body_bytes(body)).await;
        let failure = client_for(&server).workers(&Scope::everything()).await.expect_err("no JSON");
        assert_eq!(failure.kind, FailureKind::Unparsable, "{failure}");
        assert!(failure.message.starts_with("the response is not JSON ("), "{failure}");
    }
}

#[tokio::test]
async fn license_reports_carry_the_required_fields() {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(response(200, json!({}))).mount(&server).await;
    let (client, worker) = (client_for(&server), worker(None));
    for report in
        [LicenseReport::CompleteRegistration, LicenseReport::FailRegistration, LicenseReport::FailDeregistration]
    {
        let license_error = matches!(report, LicenseReport::FailRegistration).then(|| "no token".to_owned());
        let changes = Changes { license_report: Some(report), license_error, ..Changes::default() };
        let patch = Patch::from_changes(&worker, changes, Timestamp::UNIX_EPOCH);
        client.write(&worker, &patch, Fence(None)).await.expect("reported");
    }
    let sent: Vec<Value> =
        requests(&server).await.iter().map(|request| serde_json::from_slice(&request.body).expect("JSON")).collect();
    let unspecific = json!({"error_message": "CML refused the operation"});
    assert_eq!(sent, [json!({"registration_status": "COMPLETED"}), json!({"error_message": "no token"}), unspecific]);
}

#[tokio::test]
async fn idle_report_with_null_fields_is_parsed() {
    let server = MockServer::start().await;
    let report =
        json!({"telemetry_fetched": true, "idle_check_performed": true, "is_idle": null, "idle_minutes": null});
    Mock::given(any()).respond_with(response(200, report)).mount(&server).await;
    let check = client_for(&server).detect_idle(&"w-1".into(), None, AutoPause::ServerDecides, Fence(None)).await;
    assert!(!check.expect("a report").report.is_idle);
}

#[tokio::test]
async fn metrics_are_sent_by_source_and_without_nulls() {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(response(200, json!({}))).mount(&server).await;
    let options = ControlPlaneOptions::new(server.uri(), Secret::from("k3y"));
    let client = ControlPlaneClient::new(options.with_metrics_interval(Duration::from_secs(60))).expect("a client");
    let cloud = CloudMetrics { cpu_utilization: Some(42.0), ..CloudMetrics::default() };
    let (health, license) = (json!({"valid": true}), json!({"registration": {"status": "COMPLETED"}}));
    let info = json!({"all_cpu_count": 8, "all_cpu_percent": 12.5, "all_memory_total": 400, "all_memory_used": 100});
    let cml = CmlMetrics {
        cml_version: Some("2.9.1".to_owned()),
        ready: Some(true),
        labs_count: Some(0),
        nodes_count: None,
        system_info: info.as_object().cloned(),
        system_health: health.as_object().cloned(),
        license_info: license.as_object().cloned(),
        uptime_seconds: Some(60),
    };
    let (id, at) = ("w-1".into(), Timestamp::UNIX_EPOCH);
    client.report_metrics(&id, Some(&cloud), Some(&cml), at, Fence(None)).await.expect("reported");
    client.report_metrics(&id, None, None, at, Fence(None)).await.expect("the attempt is reported");
    let sent: Vec<(String, Value)> = requests(&server)
        .await
        .iter()
        .map(|request| (request.url.path().to_owned(), serde_json::from_slice(&request.body).expect("JSON")))
        .collect();
    let base = "/api/internal/workers/w-1";
    let (collected, next) = ("1970-01-01T00:00:00.000000Z", "1970-01-01T00:01:00.000000Z");
    let attempt = json!({"collected_at": collected, "poll_interval": 60, "next_refresh_at": next});
    let mut metrics = attempt.clone();
    metrics["ec2"] = json!({"cpu_utilization": 42.0});
    metrics["cml"] = json!({"cpu_percent": 12.5, "memory_percent": 25.0});
    let data = json!({
        "cml_version": "2.9.1", "ready": true, "labs_count": 0, "system_info": info, "system_health": health,
        "license_info": license, "uptime_seconds": 60, "collected_at": collected,
    });
    let expected = [
        (format!("{base}/metrics"), metrics),
        (format!("{base}/cml-data"), data),
        (format!("{base}/metrics"), attempt),
    ];
    assert_eq!(sent, expected);
}

#[tokio::test]
async fn partial_cml_data_is_completed_from_the_record() {
    let server = MockServer::start().await;
    let workers = "/api/internal/workers";
    let record = json!({
        "id": "w-1", "status": "running", "cml_version": "2.9.0", "cml_ready": true, "cml_labs_count": 3,
        "cml_system_health": {"valid": true}, "cml_uptime_seconds": null, "cml_data": {"license_info": {"old": 1}},
    });
    serve(&server, "GET", &format!("{workers}/w-1"), response(200, record)).await;
    serve(&server, "GET", &format!("{workers}/w-2"), response(503, json!({"detail": "busy"}))).await;
    Mock::given(method("POST")).respond_with(response(200, json!({}))).mount(&server).await;
    let (client, at) = (client_for(&server), Timestamp::UNIX_EPOCH);
    let without_info = CmlMetrics { cml_version: Some("2.9.1".to_owned()), ready: Some(true), ..CmlMetrics::default() };
    let info = json!({"all_cpu_count": 8});
    let partial = CmlMetrics { system_info: info.as_object().cloned(), ..without_info.clone() };
    // No capacity, and a record that cannot be read.
    client.report_metrics(&"w-1".into(), None, Some(&without_info), at, Fence(None)).await.expect("reported");
    client.report_metrics(&"w-2".into(), None, Some(&partial), at, Fence(None)).await.expect("reported");
    let is_data = |request: &Request| request.url.path().ends_with("/cml-data");
    assert!(!requests(&server).await.iter().any(is_data), "nothing is erased");
    client.report_metrics(&"w-1".into(), None, Some(&partial), at, Fence(None)).await.expect("reported");
    let sent: Vec<Value> = requests(&server)
        .await
        .iter()
        .filter(|request| is_data(request))
        .map(|request| serde_json::from_slice(&request.body).expect("JSON"))
        .collect();
    let expected = json!({
        "cml_version": "2.9.1", "ready": true, "labs_count": 3, "system_info": info, "system_health": {"valid": true},
        "license_info": {"old": 1}, "collected_at": "1970-01-01T00:00:00.000000Z",
    });
    assert_eq!(sent, [expected]);
}

#[tokio::test]
async fn canceled_drain_has_its_own_call() {
    let request = DrainRequest { reason: "class goes on".to_owned(), requested_by: "alice".to_owned() };
    let mut draining = worker(None);
    draining.status = WorkerStatus::Draining;
    let changes = Changes { desired_status: Some(DesiredStatus::Running), ..Changes::default() };
    let patch = Patch {
        status: Some(WorkerStatus::Running),
        drain: Some(request),
        ..Patch::from_changes(&draining, changes, Timestamp::UNIX_EPOCH)
    };
    let server = MockServer::start().await;
    let running = json!({"id": "w-1", "status": "running", "desired_status": "running"});
    Mock::given(any()).respond_with(response(200, running)).mount(&server).await;
    client_for(&server).write(&draining, &patch, Fence(None)).await.expect("canceled");
    let sent = requests(&server).await;
    let call = sent.iter().find(|request| request.method == "POST").expect("a call");
    assert_eq!(call.url.path(), "/api/v1/workers/w-1/cancel-drain");
    let body: Value = serde_json::from_slice(&call.body).expect("JSON");
    assert_eq!(body, json!({"reason": "class goes on", "cancelled_by": "alice"}));
}

#[tokio::test]
async fn synchronization_requests_are_cleared() {
    let server = MockServer::start().await;
    serve(&server, "DELETE", "/api/internal/workers/w-1/sync", response(200, json!({"sync_cleared": true}))).await;
    serve(&server, "DELETE", "/api/internal/workers/w-2/sync", response(404, json!({"detail": "Not Found"}))).await;
    serve(&server, "DELETE", "/api/internal/workers/w-3/sync", response(500, json!({"detail": "broken"}))).await;
    let (client, fence) = (client_for(&server), Fence(Some(7)));
    client.clear_sync(&"w-1".into(), fence).await.expect("cleared");
    client.clear_sync(&"w-2".into(), fence).await.expect("a server without such requests");
    assert!(client.clear_sync(&"w-3".into(), fence).await.is_err());
    let sent = requests(&server).await;
    assert_eq!(sent.len(), 3);
    assert!(sent[0].body.is_empty() && sent[0].headers.contains_key("x-api-key"));
}
