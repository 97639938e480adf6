//! Tests of the operations of `FakeCloud` on a manual clock.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use fake_cloud::admin::ResetTo;
use fake_cloud::cml::{Boot, BootStage};
use fake_cloud::control_plane::ApiVersion;
use fake_cloud::faults::{Action, Rule};
use fake_cloud::world::InstanceState;
use fake_cloud::world::metrics::MetricKey;
use fake_cloud::{Exposure, FakeCloud, FakeCloudBuilder, Pace, RequestFilter, Scenario, Service};
use serde_json::{Value, json};

const REGION: &str = "us-east-1";

fn manual() -> FakeCloudBuilder {
    FakeCloud::builder().pace(Pace::Manual)
}

async fn start(builder: FakeCloudBuilder) -> FakeCloud {
    builder.start().await.expect("starts on free ports")
}

const fn minutes(number: u64) -> Duration {
    Duration::from_secs(number * 60)
}

/// Returns a client that trusts the CML certificate authority, and the base URL of the CML server of an instance.
fn cml_client(cloud: &FakeCloud, id: &str) -> (reqwest::Client, String) {
    let pem = std::fs::read(&cloud.endpoints().cml_ca_file).expect("the CA file");
    let root = reqwest::Certificate::from_pem(&pem).expect("a certificate");
    let client = reqwest::Client::builder().no_proxy().tls_certs_merge([root]).build().expect("a client");
    let address = cloud.instance(REGION, id).and_then(|it| it.public_ip(cloud.now())).expect("a running instance");
    (client, format!("https://{address}:{}/api/v0", cloud.endpoints().cml_port))
}

#[tokio::test]
async fn all_services_follow_the_manual_clock() {
    let cloud = start(manual().cml(|cml| cml.boot = Boot::REALISTIC)).await;
    let id = cloud.run_instance(REGION, &[("Name", "blue")]).expect("launches").id.clone();
    let state = || cloud.instance(REGION, &id).map(|instance| instance.state(cloud.now()));
    assert_eq!(state(), Some(InstanceState::Pending));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(state(), Some(InstanceState::Pending));
    // The instance is running after 15 seconds, so its CML server has been booting for almost four minutes.
    cloud.advance(Duration::from_secs(15 + 239)).await;
    assert_eq!(state(), Some(InstanceState::Running));
    let server = cloud.cml(&id).expect("a CML server");
    assert_eq!(server.stage(), BootStage::NotReady);
    cloud.advance(Duration::from_secs(1)).await;
    assert_eq!(server.stage(), BootStage::Ready);

    let (client, base) = cml_client(&cloud, &id);
    let login = json!({"username": "admin", "password": "admin"});
    let token: String = client
        .post(format!("{base}/authenticate"))
        .json(&login)
        .send()
        .await
        .expect("it listens once the clock was advanced")
        .json()
        .await
        .expect("a token");
    let licensing = || client.get(format!("{base}/licensing")).bearer_auth(&token).send();
    let register = client.post(format!("{base}/licensing/registration")).bearer_auth(&token);
    let accepted = register.json(&json!({"token": "abc", "reregister": false})).send().await.expect("a response");
    assert_eq!(accepted.status(), 204);
    assert_eq!(cloud.cml_registration(&id).as_deref(), Some("IN_PROGRESS"));
    cloud.advance(Duration::from_secs(10)).await;
    assert_eq!(cloud.cml_registration(&id).as_deref(), Some("COMPLETED"));
    assert_eq!(licensing().await.expect("a response").status(), 200);

    let lease = cloud.etcd().lease_grant(0, 60).expect("granted").0;
    cloud.add_worker(json!({"id": "w-1", "status": "running"})).expect("added");
    let key = MetricKey::new("AWS/EC2", "CPUUtilization", [("InstanceId", id.as_str())]);
    let points = || cloud.world().metric_points(REGION, &key, cloud.now() - chrono::TimeDelta::days(2), cloud.now());
    let before = points().len();
    cloud.advance(minutes(60 * 24)).await;
    assert_eq!(licensing().await.expect("a response").status(), 401, "the login has expired");
    assert!(!cloud.etcd().leases().contains(&lease));
    assert!(points().len() > before + 200, "metrics continue");
    let changed = cloud.update_worker("w-1", json!({"status": "stopping"})).expect("changed");
    let updated_at = changed.time("updated_at").expect("a timestamp");
    assert!((cloud.now() - updated_at).num_milliseconds().abs() < 1, "records have the time of the world");

    cloud.stop_instance(REGION, &id).expect("stops");
    cloud.advance(minutes(1)).await;
    assert_eq!(state(), Some(InstanceState::Stopped));
    assert!(client.get(format!("{base}/system_information")).send().await.is_err(), "the connection is refused");
    cloud.start_instance(REGION, &id).expect("starts");
    cloud.advance(minutes(10)).await;
    let (client, base) = cml_client(&cloud, &id);
    assert!(client.get(format!("{base}/system_information")).send().await.is_ok());
    cloud.terminate_instance(REGION, &id).expect("terminates");
    cloud.advance(minutes(62)).await;
    assert_eq!(state(), None, "removed after an hour");
    cloud.stop().await;
}

#[tokio::test]
async fn tests_can_read_and_change_all_state() {
    let cloud = start(manual()).await;
    let id = cloud.run_instance(REGION, &[]).expect("launches").id.clone();
    cloud.tag_instance(REGION, &id, "lcm:protect", "true").expect("tagged");
    assert_eq!(cloud.instances(REGION)[0].tags["lcm:protect"], "true");
    assert!(cloud.instances("eu-nowhere-9").is_empty());
    cloud.advance(minutes(1)).await;
    assert!(cloud.wipe_cml(&id) && !cloud.wipe_cml("i-0"));
    cloud.set_metric(REGION, "AWS/EC2", "CPUUtilization", &id, 97.5).expect("set");

    cloud.add_worker(json!({"id": "w-1", "name": "blue"})).expect("added");
    let version = cloud.worker("w-1").expect("there").version();
    let changed =
        cloud.update_worker("w-1", json!({"status": "RUNNING", "note": {"a": 1}, "version": 99})).expect("ok");
    assert_eq!((changed.status(), changed.version()), ("running", version + 1));
    assert_eq!(changed.get("note"), Some(&json!({"a": 1})));
    assert_eq!(cloud.update_worker("w-9", json!({})).expect_err("unknown").http_status(), 404);
    cloud.add_session(json!({"id": "s-1", "worker_id": "w-1"})).expect("added");
    assert_eq!((cloud.workers().len(), cloud.sessions().len()), (1, 1));
    assert_eq!(cloud.session("s-1").expect("there")["status"], "pending");
    cloud.add_template(json!({"name": "huge", "instance_type": "m5zn.metal"})).expect("added");
    assert_eq!(cloud.templates().len(), 6);
    cloud.set_discovery(json!({"regions": ["eu-west-1"]})).expect("set");
    assert_eq!(cloud.discovery()["regions"], json!(["eu-west-1"]));

    cloud.inject(Rule { times: Some(1), ..Rule::new(Action::Reset) }).expect("a valid rule");
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let drain = || {
        let url = format!("{}/api/internal/workers/w-1/drain", cloud.endpoints().control_plane_url);
        client.post(url).header("X-API-Key", &cloud.endpoints().control_plane_api_key).send()
    };
    drain().await.expect_err("reset");
    assert_eq!(drain().await.expect("a response").status(), 200);
    cloud.clear_faults();
    assert_eq!(cloud.count(Service::ControlPlane, "drain_worker"), 2);
    assert_eq!(cloud.requests(&RequestFilter::default()).len(), 2);
    assert_eq!(cloud.audit()[0]["action"], "drain_accepted");
    assert!(cloud.events().iter().any(|event| event["type"] == "cml_worker.drain.started.v1"));
    cloud.stop().await;
}

#[tokio::test]
async fn reset_restores_the_scenario_or_an_empty_world() {
    let scenario = Scenario::parse(
        "test",
        "control_plane: older\n\
         fleet: [{name: blue}]\n\
         workers: [{id: w-1, status: running, instance: blue}]\n\
         faults: [{service: ec2, after: 9, action: {kind: reset}}]",
    );
    let cloud = start(manual().scenario(scenario.expect("a valid scenario"))).await;
    let first = cloud.instances(REGION)[0].id.clone();
    assert_eq!(cloud.worker("w-1").expect("there").get("version"), None, "the scenario selects the older API");
    cloud.add_worker(json!({"id": "w-2"})).expect("added");
    cloud.terminate_instance(REGION, &first).expect("terminates");
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let url = format!("{}reset", cloud.endpoints().admin_url);
    assert_eq!(client.post(&url).send().await.expect("a response").status(), 200, "no body is needed");
    let ids: Vec<_> = cloud.workers().iter().map(|worker| worker.id().to_owned()).collect();
    assert_eq!(ids, ["w-1"]);
    assert_eq!(cloud.instances(REGION)[0].state(cloud.now()), InstanceState::Running);
    assert_eq!(cloud.instances(REGION)[0].id, first, "ids depend on the seed");
    assert_eq!(cloud.world().faults().list().len(), 1);
    assert!(cloud.etcd().revision() > 1, "the records are mirrored to etcd");
    cloud.settle().await;
    assert_eq!(cloud.cml(&first).map(|server| server.stage()), Some(BootStage::Ready));

    let response = client.post(&url).json(&json!({"to": "empty"})).send().await.expect("a response");
    assert_eq!(response.status(), 200);
    assert!(cloud.workers().is_empty() && cloud.instances(REGION).is_empty());
    assert_eq!(client.post(&url).json(&json!({"to": "moon"})).send().await.expect("a response").status(), 422);
    cloud.reset(ResetTo::Scenario).expect("a valid scenario");
    assert_eq!(cloud.workers().len(), 1);
    cloud.stop().await;
}

#[tokio::test]
async fn older_control_plane_has_no_versions() {
    let cloud = start(manual().api_version(ApiVersion::Older)).await;
    cloud.add_worker(json!({"id": "w-1", "status": "running", "drain_started_at": null})).expect("added");
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let base = format!("{}/api/internal/workers", cloud.endpoints().control_plane_url);
    let key = &cloud.endpoints().control_plane_api_key;
    let post = |path: &str, body: Value| {
        client.post(format!("{base}{path}")).header("X-API-Key", key).header("If-Match", "\"77\"").json(&body).send()
    };
    let rejected = post("/w-1/terminate", json!({})).await.expect("a response");
    assert_eq!(rejected.status(), 404);
    let written = post("/w-1/status", json!({"status": "stopping", "expected_version": 77})).await.expect("a response");
    assert_eq!(written.status(), 200, "writes are unconditional");
    assert_eq!(written.headers().get("etag"), None);
    let record: Value = written.json().await.expect("JSON");
    assert!(record.get("version").is_none() && record.get("drain_started_at").is_none(), "{record}");
    let listed = client.get(format!("{base}?exclude_statuses=nonsense")).header("X-API-Key", key).send().await;
    let listed: Value = listed.expect("a response").json().await.expect("JSON");
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "the older API ignores exclude_statuses");
    let ended = json!({"status": "terminated", "terminated_by": "operator", "terminated_reason": "gone"});
    assert_eq!(post("/w-1/status", ended).await.expect("a response").status(), 200);
    assert_eq!(cloud.worker("w-1").expect("there").text("terminated_by"), Some("operator"));
    cloud.stop().await;
}

#[tokio::test]
async fn cml_server_recovers_from_a_port_in_use() {
    let cloud = start(manual()).await;
    let id = cloud.run_instance(REGION, &[]).expect("launches").id.clone();
    let address = cloud.instances(REGION)[0].assigned_ip;
    let taken = std::net::TcpListener::bind((address, cloud.endpoints().cml_port)).expect("a free port");
    cloud.advance(minutes(1)).await;
    let url = format!("{}state", cloud.endpoints().admin_url);
    let state: Value = reqwest::Client::builder()
        .no_proxy()
        .build()
        .expect("a client")
        .get(url)
        .send()
        .await
        .expect("a response")
        .json()
        .await
        .expect("JSON");
    let problem = state["cml"][0]["problem"].as_str().expect("a problem");
    assert!(problem.contains(&format!("cannot listen on {address}:")), "{problem}");
    let notice = state["notices"][0]["text"].as_str().expect("a notice");
    assert!(notice.starts_with(&format!("the CML of {id} cannot be reached: ")), "{notice}");
    drop(taken);
    for _ in 0..1000 {
        if cloud.cml(&id).is_some() && is_listening(&cloud, &id).await == Some(true) {
            return cloud.stop().await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the server did not listen within ten seconds");
}

async fn is_listening(cloud: &FakeCloud, id: &str) -> Option<bool> {
    let url = format!("{}state", cloud.endpoints().admin_url);
    let client = reqwest::Client::builder().no_proxy().build().ok()?;
    let state: Value = client.get(url).send().await.ok()?.json().await.ok()?;
    state["cml"].as_array()?.iter().find(|cml| cml["instance"] == id)?["listening"].as_bool()
}

#[tokio::test]
async fn cml_limit_is_enforced_and_reported() {
    let cloud = start(manual().cml_limit(2)).await;
    for _ in 0..4 {
        cloud.run_instance(REGION, &[]).expect("launches");
    }
    cloud.advance(minutes(1)).await;
    let count = || async {
        let mut listening = 0;
        for instance in cloud.instances(REGION) {
            listening += usize::from(is_listening(&cloud, &instance.id).await == Some(true));
        }
        listening
    };
    assert_eq!(count().await, 2);
    let notices = cloud.world().request_log().notices();
    assert_eq!(notices.len(), 2, "{notices:?}");
    assert!(notices[0].text.contains("--cml-limit"), "{notices:?}");
    // A further launch must not start more servers.
    cloud.run_instance(REGION, &[]).expect("launches");
    cloud.advance(minutes(1)).await;
    assert_eq!(count().await, 2);
    // When a server stops, the next waiting one starts.
    let ids: Vec<String> = cloud.instances(REGION).iter().map(|instance| instance.id.clone()).collect();
    cloud.terminate_instance(REGION, &ids[0]).expect("terminates");
    for _ in 0..1000 {
        if is_listening(&cloud, &ids[2]).await == Some(true) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((is_listening(&cloud, &ids[0]).await, count().await), (Some(false), 2));
    cloud.stop().await;
}

#[tokio::test]
async fn other_addresses_require_exposure() {
    let open = || manual().host(Ipv4Addr::UNSPECIFIED);
    let error = open().start().await.expect_err("not exposed").to_string();
    assert!(error.starts_with("0.0.0.0 ") && error.contains("--expose"), "{error}");
    start(open().exposure(Exposure::network())).await.stop().await;
}

#[tokio::test]
async fn exposed_admin_api_requires_its_key() {
    // Requests to an address of this machine other than loopback count as remote.
    let probe = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let own = probe.connect("192.0.2.1:9").and_then(|()| probe.local_addr()).map(|address| address.ip());
    // Without a network, this test covers loopback only; the unit tests of the access control cover the rest.
    let own = own.ok().filter(|own| !own.is_loopback() && !own.is_unspecified());
    let exposure = Exposure::Network { admin_key: "open-sesame".to_owned() };
    let cloud = start(manual().host(Ipv4Addr::UNSPECIFIED).exposure(exposure)).await;
    assert_eq!(cloud.endpoints().admin_key.as_deref(), Some("open-sesame"));
    let port = cloud.endpoints().aws_url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    for host in [Some(Ipv4Addr::LOCALHOST.into()), own].into_iter().flatten() {
        let url = |path: &str| format!("http://{}/_fake/{path}", SocketAddr::new(host, port));
        let send = async |request: reqwest::RequestBuilder| request.send().await.expect("a response");
        let rejected = send(client.post(url("reset"))).await;
        assert_eq!(rejected.status(), 401, "{host}");
        let body: Value = rejected.json().await.expect("JSON");
        assert!(body["error"].as_str().is_some_and(|error| error.contains("X-API-Key")), "{body}");
        assert_eq!(send(client.delete(url("requests")).header("x-api-key", "swordfish")).await.status(), 401);
        assert_eq!(send(client.post(url("reset")).header("x-api-key", "open-sesame")).await.status(), 200, "{host}");
        let status = send(client.get(url("clock"))).await.status();
        assert_eq!(status, if host.is_loopback() { 200 } else { 401 }, "{host}");
    }
    cloud.stop().await;
}
