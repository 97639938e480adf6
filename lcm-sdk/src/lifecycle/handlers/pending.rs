//! Pending: a record that asks for an instance.

use super::HandlerContext;
use super::locate::{self, Located, NotLocated, adopt, locate};
use crate::lifecycle::decision::{Addresses, Change, Decision};
use crate::lifecycle::effect::{Effect, IfLaunchRefused};
use crate::lifecycle::event::Audit;
use crate::lifecycle::instance::{Image, Instance};
use crate::lifecycle::launch::LaunchPlan;
use crate::lifecycle::observation::Lookup;
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::reason::{Detail, Reason, ReasonCode};
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};

/// An instance the record names is observed, never launched again; one that carries the worker's tag is adopted;
/// only then is one launched.
pub(crate) fn handle(ctx: HandlerContext<'_>) -> Decision {
    if ctx.worker.ec2_instance_id.is_some() {
        return observe_recorded(ctx);
    }
    let instances: &[Instance] = match &ctx.observation.tagged {
        Lookup::NotRequested => return NotLocated::NotRequested.decision(),
        Lookup::Unknown(failure) => return NotLocated::Unknown(failure).decision(),
        Lookup::Found(instances) => instances,
        Lookup::Absent => &[],
    };
    if let Some(instance) = locate::live(instances) {
        return adopt(ctx, instance, take_over(ctx, instance, ReasonCode::Adopted));
    }
    match (ctx.worker.desired_status, &ctx.worker.notes.launch_plan) {
        (Some(DesiredStatus::Stopped | DesiredStatus::Terminated), Some(_)) => match locate(ctx) {
            Ok(Located::Here(_) | Located::Gone(_) | Located::Nowhere) => hold_back(ctx),
            // The instance of a launch that is under way would have no owner.
            Err(NotLocated::NotVisibleYet(left)) => {
                Decision::requeue(ReasonCode::LaunchInFlight).looking_again(Requeue::After(left))
            }
            Err(waiting) => waiting.decision(),
        },
        (Some(DesiredStatus::Stopped | DesiredStatus::Terminated), None) => hold_back(ctx),
        (None | Some(DesiredStatus::Running), Some(plan)) => resume(ctx, plan),
        (None | Some(DesiredStatus::Running), None) => launch(ctx, instances),
    }
}

fn observe_recorded(ctx: HandlerContext<'_>) -> Decision {
    match locate(ctx) {
        Err(waiting) => waiting.decision(),
        Ok(Located::Here(instance)) if instance.state == Ec2State::ShuttingDown => {
            Decision::requeue(Reason::new(ReasonCode::TerminateUnderWay))
        }
        Ok(Located::Here(instance)) => take_over(ctx, instance, ReasonCode::InstanceRecorded),
        Ok(Located::Gone(_) | Located::Nowhere) => match ctx.worker.desired_status {
            Some(DesiredStatus::Terminated) => ctx.command(WorkerStatus::Terminated, ReasonCode::NotWanted),
            None | Some(DesiredStatus::Running | DesiredStatus::Stopped) => {
                Decision::requeue(ReasonCode::LaunchDied).looking_again(Requeue::Now).changing(|changes| {
                    changes.ec2_instance_id = Change::Clear;
                    changes.addresses = Some(Addresses::default());
                    changes.launch_generation = Some(ctx.worker.notes.launch_generation.saturating_add(1));
                    changes.launch_plan = Change::Clear;
                })
            }
        },
    }
}

fn take_over(ctx: HandlerContext<'_>, instance: &Instance, code: ReasonCode) -> Decision {
    let reason = Reason::new(code).with(Detail::Ec2(instance.state));
    ctx.command(WorkerStatus::Provisioning, reason).changing(|changes| {
        changes.launch_plan = Change::Clear;
        changes.launched_at = instance.launched_at;
    })
}

/// Nobody wants it launched, and nothing was.
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
            return impossible(ctx, reason).outcome(Outcome::Retry, Requeue::Backoff);
        }
        (Some(_), Lookup::NotRequested) => return Decision::not_observed(),
        (Some(_), Lookup::Unknown(failure)) => return Decision::unanswered(ReasonCode::TemplateUnknown, failure),
        (Some(_), Lookup::Found(template)) => template,
    };
    let place = match ctx.policy.regions.resolve(ctx.worker) {
        Ok(place) => place,
        Err(error) => {
            let detail = Detail::Text(error.to_string().into());
            return impossible(ctx, Reason::new(ReasonCode::RegionNotConfigured).with(detail));
        }
    };
    let image = match &ctx.observation.images {
        Lookup::NotRequested => return Decision::not_observed(),
        Lookup::Unknown(failure) => return Decision::unanswered(ReasonCode::ImagesUnknown, failure),
        Lookup::Found(images) => Image::newest(images),
        Lookup::Absent => None,
    };
    let Some(image) = image else {
        let pattern = crate::lifecycle::launch::image_pattern(ctx.worker, template);
        let detail = Detail::Text(format!("{pattern} in {}", place.0).into());
        return impossible(ctx, Reason::new(ReasonCode::NoImage).with(detail));
    };
    let plan = LaunchPlan::new(ctx.worker, template, place, image, earlier);
    launched(ctx, &plan, IfLaunchRefused::Fail, ReasonCode::Launch)
}

/// Repeats a launch. The tag look-up of this pass has shown nothing; once the last call that may have launched is
/// older than the consistency window, that is proof enough to give the plan up if EC2 refuses it.
fn resume(ctx: HandlerContext<'_>, plan: &LaunchPlan) -> Decision {
    let if_refused = match locate(ctx) {
        Ok(Located::Nowhere | Located::Gone(_) | Located::Here(_)) => IfLaunchRefused::PlanAnew,
        Err(_) => IfLaunchRefused::KeepPlan,
    };
    launched(ctx, plan, if_refused, ReasonCode::LaunchResumed)
}

/// The plan is written with the time before every call, a repeated one too: whoever looks for the instance must know
/// from when on it may exist.
fn launched(ctx: HandlerContext<'_>, plan: &LaunchPlan, if_refused: IfLaunchRefused, code: ReasonCode) -> Decision {
    let plan = Box::new(plan.clone());
    ctx.command(WorkerStatus::Provisioning, code)
        .auditing(Audit::Provisioned)
        .changing(|changes| {
            changes.launch_plan = Change::Clear;
            changes.launch_generation = Some(plan.generation);
            changes.launched_at = Some(ctx.now);
            changes.aws_region = ctx.worker.aws_region.is_none().then(|| plan.region.clone());
        })
        .doing(Effect::RecordLaunchPlan { plan: plan.clone(), begun_at: ctx.now })
        .doing(Effect::LaunchInstance { plan, if_refused })
}

fn impossible(ctx: HandlerContext<'_>, reason: Reason) -> Decision {
    ctx.command(WorkerStatus::Failed, reason).auditing(Audit::ProvisionFailed)
}
