//! Decides the reconciles of a history again.

use std::path::PathBuf;

use lcm_sdk::history::{self, HistoryError, HistoryReader, ReplayPolicy, replay_paths};
use lcm_sdk::{Timestamp, WorkerId};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::convert::to_value;
use crate::policy::native_policy;
use crate::results::{RecordedStep, Replay};

/// Decides every reconcile of histories again: under its own policy, that policy with changed fields, or another one.
#[pyfunction]
#[pyo3(signature = (
    history: "Sequence[str]",
    policy: "lcm.policy.Policy | None" = None,
    changes: "Mapping[str, Any] | None" = None,
))]
pub(crate) fn replay<'py>(
    py: Python<'py>,
    history: Vec<PathBuf>,
    policy: Option<&Bound<'py, PyAny>>,
    changes: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, Replay>> {
    let policy = match (native_policy(policy)?, changes) {
        (Some(policy), _) => ReplayPolicy::Replaced(Box::new(policy.get().policy.clone())),
        (None, Some(changes)) => ReplayPolicy::Changed(to_value(changes, "policy")?),
        (None, None) => ReplayPolicy::AsRecorded,
    };
    let replayed = py.detach(|| replay_paths(&history, &policy));
    Replay::from_sdk(py, &replayed.map_err(python_error)?)
}

/// The chain of recorded reconciles that led to the status of a worker at a time.
#[pyfunction]
#[pyo3(signature = (history: "Sequence[str]", worker: "str", at: "datetime | None" = None) -> "tuple[RecordedStep, ...]")]
pub(crate) fn why<'py>(
    py: Python<'py>,
    history: Vec<PathBuf>,
    worker: &str,
    at: Option<Timestamp>,
) -> PyResult<Bound<'py, PyTuple>> {
    let worker = WorkerId::from(worker);
    let at = at.unwrap_or(Timestamp::MAX_UTC);
    let steps = py.detach(|| history::why(HistoryReader::open_all(&history)?, &worker, at)).map_err(python_error)?;
    let steps = steps.iter().map(|step| RecordedStep::from_sdk(py, step)).collect::<PyResult<Vec<_>>>()?;
    PyTuple::new(py, steps)
}

fn python_error(error: HistoryError) -> PyErr {
    match error {
        HistoryError::Io { .. } => PyOSError::new_err(error.to_string()),
        _ => PyValueError::new_err(error.to_string()),
    }
}
