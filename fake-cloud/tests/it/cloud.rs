//! Tests of a complete cloud over sockets.

use std::time::Duration;

use fake_cloud::control_plane::Generation;
use fake_cloud::etcd::{KeyRange, Range};
use fake_cloud::world::{InstanceAction, Intent, LaunchRequest};
use fake_cloud::{FakeCloud, Pace, Ports};
use serde_json::{Value, json};

const REGION: &str = "us-east-1";

async fn start() -> FakeCloud {
    FakeCloud::builder().pace(Pace::Manual).start().await.expect("starts on free ports")
}

/// Returns a client that trusts the CML certificate authority and uses no proxy.
fn client(cloud: &FakeCloud) -> reqwest::Client {
    let pem = std::fs::read(&cloud.endpoints().cml_ca_file).expect("the CA file");
    let root = reqwest::Certificate::from_pem(&pem).expect("a certificate");
    reqwest::Client::builder().no_proxy().tls_certs_merge([root]).build().expect("a client")
}

/// Launches an instance and returns its id.
fn launch(cloud: &FakeCloud) -> String {
    launch_image(cloud, "cisco-cml2.9.1")
}

/// Launches the image whose name begins with `name`.
fn launch_image(cloud: &FakeCloud, name: &str) -> String {
    let launch = cloud.world().with_ec2(|ec2, now| {
        let images = &ec2.region(REGION, now)?.catalog.images;
        let image = images.iter().find(|image| image.name.starts_with(name)).expect("an image").id.clone();
        ec2.launch(REGION, LaunchRequest::new(image), Intent::Execute, now)
    });
    launch.expect("launches").instances[0].id.clone()
}

fn address(cloud: &FakeCloud, id: &str) -> Option<std::net::Ipv4Addr> {
    cloud.world().with_ec2(|ec2, now| ec2.region(REGION, now).ok()?.find(id)?.public_ip(now))
}

/// Repeats `attempt` until it returns a value, for up to ten seconds.
async fn eventually<T>(event: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..500 {
        if let Some(found) = attempt().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{event} did not happen within ten seconds");
}

#[tokio::test]
async fn cml_has_the_version_of_the_image() {
    let cloud = start().await;
    let client = client(&cloud);
    for version in ["2.7.2", "2.8.1", "2.9.0", "2.9.1"] {
        let instance = launch_image(&cloud, &format!("cisco-cml{version}"));
        cloud.world().clock().advance(Duration::from_secs(3600));
        let address = address(&cloud, &instance).expect("a running instance has an address");
        let url = format!("https://{address}:{}/api/v0/system_information", cloud.endpoints().cml_port);
        let request = async || client.get(&url).send().await.ok()?.json::<Value>().await.ok();
        let information = eventually("CML", request).await;
        assert!(information["version"].as_str().is_some_and(|reported| reported.starts_with(version)), "{information}");
    }
}

#[tokio::test]
async fn running_instances_serve_cml_on_their_own_addresses() {
    let cloud = start().await;
    let client = client(&cloud);
    let [first, second] = [launch(&cloud), launch(&cloud)];
    cloud.world().clock().advance(Duration::from_secs(3600));
    let url = |id: &str| {
        let address = address(&cloud, id).expect("a running instance has an address");
        format!("https://{address}:{}/api/v0/system_information", cloud.endpoints().cml_port)
    };
    let urls = [url(&first), url(&second)];
    assert_ne!(urls[0], urls[1]);
    for url in &urls {
        let information: Value = eventually("CML", async || client.get(url).send().await.ok()?.json().await.ok()).await;
        assert_eq!(information["version"], "2.9.1+build.7");
    }
    cloud.world().console_action(REGION, &first, InstanceAction::Stop).expect("stops");
    cloud.world().clock().advance(Duration::from_secs(3600));
    eventually("the refused connection", async || client.get(&urls[0]).send().await.is_err().then_some(())).await;
    assert!(client.get(&urls[1]).send().await.is_ok(), "the other server continues");
    cloud.world().console_action(REGION, &first, InstanceAction::Start).expect("starts");
    cloud.world().clock().advance(Duration::from_secs(3600));
    let moved = url(&first);
    assert_ne!(moved, urls[0]);
    eventually("CML at its new address", async || client.get(&moved).send().await.ok()).await;
    cloud.stop().await;
}

#[tokio::test]
async fn cml_servers_without_visitors_have_no_tasks() {
    let cloud = start().await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let ids: Vec<String> = (0..20).map(|_| launch(&cloud)).collect();
    cloud.advance(Duration::from_secs(3600)).await;
    assert_eq!(tasks(), before);
    for id in &ids {
        let address = address(&cloud, id).expect("a running instance has an address");
        let visit = std::net::TcpStream::connect((address, cloud.endpoints().cml_port)).expect("it listens");
        eventually("the task of the connection", async || (tasks() == before + 1).then_some(())).await;
        drop(visit);
        eventually("the end of the connection", async || (tasks() == before).then_some(())).await;
    }
    cloud.stop().await;
}

#[tokio::test]
async fn record_changes_are_mirrored_to_etcd() {
    // The original server creates no workers over this API.
    let builder = FakeCloud::builder().pace(Pace::Manual).control_plane(Generation::Extended);
    let cloud = builder.start().await.expect("starts on free ports");
    let client = client(&cloud);
    let base = format!("{}/api/internal", cloud.endpoints().control_plane_url);
    let key = &cloud.endpoints().control_plane_api_key;
    let created = client
        .post(format!("{base}/workers"))
        .header("X-API-Key", key)
        .json(&json!({"name": "blue", "template_name": "metal", "aws_region": REGION}))
        .send()
        .await
        .expect("a response");
    assert!(created.status().is_success(), "{}: {}", created.status(), created.text().await.unwrap_or_default());
    let worker: Value = created.json().await.expect("a record");
    let id = worker["id"].as_str().expect("an id");
    let keys = cloud.etcd().range(&Range::new(KeyRange::prefix(format!("/lcm/workers/{id}/")))).expect("a range");
    let found: Vec<_> = keys.records.iter().map(|record| String::from_utf8_lossy(&record.key).into_owned()).collect();
    assert!(found.contains(&format!("/lcm/workers/{id}/state")), "{found:?}");
    cloud.stop().await;
}

#[tokio::test]
async fn fault_rules_apply_to_the_control_plane() {
    let cloud = start().await;
    let client = client(&cloud);
    let rule =
        json!({"service": "control-plane", "times": 1, "action": {"kind": "error", "code": "down", "status": 503}});
    let added = client.post(format!("{}faults", cloud.endpoints().admin_url)).json(&rule).send().await;
    assert!(added.expect("a response").status().is_success());
    let workers = || {
        client
            .get(format!("{}/api/internal/workers", cloud.endpoints().control_plane_url))
            .header("X-API-Key", &cloud.endpoints().control_plane_api_key)
            .send()
    };
    assert_eq!(workers().await.expect("a response").status(), 503);
    assert_eq!(workers().await.expect("a response").status(), 200);
    cloud.stop().await;
}

#[tokio::test]
async fn clouds_share_no_state() {
    let [one, other] = [start().await, start().await];
    launch(&one);
    let count = |cloud: &FakeCloud| {
        cloud.world().with_ec2(|ec2, now| ec2.region(REGION, now).map(|region| region.instances().count()))
    };
    assert_eq!((count(&one).expect("a region"), count(&other).expect("a region")), (1, 0));
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn error_names_the_port_in_use() {
    let cloud = start().await;
    let taken: u16 =
        cloud.endpoints().etcd_endpoint.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let mut ports = Ports::default();
    ports.etcd = taken;
    let error = FakeCloud::builder().ports(ports).start().await.expect_err("the port is in use").to_string();
    assert!(error.starts_with(&format!("cannot listen on 127.0.0.1:{taken} for etcd: ")), "{error}");
    cloud.stop().await;
}
