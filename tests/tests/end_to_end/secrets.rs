//! A secret of its own in every place that takes one, a controller that logs everything anybody in it has to say, and a
//! fake cloud that shows all it was asked: none of the secrets is in anything that comes out.

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
use lcm_sdk::providers::cml::CmlClient;
use lcm_sdk::providers::control_plane::{self, ControlPlaneClient};
use lcm_sdk::providers::etcd::{Etcd, EtcdOptions, EtcdUser};
use lcm_sdk::providers::events::{HttpEvents, SinkOptions};
use lcm_sdk::settings::Settings;
use lcm_sdk::telemetry::Telemetry;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(120);

/// What every secret begins with: nothing else does.
const CANARY: &str = "canary-";

type Environment = BTreeMap<String, String>;

/// Every setting that is a secret, and those of AWS that are none of ours.
fn secrets() -> Environment {
    let table = Settings::table().into_iter();
    let hidden = table.filter(|setting| setting.name.ends_with("password") || setting.name.ends_with("_key"));
    let own = hidden.flat_map(|setting| setting.variables.iter().map(|name| (*name).to_owned()));
    let others = ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"].map(str::to_owned);
    // Each alias the same: two that differ are a warning, and only one of them counts.
    let name =
        |variable: &str| variable.replace("LCM_", "").replace("CML_WORKER_API_", "CML_DEFAULT_").to_ascii_lowercase();
    own.chain(others).map(|variable| (variable.clone(), format!("{CANARY}{}", name(&variable)))).collect()
}

async fn world() -> (FakeCloud, Environment, Arc<Mutex<String>>) {
    let secrets = secrets();
    for expected in ["CONTROL_PLANE_API_KEY", "CML_DEFAULT_PASSWORD", "ETCD_PASSWORD", "ADMIN_KEY"] {
        assert!(secrets.contains_key(expected), "{expected} is no secret any more: {secrets:?}");
    }
    let builder = FakeCloud::builder()
        .delays(Delays::none())
        .api_key(&secrets["CONTROL_PLANE_API_KEY"])
        .cml(|cml| cml.password = secrets["CML_DEFAULT_PASSWORD"].clone());
    let cloud = builder.start().await.expect("a cloud");
    let heard = Arc::new(Mutex::new(String::new()));
    let ear = Arc::clone(&heard);
    cloud.world().request_log().on_request(move |record| {
        ear.lock().expect("no panic while it was held").push_str(&format!("{record}\n"));
    });

    let instance = || cloud.run_instance("us-east-1", &[]).expect("an instance").id.clone();
    let licence = json!({"status": "unregistered", "pending_operation": "register",
                         "token": "canary-licence-token", "pending_token": "canary-pending-token"});
    for (id, extra) in [
        ("w-licensed", json!({"ec2_instance_id": instance(), "license": licence})),
        (
            "w-own",
            json!({"ec2_instance_id": instance(), "cml_username": "admin", "cml_password": "canary-of-the-record"}),
        ),
        ("w-bad", json!({"status": "asleep", "cml_password": ["canary-of-a-bad-record"]})),
    ] {
        let mut record = json!({"id": id, "status": "running", "desired_status": "running", "aws_region": "us-east-1"});
        record.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        // The control plane refuses the bad one, in words of its own.
        if let Err(refused) = cloud.add_worker(record) {
            quiet("a refusal of the control plane", &refused.to_string());
        }
    }

    let Value::Object(variables) = cloud.endpoints().environment() else { panic!("an object") };
    let variables = variables.into_iter().map(|(name, value)| (name, value.as_str().expect("text").to_owned()));
    let mut environment: Environment = variables.collect();
    environment.extend(secrets);
    // Nobody is there, which is something to complain about, without saying where.
    environment.insert("EVENT_SINK_URL".to_owned(), format!("http://u:{CANARY}sink@127.0.0.1:9/?key={CANARY}query"));
    for (name, value) in
        [("RUST_LOG", "trace"), ("ADMIN_PORT", "0"), ("STARTUP_RECONCILE_DELAY", "0"), ("NO_COLOR", "1")]
    {
        environment.insert(name.to_owned(), value.to_owned());
    }
    (cloud, environment, heard)
}

fn quiet(place: &str, text: &str) {
    let told: Vec<&str> = text.lines().filter(|line| line.contains(CANARY)).take(5).collect();
    assert!(told.is_empty(), "{place} tells a secret:\n{}", told.join("\n"));
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

/// Sets a variable under its prefixed name, which wins over the other one.
fn set(environment: &mut Environment, variable: &str, value: &str) {
    environment.insert(format!("LCM_{variable}"), value.to_owned());
}

/// A controller that runs, and everything it says.
struct Running {
    child: Child,
    said: Arc<Mutex<String>>,
}

impl Running {
    fn start(environment: &Environment) -> Self {
        let mut child = command(&[], environment).spawn().expect("it starts");
        let said = Arc::new(Mutex::new(String::new()));
        let pipes: [Box<dyn std::io::Read + Send>; 2] =
            [Box::new(child.stderr.take().expect("stderr")), Box::new(child.stdout.take().expect("stdout"))];
        for mut pipe in pipes {
            let said = Arc::clone(&said);
            std::thread::spawn(move || {
                let mut bytes = [0; 64 * 1024];
                while let Ok(read @ 1..) = pipe.read(&mut bytes) {
                    let text = String::from_utf8_lossy(&bytes[..read]);
                    said.lock().expect("no panic while it was held").push_str(&text);
                }
            });
        }
        Self { child, said }
    }

    fn said(&self) -> String {
        self.said.lock().expect("no panic while it was held").clone()
    }

    async fn until(&self, what: &str, mut happened: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !happened() {
            let said = self.said();
            let last = said.len().saturating_sub(4000);
            assert!(Instant::now() < deadline, "never: {what}\n{}", said.get(last..).unwrap_or_default());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn port(&self) -> Option<u16> {
        let said = self.said();
        let line = said.lines().find(|line| line.contains("the admin server listens"))?;
        line.split("127.0.0.1:").nth(1)?.split(|sign: char| !sign.is_ascii_digit()).next()?.parse().ok()
    }

    fn ask(&self, method: &str, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port().expect("a port"))).expect("it listens");
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: 0\r\n\r\n"
        )
        .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_comes_out_of_the_command_or_the_fake_cloud_at_any_level_of_logging() {
    let (cloud, environment, heard) = world().await;
    // The fake etcd has no users, so a name and a password are a reason to complain, not to work.
    let working = without(&environment, &["ETCD_USERNAME", "ETCD_PASSWORD"]);
    let running = Running::start(&working);
    running.until("its admin server listens", || running.port().is_some()).await;
    let registered = || {
        let worker = cloud.worker("w-licensed").expect("it is there");
        worker.get("license").is_some_and(|license| license["status"] == "registered")
    };
    running.until("the licence is registered", registered).await;
    for (method, path, headers) in [
        ("GET", "/admin/stats", String::new()),
        ("GET", "/admin/resources", String::new()),
        ("GET", "/admin/resources/w-own", String::new()),
        ("GET", "/metrics", String::new()),
        ("GET", "/readyz", String::new()),
        ("POST", "/admin/resources/w-own/reconcile", String::new()),
        ("POST", "/admin/resources/w-own/reconcile", format!("X-API-Key: {}\r\n", environment["ADMIN_KEY"])),
        ("POST", "/admin/resources/w-own/reconcile", format!("X-API-Key: {CANARY}of-a-stranger\r\n")),
    ] {
        quiet(path, &running.ask(method, path, &headers));
    }
    running.until("the event sink is complained about", || running.said().contains("not delivered")).await;
    let said = running.said();
    drop(running);
    for part in ["TRACE", "aws_", "hyper", "lcm::"] {
        assert!(said.contains(part), "nothing of {part} was logged: the story has lost a part");
    }
    quiet("the log", &said);

    let mut named = environment.clone();
    set(&mut named, "ETCD_USERNAME", "lcm");
    let mut wrong = working.clone();
    for variable in ["CONTROL_PLANE_API_KEY", "ADMIN_KEY", "CML_DEFAULT_PASSWORD"] {
        set(&mut wrong, variable, &format!("{CANARY}with a line\nbreak"));
    }
    let mut stranger = working.clone();
    set(&mut stranger, "CONTROL_PLANE_API_KEY", &format!("{CANARY}of-a-stranger"));
    set(&mut stranger, "CONTROL_PLANE_API_RETRIES", "0");
    let mut unusable = working.clone();
    set(&mut unusable, "EVENT_SINK_URL", &format!("not a url {CANARY}sink"));
    set(&mut unusable, "CONTROL_PLANE_API_URL", &format!("http://u:{CANARY}@host"));
    for (place, arguments, environment) in [
        ("--print-settings", &["--print-settings"][..], &named),
        ("a dry run", &["--once", "--dry-run"], &working),
        ("a refusal of etcd", &["--once", "--wait-for-lead", "1"], &named),
        ("a refusal of the control plane", &["--once", "--wait-for-lead", "2"], &stranger),
        ("keys that cannot be sent", &["--once", "--dry-run"], &wrong),
        ("settings that cannot be used", &["--print-settings"], &unusable),
    ] {
        let said = run(arguments, environment).await;
        assert!(!said.trim().is_empty(), "{place} says nothing");
        quiet(place, &said);
    }

    let requests = cloud.requests(&RequestFilter::default());
    assert!(requests.len() > 10, "{requests:?}");
    quiet("the fake cloud's requests", &serde_json::to_string(&requests).expect("JSON"));
    quiet("the fake cloud's log", &heard.lock().expect("no panic while it was held"));
    let state = page(&cloud.endpoints().aws_url, "/_fake/state").await;
    assert!(state.contains("w-licensed"), "{state}");
    quiet("the fake cloud's state", &state);
    quiet("the fake cloud in a debugger", &format!("{:?}", cloud.records()));
    cloud.stop().await;
}

/// A page of the fake cloud, in a thread of its own: it is served by this very process.
async fn page(url: &str, path: &'static str) -> String {
    let address = url.trim_start_matches("http://").to_owned();
    let asked = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    });
    asked.await.expect("no panic")
}

#[tokio::test]
async fn no_client_and_no_options_show_the_secrets_they_were_made_with() {
    let secret = |of: &str| Secret::from(format!("{CANARY}{of}"));
    let telemetry = Telemetry::default();
    let account = Account::with_endpoint("http://127.0.0.1:9", "AKIA", &secret("aws"), Tuning::default(), &telemetry);
    let control_plane = control_plane::Options::new("http://127.0.0.1:9", secret("key"));
    let user = EtcdUser::new("lcm", secret("etcd"));
    let mut etcd = EtcdOptions::new(["127.0.0.1:9"]);
    etcd.user = Some(user);
    let sink_url = format!("http://u:{CANARY}password@127.0.0.1:9/?key={CANARY}query");
    let mut sink = SinkOptions::new(sink_url);
    sink.token = Some(secret("bearer"));
    let target = CmlTarget { address: "::1".to_owned(), username: "admin".to_owned(), password: secret("cml") };
    let admin = AdminOptions::new(([127, 0, 0, 1], 0).into()).with_key(secret("admin"));
    let cml = CmlClient::new(lcm_sdk::providers::cml::Options::default()).expect("a client");
    // A sign-in that fails leaves something behind in the client.
    let failure = cml.telemetry(&target).await.expect_err("nobody is there");
    let settings: Environment = secrets().into_iter().chain([("ETCD_USERNAME".to_owned(), "lcm".to_owned())]).collect();
    let settings = Settings::from_map(settings).expect("good settings");
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
        quiet(place, &text);
    }
}
