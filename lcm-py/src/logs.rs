//! What Rust logs arrives in Python's `logging`, under `lcm.*`.

use log::LevelFilter;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3_log::{Caching, Logger};

/// Sends everything of ours, and warnings of others, to Python's loggers. The levels set there decide what is shown.
///
/// Again is fine. It imports `logging`, so it is left until something runs that may log: deciding does not.
pub(crate) fn listen(py: Python<'_>) -> PyResult<()> {
    static LISTENING: PyOnceLock<()> = PyOnceLock::new();
    LISTENING.get_or_try_init(py, || {
        // Levels are not cached: a level that is changed later, as tests and notebooks do, must count at once.
        let logger = Logger::new(py, Caching::Loggers)?
            .filter(LevelFilter::Warn)
            .filter_target("lcm".to_owned(), LevelFilter::Debug);
        // Whoever installed a logger before, in a process that embeds us, keeps it.
        drop(logger.install());
        Ok(())
    })
    .copied()
}
