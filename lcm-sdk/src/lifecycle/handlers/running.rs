//! Running: in service. Six steps in order; a step that changes the status ends the pass.

use super::Pass;
use super::locate::{Located, adopt, locate, silence};
use crate::lifecycle::counters::Counter;
use crate::lifecycle::decision::{Change, Decision};
use crate::lifecycle::effect::Effect;
use crate::lifecycle::event::Audit;
use crate::lifecycle::idle::IdleReport;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::license::{self, LicenseReport, LicenseStep, Submission};
use crate::lifecycle::observation::Answer;
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::reason::{Reason, ReasonCode};
use crate::lifecycle::scale_down::{self, ScaleDownVerdict};
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};
use crate::lifecycle::{drain, worker::Worker};

/// 1. desired state, 2. EC2 drift, and then in service: 3. metrics, 4. licence, 5. idle detection, 6. scale-down.
pub(crate) fn handle(pass: Pass<'_>) -> Decision {
    if let Some(silence) = silence(pass) {
        return silence.decision();
    }
    match pass.worker.desired_status {
        Some(DesiredStatus::Stopped) => {
            let stopping = pass.command(WorkerStatus::Stopping, ReasonCode::DesiredStopped);
            return keep_idle_check(pass, drain::forget(pass.worker, stopping));
        }
        Some(DesiredStatus::Terminated) => {
            return keep_idle_check(pass, pass.command(WorkerStatus::Terminating, ReasonCode::DesiredTerminated));
        }
        None | Some(DesiredStatus::Running) => {}
    }
    let instance = match locate(pass) {
        Err(waiting) => return waiting.decision(),
        Ok(Located::Gone(_) | Located::Nowhere) => return pass.gone(),
        Ok(Located::Here(instance)) => instance,
    };
    let decision = match instance.state {
        Ec2State::Running => serve(pass, instance),
        Ec2State::Stopping | Ec2State::Stopped => pass.observe_external_stop(instance),
        Ec2State::Pending | Ec2State::ShuttingDown | Ec2State::Terminated | Ec2State::Other => {
            pass.observe(instance, ReasonCode::Drift)
        }
    };
    adopt(pass, instance, decision)
}

fn serve(pass: Pass<'_>, instance: &Instance) -> Decision {
    let decision = note_address(pass.worker, instance, Decision::success(ReasonCode::InService));
    let decision = drain::forget(pass.worker, decision);
    let decision = report_metrics(pass, decision);
    let decision = reconcile_license(pass, instance, decision);
    match &pass.seen.idle {
        Answer::Found(report) => consider_scale_down(pass, report, count_idle_check(report, decision)),
        // A check that could not be made is no result, and above all not "idle".
        Answer::NotAsked | Answer::Absent | Answer::Unknown(_) => decision,
    }
}

/// A changed address is recorded; the licence step of this very pass uses it already.
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
        .changing(|changes| changes.addresses = Some(instance.into()))
}

/// Each source fails alone; what did answer is reported.
fn report_metrics(pass: Pass<'_>, decision: Decision) -> Decision {
    let (cloud, cml) = (pass.seen.cloud_metrics.found(), pass.seen.cml.found());
    if cloud.is_none() && cml.is_none() {
        return decision;
    }
    decision.doing(Effect::ReportMetrics { cloud: cloud.copied(), cml: cml.cloned() })
}

fn reconcile_license(pass: Pass<'_>, instance: &Instance, decision: Decision) -> Decision {
    // A token must never go to a stranger's address: only to the one EC2 showed in this pass.
    let Some(address) = instance.address() else { return decision };
    let because = |code: ReasonCode, decision: Decision| Decision { reason: Reason::new(code), ..decision };
    match license::next_step(
        &pass.worker.license,
        &pass.seen.registration,
        pass.worker.notes.license_attempt.as_deref(),
    ) {
        LicenseStep::Nothing => decision,
        LicenseStep::Acknowledge => because(ReasonCode::LicenseInProgress, decision)
            .outcome(Outcome::Requeue, Requeue::After(pass.policy.license_poll_interval))
            .doing(Effect::ReportLicense { report: LicenseReport::StartRegistration }),
        LicenseStep::Wait => because(ReasonCode::LicenseInProgress, decision)
            .outcome(Outcome::Requeue, Requeue::After(pass.policy.license_poll_interval)),
        LicenseStep::TryLater => {
            let delayed = |failure| Reason::failed(ReasonCode::LicenseDelayed, failure);
            let reason = pass.seen.registration.failure().map_or(ReasonCode::LicenseDelayed.into(), delayed);
            Decision { reason, ..decision }.outcome(Outcome::Retry, Requeue::Backoff)
        }
        LicenseStep::Finish(report) => because(ReasonCode::LicenseFinished, decision)
            .changing(|changes| {
                changes.license = Some(report);
                // The same token may be wanted once more one day.
                changes.license_attempt = pass.worker.notes.license_attempt.as_ref().map(|_| String::new());
            })
            .looking_again(Requeue::NextCycle),
        LicenseStep::Submit(submission) => {
            let decision = because(ReasonCode::LicenseSubmitted, decision)
                .outcome(Outcome::Requeue, Requeue::After(pass.policy.license_poll_interval));
            submit_license(pass, submission, address, decision)
        }
    }
}

/// CML first, then the record: a record that said "in progress" of something CML has never seen would take the
/// outcome of an earlier attempt for ours. What CML shows before is noted before anything, so that after a crash in
/// between it can be told whether CML has it.
fn submit_license(pass: Pass<'_>, submission: Submission, address: &str, decision: Decision) -> Decision {
    let start = match submission {
        Submission::Register | Submission::Reregister => LicenseReport::StartRegistration,
        Submission::Deregister => LicenseReport::StartDeregistration,
    };
    let decision = match submission {
        Submission::Register | Submission::Reregister => note_attempt(pass, decision),
        Submission::Deregister => decision,
    };
    let decision = decision.doing(Effect::SubmitLicense { submission, address: address.to_owned() });
    if pass.worker.license.operation_in_progress {
        decision
    } else {
        decision.doing(Effect::ReportLicense { report: start })
    }
}

fn note_attempt(pass: Pass<'_>, decision: Decision) -> Decision {
    let shown = pass.seen.registration.found().and_then(|status| status.attempted.as_deref());
    let attempted = license::attempt_note(shown, pass.worker.license.pending_token.as_ref());
    if pass.worker.notes.license_attempt.as_ref() == Some(&attempted) {
        return decision;
    }
    decision.doing(Effect::RecordLicenseAttempt { attempted })
}

/// The desired status changed while this very pass looked: most likely idle detection paused the worker. What it did
/// is counted and audited all the same.
fn keep_idle_check(pass: Pass<'_>, decision: Decision) -> Decision {
    match &pass.seen.idle {
        Answer::Found(report) if report.auto_pause_triggered => {
            consider_scale_down(pass, report, count_idle_check(report, decision))
        }
        Answer::Found(report) => count_idle_check(report, decision),
        Answer::NotAsked | Answer::Absent | Answer::Unknown(_) => decision,
    }
}

fn count_idle_check(report: &IdleReport, decision: Decision) -> Decision {
    let decision = if report.idle_check_performed { decision.counting(Counter::IdleDetection) } else { decision };
    if report.auto_pause_triggered { decision.counting(Counter::AutoPause) } else { decision }
}

fn consider_scale_down(pass: Pass<'_>, report: &IdleReport, decision: Decision) -> Decision {
    let policy = &pass.policy.scale_down;
    let Some(verdict) = scale_down::evaluate(report, &pass.seen.fleet, &pass.seen.sessions, policy, pass.now) else {
        return decision;
    };
    let audited = decision.auditing(Audit::ScaleDown(verdict));
    match verdict {
        ScaleDownVerdict::SkippedAutoPause
        | ScaleDownVerdict::SkippedNotIdle
        | ScaleDownVerdict::SkippedNotEligible
        | ScaleDownVerdict::SkippedMinWorkers
        | ScaleDownVerdict::SkippedCooldown
        | ScaleDownVerdict::SkippedUpcomingSession => audited,
        ScaleDownVerdict::StoppedImmediately => audited
            .ending_in(pass.worker.status, WorkerStatus::Stopping, ReasonCode::ScaleDownStop)
            .changing(|changes| {
                changes.desired_status = Some(DesiredStatus::Stopped);
                changes.scaled_down_at = Some(pass.now);
                // For the stopping handler: a session may have come in since its worker was seen empty.
                changes.drain_started_at = Change::Set(pass.now);
            }),
        ScaleDownVerdict::Drained => {
            let sessions = pass.seen.sessions.found().map_or(0, |sessions| drain::active(sessions));
            let draining = audited.ending_in(pass.worker.status, WorkerStatus::Draining, ReasonCode::ScaleDownDrain);
            drain::begin(draining, pass.now)
                .announcing(drain::started(sessions, drain::SCALE_DOWN, drain::CONTROLLER))
                .counting(Counter::ScaleDownDrain)
                .changing(|changes| changes.scaled_down_at = Some(pass.now))
        }
    }
}
