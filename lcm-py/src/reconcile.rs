//! Reconciles one worker, or explains what a reconcile would do: blocking, or with a callback for asyncio.

use std::time::Duration;

use lcm_sdk::reconciler::{Hints, Mode, OperationError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::clients::Clients;
use crate::logs::{caller_trace, within};
use crate::operations::operation_error;
use crate::results::{Explanation, ReconcileResult};
use crate::runtime::{Task, block_on, spawn};
use crate::timeout::{TimedOut, Timeout};
use crate::worker::read_worker;

/// Longest time for which a single call waits for the delivery of its events: a script may end right after it.
pub(crate) const FLUSH_LIMIT: Duration = Duration::from_millis(500);

/// Reconciles a worker and blocks until the result is known.
#[pyfunction]
#[pyo3(signature = (
    worker: "AnyWorker",
    clients,
    policy: "lcm.policy.Policy | None",
    dry_run,
    timeout: "float | timedelta | None" = None,
))]
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
#[pyo3(signature = (
    done: "Callable[[ReconcileResult | None, BaseException | None], None]",
    worker: "AnyWorker",
    clients,
    policy: "lcm.policy.Policy | None",
    dry_run,
    timeout: "float | timedelta | None" = None,
))]
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
    let trace = caller_trace(py)?;
    Ok(async move {
        let reconciling = within(trace, reconciler.reconcile_with(&worker, Hints::default(), mode));
        let result = timeout.wait_for(reconciling).await;
        reconciler.flush(FLUSH_LIMIT).await;
        result
    })
}

/// Reads the record of a worker, reconciles it and blocks until the result is known.
#[pyfunction]
#[pyo3(signature = (
    worker_id,
    clients,
    policy: "lcm.policy.Policy | None",
    dry_run,
    timeout: "float | timedelta | None" = None,
))]
pub(crate) fn reconcile_now<'py>(
    worker_id: &str,
    clients: &Bound<'py, Clients>,
    policy: Option<&Bound<'py, PyAny>>,
    dry_run: bool,
    timeout: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, ReconcileResult>> {
    let py = clients.py();
    let reconciled = block_on(py, prepare_now(py, worker_id, clients, policy, mode(dry_run), timeout)?)?;
    finish_now(py, reconciled)
}

/// Starts to read and reconcile a worker. Calls `done(result, error)` at the end.
#[pyfunction]
#[pyo3(signature = (
    done: "Callable[[ReconcileResult | None, BaseException | None], None]",
    worker_id,
    clients,
    policy: "lcm.policy.Policy | None",
    dry_run,
    timeout: "float | timedelta | None" = None,
))]
pub(crate) fn start_reconcile_now(
    done: Py<PyAny>,
    worker_id: &str,
    clients: &Bound<'_, Clients>,
    policy: Option<&Bound<'_, PyAny>>,
    dry_run: bool,
    timeout: Option<&Bound<'_, PyAny>>,
) -> PyResult<Task> {
    let py = clients.py();
    let reconcile = prepare_now(py, worker_id, clients, policy, mode(dry_run), timeout)?;
    spawn(py, done, reconcile, |py, result| finish_now(py, result).map(|result| result.into_any().unbind()))
}

type Limited<T> = Result<Result<T, OperationError>, TimedOut>;

fn prepare_now(
    py: Python<'_>,
    worker_id: &str,
    clients: &Bound<'_, Clients>,
    policy: Option<&Bound<'_, PyAny>>,
    mode: Mode,
    timeout: Option<&Bound<'_, PyAny>>,
) -> PyResult<impl Future<Output = Limited<lcm_sdk::reconciler::ReconcileResult>> + Send + 'static> {
    let id = worker_id.into();
    let reconciler = clients.get().reconciler(py, policy)?;
    let timeout = Timeout::from_python(timeout)?;
    let trace = caller_trace(py)?;
    Ok(async move {
        let result = timeout.wait_for(within(trace, reconciler.reconcile_now(&id, mode))).await;
        reconciler.flush(FLUSH_LIMIT).await;
        result
    })
}

fn finish_now(
    py: Python<'_>,
    reconciled: Limited<lcm_sdk::reconciler::ReconcileResult>,
) -> PyResult<Bound<'_, ReconcileResult>> {
    ReconcileResult::from_sdk(py, &reconciled?.map_err(|error| operation_error(py, &error))?)
}

/// Explains what a reconcile of a worker would do, and blocks until the worker is observed.
#[pyfunction]
#[pyo3(signature = (
    worker: "AnyWorker | str",
    clients,
    policy: "lcm.policy.Policy | None",
    timeout: "float | timedelta | None" = None,
))]
pub(crate) fn explain<'py>(
    worker: &Bound<'py, PyAny>,
    clients: &Bound<'py, Clients>,
    policy: Option<&Bound<'py, PyAny>>,
    timeout: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, Explanation>> {
    let py = worker.py();
    let explained = block_on(py, prepare_explain(py, worker, clients, policy, timeout)?)?;
    finish_explain(py, explained)
}

/// Starts to explain a worker. Calls `done(explanation, error)` at the end.
#[pyfunction]
#[pyo3(signature = (
    done: "Callable[[Explanation | None, BaseException | None], None]",
    worker: "AnyWorker | str",
    clients,
    policy: "lcm.policy.Policy | None",
    timeout: "float | timedelta | None" = None,
))]
pub(crate) fn start_explain(
    done: Py<PyAny>,
    worker: &Bound<'_, PyAny>,
    clients: &Bound<'_, Clients>,
    policy: Option<&Bound<'_, PyAny>>,
    timeout: Option<&Bound<'_, PyAny>>,
) -> PyResult<Task> {
    let py = worker.py();
    let explain = prepare_explain(py, worker, clients, policy, timeout)?;
    spawn(py, done, explain, |py, explained| {
        finish_explain(py, explained).map(|explanation| explanation.into_any().unbind())
    })
}

fn prepare_explain(
    py: Python<'_>,
    worker: &Bound<'_, PyAny>,
    clients: &Bound<'_, Clients>,
    policy: Option<&Bound<'_, PyAny>>,
    timeout: Option<&Bound<'_, PyAny>>,
) -> PyResult<impl Future<Output = Limited<lcm_sdk::reconciler::Explanation>> + Send + 'static> {
    let worker = match worker.cast::<PyString>() {
        Ok(id) => Err(id.to_str()?.into()),
        Err(_) => Ok(read_worker(worker)?),
    };
    let reconciler = clients.get().reconciler(py, policy)?;
    let timeout = Timeout::from_python(timeout)?;
    Ok(async move {
        let explaining = async {
            match &worker {
                Ok(record) => Ok(reconciler.explain(record).await),
                Err(id) => reconciler.explain_now(id).await,
            }
        };
        timeout.wait_for(explaining).await
    })
}

fn finish_explain(
    py: Python<'_>,
    explained: Limited<lcm_sdk::reconciler::Explanation>,
) -> PyResult<Bound<'_, Explanation>> {
    Explanation::from_sdk(py, &explained?.map_err(|error| operation_error(py, &error))?)
}

/// The mode that Python's `dry_run` selects.
pub(crate) fn mode(dry_run: bool) -> Mode {
    if dry_run { Mode::DryRun } else { Mode::Real }
}
