//! The admin API reaches every service, not only AWS.

use std::time::Duration;

use fake_cloud::clock::{Clock, Pace};
use fake_cloud::cloud::{FakeCloud, Options};
use fake_cloud::world::{Intent, LaunchRequest, Settings};
use serde_json::{Value, json};

struct Setting {
    cloud: FakeCloud,
    client: reqwest::Client,
}

impl Setting {
    async fn start() -> Self {
        let settings = Settings { clock: Clock::new(Pace::Manual), ..Settings::default() };
        let cloud = FakeCloud::start(Options { settings, ..Options::default() }).await.expect("it starts");
        let pem = std::fs::read(&cloud.endpoints().cml_ca_file).expect("the authority's file");
        let root = reqwest::Certificate::from_pem(&pem).expect("a certificate");
        let client = reqwest::Client::builder().no_proxy().tls_certs_merge([root]).build().expect("a client");
        Self { cloud, client }
    }

    async fn state(&self) -> Value {
        let url = format!("{}state", self.cloud.endpoints().admin_url);
        self.client.get(url).send().await.expect("an answer").json().await.expect("JSON")
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let url = format!("{}{path}", self.cloud.endpoints().admin_url);
        let answer = self.client.post(url).json(&body).send().await.expect("an answer");
        (answer.status().as_u16(), answer.json().await.expect("JSON"))
    }

    /// Launches an instance and waits until it has a CML; returns its id.
    async fn laboratory(&self) -> String {
        let launch = self.cloud.world().with_ec2(|ec2, now| {
            let image = ec2.region("us-east-1", now)?.catalog.images[0].id.clone();
            ec2.launch("us-east-1", LaunchRequest::new(image), Intent::Execute, now)
        });
        let id = launch.expect("it launches").instances[0].id.clone();
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
async fn hands_add_workers_and_sessions_and_the_state_shows_them_without_secrets() {
    let here = Setting::start().await;
    let worker = json!({"id": "w-1", "name": "blue", "status": "running", "cml_password": "hunter2"});
    assert_eq!(here.post("console/worker", worker.clone()).await.0, 200);
    assert_eq!(here.post("console/session", json!({"id": "s-1", "worker_id": "w-1"})).await.0, 200);
    let (status, again) = here.post("console/worker", worker).await;
    assert_eq!(status, 409, "{again}");
    let (status, nowhere) = here.post("console/session", json!({"worker_id": "w-9"})).await;
    assert_eq!(status, 404, "{nowhere}");
    let state = here.state().await;
    assert_eq!((&state["workers"][0]["id"], &state["workers"][0]["status"]), (&json!("w-1"), &json!("running")));
    assert_eq!(state["sessions"][0]["worker_id"], "w-1");
    assert!(state["etcd"]["revision"].as_i64() > Some(1), "records are mirrored: {}", state["etcd"]);
    assert!(!state.to_string().contains("hunter2"));
    here.cloud.stop().await;
}

#[tokio::test]
async fn etcd_breaks_and_mends_by_admin_call() {
    let here = Setting::start().await;
    let etcd = here.cloud.etcd();
    let (lease, _) = etcd.lease_grant(0, 60).expect("granted");
    let shown = here.state().await["etcd"]["leases"][0].clone();
    assert_eq!((&shown["id"], &shown["seconds_left"]), (&json!(format!("{lease:x}")), &json!(60)));
    assert_eq!(here.post("etcd/lease-lost", json!({"lease": shown["id"]})).await.0, 200);
    assert!(etcd.leases().is_empty());
    assert_eq!(here.post("etcd/lease-lost", json!({"lease": lease})).await.0, 404, "it is gone already");
    assert_eq!(here.post("etcd/unavailable", json!({})).await.0, 200);
    assert!(etcd.is_unavailable());
    let url = format!("{}etcd/available", here.cloud.endpoints().admin_url);
    assert!(here.client.post(url).send().await.expect("an answer").status().is_success(), "a body is not needed");
    assert!(!etcd.is_unavailable());
    let (status, refusal) = here.post("etcd/meteor", json!({})).await;
    assert_eq!(status, 422);
    assert!(refusal["error"].as_str().is_some_and(|error| error.contains("watch-stall")), "{refusal}");
    here.cloud.stop().await;
}

#[tokio::test]
async fn watches_stall_resume_and_are_cut_by_admin_call() {
    let here = Setting::start().await;
    let endpoint = &here.cloud.endpoints().etcd_endpoint;
    let mut etcd = etcd_client::Client::connect([endpoint], None).await.expect("a connection");
    let mut watch = etcd.watch("/a", None).await.expect("a watch");
    etcd.put("/a", "0", None).await.expect("written");
    // The first message only says that the watch exists.
    while watch.message().await.expect("heard").expect("a message").events().is_empty() {}
    assert_eq!(here.post("etcd/watch-stall", json!({})).await.0, 200);
    etcd.put("/a", "1", None).await.expect("written");
    let silence = tokio::time::timeout(Duration::from_millis(100), watch.message()).await;
    assert!(silence.is_err(), "nothing is heard while watches stall");
    assert_eq!(here.post("etcd/watch-resume", json!({})).await.0, 200);
    let heard = watch.message().await.expect("heard").expect("what was missed");
    assert_eq!(heard.events()[0].kv().map(|kv| kv.value().to_vec()), Some(b"1".to_vec()));
    assert_eq!(here.post("etcd/watch-cut", json!({})).await.0, 200);
    let end = tokio::time::timeout(Duration::from_secs(5), watch.message()).await.expect("it ends");
    assert!(!matches!(end, Ok(Some(_))), "{end:?}");
    here.cloud.stop().await;
}

#[tokio::test]
async fn a_cml_is_wiped_by_hand_and_a_cml_that_is_not_there_cannot_be() {
    let here = Setting::start().await;
    let id = here.laboratory().await;
    assert_eq!(here.post("console/cml/wipe", json!({"instance": id})).await, (200, json!({"wiped": id})));
    let (status, refusal) = here.post("console/cml/wipe", json!({"instance": "i-0"})).await;
    assert_eq!(status, 404, "{refusal}");
    here.cloud.stop().await;
}

#[tokio::test]
async fn a_reset_takes_the_whole_world_back_to_its_beginning() {
    let here = Setting::start().await;
    here.laboratory().await;
    here.post("console/worker", json!({"id": "w-1", "name": "blue"})).await;
    here.cloud.etcd().lease_grant(0, 60).expect("granted");
    here.post("etcd/unavailable", json!({})).await;
    assert_eq!(here.post("reset", json!({})).await.0, 200);
    let state = here.state().await;
    for list in [&state["workers"], &state["sessions"], &state["cml"], &state["etcd"]["leases"]] {
        assert_eq!(list, &json!([]));
    }
    assert_eq!(state["etcd"], json!({"revision": 1, "keys": 0, "leases": [], "available": true}));
    assert_eq!(state["regions"]["us-east-1"]["instances"], json!([]));
    // The same seed makes the same id and the same address again; the new instance has a CML of its own all the same.
    here.laboratory().await;
    let address = here.state().await["cml"][0]["address"].clone();
    let address = address.as_str().expect("it listens");
    let url = format!("https://{address}:{}/api/v0/system_information", here.cloud.endpoints().cml_port);
    for attempt in 0..=500 {
        assert!(attempt < 500, "nobody listens at {url}");
        if here.client.get(&url).send().await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    here.cloud.stop().await;
}
