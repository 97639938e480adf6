//! From applied effects to the write: routes, counters, and effects that were not tried.

use lcm_sdk::lifecycle::{Counter, Route};
use lcm_sdk::{
    Applied, DesiredStatus, Ec2State, EffectResult, Lookup, Observation, Outcome, Query, Requeue, Session, Worker,
    WorkerStatus, decide, queries, record,
};

use crate::common::{LONG, SHORT, ago, instance, now, policy, throttled, worker};

fn recorded(
    status: WorkerStatus,
    desired: Option<DesiredStatus>,
    state: Ec2State,
    results: Vec<EffectResult>,
) -> lcm_sdk::Record {
    let worker = worker(status, desired);
    let (instance, sessions) = (Lookup::Found(instance(state)), Lookup::Found(Vec::new()));
    let observed = Observation { instance, sessions, ..Observation::default() };
    let decision = decide(&worker, &observed, &policy(), now());
    record(&worker, &Applied { decision, results, at: now(), version: None })
}

#[test]
fn counters_count_confirmed_changes_only() {
    let counted = |status, desired, state| -> Vec<Counter> {
        recorded(status, desired, state, vec![EffectResult::Done]).counts.iter().collect()
    };
    use WorkerStatus as Status;
    assert_eq!(counted(Status::Provisioning, None, Ec2State::Running), [Counter::Started]);
    assert_eq!(counted(Status::Starting, None, Ec2State::Running), [Counter::Started]);
    assert_eq!(counted(Status::Stopping, None, Ec2State::Stopped), [Counter::Stopped]);
    assert_eq!(counted(Status::Terminating, None, Ec2State::Terminated), [Counter::Terminated]);
    // External changes are not counted.
    assert_eq!(counted(Status::Running, None, Ec2State::Stopped), []);
    assert_eq!(counted(Status::Running, None, Ec2State::Terminated), []);
    assert_eq!(counted(Status::Stopped, None, Ec2State::Running), []);
}

#[test]
fn untried_effects_leave_the_record_unchanged() {
    let record = recorded(WorkerStatus::Stopped, Some(DesiredStatus::Running), Ec2State::Stopped, Vec::new());
    assert_eq!((record.outcome, record.transition), (Outcome::Retry, None));
    assert!(record.patch.is_empty() && record.notices.is_empty());
    assert!(record.reason.to_string().contains("start_instance i-1: not tried"), "{}", record.reason);
}

#[test]
fn failed_stop_is_retried() {
    let results = vec![EffectResult::Failed(throttled())];
    let record = recorded(WorkerStatus::Stopping, None, Ec2State::Running, results);
    assert_eq!(record.outcome, Outcome::Retry);
    assert_eq!(
        record.reason.to_string(),
        "Something that had to be done was not done; the status stays \
         (RequestLimitExceeded: Request limit exceeded.)."
    );
}

#[test]
fn termination_has_its_own_call() {
    let record = recorded(WorkerStatus::Terminating, None, Ec2State::Terminated, Vec::new());
    assert_eq!(record.patch.route(WorkerStatus::Terminating), Some(Route::Terminate));
    let termination = record.patch.termination.expect("terminated");
    assert_eq!(termination.terminated_by, "worker-controller");
    assert_eq!(termination.reason, "The instance is terminated.");

    let stopping = recorded(WorkerStatus::Running, Some(DesiredStatus::Stopped), Ec2State::Running, Vec::new());
    assert_eq!(stopping.patch.route(WorkerStatus::Running), Some(Route::Status));
    assert_eq!(stopping.patch.termination, None);
}

#[test]
fn patch_expects_the_version_that_was_read() {
    let mut worker = worker(WorkerStatus::Running, Some(DesiredStatus::Stopped));
    worker.version = Some(7);
    let decision = decide(&worker, &Observation::default(), &policy(), now());
    let record = record(&worker, &Applied { decision, results: Vec::new(), at: now(), version: None });
    assert_eq!(record.patch.expected_version, Some(7));
}

#[test]
fn entering_stopped_clears_the_addresses() {
    for status in [WorkerStatus::Stopping, WorkerStatus::Running, WorkerStatus::Draining, WorkerStatus::Unknown] {
        let mut before = worker(status, None);
        before.ip_address = Some("203.0.113.1".into());
        before.public_ip = Some("203.0.113.1".into());
        let after = recorded(status, None, Ec2State::Stopped, Vec::new()).patch.apply_to(&before);
        assert_eq!((after.status, after.address()), (WorkerStatus::Stopped, None), "{status}");
    }
}

#[test]
fn sessions_end_before_the_worker_is_terminated() {
    let sessions = vec![Session::new("a", "running"), Session::new("b", "scheduled"), Session::new("c", "stopped")];
    for status in [WorkerStatus::Starting, WorkerStatus::Running, WorkerStatus::Draining, WorkerStatus::Terminating] {
        let worker = worker(status, None);
        let mut observed =
            Observation { instance: Lookup::Found(instance(Ec2State::Terminated)), ..Observation::default() };
        assert!(queries(&worker, &observed, &policy(), now()).iter().eq([Query::Sessions]), "{status}");
        observed.sessions = Lookup::Found(sessions.clone());
        assert!(queries(&worker, &observed, &policy(), now()).is_empty());
        let decision = decide(&worker, &observed, &policy(), now());
        let effects: Vec<_> = decision.effects.iter().map(ToString::to_string).collect();
        assert_eq!(effects, ["terminate_session a (worker_terminated)", "hand_back_session b"], "{status}");

        // A session that cannot be ended does not delay a worker whose instance is gone.
        let results = vec![EffectResult::Failed(throttled()), EffectResult::Done];
        let record = record(&worker, &Applied { decision, results, at: now(), version: None });
        assert_eq!(record.patch.status, Some(WorkerStatus::Terminated), "{status}");
        assert!(matches!(record.requeue, Requeue::After(_)), "the session is tried again");

        observed.sessions = Lookup::Unknown(throttled());
        let blind = decide(&worker, &observed, &policy(), now());
        assert_eq!(blind.transition.map(|transition| transition.to()), Some(WorkerStatus::Terminated), "{status}");
        assert!(matches!(blind.requeue, Requeue::After(_)), "the sessions are listed again");
    }
}

#[test]
fn sessions_left_open_are_ended_after_the_termination() {
    let mut worker = worker(WorkerStatus::Terminated, None);
    let mut observed =
        Observation { sessions: Lookup::Found(vec![Session::new("a", "running")]), ..Observation::default() };
    let effects = |worker: &Worker, observed: &Observation| decide(worker, observed, &policy(), now()).effects.len();
    worker.terminated_at = Some(ago(SHORT));
    assert!(queries(&worker, &Observation::default(), &policy(), now()).contains(Query::Sessions));
    assert_eq!(effects(&worker, &observed), 1);
    observed.sessions = Lookup::Unknown(throttled());
    assert_eq!(decide(&worker, &observed, &policy(), now()).outcome, Outcome::Retry);
    observed.sessions = Lookup::Found(vec![Session::new("a", "terminated")]);
    assert_eq!(decide(&worker, &observed, &policy(), now()).outcome, Outcome::Skip);
    // For an hour, not forever.
    worker.terminated_at = Some(ago(LONG));
    observed.sessions = Lookup::Found(vec![Session::new("a", "running")]);
    assert!(queries(&worker, &Observation::default(), &policy(), now()).is_empty());
    assert_eq!(effects(&worker, &observed), 0);
}
