//! Templates, discovery settings, the scaling audit and the events.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::input::{Input, format_time};
use super::records::{Object, Records};

impl Records {
    /// All templates, ordered by name.
    pub fn templates(&self) -> Vec<Object> {
        self.read(|state| state.templates.values().cloned().collect())
    }

    /// The template with this name.
    ///
    /// # Errors
    /// 404 for an unknown template.
    pub fn template(&self, name: &str) -> Result<Object, ApiError> {
        let found = self.read(|state| state.templates.get(name).cloned());
        found.ok_or_else(|| ApiError::NotFound { kind: "worker template", id: name.to_owned() })
    }

    /// Adds a template or replaces the one with the same name. Omitted fields get the server's defaults.
    ///
    /// # Errors
    /// 422 for an invalid field.
    pub fn put_template(&self, input: Input) -> Result<Object, ApiError> {
        let name = input.required_text("name", "a unique name")?.to_owned();
        input.required_text("instance_type", "an EC2 instance type")?;
        input.text("ami_name_pattern")?;
        input.object("capacity")?;
        Ok(self.write(|state, now| {
            let mut template = Map::from_iter([
                ("id".to_owned(), Value::from(format!("template-{name}"))),
                ("ami_name_pattern".to_owned(), "cisco-cml2.9*".into()),
                ("drain_timeout_hours".to_owned(), 4.into()),
                ("startup_time_minutes".to_owned(), 20.into()),
                ("enabled".to_owned(), true.into()),
                ("deleted".to_owned(), false.into()),
                ("created_at".to_owned(), format_time(now)),
            ]);
            template.extend(input.into_fields());
            template.insert("updated_at".into(), format_time(now));
            let template = Arc::new(template);
            state.templates.insert(name, Arc::clone(&template));
            template
        }))
    }

    /// Removes a template, for tests.
    ///
    /// # Errors
    /// 404 for an unknown template.
    pub fn delete_template(&self, name: &str) -> Result<(), ApiError> {
        let removed = self.write(|state, _| state.templates.remove(name));
        removed.map(drop).ok_or_else(|| ApiError::NotFound { kind: "worker template", id: name.to_owned() })
    }

    /// Current discovery settings.
    pub fn discovery(&self) -> Object {
        self.read(|state| Arc::clone(&state.discovery))
    }

    /// Changes discovery settings; omitted fields keep their value.
    ///
    /// # Errors
    /// 422 for an invalid field.
    pub fn set_discovery(&self, input: Input) -> Result<Object, ApiError> {
        input.boolean("enabled")?;
        input.text("ami_name_pattern")?;
        input.unsigned("scan_interval_seconds")?;
        let regions = input.list("regions")?.map_or(&[][..], Vec::as_slice);
        if let Some(bad) = regions.iter().find(|region| !region.is_string()) {
            return Err(ApiError::invalid("regions", bad, "a list of region names"));
        }
        Ok(self.write(|state, _| {
            Arc::make_mut(&mut state.discovery).extend(input.into_fields());
            Arc::clone(&state.discovery)
        }))
    }

    /// Adds an entry to the scaling audit.
    ///
    /// # Errors
    /// 422 for an invalid field.
    pub fn record_audit(&self, input: Input) -> Result<Object, ApiError> {
        input.required_text("action", "an audit action such as ec2_provisioned")?;
        input.text("worker_id")?;
        Ok(self.write(|state, now| state.add_audit_entry(input.into_fields(), now)))
    }

    /// Entries of the scaling audit, oldest first, filtered by worker and action.
    pub fn audit(&self, worker: Option<&str>, action: Option<&str>) -> Vec<Object> {
        let is = |entry: &Object, field: &str, wanted: Option<&str>| {
            wanted.is_none_or(|wanted| entry.get(field).and_then(Value::as_str) == Some(wanted))
        };
        let passes = |entry: &&Object| is(entry, "worker_id", worker) && is(entry, "action", action);
        self.read(|state| state.audit.iter().filter(passes).cloned().collect())
    }

    /// Publishes an event on behalf of a controller.
    ///
    /// # Errors
    /// 422 for an invalid field.
    pub fn publish(&self, input: &Input) -> Result<Object, ApiError> {
        let event = input.required_text("type", "a CloudEvents type such as cml_worker.drain.completed.v1")?;
        let field = if input.has("subject") { "subject" } else { "worker_id" };
        let subject = input.text(field)?;
        let data = input.raw("data").cloned().unwrap_or_default();
        Ok(self.write(|state, now| state.add_event(event, subject, data, now)))
    }

    /// Events, oldest first, filtered by worker and type.
    pub fn events(&self, subject: Option<&str>, event: Option<&str>) -> Vec<Object> {
        let is = |entry: &Object, field: &str, wanted: Option<&str>| {
            wanted.is_none_or(|wanted| entry.get(field).and_then(Value::as_str) == Some(wanted))
        };
        let passes = |entry: &&Object| is(entry, "subject", subject) && is(entry, "type", event);
        self.read(|state| state.events.iter().filter(passes).cloned().collect())
    }
}

struct DefaultTemplate {
    name: &'static str,
    instance_type: &'static str,
    cpu_cores: u32,
    memory_gb: u32,
    storage_gb: u32,
    max_nodes: u32,
    cost_per_hour_usd: f64,
}

const DEFAULT_TEMPLATES: [DefaultTemplate; 5] = [
    template("micro", "t3.micro", [2, 1, 20, 2], 0.0104),
    template("small", "t3.small", [2, 2, 50, 5], 0.0208),
    template("medium", "t3.medium", [2, 4, 100, 15], 0.0416),
    template("large", "t3.large", [2, 8, 200, 30], 0.0832),
    template("metal", "m5zn.metal", [48, 192, 1000, 200], 3.9641),
];

const fn template(
    name: &'static str,
    instance_type: &'static str,
    [cpu_cores, memory_gb, storage_gb, max_nodes]: [u32; 4],
    cost_per_hour_usd: f64,
) -> DefaultTemplate {
    DefaultTemplate { name, instance_type, cpu_cores, memory_gb, storage_gb, max_nodes, cost_per_hour_usd }
}

/// Worker templates that every control plane starts with, by name.
pub(super) fn default_templates(now: DateTime<Utc>) -> impl Iterator<Item = (String, Map<String, Value>)> {
    DEFAULT_TEMPLATES.into_iter().filter_map(move |spec| {
        let template = json!({
            "id": format!("template-{}", spec.name),
            "name": spec.name,
            "description": format!("{} vCPU, {} GB, up to {} nodes", spec.cpu_cores, spec.memory_gb, spec.max_nodes),
            "instance_type": spec.instance_type,
            "ami_name_pattern": "cisco-cml2.9*",
            "capacity": {
                "cpu_cores": spec.cpu_cores, "memory_gb": spec.memory_gb, "storage_gb": spec.storage_gb,
                "max_nodes": spec.max_nodes,
            },
            "cost_per_hour_usd": spec.cost_per_hour_usd,
            "license_type": "enterprise",
            "startup_time_minutes": 20,
            "port_range": {"start": 2000, "end": 9999},
            "drain_timeout_hours": 4,
            "enabled": true,
            "deleted": false,
            "created_at": format_time(now),
            "updated_at": format_time(now),
        });
        match template {
            Value::Object(fields) => Some((spec.name.to_owned(), fields)),
            _ => None,
        }
    })
}
