//! `EtcdNotes` against the fake cloud and a real etcd, over sockets.

use std::sync::Arc;

use fake_cloud::{FakeCloud, Pace};
use lcm_sdk::conformance::notes::{NotesWorld, suite};
use lcm_sdk::ports::{Fence, NotesStore};
use lcm_sdk::providers::etcd::{EtcdNotes, EtcdOptions};
use lcm_sdk::{FailureKind, Timestamp, WorkerId};
use lcm_tests::etcd::{Keys, RealEtcd};
use serde_json::{Map, json};

struct EtcdServer {
    endpoint: String,
    keys: Keys,
}

impl EtcdServer {
    async fn connect(endpoint: String) -> Self {
        let keys = Keys::connect(&endpoint).await;
        // Neighbors of the prefix, which belong to others.
        for key in ["/lcm-notes/workers", "/lcm-notes/workers0", "/lcm-notes/other/w-1", "/workers/w-1/state"] {
            keys.put(key, "running").await;
        }
        Self { keys, endpoint }
    }
}

#[async_trait::async_trait]
impl NotesWorld for EtcdServer {
    fn notes(&self) -> Arc<dyn NotesStore> {
        Arc::new(notes(&self.endpoint))
    }

    async fn put_unreadable(&self, id: &WorkerId) {
        self.keys.put(&format!("/lcm-notes/workers/{id}"), "{\"launch_plan\":").await;
    }
}

fn notes(endpoint: &str) -> EtcdNotes {
    EtcdNotes::new(&EtcdOptions::new([endpoint]), "/lcm-notes").expect("valid options")
}

async fn fake_cloud() -> FakeCloud {
    FakeCloud::builder().pace(Pace::Real).start().await.expect("started")
}

#[tokio::test]
async fn etcd_notes_conform_on_the_fake_cloud() {
    let cloud = fake_cloud().await;
    suite(&EtcdServer::connect(cloud.endpoints().etcd_endpoint.clone()).await).await;
}

#[tokio::test]
async fn etcd_notes_conform_on_a_real_server() {
    let real = RealEtcd::start().await;
    suite(&EtcdServer::connect(real.endpoint()).await).await;
}

#[tokio::test]
async fn notes_are_readable_json_under_their_own_prefix() {
    let cloud = fake_cloud().await;
    let notes = notes(&cloud.endpoints().etcd_endpoint);
    let fields = Map::from_iter([("launch_generation".to_owned(), json!(2))]);
    notes.put(&"w-1".into(), fields, None, Fence(Some(7)), Timestamp::UNIX_EPOCH).await.expect("written");
    let mut client = etcd_client::Client::connect([&cloud.endpoints().etcd_endpoint], None).await.expect("a client");
    let found = client.get("/lcm-notes/workers/w-1", None).await.expect("a response");
    let stored: serde_json::Value = serde_json::from_slice(found.kvs()[0].value()).expect("JSON");
    let written_at = "1970-01-01T00:00:00Z";
    assert_eq!(stored, json!({"fence": 7, "written_at": written_at, "notes": {"launch_generation": 2}}));
}

#[tokio::test]
async fn unreachable_etcd_is_no_absence() {
    let cloud = fake_cloud().await;
    let notes = notes(&cloud.endpoints().etcd_endpoint);
    notes.list().await.expect("a list");
    cloud.stop().await;
    let failure = notes.get(&"w-1".into()).await.expect_err("no server");
    assert!(matches!(failure.kind, FailureKind::Unreachable | FailureKind::Unclear), "{failure}");
    assert!(failure.to_string().contains("could not read notes at 127.0.0.1:"), "{failure}");
}
