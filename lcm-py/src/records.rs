//! Reading many records of a control plane at once: straight from its dicts, as long as they are ordinary.
//!
//! # Guarantees
//! - Only what a decision can depend on is read, and it is read as `lcm.Worker` reads it: `tests/python/test_lcm_fleet.py`
//!   compares the two. A field that no decision looks at may hold anything.
//! - Whatever of that is not ordinary (a value of another type, a licence operation, a launch under way, a missing id) is
//!   read the long way, and gives the same errors.

use chrono::{DateTime, Utc};
use lcm_sdk::lifecycle::time;
use lcm_sdk::{Ec2State, InstanceId, WorkerId, WorkerStatus};
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
    State(Ec2State),
}

/// What the decision about a record depends on.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Substance {
    /// On its status, the wish, its instance and the state of that, and on nothing else.
    Standard,
    /// On more than that.
    Own,
}

/// How much of a record a decision can depend on, besides its status, the wish and its instance.
enum Scope {
    /// EC2 shows what the record says, and neither has anything more to tell.
    AtRest,
    /// In service: whether its licence, its address and its drain are as they should be.
    InService,
    /// Settled in a status that EC2 may disagree with.
    Settled,
    /// On its way up: its addresses, and how long ago it set out.
    ComingUp,
    /// Anything, while something else is under way, and where an instance is missing.
    Whole,
}

fn scope(worker: &lcm_sdk::Worker, instance: Option<&Bound<'_, PyString>>, known: Known) -> Scope {
    let (Known::State(state), Some(_)) = (known, instance) else { return Scope::Whole };
    match (worker.status, state) {
        (WorkerStatus::Running, Ec2State::Running) => Scope::InService,
        (WorkerStatus::Stopped, Ec2State::Stopped)
        | (WorkerStatus::Stopping, Ec2State::Stopping)
        | (WorkerStatus::Terminating, Ec2State::ShuttingDown)
        | (WorkerStatus::Terminated, Ec2State::Terminated) => Scope::AtRest,
        (
            WorkerStatus::Running
            | WorkerStatus::Stopping
            | WorkerStatus::Stopped
            | WorkerStatus::Terminating
            | WorkerStatus::Terminated
            | WorkerStatus::Failed
            | WorkerStatus::Unknown,
            _,
        ) => Scope::Settled,
        (WorkerStatus::Provisioning | WorkerStatus::Starting, Ec2State::Pending | Ec2State::Running) => Scope::ComingUp,
        (WorkerStatus::Pending | WorkerStatus::Provisioning | WorkerStatus::Starting | WorkerStatus::Draining, _) => {
            Scope::Whole
        }
    }
}

/// Reads one record after the other, as far as decisions go, over what was read before.
pub(crate) struct Reader {
    keys: Keys,
    dicts: usize,
    worker: lcm_sdk::Worker,
    holds: Holds,
}

/// What the worker that was read last holds besides its status, the wish and its instance.
#[derive(Clone, Copy, PartialEq)]
enum Holds {
    /// Nothing.
    Nothing,
    /// Some of the fields of an ordinary record.
    Fields,
    /// Whatever there is.
    Anything,
}

impl Reader {
    pub(crate) fn new(py: Python<'_>) -> Self {
        Self { keys: Keys::new(py), dicts: 0, worker: nobody(), holds: Holds::Nothing }
    }

    /// The worker that was read last.
    pub(crate) fn worker(&self) -> &lcm_sdk::Worker {
        &self.worker
    }

    /// Reads an `lcm.Worker` or the control plane's dict, and gives its id.
    pub(crate) fn read(&mut self, record: &Bound<'_, PyAny>, known: Known) -> PyResult<(Py<PyString>, Substance)> {
        if let Ok(dict) = record.cast_exact::<PyDict>() {
            self.dicts += 1;
            // Not worth it for one.
            if self.dicts == 2 {
                self.keys.learn(dict);
            }
            if self.holds == Holds::Anything {
                (self.worker, self.holds) = (nobody(), Holds::Nothing);
            }
            if let Some(read) = self.ordinary(dict, known) {
                return Ok(read);
            }
        }
        (self.worker, self.holds) = (read_worker(record)?, Holds::Anything);
        Ok((PyString::new(record.py(), self.worker.id.as_str()).unbind(), Substance::Own))
    }

    /// Reads a record that holds nothing out of the ordinary. `None` means: to be read the long way.
    fn ordinary(&mut self, record: &Bound<'_, PyDict>, known: Known) -> Option<(Py<PyString>, Substance)> {
        let (py, fields) = (record.py(), Fields(record));
        let Self { keys, worker, .. } = self;
        worker.status = fields.text(keys.status.bind(py), |word| word.parse())??.ok()?;
        worker.desired_status = fields.text(keys.desired_status.bind(py), |word| word.parse())?.transpose().ok()?;
        let id = fields.given(keys.id.bind(py))?.cast_into_exact::<PyString>().ok()?;
        text(&id, |_| ())??;
        let instance = fields.instance(keys)?;
        let scope = scope(worker, instance.as_ref(), known);
        if let Scope::AtRest = scope {
            return Some((id.unbind(), self.standard()));
        }
        let metadata = fields.given(keys.metadata.bind(py));
        let metadata = metadata.as_ref().map(|metadata| metadata.cast_exact::<PyDict>()).transpose().ok()?;
        let notes = Notes { fields: &fields, metadata: metadata.filter(|metadata| !metadata.is_empty()) };
        if let Some(license) = fields.given(keys.license.bind(py)) {
            nothing_to_do(license.cast_exact().ok()?, keys)?;
        }
        if let Scope::InService = scope
            && notes.given(keys.drain_started_at.bind(py))?.is_none()
            // An address that EC2 shows as the record has it is looked at only if the record has another one besides.
            && fields.given(keys.ip_address.bind(py)).is_none()
        {
            return Some((id.unbind(), self.standard()));
        }
        self.holds = Holds::Fields;
        name_instance(worker, instance.as_ref())?;
        worker.notes.drain_started_at = notes.moment(keys.drain_started_at.bind(py))?;
        addresses(&fields, keys, worker)?;
        match scope {
            Scope::AtRest | Scope::InService | Scope::Settled => forget_the_rest(worker),
            Scope::ComingUp => {
                forget_the_rest(worker);
                beginnings(&notes, keys, worker)?;
            }
            Scope::Whole => {
                worker.id = text(&id, |id| WorkerId::from(id))??;
                beginnings(&notes, keys, worker)?;
                the_rest(&fields, &notes, worker)?;
            }
        }
        Some((id.unbind(), Substance::Own))
    }

    /// Reads the instance of a standard record, which counts only now and then.
    pub(crate) fn name_instance(&mut self, record: &Bound<'_, PyAny>) {
        if let Ok(record) = record.cast_exact::<PyDict>() {
            let instance = Fields(record).instance(&self.keys).flatten();
            // It was text a moment ago, and still is.
            let _ = name_instance(&mut self.worker, instance.as_ref());
        }
    }

    /// Nothing else counts of the worker that is being read, and nothing else of an earlier one may be left in it.
    fn standard(&mut self) -> Substance {
        if self.holds != Holds::Nothing {
            forget_service(&mut self.worker);
            forget_the_rest(&mut self.worker);
            self.holds = Holds::Nothing;
        }
        Substance::Standard
    }
}

fn nobody() -> lcm_sdk::Worker {
    lcm_sdk::Worker::new(String::new(), WorkerStatus::Unknown)
}

/// Declares the names of fields that every record is asked for.
macro_rules! keys {
    ($($name:ident),+ $(,)?) => {
        /// The names of the fields that every record is asked for, as objects. Records of one answer share theirs, and a
        /// key that is the very same object is found without comparing text.
        struct Keys { $( $name: Py<PyString> ),+ }

        impl Keys {
            fn new(py: Python<'_>) -> Self {
                Self { $( $name: intern!(py, stringify!($name)).clone().unbind() ),+ }
            }

            /// Takes the keys that a record has.
            fn learn(&mut self, record: &Bound<'_, PyDict>) {
                for (key, value) in record {
                    let Ok(key) = key.cast_into_exact::<PyString>() else { continue };
                    match key.to_str() {
                        $( Ok(stringify!($name)) => self.$name = key.unbind(), )+
                        Ok(_) | Err(_) => {}
                    }
                    if let Ok(inner) = value.cast_exact::<PyDict>() {
                        self.learn(inner);
                    }
                }
            }
        }
    };
}
keys!(
    status,
    desired_status,
    id,
    ec2_instance_id,
    metadata,
    license,
    pending_operation,
    drain_started_at,
    ip_address,
    public_ip,
    private_ip,
    created_at,
    updated_at,
    start_initiated_at,
    launched_at,
);

fn name_instance(worker: &mut lcm_sdk::Worker, instance: Option<&Bound<'_, PyString>>) -> Option<()> {
    let Some(instance) = instance else {
        worker.ec2_instance_id = None;
        return Some(());
    };
    let mut room = worker.ec2_instance_id.take().map_or_else(String::new, String::from);
    instance.to_str().ok()?.clone_into(&mut room);
    worker.ec2_instance_id = Some(InstanceId::from(room));
    Some(())
}

fn addresses(fields: &Fields<'_, '_>, keys: &Keys, worker: &mut lcm_sdk::Worker) -> Option<()> {
    let py = fields.0.py();
    fields.text_over(keys.ip_address.bind(py), &mut worker.ip_address)?;
    fields.text_over(keys.public_ip.bind(py), &mut worker.public_ip)?;
    fields.text_over(keys.private_ip.bind(py), &mut worker.private_ip)
}

fn forget_service(worker: &mut lcm_sdk::Worker) {
    (worker.ip_address, worker.public_ip, worker.private_ip) = (None, None, None);
    worker.notes.drain_started_at = None;
}

/// What a worker that is settled is not asked about.
fn forget_the_rest(worker: &mut lcm_sdk::Worker) {
    (worker.name, worker.aws_region, worker.template_name, worker.ami_name) = (None, None, None, None);
    (worker.created_at, worker.updated_at, worker.start_initiated_at) = (None, None, None);
    (worker.last_activity_check_at, worker.is_idle_detection_enabled) = (None, true);
    (worker.notes.scaled_down_at, worker.notes.launched_at, worker.notes.license_attempt) = (None, None, None);
}

/// When what is under way was begun.
fn beginnings(notes: &Notes<'_, '_>, keys: &Keys, worker: &mut lcm_sdk::Worker) -> Option<()> {
    let (py, fields) = (notes.fields.0.py(), notes.fields);
    worker.created_at = fields.moment(keys.created_at.bind(py))?;
    worker.updated_at = fields.moment(keys.updated_at.bind(py))?;
    worker.start_initiated_at = fields.moment(keys.start_initiated_at.bind(py))?;
    worker.notes.launched_at = notes.moment(keys.launched_at.bind(py))?;
    Some(())
}

fn the_rest(fields: &Fields<'_, '_>, notes: &Notes<'_, '_>, worker: &mut lcm_sdk::Worker) -> Option<()> {
    let py = fields.0.py();
    worker.name = fields.text(intern!(py, "name"), str::to_owned)?;
    worker.aws_region = fields.text(intern!(py, "aws_region"), str::to_owned)?;
    worker.template_name = fields.text(intern!(py, "template_name"), str::to_owned)?;
    worker.ami_name = fields.text(intern!(py, "ami_name"), str::to_owned)?;
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
    worker.notes.license_attempt = notes.text(intern!(py, "license_attempt"))?;
    let launching =
        notes.given(intern!(py, "launch_generation"))?.is_some() || notes.given(intern!(py, "launch_plan"))?.is_some();
    (!launching).then_some(())
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

    /// Text over what was there before, in its room.
    fn text_over(&self, field: &Bound<'py, PyString>, over: &mut Option<String>) -> Option<()> {
        let Some(value) = self.given(field) else {
            *over = None;
            return Some(());
        };
        let text = value.cast::<PyString>().ok()?.to_str().ok()?;
        match over {
            _ if text.is_empty() => *over = None,
            Some(room) => text.clone_into(room),
            None => *over = Some(text.to_owned()),
        }
        Some(())
    }

    /// The id of its instance, by its name or the one it had before.
    fn instance(&self, keys: &Keys) -> Option<Option<Bound<'py, PyString>>> {
        let py = self.0.py();
        for name in [keys.ec2_instance_id.bind(py), intern!(py, "aws_instance_id")] {
            if let Some(given) = self.given(name) {
                let id = given.cast_into::<PyString>().ok()?;
                if text(&id, |_| ())?.is_some() {
                    return Some(Some(id));
                }
            }
        }
        Some(None)
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
fn nothing_to_do(license: &Bound<'_, PyDict>, keys: &Keys) -> Option<()> {
    let operation = license.get_item(keys.pending_operation.bind(license.py())).ok()?;
    operation.is_none_or(|operation| operation.is_none()).then_some(())
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
