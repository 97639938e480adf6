//! Scripts of a hostile world: wrong credentials, servers that drop fields, sessions that cannot be ended, fleets in
//! shards.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lcm_sdk::lifecycle::{KnownSessionState, LicenseOperation, SessionPhase, SessionState};
use lcm_sdk::providers::memory::{Fault as PortFault, Fencing, MemoryCmlSystem, RegistrationEnd};
use lcm_sdk::{CallFailure, DesiredStatus, Ec2State, FailureKind, SessionId, WorkerId, WorkerStatus};
use tokio::time::Instant;

use super::accounts::{Credentials, image};
use super::faults::Fault;
use super::records::Server;
use super::scenarios::{
    Points, SCENARIO, Scenario, add_pending_worker, add_running_worker, add_settled_worker, change_instance,
    count_in_status, first_worker, has_status,
};
use super::world::{DRAIN_TIMEOUT, Discovery, OTHER_REGION, PUBLIC_IMAGE, REGION, Setup, UNKNOWN_REGION, World};

/// A hundred seconds are three polling cycles and two scans.
const LONG: u64 = 100;

/// All scripts of a hostile world.
pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "credentials of another account",
        setup: || Setup { ends_sessions: false, ..Setup::new(20) },
        workers: add_busy_fleet,
        change: |world| {
            world.add_instance_of_other_account();
            world.use_credentials(Credentials::OtherAccount);
        },
        seconds: LONG,
        is_done: is_busy_fleet,
        points: Points::OneIn(7),
        ..SCENARIO
    },
    Scenario {
        name: "start with credentials of another account",
        setup: || Setup { ends_sessions: false, ..Setup::new(21) },
        workers: |world| {
            add_busy_fleet(world);
            world.add_instance_of_other_account();
            world.use_credentials(Credentials::OtherAccount);
        },
        seconds: LONG,
        is_done: is_busy_fleet,
        points: Points::OneIn(7),
        ..SCENARIO
    },
    Scenario {
        name: "another account with one of our records",
        setup: || Setup { ends_sessions: false, ..Setup::new(22) },
        workers: |world| {
            add_busy_fleet(world);
            for worker in world.workers() {
                world.edit(&worker.id, |worker| worker.notes.ec2_account_id = Some(super::world::ACCOUNT.to_owned()));
            }
            // Imported when the credentials were those of the other account before.
            let instance = world.add_instance_of_other_account();
            let imported = world.add_worker("w-9", WorkerStatus::Running);
            world.edit(&imported, |worker| {
                worker.ec2_instance_id = Some(instance.clone());
                worker.notes.launched_at = Some("2026-01-01T00:00:00Z".parse().expect("a timestamp"));
                worker.notes.ec2_account_id = Some(super::accounts::OTHER_ACCOUNT.to_owned());
            });
        },
        change: |world| world.use_credentials(Credentials::OtherAccount),
        seconds: LONG,
        is_done: is_busy_fleet,
        points: Points::OneIn(7),
        ..SCENARIO
    },
    Scenario {
        name: "changed default region",
        setup: || Setup { ends_sessions: false, regions: &[OTHER_REGION], ..Setup::new(23) },
        workers: |world| {
            add_busy_fleet(world);
            for worker in world.workers() {
                world.edit(&worker.id, |worker| worker.aws_region = None);
            }
            *world.default_region.lock() = OTHER_REGION;
        },
        seconds: LONG,
        is_done: is_busy_fleet,
        points: Points::OneIn(3),
        ..SCENARIO
    },
    Scenario {
        name: "launch beside a public image",
        workers: |world| {
            add_pending_worker(world);
            let newest = image(PUBLIC_IMAGE, "cisco-cml2.9.zzz", "2027-01-01T00:00:00.000Z");
            world.compute.put_foreign_image(REGION, "666666666666", newest);
        },
        is_done: |world| has_status(world, WorkerStatus::Running),
        points: Points::OneIn(9),
        ..SCENARIO
    },
    Scenario {
        name: "launch refused after a lost response",
        workers: |world| {
            add_pending_worker(world);
            world.fault_plan.lock().launches.push_back(Fault::RefuseAfterLoss);
        },
        seconds: 60,
        is_done: |world| has_status(world, WorkerStatus::Running),
        points: Points::OneIn(3),
        ..SCENARIO
    },
    Scenario {
        name: "failed worker that lost its instance",
        workers: |world| {
            add_settled_worker(world, WorkerStatus::Failed, Ec2State::Running);
            world.edit(&first_worker(), |worker| worker.ec2_instance_id = None);
        },
        is_done: |world| world.worker(&first_worker()).ec2_instance_id.is_some(),
        points: Points::OneIn(3),
        ..SCENARIO
    },
    Scenario {
        name: "launch with expired credentials",
        workers: |world| {
            add_pending_worker(world);
            world.fault_plan.lock().launches.push_back(Fault::Fail(FailureKind::RefusedForNow));
        },
        change: |world| {
            world.use_credentials(Credentials::Expired);
            world.later(20, |world| world.use_credentials(Credentials::Own));
        },
        seconds: 60,
        is_done: |world| has_status(world, WorkerStatus::Running),
        points: Points::OneIn(3),
        ..SCENARIO
    },
    Scenario {
        name: "launch of a withdrawn image",
        workers: |world| {
            add_pending_worker(world);
            world.stale_images.store(2, Ordering::Release);
        },
        seconds: 60,
        // A plan whose launch may have been carried out is kept for the consistency window.
        recovery_seconds: 400,
        is_done: |world| has_status(world, WorkerStatus::Running),
        points: Points::OneIn(5),
        ..SCENARIO
    },
    Scenario {
        name: "drain overtaken by a demand",
        setup: || Setup { ends_sessions: false, ..Setup::new(24) },
        workers: |world| {
            add_busy_worker(world);
            let left = Duration::from_secs(100);
            let begun = world.clock.true_time() - (DRAIN_TIMEOUT - left);
            world.drain(&first_worker());
            world.oracle.lock().backdate_drain(&first_worker(), DRAIN_TIMEOUT - left);
            world.edit(&first_worker(), |worker| worker.notes.drain_started_at = Some(begun));
        },
        change: |world| world.set_desired(&first_worker(), DesiredStatus::Running),
        seconds: 130,
        is_done: |world| has_status(world, WorkerStatus::Running) && has_active_sessions(world),
        points: Points::OneIn(7),
        ..SCENARIO
    },
    Scenario {
        name: "record without its instance id",
        setup: || Setup { ends_sessions: false, ..Setup::new(25) },
        workers: |world| {
            add_busy_worker(world);
            // Imported: its instance carries no tag.
            let id = world.worker(&first_worker()).ec2_instance_id.expect("the worker has an instance");
            let mut instance = world.instance(&id).expect("it exists");
            instance.tags.clear();
            world.compute.put(REGION, instance);
        },
        change: |world| {
            world.nameless.lock().insert(first_worker());
        },
        seconds: LONG,
        is_done: |world| has_status(world, WorkerStatus::Running) && has_active_sessions(world),
        points: Points::OneIn(7),
        ..SCENARIO
    },
    Scenario {
        name: "change behind a slow fleet",
        setup: || Setup { controllers: 2, ..Setup::new(26) },
        workers: |world| {
            add_settled_worker(world, WorkerStatus::Stopped, Ec2State::Stopped);
            for number in 2..=40 {
                let worker = world.add_settled(&format!("w-{number}"), WorkerStatus::Running, Ec2State::Running);
                world.set_desired(&worker, DesiredStatus::Running);
                // An idle check reads the telemetry of CML.
                let now = world.clock.true_time();
                world.edit(&worker, |worker| {
                    worker.is_idle_detection_enabled = true;
                    worker.created_at = Some(now);
                });
            }
            *world.cml_delay.lock() = Duration::from_secs(10);
        },
        change: |world| {
            // The backlog is minutes long by then.
            world.later(60, |world| change_and_measure(world, &first_worker()));
        },
        seconds: 90,
        recovery_seconds: 100,
        is_done: |world| count_in_status(world, WorkerStatus::Running) == 40,
        points: Points::None,
    },
    Scenario {
        name: "events that are not accepted",
        setup: || Setup { controllers: 2, ends_sessions: false, ..Setup::new(27) },
        workers: |world| {
            for number in 1..=12 {
                let worker = world.add_settled(&format!("w-{number}"), WorkerStatus::Stopped, Ec2State::Stopped);
                world.set_desired(&worker, DesiredStatus::Stopped);
            }
            world.events_hang.store(true, Ordering::Release);
        },
        change: |world| {
            (2..=12).for_each(|number| world.set_desired(&format!("w-{number}").into(), DesiredStatus::Running));
            world.later(60, |world| {
                (2..=12).for_each(|number| world.drain(&format!("w-{number}").into()));
            });
            world.later(90, |world| change_and_measure(world, &first_worker()));
        },
        seconds: 100,
        is_done: |world| count_in_status(world, WorkerStatus::Running) == 1,
        points: Points::None,
        ..SCENARIO
    },
    Scenario {
        name: "relaunch on a server that keeps the instance id",
        setup: || Setup { server: Server::KeepsInstanceId, ..Setup::new(28) },
        workers: |world| {
            add_settled_worker(world, WorkerStatus::Pending, Ec2State::Terminated);
            world.set_desired(&first_worker(), DesiredStatus::Running);
        },
        seconds: 60,
        is_done: |world| has_status(world, WorkerStatus::Running),
        points: Points::OneIn(3),
        ..SCENARIO
    },
    Scenario {
        name: "launch on a server without notes",
        setup: || Setup { server: Server::DropsNotes, ..Setup::new(29) },
        workers: add_pending_worker,
        seconds: 60,
        is_done: |world| has_status(world, WorkerStatus::Running),
        points: Points::OneIn(3),
        ..SCENARIO
    },
    Scenario {
        name: "scale-down on a server that owns the desired status",
        setup: || Setup { server: Server::OwnsDesiredStatus, ..Setup::new(30) },
        workers: add_busy_worker,
        change: |world| world.drain(&first_worker()),
        recovery_seconds: DRAIN_TIMEOUT.as_secs() + 200,
        is_done: |world| has_status(world, WorkerStatus::Stopped),
        points: Points::OneIn(5),
        ..SCENARIO
    },
    Scenario {
        name: "drain with a session that cannot be ended",
        setup: || Setup { ends_sessions: false, ..Setup::new(31) },
        workers: |world| {
            add_busy_worker(world);
            let sessions: Vec<_> = world.background.lock().sessions.keys().cloned().collect();
            world.stuck_sessions.lock().extend(sessions);
            let begun = world.clock.true_time() - (DRAIN_TIMEOUT - Duration::from_secs(20));
            world.drain(&first_worker());
            world.oracle.lock().backdate_drain(&first_worker(), DRAIN_TIMEOUT);
            world.edit(&first_worker(), |worker| worker.notes.drain_started_at = Some(begun));
        },
        seconds: 80,
        // A write that stops halfway begins the drain anew.
        recovery_seconds: DRAIN_TIMEOUT.as_secs() + 300,
        is_done: |world| has_status(world, WorkerStatus::Stopped),
        points: Points::OneIn(5),
        ..SCENARIO
    },
    Scenario {
        name: "session placed at the last moment",
        setup: || Setup::new(32),
        workers: add_running_worker,
        change: |world| {
            world.drain(&first_worker());
            // The scheduler read the record just before.
            world.later(4, |world| drop(world.assign_session(&first_worker(), "running")));
        },
        recovery_seconds: DRAIN_TIMEOUT.as_secs() + 200,
        is_done: |world| {
            let ended = SessionState::Known(KnownSessionState::Stopped);
            has_status(world, WorkerStatus::Stopped) && world.sessions().iter().all(|session| session.state == ended)
        },
        points: Points::None,
        ..SCENARIO
    },
    Scenario {
        name: "drain stopped from outside",
        setup: || Setup { ends_sessions: false, ..Setup::new(33) },
        workers: |world| {
            add_busy_worker(world);
            world.place_session(&first_worker(), "scheduled");
        },
        change: |world| {
            world.drain(&first_worker());
            change_instance(world, Ec2State::Stopping);
        },
        seconds: 80,
        is_done: |world| {
            let waiting = world.sessions().into_iter().filter(|session| session.state.phase() == SessionPhase::Waiting);
            let mut waiting = waiting.peekable();
            has_status(world, WorkerStatus::Stopped)
                && waiting.peek().is_some()
                && waiting.all(|session| session.worker_id.is_none())
        },
        points: Points::OneIn(7),
        ..SCENARIO
    },
    Scenario {
        name: "discovery switched off",
        workers: |world| {
            add_running_worker(world);
            world.switch_discovery(Some(false), None);
        },
        change: |world| {
            world.later(20, |world| {
                let failure = CallFailure::new(FailureKind::Unclear, "the connection was reset");
                world.control_plane.plan("discovery_settings", PortFault::Fail(failure));
            });
        },
        seconds: 160,
        is_done: |world| has_status(world, WorkerStatus::Running),
        points: Points::None,
        ..SCENARIO
    },
    Scenario {
        name: "scan interval of zero",
        workers: |world| {
            add_running_worker(world);
            world.switch_discovery(Some(true), Some(Duration::ZERO));
        },
        is_done: |world| has_status(world, WorkerStatus::Running),
        points: Points::None,
        ..SCENARIO
    },
    Scenario {
        name: "stopped worker on its way up",
        setup: || Setup { discovery: Discovery::Off, ..Setup::new(34) },
        workers: |world| add_settled_worker(world, WorkerStatus::Stopped, Ec2State::Pending),
        seconds: 90,
        is_done: |world| has_status(world, WorkerStatus::Stopped),
        points: Points::None,
        ..SCENARIO
    },
    Scenario {
        name: "license without a token",
        workers: add_running_worker,
        change: |world| {
            world.edit(&first_worker(), |worker| {
                worker.license.pending_operation = Some(LicenseOperation::Register);
            });
        },
        is_done: |world| world.worker(&first_worker()).license.pending_operation.is_none(),
        points: Points::OneIn(5),
        ..SCENARIO
    },
    Scenario {
        name: "license that never ends",
        workers: |world| {
            add_running_worker(world);
            let address = world.worker(&first_worker()).address().map(str::to_owned).expect("an address");
            world.cml.edit(&address, |system| system.registration_ends = RegistrationEnd::Hangs);
        },
        change: |world| world.license(&first_worker(), LicenseOperation::Register),
        seconds: 960,
        is_done: |world| world.worker(&first_worker()).license.pending_operation.is_none(),
        points: Points::None,
        ..SCENARIO
    },
    Scenario {
        name: "launch in an unknown region",
        workers: |world| {
            add_pending_worker(world);
            world.edit(&first_worker(), |worker| worker.aws_region = Some(UNKNOWN_REGION.to_owned()));
        },
        is_done: |world| has_status(world, WorkerStatus::Failed),
        points: Points::OneIn(3),
        ..SCENARIO
    },
    Scenario {
        name: "address that moves",
        workers: add_running_worker,
        change: |world| {
            world.later(10, |world| {
                // Restarted from outside between two looks of a controller; another machine has its address now.
                let worker = world.worker(&first_worker());
                let mut instance =
                    world.instance(&worker.ec2_instance_id.expect("the worker has an instance")).expect("it exists");
                instance.public_ip = Some("198.18.7.7".to_owned());
                instance.private_ip = Some("10.0.255.77".to_owned());
                world.compute.put(REGION, instance);
                world.cml.install("198.18.7.7", MemoryCmlSystem::default());
            });
            world.later(80, |world| world.license(&first_worker(), LicenseOperation::Register));
        },
        seconds: 120,
        is_done: |world| world.worker(&first_worker()).license.token.is_some(),
        points: Points::None,
        ..SCENARIO
    },
    Scenario {
        name: "template behind a failing gateway",
        workers: |world| {
            add_pending_worker(world);
            let failure = CallFailure::new(FailureKind::Unparsable, "404 of a gateway");
            world.control_plane.plan("template", PortFault::Fail(failure));
        },
        is_done: |world| has_status(world, WorkerStatus::Running),
        points: Points::OneIn(9),
        ..SCENARIO
    },
    Scenario {
        name: "instances of another control plane",
        workers: |world| {
            add_running_worker(world);
            (0..2).for_each(|_| world.add_foreign_instance());
        },
        seconds: 40,
        is_done: |world| world.workers().len() == 1,
        points: Points::OneIn(9),
        ..SCENARIO
    },
    Scenario {
        name: "garbage collection without a filter",
        setup: || Setup { discovery: Discovery::Unfiltered, ..Setup::new(35) },
        workers: |world| {
            for number in 1..=3 {
                let worker = world.add_settled(&format!("w-{number}"), WorkerStatus::Stopped, Ec2State::Stopped);
                if number > 1 {
                    let instance = world.worker(&worker).ec2_instance_id.expect("the worker has an instance");
                    world.compute.remove(REGION, &instance);
                }
            }
        },
        // After the sweep, so that only discovery can find it.
        change: |world| {
            world.later(10, |world| {
                let worker = world.add_settled("w-4", WorkerStatus::Stopped, Ec2State::Stopped);
                world.compute.remove(REGION, &world.worker(&worker).ec2_instance_id.expect("just set"));
            });
        },
        seconds: 90,
        is_done: |world| count_in_status(world, WorkerStatus::Terminated) == 3,
        points: Points::OneIn(7),
        ..SCENARIO
    },
    Scenario {
        name: "record with unreadable fields",
        workers: |world| {
            add_running_worker(world);
            world.garbled.lock().insert(first_worker());
        },
        change: |world| world.set_desired(&first_worker(), DesiredStatus::Terminated),
        seconds: 60,
        is_done: |world| has_status(world, WorkerStatus::Terminated),
        points: Points::OneIn(5),
        ..SCENARIO
    },
    Scenario {
        name: "launches in shards",
        setup: || Setup { controllers: 3, shards: 4, fencing: Fencing::Enforced, ..Setup::new(36) },
        workers: |world| {
            for number in 1..=6 {
                let worker = world.add_worker(&format!("w-{number}"), WorkerStatus::Pending);
                world.set_desired(&worker, DesiredStatus::Running);
            }
        },
        change: |world| world.set_desired(&first_worker(), DesiredStatus::Terminated),
        is_done: |world| count_in_status(world, WorkerStatus::Running) == 5,
        points: Points::OneIn(31),
        ..SCENARIO
    },
    Scenario {
        name: "changes in shards without versions",
        setup: || Setup {
            controllers: 2,
            shards: 3,
            fencing: Fencing::Enforced,
            versions: lcm_sdk::providers::memory::Versions::NotKept,
            ..Setup::new(37)
        },
        workers: |world| {
            for number in 1..=3 {
                let worker = world.add_settled(&format!("w-{number}"), WorkerStatus::Running, Ec2State::Running);
                world.set_desired(&worker, DesiredStatus::Running);
            }
        },
        change: |world| {
            world.set_desired(&"w-1".into(), DesiredStatus::Stopped);
            world.set_desired(&"w-2".into(), DesiredStatus::Terminated);
        },
        seconds: 60,
        is_done: |world| {
            [WorkerStatus::Running, WorkerStatus::Stopped, WorkerStatus::Terminated]
                .into_iter()
                .all(|status| count_in_status(world, status) == 1)
        },
        points: Points::OneIn(17),
        ..SCENARIO
    },
];

/// Three running workers, each with a session.
fn add_busy_fleet(world: &World) {
    for id in ["w-1", "w-2", "w-3"] {
        let worker = world.add_settled(id, WorkerStatus::Running, Ec2State::Running);
        world.set_desired(&worker, DesiredStatus::Running);
        world.place_session(&worker, "hibernating");
    }
    world.age_sessions();
}

/// Whether nothing happened to the busy fleet.
fn is_busy_fleet(world: &World) -> bool {
    let is_running = |id: &str| world.worker(&id.into()).status == WorkerStatus::Running;
    ["w-1", "w-2", "w-3"].into_iter().all(is_running) && has_active_sessions(world)
}

fn has_active_sessions(world: &World) -> bool {
    world.sessions().iter().all(|session| session.state.phase() == SessionPhase::Active)
}

/// A running worker with a session that does not end by itself.
fn add_busy_worker(world: &World) {
    add_running_worker(world);
    world.place_session(&first_worker(), "hibernating");
    world.age_sessions();
}

/// An operator wants a stopped worker; the time until a controller begins is measured.
fn change_and_measure(world: &Arc<World>, worker: &WorkerId) {
    world.oracle.lock().awaited.insert(worker.clone(), Instant::now());
    world.set_desired(worker, DesiredStatus::Running);
}

impl World {
    /// All sessions that were ever placed.
    fn sessions(&self) -> Vec<lcm_sdk::Session> {
        let ids: Vec<SessionId> = self.background.lock().sessions.keys().cloned().collect();
        ids.iter().filter_map(|id| self.control_plane.stored_session(id)).collect()
    }
}
