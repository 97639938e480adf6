//! The admin server over real sockets, in front of a controller made of plain data.

#![cfg(feature = "admin")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use lcm_sdk::admin::{
    AdminOptions, AdminServer, AdminSource, ControllerStats, Exposure, LastOutcome, QueueStats, Readiness,
    ResourceState, ResourceStatus, Role, SweepSummary, Triggered, WatchState,
};
use lcm_sdk::controller::shutdown::Shutdown;
use lcm_sdk::lifecycle::{Counter, Counts};
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::{Outcome, Secret, Timestamp};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Generous: a busy machine must not fail these tests.
const PATIENCE: Duration = Duration::from_secs(120);

fn moment() -> Timestamp {
    "2026-02-06T08:00:00Z".parse().expect("a moment")
}

/// A controller of three workers: one fine, one failed, one with an odd name.
#[derive(Default)]
struct Controller {
    phase: AtomicU8,
}

const STARTING: u8 = 0;
const LEADING: u8 = 1;
const STANDING_BY: u8 = 2;
const ENDING: u8 = 3;

impl AdminSource for Controller {
    fn stats(&self) -> ControllerStats {
        ControllerStats {
            instance_id: "pod-7".to_owned(),
            role: Role::Leader,
            fencing_token: Some(42),
            shards: None,
            queue: QueueStats { active: 2, waiting: BTreeMap::from([("changed", 1), ("resync", 3)]) },
            watch: WatchState::GivenUp,
            last_sweep: Some(SweepSummary { started_at: moment(), finished_at: moment(), resources: 3, failed: 1 }),
        }
    }

    fn resources(&self) -> Vec<ResourceState> {
        let state = |id: &str, status, retry_count| ResourceState {
            resource_id: id.to_owned(),
            status,
            retry_count,
            next_retry_at: (retry_count > 0).then(moment),
            last_reconciled_at: None,
            last_outcome: (retry_count > 0).then(|| LastOutcome {
                outcome: Outcome::Retry,
                reason_code: "ec2_unknown".to_owned(),
                reason: "EC2 did not answer".to_owned(),
                at: moment(),
            }),
        };
        vec![
            state("w-1", ResourceStatus::Success, 0),
            state("w-2", ResourceStatus::Failed, 4),
            state("w/3 é", ResourceStatus::InProgress, 0),
        ]
    }

    fn resource(&self, id: &str) -> Option<ResourceState> {
        self.resources().into_iter().find(|resource| resource.resource_id == id)
    }

    fn trigger(&self, id: &str) -> Triggered {
        match (self.phase.load(Ordering::SeqCst), self.resource(id)) {
            (STANDING_BY, _) => Triggered::NotLeading,
            (ENDING, _) => Triggered::ShuttingDown,
            (_, Some(_)) => Triggered::Queued,
            (_, None) => Triggered::NoSuchResource,
        }
    }

    fn readiness(&self) -> Readiness {
        match self.phase.load(Ordering::SeqCst) {
            LEADING => Readiness::Ready,
            STANDING_BY => Readiness::Standby,
            _ => Readiness::NotReady { reason: "the first sweep has looked at 1 of 3 workers".to_owned() },
        }
    }
}

struct Running {
    address: SocketAddr,
    controller: Arc<Controller>,
    telemetry: Telemetry,
    shutdown: Shutdown,
    server: JoinHandle<()>,
}

fn anywhere() -> AdminOptions {
    AdminOptions::at("127.0.0.1:0".parse().expect("an address"))
}

async fn start() -> Running {
    start_with(anywhere()).await
}

async fn start_with(options: AdminOptions) -> Running {
    let server = AdminServer::bind(options).await.expect("a free port");
    let (controller, telemetry, shutdown) = (Arc::new(Controller::default()), Telemetry::default(), Shutdown::new());
    let address = server.local_address();
    let serving = server.run(Arc::clone(&controller) as Arc<dyn AdminSource>, telemetry.clone(), shutdown.clone());
    Running { address, controller, telemetry, shutdown, server: tokio::spawn(serving) }
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Running {
    async fn ask(&self, method: &str, path: &str) -> Answer {
        self.send(method, path, "", "").await
    }

    async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{headers}");
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        let exchange = async {
            let port = self.address.port();
            let stream = TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, port)).await.expect("connected");
            let (mut reading, mut writing) = stream.into_split();
            let mut answer = Vec::new();
            // It may answer before it has heard everything, so a failed write is no verdict; nor is how it ends.
            let _ = tokio::join!(writing.write_all(request.as_bytes()), reading.read_to_end(&mut answer));
            String::from_utf8(answer).expect("text")
        };
        let answer = tokio::time::timeout(PATIENCE, exchange).await.expect("an answer in time");
        let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path).await
    }

    fn enter(&self, phase: u8) {
        self.controller.phase.store(phase, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn the_statistics_hold_the_counters_the_role_the_queue_the_watch_and_the_last_sweep() {
    let running = start().await;
    running.telemetry.count(Counts::default().and(Counter::Provisioned));
    let answer = running.get("/admin/stats").await;
    assert_eq!(answer.status, 200);
    let mut stats = answer.json();
    assert!(stats["uptime_seconds"].as_f64().is_some_and(|seconds| seconds >= 0.0));
    assert_eq!(stats["counters"].as_object().map(serde_json::Map::len), Some(12));
    assert_eq!(stats["counters"]["provisioned_count"], 1);
    for varies in ["uptime_seconds", "counters"] {
        stats.as_object_mut().expect("an object").remove(varies);
    }
    let at = "2026-02-06T08:00:00Z";
    assert_eq!(
        stats,
        json!({
            "version": env!("CARGO_PKG_VERSION"), "instance_id": "pod-7", "role": "leader", "fencing_token": 42,
            "queue": {"active": 2, "waiting": {"changed": 1, "resync": 3}}, "watch": "given_up",
            "last_sweep": {"started_at": at, "finished_at": at, "resources": 3, "failed": 1},
        })
    );
}

#[tokio::test]
async fn resources_are_listed_filtered_limited_and_shown_alone() {
    let running = start().await;
    let ids = |answer: &Answer| -> Vec<String> {
        let list = answer.json();
        let ids =
            list.as_array().expect("a list").iter().map(|one| one["resource_id"].as_str().expect("an id").to_owned());
        ids.collect()
    };
    assert_eq!(ids(&running.get("/admin/resources").await), ["w-1", "w-2", "w/3 é"]);
    assert_eq!(ids(&running.get("/admin/resources?status=failed").await), ["w-2"]);
    let limited = running.get("/admin/resources?limit=1").await;
    assert_eq!(ids(&limited), ["w-1"]);
    assert!(limited.head.contains("x-total-count: 3"), "{}", limited.head);

    let at = "2026-02-06T08:00:00Z";
    assert_eq!(
        running.get("/admin/resources/w-2").await.json(),
        json!({
            "resource_id": "w-2", "status": "FAILED", "retry_count": 4, "next_retry_at": at, "last_reconciled_at": null,
            "last_outcome": {"outcome": "retry", "reason_code": "ec2_unknown", "reason": "EC2 did not answer", "at": at},
        })
    );
    assert_eq!(running.get("/admin/resources/w%2F3%20%C3%A9").await.json()["status"], "IN_PROGRESS");
    let missing = running.get("/admin/resources/w-9").await;
    assert_eq!((missing.status, missing.json()), (404, json!({"error": "no resource \"w-9\" is known here"})));
}

#[tokio::test]
async fn a_question_that_cannot_be_meant_is_refused_with_what_is_accepted() {
    let running = start().await;
    for (question, accepted) in [
        ("status=lost", "PENDING, IN_PROGRESS, SUCCESS, FAILED"),
        ("limit=0", "1 to 10000"),
        ("limit=all", "1 to 10000"),
        ("statsu=failed", "status, limit"),
    ] {
        let answer = running.get(&format!("/admin/resources?{question}")).await;
        let error = answer.json()["error"].as_str().expect("an error").to_owned();
        assert_eq!(answer.status, 400, "{question}");
        assert!(error.contains(accepted), "{question}: {error}");
    }
    for bytes in ["/admin/resources/%ff", "/admin/resources?status=%ff"] {
        let answer = running.get(bytes).await;
        assert_eq!(answer.status, 400, "{bytes}");
        assert!(answer.json()["error"].is_string(), "{bytes}: {}", answer.body);
    }
    let lost = running.get("/admin").await;
    assert_eq!(lost.status, 404);
    assert!(lost.body.contains("/admin/stats"), "{}", lost.body);
    let wrong = running.ask("DELETE", "/admin/stats").await;
    assert_eq!(wrong.status, 405);
    assert!(wrong.json()["error"].is_string());
}

#[tokio::test]
async fn a_look_can_be_asked_for_where_somebody_can_take_it() {
    let running = start().await;
    let asked = running.ask("POST", "/admin/resources/w-1/reconcile").await;
    assert_eq!((asked.status, asked.json()), (202, json!({"resource_id": "w-1", "queued": true})));
    assert_eq!(running.ask("POST", "/admin/resources/w-9/reconcile").await.status, 404);
    assert_eq!(running.get("/admin/resources/w-1/reconcile").await.status, 405, "looking changes nothing");
    running.enter(STANDING_BY);
    let standby = running.ask("POST", "/admin/resources/w-1/reconcile").await;
    assert_eq!(standby.status, 409);
    assert!(standby.body.contains("ask the leader"), "{}", standby.body);
    running.enter(ENDING);
    assert_eq!(running.ask("POST", "/admin/resources/w-1/reconcile").await.status, 503);
}

#[tokio::test]
async fn prometheus_gets_its_text_under_the_type_it_is_written_in() {
    let running = start().await;
    running.telemetry.reconciled(Outcome::Success, Duration::from_millis(3));
    let answer = running.get("/metrics").await;
    let content_type = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(answer.head.contains(content_type), "{}", answer.head);
    assert!(answer.body.contains("reconciliation_reconcile_total{result=\"success\"} 1"), "{}", answer.body);
    assert!(answer.body.ends_with("# EOF\n"));
}

#[tokio::test]
async fn alive_from_the_start_and_ready_after_the_first_sweep_or_as_a_standby() {
    let running = start().await;
    running.enter(STARTING);
    assert_eq!(running.get("/healthz").await.status, 200);
    let starting = running.get("/readyz").await;
    let reason = "the first sweep has looked at 1 of 3 workers";
    assert_eq!((starting.status, starting.json()), (503, json!({"ready": false, "reason": reason})));
    for (phase, role) in [(LEADING, "leader"), (STANDING_BY, "standby")] {
        running.enter(phase);
        let ready = running.get("/readyz").await;
        assert_eq!((ready.status, ready.json()), (200, json!({"ready": true, "role": role})));
    }
}

#[tokio::test]
async fn a_port_in_use_is_said_before_anything_starts() {
    let running = start().await;
    let error = AdminServer::bind(AdminOptions::at(running.address)).await.expect_err("taken").to_string();
    assert!(error.contains(&running.address.to_string()) && error.contains("ADMIN_PORT"), "{error}");
    let elsewhere = AdminOptions::at("192.0.2.1:1".parse().expect("an address"));
    let elsewhere = AdminOptions { exposure: Exposure::Network, ..elsewhere };
    let error = AdminServer::bind(elsewhere).await.expect_err("not ours").to_string();
    assert!(error.contains("192.0.2.1:1") && error.contains("ADMIN_HOST"), "{error}");
}

#[tokio::test]
async fn it_stops_when_asked_even_if_a_client_never_finishes_its_request() {
    let running = start().await;
    let mut slow = TcpStream::connect(running.address).await.expect("connected");
    slow.write_all(b"GET /admin/stats HTTP/1.1\r\nhost:").await.expect("begun");
    assert_eq!(running.get("/healthz").await.status, 200);
    running.shutdown.request();
    tokio::time::timeout(PATIENCE, running.server).await.expect("it ends").expect("no panic");
    assert!(TcpStream::connect(running.address).await.is_err(), "the port is free again");
}

/// Time is paused and runs ahead whenever everyone waits.
#[tokio::test(start_paused = true)]
async fn forgotten_connections_do_not_keep_others_out() {
    let running = start().await;
    let mut forgotten = Vec::new();
    for _ in 0..64 {
        forgotten.push(TcpStream::connect(running.address).await.expect("connected"));
    }
    assert_eq!(running.get("/healthz").await.status, 200);
    drop(forgotten);
}

const ORDER: &str = "/admin/resources/w-1/reconcile";

#[tokio::test]
async fn an_address_that_lets_others_in_is_refused_unless_it_is_meant() {
    for open in ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"] {
        let options = AdminOptions::at(open.parse().expect("an address"));
        let refused = AdminServer::bind(options).await.expect_err(open).to_string();
        assert!(refused.contains("ADMIN_EXPOSE=true"), "{refused}");
    }
    let open =
        AdminOptions { exposure: Exposure::Network, ..AdminOptions::at("0.0.0.0:0".parse().expect("an address")) };
    let running = start_with(open).await;
    assert_eq!(running.get("/admin/stats").await.status, 200, "everybody may look");
    let refused = running.ask("POST", ORDER).await;
    assert_eq!(refused.status, 403);
    assert!(refused.json()["error"].as_str().is_some_and(|error| error.contains("ADMIN_KEY")), "{}", refused.body);
}

#[tokio::test]
async fn where_there_is_a_key_a_change_needs_it_and_a_look_does_not() {
    let open = AdminOptions::at("0.0.0.0:0".parse().expect("an address"));
    for options in [AdminOptions { exposure: Exposure::Network, ..open }, anywhere()] {
        let running = start_with(AdminOptions { key: Some(Secret::from("open-sesame")), ..options }).await;
        for (headers, status) in [
            ("", 401),
            ("x-api-key: open-sesam\r\n", 401),
            ("x-api-key:\r\n", 401),
            ("authorization: Basic open-sesame\r\n", 401),
            ("x-api-key: open-sesame\r\n", 202),
            ("authorization: Bearer open-sesame\r\n", 202),
            // A page that knows the key is one that was given it.
            ("origin: https://console.example\r\nx-api-key: open-sesame\r\n", 202),
        ] {
            let answer = running.send("POST", ORDER, headers, "").await;
            assert_eq!(answer.status, status, "{headers:?}: {}", answer.body);
            assert!(!answer.body.contains("open-sesame"), "{}", answer.body);
        }
        assert_eq!(running.get("/metrics").await.status, 200);
    }
}

#[tokio::test]
async fn a_web_page_changes_nothing_on_the_machine_it_is_looked_at_on() {
    let running = start().await;
    for origin in ["https://evil.example", "null", "http://127.0.0.1:8083"] {
        let refused = running.send("POST", ORDER, &format!("origin: {origin}\r\n"), "").await;
        assert_eq!(refused.status, 403, "{origin}: {}", refused.body);
    }
    assert_eq!(running.ask("POST", ORDER).await.status, 202);
}

#[tokio::test]
async fn what_is_too_long_is_refused_and_the_next_request_is_served() {
    let running = start().await;
    let many: String = (0..200).map(|number| format!("x-{number}: y\r\n")).collect();
    let long = format!("x-long: {}\r\n", "y".repeat(600_000));
    let body = "x".repeat(200_000);
    for (path, headers, body, status) in [
        (ORDER, "", body.as_str(), 413),
        (ORDER, many.as_str(), "", 431),
        (ORDER, long.as_str(), "", 431),
        (&format!("/{}", "p".repeat(100_000)), "", "", 414),
    ] {
        assert_eq!(running.send("POST", path, headers, body).await.status, status);
        assert_eq!(running.get("/healthz").await.status, 200);
    }
    assert_eq!(running.send("POST", ORDER, "", "{}").await.status, 202, "a short body is no trouble");
}
