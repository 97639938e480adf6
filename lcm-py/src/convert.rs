//! Converts values from Python to JSON and back.

use chrono::{DateTime, Utc};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyList, PyString, PyTuple};
use serde_json::{Number, Value};

use crate::input::{Input, to_moment};
use crate::python::frozen_map;

/// Converts a Python value to JSON. `path` names it in errors.
pub(crate) fn to_value(object: &Bound<'_, PyAny>, path: &str) -> PyResult<Value> {
    Input::read(object, path)?.to_value()
}

/// Converts JSON to dicts and lists.
pub(crate) fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(switch) => PyBool::new(py, *switch).to_owned().into_any(),
        Value::Number(number) => number_to_python(py, number)?,
        Value::String(text) => PyString::new(py, text).into_any(),
        Value::Array(list) => {
            let list = list.iter().map(|item| to_python(py, item)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, list)?.into_any()
        }
        Value::Object(map) => {
            let dict = PyDict::new(py);
            for (key, value) in map {
                dict.set_item(key, to_python(py, value)?)?;
            }
            dict.into_any()
        }
    })
}

/// Converts JSON to immutable values: frozen maps and tuples.
pub(crate) fn to_frozen<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Array(list) => {
            let list = list.iter().map(|item| to_frozen(py, item)).collect::<PyResult<Vec<_>>>()?;
            Ok(PyTuple::new(py, list)?.into_any())
        }
        Value::Object(map) => {
            let dict = PyDict::new(py);
            for (key, value) in map {
                dict.set_item(key, to_frozen(py, value)?)?;
            }
            frozen_map(py, &dict)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => to_python(py, value),
    }
}

fn number_to_python<'py>(py: Python<'py>, number: &Number) -> PyResult<Bound<'py, PyAny>> {
    if let Some(whole) = number.as_i64() {
        return Ok(whole.into_pyobject(py)?.into_any());
    }
    if let Some(whole) = number.as_u64() {
        return Ok(whole.into_pyobject(py)?.into_any());
    }
    Ok(number.as_f64().unwrap_or(f64::NAN).into_pyobject(py)?.into_any())
}

/// Returns the given time, or the current time.
pub(crate) fn moment_or_now(now: Option<&Bound<'_, PyAny>>) -> PyResult<DateTime<Utc>> {
    now.map_or_else(|| Ok(DateTime::from(std::time::SystemTime::now())), |now| to_moment(now, "now"))
}

/// Converts a duration to a `timedelta`.
pub(crate) fn to_timedelta<'py>(py: Python<'py>, duration: std::time::Duration) -> PyResult<Bound<'py, PyAny>> {
    static TIMEDELTA: PyOnceLock<Py<pyo3::types::PyType>> = PyOnceLock::new();
    TIMEDELTA.import(py, "datetime", "timedelta")?.call1((0, duration.as_secs_f64()))
}
