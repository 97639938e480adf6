//! One handler for each status, named as in the lifecycle document.

pub(crate) mod draining;
pub(crate) mod failed;
pub(crate) mod locate;
pub(crate) mod pending;
pub(crate) mod provisioning;
pub(crate) mod running;
pub(crate) mod starting;
pub(crate) mod stopped;
pub(crate) mod stopping;
pub(crate) mod terminated;
pub(crate) mod terminating;
pub(crate) mod unknown;

use super::decision::{Addresses, Decision};
use super::instance::Instance;
use super::observation::Observation;
use super::policy::{ExternalStopPolicy, Policy};
use super::reason::{Detail, Reason, ReasonCode};
use super::status::{DesiredStatus, Ec2State, WorkerStatus};
use super::time::{self, Timestamp};
use super::worker::Worker;

/// Everything a handler may look at.
#[derive(Clone, Copy)]
pub(crate) struct HandlerContext<'a> {
    pub(crate) worker: &'a Worker,
    pub(crate) observation: &'a Observation,
    pub(crate) policy: &'a Policy,
    pub(crate) now: Timestamp,
}

impl HandlerContext<'_> {
    /// The lifecycle moves this worker on.
    fn command(self, to: WorkerStatus, reason: impl Into<Reason>) -> Decision {
        Decision::command(self.worker.status, to, reason)
    }

    /// The record follows EC2. Entering stopped clears the addresses, which EC2 takes back.
    fn observe(self, instance: &Instance, code: ReasonCode) -> Decision {
        let to = instance.state.worker_status();
        let decision = Decision::observe(self.worker.status, to, Reason::new(code).with(Detail::Ec2(instance.state)));
        match instance.state {
            Ec2State::Stopped => decision.changing(|changes| changes.addresses = Some(Addresses::default())),
            Ec2State::Running => decision.changing(|changes| changes.addresses = Some(instance.into())),
            Ec2State::Pending
            | Ec2State::Stopping
            | Ec2State::ShuttingDown
            | Ec2State::Terminated
            | Ec2State::Other => decision,
        }
    }

    /// As [`HandlerContext::observe`], for a stop that nobody here asked for: the policy says whether it becomes the wish.
    fn observe_external_stop(self, instance: &Instance) -> Decision {
        let wants_it_running = self.worker.desired_status == Some(DesiredStatus::Running);
        match self.policy.external_stop_policy {
            ExternalStopPolicy::Respect if wants_it_running => self
                .observe(instance, ReasonCode::ExternalStop)
                .changing(|changes| changes.desired_status = Some(DesiredStatus::Stopped)),
            ExternalStopPolicy::Respect | ExternalStopPolicy::Restart => self.observe(instance, ReasonCode::Drift),
        }
    }

    /// The instance is gone and so is the worker.
    fn gone(self) -> Decision {
        Decision::observe(self.worker.status, WorkerStatus::Terminated, ReasonCode::Gone)
    }

    /// Whether an instance that is not up yet has had its time. Counted from the latest start anybody knows of, so
    /// that a controller that was away for hours does not give up on an instance that was started a minute ago.
    fn coming_up_timed_out(self, instance: &Instance) -> bool {
        let since = self.worker.notes.launched_at.max(self.worker.start_initiated_at).max(instance.launched_at);
        since
            .or(self.worker.launch_time())
            .is_some_and(|at| time::age(at, self.now) >= self.policy.provisioning_timeout)
    }
}

/// EC2 shows a state that a handler has no use for: wait for it to settle.
fn unexpected(state: Ec2State) -> Decision {
    Decision::retry(Reason::new(ReasonCode::UnexpectedEc2State).with(Detail::Ec2(state)))
}
