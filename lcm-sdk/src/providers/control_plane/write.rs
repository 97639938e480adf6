//! Writes a patch with as few calls as the endpoints allow.
//!
//! # Flow
//! License report, then addresses, then all other fields in one status write. If the new status has an endpoint of its
//! own (terminate, drain, cancel-drain), that call comes last.
//!
//! # Guarantees
//! - Every call is conditional on the version that the previous call returned.
//! - The endpoints for drain and cancel-drain set the desired status themselves. Written before, it would stop a worker
//!   that never drained if the second call failed.
//! - `drain_started_at` is written after the drain call if the server did not set it. Written before, it would shorten
//!   a later drain if the drain call failed. If it is lost, the next reconcile sets it.
//! - Notes are merged into the current `metadata`, because some servers replace the whole object.
//!
//! # Assumptions
//! The region is sent with other fields, but no endpoint guarantees to store it.

use serde_json::{Map, Value, json};

use super::client::{Call, ControlPlaneClient, Repeat};
use super::requests::{self, StatusFields};
use super::{found_worker, responses};
use crate::lifecycle::decision::Change;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::patch::{Patch, Route};
use crate::lifecycle::session::SessionPhase;
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
    let mut writer = PatchWriter { client, worker, patch, fence, version: patch.expected_version };
    let changes = &patch.changes;
    if let Some(report) = changes.license_report {
        writer.post(&["license", responses::license_step(report)], json!({})).await?;
    }
    if let Some(addresses) = &changes.addresses {
        writer.post(&["ec2-details"], requests::ec2_details(worker, addresses)).await?;
    }
    let mut rest = StatusFields::from_changes(changes, worker.notes.on_record);
    match patch.route(worker.status) {
        None => writer.write_status(rest).await?,
        Some(Route::Status) => {
            rest.put("status", patch.status.map(|status| status.as_str().into()));
            writer.write_status(rest).await?;
        }
        Some(Route::Terminate) => {
            writer.write_status(rest).await?;
            writer.terminate().await?;
        }
        Some(Route::Drain) => {
            rest.remove("drain_started_at");
            writer.remove_implied_status(&mut rest, DesiredStatus::Stopped);
            writer.write_status(rest).await?;
            let reply = writer.drain().await?;
            writer.sync_drain_note(reply).await;
        }
        Some(Route::CancelDrain) => {
            rest.remove("drain_started_at");
            writer.remove_implied_status(&mut rest, DesiredStatus::Running);
            writer.write_status(rest).await?;
            let reply = writer.cancel_drain().await?;
            writer.sync_drain_note(reply).await;
        }
    }
    Ok(writer.version)
}

/// State of a write of several calls.
struct PatchWriter<'a> {
    client: &'a ControlPlaneClient,
    worker: &'a Worker,
    patch: &'a Patch,
    fence: Fence,
    /// Version of the record after the previous call, if the server reports versions.
    version: Version,
}

impl PatchWriter<'_> {
    /// A conditional POST to an endpoint of the worker.
    fn call<'b>(&'b self, endpoint: &[&'b str], body: Value) -> Call<'b> {
        let path = [&["workers", self.worker.id.as_str()], endpoint].concat();
        Call::post(&path, body).if_version(self.version).fenced(self.fence)
    }

    async fn post(&mut self, endpoint: &[&str], body: Value) -> Result<Reply, CallFailure> {
        let reply = self.client.call(self.call(endpoint, body)).await?.success()?;
        self.version = responses::version(&reply);
        Ok(reply)
    }

    /// Writes the remaining fields, if there are any.
    async fn write_status(&mut self, body: StatusFields) -> Result<(), CallFailure> {
        if body.is_empty() {
            return Ok(());
        }
        let StatusFields { mut fields, metadata } = body;
        if !metadata.is_empty() {
            fields.insert("metadata".to_owned(), self.merge_metadata(metadata).await?.into());
        }
        self.post(&["status"], fields.into()).await.map(drop)
    }

    /// Merges notes into the current `metadata` of the record.
    async fn merge_metadata(&self, notes: Map<String, Value>) -> Result<Map<String, Value>, CallFailure> {
        let gone = || CallFailure::with_code(FailureKind::Refused, "404", "the worker does not exist");
        let reply = self.client.call(Call::get(&["workers", self.worker.id.as_str()])).await?;
        let record = responses::found(reply)?.ok_or_else(gone)?;
        let current = crate::providers::http::unsigned(&record["version"]);
        if let (Some(expected), Some(current)) = (self.version, current)
            && expected != current
        {
            let message = format!("the record is at version {current}, expected version {expected}");
            return Err(CallFailure::new(FailureKind::Conflict, message));
        }
        let mut metadata = record["metadata"].as_object().cloned().unwrap_or_default();
        metadata.extend(notes);
        Ok(metadata)
    }

    /// Terminates the record and its sessions. If the server has no such endpoint, terminates the sessions one by one and
    /// then writes the status.
    async fn terminate(&mut self) -> Result<(), CallFailure> {
        let termination = self.patch.termination.as_ref();
        let reason = termination.map(|termination| termination.reason.as_str());
        let by = termination.map(|termination| termination.terminated_by.as_str());
        let call = self.call(&["terminate"], json!({"reason": reason, "terminated_by": by})).repeat(Repeat::Always);
        let reply = self.client.call(call).await?;
        if self.is_endpoint_missing(&reply).await {
            self.terminate_sessions(by).await?;
            let body = json!({
                "status": WorkerStatus::Terminated.as_str(), "terminated_by": by, "terminated_reason": reason,
            });
            return self.post(&["status"], body).await.map(drop);
        }
        self.version = responses::version(&reply.success()?);
        Ok(())
    }

    async fn terminate_sessions(&self, by: Option<&str>) -> Result<(), CallFailure> {
        for session in self.client.sessions(&self.worker.id).await? {
            if session.state.phase() == SessionPhase::Over {
                continue;
            }
            self.client.terminate_session_by(&session.id, "worker_terminated", by, self.fence).await?;
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

    /// Whether the server lacks the endpoint. A 404 means that only if the worker exists.
    async fn is_endpoint_missing(&self, reply: &Reply) -> bool {
        match reply.status.as_u16() {
            404 => reply.json().is_ok() && matches!(self.client.worker(&self.worker.id).await, Ok(Some(_))),
            405 | 501 => true,
            _ => false,
        }
    }

    /// Removes the desired status that the endpoint sets itself.
    fn remove_implied_status(&self, rest: &mut StatusFields, implied: DesiredStatus) {
        if self.patch.changes.desired_status == Some(implied) {
            rest.remove("desired_status");
        }
    }

    /// Writes `drain_started_at` if the endpoint did not.
    async fn sync_drain_note(&mut self, reply: Reply) {
        let noted = found_worker(&reply).map(|worker| worker.notes.drain_started_at.is_some());
        let (value, is_written) = match self.patch.changes.drain_started_at {
            Change::Keep => return,
            Change::Set(at) => (requests::timestamp(at), noted == Some(true)),
            Change::Clear => (Value::Null, noted == Some(false)),
        };
        if is_written {
            return;
        }
        let mut note = StatusFields::default();
        note.put_note("drain_started_at", Some(value), self.worker.notes.on_record);
        if let Err(failure) = self.write_status(note).await {
            let worker = self.worker.id.as_str();
            tracing::warn!(target: "lcm::control_plane", worker, %failure, "cannot write drain_started_at; the next reconcile retries");
            self.version = None;
        }
    }
}
