//! Tracks whether a service can be reached, for operators.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

use crate::lifecycle::capabilities::Capabilities;
use crate::lifecycle::event::{Audit, SessionEnd};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::idle::{AutoPause, IdleReport};
use crate::lifecycle::ids::{SessionId, WorkerId};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::license::LicenseReport;
use crate::lifecycle::observation::{CloudMetrics, CmlMetrics};
use crate::lifecycle::patch::Patch;
use crate::lifecycle::session::Session;
use crate::lifecycle::template::Template;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;
use crate::ports::{
    Claim, Clock, ControlPlane, Coordination, Fence, IdleCheck, ImportSummary, Lease, LeaseId, Listing, NotesStatus,
    Renewal, ScanSettings, Scope, SessionMove, Version, WatchStream, WorkerListing,
};

/// Whether a service can be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceStatus {
    /// Name of the service.
    pub service: &'static str,
    /// Address of the service, where the port knows it.
    pub url: Option<String>,
    /// Whether the last call succeeded; `None` before the first call.
    pub reachable: Option<bool>,
    /// Time of the first failed call since the last that succeeded.
    pub since: Option<Timestamp>,
    /// Error of the last failed call since then.
    pub last_error: Option<String>,
}

impl ServiceStatus {
    /// The outage as a sentence; `None` if the service can be reached.
    pub fn outage(&self) -> Option<String> {
        let (since, error) = (self.since?, self.last_error.as_ref()?);
        let at = self.url.as_ref().map(|url| format!(" at {url}")).unwrap_or_default();
        Some(format!("{}{at} cannot be reached since {}: {error}", self.service, since.to_rfc3339()))
    }
}

/// Results of the calls to one service.
pub(crate) struct Reachability {
    clock: Arc<dyn Clock>,
    status: Mutex<ServiceStatus>,
}

impl Reachability {
    pub(crate) fn new(service: &'static str, url: Option<String>, clock: Arc<dyn Clock>) -> Self {
        let status = ServiceStatus { service, url, reachable: None, since: None, last_error: None };
        Self { clock, status: Mutex::new(status) }
    }

    pub(crate) fn status(&self) -> ServiceStatus {
        self.status.lock().clone()
    }

    /// Notes the result of a call. Logs the begin and the end of an outage.
    pub(crate) fn note<T>(&self, result: &Result<T, CallFailure>) {
        let mut status = self.status.lock();
        let (service, url) = (status.service, status.url.clone().unwrap_or_default());
        match result {
            Ok(_) => {
                status.reachable = Some(true);
                status.last_error = None;
                if let Some(since) = status.since.take() {
                    tracing::info!(target: "lcm::reachability", service, url, since = since.to_rfc3339(), "can be reached again");
                }
            }
            Err(failure) => {
                if status.since.is_none() {
                    status.since = Some(self.clock.now());
                    tracing::warn!(target: "lcm::reachability", service, url, %failure, "cannot be reached");
                }
                status.reachable = Some(false);
                status.last_error = Some(failure.to_string());
            }
        }
    }
}

/// A [`Coordination`] that notes the result of every call.
pub(crate) struct MonitoredCoordination {
    inner: Arc<dyn Coordination>,
    reachability: Arc<Reachability>,
}

impl MonitoredCoordination {
    pub(crate) fn new(inner: Arc<dyn Coordination>, reachability: Arc<Reachability>) -> Self {
        Self { inner, reachability }
    }

    fn noted<T>(&self, result: Result<T, CallFailure>) -> Result<T, CallFailure> {
        self.reachability.note(&result);
        result
    }
}

#[async_trait]
impl Coordination for MonitoredCoordination {
    async fn grant(&self, ttl: Duration) -> Result<Lease, CallFailure> {
        self.noted(self.inner.grant(ttl).await)
    }

    async fn renew(&self, lease: LeaseId) -> Result<Renewal, CallFailure> {
        self.noted(self.inner.renew(lease).await)
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), CallFailure> {
        self.noted(self.inner.revoke(lease).await)
    }

    async fn claim(&self, key: &str, value: &str, lease: LeaseId) -> Result<Claim, CallFailure> {
        self.noted(self.inner.claim(key, value, lease).await)
    }

    async fn list(&self, prefix: &str) -> Result<Listing, CallFailure> {
        self.noted(self.inner.list(prefix).await)
    }

    async fn watch(&self, prefix: &str, from_revision: i64) -> Result<Box<dyn WatchStream>, CallFailure> {
        self.noted(self.inner.watch(prefix, from_revision).await)
    }

    async fn value(&self, key: &str) -> Result<Option<String>, CallFailure> {
        self.noted(self.inner.value(key).await)
    }

    fn url(&self) -> Option<String> {
        self.inner.url()
    }
}

/// A [`ControlPlane`] that notes which calls it responded to.
///
/// A failed listing is an outage with any response: a refusal of the key lasts as well. Any other call that gets a
/// response, even a refusal or an error of the server, says nothing about the rest of the service.
pub(crate) struct MonitoredControlPlane {
    inner: Arc<dyn ControlPlane>,
    reachability: Arc<Reachability>,
}

impl MonitoredControlPlane {
    pub(crate) fn new(inner: Arc<dyn ControlPlane>, reachability: Arc<Reachability>) -> Self {
        Self { inner, reachability }
    }

    fn listed<T>(&self, result: Result<T, CallFailure>) -> Result<T, CallFailure> {
        self.reachability.note(&result);
        result
    }

    fn read<T>(&self, result: Result<T, CallFailure>) -> Result<T, CallFailure> {
        match &result {
            Err(failure) if has_response(failure) => {}
            Ok(_) | Err(_) => self.reachability.note(&result),
        }
        result
    }

    /// A change may succeed without a call, on a server that lacks the feature.
    fn changed<T>(&self, result: Result<T, CallFailure>) -> Result<T, CallFailure> {
        match &result {
            Err(failure) if !has_response(failure) => self.reachability.note(&result),
            Ok(_) | Err(_) => {}
        }
        result
    }
}

fn has_response(failure: &CallFailure) -> bool {
    let is_silent = matches!(failure.kind, FailureKind::Unreachable | FailureKind::Unclear);
    failure.code.is_some() || !is_silent
}

#[async_trait]
impl ControlPlane for MonitoredControlPlane {
    async fn workers(&self, scope: &Scope) -> Result<WorkerListing, CallFailure> {
        self.listed(self.inner.workers(scope).await)
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<Worker>, CallFailure> {
        self.read(self.inner.worker(id).await)
    }

    async fn write(&self, worker: &Worker, patch: &Patch, fence: Fence) -> Result<Version, CallFailure> {
        self.changed(self.inner.write(worker, patch, fence).await)
    }

    async fn template(&self, name: &str) -> Result<Option<Template>, CallFailure> {
        self.read(self.inner.template(name).await)
    }

    async fn sessions(&self, worker: &WorkerId) -> Result<Vec<Session>, CallFailure> {
        self.read(self.inner.sessions(worker).await)
    }

    async fn move_session(&self, session: &SessionId, to: SessionMove, fence: Fence) -> Result<(), CallFailure> {
        self.changed(self.inner.move_session(session, to, fence).await)
    }

    async fn terminate_session(
        &self,
        session: &SessionId,
        reason: SessionEnd,
        fence: Fence,
    ) -> Result<(), CallFailure> {
        self.changed(self.inner.terminate_session(session, reason, fence).await)
    }

    async fn report_metrics(
        &self,
        id: &WorkerId,
        cloud: Option<&CloudMetrics>,
        cml: Option<&CmlMetrics>,
        at: Timestamp,
        fence: Fence,
    ) -> Result<Version, CallFailure> {
        self.changed(self.inner.report_metrics(id, cloud, cml, at, fence).await)
    }

    async fn report_license(&self, id: &WorkerId, report: LicenseReport, fence: Fence) -> Result<Version, CallFailure> {
        self.changed(self.inner.report_license(id, report, fence).await)
    }

    async fn detect_idle(
        &self,
        id: &WorkerId,
        telemetry: Option<Vec<Value>>,
        auto_pause: AutoPause,
        fence: Fence,
    ) -> Result<IdleCheck, CallFailure> {
        self.changed(self.inner.detect_idle(id, telemetry, auto_pause, fence).await)
    }

    async fn idle_status(&self, id: &WorkerId) -> Result<IdleReport, CallFailure> {
        self.read(self.inner.idle_status(id).await)
    }

    async fn import(&self, region: &str, instances: &[Instance], fence: Fence) -> Result<ImportSummary, CallFailure> {
        self.changed(self.inner.import(region, instances, fence).await)
    }

    async fn discovery_settings(&self) -> Result<Option<ScanSettings>, CallFailure> {
        self.listed(self.inner.discovery_settings().await)
    }

    async fn audit(&self, id: &WorkerId, audit: Audit, detail: &str, fence: Fence) -> Result<(), CallFailure> {
        self.changed(self.inner.audit(id, audit, detail, fence).await)
    }

    async fn clear_sync(&self, id: &WorkerId, fence: Fence) -> Result<(), CallFailure> {
        self.changed(self.inner.clear_sync(id, fence).await)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn pinned_capabilities(&self) -> Option<Capabilities> {
        self.inner.pinned_capabilities()
    }

    // Notes may be in another service.
    async fn with_notes(&self, worker: Worker) -> Result<Worker, CallFailure> {
        self.inner.with_notes(worker).await
    }

    async fn collect_notes(
        &self,
        fence: &(dyn for<'w> Fn(&'w WorkerId) -> Option<Fence> + Send + Sync),
    ) -> Result<usize, CallFailure> {
        self.inner.collect_notes(fence).await
    }

    fn notes_status(&self) -> NotesStatus {
        self.inner.notes_status()
    }

    fn url(&self) -> Option<String> {
        self.inner.url()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::decision::Changes;
    use crate::lifecycle::status::WorkerStatus;
    use crate::providers::memory::{Fault, ManualClock, MemoryControlPlane};

    #[test]
    fn outage_names_url_error_and_begin() {
        let clock = ManualClock::new("2026-02-06T08:00:00Z".parse().expect("a timestamp"));
        let etcd = Reachability::new("etcd", Some("http://etcd:2379".to_owned()), Arc::new(clock.clone()));
        assert_eq!((etcd.status().reachable, etcd.status().outage()), (None, None));
        let failed = |message: &str| Err::<(), _>(CallFailure::new(FailureKind::Unreachable, message));
        etcd.note(&failed("first"));
        clock.advance(Duration::from_secs(60));
        etcd.note(&failed("connection refused"));
        let outage = etcd.status().outage().expect("an outage");
        for part in ["etcd at http://etcd:2379", "2026-02-06T08:00:00", "connection refused"] {
            assert!(outage.contains(part), "{part} is not in {outage}");
        }
        etcd.note(&Ok(()));
        assert_eq!((etcd.status().reachable, etcd.status().outage()), (Some(true), None));
    }

    #[tokio::test]
    async fn every_call_without_a_response_is_an_outage() {
        let clock = ManualClock::new("2026-02-06T08:00:00Z".parse().expect("a timestamp"));
        let inner = Arc::new(MemoryControlPlane::new(Arc::new(clock.clone())));
        let reachability = Arc::new(Reachability::new("the control plane", None, Arc::new(clock)));
        let monitored = MonitoredControlPlane::new(Arc::clone(&inner) as _, Arc::clone(&reachability));
        let (worker, fence) = (Worker::new("w-1", WorkerStatus::Running), Fence::default());
        inner.put_worker(worker.clone());
        let silent = || Fault::Fail(CallFailure::new(FailureKind::Unreachable, "connection refused"));
        let patch = Patch::from_changes(&worker, Changes::default(), "2026-02-06T08:00:00Z".parse().expect("valid"));
        for call in ["worker", "write", "report_metrics", "discovery_settings"] {
            assert!(monitored.worker(&worker.id).await.is_ok(), "{call}");
            assert_eq!(reachability.status().reachable, Some(true), "{call}");
            inner.plan(call, silent());
            match call {
                "worker" => drop(monitored.worker(&worker.id).await),
                "write" => drop(monitored.write(&worker, &patch, fence).await),
                "report_metrics" => {
                    drop(monitored.report_metrics(&worker.id, None, None, worker_time(), fence).await);
                }
                _ => drop(monitored.discovery_settings().await),
            }
            assert_eq!(reachability.status().reachable, Some(false), "{call}");
        }
        assert!(monitored.worker(&worker.id).await.is_ok());
        inner.plan("sessions", Fault::Fail(CallFailure::with_code(FailureKind::Unclear, "500", "oops")));
        assert!(monitored.sessions(&worker.id).await.is_err());
        assert_eq!(reachability.status().reachable, Some(true), "the server responded");
    }

    fn worker_time() -> Timestamp {
        "2026-02-06T08:00:00Z".parse().expect("valid")
    }
}
