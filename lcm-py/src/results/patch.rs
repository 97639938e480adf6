//! The change that a control plane written in Python writes to a record.

use chrono::{DateTime, Utc};
use lcm_sdk::ports::Fence;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::decision::changes_to_python;
use crate::annotation::{Annotated, FrozenMap, MaybeFrozenMap, Status};
use crate::convert::to_frozen;
use crate::port_results::json;
use crate::python::{plain, worker_status};
use crate::worker::{Worker, read_worker};

/// Names of the fields, in the order in which they are shown.
const FIELDS: [&str; 8] = ["worker_id", "expected_version", "status", "changes", "termination", "drain", "at", "fence"];

/// Changes to a worker's record, conditional on the version that was read.
///
/// LCM creates patches and passes them to `ControlPlane.write`.
#[pyclass(frozen, module = "lcm.ports")]
pub(crate) struct Patch {
    patch: lcm_sdk::Patch,
    fence: Fence,
}

impl Patch {
    pub(crate) fn new(patch: lcm_sdk::Patch, fence: Fence) -> Self {
        Self { patch, fence }
    }
}

#[pymethods]
impl Patch {
    /// Id of the worker whose record changes.
    #[getter]
    fn worker_id(&self) -> &str {
        self.patch.worker_id.as_str()
    }

    /// Version that was read. If the record has another one, raise `PortError("…", "conflict")`.
    #[getter]
    fn expected_version(&self) -> Option<u64> {
        self.patch.expected_version
    }

    /// New status (`WorkerStatus`), or None if the status stays.
    #[getter]
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Option<Annotated<'py, Status>>> {
        self.patch.status.map(|status| Ok(worker_status(py, status.as_str())?.into())).transpose()
    }

    /// Other fields that change, by their names on the record; None clears a field.
    ///
    /// `license_report` is not a field of the record: it reports the progress of a license operation.
    #[getter]
    fn changes<'py>(&self, py: Python<'py>) -> PyResult<Annotated<'py, FrozenMap>> {
        Ok(changes_to_python(py, Some(&self.patch.changes))?.into())
    }

    /// `reason` and `terminated_by` if the new status is terminated, else None. The worker's sessions end too.
    #[getter]
    fn termination<'py>(&self, py: Python<'py>) -> PyResult<Annotated<'py, MaybeFrozenMap>> {
        Ok(to_frozen(py, &json(&self.patch.termination))?.into())
    }

    /// `reason` and `requested_by` of a drain that begins or is canceled, else None.
    #[getter]
    fn drain<'py>(&self, py: Python<'py>) -> PyResult<Annotated<'py, MaybeFrozenMap>> {
        Ok(to_frozen(py, &json(&self.patch.drain))?.into())
    }

    /// Time of the reconcile.
    #[getter]
    fn at(&self) -> DateTime<Utc> {
        self.patch.at
    }

    /// Fencing token of the leader, or None without an election. A smaller token than the record has seen belongs to
    /// a former leader.
    #[getter]
    fn fence(&self) -> Option<i64> {
        self.fence.0
    }

    /// Returns the record after this patch is written, as an `lcm.Worker`. Its version stays: the control plane raises it.
    ///
    /// `record` is an `lcm.Worker` or the control plane's dict. `to_dict()` of the result leaves out passwords and
    /// tokens: keep the worker itself, or write `changes` to a record of your own.
    ///
    /// Raises `lcm.InvalidRecord` for a record that cannot be parsed.
    #[pyo3(signature = (record: "AnyWorker"))]
    fn apply_to(&self, record: &Bound<'_, PyAny>) -> PyResult<Worker> {
        Ok(Worker { record: self.patch.apply_to(&read_worker(record)?) })
    }

    /// Returns the fields as a dict ready for JSON.
    #[pyo3(signature = () -> "dict[str, Any]")]
    fn to_dict<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(slf.py());
        for field in FIELDS {
            dict.set_item(field, plain(&slf.getattr(field)?)?)?;
        }
        Ok(dict)
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.patch == other.patch && self.fence == other.fence
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let shown = |field: &str| Ok(format!("{field}={}", slf.getattr(field)?.repr()?));
        let fields = FIELDS.iter().map(|field| shown(field)).collect::<PyResult<Vec<_>>>()?;
        Ok(format!("Patch({})", fields.join(", ")))
    }
}
