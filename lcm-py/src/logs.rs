//! Forwards log records to Python's `logging`, under `lcm.*`.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use pyo3_log::{Caching, Logger};

/// How long a negative `isEnabledFor` result is cached. A changed level takes effect after that.
const BELIEVED: Duration = Duration::from_millis(100);

/// Number of calls from Python. Each call invalidates the cached results.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Sends the records of LCM, and the warnings of other crates, to Python's loggers.
///
/// Call it before any work that may log: each call invalidates the cached levels.
///
/// # Errors
/// Any exception while `sys.modules` is read.
pub(crate) fn listen(py: Python<'_>) -> PyResult<()> {
    static OURS: LazyLock<bool> = LazyLock::new(|| log::set_boxed_logger(Box::<Gate>::default()).is_ok());
    CALLS.fetch_add(1, Ordering::AcqRel);
    // A logger that the embedding process has installed is kept.
    if *OURS && log::max_level() != LevelFilter::Debug {
        // Before `logging` is imported, no level below warnings can be enabled. Importing it would take as long as a
        // reconcile, and waiting for the interpreter would delay every record.
        let is_imported = py.import("sys")?.getattr("modules")?.contains("logging")?;
        log::set_max_level(if is_imported { LevelFilter::Debug } else { LevelFilter::Warn });
    }
    Ok(())
}

/// Forwards records whose Python logger is enabled.
///
/// Most records are disabled in Python, and every reconcile logs. Formatting them, and waiting for the interpreter to
/// check each level, would cost more than the reconcile. A negative result is therefore cached for a moment, until the
/// next call from Python.
#[derive(Default)]
struct Gate {
    next: PyOnceLock<Logger>,
    known: Mutex<HashMap<String, Known>>,
}

/// Cached state of a target.
struct Known {
    logger: Py<PyAny>,
    /// Latest negative result per level.
    silent: [Option<Silence>; Level::Trace as usize + 1],
}

/// A negative `isEnabledFor` result: its time and the number of calls from Python before it.
#[derive(Clone, Copy)]
struct Silence {
    since: Instant,
    calls: u64,
}

impl Gate {
    /// Whether a record may be shown: an enabled record of `lcm`, or a warning of another crate.
    fn is_wanted(&self, metadata: &Metadata<'_>) -> bool {
        let (target, level) = (metadata.target(), metadata.level());
        if !target.starts_with("lcm") {
            return level < Level::Info;
        }
        let now = Silence { since: Instant::now(), calls: CALLS.load(Ordering::Acquire) };
        let silent = self.known.lock().get(target).and_then(|known| known.silent[level as usize]);
        if silent.is_some_and(|silent| silent.calls == now.calls && now.since - silent.since < BELIEVED) {
            return false;
        }
        // If the level cannot be read, the next logger decides.
        let is_wanted = attached(|py| self.is_enabled_for(py, metadata).unwrap_or(true)).unwrap_or(false);
        if let (false, Some(known)) = (is_wanted, self.known.lock().get_mut(target)) {
            known.silent[level as usize] = Some(now);
        }
        is_wanted
    }

    /// Returns the logger that forwards records. Python's levels select the records that are shown.
    fn next(&self, py: Python<'_>) -> PyResult<&Logger> {
        self.next.get_or_try_init(py, || {
            // Python's levels are not cached: a level that tests or notebooks change must take effect at once.
            let logger = Logger::new(py, Caching::Loggers)?;
            Ok(logger.filter(LevelFilter::Warn).filter_target("lcm".to_owned(), LevelFilter::Debug))
        })
    }

    fn is_enabled_for(&self, py: Python<'_>, metadata: &Metadata<'_>) -> PyResult<bool> {
        let level = match metadata.level() {
            Level::Error => 40,
            Level::Warn => 30,
            Level::Info => 20,
            Level::Debug => 10,
            Level::Trace => 5,
        };
        let logger = self.logger(py, metadata.target())?;
        // A logger's own cache of `isEnabledFor`, which a change of level clears. Without it, the method is called.
        if let Ok(cache) = logger.getattr(pyo3::intern!(py, "_cache"))
            && let Ok(cache) = cache.cast::<PyDict>()
            && let Some(known) = cache.get_item(level)?
        {
            return known.is_truthy();
        }
        logger.call_method1(pyo3::intern!(py, "isEnabledFor"), (level,))?.is_truthy()
    }

    fn logger<'py>(&self, py: Python<'py>, target: &str) -> PyResult<Bound<'py, PyAny>> {
        if let Some(known) = self.known.lock().get(target) {
            return Ok(known.logger.bind(py).clone());
        }
        // Not under the lock: Python may switch to another thread that waits for it.
        let logger = py.import("logging")?.call_method1("getLogger", (target.replace("::", "."),))?;
        let known = Known { logger: logger.clone().unbind(), silent: [None; _] };
        self.known.lock().insert(target.to_owned(), known);
        Ok(logger)
    }
}

impl Log for Gate {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let enabled = |py: Python<'_>| self.next(py).is_ok_and(|next| next.enabled(metadata));
        self.is_wanted(metadata) && attached(enabled).unwrap_or(false)
    }

    fn log(&self, record: &Record<'_>) {
        if self.is_wanted(record.metadata()) {
            attached(|py| self.next(py).map(|next| next.log(record)).ok());
        }
    }

    fn flush(&self) {}
}

/// Runs a function in Python and preserves the current exception. Does nothing without an interpreter.
fn attached<T>(act: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    Python::try_attach(|py| {
        let raised = PyErr::take(py);
        let done = act(py);
        if let Some(raised) = raised {
            raised.restore(py);
        }
        done
    })
}
