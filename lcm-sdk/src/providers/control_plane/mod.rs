//! [`ControlPlane`] over the HTTP API of the control plane.
//!
//! # Guarantees
//! - Writes carry `If-Match` where the version of the record is known. Each call of a longer write uses the version that
//!   the previous call returned. A concurrent write is a [`Conflict`](crate::FailureKind::Conflict).
//! - A call that never reached the server is retried. A call that may have reached it (timeout, broken connection, 502 to
//!   504) is retried only if it is idempotent: reads, termination of a worker or session, and reports of licenses,
//!   metrics and events. Status writes, addresses, drains, session moves, idle checks, imports and audit entries are
//!   never retried; the next reconcile reads their result.
//! - A resource counts as absent only if the service itself reports that and names it. An error page or JSON of a gateway
//!   and an unknown path are failures. A worker that the server fails to read counts as absent if a complete listing lacks
//!   it.
//! - A GET follows redirects within the origin of the server, and no others.
//! - Optional features of the server are read off its responses and reported as
//!   [`Capabilities`]. A write of a feature that the server lacks is
//!   [`NotSupported`](crate::FailureKind::NotSupported); notes are left out, because the reconciler does without them.
//! - Every status write carries a status: the current one if it does not change.
//! - A report about CML erases no value that the server knows: values that CML did not report are taken from the record,
//!   and without `system_info` none is sent.
//! - A partial list is a failure: a drain that sees half of the sessions would end the others.
//! - No error, `Debug` output or log line contains the key.

mod capabilities;
mod client;
mod cml_data;
mod requests;
mod responses;
mod sessions;
#[cfg(test)]
mod tests;
mod write;

use std::time::Duration;

use async_trait::async_trait;
use reqwest::StatusCode;
use serde_json::{Value, json};

use self::capabilities::{Feature, RecordFields};
use self::client::{Call, Repeat};
pub use self::client::{ControlPlaneClient, ControlPlaneOptions};
use crate::lifecycle::capabilities::{Capabilities, Support};
use crate::lifecycle::drain::CONTROLLER;
use crate::lifecycle::event::{Audit, SessionEnd};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::idle::{self, AutoPause, IdleReport};
use crate::lifecycle::ids::{SessionId, WorkerId};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::license::LicenseReport;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::observation::{CloudMetrics, CmlMetrics};
use crate::lifecycle::patch::Patch;
use crate::lifecycle::session::Session;
use crate::lifecycle::status::WorkerStatus;
use crate::lifecycle::template::Template;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;
use crate::lifecycle::worker_json::UnreadableWorker;
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
        let mut fields = RecordFields::default();
        let reply = self.call(call).await?.success()?;
        let listing = responses::list(&reply, |listing: &mut WorkerListing, record| {
            fields.add_raw(&record);
            responses::worker(listing, record, scope);
        })?;
        self.known.learn_from_listing(fields);
        Ok(listing)
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<Worker>, CallFailure> {
        let reply = self.call(Call::get(&["workers", id.as_str()])).await?;
        if reply.status == StatusCode::INTERNAL_SERVER_ERROR {
            return match self.find_in_listing(id, reply.failure()).await {
                Lookup::Found(worker) => Ok(Some(worker)),
                Lookup::Absent | Lookup::NotRequested => Ok(None),
                Lookup::Unknown(failure) => Err(failure),
            };
        }
        let Some(record) = responses::found(reply, id.as_str())? else { return Ok(None) };
        self.known.learn_from_record(|field| record.get(field).is_some());
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
        let metrics = ("metrics", requests::metrics(cloud, cml, at, self.metrics_interval()));
        let cml = match cml {
            Some(cml) => self.complete_cml_data(id, cml, at).await.map(|body| ("cml-data", body)),
            None => None,
        };
        let mut version = None;
        for (endpoint, body) in [metrics].into_iter().chain(cml) {
            let call = Call::post(&["workers", id.as_str(), endpoint], body).fenced(fence).repeat(Repeat::Always);
            version = responses::version(&self.call(call).await?.success()?);
        }
        Ok(version)
    }

    async fn report_license(&self, id: &WorkerId, report: LicenseReport, fence: Fence) -> Result<Version, CallFailure> {
        let step = responses::license_step(report);
        let call =
            Call::post(&["workers", id.as_str(), "license", step], requests::license(report, None)).fenced(fence);
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
        // Activity keeps the worker from being paused, if the caller has compared its time with the threshold.
        let is_safe = |events: &[Value]| events.iter().any(|event| idle::activity_at(event).is_some());
        let may_pause = telemetry.as_deref().is_some_and(|events| !is_safe(events));
        if suppress && may_pause && self.known.get().pause_suppression == Support::No {
            let alternative = "read the idle status, and post telemetry that shows activity only";
            return Err(CallFailure::not_supported("idle detection without an automatic pause", alternative));
        }
        let telemetry = telemetry.map(requests::telemetry);
        let body = json!({"raw_telemetry_events": telemetry, "suppress_auto_pause": suppress});
        let call = Call::post(&["workers", id.as_str(), "detect-idle"], body).fenced(fence);
        let reply = self.call(call).await?.success()?;
        let report = responses::idle(reply.json()?)?;
        if suppress && report.auto_pause_triggered {
            self.known.learn(Feature::PauseSuppression, Support::No);
        } else if suppress && report.eligible_for_pause && report.telemetry_fetched {
            self.known.learn(Feature::PauseSuppression, Support::Yes);
        }
        Ok(IdleCheck { report, version: responses::version(&reply) })
    }

    async fn idle_status(&self, id: &WorkerId) -> Result<IdleReport, CallFailure> {
        let reply = self.call(Call::get(&["workers", id.as_str(), "idle-status"])).await?;
        responses::idle(reply.success()?.json()?)
    }

    async fn template(&self, name: &str) -> Result<Option<Template>, CallFailure> {
        let reply = self.call(Call::get(&["worker-templates", "by-name", name])).await?;
        let Some(record) = responses::found(reply, name)? else { return Ok(None) };
        let template = Template::try_from(record);
        template.map(Some).map_err(|error| CallFailure::new(FailureKind::Unparsable, error.to_string()))
    }

    async fn sessions(&self, worker: &WorkerId) -> Result<Vec<Session>, CallFailure> {
        self.read_sessions(worker).await
    }

    async fn move_session(&self, session: &SessionId, to: SessionMove, fence: Fence) -> Result<(), CallFailure> {
        self.transition(session, to, fence).await
    }

    async fn terminate_session(
        &self,
        session: &SessionId,
        reason: SessionEnd,
        fence: Fence,
    ) -> Result<(), CallFailure> {
        self.end_session(session, reason.as_str(), CONTROLLER, fence).await
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
        let settings = reply.success()?.json()?;
        Ok(Some(ScanSettings {
            enabled: responses::switch(&settings, "enabled")?,
            regions: responses::texts(&settings["regions"]),
            ami_name_pattern: settings["ami_name_pattern"].as_str().map(str::to_owned),
            scan_interval: unsigned(&settings["scan_interval_seconds"]).map(Duration::from_secs),
        }))
    }

    async fn audit(&self, id: &WorkerId, audit: Audit, detail: &str, fence: Fence) -> Result<(), CallFailure> {
        let body = json!({
            "action": audit.label(), "worker_id": id, "reason": detail, "requested_by": CONTROLLER,
        });
        self.post_optional(&self.audits, Call::post(&["scaling-audit"], body).fenced(fence)).await
    }

    async fn clear_sync(&self, id: &WorkerId, fence: Fence) -> Result<(), CallFailure> {
        let reply = self.call(Call::delete(&["workers", id.as_str(), "sync"]).fenced(fence)).await?;
        // Only some servers request a synchronization.
        if responses::is_route_missing(&reply) { Ok(()) } else { reply.success().map(drop) }
    }

    fn capabilities(&self) -> Capabilities {
        self.known_capabilities()
    }

    fn pinned_capabilities(&self) -> Option<Capabilities> {
        self.known.pinned()
    }

    fn url(&self) -> Option<String> {
        Some(self.public_url())
    }
}

/// The record in a response, if it is readable.
fn found_worker(reply: &Reply) -> Option<Worker> {
    reply.json().ok().and_then(|record| Worker::try_from(record).ok())
}

impl ControlPlaneClient {
    /// Looks a worker up in the listing, for a server that fails to read an unknown one. Without a complete listing the
    /// result is `failure`.
    pub(super) async fn find_in_listing(&self, id: &WorkerId, failure: CallFailure) -> Lookup<Worker> {
        let Ok(listing) = self.workers(&Scope::everything()).await else { return Lookup::Unknown(failure) };
        if let Some(worker) = listing.workers.into_iter().find(|worker| worker.id == *id) {
            return Lookup::Found(worker);
        }
        // A record without a readable id may be this one.
        let may_be = |unreadable: &UnreadableWorker| unreadable.id.as_ref().is_none_or(|found| found == id);
        if listing.unreadable.iter().any(may_be) { Lookup::Unknown(failure) } else { Lookup::Absent }
    }

    /// Adds an event to the event log of the control plane, which deduplicates by event ID. A server without an event log
    /// discards it.
    pub(crate) async fn publish(&self, event: Value) -> Result<(), CallFailure> {
        self.post_optional(&self.events, Call::post(&["events"], event).repeat(Repeat::Always)).await
    }
}
