//! Draining: sessions by state, the deadline, and cancellation.

use std::time::Duration;

use lcm_sdk::lifecycle::{
    Capabilities, Change, Changes, Event, IfFailed, IfRefused, Notice, SessionEnd, Support, drain,
};
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

fn hand_back(session: &str, if_refused: IfRefused, if_failed: IfFailed) -> Effect {
    Effect::HandBackSession { session: session.into(), if_refused, if_failed }
}

fn end(session: &str, reason: SessionEnd, if_failed: IfFailed) -> Effect {
    Effect::TerminateSession { session: session.into(), reason, if_failed }
}

/// The record after every effect of a decision failed.
fn record_failed(worker: &Worker, decision: Decision, effects: usize) -> lcm_sdk::Record {
    let results = vec![EffectResult::Failed(throttled()); effects];
    lcm_sdk::record(worker, &lcm_sdk::Applied { decision, results, at: now(), version: None })
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

fn without_moves(sessions: Vec<Session>) -> Observation {
    Observation { capabilities: Capabilities::all(Support::No), ..observed(sessions) }
}

#[test]
fn sessions_that_cannot_be_moved_hold_the_worker() {
    for state in ["pending", "scheduled", "failed"] {
        let held = decide_now(&draining_since(Some(SHORT)), &without_moves(vec![Session::new("s", state)]));
        assert_eq!((held.outcome, held.transition), (Outcome::Requeue, None), "{state}");
        assert_eq!((held.reason.code.as_str(), held.effects.len()), ("drain_waiting", 0), "{state}");
        assert!(held.reason.to_string().contains("1 active"), "{}", held.reason);
    }
}

#[test]
fn sessions_that_cannot_be_moved_end_with_the_deadline() {
    for state in ["pending", "scheduled", "failed", "running"] {
        let forced = decide_now(&draining_since(Some(LONG)), &without_moves(vec![Session::new("s", state)]));
        assert_eq!(status_after(&forced), Some(WorkerStatus::Stopping), "{state}");
        let ends: Vec<_> = forced.effects.iter().filter(|effect| !matches!(effect, Effect::Announce { .. })).collect();
        assert_eq!(ends, [&end("s", SessionEnd::DrainTimeout, IfFailed::Hold)], "{state}");
    }
}

#[test]
fn drained_workers_stop_or_terminate() {
    let over = ["stopped", "archived", "terminated", "expired"].map(|state| Session::new(state, state));
    for (desired, expected) in DESIRED.into_iter().zip([
        WorkerStatus::Stopping,
        WorkerStatus::Running,
        WorkerStatus::Stopping,
        WorkerStatus::Terminating,
    ]) {
        let mut worker = draining_since(Some(SHORT));
        worker.desired_status = desired;
        let decision = decide_now(&worker, &observed(over.to_vec()));
        assert_eq!(status_after(&decision), Some(expected));
        let is_completed = decision.notices == [Notice::Event(Event::DrainCompleted)];
        assert_eq!(is_completed, expected != WorkerStatus::Running);
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
    let keep = |id: &str| hand_back(id, IfRefused::KeepWaiting, IfFailed::Hold);
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
            end("a", SessionEnd::DrainTimeout, IfFailed::Hold),
            hand_back("b", IfRefused::Terminate(SessionEnd::DrainTimeout), IfFailed::Hold),
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
    let tried = Changes { drain_tries: Some(1), ..Changes::default() };
    assert_eq!(record.patch.changes, tried, "nothing but the try is written");
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
    assert_eq!(decision.effects, [end("s-1", SessionEnd::WorkerStoppedDuringRetry, IfFailed::Hold)]);
}

#[test]
fn waiting_sessions_of_stopped_workers_are_handed_back() {
    let sessions = vec![Session::new("s-1", "scheduled"), Session::new("s-2", "pending")];
    for state in [Ec2State::Stopping, Ec2State::Stopped] {
        let observation = Observation { instance: Lookup::Found(instance(state)), ..observed(sessions.clone()) };
        let mut worker = draining_since(Some(SHORT));
        let decision = decide_now(&worker, &observation);
        assert_eq!(status_after(&decision), Some(state.worker_status()));
        let keep = |id| hand_back(id, IfRefused::KeepWaiting, IfFailed::Hold);
        assert_eq!(decision.effects, [keep("s-1"), keep("s-2")]);

        let record = record_failed(&worker, decision, 2);
        assert_eq!((record.transition, record.patch.changes.drain_tries), (None, Some(1)));
        worker.notes.drain_tries = 3;
        let record = record_failed(&worker, decide_now(&worker, &observation), 2);
        assert_eq!(record.patch.status, Some(state.worker_status()), "the record follows EC2 in the end");
    }
}

#[test]
fn unlisted_sessions_delay_an_external_stop() {
    let instance = Lookup::Found(instance(Ec2State::Stopped));
    let observation = Observation { instance, sessions: Lookup::Unknown(throttled()), ..observed(Vec::new()) };
    let mut worker = draining_since(Some(SHORT));
    let decision = decide_now(&worker, &observation);
    assert_eq!((decision.outcome, decision.transition), (Outcome::Retry, None));
    assert_eq!(decision.changes.expect("changes").drain_tries, Some(1));
    worker.notes.drain_tries = 3;
    assert_eq!(status_after(&decide_now(&worker, &observation)), Some(WorkerStatus::Stopped));
}

#[test]
fn draining_workers_desired_running_return_to_service() {
    let busy = vec![Session::new("a", "running"), Session::new("b", "scheduled"), Session::new("c", "failed")];
    for sessions in [Vec::new(), busy] {
        for begun in [SHORT, LONG] {
            let mut worker = draining_since(Some(begun));
            worker.desired_status = Some(DesiredStatus::Running);
            worker.notes.drain_tries = 2;
            let decision = decide_now(&worker, &observed(sessions.clone()));
            assert_eq!(status_after(&decision), Some(WorkerStatus::Running));
            assert_eq!(decision.effects, [], "no session is touched");
            let reason = drain::DESIRED_RUNNING.to_owned();
            let event = Event::DrainCancelled { cancelled_by: drain::CONTROLLER.to_owned(), reason };
            assert_eq!(decision.notices, [Notice::Event(event)]);
            let changes = decision.changes.expect("changes");
            assert_eq!((changes.drain_started_at, changes.drain_tries), (Change::Clear, Some(0)));
        }
    }
}

#[test]
fn sessions_are_listed_again_after_the_settle_time() {
    let after = |begun: Option<Duration>| decide_now(&draining_since(begun), &observed(Vec::new()));
    let (settle, left) = (policy().drain_settle, Duration::from_millis(1));
    let early = after(Some(settle - left));
    assert_eq!((early.transition, early.requeue), (None, Requeue::After(left)));
    assert_eq!(early.reason.code.as_str(), "settle_time");
    assert_eq!(status_after(&after(Some(settle))), Some(WorkerStatus::Stopping));

    // A drain without a start, or with one from before the clock was set back, settles from now on.
    let mut ahead = draining_since(None);
    ahead.notes.drain_started_at = Some(now() + chrono::TimeDelta::days(1));
    for decision in [after(None), decide_now(&ahead, &observed(Vec::new()))] {
        assert_eq!((decision.transition, decision.requeue), (None, Requeue::After(settle)));
        assert_eq!(decision.changes.expect("changes").drain_started_at, Change::Set(now()));
    }
}

#[test]
fn stuck_sessions_delay_the_stop_three_times() {
    let mut worker = draining_since(Some(LONG));
    let mut announced = 0;
    for tries in 0..3 {
        let decision = decide_now(&worker, &observed(vec![Session::new("stuck", "running")]));
        announced += decision.effects.iter().filter(|effect| effect.name().as_str() == "announce").count();
        let count = decision.effects.len();
        let record = record_failed(&worker, decision, count);
        assert_eq!((record.outcome, record.transition), (Outcome::Retry, None), "try {tries}");
        worker = record.patch.apply_to(&worker);
    }
    assert_eq!((announced, worker.notes.drain_tries), (1, 3));
    let last = decide_now(&worker, &observed(vec![Session::new("stuck", "running")]));
    assert_eq!(last.effects, [end("stuck", SessionEnd::DrainTimeout, IfFailed::Proceed)]);
    let record = record_failed(&worker, last, 1);
    let stopping = record.patch.apply_to(&worker);
    assert_eq!((stopping.status, stopping.notes.drain_tries), (WorkerStatus::Stopping, 0));
}

#[test]
fn absent_templates_keep_the_timeout_of_the_drain() {
    let template = Template { drain_timeout: Duration::from_secs(24 * 3600), ..Template::new("metal", "m") };
    let busy = observed(vec![Session::new("a", "running")]);
    let with = |template| Observation { template, ..busy.clone() };
    let mut worker = draining_since(Some(SHORT));
    let first = decide_now(&worker, &with(Lookup::Found(template.clone())));
    assert_eq!(first.changes.as_ref().expect("changes").drain_timeout_seconds, Change::Set(24 * 3600));
    worker.notes.drain_timeout_seconds = Some(24 * 3600);
    assert_eq!(decide_now(&worker, &with(Lookup::Found(template))).changes, None, "written once");

    let after = |hours: u64| {
        let mut worker = worker.clone();
        worker.notes.drain_started_at = Some(ago(Duration::from_secs(hours * 3600)));
        status_after(&decide_now(&worker, &with(Lookup::Absent)))
    };
    assert_eq!((after(23), after(24)), (None, Some(WorkerStatus::Stopping)));
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
    let early = decide_now(&stopping, &observed(Vec::new()));
    assert_eq!((early.effects.len(), early.requeue), (0, Requeue::After(policy().drain_settle)));
    assert!(!lcm_sdk::queries(&stopping, &observed(Vec::new()), &policy(), now()).contains(lcm_sdk::Query::Sessions));
    stopping.notes.drain_started_at = Some(ago(policy().drain_settle));
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

    // Running without a desired status of running, it would be stopped under the session.
    let mut unwritable = observed(vec![Session::new("new", "scheduled")]);
    unwritable.capabilities = Capabilities::all(Support::No);
    let held = decide_now(&stopping, &unwritable);
    assert_eq!((held.transition, stops(&held), held.reason.code.as_str()), (None, false, "drain_waiting"));

    // A stop by an operator does not depend on sessions.
    stopping.notes.drain_started_at = None;
    assert!(stops(&decide_now(&stopping, &observed(vec![Session::new("busy", "running")]))));
}

#[test]
fn start_of_a_drain_is_written_once() {
    let busy = observed(vec![Session::new("a", "running")]);
    assert_eq!(decide_now(&draining_since(Some(Duration::ZERO)), &busy).changes, None);
}

/// The template's timeout was extended after tries at an earlier deadline.
#[test]
fn later_deadline_has_all_its_tries() {
    let mut worker = draining_since(Some(SHORT));
    worker.notes.drain_tries = 2;
    let decision = decide_now(&worker, &observed(vec![Session::new("a", "running")]));
    assert_eq!(decision.changes.expect("changes").drain_tries, Some(0));
}

#[test]
fn noted_timeout_is_rounded_up_to_seconds() {
    for (millis, seconds) in [(1_000, 1), (1_001, 2), (1_999, 2)] {
        let template = Template { drain_timeout: Duration::from_millis(millis), ..Template::new("metal", "m") };
        let observation =
            Observation { template: Lookup::Found(template), ..observed(vec![Session::new("a", "running")]) };
        let decision = decide_now(&draining_since(Some(Duration::ZERO)), &observation);
        assert_eq!(decision.changes.expect("changes").drain_timeout_seconds, Change::Set(seconds), "{millis} ms");
    }
}

#[test]
fn drain_is_canceled_without_a_listing_of_its_sessions() {
    for sessions in [Lookup::NotRequested, Lookup::Unknown(throttled()), Lookup::Absent] {
        let mut worker = draining_since(Some(SHORT));
        worker.desired_status = Some(DesiredStatus::Running);
        let decision = decide_now(&worker, &Observation { sessions, ..observed(Vec::new()) });
        assert_eq!(status_after(&decision), Some(WorkerStatus::Running));
    }
}
