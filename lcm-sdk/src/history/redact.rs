//! Leaves secrets and free-form data out of a history.
//!
//! The rest is all that a decision reads, so that it can be made again.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::lifecycle::decision::Decision;
use crate::lifecycle::effect::Effect;
use crate::lifecycle::license::{License, token_mark};
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::observation::{CmlMetrics, Observation};
use crate::lifecycle::secret::Secret;
use crate::lifecycle::template::Template;
use crate::lifecycle::worker::Worker;

/// The fields of a record that LCM writes without reading them as its own: those of the AMI.
const IMAGE_FIELDS: [&str; 3] = ["ami_id", "ami_description", "ami_creation_date"];

/// The record without passwords, tokens and free-form data. Its tokens are replaced by their fingerprints.
pub(super) fn worker(worker: &Worker) -> Worker {
    let mark = |token: &Secret| Secret::from(token_mark(token));
    let extra = IMAGE_FIELDS.iter().filter_map(|field| Some(((*field).to_owned(), worker.extra.get(*field)?.clone())));
    Worker {
        cml_username: None,
        cml_password: None,
        license: License {
            token: None,
            pending_token: worker.license.pending_token.as_ref().map(mark),
            extra: Map::new(),
            ..worker.license.clone()
        },
        metadata: Map::new(),
        extra: extra.collect(),
        warnings: Vec::new(),
        ..worker.clone()
    }
}

/// The observation without free-form data.
pub(super) fn observation(observation: &Observation) -> Observation {
    let bare = |template: &Template| Template { extra: Map::new(), ..template.clone() };
    Observation {
        template: found(&observation.template, bare),
        cml: found(&observation.cml, cml),
        telemetry: found(&observation.telemetry, |events| events.iter().map(event).collect()),
        ..observation.clone()
    }
}

fn found<T: Clone>(lookup: &Lookup<T>, change: impl FnOnce(&T) -> T) -> Lookup<T> {
    lookup.found().map_or_else(|| lookup.clone(), |value| Lookup::Found(change(value)))
}

fn cml(cml: &CmlMetrics) -> CmlMetrics {
    CmlMetrics { system_info: None, system_health: None, license_info: None, ..cml.clone() }
}

/// The parts of a telemetry event that tell activity from the lack of it.
fn event(event: &Value) -> Value {
    let mut bare = Map::new();
    for field in ["category", "timestamp", "user_id"] {
        if let Some(value) = event.get(field) {
            bare.insert(field.to_owned(), value.clone());
        }
    }
    if let Some(user) = event.get("data").and_then(|data| data.get("user_id")) {
        bare.insert("data".to_owned(), serde_json::json!({ "user_id": user }));
    }
    bare.into()
}

/// The effects, without the reports of CML's system.
pub(super) fn effects(decision: &Decision) -> Vec<Cow<'_, Effect>> {
    let bare = |effect| match effect {
        &Effect::ReportMetrics { cloud, cml: Some(ref report) } => {
            Cow::Owned(Effect::ReportMetrics { cloud, cml: Some(cml(report)) })
        }
        effect => Cow::Borrowed(effect),
    };
    decision.effects.iter().map(bare).collect()
}

/// The record as JSON, without null and empty fields.
pub(super) fn worker_json(worker: &Worker) -> Map<String, Value> {
    let mut fields = worker.to_json();
    if let Some(Value::Object(license)) = fields.get_mut("license") {
        license.retain(|_, value| !value.is_null() && value != &Value::Bool(false));
        if let Some(token) = &worker.license.pending_token {
            license.insert("pending_token".to_owned(), token_mark(token).into());
        }
    }
    fields.retain(|_, value| !value.is_null() && value.as_object().is_none_or(|object| !object.is_empty()));
    fields
}
