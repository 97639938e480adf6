//! What Rust logs arrives in Python's `logging`, under `lcm.*`.

use std::collections::HashMap;

use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
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
    if log::set_boxed_logger(Box::new(Gate { logger, known: Mutex::default() })).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
    Ok(())
}

/// Lets through what somebody in Python listens to.
///
/// Nobody listens to most of it, and each pass over a worker logs: asking Python in the usual way, and putting the text
/// together before that, cost more than the pass itself.
struct Gate {
    logger: Logger,
    known: Mutex<HashMap<String, Py<PyAny>>>,
}

impl Gate {
    /// Whether a logger of ours shows a level. What is not ours is the next one's affair.
    fn is_wanted(&self, metadata: &Metadata<'_>) -> bool {
        if metadata.level() < Level::Info || !metadata.target().starts_with("lcm") {
            return true;
        }
        // Without an interpreter nobody listens. With doubt, the next one decides.
        let asked = Python::try_attach(|py| {
            let raised = PyErr::take(py);
            let wanted = self.ask(py, metadata).unwrap_or(true);
            if let Some(raised) = raised {
                raised.restore(py);
            }
            wanted
        });
        asked.unwrap_or(false)
    }

    fn ask(&self, py: Python<'_>, metadata: &Metadata<'_>) -> PyResult<bool> {
        let level = match metadata.level() {
            Level::Error => 40,
            Level::Warn => 30,
            Level::Info => 20,
            Level::Debug => 10,
            Level::Trace => 5,
        };
        let logger = self.logger(py, metadata.target())?;
        // Where a logger remembers its answers until somebody changes a level. If it should not any more, it is asked.
        if let Ok(answers) = logger.getattr(pyo3::intern!(py, "_cache"))
            && let Ok(answers) = answers.cast::<PyDict>()
            && let Some(known) = answers.get_item(level)?
        {
            return known.is_truthy();
        }
        logger.call_method1(pyo3::intern!(py, "isEnabledFor"), (level,))?.is_truthy()
    }

    fn logger<'py>(&self, py: Python<'py>, target: &str) -> PyResult<Bound<'py, PyAny>> {
        if let Some(logger) = self.known.lock().get(target) {
            return Ok(logger.bind(py).clone());
        }
        // Not under the lock: Python may let another thread run meanwhile, which may want it.
        let logger = py.import("logging")?.call_method1("getLogger", (target.replace("::", "."),))?;
        self.known.lock().insert(target.to_owned(), logger.clone().unbind());
        Ok(logger)
    }
}

impl Log for Gate {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.is_wanted(metadata) && self.logger.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if self.is_wanted(record.metadata()) {
            self.logger.log(record);
        }
    }

    fn flush(&self) {
        self.logger.flush();
    }
}
