//! Reconciles one worker: blocking, or with a callback for asyncio.

use lcm_sdk::reconciler::{Hints, Mode};
use pyo3::prelude::*;

use crate::clients::Clients;
use crate::results::ReconcileResult;
use crate::runtime::{Task, block_on, spawn};
use crate::timeout::{TimedOut, Timeout};
use crate::worker::read_worker;

/// Reconciles a worker and blocks until the result is known.
#[pyfunction]
#[pyo3(signature = (worker, clients, policy, dry_run, timeout=None))]
pub(crate) fn reconcile<'py>(
    worker: &Bound<'py, PyAny>,
    clients: &Bound<'py, Clients>,
    policy: Option<&Bound<'py, PyAny>>,
    dry_run: bool,
    timeout: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, ReconcileResult>> {
    let py = worker.py();
    let reconcile = prepare(py, worker, clients, policy, mode(dry_run), timeout)?;
    ReconcileResult::from_sdk(py, &block_on(py, reconcile)??)
}

/// Starts to reconcile a worker. Calls `done(result, error)` at the end.
#[pyfunction]
#[pyo3(signature = (done, worker, clients, policy, dry_run, timeout=None))]
pub(crate) fn start_reconcile(
    done: Py<PyAny>,
    worker: &Bound<'_, PyAny>,
    clients: &Bound<'_, Clients>,
    policy: Option<&Bound<'_, PyAny>>,
    dry_run: bool,
    timeout: Option<&Bound<'_, PyAny>>,
) -> PyResult<Task> {
    let py = worker.py();
    let reconcile = prepare(py, worker, clients, policy, mode(dry_run), timeout)?;
    spawn(py, done, reconcile, |py, result| {
        ReconcileResult::from_sdk(py, &result?).map(|result| result.into_any().unbind())
    })
}

fn prepare(
    py: Python<'_>,
    worker: &Bound<'_, PyAny>,
    clients: &Bound<'_, Clients>,
    policy: Option<&Bound<'_, PyAny>>,
    mode: Mode,
    timeout: Option<&Bound<'_, PyAny>>,
) -> PyResult<impl Future<Output = Result<lcm_sdk::reconciler::ReconcileResult, TimedOut>> + Send + 'static> {
    let worker = read_worker(worker)?;
    let reconciler = clients.get().reconciler(py, policy)?;
    let timeout = Timeout::from_python(timeout)?;
    Ok(async move { timeout.wait_for(reconciler.reconcile_with(&worker, Hints::default(), mode)).await })
}

/// The mode that Python's `dry_run` selects.
pub(crate) fn mode(dry_run: bool) -> Mode {
    if dry_run { Mode::DryRun } else { Mode::Real }
}
