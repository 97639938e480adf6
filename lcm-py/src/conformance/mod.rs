//! Runs the conformance suites against ports written in Python.

mod cml;
mod compute;
mod control_plane;
mod coordination;
mod events;
mod metrics;
mod world;

use std::any::Any;
use std::cell::RefCell;
use std::panic;
use std::sync::{Arc, Once};

use lcm_sdk::CallFailure;
use lcm_sdk::conformance::{self as suites, PROMISE};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tokio::task::JoinSet;

use self::world::{Unprepared, World};
use crate::bridge::Bridge;
use crate::python::port_error;
use crate::runtime::{block_on, runtime};

/// A violated rule: its text, the details of the violation, and the location of its test.
type Broken = (String, String, String);

tokio::task_local! {
    /// Text of the violated rule, and the location of its test.
    static BROKEN: Arc<Mutex<(String, String)>>;
}

/// Runs the suite of a port. Returns the violated rule, or None.
///
/// # Errors
/// Any exception of the world's own methods.
#[pyfunction]
#[pyo3(signature = (name, port: "object", world: "object"))]
pub(crate) fn check_port(
    py: Python<'_>,
    name: &str,
    port: &Bound<'_, PyAny>,
    world: &Bound<'_, PyAny>,
) -> PyResult<Option<Broken>> {
    let world = World(Bridge::new(world)?);
    if name == "control_plane" {
        let records = control_plane::Records::new(port, world)?;
        return run(py, async move {
            let _capabilities = suites::control_plane::suite(&records).await;
        });
    }
    let port = Bridge::new(port)?;
    match name {
        "compute" => run(py, async { suites::compute::suite(&compute::Cloud::new(port, world).await).await }),
        "metrics" => run(py, async { suites::metrics::suite(&metrics::Gauges::new(port, world).await).await }),
        "cml" => run(py, async { suites::cml::suite(&cml::Laboratory::new(port, world).await).await }),
        "coordination" => run(py, async { suites::coordination::suite(&coordination::Keys::new(port, world)).await }),
        "events" => run(py, async { suites::events::suite(&events::Listener::new(port, world)).await }),
        other => Err(PyValueError::new_err(format!(
            "{other:?} is no port; accepted: control_plane, compute, metrics, cml, coordination, events"
        ))),
    }
}

fn run(py: Python<'_>, suite: impl Future<Output = ()> + Send + 'static) -> PyResult<Option<Broken>> {
    listen_for_panics();
    let broken = Arc::new(Mutex::default());
    let suite = BROKEN.scope(Arc::clone(&broken), PROMISE.scope(RefCell::default(), suite));
    // Ctrl-C drops the suite and its port.
    let mut running = JoinSet::new();
    running.spawn_on(suite, &runtime(py)?);
    let ended = block_on(py, running.join_next())?;
    let Some(Err(error)) = ended else { return Ok(None) };
    match error.into_panic().downcast::<Unprepared>() {
        Ok(unprepared) => Err(unprepared_error(py, &unprepared.0)),
        Err(panic) => {
            let (promise, place) = std::mem::take(&mut *broken.lock());
            Ok(Some((promise, message(&*panic), place)))
        }
    }
}

/// Returns the exception of the world, or that of the failed call.
fn unprepared_error(py: Python<'_>, failure: &CallFailure) -> PyErr {
    let raised = failure.cause.error().and_then(|cause| cause.downcast_ref::<PyErr>());
    raised.map_or_else(|| port_error(py, failure), |raised| raised.clone_ref(py))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default().to_owned()
}

/// Hides the panics of suites from standard error, because the caller gets them as errors. Other panics are printed as
/// before.
fn listen_for_panics() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let place = info.location().map(|place| format!("{}:{}", place.file(), place.line())).unwrap_or_default();
            let promise = PROMISE.try_with(|promise| promise.borrow().clone()).unwrap_or_default();
            if BROKEN.try_with(|broken| *broken.lock() = (promise, place)).is_err() {
                before(info);
            }
        }));
    });
}
