//! An observation in words, part by part.

use std::time::Duration;

use serde::Serialize;

use super::instance::{Image, Instance};
use super::lookup::Lookup;
use super::observation::Observation;
use super::query::Query;
use super::session::count_active;
use super::time;

/// One lookup and its response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ObservedPart {
    /// The lookup.
    pub query: Query,
    /// The response in short: what was found, `none`, or `unknown: ` and the failure.
    pub found: String,
}

impl Observation {
    /// The lookups that were made, in short.
    pub fn parts(&self) -> Vec<ObservedPart> {
        let part = |query: Query| {
            let found = match query {
                Query::Instance => said(&self.instance, instance),
                Query::Tagged => said(&self.tagged, |found| listed(found, instance)),
                Query::Place => said(&self.place, |place| match &place.caller.account_id {
                    Some(account) => format!("the credentials belong to account {account}"),
                    None => "the account of the credentials is not known".to_owned(),
                }),
                Query::Template => said(&self.template, |template| {
                    let instance_type = template.instance_type.as_deref().unwrap_or("no instance type");
                    format!("{}: {instance_type}, AMI {}", template.name, template.ami_name_pattern)
                }),
                Query::Images => said(&self.images, |images| match Image::newest(images) {
                    Some(newest) => format!("{} AMIs, the newest is {} ({})", images.len(), newest.id, newest.name),
                    None => "no AMI".to_owned(),
                }),
                Query::Sessions => said(&self.sessions, |sessions| {
                    let each = listed(sessions, |session| format!("{} {}", session.id, session.state));
                    format!("{} active; {each}", count_active(sessions))
                }),
                Query::CloudMetrics => said(&self.cloud_metrics, |metrics| {
                    let percent =
                        |value: Option<f64>| value.map_or("not reported".to_owned(), |value| format!("{value:.0} %"));
                    let (cpu, memory) = (percent(metrics.cpu_utilization), percent(metrics.memory_utilization));
                    let bytes =
                        |value: Option<f64>| value.map_or("not reported".to_owned(), |bytes| format!("{bytes:.0} B"));
                    let (received, sent) = (bytes(metrics.network_in_bytes), bytes(metrics.network_out_bytes));
                    let disk = percent(metrics.disk_utilization);
                    format!("CPU {cpu}, memory {memory}, disk {disk}, network in {received}, out {sent}")
                }),
                Query::Cml => said(&self.cml, |cml| {
                    let count = |value: Option<u64>| value.map_or("?".to_owned(), |value| value.to_string());
                    let version = cml.cml_version.as_deref().unwrap_or("of unknown version");
                    format!("CML {version}: {} labs, {} nodes", count(cml.labs_count), count(cml.nodes_count))
                }),
                Query::Registration => said(&self.registration, |registration| registration.raw.clone()),
                Query::Telemetry => said(&self.telemetry, |events| format!("{} events", events.len())),
                Query::Idle => said(&self.idle, |report| {
                    let idle = if report.is_idle { "idle" } else { "in use" };
                    match report.idle_minutes {
                        Some(minutes) => format!("{idle}, {} without activity", time::spoken(duration(minutes))),
                        None => idle.to_owned(),
                    }
                }),
                Query::Fleet => said(&self.fleet, |fleet| format!("{} workers in service", fleet.running)),
            };
            found.map(|found| ObservedPart { query, found })
        };
        Query::ALL.iter().copied().filter_map(part).collect()
    }
}

fn duration(minutes: f64) -> Duration {
    Duration::try_from_secs_f64(minutes * 60.0).unwrap_or_default()
}

fn said<T>(lookup: &Lookup<T>, found: impl FnOnce(&T) -> String) -> Option<String> {
    match lookup {
        Lookup::NotRequested => None,
        Lookup::Found(value) => Some(found(value)),
        Lookup::Absent => Some("none".to_owned()),
        Lookup::Unknown(failure) => Some(format!("unknown: {failure}")),
    }
}

fn listed<T>(items: &[T], each: impl Fn(&T) -> String) -> String {
    /// Number of listed items.
    const SHOWN: usize = 5;
    let mut shown: Vec<String> = items.iter().take(SHOWN).map(each).collect();
    match items.len().saturating_sub(SHOWN) {
        0 if shown.is_empty() => "none".to_owned(),
        0 => shown.join("; "),
        more => {
            shown.push(format!("and {more} more"));
            shown.join("; ")
        }
    }
}

fn instance(instance: &Instance) -> String {
    let Instance { id, state, instance_type, .. } = instance;
    let mut text = format!("{id} is {state}");
    for (before, value) in [(", ", instance_type.as_deref()), (", at ", instance.address())] {
        if let Some(value) = value {
            text += &format!("{before}{value}");
        }
    }
    if let Some(reason) = &instance.state_reason {
        text += &format!(" ({reason})");
    }
    text
}
