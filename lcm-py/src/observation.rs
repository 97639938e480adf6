//! What was seen of a worker's world, read from Python once and used by many decisions.

use std::collections::BTreeMap;

use lcm_sdk::lifecycle::{CloudMetrics, CmlMetrics, IdleReport, ParseEnumError, RegistrationStatus};
use lcm_sdk::{CallFailure, Ec2State, FailureKind, FleetView, Image, Instance, Lookup, Session, Template, Timestamp};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use serde::Deserialize;
use serde_json::Value;

use crate::convert::{to_moment, to_value};
use crate::python::{absent_class, call_failure_class, invalid_argument, invalid_record, is_a};

/// The native twin of `lcm.Observation`.
#[pyclass(frozen, module = "lcm._lcm")]
pub(crate) struct Observation {
    seen: lcm_sdk::Observation,
    identity: Identity,
}

/// Which instance was seen.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Identity {
    /// The one it says.
    Named,
    /// That of whichever worker is looked at, because it was given without an id.
    TheWorkers,
    /// The same, and its addresses are those of the record too, because nothing but its state was given.
    TheWorkersAsRecorded,
}

#[pymethods]
impl Observation {
    #[new]
    fn new(fields: &Bound<'_, PyDict>) -> PyResult<Self> {
        let field = |name: &str| -> PyResult<Bound<'_, PyAny>> {
            Ok(fields.get_item(name)?.unwrap_or_else(|| fields.py().None().into_bound(fields.py())))
        };
        let moment = |name: &str| -> PyResult<Option<Timestamp>> {
            let given = field(name)?;
            if given.is_none() { Ok(None) } else { to_moment(&given, name).map(Some) }
        };
        let instance = answer(&field("ec2")?, "ec2", read_instance)?;
        let identity = match instance.found() {
            Some(_) if field("ec2")?.is_instance_of::<PyString>() => Identity::TheWorkersAsRecorded,
            Some(instance) if instance.id.as_str().is_empty() => Identity::TheWorkers,
            Some(_) | None => Identity::Named,
        };
        let seen = lcm_sdk::Observation {
            instance,
            tagged: answer(&field("tagged")?, "tagged", |given, path| read_list(given, path, read_instance))?,
            template: answer(&field("template")?, "template", read_template)?,
            images: answer(&field("images")?, "images", |given, path| read_list(given, path, read_image))?,
            sessions: answer(&field("sessions")?, "sessions", |given, _| read_sessions(given))?,
            cloud_metrics: answer(&field("cloud_metrics")?, "cloud_metrics", read_cloud_metrics)?,
            cml: answer(&field("cml")?, "cml", read_cml_metrics)?,
            metrics_reported_at: moment("metrics_reported_at")?,
            registration: answer(&field("registration")?, "registration", read_registration)?,
            telemetry: answer(&field("telemetry")?, "telemetry", |given, path| read_list(given, path, to_value))?,
            idle: answer(&field("idle")?, "idle", read_json::<IdleReport>)?,
            idle_checked_at: moment("idle_checked_at")?,
            fleet: answer(&field("fleet")?, "fleet", read_fleet)?,
        };
        Ok(Self { seen, identity })
    }
}

impl Observation {
    /// What was seen, to be made that of one worker after the other.
    pub(crate) fn seen(&self) -> Seen {
        Seen { seen: self.seen.clone(), by_tag: None, identity: self.identity }
    }
}

/// An observation that fits itself to the worker that is looked at.
pub(crate) struct Seen {
    seen: lcm_sdk::Observation,
    /// What is seen of a worker whose record names no instance. Made when the first such worker comes.
    by_tag: Option<Box<lcm_sdk::Observation>>,
    identity: Identity,
}

impl Seen {
    /// EC2 shows the worker's instance in a state, and nothing else was asked.
    pub(crate) fn of_state(state: Ec2State) -> Self {
        let seen = lcm_sdk::Observation::with_instance_state("", state);
        Self { seen, by_tag: None, identity: Identity::TheWorkersAsRecorded }
    }

    /// What was seen of this worker.
    pub(crate) fn of(&mut self, worker: &lcm_sdk::Worker) -> &lcm_sdk::Observation {
        if worker.ec2_instance_id.is_none() && self.seen.tagged.is_not_requested() {
            return self.by_tag(worker);
        }
        if let Lookup::Found(instance) = &mut self.seen.instance {
            self.identity.give(instance, worker);
        }
        &self.seen
    }

    /// A record that names no instance is asked about by its tag.
    fn by_tag(&mut self, worker: &lcm_sdk::Worker) -> &lcm_sdk::Observation {
        let (seen, identity) = (&self.seen, self.identity);
        let seen = self.by_tag.get_or_insert_with(|| {
            let mut seen = Box::new(seen.clone());
            seen.tagged = match std::mem::take(&mut seen.instance) {
                Lookup::Found(instance) => Lookup::Found(vec![instance]),
                Lookup::Absent => Lookup::Found(Vec::new()),
                Lookup::Unknown(failure) => Lookup::Unknown(failure),
                Lookup::NotRequested => Lookup::NotRequested,
            };
            seen
        });
        if let Lookup::Found(instances) = &mut seen.tagged {
            instances.iter_mut().for_each(|instance| identity.give(instance, worker));
        }
        seen
    }
}

impl Identity {
    fn give(self, instance: &mut Instance, worker: &lcm_sdk::Worker) {
        match self {
            Self::Named => return,
            Self::TheWorkers => {}
            Self::TheWorkersAsRecorded => {
                instance.public_ip.clone_from(&worker.public_ip);
                instance.private_ip.clone_from(&worker.private_ip);
                if instance.address().is_none() {
                    instance.public_ip.clone_from(&worker.ip_address);
                }
            }
        }
        match &worker.ec2_instance_id {
            Some(id) => instance.id.clone_from(id),
            None => instance.id = "i-observed".into(),
        }
    }
}

/// Reads one answer: None was not asked, `lcm.ABSENT` is a no, a `CallFailure` is no answer, anything else was found.
pub(crate) fn answer<T>(
    given: &Bound<'_, PyAny>,
    path: &str,
    read: impl FnOnce(&Bound<'_, PyAny>, &str) -> PyResult<T>,
) -> PyResult<Lookup<T>> {
    let py = given.py();
    if given.is_none() {
        Ok(Lookup::NotRequested)
    } else if is_a(given, absent_class(py)?) {
        Ok(Lookup::Absent)
    } else if is_a(given, call_failure_class(py)?) {
        read_failure(given).map(Lookup::Unknown)
    } else {
        read(given, path).map(Lookup::Found)
    }
}

/// Reads an `lcm.CallFailure`.
pub(crate) fn read_failure(given: &Bound<'_, PyAny>) -> PyResult<CallFailure> {
    let word: String = given.getattr("kind")?.extract()?;
    let kind = FailureKind::ALL.iter().find(|kind| kind.as_str() == word);
    let kind = *kind.ok_or_else(|| PyValueError::new_err(format!("{word:?} is not a kind of failure")))?;
    let message: String = given.getattr("message")?.extract()?;
    let failure = CallFailure { code: given.getattr("code")?.extract()?, ..CallFailure::new(kind, message) };
    let cause = given.getattr("cause")?;
    Ok(if cause.is_none() { failure } else { failure.caused_by(PyErr::from_value(cause)) })
}

/// An instance as Python tells it. Text alone is its state.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InstanceFields {
    #[serde(default)]
    id: String,
    state: Ec2State,
    public_ip: Option<String>,
    private_ip: Option<String>,
    launched_at: Option<Timestamp>,
    client_token: Option<String>,
    state_reason: Option<String>,
    instance_type: Option<String>,
    image_id: Option<String>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
}

/// Reads EC2's word for the state of an instance.
pub(crate) fn read_state(word: &Bound<'_, PyString>, path: &str) -> PyResult<Ec2State> {
    word.to_cow()?.parse().map_err(|unknown: ParseEnumError| {
        PyValueError::new_err(format!("{path}: {unknown}, lcm.ABSENT, an lcm.Instance or an lcm.CallFailure"))
    })
}

/// Reads an instance: `lcm.Instance`, a dict, or just its state.
pub(crate) fn read_instance(given: &Bound<'_, PyAny>, path: &str) -> PyResult<Instance> {
    if let Ok(state) = given.cast::<PyString>() {
        return Ok(Instance::new("", read_state(state, path)?));
    }
    let fields: InstanceFields = read_json(given, path)?;
    Ok(Instance {
        id: fields.id.into(),
        state: fields.state,
        public_ip: fields.public_ip,
        private_ip: fields.private_ip,
        launched_at: fields.launched_at,
        client_token: fields.client_token,
        state_reason: fields.state_reason,
        instance_type: fields.instance_type,
        image_id: fields.image_id,
        tags: fields.tags,
    })
}

/// Reads an instance that must say which it is.
pub(crate) fn read_named_instance(given: &Bound<'_, PyAny>, path: &str) -> PyResult<Instance> {
    let instance = read_instance(given, path)?;
    if instance.id.as_str().is_empty() {
        return Err(PyValueError::new_err(format!("{path} has no id; accepted: an lcm.Instance with one")));
    }
    Ok(instance)
}

/// Reads sessions: each an `lcm.Session` or the control plane's dict.
pub(crate) fn read_sessions(given: &Bound<'_, PyAny>) -> PyResult<Vec<Session>> {
    read_list(given, "sessions", |session, path| {
        Session::try_from(to_value(session, path)?).map_err(|error| invalid_record(session.py(), &error))
    })
}

/// Reads a template: an `lcm.Template` or the control plane's dict.
pub(crate) fn read_template(given: &Bound<'_, PyAny>, path: &str) -> PyResult<Template> {
    Template::try_from(to_value(given, path)?).map_err(|error| invalid_record(given.py(), &error))
}

/// Reads a list, item by item.
pub(crate) fn read_list<T>(
    given: &Bound<'_, PyAny>,
    path: &str,
    read: impl Fn(&Bound<'_, PyAny>, &str) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let is_list = !given.is_instance_of::<PyString>() && !given.is_instance_of::<PyDict>();
    let Some(items) = given.try_iter().ok().filter(|_| is_list) else {
        let found = given.get_type().name()?.to_string();
        return Err(PyTypeError::new_err(format!("{path} is a {found}; accepted: a list")));
    };
    items.enumerate().map(|(index, item)| read(&item?, &format!("{path}[{index}]"))).collect()
}

fn read_json<T: for<'a> Deserialize<'a>>(given: &Bound<'_, PyAny>, path: &str) -> PyResult<T> {
    serde_json::from_value(to_value(given, path)?).map_err(|error| invalid_argument(path, &error))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImageFields {
    id: String,
    name: String,
    creation_date: String,
}

/// Reads an AMI: an `lcm.Image` or a dict.
pub(crate) fn read_image(given: &Bound<'_, PyAny>, path: &str) -> PyResult<Image> {
    let ImageFields { id, name, creation_date } = read_json(given, path)?;
    Ok(Image { id, name, creation_date })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
struct CloudFields {
    cpu_utilization: Option<f64>,
    memory_utilization: Option<f64>,
    disk_utilization: Option<f64>,
}

/// Reads utilisation: an `lcm.CloudMetrics` or a dict.
pub(crate) fn read_cloud_metrics(given: &Bound<'_, PyAny>, path: &str) -> PyResult<CloudMetrics> {
    let CloudFields { cpu_utilization, memory_utilization, disk_utilization } = read_json(given, path)?;
    Ok(CloudMetrics { cpu_utilization, memory_utilization, disk_utilization })
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct CmlFields {
    labs_count: Option<u64>,
    nodes_count: Option<u64>,
    version: Option<String>,
    ready: Option<bool>,
}

/// Reads what CML tells: an `lcm.CmlMetrics` or a dict.
pub(crate) fn read_cml_metrics(given: &Bound<'_, PyAny>, path: &str) -> PyResult<CmlMetrics> {
    let CmlFields { labs_count, nodes_count, version, ready } = read_json(given, path)?;
    Ok(CmlMetrics { labs_count, nodes_count, version, ready })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FleetFields {
    running: usize,
    last_scale_down_at: Option<Timestamp>,
}

fn read_fleet(given: &Bound<'_, PyAny>, path: &str) -> PyResult<FleetView> {
    let FleetFields { running, last_scale_down_at } = read_json(given, path)?;
    Ok(FleetView { running, last_scale_down_at })
}

/// CML's word, or a dict with CML's mark of its latest attempt.
pub(crate) fn read_registration(given: &Bound<'_, PyAny>, path: &str) -> PyResult<RegistrationStatus> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct RegistrationFields {
        word: String,
        attempted: Option<String>,
    }
    if let Value::String(word) = to_value(given, path)? {
        return Ok(RegistrationStatus::from_wire(&word));
    }
    let RegistrationFields { word, attempted } = read_json(given, path)?;
    Ok(RegistrationStatus { word, attempted })
}
