//! Properties of every input: decisions are total, deterministic, and conclude nothing from failed calls.

use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::history::{HistoryEncoder, HistoryReader, RecordedReconcile, ReplayPolicy, replay};
use lcm_sdk::lifecycle::trust::{Caller, Place};
use lcm_sdk::lifecycle::{
    Capabilities, CloudMetrics, CmlMetrics, IdleReport, LaunchedInstance, LicenseOperation, RegistrationStatus,
    SessionState, Support,
};
use lcm_sdk::{
    Applied, CallFailure, Ec2State, EffectResult, FailureKind, FleetView, Image, Instance, Lookup, Observation, Secret,
    Session, Template, Timestamp, Worker, WorkerStatus, decide, queries, record,
};
use proptest::prelude::*;
use proptest::sample::select;

use crate::common::{DESIRED, now, policy};

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), Just("i-1".to_owned()), Just("w-1".to_owned()), "\\PC{0,8}"]
}

fn any_time() -> impl Strategy<Value = Timestamp> {
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

fn any_lookup<T: std::fmt::Debug + Clone>(found: impl Strategy<Value = T>) -> impl Strategy<Value = Lookup<T>> {
    prop_oneof![
        Just(Lookup::NotRequested),
        Just(Lookup::Absent),
        any_failure().prop_map(Lookup::Unknown),
        found.prop_map(Lookup::Found),
    ]
}

fn any_instance() -> impl Strategy<Value = Instance> {
    let addresses = (proptest::option::of(any_text()), proptest::option::of(any_text()));
    (any_text(), select(Ec2State::ALL), addresses, proptest::option::of(any_time()), any_text()).prop_map(
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
    (any_text(), state, proptest::option::of(any_time()), any::<u32>()).prop_map(
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
    let moments = proptest::collection::vec(proptest::option::of(any_time()), 6);
    let license =
        (proptest::option::of(select(LicenseOperation::ALL)), any::<bool>(), proptest::option::of(any_text()));
    let texts = (any_text(), proptest::option::of(any_text()), proptest::option::of(any_text()));
    (state, moments, license, texts, any::<u32>()).prop_map(|(state, moments, license, texts, generation)| {
        let mut worker = Worker::new(texts.0, state.0);
        worker.desired_status = state.1;
        worker.ec2_instance_id = state.2.map(Into::into);
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

fn any_place() -> impl Strategy<Value = Place> {
    (any_text(), any_text(), proptest::option::of(any_time())).prop_map(|(caller, subnet_owner, seen_at)| {
        let place = Place::new(Caller::new(caller)).with_subnet_owner(subnet_owner);
        seen_at.into_iter().fold(place, Place::with_sighting)
    })
}

fn any_observation() -> impl Strategy<Value = Observation> {
    let ec2 = (any_lookup(any_instance()), any_lookup(proptest::collection::vec(any_instance(), 0..4))).boxed();
    let image = any_text().prop_map(|text| Image { id: text.clone(), name: text.clone(), creation_date: text });
    let launch = (
        any_lookup(any_text().prop_map(|name| Template::new(name.clone(), name))),
        any_lookup(proptest::collection::vec(image, 0..3)),
    );
    let sessions = any_lookup(proptest::collection::vec(any_session(), 0..4)).boxed();
    let metrics = (any_lookup(Just(CloudMetrics::default())), any_lookup(Just(CmlMetrics::default()))).boxed();
    let registration =
        any_lookup(select(vec!["COMPLETED", "FAILED", "NOT_REGISTERED", "?"]).prop_map(RegistrationStatus::from_wire));
    let fleet = (0_usize..4, proptest::option::of(any_time()))
        .prop_map(|(running, last_scale_down_at)| FleetView { running, last_scale_down_at });
    let rest = (
        registration,
        any_lookup(any_idle_report()),
        any_lookup(fleet),
        proptest::option::of(any_time()),
        any_lookup(Just(Vec::new())),
        any_lookup(any_place()).boxed(),
        select(vec![Support::Unknown, Support::Yes, Support::No]).prop_map(Capabilities::all),
    );
    (ec2, launch, sessions, metrics, rest).prop_map(|(ec2, launch, sessions, metrics, rest)| Observation {
        instance: ec2.0,
        tagged: ec2.1,
        place: rest.5,
        template: launch.0,
        images: launch.1,
        sessions,
        cloud_metrics: metrics.0,
        cml: metrics.1,
        registration: rest.0,
        telemetry: rest.4,
        idle: rest.1,
        fleet: rest.2,
        metrics_reported_at: rest.3,
        idle_checked_at: None,
        capabilities: rest.6,
    })
}

fn any_result() -> impl Strategy<Value = EffectResult> {
    prop_oneof![
        Just(EffectResult::Done),
        Just(EffectResult::NotTried),
        any_text().prop_map(|id| EffectResult::Launched(LaunchedInstance {
            id: id.into(),
            requested_at: crate::common::now()
        })),
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
        observed in any_observation(),
        policy in any_policy(),
        at in any_time(),
        results in proptest::collection::vec(any_result(), 0..4),
    ) {
        let decision = decide(&worker, &observed, &policy, at);
        prop_assert_eq!(&decision, &decide(&worker, &observed, &policy, at));
        prop_assert_eq!(queries(&worker, &observed, &policy, at), queries(&worker, &observed, &policy, at));
        prop_assert_ne!(decision.reason.code.as_str(), "no_such_transition");
        prop_assert!(!decision.reason.to_string().is_empty());
        if let Some(transition) = decision.transition {
            prop_assert_eq!(transition.from(), worker.status);
        }
        serde_json::to_string(&decision).expect("a decision is JSON");
        let record = record(&worker, &Applied { decision, results, at, version: None });
        let after = record.patch.apply_to(&worker);
        prop_assert_eq!(after.status, record.transition.map_or(worker.status, |transition| transition.to()));
        serde_json::to_string(&record).expect("a record is JSON");
    }

    #[test]
    fn decision_does_nothing_while_ec2_does_not_respond(
        worker in any_worker(),
        mut observed in any_observation(),
        policy in any_policy(),
        at in any_time(),
        failure in any_failure(),
    ) {
        observed.instance = Lookup::Unknown(failure.clone());
        observed.tagged = Lookup::Unknown(failure);
        let decision = decide(&worker, &observed, &policy, at);
        prop_assert!(decision.does_nothing(), "{:?}", decision);
    }

    #[test]
    fn queries_end_and_suffice(
        worker in any_worker(),
        responses in any_observation(),
        policy in any_policy(),
        at in any_time(),
    ) {
        let mut observed = Observation { metrics_reported_at: responses.metrics_reported_at, ..Observation::default() };
        let mut rounds = 0;
        loop {
            let open = queries(&worker, &observed, &policy, at);
            if open.is_empty() {
                break;
            }
            rounds += 1;
            prop_assert!(rounds <= 5, "{:?}", open);
            for query in open.iter() {
                respond(query, &responses, &mut observed);
            }
        }
        let decision = decide(&worker, &observed, &policy, at);
        let mismatch = observed.instance.found().is_some_and(|found| Some(&found.id) != worker.ec2_instance_id.as_ref());
        prop_assert!(decision.reason.code.as_str() != "not_observed" || mismatch, "{:?}", decision);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn observations_survive_json(observed in any_observation().prop_map(written_observation)) {
        let text = serde_json::to_string(&observed).expect("an observation is JSON");
        prop_assert_eq!(serde_json::from_str::<Observation>(&text).expect("readable"), observed);
    }

    #[test]
    fn policies_survive_json(policy in any_policy()) {
        let text = serde_json::to_string(&policy).expect("a policy is JSON");
        prop_assert_eq!(serde_json::from_str::<lcm_sdk::Policy>(&text).expect("readable"), policy);
    }

    #[test]
    fn history_gives_every_decision_again(
        worker in any_worker().prop_map(written_worker),
        observed in any_observation().prop_map(written_observation),
        policy in any_policy(),
        at in any_time(),
    ) {
        let decision = decide(&worker, &observed, &policy, at);
        let recorded = RecordedReconcile::new(&worker, &observed, Arc::new(policy), at, &decision, &[]);
        let (mut encoder, mut lines) = (HistoryEncoder::default(), Vec::new());
        encoder.header(at, &mut lines).expect("encodes");
        encoder.reconcile(&recorded, &mut lines).expect("encodes");
        let text = String::from_utf8(lines.clone()).expect("text");
        let replayed = replay(HistoryReader::from_lines(std::io::Cursor::new(lines)), &ReplayPolicy::AsRecorded);
        let replayed = replayed.expect("readable");
        prop_assert_eq!(replayed.decisions, 1);
        prop_assert!(replayed.differences.is_empty(), "{}\n{}", replayed.differences[0], text);
    }

    #[test]
    fn history_shows_no_secret(mut worker in any_worker(), observed in any_observation(), at in any_time()) {
        worker.cml_password = Some("hunter2".into());
        worker.cml_username = Some("hunter2".to_owned());
        (worker.license.token, worker.license.pending_token) = (Some("hunter2".into()), Some("hunter2".into()));
        worker.license.extra.insert("note".to_owned(), "hunter2".into());
        worker.metadata.insert("note".to_owned(), "hunter2".into());
        worker.extra.insert("api_key".to_owned(), "hunter2".into());
        let policy = Arc::new(policy());
        let decision = decide(&worker, &observed, &policy, at);
        let recorded = RecordedReconcile::new(&worker, &observed, policy, at, &decision, &[]);
        let mut lines = Vec::new();
        HistoryEncoder::default().reconcile(&recorded, &mut lines).expect("encodes");
        prop_assert!(!String::from_utf8(lines).expect("text").contains("hunter2"));
    }
}

/// A moment as a control plane can write it, with a year of four digits.
fn written(moment: Timestamp) -> Timestamp {
    let moment_of = |text: &str| text.parse::<Timestamp>().expect("valid");
    moment.clamp(moment_of("0001-01-01T00:00:00Z"), moment_of("9999-12-31T00:00:00Z"))
}

/// The record as a control plane can write it: with an id, without empty texts.
fn written_worker(mut worker: Worker) -> Worker {
    if worker.id.as_str().is_empty() {
        worker.id = "w".into();
    }
    worker.ec2_instance_id = worker.ec2_instance_id.filter(|id| !id.as_str().is_empty());
    worker.aws_region = worker.aws_region.filter(|region| !region.is_empty());
    worker.template_name = worker.template_name.filter(|name| !name.is_empty());
    for moment in [
        &mut worker.created_at,
        &mut worker.updated_at,
        &mut worker.start_initiated_at,
        &mut worker.last_activity_check_at,
        &mut worker.notes.launched_at,
        &mut worker.notes.drain_started_at,
    ] {
        *moment = moment.map(written);
    }
    worker
}

/// The observation as a control plane can return it: every session and template has a name.
fn written_observation(mut observed: Observation) -> Observation {
    if let Lookup::Found(sessions) = &mut observed.sessions {
        for session in sessions {
            session.timeslot_start = session.timeslot_start.map(written);
            if session.id.as_str().is_empty() {
                session.id = "s".into();
            }
            if session.state.to_string().is_empty() {
                session.state = SessionState::from_wire("asleep");
            }
        }
    }
    if let Lookup::Found(template) = &mut observed.template
        && template.name.is_empty()
    {
        *template = Template::new("t", "m");
    }
    observed
}

/// Returns the prepared response to a query; one prepared as not requested becomes a failed call.
fn respond(query: lcm_sdk::Query, from: &Observation, to: &mut Observation) {
    fn known<T: Clone>(response: &Lookup<T>) -> Lookup<T> {
        match response {
            Lookup::NotRequested => Lookup::Unknown(CallFailure::new(FailureKind::Unclear, "timed out")),
            Lookup::Found(_) | Lookup::Absent | Lookup::Unknown(_) => response.clone(),
        }
    }
    use lcm_sdk::Query;
    match query {
        Query::Instance => to.instance = known(&from.instance),
        Query::Tagged => to.tagged = known(&from.tagged),
        Query::Place => to.place = known(&from.place),
        Query::Template => to.template = known(&from.template),
        Query::Images => to.images = known(&from.images),
        Query::Sessions => to.sessions = known(&from.sessions),
        Query::CloudMetrics => to.cloud_metrics = known(&from.cloud_metrics),
        Query::Cml => to.cml = known(&from.cml),
        Query::Registration => to.registration = known(&from.registration),
        Query::Telemetry => to.telemetry = known(&from.telemetry),
        Query::Idle => to.idle = known(&from.idle),
        Query::Fleet => to.fleet = known(&from.fleet),
    }
}
