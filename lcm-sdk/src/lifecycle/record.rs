//! Turns the results of a decision's effects into the write to the record.

use serde::Serialize;

use super::counters::{Counter, Counts};
use super::decision::{Change, Changes, Decision};
use super::effect::{Effect, EffectResult, IfLaunchRefused};
use super::event::{Audit, Event, Notice, SessionEnd};
use super::failure::{CallFailure, FailureKind};
use super::idle::IdleReport;
use super::license::{AttemptNote, LicenseReport, Submission};
use super::lookup::Lookup;
use super::open_sessions;
use super::outcome::{Outcome, Requeue};
use super::patch::{DrainRequest, Patch, Termination};
use super::reason::{Detail, Reason, ReasonCode};
use super::status::WorkerStatus;
use super::time::Timestamp;
use super::transition::{EdgeKind, Transition};
use super::worker::LaunchPlan;
use super::worker::Worker;

/// A decision and the results of its effects.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// The decision that was applied.
    pub decision: Decision,
    /// Results of the effects, in the same order. A missing result means that the effect was not tried.
    pub results: Vec<EffectResult>,
    /// When the decision was made.
    pub at: Timestamp,
    /// The version of the record after the writes of the effects (a launch plan, a report, an idle check), if there
    /// were any. Without it the final write would conflict with our own.
    pub version: Option<u64>,
}

impl Applied {
    /// Whether an effect was tried and may have changed something.
    pub fn did_something(&self) -> bool {
        self.results.iter().any(|result| match result {
            EffectResult::Done | EffectResult::Launched(_) | EffectResult::IdleChecked(_) | EffectResult::Failed(_) => {
                true
            }
            EffectResult::Planned | EffectResult::NotTried => false,
        })
    }
}

impl Applied {
    /// The report of the idle check among the effects, for [`Observation::idle`]. `NotRequested` if there was no check
    /// or it was not tried.
    ///
    /// [`Observation::idle`]: super::observation::Observation::idle
    pub fn idle_report(&self) -> Lookup<IdleReport> {
        let pairs = self.decision.effects.iter().zip(&self.results);
        let checks = pairs.filter(|(effect, _)| matches!(effect, Effect::DetectIdle { .. }));
        checks.map(|(_, result)| result).next_back().map_or(Lookup::NotRequested, |result| match result {
            EffectResult::IdleChecked(report) => Lookup::Found(report.clone()),
            EffectResult::Failed(failure) => Lookup::Unknown(failure.clone()),
            EffectResult::Planned | EffectResult::Done | EffectResult::Launched(_) | EffectResult::NotTried => {
                Lookup::NotRequested
            }
        })
    }
}

/// The end of a reconcile: the patch to write, and the notices and counters for after the write.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[must_use = "a reconcile that is not recorded is repeated"]
pub struct Record {
    /// Outcome of the reconcile.
    pub outcome: Outcome,
    /// The transition, if it was completed.
    pub transition: Option<Transition>,
    /// Reason for the outcome.
    pub reason: Reason,
    /// When to reconcile the worker again.
    pub requeue: Requeue,
    /// The patch to write.
    pub patch: Patch,
    /// Events and audit entries to publish after the write.
    pub notices: Vec<Notice>,
    /// Counters to raise after the write.
    pub counts: Counts,
}

/// Turns a decision and the results of its effects into the write to the record. `worker` is the record that the
/// decision was made on.
///
/// # Guarantees
/// If an effect that the transition depends on failed or was not tried, the status stays. A launch with an unknown
/// outcome keeps its plan, to be repeated; one that was refused for good fails the worker. A license operation that CML
/// refuses for good is reported as failed once; any other failure keeps the intent.
///
/// ```
/// use lcm_sdk::lifecycle::{Applied, CallFailure, EffectResult, FailureKind, record};
/// use lcm_sdk::{decide, DesiredStatus, Ec2State, Observation, Outcome, Policy, Worker, WorkerStatus};
///
/// let mut worker = Worker::new("w-1", WorkerStatus::Stopped);
/// worker.ec2_instance_id = Some("i-1".into());
/// worker.desired_status = Some(DesiredStatus::Running);
/// let at = "2026-02-06T08:00:00Z".parse().unwrap();
/// let decision = decide(&worker, &Observation::with_instance_state("i-1", Ec2State::Stopped), &Policy::default(), at);
///
/// let throttled = CallFailure::with_code(FailureKind::Throttled, "RequestLimitExceeded", "slow down");
/// let results = vec![EffectResult::Failed(throttled)];
/// let record = record(&worker, &Applied { decision, results, at, version: None });
/// assert_eq!(record.outcome, Outcome::Retry);
/// assert!(record.patch.is_empty());
/// ```
pub fn record(worker: &Worker, applied: &Applied) -> Record {
    let decision = &applied.decision;
    let missing = std::iter::repeat(&EffectResult::NotTried);
    let pairs = || decision.effects.iter().zip(applied.results.iter().chain(missing.clone()));
    let mut record = match pairs().find(|(effect, result)| effect.blocks_the_transition() && !result.is_success()) {
        None => carried_out(worker, applied),
        Some((effect, result)) => held_up(worker, applied, effect, result),
    };
    for (effect, result) in pairs() {
        follow_up(&mut record, effect, result);
    }
    let ended = pairs().all(|(effect, result)| !effect.ends_session() || result.is_success());
    if record.patch.status == Some(WorkerStatus::Terminated) && !ended {
        record.requeue = Requeue::After(open_sessions::RETRY_DELAY);
    }
    if may_have_registered(worker, decision, pairs()) {
        record.patch.changes.license_report = Some(LicenseReport::StartRegistration);
    }
    if let Some(report) = record.patch.changes.license_report {
        let is_noted = worker.notes.license_wait.as_ref().is_some_and(|note| !note.is_empty());
        if report.is_final() && is_noted {
            record.patch.changes.license_wait = Some(String::new());
        }
        record.notices.push(Notice::Event(Event::License { report }));
        record.counts = match report {
            LicenseReport::CompleteRegistration => record.counts.and(Counter::LicenseRegistered),
            LicenseReport::CompleteDeregistration => record.counts.and(Counter::LicenseDeregistered),
            LicenseReport::StartRegistration
            | LicenseReport::FailRegistration
            | LicenseReport::StartDeregistration
            | LicenseReport::FailDeregistration => record.counts,
        };
    }
    record
}

/// Every effect that the transition depends on succeeded.
fn carried_out(worker: &Worker, applied: &Applied) -> Record {
    let decision = &applied.decision;
    Record {
        outcome: decision.outcome,
        transition: decision.transition,
        reason: decision.reason.clone(),
        requeue: decision.requeue,
        patch: Patch {
            changes: decision.changes.as_deref().cloned().unwrap_or_default(),
            ..patch(worker, applied, decision.transition, &decision.reason)
        },
        notices: decision.notices.clone(),
        counts: decision.counts,
    }
}

/// An effect that the transition depends on did not succeed: the status stays, unless the launch itself was refused for
/// good.
fn held_up(worker: &Worker, applied: &Applied, effect: &Effect, result: &EffectResult) -> Record {
    let decision = &applied.decision;
    let detail = match result {
        EffectResult::Failed(failure) => Detail::Failure(Box::new(failure.clone())),
        EffectResult::Planned
        | EffectResult::Done
        | EffectResult::Launched(_)
        | EffectResult::IdleChecked(_)
        | EffectResult::NotTried => Detail::Text(format!("{effect}: not tried").into()),
    };
    let stays = |code: ReasonCode, changes: Changes| Record {
        outcome: Outcome::Retry,
        transition: None,
        reason: Reason::new(code).with(detail.clone()),
        requeue: Requeue::Backoff,
        patch: Patch { changes, ..patch(worker, applied, None, &decision.reason) },
        notices: Vec::new(),
        counts: decision.counts.iter().filter(|counter| !counter.follows_transition()).collect(),
    };
    if let (Effect::LaunchInstance { plan, if_refused }, EffectResult::Failed(failure)) = (effect, result) {
        return match after_failed_launch(worker, plan, *if_refused, failure.kind) {
            Launch::Stays(code, changes) => stays(code, changes),
            Launch::Fails(changes) => {
                let reason = Reason::new(ReasonCode::LaunchFailed).with(detail.clone());
                let transition = Transition::new(worker.status, WorkerStatus::Failed, EdgeKind::Commanded).ok();
                let patch = Patch { changes, ..patch(worker, applied, transition, &reason) };
                Record {
                    outcome: Outcome::Success,
                    transition,
                    reason,
                    requeue: Requeue::OnChange,
                    patch,
                    notices: vec![Notice::Audit(Audit::ProvisionFailed)],
                    counts: Counts::default(),
                }
            }
        };
    }
    // Fields that a drain changes, its start time above all, do not depend on any one session.
    let independent = !effect.stops_the_rest() && decision.transition.is_none();
    let mut changes = decision.changes.as_deref().filter(|_| independent).cloned().unwrap_or_default();
    if leaves_drain(worker, decision) {
        changes.drain_tries = Some(worker.notes.drain_tries.saturating_add(1));
    }
    stays(ReasonCode::EffectFailed, changes)
}

/// Whether the transition that was held up leads out of a drain. The tries are counted, and are limited.
fn leaves_drain(worker: &Worker, decision: &Decision) -> bool {
    worker.status == WorkerStatus::Draining && decision.transition.is_some()
}

enum Launch {
    Stays(ReasonCode, Changes),
    Fails(Changes),
}

fn after_failed_launch(worker: &Worker, plan: &LaunchPlan, if_refused: IfLaunchRefused, kind: FailureKind) -> Launch {
    // This call launched nothing, so an instance can only stem from the call before: its age counts from there.
    let keep = Changes { launched_at: worker.notes.launched_at, ..Changes::default() };
    let replan = Changes { launch_plan: Change::Clear, ..keep.clone() };
    match (kind, if_refused) {
        (FailureKind::Refused | FailureKind::NotSupported, IfLaunchRefused::Fail) => Launch::Fails(replan),
        // Another account refuses what ours would accept.
        (FailureKind::Refused | FailureKind::NotSupported, IfLaunchRefused::DoubtRegion) => {
            Launch::Stays(ReasonCode::RegionNotTrusted, replan)
        }
        // The plan may be outdated: its AMI may be withdrawn, or the template may have changed until there is capacity.
        (FailureKind::Refused | FailureKind::NotSupported, IfLaunchRefused::PlanAnew)
        | (
            FailureKind::NoCapacity | FailureKind::RefusedForNow,
            IfLaunchRefused::PlanAnew | IfLaunchRefused::Fail | IfLaunchRefused::DoubtRegion,
        ) => Launch::Stays(ReasonCode::LaunchDelayed, replan),
        (
            FailureKind::Refused | FailureKind::NotSupported | FailureKind::NoCapacity | FailureKind::RefusedForNow,
            IfLaunchRefused::KeepPlan,
        ) => Launch::Stays(ReasonCode::LaunchDelayed, keep),
        (FailureKind::LaunchDied, _) => {
            let next = Some(plan.generation.saturating_add(1));
            Launch::Stays(ReasonCode::LaunchDied, Changes { launch_generation: next, ..replan })
        }
        (FailureKind::Throttled | FailureKind::Unreachable | FailureKind::Conflict, _) => {
            Launch::Stays(ReasonCode::LaunchDelayed, keep)
        }
        // The launch may have happened: the plan stays on the record and the same bytes are sent again.
        (FailureKind::Unclear | FailureKind::Unparsable, _) => {
            Launch::Stays(ReasonCode::LaunchDelayed, Changes::default())
        }
    }
}

/// Adds the consequences of a single effect's result.
fn follow_up(record: &mut Record, effect: &Effect, result: &EffectResult) {
    match effect {
        Effect::LaunchInstance { .. } => {
            if let EffectResult::Launched(launched) = result {
                record.patch.changes.ec2_instance_id = Change::Set(launched.id.clone());
                record.patch.changes.launched_at = Some(launched.requested_at);
                record.counts = record.counts.and(Counter::Provisioned);
            }
        }
        // A check that must not pause, by a server without that feature. The record shows the pause in the next reconcile.
        Effect::DetectIdle { .. } => {
            let EffectResult::IdleChecked(report) = result else { return };
            let Some(reason) = report.pause_reason() else { return };
            record.counts = record.counts.and(Counter::AutoPause);
            if record.transition.is_none() {
                (record.requeue, record.reason) = (Requeue::Now, reason);
            }
        }
        Effect::ReportMetrics { cloud, cml } if result.is_success() && (cloud.is_some() || cml.is_some()) => {
            record.counts = record.counts.and(Counter::MetricsCollected);
        }
        Effect::RetrySession { session, attempt } if result.is_success() => {
            let event = Event::SessionRetried { session: session.clone(), attempt: *attempt };
            record.notices.push(Notice::Event(event));
        }
        Effect::TerminateSession { session, reason, .. } if result.is_success() => match reason {
            SessionEnd::MaxRetriesExceeded | SessionEnd::WorkerStoppedDuringRetry => {
                let event = Event::SessionGivenUp { session: session.clone(), reason: *reason };
                record.notices.push(Notice::Event(event));
            }
            // Announced with all the others before it was ended, or with its worker.
            SessionEnd::DrainTimeout | SessionEnd::WorkerTerminated => {}
        },
        Effect::RecordLicenseAttempt { .. } => {
            if let EffectResult::Failed(failure) = result {
                license_delayed(record, failure);
            }
        }
        Effect::ReportLicense { report } => match result {
            EffectResult::Failed(failure) => license_delayed(record, failure),
            EffectResult::Done => record.notices.push(Notice::Event(Event::License { report: *report })),
            EffectResult::Planned
            | EffectResult::Launched(_)
            | EffectResult::IdleChecked(_)
            | EffectResult::NotTried => {}
        },
        Effect::SubmitLicense { submission, .. } => license_submitted(record, *submission, result),
        Effect::RecordLaunchPlan { .. }
        | Effect::StartInstance { .. }
        | Effect::StopInstance { .. }
        | Effect::TerminateInstance { .. }
        | Effect::ReportMetrics { .. }
        | Effect::HandBackSession { .. }
        | Effect::RetrySession { .. }
        | Effect::TerminateSession { .. }
        | Effect::Announce { .. } => {}
    }
}

/// Whether the response to the first registration of this CML was lost. It is recorded as submitted: if CML then shows
/// no registration, the token is submitted again, and if it shows one, that is ours. After earlier attempts the two
/// could not be distinguished.
fn may_have_registered<'a>(
    worker: &Worker,
    decision: &Decision,
    mut pairs: impl Iterator<Item = (&'a Effect, &'a EffectResult)>,
) -> bool {
    let noted = decision.effects.iter().find_map(|effect| {
        let Effect::RecordLicenseAttempt { attempted } = effect else { return None };
        Some(attempted.as_str())
    });
    let is_first = AttemptNote::read(noted.or(worker.notes.license_attempt.as_deref())).is_of_the_first();
    let answer_lost = pairs.any(|pair| {
        matches!(pair, (Effect::SubmitLicense { submission: Submission::Register, .. }, EffectResult::Failed(failure))
            if !failure.kind.did_nothing())
    });
    is_first && answer_lost && !worker.license.operation_in_progress
}

fn license_submitted(record: &mut Record, submission: Submission, result: &EffectResult) {
    let (report, reason) = match (submission, result) {
        (
            _,
            EffectResult::Planned | EffectResult::Launched(_) | EffectResult::IdleChecked(_) | EffectResult::NotTried,
        ) => return,
        // CML has accepted the token; a later reconcile reads the outcome.
        (Submission::Register | Submission::Reregister, EffectResult::Done) => return,
        (Submission::Deregister, EffectResult::Done) => {
            (LicenseReport::CompleteDeregistration, ReasonCode::LicenseFinished.into())
        }
        (_, EffectResult::Failed(failure)) if !failure.kind.is_permanent() => return license_delayed(record, failure),
        (Submission::Register | Submission::Reregister, EffectResult::Failed(failure)) => {
            (LicenseReport::FailRegistration, Reason::failed(ReasonCode::LicenseFinished, failure))
        }
        (Submission::Deregister, EffectResult::Failed(failure)) => {
            (LicenseReport::FailDeregistration, Reason::failed(ReasonCode::LicenseFinished, failure))
        }
    };
    record.patch.changes.license_report = Some(report);
    record.patch.changes.license_error = result.failure().map(|_| reason.to_string());
    license_reason(record, Outcome::Success, Requeue::NextCycle, reason);
}

/// The intent stays on the record.
fn license_delayed(record: &mut Record, failure: &CallFailure) {
    license_reason(record, Outcome::Retry, Requeue::Backoff, Reason::failed(ReasonCode::LicenseDelayed, failure));
}

/// The reason of a transition takes precedence over that of a license operation.
fn license_reason(record: &mut Record, outcome: Outcome, requeue: Requeue, reason: Reason) {
    if record.transition.is_none() {
        (record.outcome, record.requeue, record.reason) = (outcome, requeue, reason);
    }
}

fn patch(worker: &Worker, applied: &Applied, transition: Option<Transition>, reason: &Reason) -> Patch {
    let status = transition.map(Transition::to);
    Patch {
        worker_id: worker.id.clone(),
        expected_version: applied.version.or(worker.version),
        status,
        termination: (status == Some(WorkerStatus::Terminated))
            .then(|| Termination { reason: reason.to_string(), terminated_by: super::drain::CONTROLLER.to_owned() }),
        drain: applied.decision.notices.iter().find_map(|notice| match notice {
            Notice::Event(event) => DrainRequest::from_event(event),
            Notice::Audit(_) => None,
        }),
        changes: Changes::default(),
        at: applied.at,
    }
}
