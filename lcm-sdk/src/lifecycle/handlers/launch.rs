//! Brings a worker up: pending (launch), provisioning (launched), starting (without an address, or started again).

use crate::lifecycle::context::{HandlerContext, Located, NotLocated};
use crate::lifecycle::counters::Counter;
use crate::lifecycle::decision::{Addresses, Change, Decision};
use crate::lifecycle::effect::{Effect, IfLaunchRefused};
use crate::lifecycle::event::Audit;
use crate::lifecycle::instance::{Image, Instance, first_live};
use crate::lifecycle::launch::{LaunchPlan, image_pattern, instance_type, unconfigured_region};
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::reason::{Detail, Reason, ReasonCode};
use crate::lifecycle::region::RegionError;
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};
use crate::lifecycle::time;

/// Pending: the record wants an instance. One that the record names is followed, never launched again; one that carries
/// the worker's tag is adopted; only without either one is launched. The launch after one that ended overwrites its id,
/// because a server may not let it be cleared.
pub(super) fn pending(ctx: HandlerContext<'_>) -> Decision {
    if ctx.worker.ec2_instance_id.is_some() {
        match ctx.locate() {
            Err(waiting) => return waiting.decision(),
            Ok(Located::Here(instance)) => return follow_recorded(ctx, instance),
            Ok(Located::Gone(_) | Located::Nowhere) => {}
        }
    }
    let instances: &[Instance] = match &ctx.observation.tagged {
        Lookup::NotRequested => {
            return match unconfigured_region(ctx.worker, ctx.policy) {
                Some(error) => fail_without_region(ctx, &error),
                None => NotLocated::NotRequested.decision(),
            };
        }
        Lookup::Unknown(failure) => return NotLocated::Unknown(failure).decision(),
        Lookup::Found(instances) => instances,
        Lookup::Absent => &[],
    };
    if let Some(instance) = first_live(instances) {
        return ctx.adopt(instance, take_over(ctx, instance, ReasonCode::Adopted));
    }
    match (ctx.worker.desired_status, &ctx.worker.notes.launch_plan) {
        (Some(DesiredStatus::Stopped | DesiredStatus::Terminated), Some(_)) => match ctx.search_is_conclusive() {
            Ok(()) => hold_back(ctx),
            // A launch under way may still produce an instance, which would have no owner.
            Err(NotLocated::NotVisibleYet(left)) => {
                Decision::requeue(ReasonCode::LaunchInFlight).with_requeue(Requeue::After(left))
            }
            Err(waiting) => waiting.decision(),
        },
        (Some(DesiredStatus::Stopped | DesiredStatus::Terminated), None) => hold_back(ctx),
        (None | Some(DesiredStatus::Running), Some(plan)) => resume(ctx, plan),
        (None | Some(DesiredStatus::Running), None) => launch(ctx, instances),
    }
}

fn follow_recorded(ctx: HandlerContext<'_>, instance: &Instance) -> Decision {
    match instance.state {
        Ec2State::ShuttingDown => Decision::requeue(ReasonCode::TerminateUnderWay),
        Ec2State::Pending
        | Ec2State::Running
        | Ec2State::Stopping
        | Ec2State::Stopped
        | Ec2State::Terminated
        | Ec2State::Other => take_over(ctx, instance, ReasonCode::InstanceRecorded),
    }
}

fn take_over(ctx: HandlerContext<'_>, instance: &Instance, code: ReasonCode) -> Decision {
    let reason = Reason::new(code).with(Detail::Ec2(instance.state));
    ctx.command(WorkerStatus::Provisioning, reason).with_changes(|changes| {
        changes.launch_plan = Change::Clear;
        changes.launched_at = instance.launched_at;
    })
}

/// The desired status rules a launch out, and nothing was launched.
fn hold_back(ctx: HandlerContext<'_>) -> Decision {
    match ctx.worker.desired_status {
        Some(DesiredStatus::Terminated) => ctx.command(WorkerStatus::Terminated, ReasonCode::NotWanted),
        None | Some(DesiredStatus::Running | DesiredStatus::Stopped) => Decision::skip(ReasonCode::HeldBack),
    }
}

fn launch(ctx: HandlerContext<'_>, earlier: &[Instance]) -> Decision {
    let template = match (&ctx.worker.template_name, &ctx.observation.template) {
        (None, _) | (Some(_), Lookup::Absent) => {
            let name = ctx.worker.template_name.as_deref().unwrap_or("none named");
            let reason = Reason::new(ReasonCode::TemplateMissing).with(Detail::Text(name.into()));
            return fail(ctx, reason).with_outcome(Outcome::Retry, Requeue::Backoff);
        }
        (Some(_), Lookup::NotRequested) => return Decision::not_observed(),
        (Some(_), Lookup::Unknown(failure)) => return Decision::unanswered(ReasonCode::TemplateUnknown, failure),
        (Some(_), Lookup::Found(template)) => template,
    };
    let Some(instance_type) = instance_type(ctx.worker, template) else {
        let detail = Detail::Text(format!("template {}", template.name).into());
        return fail(ctx, Reason::new(ReasonCode::InstanceTypeMissing).with(detail));
    };
    let place = match ctx.policy.regions.resolve(ctx.worker) {
        Ok(place) => place,
        Err(error) => return fail_without_region(ctx, &error),
    };
    let image = match &ctx.observation.images {
        Lookup::NotRequested => return Decision::not_observed(),
        Lookup::Unknown(failure) => return Decision::unanswered(ReasonCode::ImagesUnknown, failure),
        Lookup::Found(images) => Image::newest(images),
        Lookup::Absent => None,
    };
    let doubt = match ctx.launch_doubt() {
        Ok(doubt) => doubt,
        Err(waiting) => return waiting.decision(),
    };
    let Some(image) = image else {
        // Another account shows none either.
        return match doubt {
            _ if ctx.observation.place.is_not_requested() => Decision::not_observed(),
            Some(doubt) => Decision::retry(doubt.reason()),
            None => {
                let pattern = image_pattern(ctx.worker, template);
                let detail = Detail::Text(format!("{pattern} in {}", place.0).into());
                fail(ctx, Reason::new(ReasonCode::NoImage).with(detail))
            }
        };
    };
    let plan = LaunchPlan::new(ctx.worker, template, instance_type, place, image, earlier);
    let if_refused = if doubt.is_some() { IfLaunchRefused::DoubtRegion } else { IfLaunchRefused::Fail };
    send_launch(ctx, &plan, if_refused, ReasonCode::Launch)
}

/// Repeats a launch whose outcome is unknown. The search by tag showed nothing; once the last call that may have
/// launched is older than the consistency window, a refusal by EC2 is enough to give the plan up.
fn resume(ctx: HandlerContext<'_>, plan: &LaunchPlan) -> Decision {
    // With the credentials of another account, the same bytes would launch a second instance.
    if let Err(waiting) = ctx.launch_doubt() {
        return waiting.decision();
    }
    let if_refused = match ctx.search_is_conclusive() {
        Ok(()) => IfLaunchRefused::PlanAnew,
        Err(_) => IfLaunchRefused::KeepPlan,
    };
    send_launch(ctx, plan, if_refused, ReasonCode::LaunchResumed)
}

/// Plan and time are written before every call, a repeated one too: a later search for the instance must know from when
/// on it may exist. The time is read when the effects are applied, because a decision may be much older than the call.
fn send_launch(ctx: HandlerContext<'_>, plan: &LaunchPlan, if_refused: IfLaunchRefused, code: ReasonCode) -> Decision {
    let plan = Box::new(plan.clone());
    ctx.command(WorkerStatus::Provisioning, code)
        .with_audit(Audit::Provisioned)
        .with_changes(|changes| {
            changes.launch_plan = Change::Clear;
            changes.launch_generation = Some(plan.generation);
            changes.aws_region = ctx.worker.aws_region.is_none().then(|| plan.region.clone());
            // Those of an instance that ended.
            changes.addresses = ctx.worker.address().map(|_| Addresses::default());
        })
        .with_effect(Effect::RecordLaunchPlan { plan: plan.clone() })
        .with_effect(Effect::LaunchInstance { plan, if_refused })
}

fn fail_without_region(ctx: HandlerContext<'_>, error: &RegionError) -> Decision {
    let detail = Detail::Text(error.to_string().into());
    fail(ctx, Reason::new(ReasonCode::RegionNotConfigured).with(detail))
}

fn fail(ctx: HandlerContext<'_>, reason: Reason) -> Decision {
    ctx.command(WorkerStatus::Failed, reason).with_audit(Audit::ProvisionFailed)
}

/// Provisioning: launched. Waits until the instance runs and has an address; fails the worker when the instance ended
/// or took too long.
pub(super) fn provisioning(ctx: HandlerContext<'_>) -> Decision {
    let instance = match ctx.locate() {
        Err(waiting) => return waiting.decision(),
        Ok(Located::Gone(remains)) => return launch_ended(ctx, remains),
        Ok(Located::Nowhere) => {
            let decision = match ctx.observation.tagged.found().and_then(|dead| dead.last()) {
                Some(dead) => launch_ended(ctx, Some(dead)),
                None => ctx.command(WorkerStatus::Failed, ReasonCode::InstanceNeverAppeared),
            };
            return decision.with_outcome(Outcome::Retry, Requeue::Backoff);
        }
        Ok(Located::Here(instance)) => instance,
    };
    let decision = match instance.state {
        Ec2State::Running if instance.address().is_some() => up(ctx, instance),
        Ec2State::Running => ctx.command(WorkerStatus::Starting, ReasonCode::AwaitingAddress),
        Ec2State::Pending if ctx.startup_timed_out(instance) => {
            ctx.command(WorkerStatus::Failed, ReasonCode::ProvisioningTimeout)
        }
        Ec2State::Pending => Decision::requeue(ReasonCode::ComingUp),
        Ec2State::ShuttingDown | Ec2State::Terminated => launch_ended(ctx, Some(instance)),
        // Stopped from outside before it was seen running: the desired status decides from here, instead of endless retries.
        Ec2State::Stopped => ctx.follow_external_stop(instance),
        Ec2State::Stopping | Ec2State::Other => ctx.unexpected(instance.state),
    };
    ctx.adopt(instance, decision)
}

/// Running with an address: in service, and its addresses are recorded in the same write.
fn up(ctx: HandlerContext<'_>, instance: &Instance) -> Decision {
    ctx.command(WorkerStatus::Running, ReasonCode::Up)
        .with_counter(Counter::Started)
        .with_changes(|changes| changes.addresses = Some(instance.into()))
}

fn launch_ended(ctx: HandlerContext<'_>, remains: Option<&Instance>) -> Decision {
    let reason = match remains.and_then(|instance| instance.state_reason.as_deref()) {
        Some(text) => Reason::new(ReasonCode::LaunchEnded).with(Detail::Text(text.into())),
        None => Reason::new(ReasonCode::LaunchEnded),
    };
    ctx.command(WorkerStatus::Failed, reason).with_changes(|changes| {
        changes.launch_generation = Some(ctx.worker.notes.launch_generation.saturating_add(1));
        changes.launch_plan = Change::Clear;
    })
}

/// Starting: up without an address, or coming back from stopped. Waits until the instance runs and has an address, and
/// starts it again if it fell back to stopped.
pub(super) fn starting(ctx: HandlerContext<'_>) -> Decision {
    let instance = match ctx.locate() {
        Err(waiting) => return waiting.decision(),
        Ok(Located::Gone(_)) => return ctx.gone(),
        Ok(Located::Nowhere) => return ctx.command(WorkerStatus::Failed, ReasonCode::InstanceNeverAppeared),
        Ok(Located::Here(instance)) => instance,
    };
    let decision = match instance.state {
        Ec2State::Running if instance.address().is_some() => up(ctx, instance),
        Ec2State::Running | Ec2State::Pending if ctx.startup_timed_out(instance) => {
            ctx.command(WorkerStatus::Failed, ReasonCode::ProvisioningTimeout)
        }
        Ec2State::Running => Decision::requeue(ReasonCode::AwaitingAddress),
        Ec2State::Pending | Ec2State::Stopping => Decision::requeue(ReasonCode::ComingUp),
        Ec2State::Stopped => match ctx.worker.desired_status {
            // Not wanted up any more: starting it would only be followed by a stop.
            Some(DesiredStatus::Stopped | DesiredStatus::Terminated) => ctx.follow(instance, ReasonCode::Drift),
            None | Some(DesiredStatus::Running) if keeps_falling_back(ctx, instance) => {
                ctx.command(WorkerStatus::Failed, ReasonCode::ProvisioningTimeout)
            }
            None | Some(DesiredStatus::Running) => Decision::requeue(ReasonCode::StartRequested)
                .with_effect(Effect::StartInstance { instance: instance.id.clone() }),
        },
        Ec2State::ShuttingDown | Ec2State::Terminated => ctx.follow(instance, ReasonCode::Drift),
        Ec2State::Other => ctx.unexpected(instance.state),
    };
    ctx.adopt(instance, decision)
}

/// Whether repeated starts have exceeded the provisioning timeout. EC2 shows the latest start, the record the first; a
/// controller that was only down sees no distance between the two.
fn keeps_falling_back(ctx: HandlerContext<'_>, instance: &Instance) -> bool {
    match (ctx.worker.start_initiated_at.max(ctx.worker.notes.launched_at), instance.launched_at) {
        (Some(first), Some(latest)) => time::age(first, latest) >= ctx.policy.provisioning_timeout,
        (None, _) | (_, None) => false,
    }
}
