//! The `fake-cloud` command.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

use fake_cloud::Scenario;
use fake_cloud::control_plane::Records;
use fake_cloud::world::{Settings, World};
use serde_json::Value;

fn fake_cloud(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fake-cloud"));
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    fake_cloud(arguments).output().expect("ran")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// A cloud in its own process, which ends with the test.
struct Running {
    child: Child,
    endpoints: Value,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut child = fake_cloud(&["--ephemeral", "--json"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
        let endpoints = serde_json::from_str(&line).expect("one line of JSON");
        Self { child, endpoints }
    }

    async fn get(&self, url: &str, path: &str) -> reqwest::Response {
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let base = self.endpoints[url].as_str().expect("an address");
        client.get(format!("{base}{path}")).send().await.expect("a response")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn help_contains_the_first_steps() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    let help = text(&output.stdout);
    for text in [
        "Local fakes of EC2",
        "fake-cloud --clock x60",
        "--scenario",
        "--list-scenarios",
        "/_fake/requests?service=control-plane",
        "[default: 4566]",
        "[default: 2379]",
        "[default: 8080]",
        "[default: 8443]",
        "Exit codes:",
    ] {
        assert!(help.contains(text), "{text:?} is not in:\n{help}");
    }
    let widest = help.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(120), "a line of {widest:?} characters does not fit a terminal:\n{help}");
}

#[test]
fn scenario_in_help_is_valid() {
    let help = text(&run(&["--help"]).stdout);
    let example: Vec<&str> = help
        .lines()
        .skip_while(|line| !line.starts_with("Format of a scenario file"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .map(|line| line.strip_prefix("  ").expect("indented"))
        .collect();
    let scenario = Scenario::parse("--help", &example.join("\n")).expect("a valid scenario");
    let world = World::new(Settings::default());
    scenario.settle(&world, &Records::new(world.clock().clone())).expect("a scenario that settles");
    assert_eq!(world.faults().list().len(), 1);
}

#[test]
fn port_in_use_prints_one_line_and_exits_with_1() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let free = ["--etcd-port", "0", "--control-plane-port", "0", "--cml-port", "0"];
    let output = run(&[&["--aws-port", &port], &free[..]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let output = text(&output.stderr);
    assert_eq!(output.lines().count(), 1, "{output}");
    assert!(output.starts_with(&format!("fake-cloud: cannot listen on 127.0.0.1:{port} for AWS: ")), "{output}");
    assert!(output.contains("--ephemeral"), "{output}");
}

#[test]
fn bad_scenario_prints_one_line_and_exits_with_1() {
    let path = std::env::temp_dir().join(format!("fake-cloud-bad-scenario-{}.yaml", std::process::id()));
    std::fs::write(&path, "workers:\n  - {id: w-1, status: asleep}\n").expect("written");
    let path = path.to_str().expect("UTF-8");
    let output = run(&["--ephemeral", "--scenario", path]);
    std::fs::remove_file(path).expect("removed");
    assert_eq!(output.status.code(), Some(1));
    let output = text(&output.stderr);
    assert_eq!(output.lines().count(), 1, "{output}");
    assert!(output.starts_with(&format!("fake-cloud: {path}: workers[0].status: \"asleep\"; accepted: ")), "{output}");
}

#[test]
fn list_scenarios_prints_a_description_each() {
    let output = run(&["--list-scenarios"]);
    assert!(output.status.success());
    let listed = text(&output.stdout);
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["orphans", "drain", "bad-day"]);
    assert!(listed.lines().all(|line| line.ends_with('.')), "{listed}");
}

#[tokio::test]
async fn scenario_is_applied_before_the_first_request() {
    let mut cloud = Running::start(&["--scenario", "orphans", "-v"]);
    let state: Value = cloud.get("admin_url", "state").await.json().await.expect("JSON");
    assert_eq!(state["workers"].as_array().map(Vec::len), Some(13));
    assert_eq!(state["regions"]["us-east-1"]["instances"].as_array().map(Vec::len), Some(3));
    assert_eq!(state["seed"], 13, "the scenario's own");
    assert!(state["etcd"]["revision"].as_i64() > Some(13), "the records are mirrored");
    assert_eq!(cloud.get("control_plane_url", "/api/internal/workers").await.status(), 401);
    let mut line = String::new();
    BufReader::new(cloud.child.stderr.take().expect("stderr")).read_line(&mut line).expect("a line");
    assert!(line.contains("control-plane") && line.trim_end().ends_with("401 framework"), "{line}");
}

#[tokio::test]
async fn arguments_override_the_scenario() {
    let cloud = Running::start(&["--scenario", "bad-day", "--clock", "manual", "--seed", "5"]);
    let state: Value = cloud.get("admin_url", "state").await.json().await.expect("JSON");
    assert_eq!((&state["clock"]["pace"], &state["seed"]), (&Value::from("manual"), &Value::from(5)));
    assert_eq!(state["faults"].as_array().map(Vec::len), Some(7));
}

#[test]
fn remote_address_requires_expose() {
    let output = run(&["--ephemeral", "--host", "0.0.0.0"]);
    assert_eq!(output.status.code(), Some(2));
    let output = text(&output.stderr);
    assert!(output.contains("--host 0.0.0.0") && output.contains("--expose"), "{output}");

    let running = Running::start(&["--host", "0.0.0.0", "--expose"]);
    assert!(running.endpoints["admin_key"].as_str().is_some_and(|key| key.len() >= 32), "{}", running.endpoints);
    assert!(Running::start(&[]).endpoints.get("admin_key").is_none(), "no key without remote access");
}

#[tokio::test]
async fn etcd_is_served_alone() {
    let mut child = fake_cloud(&["etcd", "--port", "0", "--json"]).stdout(Stdio::piped()).spawn().expect("started");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
    let started = Running { child, endpoints: serde_json::from_str(&line).expect("one line of JSON") };
    let metrics = started.get("endpoint", "/metrics").await.text().await.expect("a text");
    assert!(metrics.contains("\netcd_server_has_leader 1\n"), "{metrics}");
    assert!(metrics.contains("\netcd_debugging_mvcc_current_revision 1\n"), "{metrics}");
}

#[test]
fn etcd_rejects_invalid_options() {
    for arguments in [&["etcd", "--clock", "manual"][..], &["etcd", "--key-file", "x"], &["etcd", "--host", "0.0.0.0"]]
    {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let missing = run(&["etcd", "--port", "0", "--cert-file", "nowhere", "--key-file", "nowhere"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).starts_with("fake-cloud: invalid PEM file 'nowhere': "));
}

/// Names of the files in a directory.
fn files(directory: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

/// A new directory for temporary files.
fn temporary(name: &str) -> std::path::PathBuf {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    directory
}

#[test]
fn hangup_stops_it_and_leaves_no_file() {
    let directory = temporary("hangup");
    // The caller of the tests may ignore the signal, as `nohup` does, and children inherit that.
    let mut child = Command::new("env")
        .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_fake-cloud"), "--ephemeral", "--json"])
        .env("TMPDIR", &directory)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut String::new()).expect("a line");
    assert_eq!(files(&directory).len(), 1, "the certificate authority");
    let sent = Command::new("kill").args(["-HUP", &child.id().to_string()]).status().expect("sent");
    assert!(sent.success() && child.wait().expect("ended").success());
    assert_eq!(files(&directory), Vec::<String>::new());
    std::fs::remove_dir(directory).expect("removed");
}

#[test]
fn failed_start_leaves_no_file() {
    let directory = temporary("failed-start");
    let scenario = directory.with_extension("yaml");
    std::fs::write(&scenario, "workers: [{id: w-1}, {id: w-1}]").expect("written");
    let output = fake_cloud(&["--ephemeral", "--scenario"]).arg(&scenario).env("TMPDIR", &directory).output();
    assert_eq!(output.expect("ran").status.code(), Some(1));
    assert_eq!(files(&directory), Vec::<String>::new());
    std::fs::remove_file(scenario).and_then(|()| std::fs::remove_dir(directory)).expect("removed");
}
