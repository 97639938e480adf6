//! Draining: sessions by state, the deadline, and cancellation.

use std::time::Duration;

use lcm_sdk::lifecycle::{Change, Event, IfRefused, Notice, SessionEnd, drain};
use lcm_sdk::simulate::Simulation;
use lcm_sdk::{
    CallFailure, Decision, DesiredStatus, Ec2State, Effect, EffectResult, FailureKind, Instance, Lookup, Observation,
    Outcome, Requeue, Session, Template, Worker, WorkerStatus, decide,
};

use crate::common::{DESIRED, LONG, SHORT, ago, instance, now, policy, throttled, worker};

fn draining_since(begun: Option<Duration>) -> Worker {
    let mut worker = worker(WorkerStatus::Draining, Some(DesiredStatus::Stopped));
    worker.notes.drain_started_at = begun.map(ago);
    worker
}

fn observed(sessions: Vec<Session>) -> Observation {
    Observation {
        instance: Lookup::Found(instance(Ec2State::Running)),
        sessions: Lookup::Found(sessions),
        template: Lookup::Found(Template::new("metal", "m5zn.metal")),
        ..Observation::default()
    }
}

fn decide_now(worker: &Worker, observed: &Observation) -> Decision {
    decide(worker, observed, &policy(), now())
}

fn status_after(decision: &Decision) -> Option<WorkerStatus> {
    decision.transition.map(|transition| transition.to())
}

#[test]
fn drains_begin_from_running_only() {
    for &status in WorkerStatus::ALL {
        let worker = Worker::new("w-1", status);
        let begun = drain::initiate(&worker, &[], "maintenance", "alice", now());
        assert_eq!(begun.is_ok(), status == WorkerStatus::Running, "{status}");
        let canceled = drain::cancel(&worker, "alice", "needed");
        assert_eq!(canceled.is_ok(), status == WorkerStatus::Draining, "{status}");
        if let Err(error) = canceled {
            assert_eq!(
                error.to_string(),
                format!("worker w-1 is {status}; only a draining worker has a drain to call off")
            );
        }
    }
}

#[test]
fn beginning_a_drain_records_start_and_desired_status() {
    let sessions = [Session::new("a", "running"), Session::new("b", "stopped"), Session::new("c", "grading")];
    let running = worker(WorkerStatus::Running, Some(DesiredStatus::Running));
    let decision = drain::initiate(&running, &sessions, "maintenance", "alice", now()).expect("it runs");
    let changes = decision.changes.expect("changes");
    assert_eq!(changes.desired_status, Some(DesiredStatus::Stopped));
    assert_eq!(changes.drain_started_at, Change::Set(now()));
    let [Notice::Event(event @ Event::DrainStarted { running_sessions: 2, .. })] = &decision.notices[..] else {
        panic!("{:?}", decision.notices);
    };
    assert_eq!(event.event_type(), "cml_worker.drain.started.v1");
}

#[test]
fn canceled_drain_returns_to_running() {
    let decision = drain::cancel(&draining_since(Some(SHORT)), "alice", "class goes on").expect("it drains");
    assert_eq!(status_after(&decision), Some(WorkerStatus::Running));
    let changes = decision.changes.expect("changes");
    assert_eq!(changes.desired_status, Some(DesiredStatus::Running));
    assert_eq!(changes.drain_started_at, Change::Clear);
    let expected = Event::DrainCancelled { cancelled_by: "alice".into(), reason: "class goes on".into() };
    assert_eq!(decision.notices, [Notice::Event(expected)]);
}

#[test]
fn active_and_unknown_sessions_hold_the_worker() {
    for state in ["instantiating", "ready", "running", "collecting", "grading", "stopping", "dreaming", ""] {
        let decision = decide_now(&draining_since(Some(SHORT)), &observed(vec![Session::new("s", state)]));
        assert_eq!((decision.outcome, decision.transition), (Outcome::Requeue, None), "{state}");
        assert!(decision.effects.is_empty(), "{state}");
    }
}

#[test]
fn drained_workers_stop_or_terminate() {
    let over = ["stopped", "archived", "terminated", "expired"].map(|state| Session::new(state, state));
    for (desired, expected) in DESIRED.into_iter().zip([
        WorkerStatus::Stopping,
        WorkerStatus::Stopping,
        WorkerStatus::Stopping,
        WorkerStatus::Terminating,
    ]) {
        let mut worker = draining_since(Some(SHORT));
        worker.desired_status = desired;
        let decision = decide_now(&worker, &observed(over.to_vec()));
        assert_eq!(status_after(&decision), Some(expected));
        assert_eq!(decision.notices, [Notice::Event(Event::DrainCompleted)]);
        // A start time left on the record would put the next drain past its deadline.
        assert_eq!(decision.changes.expect("changes").drain_started_at, Change::Clear);
    }
}

#[test]
fn unlisted_sessions_never_stop_a_worker() {
    for sessions in [Lookup::Unknown(throttled()), Lookup::Absent, Lookup::NotRequested] {
        let observation = Observation { sessions, ..observed(Vec::new()) };
        let decision = decide_now(&draining_since(Some(LONG)), &observation);
        assert!(decision.transition.is_none() && decision.effects.is_empty(), "{decision:?}");
    }
}

#[test]
fn waiting_sessions_return_to_the_scheduler() {
    let sessions = vec![Session::new("s-1", "scheduled"), Session::new("s-2", "pending")];
    let decision = decide_now(&draining_since(Some(SHORT)), &observed(sessions));
    // The worker stays up for another cycle, because a listing may lag behind the scheduler.
    assert_eq!((decision.transition, decision.requeue), (None, Requeue::NextCycle));
    let keep = |id: &str| Effect::HandBackSession { session: id.into(), if_refused: IfRefused::KeepWaiting };
    assert_eq!(decision.effects, [keep("s-1"), keep("s-2")]);
}

#[test]
fn refused_hand_back_holds_the_worker() {
    let mut simulation = Simulation::new(draining_since(None));
    simulation.ec2.place(instance(Ec2State::Running), simulation.now);
    simulation.sessions = vec![Session::new("s-1", "scheduled")];
    let (decision, _) = simulation.decide();
    let refused = EffectResult::Failed(CallFailure::new(FailureKind::Conflict, "not now"));
    let applied = lcm_sdk::Applied { decision, results: vec![refused], at: simulation.now, version: None };
    let record = lcm_sdk::record(&simulation.worker, &applied);
    assert_eq!((record.outcome, record.transition), (Outcome::Retry, None));
    // The deadline counts from now: otherwise repeated refusals would never reach it.
    assert_eq!(record.patch.changes.drain_started_at, Change::Set(simulation.now));
}

#[test]
fn failed_sessions_are_retried_three_times() {
    let mut simulation = Simulation::new(draining_since(None));
    simulation.ec2.place(instance(Ec2State::Running), simulation.now);
    simulation.sessions = vec![Session::new("s-1", "failed")];
    let mut notices = Vec::new();
    while simulation.worker.status == WorkerStatus::Draining {
        notices.extend(simulation.play().notices);
        for session in simulation.sessions.iter_mut().filter(|session| session.state.to_string() == "instantiating") {
            *session = Session { retry_count: session.retry_count, ..Session::new("s-1", "failed") };
        }
        assert!(notices.len() < 20, "{notices:?}");
    }
    let retried = |attempt| Notice::Event(Event::SessionRetried { session: "s-1".into(), attempt });
    let reason = SessionEnd::MaxRetriesExceeded;
    let given_up = Notice::Event(Event::SessionGivenUp { session: "s-1".into(), reason });
    assert_eq!(notices, [retried(1), retried(2), retried(3), given_up, Notice::Event(Event::DrainCompleted)]);
    assert_eq!(reason.as_str(), "max_retries_exceeded");
    assert_eq!(SessionEnd::WorkerStoppedDuringRetry.as_str(), "worker_stopped_during_retry");
}

#[test]
fn deadline_ends_the_remaining_sessions() {
    let sessions = vec![Session::new("a", "running"), Session::new("b", "scheduled"), Session::new("c", "expired")];
    let late = decide_now(&draining_since(Some(Duration::from_secs(4 * 3600))), &observed(sessions.clone()));
    assert_eq!(status_after(&late), Some(WorkerStatus::Stopping));
    let remaining = vec!["a".into(), "b".into()];
    assert_eq!(
        late.effects,
        [
            Effect::Announce { event: Event::DrainTimedOut { remaining } },
            Effect::TerminateSession { session: "a".into(), reason: SessionEnd::DrainTimeout },
            Effect::HandBackSession { session: "b".into(), if_refused: IfRefused::Terminate },
        ]
    );
    let just_before = decide_now(&draining_since(Some(Duration::from_secs(4 * 3600 - 1))), &observed(sessions));
    assert_eq!(status_after(&just_before), None);
    assert_eq!(
        just_before.reason.to_string(),
        "Sessions are still active: waiting for them (1 active, 1 s until the deadline)."
    );
}

#[test]
fn failed_session_end_keeps_the_worker_up() {
    let worker = draining_since(Some(LONG));
    let decision = decide_now(&worker, &observed(vec![Session::new("a", "running")]));
    let results = vec![EffectResult::Done, EffectResult::Failed(throttled())];
    let record = lcm_sdk::record(&worker, &lcm_sdk::Applied { decision, results, at: now(), version: None });
    assert_eq!((record.outcome, record.transition), (Outcome::Retry, None));
    assert!(record.patch.is_empty());
}

#[test]
fn drain_timeout_comes_from_the_template() {
    let after = |hours: f64, template: Lookup<Template>| {
        let worker = draining_since(Some(Duration::from_secs_f64(hours * 3600.0)));
        let observation = Observation { template, ..observed(vec![Session::new("a", "running")]) };
        status_after(&decide_now(&worker, &observation)).is_some()
    };
    let template = |hours: &str| -> Template {
        let json = format!(r#"{{"name": "t", "instance_type": "m", "drain_timeout_hours": {hours}}}"#);
        serde_json::from_str(&json).expect("valid")
    };
    assert!(!after(1.9, Lookup::Found(template("2"))));
    assert!(after(2.0, Lookup::Found(template("2.0"))));
    assert!(!after(3.9, Lookup::Absent));
    assert!(after(4.0, Lookup::Absent));
    // If the timeout cannot be read, no session is forced, however long it takes.
    assert!(!after(1000.0, Lookup::Unknown(throttled())));
}

#[test]
fn drain_without_a_start_time_starts_its_clock() {
    let zero = Template { drain_timeout: Duration::ZERO, ..Template::new("metal", "m") };
    let observation = Observation { template: Lookup::Found(zero), ..observed(vec![Session::new("a", "running")]) };
    let decision = decide_now(&draining_since(None), &observation);
    assert!(decision.transition.is_none() && decision.effects.is_empty());
    assert_eq!(decision.changes.expect("changes").drain_started_at, Change::Set(now()));
}

#[test]
fn stale_drain_start_is_cleared_in_service() {
    let mut worker = worker(WorkerStatus::Running, None);
    worker.notes.drain_started_at = Some(ago(LONG));
    let decision = decide_now(&worker, &observed(Vec::new()));
    assert_eq!(decision.changes.expect("changes").drain_started_at, Change::Clear);
}

#[test]
fn no_ec2_state_returns_a_draining_worker_to_running() {
    for &state in Ec2State::ALL {
        let found = Lookup::Found(Instance { state, ..instance(Ec2State::Running) });
        let observation = Observation { instance: found, ..observed(vec![Session::new("a", "running")]) };
        let after = status_after(&decide_now(&draining_since(Some(SHORT)), &observation));
        let settled =
            [WorkerStatus::Stopping, WorkerStatus::Stopped, WorkerStatus::Terminating, WorkerStatus::Terminated];
        assert!(after.is_none_or(|status| settled.contains(&status)), "{state}: {after:?}");
    }
}

#[test]
fn failed_sessions_of_stopped_workers_are_ended() {
    let sessions = vec![Session::new("s-1", "failed"), Session::new("s-2", "running")];
    let found = Lookup::Found(instance(Ec2State::Stopped));
    let decision = decide_now(&draining_since(Some(SHORT)), &Observation { instance: found, ..observed(sessions) });
    assert_eq!(status_after(&decision), Some(WorkerStatus::Stopped));
    let reason = SessionEnd::WorkerStoppedDuringRetry;
    assert_eq!(decision.effects, [Effect::TerminateSession { session: "s-1".into(), reason }]);
}

#[test]
fn drain_without_a_desired_status_ends_with_one() {
    let mut worker = draining_since(Some(SHORT));
    worker.desired_status = None;
    let decision = decide_now(&worker, &observed(Vec::new()));
    assert_eq!(decision.changes.expect("changes").desired_status, Some(DesiredStatus::Stopped));
}

#[test]
fn scale_down_stop_lists_the_sessions_again() {
    let mut stopping = worker(WorkerStatus::Stopping, Some(DesiredStatus::Stopped));
    stopping.notes.drain_started_at = Some(now());
    let stops = |decision: &Decision| decision.effects.iter().any(|effect| effect.name().as_str() == "stop_instance");

    let empty = decide_now(&stopping, &observed(vec![Session::new("old", "stopped")]));
    assert!(stops(&empty) && empty.transition.is_none());
    let placed = decide_now(&stopping, &observed(vec![Session::new("new", "scheduled")]));
    assert_eq!((status_after(&placed), stops(&placed)), (Some(WorkerStatus::Running), false));
    let changes = placed.changes.expect("changes");
    assert_eq!((changes.desired_status, changes.drain_started_at), (Some(DesiredStatus::Running), Change::Clear));
    let blind = Observation { sessions: Lookup::Unknown(throttled()), ..observed(Vec::new()) };
    let blind = decide_now(&stopping, &blind);
    assert_eq!((blind.outcome, stops(&blind)), (Outcome::Retry, false));

    // A stop by an operator does not depend on sessions.
    stopping.notes.drain_started_at = None;
    assert!(stops(&decide_now(&stopping, &observed(vec![Session::new("busy", "running")]))));
}
