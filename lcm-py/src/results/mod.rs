//! Frozen result classes: decisions, reconcile results and reports.
//!
//! A result holds its fields as one tuple of Python objects. Equality, hash, `repr`, pickling, `to_dict` and `replace`
//! are defined once, over that tuple. A decision creates the tuple when a field is first read, because most decisions of
//! a fleet are only counted.

use std::marker::PhantomData;

use lcm_sdk::{WorkerId, WorkerStatus};
use pyo3::PyClass;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pyclass::boolean_struct::True;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyString, PyTuple};

use crate::annotation::Annotation;
use crate::python::{effect_result, frozen_map, plain};

/// Declares a frozen result class: each field with its type, and with a default if the constructor may omit it.
macro_rules! result_class {
    (
        $(#[$about:meta])*
        $class:ident in $module:literal {
            $( $(#[$doc:meta])* $field:ident: $annotation:literal $(= $default:tt)? ),+ $(,)?
        }
        $($methods:tt)*
    ) => {
        $(#[$about])*
        #[pyclass(frozen, module = $module)]
        pub(crate) struct $class(crate::results::Fields);

        impl crate::results::ResultClass for $class {
            const FIELDS: &'static [crate::results::Field] =
                &[ $( crate::results::Field { name: stringify!($field), annotation: $annotation } ),+ ];

            fn fields(&self) -> &crate::results::Fields {
                &self.0
            }
        }

        impl crate::annotation::Annotation for crate::results::MatchArgs<$class> {
            const TEXT: &'static str = concat!("tuple[", $( "Literal['", stringify!($field), "'], ", )+ "]");
        }

        impl From<crate::results::Fields> for $class {
            fn from(fields: crate::results::Fields) -> Self {
                Self(fields)
            }
        }

        #[pymethods]
        impl $class {
            #[new]
            #[pyo3(signature = ( $( $field: $annotation $(= $default)? ),+ ))]
            fn new<'py>(py: Python<'py>, $( $field: Option<Bound<'py, PyAny>> ),+) -> PyResult<Self> {
                let values = [ $( crate::results::or_default(py, stringify!($field), $field)? ),+ ];
                Ok(Self(crate::results::Fields::from_values(&PyTuple::new(py, values)?)))
            }

            $(
                $(#[$doc])*
                #[getter]
                fn $field<'py>(
                    &self,
                    py: Python<'py>,
                ) -> PyResult<
                    crate::annotation::Annotated<
                        'py,
                        crate::results::FieldOf<$class, { crate::results::position::<$class>(stringify!($field)) }>,
                    >,
                > {
                    Ok(self.value(py, stringify!($field))?.into())
                }
            )+

            #[classattr]
            fn __match_args__(
                py: Python<'_>,
            ) -> PyResult<crate::annotation::Annotated<'_, crate::results::MatchArgs<$class>>> {
                Ok(PyTuple::new(py, Self::FIELDS.iter().map(|field| field.name))?.into())
            }

            /// Returns the fields as a dict ready for JSON: times as ISO 8601 text, durations in seconds.
            #[pyo3(signature = () -> "dict[str, Any]")]
            fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                self.as_dict(py)
            }

            /// Returns a copy with other values in some fields.
            #[pyo3(signature = (**fields: "Any") -> "Self")]
            fn replace<'py>(
                slf: &Bound<'py, Self>,
                fields: Option<&Bound<'py, PyDict>>,
            ) -> PyResult<Bound<'py, Self>> {
                crate::results::replace(slf, fields)
            }

            #[pyo3(signature = (**fields: "Any") -> "Self")]
            fn __replace__<'py>(
                slf: &Bound<'py, Self>,
                fields: Option<&Bound<'py, PyDict>>,
            ) -> PyResult<Bound<'py, Self>> {
                crate::results::replace(slf, fields)
            }

            fn __eq__(&self, other: &Bound<'_, Self>) -> PyResult<bool> {
                let py = other.py();
                self.fields().values(py)?.eq(other.get().fields().values(py)?)
            }

            fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
                self.fields().values(py)?.hash()
            }

            fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
                self.shown(stringify!($class), py)
            }

            #[pyo3(signature = () -> "tuple[Any, ...]")]
            fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
                Ok((slf.get_type(), slf.get().fields().values(slf.py())?.clone()))
            }

            /// Describes the class to pydantic, so that a model can hold it and a route can return it.
            #[classmethod]
            fn __get_pydantic_core_schema__<'py>(
                class: &Bound<'py, PyType>,
                _source: &Bound<'py, PyAny>,
                handler: &Bound<'py, PyAny>,
            ) -> PyResult<Bound<'py, PyAny>> {
                let fields = Self::FIELDS.iter().map(|field| (field.name, field.annotation)).collect::<Vec<_>>();
                class.py().import("lcm._pydantic")?.call_method1("fields_schema", (class, fields, handler))
            }

            /// Describes the JSON form to pydantic.
            #[classmethod]
            fn __get_pydantic_json_schema__<'py>(
                class: &Bound<'py, PyType>,
                schema: &Bound<'py, PyAny>,
                handler: &Bound<'py, PyAny>,
            ) -> PyResult<Bound<'py, PyAny>> {
                class.py().import("lcm._pydantic")?.call_method1("described", (class, schema, handler))
            }

            $($methods)*
        }
    };
}

mod decision;
mod patch;
mod replay;
mod reports;
mod simulate;

pub(crate) use decision::{Decision, Effect, Explanation, Reason, ReconcileResult, Transition, transition_table};
pub(crate) use patch::Patch;
pub(crate) use replay::{Difference, RecordedStep, Replay};
pub(crate) use reports::{DiscoveryReport, OrphanReport, RegionReport, SweepReport, Verdict};
pub(crate) use simulate::{Comparison, Figures, Step};

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

/// A field of a result class.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    /// Type of the field, as in the stub.
    pub(crate) annotation: &'static str,
}

/// The type of a field.
pub(crate) struct FieldOf<C, const POSITION: usize>(PhantomData<C>);

impl<C: ResultClass, const POSITION: usize> Annotation for FieldOf<C, POSITION> {
    const TEXT: &'static str = C::FIELDS[POSITION].annotation;
}

/// The type of the names by which patterns match.
pub(crate) struct MatchArgs<C>(PhantomData<C>);

/// The default of a field whose type does not include None. Each constructor replaces it: see [`or_default`].
pub(crate) const UNSET: Option<Bound<'static, PyAny>> = None;

/// The position of a field.
pub(crate) const fn position<C: ResultClass>(name: &str) -> usize {
    let mut position = 0;
    while position < C::FIELDS.len() {
        if equal(C::FIELDS[position].name.as_bytes(), name.as_bytes()) {
            return position;
        }
        position += 1;
    }
    panic!("there is no such field")
}

/// Constants can be compared by their bytes only.
const fn equal(left: &[u8], right: &[u8]) -> bool {
    let mut same = left.len() == right.len();
    let mut index = 0;
    while same && index < left.len() {
        same = left[index] == right[index];
        index += 1;
    }
    same
}

/// Methods that all result classes share.
pub(crate) trait ResultClass:
    PyClass<Frozen = True> + Sync + From<Fields> + Into<PyClassInitializer<Self>>
{
    /// The fields, in order.
    const FIELDS: &'static [Field];

    fn fields(&self) -> &Fields;

    fn value<'py>(&self, py: Python<'py>, field: &str) -> PyResult<Bound<'py, PyAny>> {
        let position = Self::FIELDS.iter().position(|known| known.name == field);
        let position = position.ok_or_else(|| PyTypeError::new_err(format!("there is no field {field}")))?;
        self.fields().values(py)?.get_item(position)
    }

    /// A field's text; an enum member's value.
    fn text(&self, py: Python<'_>, field: &str) -> PyResult<String> {
        Ok(self.value(py, field)?.str()?.to_string())
    }

    fn shown(&self, class: &str, py: Python<'_>) -> PyResult<String> {
        let values = self.fields().values(py)?;
        let fields = Self::FIELDS.iter().zip(values.iter());
        let fields = fields
            .map(|(field, value)| Ok(format!("{}={}", field.name, value.repr()?)))
            .collect::<PyResult<Vec<_>>>()?;
        Ok(format!("{class}({})", fields.join(", ")))
    }

    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (field, value) in Self::FIELDS.iter().zip(self.fields().values(py)?.iter()) {
            dict.set_item(field.name, plain(&value)?)?;
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
        let position = C::FIELDS.iter().position(|known| name.eq(known.name).unwrap_or(false));
        let Some(position) = position else {
            let class = object.as_any().get_type().name()?;
            let accepted = C::FIELDS.iter().map(|field| field.name).collect::<Vec<_>>().join(", ");
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
        (None, "details" | "changes") => frozen_map(py, &PyDict::new(py)),
        (None, "dry_run") => Ok(PyBool::new(py, false).to_owned().into_any()),
        (None, "result") => effect_result(py, "planned"),
        (None, _) => Ok(py.None().into_bound(py)),
    }
}

/// The table of a result, as `lcm.to_frame` returns it.
pub(crate) fn frame<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    object.py().import("lcm.frame")?.call_method1("to_frame", (object,))
}

/// Renders a result as HTML with a function of `lcm._html`.
pub(crate) fn html<'py>(object: &Bound<'py, PyAny>, function: &str) -> PyResult<Bound<'py, PyAny>> {
    object.py().import("lcm._html")?.call_method1(PyString::new(object.py(), function), (object,))
}
