//! From any state and after any event, a worker reaches its desired status and stays there. It never has two instances,
//! and no instance is without an owner.

use std::time::Duration;

use lcm_sdk::lifecycle::{IdleReport, LicenseOperation, WORKER_ID_TAG, drain};
use lcm_sdk::simulate::Simulation;
use lcm_sdk::{
    Applied, CallFailure, Decision, DesiredStatus, Ec2State, FailureKind, Lookup, Observation, Record, Secret, Session,
    Worker, WorkerStatus, decide, record,
};
use proptest::prelude::*;
use proptest::sample::select;

use crate::common::{DESIRED, LONG, SHORT, ago, instance, now, policy, worker};

/// Reconciles within which every worker must have settled: half an hour of half-minute cycles.
const BOUND: usize = 60;

/// Reconciles until nothing changes, and checks that the worker has its desired status and keeps it.
fn assert_settles(mut simulation: Simulation, case: &str) {
    let initial_status = simulation.worker.status;
    let Some(history) = simulation.play_until_quiet(BOUND) else {
        let last: Vec<_> = (0..3).map(|_| simulation.play().reason.to_string()).collect();
        panic!("{case}: does not settle; {} {:?} {last:?}", simulation.worker.status, simulation.ec2.states());
    };
    let (worker, live) = (&simulation.worker, simulation.ec2.live());
    let has_reason = |codes: &[&str]| history.iter().any(|record| codes.contains(&record.reason.code.as_str()));
    assert!(live <= 1, "{case}: {live} live instances");
    let is_settled = match (worker.status, worker.desired_status) {
        (WorkerStatus::Running, None | Some(DesiredStatus::Running)) => live == 1,
        // Nothing runs, and every instance is named by the record.
        (WorkerStatus::Stopped, None | Some(DesiredStatus::Stopped)) => {
            !simulation.ec2.states().contains(&Ec2State::Running) && (live == 0 || worker.ec2_instance_id.is_some())
        }
        (WorkerStatus::Terminated, Some(DesiredStatus::Terminated)) => live == 0,
        // Never launched, because its desired status is stopped.
        (WorkerStatus::Pending, Some(DesiredStatus::Stopped)) => live == 0,
        // Failed with a cause, or from the beginning.
        (WorkerStatus::Failed, desired) => {
            let causes = ["launch_ended", "provisioning_timeout", "instance_never_appeared", "launch_failed"];
            let cause = has_reason(&causes);
            desired != Some(DesiredStatus::Terminated) && (initial_status == WorkerStatus::Failed || cause)
        }
        // Terminated against its desired status, because a terminated instance cannot be restarted.
        (WorkerStatus::Terminated, _) => {
            live == 0
                && (initial_status == WorkerStatus::Terminated
                    || has_reason(&["gone", "drift", "nothing_to_terminate", "ec2_terminated"]))
        }
        _ => false,
    };
    assert!(is_settled, "{case}: settled as {} with {:?}", worker.status, simulation.ec2.states());
    let settled = simulation.worker.clone();
    for _ in 0..5 {
        let again: Record = simulation.play();
        assert!(again.patch.is_empty(), "{case}: changes after it settled: {again:?}");
    }
    // Metrics are reported all the time, and count as writes.
    assert_eq!(Worker { version: settled.version, ..simulation.worker }, settled, "{case}");
}

/// Whether the record names the instance. After a lost write only its tags name the worker.
const NAMED: [bool; 2] = [true, false];

#[test]
fn workers_converge_from_any_state() {
    let mut cases = 0;
    for &status in WorkerStatus::ALL {
        for desired in DESIRED {
            for state in std::iter::once(None).chain(Ec2State::ALL.iter().copied().map(Some)) {
                for named in NAMED {
                    for launched in [SHORT, LONG] {
                        let live = state.is_some_and(Ec2State::is_live);
                        if status == WorkerStatus::Terminated && live {
                            // Only discovery can find this one; the resurrection test covers it.
                            continue;
                        }
                        if !named && !live && awaits_its_instance(status, desired) {
                            continue;
                        }
                        let simulation = stage(status, desired, state, named, launched);
                        assert_settles(
                            simulation,
                            &format!(
                                "{status}, desired {desired:?}, EC2 {state:?}, named {named}, launched {launched:?} ago"
                            ),
                        );
                        cases += 1;
                    }
                }
            }
        }
    }
    assert!(cases > 1_000, "only {cases} cases");
}

/// Whether a record that names no instance keeps its status until one is found. The launch tests cover it.
fn awaits_its_instance(status: WorkerStatus, desired: Option<DesiredStatus>) -> bool {
    match status {
        WorkerStatus::Running => matches!(desired, None | Some(DesiredStatus::Running)),
        WorkerStatus::Draining | WorkerStatus::Unknown => true,
        _ => false,
    }
}

fn stage(
    status: WorkerStatus,
    desired: Option<DesiredStatus>,
    state: Option<Ec2State>,
    named: bool,
    launched: Duration,
) -> Simulation {
    let mut worker = worker(status, desired);
    worker.notes.launched_at = Some(ago(launched));
    worker.created_at = Some(ago(launched));
    if !named {
        worker.ec2_instance_id = None;
    }
    let mut simulation = Simulation::new(worker);
    simulation.now = now();
    if let Some(state) = state {
        let mut instance = instance(state);
        instance.launched_at = Some(ago(launched));
        instance.tags.insert(WORKER_ID_TAG.into(), "w-1".into());
        simulation.ec2.place(instance, now());
    }
    simulation
}

#[test]
fn live_instance_of_a_terminated_record_is_adopted() {
    for state in [Ec2State::Pending, Ec2State::Running, Ec2State::Stopping, Ec2State::Stopped] {
        for desired in DESIRED {
            let mut simulation = stage(WorkerStatus::Terminated, desired, Some(state), true, LONG);
            let observed = Observation { instance: Lookup::Found(instance(state)), ..Observation::default() };
            let decision = decide(&simulation.worker, &observed, &simulation.policy, simulation.now);
            let applied = Applied { decision, results: Vec::new(), at: simulation.now, version: None };
            let record = record(&simulation.worker, &applied);
            simulation.worker = record.patch.apply_to(&simulation.worker);
            assert_eq!(simulation.worker.status, state.worker_status());
            // A day in a starting state exceeds the timeout; all others settle in their desired status.
            if state != Ec2State::Pending {
                assert_settles(simulation, &format!("resurrected {state}, desired {desired:?}"));
            }
        }
    }
}

#[test]
fn tagged_instance_of_a_stopped_worker_is_adopted() {
    let mut tagged = instance(Ec2State::Running);
    tagged.id = "i-2".into();
    let observed = Observation { tagged: Lookup::Found(vec![tagged]), ..Observation::default() };
    let adopted = |status, ec2_instance_id: Option<&str>| {
        let mut worker = worker(status, None);
        worker.ec2_instance_id = ec2_instance_id.map(Into::into);
        let decision = decide(&worker, &observed, &policy(), now());
        let applied = Applied { decision, results: Vec::new(), at: now(), version: None };
        let after = record(&worker, &applied).patch.apply_to(&worker);
        (after.status, after.ec2_instance_id.map(|id| id.to_string()))
    };
    let adopted_id = Some("i-2".to_owned());
    assert_eq!(adopted(WorkerStatus::Terminated, None), (WorkerStatus::Running, adopted_id.clone()));
    assert_eq!(adopted(WorkerStatus::Terminated, Some("i-dead")), (WorkerStatus::Running, adopted_id.clone()));
    assert_eq!(adopted(WorkerStatus::Stopped, None), (WorkerStatus::Running, adopted_id.clone()));
    assert_eq!(adopted(WorkerStatus::Failed, None), (WorkerStatus::Failed, adopted_id));
}

#[test]
fn repeated_failed_starts_fail_the_worker() {
    let mut simulation =
        stage(WorkerStatus::Stopped, Some(DesiredStatus::Running), Some(Ec2State::Stopped), true, LONG);
    let mut starts = 0;
    while simulation.worker.status != WorkerStatus::Failed {
        starts += usize::from(!simulation.decide().0.effects.is_empty());
        drop(simulation.play());
        simulation.ec2.fail_pending(simulation.now);
        assert!(starts < 100, "{:?}", simulation.worker);
    }
    assert!(starts > 2, "failed after {starts} starts");
}

/// An event of a random history.
#[derive(Debug, Clone)]
enum Action {
    Reconcile,
    Crash(usize),
    Outage,
    Recovery,
    ConsoleStop,
    ConsoleStart,
    ConsoleTerminate,
    LoseResponses(bool),
    Refuse(bool),
    Sessions(Vec<&'static str>),
    Drain,
    CancelDrain,
    License(LicenseOperation),
    Idle(bool),
    SetDesired(Option<DesiredStatus>),
    Reset,
    Minutes(u64),
}

fn any_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => Just(Action::Reconcile),
        2 => (0_usize..3).prop_map(Action::Crash),
        1 => Just(Action::Outage),
        1 => Just(Action::Recovery),
        1 => Just(Action::ConsoleStop),
        1 => Just(Action::ConsoleStart),
        1 => Just(Action::ConsoleTerminate),
        1 => any::<bool>().prop_map(Action::LoseResponses),
        1 => any::<bool>().prop_map(Action::Refuse),
        1 => proptest::collection::vec(select(vec!["scheduled", "running", "failed", "expired"]), 0..3)
            .prop_map(Action::Sessions),
        1 => Just(Action::Drain),
        1 => Just(Action::CancelDrain),
        1 => select(LicenseOperation::ALL).prop_map(Action::License),
        1 => any::<bool>().prop_map(Action::Idle),
        2 => select(DESIRED.as_slice()).prop_map(Action::SetDesired),
        1 => Just(Action::Reset),
        1 => (1_u64..90).prop_map(Action::Minutes),
    ]
}

fn perform(simulation: &mut Simulation, action: &Action) {
    let now = simulation.now;
    let id = simulation.worker.ec2_instance_id.clone();
    match action {
        Action::Reconcile => drop(simulation.play()),
        Action::Crash(effects) => drop(simulation.play_and_crash_after(*effects)),
        Action::Outage => simulation.ec2.outage = Some(CallFailure::new(FailureKind::Unreachable, "outage")),
        Action::Recovery => simulation.ec2.outage = None,
        Action::ConsoleStop => drop(id.map(|id| simulation.ec2.stop(&id, now))),
        Action::ConsoleStart => drop(id.map(|id| simulation.ec2.start(&id, now))),
        Action::ConsoleTerminate => drop(id.map(|id| simulation.ec2.terminate(&id, now))),
        Action::LoseResponses(lost) => simulation.ec2.lose_responses = *lost,
        Action::Refuse(refusing) => simulation.ec2.read_only = *refusing,
        Action::Sessions(states) => {
            let named = |(number, state): (usize, &&str)| Session::new(format!("s-{number}"), state);
            simulation.sessions = states.iter().enumerate().map(named).collect();
        }
        Action::Drain => {
            if let Ok(decision) = drain::initiate(&simulation.worker, &simulation.sessions, "test", "test", now) {
                command(simulation, decision);
            }
        }
        Action::CancelDrain => {
            if let Ok(decision) = drain::cancel(&simulation.worker, "test", "test") {
                command(simulation, decision);
            }
        }
        Action::License(operation) => {
            simulation.worker.license.pending_operation = Some(*operation);
            simulation.worker.license.pending_token = Some(Secret::from("token"));
            simulation.worker.license.operation_in_progress = false;
        }
        Action::Idle(idle) => {
            simulation.policy.scale_down.enabled = true;
            simulation.running_workers = 2;
            simulation.idle = IdleReport {
                telemetry_fetched: true,
                idle_check_performed: true,
                is_idle: *idle,
                eligible_for_pause: *idle,
                ..IdleReport::default()
            };
        }
        Action::SetDesired(desired) => simulation.worker.desired_status = *desired,
        Action::Reset if simulation.worker.status == WorkerStatus::Failed => {
            simulation.worker.status = WorkerStatus::Pending;
        }
        Action::Reset => {}
        Action::Minutes(minutes) => simulation.advance(Duration::from_secs(minutes * 60)),
    }
}

/// An action of an operator.
fn command(simulation: &mut Simulation, decision: Decision) {
    let applied = Applied { decision, results: Vec::new(), at: simulation.now, version: None };
    let record = record(&simulation.worker, &applied);
    simulation.write(&record.patch);
}

/// Ends all faults, sessions and idle times.
fn end_faults(simulation: &mut Simulation) {
    simulation.ec2.outage = None;
    simulation.ec2.lose_responses = false;
    simulation.ec2.read_only = false;
    simulation.sessions.clear();
    simulation.idle = IdleReport::default();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn worker_has_at_most_one_instance(
        lag in select(vec![0_u64, 20, 100]),
        actions in proptest::collection::vec(any_action(), 0..40),
    ) {
        let mut worker = Worker::new("w-1", WorkerStatus::Pending);
        worker.desired_status = Some(DesiredStatus::Running);
        let mut simulation = Simulation::new(worker);
        simulation.ec2.visibility_lag = Duration::from_secs(lag);
        for action in &actions {
            let before = simulation.worker.status;
            let intent = simulation.worker.license.pending_operation;
            let has_outage = simulation.ec2.outage.is_some();
            perform(&mut simulation, action);
            let live = simulation.ec2.live();
            prop_assert!(live <= 1, "{} live instances after {:?} in {:?}", live, action, actions);
            if simulation.worker.status == WorkerStatus::Terminated {
                prop_assert_eq!(live, 0, "terminated with a live instance after {:?} in {:?}", action, actions);
            }
            if intent.is_some() && simulation.worker.license.pending_operation.is_none() {
                let submitted = simulation.registration.attempted.is_some();
                prop_assert!(submitted, "a license request was lost after {:?} in {:?}", action, actions);
            }
            // Only a requested stop, termination or start of a worker without an instance needs no response of EC2.
            let requested = before == WorkerStatus::Stopped
                || matches!(simulation.worker.desired_status, Some(DesiredStatus::Stopped | DesiredStatus::Terminated));
            if has_outage && matches!(action, Action::Reconcile) && !requested {
                prop_assert_eq!(simulation.worker.status, before, "changed status during an EC2 outage: {:?}", actions);
            }
        }
        end_faults(&mut simulation);
        assert_settles(simulation, &format!("{actions:?}"));
    }
}
