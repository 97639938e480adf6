//! Frozen result classes: decisions, reconcile results and reports.
//!
//! A result holds its fields as one tuple of Python objects. Equality, hash, `repr`, pickling, `to_dict` and `replace`
//! are defined once, over that tuple. A decision creates the tuple when a field is first read, because most decisions of
//! a fleet are only counted.

use lcm_sdk::{WorkerId, WorkerStatus};
use pyo3::PyClass;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pyclass::boolean_struct::True;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyString, PyTuple};

use crate::python::{effect_result, frozen_map, plain};

/// Declares a frozen result class. Fields with a default are optional in its constructor.
macro_rules! result_class {
    (
        $(#[$about:meta])*
        $class:ident in $module:literal {
            $( $(#[$doc:meta])* $field:ident $(= $default:tt)? ),+ $(,)?
        }
        $($methods:tt)*
    ) => {
        $(#[$about])*
        #[pyclass(frozen, module = $module)]
        pub(crate) struct $class(crate::results::Fields);

        impl crate::results::ResultClass for $class {
            const FIELDS: &'static [&'static str] = &[ $( stringify!($field) ),+ ];

            fn fields(&self) -> &crate::results::Fields {
                &self.0
            }
        }

        impl From<crate::results::Fields> for $class {
            fn from(fields: crate::results::Fields) -> Self {
                Self(fields)
            }
        }

        #[pymethods]
        impl $class {
            #[new]
            #[pyo3(signature = ( $( $field $(= $default)? ),+ ))]
            fn new<'py>(py: Python<'py>, $( $field: Option<Bound<'py, PyAny>> ),+) -> PyResult<Self> {
                let values = [ $( crate::results::or_default(py, stringify!($field), $field)? ),+ ];
                Ok(Self(crate::results::Fields::from_values(&PyTuple::new(py, values)?)))
            }

            $(
                $(#[$doc])*
                #[getter]
                fn $field<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                    self.value(py, stringify!($field))
                }
            )+

            #[classattr]
            fn __match_args__(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
                PyTuple::new(py, Self::FIELDS)
            }

            /// Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds.
            fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                self.as_dict(py)
            }

            /// Returns a copy with other values in some fields.
            #[pyo3(signature = (**fields))]
            fn replace<'py>(
                slf: &Bound<'py, Self>,
                fields: Option<&Bound<'py, PyDict>>,
            ) -> PyResult<Bound<'py, Self>> {
                crate::results::replace(slf, fields)
            }

            #[pyo3(signature = (**fields))]
            fn __replace__<'py>(
                slf: &Bound<'py, Self>,
                fields: Option<&Bound<'py, PyDict>>,
            ) -> PyResult<Bound<'py, Self>> {
                crate::results::replace(slf, fields)
            }

            fn __eq__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
                self.equals(other)
            }

            fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
                self.fields().values(py)?.hash()
            }

            fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
                self.shown(stringify!($class), py)
            }

            fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
                Ok((slf.get_type(), slf.get().fields().values(slf.py())?.clone()))
            }

            $($methods)*
        }
    };
}

mod decision;
mod patch;
mod reports;

pub(crate) use decision::{Decision, Effect, Reason, ReconcileResult, Transition, transition_table};
pub(crate) use patch::Patch;
pub(crate) use reports::{DiscoveryReport, OrphanReport, RegionReport, SweepReport, Verdict};

/// Adds the result classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Decision>()?;
    module.add_class::<DiscoveryReport>()?;
    module.add_class::<Effect>()?;
    module.add_class::<OrphanReport>()?;
    module.add_class::<Patch>()?;
    module.add_class::<Reason>()?;
    module.add_class::<ReconcileResult>()?;
    module.add_class::<RegionReport>()?;
    module.add_class::<SweepReport>()?;
    module.add_class::<Transition>()?;
    module.add_class::<Verdict>()
}

/// Field values of a result, in the order of its class.
pub(crate) struct Fields {
    values: PyOnceLock<Py<PyTuple>>,
    /// The decision to convert when a field is first read.
    decided: Option<Decided>,
}

/// A decision about one worker.
#[derive(Clone)]
pub(crate) struct Decided {
    pub(crate) worker_id: WorkerId,
    pub(crate) status: WorkerStatus,
    pub(crate) decision: lcm_sdk::Decision,
}

impl Fields {
    pub(crate) fn from_values(values: &Bound<'_, PyTuple>) -> Self {
        let cell = PyOnceLock::new();
        // A new cell is empty, so this cannot fail.
        let _ = cell.set(values.py(), values.clone().unbind());
        Self { values: cell, decided: None }
    }

    pub(crate) fn from_decided(decided: Decided) -> Self {
        Self { values: PyOnceLock::new(), decided: Some(decided) }
    }

    /// The values, converted on first use.
    pub(crate) fn values<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyTuple>> {
        let convert = || match &self.decided {
            Some(decided) => decision::decision_values(py, decided).map(Bound::unbind),
            None => Ok(PyTuple::empty(py).unbind()),
        };
        self.values.get_or_try_init(py, convert).map(|values| values.bind(py))
    }
}

/// Methods that all result classes share.
pub(crate) trait ResultClass:
    PyClass<Frozen = True> + Sync + From<Fields> + Into<PyClassInitializer<Self>>
{
    /// Names of the fields, in order.
    const FIELDS: &'static [&'static str];

    fn fields(&self) -> &Fields;

    fn value<'py>(&self, py: Python<'py>, field: &str) -> PyResult<Bound<'py, PyAny>> {
        let position = Self::FIELDS.iter().position(|known| *known == field);
        let position = position.ok_or_else(|| PyTypeError::new_err(format!("there is no field {field}")))?;
        self.fields().values(py)?.get_item(position)
    }

    /// A field's text; an enum member's value.
    fn text(&self, py: Python<'_>, field: &str) -> PyResult<String> {
        Ok(self.value(py, field)?.str()?.to_string())
    }

    fn equals<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = other.py();
        let Ok(other) = other.cast::<Self>() else { return Ok(py.NotImplemented().into_bound(py)) };
        let same = self.fields().values(py)?.eq(other.get().fields().values(py)?)?;
        Ok(PyBool::new(py, same).to_owned().into_any())
    }

    fn shown(&self, class: &str, py: Python<'_>) -> PyResult<String> {
        let values = self.fields().values(py)?;
        let fields = Self::FIELDS.iter().zip(values.iter());
        let fields =
            fields.map(|(name, value)| Ok(format!("{name}={}", value.repr()?))).collect::<PyResult<Vec<_>>>()?;
        Ok(format!("{class}({})", fields.join(", ")))
    }

    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, value) in Self::FIELDS.iter().zip(self.fields().values(py)?.iter()) {
            dict.set_item(name, plain(&value)?)?;
        }
        Ok(dict)
    }
}

/// Creates a result from its field values.
pub(crate) fn create<'py, C: ResultClass>(
    py: Python<'py>,
    values: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
) -> PyResult<Bound<'py, C>> {
    Bound::new(py, C::from(Fields::from_values(&values.into_pyobject(py)?)))
}

fn replace<'py, C: ResultClass>(
    object: &Bound<'py, C>,
    fields: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, C>> {
    let py = object.py();
    let mut values: Vec<_> = object.get().fields().values(py)?.iter().collect();
    for (name, value) in fields.into_iter().flatten() {
        let position = C::FIELDS.iter().position(|known| name.eq(*known).unwrap_or(false));
        let Some(position) = position else {
            let class = object.as_any().get_type().name()?;
            let accepted = C::FIELDS.join(", ");
            return Err(PyTypeError::new_err(format!("{class} has no field {}; accepted: {accepted}", name.repr()?)));
        };
        values[position] = value;
    }
    Bound::new(py, C::from(Fields::from_values(&PyTuple::new(py, values)?)))
}

/// The value given for a field, or the field's default.
fn or_default<'py>(py: Python<'py>, field: &str, given: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    match (given, field) {
        (Some(value), _) => Ok(value),
        (None, "details") => frozen_map(py, &PyDict::new(py)),
        (None, "dry_run") => Ok(PyBool::new(py, false).to_owned().into_any()),
        (None, "result") => effect_result(py, "planned"),
        (None, _) => Ok(py.None().into_bound(py)),
    }
}

/// Renders a result as HTML with a function of `lcm._html`.
fn html<'py>(object: &Bound<'py, PyAny>, function: &str) -> PyResult<Bound<'py, PyAny>> {
    object.py().import("lcm._html")?.call_method1(PyString::new(object.py(), function), (object,))
}
