//! Stores audits and events where the control plane has no endpoint for them, so that stories can read both.

use std::sync::Arc;

use async_trait::async_trait;
use fake_cloud::control_plane::{Input, Records};
use lcm_sdk::lifecycle::{
    Audit, AutoPause, Capabilities, CloudMetrics, CmlMetrics, IdleReport, LicenseReport, SessionEnd,
};
use lcm_sdk::ports::{
    CloudEvent, ControlPlane, Events, Fence, IdleCheck, ImportSummary, NotesStatus, ScanSettings, Scope, SessionMove,
    Version, WorkerListing,
};
use lcm_sdk::{CallFailure, Instance, Patch, Session, SessionId, Template, Timestamp, Worker, WorkerId};
use serde_json::{Value, json};

type Response<T> = Result<T, CallFailure>;

/// A control plane whose audits are also stored in the records of the cloud.
pub struct RecordedAudits {
    /// The client of the control plane.
    pub inner: Arc<dyn ControlPlane>,
    /// Store of the audits.
    pub records: Records,
}

/// Stores events in the records of a cloud.
pub struct RecordedEvents(pub Records);

#[async_trait]
impl Events for RecordedEvents {
    async fn publish(&self, event: &CloudEvent) -> Response<()> {
        let event = serde_json::to_value(event).expect("JSON");
        self.0.publish(&Input::from_value(event).expect("an object")).expect("stored");
        Ok(())
    }
}

#[async_trait]
impl ControlPlane for RecordedAudits {
    async fn audit(&self, id: &WorkerId, audit: Audit, detail: &str, fence: Fence) -> Response<()> {
        let entry = json!({"worker_id": id, "action": audit.label(), "reason": detail});
        self.records.record_audit(Input::from_value(entry).expect("an object")).expect("stored");
        self.inner.audit(id, audit, detail, fence).await
    }

    async fn workers(&self, scope: &Scope) -> Response<WorkerListing> {
        self.inner.workers(scope).await
    }

    async fn worker(&self, id: &WorkerId) -> Response<Option<Worker>> {
        self.inner.worker(id).await
    }

    async fn write(&self, worker: &Worker, patch: &Patch, fence: Fence) -> Response<Version> {
        self.inner.write(worker, patch, fence).await
    }

    async fn template(&self, name: &str) -> Response<Option<Template>> {
        self.inner.template(name).await
    }

    async fn sessions(&self, worker: &WorkerId) -> Response<Vec<Session>> {
        self.inner.sessions(worker).await
    }

    async fn move_session(&self, session: &SessionId, to: SessionMove, fence: Fence) -> Response<()> {
        self.inner.move_session(session, to, fence).await
    }

    async fn terminate_session(&self, session: &SessionId, reason: SessionEnd, fence: Fence) -> Response<()> {
        self.inner.terminate_session(session, reason, fence).await
    }

    async fn report_metrics(
        &self,
        id: &WorkerId,
        cloud: Option<&CloudMetrics>,
        cml: Option<&CmlMetrics>,
        at: Timestamp,
        fence: Fence,
    ) -> Response<Version> {
        self.inner.report_metrics(id, cloud, cml, at, fence).await
    }

    async fn report_license(&self, id: &WorkerId, report: LicenseReport, fence: Fence) -> Response<Version> {
        self.inner.report_license(id, report, fence).await
    }

    async fn detect_idle(
        &self,
        id: &WorkerId,
        telemetry: Option<Vec<Value>>,
        auto_pause: AutoPause,
        fence: Fence,
    ) -> Response<IdleCheck> {
        self.inner.detect_idle(id, telemetry, auto_pause, fence).await
    }

    async fn idle_status(&self, id: &WorkerId) -> Response<IdleReport> {
        self.inner.idle_status(id).await
    }

    async fn import(&self, region: &str, instances: &[Instance], fence: Fence) -> Response<ImportSummary> {
        self.inner.import(region, instances, fence).await
    }

    async fn discovery_settings(&self) -> Response<Option<ScanSettings>> {
        self.inner.discovery_settings().await
    }

    async fn clear_sync(&self, id: &WorkerId, fence: Fence) -> Response<()> {
        self.inner.clear_sync(id, fence).await
    }

    async fn with_notes(&self, worker: Worker) -> Response<Worker> {
        self.inner.with_notes(worker).await
    }

    async fn collect_notes(
        &self,
        fence: &(dyn for<'w> Fn(&'w WorkerId) -> Option<Fence> + Send + Sync),
    ) -> Response<usize> {
        self.inner.collect_notes(fence).await
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn pinned_capabilities(&self) -> Option<Capabilities> {
        self.inner.pinned_capabilities()
    }

    fn notes_status(&self) -> NotesStatus {
        self.inner.notes_status()
    }

    fn url(&self) -> Option<String> {
        self.inner.url()
    }
}
