//! Writing a patch: as few calls as the endpoints allow, the status last.
//!
//! # Flow
//! Licence report, then addresses, then everything else in one status write. Where the new status has an endpoint of
//! its own (terminate, drain, cancel), that one comes after all others.
//!
//! # Guarantees
//! - Every call is conditional on the version the one before gave.
//! - A desired status that comes with a drain, or with calling one off, is left to that endpoint: written before it,
//!   and then left alone, it would stop a worker that never drained.
//! - A note of the drain's beginning that the server does not take by itself follows the drain. Written before it and
//!   left alone, it would cut the next drain short; if it is lost, the next pass starts the clock.
//! - Notes in `metadata` are merged into what the server has at that moment, so that a server that replaces
//!   `metadata` loses nobody's keys.
//!
//! # Assumptions
//! A region is sent along with whatever else is written, but no endpoint of the contract promises to keep it.

use serde_json::{Map, Value, json};

use super::http_client::{Call, ControlPlaneClient, Repeat};
use super::requests::{self, StatusFields};
use super::{found_worker, responses};
use crate::lifecycle::decision::Change;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::patch::{Patch, Route};
use crate::lifecycle::session::SessionStanding;
use crate::lifecycle::status::{DesiredStatus, WorkerStatus};
use crate::lifecycle::worker::Worker;
use crate::ports::{ControlPlane, Fence, Version};
use crate::providers::http::Reply;

pub(super) async fn write(
    client: &ControlPlaneClient,
    worker: &Worker,
    patch: &Patch,
    fence: Fence,
) -> Result<Version, CallFailure> {
    let mut writing = Writing { client, worker, patch, fence, version: patch.expected_version };
    let changes = &patch.changes;
    if let Some(report) = changes.license_report {
        writing.post(&["license", responses::license_step(report)], json!({})).await?;
    }
    if let Some(addresses) = &changes.addresses {
        writing.post(&["ec2-details"], requests::ec2_details(worker, addresses)).await?;
    }
    let mut rest = StatusFields::of(changes, worker.notes.on_record);
    match patch.route(worker.status) {
        None => writing.status_write(rest).await?,
        Some(Route::Status) => {
            rest.put("status", patch.status.map(|status| status.as_str().into()));
            writing.status_write(rest).await?;
        }
        Some(Route::Terminate) => {
            writing.status_write(rest).await?;
            writing.terminate().await?;
        }
        Some(Route::Drain) => {
            rest.take("drain_started_at");
            writing.leave_to_endpoint(&mut rest, DesiredStatus::Stopped);
            writing.status_write(rest).await?;
            let answer = writing.drain().await?;
            writing.settle_drain_note(answer).await;
        }
        Some(Route::CancelDrain) => {
            rest.take("drain_started_at");
            writing.leave_to_endpoint(&mut rest, DesiredStatus::Running);
            writing.status_write(rest).await?;
            let answer = writing.cancel_drain().await?;
            writing.settle_drain_note(answer).await;
        }
    }
    Ok(writing.version)
}

/// A write under way.
struct Writing<'a> {
    client: &'a ControlPlaneClient,
    worker: &'a Worker,
    patch: &'a Patch,
    fence: Fence,
    /// What the record is at, as far as the server has told.
    version: Version,
}

impl Writing<'_> {
    /// A conditional write to an endpoint of the worker.
    fn call<'b>(&'b self, endpoint: &[&'b str], body: Value) -> Call<'b> {
        let path = [&["workers", self.worker.id.as_str()], endpoint].concat();
        Call::post(&path, body).if_at(self.version).fenced(self.fence)
    }

    async fn post(&mut self, endpoint: &[&str], body: Value) -> Result<Reply, CallFailure> {
        let reply = self.client.call(self.call(endpoint, body)).await?.success()?;
        self.version = responses::version(&reply);
        Ok(reply)
    }

    /// One status write with everything that is left, or none if nothing is.
    async fn status_write(&mut self, sent: StatusFields) -> Result<(), CallFailure> {
        if sent.is_empty() {
            return Ok(());
        }
        let StatusFields { mut fields, metadata } = sent;
        if !metadata.is_empty() {
            fields.insert("metadata".to_owned(), self.merged(metadata).await?.into());
        }
        self.post(&["status"], fields.into()).await.map(drop)
    }

    /// Notes on top of the `metadata` the server has now.
    async fn merged(&self, notes: Map<String, Value>) -> Result<Map<String, Value>, CallFailure> {
        let gone = || CallFailure::coded(FailureKind::Refused, "404", "there is no such worker any more");
        let reply = self.client.call(Call::get(&["workers", self.worker.id.as_str()])).await?;
        let record = responses::found(reply)?.ok_or_else(gone)?;
        let now = crate::providers::http::whole(&record["version"]);
        if let (Some(expected), Some(now)) = (self.version, now)
            && expected != now
        {
            let message = format!("the record is at version {now}, not at the expected version {expected}");
            return Err(CallFailure::new(FailureKind::Conflict, message));
        }
        let mut metadata = record["metadata"].as_object().cloned().unwrap_or_default();
        metadata.extend(notes);
        Ok(metadata)
    }

    /// Ends the record and its sessions. Where the server has no endpoint for that, a status write ends the record alone,
    /// so its sessions are ended before it.
    async fn terminate(&mut self) -> Result<(), CallFailure> {
        let termination = self.patch.termination.as_ref();
        let reason = termination.map(|termination| termination.reason.as_str());
        let by = termination.map(|termination| termination.terminated_by.as_str());
        let call = self.call(&["terminate"], json!({"reason": reason, "terminated_by": by})).repeat(Repeat::Freely);
        let reply = self.client.call(call).await?;
        if self.is_endpoint_missing(&reply).await {
            self.end_sessions(by).await?;
            let body = json!({
                "status": WorkerStatus::Terminated.as_str(), "terminated_by": by, "terminated_reason": reason,
            });
            return self.post(&["status"], body).await.map(drop);
        }
        self.version = responses::version(&reply.success()?);
        Ok(())
    }

    async fn end_sessions(&self, by: Option<&str>) -> Result<(), CallFailure> {
        for session in self.client.sessions(&self.worker.id).await? {
            if session.state.standing() == SessionStanding::Over {
                continue;
            }
            self.client.end_session(&session.id, "worker_terminated", by, self.fence).await?;
        }
        Ok(())
    }

    async fn drain(&mut self) -> Result<Reply, CallFailure> {
        let mut call = self.call(&["drain"], json!({}));
        if let Some(request) = &self.patch.drain {
            call = call.query("reason", &request.reason).query("requested_by", &request.requested_by);
        }
        let reply = self.client.call(call).await?.success()?;
        self.version = responses::version(&reply);
        Ok(reply)
    }

    async fn cancel_drain(&mut self) -> Result<Reply, CallFailure> {
        let request = self.patch.drain.as_ref();
        let body = json!({
            "reason": request.map(|request| &request.reason),
            "cancelled_by": request.map(|request| &request.requested_by),
        });
        let reply = self.client.call(self.call(&["cancel-drain"], body).public()).await?;
        if self.is_endpoint_missing(&reply).await {
            let running = (WorkerStatus::Running.as_str(), DesiredStatus::Running.as_str());
            return self.post(&["status"], json!({"status": running.0, "desired_status": running.1})).await;
        }
        let reply = reply.success()?;
        self.version = responses::version(&reply);
        Ok(reply)
    }

    /// Whether the endpoint is what is missing: then the worker is there all the same.
    async fn is_endpoint_missing(&self, reply: &Reply) -> bool {
        match reply.status.as_u16() {
            404 => reply.json().is_ok() && matches!(self.client.worker(&self.worker.id).await, Ok(Some(_))),
            405 | 501 => true,
            _ => false,
        }
    }

    /// The endpoint sets this desired status itself.
    fn leave_to_endpoint(&self, rest: &mut StatusFields, implied: DesiredStatus) {
        if self.patch.changes.desired_status == Some(implied) {
            rest.take("desired_status");
        }
    }

    /// Writes the note of the drain's beginning where the endpoint did not see to it.
    async fn settle_drain_note(&mut self, answer: Reply) {
        let noted = found_worker(&answer).map(|worker| worker.notes.drain_started_at.is_some());
        let (value, settled) = match self.patch.changes.drain_started_at {
            Change::Keep => return,
            Change::Set(at) => (requests::written(at), noted == Some(true)),
            Change::Clear => (Value::Null, noted == Some(false)),
        };
        if settled {
            return;
        }
        let mut note = StatusFields::default();
        note.put_note("drain_started_at", Some(value), self.worker.notes.on_record);
        if let Err(failure) = self.status_write(note).await {
            let worker = self.worker.id.as_str();
            tracing::warn!(target: "lcm::control_plane", worker, %failure, "the note of the drain is left to the next pass");
            self.version = None;
        }
    }
}
