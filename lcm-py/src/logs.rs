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

/// Counts the calls from Python: what was believed before one does not count for it.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Sends everything of ours, and warnings of others, to Python's loggers. Again is fine, and wanted: whoever begins
/// something that may log calls this first.
///
/// # Errors
/// Any exception while `sys.modules` is read.
pub(crate) fn listen(py: Python<'_>) -> PyResult<()> {
    static OURS: LazyLock<bool> = LazyLock::new(|| log::set_boxed_logger(Box::<Gate>::default()).is_ok());
    CALLS.fetch_add(1, Ordering::AcqRel);
    // A logger that the embedding process installed before stays.
    if *OURS && log::max_level() != LevelFilter::Debug {
        // Nobody can have asked for more than warnings without `logging`. It is not imported for that, which would
        // take as long as a pass, nor is anybody kept waiting for the interpreter to learn that nobody listens.
        let is_imported = py.import("sys")?.getattr("modules")?.contains("logging")?;
        log::set_max_level(if is_imported { LevelFilter::Debug } else { LevelFilter::Warn });
    }
    Ok(())
}

/// Forwards records whose Python logger is enabled.
///
/// Nobody listens to most of it, and each pass over a worker logs: asking Python in the usual way, and putting the text
/// together before that, cost more than the pass itself. So did asking each time, because all passes would wait for the
/// interpreter, of which there is one: that nobody listens is believed for a moment, unless a call from Python begins.
#[derive(Default)]
struct Gate {
    next: PyOnceLock<Logger>,
    known: Mutex<HashMap<String, Known>>,
}

/// Cached state of a target.
struct Known {
    logger: Py<PyAny>,
    /// By level, the latest negative result.
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
        // With doubt, the next one decides.
        let is_wanted = attached(|py| self.ask(py, metadata).unwrap_or(true)).unwrap_or(false);
        if let (false, Some(known)) = (is_wanted, self.known.lock().get_mut(target)) {
            known.silent[level as usize] = Some(now);
        }
        is_wanted
    }

    /// The levels that are set in Python decide what is shown.
    fn next(&self, py: Python<'_>) -> PyResult<&Logger> {
        self.next.get_or_try_init(py, || {
            // Levels are not cached: a level that is changed later, as tests and notebooks do, must count at once.
            let logger = Logger::new(py, Caching::Loggers)?;
            Ok(logger.filter(LevelFilter::Warn).filter_target("lcm".to_owned(), LevelFilter::Debug))
        })
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
        if let Some(known) = self.known.lock().get(target) {
            return Ok(known.logger.bind(py).clone());
        }
        // Not under the lock: Python may let another thread run meanwhile, which may want it.
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

/// Does something in Python without touching what is raised there at the moment. Without an interpreter nobody listens.
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
