//! One pass of discovery and garbage collection, from Python: waiting for it, or with asyncio waiting for it.

use lcm_sdk::from_settings;
use lcm_sdk::lifecycle::orphans::Verdict;
use lcm_sdk::reconciler::Mode;
use lcm_sdk::workers::{Discovery, DiscoveryReport, RegionReport};
use lcm_sdk::{CallFailure, WorkerId};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::clients::Clients;
use crate::door::{Task, block_on, spawn};
use crate::limit::{Limit, TimedOut};
use crate::policy::Policy;
use crate::python::{conclusion, discovery_report_class, failure_to_python, region_report_class, verdict_class};
use crate::reconcile::mode;

/// Collects and waits.
#[pyfunction]
#[pyo3(signature = (clients, policy, regions, dry_run, timeout=None))]
pub(crate) fn collect_orphans<'py>(
    py: Python<'py>,
    clients: &Bound<'py, Clients>,
    policy: Option<&Bound<'py, Policy>>,
    regions: Option<Vec<String>>,
    dry_run: bool,
    timeout: Option<f64>,
) -> PyResult<Bound<'py, PyAny>> {
    let mode = mode(dry_run);
    let pass = pass(py, clients, policy, regions, mode, timeout)?;
    finish(py, block_on(py, pass)?, mode).map(|report| report.into_bound(py))
}

/// Collects, and calls `done(report, error)` at the end.
#[pyfunction]
#[pyo3(signature = (done, clients, policy, regions, dry_run, timeout=None))]
pub(crate) fn start_collect_orphans(
    py: Python<'_>,
    done: Py<PyAny>,
    clients: &Bound<'_, Clients>,
    policy: Option<&Bound<'_, Policy>>,
    regions: Option<Vec<String>>,
    dry_run: bool,
    timeout: Option<f64>,
) -> PyResult<Task> {
    let mode = mode(dry_run);
    let pass = pass(py, clients, policy, regions, mode, timeout)?;
    spawn(py, done, pass, move |py, result| finish(py, result, mode))
}

fn pass(
    py: Python<'_>,
    clients: &Bound<'_, Clients>,
    policy: Option<&Bound<'_, Policy>>,
    regions: Option<Vec<String>>,
    mode: Mode,
    timeout: Option<f64>,
) -> PyResult<impl Future<Output = Result<DiscoveryReport, TimedOut>> + Send + 'static> {
    let limit = Limit::read(timeout)?;
    let clients = clients.get();
    // Nobody runs who could be asked for a pass: the report names whom it found.
    let discovery =
        Discovery::new(clients.reconciler(py, policy)?, from_settings::discovery_config(clients.settings()), |_| {});
    let discovery = match regions {
        None => discovery,
        Some(regions) => discovery.only_in(regions),
    };
    Ok(async move {
        match mode {
            Mode::Real => limit.wait_for(discovery.run_once()).await,
            Mode::DryRun => limit.wait_for(discovery.dry_run()).await,
        }
    })
}

fn finish(py: Python<'_>, result: Result<DiscoveryReport, TimedOut>, mode: Mode) -> PyResult<Py<PyAny>> {
    let DiscoveryReport { regions, error } = result?;
    let regions = regions.iter().map(|region| region_to_python(py, region, mode)).collect::<PyResult<Vec<_>>>()?;
    let error = error_to_python(py, error.as_ref())?;
    let report = discovery_report_class(py)?.call1((PyTuple::new(py, regions)?, error, mode == Mode::DryRun))?;
    Ok(report.unbind())
}

fn region_to_python<'py>(py: Python<'py>, region: &RegionReport, mode: Mode) -> PyResult<Bound<'py, PyAny>> {
    let verdicts =
        region.verdicts.iter().map(|verdict| verdict_to_python(py, verdict)).collect::<PyResult<Vec<_>>>()?;
    let names = |workers: &[WorkerId]| PyTuple::new(py, workers.iter().map(WorkerId::as_str));
    region_report_class(py)?.call1((
        region.region.as_str(),
        PyTuple::new(py, verdicts)?,
        // Everything that the scan did not show was asked about.
        PyTuple::empty(py),
        region.seen,
        region.imported,
        names(&region.handed_over)?,
        names(&region.resurrected)?,
        names(&region.terminated)?,
        error_to_python(py, region.error.as_ref())?,
        mode == Mode::DryRun,
    ))
}

/// A verdict as `lcm.Verdict`.
pub(crate) fn verdict_to_python<'py>(py: Python<'py>, verdict: &Verdict) -> PyResult<Bound<'py, PyAny>> {
    let word = conclusion(py, verdict.conclusion.as_str())?;
    verdict_class(py)?.call1((verdict.worker_id.as_str(), verdict.ec2_instance_id.as_str(), word))
}

fn error_to_python<'py>(py: Python<'py>, error: Option<&CallFailure>) -> PyResult<Option<Bound<'py, PyAny>>> {
    error.map(|failure| failure_to_python(py, failure)).transpose()
}
