//! Forwards log records to Python's `logging`, under `lcm.*`, with their fields as attributes of the record.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

use lcm_sdk::otel::{self, Traces, TracesError};
use lcm_sdk::spans::TraceContext;
use log::{Log, Metadata as LogMetadata, Record};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use tokio::runtime::{Builder, Runtime};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, Filter, SubscriberExt as _};

/// How long a negative `isEnabledFor` result is cached. A changed level takes effect after that.
const BELIEVED: Duration = Duration::from_millis(100);

/// Number of calls from Python. Each call invalidates the cached results.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Whether `logging` is imported. Before that, no level below warnings can be enabled.
static IS_IMPORTED: AtomicBool = AtomicBool::new(false);

/// Whether the subscriber of the process is the one of this module.
static OURS: OnceLock<bool> = OnceLock::new();

/// Why traces are off although the variables of OpenTelemetry ask for them, until it is logged.
static PROBLEM: Mutex<Option<String>> = Mutex::new(None);

static GATE: LazyLock<Gate> = LazyLock::new(Gate::default);

/// The traces of the process, with the runtime that exports them.
static TRACES: OnceLock<(Traces, Runtime)> = OnceLock::new();

/// Sends the records of LCM, and the warnings of other crates, to Python's loggers, and traces to the receiver that the
/// variables of OpenTelemetry name, if they name one.
///
/// Call it before any work that may log: each call invalidates the cached levels.
///
/// # Errors
/// Any exception while `sys.modules` is read.
pub(crate) fn listen(py: Python<'_>) -> PyResult<()> {
    CALLS.fetch_add(1, Ordering::AcqRel);
    let ours = OURS.get_or_init(install);
    // Not within `install`: Python may switch to another thread that waits for its end.
    let problem = PROBLEM.lock().take();
    if let Some(problem) = problem {
        tracing::warn!(target: "lcm::traces", "traces are off: {problem}");
    }
    // A logger that the embedding process has installed is kept.
    if *ours && !IS_IMPORTED.load(Ordering::Acquire) {
        // Importing `logging` would take as long as a reconcile, and waiting for the interpreter would delay every record.
        let is_imported = py.import("sys")?.getattr("modules")?.contains("logging")?;
        if is_imported {
            IS_IMPORTED.store(true, Ordering::Release);
            tracing::callsite::rebuild_interest_cache();
        }
    }
    Ok(())
}

/// Leaves the log output of the process to a command, which has its own.
pub(crate) fn leave_to_command() {
    let _ = OURS.set(false);
}

/// Installs the subscriber of the process. Returns whether it is ours.
fn install() -> bool {
    let traces = traces();
    let layer = match &traces {
        Ok(traces) => traces.as_ref().and_then(|(traces, _)| traces.layer()),
        Err(_) => None,
    };
    let subscriber = tracing_subscriber::registry().with(Forward.with_filter(&*GATE)).with(layer);
    let is_ours = tracing::subscriber::set_global_default(subscriber).is_ok();
    if is_ours && log::set_logger(&*GATE).is_ok() {
        log::set_max_level(log::LevelFilter::Warn);
    }
    if let Err(error) = traces {
        *PROBLEM.lock() = Some(error.to_string());
    }
    is_ours
}

/// Creates the exporter of traces, if the variables of OpenTelemetry ask for one.
fn traces() -> Result<Option<&'static (Traces, Runtime)>, TracesError> {
    if !Traces::is_configured()? {
        return Ok(None);
    }
    let failed = |error: std::io::Error| TracesError::Exporter(error.to_string());
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("lcm-traces").enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let within = runtime.enter();
    let traces = Traces::from_env("lcm")?;
    drop(within);
    Ok(Some(TRACES.get_or_init(|| (traces, runtime))))
}

/// Returns the trace context of the caller as a `traceparent` header: that of Python's OpenTelemetry, if it is imported
/// and traces are exported.
pub(crate) fn caller_trace(py: Python<'_>) -> PyResult<Option<String>> {
    if TRACES.get().is_none() || !py.import("sys")?.getattr("modules")?.contains("opentelemetry.trace")? {
        return Ok(None);
    }
    let carrier = PyDict::new(py);
    py.import("opentelemetry.propagate")?.call_method1("inject", (&carrier,))?;
    carrier.get_item("traceparent")?.map(|header| header.extract()).transpose()
}

/// Runs a future within the trace of its caller, if there is one.
pub(crate) async fn within<F: Future>(trace: Option<String>, future: F) -> F::Output {
    match trace {
        Some(trace) => otel::within(&trace, future).await,
        None => future.await,
    }
}

/// Exports the spans that are left. Call it when no more work runs.
pub(crate) fn end_traces() {
    if let Some((traces, _)) = TRACES.get()
        && let Err(error) = traces.shutdown()
    {
        tracing::warn!(target: "lcm::traces", %error, "the last traces were not exported");
    }
}

/// Selects the records whose Python logger is enabled.
///
/// Most records are disabled in Python, and every reconcile logs. Formatting them, and waiting for the interpreter to
/// check each level, would cost more than the reconcile. A negative result is therefore cached for a moment, until the
/// next call from Python.
#[derive(Default)]
struct Gate {
    known: Mutex<HashMap<String, Known>>,
}

/// Cached state of a target.
struct Known {
    logger: Py<PyAny>,
    /// Latest negative result per level.
    silent: [Option<Silence>; LEVELS],
}

/// Number of levels.
const LEVELS: usize = 5;

/// A negative `isEnabledFor` result: its time and the number of calls from Python before it.
#[derive(Clone, Copy)]
struct Silence {
    since: Instant,
    calls: u64,
}

/// A level by its number in Python, and its place in [`Known::silent`].
const fn numbers(level: Level) -> (u8, usize) {
    match level {
        Level::ERROR => (40, 0),
        Level::WARN => (30, 1),
        Level::INFO => (20, 2),
        Level::DEBUG => (10, 3),
        Level::TRACE => (5, 4),
    }
}

impl Gate {
    /// Whether a record may be shown: an enabled record of `lcm`, or a warning of another crate.
    fn is_wanted(&self, target: &str, level: Level) -> bool {
        if !is_possible(target, level) {
            return false;
        }
        let (number, place) = numbers(level);
        let now = Silence { since: Instant::now(), calls: CALLS.load(Ordering::Acquire) };
        let silent = self.known.lock().get(target).and_then(|known| known.silent[place]);
        if silent.is_some_and(|silent| silent.calls == now.calls && now.since - silent.since < BELIEVED) {
            return false;
        }
        // If the level cannot be read, the logger decides.
        let is_wanted = attached(|py| self.is_enabled_for(py, target, number).unwrap_or(true)).unwrap_or(false);
        if let (false, Some(known)) = (is_wanted, self.known.lock().get_mut(target)) {
            known.silent[place] = Some(now);
        }
        is_wanted
    }

    fn is_enabled_for(&self, py: Python<'_>, target: &str, level: u8) -> PyResult<bool> {
        let logger = self.logger(py, target)?;
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
        let known = Known { logger: logger.clone().unbind(), silent: [None; LEVELS] };
        self.known.lock().insert(target.to_owned(), known);
        Ok(logger)
    }

    /// Creates a record of a target's logger and handles it.
    fn emit(&self, py: Python<'_>, from: &Source<'_>, entry: &Entry) -> PyResult<()> {
        let logger = self.logger(py, from.target)?;
        let name = logger.getattr(pyo3::intern!(py, "name"))?;
        let (level, arguments) = (numbers(from.level).0, PyTuple::empty(py));
        let made = (name, level, from.file, from.line, &entry.text, arguments, py.None());
        let record = logger.call_method1(pyo3::intern!(py, "makeRecord"), made)?;
        let mut fields = entry.fields.clone();
        if let Some(trace) = TraceContext::current() {
            fields.push(("trace_id", Value::Text(trace.trace_id())));
            fields.push(("span_id", Value::Text(trace.span_id())));
        }
        for (name, value) in fields {
            // `logging` has attributes of its own, such as `name`.
            let is_taken = matches!(name, "message" | "asctime") || record.hasattr(name)?;
            let name = if is_taken { format!("lcm_{name}") } else { name.to_owned() };
            match value {
                Value::Text(text) => record.setattr(name, text)?,
                Value::Number(number) => record.setattr(name, number)?,
                Value::Fraction(number) => record.setattr(name, number)?,
                Value::Switch(switch) => record.setattr(name, switch)?,
            }
        }
        logger.call_method1(pyo3::intern!(py, "handle"), (record,)).map(drop)
    }
}

/// Whether records of a target and level are ever shown.
fn is_possible(target: &str, level: Level) -> bool {
    if target.starts_with("lcm") {
        return level <= if IS_IMPORTED.load(Ordering::Acquire) { Level::DEBUG } else { Level::WARN };
    }
    // The AWS configuration warns of each source without credentials, with internals. LCM reports them itself.
    level <= if target.starts_with("aws_config") { Level::ERROR } else { Level::WARN }
}

/// Where a record comes from.
struct Source<'a> {
    target: &'a str,
    level: Level,
    file: &'a str,
    line: u32,
}

/// Content of a record: the message with all fields after it, and the fields.
#[derive(Default)]
struct Entry {
    text: String,
    fields: Vec<(&'static str, Value)>,
}

/// Value of a field.
#[derive(Clone)]
enum Value {
    Text(String),
    Number(i64),
    Fraction(f64),
    Switch(bool),
}

impl Entry {
    fn add(&mut self, field: &Field, value: Value, shown: fmt::Arguments<'_>) {
        // The message comes first, although its field is the last one.
        if field.name() == "message" {
            let rest = std::mem::take(&mut self.text);
            self.text = if rest.is_empty() { shown.to_string() } else { format!("{shown} {rest}") };
            return;
        }
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.text += &format!("{}={shown}", field.name());
        self.fields.push((field.name(), value));
    }
}

impl Visit for Entry {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, Value::Text(format!("{value:?}")), format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, Value::Text(value.to_owned()), format_args!("{value:?}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, Value::Number(value), format_args!("{value}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        let number = i64::try_from(value).map_or_else(|_| Value::Text(value.to_string()), Value::Number);
        self.add(field, number, format_args!("{value}"));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, Value::Fraction(value), format_args!("{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, Value::Switch(value), format_args!("{value}"));
    }
}

/// The layer that forwards events.
struct Forward;

impl<S: Subscriber> Layer<S> for Forward {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut entry = Entry::default();
        event.record(&mut entry);
        let source = Source {
            target: metadata.target(),
            level: *metadata.level(),
            file: metadata.file().unwrap_or_default(),
            line: metadata.line().unwrap_or_default(),
        };
        attached(|py| GATE.emit(py, &source, &entry).ok());
    }
}

impl<S> Filter<S> for &'static Gate {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        metadata.is_event() && self.is_wanted(metadata.target(), *metadata.level())
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        let is_possible = metadata.is_event() && is_possible(metadata.target(), *metadata.level());
        if is_possible { Interest::sometimes() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(if IS_IMPORTED.load(Ordering::Acquire) { LevelFilter::DEBUG } else { LevelFilter::WARN })
    }
}

/// Records of crates that log without `tracing`.
impl Log for Gate {
    fn enabled(&self, metadata: &LogMetadata<'_>) -> bool {
        self.is_wanted(metadata.target(), level(metadata.level()))
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let source = Source {
            target: record.target(),
            level: level(record.level()),
            file: record.file().unwrap_or_default(),
            line: record.line().unwrap_or_default(),
        };
        let entry = Entry { text: record.args().to_string(), fields: Vec::new() };
        attached(|py| self.emit(py, &source, &entry).ok());
    }

    fn flush(&self) {}
}

const fn level(level: log::Level) -> Level {
    match level {
        log::Level::Error => Level::ERROR,
        log::Level::Warn => Level::WARN,
        log::Level::Info => Level::INFO,
        log::Level::Debug => Level::DEBUG,
        log::Level::Trace => Level::TRACE,
    }
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
