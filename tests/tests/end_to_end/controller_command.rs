//! The controller command: arguments, output, exit codes and signals.

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

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Complete environment of a command.
pub(crate) type Environment = BTreeMap<String, String>;

fn command(arguments: &[&str], environment: &Environment) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_worker-controller-under-test"));
    // Without a region the AWS SDK would query the instance metadata service.
    command.args(arguments).env_clear().env("AWS_REGION", "us-east-1").envs(environment).stdin(Stdio::null());
    command
}

pub(crate) async fn run(arguments: &[&str], environment: &Environment) -> Output {
    let mut command = command(arguments, environment);
    tokio::task::spawn_blocking(move || command.output().expect("it runs")).await.expect("no panic")
}

pub(crate) fn with(environment: &Environment, variables: &[(&str, &str)]) -> Environment {
    let more = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    environment.clone().into_iter().chain(more).collect()
}

pub(crate) fn set(variables: &[(&str, &str)]) -> Environment {
    with(&Environment::new(), variables)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Starts a cloud on the real clock without instance delays. Returns it with the environment of a controller.
pub(crate) async fn cloud(scenario: Option<&str>) -> (FakeCloud, Environment) {
    cloud_with_pace(Pace::Real, scenario).await
}

async fn cloud_with_pace(pace: Pace, scenario: Option<&str>) -> (FakeCloud, Environment) {
    let scenario = scenario.map(|name| Scenario::find(name).expect("a built-in scenario"));
    let cloud = FakeCloud::builder().pace(pace).delays(Delays::none()).scenario(scenario).start().await;
    let cloud = cloud.expect("started");
    let environment = environment(&cloud);
    (cloud, environment)
}

/// The environment of a command that uses a cloud.
pub(crate) fn environment(cloud: &FakeCloud) -> Environment {
    let Value::Object(variables) = cloud.endpoints().environment() else { panic!("an object") };
    variables.into_iter().map(|(name, value)| (name, value.as_str().expect("text").to_owned())).collect()
}

pub(crate) fn writes(cloud: &FakeCloud) -> Vec<String> {
    let reads = ["list_", "get_", "idle_status", "imminent_deadlines", "health", "Describe", "Get", "List", "Range"];
    let quiet = ["Watch", "authenticate", "system_", "labs", "licensing", "telemetry", "simulation_stats"];
    let changes = |operation: &str| !reads.iter().chain(&quiet).any(|read| operation.starts_with(read));
    let requests = cloud.requests(&RequestFilter::default());
    let outside_cml = requests.iter().filter(|request| request.service != Service::Cml);
    outside_cml.filter(|request| changes(&request.operation)).map(ToString::to_string).collect()
}

/// A controller process that runs until it is terminated.
pub(crate) struct Running {
    child: Child,
    pub(crate) port: u16,
    log: mpsc::Receiver<String>,
    lines: Vec<String>,
}

impl Running {
    /// Starts a controller without a startup delay, and waits until its admin server listens.
    pub(crate) fn start(environment: &Environment) -> Self {
        let environment =
            with(environment, &[("ADMIN_PORT", "0"), ("STARTUP_RECONCILE_DELAY", "0"), ("LCM_LOG_FORMAT", "json")]);
        let mut child = command(&[], &environment).stderr(Stdio::piped()).spawn().expect("it starts");
        let (sender, log) = mpsc::channel();
        let lines = BufReader::new(child.stderr.take().expect("stderr")).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut running = Self { child, port: 0, log, lines: Vec::new() };
        let line = running.wait_for_log("the admin server listens");
        let address = line["address"].as_str().expect("an address").to_owned();
        running.port = address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        running
    }

    /// Waits for a log line that contains a text.
    pub(crate) fn wait_for_log(&mut self, expected: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.log.recv_timeout(left) else {
                panic!("never logged {expected:?}:\n{}", self.lines.join("\n"));
            };
            self.lines.push(line.clone());
            if line.contains(expected) {
                return serde_json::from_str(&line).expect("JSON");
            }
        }
    }

    fn request(&self, method: &str, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            .expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        let (head, body) = response.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, body.to_owned())
    }

    pub(crate) fn wait_until_ready(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.request("GET", "/readyz").0 != 200 {
            assert!(Instant::now() < deadline, "not ready in time");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn json(&self, path: &str) -> Value {
        let (status, body) = self.request("GET", path);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).expect("JSON")
    }

    /// Sends SIGTERM and waits for the end. Returns the exit code and the log.
    pub(crate) fn terminate(mut self) -> (Option<i32>, Vec<String>) {
        let sent = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child process") {
                break status;
            }
            assert!(Instant::now() < deadline, "the controller does not end");
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut lines = std::mem::take(&mut self.lines);
        lines.extend(self.log.iter());
        (status.code(), lines)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test]
async fn help_describes_options_and_exit_codes() {
    let help = run(&["--help"], &Environment::new()).await;
    let stdout = text(&help.stdout);
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
        assert!(stdout.contains(part), "{part} is missing:\n{stdout}");
    }
    let version = run(&["--version"], &Environment::new()).await;
    assert!(text(&version.stdout).starts_with("worker-controller "), "{}", text(&version.stdout));
    let unknown = run(&["--onse"], &Environment::new()).await;
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("'--once'"), "{}", text(&unknown.stderr));
}

#[tokio::test]
async fn print_settings_shows_sources_and_hides_secrets() {
    let environment = set(&[
        ("MIN_WORKERS", "3"),
        ("CONTROL_PLANE_API_KEY", "hunter2"),
        ("ETCD_PASSWORD", "hunter2"),
        ("ETCD_USERNAME", "lcm"),
        ("CML_DEFAULT_PASSWORD", "hunter2"),
        ("EVENT_SINK_URL", "https://lcm:hunter2@sink.example/?key=hunter2"),
    ]);
    let printed = run(&["--print-settings"], &environment).await;
    let stdout = text(&printed.stdout);
    assert_eq!(printed.status.code(), Some(0));
    let line = stdout.lines().find(|line| line.starts_with("min_workers ")).expect("the setting");
    assert!(line.contains("MIN_WORKERS") && line.contains(" 3 "), "{line}");
    assert!(stdout.contains("reconcile_interval") && stdout.contains("event_sink_url"), "{stdout}");
    assert!(!stdout.contains("hunter2"), "{stdout}");
    assert_eq!(text(&printed.stderr), "");
}

#[tokio::test]
async fn print_settings_explains_the_environment_of_the_original() {
    let environment = set(&[
        ("ETCD_HOST", "etcd"),
        ("ETCD_PORT", "tcp://10.0.0.7:2379"),
        ("LEADER_LEASE_TTL", "20"),
        ("LCM_LEASE_TTL", "30"),
        ("CML_WORKER_API_PASSWORD", "hunter2"),
        ("WORKER_IDLE_TIMEOUT_MINUTES", "45"),
    ]);
    let printed = run(&["--print-settings"], &environment).await;
    let stdout = text(&printed.stdout);
    assert_eq!((printed.status.code(), text(&printed.stderr)), (Some(0), String::new()));
    let line = |name: &str| stdout.lines().find(|line| line.starts_with(name)).expect("the setting");
    assert!(line("etcd_endpoints ").contains("etcd:2379") && line("etcd_endpoints ").contains("ETCD_HOST"), "{stdout}");
    assert!(line("lease_ttl ").contains(" 30 "), "{stdout}");
    assert!(line("cml_default_password ").contains("CML_WORKER_API_PASSWORD"), "{stdout}");
    let (_, warnings) = stdout.split_once("# Warnings\n").expect("warnings");
    for part in [
        "ETCD_PORT is ignored",
        "LCM_LEASE_TTL and LEADER_LEASE_TTL differ; LCM_LEASE_TTL counts",
        "WORKER_IDLE_TIMEOUT_MINUTES is owned by the control plane",
    ] {
        assert!(warnings.contains(part), "{part} is missing:\n{warnings}");
    }
    assert!(!stdout.contains("hunter2"), "{stdout}");
}

#[tokio::test]
async fn closed_pipe_is_not_an_error() {
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
async fn invalid_settings_are_reported_before_any_request() {
    let (cloud, environment) = cloud(None).await;
    let bad = with(&environment, &[("RECONCILE_INTERVAL", "soon"), ("LEASE_TTL", "0")]);
    for arguments in [&[][..], &["--once"], &["--dry-run"], &["--print-settings"]] {
        let refused = run(arguments, &bad).await;
        let stderr = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(r#"RECONCILE_INTERVAL="soon" is not accepted; accepted: seconds"#), "{stderr}");
        assert!(stderr.contains(r#"LEASE_TTL="0""#), "all invalid settings are reported: {stderr}");
        assert_eq!(text(&refused.stdout), "");
    }
    let refused = run(&["--once"], &with(&environment, &[("RUST_LOG", "lcm=loud")])).await;
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains(r#"RUST_LOG="lcm=loud""#), "{}", text(&refused.stderr));
    assert_eq!(cloud.requests(&RequestFilter::default()), [], "requests were sent");
}

#[tokio::test]
async fn dry_run_prints_the_plan_and_changes_nothing() {
    let (cloud, environment) = cloud(Some("drain")).await;
    cloud.update_worker("w-green", json!({"desired_status": "stopped"})).expect("updated");
    let dry = run(&["--dry-run"], &environment).await;
    let stdout = text(&dry.stdout);
    assert_eq!(dry.status.code(), Some(0), "{stdout}{}", text(&dry.stderr));
    assert!(stdout.contains("w-green") && stdout.contains("running → stopping"), "{stdout}");
    assert!(stdout.contains("would report metrics"), "{stdout}");
    assert_eq!(stdout.matches("w-green").count(), 1, "a worker is reconciled once in a dry run: {stdout}");
    assert!(
        stdout.lines().last().is_some_and(|last| last.contains("2 workers") && last.contains("would change")),
        "{stdout}"
    );
    assert_eq!(writes(&cloud), [""; 0]);
}

#[tokio::test]
async fn once_prints_the_effects_and_sets_the_exit_code() {
    let (cloud, environment) = cloud(Some("drain")).await;
    cloud.update_worker("w-green", json!({"desired_status": "stopped"})).expect("updated");
    let done = run(&["--once"], &environment).await;
    let stdout = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{stdout}{}", text(&done.stderr));
    assert!(stdout.contains("✓ stop instance i-"), "{stdout}");
    assert!(cloud.count(Service::Ec2, "StopInstances") >= 1);
    assert!(cloud.worker("w-green").expect("it exists").status().starts_with("stop"));
    assert!(cloud.etcd().leases().is_empty(), "the lease is released");

    let denied = json!({"service": "ec2", "operation": "Describe*", "action": {"kind": "error", "code": "UnauthorizedOperation"}});
    cloud.inject(serde_json::from_value(denied).expect("a rule")).expect("a good rule");
    let failed = run(&["--once"], &environment).await;
    let stdout = text(&failed.stdout);
    assert_eq!(failed.status.code(), Some(4), "{stdout}{}", text(&failed.stderr));
    assert!(stdout.contains("retry") && stdout.contains("UnauthorizedOperation"), "{stdout}");
}

/// Without a file the authorities of the system count, which the variable `SSL_CERT_FILE` names here; beside a file they
/// do not.
#[tokio::test]
async fn cml_ca_file_replaces_the_authorities_of_the_system() {
    let (cloud, environment) = cloud(Some("drain")).await;
    let authority = environment["CML_CA_FILE"].clone();
    let other = std::env::temp_dir().join(format!("lcm-another-authority-{}.pem", std::process::id()));
    let certificate = rcgen::generate_simple_self_signed(vec!["elsewhere".to_owned()]).expect("a certificate").cert;
    std::fs::write(&other, certificate.pem()).expect("written");
    let other = other.to_str().expect("UTF-8");
    let reports = async |environment: &Environment| {
        let before = cloud.count(Service::ControlPlane, "report_cml_data");
        let done = run(&["--once"], environment).await;
        assert_eq!(done.status.code(), Some(0), "{}{}", text(&done.stdout), text(&done.stderr));
        cloud.count(Service::ControlPlane, "report_cml_data") - before
    };
    // CML starts in the background.
    let deadline = Instant::now() + PATIENCE;
    while reports(&environment).await == 0 {
        assert!(Instant::now() < deadline, "CML does not respond");
    }
    let mut by_system = with(&environment, &[("SSL_CERT_FILE", &authority)]);
    by_system.remove("CML_CA_FILE");
    assert!(reports(&by_system).await > 0, "trusted by the system");
    let by_other = with(&by_system, &[("CML_CA_FILE", other)]);
    assert_eq!(reports(&by_other).await, 0, "not trusted beside a file");
    std::fs::remove_file(other).expect("removed");
}

#[tokio::test]
async fn once_does_nothing_while_another_controller_leads() {
    let (cloud, environment) = cloud(Some("drain")).await;
    cloud.update_worker("w-green", json!({"desired_status": "stopped"})).expect("updated");
    let keys = Keys::connect(&cloud.endpoints().etcd_endpoint).await;
    keys.put(ElectionConfig::WORKER_CONTROLLER, "another").await;
    let refused = run(&["--once", "--wait-for-lead", "1"], &environment).await;
    let stderr = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("another controller leads"), "{stderr}");
    assert_eq!(cloud.count(Service::Ec2, "StopInstances"), 0);
    assert_eq!(run(&["--dry-run"], &environment).await.status.code(), Some(0));
}

#[tokio::test]
async fn unreachable_control_plane_exits_with_1() {
    let (_cloud, environment) = cloud(None).await;
    let nowhere =
        with(&environment, &[("CONTROL_PLANE_API_URL", "http://127.0.0.1:1"), ("CONTROL_PLANE_API_RETRIES", "0")]);
    let failed = run(&["--dry-run"], &nowhere).await;
    let stderr = text(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the workers could not be listed"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controller_serves_operators_until_sigterm() {
    let (cloud, environment) = cloud(Some("drain")).await;
    let mut running = Running::start(&environment);
    running.wait_for_log("start-up sweep done");
    assert_eq!(running.json("/healthz"), json!({"alive": true, "status": "healthy"}));
    running.wait_until_ready();
    assert_eq!(running.json("/readyz"), json!({"status": "ready", "ready": true, "role": "leader"}));
    let stats = running.json("/admin/stats");
    assert_eq!((&stats["role"], &stats["last_sweep"]["resources"]), (&json!("leader"), &json!(2)), "{stats}");
    assert_eq!(stats["counters"].as_object().map(serde_json::Map::len), Some(12), "{stats}");
    assert!(stats["fencing_token"].is_i64(), "{stats}");
    let resources = running.json("/admin/resources");
    let names: Vec<_> =
        resources.as_array().into_iter().flatten().filter_map(|it| it["resource_id"].as_str()).collect();
    assert_eq!(names, ["w-blue", "w-green"]);
    let (status, metrics) = running.request("GET", "/metrics");
    assert_eq!(status, 200);
    for metric in ["reconciliation_reconcile_total", "reconciliation_reconcile_duration_seconds", "lcm_lifecycle_total"]
    {
        assert!(metrics.contains(metric), "{metric} is missing");
    }
    assert_eq!(running.request("POST", "/admin/resources/w-blue/reconcile").0, 202);

    // A second controller on the same port exits with an error.
    let port = running.port.to_string();
    let second = run(&[], &with(&environment, &[("ADMIN_PORT", &port)])).await;
    let stderr = text(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains(&format!("127.0.0.1:{port}")) && stderr.contains("in use") && stderr.contains("ADMIN_PORT"),
        "{stderr}"
    );

    let (code, log) = running.terminate();
    assert_eq!(code, Some(0), "{}", log.join("\n"));
    assert!(cloud.etcd().leases().is_empty(), "the lease is released");
    for line in &log {
        let parsed: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}"));
        assert!(parsed["level"].is_string() && parsed["timestamp"].is_string(), "{line}");
    }
    assert!(log.iter().any(|line| line.contains("resigned")), "{}", log.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standby_is_ready_and_leads_after_the_first_stops() {
    let (_cloud, environment) = cloud(Some("drain")).await;
    let mut first = Running::start(&environment);
    first.wait_for_log("start-up sweep done");
    let mut second = Running::start(&environment);
    second.wait_until_ready();
    let ready = second.json("/readyz");
    assert_eq!((&ready["ready"], &ready["role"]), (&json!(true), &json!("standby")));
    assert_eq!(second.json("/admin/stats")["role"], "standby");
    assert_eq!(second.request("POST", "/admin/resources/w-blue/reconcile").0, 409);
    assert_eq!(first.terminate().0, Some(0));
    second.wait_for_log("start-up sweep done");
    assert_eq!(second.json("/admin/stats")["role"], "leader");
    assert_eq!(second.terminate().0, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_keeps_its_lead_on_an_accelerated_clock() {
    let (_cloud, environment) = cloud_with_pace(Pace::Accelerated(60.0), Some("drain")).await;
    let mut running = Running::start(&with(&environment, &[("LEASE_TTL", "15")]));
    running.wait_for_log("start-up sweep done");
    let before = running.json("/admin/stats");
    // Two minutes of the cloud's clock: a lease on that clock would have expired several times.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = running.json("/admin/stats");
    assert_eq!((&after["role"], &after["fencing_token"]), (&json!("leader"), &before["fencing_token"]), "{after}");
    assert_eq!(running.terminate().0, Some(0));
}
