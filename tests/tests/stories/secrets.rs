//! Secrets: a fleet with a secret in every supported place leaks none of them.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fake_cloud::FakeCloud;
use fake_cloud::control_plane::Generation::{self, Extended};
use fake_cloud::etcd::{KeyRange, Range};
use fake_cloud::world::Delays;
use lcm_sdk::admin::AdminSource as _;
use lcm_sdk::lifecycle::{CmlMetrics, RegistrationStatus};
use lcm_sdk::logging::{self, Color};
use lcm_sdk::ports::{Cml, CmlTarget, Events};
use lcm_sdk::providers::etcd::{Etcd, EtcdOptions, EtcdUser};
use lcm_sdk::providers::events::{FanoutEvents, HttpEvents, SinkOptions};
use lcm_sdk::reconciler::CmlDefaults;
use lcm_sdk::settings::Settings;
use lcm_sdk::telemetry::Anomaly;
use lcm_sdk::{CallFailure, Secret, WorkerStatus};
use rstest::rstest;
use serde_json::{Value, json};

use lcm_tests::harness::{AWS_SECRET, Harness, REGION, eventually};
use lcm_tests::log_capture::secrets_in;

/// Text shared between writers, such as the log of all components.
#[derive(Clone, Default)]
struct SharedText(Arc<Mutex<String>>);

impl SharedText {
    fn text(&self) -> String {
        self.0.lock().expect("lock is not poisoned").clone()
    }
}

impl io::Write for SharedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("lock is not poisoned").push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A CML client that panics for one worker, with its login in the message.
struct PanickingCml(Arc<dyn Cml>);

#[async_trait]
impl Cml for PanickingCml {
    async fn system(&self, at: &CmlTarget) -> Result<CmlMetrics, CallFailure> {
        assert_ne!(at.username, "panic", "cannot talk to {at:?}");
        self.0.system(at).await
    }

    async fn telemetry(&self, at: &CmlTarget) -> Result<Vec<Value>, CallFailure> {
        self.0.telemetry(at).await
    }

    async fn registration(&self, at: &CmlTarget) -> Result<RegistrationStatus, CallFailure> {
        self.0.registration(at).await
    }

    async fn register(&self, at: &CmlTarget, token: &Secret) -> Result<(), CallFailure> {
        self.0.register(at, token).await
    }

    async fn reregister(&self, at: &CmlTarget, token: &Secret) -> Result<(), CallFailure> {
        self.0.reregister(at, token).await
    }

    async fn deregister(&self, at: &CmlTarget) -> Result<(), CallFailure> {
        self.0.deregister(at).await
    }
}

/// An event sink that accepts every fourth request and rejects the others. Each response echoes the request.
fn echoing_sink(received: SharedText) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("port is free");
    let address = listener.local_addr().expect("listener has an address");
    std::thread::spawn(move || {
        for (number, mut stream) in listener.incoming().flatten().enumerate() {
            drop(stream.set_read_timeout(Some(Duration::from_secs(5))));
            let (head, body) = read_request(&mut stream);
            let status = if number % 4 < 3 { "400 Bad Request" } else { "200 OK" };
            let length = head.len() + body.len();
            drop(write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{head}{body}"
            ));
            drop(received.clone().write_all(body.as_bytes()));
        }
    });
    format!("http://{address}/events?key=sink-secret-query")
}

/// Reads the head and body of a request. The body is empty if the connection closes early.
fn read_request(stream: &mut TcpStream) -> (String, String) {
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    loop {
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let lowercase = head.to_ascii_lowercase();
            let length = lowercase.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return (head.to_owned(), body.to_owned());
            }
        }
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return (text, String::new()),
            Ok(more) => text.push_str(&String::from_utf8_lossy(&bytes[..more])),
        }
    }
}

/// Records of the original server show no login, and its license operations are in etcd with their token:
/// `tests/end_to_end/secrets.rs` covers it.
#[rstest]
#[tokio::test]
async fn secrets_do_not_leak(#[values(Extended)] generation: Generation) {
    let (log, sent_events) = (SharedText::default(), SharedText::default());
    let trace = Settings::from_map([("RUST_LOG", "trace")]).expect("settings are valid");
    let writer = log.clone();
    let subscriber =
        logging::subscriber(&trace.logs, Color::Off, move || writer.clone()).expect("directives are valid");
    // The whole test runs on this thread, so the subscriber receives every log line.
    let _subscriber = tracing::subscriber::set_default(subscriber);

    let builder =
        FakeCloud::builder().control_plane(generation).api_key("control-plane-secret-key").delays(Delays::none()).cml(
            |cml| {
                cml.password = "cml-secret-password".to_owned();
                cml.boot = fake_cloud::cml::Boot::INSTANT;
                cml.licensing.registration = Duration::ZERO;
            },
        );
    let harness = Harness::start(builder).await;
    let endpoint = harness.cloud.endpoints().etcd_endpoint.clone();

    harness.add_running_worker("w-licensed").await;
    harness
        .cloud
        .update_worker(
            "w-licensed",
            json!({"license": {
                "status": "unregistered", "pending_operation": "register", "pending_token": "license-token-0451",
                "token": "license-token-0451",
            }}),
        )
        .expect("desired status is accepted");
    for (id, login) in [
        ("w-wrong", json!({"cml_password": "cml-wrong-password"})),
        ("w-default", json!({"cml_username": null, "cml_password": null})),
        ("w-panic", json!({"cml_username": "panic"})),
    ] {
        harness.add_running_worker(id).await;
        harness.cloud.update_worker(id, login).expect("login is updated");
    }
    harness.add_worker("w-denied", json!({"desired_status": "running"}));
    harness.inject(json!({
        "service": "ec2", "operation": "RunInstances", "times": 1,
        "action": {"kind": "error", "code": "InternalError"},
    }));
    harness.inject(json!({
        "service": "control-plane", "operation": "report_*", "probability": 0.3,
        "action": {"kind": "error", "code": "unauthorized", "message": "control-plane-secret-key is not welcome"},
    }));
    harness.inject(json!({
        "service": "cml", "operation": "system*", "probability": 0.2,
        "action": {"kind": "error", "code": "418", "message": "cml-secret-password is no good"},
    }));
    harness.inject(json!({
        "service": "cml", "operation": "register", "times": 1,
        "action": {"kind": "error", "code": "503", "message": "cannot take license-token-0451 now"},
    }));

    let mut sink = SinkOptions::new(echoing_sink(sent_events.clone()));
    sink.token = Some(Secret::from("sink-secret-token"));
    let sink: Arc<dyn Events> = Arc::new(HttpEvents::new(sink).expect("URL is valid"));
    let actor = harness.start_controller_on(&endpoint, "only", |config, ports| {
        config.cml = CmlDefaults::new("admin", "cml-default-password");
        ports.cml = Arc::new(PanickingCml(Arc::clone(&ports.cml)));
        ports.events = Arc::new(FanoutEvents::new([Arc::clone(&ports.events), sink]));
    });
    assert!(actor.controller.ready().await.is_complete());
    let registered = || async { harness.worker("w-licensed").await.license.status.as_deref() == Some("registered") };
    eventually("the license is registered", registered).await;
    eventually("w-denied runs", || async { harness.status("w-denied").await == WorkerStatus::Running }).await;
    eventually("a reconcile has panicked", || async { actor.telemetry.anomalies(Anomaly::Panic) > 0 }).await;
    for id in ["w-denied", "w-wrong"] {
        harness.cloud.update_worker(id, json!({"desired_status": "terminated"})).expect("desired status is accepted");
        eventually("the worker is terminated", || async { harness.status(id).await == WorkerStatus::Terminated }).await;
    }

    // A termination outside of the controller publishes an event.
    let instance = harness.worker("w-default").await.ec2_instance_id.expect("worker has an instance").to_string();
    harness.cloud.terminate_instance(REGION, &instance).expect("instance terminates");
    eventually("its termination is recorded", || async {
        harness.status("w-default").await == WorkerStatus::Terminated
    })
    .await;
    eventually("the sink receives the event", || async { !sent_events.text().is_empty() }).await;

    // An etcd without this user.
    let user = EtcdUser::new("lcm", "etcd-secret-password");
    let mut options = EtcdOptions::new([format!("http://{endpoint}")]);
    options.user = Some(user);
    let options_text = format!("{options:?}");
    let unauthorized: Arc<dyn lcm_sdk::ports::Coordination> = Arc::new(Etcd::new(options).expect("options are valid"));
    let rejected = unauthorized.list("/workers/").await;

    let stored = harness.cloud.etcd().range(&Range::new(KeyRange::From("\0".into()))).expect("all keys are read");
    let stored: Vec<_> = stored.records.iter().map(|record| String::from_utf8_lossy(&record.value)).collect();
    assert!(!stored.is_empty());
    let settings = Settings::from_map([
        ("CONTROL_PLANE_API_KEY", "control-plane-secret-key"),
        ("CML_DEFAULT_PASSWORD", "cml-default-password"),
        ("ETCD_USERNAME", "lcm"),
        ("ETCD_PASSWORD", "etcd-secret-password"),
        ("EVENT_SINK_URL", "https://lcm:sink-secret-token@events/?key=sink-secret-query"),
        ("AWS_SECRET_ACCESS_KEY", AWS_SECRET),
    ]);
    let settings = settings.expect("settings are valid");
    let worker = harness.worker("w-licensed").await;
    let result = harness.reconcile("w-licensed").await;
    let resources = serde_json::to_string(&actor.controller.resources()).expect("value serializes");
    assert!(resources.contains("w-panic"), "{resources}");
    for (place, text) in [
        ("/metrics", actor.telemetry.to_prometheus()),
        ("/admin/stats", serde_json::to_string(&actor.controller.stats()).expect("value serializes")),
        ("/admin/resources", resources),
        ("events", format!("{:?}", harness.cloud.events())),
        ("events at the sink", sent_events.text()),
        ("audit", format!("{:?}", harness.cloud.audit())),
        ("etcd", stored.join("\n")),
        ("--print-settings", settings.report().to_string()),
        ("settings as Debug", format!("{settings:?}")),
        ("etcd options", options_text),
        ("etcd error", format!("{rejected:?}")),
        ("worker as Debug", format!("{worker:?}")),
        ("reconcile result", format!("{result:?} {}", serde_json::to_string(&result).expect("value serializes"))),
        ("controller as Debug", format!("{:?} {:?}", actor.controller, harness.reconciler())),
    ] {
        assert_eq!(secrets_in(&text), [""; 0], "{place} contains a secret: {text}");
    }
    actor.stop().await;

    let logged = log.text();
    for expected in ["lcm::apply", "lcm::reconcile", "a reconcile panicked", "cannot talk to", "not delivered"] {
        assert!(logged.contains(expected), "{expected} was not logged: the test no longer covers it");
    }
    let leaks: Vec<_> = logged.lines().filter(|line| !secrets_in(line).is_empty()).collect();
    assert_eq!(leaks, [""; 0], "{} lines contain secrets", leaks.len());
    println!("{} log lines, {} bytes, no secret", logged.lines().count(), logged.len());
}
