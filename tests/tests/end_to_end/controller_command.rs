//! The worker controller as its operators meet it: a command, its output, its exit code, its signals.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fake_cloud::world::Delays;
use fake_cloud::{FakeCloud, Pace, RequestFilter, Scenario, Service};
use lcm_sdk::controller::ElectionConfig;
use lcm_tests::etcd::Keys;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

/// The environment of a command: nothing but what is said here.
type Environment = BTreeMap<String, String>;

fn command(arguments: &[&str], environment: &Environment) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_worker-controller-under-test"));
    // Without a region the AWS library would go looking for the machine it runs on.
    command.args(arguments).env_clear().env("AWS_REGION", "us-east-1").envs(environment).stdin(Stdio::null());
    command
}

async fn run(arguments: &[&str], environment: &Environment) -> Output {
    let mut command = command(arguments, environment);
    tokio::task::spawn_blocking(move || command.output().expect("it runs")).await.expect("no panic")
}

fn with(environment: &Environment, variables: &[(&str, &str)]) -> Environment {
    let more = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    environment.clone().into_iter().chain(more).collect()
}

fn set(variables: &[(&str, &str)]) -> Environment {
    with(&Environment::new(), variables)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// A world at real pace in which instances take no time, and the environment that leads there.
async fn cloud(scenario: Option<&str>) -> (FakeCloud, Environment) {
    cloud_at(Pace::Real, scenario).await
}

async fn cloud_at(pace: Pace, scenario: Option<&str>) -> (FakeCloud, Environment) {
    let scenario = scenario.map(|name| Scenario::find(name).expect("a ready scenario"));
    let cloud = FakeCloud::builder().pace(pace).delays(Delays::none()).scenario(scenario).start().await;
    let cloud = cloud.expect("it starts");
    let Value::Object(variables) = cloud.endpoints().environment() else { panic!("an object") };
    let variables = variables.into_iter().map(|(name, value)| (name, value.as_str().expect("text").to_owned()));
    (cloud, variables.collect())
}

fn writes(cloud: &FakeCloud) -> Vec<String> {
    let reads = ["list_", "get_", "idle_status", "imminent_deadlines", "health", "Describe", "Get", "List", "Range"];
    let quiet = ["Watch", "authenticate", "system_", "labs", "licensing", "telemetry", "simulation_stats"];
    let changes = |operation: &str| !reads.iter().chain(&quiet).any(|read| operation.starts_with(read));
    let requests = cloud.requests(&RequestFilter::default());
    let outside_cml = requests.iter().filter(|request| request.service != Service::Cml);
    outside_cml.filter(|request| changes(&request.operation)).map(ToString::to_string).collect()
}

/// A controller that runs until it is told to stop.
struct Running {
    child: Child,
    port: u16,
    log: mpsc::Receiver<String>,
    heard: Vec<String>,
}

impl Running {
    /// Starts it with quick habits, and waits until its admin server listens.
    fn start(environment: &Environment) -> Self {
        let quick =
            with(environment, &[("ADMIN_PORT", "0"), ("STARTUP_RECONCILE_DELAY", "0"), ("LCM_LOG_FORMAT", "json")]);
        let mut child = command(&[], &quick).stderr(Stdio::piped()).spawn().expect("it starts");
        let (sender, log) = mpsc::channel();
        let lines = BufReader::new(child.stderr.take().expect("stderr")).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut running = Self { child, port: 0, log, heard: Vec::new() };
        let line = running.hear("the admin server listens");
        let address = line["address"].as_str().expect("an address").to_owned();
        running.port = address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        running
    }

    /// Waits for a line of its log.
    fn hear(&mut self, wanted: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.log.recv_timeout(left) else {
                panic!("never logged {wanted:?}:\n{}", self.heard.join("\n"));
            };
            self.heard.push(line.clone());
            if line.contains(wanted) {
                return serde_json::from_str(&line).expect("JSON");
            }
        }
    }

    fn ask(&self, method: &str, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, body.to_owned())
    }

    fn json(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).expect("JSON")
    }

    /// Tells it to end, and waits until it has.
    fn terminate(mut self) -> (Option<i32>, Vec<String>) {
        let told = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().expect("kill runs");
        assert!(told.success());
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut heard = std::mem::take(&mut self.heard);
        heard.extend(self.log.iter());
        (status.code(), heard)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already, which is as well.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test]
async fn help_says_what_it_is_for_how_to_try_it_and_what_its_exit_codes_mean() {
    let help = run(&["--help"], &Environment::new()).await;
    let told = text(&help.stdout);
    assert_eq!(help.status.code(), Some(0));
    for part in [
        "records in agreement",
        "--print-settings",
        "fake-cloud --ephemeral",
        "--once",
        "--dry-run",
        "Exit codes: 0",
        "4 a sweep",
    ] {
        assert!(told.contains(part), "{part} is missing:\n{told}");
    }
    let version = run(&["--version"], &Environment::new()).await;
    assert!(text(&version.stdout).starts_with("worker-controller "), "{}", text(&version.stdout));
    let unknown = run(&["--onse"], &Environment::new()).await;
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("'--once'"), "{}", text(&unknown.stderr));
}

#[tokio::test]
async fn print_settings_shows_every_setting_where_it_came_from_and_no_secret() {
    let environment = set(&[
        ("MIN_WORKERS", "3"),
        ("CONTROL_PLANE_API_KEY", "hunter2"),
        ("ETCD_PASSWORD", "hunter2"),
        ("ETCD_USERNAME", "lcm"),
        ("CML_DEFAULT_PASSWORD", "hunter2"),
        ("EVENT_SINK_URL", "https://lcm:hunter2@sink.example/?key=hunter2"),
    ]);
    let printed = run(&["--print-settings"], &environment).await;
    let told = text(&printed.stdout);
    assert_eq!(printed.status.code(), Some(0));
    let line = told.lines().find(|line| line.starts_with("min_workers ")).expect("the setting");
    assert!(line.contains("MIN_WORKERS") && line.contains(" 3 "), "{line}");
    assert!(told.contains("reconcile_interval") && told.contains("event_sink_url"), "{told}");
    assert!(!told.contains("hunter2"), "{told}");
    assert_eq!(text(&printed.stderr), "");
}

#[tokio::test]
async fn whoever_reads_only_the_first_lines_hears_no_complaint() {
    let mut child = command(&["--print-settings"], &Environment::new())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), String::new()));
}

#[tokio::test]
async fn a_bad_setting_is_named_with_its_value_and_what_is_accepted_before_anything_starts() {
    let (cloud, environment) = cloud(None).await;
    let bad = with(&environment, &[("RECONCILE_INTERVAL", "soon"), ("LEASE_TTL", "0")]);
    for arguments in [&[][..], &["--once"], &["--dry-run"], &["--print-settings"]] {
        let refused = run(arguments, &bad).await;
        let told = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{told}");
        assert!(told.contains(r#"RECONCILE_INTERVAL="soon" is not accepted; accepted: seconds"#), "{told}");
        assert!(told.contains(r#"LEASE_TTL="0""#), "all of them at once: {told}");
        assert_eq!(text(&refused.stdout), "");
    }
    let refused = run(&["--once"], &with(&environment, &[("RUST_LOG", "lcm=loud")])).await;
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains(r#"RUST_LOG="lcm=loud""#), "{}", text(&refused.stderr));
    assert_eq!(cloud.requests(&RequestFilter::default()), [], "nobody was asked anything");
}

#[tokio::test]
async fn a_dry_run_shows_what_would_be_done_and_changes_nothing() {
    let (cloud, environment) = cloud(Some("drain")).await;
    cloud.update_worker("w-green", json!({"desired_status": "stopped"})).expect("an operator's wish");
    let dry = run(&["--dry-run"], &environment).await;
    let told = text(&dry.stdout);
    assert_eq!(dry.status.code(), Some(0), "{told}{}", text(&dry.stderr));
    assert!(told.contains("w-green") && told.contains("running → stopping"), "{told}");
    assert!(told.contains("would report metrics"), "{told}");
    assert_eq!(told.matches("w-green").count(), 1, "nothing is done, so nothing is looked at twice: {told}");
    assert!(
        told.lines().last().is_some_and(|last| last.contains("2 workers") && last.contains("would change")),
        "{told}"
    );
    assert_eq!(writes(&cloud), [""; 0]);
}

#[tokio::test]
async fn once_prints_what_was_done_and_says_by_its_exit_code_whether_all_is_well() {
    let (cloud, environment) = cloud(Some("drain")).await;
    cloud.update_worker("w-green", json!({"desired_status": "stopped"})).expect("an operator's wish");
    let done = run(&["--once"], &environment).await;
    let told = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{told}{}", text(&done.stderr));
    assert!(told.contains("✓ stop instance i-"), "{told}");
    assert!(cloud.count(Service::Ec2, "StopInstances") >= 1);
    assert!(cloud.worker("w-green").expect("it exists").status().starts_with("stop"));
    assert!(cloud.etcd().leases().is_empty(), "the lease is given up");

    let denied = json!({"service": "ec2", "operation": "Describe*", "action": {"kind": "error", "code": "UnauthorizedOperation"}});
    cloud.inject(serde_json::from_value(denied).expect("a rule")).expect("a good rule");
    let left = run(&["--once"], &environment).await;
    let told = text(&left.stdout);
    assert_eq!(left.status.code(), Some(4), "{told}{}", text(&left.stderr));
    assert!(told.contains("retry") && told.contains("UnauthorizedOperation"), "{told}");
}

#[tokio::test]
async fn where_another_controller_leads_once_leaves_everything_alone_and_a_dry_run_still_looks() {
    let (cloud, environment) = cloud(Some("drain")).await;
    cloud.update_worker("w-green", json!({"desired_status": "stopped"})).expect("an operator's wish");
    let keys = Keys::of(&cloud.endpoints().etcd_endpoint).await;
    keys.put(ElectionConfig::WORKER_CONTROLLER, "somebody").await;
    let refused = run(&["--once", "--wait-for-lead", "1"], &environment).await;
    let told = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(3), "{told}");
    assert!(told.contains("another controller leads"), "{told}");
    assert_eq!(cloud.count(Service::Ec2, "StopInstances"), 0);
    assert_eq!(run(&["--dry-run"], &environment).await.status.code(), Some(0));
}

#[tokio::test]
async fn a_control_plane_that_cannot_be_reached_is_exit_code_1_and_said() {
    let (_cloud, environment) = cloud(None).await;
    let nowhere =
        with(&environment, &[("CONTROL_PLANE_API_URL", "http://127.0.0.1:1"), ("CONTROL_PLANE_API_RETRIES", "0")]);
    let failed = run(&["--dry-run"], &nowhere).await;
    let told = text(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{told}");
    assert!(told.contains("the workers could not be listed"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_runs_answers_operators_logs_json_and_stops_cleanly_when_told_to() {
    let (cloud, environment) = cloud(Some("drain")).await;
    let mut running = Running::start(&environment);
    running.hear("start-up sweep done");
    assert_eq!(running.json("/healthz"), json!({"alive": true}));
    let deadline = Instant::now() + PATIENCE;
    while running.ask("GET", "/readyz").0 != 200 {
        assert!(Instant::now() < deadline, "never ready");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(running.json("/readyz"), json!({"ready": true, "role": "leader"}));
    let stats = running.json("/admin/stats");
    assert_eq!((&stats["role"], &stats["last_sweep"]["resources"]), (&json!("leader"), &json!(2)), "{stats}");
    assert_eq!(stats["counters"].as_object().map(serde_json::Map::len), Some(12), "{stats}");
    assert!(stats["fencing_token"].is_i64(), "{stats}");
    let resources = running.json("/admin/resources");
    let names: Vec<_> =
        resources.as_array().into_iter().flatten().filter_map(|it| it["resource_id"].as_str()).collect();
    assert_eq!(names, ["w-blue", "w-green"]);
    let (status, metrics) = running.ask("GET", "/metrics");
    assert_eq!(status, 200);
    for metric in ["reconciliation_reconcile_total", "reconciliation_reconcile_duration_seconds", "lcm_lifecycle_total"]
    {
        assert!(metrics.contains(metric), "{metric} is missing");
    }
    assert_eq!(running.ask("POST", "/admin/resources/w-blue/reconcile").0, 202);

    // A second one on the same port says what is wrong instead of competing.
    let port = running.port.to_string();
    let second = run(&[], &with(&environment, &[("ADMIN_PORT", &port)])).await;
    let told = text(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{told}");
    assert!(
        told.contains(&format!("127.0.0.1:{port}")) && told.contains("in use") && told.contains("ADMIN_PORT"),
        "{told}"
    );

    let (code, log) = running.terminate();
    assert_eq!(code, Some(0), "{}", log.join("\n"));
    assert!(cloud.etcd().leases().is_empty(), "the lease is given up");
    for line in &log {
        let parsed: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}"));
        assert!(parsed["level"].is_string() && parsed["timestamp"].is_string(), "{line}");
    }
    assert!(log.iter().any(|line| line.contains("resigned")), "{}", log.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_controller_stands_by_ready_and_leads_when_the_first_is_told_to_stop() {
    let (_cloud, environment) = cloud(Some("drain")).await;
    let mut first = Running::start(&environment);
    first.hear("start-up sweep done");
    let mut second = Running::start(&environment);
    assert_eq!(second.json("/readyz"), json!({"ready": true, "role": "standby"}));
    assert_eq!(second.json("/admin/stats")["role"], "standby");
    assert_eq!(second.ask("POST", "/admin/resources/w-blue/reconcile").0, 409);
    assert_eq!(first.terminate().0, Some(0));
    second.hear("start-up sweep done");
    assert_eq!(second.json("/admin/stats")["role"], "leader");
    assert_eq!(second.terminate().0, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_world_that_hurries_a_leader_keeps_its_lead() {
    let (_cloud, environment) = cloud_at(Pace::Accelerated(60.0), Some("drain")).await;
    let mut running = Running::start(&with(&environment, &[("LEASE_TTL", "15")]));
    running.hear("start-up sweep done");
    let before = running.json("/admin/stats");
    // Two minutes over there: a lease that hurried along would have ended many times.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = running.json("/admin/stats");
    assert_eq!((&after["role"], &after["fencing_token"]), (&json!("leader"), &before["fencing_token"]), "{after}");
    assert_eq!(running.terminate().0, Some(0));
}
