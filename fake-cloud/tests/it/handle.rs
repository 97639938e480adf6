//! Tests of the operations of `FakeCloud` on a manual clock.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use fake_cloud::admin::ResetTo;
use fake_cloud::cml::{Boot, BootStage};
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
    assert_eq!(cloud.worker("w-1").expect("there").get("version"), None, "the original server is the default");
    let changed =
        cloud.update_worker("w-1", json!({"status": "RUNNING", "note": {"a": 1}, "version": 99})).expect("ok");
    assert_eq!(changed.status(), "running");
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
        "control_plane: extended\n\
         fleet: [{name: blue}]\n\
         workers: [{id: w-1, status: running, instance: blue}]\n\
         faults: [{service: ec2, after: 9, action: {kind: reset}}]",
    );
    let cloud = start(manual().scenario(scenario.expect("a valid scenario"))).await;
    let first = cloud.instances(REGION)[0].id.clone();
    assert_eq!(cloud.worker("w-1").expect("there").version(), 1, "the scenario selects the extended server");
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

#[tokio::test]
async fn instances_are_found_by_name_and_by_worker() {
    let cloud = start(manual()).await;
    let id = cloud.run_instance(REGION, &[("Name", "blue")]).expect("launches").id.clone();
    cloud.advance(minutes(1)).await;
    cloud.add_worker(json!({"id": "w-1", "name": "green", "ec2_instance_id": id})).expect("a worker");
    cloud.stop_instance(REGION, "blue").expect("stops by the name of the instance");
    cloud.advance(minutes(1)).await;
    cloud.start_instance(REGION, "w-1").expect("starts by the id of the worker");
    cloud.tag_instance(REGION, "green", "team", "a").expect("tags by the name of the worker");
    assert_eq!(cloud.worker("green").expect("a worker").id(), "w-1");
    assert_eq!(cloud.find_instance(None, "blue"), Ok((REGION.to_owned(), id)));
}

#[tokio::test]
async fn mistyped_names_are_refused_with_the_probable_one() {
    let cloud = start(manual()).await;
    cloud.run_instance(REGION, &[("Name", "blue")]).expect("launches");
    cloud.add_worker(json!({"id": "w-blue", "name": "one"})).expect("a worker");
    let rule = Rule { operation: Some("RunInstance".to_owned()), ..Rule::new(Action::Reset) };
    for (error, hint) in [
        (cloud.stop_instance(REGION, "bleu").expect_err("unknown").to_string(), "did you mean 'blue'?"),
        (cloud.worker("w-bleu").expect_err("unknown").to_string(), "did you mean 'w-blue'?"),
        (cloud.inject(rule).expect_err("unknown").to_string(), "did you mean 'RunInstances'?"),
        (add_error(&cloud, json!({"desired_stauts": "running"})), "unknown field \"desired_stauts\"; did you mean"),
        (add_error(&cloud, json!({"status": "runing"})), "did you mean 'running'?"),
        (
            add_error(&cloud, json!({"template_name": "meta"})),
            "unknown worker template \"meta\"; did you mean 'metal'?",
        ),
        (
            cloud.add_session(json!({"worker_id": "w-blue", "status": "stoped"})).expect_err("unknown").to_string(),
            "unknown session state \"stoped\"; did you mean 'stopped'?",
        ),
    ] {
        assert!(error.contains(hint), "{error}");
    }
}

fn add_error(cloud: &FakeCloud, fields: Value) -> String {
    cloud.add_worker(fields).expect_err("refused").to_string()
}

#[tokio::test]
async fn name_of_two_instances_is_refused() {
    let cloud = start(manual()).await;
    let launch = || cloud.run_instance(REGION, &[("Name", "blue")]).expect("launches").id.clone();
    let ids = [launch(), launch()];
    let error = cloud.stop_instance(REGION, "blue").expect_err("ambiguous").to_string();
    assert!(ids.iter().all(|id| error.contains(id)) && error.contains("2 instances are named 'blue'"), "{error}");
    cloud.terminate_instance(REGION, &ids[0]).expect("terminates");
    cloud.advance(minutes(2)).await;
    cloud.stop_instance(REGION, "blue").expect("the other one is terminated");
}

#[tokio::test]
async fn unmet_condition_reports_the_last_state() {
    let cloud = start(manual()).await;
    cloud.run_instance(REGION, &[("Name", "blue")]).expect("launches");
    cloud.add_worker(json!({"id": "w-1", "status": "starting"})).expect("a worker");
    let unmet = cloud.until(Duration::from_millis(30), |cloud| cloud.now() == chrono::DateTime::UNIX_EPOCH).await;
    let report = unmet.expect_err("the clock stands still").to_string();
    for line in ["did not hold within 30ms", "w-1 starting, desired running", " 'blue' pending", "no latest requests"] {
        assert!(report.contains(line), "{report}");
    }
    let met = cloud.until(Duration::from_secs(5), |cloud| cloud.worker("w-1").is_ok()).await;
    assert_eq!(met, Ok(()));
}

#[tokio::test]
async fn failed_call_assertion_lists_the_requests() {
    let cloud = start(manual()).await;
    let url = format!("{}?Action=DescribeRegions&Version=2016-11-15", cloud.endpoints().aws_url);
    let scope = "AWS4-HMAC-SHA256 Credential=fake/20260206/us-east-1/ec2/aws4_request, SignedHeaders=host, Signature=0";
    let request = reqwest::Client::builder().no_proxy().build().expect("a client").get(url);
    request.header("authorization", scope).send().await.expect("a response");
    cloud.assert_called(Service::Ec2, "DescribeRegions", 1);
    let filter = |operation: &str| RequestFilter { operation: Some(operation.to_owned()), ..RequestFilter::default() };
    let report = cloud.check_called(&filter("DescribeRegions"), Some(2)).expect_err("made once");
    assert!(report.starts_with("DescribeRegions: expected 2, made 1\nlatest 1 of 1 requests:\n"), "{report}");
    let report = cloud.check_called(&filter("DescribeRegion"), None).expect_err("a typing error");
    assert_eq!(report, "unknown operation 'DescribeRegion'; did you mean 'DescribeRegions'?");
}

/// A cloud with a running instance `blue` of the worker `w-1`, and a timeline.
async fn with_timeline(timeline: &str) -> FakeCloud {
    let text = format!(
        "fleet: [{{name: blue}}]\nworkers: [{{id: w-1, status: running, instance: blue}}]\n\
         sessions: [{{id: s-1, worker: w-1, status: running}}]\ntimeline:\n{timeline}"
    );
    start(manual().scenario(Scenario::parse("mine.yaml", &text).expect("a valid scenario"))).await
}

#[tokio::test]
async fn steps_of_a_timeline_are_taken_at_their_times() {
    let steps =
        "  - {at: 5m, stop: blue}\n  - {at: 10m, start: w-1}\n  - {at: 5m, session: {id: s-1, status: stopped}}";
    let cloud = with_timeline(steps).await;
    let started = cloud.now();
    cloud.advance(minutes(20)).await;
    let (_, id) = cloud.find_instance(None, "blue").expect("an instance");
    let instance = cloud.instance(REGION, &id).expect("an instance");
    assert_eq!(instance.launched_at, started + chrono::TimeDelta::minutes(10));
    assert_eq!(instance.runs[0].until, Some(started + chrono::TimeDelta::minutes(5)));
    assert_eq!(cloud.session("s-1").expect("a session")["status"], "stopped");
    assert_eq!(cloud.now(), started + chrono::TimeDelta::minutes(20));
}

#[tokio::test]
async fn timeline_follows_a_clock_that_runs() {
    let scenario = "fleet: [{name: blue}]\ntimeline: [{at: 60s, stop: blue}]";
    let scenario = Scenario::parse("mine.yaml", scenario).expect("a valid scenario");
    let cloud = start(FakeCloud::builder().pace(Pace::Accelerated(600.0)).scenario(scenario)).await;
    let is_stopped = |cloud: &FakeCloud| {
        cloud.instance(REGION, "blue").is_some_and(|blue| blue.state(cloud.now()) == InstanceState::Stopped)
    };
    assert_eq!(cloud.until(Duration::from_secs(20), is_stopped).await, Ok(()));
}

#[tokio::test]
async fn failed_step_of_a_timeline_is_a_notice() {
    let cloud = with_timeline("  - {at: 1m, terminate: blue}\n  - {at: 3m, start: blue}").await;
    cloud.advance(minutes(5)).await;
    let notices = cloud.world().request_log().notices();
    let [notice] = &*notices else { panic!("{notices:?}") };
    assert!(notice.text.contains(r#"{"start":"blue"} failed: IncorrectInstanceState"#), "{}", notice.text);
}

#[tokio::test]
async fn reset_starts_the_timeline_anew() {
    let cloud = with_timeline("  - {at: 5m, drain: w-1}\n  - {at: 6m, fault: {action: {kind: reset}}}").await;
    cloud.advance(minutes(10)).await;
    assert_eq!(cloud.worker("w-1").expect("a worker").status(), "draining");
    cloud.reset(ResetTo::Scenario).expect("resets");
    assert_eq!(cloud.worker("w-1").expect("a worker").status(), "running");
    cloud.advance(minutes(6)).await;
    assert_eq!(cloud.worker("w-1").expect("a worker").status(), "draining");
    assert_eq!(cloud.world().faults().list().len(), 1);
    cloud.reset(ResetTo::Empty).expect("resets");
    cloud.advance(minutes(10)).await;
    assert!(cloud.world().request_log().notices().is_empty());
}
