//! Status changes of a worker: status writes, drain, termination.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::enums;
use super::error::ApiError;
use super::input::{Input, format_time};
use super::records::{ChangeKind, Draft, Records};
use super::settings::Generation;
use super::worker::{self, LIFECYCLE_FIELDS, Worker};

/// Fields that a status write copies unchanged.
const COPIED_FIELDS: [&str; 5] = ["start_initiated_at", "ended_at", "metrics", "error_message", "service_status"];

/// Result of terminating a worker.
#[derive(Debug, Clone)]
pub struct Termination {
    /// Record after the termination.
    pub worker: Arc<Worker>,
    /// Whether the worker was already terminated, so that nothing changed.
    pub already_terminated: bool,
    /// Sessions that were ended with it.
    pub sessions: Vec<String>,
}

impl Records {
    /// Writes the status and lifecycle fields if the record is still at version `expected`.
    ///
    /// Writing `terminated` ends the record but none of its sessions; see [`Records::terminate`].
    ///
    /// # Errors
    /// 404 for an unknown worker, 409 for a version conflict, 422 for an invalid or empty body.
    pub fn write_status(&self, id: &str, expected: Option<u64>, input: &Input) -> Result<Arc<Worker>, ApiError> {
        let format_time = self.change(id, expected, |draft| {
            let reason = input.text("terminated_reason")?.or(input.text("reason")?);
            let status = input.text("status")?.map(|word| enums::parse_status("status", word)).transpose()?;
            if status.is_none() && !has_changes(input) {
                return Err(ApiError::missing("status", &enums::STATUSES.join(", ")));
            }
            draft.copy_fields(input)?;
            if input.has("desired_status") {
                draft.set_desired_status(input.text("desired_status")?)?;
            }
            if let Some(status) = status {
                draft.set_status(status, reason);
                if status == "terminated" {
                    draft.mark_terminated(reason, input.text("terminated_by")?);
                }
            }
            Ok(())
        });
        Ok(format_time?.0)
    }

    /// Writes fields unchecked, as an operator in the console does. The id and the version are kept.
    ///
    /// # Errors
    /// 404 for an unknown worker, 422 for a known field of the wrong type.
    pub fn edit_worker(&self, id: &str, input: Input) -> Result<Arc<Worker>, ApiError> {
        worker::check(&input)?;
        let status = input.text("status")?.map(|word| enums::parse_status("status", word)).transpose()?;
        let edited = self.change(id, None, |draft| {
            if input.has("desired_status") {
                draft.set_desired_status(input.text("desired_status")?)?;
            }
            if let Some(status) = status {
                draft.set_status(status, Some("edited"));
            }
            let own = ["id", "version", "status", "desired_status"];
            for (field, value) in input.into_fields().into_iter().filter(|(field, _)| !own.contains(&field.as_str())) {
                draft.worker.set(&field, value);
            }
            draft.worker.normalize_lifecycle_fields(draft.settings.generation);
            Ok(())
        });
        Ok(edited?.0)
    }

    /// Sets the desired status; `None` clears it.
    ///
    /// # Errors
    /// 404 for an unknown worker, 409 for a version conflict or a terminated worker, 422 for an unknown status.
    pub fn set_desired(&self, id: &str, expected: Option<u64>, input: &Input) -> Result<Arc<Worker>, ApiError> {
        let changed = self.change(id, expected, |draft| {
            if !input.has("desired_status") {
                return Err(ApiError::missing("desired_status", "running, stopped, terminated or null"));
            }
            if draft.worker.status() == "terminated" {
                return Err(wrong_state("set a desired status", &draft.worker, "any but terminated"));
            }
            draft.set_desired_status(input.text("desired_status")?)
        });
        Ok(changed?.0)
    }

    /// Starts a drain: status draining, desired status stopped, and the start time.
    ///
    /// # Errors
    /// 404 for an unknown worker, 409 for a version conflict or unless the worker is running.
    pub fn drain(
        &self,
        id: &str,
        expected: Option<u64>,
        reason: &str,
        requested_by: &str,
    ) -> Result<Arc<Worker>, ApiError> {
        let drained = self.change(id, expected, |draft| {
            if draft.worker.status() != "running" {
                draft.audit("drain_rejected", reason, requested_by);
                return Err(wrong_state("drain", &draft.worker, "running"));
            }
            let sessions = draft.sessions().filter(|(_, status)| status == "running").count();
            draft.set_status("draining", Some(reason));
            draft.set_desired_status(Some("stopped"))?;
            if draft.settings.generation.is_extended() {
                draft.worker.set("drain_started_at", format_time(draft.now));
            }
            draft.audit("drain_accepted", reason, requested_by);
            draft.add_event(
                "cml_worker.drain.started.v1",
                json!({"running_sessions": sessions, "reason": reason, "requested_by": requested_by}),
            );
            Ok(())
        });
        Ok(drained?.0)
    }

    /// Cancels a drain: status and desired status become running.
    ///
    /// # Errors
    /// 404 for an unknown worker, 409 for a version conflict or unless the worker is draining, 501 on the original server,
    /// which cannot cancel a drain.
    pub fn cancel_drain(
        &self,
        id: &str,
        expected: Option<u64>,
        reason: &str,
        cancelled_by: &str,
    ) -> Result<Arc<Worker>, ApiError> {
        let cancelled = self.change(id, expected, |draft| {
            if !draft.settings.generation.is_extended() {
                let instead = "set the desired status to running: the worker then leaves the drain";
                return Err(ApiError::NotSupported { action: "cancel a drain", instead });
            }
            if draft.worker.status() != "draining" {
                return Err(wrong_state("cancel the drain", &draft.worker, "draining"));
            }
            draft.set_status("running", Some(reason));
            draft.set_desired_status(Some("running"))?;
            draft.worker.set("drain_started_at", Value::Null);
            draft.add_event("cml_worker.drain.cancelled.v1", json!({"cancelled_by": cancelled_by, "reason": reason}));
            Ok(())
        });
        Ok(cancelled?.0)
    }

    /// Terminates a worker and its sessions. The record is kept; its etcd keys are deleted. Idempotent.
    ///
    /// # Errors
    /// 404 for an unknown worker, 409 for a version conflict unless it is already terminated.
    pub fn terminate(
        &self,
        id: &str,
        expected: Option<u64>,
        reason: Option<&str>,
        terminated_by: Option<&str>,
    ) -> Result<Termination, ApiError> {
        let (worker, ended) = self.change(id, None, |draft| {
            // Checked before the version, so that a repeated call succeeds with any version.
            if draft.worker.status() == "terminated" {
                draft.weight = ChangeKind::Measurement;
                return Ok(None);
            }
            self.check_version(&draft.worker, expected)?;
            draft.set_status("terminated", reason);
            draft.mark_terminated(reason, terminated_by);
            let live = draft.sessions().filter(|(_, status)| !enums::FINAL_SESSION_STATES.contains(&status.as_str()));
            let live: Vec<_> = live.map(|(id, _)| id).collect();
            for session in &live {
                self.end_session(draft.others, session, Some("worker_terminated"), terminated_by, draft.now);
            }
            Ok(Some(live))
        })?;
        let already_terminated = ended.is_none();
        Ok(Termination { worker, already_terminated, sessions: ended.unwrap_or_default() })
    }
}

impl Draft<'_> {
    /// Sets the desired status and its time.
    pub(super) fn set_desired_status(&mut self, word: Option<&str>) -> Result<(), ApiError> {
        let desired = word.map(|word| enums::parse_desired_status("desired_status", word)).transpose()?;
        let before = self.worker.desired().map(str::to_owned);
        if before.as_deref() != desired {
            self.add_event("cml_worker.desired_status.updated.v1", json!({"from": before, "to": desired}));
        }
        self.worker.set("desired_status", desired);
        Ok(())
    }

    pub(super) fn mark_terminated(&mut self, reason: Option<&str>, terminated_by: Option<&str>) {
        self.worker.set("terminated_at", format_time(self.now));
        self.worker.set("terminated_by", terminated_by);
        self.worker.set("terminated_reason", reason);
        self.add_event("cml_worker.terminated.v1", json!({"reason": reason, "terminated_by": terminated_by}));
    }

    /// Copies all fields of a status write except the status.
    fn copy_fields(&mut self, input: &Input) -> Result<(), ApiError> {
        worker::check(input)?;
        let generation = self.settings.generation;
        for field in COPIED_FIELDS {
            if let Some(value) = input.raw(field) {
                self.worker.set(field, value.clone());
            }
        }
        for field in ["ec2_instance_id", "aws_instance_id"] {
            if input.has(field) {
                let instance = input.text(field)?.map(str::to_owned);
                if instance.as_deref() != self.worker.instance_id() {
                    self.add_event("cml_worker.instance.assigned.v1", json!({"ec2_instance_id": instance}));
                }
                self.worker.set("ec2_instance_id", instance);
                break;
            }
        }
        let addresses: Map<String, Value> = ["public_ip", "private_ip", "ip_address"]
            .iter()
            .filter_map(|field| input.raw(field).map(|value| ((*field).to_owned(), value.clone())))
            .collect();
        for (field, value) in addresses {
            self.worker.set(&field, value);
        }
        if let Some(metadata) = input.object("metadata")? {
            self.apply_metadata(metadata, generation);
        }
        if generation.is_extended() {
            for field in LIFECYCLE_FIELDS {
                if let Some(value) = input.raw(field) {
                    self.worker.set(field, value.clone());
                }
            }
        }
        self.worker.normalize_lifecycle_fields(generation);
        Ok(())
    }

    fn apply_metadata(&mut self, metadata: &Map<String, Value>, generation: Generation) {
        self.worker.merge_metadata(metadata);
        if generation.is_extended() {
            // A null in `metadata` clears the field in both places.
            for field in LIFECYCLE_FIELDS.into_iter().filter(|field| metadata.get(*field).is_some_and(Value::is_null)) {
                self.worker.set(field, Value::Null);
            }
        }
    }

    fn sessions(&self) -> impl Iterator<Item = (String, String)> {
        let worker = self.worker.id();
        self.others.sessions.iter().filter_map(move |(id, session)| {
            let text = |field: &str| session.get(field).and_then(Value::as_str);
            (text("worker_id") == Some(worker)).then(|| (id.clone(), text("status").unwrap_or_default().to_owned()))
        })
    }

    fn audit(&mut self, action: &str, reason: &str, requested_by: &str) {
        let entry = Map::from_iter([
            ("worker_id".to_owned(), Value::from(self.worker.id())),
            ("action".to_owned(), action.into()),
            ("reason".to_owned(), reason.into()),
            ("requested_by".to_owned(), requested_by.into()),
        ]);
        let now = self.now;
        self.others.add_audit_entry(entry, now);
    }
}

fn has_changes(input: &Input) -> bool {
    let other =
        ["desired_status", "ec2_instance_id", "aws_instance_id", "metadata", "public_ip", "private_ip", "ip_address"];
    COPIED_FIELDS.iter().chain(&LIFECYCLE_FIELDS).chain(&other).any(|field| input.has(field))
}

pub(super) fn wrong_state(action: &'static str, worker: &Worker, accepted: &str) -> ApiError {
    ApiError::WrongState { action, current: worker.status().to_owned(), accepted: accepted.to_owned() }
}
