//! Time limits of calls from Python.

use std::time::Duration;

use pyo3::exceptions::{PyTimeoutError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDelta;

/// The longest a call may take; None is no limit.
#[derive(Clone, Copy)]
pub(crate) struct Timeout(Option<Duration>);

/// The call took longer than its limit.
pub(crate) struct TimedOut(Duration);

impl Timeout {
    /// Parses seconds or a timedelta.
    pub(crate) fn from_python(timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let Some(timeout) = timeout else { return Ok(Self(None)) };
        let seconds = match timeout.is_instance_of::<PyDelta>() {
            true => timeout.call_method0("total_seconds")?.extract(),
            false => timeout.extract(),
        };
        let problem = || -> PyResult<String> {
            Ok(format!("timeout is {}; accepted: seconds from 0 up, a timedelta, or None", timeout.repr()?))
        };
        let Ok(seconds) = seconds else { return Err(PyTypeError::new_err(problem()?)) };
        match Duration::try_from_secs_f64(seconds) {
            Ok(limit) => Ok(Self(Some(limit))),
            Err(_) => Err(PyValueError::new_err(problem()?)),
        }
    }

    /// Awaits a future and drops it at the limit.
    pub(crate) async fn wait_for<T>(self, future: impl Future<Output = T>) -> Result<T, TimedOut> {
        match self.0 {
            None => Ok(future.await),
            Some(limit) => tokio::time::timeout(limit, future).await.map_err(|_| TimedOut(limit)),
        }
    }
}

impl From<TimedOut> for PyErr {
    fn from(TimedOut(limit): TimedOut) -> Self {
        PyTimeoutError::new_err(format!(
            "the call took longer than {} s; the effect under way still finishes and is recorded, the rest is not tried",
            limit.as_secs_f64()
        ))
    }
}
