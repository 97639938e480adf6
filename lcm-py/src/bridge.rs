//! Calling an object written in Python from tokio: its methods may be plain or `async`.

use lcm_sdk::{CallFailure, FailureKind};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyTuple};
use tokio::sync::oneshot;

/// An object written in Python, as `lcm.ports.Bridge` holds it.
pub(crate) struct Bridge {
    bridge: Py<PyAny>,
}

enum Begun<T, R> {
    Answered(Result<T, CallFailure>),
    Awaiting(Py<PyAny>, R),
}

impl Bridge {
    pub(crate) fn new(bridge: Py<PyAny>) -> Self {
        Self { bridge }
    }

    /// Calls a method and reads its answer. What it raises is a failure.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the coroutine; a plain method runs to its end.
    pub(crate) async fn call<T, A, R>(&self, method: &'static str, arguments: A, read: R) -> Result<T, CallFailure>
    where
        T: Send + 'static,
        A: for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyTuple>> + Send + 'static,
        R: FnOnce(&Bound<'_, PyAny>) -> PyResult<T> + Send + 'static,
    {
        let Some(bridge) = Python::try_attach(|py| self.bridge.clone_ref(py)) else { return Err(gone()) };
        // On a thread of its own: a plain method may wait, and everybody may have to wait for the interpreter.
        let begun = blocking(move |py| {
            let begun = arguments(py).and_then(|arguments| bridge.bind(py).call_method1("begin", (method, arguments)));
            match begun.and_then(|begun| begun.extract::<(bool, Bound<'_, PyAny>)>()) {
                Ok((true, future)) => Begun::Awaiting(future.unbind(), read),
                Ok((false, answer)) => Begun::Answered(read(&answer).map_err(|error| failure(py, method, &error))),
                Err(error) => Begun::Answered(Err(failure(py, method, &error))),
            }
        });
        match begun.await? {
            Begun::Answered(answer) => answer,
            Begun::Awaiting(future, read) => {
                let future = finished(future).await?;
                blocking(move |py| {
                    let answer = future.bind(py).call_method0("result").and_then(|answer| read(&answer));
                    answer.map_err(|error| failure(py, method, &error))
                })
                .await?
            }
        }
    }
}

/// Waits for a `concurrent.futures.Future`, and cancels it when nobody waits any more.
async fn finished(future: Py<PyAny>) -> Result<Py<PyAny>, CallFailure> {
    let (tell, told) = oneshot::channel();
    let mut guard = CancelOnDrop(Some(future));
    let tell = Mutex::new(Some(tell));
    Python::try_attach(|py| {
        let done = PyCFunction::new_closure(py, None, None, move |_, _| {
            if let Some(tell) = tell.lock().take() {
                // Whoever waited may be gone.
                let _ = tell.send(());
            }
        })?;
        guard.0.as_ref().map_or(Ok(()), |future| future.call_method1(py, "add_done_callback", (done,)).map(drop))
    })
    .ok_or_else(gone)?
    .map_err(|error| CallFailure::new(FailureKind::Unclear, error.to_string()))?;
    told.await.map_err(|_| gone())?;
    guard.0.take().ok_or_else(gone)
}

struct CancelOnDrop(Option<Py<PyAny>>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(future) = self.0.take() {
            Python::try_attach(|py| drop(future.call_method0(py, "cancel")));
        }
    }
}

async fn blocking<T: Send + 'static>(act: impl FnOnce(Python<'_>) -> T + Send + 'static) -> Result<T, CallFailure> {
    let done = tokio::task::spawn_blocking(move || Python::try_attach(act)).await;
    done.ok().flatten().ok_or_else(gone)
}

/// What an exception means: a `PortError` says so itself; after any other nobody knows what was done.
fn failure(py: Python<'_>, method: &str, error: &PyErr) -> CallFailure {
    let value = error.value(py);
    let text = value.str().map_or_else(|_| String::new(), |text| text.to_string());
    let class = error.get_type(py).name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
    let word = |name: &str| value.getattr(name).and_then(|word| word.extract::<Option<String>>()).ok().flatten();
    let failure = match word("kind") {
        Some(kind) if class == "PortError" => {
            let kind = FailureKind::ALL.iter().find(|known| known.as_str() == kind);
            CallFailure { kind: *kind.unwrap_or(&FailureKind::Unclear), code: word("code"), message: text }
        }
        Some(_) | None => CallFailure::coded(FailureKind::Unclear, class, text),
    };
    tracing::debug!(target: "lcm::ports", method, %failure, "a port written in Python raised");
    failure
}

fn gone() -> CallFailure {
    CallFailure::new(FailureKind::Unclear, "Python is shutting down")
}
