//! The cloud in the hands of a test, on a clock that is moved by hand.

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
    builder.start().await.expect("it starts on free ports")
}

const fn minutes(number: u64) -> Duration {
    Duration::from_secs(number * 60)
}

/// A client that trusts the cloud's own authority, and the address of an instance's CML.
fn cml_of(cloud: &FakeCloud, id: &str) -> (reqwest::Client, String) {
    let pem = std::fs::read(&cloud.endpoints().cml_ca_file).expect("the authority's file");
    let root = reqwest::Certificate::from_pem(&pem).expect("a certificate");
    let client = reqwest::Client::builder().no_proxy().tls_certs_merge([root]).build().expect("a client");
    let address = cloud.instance(REGION, id).and_then(|it| it.public_ip(cloud.now())).expect("it runs");
    (client, format!("https://{address}:{}/api/v0", cloud.endpoints().cml_port))
}

#[tokio::test]
async fn everything_follows_a_clock_that_is_moved_by_hand_and_nothing_moves_without_it() {
    let cloud = start(manual().cml(|cml| cml.boot = Boot::REALISTIC)).await;
    let id = cloud.run_instance(REGION, &[("Name", "blue")]).expect("it launches").id.clone();
    let state = || cloud.instance(REGION, &id).map(|instance| instance.state(cloud.now()));
    assert_eq!(state(), Some(InstanceState::Pending));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(state(), Some(InstanceState::Pending));
    // One long step: the instance ran after fifteen seconds, so its CML has booted for four minutes by now.
    cloud.advance(Duration::from_secs(15 + 239)).await;
    assert_eq!(state(), Some(InstanceState::Running));
    let system = cloud.cml(&id).expect("it has a CML");
    assert_eq!(system.stage(), BootStage::NotReady);
    cloud.advance(Duration::from_secs(1)).await;
    assert_eq!(system.stage(), BootStage::Ready);

    let (client, base) = cml_of(&cloud, &id);
    let login = json!({"username": "admin", "password": "admin"});
    let token: String = client
        .post(format!("{base}/authenticate"))
        .json(&login)
        .send()
        .await
        .expect("it listens as soon as the clock was moved")
        .json()
        .await
        .expect("a token");
    let licensing = || client.get(format!("{base}/licensing")).bearer_auth(&token).send();
    let register = client.post(format!("{base}/licensing/registration")).bearer_auth(&token);
    let accepted = register.json(&json!({"token": "abc", "reregister": false})).send().await.expect("an answer");
    assert_eq!(accepted.status(), 204);
    assert_eq!(cloud.cml_registration(&id).as_deref(), Some("IN_PROGRESS"));
    cloud.advance(Duration::from_secs(10)).await;
    assert_eq!(cloud.cml_registration(&id).as_deref(), Some("COMPLETED"));
    assert_eq!(licensing().await.expect("an answer").status(), 200);

    let lease = cloud.etcd().lease_grant(0, 60).expect("granted").0;
    cloud.add_worker(json!({"id": "w-1", "status": "running"})).expect("added");
    let key = MetricKey::new("AWS/EC2", "CPUUtilization", [("InstanceId", id.as_str())]);
    let points = || cloud.world().metric_points(REGION, &key, cloud.now() - chrono::TimeDelta::days(2), cloud.now());
    let before = points().len();
    cloud.advance(minutes(60 * 24)).await;
    assert_eq!(licensing().await.expect("an answer").status(), 401, "the login has expired");
    assert!(!cloud.etcd().leases().contains(&lease));
    assert!(points().len() > before + 200, "metrics go on");
    let changed = cloud.update_worker("w-1", json!({"status": "stopping"})).expect("changed");
    let stamp = changed.time("updated_at").expect("a time");
    assert!((cloud.now() - stamp).num_milliseconds().abs() < 1, "records carry the world's time");

    cloud.stop_instance(REGION, &id).expect("it stops");
    cloud.advance(minutes(1)).await;
    assert_eq!(state(), Some(InstanceState::Stopped));
    assert!(client.get(format!("{base}/system_information")).send().await.is_err(), "nobody listens");
    cloud.start_instance(REGION, &id).expect("it starts");
    cloud.advance(minutes(10)).await;
    let (client, base) = cml_of(&cloud, &id);
    assert!(client.get(format!("{base}/system_information")).send().await.is_ok());
    cloud.terminate_instance(REGION, &id).expect("it ends");
    cloud.advance(minutes(62)).await;
    assert_eq!(state(), None, "out of sight after an hour");
    cloud.stop().await;
}

#[tokio::test]
async fn a_test_looks_at_everything_and_reaches_into_everything() {
    let cloud = start(manual()).await;
    let id = cloud.run_instance(REGION, &[]).expect("it launches").id.clone();
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

    cloud.inject(Rule { times: Some(1), ..Rule::always(Action::Reset) }).expect("a good rule");
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let drain = || {
        let url = format!("{}/api/internal/workers/w-1/drain", cloud.endpoints().control_plane_url);
        client.post(url).header("X-API-Key", &cloud.endpoints().control_plane_api_key).send()
    };
    drain().await.expect_err("reset");
    assert_eq!(drain().await.expect("an answer").status(), 200);
    cloud.clear_faults();
    assert_eq!(cloud.count(Service::ControlPlane, "drain_worker"), 2);
    assert_eq!(cloud.requests(&RequestFilter::default()).len(), 2);
    assert_eq!(cloud.audit()[0]["action"], "drain_accepted");
    assert!(cloud.events().iter().any(|event| event["type"] == "cml_worker.drain.started.v1"));
    cloud.stop().await;
}

#[tokio::test]
async fn a_reset_goes_back_to_the_scenario_or_to_nothing() {
    let scenario = Scenario::parse(
        "test",
        "control_plane: older\n\
         fleet: [{name: blue}]\n\
         workers: [{id: w-1, status: running, instance: blue}]\n\
         faults: [{service: ec2, after: 9, action: {kind: reset}}]",
    );
    let cloud = start(manual().scenario(scenario.expect("a good scenario"))).await;
    let first = cloud.instances(REGION)[0].id.clone();
    assert_eq!(cloud.worker("w-1").expect("there").get("version"), None, "the scenario asked for the older one");
    cloud.add_worker(json!({"id": "w-2"})).expect("added");
    cloud.terminate_instance(REGION, &first).expect("it ends");
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let url = format!("{}reset", cloud.endpoints().admin_url);
    assert_eq!(client.post(&url).send().await.expect("an answer").status(), 200, "no body is needed");
    let ids: Vec<_> = cloud.workers().iter().map(|worker| worker.id().to_owned()).collect();
    assert_eq!(ids, ["w-1"]);
    assert_eq!(cloud.instances(REGION)[0].state(cloud.now()), InstanceState::Running);
    assert_eq!(cloud.instances(REGION)[0].id, first, "the same seed, the same world");
    assert_eq!(cloud.world().faults().list().len(), 1);
    assert!(cloud.etcd().revision() > 1, "and its mirror in etcd");
    cloud.settle().await;
    assert_eq!(cloud.cml(&first).map(|system| system.stage()), Some(BootStage::Ready));

    let answer = client.post(&url).json(&json!({"to": "empty"})).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    assert!(cloud.workers().is_empty() && cloud.instances(REGION).is_empty());
    assert_eq!(client.post(&url).json(&json!({"to": "moon"})).send().await.expect("an answer").status(), 422);
    cloud.reset(ResetTo::Scenario).expect("it could be done before");
    assert_eq!(cloud.workers().len(), 1);
    cloud.stop().await;
}

#[tokio::test]
async fn an_older_control_plane_has_no_versions_and_no_way_to_terminate_but_a_status_write() {
    let cloud = start(manual().api_version(ApiVersion::Older)).await;
    cloud.add_worker(json!({"id": "w-1", "status": "running", "drain_started_at": null})).expect("added");
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let base = format!("{}/api/internal/workers", cloud.endpoints().control_plane_url);
    let key = &cloud.endpoints().control_plane_api_key;
    let post = |path: &str, body: Value| {
        client.post(format!("{base}{path}")).header("X-API-Key", key).header("If-Match", "\"77\"").json(&body).send()
    };
    let refused = post("/w-1/terminate", json!({})).await.expect("an answer");
    assert_eq!(refused.status(), 404);
    let written = post("/w-1/status", json!({"status": "stopping", "expected_version": 77})).await.expect("an answer");
    assert_eq!(written.status(), 200, "writes are unconditional");
    assert_eq!(written.headers().get("etag"), None);
    let record: Value = written.json().await.expect("JSON");
    assert!(record.get("version").is_none() && record.get("drain_started_at").is_none(), "{record}");
    let listed = client.get(format!("{base}?exclude_statuses=nonsense")).header("X-API-Key", key).send().await;
    let listed: Value = listed.expect("an answer").json().await.expect("JSON");
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "it does not even read what to exclude");
    let ended = json!({"status": "terminated", "terminated_by": "me", "terminated_reason": "gone"});
    assert_eq!(post("/w-1/status", ended).await.expect("an answer").status(), 200);
    assert_eq!(cloud.worker("w-1").expect("there").text("terminated_by"), Some("me"));
    cloud.stop().await;
}

#[tokio::test]
async fn a_cml_whose_port_is_taken_says_so_and_comes_back_when_it_is_free() {
    let cloud = start(manual()).await;
    let id = cloud.run_instance(REGION, &[]).expect("it launches").id.clone();
    let address = cloud.instances(REGION)[0].assigned_ip;
    let taken = std::net::TcpListener::bind((address, cloud.endpoints().cml_port)).expect("nobody has it yet");
    cloud.advance(minutes(1)).await;
    let url = format!("{}state", cloud.endpoints().admin_url);
    let state: Value = reqwest::Client::builder()
        .no_proxy()
        .build()
        .expect("a client")
        .get(url)
        .send()
        .await
        .expect("an answer")
        .json()
        .await
        .expect("JSON");
    let problem = state["cml"][0]["problem"].as_str().expect("a problem");
    assert!(problem.contains(&format!("cannot listen on {address}:")), "{problem}");
    let notice = state["notices"][0]["text"].as_str().expect("a notice");
    assert!(notice.starts_with(&format!("the CML of {id} cannot be reached: ")), "{notice}");
    drop(taken);
    for _ in 0..1000 {
        if cloud.cml(&id).is_some() && state_of(&cloud, &id).await == Some(true) {
            return cloud.stop().await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it did not come back within ten seconds");
}

async fn state_of(cloud: &FakeCloud, id: &str) -> Option<bool> {
    let url = format!("{}state", cloud.endpoints().admin_url);
    let client = reqwest::Client::builder().no_proxy().build().ok()?;
    let state: Value = client.get(url).send().await.ok()?.json().await.ok()?;
    state["cml"].as_array()?.iter().find(|cml| cml["instance"] == id)?["listening"].as_bool()
}

#[tokio::test]
async fn more_cmls_than_the_limit_are_named_and_the_limit_holds() {
    let cloud = start(manual().cml_limit(2)).await;
    for _ in 0..4 {
        cloud.run_instance(REGION, &[]).expect("it launches");
    }
    cloud.advance(minutes(1)).await;
    let count = || async {
        let mut on = 0;
        for instance in cloud.instances(REGION) {
            on += usize::from(state_of(&cloud, &instance.id).await == Some(true));
        }
        on
    };
    assert_eq!(count().await, 2);
    let notices = cloud.world().request_log().notices();
    assert_eq!(notices.len(), 2, "{notices:?}");
    assert!(notices[0].text.contains("--cml-limit"), "{notices:?}");
    // Another look must not bring more of them on.
    cloud.run_instance(REGION, &[]).expect("it launches");
    cloud.advance(minutes(1)).await;
    assert_eq!(count().await, 2);
    // Where one goes, the next in line comes.
    let line: Vec<String> = cloud.instances(REGION).iter().map(|instance| instance.id.clone()).collect();
    cloud.terminate_instance(REGION, &line[0]).expect("it ends");
    for _ in 0..1000 {
        if state_of(&cloud, &line[2]).await == Some(true) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((state_of(&cloud, &line[0]).await, count().await), (Some(false), 2));
    cloud.stop().await;
}

#[tokio::test]
async fn a_cloud_that_lets_others_in_must_be_meant_to() {
    let open = || manual().host(Ipv4Addr::UNSPECIFIED);
    let refused = open().start().await.expect_err("not meant").to_string();
    assert!(refused.starts_with("0.0.0.0 ") && refused.contains("--expose"), "{refused}");
    start(open().exposure(Exposure::network())).await.stop().await;
}

#[tokio::test]
async fn where_others_can_come_in_the_admin_api_wants_its_key() {
    // An address of this machine that is not loopback: whoever comes by it looks like somebody else.
    let probe = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let own = probe.connect("192.0.2.1:9").and_then(|()| probe.local_addr()).map(|address| address.ip());
    // Without a network there is nobody else; the guard's own test tells all of them apart.
    let own = own.ok().filter(|own| !own.is_loopback() && !own.is_unspecified());
    let exposure = Exposure::Network { admin_key: "open-sesame".to_owned() };
    let cloud = start(manual().host(Ipv4Addr::UNSPECIFIED).exposure(exposure)).await;
    assert_eq!(cloud.endpoints().admin_key.as_deref(), Some("open-sesame"));
    let port = cloud.endpoints().aws_url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    for host in [Some(Ipv4Addr::LOCALHOST.into()), own].into_iter().flatten() {
        let url = |path: &str| format!("http://{}/_fake/{path}", SocketAddr::new(host, port));
        let ask = async |request: reqwest::RequestBuilder| request.send().await.expect("an answer");
        let refused = ask(client.post(url("reset"))).await;
        assert_eq!(refused.status(), 401, "{host}");
        let told: Value = refused.json().await.expect("JSON");
        assert!(told["error"].as_str().is_some_and(|error| error.contains("X-API-Key")), "{told}");
        assert_eq!(ask(client.delete(url("requests")).header("x-api-key", "swordfish")).await.status(), 401);
        assert_eq!(ask(client.post(url("reset")).header("x-api-key", "open-sesame")).await.status(), 200, "{host}");
        let looked = ask(client.get(url("clock"))).await.status();
        assert_eq!(looked, if host.is_loopback() { 200 } else { 401 }, "{host}");
    }
    cloud.stop().await;
}
