//! Pending: a record that asks for an instance.

use super::Pass;
use super::locate::{self, Located, NotLocated, adopt, locate};
use crate::lifecycle::decision::{Addresses, Change, Decision};
use crate::lifecycle::effect::{Effect, IfLaunchRefused};
use crate::lifecycle::event::Audit;
use crate::lifecycle::instance::{Image, Instance};
use crate::lifecycle::launch::LaunchPlan;
use crate::lifecycle::observation::Answer;
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::reason::{Detail, Reason, ReasonCode};
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};

/// An instance the record names is observed, never launched again; one that carries the worker's tag is adopted;
/// only then is one launched.
pub(crate) fn handle(pass: Pass<'_>) -> Decision {
    if pass.worker.instance_id.is_some() {
        return observe_recorded(pass);
    }
    let instances: &[Instance] = match &pass.seen.tagged {
        Answer::NotAsked => return NotLocated::NotAsked.decision(),
        Answer::Unknown(failure) => return NotLocated::Unknown(failure).decision(),
        Answer::Found(instances) => instances,
        Answer::Absent => &[],
    };
    if let Some(instance) = locate::live(instances) {
        return adopt(pass, instance, take_over(pass, instance, ReasonCode::Adopted));
    }
    match (pass.worker.desired_status, &pass.worker.notes.launch_plan) {
        (Some(DesiredStatus::Stopped | DesiredStatus::Terminated), Some(_)) => match locate(pass) {
            Ok(Located::Here(_) | Located::Gone(_) | Located::Nowhere) => hold_back(pass),
            // The instance of a launch that is under way would have no owner.
            Err(NotLocated::NotVisibleYet(left)) => {
                Decision::requeue(ReasonCode::LaunchInFlight).looking_again(Requeue::After(left))
            }
            Err(waiting) => waiting.decision(),
        },
        (Some(DesiredStatus::Stopped | DesiredStatus::Terminated), None) => hold_back(pass),
        (None | Some(DesiredStatus::Running), Some(plan)) => resume(pass, plan),
        (None | Some(DesiredStatus::Running), None) => launch(pass, instances),
    }
}

fn observe_recorded(pass: Pass<'_>) -> Decision {
    match locate(pass) {
        Err(waiting) => waiting.decision(),
        Ok(Located::Here(instance)) if instance.state == Ec2State::ShuttingDown => {
            Decision::requeue(Reason::new(ReasonCode::TerminateUnderWay))
        }
        Ok(Located::Here(instance)) => take_over(pass, instance, ReasonCode::InstanceRecorded),
        Ok(Located::Gone(_) | Located::Nowhere) => match pass.worker.desired_status {
            Some(DesiredStatus::Terminated) => pass.command(WorkerStatus::Terminated, ReasonCode::NotWanted),
            None | Some(DesiredStatus::Running | DesiredStatus::Stopped) => {
                Decision::requeue(ReasonCode::LaunchDied).looking_again(Requeue::Now).changing(|changes| {
                    changes.instance_id = Change::Clear;
                    changes.addresses = Some(Addresses::default());
                    changes.launch_generation = Some(pass.worker.notes.launch_generation.saturating_add(1));
                    changes.launch_plan = Change::Clear;
                })
            }
        },
    }
}

fn take_over(pass: Pass<'_>, instance: &Instance, code: ReasonCode) -> Decision {
    let reason = Reason::new(code).with(Detail::Ec2(instance.state));
    pass.command(WorkerStatus::Provisioning, reason).changing(|changes| {
        changes.launch_plan = Change::Clear;
        changes.launched_at = instance.launched_at;
    })
}

/// Nobody wants it launched, and nothing was.
fn hold_back(pass: Pass<'_>) -> Decision {
    match pass.worker.desired_status {
        Some(DesiredStatus::Terminated) => pass.command(WorkerStatus::Terminated, ReasonCode::NotWanted),
        None | Some(DesiredStatus::Running | DesiredStatus::Stopped) => Decision::skip(ReasonCode::HeldBack),
    }
}

fn launch(pass: Pass<'_>, earlier: &[Instance]) -> Decision {
    let template = match (&pass.worker.template_name, &pass.seen.template) {
        (None, _) | (Some(_), Answer::Absent) => {
            let name = pass.worker.template_name.as_deref().unwrap_or("none named");
            let reason = Reason::new(ReasonCode::TemplateMissing).with(Detail::Text(name.into()));
            return impossible(pass, reason).outcome(Outcome::Retry, Requeue::Backoff);
        }
        (Some(_), Answer::NotAsked) => return Decision::not_observed(),
        (Some(_), Answer::Unknown(failure)) => return Decision::unanswered(ReasonCode::TemplateUnknown, failure),
        (Some(_), Answer::Found(template)) => template,
    };
    let place = match pass.policy.regions.resolve(pass.worker) {
        Ok(place) => place,
        Err(error) => {
            let detail = Detail::Text(error.to_string().into());
            return impossible(pass, Reason::new(ReasonCode::RegionNotConfigured).with(detail));
        }
    };
    let image = match &pass.seen.images {
        Answer::NotAsked => return Decision::not_observed(),
        Answer::Unknown(failure) => return Decision::unanswered(ReasonCode::ImagesUnknown, failure),
        Answer::Found(images) => Image::newest(images),
        Answer::Absent => None,
    };
    let Some(image) = image else {
        let pattern = crate::lifecycle::launch::image_pattern(pass.worker, template);
        let detail = Detail::Text(format!("{pattern} in {}", place.0).into());
        return impossible(pass, Reason::new(ReasonCode::NoImage).with(detail));
    };
    let plan = LaunchPlan::new(pass.worker, template, place, image, earlier);
    launched(pass, &plan, IfLaunchRefused::Fail, ReasonCode::Launch)
}

/// Repeats a launch. The tag look-up of this pass has shown nothing; once the last call that may have launched is
/// older than the consistency window, that is proof enough to give the plan up if EC2 refuses it.
fn resume(pass: Pass<'_>, plan: &LaunchPlan) -> Decision {
    let if_refused = match locate(pass) {
        Ok(Located::Nowhere | Located::Gone(_) | Located::Here(_)) => IfLaunchRefused::PlanAnew,
        Err(_) => IfLaunchRefused::KeepPlan,
    };
    launched(pass, plan, if_refused, ReasonCode::LaunchResumed)
}

/// The plan is written with the time before every call, a repeated one too: whoever looks for the instance must know
/// from when on it may exist.
fn launched(pass: Pass<'_>, plan: &LaunchPlan, if_refused: IfLaunchRefused, code: ReasonCode) -> Decision {
    let plan = Box::new(plan.clone());
    pass.command(WorkerStatus::Provisioning, code)
        .auditing(Audit::Provisioned)
        .changing(|changes| {
            changes.launch_plan = Change::Clear;
            changes.launch_generation = Some(plan.generation);
            changes.launched_at = Some(pass.now);
            changes.aws_region = pass.worker.aws_region.is_none().then(|| plan.region.clone());
        })
        .doing(Effect::RecordLaunchPlan { plan: plan.clone(), begun_at: pass.now })
        .doing(Effect::LaunchInstance { plan, if_refused })
}

fn impossible(pass: Pass<'_>, reason: Reason) -> Decision {
    pass.command(WorkerStatus::Failed, reason).auditing(Audit::ProvisionFailed)
}
