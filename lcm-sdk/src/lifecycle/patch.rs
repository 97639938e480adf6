//! The write to a worker's record after a reconcile.

use serde::{Deserialize, Serialize};

use super::decision::Changes;
use super::event::Event;
use super::ids::WorkerId;
use super::license::{LicenseOperation, LicenseReport};
use super::status::WorkerStatus;
use super::time::Timestamp;
use super::worker::Worker;

/// Changes to a record, conditional on the version that was read. If the record changed in between, nothing is written,
/// and the worker is read and decided again.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Patch {
    /// Id of the record.
    pub worker_id: WorkerId,
    /// The version the decision was made on.
    pub expected_version: Option<u64>,
    /// The new status, if it changes.
    pub status: Option<WorkerStatus>,
    /// Author and reason of a termination, if that is the new status.
    pub termination: Option<Termination>,
    /// Author and reason of a drain, or of its cancellation.
    pub drain: Option<DrainRequest>,
    /// All other changes.
    pub changes: Changes,
    /// When the decision was made.
    pub at: Timestamp,
}

/// Author and reason of a termination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Termination {
    /// Reason of the termination.
    pub reason: String,
    /// Author of the termination.
    pub terminated_by: String,
}

/// Author and reason of a drain, or of its cancellation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRequest {
    /// Reason given by the requester.
    pub reason: String,
    /// Requester of the drain or cancellation.
    pub requested_by: String,
}

impl DrainRequest {
    /// The request that an event reports, if it reports one.
    pub fn from_event(event: &Event) -> Option<Self> {
        let (reason, requested_by) = match event {
            Event::DrainStarted { reason, requested_by, .. } => (reason, requested_by),
            Event::DrainCancelled { cancelled_by, reason } => (reason, cancelled_by),
            Event::DrainCompleted
            | Event::DrainTimedOut { .. }
            | Event::SessionRetried { .. }
            | Event::SessionGivenUp { .. }
            | Event::OrphanTerminated { .. }
            | Event::RegionNotTrusted { .. }
            | Event::Resurrected { .. }
            | Event::DuplicateInstance { .. }
            | Event::ForeignInstance { .. }
            | Event::License { .. } => return None,
        };
        Some(Self { reason: reason.clone(), requested_by: requested_by.clone() })
    }
}

/// The call of the control plane that carries a status change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// The general status write.
    Status,
    /// Terminated has its own call, because a status write ends no sessions.
    Terminate,
    /// Draining has its own call, which is refused unless the worker runs.
    Drain,
    /// Canceling a drain has its own call.
    CancelDrain,
}

impl Patch {
    /// A patch that leaves the status as it is.
    pub fn from_changes(worker: &Worker, changes: Changes, at: Timestamp) -> Self {
        Self {
            worker_id: worker.id.clone(),
            expected_version: worker.version,
            status: None,
            termination: None,
            drain: None,
            changes,
            at,
        }
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.status.is_none() && self.changes.is_empty()
    }

    /// The call that carries the status change; `None` if the status stays.
    pub fn route(&self, from: WorkerStatus) -> Option<Route> {
        self.status.map(|to| match to {
            WorkerStatus::Terminated => Route::Terminate,
            WorkerStatus::Draining => Route::Drain,
            WorkerStatus::Running if from == WorkerStatus::Draining => Route::CancelDrain,
            WorkerStatus::Running
            | WorkerStatus::Pending
            | WorkerStatus::Provisioning
            | WorkerStatus::Starting
            | WorkerStatus::Stopping
            | WorkerStatus::Stopped
            | WorkerStatus::Terminating
            | WorkerStatus::Failed
            | WorkerStatus::Unknown => Route::Status,
        })
    }

    /// The record after this patch is written. The version is raised by the server and stays as it is here.
    #[must_use]
    pub fn apply_to(&self, worker: &Worker) -> Worker {
        let mut worker = worker.clone();
        let Changes {
            ec2_instance_id,
            aws_region,
            addresses,
            image,
            desired_status,
            start_initiated_at,
            drain_started_at,
            drain_timeout_seconds,
            drain_tries,
            scaled_down_at,
            launched_at,
            launch_generation,
            launch_plan,
            license_attempt,
            license_wait,
            ec2_account_id,
            ec2_region,
            license_report,
            license_error: _,
        } = &self.changes;
        if let Some(status) = self.status {
            worker.status = status;
            worker.terminated_at = (status == WorkerStatus::Terminated).then_some(self.at).or(worker.terminated_at);
        }
        ec2_instance_id.apply(&mut worker.ec2_instance_id);
        worker.aws_region = aws_region.clone().or(worker.aws_region);
        if let Some(addresses) = addresses {
            worker.public_ip.clone_from(&addresses.public_ip);
            worker.private_ip.clone_from(&addresses.private_ip);
            worker.ip_address = addresses.public_ip.clone().or_else(|| addresses.private_ip.clone());
        }
        if let Some(image) = image {
            let fields = [
                ("ami_id", Some(&image.id)),
                ("ami_description", image.description.as_ref()),
                ("ami_creation_date", image.creation_date.as_ref()),
            ];
            let known =
                fields.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?.as_str().into())));
            worker.extra.extend(known);
            worker.ami_name = image.name.clone().or(worker.ami_name);
        }
        worker.desired_status = desired_status.or(worker.desired_status);
        worker.start_initiated_at = start_initiated_at.or(worker.start_initiated_at);
        drain_started_at.apply(&mut worker.notes.drain_started_at);
        drain_timeout_seconds.apply(&mut worker.notes.drain_timeout_seconds);
        worker.notes.drain_tries = drain_tries.unwrap_or(worker.notes.drain_tries);
        worker.notes.scaled_down_at = scaled_down_at.or(worker.notes.scaled_down_at);
        worker.notes.launched_at = launched_at.or(worker.notes.launched_at);
        worker.notes.launch_generation = launch_generation.unwrap_or(worker.notes.launch_generation);
        launch_plan.apply(&mut worker.notes.launch_plan);
        worker.notes.license_attempt = license_attempt.clone().or(worker.notes.license_attempt);
        worker.notes.license_wait = license_wait.clone().or(worker.notes.license_wait);
        worker.notes.ec2_account_id = ec2_account_id.clone().or(worker.notes.ec2_account_id);
        worker.notes.ec2_region = ec2_region.clone().or(worker.notes.ec2_region);
        if let Some(report) = license_report {
            worker.license_reported(*report);
        }
        worker
    }
}

impl Patch {
    /// The fields that this patch changed from `before`, and that a later read shows as they were: the control plane did
    /// not keep them. License reports are not compared.
    pub fn unkept(&self, before: &Worker, after: &Worker) -> Vec<&'static str> {
        let written = self.apply_to(before);
        let mut unkept = Vec::new();
        macro_rules! compare {
            ($($name:literal: $($field:ident).+),+ $(,)?) => {
                $( if written.$($field).+ != before.$($field).+ && after.$($field).+ == before.$($field).+ {
                    unkept.push($name);
                } )+
            };
        }
        compare! {
            "status": status, "desired_status": desired_status, "ec2_instance_id": ec2_instance_id,
            "aws_region": aws_region, "public_ip": public_ip, "private_ip": private_ip,
            "start_initiated_at": start_initiated_at, "drain_started_at": notes.drain_started_at,
            "drain_timeout_seconds": notes.drain_timeout_seconds, "drain_tries": notes.drain_tries,
            "scaled_down_at": notes.scaled_down_at, "launched_at": notes.launched_at,
            "launch_generation": notes.launch_generation, "launch_plan": notes.launch_plan,
            "license_attempt": notes.license_attempt, "license_wait": notes.license_wait,
            "ec2_account_id": notes.ec2_account_id, "ec2_region": notes.ec2_region,
        }
        unkept
    }
}

impl Worker {
    /// Applies a license report as the control plane does.
    pub fn license_reported(&mut self, report: LicenseReport) {
        let license = &mut self.license;
        match report {
            LicenseReport::StartRegistration | LicenseReport::StartDeregistration => {
                license.operation_in_progress = true;
                return;
            }
            LicenseReport::CompleteRegistration => {
                license.token = license.pending_token.take().or(license.token.take());
                license.status = Some("registered".to_owned());
            }
            LicenseReport::CompleteDeregistration => {
                license.token = None;
                license.status = Some("unregistered".to_owned());
            }
            LicenseReport::FailRegistration | LicenseReport::FailDeregistration => {}
        }
        license.pending_token = None;
        license.pending_operation = None::<LicenseOperation>;
        license.operation_in_progress = false;
    }
}
