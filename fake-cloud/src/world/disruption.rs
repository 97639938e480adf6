//! Trouble that EC2 has or announces: impaired instances, scheduled events, missing capacity, spot interruptions.
//!
//! The admin API sets it, the clock moves it on.

use chrono::{DateTime, TimeDelta, Utc};

use super::World;
use super::catalog::{ZONES, zone_id};
use super::change_feed::InstanceChange;
use super::ec2::{Ec2, Region, later};
use super::error::AwsError;
use super::instance::{Instance, InstanceState, StateCause};
use super::instance_types::checked_type;
use super::options::InterruptionBehavior;
use crate::suggest::did_you_mean;

/// Time between the notice of a spot interruption and the interruption.
const NOTICE: TimeDelta = TimeDelta::minutes(2);

/// Result of a status check that is set from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum CheckResult {
    /// The check fails.
    Impaired,
    /// The check has no data.
    InsufficientData,
}

/// Status checks that are set from outside; `None` follows the state of the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct ImposedChecks {
    /// The check of the host.
    pub system: Option<CheckResult>,
    /// The check of the instance.
    pub instance: Option<CheckResult>,
    /// Time since which they hold.
    pub since: Option<DateTime<Utc>>,
}

/// Kinds of scheduled events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum EventCode {
    /// The instance is rebooted.
    InstanceReboot,
    /// The host is rebooted.
    SystemReboot,
    /// The host is maintained.
    SystemMaintenance,
    /// The instance is stopped for good on this host.
    InstanceRetirement,
    /// The instance is stopped and can be started on another host.
    InstanceStop,
}

impl EventCode {
    /// Returns the code in DescribeInstanceStatus.
    pub fn name(self) -> &'static str {
        match self {
            Self::InstanceReboot => "instance-reboot",
            Self::SystemReboot => "system-reboot",
            Self::SystemMaintenance => "system-maintenance",
            Self::InstanceRetirement => "instance-retirement",
            Self::InstanceStop => "instance-stop",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::InstanceReboot => "The instance is scheduled for a reboot",
            Self::SystemReboot => "The host of the instance is scheduled for a reboot",
            Self::SystemMaintenance => "The host of the instance is scheduled for maintenance",
            Self::InstanceRetirement => "The instance is running on degraded hardware",
            Self::InstanceStop => "The instance is scheduled to be stopped",
        }
    }

    fn stops(self) -> bool {
        match self {
            Self::InstanceRetirement | Self::InstanceStop => true,
            Self::InstanceReboot | Self::SystemReboot | Self::SystemMaintenance => false,
        }
    }
}

/// An event that EC2 has scheduled for an instance.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ScheduledEvent {
    /// Id with the prefix `instance-event-`.
    pub id: String,
    /// Kind of the event.
    pub code: EventCode,
    /// Earliest start.
    pub not_before: DateTime<Utc>,
    /// Latest end.
    pub not_after: DateTime<Utc>,
}

impl ScheduledEvent {
    /// Returns the description, which begins with `[Completed]` once the event is over.
    pub fn description(&self, now: DateTime<Utc>) -> String {
        let done = if now < self.not_after { "" } else { "[Completed] " };
        format!("{done}{}", self.code.description())
    }
}

/// Notice of a spot interruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Interruption {
    /// Time of the notice.
    pub noticed_at: DateTime<Utc>,
    /// Time at which the instance is taken back.
    pub at: DateTime<Utc>,
}

/// Limit on the running instances of a type and zone.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CapacityLimit {
    /// Instance type; `None` for all types.
    pub instance_type: Option<String>,
    /// Availability zone; `None` for all zones.
    pub availability_zone: Option<String>,
    /// Number of instances that can be pending or running at the same time.
    pub instances: usize,
}

impl CapacityLimit {
    fn covers(&self, instance_type: &str, zone: &str) -> bool {
        self.instance_type.as_deref().is_none_or(|own| own == instance_type)
            && self.availability_zone.as_deref().is_none_or(|own| own == zone)
    }
}

impl Region {
    /// Returns the number of instances of a type that can still be started in a zone.
    pub(super) fn free_capacity(&self, instance_type: &str, zone: &str, now: DateTime<Utc>) -> usize {
        let limits = self.capacity.iter().filter(|limit| limit.covers(instance_type, zone));
        let free = limits.map(|limit| {
            let uses = |instance: &Instance| {
                limit.covers(&instance.instance_type, &instance.availability_zone)
                    && matches!(instance.state(now), InstanceState::Pending | InstanceState::Running)
            };
            limit.instances.saturating_sub(self.instances().filter(|instance| uses(instance)).count())
        });
        free.min().unwrap_or(usize::MAX)
    }
}

/// Returns the error of a launch or start without capacity.
pub(super) fn no_capacity(instance_type: &str, zone: &str) -> AwsError {
    let message = format!(
        "We currently do not have sufficient {instance_type} capacity in the Availability Zone you requested ({zone}). Our \
         system will be working on provisioning additional capacity."
    );
    AwsError::new("InsufficientInstanceCapacity", message)
}

impl Ec2 {
    /// Applies interruptions and events that are due, at the time at which they were due.
    pub(super) fn settle(&mut self, now: DateTime<Utc>) {
        while self.due.first().is_some_and(|(at, _, _)| *at <= now) {
            let Some((at, region, sequence)) = self.due.pop_first() else { return };
            self.disrupt(region, sequence, at);
        }
    }

    fn disrupt(&mut self, region: &'static str, sequence: u64, at: DateTime<Utc>) {
        let delays = self.delays;
        let Ok(region_state) = self.region(region, at) else { return };
        let Some(instance) = region_state.find_by_sequence(sequence) else { return };
        if !matches!(instance.state(at), InstanceState::Pending | InstanceState::Running) {
            return;
        }
        let interruption = instance.extra.interruption.filter(|interruption| interruption.at == at);
        let behavior = instance.options.spot().map(|spot| spot.interruption);
        match (interruption, behavior) {
            (Some(_), Some(InterruptionBehavior::Terminate)) => {
                let terminated_at = later(at, delays.terminating);
                region_state.terminate(sequence, at, terminated_at, StateCause::SpotInterruption);
                region_state.expirations.insert((later(terminated_at, delays.terminated_visible), sequence));
            }
            (Some(_), Some(InterruptionBehavior::Stop | InterruptionBehavior::Hibernate)) => {
                let stopped_at = later(at, delays.stopping);
                region_state.change(sequence, |instance| instance.stop(at, stopped_at, StateCause::SpotInterruption));
            }
            (Some(_) | None, _) => {
                let stops = instance.extra.events.iter().any(|event| event.not_before == at && event.code.stops());
                if !stops {
                    return;
                }
                let stopped_at = later(at, delays.stopping);
                region_state.change(sequence, |instance| instance.stop(at, stopped_at, StateCause::ScheduledStop));
            }
        }
        self.changed.push(InstanceChange { region, sequence });
    }
}

impl World {
    fn disturb<T>(
        &self,
        region: &str,
        instance: &str,
        change: impl FnOnce(&mut Ec2, &mut Instance, DateTime<Utc>) -> Result<T, AwsError>,
    ) -> Result<T, AwsError> {
        self.with_ec2(|ec2, now| {
            let found = ec2.region(region, now)?.find(instance).cloned();
            let found = found.ok_or_else(|| AwsError::unknown_instances(&[instance]))?;
            let mut changed = (*found).clone();
            let result = change(ec2, &mut changed, now)?;
            let state = ec2.region(region, now)?;
            let (region, sequence) = (state.name, changed.sequence);
            state.change(sequence, |instance| *instance = changed);
            // Servers of the instance set their timers anew.
            ec2.changed.push(InstanceChange { region, sequence });
            Ok(result)
        })
    }

    /// Sets the status checks of an instance; `ImposedChecks::default()` lets them follow its state again.
    ///
    /// # Errors
    /// An unknown region or instance.
    pub fn console_set_checks(&self, region: &str, instance: &str, checks: ImposedChecks) -> Result<(), AwsError> {
        self.disturb(region, instance, |_, instance, now| {
            instance.extra_mut().checks = ImposedChecks { since: Some(now), ..checks };
            Ok(())
        })
    }

    /// Schedules an event for an instance. Retirement and stop events stop the instance when they are due.
    ///
    /// # Errors
    /// An unknown region or instance.
    pub fn console_schedule_event(
        &self,
        region: &str,
        instance: &str,
        code: EventCode,
        not_before: DateTime<Utc>,
        not_after: DateTime<Utc>,
    ) -> Result<ScheduledEvent, AwsError> {
        self.disturb(region, instance, |ec2, instance, now| {
            let id = ec2.rng.id("instance-event");
            let event = ScheduledEvent { id, code, not_before, not_after };
            instance.extra_mut().events.push(event.clone());
            let region = ec2.region(region, now)?.name;
            ec2.due.insert((not_before, region, instance.sequence));
            Ok(event)
        })
    }

    /// Announces that a spot instance is taken back two minutes after `at`, and returns that time.
    ///
    /// # Errors
    /// An unknown region or instance; `InvalidParameterCombination` for an instance that is not on the spot market.
    pub fn console_interrupt_spot(
        &self,
        region: &str,
        instance: &str,
        at: Option<DateTime<Utc>>,
    ) -> Result<DateTime<Utc>, AwsError> {
        self.disturb(region, instance, |ec2, instance, now| {
            check_spot(instance)?;
            let noticed_at = at.unwrap_or(now).max(now);
            let at = noticed_at + NOTICE;
            instance.extra_mut().interruption = Some(Interruption { noticed_at, at });
            let region = ec2.region(region, now)?.name;
            ec2.due.insert((at, region, instance.sequence));
            Ok(at)
        })
    }

    /// Recommends to replace a spot instance.
    ///
    /// # Errors
    /// The errors of [`World::console_interrupt_spot`].
    pub fn console_recommend_rebalance(
        &self,
        region: &str,
        instance: &str,
        at: Option<DateTime<Utc>>,
    ) -> Result<DateTime<Utc>, AwsError> {
        self.disturb(region, instance, |_, instance, now| {
            check_spot(instance)?;
            let at = at.unwrap_or(now).max(now);
            instance.extra_mut().rebalance_at = Some(at);
            Ok(at)
        })
    }

    /// Limits the capacity of a type and zone; `None` removes the limit of exactly this type and zone.
    ///
    /// # Errors
    /// An unknown region, type or zone.
    pub fn console_set_capacity(
        &self,
        region: &str,
        instance_type: Option<String>,
        availability_zone: Option<String>,
        instances: Option<usize>,
    ) -> Result<(), AwsError> {
        if let Some(name) = &instance_type {
            checked_type(name)?;
        }
        self.with_ec2(|ec2, now| {
            let region = ec2.region(region, now)?;
            if let Some(zone) = &availability_zone
                && zone_id(region.name, zone).is_none()
            {
                let zones = ZONES.map(|letter| format!("{}{letter}", region.name));
                let hint = did_you_mean(zone, zones.iter().map(String::as_str));
                let message = format!("Invalid availability zone: [{zone}]; accepted: {}{hint}", zones.join(", "));
                return Err(AwsError::new("InvalidParameterValue", message));
            }
            let limits = &mut region.capacity;
            limits.retain(|limit| limit.instance_type != instance_type || limit.availability_zone != availability_zone);
            limits.extend(instances.map(|instances| CapacityLimit { instance_type, availability_zone, instances }));
            Ok(())
        })
    }
}

fn check_spot(instance: &Instance) -> Result<(), AwsError> {
    let id = &instance.id;
    let refusal =
        || AwsError::new("InvalidParameterCombination", format!("The instance '{id}' is not a spot instance"));
    instance.options.spot().map(|_| ()).ok_or_else(refusal)
}
