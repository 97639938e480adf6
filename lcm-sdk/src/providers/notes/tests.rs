use rstest::rstest;
use serde_json::json;

use super::*;
use crate::lifecycle::decision::{Change, Changes};
use crate::lifecycle::status::DesiredStatus;
use crate::lifecycle::worker::LaunchPlan;
use crate::ports::{NotesPlacement, Support};
use crate::providers::memory::{Fault, Fencing, ManualClock, MemoryControlPlane, MemoryNotes, NotesKeeping, Versions};

struct World {
    clock: ManualClock,
    records: Arc<MemoryControlPlane>,
    store: Arc<MemoryNotes>,
}

impl World {
    /// A control plane without versions that drops notes.
    fn original() -> Self {
        Self::new(|records| records.with_notes_keeping(NotesKeeping::Dropped).with_versions(Versions::NotKept))
    }

    fn new(configure: impl FnOnce(MemoryControlPlane) -> MemoryControlPlane) -> Self {
        let clock = ManualClock::new("2026-02-06T08:00:00Z".parse().expect("a timestamp"));
        let records =
            MemoryControlPlane::new(Arc::new(clock.clone())).with_capabilities(capabilities(Support::Unknown));
        let records = Arc::new(configure(records));
        records.put_worker(Worker::new("w-1", WorkerStatus::Running));
        Self { clock, records, store: Arc::default() }
    }

    /// Another process with the same control plane and store.
    fn process(&self) -> NotesControlPlane {
        NotesControlPlane::new(
            Arc::clone(&self.records) as _,
            Arc::clone(&self.store) as _,
            Arc::new(self.clock.clone()),
        )
    }

    fn in_store(&self) -> NotesControlPlane {
        self.process().with_placement(NotesPlacement::Etcd)
    }

    fn stored(&self, id: &str) -> Map<String, Value> {
        self.store.stored(&id.into()).map(|stored| stored.fields).unwrap_or_default()
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

fn capabilities(notes: Support) -> Capabilities {
    Capabilities { notes, ..Capabilities::all(Support::Yes) }
}

async fn read(port: &NotesControlPlane, id: &str) -> Worker {
    port.worker(&id.into()).await.expect("a response").expect("a worker")
}

fn patch(worker: &Worker, at: Timestamp, change: impl FnOnce(&mut Changes)) -> Patch {
    let mut changes = Changes::default();
    change(&mut changes);
    Patch::from_changes(worker, changes, at)
}

fn plan() -> Box<LaunchPlan> {
    Box::new(LaunchPlan {
        region: "us-east-1".to_owned(),
        image_id: "ami-1".to_owned(),
        instance_type: "m5zn.metal".to_owned(),
        subnet_id: "subnet-1".to_owned(),
        security_group_ids: vec!["sg-1".to_owned()],
        key_name: None,
        tags: [("lcm:worker_id".to_owned(), "w-1".to_owned())].into(),
        generation: 0,
        client_token: "lcm-token".to_owned(),
    })
}

const LEADER: Fence = Fence(Some(7));

#[tokio::test]
async fn control_plane_that_keeps_notes_is_passed_through() {
    let world = World::new(|records| records.with_capabilities(capabilities(Support::Yes)));
    let port = world.process();
    let worker = read(&port, "w-1").await;
    assert_eq!(worker.notes.reading, None, "the record is untouched");
    let noted = patch(&worker, world.now(), |changes| changes.launch_generation = Some(2));
    port.write(&worker, &noted, LEADER).await.expect("written");
    port.workers(&Scope::everything()).await.expect("a listing");
    assert_eq!(read(&port, "w-1").await.notes.launch_generation, 2);
    assert_eq!(world.store.calls(), [""; 0]);
    assert_eq!((port.notes_status().place, port.notes_status().lost), ("record", false));
}

#[tokio::test]
async fn dropped_notes_are_kept_in_the_store() {
    let world = World::new(|records| {
        records.with_notes_keeping(NotesKeeping::Dropped).with_capabilities(capabilities(Support::No))
    });
    let port = world.process();
    let worker = read(&port, "w-1").await;
    let noted = patch(&worker, world.now(), |changes| {
        changes.launch_plan = Change::Set(plan());
        changes.launched_at = Some(world.now());
    });
    port.write(&worker, &noted, LEADER).await.expect("written");
    assert!(!world.records.calls().contains(&"write w-1".to_owned()), "there is nothing to write to the record");
    let other = world.process();
    let listing = other.workers(&Scope::active()).await.expect("a listing");
    for seen in [&listing.workers[0], &read(&other, "w-1").await] {
        assert_eq!(seen.notes.launch_plan, Some(plan()));
        assert_eq!(seen.notes.launched_at, Some(world.now()));
    }
    assert_eq!(world.store.stored(&"w-1".into()).expect("notes").fence, LEADER);
    assert_eq!(port.notes_status().place, "memory");
}

#[tokio::test]
async fn listing_reads_the_notes_once() {
    let world = World::original();
    (2..50).for_each(|number| world.records.put_worker(Worker::new(format!("w-{number}"), WorkerStatus::Running)));
    world.in_store().workers(&Scope::active()).await.expect("a listing");
    assert_eq!(world.store.calls(), ["list *"]);
}

#[tokio::test]
async fn writes_of_one_reconcile_follow_each_other() {
    let world = World::original();
    let port = world.in_store();
    let worker = read(&port, "w-1").await;
    for generation in 1..4 {
        let next = patch(&worker, world.now(), |changes| changes.launch_generation = Some(generation));
        port.write(&worker, &next, LEADER).await.expect("our own writes are no conflict");
    }
    assert_eq!(world.stored("w-1")["launch_generation"], 3);
}

#[tokio::test]
async fn notes_changed_since_the_read_are_a_conflict() {
    let world = World::original();
    let (port, other) = (world.in_store(), world.in_store());
    let (worker, stale) = (read(&port, "w-1").await, read(&port, "w-1").await);
    let elsewhere = read(&other, "w-1").await;
    let first = patch(&worker, world.now(), |changes| changes.launch_generation = Some(1));
    port.write(&worker, &first, LEADER).await.expect("written");
    for (port, stale) in [(&port, &stale), (&other, &elsewhere), (&port, &Worker::new("w-1", WorkerStatus::Running))] {
        let late = Patch {
            status: Some(WorkerStatus::Stopping),
            ..patch(stale, world.now(), |changes| changes.launch_generation = Some(9))
        };
        let failure = port.write(stale, &late, LEADER).await.expect_err("the notes have changed");
        assert_eq!(failure.kind, FailureKind::Conflict, "{failure}");
    }
    assert_eq!(world.stored("w-1")["launch_generation"], 1);
    assert_eq!(read(&port, "w-1").await.status, WorkerStatus::Running, "the record is not written either");
}

#[rstest]
#[tokio::test]
async fn changed_record_is_a_conflict_for_its_notes(#[values(Versions::Kept, Versions::NotKept)] versions: Versions) {
    let world = World::new(|records| records.with_notes_keeping(NotesKeeping::Dropped).with_versions(versions));
    let port = world.in_store();
    let worker = read(&port, "w-1").await;
    world.records.edit(&"w-1".into(), |record| record.desired_status = Some(DesiredStatus::Terminated));
    let late = patch(&worker, world.now(), |changes| changes.launch_plan = Change::Set(plan()));
    let failure = port.write(&worker, &late, LEADER).await.expect_err("the record has changed");
    assert_eq!(failure.kind, FailureKind::Conflict, "{failure}");
    assert!(world.stored("w-1").is_empty(), "no launch is planned");
}

#[tokio::test]
async fn deposed_leader_writes_neither_notes_nor_record() {
    let world = World::new(|records| records.with_notes_keeping(NotesKeeping::Dropped).with_fencing(Fencing::Ignored));
    let port = world.in_store();
    let worker = read(&port, "w-1").await;
    let noted = patch(&worker, world.now(), |changes| changes.drain_tries = Some(1));
    port.write(&worker, &noted, Fence(Some(8))).await.expect("written");
    let fresh = read(&port, "w-1").await;
    let late = Patch {
        status: Some(WorkerStatus::Stopping),
        ..patch(&fresh, world.now(), |changes| changes.drain_tries = Some(0))
    };
    let failure = port.write(&fresh, &late, LEADER).await.expect_err("a newer leader wrote");
    assert_eq!(failure.kind, FailureKind::Conflict, "{failure}");
    assert_eq!(
        (world.stored("w-1")["drain_tries"].clone(), read(&port, "w-1").await.status),
        (json!(1), WorkerStatus::Running)
    );
}

#[tokio::test]
async fn failed_write_of_notes_fails_the_write() {
    let world = World::original();
    let port = world.in_store();
    let worker = read(&port, "w-1").await;
    world.store.plan("put", Fault::Fail(CallFailure::new(FailureKind::Unreachable, "etcd is down")));
    let noted = Patch {
        status: Some(WorkerStatus::Stopping),
        ..patch(&worker, world.now(), |changes| changes.scaled_down_at = Some(world.now()))
    };
    let failure = port.write(&worker, &noted, LEADER).await.expect_err("the store failed");
    assert_eq!(failure.kind, FailureKind::Unreachable);
    assert_eq!(read(&port, "w-1").await.status, WorkerStatus::Running);
}

#[tokio::test]
async fn notes_are_set_before_the_record_and_cleared_after() {
    let world = World::original();
    world.records.put_worker(Worker::new("w-1", WorkerStatus::Pending));
    let port = world.in_store();
    let worker = read(&port, "w-1").await;
    let planned = patch(&worker, world.now(), |changes| changes.launch_plan = Change::Set(plan()));
    port.write(&worker, &planned, LEADER).await.expect("written");
    let launched = Patch {
        status: Some(WorkerStatus::Provisioning),
        ..patch(&worker, world.now(), |changes| {
            changes.ec2_instance_id = Change::Set("i-1".into());
            changes.launched_at = Some(world.now());
            changes.launch_plan = Change::Clear;
        })
    };
    world.records.plan("write", Fault::Fail(CallFailure::new(FailureKind::Unreachable, "crashed")));
    port.write(&worker, &launched, LEADER).await.expect_err("the record was not written");
    let restarted = world.in_store();
    let seen = read(&restarted, "w-1").await;
    assert_eq!(seen.notes.launch_plan, Some(plan()), "the plan outlives the write");
    assert_eq!(seen.notes.launched_at, Some(world.now()));
    restarted.write(&seen, &launched, LEADER).await.expect("written");
    let seen = read(&restarted, "w-1").await;
    assert_eq!((seen.status, seen.notes.launch_plan), (WorkerStatus::Provisioning, None));
}

#[tokio::test]
async fn refused_drain_leaves_no_start() {
    let world = World::original();
    let port = world.in_store();
    let worker = read(&port, "w-1").await;
    let drain = Patch {
        status: Some(WorkerStatus::Draining),
        ..patch(&worker, world.now(), |changes| {
            changes.drain_started_at = Change::Set(world.now());
            changes.scaled_down_at = Some(world.now());
        })
    };
    world.records.plan("write", Fault::Fail(CallFailure::new(FailureKind::Conflict, "not running")));
    port.write(&worker, &drain, LEADER).await.expect_err("refused");
    assert!(!world.stored("w-1").contains_key("drain_started_at"), "it would shorten a later drain");
    assert!(world.stored("w-1").contains_key("scaled_down_at"), "the cooldown counts at once");
    port.write(&worker, &drain, LEADER).await.expect("written");
    assert_eq!(read(&port, "w-1").await.notes.drain_started_at, Some(world.now()));
}

#[tokio::test]
async fn terminated_worker_keeps_only_its_scale_down() {
    let world = World::original();
    world.records.put_worker(Worker::new("w-2", WorkerStatus::Running));
    let port = world.in_store();
    for (id, scaled_down_at) in [("w-1", Some(world.now())), ("w-2", None)] {
        let worker = read(&port, id).await;
        let noted = patch(&worker, world.now(), |changes| {
            changes.launch_generation = Some(2);
            changes.scaled_down_at = scaled_down_at;
        });
        port.write(&worker, &noted, LEADER).await.expect("written");
        let end = Patch { status: Some(WorkerStatus::Terminated), ..patch(&worker, world.now(), |_| {}) };
        port.write(&worker, &end, LEADER).await.expect("terminated");
    }
    assert_eq!(Value::from(world.stored("w-1")), json!({"scaled_down_at": "2026-02-06T08:00:00Z"}));
    assert_eq!(world.store.stored(&"w-2".into()), None);
}

#[tokio::test]
async fn first_dropped_note_switches_to_the_store() {
    let world = World::original();
    let port = world.process();
    let worker = read(&port, "w-1").await;
    assert_eq!(port.notes_status().place, "undecided");
    let planned = patch(&worker, world.now(), |changes| changes.launch_plan = Change::Set(plan()));
    port.write(&worker, &planned, LEADER).await.expect("written");
    assert_eq!(port.notes_status().place, "memory");
    assert_eq!(read(&port, "w-1").await.notes.launch_plan, Some(plan()), "the plan is durable when the write returns");
    let next = patch(&worker, world.now(), |changes| changes.launch_generation = Some(1));
    port.write(&worker, &next, LEADER).await.expect("the next write of the reconcile");
    let restarted = world.process();
    assert_eq!(read(&restarted, "w-1").await.notes.launch_plan, Some(plan()));
    assert_eq!(restarted.notes_status().reason, "the store has notes");
}

#[tokio::test]
async fn refused_note_switches_to_the_store() {
    let world = World::original();
    let port = world.process();
    let worker = read(&port, "w-1").await;
    let refusal = || Fault::Fail(CallFailure::with_code(FailureKind::Refused, "422", "status is required"));
    world.records.plan("write", refusal());
    let drain = Patch {
        status: Some(WorkerStatus::Draining),
        ..patch(&worker, world.now(), |changes| changes.drain_started_at = Change::Set(world.now()))
    };
    port.write(&worker, &drain, LEADER).await.expect_err("the drain was refused, not its note");
    assert_eq!(port.notes_status().place, "undecided");
    world.records.plan("write", refusal());
    let planned = patch(&worker, world.now(), |changes| changes.launch_plan = Change::Set(plan()));
    port.write(&worker, &planned, LEADER).await.expect("written");
    assert_eq!(port.notes_status().place, "memory");
    assert_eq!(read(&port, "w-1").await.notes.launch_plan, Some(plan()));
}

#[tokio::test]
async fn first_kept_note_switches_to_the_records() {
    let world = World::new(|records| records);
    let port = world.process();
    let worker = read(&port, "w-1").await;
    let planned = patch(&worker, world.now(), |changes| changes.launch_plan = Change::Set(plan()));
    port.write(&worker, &planned, LEADER).await.expect("written");
    assert_eq!((port.notes_status().place, world.store.stored(&"w-1".into())), ("record", None));
    let restarted = world.process();
    assert_eq!(read(&restarted, "w-1").await.notes.launch_plan, Some(plan()));
    assert_eq!(restarted.notes_status().reason, "the records show notes");
}

#[tokio::test(start_paused = true)]
async fn unreachable_store_is_left_alone_until_it_is_needed() {
    let world = World::original();
    let port = world.process();
    let down = || Fault::Fail(CallFailure::new(FailureKind::Unreachable, "etcd is down"));
    world.store.plan("list", down());
    for _ in 0..5 {
        port.workers(&Scope::active()).await.expect("a listing");
        read(&port, "w-1").await;
    }
    assert_eq!(world.store.calls(), ["list *"]);
    let worker = read(&port, "w-1").await;
    world.store.plan("get", down());
    let planned = patch(&worker, world.now(), |changes| changes.launch_plan = Change::Set(plan()));
    port.write(&worker, &planned, LEADER).await.expect_err("the note is kept nowhere");
}

#[tokio::test]
async fn note_dropped_by_the_chosen_records_is_reported() {
    let world = World::original();
    let port = world.process().with_placement(NotesPlacement::Record);
    let worker = read(&port, "w-1").await;
    let noted = patch(&worker, world.now(), |changes| changes.launch_generation = Some(1));
    port.write(&worker, &noted, LEADER).await.expect("written");
    assert!(!port.notes_status().lost);
    port.workers(&Scope::active()).await.expect("a listing");
    assert!(port.notes_status().lost);
    assert_eq!(world.store.calls(), [""; 0]);
}

#[tokio::test]
async fn worker_with_unreadable_notes_is_unmanaged() {
    let world = World::original();
    world.records.put_worker(Worker::new("w-2", WorkerStatus::Running));
    world.records.put_worker(Worker::new("w-3", WorkerStatus::Running));
    let port = world.in_store();
    let (id, broken) = (WorkerId::from("w-1"), json!({"launch_plan": {"region": 1}}));
    let fields = broken.as_object().expect("an object").clone();
    world.store.put(&id, fields, None, LEADER, world.now()).await.expect("written");
    world.store.put_unreadable(&"w-2".into());
    let listing = port.workers(&Scope::active()).await.expect("a listing");
    assert_eq!(listing.workers.iter().map(|worker| worker.id.as_str()).collect::<Vec<_>>(), ["w-3"]);
    let unreadable: Vec<_> = listing.unreadable.iter().filter_map(|record| record.id.clone()).collect();
    assert_eq!(unreadable, ["w-1".into(), "w-2".into()]);
    assert!(listing.unreadable[0].error.to_string().contains("launch_plan"), "{}", listing.unreadable[0].error);
    for id in ["w-1", "w-2"] {
        let failure = port.worker(&id.into()).await.expect_err("unknown notes");
        assert_eq!(failure.kind, FailureKind::Unparsable, "{failure}");
    }
}

#[tokio::test]
async fn notes_of_newer_versions_are_kept() {
    let world = World::original();
    let port = world.in_store();
    let newer = Map::from_iter([("of_a_newer_version".to_owned(), json!({"deep": [1]}))]);
    world.store.put(&"w-1".into(), newer, None, LEADER, world.now()).await.expect("written");
    let worker = read(&port, "w-1").await;
    let noted = patch(&worker, world.now(), |changes| changes.launch_generation = Some(1));
    port.write(&worker, &noted, LEADER).await.expect("written");
    let stored = Value::from(world.stored("w-1"));
    assert_eq!(stored, json!({"of_a_newer_version": {"deep": [1]}, "launch_generation": 1}));
}

#[tokio::test]
async fn notes_on_records_move_to_the_store_with_the_next_write() {
    let world = World::new(|records| records);
    let at = world.now();
    world.records.edit(&"w-1".into(), |worker| worker.notes.drain_started_at = Some(at));
    let port = world.in_store();
    let worker = read(&port, "w-1").await;
    assert_eq!(worker.notes.drain_started_at, Some(at), "until then they count");
    let noted = patch(&worker, at, |changes| changes.drain_tries = Some(1));
    port.write(&worker, &noted, LEADER).await.expect("written");
    let worker = read(&port, "w-1").await;
    assert_eq!((worker.notes.drain_started_at, worker.notes.drain_tries), (Some(at), 1));
    let cleared = patch(&worker, at, |changes| changes.drain_started_at = Change::Clear);
    port.write(&worker, &cleared, LEADER).await.expect("written");
    assert_eq!(read(&port, "w-1").await.notes.drain_started_at, None, "the record's note counts no more");
}

#[tokio::test]
async fn notes_of_ended_workers_are_collected_when_they_are_old() {
    let world = World::original();
    let port = world.in_store().with_retention(Duration::from_secs(3600));
    for id in ["w-1", "terminated", "gone", "of-another-shard"] {
        let fields = Map::from_iter([("launch_generation".to_owned(), 1.into())]);
        world.store.put(&id.into(), fields, None, LEADER, world.now()).await.expect("written");
    }
    world.records.put_worker(Worker::new("terminated", WorkerStatus::Terminated));
    let fence = |id: &WorkerId| (id.as_str() != "of-another-shard").then_some(LEADER);
    assert_eq!(port.collect_notes(&fence).await, Ok(0), "they are young");
    world.clock.advance(Duration::from_secs(3600));
    world.records.plan("workers", Fault::Fail(CallFailure::new(FailureKind::Unclear, "half a list")));
    port.collect_notes(&fence).await.expect_err("the workers are not known");
    world.records.put_unreadable(json!({"status": "running"}));
    assert_eq!(port.collect_notes(&fence).await, Ok(0), "a record without an id may be any worker");
    assert!(world.store.stored(&"gone".into()).is_some());

    let world = World { records: World::original().records, ..world };
    let port = world.in_store().with_retention(Duration::from_secs(3600));
    assert_eq!(port.collect_notes(&|_| Some(Fence(Some(6)))).await, Ok(0), "a newer leader wrote them");
    assert_eq!(port.collect_notes(&fence).await, Ok(2));
    let left = world.store.list().await.expect("a list").notes;
    assert_eq!(left.into_keys().collect::<Vec<_>>(), ["of-another-shard".into(), "w-1".into()]);
}

#[tokio::test]
async fn empty_listing_collects_no_notes() {
    let world = World::original();
    let port = world.in_store().with_retention(Duration::ZERO);
    let fields = Map::from_iter([("launch_generation".to_owned(), 1.into())]);
    world.store.put(&"w-1".into(), fields, None, LEADER, world.now()).await.expect("written");
    let empty = World { records: Arc::new(MemoryControlPlane::new(Arc::new(world.clock.clone()))), ..world };
    let wiped = empty.in_store().with_retention(Duration::ZERO);
    assert_eq!(wiped.collect_notes(&|_| Some(LEADER)).await, Ok(0));
    drop(port);
}

#[tokio::test]
async fn notes_hold_no_secret() {
    let world = World::original();
    let record = json!({
        "id": "w-9", "status": "running", "cml_password": "hunter2", "license_token": "t0ken",
        "license": {"pending_token": "p3nding", "pending_operation": "register"}, "api_key": "k3y",
    });
    world.records.put_worker(Worker::try_from(record).expect("valid"));
    let port = world.in_store();
    let worker = read(&port, "w-9").await;
    let noted = patch(&worker, world.now(), |changes| {
        changes.launch_plan = Change::Set(plan());
        changes.license_attempt = Some("first".to_owned());
        changes.desired_status = Some(DesiredStatus::Stopped);
    });
    port.write(&worker, &noted, LEADER).await.expect("written");
    let stored = format!("{:?} {port:?}", world.store.stored(&"w-9".into()).expect("notes"));
    for secret in ["hunter2", "t0ken", "p3nding", "k3y"] {
        assert!(!stored.contains(secret), "{stored}");
    }
}

#[cfg(feature = "conformance")]
mod conformance {
    use super::*;
    use crate::conformance::control_plane::{ControlPlaneWorld, suite};

    struct Records(World, NotesControlPlane);

    #[async_trait]
    impl ControlPlaneWorld for Records {
        fn control_plane(&self) -> &dyn ControlPlane {
            &self.1
        }

        async fn put_worker(&self, record: Value) {
            let worker = Worker::try_from(record).expect("a record");
            let (id, fields) = (worker.id.clone(), worker.notes.to_json());
            if !fields.is_empty() {
                let over = self.0.store.stored(&id);
                self.0.store.put(&id, fields, over.as_ref(), Fence(None), self.0.now()).await.expect("written");
            }
            self.0.records.put_worker(worker);
        }

        async fn put_unreadable(&self, record: Value) {
            self.0.records.put_unreadable(record);
        }

        async fn put_session(&self, session: Value) {
            self.0.records.put_session(Session::try_from(session).expect("a session"));
        }

        async fn put_template(&self, template: Value) {
            self.0.records.put_template(Template::try_from(template).expect("a template"));
        }

        async fn audit(&self, worker: &str) -> Vec<String> {
            let entries = self.0.records.audit_entries().into_iter();
            entries.filter(|(of, ..)| of.as_str() == worker).map(|(_, label, _)| label.to_owned()).collect()
        }
    }

    #[tokio::test]
    async fn control_plane_with_stored_notes_conforms() {
        for versions in [Versions::Kept, Versions::NotKept] {
            let world = World::new(|records| records.with_notes_keeping(NotesKeeping::Dropped).with_versions(versions));
            let port = world.in_store();
            suite(&Records(world, port)).await;
        }
    }
}
