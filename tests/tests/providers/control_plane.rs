//! `ControlPlaneClient` against the fake control plane, also with lost responses.

use std::sync::Arc;
use std::time::Duration;

use fake_cloud::control_plane::{Generation, Input, Records};
use fake_cloud::faults::{Action, Rule};
use fake_cloud::{FakeCloud, Pace, Service};
use lcm_sdk::conformance::control_plane::{ControlPlaneWorld, suite};
use lcm_sdk::conformance::events::{self, EventsWorld};
use lcm_sdk::lifecycle::{Capabilities, Changes, ControlPlaneGeneration, Support, Termination};
use lcm_sdk::ports::{ControlPlane, Events, Fence};
use lcm_sdk::providers::control_plane::{ControlPlaneClient, ControlPlaneOptions};
use lcm_sdk::providers::events::ControlPlaneEvents;
use lcm_sdk::{FailureKind, Patch, Secret, Worker, WorkerStatus};
use serde_json::Value;

struct World {
    client: Arc<ControlPlaneClient>,
    events: ControlPlaneEvents,
    records: Records,
}

impl World {
    fn new(url: &str, key: &str, records: Records) -> Self {
        Self::with_generation(url, key, records, ControlPlaneGeneration::Auto)
    }

    fn with_generation(url: &str, key: &str, records: Records, generation: ControlPlaneGeneration) -> Self {
        let retries = vec![Duration::from_millis(5); 3];
        let mut options = ControlPlaneOptions::new(url, Secret::from(key)).with_generation(generation);
        options.retries = retries;
        let client = Arc::new(ControlPlaneClient::new(options).expect("a client"));
        Self { events: ControlPlaneEvents::new(Arc::clone(&client)), client, records }
    }

    fn from_cloud(cloud: &FakeCloud) -> Self {
        let endpoints = cloud.endpoints();
        Self::new(&endpoints.control_plane_url, &endpoints.control_plane_api_key, cloud.records().clone())
    }

    async fn read(&self, id: &str) -> Worker {
        self.client.worker(&id.into()).await.expect("a response").expect("a worker")
    }
}

fn input(value: Value) -> Input {
    Input::from_value(value).expect("an object")
}

#[async_trait::async_trait]
impl ControlPlaneWorld for World {
    fn control_plane(&self) -> &dyn ControlPlane {
        &*self.client
    }

    async fn put_worker(&self, record: Value) {
        self.records.create_worker(input(record)).expect("a record");
    }

    async fn put_unreadable(&self, record: Value) {
        let Value::Object(fields) = record else { panic!("an object") };
        self.records.insert_raw(fields).expect("a record");
    }

    async fn put_session(&self, session: Value) {
        self.records.create_session(input(session)).expect("a session");
    }

    async fn put_template(&self, template: Value) {
        self.records.put_template(input(template)).expect("a template");
    }

    async fn audit(&self, worker: &str) -> Vec<String> {
        let entries = self.records.audit(Some(worker), None);
        entries.iter().filter_map(|entry| entry.get("action")?.as_str().map(str::to_owned)).collect()
    }
}

#[async_trait::async_trait]
impl EventsWorld for World {
    fn events(&self) -> &dyn Events {
        &self.events
    }

    async fn arrived(&self) -> Vec<(String, String)> {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let events = self.records.events(None, None);
        events.iter().map(|event| (text(event.get("type")), text(event.get("subject")))).collect()
    }
}

async fn cloud() -> FakeCloud {
    cloud_of(Generation::Extended).await
}

async fn cloud_of(generation: Generation) -> FakeCloud {
    FakeCloud::builder().pace(Pace::Manual).control_plane(generation).start().await.expect("a cloud")
}

fn terminated(worker: &Worker) -> Patch {
    Patch {
        status: Some(WorkerStatus::Terminated),
        termination: Some(Termination { reason: "gone".into(), terminated_by: "worker-controller".into() }),
        ..Patch::from_changes(worker, Changes::default(), "2026-02-06T08:00:00Z".parse().expect("valid"))
    }
}

#[tokio::test]
async fn control_plane_client_conforms() {
    let cloud = cloud().await;
    assert_eq!(suite(&World::from_cloud(&cloud)).await, Capabilities::all(Support::Yes));
    cloud.stop().await;
}

/// The client against the original server, with the features it finds.
async fn suite_on_original(generation: ControlPlaneGeneration) -> Capabilities {
    let cloud = cloud_of(Generation::Original).await;
    let endpoints = cloud.endpoints();
    let (url, key) = (&endpoints.control_plane_url, &endpoints.control_plane_api_key);
    let found = suite(&World::with_generation(url, key, cloud.records().clone(), generation)).await;
    cloud.stop().await;
    found
}

#[tokio::test]
async fn client_conforms_on_the_original_server() {
    assert_eq!(suite_on_original(ControlPlaneGeneration::Auto).await, Capabilities::all(Support::No));
}

#[tokio::test]
async fn client_conforms_with_the_original_server_pinned() {
    assert_eq!(suite_on_original(ControlPlaneGeneration::Original).await, Capabilities::all(Support::No));
}

#[tokio::test]
async fn events_reach_the_control_plane() {
    let cloud = cloud().await;
    events::suite(&World::from_cloud(&cloud)).await;
    cloud.stop().await;
}

/// A running worker in a cloud that loses one response to `operation`.
async fn cloud_losing_response(operation: &str) -> (FakeCloud, World, Worker) {
    let cloud = cloud().await;
    let world = World::from_cloud(&cloud);
    world.put_worker(serde_json::json!({"id": "w-1", "status": "running"})).await;
    let worker = world.read("w-1").await;
    let lost = Rule {
        service: Some(Service::ControlPlane),
        operation: Some(operation.into()),
        times: Some(1),
        ..Rule::new(Action::DropResponse)
    };
    cloud.world().faults().add(lost).expect("a rule");
    (cloud, world, worker)
}

#[tokio::test]
async fn termination_is_retried() {
    let (cloud, world, worker) = cloud_losing_response("terminate_worker").await;
    world.client.write(&worker, &terminated(&worker), Fence(Some(1))).await.expect("accepted by the second call");
    assert_eq!(world.read("w-1").await.status, WorkerStatus::Terminated);
    cloud.stop().await;
}

#[tokio::test]
async fn status_write_is_not_retried() {
    let (cloud, world, worker) = cloud_losing_response("write_status").await;
    let patch = Patch { status: Some(WorkerStatus::Stopped), termination: None, ..terminated(&worker) };
    let failure = world.client.write(&worker, &patch, Fence(Some(1))).await.expect_err("lost");
    assert_eq!(failure.kind, FailureKind::Unclear, "{failure}");
    let after = world.read("w-1").await;
    assert_eq!((after.status, after.version), (WorkerStatus::Stopped, worker.version.map(|version| version + 1)));
    cloud.stop().await;
}

#[tokio::test]
async fn wrong_key_is_refused_and_not_shown() {
    let cloud = cloud().await;
    let world = World::new(&cloud.endpoints().control_plane_url, "n0t-the-key", cloud.records().clone());
    let failure = world.client.worker(&"w-1".into()).await.expect_err("refused");
    assert_eq!(failure.kind, FailureKind::Refused);
    assert!(!format!("{failure:?} {:?}", world.client).contains("n0t-the-key"));
    cloud.stop().await;
}
