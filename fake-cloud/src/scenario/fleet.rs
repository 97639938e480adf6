//! Launches the instances of a scenario in the past and brings them to their states.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use super::{InstanceEntry, InstanceState, Scenario, ScenarioError};
use crate::world::{AwsError, Delays, Ec2, InstanceAction, Intent, LaunchRequest, REGIONS, View, World};

/// Launched instance that workers refer to by name.
#[derive(Debug, Clone)]
pub(super) struct LaunchedInstance {
    pub(super) id: String,
    pub(super) region: String,
}

/// Launches the fleet. Returns the instances by name.
pub(super) fn launch(scenario: &Scenario, world: &World) -> Result<BTreeMap<String, LaunchedInstance>, ScenarioError> {
    let delays = world.settings().delays;
    let mut launched = BTreeMap::new();
    for (index, machine) in scenario.script.fleet.iter().enumerate() {
        if !REGIONS.contains(&machine.region.as_str()) {
            let why = format!("unknown region {:?}; accepted: {}", machine.region, REGIONS.join(", "));
            return Err(scenario.error(format!("fleet[{index}].region"), why));
        }
        if launched.contains_key(&machine.name) {
            let why = format!("duplicate instance name {:?}; accepted: a unique name", machine.name);
            return Err(scenario.error(format!("fleet[{index}].name"), why));
        }
        let id = world
            .with_ec2(|ec2, now| launch_instance(ec2, machine, &delays, now))
            .map_err(|error| scenario.error(format!("fleet[{index}]"), error))?;
        launched.insert(machine.name.clone(), LaunchedInstance { id, region: machine.region.clone() });
    }
    Ok(launched)
}

fn launch_instance(
    ec2: &mut Ec2,
    machine: &InstanceEntry,
    delays: &Delays,
    now: DateTime<Utc>,
) -> Result<String, AwsError> {
    let ago = |span: std::time::Duration| now - TimeDelta::from_std(span).unwrap_or_default();
    // The order is given early enough to reach the state now, the launch early enough to precede the order.
    let (order, launched) = match machine.state {
        InstanceState::Pending => (None, now),
        InstanceState::Running => (None, ago(delays.starting)),
        InstanceState::Stopping => (Some((InstanceAction::Stop, now)), ago(delays.starting)),
        InstanceState::Stopped => {
            (Some((InstanceAction::Stop, ago(delays.stopping))), ago(delays.starting + delays.stopping))
        }
        InstanceState::ShuttingDown => (Some((InstanceAction::Terminate, now)), ago(delays.starting)),
        InstanceState::Terminated => {
            (Some((InstanceAction::Terminate, ago(delays.terminating))), ago(delays.starting + delays.terminating))
        }
    };
    let launched = match machine.state {
        InstanceState::Pending => launched,
        InstanceState::Running
        | InstanceState::Stopping
        | InstanceState::Stopped
        | InstanceState::ShuttingDown
        | InstanceState::Terminated => launched.min(machine.age.before(now)),
    };
    let images = &ec2.region(&machine.region, launched)?.catalog.images;
    let image = images.last().map(|image| image.id.clone()).unwrap_or_default();
    let mut request = LaunchRequest::new(image);
    request.instance_type = machine.instance_type.clone().unwrap_or(request.instance_type);
    request.tags = machine.tags.clone().into_iter().collect();
    if !machine.tags.contains_key("Name") {
        request.tags.push(("Name".to_owned(), machine.name.clone()));
    }
    let launch = ec2.launch(&machine.region, request, Intent::Execute, launched)?;
    let id = launch.instances.first().map(|instance| instance.id.clone()).unwrap_or_default();
    if let Some((order, at)) = order {
        ec2.change_state(&machine.region, std::slice::from_ref(&id), order, Intent::Execute, &View::default(), at)?;
    }
    Ok(id)
}
