//! A model of EC2: its state machine, its idempotency, its late visibility. Nothing else.

use std::time::Duration;

use crate::lifecycle::effect::EffectResult;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::instance::{Instance, WORKER_ID_TAG};
use crate::lifecycle::launch::LaunchPlan;
use crate::lifecycle::observation::Lookup;
use crate::lifecycle::status::Ec2State;
use crate::lifecycle::time::{self, Timestamp};

/// How long a terminated instance stays visible.
const REMAINS_VISIBLE: Duration = Duration::from_secs(3600);

/// A small EC2.
#[derive(Debug, Clone)]
pub struct ModelCloud {
    /// How long every change of state takes.
    pub delay: Duration,
    /// How long a new instance is not shown.
    pub visibility_lag: Duration,
    /// While this is set, EC2 gives no answer at all.
    pub outage: Option<CallFailure>,
    /// While this is set, EC2 carries out what it is told and the answer is lost.
    pub answers_lost: bool,
    /// While this is set, EC2 refuses to change anything, but can still be asked.
    pub refusing: bool,
    instances: Vec<ModelInstance>,
}

#[derive(Debug, Clone)]
struct ModelInstance {
    seen_as: Instance,
    created_at: Timestamp,
    changed_at: Timestamp,
}

impl Default for ModelCloud {
    fn default() -> Self {
        Self {
            delay: Duration::from_secs(45),
            visibility_lag: Duration::ZERO,
            outage: None,
            answers_lost: false,
            refusing: false,
            instances: Vec::new(),
        }
    }
}

impl ModelCloud {
    /// Puts an instance there, as if it had always been.
    pub fn place(&mut self, instance: Instance, now: Timestamp) {
        let created_at = instance.launched_at.unwrap_or(now);
        self.instances.push(ModelInstance { seen_as: instance, created_at, changed_at: now });
    }

    /// How many instances exist that can still run: what somebody pays for.
    pub fn live(&self) -> usize {
        self.instances.iter().filter(|instance| instance.seen_as.state.is_live()).count()
    }

    /// The state of every instance, in the order of their launch.
    pub fn states(&self) -> Vec<Ec2State> {
        self.instances.iter().map(|instance| instance.seen_as.state).collect()
    }

    /// Whether an instance is on its way to another state.
    pub fn is_in_motion(&self) -> bool {
        self.instances.iter().any(|instance| next(instance.seen_as.state).is_some())
    }

    /// Starts an instance, from the console or by an effect.
    pub fn start(&mut self, id: &InstanceId, now: Timestamp) -> EffectResult {
        self.command(id, now, |state| match state {
            Ec2State::Stopped => Some(Ec2State::Pending),
            Ec2State::Pending | Ec2State::Running => Some(state),
            Ec2State::Stopping | Ec2State::ShuttingDown | Ec2State::Terminated | Ec2State::Other => None,
        })
    }

    /// Stops an instance, from the console or by an effect.
    pub fn stop(&mut self, id: &InstanceId, now: Timestamp) -> EffectResult {
        self.command(id, now, |state| match state {
            Ec2State::Running => Some(Ec2State::Stopping),
            Ec2State::Stopping | Ec2State::Stopped => Some(state),
            Ec2State::Pending | Ec2State::ShuttingDown | Ec2State::Terminated | Ec2State::Other => None,
        })
    }

    /// Terminates an instance, from the console or by an effect.
    pub fn terminate(&mut self, id: &InstanceId, now: Timestamp) -> EffectResult {
        self.command(id, now, |state| match state {
            Ec2State::Terminated => Some(Ec2State::Terminated),
            Ec2State::Pending
            | Ec2State::Running
            | Ec2State::Stopping
            | Ec2State::Stopped
            | Ec2State::ShuttingDown
            | Ec2State::Other => Some(Ec2State::ShuttingDown),
        })
    }

    /// Every instance that is coming up falls back to stopped, as one with a broken volume does.
    pub fn fall_back_to_stopped(&mut self) {
        for held in self.instances.iter_mut().filter(|held| held.seen_as.state == Ec2State::Pending) {
            held.seen_as.state = Ec2State::Stopped;
        }
    }

    pub(super) fn run(&mut self, plan: &LaunchPlan, now: Timestamp) -> EffectResult {
        if let Some(refusal) = self.refusal() {
            return refusal;
        }
        let result = self.launch(plan, now);
        self.delivered(result)
    }

    /// Why nothing is changed now, if so.
    fn refusal(&self) -> Option<EffectResult> {
        let denied = || CallFailure::coded(FailureKind::Refused, "UnauthorizedOperation", "not authorized");
        let failure = self.outage.clone().or_else(|| self.refusing.then(denied));
        failure.map(EffectResult::Failed)
    }

    /// The answer as it arrives.
    fn delivered(&self, result: EffectResult) -> EffectResult {
        if self.answers_lost {
            EffectResult::Failed(CallFailure::new(FailureKind::Unclear, "the answer was lost"))
        } else {
            result
        }
    }

    fn launch(&mut self, plan: &LaunchPlan, now: Timestamp) -> EffectResult {
        let earlier = self.instances.iter().find(|held| held.seen_as.client_token.as_ref() == Some(&plan.client_token));
        match earlier {
            Some(held) if held.seen_as.state.is_live() => EffectResult::Launched(held.seen_as.id.clone()),
            Some(_) => EffectResult::Failed(CallFailure::coded(
                FailureKind::LaunchDied,
                "IdempotentInstanceTerminated",
                "the client token belongs to a terminated instance",
            )),
            None => {
                let id = InstanceId::from(format!("i-{:017x}", self.instances.len() + 1));
                let mut instance = Instance::new(id.clone(), Ec2State::Pending);
                instance.private_ip = Some(format!("10.0.0.{}", self.instances.len() + 1));
                instance.launched_at = Some(now);
                instance.client_token = Some(plan.client_token.clone());
                instance.instance_type = Some(plan.instance_type.clone());
                instance.image_id = Some(plan.image_id.clone());
                instance.tags.clone_from(&plan.tags);
                self.instances.push(ModelInstance { seen_as: instance, created_at: now, changed_at: now });
                EffectResult::Launched(id)
            }
        }
    }

    pub(super) fn describe(&self, id: &InstanceId, now: Timestamp) -> Lookup<Instance> {
        if let Some(failure) = &self.outage {
            return Lookup::Unknown(failure.clone());
        }
        match self.visible(now).find(|held| held.seen_as.id == *id) {
            Some(held) => Lookup::Found(held.seen_as.clone()),
            None => Lookup::Absent,
        }
    }

    pub(super) fn tagged(&self, worker: &str, now: Timestamp) -> Lookup<Vec<Instance>> {
        if let Some(failure) = &self.outage {
            return Lookup::Unknown(failure.clone());
        }
        let tagged = |held: &&ModelInstance| held.seen_as.tags.get(WORKER_ID_TAG).is_some_and(|tag| tag == worker);
        Lookup::Found(self.visible(now).filter(tagged).map(|held| held.seen_as.clone()).collect())
    }

    pub(super) fn settle(&mut self, now: Timestamp) {
        for held in &mut self.instances {
            if time::age(held.changed_at, now) < self.delay {
                continue;
            }
            if let Some(next) = next(held.seen_as.state) {
                held.seen_as.state = next;
                held.changed_at = now;
                held.seen_as.public_ip =
                    (next == Ec2State::Running).then(|| format!("203.0.113.{}", now.timestamp() % 200));
            }
        }
    }

    fn visible(&self, now: Timestamp) -> impl Iterator<Item = &ModelInstance> {
        self.instances.iter().filter(move |held| {
            let buried =
                held.seen_as.state == Ec2State::Terminated && time::age(held.changed_at, now) >= REMAINS_VISIBLE;
            !buried && time::age(held.created_at, now) >= self.visibility_lag
        })
    }

    fn command(
        &mut self,
        id: &InstanceId,
        now: Timestamp,
        change: impl FnOnce(Ec2State) -> Option<Ec2State>,
    ) -> EffectResult {
        if let Some(refusal) = self.refusal() {
            return refusal;
        }
        let refused = |code: &str| EffectResult::Failed(CallFailure::coded(FailureKind::Refused, code, id.as_str()));
        let Some(held) = self.instances.iter_mut().find(|held| held.seen_as.id == *id) else {
            return refused("InvalidInstanceID.NotFound");
        };
        let Some(state) = change(held.seen_as.state) else { return refused("IncorrectInstanceState") };
        if state != held.seen_as.state {
            held.seen_as.state = state;
            held.changed_at = now;
            held.seen_as.public_ip = None;
            if state == Ec2State::Pending {
                held.seen_as.launched_at = Some(now);
            }
        }
        self.delivered(EffectResult::Done)
    }
}

/// Where a state leads by itself.
fn next(state: Ec2State) -> Option<Ec2State> {
    match state {
        Ec2State::Pending => Some(Ec2State::Running),
        Ec2State::Stopping => Some(Ec2State::Stopped),
        Ec2State::ShuttingDown => Some(Ec2State::Terminated),
        // Whatever it was, it passes.
        Ec2State::Other => Some(Ec2State::Running),
        Ec2State::Running | Ec2State::Stopped | Ec2State::Terminated => None,
    }
}
