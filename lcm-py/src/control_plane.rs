//! Control-plane port written in Python. `lcm.ports` documents each method.

use std::time::Duration;

use async_trait::async_trait;
use lcm_sdk::lifecycle::{
    Audit, AutoPause, Capabilities, CloudMetrics, CmlMetrics, FieldError, IdleReport, LicenseReport, SessionEnd,
    Support, UnreadableWorker, read_workers,
};
use lcm_sdk::ports::{
    ControlPlane, Fence, IdleCheck, ImportSummary, ScanSettings, Scope, SessionMove, Version, WorkerListing,
};
use lcm_sdk::{CallFailure, Instance, InstanceId, Session, SessionId, Template, Timestamp, WorkerId};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use serde::Deserialize;
use serde_json::Value;

use crate::bridge::Bridge;
use crate::convert::{to_python, to_value};
use crate::observation::{read_list, read_sessions, read_template};
use crate::port_results::{deserialized, json, nothing, optional, plain, refused, tuple};
use crate::results::Patch;
use crate::worker::{Worker, parse_worker};

/// Control-plane port written in Python.
pub(crate) struct PythonControlPlane {
    bridge: Bridge,
    /// The features that the port declares; `None` if it declares none.
    capabilities: Option<Capabilities>,
}

impl PythonControlPlane {
    /// # Errors
    /// `TypeError` if `capabilities` returns anything but a dict of the features.
    pub(crate) fn new(port: &Bound<'_, PyAny>) -> PyResult<Self> {
        let bridge = Bridge::new(port)?;
        let capabilities = read_capabilities(&port.call_method1("begin", ("capabilities", (), None::<i64>))?)?;
        Ok(Self { bridge, capabilities })
    }
}

/// Parses the features that a port declares. Those that it leaves out are unknown.
fn read_capabilities(begun: &Bound<'_, PyAny>) -> PyResult<Option<Capabilities>> {
    #[derive(Deserialize, Default)]
    #[serde(deny_unknown_fields, default)]
    struct Fields {
        versions: Option<bool>,
        notes: Option<bool>,
        desired_status: Option<bool>,
        cancel_drain: Option<bool>,
        session_moves: Option<bool>,
        pause_suppression: Option<bool>,
        audits: Option<bool>,
    }
    let (is_awaited, declared) = begun.extract::<(bool, Bound<'_, PyAny>)>()?;
    if is_awaited {
        declared.call_method0("cancel")?;
        return Err(PyTypeError::new_err("capabilities is an async method; accepted: a plain one"));
    }
    if declared.is_empty()? {
        return Ok(None);
    }
    let Fields { versions, notes, desired_status, cancel_drain, session_moves, pause_suppression, audits } =
        deserialized(&declared, "capabilities")?;
    let support = |declared: Option<bool>| match declared {
        Some(true) => Support::Yes,
        Some(false) => Support::No,
        None => Support::Unknown,
    };
    let mut capabilities = Capabilities::all(Support::Unknown);
    capabilities.versions = support(versions);
    capabilities.notes = support(notes);
    capabilities.desired_status = support(desired_status);
    capabilities.cancel_drain = support(cancel_drain);
    capabilities.session_moves = support(session_moves);
    capabilities.pause_suppression = support(pause_suppression);
    capabilities.audits = support(audits);
    Ok(Some(capabilities))
}

#[async_trait]
impl ControlPlane for PythonControlPlane {
    async fn workers(&self, scope: &Scope) -> Result<WorkerListing, CallFailure> {
        let Scope { region, with_terminated } = scope.clone();
        let wanted = region.clone();
        let listing = self.bridge.call("workers", move |py| tuple(py, (region, with_terminated)), read_listing).await?;
        // A port may ignore the scope and return all records.
        let belongs = |worker: &lcm_sdk::Worker| {
            let here = wanted.is_none() || worker.aws_region.is_none() || worker.aws_region == wanted;
            here && (with_terminated || worker.status != lcm_sdk::WorkerStatus::Terminated)
        };
        let workers = listing.workers.into_iter().filter(belongs).collect();
        Ok(WorkerListing { workers, unreadable: listing.unreadable })
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<lcm_sdk::Worker>, CallFailure> {
        let id = id.to_string();
        // The fleet reports fields without effect.
        let read = |result: &Bound<'_, PyAny>| optional(result, |record| parse_worker(record, "worker"));
        self.bridge.call("worker", move |py| tuple(py, (id,)), read).await
    }

    async fn write(
        &self,
        _worker: &lcm_sdk::Worker,
        patch: &lcm_sdk::Patch,
        fence: Fence,
    ) -> Result<Version, CallFailure> {
        if patch.is_empty() {
            return Ok(patch.expected_version);
        }
        let patch = Patch::new(patch.clone(), fence);
        self.bridge.call_fenced("write", fence, move |py| tuple(py, (patch,)), read_version("write")).await
    }

    async fn report_metrics(
        &self,
        id: &WorkerId,
        cloud: Option<&CloudMetrics>,
        cml: Option<&CmlMetrics>,
        at: Timestamp,
        fence: Fence,
    ) -> Result<Version, CallFailure> {
        let (id, cloud, cml) = (id.to_string(), json(&cloud), json(&cml));
        self.bridge
            .call_fenced(
                "report_metrics",
                fence,
                move |py| tuple(py, (id, to_python(py, &cloud)?, to_python(py, &cml)?, at)),
                read_version("report_metrics"),
            )
            .await
    }

    async fn report_license(&self, id: &WorkerId, report: LicenseReport, fence: Fence) -> Result<Version, CallFailure> {
        let (id, report) = (id.to_string(), json(&report));
        let read = read_version("report_license");
        self.bridge.call_fenced("report_license", fence, move |py| tuple(py, (id, to_python(py, &report)?)), read).await
    }

    async fn detect_idle(
        &self,
        id: &WorkerId,
        telemetry: Option<Vec<Value>>,
        auto_pause: AutoPause,
        fence: Fence,
    ) -> Result<IdleCheck, CallFailure> {
        let (id, telemetry, auto_pause) = (id.to_string(), json(&telemetry), json(&auto_pause));
        let report = self.bridge.call_fenced(
            "detect_idle",
            fence,
            move |py| tuple(py, (id, to_python(py, &telemetry)?, to_python(py, &auto_pause)?)),
            |result| deserialized(result, "detect_idle"),
        );
        Ok(IdleCheck { report: report.await?, version: None })
    }

    async fn idle_status(&self, id: &WorkerId) -> Result<IdleReport, CallFailure> {
        let id = id.to_string();
        self.bridge.call("idle_status", move |py| tuple(py, (id,)), |result| deserialized(result, "idle_status")).await
    }

    async fn template(&self, name: &str) -> Result<Option<Template>, CallFailure> {
        let name = name.to_owned();
        let read = |result: &Bound<'_, PyAny>| optional(result, |result| read_template(result, "template"));
        self.bridge.call("template", move |py| tuple(py, (name,)), read).await
    }

    async fn sessions(&self, worker: &WorkerId) -> Result<Vec<Session>, CallFailure> {
        let worker = worker.to_string();
        self.bridge.call("sessions", move |py| tuple(py, (worker,)), read_sessions).await
    }

    async fn move_session(&self, session: &SessionId, to: SessionMove, fence: Fence) -> Result<(), CallFailure> {
        let session = session.to_string();
        let attempt = match to {
            SessionMove::BackToScheduler => None,
            SessionMove::Retry { attempt } => Some(attempt),
        };
        match attempt {
            None => self.bridge.call_fenced("hand_back_session", fence, move |py| tuple(py, (session,)), nothing).await,
            Some(attempt) => {
                self.bridge.call_fenced("retry_session", fence, move |py| tuple(py, (session, attempt)), nothing).await
            }
        }
    }

    async fn terminate_session(
        &self,
        session: &SessionId,
        reason: SessionEnd,
        fence: Fence,
    ) -> Result<(), CallFailure> {
        let session = session.to_string();
        self.bridge
            .call_fenced("terminate_session", fence, move |py| tuple(py, (session, reason.as_str())), nothing)
            .await
    }

    async fn import(&self, region: &str, instances: &[Instance], fence: Fence) -> Result<ImportSummary, CallFailure> {
        let (region, found, instances) = (region.to_owned(), instances.len(), json(&instances));
        let imported = self.bridge.call_fenced(
            "import_instances",
            fence,
            move |py| tuple(py, (region, to_python(py, &instances)?)),
            |result| plain(result, "import_instances", "how many records were made, a whole number from 0 up"),
        );
        let imported: usize = imported.await?;
        Ok(ImportSummary { imported, skipped: found.saturating_sub(imported), ..ImportSummary::default() })
    }

    async fn discovery_settings(&self) -> Result<Option<ScanSettings>, CallFailure> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            enabled: bool,
            #[serde(default)]
            regions: Vec<String>,
            ami_name_pattern: Option<String>,
            scan_interval: Option<f64>,
        }
        let read = |result: &Bound<'_, PyAny>| {
            let fields = optional(result, |result| deserialized::<Fields>(result, "discovery_settings"))?;
            let Some(Fields { enabled, regions, ami_name_pattern, scan_interval }) = fields else { return Ok(None) };
            let scan_interval = scan_interval.map(Duration::try_from_secs_f64).transpose();
            let scan_interval =
                scan_interval.map_err(|_| refused("discovery_settings", result, "a scan_interval from 0 up"))?;
            Ok(Some(ScanSettings { enabled: Some(enabled), regions, ami_name_pattern, scan_interval }))
        };
        self.bridge.call("discovery_settings", |py| Ok(PyTuple::empty(py)), read).await
    }

    async fn audit(&self, id: &WorkerId, audit: Audit, detail: &str, fence: Fence) -> Result<(), CallFailure> {
        let (id, detail) = (id.to_string(), detail.to_owned());
        self.bridge.call_fenced("audit", fence, move |py| tuple(py, (id, audit.label(), detail)), nothing).await
    }

    async fn clear_sync(&self, id: &WorkerId, fence: Fence) -> Result<(), CallFailure> {
        let id = id.to_string();
        self.bridge.call_fenced("clear_sync", fence, move |py| tuple(py, (id,)), nothing).await
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.unwrap_or_default()
    }

    fn pinned_capabilities(&self) -> Option<Capabilities> {
        self.capabilities
    }
}

fn read_version(method: &'static str) -> impl FnOnce(&Bound<'_, PyAny>) -> PyResult<Version> {
    move |result| plain(result, method, "the version of the record, a whole number from 0 up, or None")
}

/// Parses record by record, so that an invalid record does not hide the others.
fn read_listing(result: &Bound<'_, PyAny>) -> PyResult<WorkerListing> {
    let mut listing = WorkerListing::default();
    for record in read_list(result, "workers", |record, _| Ok(record.clone().unbind()))? {
        let record = record.bind(result.py());
        if record.cast::<Worker>().is_ok() {
            listing.workers.push(parse_worker(record, "worker")?);
            continue;
        }
        match to_value(record, "worker") {
            Ok(value) => {
                let (workers, unreadable) = read_workers(vec![value]);
                listing.workers.extend(workers);
                listing.unreadable.extend(unreadable);
            }
            Err(error) => listing.unreadable.push(inexpressible(record, &error)),
        }
    }
    Ok(listing)
}

/// A record with a value that JSON cannot express, such as NaN.
fn inexpressible(record: &Bound<'_, PyAny>, error: &PyErr) -> UnreadableWorker {
    let text = |field: &str| record.get_item(field).ok().and_then(|value| value.extract::<String>().ok());
    let id = text("id").filter(|id| !id.is_empty());
    let name = id.as_ref().map_or_else(|| "worker".to_owned(), |id| format!("worker {id:?}"));
    let instance = ["ec2_instance_id", "aws_instance_id", "instance_id"].iter().find_map(|field| text(field));
    UnreadableWorker {
        id: id.map(WorkerId::from),
        ec2_instance_id: instance.map(InstanceId::from),
        error: FieldError::of_record(&name, &error.value(record.py()).to_string()),
    }
}
