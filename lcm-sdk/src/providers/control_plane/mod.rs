//! [`ControlPlane`] over the HTTP API of the control plane.
//!
//! # Guarantees
//! - Writes carry `If-Match` where the version of the record is known. Each call of a longer write uses the version that
//!   the previous call returned. A concurrent write is a [`Conflict`](crate::FailureKind::Conflict).
//! - A call that never reached the server is retried. A call that may have reached it (timeout, broken connection, 502 to
//!   504) is retried only if it is idempotent: reads, termination of a worker or session, and reports of licenses,
//!   metrics and events. Status writes, addresses, drains, session moves, idle checks, imports and audit entries are
//!   never retried; the next reconcile reads their result.
//! - A resource counts as absent only if the service itself reports that, in JSON. An error page of a proxy or an unknown
//!   path is a failure.
//! - A partial list is a failure: a drain that sees half of the sessions would end the others.
//! - No error, `Debug` output or log line contains the key.

mod client;
mod requests;
mod responses;
#[cfg(test)]
mod tests;
mod write;

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use self::client::{Call, Repeat};
pub use self::client::{ControlPlaneClient, ControlPlaneOptions};
use crate::lifecycle::drain::CONTROLLER;
use crate::lifecycle::event::{Audit, SessionEnd};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::idle::{AutoPause, IdleReport};
use crate::lifecycle::ids::{SessionId, WorkerId};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::json::Raw;
use crate::lifecycle::license::LicenseReport;
use crate::lifecycle::observation::{CloudMetrics, CmlMetrics};
use crate::lifecycle::patch::Patch;
use crate::lifecycle::session::{Session, SessionPhase};
use crate::lifecycle::status::WorkerStatus;
use crate::lifecycle::template::Template;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;
use crate::ports::{
    ControlPlane, Fence, IdleCheck, ImportSummary, ScanSettings, Scope, SessionMove, Version, WorkerListing,
};
use crate::providers::http::{Reply, unsigned};

/// Maximum number of instances in one import call.
const IMPORT_BATCH: usize = 1000;

#[async_trait]
impl ControlPlane for ControlPlaneClient {
    async fn workers(&self, scope: &Scope) -> Result<WorkerListing, CallFailure> {
        let mut call = Call::get(&["workers"]);
        // Servers differ in whether they list terminated workers by default.
        if scope.with_terminated {
            call = call.query("include_terminated", "true");
        } else {
            call = call.query("exclude_statuses", WorkerStatus::Terminated.as_str());
        }
        if let Some(region) = &scope.region {
            call = call.query("aws_region", region);
        }
        self.list(call, |listing: &mut WorkerListing, record| responses::worker(listing, record, scope)).await
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<Worker>, CallFailure> {
        let reply = self.call(Call::get(&["workers", id.as_str()])).await?;
        let Some(record) = responses::found(reply)? else { return Ok(None) };
        let worker = Worker::try_from(record);
        worker.map(Some).map_err(|error| CallFailure::new(FailureKind::Unparsable, error.to_string()))
    }

    async fn write(&self, worker: &Worker, patch: &Patch, fence: Fence) -> Result<Version, CallFailure> {
        write::write(self, worker, patch, fence).await
    }

    async fn report_metrics(
        &self,
        id: &WorkerId,
        cloud: Option<&CloudMetrics>,
        cml: Option<&CmlMetrics>,
        at: Timestamp,
        fence: Fence,
    ) -> Result<Version, CallFailure> {
        let cloud = cloud.map(|cloud| ("metrics", requests::report(cloud, at)));
        let cml = cml.map(|cml| ("cml-data", requests::report(cml, at)));
        let mut version = None;
        for (endpoint, body) in cloud.into_iter().chain(cml) {
            let call = Call::post(&["workers", id.as_str(), endpoint], body).fenced(fence).repeat(Repeat::Always);
            version = responses::version(&self.call(call).await?.success()?);
        }
        Ok(version)
    }

    async fn report_license(&self, id: &WorkerId, report: LicenseReport, fence: Fence) -> Result<Version, CallFailure> {
        let step = responses::license_step(report);
        let call = Call::post(&["workers", id.as_str(), "license", step], json!({})).fenced(fence);
        Ok(responses::version(&self.call(call.repeat(Repeat::Always)).await?.success()?))
    }

    async fn detect_idle(
        &self,
        id: &WorkerId,
        telemetry: Option<Vec<Value>>,
        auto_pause: AutoPause,
        fence: Fence,
    ) -> Result<IdleCheck, CallFailure> {
        let suppress = match auto_pause {
            AutoPause::ServerDecides => false,
            AutoPause::Suppressed => true,
        };
        let body = json!({"raw_telemetry_events": telemetry, "suppress_auto_pause": suppress});
        let call = Call::post(&["workers", id.as_str(), "detect-idle"], body).fenced(fence);
        let reply = self.call(call).await?.success()?;
        Ok(IdleCheck { report: responses::idle(reply.json()?)?, version: responses::version(&reply) })
    }

    async fn idle_status(&self, id: &WorkerId) -> Result<IdleReport, CallFailure> {
        let reply = self.call(Call::get(&["workers", id.as_str(), "idle-status"])).await?;
        responses::idle(reply.success()?.json()?)
    }

    async fn template(&self, name: &str) -> Result<Option<Template>, CallFailure> {
        let reply = self.call(Call::get(&["worker-templates", "by-name", name])).await?;
        let Some(record) = responses::found(reply)? else { return Ok(None) };
        let template = Template::try_from(record);
        template.map(Some).map_err(|error| CallFailure::new(FailureKind::Unparsable, error.to_string()))
    }

    async fn sessions(&self, worker: &WorkerId) -> Result<Vec<Session>, CallFailure> {
        let call = Call::get(&["lablet-sessions"]).query("worker_id", worker.as_str());
        let sessions =
            self.list(call, |sessions: &mut Vec<_>, record| sessions.extend(responses::session(record, worker)));
        // An unreadable session fails the list, because it may hold a user's work.
        let sessions: Result<Vec<_>, _> = sessions.await?.into_iter().collect();
        sessions.map_err(|error| CallFailure::new(FailureKind::Unparsable, error.to_string()))
    }

    async fn move_session(&self, session: &SessionId, to: SessionMove, fence: Fence) -> Result<(), CallFailure> {
        let body = match to {
            SessionMove::BackToScheduler => {
                json!({"status": "pending", "worker_id": null, "reason": "worker_draining"})
            }
            SessionMove::Retry { attempt } => {
                json!({"status": "instantiating", "retry_count": attempt, "reason": "retry_while_draining"})
            }
        };
        let call = Call::post(&["lablet-sessions", session.as_str(), "transition"], body).fenced(fence);
        self.call(call).await?.success().map(drop)
    }

    async fn terminate_session(
        &self,
        session: &SessionId,
        reason: SessionEnd,
        fence: Fence,
    ) -> Result<(), CallFailure> {
        self.terminate_session_by(session, reason.as_str(), Some(CONTROLLER), fence).await
    }

    async fn import(&self, region: &str, instances: &[Instance], fence: Fence) -> Result<ImportSummary, CallFailure> {
        let mut total = ImportSummary::default();
        for batch in instances.chunks(IMPORT_BATCH) {
            let call = Call::post(&["workers", "bulk-import"], requests::import(region, batch)).fenced(fence);
            let summary = responses::import(&self.call(call).await?.success()?.json()?);
            total.imported += summary.imported;
            total.skipped += summary.skipped;
            total.updated += summary.updated;
        }
        Ok(total)
    }

    async fn discovery_settings(&self) -> Result<Option<ScanSettings>, CallFailure> {
        let reply = self.call(Call::get(&["settings", "discovery"])).await?;
        if responses::is_route_missing(&reply) {
            return Ok(None);
        }
        let Some(settings) = responses::found(reply)? else { return Ok(None) };
        Ok(Some(ScanSettings {
            enabled: settings["enabled"].as_bool().unwrap_or(true),
            regions: responses::texts(&settings["regions"]),
            ami_name_pattern: settings["ami_name_pattern"].as_str().map(str::to_owned),
            scan_interval: unsigned(&settings["scan_interval_seconds"]).map(Duration::from_secs),
        }))
    }

    async fn audit(&self, id: &WorkerId, audit: Audit, detail: &str, fence: Fence) -> Result<(), CallFailure> {
        let body = json!({
            "action": audit.label(), "worker_id": id, "reason": detail, "requested_by": CONTROLLER,
        });
        self.call(Call::post(&["scaling-audit"], body).fenced(fence)).await?.success().map(drop)
    }
}

/// The record in a response, if it is readable.
fn found_worker(reply: &Reply) -> Option<Worker> {
    reply.json().ok().and_then(|record| Worker::try_from(record).ok())
}

impl ControlPlaneClient {
    /// Reads a list and folds its records into `T` with `add`.
    async fn list<T: Default + Send>(
        &self,
        call: Call<'_>,
        add: impl FnMut(&mut T, Raw<'_>) + Send,
    ) -> Result<T, CallFailure> {
        responses::list(&self.call(call).await?.success()?, add)
    }

    /// Adds an event to the event log of the control plane, which deduplicates by event ID.
    pub(crate) async fn publish(&self, event: Value) -> Result<(), CallFailure> {
        self.call(Call::post(&["events"], event).repeat(Repeat::Always)).await?.success().map(drop)
    }

    /// Terminates a session. Succeeds if it has ended.
    async fn terminate_session_by(
        &self,
        session: &SessionId,
        reason: &str,
        by: Option<&str>,
        fence: Fence,
    ) -> Result<(), CallFailure> {
        let body = json!({"reason": reason, "terminated_by": by});
        let call = Call::post(&["lablet-sessions", session.as_str(), "terminate"], body).fenced(fence);
        match self.call(call.repeat(Repeat::Always)).await?.success() {
            Ok(_) => Ok(()),
            // Some servers refuse to terminate a session that has ended.
            Err(failure) if failure.kind == FailureKind::Conflict && self.has_ended(session).await => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    async fn has_ended(&self, session: &SessionId) -> bool {
        let read = async || -> Result<Option<Session>, CallFailure> {
            let reply: Reply = self.call(Call::get(&["lablet-sessions", session.as_str()])).await?;
            Ok(responses::found(reply)?.and_then(|record| Session::try_from(record).ok()))
        };
        matches!(read().await, Ok(Some(session)) if session.state.phase() == SessionPhase::Over)
    }
}
