//! Scripts of a fleet, short enough to inject an event at every call.

use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::controller::Polling;
use lcm_sdk::lifecycle::LicenseOperation;
use lcm_sdk::{DesiredStatus, Ec2State, WorkerId, WorkerStatus};

use super::broken::Broken;
use super::call::CallEffect;
use super::cluster::{Cluster, on_paused_time};
use super::faults::{Fault, Injection};
use super::rules::Rule;
use super::summary::HistoryResult;
use super::world::{DRAIN_TIMEOUT, REGION, Setup, World};

/// A script and its expected final state.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) setup: fn() -> Setup,
    /// Creates the workers.
    pub(crate) workers: fn(&World),
    /// Changes the world after the first seconds.
    pub(crate) change: fn(&Arc<World>),
    /// Duration of the script in seconds after the change.
    pub(crate) seconds: u64,
    /// Time in seconds to recover after the last injected event.
    pub(crate) recovery_seconds: u64,
    /// Whether the world is in the expected final state.
    pub(crate) is_done: fn(&World) -> bool,
    /// The points at which an event is injected.
    pub(crate) points: Points,
}

/// The points of a script at which an event is injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Points {
    Every,
    /// One of so many, in the quick set.
    OneIn(usize),
    /// The script measures something that an event changes.
    None,
}

/// A script that was run.
pub(crate) struct ScriptRun {
    pub(crate) result: HistoryResult,
    /// The effect of each call until the end of the script.
    pub(crate) calls: Vec<CallEffect>,
    /// Whether a planned event was injected.
    pub(crate) injected: bool,
}

impl Scenario {
    /// Whether another controller can take over.
    pub(crate) fn has_standby(&self) -> bool {
        (self.setup)().controllers > 1
    }

    /// Runs the script with events at the given calls.
    pub(crate) fn run(&self, round: u64, planned: &[(u64, Injection)], broken: Option<Broken>) -> ScriptRun {
        let base = (self.setup)();
        self.run_with(Setup { broken, seed: base.seed + 100 * round, ..base }, planned)
    }

    /// Runs the script and records its reconciles.
    pub(crate) fn record(&self) -> ScriptRun {
        self.run_with(Setup { is_recorded: true, ..(self.setup)() }, &[])
    }

    fn run_with(&self, setup: Setup, planned: &[(u64, Injection)]) -> ScriptRun {
        on_paused_time(async {
            let cluster = Cluster::start(setup, self.workers);
            {
                let mut plan = cluster.world.fault_plan.lock();
                plan.planned = planned.to_vec();
                plan.keeps_responses =
                    planned.iter().any(|(_, injection)| *injection == Injection::Fault(Fault::Stale));
            }
            cluster.run_for(6).await;
            (self.change)(&cluster.world);
            cluster.run_for(self.seconds).await;
            let calls = cluster.world.oracle.lock().calls.clone();
            cluster.stop_faults();
            cluster.settle(self.recovery_seconds, 130).await;
            let is_done = (self.is_done)(&cluster.world);
            let mut oracle = cluster.world.oracle.lock();
            oracle.rule(Rule::EndIsReached, is_done, || {
                format!("script \"{}\" did not reach its expected end", self.name)
            });
            let injected = oracle.injected;
            drop(oracle);
            ScriptRun { result: cluster.result(), calls, injected }
        })
    }
}

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "",
    setup: || Setup::new(1),
    workers: |_| (),
    change: |_| (),
    seconds: 45,
    recovery_seconds: 200,
    is_done: |_| true,
    points: Points::Every,
};

/// All scripts.
pub(crate) fn all() -> impl Iterator<Item = &'static Scenario> {
    USUAL.iter().chain(super::hostile::ALL)
}

/// Scripts of a usual fleet.
const USUAL: &[Scenario] = &[
    Scenario {
        name: "launch",
        workers: add_pending_worker,
        is_done: |world| has_status(world, WorkerStatus::Running),
        ..SCENARIO
    },
    Scenario {
        name: "launch with visibility lag",
        workers: |world| {
            add_pending_worker(world);
            world.fault_plan.lock().lag_permille = 1000;
        },
        seconds: 90,
        is_done: |world| has_status(world, WorkerStatus::Running),
        ..SCENARIO
    },
    Scenario {
        name: "launch with a standby controller",
        setup: || Setup { controllers: 2, ..Setup::new(2) },
        workers: add_pending_worker,
        is_done: |world| has_status(world, WorkerStatus::Running),
        ..SCENARIO
    },
    Scenario {
        name: "launch canceled",
        workers: add_pending_worker,
        change: |world| world.set_desired(&first_worker(), DesiredStatus::Terminated),
        is_done: |world| has_status(world, WorkerStatus::Terminated),
        ..SCENARIO
    },
    Scenario {
        name: "start",
        workers: |world| add_settled_worker(world, WorkerStatus::Stopped, Ec2State::Stopped),
        change: |world| world.set_desired(&first_worker(), DesiredStatus::Running),
        is_done: |world| has_status(world, WorkerStatus::Running),
        ..SCENARIO
    },
    Scenario {
        name: "stop",
        workers: add_running_worker,
        change: |world| world.set_desired(&first_worker(), DesiredStatus::Stopped),
        is_done: |world| has_status(world, WorkerStatus::Stopped),
        ..SCENARIO
    },
    Scenario {
        name: "external stop",
        workers: add_running_worker,
        change: |world| change_instance(world, Ec2State::Stopping),
        seconds: 90,
        is_done: |world| has_status(world, WorkerStatus::Running),
        ..SCENARIO
    },
    Scenario {
        name: "external start",
        workers: |world| add_settled_worker(world, WorkerStatus::Stopped, Ec2State::Stopped),
        change: |world| change_instance(world, Ec2State::Pending),
        seconds: 120,
        is_done: |world| has_status(world, WorkerStatus::Stopped),
        ..SCENARIO
    },
    Scenario {
        name: "drain",
        workers: add_worker_with_sessions,
        change: |world| world.drain(&first_worker()),
        seconds: 60,
        recovery_seconds: DRAIN_TIMEOUT.as_secs() + 200,
        is_done: |world| has_status(world, WorkerStatus::Stopped),
        ..SCENARIO
    },
    Scenario {
        name: "drain past its deadline",
        setup: || Setup { ends_sessions: false, ..Setup::new(3) },
        workers: |world| {
            add_worker_with_sessions(world);
            let begun = world.clock.true_time() - (DRAIN_TIMEOUT - Duration::from_secs(20));
            world.drain(&first_worker());
            world.oracle.lock().backdate_drain(&first_worker(), DRAIN_TIMEOUT);
            world.edit(&first_worker(), |worker| worker.notes.drain_started_at = Some(begun));
        },
        seconds: 80,
        is_done: |world| has_status(world, WorkerStatus::Stopped),
        ..SCENARIO
    },
    Scenario {
        name: "drain canceled",
        setup: || Setup { ends_sessions: false, ..Setup::new(4) },
        workers: |world| {
            add_worker_with_sessions(world);
            world.drain(&first_worker());
        },
        change: |world| world.cancel_drain(&first_worker()),
        is_done: |world| has_status(world, WorkerStatus::Running),
        ..SCENARIO
    },
    Scenario {
        name: "terminate",
        workers: add_running_worker,
        change: |world| world.set_desired(&first_worker(), DesiredStatus::Terminated),
        seconds: 60,
        is_done: |world| has_status(world, WorkerStatus::Terminated),
        ..SCENARIO
    },
    Scenario {
        name: "external termination",
        workers: add_running_worker,
        change: |world| change_instance(world, Ec2State::ShuttingDown),
        seconds: 60,
        is_done: |world| has_status(world, WorkerStatus::Terminated),
        ..SCENARIO
    },
    Scenario {
        name: "garbage collection",
        workers: |world| {
            for number in 1..=5 {
                let worker = world.add_settled(&format!("w-{number}"), WorkerStatus::Stopped, Ec2State::Stopped);
                if number > 2 {
                    let instance = world.worker(&worker).ec2_instance_id.expect("the worker has an instance");
                    world.compute.remove(REGION, &instance);
                }
            }
        },
        seconds: 20,
        is_done: |world| {
            let status = |number: u32| world.worker(&format!("w-{number}").into()).status;
            (1..=2).all(|number| status(number) == WorkerStatus::Stopped)
                && (3..=5).all(|number| status(number) == WorkerStatus::Terminated)
        },
        ..SCENARIO
    },
    Scenario {
        name: "discovery and import",
        workers: |world| {
            add_running_worker(world);
            world.add_unmanaged_instance();
        },
        seconds: 40,
        is_done: |world| {
            world.workers().len() == 2 && world.workers().iter().all(|worker| worker.status == WorkerStatus::Running)
        },
        ..SCENARIO
    },
    Scenario {
        name: "terminated record with a running instance",
        workers: |world| add_settled_worker(world, WorkerStatus::Terminated, Ec2State::Running),
        seconds: 40,
        is_done: |world| has_status(world, WorkerStatus::Running),
        ..SCENARIO
    },
    Scenario {
        name: "license registered",
        workers: add_running_worker,
        change: |world| world.license(&first_worker(), LicenseOperation::Register),
        seconds: 60,
        is_done: |world| world.worker(&first_worker()).license.token.is_some(),
        ..SCENARIO
    },
    Scenario {
        name: "license deregistered",
        workers: add_running_worker,
        change: |world| world.license(&first_worker(), LicenseOperation::Deregister),
        is_done: |world| world.worker(&first_worker()).license.status.as_deref() == Some("unregistered"),
        ..SCENARIO
    },
    Scenario {
        name: "termination of a failed worker",
        workers: |world| {
            add_settled_worker(world, WorkerStatus::Failed, Ec2State::Running);
            world.set_desired(&first_worker(), DesiredStatus::Terminated);
        },
        seconds: 60,
        is_done: |world| has_status(world, WorkerStatus::Terminated),
        ..SCENARIO
    },
    Scenario {
        name: "scale-down of an empty worker",
        setup: || Setup { scales_down: true, ..Setup::new(6) },
        workers: |world| add_idle_fleet(world, &[]),
        seconds: 60,
        is_done: |world| {
            count_in_status(world, WorkerStatus::Running) == 2 && count_in_status(world, WorkerStatus::Stopped) == 1
        },
        ..SCENARIO
    },
    Scenario {
        name: "scale-down of a worker with sessions",
        setup: || Setup { scales_down: true, ..Setup::new(7) },
        workers: |world| add_idle_fleet(world, &["running"]),
        seconds: 40,
        recovery_seconds: DRAIN_TIMEOUT.as_secs() + 200,
        is_done: |world| {
            count_in_status(world, WorkerStatus::Running) == 2 && count_in_status(world, WorkerStatus::Stopped) == 1
        },
        ..SCENARIO
    },
    Scenario {
        name: "change during a watch gap without polling",
        setup: || Setup {
            controllers: 2,
            polling: Polling::Disabled,
            interval: Duration::from_secs(36_000),
            ..Setup::new(5)
        },
        // One reconcile is enough for this one: no other follows before the end.
        workers: |world| drop(world.add_worker("w-1", WorkerStatus::Failed)),
        change: |world| {
            world.etcd.stall_watches();
            world.set_desired(&first_worker(), DesiredStatus::Terminated);
            world.etcd.disconnect_watches();
            world.etcd.compact();
            world.etcd.resume_watches();
        },
        seconds: 60,
        is_done: |world| has_status(world, WorkerStatus::Terminated),
        ..SCENARIO
    },
];

pub(crate) fn first_worker() -> WorkerId {
    "w-1".into()
}

pub(crate) fn has_status(world: &World, status: WorkerStatus) -> bool {
    world.worker(&first_worker()).status == status
}

pub(crate) fn add_pending_worker(world: &World) {
    world.add_worker("w-1", WorkerStatus::Pending);
    world.set_desired(&first_worker(), DesiredStatus::Running);
}

pub(crate) fn add_settled_worker(world: &World, status: WorkerStatus, ec2: Ec2State) {
    world.add_settled("w-1", status, ec2);
    if status == WorkerStatus::Stopped {
        world.set_desired(&first_worker(), DesiredStatus::Stopped);
    }
}

pub(crate) fn add_running_worker(world: &World) {
    world.add_settled("w-1", WorkerStatus::Running, Ec2State::Running);
    world.set_desired(&first_worker(), DesiredStatus::Running);
}

pub(crate) fn add_worker_with_sessions(world: &World) {
    add_running_worker(world);
    for state in ["running", "hibernating", "scheduled", "failed"] {
        world.place_session(&first_worker(), state);
    }
    world.age_sessions();
}

fn add_idle_fleet(world: &World, sessions: &[&str]) {
    for id in ["w-1", "w-2", "w-3"] {
        let worker = world.add_settled(id, WorkerStatus::Running, Ec2State::Running);
        world.set_desired(&worker, DesiredStatus::Running);
        sessions.iter().for_each(|state| world.place_session(&worker, state));
    }
    world.age_sessions();
}

pub(crate) fn count_in_status(world: &World, status: WorkerStatus) -> usize {
    world.workers().iter().filter(|worker| worker.status == status).count()
}

pub(crate) fn change_instance(world: &World, state: Ec2State) {
    let instance = world.worker(&first_worker()).ec2_instance_id.expect("the worker has an instance");
    world.enter(&instance, state);
}
