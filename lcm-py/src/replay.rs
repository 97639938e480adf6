//! Decides the reconciles of a history again.

use std::path::PathBuf;

use lcm_sdk::history::{HistoryError, ReplayPolicy, replay_path};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::convert::to_value;
use crate::policy::native_policy;
use crate::results::Replay;

/// Decides every reconcile of a history again: under its own policy, that policy with changed fields, or another one.
#[pyfunction]
#[pyo3(signature = (
    history: "str",
    policy: "lcm.policy.Policy | None" = None,
    changes: "Mapping[str, Any] | None" = None,
))]
pub(crate) fn replay<'py>(
    py: Python<'py>,
    history: PathBuf,
    policy: Option<&Bound<'py, PyAny>>,
    changes: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, Replay>> {
    let policy = match (native_policy(policy)?, changes) {
        (Some(policy), _) => ReplayPolicy::Replaced(Box::new(policy.get().policy.clone())),
        (None, Some(changes)) => ReplayPolicy::Changed(to_value(changes, "policy")?),
        (None, None) => ReplayPolicy::AsRecorded,
    };
    let replayed = py.detach(|| replay_path(&history, &policy));
    Replay::from_sdk(py, &replayed.map_err(python_error)?)
}

fn python_error(error: HistoryError) -> PyErr {
    match error {
        HistoryError::Io { .. } => PyOSError::new_err(error.to_string()),
        _ => PyValueError::new_err(error.to_string()),
    }
}
