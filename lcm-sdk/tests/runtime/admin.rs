//! Tests of the admin server over real sockets, with a controller of fixed data.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use lcm_sdk::admin::{
    AdminOptions, AdminServer, AdminSource, ControllerStats, Exposure, ExternalStopStatus, LastOutcome, NotReady,
    Operation, OperationRequest, OutcomeReason, QueueStats, Refusal, ResourceSummary, Role, SweepSummary, Triggered,
    Waiting,
};
use lcm_sdk::controller::{ResourceStatus, Shutdown, WatchState};
use lcm_sdk::lifecycle::{Capabilities, Counter, Counts, ExternalStopPolicy, Support};
use lcm_sdk::ports::NotesStatus;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{RecordProblem, RecordStats};
use lcm_sdk::{Outcome, Secret, Timestamp};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

fn timestamp() -> Timestamp {
    "2026-02-06T08:00:00Z".parse().expect("a timestamp")
}

/// A controller of three workers: one succeeded, one failed, one has special characters in its id.
#[derive(Default)]
struct Controller {
    phase: AtomicU8,
    stuck_for: AtomicU64,
}

const STARTING: u8 = 0;
const LEADING: u8 = 1;
const STANDBY: u8 = 2;
const SHUTTING_DOWN: u8 = 3;

#[async_trait::async_trait]
impl AdminSource for Controller {
    fn stats(&self) -> ControllerStats {
        ControllerStats {
            instance_id: "pod-7".to_owned(),
            role: if self.phase.load(Ordering::SeqCst) == STANDBY { Role::Standby } else { Role::Leader },
            leader: Some("pod-7".to_owned()),
            services: Vec::new(),
            fencing_token: Some(42),
            shards: None,
            queue: QueueStats { active: 2, waiting: BTreeMap::from([("changed", 1), ("resync", 3)]) },
            watch: Some(WatchState::GivenUp),
            last_sweep: Some(SweepSummary {
                started_at: timestamp(),
                finished_at: timestamp(),
                resources: 3,
                failed: 1,
            }),
            records: RecordStats {
                unreadable: 0,
                degraded: 1,
                problems: vec![RecordProblem {
                    worker_id: Some("w-1".to_owned()),
                    managed: true,
                    problems: vec!["bad field".to_owned()],
                }],
            },
            notes: NotesStatus::new("record", "the control plane keeps notes"),
            discovery: None,
            control_plane: Capabilities::all(Support::Unknown),
            external_stop_policy: ExternalStopStatus {
                configured: ExternalStopPolicy::Respect,
                effective: ExternalStopPolicy::Restart,
            },
            untrusted_regions: Vec::new(),
        }
    }

    fn resources(&self) -> Vec<ResourceSummary> {
        let state = |id: &str, status, retry_count| ResourceSummary {
            resource_id: id.to_owned(),
            status,
            waiting: (id == "w-1").then(|| Waiting { priority: "due", requested: true, since: timestamp() }),
            retry_count,
            next_retry_at: (retry_count > 0).then(timestamp),
            last_reconciled_at: None,
            last_outcome: (retry_count > 0).then(|| LastOutcome {
                outcome: Outcome::Retry,
                reason: OutcomeReason { code: "ec2_unknown".to_owned(), sentence: "EC2 did not respond".to_owned() },
                at: timestamp(),
            }),
        };
        vec![
            state("w-1", ResourceStatus::Success, 0),
            state("w-2", ResourceStatus::Failed, 4),
            state("w/3 é", ResourceStatus::InProgress, 0),
        ]
    }

    fn resource(&self, id: &str) -> Option<ResourceSummary> {
        self.resources().into_iter().find(|resource| resource.resource_id == id)
    }

    async fn trigger(&self, id: &str) -> Triggered {
        match (self.phase.load(Ordering::SeqCst), self.resource(id)) {
            (STANDBY, _) => Triggered::NotLeading,
            (SHUTTING_DOWN, _) => Triggered::ShuttingDown,
            (_, Some(_)) => Triggered::Queued,
            (_, None) if id == "w-unread" => Triggered::Unknown("the control plane did not respond".to_owned()),
            (_, None) => Triggered::NoSuchResource,
        }
    }

    fn resign(&self) -> Result<(), Refusal> {
        match self.phase.load(Ordering::SeqCst) {
            LEADING => Ok(()),
            _ => Err(Refusal::NotAllowed("this controller does not lead".to_owned())),
        }
    }

    fn heartbeat_age(&self) -> Option<Duration> {
        Some(Duration::from_secs(self.stuck_for.load(Ordering::SeqCst)))
    }

    async fn operate(&self, id: &str, operation: Operation, request: OperationRequest) -> Result<(), Refusal> {
        match (id, operation, request.requested_by.as_str()) {
            ("w-1", Operation::Drain, "alice") => Ok(()),
            ("w-2", ..) => Err(Refusal::Failed("the control plane did not respond".to_owned())),
            ("w-1", ..) => Err(Refusal::NotAllowed(format!("w-1 is running; {operation} by {}", request.requested_by))),
            _ => Err(Refusal::NoSuchResource(format!("worker {id} does not exist"))),
        }
    }

    fn readiness(&self) -> Result<Role, NotReady> {
        match self.phase.load(Ordering::SeqCst) {
            LEADING => Ok(Role::Leader),
            STANDBY => Ok(Role::Standby),
            _ => Err(NotReady { reason: "the first sweep is under way, 2 workers to go".to_owned() }),
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

fn options(address: &str) -> AdminOptions {
    AdminOptions::new(address.parse().expect("an address"))
}

fn local_options() -> AdminOptions {
    options("127.0.0.1:0")
}

async fn start() -> Running {
    start_with(local_options()).await
}

async fn start_with(options: AdminOptions) -> Running {
    let server = AdminServer::bind(options).await.expect("a free port");
    let (controller, telemetry, shutdown) = (Arc::new(Controller::default()), Telemetry::default(), Shutdown::new());
    let address = server.local_address();
    let serving = server.run(Arc::clone(&controller) as Arc<dyn AdminSource>, telemetry.clone(), shutdown.clone());
    Running { address, controller, telemetry, shutdown, server: tokio::spawn(serving) }
}

struct HttpResponse {
    status: u16,
    head: String,
    body: String,
}

impl HttpResponse {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Running {
    async fn request(&self, method: &str, path: &str) -> HttpResponse {
        self.send(method, path, "", "").await
    }

    async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> HttpResponse {
        self.send_to("localhost", method, path, headers, body).await
    }

    async fn send_to(&self, host: &str, method: &str, path: &str, headers: &str, body: &str) -> HttpResponse {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}");
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        let exchange = async {
            let port = self.address.port();
            let stream = TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, port)).await.expect("connected");
            let (mut reading, mut writing) = stream.into_split();
            let mut response = Vec::new();
            // The server may respond before it has read the request, so errors of the write are ignored.
            let _ = tokio::join!(writing.write_all(request.as_bytes()), reading.read_to_end(&mut response));
            String::from_utf8(response).expect("text")
        };
        let response = tokio::time::timeout(TIMEOUT, exchange).await.expect("a response in time");
        let (head, body) = response.split_once("\r\n\r\n").expect("head and body");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        HttpResponse { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    async fn get(&self, path: &str) -> HttpResponse {
        self.request("GET", path).await
    }

    fn enter(&self, phase: u8) {
        self.controller.phase.store(phase, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn stats_describe_the_controller() {
    let running = start().await;
    running.telemetry.count(Counts::default().and(Counter::Provisioned));
    let response = running.get("/admin/stats").await;
    assert_eq!(response.status, 200);
    let mut stats = response.json();
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
            "leader": "pod-7", "services": [], "longest_in_status": {}, "discovery": null,
            "queue": {"active": 2, "waiting": {"changed": 1, "resync": 3}}, "watch": "given_up",
            "last_sweep": {"started_at": at, "finished_at": at, "resources": 3, "failed": 1},
            "records": {
                "unreadable": 0, "degraded": 1,
                "problems": [{"worker_id": "w-1", "managed": true, "problems": ["bad field"]}],
            },
            "notes": {"place": "record", "reason": "the control plane keeps notes", "url": null, "lost": false},
            "control_plane": {
                "versions": "unknown", "notes": "unknown", "desired_status": "unknown", "cancel_drain": "unknown",
                "session_moves": "unknown", "pause_suppression": "unknown", "audits": "unknown",
            },
            "external_stop_policy": {"configured": "respect", "effective": "restart"},
            "untrusted_regions": [],
        })
    );
}

#[tokio::test]
async fn resources_can_be_filtered_and_limited() {
    let running = start().await;
    let ids = |response: &HttpResponse| -> Vec<String> {
        let list = response.json();
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
            "last_outcome": {"outcome": "retry", "reason": {"code": "ec2_unknown", "sentence": "EC2 did not respond"}, "at": at},
        })
    );
    assert_eq!(running.get("/admin/resources/w%2F3%20%C3%A9").await.json()["status"], "IN_PROGRESS");
    let missing = running.get("/admin/resources/w-9").await;
    assert_eq!((missing.status, missing.json()), (404, json!({"error": "no resource \"w-9\" is known here"})));
}

#[tokio::test]
async fn invalid_requests_report_the_accepted_values() {
    let running = start().await;
    for (query, accepted) in [
        ("status=lost", "PENDING, IN_PROGRESS, SUCCESS, FAILED"),
        ("limit=0", "1 to 10000"),
        ("limit=all", "1 to 10000"),
        ("statsu=failed", "status, limit"),
    ] {
        let response = running.get(&format!("/admin/resources?{query}")).await;
        let error = response.json()["error"].as_str().expect("an error").to_owned();
        assert_eq!(response.status, 400, "{query}");
        assert!(error.contains(accepted), "{query}: {error}");
    }
    for path in ["/admin/resources/%ff", "/admin/resources?status=%ff"] {
        let response = running.get(path).await;
        assert_eq!(response.status, 400, "{path}");
        assert!(response.json()["error"].is_string(), "{path}: {}", response.body);
    }
    let unknown = running.get("/admin").await;
    assert_eq!(unknown.status, 404);
    assert!(unknown.body.contains("/admin/stats"), "{}", unknown.body);
    let wrong = running.request("DELETE", "/admin/stats").await;
    assert_eq!(wrong.status, 405);
    assert!(wrong.json()["error"].is_string());
}

#[tokio::test]
async fn reconcile_request_needs_the_leader() {
    let running = start().await;
    let queued = running.request("POST", "/admin/resources/w-1/reconcile").await;
    assert_eq!((queued.status, queued.json()), (202, json!({"resource_id": "w-1", "queued": true})));
    assert_eq!(running.request("POST", "/admin/resources/w-9/reconcile").await.status, 404);
    assert_eq!(running.get("/admin/resources/w-1/reconcile").await.status, 405, "GET does not queue a reconcile");
    running.enter(STANDBY);
    let standby = running.request("POST", "/admin/resources/w-1/reconcile").await;
    assert_eq!(standby.status, 409);
    assert!(standby.body.contains("ask the leader"), "{}", standby.body);
    running.enter(SHUTTING_DOWN);
    assert_eq!(running.request("POST", "/admin/resources/w-1/reconcile").await.status, 503);
}

#[tokio::test]
async fn workers_are_drained_over_the_admin_server() {
    let running = start().await;
    let by_alice = r#"{"reason": "new image", "requested_by": "alice"}"#;
    let drained = running.send("POST", "/admin/workers/w-1/drain", "", by_alice).await;
    assert_eq!((drained.status, drained.json()), (200, json!({"worker_id": "w-1", "operation": "drain"})));
    let refused = running.request("POST", "/admin/workers/w-1/cancel-drain").await;
    assert_eq!(refused.status, 409);
    assert!(refused.body.contains("w-1 is running; cancel-drain by admin"), "{}", refused.body);
    assert_eq!(running.request("POST", "/admin/workers/w-9/drain").await.status, 404);
    assert_eq!(running.request("POST", "/admin/workers/w-2/drain").await.status, 502);
    assert_eq!(running.send("POST", "/admin/workers/w-1/drain", "", r#"{"why": 1}"#).await.status, 400);
    assert_eq!(running.get("/admin/workers/w-1/drain").await.status, 405);

    let locked = start_with(local_options().with_key(Secret::from("hunter2"))).await;
    assert_eq!(locked.send("POST", "/admin/workers/w-1/drain", "", by_alice).await.status, 401);
    let key = "x-api-key: hunter2\r\n";
    assert_eq!(locked.send("POST", "/admin/workers/w-1/drain", key, by_alice).await.status, 200);
}

#[tokio::test]
async fn metrics_have_the_content_type_of_prometheus() {
    let running = start().await;
    running.telemetry.reconciled(Outcome::Success, Duration::from_millis(3));
    for path in ["/metrics", "/api/metrics"] {
        let response = running.send("GET", path, "accept: text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n", "").await;
        assert!(response.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{}", response.head);
        let body = &response.body;
        assert!(body.contains("# TYPE reconciliation_reconcile_total counter\n"), "{body}");
        assert!(body.contains("\nreconciliation_reconcile_total{result=\"success\"} 1\n"), "{body}");
        assert!(!body.contains("# EOF") && !body.contains("# UNIT"), "{body}");
        let families: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        for sample in body.lines().filter(|line| !line.starts_with('#')) {
            let name = sample.split(['{', ' ']).next().expect("a name");
            let of = |family: &&str| family.split(' ').next().is_some_and(|family| name.starts_with(family));
            assert!(families.iter().any(of), "{sample} has no family");
        }
    }
}

#[tokio::test]
async fn metrics_are_openmetrics_for_clients_that_accept_it() {
    let running = start().await;
    running.telemetry.reconciled(Outcome::Success, Duration::from_millis(3));
    let accept = "accept: application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.3\r\n";
    let response = running.send("GET", "/metrics", accept, "").await;
    let content_type = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(response.head.contains(content_type), "{}", response.head);
    assert!(response.body.contains("# TYPE reconciliation_reconcile counter\n"), "{}", response.body);
    assert!(response.body.ends_with("# EOF\n"));
}

#[tokio::test]
async fn paths_of_the_original_controller_are_served() {
    let running = start().await;
    running.enter(LEADING);
    for (original, ours) in [
        ("/api/health", "/healthz"),
        ("/api/ready", "/readyz"),
        ("/api/admin/fleet", "/admin/resources"),
        ("/api/admin/leader-status", "/admin/leader-status"),
        ("/api/admin/operations", "/admin/operations"),
    ] {
        let (theirs, ours) = (running.get(original).await, running.get(ours).await);
        assert_eq!((theirs.status, theirs.json()), (200, ours.json()), "{original}");
    }
    assert_eq!(running.get("/api/admin/stats").await.json()["instance_id"], "pod-7");
    let info = running.get("/api/info").await.json();
    assert_eq!((&info["version"], &info["role"]), (&json!(env!("CARGO_PKG_VERSION")), &json!("leader")));
    assert_eq!(running.request("POST", "/api/health").await.status, 405);
    assert_eq!(running.get("/api/admin/trigger-reconcile").await.status, 405);
    assert_eq!(
        running.get("/api/admin/leader-status").await.json(),
        json!({"instance_id": "pod-7", "role": "leader", "is_leader": true, "leader": "pod-7", "fencing_token": 42,
            "shards": null})
    );
}

#[tokio::test]
async fn reconcile_of_one_or_all_is_triggered() {
    let running = start().await;
    let trigger = async |body: &str| {
        let response = running.send("POST", "/api/admin/trigger-reconcile", "", body).await;
        (response.status, response.json())
    };
    assert_eq!(trigger("").await, (202, json!({"queued": 3})));
    assert_eq!(trigger("{}").await, (202, json!({"queued": 3})));
    assert_eq!(trigger(r#"{"worker_id": "w-1"}"#).await, (202, json!({"resource_id": "w-1", "queued": true})));
    let missing = trigger(r#"{"worker_id": "w-9"}"#).await;
    assert_eq!(missing, (404, json!({"error": "no resource \"w-9\" is known here"})));
    let unread = trigger(r#"{"worker_id": "w-unread"}"#).await;
    assert_eq!(unread.0, 502, "{}", unread.1);
    assert_eq!(trigger(r#"{"worker": "w-1"}"#).await.0, 400, "a misspelled field must not trigger all");
    running.enter(STANDBY);
    assert_eq!(trigger("").await.0, 409);
}

#[tokio::test]
async fn operations_are_listed_newest_first() {
    let running = start().await;
    let by_alice = r#"{"reason": "new image", "requested_by": "alice"}"#;
    running.send("POST", "/admin/workers/w-1/drain", "", by_alice).await;
    running.send("POST", "/admin/trigger-reconcile", "", r#"{"worker_id": "w-9"}"#).await;
    let mut listed = running.get("/admin/operations").await.json();
    for operation in listed["operations"].as_array_mut().expect("a list") {
        let at = operation.as_object_mut().expect("an object").remove("at");
        assert!(at.is_some_and(|at| at.is_string()));
    }
    let at = "2026-02-06T08:00:00Z";
    assert_eq!(
        listed,
        json!({
            "operations": [
                {"operation": "reconcile", "resource_id": "w-9", "requested_by": "admin", "reason": "operator",
                 "refused": "no resource \"w-9\" is known here"},
                {"operation": "drain", "resource_id": "w-1", "requested_by": "alice", "reason": "new image",
                 "refused": null},
            ],
            "reconciles": [{
                "resource_id": "w-2", "status": "FAILED", "outcome": "retry", "reason": {"code": "ec2_unknown", "sentence": "EC2 did not respond"},
                "at": at,
            }],
        })
    );
    for _ in 0..120 {
        running.request("POST", RECONCILE).await;
    }
    let listed = running.get("/admin/operations").await.json();
    assert_eq!(listed["operations"].as_array().map(Vec::len), Some(100), "the list is bounded");
    running.send("POST", RECONCILE, "", by_alice).await;
    let listed = running.get("/admin/operations").await.json();
    assert_eq!(
        (&listed["operations"][0]["requested_by"], &listed["operations"][0]["reason"]),
        (&json!("alice"), &json!("new image"))
    );
    assert_eq!(running.send("POST", RECONCILE, "", r#"{"why": "x"}"#).await.status, 400);
    assert_eq!(running.get("/admin/operations?limit=x").await.status, 400);
}

#[tokio::test]
async fn resignation_needs_the_lead_and_the_key() {
    let running = start_with(local_options().with_key(Secret::from("hunter2"))).await;
    let path = "/api/admin/resign-leadership";
    assert_eq!(running.request("POST", path).await.status, 401);
    let key = "x-api-key: hunter2\r\n";
    let refused = running.send("POST", path, key, "").await;
    assert_eq!((refused.status, refused.json()), (409, json!({"error": "this controller does not lead"})));
    running.enter(LEADING);
    let resigned = running.send("POST", path, key, "").await;
    assert_eq!((resigned.status, resigned.json()), (202, json!({"resigning": true})));
}

#[tokio::test]
async fn leader_is_ready_after_its_first_sweep() {
    let running = start().await;
    running.enter(STARTING);
    assert_eq!(running.get("/healthz").await.status, 200);
    let starting = running.get("/readyz").await;
    let reason = "the first sweep is under way, 2 workers to go";
    assert_eq!(
        (starting.status, starting.json()),
        (503, json!({"status": "not_ready", "ready": false, "reason": reason}))
    );
    for (phase, role) in [(LEADING, "leader"), (STANDBY, "standby")] {
        running.enter(phase);
        let ready = running.get("/readyz").await;
        assert_eq!((ready.status, ready.json()), (200, json!({"status": "ready", "ready": true, "role": role})));
    }
}

#[tokio::test]
async fn bind_reports_a_port_in_use() {
    let running = start().await;
    let error = AdminServer::bind(AdminOptions::new(running.address)).await.expect_err("a port in use").to_string();
    assert!(error.contains(&running.address.to_string()) && error.contains("ADMIN_PORT"), "{error}");
    let foreign = options("192.0.2.1:1").with_exposure(Exposure::Network);
    let error = AdminServer::bind(foreign).await.expect_err("a foreign address").to_string();
    assert!(error.contains("192.0.2.1:1") && error.contains("ADMIN_HOST"), "{error}");
}

#[tokio::test]
async fn shutdown_does_not_wait_for_slow_clients() {
    let running = start().await;
    let mut slow = TcpStream::connect(running.address).await.expect("connected");
    slow.write_all(b"GET /admin/stats HTTP/1.1\r\nhost:").await.expect("begun");
    assert_eq!(running.get("/healthz").await.status, 200);
    running.shutdown.request();
    tokio::time::timeout(TIMEOUT, running.server).await.expect("it ends").expect("no panic");
    assert!(TcpStream::connect(running.address).await.is_err(), "the port is free again");
}

/// Time is paused and advances whenever all tasks are idle.
#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed() {
    let running = start().await;
    let mut idle = Vec::new();
    for _ in 0..64 {
        idle.push(TcpStream::connect(running.address).await.expect("connected"));
    }
    assert_eq!(running.get("/healthz").await.status, 200);
    drop(idle);
}

const RECONCILE: &str = "/admin/resources/w-1/reconcile";

#[tokio::test]
async fn exposed_address_needs_exposure_network() {
    for open in ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"] {
        let error = AdminServer::bind(options(open)).await.expect_err(open).to_string();
        assert!(error.contains("ADMIN_EXPOSE=true"), "{error}");
    }
    let running = start_with(options("0.0.0.0:0").with_exposure(Exposure::Network)).await;
    assert_eq!(running.get("/admin/stats").await.status, 200, "reads need no key");
    let rejected = running.request("POST", RECONCILE).await;
    assert_eq!(rejected.status, 403);
    assert!(rejected.json()["error"].as_str().is_some_and(|error| error.contains("ADMIN_KEY")), "{}", rejected.body);
}

#[tokio::test]
async fn changes_need_the_key() {
    for options in [options("0.0.0.0:0").with_exposure(Exposure::Network), local_options()] {
        let running = start_with(options.with_key(Secret::from("open-sesame"))).await;
        for (headers, status) in [
            ("", 401),
            ("x-api-key: open-sesam\r\n", 401),
            ("x-api-key:\r\n", 401),
            ("authorization: Basic open-sesame\r\n", 401),
            ("x-api-key: open-sesame\r\n", 202),
            ("authorization: Bearer open-sesame\r\n", 202),
            // A page that sends the key is authorized.
            ("origin: https://console.example\r\nx-api-key: open-sesame\r\n", 202),
        ] {
            let response = running.send("POST", RECONCILE, headers, "").await;
            assert_eq!(response.status, status, "{headers:?}: {}", response.body);
            assert!(!response.body.contains("open-sesame"), "{}", response.body);
        }
        assert_eq!(running.get("/metrics").await.status, 200);
    }
}

#[tokio::test]
async fn web_pages_cannot_make_changes() {
    let running = start().await;
    for origin in ["https://evil.example", "null", "http://127.0.0.1:8083"] {
        let rejected = running.send("POST", RECONCILE, &format!("origin: {origin}\r\n"), "").await;
        assert_eq!(rejected.status, 403, "{origin}: {}", rejected.body);
    }
    assert_eq!(running.request("POST", RECONCILE).await.status, 202);
}

#[tokio::test]
async fn own_page_may_make_changes_on_this_host() {
    let running = start().await;
    let own = format!("localhost:{}", running.address.port());
    for (host, origin, status) in [
        (own.as_str(), format!("http://{own}"), 202),
        (&own, "http://localhost:1".to_owned(), 403),
        // A name that another site made resolve to this host.
        ("evil.example", "http://evil.example".to_owned(), 403),
    ] {
        let response = running.send_to(host, "POST", RECONCILE, &format!("origin: {origin}\r\n"), "").await;
        assert_eq!(response.status, status, "{host} {origin}: {}", response.body);
    }
}

/// Reads of a stream until its first message ends.
async fn first_message(running: &Running) -> (TcpStream, Value) {
    let mut stream = TcpStream::connect(running.address).await.expect("connected");
    stream.write_all(b"GET /admin/stream HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("sent");
    let mut read = Vec::new();
    let message = async {
        loop {
            let text = String::from_utf8_lossy(&read).into_owned();
            if let Some((_, data)) = text.split_once("data: ")
                && let Some((data, _)) = data.split_once("\n\n")
            {
                return serde_json::from_str(data).expect("JSON");
            }
            assert!(text.is_empty() || text.starts_with("HTTP/1.1 200"), "{text}");
            stream.read_buf(&mut read).await.expect("a stream");
        }
    };
    let message = tokio::time::timeout(TIMEOUT, message).await.expect("a message in time");
    (stream, message)
}

#[tokio::test]
async fn stream_begins_with_the_whole_state() {
    let running = start().await;
    running.request("POST", RECONCILE).await;
    let (_stream, message) = first_message(&running).await;
    assert_eq!((&message["full"], &message["clock"]["pace"]), (&json!(true), &json!("real")));
    assert_eq!(message["stats"]["fencing_token"], 42);
    assert_eq!(message["operations"][0]["operation"], "reconcile");
    let at = timestamp().timestamp_millis();
    assert_eq!(
        message["workers"],
        json!({
            "w-1": {"state": "SUCCESS", "retry_count": 0, "waiting": {"priority": "due", "requested": true, "since": at}},
            "w-2": {"state": "FAILED", "retry_count": 4, "next_retry_at": at, "outcome": "retry", "at": at,
                "reason": {"code": "ec2_unknown", "sentence": "EC2 did not respond"}},
            "w/3 é": {"state": "IN_PROGRESS", "retry_count": 0},
        })
    );
}

#[tokio::test]
async fn number_of_streams_is_bounded() {
    let running = start().await;
    let mut open = Vec::new();
    for _ in 0..16 {
        open.push(first_message(&running).await.0);
    }
    let refused = running.send_to("localhost", "GET", "/admin/stream", "", "").await;
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("16 consoles are open"), "{}", refused.body);
    assert_eq!(running.get("/healthz").await.status, 200, "probes are served");
    open.pop();
    let freed = async {
        while running.send_to("localhost", "HEAD", "/admin/stream", "", "").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, freed).await.expect("a closed stream makes room");
}

#[tokio::test]
async fn data_of_the_console_need_the_key_where_it_is_exposed() {
    let exposed = || options("0.0.0.0:0").with_exposure(Exposure::Network);
    let locked = start_with(exposed().with_key(Secret::from("open-sesame"))).await;
    let keyless = start_with(exposed()).await;
    let local = start().await;
    for path in ["/admin/discovery", "/admin/events", "/admin/workers/w-1", "/admin/stream"] {
        assert_eq!(locked.get(path).await.status, 401, "{path}");
        assert_eq!(keyless.get(path).await.status, 403, "{path}");
        assert_eq!(local.send_to("evil.example", "GET", path, "", "").await.status, 403, "{path}");
        assert_eq!(local.send_to("localhost", "GET", path, "origin: null\r\n", "").await.status, 403, "{path}");
    }
    let key = "x-api-key: open-sesame\r\n";
    assert_eq!(locked.send("GET", "/admin/discovery", key, "").await.json(), json!({"runs": []}));
    assert_eq!(local.send_to("127.0.0.1", "GET", "/admin/discovery", "", "").await.json(), json!({"runs": []}));
    for running in [locked, keyless, local] {
        for path in ["/", "/app.js", "/config.json"] {
            let file = running.get(path).await;
            assert_eq!(file.status, 200, "{path} contains no data");
        }
        let page = running.get("/").await;
        assert!(page.head.contains("content-security-policy: default-src 'none'"), "{}", page.head);
        assert!(page.head.contains("content-type: text/html; charset=utf-8\r\n"), "{}", page.head);
    }
}

#[tokio::test]
async fn streams_end_at_shutdown() {
    let running = start().await;
    let (mut stream, _) = first_message(&running).await;
    running.shutdown.request();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut rest)).await;
    ended.expect("it ends").expect("no error");
    tokio::time::timeout(TIMEOUT, running.server).await.expect("it ends").expect("no panic");
}

#[tokio::test]
async fn stuck_run_loop_is_not_healthy() {
    let running = start().await;
    assert_eq!(running.get("/healthz").await.json(), json!({"status": "healthy", "alive": true}));
    running.controller.stuck_for.store(60, Ordering::SeqCst);
    let stuck = running.get("/healthz").await;
    let reason = "the run loop has been stuck for 60 s";
    assert_eq!((stuck.status, stuck.json()), (503, json!({"status": "unhealthy", "alive": false, "reason": reason})));
}

#[tokio::test]
async fn oversized_requests_are_rejected() {
    let running = start().await;
    let many: String = (0..200).map(|number| format!("x-{number}: y\r\n")).collect();
    let long = format!("x-long: {}\r\n", "y".repeat(600_000));
    let body = "x".repeat(200_000);
    for (path, headers, body, status) in [
        (RECONCILE, "", body.as_str(), 413),
        (RECONCILE, many.as_str(), "", 431),
        (RECONCILE, long.as_str(), "", 431),
        (&format!("/{}", "p".repeat(100_000)), "", "", 414),
    ] {
        assert_eq!(running.send("POST", path, headers, body).await.status, status);
        assert_eq!(running.get("/healthz").await.status, 200);
    }
    assert_eq!(running.send("POST", RECONCILE, "", "{}").await.status, 202, "a short body is accepted");
}
