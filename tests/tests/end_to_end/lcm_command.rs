//! The command `lcm`: every subcommand over the sockets of a fake cloud, formats, and exit codes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use fake_cloud::control_plane::{Generation, Input, LicenseOperation, LicenseStep};
use fake_cloud::world::Delays;
use fake_cloud::{FakeCloud, Pace, Scenario, Service};
use lcm_sdk::controller::ElectionConfig;
use lcm_tests::etcd::Keys;
use serde_json::{Value, json};

use super::controller_command::{Environment, PATIENCE, Running, cloud, environment, set, text, with, writes};

fn command(arguments: &[&str], environment: &Environment) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lcm-under-test"));
    // Without a region the AWS SDK would query the instance metadata service. No controller listens on the port.
    command.args(arguments).env_clear().env("AWS_REGION", "us-east-1").env("ADMIN_PORT", "1");
    command.envs(environment).stdin(Stdio::null());
    command
}

pub(crate) async fn run(arguments: &[&str], environment: &Environment) -> Output {
    let mut command = command(arguments, environment);
    tokio::task::spawn_blocking(move || command.output().expect("it runs")).await.expect("no panic")
}

/// Standard output of a command that succeeds and prints no errors.
async fn printed(arguments: &[&str], environment: &Environment) -> String {
    let done = run(arguments, environment).await;
    assert_eq!((done.status.code(), text(&done.stderr)), (Some(0), String::new()), "{arguments:?}");
    text(&done.stdout)
}

async fn json(arguments: &[&str], environment: &Environment) -> Value {
    let arguments = [arguments, &["-o", "json"]].concat();
    serde_json::from_str(&printed(&arguments, environment).await).expect("JSON")
}

/// Exit code and standard error of a command that prints nothing else.
async fn refused(arguments: &[&str], environment: &Environment) -> (i32, String) {
    let done = run(arguments, environment).await;
    assert_eq!(text(&done.stdout), "", "{arguments:?}");
    (done.status.code().expect("it ends"), text(&done.stderr))
}

/// A cloud with `w-blue` and `w-green`; the second should be stopped.
async fn cloud_to_change() -> (FakeCloud, Environment) {
    let (cloud, environment) = cloud(Some("drain")).await;
    cloud.update_worker("w-green", json!({"desired_status": "stopped"})).expect("updated");
    (cloud, environment)
}

/// The same after a reconcile of w-blue, which writes the AMI and the notes that the scenario leaves out.
async fn cloud_with_one_change() -> (FakeCloud, Environment) {
    let (cloud, environment) = cloud(Some("drain")).await;
    run(&["reconcile", "w-blue"], &environment).await;
    cloud.update_worker("w-green", json!({"desired_status": "stopped"})).expect("updated");
    (cloud, environment)
}

async fn leading(cloud: &FakeCloud, identity: &str) {
    let keys = Keys::connect(&cloud.endpoints().etcd_endpoint).await;
    keys.put(ElectionConfig::WORKER_CONTROLLER, identity).await;
}

/// A controller that leads, and the environment with its admin server.
async fn controller(environment: &Environment) -> (Running, Environment) {
    let mut running = Running::start(environment);
    running.wait_for_log("start-up sweep done");
    let port = running.port.to_string();
    let environment = with(environment, &[("ADMIN_PORT", &port)]);
    (running, environment)
}

#[tokio::test]
async fn help_lists_commands_and_exit_codes() {
    let help = printed(&["--help"], &Environment::new()).await;
    for part in ["explain", "fake-cloud", "Exit codes:", "7  the status of the worker", "lcm plan"] {
        assert!(help.contains(part), "{part} is missing:\n{help}");
    }
}

#[tokio::test]
async fn help_of_every_command_has_examples() {
    for command in [
        "controller",
        "workers",
        "explain",
        "reconcile",
        "plan",
        "drain",
        "cancel-drain",
        "sessions",
        "orphans",
        "leader",
        "events",
        "doctor",
        "simulate",
        "replay",
        "settings",
        "completions",
    ] {
        let help = printed(&[command, "--help"], &Environment::new()).await;
        assert!(help.contains("Examples:") && help.contains(&format!("lcm {command}")), "{help}");
    }
}

#[tokio::test]
async fn version_is_that_of_the_package() {
    assert_eq!(printed(&["--version"], &Environment::new()).await, format!("lcm {}\n", env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn unknown_option_exits_with_2() {
    let (code, stderr) = refused(&["workers", "--wach"], &Environment::new()).await;
    assert_eq!(code, 2);
    assert!(stderr.contains("'--watch'"), "{stderr}");
}

#[tokio::test]
async fn invalid_setting_exits_with_2_before_any_call() {
    let environment = set(&[("LEASE_TTL", "soon")]);
    for arguments in [
        &["workers"][..],
        &["explain", "w"],
        &["reconcile", "w"],
        &["plan"],
        &["drain", "w"],
        &["cancel-drain", "w"],
        &["sessions", "w"],
        &["orphans"],
        &["leader"],
        &["events", "-f"],
        &["doctor"],
        &["settings"],
    ] {
        let (code, stderr) = refused(arguments, &environment).await;
        assert_eq!(code, 2, "{arguments:?}");
        assert!(stderr.contains(r#"LEASE_TTL="soon" is not accepted"#), "{stderr}");
    }
}

#[tokio::test]
async fn unreachable_control_plane_exits_with_1() {
    let (_cloud, environment) = cloud(None).await;
    let gone = [("CONTROL_PLANE_API_URL", "http://127.0.0.1:1"), ("CONTROL_PLANE_API_RETRIES", "0")];
    let environment = with(&environment, &gone);
    for arguments in [
        &["workers"][..],
        &["workers", "--watch"],
        &["explain", "w-1"],
        &["reconcile", "w-1"],
        &["plan"],
        &["drain", "w-1"],
        &["cancel-drain", "w-1"],
        &["sessions", "w-1"],
        &["orphans"],
        &["events", "-f"],
    ] {
        let (code, stderr) = refused(arguments, &environment).await;
        assert_eq!((code, stderr.lines().count()), (1, 1), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("lcm: ") && stderr.contains("refused"), "{stderr}");
    }
}

#[tokio::test]
async fn wrong_key_exits_with_1_and_is_not_printed() {
    let (_cloud, environment) = cloud(Some("drain")).await;
    let (code, stderr) = refused(&["workers"], &with(&environment, &[("CONTROL_PLANE_API_KEY", "hunter2")])).await;
    assert_eq!(code, 1);
    assert!(stderr.contains("the workers could not be listed: 401") && !stderr.contains("hunter2"), "{stderr}");
}

#[tokio::test]
async fn unknown_worker_exits_with_6() {
    let (_cloud, environment) = cloud(Some("drain")).await;
    for arguments in [
        &["explain", "w-9"][..],
        &["reconcile", "w-9"],
        &["reconcile", "w-9", "--dry-run"],
        &["drain", "w-9"],
        &["cancel-drain", "w-9"],
        &["sessions", "w-9"],
    ] {
        assert_eq!(refused(arguments, &environment).await, (6, "lcm: worker w-9 does not exist\n".to_owned()));
    }
}

#[tokio::test]
async fn workers_are_listed_in_every_format() {
    let (_cloud, environment) = cloud(Some("drain")).await;
    let table = printed(&["workers"], &environment).await;
    assert!(table.starts_with("WORKER   STATUS   DESIRED"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("w-blue   running  running")), "{table}");
    assert_eq!(printed(&["workers", "-o", "name"], &environment).await, "w-blue\nw-green\n");
    let listed = json(&["workers"], &environment).await;
    assert_eq!((&listed[0]["id"], &listed[1]["status"]), (&json!("w-blue"), &json!("running")));
    let yaml = printed(&["workers", "-o", "yaml"], &environment).await;
    assert!(yaml.starts_with("- id: w-blue\n"), "{yaml}");
}

/// A command that runs until it is stopped.
struct Following {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Following {
    fn start(arguments: &[&str], environment: &Environment) -> Self {
        let mut child = command(arguments, environment).stdout(Stdio::piped()).spawn().expect("it starts");
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().expect("stdout")).lines();
        std::thread::spawn(move || stdout.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    /// Waits for lines that contain texts, in any order.
    fn lines(&self, expected: &[&str]) {
        let mut missing = expected.to_vec();
        while !missing.is_empty() {
            let line = self.line("");
            missing.retain(|text| !line.contains(text));
        }
    }

    /// The next line that contains a text.
    fn line(&self, expected: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(expected) => return line,
                Ok(line) => seen.push(line),
                Err(_) => panic!("never printed {expected:?}:\n{}", seen.join("\n")),
            }
        }
    }

    /// Sends SIGINT and returns the exit code.
    fn interrupt(mut self) -> Option<i32> {
        let sent = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        // The process may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watched_workers_are_printed_when_they_change() {
    let (cloud, environment) = cloud(Some("drain")).await;
    let following = Following::start(&["workers", "--watch"], &environment);
    assert!(following.line("w-green").ends_with("w-green  running"));
    cloud.update_worker("w-green", json!({"desired_status": "stopped"})).expect("updated");
    assert!(following.line("w-green").ends_with("w-green  desired status: running → stopped"));
    assert_eq!(following.interrupt(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watched_workers_are_one_line_of_json_each() {
    let (_cloud, environment) = cloud(Some("drain")).await;
    let following = Following::start(&["workers", "--watch", "-o", "json"], &environment);
    let line: Value = serde_json::from_str(&following.line("w-blue")).expect("JSON");
    assert_eq!((&line["kind"], &line["record"]["status"]), (&json!("listed"), &json!("running")));
}

#[tokio::test]
async fn workers_are_filtered() {
    let (cloud, environment) = cloud(Some("drain")).await;
    cloud.update_worker("w-green", json!({"status": "terminated"})).expect("updated");
    let names =
        async |arguments: &[&str]| printed(&[&["workers", "-o", "name"], arguments].concat(), &environment).await;
    assert_eq!(names(&[]).await, "w-blue\n");
    assert_eq!(names(&["--all"]).await, "w-blue\nw-green\n");
    assert_eq!(names(&["--status", "terminated"]).await, "w-green\n");
    assert_eq!(names(&["--region", "eu-west-1"]).await, "");
    let (code, stderr) = refused(&["workers", "--status", "asleep"], &environment).await;
    assert!(code == 2 && stderr.contains("accepted: pending"), "{stderr}");
}

#[tokio::test]
async fn hostile_name_does_not_reach_the_terminal() {
    let (cloud, environment) = cloud(Some("drain")).await;
    cloud.update_worker("w-blue", json!({"name": "blue\u{1b}[2J\r\n"})).expect("updated");
    for arguments in [&["workers"][..], &["explain", "w-blue"]] {
        let shown = printed(arguments, &environment).await;
        assert!(shown.contains(r"blue\u{1b}[2J\r\n") && !shown.contains('\u{1b}'), "{shown}");
    }
}

#[tokio::test]
async fn explain_shows_why_and_what_would_change_it() {
    let (cloud, environment) = cloud_to_change().await;
    let shown = printed(&["explain", "w-green"], &environment).await;
    for part in [
        "w-green  running, desired stopped",
        "Observed\n  instance           i-",
        "running → stopping",
        "The desired status is stopped",
        "if the desired status were running:",
        "waits for          EC2 to show the instance as stopped",
        "reconcile          ",
        "no controller's admin server responds at http://127.0.0.1:1",
    ] {
        assert!(shown.contains(part), "{part} is missing:\n{shown}");
    }
    let rests = printed(&["explain", "w-blue"], &environment).await;
    assert!(rests.contains("within ") && rests.contains(" (RECONCILE_INTERVAL)"), "{rests}");
    let explained = json(&["explain", "w-green"], &environment).await;
    assert_eq!(explained["plan"]["to_status"], "stopping");
    assert_eq!(explained["history"], Value::Null);
    assert_eq!(writes(&cloud), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_includes_the_history_of_the_controller() {
    let (_cloud, environment) = cloud_to_change().await;
    let (running, environment) = controller(&environment).await;
    let shown = printed(&["explain", "w-green"], &environment).await;
    let (_, history) = shown.split_once("History\n").expect("a history");
    assert!(history.contains("running → stopping: The desired status is stopped"), "{shown}");
    assert_eq!(running.terminate().0, Some(0));
}

#[tokio::test]
async fn plan_counts_a_write_of_fields_as_a_change() {
    let (cloud, environment) = cloud(Some("drain")).await;
    // The first sweep writes the AMI and the notes that the scenario leaves out.
    run(&["controller", "--once"], &environment).await;
    let quiet = printed(&["plan", "--exit-code"], &environment).await;
    assert!(quiet.starts_with("Nothing would change.\n2 workers"), "{quiet}");
    let address = json!(cloud.worker("w-blue").expect("it exists").fields()["public_ip"]);
    cloud.update_worker("w-blue", json!({"public_ip": "198.51.100.9"})).expect("updated");
    let planned = run(&["plan", "--exit-code"], &environment).await;
    let shown = text(&planned.stdout);
    assert_eq!(planned.status.code(), Some(5), "{shown}");
    let would = format!("public_ip {}", address.as_str().expect("an address"));
    let line = shown.lines().find(|line| line.contains("would record")).expect("the fields");
    assert!(line.contains(&would) && shown.contains("w-blue  running  "), "{shown}");
    assert!(shown.contains("0 would change status, 1 other fields only"), "{shown}");
    let listed = json(&["plan"], &environment).await;
    assert_eq!((&listed[0]["changes"]["public_ip"], &listed[1]), (&address, &Value::Null));
    let shown = printed(&["explain", "w-blue"], &environment).await;
    assert!(shown.contains("would record") && shown.contains(&would), "{shown}");
}

#[tokio::test]
async fn plan_prints_only_what_would_change() {
    let (cloud, environment) = cloud_with_one_change().await;
    let before = writes(&cloud);
    let shown = printed(&["plan"], &environment).await;
    assert!(shown.contains("w-green  running → stopping  ") && !shown.contains("w-blue"), "{shown}");
    assert!(
        shown.ends_with("2 workers in 0.0 s: 1 would change status; 2 success\n") || shown.contains("2 workers in")
    );
    assert_eq!(printed(&["plan", "-o", "name"], &environment).await, "w-green\n");
    assert_eq!(json(&["plan"], &environment).await[0]["from_status"], "running");
    assert_eq!(writes(&cloud), before);
}

#[tokio::test]
async fn plan_reports_changes_with_5_on_request() {
    let (cloud, environment) = cloud_to_change().await;
    assert_eq!(run(&["plan", "--exit-code"], &environment).await.status.code(), Some(5));
    assert_eq!(run(&["plan"], &environment).await.status.code(), Some(0));
    assert_eq!(writes(&cloud), [""; 0]);
}

#[tokio::test]
async fn plan_without_permission_exits_with_4() {
    let (cloud, environment) = cloud_to_change().await;
    let denied = json!({"service": "ec2", "operation": "Describe*", "action": {"kind": "error", "code": "UnauthorizedOperation"}});
    cloud.inject(serde_json::from_value(denied).expect("a rule")).expect("a good rule");
    let plan = run(&["plan"], &environment).await;
    assert_eq!(plan.status.code(), Some(4));
    assert!(text(&plan.stdout).contains("UnauthorizedOperation"), "{}", text(&plan.stdout));
}

#[tokio::test]
async fn reconcile_changes_one_worker_and_gives_up_the_lead() {
    let (cloud, environment) = cloud_to_change().await;
    let dry = printed(&["reconcile", "w-green", "--dry-run"], &environment).await;
    assert!(dry.starts_with("w-green: running → stopping: The desired status is stopped"), "{dry}");
    assert_eq!(writes(&cloud), [""; 0]);
    let done = json(&["reconcile", "w-green"], &environment).await;
    assert_eq!((&done["mode"], &done["to_status"]), (&json!("real"), &json!("stopping")));
    assert_eq!(cloud.worker("w-green").expect("it exists").status(), "stopping");
    assert!(cloud.etcd().leases().is_empty(), "the lease is released");
}

/// The records of the original control plane do not show a license operation: it is requested in etcd.
#[tokio::test]
async fn license_operation_in_etcd_is_seen_without_a_controller() {
    let scenario = Scenario::find("drain").expect("a built-in scenario");
    let cloud = FakeCloud::builder().pace(Pace::Real).delays(Delays::none()).scenario(Some(scenario));
    let cloud = cloud.control_plane(Some(Generation::Original)).start().await.expect("started");
    let environment = environment(&cloud);
    let token = Input::from_value(json!({"token": "t0ken-of-the-request"})).expect("an object");
    let (operation, step) = (LicenseOperation::Register, LicenseStep::Request);
    cloud.records().license_step("w-blue", None, operation, step, &token).expect("accepted");

    let explained = printed(&["explain", "w-blue", "-o", "json"], &environment).await;
    assert!(!explained.contains("t0ken"), "{explained}");
    let explained: Value = serde_json::from_str(&explained).expect("JSON");
    assert_eq!(explained["record"]["license_operation"], "register");
    assert_eq!(cloud.count(Service::Cml, "register"), 0);
    let done = json(&["reconcile", "w-blue"], &environment).await;
    assert_eq!(done["reason"]["code"], "license_submitted", "{done}");
    assert_eq!(cloud.count(Service::Cml, "register"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconcile_is_requested_of_the_leader() {
    let (cloud, environment) = cloud(Some("drain")).await;
    let (running, environment) = controller(&environment).await;
    let done = printed(&["reconcile", "w-blue"], &environment).await;
    assert!(done.starts_with("w-blue: success: The worker is in service."), "{done}");
    assert!(done.contains("by the controller at http://127.0.0.1:"), "{done}");
    let done = json(&["reconcile", "w-blue"], &environment).await;
    assert_eq!(done["last_outcome"]["reason"]["code"], "in_service", "{done}");
    let arguments = ["reconcile", "w-blue", "--no-wait", "--reason", "new image", "--requested-by", "ada"];
    let queued = printed(&arguments, &environment).await;
    assert!(queued.starts_with("w-blue: queued by the controller at http://127.0.0.1:"), "{queued}");
    assert_eq!(json(&arguments, &environment).await, json!({"queued": true, "resource_id": "w-blue"}));
    assert_eq!(refused(&["reconcile", "w-9"], &environment).await.0, 6);
    let denied = json!({"service": "ec2", "operation": "Describe*", "action": {"kind": "error", "code": "UnauthorizedOperation"}});
    cloud.inject(serde_json::from_value(denied).expect("a rule")).expect("a good rule");
    let failed = run(&["reconcile", "w-blue"], &environment).await;
    assert_eq!(failed.status.code(), Some(4), "{failed:?}");
    assert!(text(&failed.stdout).contains("EC2 gave no usable answer"), "{failed:?}");
    let (code, log) = running.terminate();
    assert_eq!(code, Some(0));
    let line = log.iter().find(|line| line.contains("an operator requested reconcile") && line.contains("ada"));
    assert!(line.is_some_and(|line| line.contains("new image") && line.contains("w-blue")), "{}", log.join("\n"));
}

#[tokio::test]
async fn leader_that_cannot_be_reached_exits_with_3() {
    let (cloud, environment) = cloud_to_change().await;
    leading(&cloud, "another").await;
    for command in ["reconcile", "drain", "cancel-drain"] {
        let (code, stderr) = refused(&[command, "w-green"], &environment).await;
        assert_eq!(code, 3);
        assert!(stderr.contains("another leads") && stderr.contains("--admin"), "{stderr}");
    }
    assert_eq!(cloud.worker("w-green").expect("it exists").status(), "running");
}

#[tokio::test]
async fn invalid_admin_url_exits_with_2_and_is_not_printed() {
    let (_cloud, environment) = cloud(Some("drain")).await;
    let url = "http://admin:hunter2@127.0.0.1:1";
    let (code, stderr) = refused(&["explain", "w-blue", "--admin", url], &environment).await;
    assert!(code == 2 && !stderr.contains("hunter2"), "{stderr}");
}

#[tokio::test]
async fn drain_begins_and_is_refused_a_second_time() {
    let (cloud, environment) = cloud(Some("drain")).await;
    let drained = printed(&["drain", "w-blue", "--reason", "maintenance", "--requested-by", "ada"], &environment).await;
    assert!(drained.starts_with("w-blue: running → draining: "), "{drained}");
    assert_eq!(cloud.worker("w-blue").expect("it exists").status(), "draining");
    assert!(cloud.etcd().leases().is_empty(), "the lease is released");
    let (code, stderr) = refused(&["drain", "w-blue"], &environment).await;
    assert_eq!((code, stderr.as_str()), (7, "lcm: worker w-blue is draining; only a running worker can be drained\n"));
}

#[tokio::test]
async fn drain_is_canceled_where_the_control_plane_can() {
    let scenario = Scenario::find("drain").expect("a built-in scenario");
    let cloud = FakeCloud::builder().pace(Pace::Real).delays(Delays::none()).scenario(Some(scenario));
    let cloud = cloud.control_plane(Some(Generation::Extended)).start().await.expect("started");
    let environment = environment(&cloud);
    assert_eq!(json(&["drain", "w-blue"], &environment).await["to_status"], "draining");
    assert_eq!(json(&["cancel-drain", "w-blue"], &environment).await["to_status"], "running");
    assert_eq!(cloud.worker("w-blue").expect("it exists").status(), "running");
}

#[tokio::test]
async fn cancel_names_the_missing_feature() {
    let (_cloud, environment) = cloud(Some("drain")).await;
    drop(printed(&["drain", "w-blue"], &environment).await);
    let (code, stderr) = refused(&["cancel-drain", "w-blue"], &environment).await;
    assert!(code == 7 && stderr.contains("not supported by this control plane"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_is_requested_of_the_leader() {
    let (cloud, environment) = cloud(Some("drain")).await;
    let (running, environment) = controller(&environment).await;
    let drained = printed(&["drain", "w-blue"], &environment).await;
    assert!(drained.starts_with("w-blue: is drained, by the controller at http://127.0.0.1:"), "{drained}");
    assert_eq!(cloud.worker("w-blue").expect("it exists").status(), "draining");
    assert_eq!(refused(&["drain", "w-blue"], &environment).await.0, 7);
    assert_eq!(refused(&["drain", "w-9"], &environment).await.0, 6);
    assert_eq!(running.terminate().0, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_key_of_the_settings_is_sent() {
    let (_cloud, environment) = cloud(Some("drain")).await;
    let keyed = with(&environment, &[("ADMIN_KEY", "hunter2")]);
    let (running, keyed) = controller(&keyed).await;
    let (code, stderr) = refused(&["drain", "w-blue"], &with(&keyed, &[("ADMIN_KEY", "wrong")])).await;
    assert!(code == 1 && stderr.contains("admin key") && !stderr.contains("wrong"), "{stderr}");
    drop(printed(&["drain", "w-blue"], &keyed).await);
    assert_eq!(running.terminate().0, Some(0));
}

#[tokio::test]
async fn sessions_are_listed_with_their_meaning() {
    let (_cloud, environment) = cloud(Some("drain")).await;
    let table = printed(&["sessions", "w-blue"], &environment).await;
    let line = table.lines().find(|line| line.starts_with("s-running ")).expect("the session");
    assert!(line.contains("running") && line.ends_with("waited for"), "{table}");
    assert!(printed(&["sessions", "w-blue", "-o", "name"], &environment).await.contains("s-soon\n"));
}

#[tokio::test]
async fn orphans_are_shown_and_then_marked() {
    let (cloud, environment) = cloud(Some("orphans")).await;
    let names = printed(&["orphans", "--dry-run", "-o", "name"], &environment).await;
    let orphan = names.lines().next().expect("an orphan").to_owned();
    assert_eq!(writes(&cloud), [""; 0]);
    let table = printed(&["orphans"], &environment).await;
    assert!(table.lines().any(|line| line.starts_with(&orphan) && line.contains("does not exist")), "{table}");
    assert_eq!(cloud.worker(&orphan).expect("it exists").status(), "terminated");
}

#[tokio::test]
async fn orphans_are_left_to_the_leader() {
    let (cloud, environment) = cloud(Some("orphans")).await;
    leading(&cloud, "another").await;
    let (code, stderr) = refused(&["orphans"], &environment).await;
    assert!(code == 3 && stderr.contains("another leads, and collects orphans by itself"), "{stderr}");
    assert_eq!(run(&["orphans", "--dry-run"], &environment).await.status.code(), Some(0));
}

#[tokio::test]
async fn leader_is_read_from_its_key() {
    let (cloud, environment) = cloud(None).await;
    let (code, stderr) = refused(&["leader"], &environment).await;
    assert_eq!(
        (code, stderr.as_str()),
        (1, "lcm: no controller leads: /lcm/worker-controller/leader does not exist\n")
    );
    leading(&cloud, "host-1").await;
    let table = printed(&["leader"], &environment).await;
    assert!(table.contains("the fleet  host-1"), "{table}");
    assert_eq!(json(&["leader"], &environment).await[0]["identity"], "host-1");
}

#[tokio::test]
async fn shards_without_a_leader_exit_with_1() {
    let (cloud, environment) = cloud(None).await;
    let keys = Keys::connect(&cloud.endpoints().etcd_endpoint).await;
    keys.put("/lcm/worker-controller/shards/2/1/leader", "host-1").await;
    let leader = run(&["leader"], &with(&environment, &[("LEADER_SHARDS", "2")])).await;
    assert_eq!(
        (leader.status.code(), text(&leader.stderr)),
        (Some(1), "lcm: 1 of 2 shards have no leader\n".to_owned())
    );
    assert!(text(&leader.stdout).contains("shard 1 of 2  host-1"), "{}", text(&leader.stdout));
}

#[tokio::test]
async fn unreachable_etcd_exits_with_1() {
    let (_cloud, environment) = cloud(None).await;
    let environment = with(&environment, &[("ETCD_ENDPOINTS", "127.0.0.1:1")]);
    let (code, stderr) = refused(&["leader"], &environment).await;
    assert!(code == 1 && stderr.contains("the leader could not be read from etcd"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_follow_records_reconciles_and_the_lead() {
    let (cloud, environment) = cloud(Some("drain")).await;
    let (running, environment) = controller(&environment).await;
    let following = Following::start(&["events", "-f"], &environment);
    following.line("leads the fleet");
    cloud.update_worker("w-blue", json!({"desired_status": "stopped"})).expect("updated");
    following.lines(&["w-blue  running → stopping: The desired status is stopped", "status: running → stopping"]);
    let recent = printed(&["events"], &environment).await;
    assert!(recent.contains("w-blue  running → stopping"), "{recent}");
    assert_eq!(running.terminate().0, Some(0));
    following.line("no longer leads the fleet");
    assert_eq!(following.interrupt(), Some(0));
}

#[tokio::test]
async fn events_without_a_controller_exit_with_1() {
    let (_cloud, environment) = cloud(None).await;
    let (code, stderr) = refused(&["events"], &environment).await;
    assert!(code == 1 && stderr.starts_with("lcm: no controller's admin server responds at"), "{stderr}");
}

/// The checks of `lcm doctor` that are not fine, as `check: verdict`, with what was found and how to mend it.
async fn findings(environment: &Environment) -> (i32, Vec<(String, String)>) {
    let done = run(&["doctor", "-o", "json"], environment).await;
    assert_eq!(text(&done.stderr), "");
    let checks: Vec<Value> = serde_json::from_slice(&done.stdout).expect("JSON");
    let word = |check: &Value, name: &str| check[name].as_str().unwrap_or_default().to_owned();
    let wrong = checks.iter().filter(|check| check["verdict"] != "ok" && check["check"] != "settings");
    let found = wrong.map(|check| {
        let what = format!("{} → {}", word(check, "found"), word(check, "mend"));
        (format!("{}: {}", word(check, "check"), word(check, "verdict")), what)
    });
    (done.status.code().expect("it ends"), found.collect())
}

/// Asserts that one check fails or warns, and what it says.
async fn finds(environment: &Environment, code: i32, check: &str, parts: &[&str]) {
    let (exit, found) = findings(environment).await;
    let what = found.iter().find(|(name, _)| name == check).map(|(_, what)| what.as_str());
    let what = what.unwrap_or_else(|| panic!("{check} is not among {found:?}"));
    assert!(parts.iter().all(|part| what.contains(part)), "{what}");
    assert_eq!(exit, code, "{found:?}");
}

#[tokio::test]
async fn doctor_finds_nothing_wrong_with_the_fake_cloud() {
    let (cloud, environment) = cloud(Some("drain")).await;
    // CML starts in the background.
    let deadline = Instant::now() + PATIENCE;
    while findings(&environment).await != (0, Vec::new()) {
        assert!(Instant::now() < deadline, "{:?}", findings(&environment).await);
    }
    let table = printed(&["doctor"], &environment).await;
    for check in [
        "credentials    ok",
        "account        ok",
        "regions        ok",
        "subnets        ok",
        "AMI owner      ok",
        "control plane  ok",
        "capabilities   ok",
        "etcd           ok",
        "CML            ok      2 of 2 running workers respond",
        "clock          ok      as that of the control plane, within 5 s",
        "clock          ok      as that of AWS, within 5 s",
    ] {
        assert!(table.contains(check), "{check} is missing:\n{table}");
    }
    // The date is read off any response; the original control plane has no health check.
    let is_served = |request: &String| !request.ends_with("404 framework");
    assert_eq!(writes(&cloud).into_iter().filter(is_served).collect::<Vec<_>>(), [""; 0]);
}

#[tokio::test]
async fn doctor_tells_how_to_mend_settings() {
    let (_cloud, environment) = cloud(Some("drain")).await;
    type Case<'a> = (&'a [(&'a str, &'a str)], i32, &'a str, &'a [&'a str]);
    let cases: [Case<'_>; 7] = [
        (
            &[("LCM_AWS_ACCOUNT_ID", "999999999999")],
            1,
            "account: fail",
            &["999999999999", "correct LCM_AWS_ACCOUNT_ID"],
        ),
        (&[("AMI_OWNERS", "self")], 1, "AMI owner: fail", &["of owner self", "set AMI_OWNERS"]),
        (&[("AMI_OWNERS", "any")], 0, "AMI owner: warn", &["set AMI_OWNERS"]),
        (&[("CONTROL_PLANE_API_KEY", "hunter2")], 1, "control plane: fail", &["401", "set CONTROL_PLANE_API_KEY"]),
        (&[("ETCD_ENDPOINTS", "127.0.0.1:1")], 1, "etcd: fail", &["127.0.0.1:1", "start etcd"]),
        (&[("CML_PORT", "1")], 1, "CML: fail", &["none of 2 running workers", "CML_PORT"]),
        (&[("AWS_ENDPOINT_URL", "http://127.0.0.1:1")], 1, "credentials: fail", &["us-east-1", "AWS_ENDPOINT_URL"]),
    ];
    for (variables, code, check, parts) in cases {
        finds(&with(&environment, variables), code, check, parts).await;
    }
}

#[tokio::test]
async fn doctor_names_subnets_that_are_not_visible() {
    let (_cloud, environment) = cloud(None).await;
    let regions = r#"{"us-east-1": {"subnet_id": "subnet-0gone", "security_group_ids": ["sg-1"]}}"#;
    let environment = with(&environment, &[("AWS_REGION_CONFIGS", regions)]);
    finds(&environment, 1, "subnets: fail", &["subnet-0gone", "us-east-1", "AWS_REGION_CONFIGS"]).await;
}

#[tokio::test]
async fn doctor_names_missing_permissions() {
    let (cloud, environment) = cloud(None).await;
    let denied = json!({"service": "ec2", "operation": "Describe*", "action": {"kind": "error", "code": "UnauthorizedOperation"}});
    cloud.inject(serde_json::from_value(denied).expect("a rule")).expect("a good rule");
    finds(&environment, 1, "credentials: fail", &["UnauthorizedOperation", "ec2:Describe*"]).await;
    for check in ["account: skipped", "regions: skipped", "subnets: skipped", "AMI owner: skipped"] {
        finds(&environment, 1, check, &["not checked, because EC2 does not accept the credentials in us-east-1"]).await;
    }
}

#[tokio::test]
async fn doctor_notices_a_wrong_clock() {
    let (_cloud, environment) = cloud(None).await;
    let server = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", server.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in server.incoming().flatten() {
            let mut stream: TcpStream = stream;
            drop(stream.read(&mut [0; 4096]));
            let head = "HTTP/1.1 404 Not Found\r\nDate: Sat, 01 Jan 2000 00:00:00 GMT\r\n";
            drop(write!(stream, "{head}Connection: close\r\nContent-Length: 0\r\n\r\n"));
        }
    });
    let environment = with(&environment, &[("CONTROL_PLANE_API_URL", &url)]);
    finds(&environment, 1, "clock: fail", &["ahead of the control plane", "synchronize the clock"]).await;
}

#[tokio::test]
async fn settings_are_redacted_in_every_format() {
    let environment = set(&[("MIN_WORKERS", "3"), ("CONTROL_PLANE_API_KEY", "hunter2")]);
    for format in ["table", "json", "yaml", "name"] {
        let shown = printed(&["settings", "-o", format], &environment).await;
        assert!(shown.contains("min_workers") && !shown.contains("hunter2"), "{shown}");
    }
}

#[tokio::test]
async fn controller_sweeps_once_as_worker_controller_does() {
    let (cloud, environment) = cloud_to_change().await;
    let dry = run(&["controller", "--dry-run"], &environment).await;
    assert_eq!(dry.status.code(), Some(0), "{}", text(&dry.stderr));
    assert!(text(&dry.stdout).contains("running → stopping"), "{}", text(&dry.stdout));
    assert_eq!(writes(&cloud), [""; 0]);
}

#[tokio::test]
async fn fake_cloud_takes_its_own_options() {
    let help = printed(&["fake-cloud", "--help"], &Environment::new()).await;
    assert!(help.contains("Usage: lcm fake-cloud [OPTIONS]") && help.contains("--scenario"), "{help}");
    assert!(printed(&["fake-cloud", "--list-scenarios"], &Environment::new()).await.contains("bad-day"));
    assert_eq!(refused(&["fake-cloud", "--speed=11"], &Environment::new()).await.0, 2);
}

#[tokio::test]
async fn completions_name_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = printed(&["completions", shell], &Environment::new()).await;
        assert!(script.contains("explain") && script.contains("reconcile"), "{shell}: {script}");
    }
}

#[tokio::test]
async fn closed_pipe_is_not_an_error() {
    let (_cloud, environment) = cloud(Some("drain")).await;
    let mut command = command(&["workers"], &environment);
    let ended = tokio::task::spawn_blocking(move || {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        drop(child.stdout.take());
        child.wait_with_output().expect("it ends")
    });
    let ended = ended.await.expect("no panic");
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), String::new()));
}

/// A directory that is deleted at the end of its test.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lcm-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

#[tokio::test]
async fn recorded_sweep_is_replayed_without_a_difference() {
    let (_cloud, environment) = cloud(Some("orphans")).await;
    let folder = Folder::new("replay");
    let history = folder.0.join("history").display().to_string();
    let environment = with(&environment, &[("LCM_HISTORY_DIR", &history)]);
    run(&["controller", "--once"], &environment).await;
    let same = printed(&["replay", &history], &environment).await;
    assert!(same.ends_with(" decisions: 0 differ\n") && !same.starts_with('0'), "{same}");
    let policy = folder.file("new.yaml", "consistency_window: 1000000000\n");
    let changed = run(&["replay", &history, "--policy", &policy], &environment).await;
    assert_eq!(changed.status.code(), Some(5), "{changed:?}");
    let expected = run(&["replay", &history, "--policy", &policy, "--expect-changes"], &environment).await;
    assert_eq!(expected.status.code(), Some(0), "{expected:?}");
}

#[tokio::test]
async fn simulation_compares_the_policies_of_its_file() {
    let folder = Folder::new("simulate");
    let file = folder.file(
        "fleet.yaml",
        "fleet: {workers: 5}\nevents: {sessions_per_hour: 2}\nhours: 48\n\
         policies:\n  today: {}\n  thrifty: {scale_down: {enabled: true}}\n",
    );
    let compared = printed(&["simulate", &file, "--output", "json"], &Environment::new()).await;
    let compared: Value = serde_json::from_str(&compared).expect("JSON");
    let hours = |row: usize| compared["rows"][row][1]["instance_hours"].as_f64().expect("hours");
    assert!(hours(0) < hours(1), "{compared}");
    let (code, stderr) =
        refused(&["simulate", &folder.file("bad.yaml", "fleet: {wokers: 5}")], &Environment::new()).await;
    assert!(code == 2 && stderr.contains("unknown field `wokers`"), "{stderr}");
}

#[tokio::test]
async fn simulation_is_repeated_from_what_it_prints() {
    let folder = Folder::new("repeat");
    let file = folder.file("fleet.yaml", "fleet: {workers: 5}\nevents: {sessions_per_hour: 2}\nhours: 48\nseed: 9\n");
    let text = printed(&["simulate", &file], &Environment::new()).await;
    let history = printed(&["simulate", &file, "--output", "json"], &Environment::new()).await;
    let history: Value = serde_json::from_str(&history).expect("JSON");
    let again = folder.file("again.json", &history["inputs"].to_string());
    assert_eq!(printed(&["simulate", &again], &Environment::new()).await, text);
    let version = env!("CARGO_PKG_VERSION");
    assert!(text.contains(&format!("\n48 h, seed 9, version {version}, inputs ")), "{text}");
    assert!(text.contains("CUT SHORT") && text.contains("TO RUNNING"), "{text}");
    let policy = folder.file("policy.yaml", "scale_down: {enabled: true}\n");
    let thrifty = printed(&["simulate", &file, "--policy", &policy], &Environment::new()).await;
    assert_ne!(thrifty, text);
}

#[tokio::test]
async fn simulation_explains_a_status_at_a_time() {
    let folder = Folder::new("why");
    let events = "events: {sessions: [{at: 3600, lasts: 60}], drains: [{at: 7200, worker: w-1}]}";
    let file = folder.file("fleet.yaml", &format!("fleet: {{workers: 2}}\n{events}\nhours: 3\n"));
    let why = async |at: &str| printed(&["simulate", &file, "--why", "w-1", "--at", at], &Environment::new()).await;
    assert_eq!(why("59m").await, "w-1 has been stopped since the start: no step has changed it\n");
    assert!(why("2026-01-05T01:01:00Z").await.ends_with("[start_instance]\n"));
    assert!(why("1.5h").await.contains("starting → running"));
    assert!(why("2.1h").await.contains("draining → stopping"));
    let bad = [
        (["w-9", "1h"], "unknown worker 'w-9': the 2 workers of the simulation are w-1, w-2"),
        (["w-1", "noon"], "invalid time 'noon': expected a time since the start such as 90m or 12h"),
    ];
    for ([worker, at], expected) in bad {
        let arguments = ["simulate", &file, "--why", worker, "--at", at];
        let (code, stderr) = refused(&arguments, &Environment::new()).await;
        assert!(code == 2 && stderr.contains(expected), "{stderr}");
    }
}
