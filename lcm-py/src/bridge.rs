//! Calls Python objects with plain or `async` methods from tokio.

use lcm_sdk::ports::Fence;
use lcm_sdk::{CallFailure, FailureKind};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyTuple};
use tokio::sync::oneshot;

use crate::python::{bridge_class, port_error_class};

/// An object written in Python, as `lcm.ports.Bridge` holds it.
pub(crate) struct Bridge {
    bridge: Py<PyAny>,
}

enum Begun<T, R> {
    Returned(Result<T, CallFailure>),
    Awaiting(CancelOnDrop, R),
}

impl Bridge {
    /// # Errors
    /// `TypeError` for anything but an `lcm.ports.Bridge`.
    pub(crate) fn new(bridge: &Bound<'_, PyAny>) -> PyResult<Self> {
        if !bridge.is_instance(bridge_class(bridge.py())?)? {
            let found = bridge.get_type().name()?.to_string();
            return Err(pyo3::exceptions::PyTypeError::new_err(format!(
                "port is a {found}; accepted: lcm.ports.Bridge"
            )));
        }
        Ok(Self { bridge: bridge.clone().unbind() })
    }

    /// Returns a bridge to an object that this port returned, which must implement a protocol.
    pub(crate) fn wrap(&self, given: &Bound<'_, PyAny>, protocol: &str) -> PyResult<Self> {
        let required = given.py().import("lcm.ports")?.getattr(protocol)?;
        Self::new(&self.bridge.bind(given.py()).call_method1("wrap", (given, required))?)
    }

    /// Returns another reference to the same port.
    ///
    /// # Errors
    /// A failure while the interpreter shuts down.
    pub(crate) fn try_clone(&self) -> Result<Self, CallFailure> {
        Python::try_attach(|py| Self { bridge: self.bridge.clone_ref(py) }).ok_or_else(shutting_down)
    }

    /// Calls a method that changes nothing and parses its result. An exception is a failure.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the coroutine; a plain method runs to its end.
    pub(crate) async fn call<T, A, R>(&self, method: &'static str, arguments: A, read: R) -> Result<T, CallFailure>
    where
        T: Send + 'static,
        A: for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyTuple>> + Send + 'static,
        R: FnOnce(&Bound<'_, PyAny>) -> PyResult<T> + Send + 'static,
    {
        self.call_fenced(method, Fence::default(), arguments, read).await
    }

    /// Calls a method with the fencing token of a leader. Otherwise like [`Bridge::call`].
    pub(crate) async fn call_fenced<T, A, R>(
        &self,
        method: &'static str,
        fence: Fence,
        arguments: A,
        read: R,
    ) -> Result<T, CallFailure>
    where
        T: Send + 'static,
        A: for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyTuple>> + Send + 'static,
        R: FnOnce(&Bound<'_, PyAny>) -> PyResult<T> + Send + 'static,
    {
        let Self { bridge } = self.try_clone()?;
        // On a blocking thread: a plain method may block, and so may the wait for the interpreter.
        let begun = blocking(move |py| {
            let begin = |arguments| bridge.bind(py).call_method1("begin", (method, arguments, fence.0));
            let begun = arguments(py).and_then(begin);
            match begun.and_then(|begun| begun.extract::<(bool, Bound<'_, PyAny>)>()) {
                Ok((true, future)) => Begun::Awaiting(CancelOnDrop(Some(future.unbind())), read),
                Ok((false, result)) => {
                    Begun::Returned(read(&result).map_err(|error| invalid_result(py, method, error)))
                }
                Err(error) => Begun::Returned(Err(raised(py, method, error))),
            }
        });
        match begun.await? {
            Begun::Returned(result) => result,
            Begun::Awaiting(future, read) => {
                let future = wait_for(future).await?;
                blocking(move |py| {
                    let result = future.bind(py).call_method0("result").map_err(|error| raised(py, method, error))?;
                    read(&result).map_err(|error| invalid_result(py, method, error))
                })
                .await?
            }
        }
    }
}

/// Waits for a `concurrent.futures.Future`, and cancels it when this future is dropped.
async fn wait_for(mut future: CancelOnDrop) -> Result<Py<PyAny>, CallFailure> {
    let (sender, receiver) = oneshot::channel();
    let sender = Mutex::new(Some(sender));
    Python::try_attach(|py| {
        let done = PyCFunction::new_closure(py, None, None, move |_, _| {
            if let Some(sender) = sender.lock().take() {
                // The receiver may have been dropped.
                let _ = sender.send(());
            }
        })?;
        future.0.as_ref().map_or(Ok(()), |future| future.call_method1(py, "add_done_callback", (done,)).map(drop))
    })
    .ok_or_else(shutting_down)?
    .map_err(|error| CallFailure::new(FailureKind::Unclear, error.to_string()))?;
    receiver.await.map_err(|_| shutting_down())?;
    future.0.take().ok_or_else(shutting_down)
}

/// A Python future whose coroutine is canceled on drop.
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
    done.ok().flatten().ok_or_else(shutting_down)
}

/// Converts an exception. A `PortError` carries its kind; any other exception is unclear: the call may have had an effect.
fn raised(py: Python<'_>, method: &str, error: PyErr) -> CallFailure {
    let value = error.value(py);
    let word = |name: &str| value.getattr(name).and_then(|word| word.extract::<Option<String>>()).ok().flatten();
    let failure = if port_error_class(py).is_ok_and(|class| value.is_instance(class).unwrap_or(false)) {
        let kind = word("kind").and_then(|kind| FailureKind::ALL.iter().find(|known| known.as_str() == kind));
        let message = word("message").unwrap_or_else(|| text(value));
        CallFailure { code: word("code"), ..CallFailure::new(*kind.unwrap_or(&FailureKind::Unclear), message) }
    } else {
        let class = error.get_type(py).name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
        CallFailure::with_code(FailureKind::Unclear, class, text(value))
    };
    // The message may contain the password that the method received, so it is left out.
    let (kind, code) = (failure.kind.as_str(), failure.code.as_deref());
    tracing::debug!(target: "lcm::ports", method, kind, code, "a port written in Python raised");
    failure.with_cause(error)
}

/// A result that cannot be parsed. The call may have had an effect.
fn invalid_result(py: Python<'_>, method: &str, error: PyErr) -> CallFailure {
    let failure = CallFailure::new(FailureKind::Unparsable, text(error.value(py)));
    tracing::debug!(target: "lcm::ports", method, "a port written in Python returned an invalid result");
    failure.with_cause(error)
}

fn text(value: &Bound<'_, PyAny>) -> String {
    value.str().map_or_else(|_| String::new(), |text| text.to_string())
}

fn shutting_down() -> CallFailure {
    CallFailure::new(FailureKind::Unclear, "Python is shutting down")
}
