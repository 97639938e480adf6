//! Tests against servers that deviate from the API specification.

use wiremock::matchers::{any, header, method, path};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::*;
use crate::lifecycle::decision::Changes;
use crate::lifecycle::patch::Termination;
use crate::lifecycle::secret::Secret;

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
        let sessions = json!([
            {"id": "s-over", "worker_id": "w-1", "status": "terminated"},
            {"id": "s-busy", "worker_id": "w-1", "status": "running"},
        ]);
        serve(&server, "GET", "/api/internal/lablet-sessions", response(200, sessions)).await;
        serve(&server, "POST", "/api/internal/lablet-sessions/s-busy/terminate", response(200, json!({}))).await;
        let worker = worker(None);
        client_for(&server).write(&worker, &terminated(&worker), Fence(None)).await.expect("ended");
        let mut writes = requests(&server).await;
        writes.retain(|request| request.method == "POST");
        let paths: Vec<_> = writes.iter().map(|request| request.url.path()).collect();
        let (workers, sessions) = ("/api/internal/workers/w-1", "/api/internal/lablet-sessions");
        let expected =
            [format!("{workers}/terminate"), format!("{sessions}/s-busy/terminate"), format!("{workers}/status")];
        assert_eq!(paths, expected, "the sessions that still live are ended before the record");
        let last = writes.pop().expect("requests");
        let body: Value = serde_json::from_slice(&last.body).expect("JSON");
        let expected = json!({"status": "terminated", "terminated_by": "discovery-gc", "terminated_reason": "gone"});
        assert_eq!(body, expected);
    }
}

#[tokio::test]
async fn missing_worker_is_not_a_missing_endpoint() {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(response(404, json!({"detail": "no worker w-1"}))).mount(&server).await;
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
async fn missing_discovery_endpoint_means_no_settings() {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(response(404, json!({"detail": "Not Found"}))).mount(&server).await;
    assert_eq!(client_for(&server).discovery_settings().await.expect("an response"), None);
    let wrong_base = client_for(&server).worker(&"w-1".into()).await;
    assert_eq!(wrong_base.expect_err("an unknown path").kind, FailureKind::Refused);
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
        {"id": "odd", "status": "running", "aws_region": 7},
    ]});
    Mock::given(any()).respond_with(response(200, listing)).mount(&server).await;
    let scope = Scope { region: Some("us-east-1".into()), with_terminated: false };
    let listed = client_for(&server).workers(&scope).await.expect("a listing");
    let ids: Vec<_> = listed.workers.iter().map(|worker| worker.id.as_str()).collect();
    assert_eq!(ids, ["here"]);
    assert_eq!(listed.unreadable[0].id, Some("odd".into()), "unreadable records are reported");
    let url = requests(&server).await.pop().expect("a request").url;
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
