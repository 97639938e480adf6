//! Operations on one worker: drain it, or cancel its drain. Blocking, or with a callback for asyncio.

use lcm_sdk::lifecycle::DrainRequest;
use lcm_sdk::reconciler::OperationError;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::clients::Clients;
use crate::logs::{caller_trace, within};
use crate::python::{exception, invalid_transition};
use crate::reconcile::FLUSH_LIMIT;
use crate::results::ReconcileResult;
use crate::runtime::{Task, block_on, spawn};
use crate::timeout::{TimedOut, Timeout};
use crate::worker::read_worker;

type Operated = Result<Result<lcm_sdk::reconciler::ReconcileResult, OperationError>, TimedOut>;

/// Carries out an operation and blocks until the record is written.
#[pyfunction]
#[pyo3(signature = (
    operation,
    worker: "AnyWorker",
    clients,
    requested_by,
    reason,
    timeout: "float | timedelta | None" = None,
))]
pub(crate) fn operate<'py>(
    operation: &str,
    worker: &Bound<'py, PyAny>,
    clients: &Bound<'py, Clients>,
    requested_by: String,
    reason: String,
    timeout: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, ReconcileResult>> {
    let py = worker.py();
    let request = DrainRequest { reason, requested_by };
    let operated = block_on(py, prepare(py, operation, worker, clients, request, timeout)?)?;
    finish(py, operated)
}

/// Starts an operation. Calls `done(result, error)` at the end.
#[pyfunction]
#[pyo3(signature = (
    done: "Callable[[ReconcileResult | None, BaseException | None], None]",
    operation,
    worker: "AnyWorker",
    clients,
    requested_by,
    reason,
    timeout: "float | timedelta | None" = None,
))]
pub(crate) fn start_operate(
    done: Py<PyAny>,
    operation: &str,
    worker: &Bound<'_, PyAny>,
    clients: &Bound<'_, Clients>,
    requested_by: String,
    reason: String,
    timeout: Option<&Bound<'_, PyAny>>,
) -> PyResult<Task> {
    let py = worker.py();
    let request = DrainRequest { reason, requested_by };
    let operating = prepare(py, operation, worker, clients, request, timeout)?;
    spawn(py, done, operating, |py, operated| finish(py, operated).map(|result| result.into_any().unbind()))
}

fn prepare(
    py: Python<'_>,
    operation: &str,
    worker: &Bound<'_, PyAny>,
    clients: &Bound<'_, Clients>,
    request: DrainRequest,
    timeout: Option<&Bound<'_, PyAny>>,
) -> PyResult<impl Future<Output = Operated> + Send + 'static> {
    let cancels = match operation {
        "drain" => false,
        "cancel_drain" => true,
        other => {
            let message = format!("invalid operation '{other}': expected 'drain' or 'cancel_drain'");
            return Err(PyValueError::new_err(message));
        }
    };
    let id = read_worker(worker)?.id;
    let reconciler = clients.get().reconciler(py, None)?;
    let timeout = Timeout::from_python(timeout)?;
    let trace = caller_trace(py)?;
    Ok(async move {
        let operating = async {
            if cancels { reconciler.cancel_drain(&id, &request).await } else { reconciler.drain(&id, &request).await }
        };
        let operated = timeout.wait_for(within(trace, operating)).await;
        reconciler.flush(FLUSH_LIMIT).await;
        operated
    })
}

fn finish(py: Python<'_>, operated: Operated) -> PyResult<Bound<'_, ReconcileResult>> {
    let result = operated?.map_err(|error| operation_error(py, &error))?;
    ReconcileResult::from_sdk(py, &result)
}

/// The exception for an operation that was not carried out.
pub(crate) fn operation_error(py: Python<'_>, error: &OperationError) -> PyErr {
    match error {
        OperationError::Drain(error) => invalid_transition(py, error),
        OperationError::Failed(failure) | OperationError::NotSupported(failure) => {
            exception(py, "PortError", (failure.message.as_str(), failure.kind.as_str()))
        }
        error => exception(py, "PortError", (error.to_string(), "refused")),
    }
}
