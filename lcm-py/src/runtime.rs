//! The one door between Python and what runs on tokio: a runtime for the process, blocking calls that let go of the
//! interpreter, and tasks that asyncio can wait for.

use std::pin::pin;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

use crate::logs;
use crate::python::exception;

/// How often a blocking call looks for Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(50);

/// How long what still runs may take to end when the interpreter does.
const LAST_MOMENTS: Duration = Duration::from_secs(2);

struct Started {
    process: u32,
    runtime: Runtime,
}

static STARTED: Mutex<Option<Started>> = Mutex::new(None);

/// The runtime of this process.
///
/// # Errors
/// `ForkError` in a process that was forked after its parent had started the runtime: the threads stayed behind, and
/// whatever waited for them would wait for ever.
pub(crate) fn runtime(py: Python<'_>) -> PyResult<Handle> {
    // Before the lock is taken: an import may let other threads run, and one of them may want the lock.
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

/// The error of a process that uses what its parent had started.
pub(crate) fn forked(py: Python<'_>) -> PyErr {
    let message = "this process was forked after lcm had started its threads, which do not survive a fork; \
                   start processes with multiprocessing's 'spawn' or 'forkserver', or use lcm only after the fork";
    exception(py, "ForkError", (message,))
}

/// Waits for something while other Python threads run.
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
                        // Logging may have been imported meanwhile.
                        logs::listen(py)?;
                        py.check_signals()
                    })?,
                }
            }
        })
    })
}

/// Something that runs while asyncio waits for it.
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

/// Runs something and then calls `done(result, error)` from another thread, unless it is cancelled before.
pub(crate) fn spawn<T: Send + 'static>(
    py: Python<'_>,
    done: Py<PyAny>,
    future: impl Future<Output = T> + Send + 'static,
    finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<Task> {
    let task = runtime(py)?.spawn(async move {
        let result = future.await;
        // The result is dropped if the interpreter or the loop has ended.
        Python::try_attach(|py| {
            let told = match finish(py, result) {
                Ok(result) => done.call1(py, (result, py.None())),
                Err(error) => done.call1(py, (py.None(), error)),
            };
            drop(told);
        });
    });
    Ok(Task { handle: task.abort_handle() })
}

/// Ends the runtime while the interpreter still lives: a thread that comes back to it later would crash.
#[pyfunction]
fn shut_down(py: Python<'_>) {
    let started = STARTED.lock().take();
    if let Some(Started { process, runtime }) = started {
        if process == std::process::id() {
            py.detach(|| runtime.shutdown_timeout(LAST_MOMENTS));
        } else {
            // Its threads are not here; waiting for them would take for ever.
            std::mem::forget(runtime);
        }
    }
}
