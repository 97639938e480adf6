//! Running: in service. Six steps in order; a step that changes the status ends the reconcile.

use crate::lifecycle::capabilities::Support;
use crate::lifecycle::context::{HandlerContext, Located};
use crate::lifecycle::counters::Counter;
use crate::lifecycle::decision::{Change, Decision};
use crate::lifecycle::effect::Effect;
use crate::lifecycle::event::Audit;
use crate::lifecycle::idle::{self, AutoPause, IdleReport};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::license::{self, LicenseFailure, LicenseReport, LicenseStep, Submission};
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::observation::CmlMetrics;
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::reason::{Detail, Reason, ReasonCode};
use crate::lifecycle::scale_down::{self, ScaleDownVerdict};
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};
use crate::lifecycle::{drain, time, worker::Worker};

/// 1. desired status, 2. EC2 drift, and then in service: 3. idle detection, 4. metrics, 5. license, 6. scale-down.
pub(super) fn running(ctx: HandlerContext<'_>) -> Decision {
    if let Some(failure) = ctx.ec2_failure() {
        return failure.decision();
    }
    match ctx.worker.desired_status {
        Some(DesiredStatus::Stopped) => {
            let stopping = ctx.command(WorkerStatus::Stopping, ReasonCode::DesiredStopped);
            let stopping = drain::clear_notes(ctx.worker, stopping);
            return keep_idle_check(ctx, if may_be_paused(ctx) { settle_first(ctx, stopping) } else { stopping });
        }
        Some(DesiredStatus::Terminated) => {
            return keep_idle_check(ctx, ctx.command(WorkerStatus::Terminating, ReasonCode::DesiredTerminated));
        }
        None | Some(DesiredStatus::Running) => {}
    }
    let instance = match ctx.locate() {
        Err(waiting) => return waiting.decision(),
        Ok(Located::Gone(_)) => return ctx.gone(),
        Ok(Located::Nowhere) => return ctx.no_instance_named(),
        Ok(Located::Here(instance)) => instance,
    };
    let decision = match instance.state {
        // The check writes to the record. Everything else is decided on its report, in one write.
        Ec2State::Running if idle_check_is_due(ctx) => return check_idle(ctx),
        Ec2State::Running => serve(ctx, instance),
        Ec2State::Stopping | Ec2State::Stopped => ctx.follow_external_stop(instance),
        Ec2State::Pending | Ec2State::ShuttingDown | Ec2State::Terminated | Ec2State::Other => {
            ctx.follow(instance, ReasonCode::Drift)
        }
    };
    ctx.adopt(instance, decision)
}

/// Whether telemetry was read for a check that has not been made. The check could pause the worker: it is made only if
/// the sessions were listed and none is active, and never if scale-down is on.
fn idle_check_is_due(ctx: HandlerContext<'_>) -> bool {
    let is_free = ctx.observation.sessions.found().is_some_and(|sessions| drain::active(sessions) == 0);
    !ctx.policy.scale_down.enabled
        && is_free
        && !ctx.observation.telemetry.is_not_requested()
        && ctx.observation.idle.is_not_requested()
}

fn check_idle(ctx: HandlerContext<'_>) -> Decision {
    Decision::requeue(ReasonCode::IdleCheckDue).with_requeue(Requeue::Now).with_effect(Effect::DetectIdle {
        telemetry: ctx.observation.telemetry.found().cloned(),
        auto_pause: AutoPause::ServerDecides,
    })
}

fn serve(ctx: HandlerContext<'_>, instance: &Instance) -> Decision {
    let decision = note_address(ctx.worker, instance, Decision::success(ReasonCode::InService));
    let decision = drain::clear_notes(ctx.worker, decision);
    let decision = report_metrics(ctx, decision);
    let decision = reconcile_license(ctx, instance, decision);
    match &ctx.observation.idle {
        Lookup::Found(report) if reads_verdict(ctx) => {
            let report = idle::corrected(report, &ctx.observation.sessions, &ctx.observation.telemetry, ctx.now);
            let decision = consider_scale_down(ctx, &report, count_idle_check(&report, decision));
            report_activity(ctx, &report, decision)
        }
        Lookup::Found(report) => {
            let decision = consider_scale_down(ctx, report, count_idle_check(report, decision));
            // The record shows the pause in the next reconcile.
            let requeue = if report.auto_pause_triggered { Requeue::Now } else { decision.requeue };
            explain_pause(report, decision).with_requeue(requeue)
        }
        // An unanswered check is no result, and above all not "idle".
        Lookup::NotRequested | Lookup::Absent | Lookup::Unknown(_) => decision,
    }
}

/// Whether the control plane's last verdict was read instead of a check: for a worker with active sessions, and if
/// scale-down is on.
fn reads_verdict(ctx: HandlerContext<'_>) -> bool {
    let is_busy = ctx.observation.sessions.found().is_some_and(|sessions| drain::active(sessions) > 0);
    ctx.policy.scale_down.enabled || is_busy
}

/// Posts telemetry that shows activity inside the threshold. It cannot pause the worker, and keeps the control plane's
/// last activity current.
fn report_activity(ctx: HandlerContext<'_>, report: &IdleReport, decision: Decision) -> Decision {
    match ctx.observation.telemetry.found() {
        Some(events) if idle::shows_activity(events, report, ctx.now) => decision
            .with_effect(Effect::DetectIdle { telemetry: Some(events.clone()), auto_pause: AutoPause::Suppressed }),
        Some(_) | None => decision,
    }
}

/// A changed address is recorded; the license step of this reconcile already uses it.
fn note_address(worker: &Worker, instance: &Instance, decision: Decision) -> Decision {
    let is_ec2s = |address: &String| {
        instance.public_ip.as_ref() == Some(address) || instance.private_ip.as_ref() == Some(address)
    };
    let agrees = match (&worker.public_ip, &worker.private_ip) {
        // A server that keeps one address only keeps one of EC2's.
        (None, None) => worker.ip_address.as_ref().map_or(instance.address().is_none(), is_ec2s),
        (public, private) => {
            *public == instance.public_ip
                && *private == instance.private_ip
                && worker.ip_address.as_ref().is_none_or(is_ec2s)
        }
    };
    if agrees {
        return decision;
    }
    Decision { reason: ReasonCode::AddressChanged.into(), ..decision }
        .with_changes(|changes| changes.addresses = Some(instance.into()))
}

/// Each source fails alone; the other one is still reported. If both fail, the attempt is.
fn report_metrics(ctx: HandlerContext<'_>, decision: Decision) -> Decision {
    let (cloud, cml) = (&ctx.observation.cloud_metrics, &ctx.observation.cml);
    if cloud.is_not_requested() && cml.is_not_requested() {
        return decision;
    }
    let instance = ctx.observation.instance_of(ctx.worker);
    let with_uptime = |cml: CmlMetrics| match instance {
        Some(instance) => cml.with_uptime(instance, ctx.now),
        None => cml,
    };
    let cml = cml.found().cloned().map(with_uptime);
    decision.with_effect(Effect::ReportMetrics { cloud: cloud.found().copied(), cml })
}

fn reconcile_license(ctx: HandlerContext<'_>, instance: &Instance, decision: Decision) -> Decision {
    let (license, notes) = (&ctx.worker.license, &ctx.worker.notes);
    let because = |code: ReasonCode, decision: Decision| Decision { reason: Reason::new(code), ..decision };
    let step = license::next_step(license, &ctx.observation.registration, notes.license_attempt.as_deref());
    let decision = if step.is_unfinished(license) {
        match license::waiting_since(notes.license_wait.as_deref(), license.pending_token.as_ref()) {
            Some(since) if time::age(since, ctx.now) >= ctx.policy.license_timeout => {
                return fail_registration(ctx, LicenseFailure::TimedOut, decision);
            }
            Some(_) => decision,
            None => decision.with_changes(|changes| {
                changes.license_wait = Some(license::wait_note(license.pending_token.as_ref(), ctx.now));
            }),
        }
    } else {
        decision
    };
    match step {
        LicenseStep::Nothing => decision,
        LicenseStep::Acknowledge => because(ReasonCode::LicenseInProgress, decision)
            .with_outcome(Outcome::Requeue, Requeue::After(ctx.policy.license_poll_interval))
            .with_effect(Effect::ReportLicense { report: LicenseReport::StartRegistration }),
        LicenseStep::Wait => because(ReasonCode::LicenseInProgress, decision)
            .with_outcome(Outcome::Requeue, Requeue::After(ctx.policy.license_poll_interval)),
        LicenseStep::TryLater => {
            let delayed = |failure| Reason::failed(ReasonCode::LicenseDelayed, failure);
            let reason = ctx.observation.registration.failure().map_or(ReasonCode::LicenseDelayed.into(), delayed);
            Decision { reason, ..decision }.with_outcome(Outcome::Retry, Requeue::Backoff)
        }
        LicenseStep::Complete(report) => finish_license(ctx, report, because(ReasonCode::LicenseFinished, decision)),
        LicenseStep::Fail(failure) => fail_registration(ctx, failure, decision),
        LicenseStep::Submit(submission) => {
            // A token must only go to the address EC2 showed in this reconcile: the recorded one may belong to another
            // instance.
            let Some(address) = instance.address() else { return decision };
            let decision = because(ReasonCode::LicenseSubmitted, decision)
                .with_outcome(Outcome::Requeue, Requeue::After(ctx.policy.license_poll_interval));
            submit_license(ctx, submission, address, decision)
        }
    }
}

/// Reports a registration as failed, with the reason.
fn fail_registration(ctx: HandlerContext<'_>, failure: LicenseFailure, decision: Decision) -> Decision {
    let shown = ctx.observation.registration.found().map(|status| format!("registration {status}"));
    let reason = match failure {
        LicenseFailure::TokenMissing => Reason::new(ReasonCode::LicenseTokenMissing),
        LicenseFailure::Reported => {
            Reason::new(ReasonCode::LicenseFinished).with(Detail::Text(shown.unwrap_or_default().into()))
        }
        LicenseFailure::TimedOut => {
            Reason::new(ReasonCode::LicenseTimedOut).with(Detail::Since(ctx.policy.license_timeout))
        }
    };
    let error = reason.to_string();
    finish_license(ctx, LicenseReport::FailRegistration, Decision { reason, ..decision })
        .with_changes(|changes| changes.license_error = Some(error))
}

fn finish_license(ctx: HandlerContext<'_>, report: LicenseReport, decision: Decision) -> Decision {
    decision
        .with_changes(|changes| {
            changes.license_report = Some(report);
            // The same token may be registered again later.
            changes.license_attempt = ctx.worker.notes.license_attempt.as_ref().map(|_| String::new());
        })
        .with_requeue(Requeue::NextCycle)
}

/// CML first, then the record: a record with an operation "in progress" that CML has never received would take the
/// outcome of an earlier attempt for ours. The attempt CML shows is recorded before either, so that after a crash in
/// between it is known whether CML has the token.
fn submit_license(ctx: HandlerContext<'_>, submission: Submission, address: &str, decision: Decision) -> Decision {
    let start = match submission {
        Submission::Register | Submission::Reregister => LicenseReport::StartRegistration,
        Submission::Deregister => LicenseReport::StartDeregistration,
    };
    let decision = match submission {
        Submission::Register | Submission::Reregister => note_attempt(ctx, decision),
        Submission::Deregister => decision,
    };
    let decision = decision.with_effect(Effect::SubmitLicense { submission, address: address.to_owned() });
    if ctx.worker.license.operation_in_progress {
        return decision;
    }
    // The time that CML may take counts from this submission.
    let is_noted = ctx.worker.notes.license_wait.as_ref().is_some_and(|note| !note.is_empty());
    let decision =
        if is_noted { decision.with_changes(|changes| changes.license_wait = Some(String::new())) } else { decision };
    decision.with_effect(Effect::ReportLicense { report: start })
}

fn note_attempt(ctx: HandlerContext<'_>, decision: Decision) -> Decision {
    let shown = ctx.observation.registration.found().and_then(|status| status.attempted.as_deref());
    let attempted = license::attempt_note(shown, ctx.worker.license.pending_token.as_ref());
    if ctx.worker.notes.license_attempt.as_ref() == Some(&attempted) {
        return decision;
    }
    decision.with_effect(Effect::RecordLicenseAttempt { attempted })
}

/// Whether the stop is the control plane's own, after an idle check, and no operator's.
fn may_be_paused(ctx: HandlerContext<'_>) -> bool {
    match &ctx.observation.idle {
        Lookup::Found(report) => report.auto_pause_triggered,
        // The check may have paused the worker all the same.
        Lookup::Unknown(_) => true,
        Lookup::NotRequested | Lookup::Absent => false,
    }
}

/// Has the stopping handler list the sessions after the settle time: one may have been placed since the check.
fn settle_first(ctx: HandlerContext<'_>, decision: Decision) -> Decision {
    decision.with_changes(|changes| changes.drain_started_at = Change::Set(ctx.now))
}

/// The desired status changed during the idle check: most likely the control plane paused the worker. The check is
/// counted and audited all the same.
fn keep_idle_check(ctx: HandlerContext<'_>, decision: Decision) -> Decision {
    match &ctx.observation.idle {
        Lookup::Found(report) if report.auto_pause_triggered => {
            explain_pause(report, consider_scale_down(ctx, report, count_idle_check(report, decision)))
        }
        Lookup::Found(report) => count_idle_check(report, decision),
        Lookup::NotRequested | Lookup::Absent | Lookup::Unknown(_) => decision,
    }
}

/// An automatic pause is the reason of all that follows from it.
fn explain_pause(report: &IdleReport, decision: Decision) -> Decision {
    match report.pause_reason() {
        Some(reason) => Decision { reason, ..decision },
        None => decision,
    }
}

fn count_idle_check(report: &IdleReport, decision: Decision) -> Decision {
    if !report.idle_check_performed {
        return decision;
    }
    let decision = decision.with_counter(Counter::IdleDetection);
    if report.auto_pause_triggered { decision.with_counter(Counter::AutoPause) } else { decision }
}

fn consider_scale_down(ctx: HandlerContext<'_>, report: &IdleReport, decision: Decision) -> Decision {
    let policy = &ctx.policy.scale_down;
    let Some(verdict) =
        scale_down::evaluate(report, &ctx.observation.fleet, &ctx.observation.sessions, policy, ctx.now)
    else {
        return decision;
    };
    let audited = decision.with_audit(Audit::ScaleDown(verdict));
    match verdict {
        ScaleDownVerdict::SkippedAutoPause
        | ScaleDownVerdict::SkippedNotIdle
        | ScaleDownVerdict::SkippedNotEligible
        | ScaleDownVerdict::SkippedMinWorkers
        | ScaleDownVerdict::SkippedCooldown
        | ScaleDownVerdict::SkippedUpcomingSession => audited,
        ScaleDownVerdict::StoppedImmediately => match ctx.observation.capabilities.desired_status {
            Support::Yes | Support::Unknown => stop_at_once(ctx, audited),
            // The drain of an empty worker sets the desired status too, and ends in the same stop.
            Support::No => drain_idle(ctx, ReasonCode::ScaleDownStop, audited),
        },
        ScaleDownVerdict::Drained => drain_idle(ctx, ReasonCode::ScaleDownDrain, audited),
    }
}

/// Stops an idle worker without sessions.
fn stop_at_once(ctx: HandlerContext<'_>, decision: Decision) -> Decision {
    let stopping = decision.with_command(ctx.worker.status, WorkerStatus::Stopping, ReasonCode::ScaleDownStop);
    settle_first(ctx, stopping).with_changes(|changes| {
        changes.desired_status = Some(DesiredStatus::Stopped);
        changes.scaled_down_at = Some(ctx.now);
    })
}

/// Drains an idle worker.
fn drain_idle(ctx: HandlerContext<'_>, code: ReasonCode, decision: Decision) -> Decision {
    let sessions = ctx.observation.sessions.found().map_or(&[][..], Vec::as_slice);
    let draining = decision.with_command(ctx.worker.status, WorkerStatus::Draining, code);
    drain::begin(draining, sessions, drain::SCALE_DOWN, drain::CONTROLLER, ctx.now)
        .with_counter(Counter::ScaleDownDrain)
        .with_changes(|changes| changes.scaled_down_at = Some(ctx.now))
}
