//! One pass over one worker, from Python: waiting for it, or with asyncio waiting for it.

use std::time::Duration;

use lcm_sdk::runtime::reconcile::{Handover, Mode, Reconciliation};
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;

use crate::clients::Clients;
use crate::decision::outcome_to_python;
use crate::door::{Task, block_on, spawn};
use crate::policy::Policy;
use crate::worker::read_worker;

/// Reconciles and waits.
#[pyfunction]
#[pyo3(signature = (worker, clients, policy, dry_run, timeout=None))]
pub(crate) fn reconcile<'py>(
    worker: &Bound<'py, PyAny>,
    clients: &Bound<'py, Clients>,
    policy: Option<&Bound<'py, Policy>>,
    dry_run: bool,
    timeout: Option<f64>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = worker.py();
    let pass = pass(py, worker, clients, policy, dry_run, timeout)?;
    finish(py, block_on(py, pass)?).map(|outcome| outcome.into_bound(py))
}

/// Reconciles, and calls `done(outcome, error)` at the end.
#[pyfunction]
#[pyo3(signature = (done, worker, clients, policy, dry_run, timeout=None))]
pub(crate) fn start_reconcile(
    done: Py<PyAny>,
    worker: &Bound<'_, PyAny>,
    clients: &Bound<'_, Clients>,
    policy: Option<&Bound<'_, Policy>>,
    dry_run: bool,
    timeout: Option<f64>,
) -> PyResult<Task> {
    let py = worker.py();
    let pass = pass(py, worker, clients, policy, dry_run, timeout)?;
    spawn(py, done, pass, finish)
}

struct TimedOut(Duration);

fn pass(
    py: Python<'_>,
    worker: &Bound<'_, PyAny>,
    clients: &Bound<'_, Clients>,
    policy: Option<&Bound<'_, Policy>>,
    dry_run: bool,
    timeout: Option<f64>,
) -> PyResult<impl Future<Output = Result<Reconciliation, TimedOut>> + Send + 'static> {
    let worker = read_worker(worker)?;
    let reconciler = clients.get().reconciler(py, policy)?;
    let mode = if dry_run { Mode::DryRun } else { Mode::Real };
    let limit = timeout.map(Duration::try_from_secs_f64).transpose();
    let limit =
        limit.map_err(|_| PyValueError::new_err("timeout is not a time; accepted: seconds from 0 up, or None"))?;
    Ok(async move {
        let pass = reconciler.pass(&worker, Handover::default(), mode);
        match limit {
            None => Ok(pass.await),
            Some(limit) => tokio::time::timeout(limit, pass).await.map_err(|_| TimedOut(limit)),
        }
    })
}

fn finish(py: Python<'_>, result: Result<Reconciliation, TimedOut>) -> PyResult<Py<PyAny>> {
    match result {
        Ok(result) => outcome_to_python(py, &result).map(Bound::unbind),
        Err(TimedOut(limit)) => Err(PyTimeoutError::new_err(format!(
            "the pass took longer than {} s; what it had begun is finished and recorded, the rest was not tried",
            limit.as_secs_f64()
        ))),
    }
}
