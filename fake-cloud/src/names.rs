//! Instances by id, by name, and by the worker they belong to.

use std::collections::BTreeSet;

use chrono::DateTime;
use serde_json::Value;

use crate::control_plane::{Object, Records, WorkerFilter};
use crate::operations;
use crate::service::Service;
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

/// Returns the resource that a fault rule or a filter of the request log means, by the id that requests carry: an instance by
/// its id or `Name` tag, a worker by its id or name, a session or a template. For a service of AWS and for CML a worker
/// stands for its instance. Without a service, that of the operation counts.
///
/// # Errors
/// A message with the name that was probably meant. A text with the form of an id, an etcd key and the subject of a logged
/// request are accepted as they are.
pub(crate) fn find_subject(
    world: &World,
    records: Option<&Records>,
    (service, operation): (Option<Service>, Option<&str>),
    text: &str,
) -> Result<String, String> {
    if text.contains(',') {
        let parts = text.split(',').map(|part| find_subject(world, records, (service, operation), part));
        return Ok(parts.collect::<Result<Vec<_>, _>>()?.join(","));
    }
    let service = service.or_else(|| operations::only_service(operation?));
    let of_worker = || records?.worker_id(text).ok();
    let is_of_records = matches!(service, Some(Service::ControlPlane | Service::Etcd));
    if let Some(id) = is_of_records.then(of_worker).flatten() {
        return Ok(id);
    }
    // Without a service, a worker may be meant by its id: requests to the control plane carry it.
    let of_instances = records.filter(|_| service.is_some() && !is_of_records);
    let problem = match find_instance(world, of_instances, None, text) {
        Ok(place) => return Ok(place.id),
        Err(problem) => problem,
    };
    if let Some(id) = of_worker().filter(|_| of_instances.is_none()) {
        return Ok(id);
    }
    let is_record = |records: &Records| {
        let is_template = |template: &Object| template.get("name").and_then(Value::as_str) == Some(text);
        records.session(text).is_ok() || records.templates().iter().any(is_template)
    };
    let is_known = records.is_some_and(is_record);
    let is_ambiguous = problem.code == "InvalidParameterValue";
    let has_instance_problem = is_ambiguous || (of_instances.is_some() && of_worker().is_some());
    if !has_instance_problem && (is_known || is_id(text) || world.request_log().has_subject(text)) {
        return Ok(text.to_owned());
    }
    if has_instance_problem {
        return Err(problem.message);
    }
    let hint = did_you_mean(text, names(&visible(world, None).unwrap_or_default(), records).iter().map(String::as_str));
    Err(format!("no instance, worker, session or template '{text}'{hint}"))
}

/// Whether a text has the form of an id, such as `i-0abc`, `w-1` or a UUID, or of an etcd key.
fn is_id(text: &str) -> bool {
    let is_hexadecimal = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let has_prefix = text.rsplit_once('-').is_some_and(|(prefix, number)| {
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
        !prefix.is_empty() && prefix.bytes().all(is_word) && is_hexadecimal(number)
    });
    let is_uuid = text.len() == 36 && text.split('-').all(is_hexadecimal);
    has_prefix || is_uuid || text.contains('/')
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
    let mut error = AwsError::unknown_instances(&[name]);
    error.message.push_str(&did_you_mean(name, names(all, records).iter().map(String::as_str)));
    error
}

/// Returns the ids and names of instances and workers.
fn names(all: &[Candidate], records: Option<&Records>) -> BTreeSet<String> {
    let everything = WorkerFilter { include_terminated: true, ..WorkerFilter::default() };
    let workers = records.map(|records| records.workers(&everything)).unwrap_or_default();
    let instances = all.iter().flat_map(|candidate| [Some(candidate.place.id.as_str()), candidate.name.as_deref()]);
    let workers = workers.iter().flat_map(|worker| [Some(worker.id()), worker.text("name")]);
    instances.chain(workers).flatten().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_told_from_names() {
        for id in ["i-0abc", "w-1", "s-12", "subnet-0af", "7b9e5f0a-1111-4222-8333-abcdefabcdef", "/workers/w-1"] {
            assert!(is_id(id), "{id}");
        }
        for name in ["blue", "bleu", "blue-team", "w-bleu", "", "-1"] {
            assert!(!is_id(name), "{name}");
        }
    }
}
