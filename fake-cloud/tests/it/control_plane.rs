//! The generation `extended` of the control plane over a socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::response::IntoResponse;
use fake_cloud::control_plane::http::{ENDPOINTS, Verb};
use fake_cloud::control_plane::{Generation, NoMirror, Options, Records, Settings, serve};
use fake_cloud::faults::WaitOn;
use fake_cloud::middleware::{Fault, Middleware};
use fake_cloud::{Clock, Pace, Service};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::support::max_clients;

struct Server {
    base: String,
    client: Client,
    records: Records,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start() -> Self {
        Self::start_with(Settings::for_generation(Generation::Extended), Options::default()).await
    }

    async fn start_with(settings: Settings, options: Options) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().expect("bound"));
        let records = Records::with_settings(Clock::new(Pace::Real), settings, NoMirror);
        let task = tokio::spawn(serve(listener, records.clone(), options, std::future::pending()));
        let mut headers = reqwest::header::HeaderMap::new();
        headers.insert("x-api-key", "lcm-dev-key".parse().expect("a header"));
        let client = Client::builder().default_headers(headers).no_proxy().build().expect("a client");
        Self { base, client, records, task }
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base)).timeout(Duration::from_secs(30))
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        send(self.request(Method::GET, path)).await
    }

    async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        send(self.request(Method::POST, path).json(&body)).await
    }

    async fn worker(&self, id: &str, status: &str) -> Value {
        let (code, worker) = self.post("/api/internal/workers", json!({"id": id, "status": status})).await;
        assert_eq!(code, 201, "{worker}");
        worker
    }
}

async fn send(request: reqwest::RequestBuilder) -> (StatusCode, Value) {
    let response = request.send().await.expect("a response");
    let status = response.status();
    let text = response.text().await.expect("a body");
    (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

#[tokio::test]
async fn every_endpoint_except_health_requires_the_key() {
    let server = Server::start().await;
    let unauthenticated = Client::builder().no_proxy().build().expect("a client");
    for endpoint in ENDPOINTS {
        let path = endpoint.path.replace("{id}", "w").replace("{name}", "w");
        let method = match endpoint.verb {
            Verb::Get => Method::GET,
            Verb::Post => Method::POST,
            Verb::Put => Method::PUT,
            Verb::Delete => Method::DELETE,
        };
        let url = format!("{}{path}", server.base);
        let (status, body) = send(unauthenticated.request(method.clone(), &url)).await;
        if endpoint.operation == "health" {
            assert_eq!(status, 200);
        } else {
            assert_eq!((status.as_u16(), &body["error"]), (401, &json!("unauthorized")), "{path}");
        }
        let (status, _) = send(unauthenticated.request(method, &url).header("x-api-key", "wrong")).await;
        assert!(status == 401 || endpoint.operation == "health", "{path}");
    }
}

#[tokio::test]
async fn unknown_ids_are_404() {
    let server = Server::start().await;
    let body = json!({
        "status": "running", "desired_status": "running", "token": "t", "worker_id": "w", "cpu": 1,
    });
    for endpoint in ENDPOINTS.iter().filter(|endpoint| endpoint.path.contains('{')) {
        let path = endpoint.path.replace("{id}", "missing").replace("{name}", "missing");
        let (status, response) = match endpoint.verb {
            Verb::Get => server.get(&path).await,
            Verb::Delete => send(server.request(Method::DELETE, &path)).await,
            Verb::Post | Verb::Put => server.post(&path, body.clone()).await,
        };
        assert_eq!((status.as_u16(), &response["error"]), (404, &json!("not_found")), "{path}: {response}");
        assert_eq!(response["id"], "missing", "{path}");
    }
}

#[tokio::test]
async fn expected_version_is_accepted_in_header_and_body() {
    let server = Server::start().await;
    server.worker("w", "running").await;
    let path = "/api/internal/workers/w/status";
    let write =
        |tag: &str| server.request(Method::POST, path).header("if-match", tag).json(&json!({"status": "stopping"}));
    let response = write("\"1\"").send().await.expect("a response");
    assert_eq!(response.headers()["etag"], "\"2\"");
    let (status, body) = send(write("\"1\"")).await;
    assert_eq!(status, 409);
    assert_eq!((&body["expected_version"], &body["current_version"]), (&json!(1), &json!(2)));
    let (status, body) = server.post(path, json!({"status": "stopped", "expected_version": 1})).await;
    assert_eq!((status.as_u16(), &body["error"]), (409, &json!("version_conflict")));
    let (status, body) = server.post(path, json!({"status": "stopped", "expected_version": 2})).await;
    assert_eq!((status.as_u16(), &body["version"]), (200, &json!(3)));
    let (status, _) = send(write("\"3\"").json(&json!({"status": "failed", "expected_version": 2}))).await;
    assert_eq!(status, 422, "header and body disagree");
    let (status, body) = send(write("three")).await;
    assert_eq!((status.as_u16(), &body["field"]), (422, &json!("If-Match")));
    assert_eq!(send(write("*")).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writes_lose_no_update() {
    const WRITERS: usize = 12;
    const ROUNDS: usize = 5;
    let server = Arc::new(Server::start().await);
    server.worker("w", "running").await;
    let conflicts = Arc::new(AtomicUsize::new(0));
    let writers = (0..WRITERS).map(|_| {
        let (server, conflicts) = (Arc::clone(&server), Arc::clone(&conflicts));
        tokio::spawn(async move {
            for _ in 0..ROUNDS {
                loop {
                    let (_, worker) = server.get("/api/internal/workers/w").await;
                    let count = worker["launch_generation"].as_u64().unwrap_or(0);
                    let body = json!({"launch_generation": count + 1, "expected_version": worker["version"]});
                    match server.post("/api/internal/workers/w/status", body).await.0.as_u16() {
                        200 => break,
                        409 => drop(conflicts.fetch_add(1, Ordering::Relaxed)),
                        other => panic!("{other}"),
                    }
                }
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("finished");
    }
    let (_, worker) = server.get("/api/internal/workers/w").await;
    assert_eq!(worker["launch_generation"], json!(WRITERS * ROUNDS));
    assert_eq!(worker["version"], json!(WRITERS * ROUNDS + 1));
    assert!(conflicts.load(Ordering::Relaxed) > 0, "no conflict occurred, so the test proves nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_concurrent_clients_are_served() {
    // Both ends of each connection are in this process.
    let client_count = max_clients(2).min(400);
    let server = Arc::new(Server::start().await);
    let barrier = Arc::new(tokio::sync::Barrier::new(client_count));
    let clients = (0..client_count).map(|n| {
        let (server, barrier) = (Arc::clone(&server), Arc::clone(&barrier));
        tokio::spawn(async move {
            barrier.wait().await;
            let id = format!("w-{n}");
            server.worker(&id, "running").await;
            let (status, worker) = server.post(&format!("/api/internal/workers/{id}/drain"), json!({})).await;
            assert_eq!((status.as_u16(), &worker["version"]), (200, &json!(2)));
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("served");
    }
    let (_, drained) = server.get("/api/internal/workers?status=draining").await;
    assert_eq!(drained.as_array().map(Vec::len), Some(client_count));
}

#[tokio::test]
async fn invalid_input_error_names_field_and_accepted_values() {
    let server = Server::start().await;
    server.worker("w", "running").await;
    let cases = [
        ("/api/internal/workers/w/status", json!({"status": "asleep"}), "status"),
        ("/api/internal/workers/w/status", json!({}), "status"),
        ("/api/internal/workers/w/status", json!({"status": 7}), "status"),
        ("/api/internal/workers/w/status", json!({"status": "running", "launched_at": "noon"}), "launched_at"),
        ("/api/internal/workers/w/status", json!({"metadata": {"launched_at": "noon"}}), "metadata.launched_at"),
        ("/api/internal/workers/w/status", json!({"launch_generation": -1}), "launch_generation"),
        ("/api/internal/workers/w/status", json!({"status": "running", "expected_version": "x"}), "expected_version"),
        ("/api/internal/workers/w/desired-status", json!({}), "desired_status"),
        ("/api/internal/workers/w/desired-status", json!({"desired_status": "draining"}), "desired_status"),
        ("/api/internal/workers/w/ec2-details", json!({"public_ip": 7}), "public_ip"),
        ("/api/internal/workers/w/metrics", json!({}), "(body)"),
        ("/api/internal/workers/w/metrics", json!([1]), "(body)"),
        ("/api/internal/workers/w/detect-idle", json!({"raw_telemetry_events": 1}), "raw_telemetry_events"),
        (
            "/api/internal/workers/w/detect-idle",
            json!({"raw_telemetry_events": [{"category": "start_lab", "timestamp": "x"}]}),
            "raw_telemetry_events[0].timestamp",
        ),
        ("/api/internal/workers/w/license/request-registration", json!({"token": {"a": "hunter2"}}), "token"),
        ("/api/internal/workers/bulk-import", json!({"aws_region": "us-east-1"}), "discovered_instances"),
        ("/api/internal/workers/scale-up", json!({}), "template"),
        ("/api/internal/workers", json!({"id": "a/b"}), "id"),
        ("/api/internal/worker-templates", json!({"name": "x"}), "instance_type"),
        ("/api/internal/lablet-sessions", json!({"timeslot_start": "soon"}), "timeslot_start"),
        ("/api/internal/scaling-audit", json!({}), "action"),
        ("/api/internal/events", json!({}), "type"),
    ];
    for (path, body, field) in cases {
        let (status, response) = server.post(path, body.clone()).await;
        assert_eq!((status.as_u16(), &response["field"]), (422, &json!(field)), "{path} {body}: {response}");
        assert!(response["accepted"].as_str().is_some_and(|accepted| !accepted.is_empty()), "{response}");
        assert!(response["value"].is_string() && !response.to_string().contains("hunter2"), "{response}");
    }
    for query in ["status=asleep", "exclude_statuses=x", "include_terminated=perhaps"] {
        assert_eq!(server.get(&format!("/api/internal/workers?{query}")).await.0, 422, "{query}");
    }
    let path = "/api/internal/lablet-sessions/imminent-deadlines?boot_window_minutes=-1";
    assert_eq!(server.get(path).await.0, 422);
    assert_eq!(server.records.worker("w").expect("exists").version(), 1, "no request changed the record");
}

#[tokio::test]
async fn malformed_bodies_get_a_response() {
    let options = Options { max_body_bytes: 100_000, ..Options::default() };
    let server = Server::start_with(Settings::for_generation(Generation::Extended), options).await;
    server.worker("w", "running").await;
    let path = "/api/internal/workers/w/status";
    let send_body = |body: Vec<u8>| send(server.request(Method::POST, path).body(body));
    assert_eq!(send_body(br#"{"status": "stop"#.to_vec()).await.0, 422);
    assert_eq!(send_body(b"{\"status\": \"\xff\xfe\"}".to_vec()).await.0, 422);
    assert_eq!(send_body(b"\x00\x01\x02".to_vec()).await.0, 422);
    assert_eq!(send_body(vec![b'['; 50_000]).await.0, 422, "deep nesting");
    let (status, body) = send_body(vec![b' '; 200_000]).await;
    assert_eq!((status.as_u16(), &body["error"]), (413, &json!("body_too_large")));
    let (status, body) = server.get("/api/internal/workers/%ff").await;
    assert_eq!(status, 404, "{body}");
    let (status, _) = server.get("/api/internal/workers?status=%ff").await;
    assert!(status == 422 || status == 200, "{status}");
    let (status, body) = server.get("/api/internal/elsewhere").await;
    assert_eq!((status.as_u16(), &body["error"]), (404, &json!("no_such_path")));
    let (status, body) = send(server.request(Method::PATCH, "/api/internal/workers/w")).await;
    assert_eq!((status.as_u16(), &body["error"]), (405, &json!("method_not_allowed")));
    assert_eq!(server.get("/api/internal/workers/w").await.0, 200);
}

#[tokio::test]
async fn disallowed_states_are_409() {
    let server = Server::start().await;
    server.worker("w", "stopped").await;
    server.worker("x", "terminated").await;
    server.post("/api/internal/lablet-sessions", json!({"id": "s", "status": "expired"})).await;
    for (path, body) in [
        ("/api/internal/workers/w/drain?reason=scale_down&requested_by=me", json!({})),
        ("/api/v1/workers/w/cancel-drain", json!({})),
        ("/api/internal/workers/x/desired-status", json!({"desired_status": "running"})),
        ("/api/internal/workers", json!({"id": "w"})),
        ("/api/internal/lablet-sessions/s/transition", json!({"status": "running"})),
        ("/api/internal/lablet-sessions/s/schedule", json!({"worker_id": "w"})),
        ("/api/internal/lablet-sessions", json!({"id": "s"})),
    ] {
        let (status, response) = server.post(path, body).await;
        assert_eq!(status, 409, "{path}: {response}");
        assert!(response["detail"].is_string(), "{response}");
    }
}

#[tokio::test]
async fn workers_are_filtered_by_query() {
    let server = Server::start().await;
    for (id, status) in [("a", "running"), ("b", "stopped"), ("c", "terminated"), ("d", "failed")] {
        server.worker(id, status).await;
    }
    server.post("/api/internal/workers", json!({"id": "e", "status": "running", "aws_region": "eu-west-1"})).await;
    for (query, expected) in [
        ("", "a b d e"),
        ("?status=RUNNING", "a e"),
        ("?status=running&status=stopped", "a b e"),
        ("?status=terminated", "c"),
        ("?include_terminated=true", "a b c d e"),
        ("?exclude_statuses=running,failed", "b"),
        ("?exclude_statuses=terminated&include_terminated=true", "a b d e"),
        ("?aws_region=eu-west-1", "e"),
        ("?aws_region=", "a b d e"),
    ] {
        let (_, workers) = server.get(&format!("/api/internal/workers{query}")).await;
        let ids: Vec<_> =
            workers.as_array().expect("a list").iter().filter_map(|worker| worker["id"].as_str()).collect();
        assert_eq!(ids.join(" "), expected, "{query}");
    }
}

#[tokio::test]
async fn faults_replace_follow_or_drop_the_response() {
    let turn = Arc::new(AtomicUsize::new(0));
    let middleware = Middleware::from_fn(move |request| {
        if request.operation != "drain_worker" {
            return None;
        }
        assert_eq!((request.subject().as_deref(), request.service), (Some("w"), Service::ControlPlane));
        match turn.fetch_add(1, Ordering::Relaxed) {
            0 => Some(Fault::Respond(reqwest::StatusCode::SERVICE_UNAVAILABLE.into_response())),
            1 => Some(Fault::Reset),
            2 => Some(Fault::Delay(Duration::from_millis(1), WaitOn::Real)),
            3 => Some(Fault::ReplaceResponse(reqwest::StatusCode::BAD_GATEWAY.into_response())),
            _ => None,
        }
    });
    let server = Server::start_with(
        Settings::for_generation(Generation::Extended),
        Options { middleware, ..Options::default() },
    )
    .await;
    server.worker("w", "running").await;
    let drain = || server.request(Method::POST, "/api/internal/workers/w/drain").send();
    let status = || server.records.worker("w").expect("exists").status().to_owned();
    assert_eq!(drain().await.expect("a response").status(), 503);
    assert!(drain().await.is_err(), "the connection ends");
    assert_eq!(status(), "running");
    assert_eq!(drain().await.expect("a response").status(), 200);
    server.post("/api/v1/workers/w/cancel-drain", json!({"cancelled_by": "ops"})).await;
    assert_eq!(drain().await.expect("a response").status(), 502);
    assert_eq!(status(), "draining", "executed, response lost");
}

#[tokio::test]
async fn ten_thousand_records_are_listed_and_counted() {
    let server = Server::start().await;
    let instances: Vec<_> = (0..10_000).map(|n| json!({"instance_id": format!("i-{n}"), "state": "running"})).collect();
    let body = json!({"aws_region": "us-east-1", "discovered_instances": instances});
    let (status, result) = server.post("/api/internal/workers/bulk-import", body).await;
    assert_eq!((status.as_u16(), &result["total_imported"]), (200, &json!(10_000)));
    let (_, workers) = server.get("/api/internal/workers?status=running").await;
    assert_eq!(workers.as_array().map(Vec::len), Some(10_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_concurrent_clients_lose_no_update() {
    const WORKERS: usize = 100;
    // The same number of clients for each worker; 1,000 in all unless the limit of open files is low.
    let client_count = (max_clients(2) / WORKERS).max(2) * WORKERS;
    let server = Arc::new(Server::start().await);
    for number in 0..WORKERS {
        server.worker(&format!("w-{number}"), "running").await;
    }
    let barrier = Arc::new(tokio::sync::Barrier::new(client_count));
    let clients: Vec<_> = (0..client_count)
        .map(|number| {
            let (server, barrier) = (Arc::clone(&server), Arc::clone(&barrier));
            tokio::spawn(async move {
                let path = format!("/api/internal/workers/w-{}", number % WORKERS);
                barrier.wait().await;
                // As a controller does: read, decide, write conditionally, and retry after a conflict.
                let mut conflicts = 0;
                loop {
                    let (_, record) = server.get(&path).await;
                    let count = record["metadata"]["count"].as_u64().unwrap_or(0);
                    let body = json!({"expected_version": record["version"], "metadata": {"count": count + 1}});
                    match server.post(&format!("{path}/status"), body).await {
                        (StatusCode::OK, _) => return conflicts,
                        (StatusCode::CONFLICT, _) => conflicts += 1,
                        (status, body) => panic!("{status}: {body}"),
                    }
                }
            })
        })
        .collect();
    let mut conflicts = 0;
    for client in clients {
        conflicts += client.await.expect("joined");
    }
    assert!(conflicts > 0, "no conflict occurred, so the test proves nothing");
    for number in 0..WORKERS {
        let worker = server.records.worker(&format!("w-{number}")).expect("exists");
        let count = worker.get("metadata").and_then(|metadata| metadata["count"].as_u64());
        assert_eq!(count, Some((client_count / WORKERS) as u64), "w-{number}");
        assert_eq!(worker.version(), 1 + (client_count / WORKERS) as u64);
    }
}

#[tokio::test]
async fn session_expires_once() {
    let server = Server::start().await;
    server.worker("w", "running").await;
    let sessions = "/api/internal/lablet-sessions";
    server.post(sessions, json!({"id": "s", "worker_id": "w", "status": "running"})).await;
    let (status, session) =
        server.post(&format!("{sessions}/s/desired-status"), json!({"desired_status": "STOPPED"})).await;
    assert_eq!((status.as_u16(), &session["desired_status"]), (200, &json!("stopped")));
    for (body, expected) in [(json!({}), 422), (json!({"desired_status": "asleep"}), 422)] {
        assert_eq!(server.post(&format!("{sessions}/s/desired-status"), body).await.0.as_u16(), expected);
    }
    for already in [false, true] {
        let (status, session) = server.post(&format!("{sessions}/s/expire"), json!({"reason": "over"})).await;
        assert_eq!((status.as_u16(), &session["status"]), (200, &json!("expired")));
        assert_eq!(session["already_expired"], already);
    }
    let (status, refusal) = server.post(&format!("{sessions}/s/desired-status"), json!({"desired_status": null})).await;
    assert_eq!((status.as_u16(), &refusal["current_state"]), (409, &json!("expired")));
    server.post(sessions, json!({"id": "t", "status": "stopped"})).await;
    assert_eq!(server.post(&format!("{sessions}/t/expire"), json!({})).await.0, 409, "it ended in another way");
    assert_eq!(server.post(&format!("{sessions}/missing/expire"), json!({})).await.0, 404);
    assert_eq!(server.post(sessions, json!({"id": "a/b"})).await.0, 422, "an id is part of a path");
    server.post(sessions, json!({"id": "u", "status": "RUNNING"})).await;
    let (_, found) = server.get(&format!("{sessions}?status=running")).await;
    assert_eq!(found[0]["id"], "u", "states are compared in any case");
}
