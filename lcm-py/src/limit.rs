//! How long a caller waits.

use std::time::Duration;

use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;

/// The longest a caller waits, if there is one.
#[derive(Clone, Copy)]
pub(crate) struct Limit(Option<Duration>);

/// It took longer.
pub(crate) struct TimedOut(Duration);

impl Limit {
    /// Seconds, as Python gives them.
    pub(crate) fn read(timeout: Option<f64>) -> PyResult<Self> {
        let limit = timeout.map(Duration::try_from_secs_f64).transpose();
        let refused = |_| PyValueError::new_err("timeout is not a time; accepted: seconds from 0 up, or None");
        limit.map(Self).map_err(refused)
    }

    /// Waits, and drops what takes longer.
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
            "the pass took longer than {} s; what it had begun is finished and recorded, the rest was not tried",
            limit.as_secs_f64()
        ))
    }
}
