//! Runs tokio tasks for Python: one runtime per process, blocking calls that release the interpreter, and tasks that
//! asyncio can await.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

use crate::logs;
use crate::python::exception;

/// Interval at which a blocking call checks for signals.
const SIGNALS: Duration = Duration::from_millis(50);

/// Time that running tasks have to end when the interpreter exits.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

struct Started {
    process: u32,
    runtime: Runtime,
}

static STARTED: Mutex<Option<Started>> = Mutex::new(None);

/// Returns the runtime of this process.
///
/// # Errors
/// `ForkError` in a process that was forked after its parent had started the runtime: it has none of the threads, so a
/// call would never return.
pub(crate) fn runtime(py: Python<'_>) -> PyResult<Handle> {
    // Before the lock is taken: an import may switch to another thread that waits for the lock.
    logs::listen(py)?;
    end_with_the_interpreter(py)?;
    let mut started = STARTED.lock();
    if let Some(Started { process, runtime }) = &*started {
        return if *process == std::process::id() { Ok(runtime.handle().clone()) } else { Err(forked(py)) };
    }
    let runtime = Builder::new_multi_thread().worker_threads(4).thread_name("lcm").enable_all().build()?;
    let handle = runtime.handle().clone();
    *started = Some(Started { process: std::process::id(), runtime });
    Ok(handle)
}

/// Registers the shutdown of the runtime at interpreter exit.
fn end_with_the_interpreter(py: Python<'_>) -> PyResult<()> {
    static REGISTERED: PyOnceLock<()> = PyOnceLock::new();
    let register = || py.import("atexit")?.call_method1("register", (wrap_pyfunction!(shut_down, py)?,)).map(drop);
    REGISTERED.get_or_try_init(py, register).copied()
}

/// Returns the error of a forked process that uses objects of its parent.
pub(crate) fn forked(py: Python<'_>) -> PyErr {
    let message = "this process was forked after lcm had started its threads, which do not survive a fork; \
                   start processes with multiprocessing's 'spawn' or 'forkserver', or use lcm only after the fork";
    exception(py, "ForkError", (message,))
}

/// Blocks on a future while other Python threads run.
///
/// # Errors
/// The exception of a signal handler, such as `KeyboardInterrupt`. The future is dropped then.
pub(crate) fn block_on<T: Send>(py: Python<'_>, future: impl Future<Output = T> + Send) -> PyResult<T> {
    let runtime = runtime(py)?;
    py.detach(|| {
        runtime.block_on(async {
            let mut future = pin!(future);
            loop {
                tokio::select! {
                    biased;
                    result = &mut future => return Ok(result),
                    () = tokio::time::sleep(SIGNALS) => Python::attach(|py| {
                        // `logging` may have been imported since the last call.
                        logs::listen(py)?;
                        py.check_signals()
                    })?,
                }
            }
        })
    })
}

/// A tokio task that asyncio awaits.
#[pyclass(frozen, module = "lcm._lcm")]
pub(crate) struct Task {
    handle: AbortHandle,
}

#[pymethods]
impl Task {
    /// Cancels the task. Effects under way end as their own documentation states.
    fn cancel(&self) {
        self.handle.abort();
    }
}

/// Spawns a task that calls `done(result, error)` from another thread, unless it is canceled before.
pub(crate) fn spawn<T: Send + 'static>(
    py: Python<'_>,
    done: Py<PyAny>,
    future: impl Future<Output = T> + Send + 'static,
    finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<Task> {
    let task = runtime(py)?.spawn(async move {
        let mut future = pin!(future);
        // A panic must reach Python, where the caller would wait for ever.
        let result =
            poll_fn(|context| match std::panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
                Ok(result) => result.map(Ok),
                Err(panic) => Poll::Ready(Err(panic)),
            });
        let result = result.await;
        // The result is dropped if the interpreter or the loop has ended.
        Python::try_attach(|py| {
            let result = result.map_err(|panic| {
                let text = panic.downcast_ref::<&str>().copied();
                let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
                PyRuntimeError::new_err(format!("the native task panicked: {}", text.unwrap_or("no message")))
            });
            let called = match result.and_then(|result| finish(py, result)) {
                Ok(result) => done.call1(py, (result, py.None())),
                Err(error) => done.call1(py, (py.None(), error)),
            };
            drop(called);
        });
    });
    Ok(Task { handle: task.abort_handle() })
}

/// Ends the runtime before the interpreter: a thread that called Python later would crash.
#[pyfunction]
fn shut_down(py: Python<'_>) {
    let started = STARTED.lock().take();
    if let Some(Started { process, runtime }) = started {
        if process == std::process::id() {
            py.detach(|| {
                runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
                logs::end_traces();
            });
        } else {
            // A forked process has none of the threads, so a wait for them would never end.
            std::mem::forget(runtime);
        }
    }
}
