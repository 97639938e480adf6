//! The AMI of an instance, written to records that lack it.

use lcm_sdk::providers::memory::{ComputeCall, ComputeOperation};
use lcm_sdk::{CallFailure, Ec2State, FailureKind, Image, WorkerStatus};

use super::harness::{Harness, REGION, worker_id};

/// A worker whose instance runs an AMI that EC2 describes.
fn with_image(status: WorkerStatus) -> Harness {
    let harness = Harness::new();
    harness.worker(1, status, Ec2State::Running);
    harness.control_plane.edit(&worker_id(1), |worker| worker.is_idle_detection_enabled = false);
    let image = Image { id: "ami-1".into(), name: "cisco-cml2.9".into(), creation_date: "2026-01-01".into() };
    harness.compute.put_image(REGION, image);
    let mut instance = harness.compute.all(REGION).remove(0);
    instance.image_id = Some("ami-1".to_owned());
    harness.compute.put(REGION, instance);
    harness
}

fn described(harness: &Harness) -> usize {
    let is_described = |call: &&ComputeCall| call.operation() == ComputeOperation::ImageDetails;
    harness.compute.calls().iter().filter(is_described).count()
}

#[tokio::test(start_paused = true)]
async fn started_worker_gets_its_image_with_its_addresses() {
    let harness = with_image(WorkerStatus::Starting);
    let reconciler = harness.reconciler();
    assert_eq!(harness.reconcile(&reconciler, 1).await.to_status, WorkerStatus::Running);
    let record = harness.record(1);
    assert_eq!(record.ami_name.as_deref(), Some("cisco-cml2.9"));
    assert_eq!((&record.extra["ami_id"], &record.extra["ami_creation_date"]), (&"ami-1".into(), &"2026-01-01".into()));
    assert_eq!(record.private_ip.as_deref(), Some("10.0.0.1"));
    let _later = harness.reconcile(&reconciler, 1).await;
    assert_eq!(described(&harness), 1);
}

#[tokio::test(start_paused = true)]
async fn running_worker_gets_the_image_of_its_instance() {
    let harness = with_image(WorkerStatus::Running);
    let reconciler = harness.reconciler();
    let _unnamed = harness.reconcile(&reconciler, 1).await;
    let record = harness.record(1);
    assert_eq!((&record.extra["ami_id"], record.ami_name.as_deref()), (&"ami-1".into(), Some("cisco-cml2.9")));
    // A server that does not keep the name is not written to in every reconcile.
    harness.control_plane.edit(&worker_id(1), |worker| worker.ami_name = None);
    let version = harness.record(1).version;
    let _kept = harness.reconcile(&reconciler, 1).await;
    assert_eq!((described(&harness), harness.record(1).version), (1, version));
}

#[tokio::test(start_paused = true)]
async fn record_that_lacks_a_part_of_its_image_gets_it_once() {
    let harness = with_image(WorkerStatus::Running);
    harness.control_plane.edit(&worker_id(1), |worker| {
        worker.extra.insert("ami_id".into(), "ami-1".into());
        worker.ami_name = Some("cisco-cml2.9".to_owned());
    });
    let _dated = harness.reconcile(&harness.reconciler(), 1).await;
    assert_eq!(harness.record(1).extra["ami_creation_date"], "2026-01-01");
    // The AMI has no description, which a new process finds out without a write.
    let version = harness.record(1).version;
    let _kept = harness.reconcile(&harness.reconciler(), 1).await;
    assert_eq!(harness.record(1).version, version);
}

#[tokio::test(start_paused = true)]
async fn undescribed_image_delays_nothing_and_is_described_later() {
    let harness = with_image(WorkerStatus::Starting);
    let slower = CallFailure::new(FailureKind::Throttled, "slower");
    harness.compute.fail_next(ComputeOperation::ImageDetails, slower);
    let reconciler = harness.reconciler();
    assert_eq!(harness.reconcile(&reconciler, 1).await.to_status, WorkerStatus::Running);
    let record = harness.record(1);
    assert_eq!((&record.extra["ami_id"], record.ami_name), (&"ami-1".into(), None));
    let _later = harness.reconcile(&reconciler, 1).await;
    assert_eq!(harness.record(1).ami_name.as_deref(), Some("cisco-cml2.9"));
    let _same = harness.reconcile(&reconciler, 1).await;
    assert_eq!(described(&harness), 2);
}
