//! What holds for every input: decisions are total, deterministic, blind to "could not ask", and they converge.

use std::time::Duration;

use lcm_sdk::core::idle::IdleReport;
use lcm_sdk::core::instance::WORKER_ID_TAG;
use lcm_sdk::core::license::{LicenseOperation, RegistrationStatus};
use lcm_sdk::core::observation::{CloudMetrics, CmlMetrics};
use lcm_sdk::rehearsal::Rehearsal;
use lcm_sdk::{
    Answer, Applied, CallFailure, DesiredStatus, Ec2State, EffectResult, FailureKind, FleetView, Image, Instance,
    Observation, Record, Secret, Session, Template, Timestamp, Worker, WorkerStatus, decide, queries, record,
};
use proptest::prelude::*;
use proptest::sample::select;

use crate::common::{DESIRED, LONG, SHORT, ago, instance, now, policy, worker};

// ---- any input ---------------------------------------------------------------------------------------------------

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), Just("i-1".to_owned()), Just("w-1".to_owned()), "\\PC{0,8}"]
}

fn any_moment() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        Just(Timestamp::MIN_UTC),
        Just(Timestamp::MAX_UTC),
        Just(Timestamp::UNIX_EPOCH),
        Just(now()),
        (-100_000_i64..100_000).prop_map(|seconds| now() + chrono::TimeDelta::seconds(seconds)),
    ]
}

fn any_failure() -> impl Strategy<Value = CallFailure> {
    (select(FailureKind::ALL), any_text()).prop_map(|(kind, text)| CallFailure::new(kind, text))
}

fn any_answer<T: std::fmt::Debug + Clone>(found: impl Strategy<Value = T>) -> impl Strategy<Value = Answer<T>> {
    prop_oneof![
        Just(Answer::NotAsked),
        Just(Answer::Absent),
        any_failure().prop_map(Answer::Unknown),
        found.prop_map(Answer::Found),
    ]
}

fn any_instance() -> impl Strategy<Value = Instance> {
    let addresses = (proptest::option::of(any_text()), proptest::option::of(any_text()));
    (any_text(), select(Ec2State::ALL), addresses, proptest::option::of(any_moment()), any_text()).prop_map(
        |(id, state, (public_ip, private_ip), launched_at, token)| Instance {
            public_ip,
            private_ip,
            launched_at,
            client_token: Some(token),
            ..Instance::new(id, state)
        },
    )
}

fn any_session() -> impl Strategy<Value = Session> {
    let state = select(vec!["pending", "scheduled", "running", "stopping", "failed", "expired", "", "asleep"]);
    (any_text(), state, proptest::option::of(any_moment()), any::<u32>()).prop_map(
        |(id, state, timeslot_start, retry_count)| Session { timeslot_start, retry_count, ..Session::new(id, state) },
    )
}

fn any_idle_report() -> impl Strategy<Value = IdleReport> {
    any::<[bool; 5]>().prop_map(|[telemetry_fetched, idle_check_performed, auto_pause_triggered, is_idle, eligible]| {
        IdleReport {
            telemetry_fetched,
            idle_check_performed,
            auto_pause_triggered,
            is_idle,
            eligible_for_pause: eligible,
            ..IdleReport::default()
        }
    })
}

fn any_worker() -> impl Strategy<Value = Worker> {
    let state = (select(WorkerStatus::ALL), select(DESIRED.as_slice()), proptest::option::of(any_text()));
    let moments = proptest::collection::vec(proptest::option::of(any_moment()), 6);
    let license =
        (proptest::option::of(select(LicenseOperation::ALL)), any::<bool>(), proptest::option::of(any_text()));
    let texts = (any_text(), proptest::option::of(any_text()), proptest::option::of(any_text()));
    (state, moments, license, texts, any::<u32>()).prop_map(|(state, moments, license, texts, generation)| {
        let mut worker = Worker::new(texts.0, state.0);
        worker.desired_status = state.1;
        worker.instance_id = state.2.map(Into::into);
        worker.created_at = moments[0];
        worker.updated_at = moments[1];
        worker.start_initiated_at = moments[2];
        worker.last_activity_check_at = moments[3];
        worker.notes.launched_at = moments[4];
        worker.notes.drain_started_at = moments[5];
        worker.notes.launch_generation = generation;
        worker.license.pending_operation = license.0;
        worker.license.operation_in_progress = license.1;
        worker.license.pending_token = license.2.map(Secret::from);
        worker.template_name = texts.1;
        worker.aws_region = texts.2;
        worker
    })
}

fn any_observation() -> impl Strategy<Value = Observation> {
    let ec2 = (any_answer(any_instance()), any_answer(proptest::collection::vec(any_instance(), 0..4)));
    let image = any_text().prop_map(|text| Image { id: text.clone(), name: text.clone(), creation_date: text });
    let launch = (
        any_answer(any_text().prop_map(|name| Template::new(name.clone(), name))),
        any_answer(proptest::collection::vec(image, 0..3)),
    );
    let sessions = any_answer(proptest::collection::vec(any_session(), 0..4));
    let metrics = (any_answer(Just(CloudMetrics::default())), any_answer(Just(CmlMetrics::default())));
    let registration =
        any_answer(select(vec!["COMPLETED", "FAILED", "NOT_REGISTERED", "?"]).prop_map(RegistrationStatus::from_wire));
    let fleet = (0_usize..4, proptest::option::of(any_moment()))
        .prop_map(|(running, last_scale_down_at)| FleetView { running, last_scale_down_at });
    let rest = (registration, any_answer(any_idle_report()), any_answer(fleet), proptest::option::of(any_moment()));
    (ec2, launch, sessions, metrics, rest).prop_map(|(ec2, launch, sessions, metrics, rest)| Observation {
        instance: ec2.0,
        tagged: ec2.1,
        template: launch.0,
        images: launch.1,
        sessions,
        cloud_metrics: metrics.0,
        cml: metrics.1,
        registration: rest.0,
        idle: rest.1,
        fleet: rest.2,
        metrics_reported_at: rest.3,
    })
}

fn any_result() -> impl Strategy<Value = EffectResult> {
    prop_oneof![
        Just(EffectResult::Done),
        Just(EffectResult::NotTried),
        any_text().prop_map(|id| EffectResult::Launched(id.into())),
        any_failure().prop_map(EffectResult::Failed),
    ]
}

fn any_policy() -> impl Strategy<Value = lcm_sdk::Policy> {
    (any::<bool>(), any::<bool>(), 0_u64..2_000).prop_map(|(scaling, resurrect, window)| {
        let mut policy = policy();
        policy.scale_down.enabled = scaling;
        policy.resurrect_terminated = resurrect;
        policy.consistency_window = Duration::from_secs(window);
        policy
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_input_gives_one_decision_and_one_record(
        worker in any_worker(),
        seen in any_observation(),
        policy in any_policy(),
        at in any_moment(),
        results in proptest::collection::vec(any_result(), 0..4),
    ) {
        let decision = decide(&worker, &seen, &policy, at);
        prop_assert_eq!(&decision, &decide(&worker, &seen, &policy, at));
        prop_assert_eq!(queries(&worker, &seen, &policy, at), queries(&worker, &seen, &policy, at));
        prop_assert_ne!(decision.reason.code.as_str(), "no_such_transition");
        prop_assert!(!decision.reason.to_string().is_empty());
        if let Some(transition) = decision.transition {
            prop_assert_eq!(transition.from(), worker.status);
        }
        serde_json::to_string(&decision).expect("a decision is JSON");
        let record = record(&worker, &Applied { decision, results, at });
        let after = worker.patched(&record.patch);
        prop_assert_eq!(after.status, record.transition.map_or(worker.status, |transition| transition.to()));
        serde_json::to_string(&record).expect("a record is JSON");
    }

    #[test]
    fn while_ec2_gives_no_answer_no_status_changes_and_nothing_is_done_to_the_cloud(
        worker in any_worker(),
        mut seen in any_observation(),
        policy in any_policy(),
        at in any_moment(),
        failure in any_failure(),
    ) {
        seen.instance = Answer::Unknown(failure.clone());
        seen.tagged = Answer::Unknown(failure);
        let decision = decide(&worker, &seen, &policy, at);
        prop_assert!(decision.is_idle(), "{:?}", decision);
    }

    #[test]
    fn asking_ends_and_what_is_asked_is_then_enough(
        worker in any_worker(),
        answers in any_observation(),
        policy in any_policy(),
        at in any_moment(),
    ) {
        let mut seen = Observation { metrics_reported_at: answers.metrics_reported_at, ..Observation::default() };
        let mut rounds = 0;
        loop {
            let open = queries(&worker, &seen, &policy, at);
            if open.is_empty() {
                break;
            }
            rounds += 1;
            prop_assert!(rounds <= 4, "{:?}", open);
            for query in open.iter() {
                answer(query, &answers, &mut seen);
            }
        }
        let decision = decide(&worker, &seen, &policy, at);
        let mismatch = seen.instance.found().is_some_and(|found| Some(&found.id) != worker.instance_id.as_ref());
        prop_assert!(decision.reason.code.as_str() != "not_observed" || mismatch, "{:?}", decision);
    }
}

/// Gives the prepared answer to a query; one that was prepared as "not asked" becomes "could not ask".
fn answer(query: lcm_sdk::Query, from: &Observation, to: &mut Observation) {
    fn given<T: Clone>(answer: &Answer<T>) -> Answer<T> {
        match answer {
            Answer::NotAsked => Answer::Unknown(CallFailure::new(FailureKind::Unclear, "timed out")),
            Answer::Found(_) | Answer::Absent | Answer::Unknown(_) => answer.clone(),
        }
    }
    use lcm_sdk::Query;
    match query {
        Query::Instance => to.instance = given(&from.instance),
        Query::Tagged => to.tagged = given(&from.tagged),
        Query::Template => to.template = given(&from.template),
        Query::Images => to.images = given(&from.images),
        Query::Sessions => to.sessions = given(&from.sessions),
        Query::CloudMetrics => to.cloud_metrics = given(&from.cloud_metrics),
        Query::Cml => to.cml = given(&from.cml),
        Query::Registration => to.registration = given(&from.registration),
        Query::Idle => to.idle = given(&from.idle),
        Query::Fleet => to.fleet = given(&from.fleet),
    }
}

// ---- convergence -------------------------------------------------------------------------------------------------

/// Passes within which every worker must have settled: half an hour of half-minute cycles.
const BOUND: usize = 60;

/// Plays to quiescence and checks that the worker is where it should be, and stays there.
fn settles(mut rehearsal: Rehearsal, story: &str) {
    let begun_as = rehearsal.worker.status;
    let Some(history) = rehearsal.play_until_quiet(BOUND) else {
        let last: Vec<_> = (0..3).map(|_| rehearsal.play().reason.to_string()).collect();
        panic!("{story}: does not settle; {} {:?} {last:?}", rehearsal.worker.status, rehearsal.cloud.states());
    };
    let (worker, live) = (&rehearsal.worker, rehearsal.cloud.live());
    let happened = |codes: &[&str]| history.iter().any(|record| codes.contains(&record.reason.code.as_str()));
    assert!(live <= 1, "{story}: {live} live instances");
    let arrived = match (worker.status, worker.desired_status) {
        (WorkerStatus::Running, None | Some(DesiredStatus::Running)) => live == 1,
        (WorkerStatus::Stopped, None | Some(DesiredStatus::Stopped)) => true,
        (WorkerStatus::Terminated, Some(DesiredStatus::Terminated)) => live == 0,
        // Held back: never launched, and nobody wants it to be.
        (WorkerStatus::Pending, Some(DesiredStatus::Stopped)) => live == 0,
        // Parked, but only with a cause.
        (WorkerStatus::Failed, desired) => {
            let cause = happened(&["launch_ended", "provisioning_timeout", "instance_never_appeared"]);
            desired != Some(DesiredStatus::Terminated) && (begun_as == WorkerStatus::Failed || cause)
        }
        // Gone for good, though somebody wanted otherwise: nobody brings an instance back from the dead.
        (WorkerStatus::Terminated, _) => {
            live == 0
                && (begun_as == WorkerStatus::Terminated
                    || happened(&["gone", "drift", "nothing_to_terminate", "ec2_terminated"]))
        }
        _ => false,
    };
    assert!(arrived, "{story}: rests as {} with {:?}", worker.status, rehearsal.cloud.states());
    let rest = rehearsal.worker.clone();
    for _ in 0..5 {
        let again: Record = rehearsal.play();
        assert!(again.patch.is_empty(), "{story}: moves on from rest: {again:?}");
    }
    assert_eq!(rehearsal.worker, rest, "{story}");
}

/// Whether the record and the tags both lead to the instance, or only the tags: a write that was lost.
const NAMED: [bool; 2] = [true, false];

#[test]
fn from_any_state_a_worker_reaches_its_desired_state_and_stays() {
    let mut cases = 0;
    for &status in WorkerStatus::ALL {
        for desired in DESIRED {
            for state in std::iter::once(None).chain(Ec2State::ALL.iter().copied().map(Some)) {
                for named in NAMED {
                    for launched in [SHORT, LONG] {
                        let live = state.is_some_and(Ec2State::is_live);
                        if status == WorkerStatus::Terminated && live {
                            // Only discovery can find this one; the resurrection test does.
                            continue;
                        }
                        let rehearsal = stage(status, desired, state, named, launched);
                        settles(
                            rehearsal,
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

fn stage(
    status: WorkerStatus,
    desired: Option<DesiredStatus>,
    state: Option<Ec2State>,
    named: bool,
    launched: Duration,
) -> Rehearsal {
    let mut worker = worker(status, desired);
    worker.notes.launched_at = Some(ago(launched));
    worker.created_at = Some(ago(launched));
    if !named {
        worker.instance_id = None;
    }
    let mut rehearsal = Rehearsal::new(worker);
    rehearsal.now = now();
    if let Some(state) = state {
        let mut instance = instance(state);
        instance.launched_at = Some(ago(launched));
        instance.tags.insert(WORKER_ID_TAG.into(), "w-1".into());
        rehearsal.cloud.place(instance, now());
    }
    rehearsal
}

#[test]
fn a_live_instance_of_a_terminated_record_is_taken_back_when_discovery_hands_it_over() {
    for state in [Ec2State::Pending, Ec2State::Running, Ec2State::Stopping, Ec2State::Stopped] {
        for desired in DESIRED {
            let mut rehearsal = stage(WorkerStatus::Terminated, desired, Some(state), true, LONG);
            let seen = Observation { instance: Answer::Found(instance(state)), ..Observation::default() };
            let decision = decide(&rehearsal.worker, &seen, &rehearsal.policy, rehearsal.now);
            let applied = Applied { decision, results: Vec::new(), at: rehearsal.now };
            let record = record(&rehearsal.worker, &applied);
            rehearsal.worker = rehearsal.worker.patched(&record.patch);
            assert_eq!(rehearsal.worker.status, state.worker_status());
            // Coming up for a day already is more than its time; all others settle where they should.
            if state != Ec2State::Pending {
                settles(rehearsal, &format!("resurrected {state}, desired {desired:?}"));
            }
        }
    }
}

/// Something that happens to a worker's world.
#[derive(Debug, Clone)]
enum Act {
    Pass,
    Crash(usize),
    Outage,
    Recovery,
    ConsoleStop,
    ConsoleStart,
    ConsoleTerminate,
    Want(Option<DesiredStatus>),
    Reset,
    Minutes(u64),
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => Just(Act::Pass),
        2 => (0_usize..3).prop_map(Act::Crash),
        1 => Just(Act::Outage),
        1 => Just(Act::Recovery),
        1 => Just(Act::ConsoleStop),
        1 => Just(Act::ConsoleStart),
        1 => Just(Act::ConsoleTerminate),
        2 => select(DESIRED.as_slice()).prop_map(Act::Want),
        1 => Just(Act::Reset),
        1 => (1_u64..90).prop_map(Act::Minutes),
    ]
}

fn perform(rehearsal: &mut Rehearsal, act: &Act) {
    let now = rehearsal.now;
    let id = rehearsal.worker.instance_id.clone();
    match act {
        Act::Pass => drop(rehearsal.play()),
        Act::Crash(effects) => drop(rehearsal.play_and_crash_after(*effects)),
        Act::Outage => rehearsal.cloud.outage = Some(CallFailure::new(FailureKind::Unreachable, "outage")),
        Act::Recovery => rehearsal.cloud.outage = None,
        Act::ConsoleStop => drop(id.map(|id| rehearsal.cloud.stop(&id, now))),
        Act::ConsoleStart => drop(id.map(|id| rehearsal.cloud.start(&id, now))),
        Act::ConsoleTerminate => drop(id.map(|id| rehearsal.cloud.terminate(&id, now))),
        Act::Want(desired) => rehearsal.worker.desired_status = *desired,
        Act::Reset if rehearsal.worker.status == WorkerStatus::Failed => {
            rehearsal.worker.status = WorkerStatus::Pending;
        }
        Act::Reset => {}
        Act::Minutes(minutes) => rehearsal.pass_time(Duration::from_secs(minutes * 60)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_there_is_never_a_second_instance_nor_one_without_an_owner(
        lag in select(vec![0_u64, 20, 100]),
        acts in proptest::collection::vec(any_act(), 0..40),
    ) {
        let mut worker = Worker::new("w-1", WorkerStatus::Pending);
        worker.desired_status = Some(DesiredStatus::Running);
        let mut rehearsal = Rehearsal::new(worker);
        rehearsal.cloud.visibility_lag = Duration::from_secs(lag);
        for act in &acts {
            let before = rehearsal.worker.status;
            let silent = rehearsal.cloud.outage.is_some();
            perform(&mut rehearsal, act);
            let live = rehearsal.cloud.live();
            prop_assert!(live <= 1, "{} live instances after {:?} in {:?}", live, act, acts);
            if rehearsal.worker.status == WorkerStatus::Terminated {
                prop_assert_eq!(live, 0, "terminated with a live instance after {:?} in {:?}", act, acts);
            }
            if silent && matches!(act, Act::Pass) {
                prop_assert!(
                    rehearsal.worker.status == before || before == WorkerStatus::Failed || before == WorkerStatus::Stopped
                        || matches!(rehearsal.worker.desired_status, Some(DesiredStatus::Stopped | DesiredStatus::Terminated)),
                    "{} became {} while EC2 was silent", before, rehearsal.worker.status
                );
            }
        }
        perform(&mut rehearsal, &Act::Recovery);
        settles(rehearsal, &format!("{acts:?}"));
    }
}
