//! One pass over one worker, from Python: waiting for it, or with asyncio waiting for it.

use std::sync::atomic::{AtomicBool, Ordering};

use lcm_sdk::reconciler::{Hints, Mode, ReconcileResult};
use pyo3::prelude::*;

use crate::clients::Clients;
use crate::decision::{import_outcomes, outcome_to_python};
use crate::door::{Task, block_on, meanwhile, spawn};
use crate::limit::{Limit, TimedOut};
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
    static BEGUN: AtomicBool = AtomicBool::new(false);
    let py = worker.py();
    let pass = pass(py, worker, clients, policy, dry_run, timeout)?;
    // It takes as long as a pass, most of which is waiting.
    if !BEGUN.swap(true, Ordering::Relaxed) {
        meanwhile(py, |py| drop(import_outcomes(py)))?;
    }
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

fn pass(
    py: Python<'_>,
    worker: &Bound<'_, PyAny>,
    clients: &Bound<'_, Clients>,
    policy: Option<&Bound<'_, Policy>>,
    dry_run: bool,
    timeout: Option<f64>,
) -> PyResult<impl Future<Output = Result<ReconcileResult, TimedOut>> + Send + 'static> {
    let worker = read_worker(worker)?;
    let reconciler = clients.get().reconciler(py, policy)?;
    let limit = Limit::read(timeout)?;
    Ok(async move { limit.wait_for(reconciler.reconcile_with(&worker, Hints::default(), mode(dry_run))).await })
}

/// Python's switch as what it means.
pub(crate) fn mode(dry_run: bool) -> Mode {
    if dry_run { Mode::DryRun } else { Mode::Real }
}

fn finish(py: Python<'_>, result: Result<ReconcileResult, TimedOut>) -> PyResult<Py<PyAny>> {
    outcome_to_python(py, &result?).map(Bound::unbind)
}
