//! Apply: carries out the effects of a decision in order, one at a time, then writes the record and publishes.

use std::sync::atomic::{AtomicBool, Ordering};

use super::cache::{WriteKind, follows};
use super::context::{Context, FleetGuard};
use super::outbox::AuditEntry;
use super::result::{Mode, ReconcileResult, effect_reports, failure_of};
use crate::lifecycle::decision::{Change, Changes, Decision};
use crate::lifecycle::effect::{Effect, EffectResult, IfRefused, LaunchedInstance};
use crate::lifecycle::event::Notice;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::idle::{AutoPause, IdleReport};
use crate::lifecycle::license::{LicenseReport, Submission};
use crate::lifecycle::outcome::Requeue;
use crate::lifecycle::patch::Patch;
use crate::lifecycle::record::{Applied, Record};
use crate::lifecycle::status::{DesiredStatus, WorkerStatus};
use crate::lifecycle::time::{self, Timestamp};
use crate::lifecycle::worker::Worker;
use crate::ports::{IdleCheck, SessionMove, Version};

/// A request to stop between two effects. The effect under way is finished and recorded.
#[derive(Debug, Default)]
pub(super) struct CancelFlag(AtomicBool);

impl CancelFlag {
    pub(super) fn request(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_requested(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Carries out the effects of a decision. Each is tried only while the lease is valid and `cancel` is not requested;
/// when one that others build on fails, they are not tried.
pub(super) async fn apply(
    context: &Context,
    worker: &Worker,
    decision: Decision,
    cancel: &CancelFlag,
    at: Timestamp,
) -> Applied {
    let mut applied = Applied { decision, results: Vec::new(), at, version: None };
    let effects = std::mem::take(&mut applied.decision.effects);
    let mut stopped = false;
    for effect in &effects {
        let result = if stopped || cancel.is_requested() || !context.lease.is_valid() {
            EffectResult::NotTried
        } else {
            tokio::select! {
                biased;
                // A call may wait for its turn long after the lease was checked; it must not be sent then.
                () = context.lease.lost(), if effect.changes_cloud() => {
                    let message = "the lead was lost while this was under way";
                    EffectResult::Failed(CallFailure::new(FailureKind::Unclear, message))
                }
                result = apply_effect(context, worker, effect, &mut applied.version, at) => result,
            }
        };
        if effect.changes_cloud() && !matches!(result, EffectResult::NotTried) {
            context.cache().mark_mutated(&worker.id);
        }
        match &result {
            EffectResult::Failed(failure) => {
                tracing::warn!(target: "lcm::apply", worker = %worker.id, %effect, %failure, "an effect failed");
                stopped |= effect.stops_the_rest();
            }
            EffectResult::Planned | EffectResult::NotTried => stopped = true,
            EffectResult::Done | EffectResult::Launched(_) | EffectResult::IdleChecked(_) => {
                tracing::debug!(target: "lcm::apply", worker = %worker.id, %effect, "done");
            }
        }
        applied.results.push(result);
    }
    applied.decision.effects = effects;
    applied
}

/// [`apply`] for a decision that may scale the fleet down: no effect starts after the lease on that has ended.
///
/// # Errors
/// If it ended before the first effect: the fleet the decision was made on may have changed.
pub(super) async fn apply_while_counted(
    context: &Context,
    worker: &Worker,
    decision: Decision,
    fleet: Option<&FleetGuard>,
    cancel: &CancelFlag,
    at: Timestamp,
) -> Result<Applied, CallFailure> {
    let applying = apply(context, worker, decision, cancel, at);
    let Some(lease) = fleet.and_then(FleetGuard::lease) else { return Ok(applying.await) };
    tokio::pin!(applying);
    let applied = tokio::select! {
        biased;
        () = lease.lost() => {
            cancel.request();
            applying.await
        }
        applied = &mut applying => applied,
    };
    if lease.is_valid() || applied.did_something() {
        return Ok(applied);
    }
    let message = "counting the fleet took too long; another controller may be counting it now";
    Err(CallFailure::new(FailureKind::Conflict, message))
}

async fn apply_effect(
    context: &Context,
    worker: &Worker,
    effect: &Effect,
    version: &mut Version,
    at: Timestamp,
) -> EffectResult {
    let ports = context.ports();
    let (control_plane, fence) = (&ports.control_plane, context.fence());
    match effect {
        Effect::RecordLaunchPlan { plan } => {
            let changes = Changes {
                launch_plan: Change::Set(plan.clone()),
                launched_at: Some(ports.clock.now()),
                // The plan is cleared once the launch has ended.
                ec2_region: worker.aws_region.is_none().then(|| plan.region.clone()),
                ..Changes::default()
            };
            write_changes(context, worker, changes, version, at).await
        }
        Effect::RecordLicenseAttempt { attempted } => {
            let changes = Changes { license_attempt: Some(attempted.clone()), ..Changes::default() };
            write_changes(context, worker, changes, version, at).await
        }
        Effect::LaunchInstance { plan, .. } => {
            // The time of this call, not of the reconcile: the search for the instance is patient from here on.
            let requested_at = ports.clock.now();
            match ports.compute.launch(plan).await {
                Ok(id) => EffectResult::Launched(LaunchedInstance { id, requested_at }),
                Err(failure) => EffectResult::Failed(failure),
            }
        }
        Effect::StartInstance { instance } => match context.region(worker) {
            Ok(region) => done(ports.compute.start(region, instance).await),
            Err(failure) => EffectResult::Failed(failure),
        },
        Effect::StopInstance { instance } => match context.region(worker) {
            Ok(region) => done(ports.compute.stop(region, instance).await),
            Err(failure) => EffectResult::Failed(failure),
        },
        Effect::TerminateInstance { instance } => match context.region(worker) {
            Ok(region) => done(ports.compute.terminate(region, instance).await),
            Err(failure) => EffectResult::Failed(failure),
        },
        Effect::ReportMetrics { cloud, cml } => {
            let reported = control_plane.report_metrics(&worker.id, cloud.as_ref(), cml.as_ref(), at, fence).await;
            if reported.is_ok() {
                context.cache().mark_metrics_reported(&worker.id, at);
            }
            done(reported.map(|left| mark_written(context, worker, left, version, WriteKind::Measurement)))
        }
        Effect::DetectIdle { telemetry, auto_pause } => {
            let checked = control_plane.detect_idle(&worker.id, telemetry.clone(), *auto_pause, fence).await;
            // Also without a verdict: the next reconcile would not get one either.
            context.cache().mark_idle_checked(&worker.id, ports.clock.now());
            context.cache().note_pause(&worker.id, &checked, *auto_pause);
            match checked {
                Ok(IdleCheck { report, version: left }) => {
                    log_pause(worker, &report, *auto_pause);
                    mark_written(context, worker, left, version, WriteKind::Unconditional);
                    EffectResult::IdleChecked(report)
                }
                Err(failure) => EffectResult::Failed(failure),
            }
        }
        Effect::ReportLicense { report } => {
            let reported = control_plane.report_license(&worker.id, *report, fence).await;
            done(reported.map(|left| mark_written(context, worker, left, version, WriteKind::Unconditional)))
        }
        Effect::SubmitLicense { submission, address } => {
            done(submit_license(context, worker, *submission, address).await)
        }
        Effect::HandBackSession { session, if_refused, if_failed: _ } => {
            let moved = control_plane.move_session(session, SessionMove::BackToScheduler, fence).await;
            match (moved, if_refused) {
                (Ok(()), _) => EffectResult::Done,
                // Only a refusal ends the session: an unanswered call may still be accepted the next time.
                (Err(failure), IfRefused::Terminate(reason)) if is_refusal(failure.kind) => {
                    done(control_plane.terminate_session(session, *reason, fence).await)
                }
                (Err(failure), IfRefused::KeepWaiting | IfRefused::Terminate(_)) => EffectResult::Failed(failure),
            }
        }
        Effect::RetrySession { session, attempt } => {
            done(control_plane.move_session(session, SessionMove::Retry { attempt: *attempt }, fence).await)
        }
        Effect::TerminateSession { session, reason, if_failed: _ } => {
            done(control_plane.terminate_session(session, *reason, fence).await)
        }
        Effect::Announce { event } => done(context.announce(worker.id.as_str(), event, at)),
    }
}

fn log_pause(worker: &Worker, report: &IdleReport, auto_pause: AutoPause) {
    if !report.auto_pause_triggered {
        return;
    }
    let cause = match auto_pause {
        AutoPause::ServerDecides => "idle",
        AutoPause::Suppressed => "idle in its own view, against telemetry or sessions",
    };
    let idle_minutes = report.idle_minutes;
    tracing::warn!(target: "lcm::reconcile", worker = %worker.id, idle_minutes, cause, "the control plane paused the idle worker {}", worker.id);
}

async fn submit_license(
    context: &Context,
    worker: &Worker,
    submission: Submission,
    address: &str,
) -> Result<(), CallFailure> {
    let target = context.cml_target_at(worker, address.to_owned());
    let cml = &context.ports().cml;
    let token = || {
        let missing = || CallFailure::new(FailureKind::Conflict, "the record has no token to register");
        worker.license.pending_token.as_ref().ok_or_else(missing)
    };
    match submission {
        Submission::Register => cml.register(&target, token()?).await,
        Submission::Reregister => cml.reregister(&target, token()?).await,
        Submission::Deregister => cml.deregister(&target).await,
    }
}

/// Writes fields of the record between two effects.
async fn write_changes(
    context: &Context,
    worker: &Worker,
    changes: Changes,
    version: &mut Version,
    at: Timestamp,
) -> EffectResult {
    let mut patch = Patch::from_changes(worker, changes, at);
    patch.expected_version = version.or(patch.expected_version);
    let written = context.ports().control_plane.write(worker, &patch, context.fence()).await;
    done(written.map(|left| mark_written(context, worker, left, version, WriteKind::Conditional)))
}

/// Carries on with the version that our own write left, so that the next write is not refused because of it. If another
/// writer came in between, the old version stays: the next write must be refused, because it was decided on the record
/// before that change.
fn mark_written(context: &Context, worker: &Worker, left: Version, version: &mut Version, kind: WriteKind) {
    context.cache().mark_written(&worker.id, left, kind);
    let ours = match kind {
        WriteKind::Conditional => left,
        WriteKind::Unconditional => left.filter(|left| follows(version.or(worker.version), *left)),
        WriteKind::Measurement => None,
    };
    *version = ours.or(*version);
}

const fn is_refusal(kind: FailureKind) -> bool {
    match kind {
        FailureKind::Refused | FailureKind::Conflict | FailureKind::NotSupported => true,
        FailureKind::Throttled
        | FailureKind::NoCapacity
        | FailureKind::RefusedForNow
        | FailureKind::Unclear
        | FailureKind::Unreachable
        | FailureKind::Unparsable
        | FailureKind::LaunchDied => false,
    }
}

fn done(result: Result<(), CallFailure>) -> EffectResult {
    match result {
        Ok(()) => EffectResult::Done,
        Err(failure) => EffectResult::Failed(failure),
    }
}

/// Writes the record; then counts and publishes.
///
/// # Errors
/// [`FailureKind::Conflict`] if the record changed since it was read. Nothing was written.
pub(super) async fn persist(
    context: &Context,
    worker: &Worker,
    applied: &Applied,
    mut record: Record,
) -> Result<ReconcileResult, CallFailure> {
    let error = applied.results.iter().find_map(EffectResult::failure).cloned();
    if !applied.did_something() && !context.lease.is_valid() {
        return Ok(ReconcileResult::lease_lost(worker, applied));
    }
    if let Change::Set(started) = &mut record.patch.changes.drain_started_at {
        // The settle time counts from here, not from before the worker was observed.
        *started = (*started).max(context.ports().clock.now());
    }
    if !record.patch.is_empty() {
        // Also after the lease was lost: effects that were carried out must be recorded, and the version guards that.
        let written = context.ports().control_plane.write(worker, &record.patch, context.fence()).await;
        let nothing_written = written.as_ref().is_err_and(|failure| failure.kind.did_nothing());
        if !nothing_written && leaves_service(worker, &record) {
            context.bump_scale_down_epoch();
        }
        match written {
            Ok(version) => {
                context.cache().mark_written(&worker.id, version, WriteKind::Conditional);
                context.cache().mark_unconfirmed(worker, &record.patch);
                // Without a name it was not described, which a later reconcile makes up for.
                if let Some(image) = record.patch.changes.image.as_ref().filter(|image| image.name.is_some()) {
                    context.cache().mark_image_written(&worker.id, &image.id);
                }
                if record.patch.changes.license_report.is_some_and(LicenseReport::is_final) {
                    context.license_done(worker);
                }
            }
            Err(failure) if failure.kind == FailureKind::Conflict => return Err(failure),
            Err(failure) => {
                tracing::warn!(target: "lcm::reconcile", worker = %worker.id, %failure, "the record was not written");
                return Ok(ReconcileResult::not_recorded(worker, applied, &failure));
            }
        }
    }
    if record.requeue == Requeue::Now && context.cache().has_unkept(&worker.id) {
        // The next reconcile may write the same fields again.
        record.requeue = Requeue::NextCycle;
    }
    context.telemetry().count(record.counts);
    publish(context, worker, &record, applied.at);
    let to = record.patch.status.unwrap_or(worker.status);
    log_change(worker, applied, &record, to);
    if let (true, Some(requested_at)) = (comes_up(worker.status, to), worker.launch_time()) {
        context.telemetry().observe_time_to_running(time::age(requested_at, context.ports().clock.now()));
    }
    Ok(ReconcileResult {
        worker_id: worker.id.clone(),
        mode: Mode::Real,
        outcome: record.outcome,
        from_status: worker.status,
        to_status: to,
        effects: effect_reports(applied),
        changes: Box::new(record.patch.changes),
        error: error.or_else(|| failure_of(&record.reason)),
        reason: record.reason,
        requeue: record.requeue,
    })
}

/// Logs one record per change of the record or the cloud. Measurements are no change.
fn log_change(worker: &Worker, applied: &Applied, record: &Record, to: WorkerStatus) {
    let done = applied.decision.effects.iter().zip(&applied.results);
    let done: Vec<String> = done
        .filter(|(effect, result)| effect.relies_on_record() && result.is_success())
        .map(|(effect, _)| effect.to_string())
        .collect();
    let changes = &record.patch.changes;
    if to == worker.status && done.is_empty() && changes.is_empty() {
        return;
    }
    let launched = applied.results.iter().find_map(EffectResult::instance);
    let changed = match &changes.ec2_instance_id {
        Change::Set(instance) => Some(instance),
        Change::Keep | Change::Clear => None,
    };
    let instance = launched.or(changed).or(worker.ec2_instance_id.as_ref()).map(tracing::field::display);
    tracing::info!(
        target: "lcm::reconcile", worker = %worker.id, instance, from = %worker.status, %to,
        reason = record.reason.code.as_str(), effects = done.join(", "),
        fields = changes.to_json().keys().map(String::as_str).collect::<Vec<_>>().join(", "), "{}", record.reason
    );
}

/// Whether a worker enters service after a launch or a start.
const fn comes_up(from: WorkerStatus, to: WorkerStatus) -> bool {
    match (from, to) {
        (WorkerStatus::Pending | WorkerStatus::Provisioning | WorkerStatus::Starting, WorkerStatus::Running) => true,
        (
            WorkerStatus::Pending
            | WorkerStatus::Provisioning
            | WorkerStatus::Starting
            | WorkerStatus::Running
            | WorkerStatus::Draining
            | WorkerStatus::Stopping
            | WorkerStatus::Stopped
            | WorkerStatus::Terminating
            | WorkerStatus::Terminated
            | WorkerStatus::Failed
            | WorkerStatus::Unknown,
            _,
        ) => false,
    }
}

/// Queues the events and audits of a reconcile.
fn publish(context: &Context, worker: &Worker, record: &Record, at: Timestamp) {
    for notice in &record.notices {
        match notice {
            // `announce` logs and counts a failure.
            Notice::Event(event) => drop(context.announce(worker.id.as_str(), event, at)),
            Notice::Audit(audit) => context.outbox().audit(AuditEntry {
                worker: worker.id.clone(),
                audit: *audit,
                detail: record.reason.to_string(),
                fence: context.fence(),
            }),
        }
    }
}

/// Whether the record, once written, takes the worker out of service.
fn leaves_service(worker: &Worker, record: &Record) -> bool {
    let changes = &record.patch.changes;
    worker.status == WorkerStatus::Running
        && (record.patch.status.is_some_and(|status| status != WorkerStatus::Running)
            || changes.desired_status.is_some_and(|desired| desired != DesiredStatus::Running))
}
