//! Fault rules outside AWS do what they say: all that match, on the clock they name, on the wire.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use fake_cloud::faults::{Action, Rule, WaitOn};
use fake_cloud::{FakeCloud, Pace, RequestFilter, RequestOutcome, Service};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn start() -> FakeCloud {
    FakeCloud::builder().pace(Pace::Manual).start().await.expect("it starts on free ports")
}

fn rule(service: Service, action: Action) -> Rule {
    Rule { service: Some(service), ..Rule::always(action) }
}

fn error(code: &str) -> Action {
    Action::Error { code: code.to_owned(), status: None, message: None }
}

fn add(cloud: &FakeCloud, rules: impl IntoIterator<Item = Rule>) {
    for rule in rules {
        cloud.world().faults().add(rule).expect("a good rule");
    }
}

async fn workers(cloud: &FakeCloud) -> reqwest::Result<reqwest::Response> {
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let url = format!("{}/api/internal/workers", cloud.endpoints().control_plane_url);
    client.get(url).header("X-API-Key", &cloud.endpoints().control_plane_api_key).send().await
}

#[tokio::test]
async fn latency_and_an_error_strike_the_same_request_and_real_time_is_real_on_a_clock_that_stands() {
    let cloud = start().await;
    let slow = Action::Latency { seconds: 0.2, on: WaitOn::Real };
    add(&cloud, [rule(Service::ControlPlane, slow.clone()), rule(Service::ControlPlane, error("version_conflict"))]);
    let began = Instant::now();
    let answer = workers(&cloud).await.expect("an answer");
    assert!(began.elapsed() >= Duration::from_millis(200));
    assert_eq!(answer.status(), 409, "a code has its usual status");
    let body: Value = answer.json().await.expect("JSON");
    assert_eq!(body["error"], "version_conflict");
    let records = cloud.world().request_log().find(&RequestFilter::default());
    assert_eq!(records[0].faults, [1, 2]);
    assert_eq!(records[0].outcome, RequestOutcome::Refused { status: 409, code: "version_conflict".to_owned() });

    add(&cloud, [rule(Service::Etcd, slow), rule(Service::Etcd, error("unavailable"))]);
    let mut etcd = etcd_client::Client::connect([&cloud.endpoints().etcd_endpoint], None).await.expect("a connection");
    let began = Instant::now();
    etcd.get("/a", None).await.expect_err("refused");
    assert!(began.elapsed() >= Duration::from_millis(200));
    cloud.stop().await;
}

#[tokio::test]
async fn a_reset_is_a_reset_and_a_lost_answer_is_a_closed_connection() {
    let cloud = start().await;
    let address = cloud.endpoints().control_plane_url.trim_start_matches("http://").to_owned();
    let key = &cloud.endpoints().control_plane_api_key;
    let body = r#"{"id": "w-1"}"#;
    let request = format!(
        "POST /api/internal/workers HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for (action, kind, outcome, done) in [
        (Action::Reset, Some(ErrorKind::ConnectionReset), RequestOutcome::Reset, false),
        (Action::DropResponse, None, RequestOutcome::ResponseDropped, true),
    ] {
        cloud.world().faults().clear();
        cloud.world().request_log().clear();
        add(&cloud, [rule(Service::ControlPlane, action)]);
        let mut stream = TcpStream::connect(&address).await.expect("somebody listens");
        stream.write_all(request.as_bytes()).await.expect("it is sent");
        let ending = stream.read_to_end(&mut Vec::new()).await;
        assert_eq!(ending.as_ref().err().map(std::io::Error::kind), kind, "{ending:?}");
        assert_eq!(ending.unwrap_or(0), 0, "not a byte of an answer");
        assert_eq!(cloud.world().request_log().find(&RequestFilter::default())[0].outcome, outcome);
        assert_eq!(cloud.records().worker("w-1").is_ok(), done);
    }
    cloud.stop().await;
}

#[tokio::test]
async fn a_rule_about_keys_strikes_those_that_begin_so_and_no_others() {
    let cloud = start().await;
    let about =
        |action| Rule { key_prefix: Some("/lcm/workers/".to_owned()), times: Some(2), ..rule(Service::Etcd, action) };
    let mut etcd = etcd_client::Client::connect([&cloud.endpoints().etcd_endpoint], None).await.expect("a connection");
    add(&cloud, [about(error("resource-exhausted"))]);
    etcd.put("/lcm/leader", "me", None).await.expect("another key");
    let refused = etcd.put("/lcm/workers/w-1/state", "running", None).await.expect_err("struck");
    assert!(refused.to_string().contains("resource-exhausted"), "{refused}");
    let write = etcd_client::TxnOp::put("/lcm/workers/w-1/state", "running", None);
    etcd.txn(etcd_client::Txn::new().and_then([write])).await.expect_err("struck in a transaction too");
    etcd.get("/lcm/workers/w-1/state", None).await.expect("twice and no more");
    let struck: Vec<_> = cloud.world().request_log().find(&RequestFilter::default());
    let faults: Vec<_> = struck.iter().map(|record| (record.operation.as_str(), record.faults.len())).collect();
    assert_eq!(faults, [("Put", 0), ("Put", 1), ("Txn", 1), ("Range", 0)]);

    cloud.world().faults().clear();
    add(&cloud, [about(Action::DropResponse)]);
    let revision = cloud.etcd().revision();
    etcd.put("/lcm/workers/w-1/state", "running", None).await.expect_err("no answer");
    assert_eq!(cloud.etcd().revision(), revision + 1, "carried out all the same");
    cloud.stop().await;
}
