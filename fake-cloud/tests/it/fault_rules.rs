//! Tests of fault rules for the control plane and etcd, over sockets.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use fake_cloud::control_plane::Generation;
use fake_cloud::faults::{Action, Rule, WaitOn};
use fake_cloud::{FakeCloud, Pace, RequestFilter, RequestOutcome, Service};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn start() -> FakeCloud {
    start_with(Generation::default()).await
}

async fn start_with(generation: Generation) -> FakeCloud {
    FakeCloud::builder().pace(Pace::Manual).control_plane(generation).start().await.expect("starts on free ports")
}

fn rule(service: Service, action: Action) -> Rule {
    Rule { service: Some(service), ..Rule::new(action) }
}

fn error(code: &str) -> Action {
    Action::Error { code: code.to_owned(), status: None, message: None }
}

fn add(cloud: &FakeCloud, rules: impl IntoIterator<Item = Rule>) {
    for rule in rules {
        cloud.world().faults().add(rule).expect("a valid rule");
    }
}

async fn workers(cloud: &FakeCloud) -> reqwest::Result<reqwest::Response> {
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let url = format!("{}/api/internal/workers", cloud.endpoints().control_plane_url);
    client.get(url).header("X-API-Key", &cloud.endpoints().control_plane_api_key).send().await
}

#[tokio::test]
async fn latency_in_real_time_combines_with_an_error() {
    let cloud = start_with(Generation::Extended).await;
    let slow = Action::Latency { seconds: 0.2, on: WaitOn::Real };
    add(&cloud, [rule(Service::ControlPlane, slow.clone()), rule(Service::ControlPlane, error("version_conflict"))]);
    let began = Instant::now();
    let response = workers(&cloud).await.expect("a response");
    assert!(began.elapsed() >= Duration::from_millis(200));
    assert_eq!(response.status(), 409, "the default status of the code");
    let body: Value = response.json().await.expect("JSON");
    assert_eq!(body["error"], "version_conflict");
    let records = cloud.world().request_log().find(&RequestFilter::default());
    assert_eq!(records[0].faults, [1, 2]);
    assert_eq!(records[0].outcome, RequestOutcome::Refused { status: 409, code: "version_conflict".to_owned() });

    add(&cloud, [rule(Service::Etcd, slow), rule(Service::Etcd, error("unavailable"))]);
    let mut etcd = etcd_client::Client::connect([&cloud.endpoints().etcd_endpoint], None).await.expect("a connection");
    let began = Instant::now();
    etcd.get("/a", None).await.expect_err("rejected");
    assert!(began.elapsed() >= Duration::from_millis(200));
    cloud.stop().await;
}

#[tokio::test]
async fn reset_and_dropped_response_end_the_connection() {
    let cloud = start_with(Generation::Extended).await;
    let address = cloud.endpoints().control_plane_url.trim_start_matches("http://").to_owned();
    let key = &cloud.endpoints().control_plane_api_key;
    let body = r#"{"id": "w-1"}"#;
    let request = format!(
        "POST /api/internal/workers HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for (action, kind, outcome, is_executed) in [
        (Action::Reset, Some(ErrorKind::ConnectionReset), RequestOutcome::Reset, false),
        (Action::DropResponse, None, RequestOutcome::ResponseDropped, true),
    ] {
        cloud.world().faults().clear();
        cloud.world().request_log().clear();
        add(&cloud, [rule(Service::ControlPlane, action)]);
        let mut stream = TcpStream::connect(&address).await.expect("a listener");
        stream.write_all(request.as_bytes()).await.expect("the request is sent");
        let end = stream.read_to_end(&mut Vec::new()).await;
        assert_eq!(end.as_ref().err().map(std::io::Error::kind), kind, "{end:?}");
        assert_eq!(end.unwrap_or(0), 0, "no part of a response");
        assert_eq!(cloud.world().request_log().find(&RequestFilter::default())[0].outcome, outcome);
        assert_eq!(cloud.records().worker("w-1").is_ok(), is_executed);
    }
    cloud.stop().await;
}

#[tokio::test]
async fn key_rules_apply_to_matching_prefixes_only() {
    let cloud = start().await;
    let key_rule =
        |action| Rule { key_prefix: Some("/lcm/workers/".to_owned()), times: Some(2), ..rule(Service::Etcd, action) };
    let mut etcd = etcd_client::Client::connect([&cloud.endpoints().etcd_endpoint], None).await.expect("a connection");
    add(&cloud, [key_rule(error("resource-exhausted"))]);
    etcd.put("/lcm/leader", "leader", None).await.expect("another key");
    let error = etcd.put("/lcm/workers/w-1/state", "running", None).await.expect_err("the rule applies");
    assert!(error.to_string().contains("resource-exhausted"), "{error}");
    let write = etcd_client::TxnOp::put("/lcm/workers/w-1/state", "running", None);
    etcd.txn(etcd_client::Txn::new().and_then([write])).await.expect_err("the rule applies to transactions");
    etcd.get("/lcm/workers/w-1/state", None).await.expect("the rule applies twice");
    let logged: Vec<_> = cloud.world().request_log().find(&RequestFilter::default());
    let faults: Vec<_> = logged.iter().map(|record| (record.operation.as_str(), record.faults.len())).collect();
    assert_eq!(faults, [("Put", 0), ("Put", 1), ("Txn", 1), ("Range", 0)]);

    cloud.world().faults().clear();
    add(&cloud, [key_rule(Action::DropResponse)]);
    let revision = cloud.etcd().revision();
    etcd.put("/lcm/workers/w-1/state", "running", None).await.expect_err("no response");
    assert_eq!(cloud.etcd().revision(), revision + 1, "the request was executed");
    cloud.stop().await;
}
