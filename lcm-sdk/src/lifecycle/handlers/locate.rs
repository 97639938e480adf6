//! Finding a worker's instance, and what not finding it means.

use std::time::Duration;

use super::HandlerContext;
use crate::lifecycle::decision::{Change, Decision};
use crate::lifecycle::event::Event;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::observation::Lookup;
use crate::lifecycle::outcome::Requeue;
use crate::lifecycle::reason::{Detail, Reason, ReasonCode};
use crate::lifecycle::status::Ec2State;
use crate::lifecycle::time;

/// Where a worker's instance is.
pub(crate) enum Located<'a> {
    /// EC2 shows it.
    Here(&'a Instance),
    /// It is gone for good; EC2 may still show the remains.
    Gone(Option<&'a Instance>),
    /// The record names none, and none carries the worker's tag.
    Nowhere,
}

/// Nothing may be concluded about the instance in this ctx.
pub(crate) enum NotLocated<'a> {
    NotRequested,
    Unknown(&'a CallFailure),
    NotVisibleYet(Duration),
    AgeUnknown,
}

impl NotLocated<'_> {
    /// Wait or retry; the status stays.
    pub(crate) fn decision(&self) -> Decision {
        match self {
            Self::NotRequested => Decision::not_observed(),
            Self::Unknown(failure) => Decision::unanswered(ReasonCode::Ec2Unknown, failure),
            Self::NotVisibleYet(left) => {
                Decision::requeue(ReasonCode::NotVisibleYet).looking_again(Requeue::After(*left))
            }
            Self::AgeUnknown => Decision::retry(ReasonCode::LaunchTimeUnknown),
        }
    }
}

/// Finds the worker's instance by the id on the record, or by its tag if the record names none: a server may save
/// status and id in two writes, and a crash may fall between them.
pub(crate) fn locate<'a>(ctx: HandlerContext<'a>) -> Result<Located<'a>, NotLocated<'a>> {
    match &ctx.worker.ec2_instance_id {
        Some(id) => match &ctx.observation.instance {
            Lookup::NotRequested => Err(NotLocated::NotRequested),
            Lookup::Unknown(failure) => Err(NotLocated::Unknown(failure)),
            // An answer about another instance is no answer.
            Lookup::Found(instance) if instance.id != *id => Err(NotLocated::NotRequested),
            Lookup::Found(instance) if instance.state == Ec2State::Terminated => Ok(Located::Gone(Some(instance))),
            Lookup::Found(instance) => Ok(Located::Here(instance)),
            Lookup::Absent => absence_counts(ctx).map(|()| Located::Gone(None)),
        },
        None => match &ctx.observation.tagged {
            Lookup::NotRequested => Err(NotLocated::NotRequested),
            Lookup::Unknown(failure) => Err(NotLocated::Unknown(failure)),
            Lookup::Found(instances) => match live(instances) {
                Some(instance) => Ok(Located::Here(instance)),
                None => absence_counts(ctx).map(|()| Located::Nowhere),
            },
            Lookup::Absent => absence_counts(ctx).map(|()| Located::Nowhere),
        },
    }
}

/// The failure, if EC2 was asked about the worker's instance and gave no answer. Handlers that could act without
/// the answer check this first: while EC2 is silent, no status changes.
pub(crate) fn unanswered<'a>(ctx: HandlerContext<'a>) -> Option<NotLocated<'a>> {
    let failure = match ctx.worker.ec2_instance_id {
        Some(_) => ctx.observation.instance.failure(),
        None => ctx.observation.tagged.failure(),
    };
    failure.map(NotLocated::Unknown)
}

/// Whether "EC2 shows none" means "there is none": only once the launch is older than the consistency window.
fn absence_counts<'a>(ctx: HandlerContext<'a>) -> Result<(), NotLocated<'a>> {
    let Some(launched) = ctx.worker.launch_time() else { return Err(NotLocated::AgeUnknown) };
    match ctx.policy.consistency_window.checked_sub(time::age(launched, ctx.now)) {
        Some(left) if !left.is_zero() => Err(NotLocated::NotVisibleYet(left)),
        Some(_) | None => Ok(()),
    }
}

/// Of the instances that carry a worker's tag, the live one; of several, the one launched first, so that every
/// controller picks the same.
pub(crate) fn live(instances: &[Instance]) -> Option<&Instance> {
    instances
        .iter()
        .filter(|instance| instance.state.is_live())
        .min_by(|a, b| (a.launched_at, &a.id).cmp(&(b.launched_at, &b.id)))
}

/// Writes an instance that was found by its tag to the record unless that names it already, and reports every other
/// live one.
pub(crate) fn adopt(ctx: HandlerContext<'_>, instance: &Instance, decision: Decision) -> Decision {
    // The usual case, on the hot path of every ctx: the record names it and nobody has looked for others.
    if ctx.observation.tagged.is_not_requested() && ctx.worker.ec2_instance_id.as_ref() == Some(&instance.id) {
        return decision;
    }
    let decision = match &ctx.worker.ec2_instance_id {
        Some(id) if *id == instance.id => decision,
        Some(_) | None => decision.changing(|changes| {
            changes.ec2_instance_id = Change::Set(instance.id.clone());
            changes.launched_at = changes.launched_at.or(instance.launched_at);
            if ctx.worker.aws_region.is_none() {
                changes.aws_region = ctx.policy.regions.region_of(ctx.worker).map(str::to_owned);
            }
        }),
    };
    let others = ctx.observation.tagged.found().into_iter().flatten();
    others
        .filter(|other| other.state.is_live() && other.id != instance.id)
        .fold(decision, |decision, other| decision.announcing(Event::DuplicateInstance { extra: other.id.clone() }))
}

/// What EC2 says about why an instance ended.
pub(crate) fn termination_reason(code: ReasonCode, instance: Option<&Instance>) -> Reason {
    match instance.and_then(|instance| instance.state_reason.as_deref()) {
        Some(text) => Reason::new(code).with(Detail::Text(text.into())),
        None => Reason::new(code),
    }
}
