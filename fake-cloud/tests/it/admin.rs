//! Admin API of all services.

use std::time::Duration;

use fake_cloud::world::{Intent, LaunchRequest};
use fake_cloud::{FakeCloud, Pace};
use serde_json::{Value, json};

struct Fixture {
    cloud: FakeCloud,
    client: reqwest::Client,
}

impl Fixture {
    async fn start() -> Self {
        let cloud = FakeCloud::builder().pace(Pace::Manual).start().await.expect("started");
        let pem = std::fs::read(&cloud.endpoints().cml_ca_file).expect("the authority's file");
        let root = reqwest::Certificate::from_pem(&pem).expect("a certificate");
        let client = reqwest::Client::builder().no_proxy().tls_certs_merge([root]).build().expect("a client");
        Self { cloud, client }
    }

    async fn state(&self) -> Value {
        let url = format!("{}state", self.cloud.endpoints().admin_url);
        self.client.get(url).send().await.expect("a response").json().await.expect("JSON")
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let url = format!("{}{path}", self.cloud.endpoints().admin_url);
        let response = self.client.post(url).json(&body).send().await.expect("a response");
        (response.status().as_u16(), response.json().await.expect("JSON"))
    }

    /// Launches an instance, waits until it has a CML server and returns its id.
    async fn launch_with_cml(&self) -> String {
        let launch = self.cloud.world().with_ec2(|ec2, now| {
            let image = ec2.region("us-east-1", now)?.catalog.images[0].id.clone();
            ec2.launch("us-east-1", LaunchRequest::new(image), Intent::Execute, now)
        });
        let id = launch.expect("launched").instances[0].id.clone();
        self.cloud.world().clock().advance(Duration::from_secs(60));
        for _ in 0..500 {
            let shown = &self.state().await["cml"][0];
            if shown["instance"] == id.as_str() && shown["address"].is_string() {
                return id;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("no CML within ten seconds");
    }
}

#[tokio::test]
async fn state_shows_console_records_without_secrets() {
    let fixture = Fixture::start().await;
    let worker = json!({"id": "w-1", "name": "blue", "status": "running", "cml_password": "hunter2"});
    assert_eq!(fixture.post("console/worker", worker.clone()).await.0, 200);
    assert_eq!(fixture.post("console/session", json!({"id": "s-1", "worker_id": "w-1"})).await.0, 200);
    let (status, again) = fixture.post("console/worker", worker).await;
    assert_eq!(status, 409, "{again}");
    let (status, nowhere) = fixture.post("console/session", json!({"worker_id": "w-9"})).await;
    assert_eq!(status, 404, "{nowhere}");
    let state = fixture.state().await;
    assert_eq!((&state["workers"][0]["id"], &state["workers"][0]["status"]), (&json!("w-1"), &json!("running")));
    assert_eq!(state["sessions"][0]["worker_id"], "w-1");
    assert!(state["etcd"]["revision"].as_i64() > Some(1), "records are mirrored: {}", state["etcd"]);
    assert!(!state.to_string().contains("hunter2"));
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn etcd_faults_are_injected_and_cleared() {
    let fixture = Fixture::start().await;
    let etcd = fixture.cloud.etcd();
    let (lease, _) = etcd.lease_grant(0, 60).expect("granted");
    let shown = fixture.state().await["etcd"]["leases"][0].clone();
    assert_eq!((&shown["id"], &shown["seconds_left"]), (&json!(format!("{lease:x}")), &json!(60)));
    assert_eq!(fixture.post("etcd/lease-lost", json!({"lease": shown["id"]})).await.0, 200);
    assert!(etcd.leases().is_empty());
    assert_eq!(fixture.post("etcd/lease-lost", json!({"lease": lease})).await.0, 404, "already revoked");
    assert_eq!(fixture.post("etcd/unavailable", json!({})).await.0, 200);
    assert!(etcd.is_unavailable());
    let url = format!("{}etcd/available", fixture.cloud.endpoints().admin_url);
    assert!(fixture.client.post(url).send().await.expect("a response").status().is_success(), "the body is optional");
    assert!(!etcd.is_unavailable());
    let (status, refusal) = fixture.post("etcd/meteor", json!({})).await;
    assert_eq!(status, 422);
    assert!(refusal["error"].as_str().is_some_and(|error| error.contains("watch-stall")), "{refusal}");
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn watches_stall_resume_and_end() {
    let fixture = Fixture::start().await;
    let endpoint = &fixture.cloud.endpoints().etcd_endpoint;
    let mut etcd = etcd_client::Client::connect([endpoint], None).await.expect("a connection");
    let mut watch = etcd.watch("/a", None).await.expect("a watch");
    etcd.put("/a", "0", None).await.expect("written");
    // The first message only confirms the watch.
    while watch.message().await.expect("a response").expect("a message").events().is_empty() {}
    assert_eq!(fixture.post("etcd/watch-stall", json!({})).await.0, 200);
    etcd.put("/a", "1", None).await.expect("written");
    let silence = tokio::time::timeout(Duration::from_millis(100), watch.message()).await;
    assert!(silence.is_err(), "no event while watches stall");
    assert_eq!(fixture.post("etcd/watch-resume", json!({})).await.0, 200);
    let delayed = watch.message().await.expect("a response").expect("the delayed event");
    assert_eq!(delayed.events()[0].kv().map(|kv| kv.value().to_vec()), Some(b"1".to_vec()));
    assert_eq!(fixture.post("etcd/watch-cut", json!({})).await.0, 200);
    let end = tokio::time::timeout(Duration::from_secs(5), watch.message()).await.expect("it ends");
    assert!(!matches!(end, Ok(Some(_))), "{end:?}");
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn wipe_requires_an_existing_cml_server() {
    let fixture = Fixture::start().await;
    let id = fixture.launch_with_cml().await;
    assert_eq!(fixture.post("console/cml/wipe", json!({"instance": id})).await, (200, json!({"wiped": id})));
    let (status, refusal) = fixture.post("console/cml/wipe", json!({"instance": "i-0"})).await;
    assert_eq!(status, 404, "{refusal}");
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn reset_restores_the_initial_state_of_every_service() {
    let fixture = Fixture::start().await;
    fixture.launch_with_cml().await;
    fixture.post("console/worker", json!({"id": "w-1", "name": "blue"})).await;
    fixture.cloud.etcd().lease_grant(0, 60).expect("granted");
    fixture.post("etcd/unavailable", json!({})).await;
    assert_eq!(fixture.post("reset", json!({})).await.0, 200);
    let state = fixture.state().await;
    for list in [&state["workers"], &state["sessions"], &state["cml"], &state["etcd"]["leases"]] {
        assert_eq!(list, &json!([]));
    }
    assert_eq!(state["etcd"], json!({"revision": 1, "keys": 0, "leases": [], "available": true}));
    assert_eq!(state["regions"]["us-east-1"]["instances"], json!([]));
    // Equal seeds give the same id and address again; the new instance still gets a new CML server.
    fixture.launch_with_cml().await;
    let address = fixture.state().await["cml"][0]["address"].clone();
    let address = address.as_str().expect("it listens");
    let url = format!("https://{address}:{}/api/v0/system_information", fixture.cloud.endpoints().cml_port);
    for attempt in 0..=500 {
        assert!(attempt < 500, "no listener at {url}");
        if fixture.client.get(&url).send().await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    fixture.cloud.stop().await;
}
