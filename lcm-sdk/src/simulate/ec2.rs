//! One region of EC2 as a pure data structure.
//!
//! Models the instance state machine, idempotent launches and delayed visibility. Time is an argument of every call, and
//! nothing happens between two calls. [`Simulation`](super::Simulation) and `MemoryCompute` are built on it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::instance::{Image, ImageOwners, Instance};
use crate::lifecycle::launch::LaunchPlan;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::status::Ec2State;
use crate::lifecycle::time::{self, Timestamp};

/// The account of a new model.
pub const ACCOUNT_ID: &str = "123456789012";

/// A model of one region of EC2.
///
/// Set a public field to change how calls behave from then on.
///
/// ```
/// use lcm_sdk::simulate::Ec2Model;
/// use lcm_sdk::{Ec2State, Instance, Timestamp};
///
/// let now = Timestamp::UNIX_EPOCH;
/// let mut ec2 = Ec2Model::default();
/// ec2.place(Instance::new("i-1", Ec2State::Running), now);
/// ec2.stop(&"i-1".into(), now)?;
/// assert_eq!(ec2.states(), [Ec2State::Stopping]);
/// ec2.settle(now + ec2.transition_time);
/// assert_eq!(ec2.states(), [Ec2State::Stopped]);
/// # Ok::<(), lcm_sdk::CallFailure>(())
/// ```
#[derive(Debug, Clone)]
pub struct Ec2Model {
    /// Duration of a state transition, such as `pending` to `running`. Default: 45 s.
    pub transition_time: Duration,
    /// Time during which describe calls do not show a new instance. Default: zero.
    pub visibility_lag: Duration,
    /// Time during which describe calls show a terminated instance. Default: 1 h.
    pub terminated_visible: Duration,
    /// Fails every call with this failure. Default: none.
    pub outage: Option<CallFailure>,
    /// Changes that are accepted before further ones are throttled. Default: no limit.
    pub changes_left: Option<u32>,
    /// Executes changes, but fails them with [`FailureKind::Unclear`], as if the response were lost. Default: off.
    pub lose_responses: bool,
    /// Refuses changes with `UnauthorizedOperation`; describe calls still succeed. Default: off.
    pub read_only: bool,
    /// Images and subnets of the region. Launches with others are refused; `None` accepts all. Default: `None`.
    pub catalog: Option<Catalog>,
    /// Account that owns the instances. Default: [`ACCOUNT_ID`].
    pub account_id: String,
    instances: BTreeMap<InstanceId, ModelInstance>,
    hidden: BTreeSet<InstanceId>,
    launches: BTreeMap<String, (LaunchPlan, InstanceId)>,
    placed: u64,
}

/// Images and subnets that exist in a region.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    /// AMIs in any order.
    pub images: Vec<Image>,
    /// Owners of the AMIs of other accounts, by ID of the AMI.
    pub foreign: BTreeMap<String, String>,
    /// IDs of the subnets.
    pub subnets: BTreeSet<String>,
}

impl Catalog {
    /// Images of accepted owners whose name matches a pattern, in which `*` and `?` are wildcards.
    pub fn matching_images<'a>(&'a self, pattern: &'a str, owners: &'a ImageOwners) -> impl Iterator<Item = &'a Image> {
        let is_owned = |image: &&Image| match (owners.names(), self.foreign.get(&image.id)) {
            (None, _) => true,
            (Some(names), None) => names.iter().any(|name| name == "self"),
            (Some(names), Some(owner)) => names.contains(owner),
        };
        let images = self.images.iter().filter(is_owned);
        images.filter(move |image| matches(pattern.as_bytes(), image.name.as_bytes()))
    }
}

#[derive(Debug, Clone)]
struct ModelInstance {
    described: Instance,
    /// Public address of the last run, which a start does not assign again.
    last_public_ip: Option<String>,
    created_at: Timestamp,
    changed_at: Timestamp,
    sequence: u64,
}

impl Default for Ec2Model {
    fn default() -> Self {
        Self {
            transition_time: Duration::from_secs(45),
            visibility_lag: Duration::ZERO,
            terminated_visible: Duration::from_secs(3600),
            outage: None,
            changes_left: None,
            lose_responses: false,
            read_only: false,
            catalog: None,
            account_id: ACCOUNT_ID.to_owned(),
            instances: BTreeMap::new(),
            hidden: BTreeSet::new(),
            launches: BTreeMap::new(),
            placed: 0,
        }
    }
}

impl Ec2Model {
    /// Adds or replaces an instance, without a launch.
    pub fn place(&mut self, mut instance: Instance, now: Timestamp) {
        self.placed += 1;
        instance.account_id.get_or_insert_with(|| self.account_id.clone());
        let created_at = instance.launched_at.unwrap_or(now);
        let id = instance.id.clone();
        let placed = ModelInstance {
            described: instance,
            last_public_ip: None,
            created_at,
            changed_at: now,
            sequence: self.placed,
        };
        self.instances.insert(id, placed);
    }

    /// Removes an instance. Launches with its token then fail as if it were terminated.
    pub fn remove(&mut self, id: &InstanceId) {
        self.instances.remove(id);
    }

    /// Hides an instance from all calls until [`Ec2Model::show`].
    pub fn hide(&mut self, id: &InstanceId) {
        self.hidden.insert(id.clone());
    }

    /// Shows a hidden instance again.
    pub fn show(&mut self, id: &InstanceId) {
        self.hidden.remove(id);
    }

    /// Sets the state of an instance, as a user of the AWS console could.
    pub fn set_state(&mut self, id: &InstanceId, state: Ec2State, now: Timestamp) {
        if let Some(instance) = self.instances.get_mut(id) {
            instance.enter(state, now);
        }
    }

    /// Moves every pending instance to `stopped`, as EC2 does when a volume is broken.
    pub fn fail_pending(&mut self, now: Timestamp) {
        for instance in self.instances.values_mut().filter(|instance| instance.described.state == Ec2State::Pending) {
            instance.enter(Ec2State::Stopped, now);
        }
    }

    /// All instances by ID, including hidden ones and those that EC2 no longer shows.
    pub fn all(&self) -> impl Iterator<Item = &Instance> {
        self.instances.values().map(|instance| &instance.described)
    }

    /// Number of instances that are neither terminated nor shutting down, which EC2 bills for.
    pub fn live(&self) -> usize {
        self.all().filter(|instance| instance.state.is_live()).count()
    }

    /// State of every instance, in order of creation.
    pub fn states(&self) -> Vec<Ec2State> {
        let mut instances: Vec<_> = self.instances.values().collect();
        instances.sort_unstable_by_key(|instance| instance.sequence);
        instances.into_iter().map(|instance| instance.described.state).collect()
    }

    /// Whether an instance is in a transitional state.
    pub fn is_in_transition(&self) -> bool {
        self.all().any(|instance| next_state(instance.state).is_some())
    }

    /// Completes the transitions that began at least [`Ec2Model::transition_time`] ago.
    pub fn settle(&mut self, now: Timestamp) {
        let transition_time = self.transition_time;
        for instance in self.instances.values_mut() {
            if time::age(instance.changed_at, now) >= transition_time {
                instance.settle(now);
            }
        }
    }

    /// Completes all transitions.
    pub fn settle_all(&mut self, now: Timestamp) {
        self.instances.values_mut().for_each(|instance| instance.settle(now));
    }

    /// Describes one instance.
    pub fn describe(&self, id: &InstanceId, now: Timestamp) -> Lookup<Instance> {
        if let Some(failure) = &self.outage {
            return Lookup::Unknown(failure.clone());
        }
        match self.instances.get(id).filter(|instance| self.is_visible(instance, now)) {
            Some(instance) => Lookup::Found(instance.described.clone()),
            None if id.as_str().starts_with("i-") => Lookup::Absent,
            None => {
                let message = format!("Invalid id: \"{id}\"");
                Lookup::Unknown(CallFailure::with_code(FailureKind::Refused, "InvalidInstanceID.Malformed", message))
            }
        }
    }

    /// Instances that describe calls show, by ID.
    ///
    /// # Errors
    /// The failure of an outage.
    pub fn list(&self, now: Timestamp) -> Result<impl Iterator<Item = &Instance>, CallFailure> {
        if let Some(failure) = &self.outage {
            return Err(failure.clone());
        }
        let visible = self.instances.values().filter(move |instance| self.is_visible(instance, now));
        Ok(visible.map(|instance| &instance.described))
    }

    /// Launches an instance, or returns the one that was launched with the same token. `number` determines ID and
    /// address of a new instance.
    ///
    /// # Errors
    /// [`FailureKind::LaunchDied`] if the instance of the token is not live. [`FailureKind::Refused`] for another plan
    /// with the same token, or an unknown image or subnet.
    pub fn launch(&mut self, plan: &LaunchPlan, number: u64, now: Timestamp) -> Result<InstanceId, CallFailure> {
        self.check_writable()?;
        let result = self.execute_launch(plan, number, now);
        self.deliver(result)
    }

    fn execute_launch(&mut self, plan: &LaunchPlan, number: u64, now: Timestamp) -> Result<InstanceId, CallFailure> {
        let token = &plan.client_token;
        let refuse = |kind, code: &str| Err(CallFailure::with_code(kind, code, format!("{code} for {token}")));
        let earlier = self.launches.get(token);
        if earlier.is_some_and(|(earlier, _)| earlier != plan) {
            return refuse(FailureKind::Refused, "IdempotentParameterMismatch");
        }
        let placed = || self.all().find(|instance| instance.client_token.as_ref() == Some(token));
        if let Some(id) = earlier.map(|(_, id)| id).or_else(|| placed().map(|instance| &instance.id)) {
            let is_live = self.instances.get(id).is_some_and(|instance| instance.described.state.is_live());
            let id = id.clone();
            return if is_live { Ok(id) } else { refuse(FailureKind::LaunchDied, "IdempotentInstanceTerminated") };
        }
        if let Some(catalog) = &self.catalog {
            if !catalog.images.iter().any(|image| image.id == plan.image_id) {
                return refuse(FailureKind::RefusedForNow, "InvalidAMIID.NotFound");
            }
            if !catalog.subnets.contains(&plan.subnet_id) {
                return refuse(FailureKind::Refused, "InvalidSubnetID.NotFound");
            }
        }
        let instance = Instance {
            private_ip: Some(format!("10.0.{}.{}", (number >> 8) & 255, number & 255)),
            launched_at: Some(now),
            client_token: Some(token.clone()),
            instance_type: Some(plan.instance_type.clone()),
            image_id: Some(plan.image_id.clone()),
            tags: plan.tags.clone(),
            ..Instance::new(format!("i-{number:017x}"), Ec2State::Pending)
        };
        let id = instance.id.clone();
        self.launches.insert(token.clone(), (plan.clone(), id.clone()));
        self.place(instance, now);
        Ok(id)
    }

    /// Starts a stopped instance. Succeeds if it is pending or running.
    ///
    /// # Errors
    /// [`FailureKind::Conflict`] in any other state, [`FailureKind::Refused`] for an unknown instance.
    pub fn start(&mut self, id: &InstanceId, now: Timestamp) -> Result<(), CallFailure> {
        self.change(id, now, |instance| match instance.state {
            Ec2State::Stopped => Ok(Ec2State::Pending),
            state @ (Ec2State::Pending | Ec2State::Running) => Ok(state),
            Ec2State::Stopping | Ec2State::ShuttingDown | Ec2State::Terminated | Ec2State::Other => {
                Err(wrong_state(instance, "started"))
            }
        })
    }

    /// Stops a running instance. Succeeds if it is stopping or stopped.
    ///
    /// # Errors
    /// [`FailureKind::Conflict`] in any other state, [`FailureKind::Refused`] for an unknown instance.
    pub fn stop(&mut self, id: &InstanceId, now: Timestamp) -> Result<(), CallFailure> {
        self.change(id, now, |instance| match instance.state {
            Ec2State::Running => Ok(Ec2State::Stopping),
            state @ (Ec2State::Stopping | Ec2State::Stopped) => Ok(state),
            Ec2State::Pending | Ec2State::ShuttingDown | Ec2State::Terminated | Ec2State::Other => {
                Err(wrong_state(instance, "stopped"))
            }
        })
    }

    /// Terminates an instance. Succeeds if it is terminated.
    ///
    /// # Errors
    /// [`FailureKind::Refused`] for an unknown instance.
    pub fn terminate(&mut self, id: &InstanceId, now: Timestamp) -> Result<(), CallFailure> {
        self.change(id, now, |instance| match instance.state {
            Ec2State::Terminated => Ok(Ec2State::Terminated),
            Ec2State::Pending
            | Ec2State::Running
            | Ec2State::Stopping
            | Ec2State::Stopped
            | Ec2State::ShuttingDown
            | Ec2State::Other => Ok(Ec2State::ShuttingDown),
        })
    }

    fn change(
        &mut self,
        id: &InstanceId,
        now: Timestamp,
        target: impl FnOnce(&Instance) -> Result<Ec2State, CallFailure>,
    ) -> Result<(), CallFailure> {
        self.check_writable()?;
        let is_hidden = self.hidden.contains(id);
        let Some(instance) = self.instances.get_mut(id).filter(|_| !is_hidden) else {
            let message = format!("The instance ID '{id}' does not exist");
            return Err(CallFailure::with_code(FailureKind::Refused, "InvalidInstanceID.NotFound", message));
        };
        let state = target(&instance.described)?;
        if state != instance.described.state {
            instance.enter(state, now);
            if state == Ec2State::Pending {
                instance.described.launched_at = Some(now);
            }
        }
        self.deliver(Ok(()))
    }

    fn check_writable(&mut self) -> Result<(), CallFailure> {
        let denied = || CallFailure::with_code(FailureKind::Refused, "UnauthorizedOperation", "not authorized");
        if let Some(failure) = self.outage.clone().or_else(|| self.read_only.then(denied)) {
            return Err(failure);
        }
        match &mut self.changes_left {
            None => Ok(()),
            Some(0) => {
                let (code, message) = ("RequestLimitExceeded", "Request limit exceeded.");
                Err(CallFailure::with_code(FailureKind::Throttled, code, message))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    fn deliver<T>(&self, result: Result<T, CallFailure>) -> Result<T, CallFailure> {
        if self.lose_responses {
            return Err(CallFailure::new(FailureKind::Unclear, "the response was lost"));
        }
        result
    }

    fn is_visible(&self, instance: &ModelInstance, now: Timestamp) -> bool {
        let is_gone = instance.described.state == Ec2State::Terminated
            && time::age(instance.changed_at, now) >= self.terminated_visible;
        let is_new = time::age(instance.created_at, now) < self.visibility_lag;
        !is_gone && !is_new && !self.hidden.contains(&instance.described.id)
    }
}

impl ModelInstance {
    /// Enters a state, with the addresses that an instance has there: a public one only while it runs, and another one
    /// after every start.
    fn enter(&mut self, state: Ec2State, now: Timestamp) {
        self.changed_at = now;
        let instance = &mut self.described;
        instance.state = state;
        match state {
            Ec2State::Running => {
                let private_ip = instance.private_ip.as_deref().unwrap_or("10.0.0.1");
                let in_network = |network| private_ip.replacen("10.0.", network, 1);
                let first = in_network("198.18.");
                let is_taken = self.last_public_ip.as_ref() == Some(&first);
                instance.public_ip.get_or_insert(if is_taken { in_network("198.19.") } else { first });
            }
            Ec2State::Terminated => (instance.public_ip, instance.private_ip) = (None, None),
            Ec2State::Pending | Ec2State::Stopping | Ec2State::Stopped | Ec2State::ShuttingDown | Ec2State::Other => {
                if let Some(released) = instance.public_ip.take() {
                    self.last_public_ip = Some(released);
                }
            }
        }
    }

    fn settle(&mut self, now: Timestamp) {
        if let Some(next) = next_state(self.described.state) {
            self.enter(next, now);
        }
    }
}

/// The state that follows a transitional state on its own.
const fn next_state(state: Ec2State) -> Option<Ec2State> {
    match state {
        // An unknown state is assumed to be transitional.
        Ec2State::Pending | Ec2State::Other => Some(Ec2State::Running),
        Ec2State::Stopping => Some(Ec2State::Stopped),
        Ec2State::ShuttingDown => Some(Ec2State::Terminated),
        Ec2State::Running | Ec2State::Stopped | Ec2State::Terminated => None,
    }
}

fn wrong_state(instance: &Instance, operation: &str) -> CallFailure {
    let message = format!("The instance '{}' is not in a state from which it can be {operation}", instance.id);
    CallFailure::with_code(FailureKind::Conflict, "IncorrectInstanceState", message)
}

/// Whether a name matches a pattern of `*` and `?`.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), None) => matches(rest, name),
        (Some((b'*', rest)), Some((_, shorter))) => matches(rest, name) || matches(pattern, shorter),
        (Some((b'?', rest)), Some((_, shorter))) => matches(rest, shorter),
        (Some((wanted, rest)), Some((found, shorter))) => wanted == found && matches(rest, shorter),
        (None, Some(_)) | (Some(_), None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_start_assigns_another_public_ip() {
        let (id, now) = (InstanceId::from("i-1"), Timestamp::UNIX_EPOCH);
        let mut ec2 = Ec2Model::default();
        ec2.place(Instance::new("i-1", Ec2State::Stopped), now);
        let public_ip = |ec2: &Ec2Model| ec2.describe(&id, now).found().and_then(|instance| instance.public_ip.clone());
        let mut last = None;
        for _ in 0..3 {
            ec2.start(&id, now).expect("it is stopped");
            ec2.settle_all(now);
            let current = public_ip(&ec2);
            assert!(current.is_some());
            assert_ne!(current, last);
            last = current;
            ec2.stop(&id, now).expect("it runs");
            ec2.settle_all(now);
            assert_eq!(public_ip(&ec2), None);
        }
    }
}
