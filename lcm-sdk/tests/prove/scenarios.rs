//! Scripts of a fleet, short enough to be broken at every point.

use std::time::Duration;

use lcm_sdk::controller::Polling;
use lcm_sdk::lifecycle::LicenseOperation;
use lcm_sdk::{DesiredStatus, Ec2State, WorkerId, WorkerStatus};

use super::broken::Broken;
use super::call::Does;
use super::cluster::{Cluster, on_paused_time};
use super::faults::{Fault, What};
use super::summary::Verdict;
use super::world::{DRAIN_TIMEOUT, HERE, Setup, World};

/// A script of events and its expected end.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    setup: fn() -> Setup,
    /// The workers at the beginning.
    people: fn(&World),
    /// The events after a while.
    then: fn(&World),
    /// Maximum duration after that without faults.
    seconds: u64,
    /// Maximum duration with faults.
    patience: u64,
    /// The expected end.
    ends: fn(&World) -> bool,
}

/// The result of a script besides its verdict.
pub(crate) struct Run {
    pub(crate) verdict: Verdict,
    /// Every call until the script was over.
    pub(crate) calls: Vec<Does>,
    /// Whether the planned event took place.
    pub(crate) struck: bool,
}

impl Scenario {
    /// Plays the script, with an event at one of its calls.
    pub(crate) fn play(&self, round: u64, planned: &[(u64, What)], broken: Option<Broken>) -> Run {
        let usual = (self.setup)();
        let setup = Setup { broken, seed: usual.seed + 100 * round, ..usual };
        on_paused_time(async {
            let cluster = Cluster::start(setup, self.people);
            {
                let mut trouble = cluster.world.trouble.lock();
                trouble.planned = planned.to_vec();
                trouble.remembers = planned.iter().any(|(_, what)| *what == What::Happens(Fault::Stale));
            }
            cluster.live(6).await;
            (self.then)(&cluster.world);
            cluster.live(self.seconds).await;
            let calls = cluster.world.oracle.lock().calls.clone();
            cluster.calm_down();
            cluster.settle(self.patience, 130).await;
            let ends = (self.ends)(&cluster.world);
            let mut oracle = cluster.world.oracle.lock();
            oracle.rule(ends, || format!("{} did not end as it should", self.name));
            let struck = oracle.struck;
            drop(oracle);
            Run { verdict: cluster.verdict(), calls, struck }
        })
    }
}

const SCENARIO: Scenario = Scenario {
    name: "",
    setup: || Setup::of(1),
    people: |_| (),
    then: |_| (),
    seconds: 45,
    patience: 200,
    ends: |_| true,
};

/// All scripts by name.
pub(crate) const ALL: &[Scenario] = &[
    Scenario { name: "launch", people: ordered, ends: |world| is(world, WorkerStatus::Running), ..SCENARIO },
    Scenario {
        name: "launch that EC2 does not show yet",
        people: |world| {
            ordered(world);
            world.trouble.lock().lag_permille = 1000;
        },
        seconds: 90,
        ends: |world| is(world, WorkerStatus::Running),
        ..SCENARIO
    },
    Scenario {
        name: "launch, and another controller takes over",
        setup: || Setup { controllers: 2, ..Setup::of(2) },
        people: ordered,
        ends: |world| is(world, WorkerStatus::Running),
        ..SCENARIO
    },
    Scenario {
        name: "order called off",
        people: ordered,
        then: |world| world.want(&one(), DesiredStatus::Terminated),
        ends: |world| is(world, WorkerStatus::Terminated),
        ..SCENARIO
    },
    Scenario {
        name: "start",
        people: |world| parked(world, WorkerStatus::Stopped, Ec2State::Stopped),
        then: |world| world.want(&one(), DesiredStatus::Running),
        ends: |world| is(world, WorkerStatus::Running),
        ..SCENARIO
    },
    Scenario {
        name: "stop",
        people: in_service,
        then: |world| world.want(&one(), DesiredStatus::Stopped),
        ends: |world| is(world, WorkerStatus::Stopped),
        ..SCENARIO
    },
    Scenario {
        name: "stop from outside",
        people: in_service,
        then: |world| enter(world, Ec2State::Stopping),
        seconds: 90,
        ends: |world| is(world, WorkerStatus::Running),
        ..SCENARIO
    },
    Scenario {
        name: "start from outside",
        people: |world| parked(world, WorkerStatus::Stopped, Ec2State::Stopped),
        then: |world| enter(world, Ec2State::Pending),
        seconds: 120,
        ends: |world| is(world, WorkerStatus::Stopped),
        ..SCENARIO
    },
    Scenario {
        name: "drain",
        people: with_sessions,
        then: |world| world.drain(&one()),
        seconds: 60,
        patience: DRAIN_TIMEOUT.as_secs() + 200,
        ends: |world| is(world, WorkerStatus::Stopped),
        ..SCENARIO
    },
    Scenario {
        name: "drain that passes its deadline",
        setup: || Setup { ends_sessions: false, ..Setup::of(3) },
        people: |world| {
            with_sessions(world);
            let begun = world.clock.truth() - (DRAIN_TIMEOUT - Duration::from_secs(20));
            world.drain(&one());
            world.oracle.lock().drained_before(&one(), DRAIN_TIMEOUT);
            world.edit(&one(), |worker| worker.notes.drain_started_at = Some(begun));
        },
        seconds: 80,
        ends: |world| is(world, WorkerStatus::Stopped),
        ..SCENARIO
    },
    Scenario {
        name: "drain called off",
        setup: || Setup { ends_sessions: false, ..Setup::of(4) },
        people: |world| {
            with_sessions(world);
            world.drain(&one());
        },
        then: |world| world.cancel_drain(&one()),
        ends: |world| is(world, WorkerStatus::Running),
        ..SCENARIO
    },
    Scenario {
        name: "terminate",
        people: in_service,
        then: |world| world.want(&one(), DesiredStatus::Terminated),
        seconds: 60,
        ends: |world| is(world, WorkerStatus::Terminated),
        ..SCENARIO
    },
    Scenario {
        name: "terminate from outside",
        people: in_service,
        then: |world| enter(world, Ec2State::ShuttingDown),
        seconds: 60,
        ends: |world| is(world, WorkerStatus::Terminated),
        ..SCENARIO
    },
    Scenario {
        name: "garbage collection",
        people: |world| {
            for number in 1..=5 {
                let worker = world.add_settled(&format!("w-{number}"), WorkerStatus::Stopped, Ec2State::Stopped);
                if number > 2 {
                    let instance = world.worker(&worker).ec2_instance_id.expect("it has one");
                    world.compute.forget(HERE, &instance);
                }
            }
        },
        seconds: 20,
        ends: |world| {
            let status = |number: u32| world.worker(&format!("w-{number}").into()).status;
            (1..=2).all(|number| status(number) == WorkerStatus::Stopped)
                && (3..=5).all(|number| status(number) == WorkerStatus::Terminated)
        },
        ..SCENARIO
    },
    Scenario {
        name: "discovery and import",
        people: |world| {
            in_service(world);
            world.add_stranger();
        },
        seconds: 40,
        ends: |world| {
            world.workers().len() == 2 && world.workers().iter().all(|worker| worker.status == WorkerStatus::Running)
        },
        ..SCENARIO
    },
    Scenario {
        name: "resurrection",
        people: |world| parked(world, WorkerStatus::Terminated, Ec2State::Running),
        seconds: 40,
        ends: |world| is(world, WorkerStatus::Running),
        ..SCENARIO
    },
    Scenario {
        name: "license registered",
        people: in_service,
        then: |world| world.license(&one(), LicenseOperation::Register),
        seconds: 60,
        ends: |world| world.worker(&one()).license.token.is_some(),
        ..SCENARIO
    },
    Scenario {
        name: "license given back",
        people: in_service,
        then: |world| world.license(&one(), LicenseOperation::Deregister),
        ends: |world| world.worker(&one()).license.status.as_deref() == Some("unregistered"),
        ..SCENARIO
    },
    Scenario {
        name: "failed worker cleaned up",
        people: |world| {
            parked(world, WorkerStatus::Failed, Ec2State::Running);
            world.want(&one(), DesiredStatus::Terminated);
        },
        seconds: 60,
        ends: |world| is(world, WorkerStatus::Terminated),
        ..SCENARIO
    },
    Scenario {
        name: "scale-down of an empty worker",
        setup: || Setup { scales_down: true, ..Setup::of(6) },
        people: |world| idle_fleet(world, &[]),
        seconds: 60,
        ends: |world| in_status(world, WorkerStatus::Running) == 2 && in_status(world, WorkerStatus::Stopped) == 1,
        ..SCENARIO
    },
    Scenario {
        name: "scale-down of a used worker",
        setup: || Setup { scales_down: true, ..Setup::of(7) },
        people: |world| idle_fleet(world, &["running"]),
        seconds: 40,
        patience: DRAIN_TIMEOUT.as_secs() + 200,
        ends: |world| in_status(world, WorkerStatus::Running) == 2 && in_status(world, WorkerStatus::Stopped) == 1,
        ..SCENARIO
    },
    Scenario {
        name: "change while the watch is interrupted, and nobody polls",
        setup: || Setup {
            controllers: 2,
            polling: Polling::Disabled,
            interval: Duration::from_secs(36_000),
            ..Setup::of(5)
        },
        // One reconcile is enough for this one: no other follows before the end.
        people: |world| drop(world.add_worker("w-1", WorkerStatus::Failed)),
        then: |world| {
            world.etcd.stall_watches();
            world.want(&one(), DesiredStatus::Terminated);
            world.etcd.cut_watches();
            world.etcd.compact();
            world.etcd.resume_watches();
        },
        seconds: 60,
        ends: |world| is(world, WorkerStatus::Terminated),
        ..SCENARIO
    },
];

fn one() -> WorkerId {
    "w-1".into()
}

fn is(world: &World, status: WorkerStatus) -> bool {
    world.worker(&one()).status == status
}

fn ordered(world: &World) {
    world.add_worker("w-1", WorkerStatus::Pending);
    world.want(&one(), DesiredStatus::Running);
}

fn parked(world: &World, status: WorkerStatus, ec2: Ec2State) {
    world.add_settled("w-1", status, ec2);
    if status == WorkerStatus::Stopped {
        world.want(&one(), DesiredStatus::Stopped);
    }
}

fn in_service(world: &World) {
    world.add_settled("w-1", WorkerStatus::Running, Ec2State::Running);
    world.want(&one(), DesiredStatus::Running);
}

fn with_sessions(world: &World) {
    in_service(world);
    for state in ["running", "hibernating", "scheduled", "failed"] {
        world.place_session(&one(), state);
    }
    world.sessions_are_old();
}

fn idle_fleet(world: &World, sessions: &[&str]) {
    for id in ["w-1", "w-2", "w-3"] {
        let worker = world.add_settled(id, WorkerStatus::Running, Ec2State::Running);
        world.want(&worker, DesiredStatus::Running);
        sessions.iter().for_each(|state| world.place_session(&worker, state));
    }
    world.sessions_are_old();
}

fn in_status(world: &World, status: WorkerStatus) -> usize {
    world.workers().iter().filter(|worker| worker.status == status).count()
}

fn enter(world: &World, state: Ec2State) {
    let instance = world.worker(&one()).ec2_instance_id.expect("it has one");
    world.enter(&instance, state);
}
