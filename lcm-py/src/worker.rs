//! `lcm.Worker`: an immutable record.

use std::fmt::Display;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use chrono::{DateTime, Utc};
use lcm_sdk::lifecycle::{Eligibility, eligibility};
use lcm_sdk::{InstanceId, Secret};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyMapping, PyString, PyTuple, PyType};
use serde::Deserialize as _;
use serde_json::{Map, Value};

use crate::convert::{to_python, to_value};
use crate::input::Input;
use crate::python::{desired_status, invalid_record, worker_status};

/// Names of the fields that the constructor accepts, as in the control plane's JSON.
const FIELDS: [&str; 30] = [
    "id",
    "status",
    "desired_status",
    "ec2_instance_id",
    "version",
    "name",
    "aws_region",
    "ip_address",
    "public_ip",
    "private_ip",
    "template_name",
    "instance_type",
    "ami_name",
    "aws_tags",
    "cml_username",
    "cml_password",
    "license",
    "is_idle_detection_enabled",
    "created_at",
    "updated_at",
    "terminated_at",
    "start_initiated_at",
    "last_activity_check_at",
    "drain_started_at",
    "scaled_down_at",
    "launch_generation",
    "launched_at",
    "launch_plan",
    "license_attempt",
    "metadata",
];

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
    #[pyo3(signature = (id, status, **fields))]
    fn new(id: &Bound<'_, PyAny>, status: &Bound<'_, PyAny>, fields: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let py = id.py();
        let record = PyDict::new(py);
        for (name, value) in fields.into_iter().flatten() {
            accept(&name)?;
            record.set_item(name, value)?;
        }
        record.set_item("id", id)?;
        record.set_item("status", status)?;
        read_worker(record.as_any()).map(|record| Self { record })
    }

    /// Parses a record of the control plane.
    ///
    /// >>> import lcm
    /// >>> worker = lcm.Worker.from_dict({"id": "w-1", "status": "RUNNING", "aws_instance_id": "i-1", "rack": 9})
    /// >>> worker.status.value, worker.ec2_instance_id, worker.to_dict()["rack"]
    /// ('running', 'i-1', 9)
    #[classmethod]
    fn from_dict(_class: &Bound<'_, PyType>, record: &Bound<'_, PyAny>) -> PyResult<Self> {
        read_worker(record).map(|record| Self { record })
    }

    /// Returns the record as a dict ready for JSON, without passwords and tokens.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &Value::Object(self.record.to_json()))
    }

    /// Returns a copy with other values in some fields.
    ///
    /// >>> import lcm
    /// >>> lcm.Worker("w-1", "running").replace(desired_status="terminated")
    /// Worker(id='w-1', status='running', desired_status='terminated', ec2_instance_id=None)
    #[pyo3(signature = (**fields))]
    fn replace(&self, py: Python<'_>, fields: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut record = self.everything();
        for (name, value) in fields.into_iter().flatten() {
            let name = accept(&name)?;
            let value = to_value(&value, &format!("worker.{name}"))?;
            record.insert(name, value);
        }
        let record = Value::Object(record).try_into().map_err(|error| invalid_record(py, &error))?;
        Ok(Self { record })
    }

    /// Unique id of the worker.
    #[getter]
    fn id(&self) -> &str {
        self.record.id.as_str()
    }

    /// Status of the worker (`WorkerStatus`).
    #[getter]
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        worker_status(py, self.record.status.as_str())
    }

    /// Status that the owner wants (`DesiredStatus`), or None.
    #[getter]
    fn desired_status<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.record.desired_status.map(|desired| desired_status(py, desired.as_str())).transpose()
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
    fn license<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, self.record.to_json().get("license").unwrap_or(&Value::Null))
    }

    /// Free-form data of the control plane.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &Value::Object(self.record.metadata.clone()))
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
    fn __match_args__() -> (&'static str, &'static str, &'static str) {
        ("id", "status", "desired_status")
    }

    fn __eq__<'py>(&self, py: Python<'py>, other: &Bound<'py, PyAny>) -> Bound<'py, PyAny> {
        match other.cast::<Self>() {
            Ok(other) => pyo3::types::PyBool::new(py, self.record == other.get().record).to_owned().into_any(),
            Err(_) => py.NotImplemented().into_bound(py),
        }
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

/// Reads an `lcm.Worker` or the control plane's dict.
pub(crate) fn read_worker(object: &Bound<'_, PyAny>) -> PyResult<lcm_sdk::Worker> {
    read_worker_at(object, "worker")
}

/// Reads an item of a list of workers. The index names it in errors, for records without an id too.
pub(crate) fn read_listed_worker(object: &Bound<'_, PyAny>, index: usize) -> PyResult<lcm_sdk::Worker> {
    read_worker_at(object, format_args!("workers[{index}]"))
}

fn read_worker_at(object: &Bound<'_, PyAny>, path: impl Display) -> PyResult<lcm_sdk::Worker> {
    if let Ok(worker) = object.cast::<Worker>() {
        return Ok(worker.get().record.clone());
    }
    let input = Input::read(object, path)?;
    // Deserializing keeps only the text of an error. A record that cannot be parsed is read again for the field.
    lcm_sdk::Worker::deserialize(&input)
        .or_else(|_| input.to_value()?.try_into().map_err(|error| invalid_record(object.py(), &error)))
}

/// Iterates over a list of workers. One worker alone is refused: a dict would be iterated over by its keys.
///
/// # Errors
/// `TypeError` for a value that is no list of workers.
pub(crate) fn iterate_workers<'py>(workers: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyIterator>> {
    let is_one = workers.is_instance_of::<PyString>() || workers.cast::<PyMapping>().is_ok();
    match workers.try_iter() {
        Ok(items) if !is_one => Ok(items),
        Ok(_) | Err(_) => {
            let found = workers.get_type().name()?;
            Err(PyTypeError::new_err(format!("workers is a {found}; accepted: a list of lcm.Worker or dicts")))
        }
    }
}

/// Reads many workers.
pub(crate) fn read_workers(workers: &Bound<'_, PyAny>) -> PyResult<Vec<lcm_sdk::Worker>> {
    iterate_workers(workers)?.enumerate().map(|(index, worker)| read_listed_worker(&worker?, index)).collect()
}

fn accept(name: &Bound<'_, PyAny>) -> PyResult<String> {
    let name: String = name.extract()?;
    if FIELDS.contains(&name.as_str()) {
        return Ok(name);
    }
    let accepted = FIELDS.join(", ");
    Err(PyTypeError::new_err(format!("a worker has no field {name:?}; accepted: {accepted}")))
}
