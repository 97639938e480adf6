//! Converts arguments and results of ports written in Python.

use lcm_sdk::{CallFailure, FailureKind, Lookup};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyMapping, PyTuple};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::convert::to_value;
use crate::observation::read_lookup;
use crate::python::invalid_argument;

/// Creates the arguments of a call.
pub(crate) fn tuple<'py>(
    py: Python<'py>,
    arguments: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
) -> PyResult<Bound<'py, PyTuple>> {
    arguments.into_pyobject(py)
}

/// Converts a value to JSON.
pub(crate) fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// Ignores the result of a method without one.
pub(crate) fn nothing(_: &Bound<'_, PyAny>) -> PyResult<()> {
    Ok(())
}

/// Parses a result through JSON.
pub(crate) fn deserialized<T: for<'a> Deserialize<'a>>(result: &Bound<'_, PyAny>, method: &str) -> PyResult<T> {
    serde_json::from_value(to_value(result, method)?).map_err(|error| invalid_argument(method, &error))
}

/// Parses a result that may be None.
pub(crate) fn optional<T>(
    result: &Bound<'_, PyAny>,
    read: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
) -> PyResult<Option<T>> {
    if result.is_none() { Ok(None) } else { read(result).map(Some) }
}

/// Returns the error of a method with an unaccepted result.
pub(crate) fn refused(method: &str, result: &Bound<'_, PyAny>, accepted: &str) -> PyErr {
    let shown = result.repr().map_or_else(|_| "something".to_owned(), |shown| shown.to_string());
    PyTypeError::new_err(format!("{method} returned {shown}; accepted: {accepted}"))
}

/// Parses a result of a simple type, such as a number.
pub(crate) fn plain<T: for<'a, 'py> FromPyObject<'a, 'py>>(
    result: &Bound<'_, PyAny>,
    method: &str,
    accepted: &str,
) -> PyResult<T> {
    result.extract().map_err(|_| refused(method, result, accepted))
}

/// One lookup for each id. A missing id is unknown; only `lcm.ABSENT` means absent.
pub(crate) fn by_id<T>(
    result: &Bound<'_, PyAny>,
    ids: &[String],
    method: &str,
    read: impl Fn(&Bound<'_, PyAny>, &str) -> PyResult<T>,
) -> PyResult<Vec<Lookup<T>>> {
    let lookups = result.cast::<PyMapping>().map_err(|_| refused(method, result, "a dict by id"))?;
    let unknown = |message| Ok(Lookup::Unknown(CallFailure::new(FailureKind::Unclear, message)));
    let one = |id: &String| {
        if !lookups.contains(id)? {
            return unknown(format!("no result for {id}"));
        }
        match read_lookup(&lookups.get_item(id)?, id, &read)? {
            Lookup::NotRequested => unknown(format!("the result for {id} is None")),
            lookup @ (Lookup::Found(_) | Lookup::Absent | Lookup::Unknown(_)) => Ok(lookup),
        }
    };
    ids.iter().map(one).collect()
}
