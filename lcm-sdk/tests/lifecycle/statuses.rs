//! The rows of the design documents that state one decision each: desired status, launch, stop and termination.

use lcm_sdk::{
    Decision, DesiredStatus, Ec2State, Effect, Lookup, Observation, Outcome, ReasonCode, Requeue, Worker, WorkerStatus,
    decide,
};

use crate::common::{DESIRED, Ec2Response, now, policy, proved_place, worker};

const STATES: [Ec2State; 7] = [
    Ec2State::Pending,
    Ec2State::Running,
    Ec2State::Stopping,
    Ec2State::Stopped,
    Ec2State::ShuttingDown,
    Ec2State::Terminated,
    Ec2State::Other,
];

fn observed(response: Ec2Response) -> Observation {
    Observation { instance: response.lookup(), place: proved_place(), ..Observation::default() }
}

fn decide_on(status: WorkerStatus, desired: Option<DesiredStatus>, response: Ec2Response) -> Decision {
    decide(&response.adjust(worker(status, desired)), &observed(response), &policy(), now())
}

/// A decision on a record without an instance, for which the search by tag shows none.
fn decide_without_instance(status: WorkerStatus, desired: Option<DesiredStatus>) -> Decision {
    let worker = Worker { ec2_instance_id: None, ..worker(status, desired) };
    let observed = Observation { tagged: Lookup::Found(Vec::new()), place: proved_place(), ..Observation::default() };
    decide(&worker, &observed, &policy(), now())
}

fn to(decision: &Decision) -> Option<WorkerStatus> {
    decision.transition.map(|transition| transition.to())
}

#[test]
fn desired_stopped_stops_a_running_worker() {
    for state in STATES {
        let decision = decide_on(WorkerStatus::Running, Some(DesiredStatus::Stopped), Ec2Response::State(state));
        assert_eq!(to(&decision), Some(WorkerStatus::Stopping), "{state}");
        assert_eq!((decision.outcome, decision.reason.code), (Outcome::Success, ReasonCode::DesiredStopped), "{state}");
        assert!(decision.effects.is_empty(), "the stopping handler stops the instance");
    }
}

#[test]
fn desired_terminated_terminates_a_running_worker() {
    for state in STATES {
        let decision = decide_on(WorkerStatus::Running, Some(DesiredStatus::Terminated), Ec2Response::State(state));
        assert_eq!(to(&decision), Some(WorkerStatus::Terminating), "{state}");
        assert_eq!(decision.reason.code, ReasonCode::DesiredTerminated, "{state}");
        assert!(decision.effects.is_empty(), "the terminating handler terminates the instance");
    }
}

#[test]
fn no_desired_status_leaves_a_running_worker_alone() {
    for desired in [None, Some(DesiredStatus::Running)] {
        let decision = decide_on(WorkerStatus::Running, desired, Ec2Response::State(Ec2State::Running));
        assert_eq!((to(&decision), decision.reason.code), (None, ReasonCode::AddressChanged));
    }
}

#[test]
fn pending_instance_is_waited_for_until_the_timeout() {
    for status in [WorkerStatus::Provisioning, WorkerStatus::Starting] {
        for desired in DESIRED {
            let young = decide_on(status, desired, Ec2Response::PendingRecent);
            assert_eq!((young.outcome, to(&young)), (Outcome::Requeue, None), "{status} {desired:?}");
        }
    }
    let late = decide_on(WorkerStatus::Provisioning, None, Ec2Response::State(Ec2State::Pending));
    assert_eq!((to(&late), late.reason.code), (Some(WorkerStatus::Failed), ReasonCode::ProvisioningTimeout));
}

#[test]
fn start_that_hangs_fails_the_worker() {
    let late = decide_on(WorkerStatus::Starting, None, Ec2Response::State(Ec2State::Pending));
    assert_eq!((to(&late), late.reason.code), (Some(WorkerStatus::Failed), ReasonCode::ProvisioningTimeout));
    let mut without_address = crate::common::instance(Ec2State::Running);
    (without_address.public_ip, without_address.private_ip) = (None, None);
    let observed = Observation { instance: Lookup::Found(without_address), ..Observation::default() };
    let decision = decide(&worker(WorkerStatus::Starting, None), &observed, &policy(), now());
    assert_eq!((to(&decision), decision.reason.code), (Some(WorkerStatus::Failed), ReasonCode::ProvisioningTimeout));
}

#[test]
fn provisioning_without_an_id_fails_with_a_retry() {
    for desired in DESIRED {
        let decision = decide_without_instance(WorkerStatus::Provisioning, desired);
        assert_eq!((decision.outcome, to(&decision)), (Outcome::Retry, Some(WorkerStatus::Failed)), "{desired:?}");
        assert_eq!(decision.reason.code, ReasonCode::InstanceNeverAppeared);
    }
}

#[test]
fn provisioning_follows_a_stop_and_retries_on_other_states() {
    for (state, outcome, expected) in [
        (Ec2State::Stopping, Outcome::Retry, None),
        (Ec2State::Other, Outcome::Retry, None),
        (Ec2State::Stopped, Outcome::Success, Some(WorkerStatus::Stopped)),
        (Ec2State::ShuttingDown, Outcome::Success, Some(WorkerStatus::Failed)),
        (Ec2State::Terminated, Outcome::Success, Some(WorkerStatus::Failed)),
    ] {
        let decision = decide_on(WorkerStatus::Provisioning, None, Ec2Response::State(state));
        assert_eq!((decision.outcome, to(&decision)), (outcome, expected), "{state}");
    }
}

#[test]
fn stopping_worker_stops_its_instance_once() {
    for desired in [None, Some(DesiredStatus::Stopped), Some(DesiredStatus::Terminated)] {
        let decision = decide_on(WorkerStatus::Stopping, desired, Ec2Response::State(Ec2State::Running));
        assert_eq!(decision.effects, [Effect::StopInstance { instance: "i-1".into() }], "{desired:?}");
        assert_eq!((decision.outcome, to(&decision)), (Outcome::Requeue, None), "{desired:?}");
        let under_way = decide_on(WorkerStatus::Stopping, desired, Ec2Response::State(Ec2State::Stopping));
        assert_eq!((under_way.outcome, under_way.effects.len()), (Outcome::Requeue, 0), "{desired:?}");
        assert_eq!((to(&under_way), under_way.reason.code), (None, ReasonCode::StopUnderWay), "{desired:?}");
    }
}

#[test]
fn stopping_worker_that_is_wanted_again_keeps_its_instance() {
    let decision =
        decide_on(WorkerStatus::Stopping, Some(DesiredStatus::Running), Ec2Response::State(Ec2State::Running));
    assert_eq!((to(&decision), decision.effects.len()), (Some(WorkerStatus::Running), 0));
}

#[test]
fn stopping_without_an_instance_is_stopped() {
    for desired in DESIRED {
        let unnamed = decide_without_instance(WorkerStatus::Stopping, desired);
        assert_eq!((unnamed.outcome, to(&unnamed)), (Outcome::Success, Some(WorkerStatus::Stopped)), "{desired:?}");
        let gone = decide_on(WorkerStatus::Stopping, desired, Ec2Response::AbsentOld);
        assert_eq!(to(&gone), Some(WorkerStatus::Stopped), "{desired:?}");
        assert_eq!(gone.requeue, Requeue::Now, "the stopped handler terminates the record");
        let stopped = decide_on(WorkerStatus::Stopping, desired, Ec2Response::State(Ec2State::Stopped));
        assert_eq!((to(&stopped), stopped.reason.code), (Some(WorkerStatus::Stopped), ReasonCode::Ec2Stopped));
    }
}

#[test]
fn stopping_follows_an_end_and_retries_on_other_states() {
    for (state, outcome, expected) in [
        (Ec2State::Pending, Outcome::Retry, None),
        (Ec2State::Other, Outcome::Retry, None),
        (Ec2State::ShuttingDown, Outcome::Success, Some(WorkerStatus::Terminating)),
        (Ec2State::Terminated, Outcome::Success, Some(WorkerStatus::Terminated)),
    ] {
        let decision = decide_on(WorkerStatus::Stopping, None, Ec2Response::State(state));
        assert_eq!((decision.outcome, to(&decision)), (outcome, expected), "{state}");
        assert!(decision.effects.is_empty(), "{state}");
    }
}

#[test]
fn terminating_without_an_instance_is_terminated() {
    for desired in DESIRED {
        let unnamed = decide_without_instance(WorkerStatus::Terminating, desired);
        let gone = decide_on(WorkerStatus::Terminating, desired, Ec2Response::AbsentOld);
        for decision in [unnamed, gone] {
            assert_eq!(to(&decision), Some(WorkerStatus::Terminated), "{desired:?}");
            assert_eq!(decision.reason.code, ReasonCode::NothingToTerminate);
        }
        let young = decide_on(WorkerStatus::Terminating, desired, Ec2Response::AbsentRecent);
        assert_eq!(to(&young), None, "EC2 may not show it yet");
    }
}

#[test]
fn terminating_worker_terminates_its_instance() {
    for state in [Ec2State::Pending, Ec2State::Running, Ec2State::Stopping, Ec2State::Stopped, Ec2State::Other] {
        let decision = decide_on(WorkerStatus::Terminating, None, Ec2Response::State(state));
        assert_eq!(decision.effects, [Effect::TerminateInstance { instance: "i-1".into() }], "{state}");
        assert_eq!((decision.outcome, to(&decision)), (Outcome::Requeue, None), "{state}");
    }
    let under_way = decide_on(WorkerStatus::Terminating, None, Ec2Response::State(Ec2State::ShuttingDown));
    assert_eq!((under_way.outcome, to(&under_way), under_way.effects.len()), (Outcome::Requeue, None, 0));
    let ended = decide_on(WorkerStatus::Terminating, None, Ec2Response::State(Ec2State::Terminated));
    assert_eq!((to(&ended), ended.reason.code), (Some(WorkerStatus::Terminated), ReasonCode::Ec2Terminated));
}

#[test]
fn workers_with_nothing_to_do_are_skipped() {
    for (status, desired, code) in [
        (WorkerStatus::Failed, None, ReasonCode::NeedsOperator),
        (WorkerStatus::Failed, Some(DesiredStatus::Running), ReasonCode::NeedsOperator),
        (WorkerStatus::Terminated, None, ReasonCode::Terminated),
        (WorkerStatus::Terminated, Some(DesiredStatus::Running), ReasonCode::Terminated),
    ] {
        let decision = decide(&worker(status, desired), &Observation::default(), &policy(), now());
        assert_eq!((decision.outcome, decision.reason.code), (Outcome::Skip, code), "{status} {desired:?}");
        assert!(decision.does_nothing(), "{status} {desired:?}");
    }
}
