//! Reading many records of a control plane at once: straight from its dicts, as long as they are ordinary.
//!
//! # Guarantees
//! - Only what a decision can depend on is read, and it is read as `lcm.Worker` reads it: `tests/python/test_lcm_fleet.py`
//!   compares the two. A field that no decision looks at may hold anything.
//! - Whatever is not ordinary (a value of another type, a licence operation, a launch under way, a missing id) is read
//!   the long way, and gives the same errors.

use chrono::{DateTime, Utc};
use lcm_sdk::core::time;
use lcm_sdk::{WorkerId, WorkerStatus};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyString};

use crate::worker::read_worker;

/// What will be known of a worker besides its record.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Known {
    /// Any part of its world.
    Anything,
    /// Only that its instance exists, and its state.
    State,
}

/// Reads an `lcm.Worker` or the control plane's dict over what was read before, as far as decisions go.
pub(crate) fn read(record: &Bound<'_, PyAny>, known: Known, into: &mut Reading) -> PyResult<()> {
    if let Ok(dict) = record.cast_exact::<PyDict>() {
        if !into.is_ordinary {
            *into = Reading::default();
        }
        if ordinary(dict, known, &mut into.worker).is_some() {
            return Ok(());
        }
    }
    *into = Reading { worker: read_worker(record)?, is_ordinary: false };
    Ok(())
}

/// Reads a record that holds nothing out of the ordinary. `None` means: to be read the long way.
fn ordinary(record: &Bound<'_, PyDict>, known: Known, worker: &mut lcm_sdk::Worker) -> Option<()> {
    let py = record.py();
    let fields = Fields(record);
    worker.status = fields.text(intern!(py, "status"), |word| word.parse())??.ok()?;
    worker.desired_status = fields.text(intern!(py, "desired_status"), |word| word.parse())?.transpose().ok()?;
    worker.id = fields.text(intern!(py, "id"), |id| WorkerId::from(id))??;
    worker.instance_id = fields.text(intern!(py, "ec2_instance_id"), |id| id.into())?;
    if worker.instance_id.is_none() {
        worker.instance_id = fields.text(intern!(py, "aws_instance_id"), |id| id.into())?;
    }
    fields.text_over(intern!(py, "ip_address"), &mut worker.ip_address)?;
    fields.text_over(intern!(py, "public_ip"), &mut worker.public_ip)?;
    fields.text_over(intern!(py, "private_ip"), &mut worker.private_ip)?;
    if let Some(license) = fields.given(intern!(py, "license")) {
        nothing_to_do(license.cast_exact().ok()?)?;
    }
    let metadata = fields.given(intern!(py, "metadata"));
    let metadata = metadata.as_ref().map(|metadata| metadata.cast_exact::<PyDict>()).transpose().ok()?;
    let notes = Notes { fields: &fields, metadata: metadata.filter(|metadata| !metadata.is_empty()) };
    worker.notes.drain_started_at = notes.moment(intern!(py, "drain_started_at"))?;

    // How long ago something was begun counts while it is under way, and where an instance is missing.
    let is_settled = match worker.status {
        WorkerStatus::Running
        | WorkerStatus::Stopping
        | WorkerStatus::Stopped
        | WorkerStatus::Terminating
        | WorkerStatus::Terminated
        | WorkerStatus::Failed
        | WorkerStatus::Unknown => known == Known::State && worker.instance_id.is_some(),
        WorkerStatus::Pending | WorkerStatus::Provisioning | WorkerStatus::Starting | WorkerStatus::Draining => false,
    };
    if is_settled {
        forget_the_rest(worker);
        return Some(());
    }
    the_rest(&fields, &notes, worker)
}

/// What a worker that is settled is not asked about.
fn forget_the_rest(worker: &mut lcm_sdk::Worker) {
    (worker.name, worker.aws_region, worker.template_name, worker.ami_name) = (None, None, None, None);
    (worker.created_at, worker.updated_at, worker.start_initiated_at) = (None, None, None);
    (worker.last_activity_check_at, worker.is_idle_detection_enabled) = (None, true);
    (worker.notes.scaled_down_at, worker.notes.launched_at, worker.notes.license_attempt) = (None, None, None);
}

fn the_rest(fields: &Fields<'_, '_>, notes: &Notes<'_, '_>, worker: &mut lcm_sdk::Worker) -> Option<()> {
    let py = fields.0.py();
    worker.name = fields.text(intern!(py, "name"), str::to_owned)?;
    worker.aws_region = fields.text(intern!(py, "aws_region"), str::to_owned)?;
    worker.template_name = fields.text(intern!(py, "template_name"), str::to_owned)?;
    worker.ami_name = fields.text(intern!(py, "ami_name"), str::to_owned)?;
    worker.created_at = fields.moment(intern!(py, "created_at"))?;
    worker.updated_at = fields.moment(intern!(py, "updated_at"))?;
    worker.start_initiated_at = fields.moment(intern!(py, "start_initiated_at"))?;
    worker.last_activity_check_at = fields.moment(intern!(py, "last_activity_check_at"))?;
    let idle_detection = fields.given(intern!(py, "is_idle_detection_enabled"));
    worker.is_idle_detection_enabled =
        idle_detection.map_or(Some(true), |on| Some(on.cast::<PyBool>().ok()?.is_true()))?;
    if let Some(version) = fields.given(intern!(py, "version")) {
        version.cast_exact::<PyInt>().ok()?.extract::<u64>().ok()?;
    }
    if let Some(tags) = fields.given(intern!(py, "aws_tags")) {
        tags.cast_exact::<PyDict>().ok().filter(|tags| tags.is_empty())?;
    }
    worker.notes.scaled_down_at = notes.moment(intern!(py, "scaled_down_at"))?;
    worker.notes.launched_at = notes.moment(intern!(py, "launched_at"))?;
    worker.notes.license_attempt = notes.text(intern!(py, "license_attempt"))?;
    let launching =
        notes.given(intern!(py, "launch_generation"))?.is_some() || notes.given(intern!(py, "launch_plan"))?.is_some();
    (!launching).then_some(())
}

/// A record as far as decisions go. Read over again, it keeps its room.
pub(crate) struct Reading {
    pub(crate) worker: lcm_sdk::Worker,
    /// Only the fields of an ordinary record are set, so that the next one sets them all.
    is_ordinary: bool,
}

impl Default for Reading {
    fn default() -> Self {
        Self { worker: lcm_sdk::Worker::new(String::new(), WorkerStatus::Unknown), is_ordinary: true }
    }
}

/// A record, field by field. `None` means: to be read the long way.
struct Fields<'a, 'py>(&'a Bound<'py, PyDict>);

impl<'py> Fields<'_, 'py> {
    fn given(&self, field: &Bound<'py, PyString>) -> Option<Bound<'py, PyAny>> {
        self.0.get_item(field).ok().flatten().filter(|value| !value.is_none())
    }

    /// Text; empty text is none at all.
    fn text<T>(&self, field: &Bound<'py, PyString>, read: impl FnOnce(&str) -> T) -> Option<Option<T>> {
        self.given(field).map_or(Some(None), |value| text(&value, read))
    }

    fn text_over(&self, field: &Bound<'py, PyString>, over: &mut Option<String>) -> Option<()> {
        let written = self.text(field, |text| match over {
            Some(room) => {
                room.clear();
                room.push_str(text);
            }
            None => *over = Some(text.to_owned()),
        })?;
        if written.is_none() {
            *over = None;
        }
        Some(())
    }

    fn moment(&self, field: &Bound<'py, PyString>) -> Option<Option<DateTime<Utc>>> {
        self.given(field).map_or(Some(None), |value| moment(&value))
    }
}

/// Each note is in a field of its own if the record has it, be it as null, or else in the metadata.
struct Notes<'a, 'py> {
    fields: &'a Fields<'a, 'py>,
    metadata: Option<&'a Bound<'py, PyDict>>,
}

impl<'py> Notes<'_, 'py> {
    fn given(&self, field: &Bound<'py, PyString>) -> Option<Option<Bound<'py, PyAny>>> {
        let found = match (self.fields.0.get_item(field).ok()?, self.metadata) {
            (None, Some(metadata)) => metadata.get_item(field).ok()?,
            (found, _) => found,
        };
        Some(found.filter(|value| !value.is_none()))
    }

    fn moment(&self, field: &Bound<'py, PyString>) -> Option<Option<DateTime<Utc>>> {
        self.given(field)?.map_or(Some(None), |value| moment(&value))
    }

    fn text(&self, field: &Bound<'py, PyString>) -> Option<Option<String>> {
        self.given(field)?.map_or(Some(None), |value| text(&value, str::to_owned))
    }
}

/// A licence that nothing is to be done about.
fn nothing_to_do(license: &Bound<'_, PyDict>) -> Option<()> {
    let py = license.py();
    let missing = |key| Some(license.get_item(key).ok()?.is_none_or(|value| value.is_none()));
    if !missing(intern!(py, "pending_operation"))? {
        return None;
    }
    match license.get_item(intern!(py, "operation_in_progress")).ok()? {
        Some(on) if !on.is_none() => (!on.cast::<PyBool>().ok()?.is_true()).then_some(()),
        Some(_) | None => Some(()),
    }
}

fn text<T>(value: &Bound<'_, PyAny>, read: impl FnOnce(&str) -> T) -> Option<Option<T>> {
    let text = value.cast::<PyString>().ok()?.to_str().ok()?;
    Some(if text.is_empty() { None } else { Some(read(text)) })
}

fn moment(value: &Bound<'_, PyAny>) -> Option<Option<DateTime<Utc>>> {
    text(value, time::parse).map(|read| match read {
        Some(Some(moment)) => Some(Some(moment)),
        Some(None) => None,
        None => Some(None),
    })?
}
