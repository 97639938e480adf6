//! `lcm.Worker`: an immutable record.

use std::ffi::CString;
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use chrono::{DateTime, Utc};
use lcm_sdk::lifecycle::{Eligibility, FieldWarning, eligibility};
use lcm_sdk::{InstanceId, Secret};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyMapping, PyString, PyTuple, PyType};
use serde::Deserialize as _;
use serde_json::{Map, Value};

use crate::annotation::{Annotated, Desired, JsonObject, Status, Texts, WorkerMatch};
use crate::convert::{to_python, to_value};
use crate::input::{Input, is_model};
use crate::python::{desired_status, invalid_record, record_warning_class, worker_status};

/// A worker's record. It is immutable; `replace` returns a changed copy.
///
/// Its fields have the names of the control plane's JSON. `Worker.from_dict` parses such a record and keeps unknown
/// fields; `to_dict` returns the record without its passwords and tokens. `repr` omits them too. A pickle includes
/// them, because another process could not use the worker without them.
///
/// >>> import lcm
/// >>> worker = lcm.Worker("w-1", "running", desired_status="stopped", ec2_instance_id="i-1")
/// >>> worker
/// Worker(id='w-1', status='running', desired_status='stopped', ec2_instance_id='i-1')
/// >>> worker.replace(status="stopped").status
/// <WorkerStatus.STOPPED: 'stopped'>
/// >>> lcm.Worker("w-1", "asleep")
/// Traceback (most recent call last):
/// ...
/// lcm.exceptions.InvalidRecord: worker "w-1": field `status` is "asleep"; accepted: pending, provisioning, ...
#[pyclass(frozen, module = "lcm")]
pub(crate) struct Worker {
    pub(crate) record: lcm_sdk::Worker,
}

#[pymethods]
impl Worker {
    #[new]
    #[pyo3(signature = (id: "str", status: "AnyWorkerStatus", **fields: "Unpack[WorkerFields]"))]
    fn new(id: &Bound<'_, PyAny>, status: &Bound<'_, PyAny>, fields: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let py = id.py();
        let record = PyDict::new(py);
        for (name, value) in fields.into_iter().flatten() {
            accept(&name)?;
            record.set_item(name, value)?;
        }
        record.set_item("id", id)?;
        record.set_item("status", status)?;
        let record = parse_worker(record.as_any(), "worker")?;
        refuse_unreadable(py, &record)?;
        Ok(Self { record })
    }

    /// Parses a record of the control plane: a dict, a dataclass or a pydantic model.
    ///
    /// Raises `InvalidRecord` if id, status or instance id cannot be read. Any other unreadable value counts as None; a
    /// `RecordWarning` and `warnings` name it.
    ///
    /// >>> import lcm
    /// >>> worker = lcm.Worker.from_dict({"id": "w-1", "status": "RUNNING", "aws_instance_id": "i-1", "rack": 9})
    /// >>> worker.status.value, worker.ec2_instance_id, worker.to_dict()["rack"]
    /// ('running', 'i-1', 9)
    #[classmethod]
    #[pyo3(signature = (record: "AnyRecord"))]
    fn from_dict(_class: &Bound<'_, PyType>, record: &Bound<'_, PyAny>) -> PyResult<Self> {
        read_worker(record).map(|record| Self { record })
    }

    /// Returns the record as a dict ready for JSON, without passwords and tokens.
    #[pyo3(signature = () -> "dict[str, Any]")]
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &Value::Object(self.record.to_json()))
    }

    /// Returns a copy with other values in some fields.
    ///
    /// >>> import lcm
    /// >>> lcm.Worker("w-1", "running").replace(desired_status="terminated")
    /// Worker(id='w-1', status='running', desired_status='terminated', ec2_instance_id=None)
    #[pyo3(signature = (**fields: "Unpack[WorkerChanges]"))]
    fn replace(&self, py: Python<'_>, fields: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut record = self.everything();
        for (name, value) in fields.into_iter().flatten() {
            let name = accept(&name)?;
            let value = to_value(&value, &format!("worker.{name}"))?;
            record.insert(name, value);
        }
        let record: lcm_sdk::Worker = Value::Object(record).try_into().map_err(|error| invalid_record(py, &error))?;
        let added = record.warnings.iter().find(|warning| !self.record.warnings.contains(warning));
        match added {
            Some(FieldWarning::Unreadable(error)) => Err(invalid_record(py, error)),
            Some(_) | None => Ok(Self { record }),
        }
    }

    /// Unique id of the worker.
    #[getter]
    fn id(&self) -> &str {
        self.record.id.as_str()
    }

    /// Status of the worker (`WorkerStatus`).
    #[getter]
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Annotated<'py, Status>> {
        Ok(worker_status(py, self.record.status.as_str())?.into())
    }

    /// Status that the owner wants (`DesiredStatus`), or None.
    #[getter]
    fn desired_status<'py>(&self, py: Python<'py>) -> PyResult<Option<Annotated<'py, Desired>>> {
        self.record.desired_status.map(|desired| Ok(desired_status(py, desired.as_str())?.into())).transpose()
    }

    /// Id of the EC2 instance, or None before the launch.
    #[getter]
    fn ec2_instance_id(&self) -> Option<&str> {
        self.record.ec2_instance_id.as_ref().map(InstanceId::as_str)
    }

    /// Version of the record, or None. Writes are conditional on it.
    #[getter]
    fn version(&self) -> Option<u64> {
        self.record.version
    }

    /// Display name, or None.
    #[getter]
    fn name(&self) -> Option<&str> {
        self.record.name.as_deref()
    }

    /// AWS region of the instance, or None for the default region.
    #[getter]
    fn aws_region(&self) -> Option<&str> {
        self.record.aws_region.as_deref()
    }

    /// Address that the control plane prefers, or None.
    #[getter]
    fn ip_address(&self) -> Option<&str> {
        self.record.ip_address.as_deref()
    }

    /// Public IP address, or None.
    #[getter]
    fn public_ip(&self) -> Option<&str> {
        self.record.public_ip.as_deref()
    }

    /// Private IP address, or None.
    #[getter]
    fn private_ip(&self) -> Option<&str> {
        self.record.private_ip.as_deref()
    }

    /// Name of the template, or None.
    #[getter]
    fn template_name(&self) -> Option<&str> {
        self.record.template_name.as_deref()
    }

    /// EC2 instance type, or None.
    #[getter]
    fn instance_type(&self) -> Option<&str> {
        self.record.instance_type.as_deref()
    }

    /// AMI name or pattern, or None. Takes precedence over the template's.
    #[getter]
    fn ami_name(&self) -> Option<&str> {
        self.record.ami_name.as_deref()
    }

    /// User name for CML, or None.
    #[getter]
    fn cml_username(&self) -> Option<&str> {
        self.record.cml_username.as_deref()
    }

    /// Time the record was created, or None.
    #[getter]
    fn created_at(&self) -> Option<DateTime<Utc>> {
        self.record.created_at
    }

    /// Time of the last write, or None.
    #[getter]
    fn updated_at(&self) -> Option<DateTime<Utc>> {
        self.record.updated_at
    }

    /// Time of the termination, or None.
    #[getter]
    fn terminated_at(&self) -> Option<DateTime<Utc>> {
        self.record.terminated_at
    }

    /// Time of the last request to start the instance, or None.
    #[getter]
    fn start_initiated_at(&self) -> Option<DateTime<Utc>> {
        self.record.start_initiated_at
    }

    /// Time of the last idle check, or None.
    #[getter]
    fn last_activity_check_at(&self) -> Option<DateTime<Utc>> {
        self.record.last_activity_check_at
    }

    /// Time the drain began, or None.
    #[getter]
    fn drain_started_at(&self) -> Option<DateTime<Utc>> {
        self.record.notes.drain_started_at
    }

    /// Timeout that the template gave the drain, in seconds, where it is not the default.
    #[getter]
    fn drain_timeout_seconds(&self) -> Option<u64> {
        self.record.notes.drain_timeout_seconds
    }

    /// Number of times that a session kept the worker from leaving its drain.
    #[getter]
    fn drain_tries(&self) -> u32 {
        self.record.notes.drain_tries
    }

    /// Time of the last scale-down, or None.
    #[getter]
    fn scaled_down_at(&self) -> Option<DateTime<Utc>> {
        self.record.notes.scaled_down_at
    }

    /// Time of the launch, or None.
    #[getter]
    fn launched_at(&self) -> Option<DateTime<Utc>> {
        self.record.notes.launched_at
    }

    /// Tags of the instance. They take precedence over the region's.
    #[getter]
    fn aws_tags(&self) -> std::collections::BTreeMap<String, String> {
        self.record.aws_tags.clone()
    }

    /// Whether idle detection applies to this worker.
    #[getter]
    fn is_idle_detection_enabled(&self) -> bool {
        self.record.is_idle_detection_enabled
    }

    /// Number of ended launches of this worker; part of the launch token.
    #[getter]
    fn launch_generation(&self) -> u32 {
        self.record.notes.launch_generation
    }

    /// License of the worker, without the tokens.
    #[getter]
    fn license<'py>(&self, py: Python<'py>) -> PyResult<Annotated<'py, JsonObject>> {
        Ok(to_python(py, self.record.to_json().get("license").unwrap_or(&Value::Null))?.into())
    }

    /// Free-form data of the control plane.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Annotated<'py, JsonObject>> {
        Ok(to_python(py, &Value::Object(self.record.metadata.clone()))?.into())
    }

    /// Fields of the record that have no effect, one sentence each: unreadable values, which count as None, and names
    /// that are probably misspelled.
    #[getter]
    fn warnings<'py>(&self, py: Python<'py>) -> PyResult<Annotated<'py, Texts>> {
        Ok(PyTuple::new(py, self.record.warnings.iter().map(ToString::to_string))?.into())
    }

    /// Address of the worker: `ip_address`, else public, else private; None without any.
    #[getter]
    fn address(&self) -> Option<&str> {
        self.record.address()
    }

    /// Whether no reconcile is due until the record or the cloud changes.
    #[getter]
    fn is_at_rest(&self) -> bool {
        self.record.is_at_rest()
    }

    /// Whether the worker may take a new session.
    #[getter]
    fn is_eligible(&self) -> bool {
        eligibility(&self.record) == Eligibility::Eligible
    }

    #[classattr]
    fn __match_args__(py: Python<'_>) -> PyResult<Annotated<'_, WorkerMatch>> {
        Ok(PyTuple::new(py, ["id", "status", "desired_status"])?.into())
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.record == other.record
    }

    fn __hash__(&self) -> u64 {
        // A subset of the compared fields, so equal workers have equal hashes.
        let mut hasher = DefaultHasher::new();
        let record = &self.record;
        (&record.id, record.status, record.desired_status, &record.ec2_instance_id, record.version).hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let shown = |word: Option<&str>| word.into_pyobject(py)?.repr().map(|text| text.to_string());
        Ok(format!(
            "Worker(id={}, status={}, desired_status={}, ec2_instance_id={})",
            shown(Some(self.id()))?,
            shown(Some(self.record.status.as_str()))?,
            shown(self.record.desired_status.map(|desired| desired.as_str()))?,
            shown(self.ec2_instance_id())?,
        ))
    }

    /// Describes the class to pydantic, so that a model can hold a worker and a route can return one.
    #[classmethod]
    fn __get_pydantic_core_schema__<'py>(
        class: &Bound<'py, PyType>,
        _source: &Bound<'py, PyAny>,
        handler: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        class.py().import("lcm._pydantic")?.call_method1("record_schema", (class, handler))
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

    #[pyo3(signature = () -> "tuple[Any, ...]")]
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let py = slf.py();
        let record = to_python(py, &Value::Object(slf.get().everything()))?;
        Ok((slf.get_type().getattr("from_dict")?, PyTuple::new(py, [record])?))
    }
}

impl Worker {
    /// Returns the whole record, secrets included.
    fn everything(&self) -> Map<String, Value> {
        let mut record = self.record.to_json();
        let exposed = |secret: &Option<Secret>| Value::from(secret.as_ref().map(Secret::expose));
        record.insert("cml_password".to_owned(), exposed(&self.record.cml_password));
        if let Some(license) = record.get_mut("license").and_then(Value::as_object_mut) {
            license.insert("token".to_owned(), exposed(&self.record.license.token));
            license.insert("pending_token".to_owned(), exposed(&self.record.license.pending_token));
        }
        record
    }
}

/// Reads an `lcm.Worker` or the control plane's record. Warns of fields without effect.
pub(crate) fn read_worker(object: &Bound<'_, PyAny>) -> PyResult<lcm_sdk::Worker> {
    read_worker_at(object, "worker")
}

/// Reads an item of a list of workers. The index names it in errors if it has no id.
pub(crate) fn read_listed_worker(object: &Bound<'_, PyAny>, index: usize) -> PyResult<lcm_sdk::Worker> {
    read_worker_at(object, format_args!("workers[{index}]"))
}

fn read_worker_at(object: &Bound<'_, PyAny>, path: impl Display) -> PyResult<lcm_sdk::Worker> {
    let worker = parse_worker(object, path)?;
    if !worker.warnings.is_empty() && !object.is_instance_of::<Worker>() {
        let py = object.py();
        for warning in &worker.warnings {
            let text = CString::new(warning.to_string()).unwrap_or_default();
            PyErr::warn(py, record_warning_class(py)?, &text, 1)?;
        }
    }
    Ok(worker)
}

/// Reads an `lcm.Worker` or the control plane's record, without warnings.
pub(crate) fn parse_worker(object: &Bound<'_, PyAny>, path: impl Display) -> PyResult<lcm_sdk::Worker> {
    if let Ok(worker) = object.cast::<Worker>() {
        return Ok(worker.get().record.clone());
    }
    let input = Input::read_record(object, path)?;
    // Deserializing keeps only the text of an error. A record that cannot be parsed is read again for the field.
    lcm_sdk::Worker::deserialize(&input)
        .or_else(|_| input.to_value()?.try_into().map_err(|error| invalid_record(object.py(), &error)))
}

/// Refuses a value that a caller typed and that cannot be read.
fn refuse_unreadable(py: Python<'_>, worker: &lcm_sdk::Worker) -> PyResult<()> {
    match worker.warnings.first() {
        Some(FieldWarning::Unreadable(error)) => Err(invalid_record(py, error)),
        Some(_) | None => Ok(()),
    }
}

/// Iterates over a list of workers. One worker alone is refused: a dict would be iterated over by its keys.
///
/// # Errors
/// `TypeError` for a value that is no list of workers.
pub(crate) fn iterate_workers<'py>(workers: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyIterator>> {
    // A model of pydantic iterates over its fields.
    let is_one = workers.is_instance_of::<PyString>() || workers.cast::<PyMapping>().is_ok() || is_model(workers)?;
    match workers.try_iter() {
        Ok(items) if !is_one => Ok(items),
        Ok(_) | Err(_) => {
            let found = workers.get_type().name()?;
            Err(PyTypeError::new_err(format!("workers is a {found}; accepted: a list of lcm.Worker or records")))
        }
    }
}

/// Reads many workers.
pub(crate) fn read_workers(workers: &Bound<'_, PyAny>) -> PyResult<Vec<lcm_sdk::Worker>> {
    iterate_workers(workers)?.enumerate().map(|(index, worker)| read_listed_worker(&worker?, index)).collect()
}

fn accept(name: &Bound<'_, PyAny>) -> PyResult<String> {
    let name: String = name.extract()?;
    if lcm_sdk::Worker::fields().any(|field| field == name) {
        return Ok(name);
    }
    let accepted = lcm_sdk::Worker::fields().collect::<Vec<_>>().join(", ");
    Err(PyTypeError::new_err(format!("a worker has no field {name:?}; accepted: {accepted}")))
}
