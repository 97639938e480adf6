//! StartInstances, StopInstances, RebootInstances and TerminateInstances.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::change_feed::InstanceChange;
use super::disruption::no_capacity;
use super::ec2::{Ec2, Intent, later};
use super::error::AwsError;
use super::instance::{Instance, InstanceState, StateCause};
use super::options::Protection;
use super::settings::StopWhilePending;
use super::view::View;

/// An API action that changes the state of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceAction {
    /// StartInstances: `stopped` to `pending`.
    Start,
    /// StopInstances: `pending` or `running` to `stopping`.
    Stop,
    /// StopInstances with `Hibernate`: like a stop, for instances that are configured for it.
    Hibernate,
    /// RebootInstances. The state stays `running`.
    Reboot,
    /// TerminateInstances: any other state to `shutting-down`.
    Terminate,
}

/// State of an instance before and after an [`InstanceAction`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateChange {
    /// Id of the instance.
    pub instance_id: String,
    /// State before the action.
    pub previous: InstanceState,
    /// State after the action.
    pub current: InstanceState,
}

impl Ec2 {
    /// Applies an action to instances.
    ///
    /// # Guarantees
    /// The action applies to all instances, or to none of them if one id or state is wrong.
    ///
    /// # Errors
    /// Malformed and unknown ids, `IncorrectInstanceState`.
    pub fn change_state(
        &mut self,
        region: &str,
        ids: &[String],
        action: InstanceAction,
        intent: Intent,
        view: &View,
        now: DateTime<Utc>,
    ) -> Result<Vec<StateChange>, AwsError> {
        if ids.is_empty() {
            return Err(AwsError::new("InvalidParameterCombination", "No instances specified"));
        }
        let mut instances = self.region(region, now)?.find_all(ids, view, now)?;
        let mut protected = None;
        if action == InstanceAction::Terminate {
            let is_protected = |instance: &Arc<Instance>| {
                let protection = [instance.options.termination_protection, instance.options.stop_protection];
                protection.contains(&Protection::On) && !is_ended(instance.state(now))
            };
            let zones: Vec<Arc<str>> = instances
                .iter()
                .filter(|instance| is_protected(instance))
                .map(|instance| Arc::clone(&instance.availability_zone))
                .collect();
            protected = instances.iter().find(|instance| is_protected(instance)).map(|instance| instance.id.clone());
            // EC2 refuses the request, but terminates the instances of all other zones.
            instances.retain(|instance| !zones.contains(&instance.availability_zone));
        }
        let mut transitions = Vec::with_capacity(instances.len());
        for instance in &instances {
            let transition = transition(instance, action, self.stop_while_pending, now)?;
            transitions.push((instance.sequence, instance.id.clone(), instance.state(now), transition));
        }
        if action == InstanceAction::Start {
            self.check_capacity(region, &instances, now)?;
        }
        if let (Some(id), Intent::DryRun) = (&protected, intent) {
            return Err(not_permitted(id, "terminated", "disableApiTermination"));
        }
        intent.proceed()?;
        let mut changes = Vec::with_capacity(transitions.len());
        for (sequence, instance_id, previous, transition) in transitions {
            self.apply(region, sequence, transition, now)?;
            let current = match self.region(region, now)?.find(&instance_id) {
                Some(instance) => reported_state(instance, transition, now),
                None => previous,
            };
            changes.push(StateChange { instance_id, previous, current });
        }
        match protected {
            Some(id) => Err(not_permitted(&id, "terminated", "disableApiTermination")),
            None => Ok(changes),
        }
    }

    fn check_capacity(
        &mut self,
        region: &str,
        instances: &[Arc<Instance>],
        now: DateTime<Utc>,
    ) -> Result<(), AwsError> {
        let region = self.region(region, now)?;
        for instance in instances.iter().filter(|instance| instance.state(now) == InstanceState::Stopped) {
            let (kind, zone) = (&*instance.instance_type, &*instance.availability_zone);
            let wanted = instances.iter().filter(|other| {
                other.state(now) == InstanceState::Stopped
                    && (&*other.instance_type, &*other.availability_zone) == (kind, zone)
            });
            if region.free_capacity(kind, zone, now) < wanted.count() {
                return Err(no_capacity(kind, zone));
            }
        }
        Ok(())
    }

    fn apply(
        &mut self,
        region: &str,
        sequence: u64,
        transition: Transition,
        now: DateTime<Utc>,
    ) -> Result<(), AwsError> {
        let delays = self.delays;
        if transition != Transition::None {
            let region = self.region(region, now)?.name;
            self.changed.push(InstanceChange { region, sequence });
        }
        match transition {
            Transition::None => {}
            Transition::Start => {
                let address = self.addresses.allocate();
                let running_at = later(now, delays.starting);
                self.region(region, now)?.change(sequence, |instance| instance.start(now, running_at, address));
            }
            Transition::Stop(cause) => {
                let stopped_at = later(now, delays.stopping);
                self.region(region, now)?.change(sequence, |instance| instance.stop(now, stopped_at, cause));
            }
            Transition::Terminate => {
                let terminated_at = later(now, delays.terminating);
                let region = self.region(region, now)?;
                region.terminate(sequence, now, terminated_at, StateCause::User);
                region.expirations.insert((later(terminated_at, delays.terminated_visible), sequence));
            }
        }
        Ok(())
    }
}

/// Effect of an action on one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transition {
    None,
    Start,
    Stop(StateCause),
    Terminate,
}

fn transition(
    instance: &Instance,
    action: InstanceAction,
    stop_while_pending: StopWhilePending,
    now: DateTime<Utc>,
) -> Result<Transition, AwsError> {
    use InstanceAction::{Hibernate, Reboot, Start, Stop, Terminate};
    use InstanceState::{Pending, Running, ShuttingDown, Stopped, Stopping, Terminated};
    let id = &instance.id;
    check_options(instance, action, now)?;
    match (action, instance.state(now)) {
        (Start, Stopped) => Ok(Transition::Start),
        (Start, Pending | Running) => Ok(Transition::None),
        (Start, Stopping | ShuttingDown | Terminated) => Err(AwsError::wrong_state(id, "started")),
        (Stop | Hibernate, Pending) if !instance.has_run(now) && stop_while_pending == StopWhilePending::Refused => {
            Err(AwsError::new(
                "IncorrectInstanceState",
                format!("Instance '{id}' cannot be stopped as it has never reached the 'running' state."),
            ))
        }
        (Stop, Pending | Running) => Ok(Transition::Stop(StateCause::User)),
        (Hibernate, Pending | Running) => Ok(Transition::Stop(StateCause::Hibernation)),
        (Stop | Hibernate, Stopping | Stopped) => Ok(Transition::None),
        (Stop | Hibernate, ShuttingDown | Terminated) => Err(AwsError::wrong_state(id, "stopped")),
        (Reboot, Pending | Running) => Ok(Transition::None),
        (Reboot, Stopping | Stopped | ShuttingDown | Terminated) => Err(AwsError::wrong_state(id, "rebooted")),
        (Terminate, Pending | Running | Stopping | Stopped) => Ok(Transition::Terminate),
        (Terminate, ShuttingDown | Terminated) => Ok(Transition::None),
    }
}

/// Refuses an action that the options of the instance forbid.
fn check_options(instance: &Instance, action: InstanceAction, now: DateTime<Utc>) -> Result<(), AwsError> {
    let id = &instance.id;
    let refusal = |code: &'static str, message: String| Err(AwsError::new(code, message));
    match action {
        InstanceAction::Stop | InstanceAction::Hibernate => {
            if action == InstanceAction::Hibernate && !instance.options.hibernation {
                let message = format!("The instance '{id}' is not configured for hibernation.");
                return refusal("UnsupportedHibernationConfiguration", message);
            }
            if instance.options.stop_protection == Protection::On && !is_ended(instance.state(now)) {
                return Err(not_permitted(id, "stopped", "disableApiStop"));
            }
            if instance.options.spot().is_some_and(|spot| spot.kind == "one-time") && !is_ended(instance.state(now)) {
                let message = format!(
                    "You can't stop the Spot Instance '{id}' because it is associated with a one-time Spot Instance request."
                );
                return refusal("UnsupportedOperation", message);
            }
        }
        InstanceAction::Start => {
            if instance.cause == StateCause::SpotInterruption && instance.state(now) == InstanceState::Stopped {
                let message = format!(
                    "You can't start the Spot Instance '{id}' because the associated Spot Instance request is not in an \
                     appropriate state to support start."
                );
                return refusal("IncorrectSpotRequestState", message);
            }
        }
        InstanceAction::Reboot | InstanceAction::Terminate => {}
    }
    Ok(())
}

fn not_permitted(id: &str, change: &str, attribute: &str) -> AwsError {
    let message =
        format!("The instance '{id}' may not be {change}. Modify its '{attribute}' instance attribute and try again.");
    AwsError::new("OperationNotPermitted", message)
}

fn is_ended(state: InstanceState) -> bool {
    matches!(state, InstanceState::ShuttingDown | InstanceState::Terminated)
}

/// EC2 reports the transitional state, even if the transition takes no time.
fn reported_state(instance: &Instance, transition: Transition, now: DateTime<Utc>) -> InstanceState {
    match transition {
        Transition::None => instance.state(now),
        Transition::Start => InstanceState::Pending,
        Transition::Stop(_) => InstanceState::Stopping,
        Transition::Terminate => InstanceState::ShuttingDown,
    }
}
