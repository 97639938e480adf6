//! The six steps of a running worker: their order, their inputs, and their independence.

use std::time::Duration;

use lcm_sdk::lifecycle::{
    Addresses, Applied, AutoPause, Capabilities, Change, CloudMetrics, CmlMetrics, Counter, Detail, ExternalStopPolicy,
    IdleReport, LicenseOperation, LicenseReport, Notice, RegistrationStatus, Submission, Support, record,
};
use lcm_sdk::simulate::Simulation;
use lcm_sdk::{
    CallFailure, Decision, DesiredStatus, Ec2State, Effect, EffectResult, FailureKind, FleetView, Lookup, Observation,
    Outcome, Policy, Query, ReasonCode, Requeue, Secret, Session, Worker, WorkerStatus, decide, queries,
};

use crate::common::{ago, instance, now, policy, throttled, worker};

fn running() -> Worker {
    let mut worker = worker(WorkerStatus::Running, Some(DesiredStatus::Running));
    worker.public_ip = Some("203.0.113.1".into());
    worker.private_ip = Some("10.0.0.1".into());
    worker
}

fn observed() -> Observation {
    Observation { instance: Lookup::Found(instance(Ec2State::Running)), ..Observation::default() }
}

fn idle() -> IdleReport {
    IdleReport {
        telemetry_fetched: true,
        idle_check_performed: true,
        is_idle: true,
        eligible_for_pause: true,
        ..IdleReport::default()
    }
}

fn scaling() -> Policy {
    let mut policy = policy();
    policy.scale_down.enabled = true;
    policy
}

fn with_license(operation: LicenseOperation, in_progress: bool) -> Worker {
    let mut worker = running();
    worker.license.pending_operation = Some(operation);
    worker.license.pending_token = Some(Secret::from("t0ken"));
    worker.license.operation_in_progress = in_progress;
    worker
}

fn names(decision: &Decision) -> Vec<&'static str> {
    decision.effects.iter().map(|effect| effect.name().as_str()).collect()
}

#[test]
fn queries_start_with_ec2() {
    let policy = scaling();
    let pending =
        |worker: &Worker, observed: &Observation| queries(worker, observed, &policy, now()).iter().collect::<Vec<_>>();
    let mut worker = with_license(LicenseOperation::Register, false);
    worker.is_idle_detection_enabled = true;
    assert_eq!(pending(&worker, &Observation::default()), [Query::Instance]);
    let mut so_far = observed();
    assert_eq!(pending(&worker, &so_far), [Query::Sessions, Query::CloudMetrics, Query::Cml, Query::Registration]);
    so_far.cloud_metrics = Lookup::Unknown(throttled());
    so_far.cml = Lookup::Unknown(throttled());
    so_far.registration = Lookup::Unknown(throttled());
    so_far.sessions = Lookup::Unknown(throttled());
    assert_eq!(pending(&worker, &so_far), [], "without the sessions there is no idle check");
    so_far.sessions = Lookup::Found(vec![Session::new("s", "running")]);
    assert_eq!(pending(&worker, &so_far), [Query::Telemetry, Query::Idle], "a busy worker is not checked");
    so_far.sessions = Lookup::Found(Vec::new());
    let checked = queries(&worker, &so_far, &crate::common::policy(), now());
    assert!(checked.iter().eq([Query::Telemetry]), "{checked:?}");
    so_far.telemetry = Lookup::Found(Vec::new());
    assert!(
        queries(&worker, &so_far, &crate::common::policy(), now()).is_empty(),
        "the next decision is the idle check"
    );
    so_far.idle = Lookup::Found(idle());
    assert_eq!(pending(&worker, &so_far), [Query::Fleet]);
    so_far.fleet = Lookup::Found(FleetView { running: 5, last_scale_down_at: None });
    assert_eq!(pending(&worker, &so_far), []);
    so_far.sessions = Lookup::NotRequested;
    assert_eq!(pending(&worker, &so_far), [Query::Sessions]);

    worker.desired_status = Some(DesiredStatus::Stopped);
    assert_eq!(pending(&worker, &Observation::default()), []);
    worker.desired_status = None;
    assert_eq!(pending(&worker, &Observation::with_instance_state("i-1", Ec2State::Stopped)), []);
}

#[test]
fn fresh_metrics_are_not_collected_again() {
    let observation = Observation { metrics_reported_at: Some(now()), ..observed() };
    assert!(queries(&running(), &observation, &policy(), now()).is_empty());
}

#[test]
fn due_idle_check_precedes_other_steps() {
    let check = |telemetry: Lookup<Vec<serde_json::Value>>, policy: &Policy| {
        let (cml, sessions) = (Lookup::Found(CmlMetrics::default()), Lookup::Found(Vec::new()));
        decide(&running(), &Observation { telemetry, cml, sessions, ..observed() }, policy, now())
    };
    let events = vec![serde_json::json!({"category": "start_lab"})];
    let decision = check(Lookup::Found(events.clone()), &policy());
    let detect = |telemetry, auto_pause| [Effect::DetectIdle { telemetry, auto_pause }];
    assert_eq!(decision.effects, detect(Some(events), AutoPause::ServerDecides));
    assert_eq!((decision.outcome, decision.requeue), (Outcome::Requeue, Requeue::Now));
    assert_eq!(decision.reason.to_string(), "An idle check is due: the control plane judges the telemetry.");
    assert!(decision.checks_idle() && decision.changes.is_none() && decision.transition.is_none());
    assert_eq!(decision.effects[0].to_string(), "detect_idle (1 telemetry events)");

    // Unread telemetry is reported as such.
    let blind = check(Lookup::Unknown(throttled()), &policy());
    assert_eq!(blind.effects, detect(None, AutoPause::ServerDecides));
}

#[test]
fn scale_down_reads_the_verdict_instead_of_a_check() {
    let worker = Worker { is_idle_detection_enabled: true, ..running() };
    let pending = |observed: &Observation| queries(&worker, observed, &scaling(), now()).iter().collect::<Vec<_>>();
    let (cloud_metrics, cml) = (Lookup::Found(CloudMetrics::default()), Lookup::Found(CmlMetrics::default()));
    let mut seen = Observation { sessions: Lookup::Found(Vec::new()), cloud_metrics, cml, ..observed() };
    assert_eq!(pending(&seen), [Query::Telemetry, Query::Idle]);
    seen.telemetry = Lookup::Found(vec![serde_json::json!({"category": "start_lab"})]);
    assert!(!decide(&running(), &seen, &scaling(), now()).checks_idle(), "a check could pause the worker");
    seen.idle = Lookup::Found(idle());
    assert_eq!(pending(&seen), [Query::Fleet]);
}

#[test]
fn scale_down_corrects_the_verdict_by_telemetry() {
    let event = |at: &str| serde_json::json!({"category": "start_lab", "timestamp": at});
    let with = |telemetry: Lookup<Vec<serde_json::Value>>, minutes: Option<f64>| {
        let seen = Observation {
            telemetry,
            sessions: Lookup::Found(Vec::new()),
            idle: Lookup::Found(IdleReport { idle_threshold_minutes: minutes, idle_minutes: Some(90.0), ..idle() }),
            fleet: Lookup::Found(FleetView { running: 2, last_scale_down_at: None }),
            ..observed()
        };
        decide(&running(), &seen, &scaling(), now())
    };
    let quiet = with(Lookup::Found(Vec::new()), Some(60.0));
    assert_eq!(labels(&quiet)[0], "stopped_immediately");
    // Activity that the control plane has not seen is posted, and the worker stays.
    let recent = with(Lookup::Found(vec![event("2026-02-06T07:30:00Z")]), Some(60.0));
    assert_eq!(
        (recent.transition, labels(&recent), names(&recent)),
        (None, vec!["skipped_not_idle"], vec!["detect_idle"])
    );
    let old = with(Lookup::Found(vec![event("2026-02-06T06:59:00Z")]), Some(60.0));
    assert_eq!((labels(&old)[0], names(&old)), ("stopped_immediately", Vec::new()));
    // Without a threshold, activity counts that is newer than what the control plane knows.
    let newer = with(Lookup::Found(vec![event("2026-02-06T06:59:00Z")]), None);
    assert_eq!((newer.transition, labels(&newer), names(&newer)), (None, vec!["skipped_not_idle"], Vec::new()));
    let blind = with(Lookup::Unknown(throttled()), Some(60.0));
    assert_eq!((blind.transition, labels(&blind)), (None, Vec::new()), "no telemetry is no verdict");
}

#[test]
fn busy_workers_are_never_checked_for_idleness() {
    let event = |at: &str| serde_json::json!({"category": "start_lab", "timestamp": at});
    let with = |telemetry: Vec<serde_json::Value>, state: &str, minutes: Option<f64>| Observation {
        telemetry: Lookup::Found(telemetry),
        sessions: Lookup::Found(vec![Session::new("s", state)]),
        idle: Lookup::Found(IdleReport { idle_threshold_minutes: minutes, ..idle() }),
        fleet: Lookup::Found(FleetView { running: 2, last_scale_down_at: None }),
        ..observed()
    };
    for state in ["instantiating", "running", "grading", "hibernating"] {
        let quiet = decide(&running(), &with(Vec::new(), state, Some(60.0)), &scaling(), now());
        assert_eq!((names(&quiet), quiet.transition), (Vec::new(), None), "{state}");
        assert_eq!(labels(&quiet), ["skipped_not_idle"]);
        // Recent activity is reported: it cannot pause the worker, and keeps the last activity current.
        let events = vec![event("2026-02-06T07:30:00Z")];
        let active = decide(&running(), &with(events.clone(), state, Some(60.0)), &policy(), now());
        let report = Effect::DetectIdle { telemetry: Some(events.clone()), auto_pause: AutoPause::Suppressed };
        assert_eq!(active.effects, [report]);
        assert!(!active.checks_idle(), "its report is not an input of another decision");
        for minutes in [Some(15.0), None] {
            assert_eq!(names(&decide(&running(), &with(events.clone(), state, minutes), &policy(), now())), [""; 0]);
        }
    }
    // Sessions that cannot be listed may be active.
    for sessions in [Lookup::Unknown(throttled()), Lookup::Absent, Lookup::NotRequested] {
        let observation = Observation { telemetry: Lookup::Found(Vec::new()), sessions, ..observed() };
        assert_eq!(names(&decide(&running(), &observation, &policy(), now())), [""; 0]);
    }
}

#[test]
fn idle_report_is_an_input_of_the_second_decision() {
    let (telemetry, sessions) = (Lookup::Found(Vec::new()), Lookup::Found(Vec::new()));
    let observation = Observation { telemetry, sessions, ..observed() };
    let report = |results: Vec<EffectResult>| {
        let decision = decide(&running(), &observation, &policy(), now());
        let applied = Applied { decision, results, at: now(), version: Some(4) };
        let recorded = record(&running(), &applied);
        assert!(recorded.patch.is_empty() && recorded.notices.is_empty(), "the check is recorded by the server");
        applied.idle_report()
    };
    assert_eq!(report(vec![EffectResult::IdleChecked(idle())]), Lookup::Found(idle()));
    assert_eq!(report(vec![EffectResult::Failed(throttled())]), Lookup::Unknown(throttled()));
    assert_eq!(report(vec![EffectResult::NotTried]), Lookup::NotRequested);
    assert_eq!(report(Vec::new()), Lookup::NotRequested);

    let checked = Observation { idle: Lookup::Found(idle()), ..observation };
    let decision = decide(&running(), &checked, &policy(), now());
    assert!(!decision.checks_idle());
    assert!(decision.counts.iter().any(|counter| counter == Counter::IdleDetection));
}

#[test]
fn worker_in_service_costs_nothing() {
    let decision = decide(&running(), &observed(), &policy(), now());
    assert!(decision.does_nothing());
    assert_eq!(decision.reason.to_string(), "The worker is in service.");
}

#[test]
fn failed_metrics_source_does_not_affect_the_other() {
    let report = |cloud, cml| {
        let observation = Observation { cloud_metrics: cloud, cml, ..observed() };
        decide(&running(), &observation, &policy(), now()).effects
    };
    let (cloud, cml) = (CloudMetrics::default(), CmlMetrics::default());
    let none = Lookup::Unknown(throttled());
    assert_eq!(
        report(Lookup::Found(cloud), Lookup::Unknown(throttled())),
        [Effect::ReportMetrics { cloud: Some(cloud), cml: None }]
    );
    assert_eq!(
        report(Lookup::Unknown(throttled()), Lookup::Found(cml.clone())),
        [Effect::ReportMetrics { cloud: None, cml: Some(CmlMetrics { uptime_seconds: Some(86_400), ..cml }) }]
    );
    assert_eq!(
        report(none, Lookup::Unknown(throttled())),
        [Effect::ReportMetrics { cloud: None, cml: None }],
        "the attempt is reported"
    );
    assert_eq!(report(Lookup::NotRequested, Lookup::NotRequested), []);
}

#[test]
fn changed_address_is_recorded() {
    let mut worker = with_license(LicenseOperation::Register, false);
    worker.public_ip = Some("198.51.100.9".into());
    worker.ip_address = Some("198.51.100.9".into());
    let registration = Lookup::Found(RegistrationStatus::from_wire("NOT_REGISTERED"));
    let decision = decide(&worker, &Observation { registration, ..observed() }, &policy(), now());
    let addresses = decision.changes.as_ref().and_then(|changes| changes.addresses.clone()).expect("addresses");
    let expected = Addresses { public_ip: Some("203.0.113.1".into()), private_ip: Some("10.0.0.1".into()) };
    assert_eq!(addresses, expected);
    assert_eq!(
        decision.effects,
        [
            // The token, as a few digits of its digest; CML shows no earlier attempt.
            Effect::RecordLicenseAttempt { attempted: "#b46c0967".into() },
            Effect::SubmitLicense { submission: Submission::Register, address: "203.0.113.1".into() },
            Effect::ReportLicense { report: LicenseReport::StartRegistration },
        ]
    );
    assert!(!format!("{decision:?}").contains("t0ken"));
}

#[test]
fn license_completes_over_several_reconciles() {
    let mut simulation = Simulation::new(with_license(LicenseOperation::Register, false));
    simulation.ec2.place(instance(Ec2State::Running), simulation.now);
    let first = simulation.play();
    assert_eq!(first.reason.code.as_str(), "license_submitted");
    assert!(simulation.worker.license.operation_in_progress);
    let second = simulation.play();
    assert!(second.counts.contains(Counter::LicenseRegistered));
    let license = &simulation.worker.license;
    assert_eq!(license.token.as_ref().map(Secret::expose), Some("t0ken"));
    assert_eq!((license.pending_operation, license.operation_in_progress), (None, false));

    simulation.worker.license.pending_operation = Some(LicenseOperation::Deregister);
    let third = simulation.play();
    assert!(third.counts.contains(Counter::LicenseDeregistered));
    assert_eq!(simulation.worker.license.token, None);
}

#[test]
fn license_in_progress_never_blocks() {
    let worker = with_license(LicenseOperation::Register, true);
    let registration = Lookup::Found(RegistrationStatus::from_wire("IN_PROGRESS"));
    let observation = Observation { registration, ..observed() };
    let decision = decide(&worker, &observation, &policy(), now());
    assert_eq!(decision.outcome, Outcome::Requeue);
    assert_eq!(decision.requeue, Requeue::After(policy().license_poll_interval));
    let noted = after(&worker, decision);
    assert!(decide(&noted, &observation, &policy(), now()).does_nothing(), "the wait is noted once");
}

/// The record after a decision whose effects all succeed.
fn after(worker: &Worker, decision: Decision) -> Worker {
    let results = decision.effects.iter().map(|_| EffectResult::Done).collect();
    record(worker, &Applied { decision, results, at: now(), version: None }).patch.apply_to(worker)
}

#[test]
fn unfinished_registration_fails_after_its_deadline() {
    let in_progress = Observation {
        registration: Lookup::Found(RegistrationStatus::from_wire("IN_PROGRESS").attempted("monday")),
        ..observed()
    };
    let lost =
        Observation { registration: Lookup::Found(RegistrationStatus::from_wire("NOT_REGISTERED")), ..observed() };
    let timeout = policy().license_timeout;
    assert_eq!(timeout.as_secs(), 900);
    for (submitted, observation) in [(true, &in_progress), (true, &lost), (false, &in_progress)] {
        let worker = with_license(LicenseOperation::Register, submitted);
        let waiting = after(&worker, decide(&worker, observation, &policy(), now()));
        // The time of the wait is on the record, for the next leader.
        let worker = Worker::try_from(serde_json::to_value(&waiting).expect("serializes")).expect("valid");
        let worker = Worker { license: waiting.license.clone(), ..worker };
        let early = decide(&worker, observation, &policy(), now() + timeout - Duration::from_secs(1));
        assert_eq!(early.outcome, Outcome::Requeue, "{}", early.reason);
        let late = decide(&worker, observation, &policy(), now() + timeout);
        assert_eq!(late.reason.code.as_str(), "license_timed_out");
        let changes = late.changes.clone().expect("changes");
        assert_eq!(changes.license_report, Some(LicenseReport::FailRegistration));
        let error = changes.license_error.expect("a reason");
        assert_eq!(error, "CML did not finish the registration in time (for 15 min).");
        let failed = after(&worker, late);
        assert_eq!((failed.license.pending_operation, failed.notes.license_wait.as_deref()), (None, Some("")));
    }
}

#[test]
fn unreachable_cml_does_not_fail_a_registration() {
    let mut worker = with_license(LicenseOperation::Register, true);
    let registration = Lookup::Found(RegistrationStatus::from_wire("IN_PROGRESS"));
    worker = after(&worker, decide(&worker, &Observation { registration, ..observed() }, &policy(), now()));
    let unknown = Observation { registration: Lookup::Unknown(throttled()), ..observed() };
    let decision = decide(&worker, &unknown, &policy(), now() + 2 * policy().license_timeout);
    assert_eq!(decision.reason.code.as_str(), "license_delayed");
    let registration = Lookup::Found(RegistrationStatus::from_wire("COMPLETED"));
    let completed = Observation { registration, ..observed() };
    let decision = decide(&worker, &completed, &policy(), now() + 2 * policy().license_timeout);
    assert_eq!(
        decision.changes.as_ref().and_then(|changes| changes.license_report),
        Some(LicenseReport::CompleteRegistration)
    );
}

#[test]
fn registration_without_a_token_fails_once() {
    let mut worker = with_license(LicenseOperation::Register, false);
    worker.license.pending_token = None;
    let fresh = Observation { metrics_reported_at: Some(now()), ..observed() };
    worker.is_idle_detection_enabled = false;
    assert!(queries(&worker, &fresh, &policy(), now()).is_empty(), "CML is not called");
    let decision = decide(&worker, &fresh, &policy(), now());
    assert_eq!((decision.outcome, decision.reason.code.as_str()), (Outcome::Success, "license_token_missing"));
    let changes = decision.changes.clone().expect("changes");
    assert_eq!(changes.license_report, Some(LicenseReport::FailRegistration));
    assert_eq!(changes.license_error.as_deref(), Some("There is no token to register."));
    let failed = after(&worker, decision);
    assert!(decide(&failed, &fresh, &policy(), now()).does_nothing());
}

#[test]
fn final_license_refusal_is_reported_once() {
    let worker = with_license(LicenseOperation::Register, false);
    let registration = Lookup::Found(RegistrationStatus::from_wire("NOT_REGISTERED"));
    let decision = decide(&worker, &Observation { registration, ..observed() }, &policy(), now());
    let after = |kind| {
        let failed = EffectResult::Failed(CallFailure::new(kind, "400 bad token"));
        let applied = lcm_sdk::Applied {
            decision: decision.clone(),
            results: vec![EffectResult::Done, failed],
            at: now(),
            version: None,
        };
        lcm_sdk::record(&worker, &applied)
    };
    let refused = after(FailureKind::Refused);
    assert_eq!(refused.patch.changes.license_report, Some(LicenseReport::FailRegistration));
    let error = refused.patch.changes.license_error.as_deref();
    assert!(error.is_some_and(|error| error.contains("400 bad token")), "{error:?}");
    let types: Vec<_> = refused
        .notices
        .iter()
        .map(|notice| match notice {
            Notice::Event(event) => event.event_type(),
            Notice::Audit(audit) => audit.label(),
        })
        .collect();
    assert_eq!(types, ["cml_worker.license.registration.failed.v1"]);
    for (kind, report) in [
        (FailureKind::Unreachable, None),
        // CML may have received it, so it is not submitted again.
        (FailureKind::Unclear, Some(LicenseReport::StartRegistration)),
    ] {
        let delayed = after(kind);
        assert_eq!(delayed.patch.changes.license_report, report);
        assert_eq!((delayed.outcome, delayed.reason.code.as_str()), (Outcome::Retry, "license_delayed"));
        assert_eq!(delayed.patch.apply_to(&worker).license.pending_operation, Some(LicenseOperation::Register));
    }
}

#[test]
fn delayed_license_names_the_failure() {
    let worker = with_license(LicenseOperation::Register, false);
    let failure = CallFailure::new(FailureKind::Unreachable, "connection refused").with_cause(std::fmt::Error);
    let observation = Observation { registration: Lookup::Unknown(failure), ..observed() };
    let decision = decide(&worker, &observation, &policy(), now());
    assert_eq!((decision.outcome, decision.reason.code.as_str()), (Outcome::Retry, "license_delayed"));
    let Detail::Failure(failure) = &decision.reason.detail else { panic!("no failure: {decision:?}") };
    assert!(std::error::Error::source(&**failure).is_some(), "the source of the failure is kept");
}

#[test]
fn unsubmitted_intent_survives_an_earlier_outcome() {
    for status in ["EXPIRED", "COMPLETED", "NOT_REGISTERED"] {
        let mut worker = with_license(LicenseOperation::Register, false);
        let registration = Lookup::Found(RegistrationStatus::from_wire(status).attempted("monday"));
        let observation = Observation { registration, ..observed() };
        for attempt in 0..3 {
            let decision = decide(&worker, &observation, &policy(), now());
            // A recorded attempt needs no second record.
            let all = ["record_license_attempt", "submit_license", "report_license"];
            assert_eq!(names(&decision), all[usize::from(attempt > 0)..], "{status}");
            let unreachable = CallFailure::new(FailureKind::Unreachable, "connection refused");
            let attempted = decision.effects.iter().find_map(|effect| match effect {
                Effect::RecordLicenseAttempt { attempted } => Some(attempted.clone()),
                _ => None,
            });
            let results =
                attempted.iter().map(|_| EffectResult::Done).chain([EffectResult::Failed(unreachable)]).collect();
            let applied = lcm_sdk::Applied { decision, results, at: now(), version: None };
            worker = lcm_sdk::record(&worker, &applied).patch.apply_to(&worker);
            worker.notes.license_attempt = attempted.or(worker.notes.license_attempt);
            assert_eq!(worker.license.pending_operation, Some(LicenseOperation::Register), "{status}");
        }
        // After submission, the status of the earlier attempt does not count.
        worker.license.operation_in_progress = true;
        worker.notes.license_attempt = Some("monday".into());
        if status != "NOT_REGISTERED" {
            let decision = decide(&worker, &observation, &policy(), now());
            assert_eq!(decision.reason.code.as_str(), "license_in_progress", "{status}");
        }
    }
}

#[test]
fn single_address_records_are_not_rewritten() {
    let mut worker = running();
    (worker.public_ip, worker.private_ip) = (None, None);
    for address in ["203.0.113.1", "10.0.0.1"] {
        worker.ip_address = Some(address.into());
        assert!(decide(&worker, &observed(), &policy(), now()).does_nothing(), "{address}");
    }
    worker.ip_address = Some("198.51.100.9".into());
    assert_eq!(decide(&worker, &observed(), &policy(), now()).reason.code.as_str(), "address_changed");
}

#[test]
fn own_writes_advance_the_expected_version() {
    let mut worker = running();
    worker.version = Some(7);
    worker.desired_status = Some(DesiredStatus::Stopped);
    let decision = decide(&worker, &Observation::default(), &policy(), now());
    let applied = lcm_sdk::Applied { decision, results: Vec::new(), at: now(), version: Some(9) };
    assert_eq!(lcm_sdk::record(&worker, &applied).patch.expected_version, Some(9));
}

#[test]
fn idle_checks_and_pauses_are_counted() {
    let report = IdleReport { auto_pause_triggered: true, ..idle() };
    let decision = decide(&running(), &Observation { idle: Lookup::Found(report), ..observed() }, &policy(), now());
    assert!(decision.counts.contains(Counter::IdleDetection) && decision.counts.contains(Counter::AutoPause));
    assert_eq!((decision.transition, decision.requeue), (None, Requeue::Now));
    assert_eq!(decision.reason.code.as_str(), "auto_paused");
}

#[test]
fn scale_down_stops_empty_and_drains_used_workers() {
    let with = |sessions: Vec<Session>| Observation {
        idle: Lookup::Found(idle()),
        fleet: Lookup::Found(FleetView { running: 2, last_scale_down_at: None }),
        sessions: Lookup::Found(sessions),
        cloud_metrics: Lookup::Found(CloudMetrics::default()),
        ..observed()
    };
    let stop = decide(&running(), &with(Vec::new()), &scaling(), now());
    assert_eq!(stop.transition.map(|transition| transition.to()), Some(WorkerStatus::Stopping));
    let changes = stop.changes.as_ref().expect("changes");
    assert_eq!((changes.desired_status, changes.scaled_down_at), (Some(DesiredStatus::Stopped), Some(now())));
    assert_eq!(labels(&stop), ["stopped_immediately"]);

    let drain = decide(&running(), &with(vec![Session::new("s", "pending")]), &scaling(), now());
    assert_eq!(drain.transition.map(|transition| transition.to()), Some(WorkerStatus::Draining));
    assert_eq!(labels(&drain), ["drained", "cml_worker.drain.started.v1"]);
    assert!(drain.counts.contains(Counter::ScaleDownDrain));
    // The earlier steps of the reconcile are not lost.
    assert_eq!(names(&drain), ["report_metrics"]);

    let blind = Observation { sessions: Lookup::Unknown(throttled()), ..with(Vec::new()) };
    assert_eq!(decide(&running(), &blind, &scaling(), now()).transition, None);
}

#[test]
fn empty_worker_drains_if_its_desired_status_cannot_be_written() {
    let seen = Observation {
        idle: Lookup::Found(idle()),
        fleet: Lookup::Found(FleetView { running: 2, last_scale_down_at: None }),
        sessions: Lookup::Found(Vec::new()),
        capabilities: Capabilities::all(Support::No),
        ..observed()
    };
    let drain = decide(&running(), &seen, &scaling(), now());
    assert_eq!(drain.transition.map(|transition| transition.to()), Some(WorkerStatus::Draining));
    assert_eq!(labels(&drain), ["stopped_immediately", "cml_worker.drain.started.v1"]);
    assert_eq!(drain.reason.code.as_str(), "scale_down_stop");
    assert!(drain.scales_down());
}

fn labels(decision: &Decision) -> Vec<&'static str> {
    let label = |notice: &Notice| match notice {
        Notice::Event(event) => event.event_type(),
        Notice::Audit(audit) => audit.label(),
    };
    decision.notices.iter().map(label).collect()
}

#[test]
fn external_stop_follows_the_policy() {
    let respect = Policy { external_stop_policy: ExternalStopPolicy::Respect, ..policy() };
    for state in [Ec2State::Stopping, Ec2State::Stopped] {
        let observation = Observation { instance: Lookup::Found(instance(state)), ..Observation::default() };
        let desired = |policy: &Policy| {
            let decision = decide(&running(), &observation, policy, now());
            assert_eq!(decision.transition.map(|transition| transition.to()), Some(state.worker_status()));
            decision.changes.and_then(|changes| changes.desired_status)
        };
        assert_eq!(desired(&policy()), None);
        assert_eq!(desired(&respect), Some(DesiredStatus::Stopped));
        let capabilities = Capabilities::all(Support::No);
        let unwritable = Observation { capabilities, ..observation.clone() };
        let followed = decide(&running(), &unwritable, &respect, now());
        assert_eq!(followed.transition.map(|transition| transition.to()), Some(state.worker_status()));
        assert_eq!(followed.changes.and_then(|changes| changes.desired_status), None, "it could not be written");
    }
}

#[test]
fn describe_of_another_instance_is_ignored() {
    let mut other = instance(Ec2State::Terminated);
    other.id = "i-other".into();
    let observation = Observation { instance: Lookup::Found(other), ..Observation::default() };
    assert!(decide(&running(), &observation, &policy(), now()).does_nothing());
}

#[test]
fn server_pause_is_counted_and_audited() {
    let mut paused = running();
    paused.desired_status = Some(DesiredStatus::Stopped);
    let observed =
        Observation { idle: Lookup::Found(IdleReport { auto_pause_triggered: true, ..idle() }), ..observed() };
    let decision = decide(&paused, &observed, &scaling(), now());
    assert_eq!(decision.transition.map(|transition| transition.to()), Some(WorkerStatus::Stopping));
    assert_eq!(decision.reason.code.as_str(), "auto_paused", "the cause is shown");
    assert_eq!(decision.counts.iter().collect::<Vec<_>>(), [Counter::IdleDetection, Counter::AutoPause]);
    let audited = |notice: &Notice| matches!(notice, Notice::Audit(audit) if audit.label() == "skipped_auto_pause");
    assert!(decision.notices.iter().any(audited));
    assert_eq!(decide(&paused, &observed, &policy(), now()).notices, [], "without scale-down there is nothing to skip");
}

#[test]
fn metrics_need_an_instance_and_an_address() {
    let asked = |observed: &Observation| queries(&running(), observed, &policy(), now());
    assert!(asked(&observed()).contains(Query::CloudMetrics) && asked(&observed()).contains(Query::Cml));
    let mut without = instance(Ec2State::Running);
    (without.public_ip, without.private_ip) = (None, None);
    let without = Observation { instance: Lookup::Found(without), ..Observation::default() };
    assert!(asked(&without).contains(Query::CloudMetrics) && !asked(&without).contains(Query::Cml));
    let gone = Observation { instance: Lookup::Absent, ..Observation::default() };
    assert!(!asked(&gone).contains(Query::CloudMetrics) && !asked(&gone).contains(Query::Cml));
}

/// The record of a worker that an idle check may have paused shows the same as that of one stopped by an operator.
#[test]
fn automatic_pause_settles_before_the_stop() {
    let stopped = worker(WorkerStatus::Running, Some(DesiredStatus::Stopped));
    let paused = Lookup::Found(IdleReport { auto_pause_triggered: true, ..idle() });
    let unanswered = Lookup::Unknown(CallFailure::new(FailureKind::Unclear, "reset"));
    for (idle, started_at) in [
        (paused, Change::Set(now())),
        (unanswered, Change::Set(now())),
        (Lookup::Found(idle()), Change::Keep),
        (Lookup::NotRequested, Change::Keep),
    ] {
        let decision = decide(&stopped, &Observation { idle: idle.clone(), ..observed() }, &policy(), now());
        assert_eq!(decision.transition.map(|transition| transition.to()), Some(WorkerStatus::Stopping));
        let changes = decision.changes.unwrap_or_default();
        assert_eq!(changes.drain_started_at, started_at, "{idle:?}");
    }
    let mut stopping = worker(WorkerStatus::Stopping, Some(DesiredStatus::Stopped));
    stopping.notes.drain_started_at = Some(now());
    let waiting = decide(&stopping, &observed(), &policy(), now());
    assert_eq!((waiting.effects.len(), waiting.reason.code), (0, ReasonCode::SettleTime));
    stopping.notes.drain_started_at = Some(ago(Duration::from_secs(10)));
    assert!(queries(&stopping, &observed(), &policy(), now()).iter().eq([Query::Sessions]));
    let placed = Observation { sessions: Lookup::Found(vec![Session::new("s", "running")]), ..observed() };
    let back = decide(&stopping, &placed, &policy(), now());
    assert_eq!(back.transition.map(|transition| transition.to()), Some(WorkerStatus::Running));
    let empty = Observation { sessions: Lookup::Found(Vec::new()), ..observed() };
    assert_eq!(names(&decide(&stopping, &empty, &policy(), now())), ["stop_instance"]);
}

#[test]
fn pause_by_a_check_that_must_not_pause_is_counted_and_explained() {
    let (worker, at) = (running(), now());
    let activity = serde_json::json!({"category": "start_lab", "timestamp": "2026-02-06T07:30:00Z"});
    let busy = Observation {
        telemetry: Lookup::Found(vec![activity]),
        sessions: Lookup::Found(vec![Session::new("s", "running")]),
        idle: Lookup::Found(IdleReport { idle_threshold_minutes: Some(60.0), ..idle() }),
        ..observed()
    };
    let decision = decide(&worker, &busy, &policy(), now());
    assert_eq!(names(&decision), ["detect_idle"]);
    let recorded = |auto_pause_triggered| {
        let results = vec![EffectResult::IdleChecked(IdleReport { auto_pause_triggered, ..idle() })];
        record(&worker, &Applied { decision: decision.clone(), results, at, version: None })
    };
    let paused = recorded(true);
    assert!(paused.counts.contains(Counter::AutoPause));
    assert_eq!((paused.reason.code, paused.requeue), (ReasonCode::AutoPaused, Requeue::Now));
    let quiet = recorded(false);
    assert!(!quiet.counts.contains(Counter::AutoPause));
    assert_eq!(quiet.reason.code, ReasonCode::InService);
}
