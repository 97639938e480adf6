//! The tables of the design documents. Where they contradict each other, the test states the decision.

use lcm_sdk::lifecycle::transition::{EdgeKind, TABLE};
use lcm_sdk::{
    DesiredStatus, Ec2State, Lookup, Observation, Outcome, Session, Template, WorkerStatus, decide, eligible_workers,
};

use crate::common::{instance, now, policy, worker};

fn after(status: WorkerStatus, desired: Option<DesiredStatus>, state: Ec2State) -> Option<WorkerStatus> {
    let observed = Observation { instance: Lookup::Found(instance(state)), ..Observation::default() };
    let decision = decide(&worker(status, desired), &observed, &policy(), now());
    decision.transition.map(|transition| transition.to())
}

#[test]
fn stopped_worker_follows_adr_043() {
    use WorkerStatus::{Running, Starting, Stopped, Terminated, Terminating};
    assert_eq!(after(Stopped, Some(DesiredStatus::Stopped), Ec2State::Terminated), Some(Terminated));
    assert_eq!(after(Stopped, Some(DesiredStatus::Stopped), Ec2State::Running), Some(Running));
    assert_eq!(after(Stopped, Some(DesiredStatus::Running), Ec2State::Stopped), Some(Starting));
    assert_eq!(after(Stopped, Some(DesiredStatus::Terminated), Ec2State::Stopped), Some(Terminating));
    let observed = Observation::with_instance_state("i-1", Ec2State::Stopped);
    let settled = decide(&worker(Stopped, Some(DesiredStatus::Stopped)), &observed, &policy(), now());
    assert_eq!((settled.outcome, settled.does_nothing()), (Outcome::Success, true));
}

#[test]
fn statuses_follow_adr_008() {
    let accepts_sessions = |status| eligible_workers(&[worker(status, None)]).count() == 1;
    let has_edge =
        |from, to| TABLE.iter().any(|edge| edge.from == from && edge.to == to && edge.kind == EdgeKind::Commanded);
    use WorkerStatus::{Draining, Pending, Running, Stopped, Stopping, Terminated, Terminating};
    assert!(accepts_sessions(Running));
    assert!([Pending, Draining, Stopping, Stopped, Terminated].into_iter().all(|status| !accepts_sessions(status)));
    assert!(has_edge(Running, Draining) && has_edge(Running, Stopping));
    assert!(has_edge(Draining, Stopping) && has_edge(Draining, Running));
    assert!(has_edge(Stopping, Stopped));
    assert!(has_edge(Stopped, Terminating) && has_edge(Terminating, Terminated));
    assert!(!TABLE.iter().any(|edge| edge.from == Terminated && edge.kind == EdgeKind::Commanded));
}

/// The lifecycle document sends draining workers to the stop handler, which would stop them under their sessions.
#[test]
fn draining_worker_waits_for_its_sessions() {
    let mut observed = Observation {
        instance: Lookup::Found(instance(Ec2State::Running)),
        sessions: Lookup::Found(vec![Session::new("s", "running")]),
        template: Lookup::Found(Template::new("metal", "m")),
        ..Observation::default()
    };
    let draining = worker(WorkerStatus::Draining, Some(DesiredStatus::Stopped));
    let waiting = decide(&draining, &observed, &policy(), now());
    assert!(waiting.transition.is_none() && waiting.effects.is_empty());
    observed.sessions = Lookup::Found(Vec::new());
    let done = decide(&draining, &observed, &policy(), now());
    assert_eq!(done.transition.map(|transition| transition.to()), Some(WorkerStatus::Stopping));
    assert!(done.effects.is_empty(), "the stop handler stops it, in the next reconcile");
}

/// The state diagram leads from provisioning to starting, the handler's flow chart from provisioning to running.
#[test]
fn provisioning_worker_needs_an_address_to_run() {
    assert_eq!(after(WorkerStatus::Provisioning, None, Ec2State::Running), Some(WorkerStatus::Running));
    let mut without = instance(Ec2State::Running);
    (without.public_ip, without.private_ip) = (None, None);
    let observed = Observation { instance: Lookup::Found(without), ..Observation::default() };
    let decision = decide(&worker(WorkerStatus::Provisioning, None), &observed, &policy(), now());
    assert_eq!(decision.transition.map(|transition| transition.to()), Some(WorkerStatus::Starting));
    assert_eq!(after(WorkerStatus::Starting, None, Ec2State::Running), Some(WorkerStatus::Running));
}

#[test]
fn running_worker_follows_the_state_of_ec2() {
    for (state, expected) in [
        (Ec2State::Pending, Some(WorkerStatus::Provisioning)),
        (Ec2State::Running, None),
        (Ec2State::Stopping, Some(WorkerStatus::Stopping)),
        (Ec2State::Stopped, Some(WorkerStatus::Stopped)),
        (Ec2State::ShuttingDown, Some(WorkerStatus::Terminating)),
        (Ec2State::Terminated, Some(WorkerStatus::Terminated)),
        (Ec2State::Other, Some(WorkerStatus::Unknown)),
    ] {
        assert_eq!(after(WorkerStatus::Running, Some(DesiredStatus::Running), state), expected, "{state}");
    }
}
