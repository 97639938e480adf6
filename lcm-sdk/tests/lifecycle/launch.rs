//! Launching exactly once: the search before, the plan on the record, and every way a launch can fail.

use lcm_sdk::lifecycle::launch::LaunchPlan;
use lcm_sdk::lifecycle::trust::{Caller, Place};
use lcm_sdk::lifecycle::{Audit, Change, Event, LaunchedInstance, Notice, WORKER_ID_TAG};
use lcm_sdk::simulate::Simulation;
use lcm_sdk::{
    Applied, CallFailure, Decision, DesiredStatus, Ec2State, Effect, EffectResult, FailureKind, Image, Lookup,
    Observation, Outcome, Policy, Query, ReasonCode, Record, Requeue, Template, Worker, WorkerStatus, decide, queries,
    record,
};

use crate::common::{DESIRED, LONG, SHORT, ago, instance, now, policy, proved_place, throttled, worker};

fn pending() -> Worker {
    let mut worker = worker(WorkerStatus::Pending, None);
    worker.ec2_instance_id = None;
    worker.notes.launched_at = None;
    worker
}

fn image(id: &str, date: &str) -> Image {
    Image { id: id.into(), name: "cisco-cml2.9".into(), creation_date: date.into() }
}

fn observed() -> Observation {
    Observation {
        tagged: Lookup::Found(Vec::new()),
        place: proved_place(),
        template: Lookup::Found(Template::new("metal", "m5zn.metal")),
        images: Lookup::Found(vec![image("ami-2", "2026-01-01"), image("ami-1", "2025-01-01")]),
        ..Observation::default()
    }
}

fn decide_now(worker: &Worker, observed: &Observation) -> Decision {
    decide(worker, observed, &policy(), now())
}

fn plan_of(decision: &Decision) -> LaunchPlan {
    let plan = decision.effects.iter().find_map(|effect| match effect {
        Effect::LaunchInstance { plan, .. } => Some(*plan.clone()),
        _ => None,
    });
    plan.expect("a launch")
}

/// The launch returned an instance, and was sent half a minute after the decision.
fn launched(id: &str) -> EffectResult {
    let requested_at = now() + std::time::Duration::from_secs(30);
    EffectResult::Launched(LaunchedInstance { id: id.into(), requested_at })
}

/// Records the outcome of a launch; every effect before it succeeded.
fn after_launch(worker: &Worker, decision: Decision, result: EffectResult) -> Record {
    let mut results = vec![EffectResult::Done; decision.effects.len() - 1];
    results.push(result);
    record(worker, &Applied { decision, results, at: now(), version: None })
}

fn failed_launch(worker: &Worker, kind: FailureKind) -> Record {
    after_launch(worker, decide_now(worker, &observed()), EffectResult::Failed(CallFailure::new(kind, "no")))
}

#[test]
fn launch_queries_come_in_stages() {
    let (policy, worker) = (policy(), pending());
    let asked = |observed: &Observation| queries(&worker, observed, &policy, now()).iter().collect::<Vec<_>>();
    let mut so_far = Observation::default();
    assert_eq!(asked(&so_far), [Query::Tagged]);
    so_far.tagged = observed().tagged;
    assert_eq!(asked(&so_far), [Query::Template]);
    so_far.template = observed().template;
    assert_eq!(asked(&so_far), [Query::Images]);
    so_far.images = Lookup::Unknown(throttled());
    assert_eq!(asked(&so_far), [], "without the AMIs there is no launch");
    so_far.images = observed().images;
    assert_eq!(asked(&so_far), [Query::Place]);
    so_far.place = proved_place();
    assert_eq!(asked(&so_far), []);
}

#[test]
fn plan_is_written_before_the_launch() {
    let decision = decide_now(&pending(), &observed());
    let names: Vec<_> = decision.effects.iter().map(|effect| effect.name().as_str()).collect();
    assert_eq!(names, ["record_launch_plan", "launch_instance"]);
    let plan = plan_of(&decision);
    assert_eq!((plan.image_id.as_str(), plan.instance_type.as_str()), ("ami-2", "m5zn.metal"));
    assert_eq!(decision.notices, [Notice::Audit(Audit::Provisioned)]);

    let record = after_launch(&pending(), decision, launched("i-9"));
    let launched = record.patch.apply_to(&pending());
    assert_eq!((launched.status, launched.ec2_instance_id), (WorkerStatus::Provisioning, Some("i-9".into())));
    assert_eq!(launched.notes.launched_at, Some(now() + std::time::Duration::from_secs(30)), "the time of the call");
    assert!(record.counts.contains(lcm_sdk::lifecycle::Counter::Provisioned));
}

#[test]
fn unwritten_plans_are_not_launched() {
    let worker = pending();
    let decision = decide_now(&worker, &observed());
    assert!(decision.effects[0].stops_the_rest());
    let results = vec![EffectResult::Failed(CallFailure::new(FailureKind::Conflict, "version 8"))];
    let record = record(&worker, &Applied { decision, results, at: now(), version: None });
    assert_eq!((record.outcome, record.transition), (Outcome::Retry, None));
    assert!(record.patch.is_empty());
}

#[test]
fn unclear_launch_is_repeated_byte_for_byte() {
    let mut worker = pending();
    let first = plan_of(&decide_now(&worker, &observed()));
    for kind in [FailureKind::Unclear, FailureKind::Unparsable, FailureKind::Throttled, FailureKind::Unreachable] {
        let record = failed_launch(&worker, kind);
        assert_eq!((record.outcome, record.transition), (Outcome::Retry, None));
        assert_eq!(record.patch.changes.launch_plan, Change::Keep, "{kind:?}");
    }
    worker.notes.launch_plan = Some(Box::new(first.clone()));
    let mut changed = observed();
    changed.images = Lookup::Found(vec![image("ami-9", "2027-01-01")]);
    changed.template = Lookup::Absent;
    let again = decide_now(&worker, &changed);
    assert_eq!(plan_of(&again), first);
    assert!(
        queries(&worker, &Observation { tagged: observed().tagged, ..Observation::default() }, &policy(), now())
            .iter()
            .eq([Query::Place])
    );
}

#[test]
fn refusal_for_now_keeps_the_worker_pending() {
    for kind in [FailureKind::NoCapacity, FailureKind::RefusedForNow] {
        let record = failed_launch(&pending(), kind);
        assert_eq!((record.outcome, record.transition), (Outcome::Retry, None), "{kind:?}");
        assert_eq!(record.patch.changes.launch_plan, Change::Clear, "{kind:?}");
    }
}

#[test]
fn refused_new_plan_fails_the_worker() {
    let worker = pending();
    let record = failed_launch(&worker, FailureKind::Refused);
    assert_eq!(record.patch.apply_to(&worker).status, WorkerStatus::Failed);
    assert_eq!(record.notices, [Notice::Audit(Audit::ProvisionFailed)]);
    assert_eq!(record.reason.to_string(), "EC2 refuses the launch for good (no).");

    let mut resumed = worker.clone();
    resumed.notes.launch_plan = Some(Box::new(plan_of(&decide_now(&worker, &observed()))));
    resumed.notes.launched_at = Some(ago(LONG));
    let record = failed_launch(&resumed, FailureKind::Refused);
    assert_eq!((record.outcome, record.transition), (Outcome::Retry, None));
    assert_eq!(record.patch.changes.launch_plan, Change::Clear);
}

/// The response to the first call was lost after EC2 had launched; the second call was refused.
#[test]
fn refusal_after_an_unclear_call_keeps_the_plan() {
    let mut worker = pending();
    let first = plan_of(&decide_now(&worker, &observed()));
    worker.notes.launch_plan = Some(Box::new(first));
    worker.notes.launched_at = Some(ago(SHORT));
    for kind in [FailureKind::Refused, FailureKind::NoCapacity, FailureKind::RefusedForNow] {
        let record = failed_launch(&worker, kind);
        assert_eq!((record.outcome, record.transition), (Outcome::Retry, None));
        assert_eq!(record.patch.changes.launch_plan, Change::Keep, "{kind:?}");
        // The refused call launched nothing, so the age of the launch counts from the one before.
        assert_eq!(record.patch.apply_to(&worker).notes.launched_at, Some(ago(SHORT)));
    }
    worker.notes.launched_at = Some(ago(LONG));
    assert_eq!(failed_launch(&worker, FailureKind::Refused).patch.changes.launch_plan, Change::Clear);
}

#[test]
fn recorded_instance_may_take_time_to_appear() {
    let mut worker = pending();
    worker.ec2_instance_id = Some("i-1".into());
    worker.updated_at = Some(ago(SHORT));
    let decision = decide_now(&worker, &Observation { instance: Lookup::Absent, ..observed() });
    assert!(decision.does_nothing(), "{decision:?}");
}

#[test]
fn launch_keeps_its_region_when_the_default_changes() {
    let worker = pending();
    let decision = decide_now(&worker, &observed());
    let mut elsewhere = policy();
    elsewhere.regions.default_region = Some("eu-west-1".into());
    let mut in_flight = worker.clone();
    in_flight.notes.launch_plan = Some(Box::new(plan_of(&decision)));
    assert_eq!(elsewhere.regions.region_of(&in_flight), Some("us-east-1"));
    let record = after_launch(&worker, decision, launched("i-9"));
    assert_eq!(elsewhere.regions.region_of(&record.patch.apply_to(&worker)), Some("us-east-1"));
}

#[test]
fn ended_launch_gets_a_new_token() {
    let worker = pending();
    let first = plan_of(&decide_now(&worker, &observed()));
    let record = failed_launch(&worker, FailureKind::LaunchDied);
    let next = record.patch.apply_to(&worker);
    assert_eq!(next.notes.launch_generation, 1);
    assert_ne!(plan_of(&decide_now(&next, &observed())).client_token, first.client_token);
}

#[test]
fn launch_after_an_ended_one_overwrites_the_id() {
    let mut worker = pending();
    worker.ec2_instance_id = Some("i-1".into());
    worker.public_ip = Some("203.0.113.1".into());
    let asked = |seen: &Observation| queries(&worker, seen, &policy(), now()).iter().collect::<Vec<_>>();
    assert_eq!(asked(&Observation::default()), [Query::Instance]);
    for ended in [Lookup::Absent, Lookup::Found(instance(Ec2State::Terminated))] {
        let mut seen = Observation { instance: ended, ..Observation::default() };
        if seen.instance == Lookup::Absent {
            assert_eq!(asked(&seen), [Query::Place]);
            seen.place = proved_place();
        }
        assert_eq!(asked(&seen), [Query::Tagged], "an instance of a lost response is adopted");
        seen.tagged = Lookup::Found(Vec::new());
        assert_eq!(asked(&seen), [Query::Template]);

        let decision = decide_now(&worker, &Observation { instance: seen.instance, ..observed() });
        assert_eq!(plan_of(&decision).generation, 1);
        let next = after_launch(&worker, decision, launched("i-9")).patch.apply_to(&worker);
        assert_eq!((next.address(), next.notes.launch_generation), (None, 1));
        assert_eq!(next.ec2_instance_id, Some("i-9".into()));
    }
}

/// A server may refuse to clear the id, so waiting for that would never end.
#[test]
fn ended_launch_is_replaced_without_an_immediate_requeue() {
    let mut worker = pending();
    worker.ec2_instance_id = Some("i-1".into());
    let gone = Observation { instance: Lookup::Absent, ..observed() };
    for desired in DESIRED {
        worker.desired_status = desired;
        let decision = decide_now(&worker, &gone);
        assert_ne!(decision.requeue, Requeue::Now, "{decision}");
    }
    worker.desired_status = None;
    for kind in [FailureKind::NoCapacity, FailureKind::Refused, FailureKind::Unclear] {
        let failure = EffectResult::Failed(CallFailure::new(kind, "no"));
        let record = after_launch(&worker, decide_now(&worker, &gone), failure);
        assert_eq!(record.patch.apply_to(&worker).notes.launch_generation, 0, "only an instance counts: {kind:?}");
    }
}

#[test]
fn resumed_launch_keeps_the_ended_instance_on_the_record() {
    let mut worker = pending();
    worker.ec2_instance_id = Some("i-1".into());
    let gone = Observation { instance: Lookup::Found(instance(Ec2State::Terminated)), ..observed() };
    let first = plan_of(&decide_now(&worker, &gone));
    worker.notes.launch_plan = Some(Box::new(first.clone()));
    worker.notes.launched_at = Some(ago(SHORT));
    let again = decide_now(&worker, &gone);
    assert_eq!((plan_of(&again), again.reason.code), (first, ReasonCode::LaunchResumed));
    assert!(!again.effects.iter().any(|effect| matches!(
        effect,
        Effect::LaunchInstance { if_refused: lcm_sdk::lifecycle::IfLaunchRefused::PlanAnew, .. }
    )));
}

#[test]
fn unconfigured_region_fails_a_new_worker_before_any_query() {
    let mut worker = pending();
    worker.aws_region = Some("mars-1".into());
    assert!(queries(&worker, &Observation::default(), &policy(), now()).is_empty());
    let decision = decide_now(&worker, &Observation::default());
    assert_eq!(decision.transition.map(|transition| transition.to()), Some(WorkerStatus::Failed));
    assert_eq!(
        decision.reason.to_string(),
        "There is no complete configuration for the worker's region \
         (region mars-1 is not configured; configured: us-east-1)."
    );
    // An instance may exist: EC2 is queried as long as the record names one or a plan.
    let mut planned = worker.clone();
    planned.notes.launch_plan = Some(Box::new(plan_of(&decide_now(&pending(), &observed()))));
    for (worker, query) in [
        (Worker { ec2_instance_id: Some("i-1".into()), ..worker.clone() }, Query::Instance),
        (planned, Query::Tagged),
        (Worker { desired_status: Some(DesiredStatus::Terminated), ..worker }, Query::Tagged),
    ] {
        assert!(queries(&worker, &Observation::default(), &policy(), now()).iter().eq([query]));
    }
}

#[test]
fn template_without_an_instance_type_uses_the_workers_own() {
    let mut worker = pending();
    let template: Template = serde_json::from_str(r#"{"name": "metal"}"#).expect("an instance type is optional");
    let untyped = Observation { template: Lookup::Found(template), ..observed() };
    let decision = decide_now(&worker, &untyped);
    assert_eq!(decision.transition.map(|transition| transition.to()), Some(WorkerStatus::Failed));
    assert_eq!(
        decision.reason.to_string(),
        "Neither the template nor the worker names an instance type (template metal)."
    );
    let before_images = Observation { images: Lookup::NotRequested, ..untyped.clone() };
    assert!(queries(&worker, &before_images, &policy(), now()).is_empty());

    worker.instance_type = Some("m5.large".into());
    assert_eq!(plan_of(&decide_now(&worker, &untyped)).instance_type, "m5.large");
    assert_eq!(plan_of(&decide_now(&worker, &observed())).instance_type, "m5zn.metal", "the template's comes first");
}

#[test]
fn record_without_an_instance_id_is_not_terminated() {
    for status in [WorkerStatus::Running, WorkerStatus::Draining, WorkerStatus::Unknown] {
        for tagged in [Vec::new(), vec![instance(Ec2State::Terminated)]] {
            let worker = Worker { ec2_instance_id: None, ..worker(status, Some(DesiredStatus::Running)) };
            let decision = decide_now(&worker, &Observation { tagged: Lookup::Found(tagged), ..observed() });
            assert_eq!((decision.outcome, decision.reason.code), (Outcome::Retry, ReasonCode::NoInstanceNamed));
            assert!(decision.does_nothing(), "{status}: {decision}");
        }
    }
    let starting = Worker { ec2_instance_id: None, ..worker(WorkerStatus::Starting, None) };
    let decision = decide_now(&starting, &observed());
    assert_eq!(decision.transition.map(|transition| transition.to()), Some(WorkerStatus::Failed));
}

#[test]
fn failed_worker_records_an_instance_with_its_tag() {
    for desired in [None, Some(DesiredStatus::Running), Some(DesiredStatus::Stopped)] {
        let worker = Worker { ec2_instance_id: None, ..worker(WorkerStatus::Failed, desired) };
        let asked = queries(&worker, &Observation::default(), &policy(), now());
        assert!(asked.iter().eq([Query::Tagged]), "{asked:?}");
        let found = Observation { tagged: Lookup::Found(vec![instance(Ec2State::Running)]), ..Observation::default() };
        let decision = decide_now(&worker, &found);
        assert_eq!(decision.changes.as_ref().expect("changes").ec2_instance_id, Change::Set("i-1".into()));
        assert_eq!((decision.outcome, decision.transition), (Outcome::Skip, None));

        let unknown = Observation { tagged: Lookup::Unknown(throttled()), ..Observation::default() };
        assert_eq!(decide_now(&worker, &unknown).outcome, Outcome::Retry);
        assert!(decide_now(&worker, &observed()).does_nothing());
    }
    let named = worker(WorkerStatus::Failed, None);
    assert!(queries(&named, &Observation::default(), &policy(), now()).is_empty());
}

#[test]
fn tagged_instance_is_adopted() {
    let tagged = |id: &str, age| {
        let mut instance = instance(Ec2State::Running);
        instance.id = id.into();
        instance.launched_at = Some(ago(age));
        instance.tags.insert(WORKER_ID_TAG.into(), "w-1".into());
        instance
    };
    let observation =
        Observation { tagged: Lookup::Found(vec![tagged("i-new", SHORT), tagged("i-old", LONG)]), ..observed() };
    let decision = decide_now(&pending(), &observation);
    assert!(decision.effects.is_empty());
    assert_eq!(decision.changes.as_ref().expect("changes").ec2_instance_id, Change::Set("i-old".into()));
    assert_eq!(decision.notices, [Notice::Event(Event::DuplicateInstance { extra: "i-new".into() })]);
}

#[test]
fn unknown_tagged_instances_prevent_a_launch() {
    let decision = decide_now(&pending(), &Observation { tagged: Lookup::Unknown(throttled()), ..observed() });
    assert!(decision.does_nothing());
    assert_eq!(decision.outcome, Outcome::Retry);
}

#[test]
fn impossible_launch_names_the_cause() {
    let failing = |worker: &Worker, observed: &Observation, policy: &Policy| {
        let decision = decide(worker, observed, policy, now());
        assert_eq!(decision.transition.map(|transition| transition.to()), Some(WorkerStatus::Failed));
        (decision.outcome, decision.reason.to_string())
    };
    let mut unconfigured = policy();
    unconfigured.regions.regions.clear();
    assert_eq!(
        failing(&pending(), &observed(), &unconfigured).1,
        "There is no complete configuration for the worker's region \
         (region us-east-1 is not configured; configured: none)."
    );
    assert_eq!(
        failing(&pending(), &Observation { template: Lookup::Absent, ..observed() }, &policy()),
        (Outcome::Retry, "The worker's template does not exist (metal).".into())
    );
    assert_eq!(
        failing(&pending(), &Observation { images: Lookup::Found(Vec::new()), ..observed() }, &policy()).1,
        "No AMI of an accepted owner matches the template's pattern (cisco-cml2.9* in us-east-1)."
    );
}

#[test]
fn failed_reads_fail_no_worker() {
    for observation in [
        Observation { template: Lookup::Unknown(throttled()), ..observed() },
        Observation { images: Lookup::Unknown(throttled()), ..observed() },
    ] {
        let decision = decide_now(&pending(), &observation);
        assert_eq!((decision.outcome, decision.does_nothing()), (Outcome::Retry, true));
    }
}

#[test]
fn unwanted_worker_waits_for_its_launch() {
    let mut worker = pending();
    worker.notes.launch_plan = Some(Box::new(plan_of(&decide_now(&worker, &observed()))));
    worker.notes.launched_at = Some(ago(SHORT));
    worker.desired_status = Some(DesiredStatus::Terminated);
    let young = decide_now(&worker, &observed());
    assert_eq!((young.outcome, young.transition), (Outcome::Requeue, None));
    worker.notes.launched_at = Some(ago(LONG));
    assert_eq!(
        decide_now(&worker, &observed()).transition.map(|transition| transition.to()),
        Some(WorkerStatus::Terminated)
    );
}

#[test]
fn crash_during_a_launch_leaves_one_recorded_instance() {
    for crash_after in 0..=2 {
        for lag in [0, 90] {
            let mut worker = Worker::new("w-1", WorkerStatus::Pending);
            worker.desired_status = Some(DesiredStatus::Running);
            let mut simulation = Simulation::new(worker);
            simulation.ec2.visibility_lag = std::time::Duration::from_secs(lag);
            simulation.play_and_crash_after(crash_after);
            simulation.play_until_quiet(50).expect("it settles");
            assert_eq!(simulation.ec2.live(), 1, "crash after {crash_after} effects, {lag} s of lag");
            assert_eq!(simulation.worker.status, WorkerStatus::Running);
        }
    }
}

const OURS: &str = "123456789012";
const OTHER: &str = "210987654321";

/// The place of credentials that nothing proves.
fn place_of(account: &str) -> Lookup<Place> {
    Lookup::Found(Place::new(Caller::new(account).with_key_fingerprint(1)))
}

fn expecting(account: &str) -> Policy {
    Policy { aws_account_id: Some(account.into()), ..policy() }
}

#[test]
fn missing_image_fails_a_worker_in_a_proved_account_only() {
    let without_images = |place| Observation { images: Lookup::Found(Vec::new()), place, ..observed() };
    for place in [place_of(OTHER), Lookup::Unknown(throttled())] {
        let decision = decide_now(&pending(), &without_images(place));
        assert!(decision.does_nothing(), "{decision}");
        assert_eq!((decision.outcome, decision.reason.code), (Outcome::Retry, ReasonCode::RegionNotTrusted));
    }
    let own_subnet = Lookup::Found(Place::new(Caller::new(OURS)).with_subnet_owner(OURS));
    let without_accounts = Lookup::Found(Place::default());
    for (place, policy) in [(own_subnet, policy()), (without_accounts, policy()), (place_of(OURS), expecting(OURS))] {
        let decision = decide(&pending(), &without_images(place), &policy, now());
        assert_eq!(decision.transition.map(|transition| transition.to()), Some(WorkerStatus::Failed), "{decision}");
        assert_eq!(decision.reason.code, ReasonCode::NoImage);
    }
    let decision = decide_now(&pending(), &without_images(Lookup::NotRequested));
    assert_eq!(decision.reason.code, ReasonCode::NotObserved);
}

/// Another account has no subnet of ours, and its policies are its own.
#[test]
fn refusal_without_proof_of_the_account_keeps_the_worker_pending() {
    let worker = pending();
    for kind in [FailureKind::Refused, FailureKind::NotSupported] {
        let decision = decide_now(&worker, &Observation { place: place_of(OTHER), ..observed() });
        let refusal = CallFailure::with_code(kind, "InvalidSubnetID.NotFound", "no such subnet");
        let record = after_launch(&worker, decision, EffectResult::Failed(refusal));
        assert_eq!((record.outcome, record.transition), (Outcome::Retry, None));
        assert_eq!(record.reason.code, ReasonCode::RegionNotTrusted);
        assert!(record.reason.to_string().contains("InvalidSubnetID.NotFound"), "{}", record.reason);
        assert_eq!(record.patch.changes.launch_plan, Change::Clear, "the next plan is a new one");
    }
    let decision = decide_now(&worker, &Observation { place: place_of(OTHER), ..observed() });
    let record = after_launch(&worker, decision, launched("i-9"));
    assert_eq!(record.patch.apply_to(&worker).status, WorkerStatus::Provisioning);
}

#[test]
fn launch_in_another_account_than_the_configured_one_is_not_sent() {
    let mut resumed = pending();
    resumed.notes.launch_plan = Some(Box::new(plan_of(&decide_now(&pending(), &observed()))));
    let unknown_account = Lookup::Found(Place::new(Caller::default().with_key_fingerprint(1)));
    for worker in [pending(), resumed] {
        let decide_at = |place| decide(&worker, &Observation { place, ..observed() }, &expecting(OURS), now());
        for place in [place_of(OTHER), unknown_account.clone(), Lookup::Unknown(throttled())] {
            let decision = decide_at(place);
            assert!(decision.does_nothing(), "{decision}");
            assert_eq!((decision.outcome, decision.reason.code), (Outcome::Retry, ReasonCode::RegionNotTrusted));
        }
        let overlap = Place::new(Caller::new(OTHER)).with_sighting(now());
        assert!(
            !decide_at(Lookup::Found(overlap)).launches(),
            "an instance of ours in the other account changes nothing"
        );
        assert_eq!(decide_at(Lookup::NotRequested).reason.code, ReasonCode::NotObserved);
        assert!(decide_at(place_of(OURS)).launches());
        let seen = Observation { place: Lookup::NotRequested, ..observed() };
        assert!(queries(&worker, &seen, &expecting(OURS), now()).iter().eq([Query::Place]));
    }
}
