//! Finding a worker's instance, and what not finding it means.

use std::time::Duration;

use super::Pass;
use crate::lifecycle::decision::{Change, Decision};
use crate::lifecycle::event::Event;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::observation::Answer;
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

/// Nothing may be concluded about the instance in this pass.
pub(crate) enum NotLocated<'a> {
    NotAsked,
    Unknown(&'a CallFailure),
    NotVisibleYet(Duration),
    AgeUnknown,
}

impl NotLocated<'_> {
    /// Wait or retry; the status stays.
    pub(crate) fn decision(&self) -> Decision {
        match self {
            Self::NotAsked => Decision::not_observed(),
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
pub(crate) fn locate<'a>(pass: Pass<'a>) -> Result<Located<'a>, NotLocated<'a>> {
    match &pass.worker.instance_id {
        Some(id) => match &pass.seen.instance {
            Answer::NotAsked => Err(NotLocated::NotAsked),
            Answer::Unknown(failure) => Err(NotLocated::Unknown(failure)),
            // An answer about another instance is no answer.
            Answer::Found(instance) if instance.id != *id => Err(NotLocated::NotAsked),
            Answer::Found(instance) if instance.state == Ec2State::Terminated => Ok(Located::Gone(Some(instance))),
            Answer::Found(instance) => Ok(Located::Here(instance)),
            Answer::Absent => absence_counts(pass).map(|()| Located::Gone(None)),
        },
        None => match &pass.seen.tagged {
            Answer::NotAsked => Err(NotLocated::NotAsked),
            Answer::Unknown(failure) => Err(NotLocated::Unknown(failure)),
            Answer::Found(instances) => match live(instances) {
                Some(instance) => Ok(Located::Here(instance)),
                None => absence_counts(pass).map(|()| Located::Nowhere),
            },
            Answer::Absent => absence_counts(pass).map(|()| Located::Nowhere),
        },
    }
}

/// The failure, if EC2 was asked about the worker's instance and gave no answer. Handlers that could act without
/// the answer check this first: while EC2 is silent, no status changes.
pub(crate) fn silence<'a>(pass: Pass<'a>) -> Option<NotLocated<'a>> {
    let failure = match pass.worker.instance_id {
        Some(_) => pass.seen.instance.failure(),
        None => pass.seen.tagged.failure(),
    };
    failure.map(NotLocated::Unknown)
}

/// Whether "EC2 shows none" means "there is none": only once the launch is older than the consistency window.
fn absence_counts<'a>(pass: Pass<'a>) -> Result<(), NotLocated<'a>> {
    let Some(launched) = pass.worker.launch_time() else { return Err(NotLocated::AgeUnknown) };
    match pass.policy.consistency_window.checked_sub(time::age(launched, pass.now)) {
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
pub(crate) fn adopt(pass: Pass<'_>, instance: &Instance, decision: Decision) -> Decision {
    // The usual case, on the hot path of every pass: the record names it and nobody has looked for others.
    if pass.seen.tagged.is_not_asked() && pass.worker.instance_id.as_ref() == Some(&instance.id) {
        return decision;
    }
    let decision = match &pass.worker.instance_id {
        Some(id) if *id == instance.id => decision,
        Some(_) | None => decision.changing(|changes| {
            changes.instance_id = Change::Set(instance.id.clone());
            changes.launched_at = changes.launched_at.or(instance.launched_at);
            if pass.worker.aws_region.is_none() {
                changes.aws_region = pass.policy.regions.region_of(pass.worker).map(str::to_owned);
            }
        }),
    };
    let others = pass.seen.tagged.found().into_iter().flatten();
    others
        .filter(|other| other.state.is_live() && other.id != instance.id)
        .fold(decision, |decision, other| decision.announcing(Event::DuplicateInstance { extra: other.id.clone() }))
}

/// What EC2 says about why an instance ended.
pub(crate) fn epitaph(code: ReasonCode, instance: Option<&Instance>) -> Reason {
    match instance.and_then(|instance| instance.state_reason.as_deref()) {
        Some(text) => Reason::new(code).with(Detail::Text(text.into())),
        None => Reason::new(code),
    }
}
