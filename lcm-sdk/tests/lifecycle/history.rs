//! Histories as a gate: the decisions of a controller with a defect differ from those of this version.

use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::history::{RecordedReconcile, Replay, ReplayPolicy, replay};
use lcm_sdk::lifecycle::trust::{Caller, Place};
use lcm_sdk::simulate::Simulation;
use lcm_sdk::{
    DesiredStatus, Ec2State, Instance, Lookup, Observation, Policy, Session, Timestamp, Worker, WorkerStatus, decide,
};

use crate::common::{instance, now, policy, throttled, worker};

/// The input of a decision.
#[derive(Clone)]
struct Input {
    worker: Worker,
    seen: Observation,
    policy: Policy,
    at: Timestamp,
}

/// A controller with a defect: the input that its decision follows instead.
type Defect = (&'static str, fn(&mut Input));

/// The defects of the prover that change a decision, by their names there.
const DEFECTS: [Defect; 10] = [
    ("an unanswered call counts as absence", |input| {
        if input.seen.instance.failure().is_some() {
            input.seen.instance = Lookup::Absent;
            input.seen.place = proved();
        }
    }),
    ("a draining worker is handled like a stopping one", |input| {
        if input.worker.status == WorkerStatus::Draining {
            input.worker.status = WorkerStatus::Stopping;
        }
    }),
    ("no consistency window", |input| {
        input.policy.consistency_window = Duration::ZERO;
        input.seen.place = proved();
    }),
    ("an absence needs no proof of the account", |input| {
        if input.seen.place.found().is_some() {
            input.seen.place = proved();
        }
    }),
    ("a failed worker is not searched by tag", |input| {
        if input.worker.status == WorkerStatus::Failed {
            input.seen.tagged = Lookup::Found(Vec::new());
        }
    }),
    ("a drain goes on although the worker is wanted again", |input| {
        if input.worker.status == WorkerStatus::Draining {
            input.worker.desired_status = Some(DesiredStatus::Stopped);
        }
    }),
    ("a record without an instance id counts as gone", |input| {
        if input.worker.ec2_instance_id.is_none() {
            input.seen.tagged = Lookup::Found(Vec::new());
        }
    }),
    ("a drained worker is stopped at once", |input| input.policy.drain_settle = Duration::ZERO),
    ("any error of the template endpoint is an absence", |input| {
        if input.seen.template.failure().is_some() {
            input.seen.template = Lookup::Absent;
        }
    }),
    ("launches and starts have no deadline", |input| input.policy.provisioning_timeout = Duration::from_secs(1 << 30)),
];

fn proved() -> Lookup<Place> {
    Lookup::Found(Place::default().with_sighting(now()))
}

/// The life of a worker that is launched behind a lag of EC2, serves, loses its instance from outside and is drained.
fn life() -> Vec<Input> {
    let mut record = Worker::new("w-1", WorkerStatus::Pending);
    (record.created_at, record.desired_status) = (Some(now()), Some(DesiredStatus::Running));
    let mut simulation = Simulation::new(record);
    simulation.ec2.visibility_lag = Duration::from_secs(50);
    let mut inputs = Vec::new();
    let mut minutes = |simulation: &mut Simulation, count: u32| {
        for _ in 0..count * 2 {
            let (at, policy) = (simulation.now, simulation.policy.clone());
            let reconciled = simulation.reconcile();
            inputs.push(Input { worker: reconciled.worker, seen: reconciled.observation, policy, at });
            simulation.advance(Duration::from_secs(30));
        }
    };
    minutes(&mut simulation, 10);
    simulation.ec2.outage = Some(throttled());
    minutes(&mut simulation, 1);
    simulation.ec2.outage = None;
    simulation.sessions = vec![Session::new("s-1", "running"), Session::new("s-2", "scheduled")];
    let started = simulation.now;
    simulation.worker.status = WorkerStatus::Draining;
    simulation.worker.desired_status = Some(DesiredStatus::Stopped);
    simulation.worker.notes.drain_started_at = Some(started);
    minutes(&mut simulation, 5);
    simulation.sessions.clear();
    minutes(&mut simulation, 5);
    simulation.worker.desired_status = Some(DesiredStatus::Running);
    minutes(&mut simulation, 5);
    inputs
}

/// Situations that the life does not reach.
fn situations() -> Vec<Input> {
    let input = |worker: Worker, seen: Observation| Input { worker, seen, policy: policy(), at: now() };
    let absent = |place| Observation { instance: Lookup::Absent, place, ..Observation::default() };
    let other = Lookup::Found(Place::new(Caller::new("666666666666")));
    let mut recent = worker(WorkerStatus::Running, Some(DesiredStatus::Running));
    recent.notes.launched_at = Some(now() - Duration::from_secs(30));
    let mut wanted = worker(WorkerStatus::Draining, Some(DesiredStatus::Running));
    wanted.notes.drain_started_at = Some(now() - Duration::from_secs(60));
    let drained = worker(WorkerStatus::Draining, Some(DesiredStatus::Stopped));
    let just_drained = {
        let mut worker = drained.clone();
        worker.notes.drain_started_at = Some(now() - Duration::from_secs(2));
        worker
    };
    let mut nameless = worker(WorkerStatus::Running, Some(DesiredStatus::Running));
    nameless.ec2_instance_id = None;
    let mut failed = worker(WorkerStatus::Failed, Some(DesiredStatus::Terminated));
    failed.ec2_instance_id = None;
    let mut pending = worker(WorkerStatus::Pending, Some(DesiredStatus::Running));
    pending.ec2_instance_id = None;
    let tagged = || Lookup::Found(vec![Instance { ..instance(Ec2State::Running) }]);
    let running = || Lookup::Found(instance(Ec2State::Running));
    let sessions = |sessions| Observation { instance: running(), sessions, ..Observation::default() };
    vec![
        input(worker(WorkerStatus::Running, None), absent(other)),
        input(recent, absent(proved())),
        input(wanted, sessions(Lookup::NotRequested)),
        input(
            just_drained,
            Observation {
                template: Lookup::Found(lcm_sdk::Template::new("metal", "m5zn.metal")),
                ..sessions(Lookup::Found(Vec::new()))
            },
        ),
        input(nameless, Observation { tagged: tagged(), ..Observation::default() }),
        input(failed, Observation { tagged: tagged(), ..Observation::default() }),
        input(
            pending,
            Observation {
                tagged: Lookup::Found(Vec::new()),
                template: Lookup::Unknown(throttled()),
                ..Observation::default()
            },
        ),
        input(
            worker(WorkerStatus::Starting, Some(DesiredStatus::Running)),
            Observation { instance: Lookup::Found(instance(Ec2State::Pending)), ..Observation::default() },
        ),
    ]
}

/// Replays the decisions that a controller with a defect made.
fn replayed(defect: fn(&mut Input)) -> Replay {
    let recorded = life().into_iter().chain(situations()).map(|input| {
        let mut mistaken = input.clone();
        defect(&mut mistaken);
        let decision = decide(&mistaken.worker, &mistaken.seen, &mistaken.policy, input.at);
        Ok(RecordedReconcile::new(&input.worker, &input.seen, Arc::new(input.policy), input.at, &decision, &[]))
    });
    replay(recorded, &ReplayPolicy::AsRecorded).expect("valid")
}

#[test]
fn decisions_of_this_version_do_not_differ() {
    let replay = replayed(|_| ());
    assert!(replay.is_same() && replay.decisions > 50, "{replay:?}");
}

#[test]
fn decisions_of_every_defect_differ() {
    for (name, defect) in DEFECTS {
        assert!(replayed(defect).changed > 0, "the history reaches nothing of: {name}");
    }
}
