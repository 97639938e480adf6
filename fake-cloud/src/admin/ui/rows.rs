//! Parts of the state in the compact form that the console shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value, json};

use super::super::AdminState;
use super::{MAX_VALUE, all_workers};
use crate::cml::CmlServers;
use crate::control_plane::{SessionFilter, Worker};
use crate::etcd::{EtcdStore, KeyRange, Range, Record};
use crate::request_log::REDACTED;
use crate::snapshot::is_secret;
use crate::world::{Instance, InstanceState, Lifecycle, World, mix};

/// Number of fields of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// The fields that a list shows.
    Row,
    /// All fields that the console shows.
    Full,
}

/// Returns the row of a worker: its status now and before.
pub(super) fn worker(worker: &Worker) -> Value {
    let at = |value: Option<&Value>| {
        let time = value.and_then(Value::as_str).and_then(|text| DateTime::parse_from_rfc3339(text).ok());
        time.map(|time| time.timestamp_millis())
    };
    let changes = worker.get("state_history").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let first = changes.first().and_then(|change| change["from"].as_str()).unwrap_or_else(|| worker.status());
    let began = at(worker.get("created_at")).map(|at| json!([at, first]));
    let moves = changes.iter().filter_map(|change| Some(json!([at(change.get("at"))?, change["to"]])));
    json!({
        "name": worker.text("name"),
        "status": worker.status(),
        "desired_status": worker.desired(),
        "aws_region": worker.text("aws_region"),
        "ec2_instance_id": worker.instance_id(),
        "template_name": worker.text("template_name"),
        "statuses": began.into_iter().chain(moves).collect::<Vec<_>>(),
    })
}

/// Returns the row of an instance: its state now and before.
pub(super) fn instance(region: &str, instance: &Instance, now: DateTime<Utc>, detail: Detail) -> Value {
    let mut row = json!({
        "id": instance.id,
        "region": region,
        "state": instance.state(now).name(),
        "type": &*instance.instance_type,
        "public_ip": instance.public_ip(now),
        "private_ip": instance.private_ip,
        "tags": &*instance.tags,
        "history": history(instance, now),
    });
    if detail == Detail::Full {
        row["image"] = json!(&*instance.image_id);
        row["launched_at"] = json!(instance.launched_at);
        row["client_token"] = json!(instance.client_token.as_deref());
    }
    row
}

/// The states of an instance with the time at which each began. A start before the last one shows no `pending`, and a
/// stop no `stopping`: their ends are not kept.
fn history(instance: &Instance, now: DateTime<Utc>) -> Vec<(i64, &'static str)> {
    let mut states: BTreeMap<DateTime<Utc>, InstanceState> = BTreeMap::new();
    states.insert(instance.created_at, InstanceState::Pending);
    for run in &instance.runs {
        states.insert(run.from, InstanceState::Running);
        if let Some(until) = run.until {
            states.insert(until, InstanceState::Stopped);
        }
    }
    match instance.lifecycle {
        Lifecycle::Running { running_at } => {
            states.insert(instance.launched_at, InstanceState::Pending);
            states.insert(running_at, InstanceState::Running);
        }
        Lifecycle::Stopping { requested_at, stopped_at } => {
            states.insert(requested_at, InstanceState::Stopping);
            states.insert(stopped_at, InstanceState::Stopped);
        }
        Lifecycle::Terminating { requested_at, terminated_at } => {
            states.insert(requested_at, InstanceState::ShuttingDown);
            states.insert(terminated_at, InstanceState::Terminated);
        }
    }
    let reached = states.into_iter().filter(|(at, _)| *at <= now);
    reached.map(|(at, state)| (at.timestamp_millis(), state.name())).collect()
}

/// Returns the rows of all CML servers by instance.
pub(super) fn cml(servers: &CmlServers) -> BTreeMap<String, Value> {
    let rows = servers.to_json();
    let rows = rows.as_array().into_iter().flatten();
    rows.filter_map(|row| Some((row["instance"].as_str()?.to_owned(), row.clone()))).collect()
}

/// Returns a key of etcd with its value.
pub(super) fn key(record: &Record) -> Value {
    let value = match serde_json::from_slice::<Value>(&record.value) {
        Ok(value @ (Value::Object(_) | Value::Array(_))) => without_secrets(&value).to_string(),
        Ok(_) | Err(_) => String::from_utf8_lossy(&record.value).into_owned(),
    };
    let value = match value.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value,
    };
    json!({
        "key": String::from_utf8_lossy(&record.key),
        "value": value,
        "mod_revision": record.mod_revision,
        "version": record.version,
        "lease": (record.lease != 0).then(|| format!("{:x}", record.lease)),
    })
}

/// Returns a range of keys as text.
pub(super) fn range(keys: &KeyRange) -> String {
    let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    match keys {
        KeyRange::One(key) => text(key),
        KeyRange::Between(from, _) if *keys == KeyRange::prefix(from.clone()) => format!("{}*", text(from)),
        KeyRange::Between(from, to) => format!("{} to {}", text(from), text(to)),
        KeyRange::From(from) if from.as_ref() == [0] => "all keys".to_owned(),
        KeyRange::From(from) => format!("from {}", text(from)),
    }
}

/// Returns a value in which the values of secret fields are replaced, at any depth.
pub(super) fn without_secrets(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let shown = fields.iter().map(|(name, value)| {
                let hidden = is_secret(name) && !value.is_null() && *value != "";
                (name.clone(), if hidden { REDACTED.into() } else { without_secrets(value) })
            });
            Value::Object(shown.collect::<Map<String, Value>>())
        }
        Value::Array(values) => values.iter().map(without_secrets).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// The next change that follows from time alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NextEvent {
    pub(super) at: DateTime<Utc>,
    pub(super) what: String,
}

/// Returns the next change of an instance or a session, or the next step of the scenario; none if nothing is due.
///
/// Leases of etcd are left out: a controller that lives renews its own.
pub(super) fn next_event(state: &AdminState) -> Option<NextEvent> {
    let instance = state.world.with_ec2(|ec2, now| {
        let all = ec2.regions().flat_map(crate::world::Region::instances);
        let due = all.filter_map(|instance| {
            let (at, name) = match instance.lifecycle {
                Lifecycle::Running { running_at } => (running_at, "running"),
                Lifecycle::Stopping { stopped_at, .. } => (stopped_at, "stopped"),
                Lifecycle::Terminating { terminated_at, .. } => (terminated_at, "terminated"),
            };
            let change = (at > now).then_some((at, name));
            let disruption = instance.next_disruption(now).map(|at| (at, "disrupted"));
            let (at, name) = change.into_iter().chain(disruption).min()?;
            Some((at, instance.id.clone(), name))
        });
        due.min().map(|(at, id, name)| (NextEvent { at, what: format!("{id} is {name}") }, now))
    });
    let now = instance.as_ref().map_or_else(|| state.world.clock().now(), |(_, now)| *now);
    let session = state.services.as_ref().and_then(|services| {
        let sessions = services.records.sessions(&SessionFilter::default());
        let due = sessions.iter().flat_map(|session| {
            let text = |field: &str| session.get(field).and_then(Value::as_str);
            let id = text("id").unwrap_or_default().to_owned();
            [("timeslot_start", "begins"), ("timeslot_end", "ends")].into_iter().filter_map(move |(field, what)| {
                let at = DateTime::parse_from_rfc3339(text(field)?).ok()?.to_utc();
                (at > now).then(|| (at, format!("session {id} {what}")))
            })
        });
        due.min().map(|(at, what)| NextEvent { at, what })
    });
    let step = state.services.as_ref().and_then(|services| services.timeline.first());
    // A step that is due already is taken by the next move of the clock.
    let step = step.filter(|step| step.at() > now).map(|step| NextEvent { at: step.at(), what: step.title() });
    instance.map(|(event, _)| event).into_iter().chain(session).chain(step).min_by_key(|event| event.at)
}

/// Returns a number that changes with the instances that are no longer described.
pub(super) fn gone(world: &World) -> u64 {
    world.with_ec2(|ec2, _| {
        let newest = ec2.regions().filter_map(crate::world::Region::newest_gone);
        newest.fold(0, |all, (at, sequence)| all ^ mix(at.timestamp_millis() as u64 ^ mix(sequence)))
    })
}

/// Returns the instances that are no longer described, by id, with their states and the time until which they were.
pub(super) fn past(world: &World) -> Value {
    let gone = world.with_ec2(|ec2, _| {
        let all = ec2.regions().flat_map(|region| region.gone().map(|(at, gone)| (region.name, *at, Arc::clone(gone))));
        all.collect::<Vec<_>>()
    });
    let rows = gone.iter().map(|(region, at, gone)| {
        let mut row = instance(region, gone, *at, Detail::Row);
        row["owner"] = json!(gone.tags.get("lcm:worker_id"));
        row["until"] = json!(at.timestamp_millis());
        (gone.id.clone(), row)
    });
    Value::Object(rows.collect())
}

/// Returns the leaders of the fleet: the oldest key of each election, as a controller writes it, with its lease.
pub(super) fn leaders(etcd: &EtcdStore) -> Value {
    let found = etcd.range(&Range::new(KeyRange::prefix(""))).map(|found| found.records).unwrap_or_default();
    let leaders = found.iter().filter_map(|record| {
        let key = std::str::from_utf8(&record.key).ok()?;
        let election = key.strip_suffix("/leader")?;
        let lease = etcd.lease_status(record.lease)?;
        let shard = election.split_once("/shards/").and_then(|(_, place)| place.split_once('/'));
        Some(json!({
            "key": key,
            "leader": String::from_utf8_lossy(&record.value),
            "shard": shard.map(|(count, number)| format!("shard {number} of {count}")),
            "token": record.create_revision,
            "lease": format!("{:x}", record.lease),
            "seconds": lease.granted_ttl,
        }))
    });
    leaders.collect()
}

/// Returns all workers with the address of each record, to notice changes.
pub(super) fn workers(state: &AdminState) -> Vec<std::sync::Arc<Worker>> {
    state.services.as_ref().map(|services| services.records.workers(&all_workers())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_at_any_depth() {
        let record = json!({
            "cml_password": "hunter2", "cml_username": "admin", "client_token": "lcm-1", "name": "blue",
            "license": {"token": "abc", "pending_token": null, "status": "registered"},
            "list": [{"api_key": "k", "ok": 1}],
        });
        let shown = without_secrets(&record);
        assert_eq!(shown["cml_password"], REDACTED);
        assert_eq!(shown["license"], json!({"token": REDACTED, "pending_token": null, "status": "registered"}));
        assert_eq!(shown["list"][0], json!({"api_key": REDACTED, "ok": 1}));
        assert_eq!((&shown["client_token"], &shown["name"]), (&json!("lcm-1"), &json!("blue")));
    }

    #[test]
    fn ranges_are_named() {
        let between = KeyRange::Between("/a".into(), "/c".into());
        let named = [KeyRange::One("/a".into()), KeyRange::prefix("/a/"), KeyRange::prefix(""), between];
        assert_eq!(named.each_ref().map(range), ["/a", "/a/*", "all keys", "/a to /c"]);
    }
}
