//! Tables in the memory format of Arrow, which pandas, polars, DuckDB and pyarrow read without copying.

use std::str::FromStr;
use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder, BooleanBuilder, DurationMicrosecondBuilder, Float64Builder, Int64Builder, ListBuilder, StringBuilder,
    TimestampMicrosecondBuilder,
};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{ArrayRef, RecordBatch, RecordBatchIterator, RecordBatchOptions};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field, Schema, TimeUnit};
use chrono::TimeDelta;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::input::to_moment;

/// Columns of equal length.
#[pyclass(frozen, module = "lcm._lcm")]
pub(crate) struct Table {
    batch: RecordBatch,
}

#[pymethods]
impl Table {
    /// Creates a table from the name, the kind and the values of each column. None is a missing value.
    #[new]
    #[pyo3(signature = (columns: "Sequence[tuple[str, str, Sequence[Any]]]", rows: "int"))]
    fn new(columns: Vec<(String, String, Vec<Bound<'_, PyAny>>)>, rows: usize) -> PyResult<Self> {
        let mut fields = Vec::with_capacity(columns.len());
        let mut arrays = Vec::with_capacity(columns.len());
        for (name, kind, values) in &columns {
            let kind = kind.parse::<Kind>()?;
            fields.push(Field::new(name, kind.data_type(), true));
            arrays.push(kind.build(name, values)?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options);
        Ok(Self { batch: batch.map_err(invalid)? })
    }

    /// Returns the table as a stream of Arrow's C interface.
    #[pyo3(signature = () -> "object")]
    fn stream<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let batches = RecordBatchIterator::new([Ok(self.batch.clone())], self.batch.schema());
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(batches)), c"arrow_array_stream")
    }

    /// Returns the types of the columns as a schema of Arrow's C interface.
    #[pyo3(signature = () -> "object")]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.batch.schema().as_ref()).map_err(invalid)?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }
}

fn invalid(error: ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The type of a column.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Texts,
    Whole,
    Number,
    Switch,
    /// With a time zone, UTC.
    Moment,
    Duration,
}

impl FromStr for Kind {
    type Err = PyErr;

    fn from_str(word: &str) -> PyResult<Self> {
        Ok(match word {
            "text" => Self::Text,
            "texts" => Self::Texts,
            "whole" => Self::Whole,
            "number" => Self::Number,
            "switch" => Self::Switch,
            "moment" => Self::Moment,
            "duration" => Self::Duration,
            other => {
                let accepted = "text, texts, whole, number, switch, moment, duration";
                return Err(PyValueError::new_err(format!("{other:?} is no kind of column; accepted: {accepted}")));
            }
        })
    }
}

impl Kind {
    fn data_type(self) -> DataType {
        match self {
            Self::Text => DataType::Utf8,
            Self::Texts => DataType::new_list(DataType::Utf8, true),
            Self::Whole => DataType::Int64,
            Self::Number => DataType::Float64,
            Self::Switch => DataType::Boolean,
            Self::Moment => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Self::Duration => DataType::Duration(TimeUnit::Microsecond),
        }
    }

    fn build(self, name: &str, values: &[Bound<'_, PyAny>]) -> PyResult<ArrayRef> {
        match self {
            Self::Text => {
                filled(StringBuilder::new(), values, |text| text.extract::<String>(), StringBuilder::append_option)
            }
            Self::Texts => {
                let read = |texts: &Bound<'_, PyAny>| texts.extract::<Vec<String>>();
                filled(ListBuilder::new(StringBuilder::new()), values, read, |column, texts| {
                    column.append_option(texts.map(|texts| texts.into_iter().map(Some)));
                })
            }
            Self::Whole => filled(Int64Builder::new(), values, |number| number.extract(), Int64Builder::append_option),
            Self::Number => {
                filled(Float64Builder::new(), values, |number| number.extract(), Float64Builder::append_option)
            }
            Self::Switch => {
                filled(BooleanBuilder::new(), values, |switch| switch.extract(), BooleanBuilder::append_option)
            }
            Self::Moment => {
                let column = TimestampMicrosecondBuilder::new().with_data_type(self.data_type());
                let read = |moment: &Bound<'_, PyAny>| Ok(to_moment(moment, name)?.timestamp_micros());
                filled(column, values, read, TimestampMicrosecondBuilder::append_option)
            }
            Self::Duration => {
                let read = |duration: &Bound<'_, PyAny>| {
                    duration.extract::<TimeDelta>()?.num_microseconds().ok_or_else(|| too_long(name))
                };
                filled(DurationMicrosecondBuilder::new(), values, read, DurationMicrosecondBuilder::append_option)
            }
        }
    }
}

fn too_long(name: &str) -> PyErr {
    PyOverflowError::new_err(format!("{name} has a duration of more than 64 bits of microseconds"))
}

/// Builds a column. `read` reads a value that is there; `append` adds one, or none.
fn filled<'py, B: ArrayBuilder, V>(
    mut column: B,
    values: &[Bound<'py, PyAny>],
    read: impl Fn(&Bound<'py, PyAny>) -> PyResult<V>,
    append: impl Fn(&mut B, Option<V>),
) -> PyResult<ArrayRef> {
    for value in values {
        append(&mut column, Some(value).filter(|value| !value.is_none()).map(&read).transpose()?);
    }
    Ok(column.finish())
}
