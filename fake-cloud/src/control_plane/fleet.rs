//! Operations on the whole fleet: listing, creation and import.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::enums;
use super::error::ApiError;
use super::input::Input;
use super::records::{Records, State};
use super::reports::declared_capacity;
use super::worker::Worker;

/// Filter of a worker listing.
#[derive(Debug, Clone, Default)]
pub struct WorkerFilter {
    /// Included statuses; all if empty.
    pub statuses: Vec<&'static str>,
    /// Excluded statuses. Ignored by servers without this filter.
    pub exclude_statuses: Vec<&'static str>,
    /// Includes only workers of this region.
    pub aws_region: Option<String>,
    /// Includes terminated workers, which are otherwise listed only when requested by status.
    pub include_terminated: bool,
}

impl Records {
    /// Workers that match a filter, ordered by id.
    pub fn workers(&self, filter: &WorkerFilter) -> Vec<Arc<Worker>> {
        let excludes = self.settings().generation.is_extended();
        let passes = |worker: &Worker| {
            let status = worker.status();
            let wanted = filter.statuses.is_empty() || filter.statuses.contains(&status);
            let hidden = status == "terminated" && !filter.include_terminated && filter.statuses.is_empty();
            let excluded = excludes && filter.exclude_statuses.contains(&status);
            let region = filter.aws_region.as_deref().is_none_or(|region| worker.text("aws_region") == Some(region));
            wanted && !hidden && !excluded && region
        };
        self.read(|state| state.workers.values().filter(|worker| passes(worker)).cloned().collect())
    }

    /// Creates a worker from the fields of a request. The status defaults to `pending`.
    ///
    /// # Errors
    /// 409 if the id is in use, 422 for an invalid field.
    pub fn create_worker(&self, input: Input) -> Result<Arc<Worker>, ApiError> {
        let generation = self.settings().generation;
        self.write(|state, now| {
            let worker = Worker::from_input(input, state.ids.new_id(), now, generation)?;
            if state.workers.contains_key(worker.id()) {
                return Err(ApiError::Exists { kind: "worker", id: worker.id().to_owned() });
            }
            state.add_event("cml_worker.created.v1", Some(worker.id()), json!({"status": worker.status()}), now);
            Ok(self.put_worker(state, worker))
        })
    }

    /// Stores a record exactly as given, even if it is invalid, for tests of its readers.
    ///
    /// # Errors
    /// 422 without an id.
    pub fn insert_raw(&self, fields: Map<String, Value>) -> Result<Arc<Worker>, ApiError> {
        let worker = Worker::from_raw(fields, self.settings().generation)?;
        Ok(self.write(|state, _| self.put_worker(state, worker)))
    }

    /// Requests one more worker of a template.
    ///
    /// # Errors
    /// 404 for an unknown template, 409 for a disabled one (both add an audit entry), 422 for an invalid field.
    pub fn scale_up(&self, input: &Input) -> Result<Arc<Worker>, ApiError> {
        let field = if input.has("template_name") { "template_name" } else { "template" };
        let name = input.required_text(field, "the name of a template")?.to_owned();
        let reason = input.text("reason")?.unwrap_or("scale_up").to_owned();
        let region = input.text("aws_region")?.unwrap_or("us-east-1").to_owned();
        let worker_name = input.text("name")?.map(str::to_owned);
        let generation = self.settings().generation;
        self.write(|state, now| {
            let judged = match state.templates.get(&name) {
                None => Err(ApiError::NotFound { kind: "worker template", id: name.clone() }),
                Some(template) if template.get("enabled") == Some(&Value::Bool(false)) => Err(ApiError::WrongState {
                    action: "scale up",
                    current: "template disabled".into(),
                    accepted: "an enabled template".into(),
                }),
                Some(template) => Ok(Arc::clone(template)),
            };
            let audit = |state: &mut State, action: &str, worker: Option<&str>| {
                let entry = json!({"action": action, "worker_id": worker, "template_name": name, "reason": reason});
                if let Value::Object(entry) = entry {
                    state.add_audit_entry(entry, now);
                }
            };
            let template = judged.inspect_err(|_| audit(state, "scale_up_rejected", None))?;
            let id = state.ids.new_id();
            let fields = json!({
                "id": id, "name": worker_name.unwrap_or_else(|| format!("{name}-{}", &id[..8])),
                "template_name": name, "template_id": template.get("id"), "aws_region": region,
                "instance_type": template.get("instance_type"), "desired_status": "running", "origin": "scale_up",
                "declared_capacity": declared_capacity(&template),
            });
            let worker = Worker::from_input(Input::from_value(fields)?, id.clone(), now, generation)?;
            audit(state, "scale_up_accepted", Some(&id));
            state.add_event("cml_worker.created.v1", Some(&id), json!({"status": "pending"}), now);
            Ok(self.put_worker(state, worker))
        })
    }

    /// Imports discovered instances. Unknown ones become workers; known ones are overwritten.
    ///
    /// # Errors
    /// 422 for an invalid entry; in this case nothing is imported.
    pub fn bulk_import(&self, input: &Input) -> Result<Value, ApiError> {
        let region = input.required_text("aws_region", "an AWS region")?.to_owned();
        let source = input.text("source")?.unwrap_or("ec2_discovery").to_owned();
        let list = input
            .list("discovered_instances")?
            .ok_or_else(|| ApiError::missing("discovered_instances", "a list of {instance_id, state, …}"))?;
        let found = parse_discovered(list)?;
        Ok(self.write(|state, now| {
            let mut known: BTreeMap<String, Arc<Worker>> = state
                .workers
                .values()
                .filter_map(|worker| Some((worker.instance_id()?.to_owned(), Arc::clone(worker))))
                .collect();
            let [mut imported, mut skipped, mut updated] = [const { Vec::<Value>::new() }; 3];
            for instance in found {
                if let Some(worker) = known.get(&instance.id).cloned() {
                    let outcome = json!({"instance_id": instance.id, "worker_id": worker.id()});
                    if worker.status() == "terminated" {
                        skipped.push(with_reason(outcome, "already known"));
                    } else {
                        let mut rewritten = (*worker).clone();
                        instance.describe(&mut rewritten);
                        if rewritten == *worker {
                            skipped.push(with_reason(outcome, "already up to date"));
                        } else {
                            self.touch(&mut rewritten, now);
                            self.put_imported(state, rewritten);
                            updated.push(outcome);
                        }
                    }
                    continue;
                }
                let id = state.ids.new_id();
                let name = instance.name.clone().unwrap_or_else(|| format!("discovered-{}", instance.id));
                let fields = json!({
                    "id": id, "name": name, "aws_region": region, "origin": "ec2_discovery", "created_by": source,
                    "ec2_instance_id": instance.id, "launched_at": instance.launch_time,
                });
                let created = Input::from_value(fields)
                    .and_then(|fields| Worker::from_input(fields, id.clone(), now, self.settings().generation));
                let Ok(mut worker) = created else { continue };
                instance.describe(&mut worker);
                state.add_event("cml_worker.imported.v1", Some(&id), json!({"ec2_instance_id": instance.id}), now);
                imported.push(json!({"instance_id": instance.id, "worker_id": id}));
                known.insert(instance.id.clone(), self.put_imported(state, worker));
            }
            json!({
                "total_found": list.len(), "total_imported": imported.len(), "total_skipped": skipped.len(),
                "total_updated": updated.len(), "imported": imported, "skipped": skipped, "updated": updated,
            })
        }))
    }
}

struct Discovered {
    id: String,
    state: String,
    name: Option<String>,
    launch_time: Value,
    details: [(&'static str, Value); 4],
}

impl Discovered {
    fn describe(&self, worker: &mut Worker) {
        worker.set("status", enums::status_from_instance_state(&self.state));
        for (field, value) in &self.details {
            worker.set(field, value.clone());
        }
        let public = worker.get("public_ip").filter(|value| !value.is_null());
        let address = public.or_else(|| worker.get("private_ip")).cloned().unwrap_or_default();
        worker.set("ip_address", address);
    }
}

fn parse_discovered(list: &[Value]) -> Result<Vec<Discovered>, ApiError> {
    let read = |(index, value): (usize, &Value)| {
        let item = Input::from_list_item("discovered_instances", index, value.clone())?;
        let text = |field: &str| Ok(item.text(field)?.map_or(Value::Null, Value::from));
        item.time("launch_time")?;
        Ok(Discovered {
            id: item.required_text("instance_id", "an EC2 instance id")?.to_owned(),
            state: item.required_text("state", "an EC2 instance state")?.to_owned(),
            name: item.text("name")?.map(str::to_owned),
            launch_time: text("launch_time")?,
            details: [
                ("public_ip", text("public_ip")?),
                ("private_ip", text("private_ip")?),
                ("instance_type", text("instance_type")?),
                ("ami_id", text("image_id")?),
            ],
        })
    };
    list.iter().enumerate().map(read).collect()
}

fn with_reason(mut outcome: Value, reason: &str) -> Value {
    outcome["reason"] = reason.into();
    outcome
}
