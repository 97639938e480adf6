//! Features that are read off responses, and calls to servers that lack them.

use super::*;
use crate::lifecycle::capabilities::ControlPlaneGeneration;
use crate::lifecycle::decision::{Addresses, Change};
use crate::lifecycle::license::LicenseOperation;
use crate::lifecycle::status::DesiredStatus;

/// A record of the original server.
fn original(status: &str) -> Value {
    json!({
        "id": "w-1", "status": status, "desired_status": "stopped", "state_version": 0, "aws_instance_id": "i-1",
        "created_at": "2026-02-06T08:00:00.000000", "ami_id": "ami-1", "ami_description": "CML 2.9",
    })
}

/// The original server with one worker.
async fn original_server(status: &str) -> MockServer {
    let server = MockServer::start().await;
    let at = "/api/internal/workers/w-1";
    serve(&server, "GET", at, response(200, original(status))).await;
    serve(&server, "GET", "/api/internal/workers", response(200, json!([original(status)]))).await;
    let written = json!({"worker_id": "w-1", "status": status, "desired_status": "stopped"});
    serve(&server, "POST", &format!("{at}/status"), response(200, written)).await;
    let unknown = response(404, json!({"detail": "Not Found"}));
    serve(&server, "POST", "/api/v1/workers/w-1/cancel-drain", unknown).await;
    server
}

async fn read(client: &ControlPlaneClient) -> Worker {
    client.worker(&"w-1".into()).await.expect("a response").expect("a worker")
}

fn patch(worker: &Worker, status: Option<WorkerStatus>, changes: Changes) -> Patch {
    Patch { status, ..Patch::from_changes(worker, changes, Timestamp::UNIX_EPOCH) }
}

/// Bodies of the POST requests, with the last segment of their path.
async fn posts(server: &MockServer) -> Vec<(String, Value)> {
    let posts = requests(server).await.into_iter().filter(|request| request.method == "POST");
    let last = |request: &Request| request.url.path().rsplit('/').next().unwrap_or_default().to_owned();
    posts.map(|request| (last(&request), serde_json::from_slice(&request.body).expect("JSON"))).collect()
}

#[tokio::test]
async fn first_record_shows_versions_and_notes() {
    let server = original_server("running").await;
    let client = client_for(&server);
    assert_eq!(client.capabilities(), Capabilities::default());
    let worker = read(&client).await;
    assert_eq!(worker.created_at, "2026-02-06T08:00:00Z".parse().ok(), "a time without an offset is in UTC");
    assert_eq!((client.capabilities().versions, client.capabilities().notes), (Support::No, Support::No));
    for shown in [json!({"metadata": {}}), json!({"drain_tries": null})] {
        let server = MockServer::start().await;
        let mut record = json!({"id": "w-1", "status": "Shutting-Down", "version": 1});
        record.as_object_mut().expect("an object").extend(shown.as_object().expect("an object").clone());
        serve(&server, "GET", "/api/internal/workers", response(200, json!([record]))).await;
        let client = client_for(&server);
        let listed = client.workers(&Scope::active()).await.expect("a listing");
        assert_eq!(listed.workers[0].status, WorkerStatus::Terminating);
        assert_eq!((client.capabilities().versions, client.capabilities().notes), (Support::Yes, Support::Yes));
    }
}

#[tokio::test]
async fn notes_are_left_out_where_records_keep_none() {
    let server = original_server("pending").await;
    let client = client_for(&server);
    let worker = Worker::new("w-1", WorkerStatus::Pending);
    let changes = Changes { launch_generation: Some(2), drain_started_at: Change::Clear, ..Changes::default() };
    client.write(&worker, &patch(&worker, None, changes.clone()), Fence(None)).await.expect("nothing to write");
    assert_eq!(posts(&server).await, []);
    let started = patch(&worker, Some(WorkerStatus::Provisioning), changes);
    client.write(&worker, &started, Fence(None)).await.expect("written");
    assert_eq!(posts(&server).await, [("status".to_owned(), json!({"status": "provisioning"}))]);
}

#[tokio::test]
async fn unchanged_status_is_read_before_it_is_written() {
    let server = original_server("draining").await;
    let client = client_for(&server);
    // Read as running, and drained since: writing running would put the worker back in service.
    let worker = Worker::new("w-1", WorkerStatus::Running);
    let changes = Changes { ec2_instance_id: Change::Set("i-2".into()), ..Changes::default() };
    client.write(&worker, &patch(&worker, None, changes), Fence(None)).await.expect("written");
    let expected = json!({"status": "draining", "ec2_instance_id": "i-2"});
    assert_eq!(posts(&server).await, [("status".to_owned(), expected)]);
}

#[tokio::test]
async fn desired_status_that_is_not_stored_is_not_supported() {
    let server = original_server("running").await;
    let client = client_for(&server);
    let worker = Worker { desired_status: Some(DesiredStatus::Running), ..read(&client).await };
    let changes = Changes { desired_status: Some(DesiredStatus::Running), ..Changes::default() };
    let unchanged = patch(&worker, Some(WorkerStatus::Starting), changes);
    client.write(&worker, &unchanged, Fence(None)).await.expect("the desired status does not change");
    let changes = Changes { desired_status: Some(DesiredStatus::Terminated), ..Changes::default() };
    let stopped = patch(&worker, Some(WorkerStatus::Stopped), changes);
    for _ in 0..2 {
        let failure = client.write(&worker, &stopped, Fence(None)).await.expect_err("it is not stored");
        assert_eq!(failure.kind, FailureKind::NotSupported);
        assert_eq!(
            failure.to_string(),
            "not_supported: writing a desired status is not supported by this control plane; request it from the control \
             plane itself, or drain the worker to stop it"
        );
    }
    assert_eq!(client.capabilities().desired_status, Support::No);
    let sent: Vec<Value> = posts(&server).await.into_iter().map(|(_, body)| body).collect();
    let attempt = json!({"status": "running", "desired_status": "terminated"});
    assert_eq!(
        sent,
        [json!({"status": "starting"}), attempt],
        "the status is not written, and the attempt is made once"
    );
}

#[tokio::test]
async fn cancellation_that_would_stop_the_worker_is_not_supported() {
    let server = original_server("draining").await;
    let client = client_for(&server);
    let worker = read(&client).await;
    let changes = Changes { desired_status: Some(DesiredStatus::Running), ..Changes::default() };
    let cancel = patch(&worker, Some(WorkerStatus::Running), changes);
    for _ in 0..2 {
        let failure = client.write(&worker, &cancel, Fence(None)).await.expect_err("it would run, and be stopped");
        assert_eq!(failure.kind, FailureKind::NotSupported, "{failure}");
        assert!(failure.message.contains("; request the desired status 'running' from"), "{failure}");
    }
    assert_eq!(client.capabilities().cancel_drain, Support::No);
    let sent = posts(&server).await;
    let attempt = json!({"status": "draining", "desired_status": "running"});
    assert_eq!(sent.iter().map(|(last, _)| last.as_str()).collect::<Vec<_>>(), ["cancel-drain", "status"]);
    assert_eq!(sent[1].1, attempt, "the status is not written");
}

#[tokio::test]
async fn worker_that_should_run_again_leaves_the_drain() {
    let server = original_server("draining").await;
    let client = client_for(&server);
    let worker = Worker { desired_status: Some(DesiredStatus::Running), ..read(&client).await };
    let changes = Changes { desired_status: Some(DesiredStatus::Running), ..Changes::default() };
    let cancel = patch(&worker, Some(WorkerStatus::Running), changes);
    client.write(&worker, &cancel, Fence(None)).await.expect("the status is written");
    assert_eq!(posts(&server).await.pop().expect("a write").1["status"], "running");
}

#[tokio::test]
async fn sessions_are_moved_once_on_a_server_that_cannot() {
    let server = MockServer::start().await;
    let detail = "Transition to pending not supported via this endpoint";
    let problem = json!({"title": "Bad Request", "status": 400, "detail": detail, "type": "https://www.w3.org"});
    Mock::given(any()).respond_with(response(400, problem)).mount(&server).await;
    let client = client_for(&server);
    for to in [SessionMove::BackToScheduler, SessionMove::Retry { attempt: 1 }] {
        let failure = client.move_session(&"s-1".into(), to, Fence(None)).await.expect_err("refused");
        assert_eq!(failure.kind, FailureKind::NotSupported, "{failure}");
    }
    assert_eq!(requests(&server).await.len(), 1);
}

#[tokio::test]
async fn ignored_pause_suppression_is_noticed() {
    let server = MockServer::start().await;
    let paused = json!({"telemetry_fetched": true, "idle_check_performed": true, "auto_pause_triggered": true});
    Mock::given(any()).respond_with(response(200, paused)).mount(&server).await;
    let client = client_for(&server);
    let detect = |events: Vec<Value>| {
        let client = &client;
        async move { client.detect_idle(&"w-1".into(), Some(events), AutoPause::Suppressed, Fence(None)).await }
    };
    assert!(detect(Vec::new()).await.expect("a report").report.auto_pause_triggered);
    assert_eq!(detect(Vec::new()).await.expect_err("it would pause").kind, FailureKind::NotSupported);
    let event = json!({"category": "start_lab", "timestamp": "2026-02-06T09:00:00+01:00"});
    detect(vec![event]).await.expect("activity cannot pause the worker");
    let sent = posts(&server).await.pop().expect("a request").1;
    assert_eq!(sent["raw_telemetry_events"][0]["timestamp"], "2026-02-06T08:00:00.000000Z");
}

#[tokio::test]
async fn pinned_generation_is_not_changed_by_responses() {
    for (generation, support) in
        [(ControlPlaneGeneration::Original, Support::No), (ControlPlaneGeneration::Extended, Support::Yes)]
    {
        let server = original_server("running").await;
        let options = ControlPlaneOptions::new(server.uri(), Secret::from("k3y")).with_generation(generation);
        let client = ControlPlaneClient::new(options).expect("a client");
        read(&client).await;
        assert_eq!(client.capabilities(), Capabilities::all(support));
    }
}

#[tokio::test]
async fn unknown_worker_is_absent_if_the_listing_lacks_it() {
    let server = original_server("running").await;
    let failed = json!({"title": "Internal Server Error", "status": 500, "detail": "no attribute", "type": "https"});
    for id in ["w-1", "w-2"] {
        let at = format!("/api/internal/workers/{id}");
        Mock::given(method("GET"))
            .and(path(at))
            .respond_with(response(500, failed.clone()))
            .with_priority(1)
            .mount(&server)
            .await;
    }
    serve(&server, "POST", "/api/internal/workers/w-2/status", response(500, failed)).await;
    let client = client_for(&server);
    assert_eq!(client.worker(&"w-2".into()).await.expect("a response"), None);
    assert!(client.worker(&"w-1".into()).await.expect("a response").is_some(), "the listing shows it");
    let query = requests(&server).await.pop().expect("a request").url;
    assert_eq!(query.query(), Some("include_terminated=true"));
    let worker = Worker::new("w-2", WorkerStatus::Running);
    let stopped = patch(&worker, Some(WorkerStatus::Stopped), Changes::default());
    assert_eq!(client.write(&worker, &stopped, Fence(None)).await.expect_err("absent").kind, FailureKind::Refused);
}

#[tokio::test]
async fn failed_read_is_unknown_without_a_complete_listing() {
    let listings = [
        response(500, json!({"detail": "down"})),
        response(200, json!({"workers": [], "total": 5})),
        response(200, json!([{"status": "running"}])),
        response(200, json!([{"id": "w-1", "status": "asleep"}])),
    ];
    for listing in listings {
        let server = MockServer::start().await;
        serve(&server, "GET", "/api/internal/workers", listing).await;
        serve(&server, "GET", "/api/internal/workers/w-1", response(500, json!({"detail": "down"}))).await;
        let failure = client_for(&server).worker(&"w-1".into()).await.expect_err("nothing is proved");
        assert_eq!(failure.kind, FailureKind::Unclear, "{failure}");
    }
}

#[tokio::test]
async fn addresses_follow_the_instance_that_clears_them() {
    let server = original_server("provisioning").await;
    serve(&server, "POST", "/api/internal/workers/w-1/ec2-details", response(200, json!({}))).await;
    let client = client_for(&server);
    let worker = read(&client).await;
    let addresses = Addresses { public_ip: Some("203.0.113.7".into()), private_ip: None };
    let changes =
        Changes { ec2_instance_id: Change::Set("i-2".into()), addresses: Some(addresses), ..Changes::default() };
    client.write(&worker, &patch(&worker, Some(WorkerStatus::Running), changes), Fence(None)).await.expect("written");
    let sent = posts(&server).await;
    assert_eq!(sent[0], ("status".to_owned(), json!({"status": "running", "ec2_instance_id": "i-2"})));
    assert_eq!((sent[1].0.as_str(), &sent[1].1["ami_description"]), ("ec2-details", &json!("CML 2.9")));
}

#[tokio::test]
async fn license_reports_need_no_status() {
    let server = original_server("running").await;
    serve(&server, "POST", "/api/internal/workers/w-1/license/start-registration", response(200, json!({}))).await;
    let client = client_for(&server);
    let mut worker = read(&client).await;
    worker.license.pending_operation = Some(LicenseOperation::Register);
    let changes = Changes { license_report: Some(LicenseReport::StartRegistration), ..Changes::default() };
    client.write(&worker, &patch(&worker, None, changes), Fence(None)).await.expect("reported");
    assert_eq!(posts(&server).await.len(), 1);
}
