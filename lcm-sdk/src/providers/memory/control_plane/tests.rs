use super::super::ManualClock;
use super::*;
use crate::lifecycle::decision::Changes;
use crate::lifecycle::patch::Patch;
use crate::lifecycle::status::{DesiredStatus, WorkerStatus};
use crate::ports::ControlPlane;

fn control_plane() -> MemoryControlPlane {
    MemoryControlPlane::new(Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH)))
}

fn desire(worker: &Worker, desired: DesiredStatus) -> Patch {
    let changes = Changes { desired_status: Some(desired), ..Changes::default() };
    Patch { status: Some(WorkerStatus::Stopped), ..Patch::from_changes(worker, changes, Timestamp::UNIX_EPOCH) }
}

#[tokio::test]
async fn interrupted_writes_are_stored_in_part() {
    let model = control_plane();
    let id = WorkerId::from("w-1");
    model.put_worker(Worker::new("w-1", WorkerStatus::Running));
    let read = || model.stored_worker(&id).expect("there");
    model.plan("write", Fault::LoseResponse);
    let failure = model.write(&read(), &desire(&read(), DesiredStatus::Stopped), Fence(None)).await.expect_err("lost");
    assert_eq!(failure.kind, FailureKind::Unclear);
    assert_eq!((read().status, read().version), (WorkerStatus::Stopped, Some(2)));

    model.put_worker(Worker::new("w-1", WorkerStatus::Running));
    model.interrupt_next_write();
    let failure = model.write(&read(), &desire(&read(), DesiredStatus::Stopped), Fence(None)).await.expect_err("cut");
    assert_eq!(failure.kind, FailureKind::Unclear);
    assert_eq!((read().status, read().desired_status), (WorkerStatus::Running, Some(DesiredStatus::Stopped)));
    assert_eq!(model.calls(), ["write w-1", "write w-1"]);
}

#[tokio::test]
async fn planned_failure_changes_nothing() {
    let model = control_plane();
    model.put_worker(Worker::new("w-1", WorkerStatus::Running));
    let worker = model.stored_worker(&"w-1".into()).expect("there");
    model.fail_next(CallFailure::new(FailureKind::Throttled, "slow down"));
    let failure = model.write(&worker, &desire(&worker, DesiredStatus::Stopped), Fence(None)).await;
    assert_eq!(failure.expect_err("planned").kind, FailureKind::Throttled);
    assert_eq!(model.stored_worker(&"w-1".into()), Some(worker));
}

#[tokio::test]
async fn outdated_fencing_token_is_a_conflict() {
    let model = control_plane().with_fencing(Fencing::Enforced);
    model.put_worker(Worker::new("w-1", WorkerStatus::Running));
    let worker = model.stored_worker(&"w-1".into()).expect("there");
    let audit = crate::lifecycle::event::Audit::Provisioned;
    model.audit(&worker.id, audit, "", Fence(Some(5))).await.expect("the new leader");
    let late = model.write(&worker, &desire(&worker, DesiredStatus::Stopped), Fence(Some(4))).await;
    assert_eq!(late.expect_err("deposed").kind, FailureKind::Conflict);
    assert_eq!(model.stored_worker(&"w-1".into()), Some(worker));
}

#[cfg(feature = "conformance")]
mod conformance {
    use async_trait::async_trait;

    use super::*;
    use crate::conformance::control_plane::{ControlPlaneWorld, suite};
    use crate::lifecycle::capabilities::{Capabilities, Support};

    struct World(MemoryControlPlane);

    #[async_trait]
    impl ControlPlaneWorld for World {
        fn control_plane(&self) -> &dyn ControlPlane {
            &self.0
        }

        async fn put_worker(&self, record: Value) {
            self.0.put_worker(Worker::try_from(record).expect("a record"));
        }

        async fn put_unreadable(&self, record: Value) {
            self.0.put_unreadable(record);
        }

        async fn put_session(&self, session: Value) {
            self.0.put_session(Session::try_from(session).expect("a session"));
        }

        async fn put_template(&self, template: Value) {
            self.0.put_template(Template::try_from(template).expect("a template"));
        }

        async fn audit(&self, worker: &str) -> Vec<String> {
            let entries = self.0.audit_entries().into_iter();
            entries.filter(|(of, ..)| of.as_str() == worker).map(|(_, label, _)| label.to_owned()).collect()
        }
    }

    #[tokio::test]
    async fn memory_control_plane_conforms() {
        for versions in [Versions::Kept, Versions::NotKept] {
            let clock = ManualClock::new("2026-02-06T08:00:00Z".parse().expect("valid"));
            let world = World(MemoryControlPlane::new(Arc::new(clock)).with_versions(versions));
            let found = suite(&world).await;
            let mut expected = Capabilities::all(Support::Yes);
            if versions == Versions::NotKept {
                expected.versions = Support::No;
            }
            assert_eq!(found, expected);
        }
        let clock = ManualClock::new("2026-02-06T08:00:00Z".parse().expect("valid"));
        let bare = MemoryControlPlane::new(Arc::new(clock)).with_versions(Versions::NotKept);
        let bare = World(bare.with_capabilities(Capabilities::all(Support::No)));
        assert_eq!(suite(&bare).await, Capabilities::all(Support::No), "each missing feature is refused");
    }
}
