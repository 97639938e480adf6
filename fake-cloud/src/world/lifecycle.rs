//! StartInstances, StopInstances, RebootInstances and TerminateInstances.

use chrono::{DateTime, Utc};

use super::change_feed::InstanceChange;
use super::ec2::{Ec2, Intent, later};
use super::error::AwsError;
use super::instance::{Instance, InstanceState};
use super::settings::StopWhilePending;
use super::view::View;

/// An API action that changes the state of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceAction {
    /// StartInstances: `stopped` to `pending`.
    Start,
    /// StopInstances: `pending` or `running` to `stopping`.
    Stop,
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
        let instances = self.region(region, now)?.find_all(ids, view, now)?;
        let mut transitions = Vec::with_capacity(instances.len());
        for instance in &instances {
            let transition = transition(instance, action, self.stop_while_pending, now)?;
            transitions.push((instance.sequence, instance.id.clone(), instance.state(now), transition));
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
        Ok(changes)
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
            Transition::Stop => {
                let stopped_at = later(now, delays.stopping);
                self.region(region, now)?.change(sequence, |instance| instance.stop(now, stopped_at));
            }
            Transition::Terminate => {
                let terminated_at = later(now, delays.terminating);
                let region = self.region(region, now)?;
                region.change(sequence, |instance| instance.terminate(now, terminated_at));
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
    Stop,
    Terminate,
}

fn transition(
    instance: &Instance,
    action: InstanceAction,
    stop_while_pending: StopWhilePending,
    now: DateTime<Utc>,
) -> Result<Transition, AwsError> {
    use InstanceAction::{Reboot, Start, Stop, Terminate};
    use InstanceState::{Pending, Running, ShuttingDown, Stopped, Stopping, Terminated};
    let id = &instance.id;
    match (action, instance.state(now)) {
        (Start, Stopped) => Ok(Transition::Start),
        (Start, Pending | Running) => Ok(Transition::None),
        (Start, Stopping | ShuttingDown | Terminated) => Err(AwsError::wrong_state(id, "started")),
        (Stop, Pending) if !instance.has_run(now) && stop_while_pending == StopWhilePending::Refused => {
            Err(AwsError::new(
                "IncorrectInstanceState",
                format!("Instance '{id}' cannot be stopped as it has never reached the 'running' state."),
            ))
        }
        (Stop, Pending | Running) => Ok(Transition::Stop),
        (Stop, Stopping | Stopped) => Ok(Transition::None),
        (Stop, ShuttingDown | Terminated) => Err(AwsError::wrong_state(id, "stopped")),
        (Reboot, Pending | Running) => Ok(Transition::None),
        (Reboot, Stopping | Stopped | ShuttingDown | Terminated) => Err(AwsError::wrong_state(id, "rebooted")),
        (Terminate, Pending | Running | Stopping | Stopped) => Ok(Transition::Terminate),
        (Terminate, ShuttingDown | Terminated) => Ok(Transition::None),
    }
}

/// EC2 reports the transitional state, even if the transition takes no time.
fn reported_state(instance: &Instance, transition: Transition, now: DateTime<Utc>) -> InstanceState {
    match transition {
        Transition::None => instance.state(now),
        Transition::Start => InstanceState::Pending,
        Transition::Stop => InstanceState::Stopping,
        Transition::Terminate => InstanceState::ShuttingDown,
    }
}
