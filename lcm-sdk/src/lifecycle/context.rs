//! Input shared by the handlers, and the lookup of the worker's instance in it.

use std::time::Duration;

use super::decision::{Addresses, Change, Decision};
use super::event::Event;
use super::failure::CallFailure;
use super::instance::{ImageDetails, Instance, RecordedImage, first_live};
use super::lookup::Lookup;
use super::observation::Observation;
use super::outcome::Requeue;
use super::policy::{ExternalStopPolicy, Policy};
use super::reason::{Detail, Reason, ReasonCode};
use super::status::{DesiredStatus, Ec2State, WorkerStatus};
use super::time::{self, Timestamp};
use super::trust::{Doubt, Place, admit_launch, prove_absence, prove_refusal};
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
    /// EC2 shows none, and nothing proves that it was asked in the right account and region.
    InDoubt(Doubt),
    /// The facts that could prove it were not available.
    PlaceUnknown(&'a CallFailure),
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
            Self::InDoubt(doubt) => Decision::retry(doubt.reason()),
            Self::PlaceUnknown(failure) => Decision::unanswered(ReasonCode::RegionNotTrusted, failure),
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
                Lookup::Absent => self.absence_is_proved().map(|()| Located::Gone(None)),
            },
            None => match &self.observation.tagged {
                Lookup::NotRequested => Err(NotLocated::NotRequested),
                Lookup::Unknown(failure) => Err(NotLocated::Unknown(failure)),
                Lookup::Found(instances) => match first_live(instances) {
                    Some(instance) => Ok(Located::Here(instance)),
                    None if instances.is_empty() => self.absence_is_proved().map(|()| Located::Nowhere),
                    // Dead instances with the worker's tag prove the place.
                    None => self.launch_is_old().map(|()| Located::Nowhere),
                },
                Lookup::Absent => self.absence_is_proved().map(|()| Located::Nowhere),
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

    /// Whether the search by tag, which shows no live instance, is conclusive for a launch under way. An ended instance
    /// that the record or the tag names was proved or shown before.
    pub(crate) fn search_is_conclusive(self) -> Result<(), NotLocated<'a>> {
        let is_shown = self.observation.tagged.found().is_some_and(|instances| !instances.is_empty());
        if is_shown || self.worker.ec2_instance_id.is_some() { self.launch_is_old() } else { self.absence_is_proved() }
    }

    /// Whether "EC2 shows none" means "there is none": once the launch is old and the place is proved.
    fn absence_is_proved(self) -> Result<(), NotLocated<'a>> {
        self.launch_is_old()?;
        let expected = self.policy.aws_account_id.as_deref();
        let prove = |place| prove_absence(self.worker, place, expected, self.now).map_err(NotLocated::InDoubt);
        match &self.observation.place {
            Lookup::NotRequested => Err(NotLocated::NotRequested),
            Lookup::Unknown(failure) => Err(NotLocated::PlaceUnknown(failure)),
            Lookup::Absent => prove(&Place::default()),
            Lookup::Found(place) => prove(place),
        }
    }

    /// The doubt about the account of a launch, if there is one: a refusal or a missing AMI is inconclusive then.
    ///
    /// # Errors
    /// If the launch must not be sent: the configuration names another account.
    pub(crate) fn launch_doubt(self) -> Result<Option<Doubt>, NotLocated<'a>> {
        let expected = self.policy.aws_account_id.as_deref();
        let nowhere = Place::default();
        let place = match (&self.observation.place, expected) {
            (Lookup::NotRequested, Some(_)) => return Err(NotLocated::NotRequested),
            (Lookup::Unknown(failure), Some(_)) => return Err(NotLocated::PlaceUnknown(failure)),
            (Lookup::NotRequested | Lookup::Unknown(_), None) => return Ok(Some(Doubt::NotProved { caller: None })),
            (Lookup::Absent, _) => &nowhere,
            (Lookup::Found(place), _) => place,
        };
        admit_launch(place, expected).map_err(NotLocated::InDoubt)?;
        Ok(prove_refusal(place, expected, self.now).err())
    }

    /// Whether EC2 shows no instance, the status would follow that, and the place was not requested yet. The search by
    /// tag before a first launch needs no proof.
    pub(crate) fn absence_awaits_proof(self) -> bool {
        let notes = &self.worker.notes;
        let shows_none = match &self.worker.ec2_instance_id {
            Some(_) => self.observation.instance == Lookup::Absent,
            None => match &self.observation.tagged {
                Lookup::Absent => true,
                Lookup::Found(instances) => instances.is_empty(),
                Lookup::NotRequested | Lookup::Unknown(_) => false,
            },
        };
        let was_launched = match self.worker.status {
            WorkerStatus::Pending => self.worker.ec2_instance_id.is_some() || notes.launch_plan.is_some(),
            WorkerStatus::Stopped => self.worker.ec2_instance_id.is_some(),
            WorkerStatus::Provisioning
            | WorkerStatus::Starting
            | WorkerStatus::Running
            | WorkerStatus::Draining
            | WorkerStatus::Stopping
            | WorkerStatus::Terminating
            | WorkerStatus::Terminated
            | WorkerStatus::Failed
            | WorkerStatus::Unknown => true,
        };
        self.observation.place.is_not_requested() && shows_none && was_launched && self.launch_is_old().is_ok()
    }

    /// Whether the launch is older than the consistency window, in which EC2 may not show an instance yet.
    fn launch_is_old(self) -> Result<(), NotLocated<'a>> {
        let Some(launched) = self.worker.launch_time() else { return Err(NotLocated::AgeUnknown) };
        match self.policy.consistency_window.checked_sub(time::age(launched, self.now)) {
            Some(left) if !left.is_zero() => Err(NotLocated::NotVisibleYet(left)),
            Some(_) | None => Ok(()),
        }
    }
}

impl<'a> HandlerContext<'a> {
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
    /// status, if that can be written.
    pub(crate) fn follow_external_stop(self, instance: &Instance) -> Decision {
        let wants_it_running = self.worker.desired_status == Some(DesiredStatus::Running);
        match self.policy.external_stop_policy.effective(&self.observation.capabilities) {
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

    /// The record of a worker in service names no instance. The instance may run without a tag, so the status stays.
    pub(crate) fn no_instance_named(self) -> Decision {
        Decision::retry(ReasonCode::NoInstanceNamed)
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

    /// Notes the account and the region in which EC2 shows the instance, with a write that is made anyway, or because the
    /// account changed: a server that does not keep notes would be written to in every reconcile otherwise.
    fn note_place(self, instance: &Instance, decision: Decision) -> Decision {
        let noted = self.worker.notes.ec2_account_id.as_ref();
        let account = instance.account_id.as_ref().filter(|account| noted != Some(account));
        let is_written = decision.transition.is_some() || decision.changes.is_some();
        if !is_written && (noted.is_none() || account.is_none()) {
            return decision;
        }
        let region = match self.worker.known_region() {
            Some(_) => None,
            None => self.policy.regions.region_of(self.worker),
        };
        if account.is_none() && region.is_none() {
            return decision;
        }
        decision.with_changes(|changes| {
            changes.ec2_account_id = account.cloned();
            changes.ec2_region = region.map(str::to_owned);
        })
    }

    /// The AMI to describe, if the record of a worker in service lacks a part of it and this reconcile can write it.
    pub(crate) fn lacking_image(self) -> Option<&'a str> {
        let instance = self.observation.instance_of(self.worker)?;
        let is_written = match self.worker.status {
            WorkerStatus::Provisioning | WorkerStatus::Starting | WorkerStatus::Running => true,
            WorkerStatus::Pending
            | WorkerStatus::Draining
            | WorkerStatus::Stopping
            | WorkerStatus::Stopped
            | WorkerStatus::Terminating
            | WorkerStatus::Terminated
            | WorkerStatus::Failed
            | WorkerStatus::Unknown => false,
        };
        let image_id = instance.image_id.as_deref().filter(|_| is_written && instance.state == Ec2State::Running)?;
        (!RecordedImage::of(self.worker).is_complete(image_id)).then_some(image_id)
    }

    /// Writes the AMI that was described for a record that lacks a part of it. Its id goes with addresses that are written
    /// anyway, also if it was not described: a server overwrites all of them together.
    pub(crate) fn note_image(self, decision: Decision) -> Decision {
        let Some(instance) = self.observation.instance_of(self.worker) else { return decision };
        let stays = match decision.transition {
            None => self.worker.status == WorkerStatus::Running,
            Some(transition) => transition.to() == WorkerStatus::Running,
        };
        let Some(image_id) = self.lacking_image().filter(|_| stays && !decision.checks_idle()) else {
            return decision;
        };
        match &instance.image {
            Some(image) if RecordedImage::of(self.worker).lacks(image) => decision.with_changes(|changes| {
                changes.image = Some(image.clone());
                changes.addresses.get_or_insert_with(|| instance.into());
            }),
            Some(_) | None if decision.changes.as_ref().is_some_and(|changes| changes.addresses.is_some()) => {
                let image = ImageDetails { id: image_id.to_owned(), ..ImageDetails::default() };
                decision.with_changes(|changes| changes.image = Some(Box::new(image)))
            }
            Some(_) | None => decision,
        }
    }

    /// Writes an instance that was found by its tag to the record unless the record names it already, and reports every
    /// other live one.
    pub(crate) fn adopt(self, instance: &Instance, decision: Decision) -> Decision {
        // The usual case, on the hot path of every reconcile: the record names it and its tag was not searched for.
        let decision = self.note_place(instance, decision);
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
