//! What Rust logs arrives in Python's `logging`, under `lcm.*`.

use log::LevelFilter;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3_log::{Caching, Logger};

/// Sends everything of ours, and warnings of others, to Python's loggers. Again is fine.
///
/// This imports `logging`, so it waits until something runs that may log. Deciding does not.
pub(crate) fn listen(py: Python<'_>) -> PyResult<()> {
    static LISTENING: PyOnceLock<()> = PyOnceLock::new();
    LISTENING.get_or_try_init(py, || install(py)).copied()
}

/// The levels that are set in Python decide what is shown.
fn install(py: Python<'_>) -> PyResult<()> {
    // Levels are not cached: a level that is changed later, as tests and notebooks do, must count at once.
    let logger = Logger::new(py, Caching::Loggers)?
        .filter(LevelFilter::Warn)
        .filter_target("lcm".to_owned(), LevelFilter::Debug);
    // Whoever installed a logger before, in a process that embeds us, keeps it.
    drop(logger.install());
    Ok(())
}
