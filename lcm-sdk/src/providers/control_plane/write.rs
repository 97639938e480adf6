//! Writes a patch with as few calls as the endpoints allow.
//!
//! # Flow
//! License report, then addresses, then a changed desired status, unless the server is known to store it together with the
//! other fields, and then all other fields in one status write. If the new status has an endpoint of its own (terminate, drain, cancel-drain),
//! that call comes last. The addresses of a new instance follow the status write that names it, because servers clear them
//! with it.
//!
//! # Guarantees
//! - Every call is conditional on the version that the previous call returned.
//! - The endpoints for drain and cancel-drain set the desired status themselves. Written before, it would stop a worker
//!   that never drained if the second call failed.
//! - `drain_started_at` is written after the drain call if the server did not set it. Written before, it would shorten
//!   a later drain if the drain call failed. If it is lost, the next reconcile sets it.
//! - A patch that the server is known not to store is refused before the first call.
//! - Every status write carries a status. Where it does not change and no version guards the write, the status is read
//!   again directly before.
//! - Notes are merged into the current `metadata`, because some servers replace the whole object.
//!
//! # Assumptions
//! The region is sent with other fields, but no endpoint guarantees to store it.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::capabilities::Feature;
use super::client::{Call, ControlPlaneClient, Repeat};
use super::requests::{self, StatusFields};
use super::{found_worker, responses};
use crate::lifecycle::capabilities::Support;
use crate::lifecycle::decision::{Addresses, Change};
use crate::lifecycle::drain;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::patch::{Patch, Route};
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
    let status = worker.status;
    let mut writer = PatchWriter { client, worker, patch, fence, version: patch.expected_version, status };
    let changes = &patch.changes;
    let mut rest = StatusFields::from_changes(changes, worker.notes.on_record);
    let route = patch.route(status);
    match route {
        Some(Route::Drain) => writer.remove_implied_status(&mut rest, DesiredStatus::Stopped),
        Some(Route::CancelDrain) => writer.remove_implied_status(&mut rest, DesiredStatus::Running),
        Some(Route::Status | Route::Terminate) | None => {}
    }
    writer.check_support(&rest)?;
    if let Some(report) = changes.license_report {
        let body = requests::license(report, changes.license_error.as_deref());
        writer.post(&["license", responses::license_step(report)], body).await?;
    }
    // A server clears the addresses when it stores another instance.
    let (before, after) = match changes.ec2_instance_id {
        Change::Set(_) => (None, changes.addresses.as_ref()),
        Change::Keep | Change::Clear => (changes.addresses.as_ref(), None),
    };
    writer.write_addresses(before).await?;
    writer.write_desired_status(&mut rest).await?;
    match route {
        None => writer.write_status(rest).await.map(drop)?,
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
            writer.write_status(rest).await?;
            let reply = writer.drain().await?;
            writer.sync_drain_note(reply).await;
        }
        Some(Route::CancelDrain) => {
            rest.remove("drain_started_at");
            writer.write_status(rest).await?;
            let reply = writer.cancel_drain().await?;
            writer.sync_drain_note(reply).await;
        }
    }
    writer.write_addresses(after).await?;
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
    /// Status of the record after the previous call.
    status: WorkerStatus,
}

impl PatchWriter<'_> {
    /// Refuses a patch that the server is known not to store, before the first call.
    fn check_support(&self, rest: &StatusFields) -> Result<(), CallFailure> {
        let known = self.client.known_capabilities();
        let cancels = self.patch.route(self.worker.status) == Some(Route::CancelDrain);
        if cancels && known.cancel_drain == Support::No && !self.is_desired(DesiredStatus::Running) {
            return Err(drain::cancel_unsupported());
        }
        match self.patch.changes.desired_status {
            Some(desired)
                if known.desired_status == Support::No
                    && rest.fields.contains_key("desired_status")
                    && !self.is_desired(desired) =>
            {
                Err(desired_unsupported())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Whether the record has this desired status already.
    fn is_desired(&self, desired: DesiredStatus) -> bool {
        self.worker.desired_status == Some(desired)
    }

    /// A conditional POST to an endpoint of the worker.
    fn call<'b>(&'b self, endpoint: &[&'b str], body: Value) -> Call<'b> {
        let path = [&["workers", self.worker.id.as_str()], endpoint].concat();
        Call::post(&path, body).if_version(self.version).fenced(self.fence)
    }

    async fn post(&mut self, endpoint: &[&str], body: Value) -> Result<Reply, CallFailure> {
        let reply = self.client.call(self.call(endpoint, body)).await?;
        let reply = self.accepted(reply).await?;
        self.version = responses::version(&reply);
        Ok(reply)
    }

    /// The response, or its failure. Some servers fail instead of reporting that the worker does not exist.
    async fn accepted(&self, reply: Reply) -> Result<Reply, CallFailure> {
        if reply.status != StatusCode::INTERNAL_SERVER_ERROR {
            return reply.success();
        }
        let failure = reply.failure();
        match self.client.find_in_listing(&self.worker.id, failure.clone()).await {
            Lookup::Absent => Err(no_such_worker()),
            Lookup::Found(_) | Lookup::Unknown(_) | Lookup::NotRequested => Err(failure),
        }
    }

    async fn write_addresses(&mut self, addresses: Option<&Addresses>) -> Result<(), CallFailure> {
        let Some(addresses) = addresses else { return Ok(()) };
        let body = requests::ec2_details(self.worker, addresses, self.patch.changes.image.as_deref());
        self.post(&["ec2-details"], body).await.map(drop)
    }

    /// Writes a changed desired status ahead of the remaining fields, unless the server is known to store it with them.
    ///
    /// # Errors
    /// [`FailureKind::NotSupported`] if the server does not store it.
    async fn write_desired_status(&mut self, rest: &mut StatusFields) -> Result<(), CallFailure> {
        let Some(desired) = self.patch.changes.desired_status else { return Ok(()) };
        if self.client.known_capabilities().desired_status == Support::Yes || rest.remove("desired_status").is_none() {
            return Ok(());
        }
        if self.is_desired(desired) { Ok(()) } else { self.try_desired_status(desired).await }
    }

    /// Writes a desired status with the current status, which leaves a server unchanged that does not store it.
    ///
    /// # Errors
    /// [`FailureKind::NotSupported`] if the server does not store it.
    async fn try_desired_status(&mut self, desired: DesiredStatus) -> Result<(), CallFailure> {
        if self.client.known_capabilities().desired_status == Support::No {
            return Err(desired_unsupported());
        }
        let mut alone = StatusFields::default();
        alone.put("desired_status", Some(desired.as_str().into()));
        let reply = self.write_status(alone).await?;
        let Some(stored) = reply.as_ref().and_then(responses::desired_status) else { return Ok(()) };
        let support = if stored == desired { Support::Yes } else { Support::No };
        self.client.known.learn(Feature::DesiredStatus, support);
        if stored == desired { Ok(()) } else { Err(desired_unsupported()) }
    }

    /// Writes fields with the status, the current one if it does not change. Notes that the record cannot keep are left
    /// out; without anything to store, no call is made.
    async fn write_status(&mut self, mut body: StatusFields) -> Result<Option<Reply>, CallFailure> {
        self.leave_out_notes(&mut body);
        if body.is_empty() {
            return Ok(None);
        }
        let changes_status = body.fields.contains_key("status");
        // Without a version, the status may have changed since the record was read, and this would change it back.
        let is_guarded = changes_status || self.version.is_some();
        if !body.metadata.is_empty() || !is_guarded {
            let record = self.current_record().await?;
            if !changes_status && let Some(status) = record["status"].as_str().and_then(|word| word.parse().ok()) {
                self.status = status;
            }
            self.leave_out_notes(&mut body);
            if body.is_empty() {
                return Ok(None);
            }
            if !body.metadata.is_empty() {
                let mut metadata = record["metadata"].as_object().cloned().unwrap_or_default();
                metadata.append(&mut body.metadata);
                body.fields.insert("metadata".to_owned(), metadata.into());
            }
        }
        let status = self.status;
        body.fields.entry("status").or_insert_with(|| status.as_str().into());
        self.post(&["status"], body.fields.into()).await.map(Some)
    }

    /// Leaves out the notes if the records of this server keep none.
    fn leave_out_notes(&self, body: &mut StatusFields) {
        if self.client.known_capabilities().notes != Support::No {
            return;
        }
        let notes: Vec<String> = std::mem::take(&mut body.metadata).into_iter().map(|(note, _)| note).collect();
        if !notes.is_empty() {
            let worker = self.worker.id.as_str();
            tracing::debug!(target: "lcm::control_plane", worker, ?notes, "the records of this control plane keep no notes");
        }
    }

    /// Reads the record that notes are merged into, and whose status is written again.
    async fn current_record(&self) -> Result<Value, CallFailure> {
        let reply = self.client.call(Call::get(&["workers", self.worker.id.as_str()])).await?;
        if reply.status == StatusCode::INTERNAL_SERVER_ERROR {
            return Err(self.accepted(reply).await.err().unwrap_or_else(no_such_worker));
        }
        let record = responses::found(reply, self.worker.id.as_str())?.ok_or_else(no_such_worker)?;
        self.client.known.learn_from_record(|field| record.get(field).is_some());
        let current = crate::providers::http::unsigned(&record["version"]);
        if let (Some(expected), Some(current)) = (self.version, current)
            && expected != current
        {
            let message = format!("the record is at version {current}, expected version {expected}");
            return Err(CallFailure::new(FailureKind::Conflict, message));
        }
        Ok(record)
    }

    /// Terminates the record. If the server has no such endpoint, writes the status.
    async fn terminate(&mut self) -> Result<(), CallFailure> {
        let termination = self.patch.termination.as_ref();
        let reason = termination.map(|termination| termination.reason.as_str());
        let by = termination.map(|termination| termination.terminated_by.as_str());
        let call = self.call(&["terminate"], json!({"reason": reason, "terminated_by": by})).repeat(Repeat::Always);
        let reply = self.client.call(call).await?;
        if self.is_endpoint_missing(&reply).await {
            let body = json!({
                "status": WorkerStatus::Terminated.as_str(), "terminated_by": by, "terminated_reason": reason,
            });
            return self.post(&["status"], body).await.map(drop);
        }
        self.version = match self.accepted(reply).await {
            Ok(reply) => responses::version(&reply),
            // The response to an earlier attempt was lost, and that attempt raised the version.
            Err(failure) if failure.kind == FailureKind::Conflict => self.terminated_version().await.ok_or(failure)?,
            Err(failure) => return Err(failure),
        };
        Ok(())
    }

    /// Version of the record, if it is terminated.
    async fn terminated_version(&self) -> Option<Version> {
        let worker = self.client.worker(&self.worker.id).await.ok()??;
        (worker.status == WorkerStatus::Terminated).then_some(worker.version)
    }

    async fn drain(&mut self) -> Result<Reply, CallFailure> {
        let mut call = self.call(&["drain"], json!({}));
        if let Some(request) = &self.patch.drain {
            call = call.query("reason", &request.reason).query("requested_by", &request.requested_by);
        }
        let reply = self.client.call(call).await?.success()?;
        self.version = responses::version(&reply);
        self.status = WorkerStatus::Draining;
        Ok(reply)
    }

    /// Cancels a drain. If the server has no such endpoint, writes both statuses, the desired one first: a worker that
    /// runs with a desired status of stopped would be stopped under its sessions.
    ///
    /// # Errors
    /// [`FailureKind::NotSupported`] if the server has neither the endpoint nor a desired status that can be written.
    async fn cancel_drain(&mut self) -> Result<Reply, CallFailure> {
        let request = self.patch.drain.as_ref();
        let body = json!({
            "reason": request.map(|request| &request.reason),
            "cancelled_by": request.map(|request| &request.requested_by),
        });
        let reply = self.client.call(self.call(&["cancel-drain"], body).public()).await?;
        if self.is_endpoint_missing(&reply).await {
            if !self.is_desired(DesiredStatus::Running) {
                match self.try_desired_status(DesiredStatus::Running).await {
                    Ok(()) => {}
                    Err(failure) if failure.kind == FailureKind::NotSupported => {
                        self.client.known.learn(Feature::CancelDrain, Support::No);
                        return Err(drain::cancel_unsupported());
                    }
                    Err(failure) => return Err(failure),
                }
                self.client.known.learn(Feature::CancelDrain, Support::Yes);
            }
            let running = (WorkerStatus::Running.as_str(), DesiredStatus::Running.as_str());
            let reply = self.post(&["status"], json!({"status": running.0, "desired_status": running.1})).await?;
            self.status = WorkerStatus::Running;
            return Ok(reply);
        }
        let reply = reply.success()?;
        self.client.known.learn(Feature::CancelDrain, Support::Yes);
        self.version = responses::version(&reply);
        self.status = WorkerStatus::Running;
        Ok(reply)
    }

    /// Whether the server lacks the endpoint. A 404 means that only if the worker exists: with a wrong base URL, all
    /// endpoints are missing.
    async fn is_endpoint_missing(&self, reply: &Reply) -> bool {
        match reply.status.as_u16() {
            404 => {
                responses::is_route_missing(reply) && matches!(self.client.worker(&self.worker.id).await, Ok(Some(_)))
            }
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
        if self.client.known_capabilities().notes == Support::No {
            return;
        }
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

fn no_such_worker() -> CallFailure {
    CallFailure::with_code(FailureKind::Refused, "404", "the worker does not exist")
}

fn desired_unsupported() -> CallFailure {
    let alternative = "request it from the control plane itself, or drain the worker to stop it";
    CallFailure::not_supported("writing a desired status", alternative)
}
