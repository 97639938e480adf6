//! Observations of a worker, parsed from Python once and used by many decisions.

use std::collections::BTreeMap;

use lcm_sdk::lifecycle::trust::Place;
use lcm_sdk::lifecycle::{CloudMetrics, CmlMetrics, IdleReport, ParseEnumError, RegistrationStatus};
use lcm_sdk::{CallFailure, Ec2State, FailureKind, FleetView, Image, Instance, Lookup, Session, Template, Timestamp};
use parking_lot::Mutex;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::convert::to_value;
use crate::input::to_moment;
use crate::python::{absent_class, call_failure_class, invalid_argument, invalid_record, is_a};

/// The parsed form of an `lcm.Observation`.
#[pyclass(frozen, module = "lcm._lcm")]
pub(crate) struct Observation {
    observed: Mutex<Observed>,
}

/// Identity of the observed instance.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Identity {
    /// The instance's own id.
    Named,
    /// The worker's instance: the observation names none.
    OfWorker,
    /// The worker's instance with the addresses on the record: only a state was observed.
    OfRecord,
}

#[pymethods]
impl Observation {
    #[new]
    #[pyo3(signature = (fields: "dict[str, Any]"))]
    fn new(fields: &Bound<'_, PyDict>) -> PyResult<Self> {
        let field = |name: &str| -> PyResult<Bound<'_, PyAny>> {
            Ok(fields.get_item(name)?.unwrap_or_else(|| fields.py().None().into_bound(fields.py())))
        };
        let moment = |name: &str| -> PyResult<Option<Timestamp>> {
            let given = field(name)?;
            if given.is_none() { Ok(None) } else { to_moment(&given, name).map(Some) }
        };
        let instance = read_lookup(&field("ec2")?, "ec2", read_instance)?;
        let identity = match instance.found() {
            Some(_) if field("ec2")?.is_instance_of::<PyString>() => Identity::OfRecord,
            Some(instance) if instance.id.as_str().is_empty() => Identity::OfWorker,
            Some(_) | None => Identity::Named,
        };
        let observation = lcm_sdk::Observation {
            instance,
            tagged: read_lookup(&field("tagged")?, "tagged", |given, path| read_list(given, path, read_instance))?,
            place: read_lookup(&field("account_proved")?, "account_proved", read_place)?,
            template: read_lookup(&field("template")?, "template", read_template)?,
            images: read_lookup(&field("images")?, "images", |given, path| read_list(given, path, read_image))?,
            sessions: read_lookup(&field("sessions")?, "sessions", |given, _| read_sessions(given))?,
            cloud_metrics: read_lookup(&field("cloud_metrics")?, "cloud_metrics", read_cloud_metrics)?,
            cml: read_lookup(&field("cml")?, "cml", read_cml_metrics)?,
            metrics_reported_at: moment("metrics_reported_at")?,
            registration: read_lookup(&field("registration")?, "registration", read_registration)?,
            telemetry: read_lookup(&field("telemetry")?, "telemetry", |given, path| read_list(given, path, to_value))?,
            idle: read_lookup(&field("idle")?, "idle", read_json::<IdleReport>)?,
            idle_checked_at: moment("idle_checked_at")?,
            fleet: read_lookup(&field("fleet")?, "fleet", read_fleet)?,
            capabilities: lcm_sdk::lifecycle::Capabilities::default(),
        };
        Ok(Self { observed: Mutex::new(Observed { observation, by_tag: None, identity }) })
    }
}

impl Observation {
    /// Decides with the observation of this worker. Fitted in place: a copy would cost more than the decision.
    pub(crate) fn with_fitted<R>(
        &self,
        worker: &lcm_sdk::Worker,
        decide: impl FnOnce(&lcm_sdk::Observation) -> R,
    ) -> R {
        decide(self.observed.lock().fit(worker))
    }
}

/// An observation that is adapted to one worker after the other.
pub(crate) struct Observed {
    observation: lcm_sdk::Observation,
    /// The form for records that name no instance. Created for the first such worker.
    by_tag: Option<Box<lcm_sdk::Observation>>,
    identity: Identity,
}

impl Observed {
    /// EC2 shows the worker's instance in a state; nothing else was requested.
    pub(crate) fn from_state(state: Ec2State) -> Self {
        let observation = lcm_sdk::Observation::with_instance_state("", state);
        Self { observation, by_tag: None, identity: Identity::OfRecord }
    }

    /// The observation of this worker.
    pub(crate) fn fit(&mut self, worker: &lcm_sdk::Worker) -> &lcm_sdk::Observation {
        if worker.ec2_instance_id.is_none() && self.observation.tagged.is_not_requested() {
            return self.by_tag(worker);
        }
        if let Lookup::Found(instance) = &mut self.observation.instance {
            self.identity.assign(instance, worker);
        }
        &self.observation
    }

    /// EC2 is queried by tag for a record that names no instance.
    fn by_tag(&mut self, worker: &lcm_sdk::Worker) -> &lcm_sdk::Observation {
        let (observation, identity) = (&self.observation, self.identity);
        let fitted = self.by_tag.get_or_insert_with(|| {
            let mut fitted = Box::new(observation.clone());
            fitted.tagged = match std::mem::take(&mut fitted.instance) {
                Lookup::Found(instance) => Lookup::Found(vec![instance]),
                Lookup::Absent => Lookup::Found(Vec::new()),
                Lookup::Unknown(failure) => Lookup::Unknown(failure),
                Lookup::NotRequested => Lookup::NotRequested,
            };
            fitted
        });
        if let Lookup::Found(instances) = &mut fitted.tagged {
            instances.iter_mut().for_each(|instance| identity.assign(instance, worker));
        }
        fitted
    }
}

impl Identity {
    fn assign(self, instance: &mut Instance, worker: &lcm_sdk::Worker) {
        match self {
            Self::Named => return,
            Self::OfWorker => {}
            Self::OfRecord => {
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

/// Parses a lookup: None was not requested, `lcm.ABSENT` is absent, a `CallFailure` is unknown, and any other value was
/// found.
pub(crate) fn read_lookup<T>(
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
    Ok(if cause.is_none() { failure } else { failure.with_cause(PyErr::from_value(cause)) })
}

/// The parsed form of an `lcm.Observation` argument.
///
/// # Errors
/// `TypeError` for any other object.
pub(crate) fn native_observation<'py>(observation: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Observation>> {
    let native = observation.getattr_opt(intern!(observation.py(), "_native"))?;
    if let Some(Ok(native)) = native.map(Bound::cast_into::<Observation>) {
        return Ok(native);
    }
    let found = observation.get_type().name()?;
    Err(PyTypeError::new_err(format!("an observation is a {found}; accepted: lcm.Observation")))
}

/// Reads whether the account is proved. The proof applies at any time.
fn read_place(given: &Bound<'_, PyAny>, path: &str) -> PyResult<Place> {
    let proved: bool = given
        .extract()
        .map_err(|_| PyTypeError::new_err(format!("{path}: expected True, False or an lcm.CallFailure")))?;
    Ok(if proved { Place::default().with_sighting(Timestamp::MAX_UTC) } else { Place::default() })
}

/// Fields of an instance. Text alone is its state.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an lcm.Instance or its state")]
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
    account_id: Option<String>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
}

/// Parses EC2's name of an instance state.
pub(crate) fn parse_state(word: &Bound<'_, PyString>, path: &str) -> PyResult<Ec2State> {
    word.to_cow()?.parse().map_err(|unknown: ParseEnumError| {
        PyValueError::new_err(format!("{path}: {unknown}, lcm.ABSENT, an lcm.Instance or an lcm.CallFailure"))
    })
}

/// Reads an instance: an `lcm.Instance`, a dict, or its state alone.
pub(crate) fn read_instance(given: &Bound<'_, PyAny>, path: &str) -> PyResult<Instance> {
    if let Ok(state) = given.cast::<PyString>() {
        return Ok(Instance::new("", parse_state(state, path)?));
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
        account_id: fields.account_id,
        tags: fields.tags,
        ..Instance::new("", fields.state)
    })
}

/// Reads an instance that must have an id.
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
#[serde(deny_unknown_fields, expecting = "an lcm.Image")]
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

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default, expecting = "an lcm.CloudMetrics")]
struct CloudFields {
    cpu_utilization: Option<f64>,
    memory_utilization: Option<f64>,
    disk_utilization: Option<f64>,
    network_in_bytes: Option<f64>,
    network_out_bytes: Option<f64>,
}

/// Reads utilization: an `lcm.CloudMetrics` or a dict.
pub(crate) fn read_cloud_metrics(given: &Bound<'_, PyAny>, path: &str) -> PyResult<CloudMetrics> {
    let CloudFields { cpu_utilization, memory_utilization, disk_utilization, network_in_bytes, network_out_bytes } =
        read_json(given, path)?;
    Ok(CloudMetrics { cpu_utilization, memory_utilization, disk_utilization, network_in_bytes, network_out_bytes })
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default, expecting = "an lcm.CmlMetrics")]
struct CmlFields {
    labs_count: Option<u64>,
    nodes_count: Option<u64>,
    cml_version: Option<String>,
    ready: Option<bool>,
    system_info: Option<Map<String, Value>>,
    system_health: Option<Map<String, Value>>,
    license_info: Option<Map<String, Value>>,
    uptime_seconds: Option<u64>,
}

/// Reads metrics of CML: an `lcm.CmlMetrics` or a dict.
pub(crate) fn read_cml_metrics(given: &Bound<'_, PyAny>, path: &str) -> PyResult<CmlMetrics> {
    let CmlFields {
        labs_count,
        nodes_count,
        cml_version,
        ready,
        system_info,
        system_health,
        license_info,
        uptime_seconds,
    } = read_json(given, path)?;
    Ok(CmlMetrics {
        labs_count,
        nodes_count,
        cml_version,
        ready,
        system_info,
        system_health,
        license_info,
        uptime_seconds,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an lcm.FleetView")]
struct FleetFields {
    running: usize,
    last_scale_down_at: Option<Timestamp>,
}

fn read_fleet(given: &Bound<'_, PyAny>, path: &str) -> PyResult<FleetView> {
    let FleetFields { running, last_scale_down_at } = read_json(given, path)?;
    Ok(FleetView { running, last_scale_down_at })
}

/// Reads a registration status: a string, or a dict that also identifies the latest attempt.
pub(crate) fn read_registration(given: &Bound<'_, PyAny>, path: &str) -> PyResult<RegistrationStatus> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, expecting = "text, or a dict with word and attempted")]
    struct RegistrationFields {
        word: String,
        attempted: Option<String>,
    }
    if let Value::String(word) = to_value(given, path)? {
        return Ok(RegistrationStatus::from_wire(&word));
    }
    let RegistrationFields { word, attempted } = read_json(given, path)?;
    Ok(RegistrationStatus { raw: word, attempted })
}
