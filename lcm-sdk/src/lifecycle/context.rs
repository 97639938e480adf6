//! Input shared by the handlers, and the lookup of the worker's instance in it.

use std::time::Duration;

use super::decision::{Addresses, Change, Decision};
use super::event::Event;
use super::failure::CallFailure;
use super::instance::{Instance, first_live};
use super::lookup::Lookup;
use super::observation::Observation;
use super::outcome::Requeue;
use super::policy::{ExternalStopPolicy, Policy};
use super::reason::{Detail, Reason, ReasonCode};
use super::status::{DesiredStatus, Ec2State, WorkerStatus};
use super::time::{self, Timestamp};
use super::worker::Worker;

/// Input of a handler.
#[derive(Clone, Copy)]
pub(crate) struct HandlerContext<'a> {
    pub(crate) worker: &'a Worker,
    pub(crate) observation: &'a Observation,
    pub(crate) policy: &'a Policy,
    pub(crate) now: Timestamp,
}

/// Result of looking for a worker's instance.
pub(crate) enum Located<'a> {
    /// EC2 shows it.
    Here(&'a Instance),
    /// It is gone for good; EC2 may still show it as terminated.
    Gone(Option<&'a Instance>),
    /// The record names none, and none carries the worker's tag.
    Nowhere,
}

/// Why no conclusion about the instance is possible in this reconcile.
pub(crate) enum NotLocated<'a> {
    NotRequested,
    Unknown(&'a CallFailure),
    NotVisibleYet(Duration),
    AgeUnknown,
}

impl NotLocated<'_> {
    /// Waits or retries; the status stays.
    pub(crate) fn decision(&self) -> Decision {
        match self {
            Self::NotRequested => Decision::not_observed(),
            Self::Unknown(failure) => Decision::unanswered(ReasonCode::Ec2Unknown, failure),
            Self::NotVisibleYet(left) => {
                Decision::requeue(ReasonCode::NotVisibleYet).with_requeue(Requeue::After(*left))
            }
            Self::AgeUnknown => Decision::retry(ReasonCode::LaunchTimeUnknown),
        }
    }
}

impl<'a> HandlerContext<'a> {
    /// Finds the worker's instance by the id on the record, or by its tag if the record names none: a server may save
    /// status and id in two writes, and a crash may fall between them.
    pub(crate) fn locate(self) -> Result<Located<'a>, NotLocated<'a>> {
        match &self.worker.ec2_instance_id {
            Some(id) => match &self.observation.instance {
                Lookup::NotRequested => Err(NotLocated::NotRequested),
                Lookup::Unknown(failure) => Err(NotLocated::Unknown(failure)),
                // A response about another instance does not apply to this one.
                Lookup::Found(instance) if instance.id != *id => Err(NotLocated::NotRequested),
                Lookup::Found(instance) if instance.state == Ec2State::Terminated => Ok(Located::Gone(Some(instance))),
                Lookup::Found(instance) => Ok(Located::Here(instance)),
                Lookup::Absent => self.absence_is_conclusive().map(|()| Located::Gone(None)),
            },
            None => match &self.observation.tagged {
                Lookup::NotRequested => Err(NotLocated::NotRequested),
                Lookup::Unknown(failure) => Err(NotLocated::Unknown(failure)),
                Lookup::Found(instances) => match first_live(instances) {
                    Some(instance) => Ok(Located::Here(instance)),
                    None => self.absence_is_conclusive().map(|()| Located::Nowhere),
                },
                Lookup::Absent => self.absence_is_conclusive().map(|()| Located::Nowhere),
            },
        }
    }

    /// The failure, if a call to EC2 about the worker's instance failed. Handlers that could act without the
    /// response check this first: without a response from EC2 no status changes.
    pub(crate) fn ec2_failure(self) -> Option<NotLocated<'a>> {
        let failure = match self.worker.ec2_instance_id {
            Some(_) => self.observation.instance.failure(),
            None => self.observation.tagged.failure(),
        };
        failure.map(NotLocated::Unknown)
    }

    /// Whether "EC2 shows none" means "there is none": only once the launch is older than the consistency window.
    fn absence_is_conclusive(self) -> Result<(), NotLocated<'a>> {
        let Some(launched) = self.worker.launch_time() else { return Err(NotLocated::AgeUnknown) };
        match self.policy.consistency_window.checked_sub(time::age(launched, self.now)) {
            Some(left) if !left.is_zero() => Err(NotLocated::NotVisibleYet(left)),
            Some(_) | None => Ok(()),
        }
    }
}

impl HandlerContext<'_> {
    /// A commanded transition.
    pub(crate) fn command(self, to: WorkerStatus, reason: impl Into<Reason>) -> Decision {
        Decision::command(self.worker.status, to, reason)
    }

    /// An observed transition: the record follows EC2. Entering stopped clears the addresses, which EC2 takes back.
    pub(crate) fn follow(self, instance: &Instance, code: ReasonCode) -> Decision {
        let to = instance.state.worker_status();
        let decision = Decision::follow(self.worker.status, to, Reason::new(code).with(Detail::Ec2(instance.state)));
        match instance.state {
            Ec2State::Stopped => decision.with_changes(|changes| changes.addresses = Some(Addresses::default())),
            Ec2State::Running => decision.with_changes(|changes| changes.addresses = Some(instance.into())),
            Ec2State::Pending
            | Ec2State::Stopping
            | Ec2State::ShuttingDown
            | Ec2State::Terminated
            | Ec2State::Other => decision,
        }
    }

    /// [`follow`](Self::follow) for a stop that LCM did not request. The policy decides whether it becomes the desired
    /// status.
    pub(crate) fn follow_external_stop(self, instance: &Instance) -> Decision {
        let wants_it_running = self.worker.desired_status == Some(DesiredStatus::Running);
        match self.policy.external_stop_policy {
            ExternalStopPolicy::Respect if wants_it_running => self
                .follow(instance, ReasonCode::ExternalStop)
                .with_changes(|changes| changes.desired_status = Some(DesiredStatus::Stopped)),
            ExternalStopPolicy::Respect | ExternalStopPolicy::Restart => self.follow(instance, ReasonCode::Drift),
        }
    }

    /// The instance is gone, and the record follows to terminated.
    pub(crate) fn gone(self) -> Decision {
        Decision::follow(self.worker.status, WorkerStatus::Terminated, ReasonCode::Gone)
    }

    /// EC2 shows a state that the handler does not expect: wait for it to settle.
    pub(crate) fn unexpected(self, state: Ec2State) -> Decision {
        Decision::retry(Reason::new(ReasonCode::UnexpectedEc2State).with(Detail::Ec2(state)))
    }

    /// Whether an instance that is not up has exceeded the provisioning timeout. Counted from the latest known start, so
    /// that a controller that was down for hours does not fail an instance that was started a minute ago.
    pub(crate) fn startup_timed_out(self, instance: &Instance) -> bool {
        let since = self.worker.notes.launched_at.max(self.worker.start_initiated_at).max(instance.launched_at);
        since
            .or(self.worker.launch_time())
            .is_some_and(|at| time::age(at, self.now) >= self.policy.provisioning_timeout)
    }

    /// Writes an instance that was found by its tag to the record unless the record names it already, and reports every
    /// other live one.
    pub(crate) fn adopt(self, instance: &Instance, decision: Decision) -> Decision {
        // The usual case, on the hot path of every reconcile: the record names it and its tag was not searched for.
        if self.observation.tagged.is_not_requested() && self.worker.ec2_instance_id.as_ref() == Some(&instance.id) {
            return decision;
        }
        let decision = match &self.worker.ec2_instance_id {
            Some(id) if *id == instance.id => decision,
            Some(_) | None => decision.with_changes(|changes| {
                changes.ec2_instance_id = Change::Set(instance.id.clone());
                changes.launched_at = changes.launched_at.or(instance.launched_at);
                if self.worker.aws_region.is_none() {
                    changes.aws_region = self.policy.regions.region_of(self.worker).map(str::to_owned);
                }
            }),
        };
        let others = self.observation.tagged.found().into_iter().flatten();
        others
            .filter(|other| other.state.is_live() && other.id != instance.id)
            .fold(decision, |decision, other| decision.with_event(Event::DuplicateInstance { extra: other.id.clone() }))
    }
}
