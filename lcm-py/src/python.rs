//! Access to the Python half of the package: its classes, enum members and exceptions.

use lcm_sdk::CallFailure;
use lcm_sdk::lifecycle::FieldError;
use lcm_sdk::lifecycle::drain::DrainError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyType};

macro_rules! classes {
    ($( $function:ident = $module:literal, $name:literal; )+) => {
        $(
            pub(crate) fn $function(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
                static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
                CLASS.import(py, $module, $name)
            }
        )+
    };
}

classes! {
    absent_class = "lcm.values", "Absent";
    bridge_class = "lcm.ports", "Bridge";
    call_failure_class = "lcm.failure", "CallFailure";
    changed_class = "lcm.ports", "Changed";
    cloud_metrics_class = "lcm.observation", "CloudMetrics";
    cml_target_class = "lcm.ports", "CmlTarget";
    compacted_class = "lcm.ports", "Compacted";
    frozen_map_class = "lcm.values", "FrozenMap";
    held_class = "lcm.ports", "Held";
    lease_class = "lcm.ports", "Lease";
    listing_class = "lcm.ports", "Listing";
    observation_class = "lcm.observation", "Observation";
    port_error_class = "lcm.exceptions", "PortError";
    progress_class = "lcm.ports", "Progress";
    record_warning_class = "lcm.exceptions", "RecordWarning";
    secret_class = "lcm.values", "Secret";
    won_class = "lcm.ports", "Won";
}

macro_rules! vocabularies {
    ($( $function:ident = $name:literal; )+) => {
        $(
            /// The member of a Python enum with this value.
            pub(crate) fn $function<'py>(py: Python<'py>, word: &str) -> PyResult<Bound<'py, PyAny>> {
                static MEMBERS: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
                let members = MEMBERS.get_or_try_init(py, || members(py, $name))?;
                member(members.bind(py), $name, word)
            }
        )+
    };
}

vocabularies! {
    effect_name = "EffectName";
    effect_result = "EffectResult";
    conclusion = "Conclusion";
    desired_status = "DesiredStatus";
    failure_kind = "FailureKind";
    requeue = "Requeue";
    outcome = "Outcome";
    reason_code = "ReasonCode";
    worker_status = "WorkerStatus";
}

fn members(py: Python<'_>, class: &str) -> PyResult<Py<PyDict>> {
    let class = py.import("lcm.enums")?.getattr(class)?;
    Ok(class.getattr("_value2member_map_")?.cast_into::<PyDict>()?.unbind())
}

fn member<'py>(members: &Bound<'py, PyDict>, class: &str, word: &str) -> PyResult<Bound<'py, PyAny>> {
    let found = members.get_item(PyString::intern(members.py(), word))?;
    found.ok_or_else(|| pyo3::exceptions::PySystemError::new_err(format!("lcm.{class} has no member for {word:?}")))
}

/// Converts a value to JSON types.
pub(crate) fn plain<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static PLAIN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    PLAIN.import(value.py(), "lcm.values", "plain")?.call1((value,))
}

/// An immutable, hashable mapping.
pub(crate) fn frozen_map<'py>(py: Python<'py>, dict: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    frozen_map_class(py)?.call1((dict,))
}

/// A failed call as `lcm.CallFailure`.
pub(crate) fn failure_to_python<'py>(py: Python<'py>, failure: &CallFailure) -> PyResult<Bound<'py, PyAny>> {
    let kind = failure_kind(py, failure.kind.as_str())?;
    let values = (kind, failure.message.as_str(), failure.code.as_deref());
    let Some(cause) = failure.cause.error().and_then(|cause| cause.downcast_ref::<PyErr>()) else {
        return call_failure_class(py)?.call1(values);
    };
    let cause_only = PyDict::new(py);
    cause_only.set_item("cause", cause.value(py))?;
    call_failure_class(py)?.call(values, Some(&cause_only))
}

/// A failed call as `lcm.PortError`. Its cause is the exception of a port written in Python.
pub(crate) fn port_error(py: Python<'_>, failure: &CallFailure) -> PyErr {
    let made = failure_to_python(py, failure).and_then(|failure| failure.call_method0("to_exception"));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Logs a failed call through Python's `logging`, with the traceback of its cause.
pub(crate) fn log_failure(logger: &str, message: &str, failure: &CallFailure) {
    Python::try_attach(|py| {
        let raised = failure.cause.error().and_then(|cause| cause.downcast_ref::<PyErr>());
        let log = || -> PyResult<()> {
            let options = PyDict::new(py);
            options.set_item("exc_info", raised.map(|raised| raised.value(py)))?;
            let logger = py.import("logging")?.call_method1("getLogger", (logger,))?;
            logger.call_method("warning", ("%s: %s", message, failure.to_string()), Some(&options)).map(drop)
        };
        if let Err(error) = log() {
            // A logging handler that raises must not stop the reconcile.
            tracing::error!(target: "lcm::ports", %error, "a failure could not be logged");
        }
    });
}

/// An exception of `lcm.exceptions`, by name.
pub(crate) fn exception<'py>(py: Python<'py>, class: &str, arguments: impl pyo3::call::PyCallArgs<'py>) -> PyErr {
    let made = py.import("lcm.exceptions").and_then(|module| module.getattr(class)?.call1(arguments));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// `InvalidRecord` for a record that cannot be parsed.
pub(crate) fn invalid_record(py: Python<'_>, error: &FieldError) -> PyErr {
    exception(py, "InvalidRecord", (error.to_string(), error.field.as_str(), error.accepted.as_str()))
}

/// `ValueError` for an argument that cannot be parsed.
pub(crate) fn invalid_argument(path: &str, error: &serde_json::Error) -> PyErr {
    pyo3::exceptions::PyValueError::new_err(format!("{path}: {error}"))
}

/// `InvalidTransition` for a change of status that the table does not allow.
pub(crate) fn invalid_transition(py: Python<'_>, error: &DrainError) -> PyErr {
    exception(py, "InvalidTransition", (error.to_string(),))
}

/// Whether an object's class is exactly this one.
pub(crate) fn is_a(object: &Bound<'_, PyAny>, class: &Bound<'_, PyType>) -> bool {
    object.get_type().is(class)
}
