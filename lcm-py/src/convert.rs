//! Converts Python values from and to JSON, and times from and to `datetime`.

use chrono::{DateTime, Utc};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDateTime, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple, PyTzInfo};
use serde_json::{Map, Number, Value};

use crate::python::frozen_map;

/// Highest nesting of a value. A deeper value contains itself.
const MAX_DEPTH: usize = 64;

/// Accepted Python values, for errors.
const ACCEPTED: &str = "text, a number, True, False, None, a datetime with a time zone, a list or a dict of these";

/// Converts a Python value to JSON. `path` names it in errors.
pub(crate) fn to_value(object: &Bound<'_, PyAny>, path: &str) -> PyResult<Value> {
    read(object, path, 0)
}

fn read(object: &Bound<'_, PyAny>, path: &str, depth: usize) -> PyResult<Value> {
    if depth > MAX_DEPTH {
        return Err(PyValueError::new_err(format!("{path} is nested more than {MAX_DEPTH} deep")));
    }
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(Value::String(text.to_cow()?.into_owned()));
    }
    if object.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(switch) = object.cast::<PyBool>() {
        return Ok(Value::Bool(switch.is_true()));
    }
    if let Ok(number) = object.cast::<PyInt>() {
        let whole = number.extract::<i64>().map(Number::from).or_else(|_| number.extract::<u64>().map(Number::from));
        return whole.map(Value::Number).map_err(|_| PyValueError::new_err(format!("{path} is too large a number")));
    }
    if let Ok(number) = object.cast::<PyFloat>() {
        let finite = Number::from_f64(number.value());
        return finite
            .map(Value::Number)
            .ok_or_else(|| PyValueError::new_err(format!("{path} is not a finite number")));
    }
    if let Ok(dict) = object.cast::<PyDict>() {
        return fields(dict.iter(), path, depth);
    }
    if let Ok(list) = object.cast::<PyList>() {
        return items(list.iter(), path, depth);
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        return items(tuple.iter(), path, depth);
    }
    if object.is_instance_of::<PyDateTime>() {
        let moment = to_moment(object, path)?;
        return Ok(Value::String(moment.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)));
    }
    if let Ok(mapping) = object.cast::<PyMapping>() {
        let pairs = mapping.items()?.iter().map(|pair| pair.extract()).collect::<PyResult<Vec<_>>>()?;
        return fields(pairs.into_iter(), path, depth);
    }
    if let Some(method) = object.getattr_opt("to_dict")? {
        return read(&method.call0()?, path, depth + 1);
    }
    Err(PyTypeError::new_err(format!("{path} is a {}; accepted: {ACCEPTED}", object.get_type().name()?)))
}

fn fields<'py>(
    pairs: impl Iterator<Item = (Bound<'py, PyAny>, Bound<'py, PyAny>)>,
    path: &str,
    depth: usize,
) -> PyResult<Value> {
    let mut map = Map::new();
    for (key, value) in pairs {
        let Ok(key) = key.cast::<PyString>() else {
            return Err(PyTypeError::new_err(format!("{path} has the key {}; accepted: text", key.repr()?)));
        };
        let key = key.to_cow()?.into_owned();
        let value = read(&value, &format!("{path}.{key}"), depth + 1)?;
        map.insert(key, value);
    }
    Ok(Value::Object(map))
}

fn items<'py>(list: impl Iterator<Item = Bound<'py, PyAny>>, path: &str, depth: usize) -> PyResult<Value> {
    let item = |(index, item)| read(&item, &format!("{path}[{index}]"), depth + 1);
    list.enumerate().map(item).collect::<PyResult<Vec<_>>>().map(Value::Array)
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

/// Reads a `datetime` with a time zone. One without is ambiguous and is refused.
pub(crate) fn to_moment(object: &Bound<'_, PyAny>, path: &str) -> PyResult<DateTime<Utc>> {
    if !object.is_instance_of::<PyDateTime>() {
        let found = object.get_type().name()?.to_string();
        return Err(PyTypeError::new_err(format!("{path} is a {found}; accepted: a datetime with a time zone")));
    }
    // Most values are in UTC.
    if let Ok(moment) = object.extract() {
        return Ok(moment);
    }
    if object.call_method0("utcoffset")?.is_none() {
        return Err(PyValueError::new_err(format!(
            "{path} is {}, which has no time zone; accepted: a datetime with one, such as datetime.now(timezone.utc)",
            object.str()?
        )));
    }
    let utc = PyTzInfo::utc(object.py())?;
    object.call_method1("astimezone", (utc,))?.extract()
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
