//! Instances by id, by name, and by the worker they belong to.

use std::collections::BTreeSet;

use chrono::DateTime;

use crate::control_plane::{Records, WorkerFilter};
use crate::suggest::did_you_mean;
use crate::world::{AwsError, Ec2, Instance, InstanceState, World};

/// Region and id of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) region: String,
    pub(crate) id: String,
}

/// Finds the instance with this id, or else the only one with this `Name` tag, or else the one of the worker with this id
/// or name. Without a region, all regions are searched. Terminated instances are found by name if no other has it.
///
/// # Errors
/// `InvalidInstanceID.NotFound` with the name that was probably meant, and `InvalidParameterValue` for a name of several
/// instances.
pub(crate) fn find_instance(
    world: &World,
    records: Option<&Records>,
    region: Option<&str>,
    name: &str,
) -> Result<Place, AwsError> {
    let by_id = |id: &str| {
        world.with_ec2(|ec2, now| {
            let names = search(ec2, region);
            Ok::<_, AwsError>(names?.into_iter().find_map(|name| {
                let found = ec2.region(name, now).ok()?.find(id)?;
                Some(Place { region: name.to_owned(), id: found.id.clone() })
            }))
        })
    };
    if let Some(place) = by_id(name)? {
        return Ok(place);
    }
    let all = visible(world, region)?;
    let mut named: Vec<&Candidate> = all.iter().filter(|candidate| candidate.name.as_deref() == Some(name)).collect();
    if named.len() > 1 {
        named.retain(|candidate| candidate.state != InstanceState::Terminated);
    }
    match &*named {
        [only] => return Ok(only.place.clone()),
        [] => {}
        several => {
            let ids: Vec<&str> = several.iter().map(|candidate| candidate.place.id.as_str()).collect();
            let message =
                format!("{} instances are named '{name}': use the id of one, {}", ids.len(), ids.join(" or "));
            return Err(AwsError::new("InvalidParameterValue", message));
        }
    }
    let worker = records.and_then(|records| records.worker(&records.worker_id(name).ok()?).ok());
    match worker.as_ref().map(|worker| worker.instance_id()) {
        Some(Some(id)) => by_id(id)?.ok_or_else(|| AwsError::unknown_instances(&[id])),
        Some(None) => {
            let message = format!("The worker '{name}' has no instance");
            Err(AwsError::new("InvalidInstanceID.NotFound", message))
        }
        None => Err(unknown(name, &all, records)),
    }
}

struct Candidate {
    place: Place,
    name: Option<String>,
    state: InstanceState,
}

/// Returns the regions to search.
fn search(ec2: &mut Ec2, region: Option<&str>) -> Result<Vec<&'static str>, AwsError> {
    match region {
        Some(region) => Ok(vec![ec2.region(region, DateTime::UNIX_EPOCH)?.name]),
        None => Ok(ec2.regions().map(|region| region.name).collect()),
    }
}

fn visible(world: &World, region: Option<&str>) -> Result<Vec<Candidate>, AwsError> {
    world.with_ec2(|ec2, now| {
        let names = search(ec2, region)?;
        let mut found = Vec::new();
        for name in names {
            let candidate = |instance: &Instance| Candidate {
                place: Place { region: name.to_owned(), id: instance.id.clone() },
                name: instance.tags.get("Name").cloned(),
                state: instance.state(now),
            };
            found.extend(ec2.region(name, now)?.instances().map(|instance| candidate(instance)));
        }
        Ok(found)
    })
}

fn unknown(name: &str, all: &[Candidate], records: Option<&Records>) -> AwsError {
    let everything = WorkerFilter { include_terminated: true, ..WorkerFilter::default() };
    let workers = records.map(|records| records.workers(&everything)).unwrap_or_default();
    let instances = all.iter().flat_map(|candidate| [Some(candidate.place.id.as_str()), candidate.name.as_deref()]);
    let workers = workers.iter().flat_map(|worker| [Some(worker.id()), worker.text("name")]);
    let names: BTreeSet<&str> = instances.chain(workers).flatten().collect();
    let mut error = AwsError::unknown_instances(&[name]);
    error.message.push_str(&did_you_mean(name, names));
    error
}
