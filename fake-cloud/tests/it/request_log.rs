//! Tests of the request log over all services.

use std::time::Duration;

use fake_cloud::control_plane::Generation;
use fake_cloud::world::{Intent, LaunchRequest};
use fake_cloud::{FakeCloud, Pace};
use serde_json::{Value, json};

async fn start() -> (FakeCloud, reqwest::Client) {
    let builder = FakeCloud::builder().pace(Pace::Manual).control_plane(Generation::Extended);
    let cloud = builder.start().await.expect("starts on free ports");
    (cloud, reqwest::Client::builder().no_proxy().build().expect("a client"))
}

async fn requests(cloud: &FakeCloud, client: &reqwest::Client, query: &str) -> Vec<Value> {
    let url = format!("{}requests?{query}", cloud.endpoints().admin_url);
    client.get(url).send().await.expect("a response").json().await.expect("a list")
}

#[tokio::test]
async fn control_plane_requests_are_logged_without_secrets() {
    let (cloud, client) = start().await;
    let base = format!("{}/api/internal/workers", cloud.endpoints().control_plane_url);
    let key = &cloud.endpoints().control_plane_api_key;
    for (url, key) in [(base.clone(), key.as_str()), (format!("{base}/w-unknown"), key), (base, "wrong")] {
        client.get(url).header("X-API-Key", key).send().await.expect("a response");
    }
    let found = requests(&cloud, &client, "service=control-plane").await;
    let outcomes: Vec<&Value> = found.iter().map(|record| &record["outcome"]).collect();
    assert_eq!(
        outcomes,
        [
            &json!({"result": "served", "status": 200}),
            &json!({"result": "refused", "status": 404, "code": "not_found"}),
            &json!({"result": "refused", "status": 401, "code": "unauthorized"}),
        ]
    );
    assert_eq!(found[1]["subject"], "w-unknown");
    assert!(!json!(found).to_string().contains(key.as_str()), "the key is not logged");
    assert_eq!(requests(&cloud, &client, "service=control-plane&code=not_found").await.len(), 1);
    cloud.stop().await;
}

#[tokio::test]
async fn etcd_calls_are_logged_with_key_and_status() {
    let (cloud, client) = start().await;
    let mut etcd = etcd_client::Client::connect([&cloud.endpoints().etcd_endpoint], None).await.expect("a connection");
    etcd.put("/color", "blue", None).await.expect("written");
    etcd.put("", "blue", None).await.expect_err("an empty key");
    let found = requests(&cloud, &client, "service=etcd&operation=Put").await;
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!((&found[0]["subject"], &found[0]["outcome"]["result"]), (&json!("/color"), &json!("served")));
    assert_eq!(found[1]["outcome"]["code"], "InvalidArgument");
    assert!(!json!(found).to_string().contains("blue"), "values are not logged");
    cloud.stop().await;
}

#[tokio::test]
async fn cml_requests_are_logged_without_passwords() {
    let (cloud, client) = start().await;
    let launch = cloud.world().with_ec2(|ec2, now| {
        let image = ec2.region("us-east-1", now)?.catalog.images[0].id.clone();
        ec2.launch("us-east-1", LaunchRequest::new(image), Intent::Execute, now)
    });
    let instance = launch.expect("launches").instances[0].clone();
    cloud.world().clock().advance(Duration::from_secs(60));
    let address = instance.public_ip(cloud.world().clock().now()).expect("a running instance has an address");
    let base = format!("https://{address}:{}/api/v0", cloud.endpoints().cml_port);
    let pem = std::fs::read(&cloud.endpoints().cml_ca_file).expect("the CA file");
    let root = reqwest::Certificate::from_pem(&pem).expect("a certificate");
    let trusting = reqwest::Client::builder().no_proxy().tls_certs_merge([root]).build().expect("a client");
    let login = json!({"username": "admin", "password": "hunter2"});
    for attempt in 0.. {
        assert!(attempt < 500, "no CML within ten seconds");
        match trusting.post(format!("{base}/authenticate")).json(&login).send().await {
            Ok(response) => {
                assert_eq!(response.status(), 403);
                break;
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    trusting.get(format!("{base}/labs")).send().await.expect("a response");
    let found = requests(&cloud, &client, &format!("service=cml&subject={}", instance.id)).await;
    let logged: Vec<_> = found.iter().map(|record| (&record["operation"], &record["outcome"]["status"])).collect();
    assert_eq!(logged, [(&json!("authenticate"), &json!(403)), (&json!("labs"), &json!(401))]);
    assert!(!json!(found).to_string().contains("hunter2"));
    cloud.stop().await;
}

#[tokio::test]
async fn etcd_requests_are_logged_with_their_fault_rules() {
    let (cloud, client) = start().await;
    let mut etcd = etcd_client::Client::connect([&cloud.endpoints().etcd_endpoint], None).await.expect("a connection");
    let add = |rule: Value| client.post(format!("{}faults", cloud.endpoints().admin_url)).json(&rule).send();
    let error = json!({"kind": "error", "code": "resource-exhausted"});
    add(json!({"service": "etcd", "operation": "Put", "times": 1, "action": error})).await.expect("added");
    let error = etcd.put("/a", "1", None).await.expect_err("rejected");
    assert!(error.to_string().contains("resource-exhausted"), "{error}");
    etcd.put("/a", "1", None).await.expect("the second request succeeds");
    let found = requests(&cloud, &client, "service=etcd&code=ResourceExhausted").await;
    assert_eq!(found[0]["faults"], json!([1]));

    let lease = etcd.lease_grant(60, None).await.expect("granted").id();
    let loss = json!({"kind": "custom", "name": "lease-lost", "with": {"lease": lease}});
    add(json!({"service": "etcd", "operation": "Range", "times": 1, "action": loss})).await.expect("added");
    etcd.get("/a", None).await.expect("read");
    assert!(cloud.etcd().leases().is_empty(), "the read revoked the lease");

    add(json!({"service": "etcd", "operation": "Put", "times": 1, "action": {"kind": "drop-response"}}))
        .await
        .expect("added");
    let revision = cloud.etcd().revision();
    etcd.put("/a", "2", None).await.expect_err("no response");
    assert_eq!(cloud.etcd().revision(), revision + 1, "the request was executed");
    cloud.stop().await;
}

#[tokio::test]
async fn callback_receives_every_request() {
    let (cloud, client) = start().await;
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    cloud.world().request_log().on_request(move |record| drop(sender.send(record.to_string())));
    let url = format!("{}/api/internal/workers/w-unknown", cloud.endpoints().control_plane_url);
    client.get(url).header("X-API-Key", "wrong").send().await.expect("a response");
    let line = receiver.try_recv().expect("logged before the response");
    assert!(line.contains("control-plane") && line.contains("w-unknown  401 unauthorized"), "{line}");
    cloud.stop().await;
}
