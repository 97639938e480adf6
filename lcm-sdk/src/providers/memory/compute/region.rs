//! One region of EC2 in memory.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::instance::{Image, Instance};
use crate::lifecycle::launch::LaunchPlan;
use crate::lifecycle::status::Ec2State;

/// What there is in one region.
#[derive(Debug, Default)]
pub(super) struct Region {
    pub(super) instances: BTreeMap<InstanceId, Instance>,
    pub(super) hidden: HashSet<InstanceId>,
    pub(super) images: Vec<Image>,
    pub(super) subnets: HashSet<String>,
    plans: HashMap<String, (LaunchPlan, InstanceId)>,
}

impl Region {
    pub(super) fn seen(&self, id: &InstanceId) -> Option<&Instance> {
        self.instances.get(id).filter(|_| !self.hidden.contains(id))
    }

    pub(super) fn listed(&self) -> impl Iterator<Item = &Instance> {
        self.instances.values().filter(|instance| !self.hidden.contains(&instance.id))
    }

    pub(super) fn named_images<'a>(&'a self, pattern: &'a str) -> impl Iterator<Item = &'a Image> {
        self.images.iter().filter(move |image| fits(pattern.as_bytes(), image.name.as_bytes()))
    }

    pub(super) fn changeable(&mut self, id: &InstanceId) -> Result<&mut Instance, CallFailure> {
        let hidden = self.hidden.contains(id);
        self.instances.get_mut(id).filter(|_| !hidden).ok_or_else(|| {
            let message = format!("The instance ID '{id}' does not exist");
            CallFailure::coded(FailureKind::Refused, "InvalidInstanceID.NotFound", message)
        })
    }

    pub(super) fn launch(
        &mut self,
        plan: &LaunchPlan,
        make: impl FnOnce() -> Instance,
    ) -> Result<InstanceId, CallFailure> {
        let refuse =
            |kind, code: &str| Err(CallFailure::coded(kind, code, format!("{code} for {}", plan.client_token)));
        if let Some((earlier, id)) = self.plans.get(&plan.client_token) {
            let is_live = self.instances.get(id).is_some_and(|instance| instance.state.is_live());
            return match is_live {
                _ if earlier != plan => refuse(FailureKind::Refused, "IdempotentParameterMismatch"),
                true => Ok(id.clone()),
                false => refuse(FailureKind::LaunchDied, "IdempotentInstanceTerminated"),
            };
        }
        if !self.images.iter().any(|image| image.id == plan.image_id) {
            return refuse(FailureKind::Refused, "InvalidAMIID.NotFound");
        }
        if !self.subnets.contains(&plan.subnet_id) {
            return refuse(FailureKind::Refused, "InvalidSubnetID.NotFound");
        }
        let instance = make();
        let id = instance.id.clone();
        self.plans.insert(plan.client_token.clone(), (plan.clone(), id.clone()));
        self.instances.insert(id.clone(), instance);
        Ok(id)
    }
}

/// Brings an instance into a state, with the addresses it has there.
pub(super) fn enter(instance: &mut Instance, state: Ec2State) {
    instance.state = state;
    match state {
        Ec2State::Running => {
            let inside = instance.private_ip.clone().unwrap_or_else(|| "10.0.0.1".to_owned());
            instance.public_ip = Some(inside.replacen("10.0.", "198.18.", 1));
        }
        Ec2State::Terminated => (instance.public_ip, instance.private_ip) = (None, None),
        Ec2State::Pending | Ec2State::Stopping | Ec2State::Stopped | Ec2State::ShuttingDown | Ec2State::Other => {
            instance.public_ip = None;
        }
    }
}

/// Whether a name fits a pattern of `*` and `?`.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), None) => fits(rest, name),
        (Some((b'*', rest)), Some((_, shorter))) => fits(rest, name) || fits(pattern, shorter),
        (Some((b'?', rest)), Some((_, shorter))) => fits(rest, shorter),
        (Some((wanted, rest)), Some((found, shorter))) => wanted == found && fits(rest, shorter),
        (None, Some(_)) | (Some(_), None) => false,
    }
}
