//! Start, stop, reboot, terminate: what is allowed from which state, all of it or nothing.

use chrono::{DateTime, Utc};

use super::ec2::{Ec2, Intent, later};
use super::error::AwsError;
use super::instance::{Instance, InstanceState};
use super::orders::Told;
use super::settings::StopWhilePending;
use super::view::View;

/// What an instance can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// To run.
    Start,
    /// To stop.
    Stop,
    /// To stop and run again, within its state.
    Reboot,
    /// To end.
    Terminate,
}

/// An instance before and after an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateChange {
    /// Which.
    pub instance_id: String,
    /// Before.
    pub previous: InstanceState,
    /// After.
    pub current: InstanceState,
}

impl Ec2 {
    /// Gives an order to instances.
    ///
    /// # Guarantees
    /// Either all of them follow or, if one id or state is wrong, none.
    ///
    /// # Errors
    /// Malformed and unknown ids, `IncorrectInstanceState`.
    pub fn order(
        &mut self,
        region: &str,
        ids: &[String],
        order: Order,
        intent: Intent,
        view: &View,
        now: DateTime<Utc>,
    ) -> Result<Vec<StateChange>, AwsError> {
        let instances = self.region(region, now)?.find_all(ids, view, now)?;
        let mut steps = Vec::with_capacity(instances.len());
        for instance in &instances {
            let step = step(instance, order, self.stop_while_pending, now)?;
            steps.push((instance.sequence, instance.id.clone(), instance.state(now), step));
        }
        intent.proceed()?;
        let mut changes = Vec::with_capacity(steps.len());
        for (sequence, instance_id, previous, step) in steps {
            self.take_step(region, sequence, step, now)?;
            let current = match self.region(region, now)?.find(&instance_id) {
                Some(instance) => answered_state(instance, step, now),
                None => previous,
            };
            changes.push(StateChange { instance_id, previous, current });
        }
        Ok(changes)
    }

    fn take_step(&mut self, region: &str, sequence: u64, step: Step, now: DateTime<Utc>) -> Result<(), AwsError> {
        let delays = self.delays;
        if step != Step::Stay {
            let region = self.region(region, now)?.name;
            self.told.push(Told { region, sequence });
        }
        match step {
            Step::Stay => {}
            Step::Up => {
                let address = self.addresses.take();
                let running_at = later(now, delays.starting);
                self.region(region, now)?.change(sequence, |instance| instance.go_up(now, running_at, address));
            }
            Step::Down => {
                let stopped_at = later(now, delays.stopping);
                self.region(region, now)?.change(sequence, |instance| instance.go_down(now, stopped_at));
            }
            Step::Out => {
                let terminated_at = later(now, delays.terminating);
                let place = self.region(region, now)?;
                place.change(sequence, |instance| instance.go_out(now, terminated_at));
                place.departures.insert((later(terminated_at, delays.terminated_visible), sequence));
            }
        }
        Ok(())
    }
}

/// What an order comes down to for one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Stay,
    Up,
    Down,
    Out,
}

fn step(
    instance: &Instance,
    order: Order,
    stop_while_pending: StopWhilePending,
    now: DateTime<Utc>,
) -> Result<Step, AwsError> {
    use InstanceState::{Pending, Running, ShuttingDown, Stopped, Stopping, Terminated};
    let id = &instance.id;
    match (order, instance.state(now)) {
        (Order::Start, Stopped) => Ok(Step::Up),
        (Order::Start, Pending | Running) => Ok(Step::Stay),
        (Order::Start, Stopping | ShuttingDown | Terminated) => Err(AwsError::wrong_state(id, "started")),
        (Order::Stop, Pending) if !instance.has_run(now) && stop_while_pending == StopWhilePending::Refused => {
            Err(AwsError::new(
                "IncorrectInstanceState",
                format!("Instance '{id}' cannot be stopped as it has never reached the 'running' state."),
            ))
        }
        (Order::Stop, Pending | Running) => Ok(Step::Down),
        (Order::Stop, Stopping | Stopped) => Ok(Step::Stay),
        (Order::Stop, ShuttingDown | Terminated) => Err(AwsError::wrong_state(id, "stopped")),
        (Order::Reboot, Pending | Running) => Ok(Step::Stay),
        (Order::Reboot, Stopping | Stopped | ShuttingDown | Terminated) => Err(AwsError::wrong_state(id, "rebooted")),
        (Order::Terminate, Pending | Running | Stopping | Stopped) => Ok(Step::Out),
        (Order::Terminate, ShuttingDown | Terminated) => Ok(Step::Stay),
    }
}

/// The answer to an order shows the way, not the goal, even where the way takes no time.
fn answered_state(instance: &Instance, step: Step, now: DateTime<Utc>) -> InstanceState {
    match step {
        Step::Stay => instance.state(now),
        Step::Up => InstanceState::Pending,
        Step::Down => InstanceState::Stopping,
        Step::Out => InstanceState::ShuttingDown,
    }
}
