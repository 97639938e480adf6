//! A mixed fleet for benches and for counting allocations.

use lcm_sdk::{
    DesiredStatus, Ec2State, Instance, Lookup, Observation, Policy, Session, Template, Timestamp, Worker, WorkerStatus,
};

/// The time of every decision.
pub(crate) fn now() -> Timestamp {
    "2026-02-06T08:00:00Z".parse().expect("valid")
}

/// The policy of every decision.
pub(crate) fn policy() -> Policy {
    Policy::default()
}

/// A fleet in which nothing is to be done: in service, parked, coming up, going down, draining, terminated.
pub(crate) fn at_work(count: usize) -> Vec<(Worker, Observation)> {
    (0..count)
        .map(|number| match number % 20 {
            0..13 => member(number, WorkerStatus::Running, Some(DesiredStatus::Running), Ec2State::Running),
            13..16 => member(number, WorkerStatus::Stopped, Some(DesiredStatus::Stopped), Ec2State::Stopped),
            16 => member(number, WorkerStatus::Draining, Some(DesiredStatus::Stopped), Ec2State::Running),
            17 => member(number, WorkerStatus::Provisioning, None, Ec2State::Pending),
            18 => member(number, WorkerStatus::Stopping, Some(DesiredStatus::Stopped), Ec2State::Stopping),
            _ => member(number, WorkerStatus::Terminated, None, Ec2State::Terminated),
        })
        .collect()
}

/// The same fleet, where one in ten needs a stop, a start or a change of the record.
pub(crate) fn in_motion(count: usize) -> Vec<(Worker, Observation)> {
    let mut fleet = at_work(count);
    for (number, entry) in fleet.iter_mut().enumerate().filter(|(number, _)| number % 10 == 0) {
        *entry = match number % 40 {
            0 => member(number, WorkerStatus::Stopping, Some(DesiredStatus::Stopped), Ec2State::Running),
            10 => member(number, WorkerStatus::Stopped, Some(DesiredStatus::Running), Ec2State::Stopped),
            20 => member(number, WorkerStatus::Provisioning, None, Ec2State::Running),
            _ => member(number, WorkerStatus::Running, None, Ec2State::Stopped),
        };
    }
    fleet
}

fn member(
    number: usize,
    status: WorkerStatus,
    desired: Option<DesiredStatus>,
    state: Ec2State,
) -> (Worker, Observation) {
    let id = format!("i-{number:017x}");
    let mut worker = Worker::new(format!("worker-{number:08}"), status);
    worker.ec2_instance_id = Some(id.as_str().into());
    worker.desired_status = desired;
    worker.template_name = Some("metal".into());
    worker.created_at = Some(now());
    worker.notes.launched_at = Some(now());
    worker.notes.drain_started_at = (status == WorkerStatus::Draining).then(now);
    worker.is_idle_detection_enabled = false;
    let mut instance = Instance::new(id, state);
    instance.launched_at = Some(now());
    if state == Ec2State::Running {
        instance.public_ip = Some(format!("203.0.113.{}", number % 250));
        instance.private_ip = Some(format!("10.0.0.{}", number % 250));
        worker.public_ip.clone_from(&instance.public_ip);
        worker.private_ip.clone_from(&instance.private_ip);
    }
    let seen = Observation {
        instance: Lookup::Found(instance),
        sessions: Lookup::Found(vec![Session::new("s-1", "running")]),
        template: Lookup::Found(Template::new("metal", "m5zn.metal")),
        metrics_reported_at: Some(now()),
        ..Observation::default()
    };
    (worker, seen)
}
