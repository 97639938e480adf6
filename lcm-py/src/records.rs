//! Reading many records of a control plane at once: straight from its dicts, as long as they are ordinary.
//!
//! # Guarantees
//! - Only what a decision can depend on is copied; `tests/python/test_lcm_decide.py` compares with the whole record.
//! - Whatever is not ordinary (a value of another type, a licence operation, a launch under way, a missing id) is read
//!   the long way, as `lcm.Worker` is, and gives the same errors.

use chrono::{DateTime, Utc};
use lcm_sdk::WorkerStatus;
use lcm_sdk::core::time;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyString};

use crate::worker::{Worker, read_worker};

/// What a field of a record is.
#[derive(Clone, Copy)]
enum Field {
    Id,
    Status,
    DesiredStatus,
    InstanceId,
    InstanceAlias,
    Name,
    Region,
    IpAddress,
    PublicIp,
    PrivateIp,
    TemplateName,
    AmiName,
    IdleDetection,
    Version,
    /// Text that no decision looks at.
    Unused,
    Moment(Moment),
    Note(Note),
    /// Free-form, with the notes that have no field of their own.
    Metadata,
    License,
    /// An object that is ordinary only if it is empty.
    Rare,
    /// Not ours.
    Unknown,
}

#[derive(Clone, Copy)]
enum Moment {
    Created,
    Updated,
    StartInitiated,
    LastActivityCheck,
    Terminated,
}

/// What LCM keeps on a record, in a field of its own or in the metadata.
#[derive(Clone, Copy)]
enum Note {
    DrainStarted,
    ScaledDown,
    Launched,
    /// One that makes a record less than ordinary.
    Rare,
}

impl Field {
    fn named(name: &str) -> Self {
        match name {
            "id" => Self::Id,
            "status" => Self::Status,
            "desired_status" => Self::DesiredStatus,
            "ec2_instance_id" => Self::InstanceId,
            "aws_instance_id" => Self::InstanceAlias,
            "name" => Self::Name,
            "aws_region" => Self::Region,
            "ip_address" => Self::IpAddress,
            "public_ip" => Self::PublicIp,
            "private_ip" => Self::PrivateIp,
            "template_name" => Self::TemplateName,
            "ami_name" => Self::AmiName,
            "is_idle_detection_enabled" => Self::IdleDetection,
            "version" => Self::Version,
            "created_at" => Self::Moment(Moment::Created),
            "updated_at" => Self::Moment(Moment::Updated),
            "start_initiated_at" => Self::Moment(Moment::StartInitiated),
            "last_activity_check_at" => Self::Moment(Moment::LastActivityCheck),
            "instance_type" | "cml_username" | "cml_password" | "license_status" | "license_token" => Self::Unused,
            "terminated_at" => Self::Moment(Moment::Terminated),
            "aws_tags" => Self::Rare,
            "metadata" => Self::Metadata,
            "license" => Self::License,
            other => Note::named(other).map_or(Self::Unknown, Self::Note),
        }
    }
}

impl Note {
    fn named(name: &str) -> Option<Self> {
        match name {
            "drain_started_at" => Some(Self::DrainStarted),
            "scaled_down_at" => Some(Self::ScaledDown),
            "launched_at" => Some(Self::Launched),
            "launch_generation" | "launch_plan" | "license_attempt" => Some(Self::Rare),
            _ => None,
        }
    }
}

/// Reads records one after the other, and learns the order of their fields on the way.
#[derive(Default)]
pub(crate) struct Records {
    shape: Vec<(Py<PyString>, Field)>,
}

impl Records {
    /// Reads an `lcm.Worker` or the control plane's dict, as far as decisions go.
    pub(crate) fn read(&mut self, record: &Bound<'_, PyAny>) -> PyResult<lcm_sdk::Worker> {
        if let Ok(worker) = record.cast::<Worker>() {
            return Ok(worker.get().record.clone());
        }
        let ordinary = record.cast_exact::<PyDict>().ok().and_then(|dict| self.ordinary(dict));
        ordinary.map_or_else(|| read_worker(record), Ok)
    }

    fn ordinary(&mut self, record: &Bound<'_, PyDict>) -> Option<lcm_sdk::Worker> {
        let mut worker = lcm_sdk::Worker::new(String::new(), WorkerStatus::Unknown);
        let mut status = None;
        let (mut alias, mut metadata, mut own_notes) = (None, None, 0_u8);
        for (place, (key, value)) in record.iter().enumerate() {
            let field = self.field(place, key)?;
            if let Field::Note(note) = field {
                own_notes |= 1 << note as u8;
            }
            if value.is_none() {
                continue;
            }
            match field {
                Field::Unknown => {}
                Field::Unused => drop(value.cast::<PyString>().ok()?),
                Field::Id => worker.id = text(&value)??.into(),
                Field::Status => status = Some(text(&value)??.parse().ok()?),
                Field::DesiredStatus => worker.desired_status = word(&value)?,
                Field::InstanceId => worker.instance_id = owned(&value)?.map(Into::into),
                Field::InstanceAlias => alias = Some(value),
                Field::Name => worker.name = owned(&value)?,
                Field::Region => worker.aws_region = owned(&value)?,
                Field::IpAddress => worker.ip_address = owned(&value)?,
                Field::PublicIp => worker.public_ip = owned(&value)?,
                Field::PrivateIp => worker.private_ip = owned(&value)?,
                Field::TemplateName => worker.template_name = owned(&value)?,
                Field::AmiName => worker.ami_name = owned(&value)?,
                Field::IdleDetection => worker.is_idle_detection_enabled = value.cast::<PyBool>().ok()?.is_true(),
                Field::Version => worker.version = Some(value.cast_exact::<PyInt>().ok()?.extract().ok()?),
                Field::Moment(Moment::Created) => worker.created_at = moment(&value)?,
                Field::Moment(Moment::Updated) => worker.updated_at = moment(&value)?,
                Field::Moment(Moment::StartInitiated) => worker.start_initiated_at = moment(&value)?,
                Field::Moment(Moment::LastActivityCheck) => worker.last_activity_check_at = moment(&value)?,
                Field::Moment(Moment::Terminated) => worker.terminated_at = moment(&value)?,
                Field::Note(note) => take_note(&mut worker, note, &value)?,
                Field::Metadata => metadata = Some(value),
                Field::License => ordinary_license(&value)?,
                Field::Rare => value.cast_exact::<PyDict>().ok().filter(|object| object.is_empty()).map(drop)?,
            }
        }
        worker.status = status?;
        if worker.id.as_str().is_empty() {
            return None;
        }
        if let Some(alias) = alias {
            let alias = owned(&alias)?;
            worker.instance_id = worker.instance_id.or_else(|| alias.map(Into::into));
        }
        if let Some(metadata) = metadata {
            take_notes(&mut worker, own_notes, metadata.cast_exact().ok()?)?;
        }
        Some(worker)
    }

    /// What the field at this place is. Records of one fleet have the same fields in the same order, most often even
    /// the very same keys.
    fn field(&mut self, place: usize, key: Bound<'_, PyAny>) -> Option<Field> {
        if let Some((known, field)) = self.shape.get(place)
            && known.is(&key)
        {
            return Some(*field);
        }
        let key = key.cast_into::<PyString>().ok()?;
        let field = Field::named(key.to_str().ok()?);
        let seen = (key.unbind(), field);
        match self.shape.get_mut(place) {
            Some(other) => *other = seen,
            // The first record has as many fields as places that were seen.
            None => self.shape.push(seen),
        }
        Some(field)
    }
}

/// Notes in the metadata, but for those that have a field of their own.
fn take_notes(worker: &mut lcm_sdk::Worker, own: u8, metadata: &Bound<'_, PyDict>) -> Option<()> {
    for (key, value) in metadata.iter() {
        let Some(note) = Note::named(key.cast::<PyString>().ok()?.to_str().ok()?) else { continue };
        // Rare notes share a bit: which of them the record has is found out the long way.
        let is_own = own & (1 << note as u8) != 0 && !matches!(note, Note::Rare);
        if !is_own && !value.is_none() {
            take_note(worker, note, &value)?;
        }
    }
    Some(())
}

fn take_note(worker: &mut lcm_sdk::Worker, note: Note, value: &Bound<'_, PyAny>) -> Option<()> {
    match note {
        Note::DrainStarted => worker.notes.drain_started_at = moment(value)?,
        Note::ScaledDown => worker.notes.scaled_down_at = moment(value)?,
        Note::Launched => worker.notes.launched_at = moment(value)?,
        Note::Rare => return None,
    }
    Some(())
}

/// A licence that nothing is to be done about.
fn ordinary_license(license: &Bound<'_, PyAny>) -> Option<()> {
    for (key, value) in license.cast_exact::<PyDict>().ok()?.iter() {
        let ordinary = match key.cast::<PyString>().ok()?.to_str().ok()? {
            "status" | "token" | "pending_token" => value.is_none() || value.is_instance_of::<PyString>(),
            "pending_operation" => value.is_none(),
            "operation_in_progress" => value.is_none() || value.cast::<PyBool>().is_ok_and(|on| !on.is_true()),
            _ => true,
        };
        if !ordinary {
            return None;
        }
    }
    Some(())
}

/// Text; empty text is none at all.
fn text<'a>(value: &'a Bound<'_, PyAny>) -> Option<Option<&'a str>> {
    Some(Some(value.cast::<PyString>().ok()?.to_str().ok()?).filter(|text| !text.is_empty()))
}

fn owned(value: &Bound<'_, PyAny>) -> Option<Option<String>> {
    Some(text(value)?.map(str::to_owned))
}

fn word<T: std::str::FromStr>(value: &Bound<'_, PyAny>) -> Option<Option<T>> {
    text(value)?.map(str::parse).transpose().ok()
}

fn moment(value: &Bound<'_, PyAny>) -> Option<Option<DateTime<Utc>>> {
    text(value)?.map_or(Some(None), |text| time::parse(text).map(Some))
}
