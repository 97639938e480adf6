//! Templates, discovery settings, the scaling audit and the events.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::error::ApiError;
use super::input::{Input, written};
use super::records::{Object, Records};

impl Records {
    /// All templates, by name.
    pub fn templates(&self) -> Vec<Object> {
        self.read(|state| state.templates.values().cloned().collect())
    }

    /// The template of this name.
    ///
    /// # Errors
    /// 404.
    pub fn template(&self, name: &str) -> Result<Object, ApiError> {
        let found = self.read(|state| state.templates.get(name).cloned());
        found.ok_or_else(|| ApiError::NotFound { kind: "worker template", id: name.to_owned() })
    }

    /// Adds a template, or replaces the one of the same name. What is left out has the server's defaults.
    ///
    /// # Errors
    /// 422.
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
                ("created_at".to_owned(), written(now)),
            ]);
            template.extend(input.into_fields());
            template.insert("updated_at".into(), written(now));
            let template = Arc::new(template);
            state.templates.insert(name, Arc::clone(&template));
            template
        }))
    }

    /// Takes a template away, as a test of its absence needs.
    ///
    /// # Errors
    /// 404.
    pub fn delete_template(&self, name: &str) -> Result<(), ApiError> {
        let removed = self.write(|state, _| state.templates.remove(name));
        removed.map(drop).ok_or_else(|| ApiError::NotFound { kind: "worker template", id: name.to_owned() })
    }

    /// How discovery is set.
    pub fn discovery(&self) -> Object {
        self.read(|state| Arc::clone(&state.discovery))
    }

    /// Changes discovery settings; what is left out stays.
    ///
    /// # Errors
    /// 422.
    pub fn set_discovery(&self, input: Input) -> Result<Object, ApiError> {
        input.switch("enabled")?;
        input.text("ami_name_pattern")?;
        input.whole("scan_interval_seconds")?;
        let regions = input.list("regions")?.map_or(&[][..], Vec::as_slice);
        if let Some(bad) = regions.iter().find(|region| !region.is_string()) {
            return Err(ApiError::invalid("regions", bad, "a list of region names"));
        }
        Ok(self.write(|state, _| {
            Arc::make_mut(&mut state.discovery).extend(input.into_fields());
            Arc::clone(&state.discovery)
        }))
    }

    /// Writes an entry into the scaling audit.
    ///
    /// # Errors
    /// 422.
    pub fn record_audit(&self, input: Input) -> Result<Object, ApiError> {
        input.required_text("action", "an audit action such as ec2_provisioned")?;
        input.text("worker_id")?;
        Ok(self.write(|state, now| state.enter_audit(input.into_fields(), now)))
    }

    /// The audit, oldest first, for one worker or action if named.
    pub fn audit(&self, worker: Option<&str>, action: Option<&str>) -> Vec<Object> {
        let is = |entry: &Object, field: &str, wanted: Option<&str>| {
            wanted.is_none_or(|wanted| entry.get(field).and_then(Value::as_str) == Some(wanted))
        };
        let passes = |entry: &&Object| is(entry, "worker_id", worker) && is(entry, "action", action);
        self.read(|state| state.audit.iter().filter(passes).cloned().collect())
    }

    /// Publishes an event for a controller.
    ///
    /// # Errors
    /// 422.
    pub fn publish(&self, input: &Input) -> Result<Object, ApiError> {
        let event = input.required_text("type", "a CloudEvents type such as cml_worker.drain.completed.v1")?;
        let field = if input.has("subject") { "subject" } else { "worker_id" };
        let subject = input.text(field)?;
        let data = input.raw("data").cloned().unwrap_or_default();
        Ok(self.write(|state, now| state.announce(event, subject, data, now)))
    }

    /// The events, oldest first, for one worker or type if named.
    pub fn events(&self, subject: Option<&str>, event: Option<&str>) -> Vec<Object> {
        let is = |entry: &Object, field: &str, wanted: Option<&str>| {
            wanted.is_none_or(|wanted| entry.get(field).and_then(Value::as_str) == Some(wanted))
        };
        let passes = |entry: &&Object| is(entry, "subject", subject) && is(entry, "type", event);
        self.read(|state| state.events.iter().filter(passes).cloned().collect())
    }
}
