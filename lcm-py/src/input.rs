//! Reads Python values as serde input.
//!
//! An [`Input`] keeps Python's own texts alive and lends them to serde, so that a record is parsed without copying the
//! texts that are only compared, such as the names of its fields.

use std::fmt::Display;

use chrono::{DateTime, Datelike as _, TimeDelta, Utc};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDateTime, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple, PyType};
use pyo3::{IntoPyObjectExt as _, intern};
use serde::de::value::{BorrowedStrDeserializer, Error, MapDeserializer, SeqDeserializer};
use serde::de::{Deserialize as _, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde_json::Value;

/// Deeper than any record; a value that is nested deeper refers to itself.
const MAX_DEPTH: usize = 64;

/// Accepted Python values, for errors.
const ACCEPTED: &str = "text, a number, True, False, None, a datetime with a time zone, a list or a dict of these";

/// The method with which pydantic returns the fields of a model.
const MODEL_METHOD: &str = "model_dump";

/// Maximum length of a rejected text in an error, in characters.
const SHOWN: usize = 40;

/// A Python value that JSON can express.
pub(crate) enum Input<'py> {
    Null,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Text(Bound<'py, PyString>),
    /// A `datetime` in ISO 8601.
    Moment(String),
    List(Vec<Self>),
    Object(Vec<(Bound<'py, PyString>, Self)>),
}

impl<'py> Input<'py> {
    /// Reads a Python value. `path` names it in errors.
    ///
    /// # Errors
    /// `TypeError` or `ValueError` for a value that JSON cannot express, with the path to it.
    pub(crate) fn read(object: &Bound<'py, PyAny>, path: impl Display) -> PyResult<Self> {
        read(object, 0).map_err(|rejected| rejected.into_error(path))
    }

    /// Reads the fields of a record. Errors name the record and the field.
    ///
    /// # Errors
    /// `TypeError` for an object that is no record, and as [`Input::read`].
    pub(crate) fn read_record(object: &Bound<'py, PyAny>, path: impl Display) -> PyResult<Self> {
        let record = match read(object, 0) {
            Ok(record) => record,
            Err(rejected) if rejected.path.is_empty() => return Err(rejected.into_error(path)),
            Err(rejected) => return Err(rejected.into_record_error(object, path)),
        };
        let shown = match &record {
            Self::Object(_) => return Ok(record),
            // A list or a long text may be a record with its secrets.
            Self::List(_) => "a list".to_owned(),
            Self::Text(text) if text.len()? > SHOWN => "a long text".to_owned(),
            Self::Null
            | Self::Bool(_)
            | Self::Signed(_)
            | Self::Unsigned(_)
            | Self::Float(_)
            | Self::Text(_)
            | Self::Moment(_) => object.repr()?.to_string(),
        };
        let accepted = "an lcm.Worker, or its record as a dict, a dataclass or a pydantic model";
        Err(PyTypeError::new_err(format!("{path} is {shown}; accepted: {accepted}")))
    }

    /// Converts into an owned JSON value.
    pub(crate) fn to_value(&self) -> PyResult<Value> {
        Value::deserialize(self).map_err(|error| PyValueError::new_err(error.to_string()))
    }
}

/// A value that is not accepted. The path is completed while the error is returned, so that it costs nothing
/// otherwise.
struct Rejected {
    path: String,
    problem: Problem,
}

enum Problem {
    /// `TypeError` with this text after the path.
    Type(String),
    /// `ValueError` with this text after the path.
    Value(String),
    /// `OverflowError` with this text after the path.
    Overflow(String),
    /// An exception of the value itself.
    Raised(PyErr),
}

impl Rejected {
    fn inside(mut self, parent: impl Display) -> Self {
        self.path.insert_str(0, &parent.to_string());
        self
    }

    fn into_error(self, root: impl Display) -> PyErr {
        let path = format!("{root}{}", self.path);
        self.problem.into_error(path)
    }

    /// The error for a field of a record: with the record's id, if it has one.
    fn into_record_error(self, record: &Bound<'_, PyAny>, root: impl Display) -> PyErr {
        let id = record.get_item("id").ok().and_then(|id| id.extract::<String>().ok());
        let record = id.map_or_else(|| root.to_string(), |id| format!("worker {id:?}"));
        let field = self.path.trim_start_matches('.');
        self.problem.into_error(format!("{record}: field `{field}`"))
    }
}

impl Problem {
    fn into_error(self, path: String) -> PyErr {
        match self {
            Problem::Type(text) => PyTypeError::new_err(path + &text),
            Problem::Value(text) => PyValueError::new_err(path + &text),
            Problem::Overflow(text) => PyOverflowError::new_err(path + &text),
            Problem::Raised(error) => error,
        }
    }
}

impl From<Problem> for Rejected {
    fn from(problem: Problem) -> Self {
        Self { path: String::new(), problem }
    }
}

impl From<PyErr> for Rejected {
    fn from(error: PyErr) -> Self {
        Problem::Raised(error).into()
    }
}

/// Reads a `datetime` with a time zone. `path` names it in errors.
///
/// # Errors
/// `TypeError` for another class, `ValueError` without a time zone, which is ambiguous, and `OverflowError` for a time
/// that is outside the years 1 to 9999 in UTC.
pub(crate) fn to_moment(object: &Bound<'_, PyAny>, path: &str) -> PyResult<DateTime<Utc>> {
    read_moment(object).map_err(|rejected| rejected.into_error(path))
}

fn read_moment(object: &Bound<'_, PyAny>) -> Result<DateTime<Utc>, Rejected> {
    if !object.is_instance_of::<PyDateTime>() {
        let found = object.get_type().name()?;
        return Err(Problem::Type(format!(" is a {found}; accepted: a datetime with a time zone")).into());
    }
    let since_epoch = match since_epoch(object) {
        Ok(since_epoch) => since_epoch,
        Err(_) if object.call_method0("utcoffset")?.is_none() => {
            return Err(Problem::Value(format!(
                " is {}, which has no time zone; accepted: a datetime with one, such as datetime.now(timezone.utc)",
                object.str()?
            ))
            .into());
        }
        Err(error) => return Err(error.into()),
    };
    let moment = DateTime::UNIX_EPOCH.checked_add_signed(since_epoch);
    // The local time may be in another year than its UTC form.
    moment.filter(|moment| (1..=9999).contains(&moment.year())).ok_or_else(|| {
        let shown = object.str().map_or_else(|_| "a datetime".to_owned(), |text| text.to_string());
        Problem::Overflow(format!(" is {shown}; accepted: a datetime in the years 1 to 9999 in UTC")).into()
    })
}

/// The distance of a `datetime` from the Unix epoch, for any time zone in one way.
fn since_epoch(object: &Bound<'_, PyAny>) -> PyResult<TimeDelta> {
    static EPOCH: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = object.py();
    let epoch = EPOCH.get_or_try_init(py, || DateTime::UNIX_EPOCH.into_py_any(py))?.bind(py);
    if object.is_exact_instance_of::<PyDateTime>() {
        return object.sub(epoch)?.extract();
    }
    // A subclass may return a difference of its own, whose parts mean something else than those of a timedelta.
    py.get_type::<PyDateTime>().call_method1(intern!(py, "__sub__"), (object, epoch))?.extract()
}

fn read<'py>(object: &Bound<'py, PyAny>, depth: usize) -> Result<Input<'py>, Rejected> {
    if depth > MAX_DEPTH {
        return Err(Problem::Value(format!(" is nested more than {MAX_DEPTH} deep")).into());
    }
    if object.is_none() {
        return Ok(Input::Null);
    }
    if let Ok(text) = object.cast::<PyString>() {
        return read_text(text).map(Input::Text);
    }
    if let Ok(switch) = object.cast::<PyBool>() {
        return Ok(Input::Bool(switch.is_true()));
    }
    if let Ok(number) = object.cast::<PyInt>() {
        let whole = number.extract().map(Input::Signed).or_else(|_| number.extract().map(Input::Unsigned));
        return whole.map_err(|_| Problem::Value(" is too large a number; accepted: one of 64 bits".to_owned()).into());
    }
    if let Ok(number) = object.cast::<PyFloat>() {
        let finite = Some(number.value()).filter(|number| number.is_finite());
        let problem = || Problem::Value(format!(" is {}; accepted: a finite number, or None", number.value()));
        return finite.map(Input::Float).ok_or_else(|| problem().into());
    }
    if let Ok(dict) = object.cast::<PyDict>() {
        return read_fields(dict.iter(), dict.len(), depth);
    }
    if let Ok(list) = object.cast::<PyList>() {
        return read_items(list.iter(), depth);
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        return read_items(tuple.iter(), depth);
    }
    if object.is_instance_of::<PyDateTime>() {
        return Ok(Input::Moment(read_moment(object)?.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)));
    }
    if let Ok(mapping) = object.cast::<PyMapping>() {
        let pairs = mapping.items()?.iter().map(|pair| pair.extract()).collect::<PyResult<Vec<_>>>()?;
        let count = pairs.len();
        return read_fields(pairs.into_iter(), count, depth);
    }
    // Whole numbers of other libraries, such as numpy.
    if let Some(method) = object.getattr_opt(intern!(object.py(), "__index__"))?
        && let Ok(number) = method.call0()
    {
        return read(&number, depth + 1);
    }
    if let Some(method) = object.getattr_opt(intern!(object.py(), "to_dict"))? {
        return read(&method.call0()?, depth + 1);
    }
    if let Some(value) = content(object)? {
        return read(&value, depth + 1);
    }
    // With its module: numpy has a `bool` of its own.
    Err(Problem::Type(format!(" is a {}; accepted: {ACCEPTED}", object.get_type().fully_qualified_name()?)).into())
}

/// Whether an object is a model of pydantic, rather than its class.
pub(crate) fn is_model(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(!object.is_instance_of::<PyType>() && object.hasattr(intern!(object.py(), MODEL_METHOD))?)
}

/// The content of a dataclass, a model of pydantic, a secret of one, or an enum member that is no text.
fn content<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = object.py();
    if object.is_instance_of::<PyType>() {
        return Ok(None);
    }
    for method in [intern!(py, MODEL_METHOD), intern!(py, "get_secret_value")] {
        if let Some(method) = object.getattr_opt(method)? {
            return method.call0().map(Some);
        }
    }
    if object.hasattr(intern!(py, "__dataclass_fields__"))? {
        // Without class variables, which `__dataclass_fields__` holds too.
        let fields = py.import("dataclasses")?.call_method1("fields", (object,))?;
        let content = PyDict::new(py);
        for field in fields.try_iter()? {
            let name = field?.getattr(intern!(py, "name"))?.cast_into::<PyString>()?;
            content.set_item(&name, object.getattr(&name)?)?;
        }
        return Ok(Some(content.into_any()));
    }
    static ENUM: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if object.is_instance(ENUM.import(py, "enum", "Enum")?)? {
        return object.getattr(intern!(py, "value")).map(Some);
    }
    Ok(None)
}

/// Accepts a text that has a UTF-8 form.
fn read_text<'py>(text: &Bound<'py, PyString>) -> Result<Bound<'py, PyString>, Rejected> {
    text.to_str()?;
    Ok(text.clone())
}

fn read_fields<'py>(
    pairs: impl Iterator<Item = (Bound<'py, PyAny>, Bound<'py, PyAny>)>,
    count: usize,
    depth: usize,
) -> Result<Input<'py>, Rejected> {
    let mut fields = Vec::with_capacity(count);
    for (name, value) in pairs {
        let name = match name.cast_into::<PyString>() {
            Ok(name) => read_text(&name)?,
            Err(other) => {
                let name = other.into_inner().repr()?;
                return Err(Problem::Type(format!(" has the key {name}; accepted: text")).into());
            }
        };
        match read(&value, depth + 1) {
            Ok(value) => fields.push((name, value)),
            Err(rejected) => return Err(rejected.inside(format_args!(".{name}"))),
        }
    }
    Ok(Input::Object(fields))
}

fn read_items<'py>(items: impl Iterator<Item = Bound<'py, PyAny>>, depth: usize) -> Result<Input<'py>, Rejected> {
    let item = |(index, item)| read(&item, depth + 1).map_err(|rejected| rejected.inside(format_args!("[{index}]")));
    items.enumerate().map(item).collect::<Result<_, _>>().map(Input::List)
}

fn lend<'de>(text: &'de Bound<'_, PyString>) -> Result<&'de str, Error> {
    text.to_str().map_err(Error::custom)
}

/// Serves types that are deserialized from any value, as records and [`Value`] are.
impl<'de> Deserializer<'de> for &'de Input<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Input::Null => visitor.visit_unit(),
            Input::Bool(switch) => visitor.visit_bool(*switch),
            Input::Signed(number) => visitor.visit_i64(*number),
            Input::Unsigned(number) => visitor.visit_u64(*number),
            Input::Float(number) => visitor.visit_f64(*number),
            Input::Text(text) => visitor.visit_borrowed_str(lend(text)?),
            Input::Moment(text) => visitor.visit_borrowed_str(text),
            Input::List(items) => visitor.visit_seq(SeqDeserializer::new(items.iter())),
            Input::Object(fields) => {
                visitor.visit_map(MapDeserializer::new(fields.iter().map(|(name, value)| (Name(name), value))))
            }
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de> for &'de Input<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// The name of a field.
struct Name<'de, 'py>(&'de Bound<'py, PyString>);

impl<'de> Deserializer<'de> for Name<'de, '_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        BorrowedStrDeserializer::new(lend(self.0)?).deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de> for Name<'de, '_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}
