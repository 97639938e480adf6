//! What moves a worker from status to status: writes, drains, ends.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::enums;
use super::error::ApiError;
use super::input::{Input, written};
use super::records::{ChangeKind, Draft, Records};
use super::settings::Supported;
use super::worker::{self, LIFECYCLE_FIELDS, Worker};

/// Fields that a status write may carry as they are.
const CARRIED: [&str; 5] = ["start_initiated_at", "ended_at", "metrics", "error_message", "service_status"];

/// What ending a worker did.
#[derive(Debug, Clone)]
pub struct Termination {
    /// The record afterwards.
    pub worker: Arc<Worker>,
    /// Whether it had ended before, so that nothing was done.
    pub already_terminated: bool,
    /// The sessions that were ended with it.
    pub sessions: Vec<String>,
}

impl Records {
    /// Writes status and notes, on the condition that nobody wrote since `expected`.
    ///
    /// A write of `terminated` ends the record but none of its sessions: see [`Records::terminate`].
    ///
    /// # Errors
    /// 404, 409 on another version, 422 on a body that cannot be used or says nothing.
    pub fn write_status(&self, id: &str, expected: Option<u64>, input: &Input) -> Result<Arc<Worker>, ApiError> {
        let written = self.change(id, expected, |draft| {
            let reason = input.text("terminated_reason")?.or(input.text("reason")?);
            let status = input.text("status")?.map(|word| enums::parse_status("status", word)).transpose()?;
            if status.is_none() && !says_something(input) {
                return Err(ApiError::missing("status", &enums::STATUSES.join(", ")));
            }
            draft.note_fields(input)?;
            if input.has("desired_status") {
                draft.desire(input.text("desired_status")?)?;
            }
            if let Some(status) = status {
                draft.enter(status, reason);
                if status == "terminated" {
                    draft.end(reason, input.text("terminated_by")?);
                }
            }
            Ok(())
        });
        Ok(written?.0)
    }

    /// Writes fields as they are, as somebody else's hands would. The id and the version stay the server's.
    ///
    /// # Errors
    /// 404, 422 on a known field of the wrong kind.
    pub fn edit_worker(&self, id: &str, input: Input) -> Result<Arc<Worker>, ApiError> {
        worker::check(&input)?;
        let status = input.text("status")?.map(|word| enums::parse_status("status", word)).transpose()?;
        let edited = self.change(id, None, |draft| {
            if input.has("desired_status") {
                draft.desire(input.text("desired_status")?)?;
            }
            if let Some(status) = status {
                draft.enter(status, Some("edited"));
            }
            let own = ["id", "version", "status", "desired_status"];
            for (field, value) in input.into_fields().into_iter().filter(|(field, _)| !own.contains(&field.as_str())) {
                draft.worker.set(&field, value);
            }
            draft.worker.settle_notes(draft.settings.dialect.notes);
            Ok(())
        });
        Ok(edited?.0)
    }

    /// Says what a worker should be; `None` withdraws the opinion.
    ///
    /// # Errors
    /// 404, 409 on another version or a terminated worker, 422 on an unknown word.
    pub fn set_desired(&self, id: &str, expected: Option<u64>, input: &Input) -> Result<Arc<Worker>, ApiError> {
        let changed = self.change(id, expected, |draft| {
            if !input.has("desired_status") {
                return Err(ApiError::missing("desired_status", "running, stopped, terminated or null"));
            }
            if draft.worker.status() == "terminated" {
                return Err(wrong_state("set a desired status", &draft.worker, "any but terminated"));
            }
            draft.desire(input.text("desired_status")?)
        });
        Ok(changed?.0)
    }

    /// Begins a drain: draining, desired stopped, the time noted.
    ///
    /// # Errors
    /// 404, 409 on another version or unless the worker runs.
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
            draft.enter("draining", Some(reason));
            draft.desire(Some("stopped"))?;
            if draft.settings.dialect.notes == Supported::Yes {
                draft.worker.set("drain_started_at", written(draft.now));
            }
            draft.audit("drain_accepted", reason, requested_by);
            draft.announce(
                "cml_worker.drain.started.v1",
                json!({"running_sessions": sessions, "reason": reason, "requested_by": requested_by}),
            );
            Ok(())
        });
        Ok(drained?.0)
    }

    /// Calls a drain off: running, and desired so.
    ///
    /// # Errors
    /// 404, 409 on another version or unless the worker drains.
    pub fn cancel_drain(
        &self,
        id: &str,
        expected: Option<u64>,
        reason: &str,
        cancelled_by: &str,
    ) -> Result<Arc<Worker>, ApiError> {
        let cancelled = self.change(id, expected, |draft| {
            if draft.worker.status() != "draining" {
                return Err(wrong_state("cancel the drain", &draft.worker, "draining"));
            }
            draft.enter("running", Some(reason));
            draft.desire(Some("running"))?;
            let notes = draft.settings.dialect.notes;
            draft.worker.set_note("drain_started_at", Value::Null, notes);
            draft.announce("cml_worker.drain.cancelled.v1", json!({"cancelled_by": cancelled_by, "reason": reason}));
            Ok(())
        });
        Ok(cancelled?.0)
    }

    /// Ends a worker and its sessions. The record stays, marked; its keys in etcd go. Ending it again does nothing.
    ///
    /// # Errors
    /// 404, 409 on another version unless it has ended already.
    pub fn terminate(
        &self,
        id: &str,
        expected: Option<u64>,
        reason: Option<&str>,
        terminated_by: Option<&str>,
    ) -> Result<Termination, ApiError> {
        let (worker, ended) = self.change(id, None, |draft| {
            // Before the version is looked at, so that a repeated call succeeds whatever version it remembers.
            if draft.worker.status() == "terminated" {
                draft.weight = ChangeKind::Measurement;
                return Ok(None);
            }
            self.check_version(&draft.worker, expected)?;
            draft.enter("terminated", reason);
            draft.end(reason, terminated_by);
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
    /// Sets what the worker should be.
    pub(super) fn desire(&mut self, word: Option<&str>) -> Result<(), ApiError> {
        let desired = word.map(|word| enums::parse_desired_status("desired_status", word)).transpose()?;
        let before = self.worker.desired().map(str::to_owned);
        if before.as_deref() != desired {
            self.announce("cml_worker.desired_status.updated.v1", json!({"from": before, "to": desired}));
        }
        self.worker.set("desired_status", desired);
        Ok(())
    }

    fn end(&mut self, reason: Option<&str>, terminated_by: Option<&str>) {
        self.worker.set("terminated_at", written(self.now));
        self.worker.set("terminated_by", terminated_by);
        self.worker.set("terminated_reason", reason);
        self.announce("cml_worker.terminated.v1", json!({"reason": reason, "terminated_by": terminated_by}));
    }

    /// Takes over everything of a status write but the status.
    fn note_fields(&mut self, input: &Input) -> Result<(), ApiError> {
        worker::check(input)?;
        let knows = self.settings.dialect.notes;
        for field in CARRIED {
            if let Some(value) = input.raw(field) {
                self.worker.set(field, value.clone());
            }
        }
        for field in ["ec2_instance_id", "aws_instance_id"] {
            if input.has(field) {
                let instance = input.text(field)?.map(str::to_owned);
                if instance.as_deref() != self.worker.instance_id() {
                    self.announce("cml_worker.instance.assigned.v1", json!({"ec2_instance_id": instance}));
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
            self.take_metadata(metadata, knows);
        }
        if knows == Supported::Yes {
            for note in LIFECYCLE_FIELDS {
                if let Some(value) = input.raw(note) {
                    self.worker.set(note, value.clone());
                }
            }
        }
        self.worker.settle_notes(knows);
        Ok(())
    }

    fn take_metadata(&mut self, metadata: &Map<String, Value>, knows: Supported) {
        self.worker.merge_metadata(metadata);
        if knows == Supported::Yes {
            // Null in `metadata` clears the note, wherever it is kept.
            for note in LIFECYCLE_FIELDS.into_iter().filter(|note| metadata.get(*note).is_some_and(Value::is_null)) {
                self.worker.set(note, Value::Null);
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
        self.others.enter_audit(entry, now);
    }
}

fn says_something(input: &Input) -> bool {
    let other =
        ["desired_status", "ec2_instance_id", "aws_instance_id", "metadata", "public_ip", "private_ip", "ip_address"];
    CARRIED.iter().chain(&LIFECYCLE_FIELDS).chain(&other).any(|field| input.has(field))
}

pub(super) fn wrong_state(action: &'static str, worker: &Worker, accepted: &str) -> ApiError {
    ApiError::WrongState { action, current: worker.status().to_owned(), accepted: accepted.to_owned() }
}
