//! No secret appears in any output. Every place that takes a secret gets its own, the controller logs at trace level, and
//! the fake cloud exposes every request.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fake_cloud::world::Delays;
use fake_cloud::{FakeCloud, RequestFilter};
use lcm_sdk::Secret;
use lcm_sdk::admin::{AdminOptions, AdminServer};
use lcm_sdk::ports::{Cml as _, CmlTarget};
use lcm_sdk::providers::aws::{Account, CloudWatch, Ec2, Tuning};
use lcm_sdk::providers::cml::{CmlClient, CmlOptions};
use lcm_sdk::providers::control_plane::{ControlPlaneClient, ControlPlaneOptions};
use lcm_sdk::providers::etcd::{Etcd, EtcdOptions, EtcdUser};
use lcm_sdk::providers::events::{HttpEvents, SinkOptions};
use lcm_sdk::settings::Settings;
use lcm_sdk::telemetry::Telemetry;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(120);

/// Prefix of every secret, and of nothing else.
const CANARY: &str = "canary-";

type Environment = BTreeMap<String, String>;

/// Variables of all secret settings, and of the AWS credentials.
fn secrets() -> Environment {
    let table = Settings::table().into_iter();
    let hidden = table.filter(|setting| setting.name.ends_with("password") || setting.name.ends_with("_key"));
    let own = hidden.flat_map(|setting| setting.variables.iter().map(|name| (*name).to_owned()));
    let others = ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"].map(str::to_owned);
    // All aliases of a setting have the same value, because different ones cause a warning and only one is used.
    let name =
        |variable: &str| variable.replace("LCM_", "").replace("CML_WORKER_API_", "CML_DEFAULT_").to_ascii_lowercase();
    own.chain(others).map(|variable| (variable.clone(), format!("{CANARY}{}", name(&variable)))).collect()
}

async fn start_cloud() -> (FakeCloud, Environment, Arc<Mutex<String>>) {
    let secrets = secrets();
    for expected in ["CONTROL_PLANE_API_KEY", "CML_DEFAULT_PASSWORD", "ETCD_PASSWORD", "ADMIN_KEY"] {
        assert!(secrets.contains_key(expected), "{expected} is not a secret: {secrets:?}");
    }
    let builder = FakeCloud::builder()
        .delays(Delays::none())
        .api_key(&secrets["CONTROL_PLANE_API_KEY"])
        .cml(|cml| cml.password = secrets["CML_DEFAULT_PASSWORD"].clone());
    let cloud = builder.start().await.expect("a cloud");
    let requests = Arc::new(Mutex::new(String::new()));
    let log = Arc::clone(&requests);
    cloud.world().request_log().on_request(move |record| {
        log.lock().expect("not poisoned").push_str(&format!("{record}\n"));
    });

    let instance = || cloud.run_instance("us-east-1", &[]).expect("an instance").id.clone();
    let license = json!({"status": "unregistered", "pending_operation": "register",
                         "token": "canary-license-token", "pending_token": "canary-pending-token"});
    for (id, extra) in [
        ("w-licensed", json!({"ec2_instance_id": instance(), "license": license})),
        (
            "w-own",
            json!({"ec2_instance_id": instance(), "cml_username": "admin", "cml_password": "canary-of-the-record"}),
        ),
        ("w-bad", json!({"status": "asleep", "cml_password": ["canary-of-a-bad-record"]})),
    ] {
        let mut record = json!({"id": id, "status": "running", "desired_status": "running", "aws_region": "us-east-1"});
        record.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        // The control plane refuses the invalid record with an error message.
        if let Err(refused) = cloud.add_worker(record) {
            assert_no_secret("a refusal of the control plane", &refused.to_string());
        }
    }

    let Value::Object(variables) = cloud.endpoints().environment() else { panic!("an object") };
    let variables = variables.into_iter().map(|(name, value)| (name, value.as_str().expect("text").to_owned()));
    let mut environment: Environment = variables.collect();
    environment.extend(secrets);
    // The port is closed: the failure is logged without the URL.
    environment.insert("EVENT_SINK_URL".to_owned(), format!("http://u:{CANARY}sink@127.0.0.1:9/?key={CANARY}query"));
    for (name, value) in
        [("RUST_LOG", "trace"), ("ADMIN_PORT", "0"), ("STARTUP_RECONCILE_DELAY", "0"), ("NO_COLOR", "1")]
    {
        environment.insert(name.to_owned(), value.to_owned());
    }
    (cloud, environment, requests)
}

fn assert_no_secret(place: &str, text: &str) {
    let leaks: Vec<&str> = text.lines().filter(|line| line.contains(CANARY)).take(5).collect();
    assert!(leaks.is_empty(), "{place} contains a secret:\n{}", leaks.join("\n"));
}

fn command(arguments: &[&str], environment: &Environment) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_worker-controller-under-test"));
    command.args(arguments).env_clear().envs(environment).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

async fn run(arguments: &[&str], environment: &Environment) -> String {
    let mut command = command(arguments, environment);
    let ran = tokio::task::spawn_blocking(move || command.output().expect("it runs")).await;
    let Output { stdout, stderr, .. } = ran.expect("no panic");
    format!("{}\n{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr))
}

/// Removes the variables, with and without their prefix.
fn without(environment: &Environment, variables: &[&str]) -> Environment {
    let kept = environment.iter().filter(|(name, _)| !variables.contains(&name.trim_start_matches("LCM_")));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Sets a variable under its prefixed name, which takes precedence.
fn set(environment: &mut Environment, variable: &str, value: &str) {
    environment.insert(format!("LCM_{variable}"), value.to_owned());
}

/// A controller process and its output.
struct Running {
    child: Child,
    output: Arc<Mutex<String>>,
}

impl Running {
    fn start(environment: &Environment) -> Self {
        let mut child = command(&[], environment).spawn().expect("it starts");
        let output = Arc::new(Mutex::new(String::new()));
        let pipes: [Box<dyn std::io::Read + Send>; 2] =
            [Box::new(child.stderr.take().expect("stderr")), Box::new(child.stdout.take().expect("stdout"))];
        for mut pipe in pipes {
            let output = Arc::clone(&output);
            std::thread::spawn(move || {
                let mut bytes = [0; 64 * 1024];
                while let Ok(read @ 1..) = pipe.read(&mut bytes) {
                    let text = String::from_utf8_lossy(&bytes[..read]);
                    output.lock().expect("not poisoned").push_str(&text);
                }
            });
        }
        Self { child, output }
    }

    fn output(&self) -> String {
        self.output.lock().expect("not poisoned").clone()
    }

    async fn wait_until(&self, condition: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            let output = self.output();
            let last = output.len().saturating_sub(4000);
            assert!(Instant::now() < deadline, "not in time: {condition}\n{}", output.get(last..).unwrap_or_default());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn port(&self) -> Option<u16> {
        let output = self.output();
        let line = output.lines().find(|line| line.contains("the admin server listens"))?;
        line.split("127.0.0.1:").nth(1)?.split(|sign: char| !sign.is_ascii_digit()).next()?.parse().ok()
    }

    fn request(&self, method: &str, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port().expect("a port"))).expect("it listens");
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: 0\r\n\r\n"
        )
        .expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        response
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_in_the_output_of_a_program() {
    let (cloud, environment, request_log) = start_cloud().await;
    // The fake etcd has no users, so it refuses a name and a password.
    let working = without(&environment, &["ETCD_USERNAME", "ETCD_PASSWORD"]);
    let running = Running::start(&working);
    running.wait_until("the admin server listens", || running.port().is_some()).await;
    let registered = || {
        let worker = cloud.worker("w-licensed").expect("an existing worker");
        worker.get("license").is_some_and(|license| license["status"] == "registered")
    };
    running.wait_until("the license is registered", registered).await;
    for (method, path, headers) in [
        ("GET", "/admin/stats", String::new()),
        ("GET", "/admin/resources", String::new()),
        ("GET", "/admin/resources/w-own", String::new()),
        ("GET", "/metrics", String::new()),
        ("GET", "/readyz", String::new()),
        ("POST", "/admin/resources/w-own/reconcile", String::new()),
        ("POST", "/admin/resources/w-own/reconcile", format!("X-API-Key: {}\r\n", environment["ADMIN_KEY"])),
        ("POST", "/admin/resources/w-own/reconcile", format!("X-API-Key: {CANARY}of-another-client\r\n")),
    ] {
        assert_no_secret(path, &running.request(method, path, &headers));
    }
    running.wait_until("the event sink fails", || running.output().contains("not delivered")).await;
    let output = running.output();
    drop(running);
    for part in ["TRACE", "aws_", "hyper", "lcm::"] {
        assert!(output.contains(part), "{part} is not in the log");
    }
    assert_no_secret("the log", &output);

    let mut named = environment.clone();
    set(&mut named, "ETCD_USERNAME", "lcm");
    let mut wrong = working.clone();
    for variable in ["CONTROL_PLANE_API_KEY", "ADMIN_KEY", "CML_DEFAULT_PASSWORD"] {
        set(&mut wrong, variable, &format!("{CANARY}with a line\nbreak"));
    }
    let mut other_key = working.clone();
    set(&mut other_key, "CONTROL_PLANE_API_KEY", &format!("{CANARY}of-another-client"));
    set(&mut other_key, "CONTROL_PLANE_API_RETRIES", "0");
    let mut unusable = working.clone();
    set(&mut unusable, "EVENT_SINK_URL", &format!("not a url {CANARY}sink"));
    set(&mut unusable, "CONTROL_PLANE_API_URL", &format!("http://u:{CANARY}@host"));
    for (place, arguments, environment) in [
        ("--print-settings", &["--print-settings"][..], &named),
        ("a dry run", &["--once", "--dry-run"], &working),
        ("a refusal of etcd", &["--once", "--wait-for-lead", "1"], &named),
        ("a refusal of the control plane", &["--once", "--wait-for-lead", "2"], &other_key),
        ("keys that cannot be sent", &["--once", "--dry-run"], &wrong),
        ("settings that cannot be used", &["--print-settings"], &unusable),
    ] {
        let output = run(arguments, environment).await;
        assert!(!output.trim().is_empty(), "{place} has no output");
        assert_no_secret(place, &output);
    }

    let requests = cloud.requests(&RequestFilter::default());
    assert!(requests.len() > 10, "{requests:?}");
    assert_no_secret("the fake cloud's requests", &serde_json::to_string(&requests).expect("JSON"));
    assert_no_secret("the fake cloud's log", &request_log.lock().expect("not poisoned"));
    let state = page(&cloud.endpoints().aws_url, "/_fake/state").await;
    assert!(state.contains("w-licensed"), "{state}");
    assert_no_secret("the fake cloud's state", &state);
    assert_no_secret("the fake cloud in a debugger", &format!("{:?}", cloud.records()));
    cloud.stop().await;
}

/// Reads a page of the fake cloud in a separate thread, because this process serves it.
async fn page(url: &str, path: &'static str) -> String {
    let address = url.trim_start_matches("http://").to_owned();
    let reading = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        response
    });
    reading.await.expect("no panic")
}

#[tokio::test]
async fn no_secret_is_in_debug_output() {
    let secret = |name: &str| Secret::from(format!("{CANARY}{name}"));
    let telemetry = Telemetry::default();
    let account = Account::with_endpoint("http://127.0.0.1:9", "AKIA", &secret("aws"), Tuning::default(), &telemetry);
    let control_plane = ControlPlaneOptions::new("http://127.0.0.1:9", secret("key"));
    let user = EtcdUser::new("lcm", secret("etcd"));
    let mut etcd = EtcdOptions::new(["127.0.0.1:9"]);
    etcd.user = Some(user);
    let sink_url = format!("http://u:{CANARY}password@127.0.0.1:9/?key={CANARY}query");
    let mut sink = SinkOptions::new(sink_url);
    sink.token = Some(secret("bearer"));
    let target = CmlTarget { address: "::1".to_owned(), username: "admin".to_owned(), password: secret("cml") };
    let admin = AdminOptions::new(([127, 0, 0, 1], 0).into()).with_key(secret("admin"));
    let cml = CmlClient::new(CmlOptions::default()).expect("a client");
    // A failed sign-in changes the state of the client.
    let failure = cml.telemetry(&target).await.expect_err("connection refused");
    let settings: Environment = secrets().into_iter().chain([("ETCD_USERNAME".to_owned(), "lcm".to_owned())]).collect();
    let settings = Settings::from_map(settings).expect("valid settings");
    let config = lcm_sdk::from_settings::controller_config(&settings);
    let ports = lcm_sdk::from_settings::ports_with(&settings, account.clone(), &telemetry).expect("clients");
    for (place, text) in [
        ("an account", format!("{account:?}")),
        ("EC2", format!("{:?} {:?}", Ec2::new(account.clone()), CloudWatch::new(account.clone()))),
        ("options of the control plane", format!("{control_plane:?}")),
        ("the control plane", format!("{:?}", ControlPlaneClient::new(control_plane).expect("a client"))),
        ("options of etcd", format!("{etcd:?}")),
        ("etcd", format!("{:?}", Etcd::new(etcd).expect("a client"))),
        ("options of the sink", format!("{sink:?}")),
        ("the sink", format!("{:?}", HttpEvents::new(sink).expect("a client"))),
        ("CML", format!("{cml:?} {target:?} {failure:?} {failure}")),
        ("the admin server", format!("{admin:?} {:?}", AdminServer::bind(admin.clone()).await.expect("a port"))),
        ("the configuration of a controller", format!("{config:?}")),
        ("all ports", format!("{ports:?}")),
        ("settings", format!("{settings:?} {} {:?}", settings.report(), settings.report())),
        ("settings as JSON", serde_json::to_string(&settings.report()).expect("JSON")),
    ] {
        assert_no_secret(place, &text);
    }
}
