//! Changes that a test makes to records. They accept more than the API does, but no typing errors: an unknown name that is
//! similar to a known one is refused.

use std::sync::Arc;

use super::enums::SESSION_STATES;
use super::error::ApiError;
use super::input::Input;
use super::records::{Object, Records};
use super::worker::{self, Worker};
use crate::suggest::closest;

/// Fields of a session.
const SESSION_FIELDS: [&str; 11] = [
    "id",
    "name",
    "worker_id",
    "status",
    "desired_status",
    "timeslot_start",
    "timeslot_end",
    "retry_count",
    "created_at",
    "updated_at",
    "version",
];

/// Fields of a worker template.
const TEMPLATE_FIELDS: [&str; 11] = [
    "id",
    "name",
    "instance_type",
    "ami_name_pattern",
    "drain_timeout_hours",
    "startup_time_minutes",
    "capacity",
    "enabled",
    "deleted",
    "created_at",
    "updated_at",
];

impl Records {
    /// Creates a worker, as [`Records::create_worker`] does.
    ///
    /// # Errors
    /// 409 if the id is in use, 422 for an invalid field, and for a field or a template that was mistyped.
    pub fn add_worker(&self, input: Input) -> Result<Arc<Worker>, ApiError> {
        self.check_worker_names(&input)?;
        self.create_worker(input)
    }

    /// Writes fields unchecked, as an operator in the console does. The id and the version are kept.
    ///
    /// # Errors
    /// 404 for an unknown worker, 422 for a known field of the wrong type, and for a name that was mistyped.
    pub fn change_worker(&self, id_or_name: &str, input: Input) -> Result<Arc<Worker>, ApiError> {
        self.check_worker_names(&input)?;
        self.edit_worker(&self.worker_id(id_or_name)?, input)
    }

    /// Creates a session, as [`Records::create_session`] does. The worker may be given by name.
    ///
    /// # Errors
    /// 404 for an unknown worker, 409 if the id is in use, 422 for an invalid field, and for a field or a state that was
    /// mistyped.
    pub fn add_session(&self, input: Input) -> Result<Object, ApiError> {
        check_fields(&input, SESSION_FIELDS)?;
        if let Some(status) = input.text("status")?
            && !SESSION_STATES.iter().any(|state| state.eq_ignore_ascii_case(status))
            && let Some(similar) = closest(status, SESSION_STATES)
        {
            return Err(mistyped("session state", status, similar));
        }
        let worker = input.text("worker_id")?.map(|worker| self.worker_id(worker)).transpose()?;
        let mut fields = input.into_fields();
        if let Some(worker) = worker {
            fields.insert("worker_id".to_owned(), worker.into());
        }
        self.create_session(Input::from_value(fields.into())?)
    }

    /// Adds a template, as [`Records::put_template`] does.
    ///
    /// # Errors
    /// 422 for an invalid field, and for one that was mistyped.
    pub fn add_template(&self, input: Input) -> Result<Object, ApiError> {
        check_fields(&input, TEMPLATE_FIELDS)?;
        self.put_template(input)
    }

    /// Returns the id of the worker with this id, or else of the only one with this name.
    ///
    /// # Errors
    /// 404 for an unknown worker, 422 for a name that was mistyped, or that several workers have.
    pub fn worker_id(&self, id_or_name: &str) -> Result<String, ApiError> {
        self.read(|state| {
            if state.workers.contains_key(id_or_name) {
                return Ok(id_or_name.to_owned());
            }
            let named = state.workers.values().filter(|worker| worker.text("name") == Some(id_or_name));
            let ids: Vec<&str> = named.map(|worker| worker.id()).collect();
            match &*ids {
                [id] => Ok((*id).to_owned()),
                [] => {
                    let names = state.workers.values().flat_map(|worker| [Some(worker.id()), worker.text("name")]);
                    Err(match closest(id_or_name, names.flatten()) {
                        Some(similar) => mistyped("worker", id_or_name, similar),
                        None => ApiError::NotFound { kind: "worker", id: id_or_name.to_owned() },
                    })
                }
                several => {
                    let accepted = format!("the id of one worker: {}", several.join(", "));
                    Err(ApiError::invalid("worker", &id_or_name.into(), &accepted))
                }
            }
        })
    }

    fn check_worker_names(&self, input: &Input) -> Result<(), ApiError> {
        check_fields(input, worker::field_names())?;
        let Some(template) = input.text("template_name")? else { return Ok(()) };
        let similar = self.read(|state| {
            let is_known = state.templates.contains_key(template);
            let names = state.templates.keys().map(String::as_str);
            (!is_known).then(|| closest(template, names).map(str::to_owned)).flatten()
        });
        similar.map_or(Ok(()), |similar| Err(mistyped("worker template", template, &similar)))
    }
}

fn check_fields<'a>(input: &Input, known: impl IntoIterator<Item = &'a str> + Clone) -> Result<(), ApiError> {
    let is_unknown = |field: &&String| !known.clone().into_iter().any(|name| name == field.as_str());
    for field in input.fields().keys().filter(is_unknown) {
        if let Some(similar) = closest(field, known.clone()) {
            return Err(mistyped("field", field, similar));
        }
    }
    Ok(())
}

fn mistyped(kind: &'static str, id: &str, similar: &str) -> ApiError {
    ApiError::Mistyped { kind, id: id.to_owned(), similar: similar.to_owned() }
}
