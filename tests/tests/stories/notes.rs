//! Notes in etcd, beside a control plane whose records keep none.

use std::time::Duration;

use fake_cloud::control_plane::Generation::Original;
use fake_cloud::{RequestFilter, Service};
use lcm_sdk::WorkerId;
use lcm_sdk::ports::{Fence, NotesStore as _};
use lcm_sdk::providers::etcd::{EtcdNotes, EtcdOptions};
use serde_json::Map;

use lcm_tests::harness::Harness;

/// Several times a usual fleet.
const NOTES: usize = 600;
const WORKERS: usize = 20;

#[tokio::test]
async fn notes_of_a_fleet_are_read_in_one_range_and_collected_with_their_workers() {
    let harness = Harness::with_manual_clock(Original).await;
    let store = EtcdNotes::new(&EtcdOptions::new([harness.cloud.endpoints().etcd_endpoint.as_str()]), "/lcm-notes");
    let store = store.expect("valid options");
    for number in 0..WORKERS {
        harness.add_running_worker(&format!("w-{number}")).await;
    }
    // Of these workers, and of many that ended.
    for number in 0..NOTES {
        let fields = Map::from_iter([("launch_generation".to_owned(), 1.into())]);
        let id = WorkerId::from(format!("w-{number}").as_str());
        store.put(&id, fields, None, Fence(Some(1)), harness.cloud.now()).await.expect("written");
    }
    // The first key of a range; a single note has a longer one.
    let range = RequestFilter {
        service: Some(Service::Etcd),
        operation: Some("Range".to_owned()),
        subject: Some("/lcm-notes/workers/".to_owned()),
        ..RequestFilter::default()
    };
    let ranges = || (harness.cloud.requests(&range).len(), harness.cloud.count(Service::Etcd, "Range"));
    let before = ranges();
    let swept = harness.first_sweep().await;
    assert_eq!(swept.results.len(), WORKERS, "{:?}", swept.report);
    assert!(swept.results.iter().all(|result| result.error.is_none()), "{:?}", swept.results);
    let after = ranges();
    assert_eq!(after.0 - before.0, 1, "a sweep reads all notes at once");
    // A record that is read again after its idle check comes with its notes.
    assert!(after.1 - before.1 <= 1 + WORKERS, "{after:?}");

    // Notes outlive their worker for a day.
    let leader = |_: &WorkerId| Some(Fence(Some(2)));
    let port = &harness.ports.control_plane;
    assert_eq!(port.workers(&lcm_sdk::ports::Scope::active()).await.expect("a listing").workers.len(), WORKERS);
    assert_eq!(port.collect_notes(&leader).await, Ok(0));
    harness.cloud.advance(Duration::from_secs(24 * 3600 + 60)).await;
    assert_eq!(port.collect_notes(&leader).await, Ok(NOTES - WORKERS));
    let left = store.list().await.expect("a list").notes;
    assert_eq!(left.len(), WORKERS);
    assert!((0..WORKERS).all(|number| left.contains_key(&WorkerId::from(format!("w-{number}").as_str()))));
}
