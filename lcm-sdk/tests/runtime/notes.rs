//! Notes in a store, over a control plane that drops them: changes of leader, crashes, and the worker controller.

use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::admin::AdminSource;
use lcm_sdk::controller::{ControllerConfig, LeaderLease, LeaseKeeper, Runner, Shutdown};
use lcm_sdk::lifecycle::{Capabilities, Support};
use lcm_sdk::ports::{Clock as _, Fence, NotesPlacement, NotesStore as _, Ports};
use lcm_sdk::providers::memory::{ComputeOperation, Fault, MemoryCoordination, MemoryNotes, NotesKeeping, Versions};
use lcm_sdk::providers::notes::NotesControlPlane;
use lcm_sdk::reconciler::{Mode, ReconcileResult, Reconciler};
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{WorkerController, WorkerControllerConfig, WorkerFleet};
use lcm_sdk::{CallFailure, DesiredStatus, Ec2State, FailureKind, Image, ReasonCode, WorkerStatus};
use tokio::time::Instant;

use super::harness::{Harness, REGION, pass_time, worker_id};

/// The features of a server that has not shown whether it keeps notes.
fn unknown_notes() -> Capabilities {
    let mut capabilities = Capabilities::all(Support::Yes);
    capabilities.notes = Support::Unknown;
    capabilities
}

/// The original server, and a store that outlives the controllers.
struct Original {
    harness: Harness,
    store: Arc<MemoryNotes>,
    terms: i64,
    placement: NotesPlacement,
}

impl Original {
    fn new() -> Self {
        let harness = Harness::with_control_plane(|control_plane| {
            control_plane
                .with_versions(Versions::NotKept)
                .with_notes_keeping(NotesKeeping::Dropped)
                .with_capabilities(unknown_notes())
        });
        Self { harness, store: Arc::default(), terms: 0, placement: NotesPlacement::Auto }
    }

    fn ports(&self, placement: NotesPlacement) -> Ports {
        let mut ports = self.harness.ports();
        let notes = NotesControlPlane::new(ports.control_plane, Arc::clone(&self.store) as _, Arc::clone(&ports.clock));
        ports.control_plane = Arc::new(notes.with_placement(placement));
        ports
    }

    /// A controller that begins to lead.
    fn next_leader(&mut self) -> Leader {
        self.terms += 1;
        let (lease, keeper) = LeaderLease::new(self.terms, Instant::now() + Duration::from_secs(1_000_000));
        let reconciler =
            Reconciler::new(self.ports(self.placement), self.harness.policy.clone()).expect("a supported policy");
        Leader { reconciler: reconciler.with_lease(lease), _keeper: keeper }
    }
}

struct Leader {
    reconciler: Reconciler,
    _keeper: LeaseKeeper,
}

impl Leader {
    async fn reconcile(&self, number: u8) -> ReconcileResult {
        let control_plane = &self.reconciler.ports().control_plane;
        let worker = control_plane.worker(&worker_id(number)).await.expect("a response").expect("a worker");
        let result = self.reconciler.reconcile(&worker).await;
        self.reconciler.flush(Duration::from_secs(1)).await;
        result
    }
}

fn draining(original: &Original) {
    original.harness.worker(1, WorkerStatus::Draining, Ec2State::Running);
    original.harness.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Stopped));
    original.harness.session("s-1", "running", 1);
}

#[tokio::test(start_paused = true)]
async fn drain_deadline_survives_a_change_of_leader() {
    let mut original = Original::new();
    draining(&original);
    let first = original.next_leader();
    assert_eq!(first.reconcile(1).await.reason.code, ReasonCode::DrainWaiting);
    original.harness.clock.advance(Duration::from_secs(3 * 3600));
    let second = original.next_leader();
    assert_eq!(second.reconcile(1).await.to_status, WorkerStatus::Draining);
    original.harness.clock.advance(Duration::from_secs(3600));
    let third = original.next_leader();
    assert_ne!(third.reconcile(1).await.to_status, WorkerStatus::Draining, "four hours after the first leader began");
    assert_eq!(original.harness.session_state("s-1"), "terminated");
}

#[tokio::test(start_paused = true)]
async fn drain_never_ends_where_notes_are_lost() {
    let original = Original::new();
    draining(&original);
    let reconciler = original.harness.reconciler();
    for _ in 0..6 {
        let waiting = original.harness.reconcile(&reconciler, 1).await;
        assert_eq!(waiting.to_status, WorkerStatus::Draining, "the store is what the other tests are about");
        original.harness.clock.advance(Duration::from_secs(3600));
    }
}

#[tokio::test(start_paused = true)]
async fn cooldown_survives_a_change_of_leader() {
    let mut original = Original::new();
    original.harness.policy.scale_down.enabled = true;
    original.harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    original.harness.worker(2, WorkerStatus::Running, Ec2State::Running);
    let first = original.next_leader();
    let scaled_down = first.reconcile(1).await;
    assert_ne!(scaled_down.to_status, WorkerStatus::Running, "{}", scaled_down.reason);
    // The owner terminates the worker.
    original
        .harness
        .control_plane
        .edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Terminated));
    original.harness.compute.set_state(REGION, &"i-1".into(), Ec2State::Terminated);
    for _ in 0..3 {
        let _result = first.reconcile(1).await;
    }
    assert_eq!(original.harness.record(1).status, WorkerStatus::Terminated);
    let second = original.next_leader();
    assert_eq!(second.reconcile(2).await.to_status, WorkerStatus::Running, "within the cooldown");
    original.harness.clock.advance(Duration::from_secs(600));
    let third = original.next_leader();
    assert_ne!(third.reconcile(2).await.to_status, WorkerStatus::Running);
}

fn pending(original: &Original) {
    original.harness.worker(1, WorkerStatus::Pending, Ec2State::Terminated);
    original.harness.compute.remove(REGION, &"i-1".into());
    original.harness.compute.put_subnet(REGION, "subnet-1");
    original.harness.control_plane.edit(&worker_id(1), |worker| {
        worker.ec2_instance_id = None;
        worker.desired_status = Some(DesiredStatus::Running);
    });
    put_image(original, "ami-1", "2026-01-01");
}

fn put_image(original: &Original, id: &str, creation_date: &str) {
    let image = Image { id: id.into(), name: "cisco-cml2.9".into(), creation_date: creation_date.into() };
    original.harness.compute.put_image(REGION, image);
}

async fn launched(original: &mut Original) {
    for _ in 0..5 {
        let leader = original.next_leader();
        let _result = leader.reconcile(1).await;
        original.harness.clock.advance(Duration::from_secs(30));
        if original.harness.record(1).ec2_instance_id.is_some() {
            break;
        }
    }
    let instances = original.harness.compute.all(REGION);
    assert_eq!(instances.len(), 1, "one instance for one worker: {instances:?}");
    assert_eq!(original.harness.record(1).ec2_instance_id.as_ref(), Some(&instances[0].id));
}

#[tokio::test(start_paused = true)]
async fn launch_plan_survives_a_change_of_leader() {
    let mut original = Original::new();
    pending(&original);
    let unclear = CallFailure::new(FailureKind::Unclear, "no response");
    original.harness.compute.lose_next_response(ComputeOperation::Launch, unclear);
    let first = original.next_leader();
    let lost = first.reconcile(1).await;
    assert_eq!(lost.to_status, WorkerStatus::Pending, "{}", lost.reason);
    let stored = original.store.stored(&worker_id(1)).expect("notes");
    assert!(stored.fields.contains_key("launch_plan"), "{stored:?}");
    assert_eq!(stored.fence, Fence(Some(1)));
    // EC2 does not show the instance yet, and a newer AMI would be another launch.
    for instance in original.harness.compute.all(REGION) {
        original.harness.compute.hide(REGION, &instance.id);
    }
    put_image(&original, "ami-2", "2026-02-01");
    launched(&mut original).await;
}

#[tokio::test(start_paused = true)]
async fn crash_between_notes_and_record_launches_once() {
    let crashed = Fault::Fail(CallFailure::new(FailureKind::Unreachable, "crashed"));
    for placement in [NotesPlacement::Auto, NotesPlacement::Etcd] {
        for fault in [crashed.clone(), Fault::LoseResponse] {
            for operation in ["write", "put"] {
                let mut original = Original { placement, ..Original::new() };
                pending(&original);
                let first = original.next_leader();
                match operation {
                    "write" => original.harness.control_plane.plan(operation, fault.clone()),
                    _ => original.store.plan(operation, fault.clone()),
                }
                let result = first.reconcile(1).await;
                assert_eq!(result.to_status, WorkerStatus::Pending, "{placement}, {operation}: {result}");
                put_image(&original, "ami-2", "2026-02-01");
                launched(&mut original).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn worker_from_another_source_gets_its_notes() {
    let mut original = Original::new();
    draining(&original);
    let first = original.next_leader();
    let _waiting = first.reconcile(1).await;
    original.harness.clock.advance(Duration::from_secs(5 * 3600));
    // The service that owns the records passes the record as it has it.
    let worker = original.harness.record(1);
    assert_eq!(worker.notes.drain_started_at, None);
    let result = original.next_leader().reconciler.reconcile(&worker).await;
    assert_ne!(result.to_status, WorkerStatus::Draining, "{}", result.reason);
}

#[tokio::test(start_paused = true)]
async fn deposed_leader_cannot_overwrite_notes() {
    let mut original = Original::new();
    draining(&original);
    let old = original.next_leader();
    let new = original.next_leader();
    let _waiting = new.reconcile(1).await;
    let stored = original.store.stored(&worker_id(1));
    original.harness.clock.advance(Duration::from_secs(5 * 3600));
    let refused = old.reconcile(1).await;
    assert_eq!(refused.to_status, WorkerStatus::Draining, "{}", refused.reason);
    assert_eq!(original.store.stored(&worker_id(1)), stored);
    assert_eq!(original.harness.record(1).status, WorkerStatus::Draining);
}

#[tokio::test(start_paused = true)]
async fn dropped_note_is_no_hot_loop() {
    for placement in [NotesPlacement::Record, NotesPlacement::Auto] {
        let original = Original::new();
        draining(&original);
        let reconciler =
            Reconciler::new(original.ports(placement), original.harness.policy.clone()).expect("a supported policy");
        let config =
            ControllerConfig::default().with_initial_delay(Duration::ZERO).with_interval(Duration::from_secs(30));
        let fleet = WorkerFleet::new(reconciler.clone(), Mode::Real);
        let runner = Runner::new(Arc::new(fleet), config, Telemetry::default());
        let running = tokio::spawn(async move { runner.run(&Shutdown::new()).await });
        pass_time(600).await;
        let writes = original.harness.control_plane.calls().iter().filter(|call| call.starts_with("write ")).count();
        assert!(writes <= 25, "{placement}: {writes} writes in ten minutes");
        let status = reconciler.ports().control_plane.notes_status();
        assert_eq!(status.lost, placement == NotesPlacement::Record, "{placement}");
        running.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn controller_shows_the_place_and_collects_old_notes() {
    let original = Original::new();
    original.harness.worker(1, WorkerStatus::Stopped, Ec2State::Stopped);
    let config = WorkerControllerConfig::default().without_watch().without_discovery();
    let (ports, policy) = (original.ports(NotesPlacement::Memory), original.harness.policy.clone());
    let etcd = Arc::new(MemoryCoordination::new());
    let controller = WorkerController::new(ports, policy, Some(etcd), config, Telemetry::default()).expect("valid");
    let (now, fields) = (original.harness.clock.now(), serde_json::Map::new());
    for id in ["w-1", "gone"] {
        original.store.put(&id.into(), fields.clone(), None, Fence(None), now).await.expect("written");
    }
    assert_eq!(AdminSource::stats(&controller).notes.place, "memory");
    let running = tokio::spawn({
        let controller = controller.clone();
        async move { controller.run(&Shutdown::new()).await }
    });
    pass_time(700).await;
    assert!(original.store.stored(&"gone".into()).is_some(), "it may be a new worker");
    original.harness.clock.advance(Duration::from_secs(25 * 3600));
    pass_time(3600).await;
    assert!(original.store.stored(&"gone".into()).is_none());
    assert!(original.store.stored(&"w-1".into()).is_some());
    running.abort();
}
