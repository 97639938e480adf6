//! A controller of resources that Python lists, reads and reconciles. Election, watch, queue, backoff and metrics come
//! from Rust.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::controller::{
    Controller, LeaderLease, ListRequest, ListScope, Resource, ResourceList, ResourceState, Shutdown, WorkReason,
    WorkResult,
};
use lcm_sdk::from_settings;
use lcm_sdk::settings::Settings;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::{CallFailure, Outcome, Requeue};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDelta, PyTuple};
use serde_json::json;

use crate::bridge::Bridge;
use crate::clients::{config_error, coordination as elector};
use crate::convert::to_python;
use crate::python::log_failure;
use crate::runtime::{Task, spawn};

/// A controller of resources. It can be started once.
#[pyclass(frozen, module = "lcm._lcm")]
pub(crate) struct ResourceController {
    controller: Controller<PyResource>,
    identity: String,
    telemetry: Telemetry,
    shutdown: Shutdown,
}

impl ResourceController {
    /// The controller.
    pub(crate) fn controller(&self) -> &Controller<PyResource> {
        &self.controller
    }
}

#[pymethods]
impl ResourceController {
    #[new]
    #[pyo3(signature = (
        variables: "Mapping[str, str]",
        bridge: "object",
        key: "Callable[[Any], str]",
        prefixes: "Sequence[str]",
        coordination: "object | None" = None,
    ))]
    fn new(
        py: Python<'_>,
        variables: BTreeMap<String, String>,
        bridge: &Bound<'_, PyAny>,
        key: Py<PyAny>,
        prefixes: Vec<String>,
        coordination: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let settings = Settings::from_map(variables).map_err(|error| config_error(py, &error))?;
        let coordination = elector(py, &settings, coordination)?;
        let config = from_settings::controller_config(&settings);
        let telemetry = Telemetry::new(&settings.reconciliation.metric_prefix);
        let resource = PyResource { bridge: Arc::new(Bridge::new(bridge)?), key: Arc::new(key) };
        let identity = config.election.identity.clone();
        config.election.check().map_err(|error| config_error(py, &error))?;
        let mut builder = Controller::builder(resource).config(config.controller).telemetry(telemetry.clone());
        if let Some(coordination) = coordination {
            builder = builder.elect(coordination, config.election).shards(config.shards);
            if let Some(watch) = config.watch.filter(|_| !prefixes.is_empty()) {
                builder = builder.watch(watch.with_prefixes(prefixes));
            }
        }
        let controller = builder.build().map_err(|error| config_error(py, &error))?;
        Ok(Self { controller, identity, telemetry, shutdown: Shutdown::new() })
    }

    /// Runs until `stop`, then calls `done(None, None)`.
    #[pyo3(signature = (done: "Callable[[None, BaseException | None], None]"))]
    fn start(&self, py: Python<'_>, done: Py<PyAny>) -> PyResult<Task> {
        let (controller, shutdown) = (self.controller.clone(), self.shutdown.clone());
        spawn(py, done, async move { controller.run(&shutdown).await }, |py, ()| Ok(py.None()))
    }

    /// Requests a stop: reconciles in progress finish, then the controller resigns.
    fn stop(&self) {
        self.shutdown.request();
    }

    /// Requests a reconcile of a resource now. False while another controller leads.
    fn trigger(&self, key: &str) -> bool {
        self.controller.enqueue(key)
    }

    /// Role, queue and state of every resource.
    #[pyo3(signature = () -> "dict[str, Any]")]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let load = self.controller.load();
        let (active, waiting) = load.unwrap_or_default();
        let state_to_json = |state: ResourceState| {
            let last = state
                .last
                .map(|last| json!({"outcome": last.outcome, "code": last.reason.as_str(), "error": last.error}));
            (state.resource_id.to_string(), json!({"retry_count": state.retry_count, "last": last}))
        };
        let resources = self.controller.resources();
        let stats = json!({
            "instance_id": self.identity,
            "role": if load.is_some() { "leader" } else { "standby" },
            "queue": {"active": active, "waiting": waiting.into_iter().collect::<BTreeMap<_, _>>()},
            "resources": resources.into_iter().map(state_to_json).collect::<BTreeMap<_, _>>(),
        });
        to_python(py, &stats)
    }

    /// Metrics in the text format of Prometheus.
    fn metrics(&self) -> String {
        self.telemetry.to_prometheus()
    }
}

/// Resources that Python lists, reads and reconciles.
pub(crate) struct PyResource {
    bridge: Arc<Bridge>,
    /// Function that returns the name of a resource.
    key: Arc<Py<PyAny>>,
}

/// A Python object and its name.
pub(crate) struct PyObject {
    key: String,
    value: Py<PyAny>,
}

impl Resource for PyResource {
    type Object = PyObject;

    fn key<'a>(&self, object: &'a PyObject) -> &'a str {
        &object.key
    }

    async fn list(&self, request: &ListRequest) -> Result<ResourceList<PyObject>, CallFailure> {
        let everything = request.scope() == ListScope::Everything;
        let key = Arc::clone(&self.key);
        let read = move |response: &Bound<'_, PyAny>| {
            response.try_iter()?.map(|object| named(&key, &object?)).collect::<PyResult<Vec<_>>>()
        };
        let objects = self.bridge.call("list", move |py| PyTuple::new(py, [everything]), read).await?;
        Ok(ResourceList::from(objects))
    }

    async fn fetch(&self, key: &str) -> Result<Option<PyObject>, CallFailure> {
        let (wanted, name) = (key.to_owned(), Arc::clone(&self.key));
        let read = move |response: &Bound<'_, PyAny>| {
            if response.is_none() { Ok(None) } else { named(&name, response).map(Some) }
        };
        self.bridge.call("fetch", move |py| PyTuple::new(py, [wanted]), read).await
    }

    async fn reconcile(&self, object: PyObject, _: LeaderLease) -> WorkResult {
        let result = self.bridge.call("reconcile", move |py| PyTuple::new(py, [object.value]), read_result).await;
        result.unwrap_or_else(|failure| {
            log_failure("lcm.controller", &format!("the reconcile of {} raised", object.key), &failure);
            WorkResult::retry(WorkReason::Raised, failure.to_string())
        })
    }
}

fn named(key: &Py<PyAny>, object: &Bound<'_, PyAny>) -> PyResult<PyObject> {
    let key = key.bind(object.py()).call1((object,))?.extract()?;
    Ok(PyObject { key, value: object.clone().unbind() })
}

/// Reads the result of a reconcile: None is a success, a timedelta a delay, and a string an outcome.
fn read_result(result: &Bound<'_, PyAny>) -> PyResult<WorkResult> {
    const ACCEPTED: &str = "None, a timedelta from 0 up, or one of success, requeue, retry, skip";
    if result.is_none() {
        return Ok(WorkResult::success());
    }
    let refused = || PyTypeError::new_err(format!("reconcile returned {result}; accepted: {ACCEPTED}"));
    if result.is_instance_of::<PyDelta>() {
        let delay: Duration = result.extract().map_err(|_| refused())?;
        let requeue = Requeue::After(delay);
        return Ok(WorkResult {
            outcome: Outcome::Requeue,
            requeue,
            status: None,
            reason: WorkReason::Reported(Outcome::Requeue),
            error: None,
        });
    }
    let word: String = result.extract().map_err(|_| refused())?;
    let outcome: Outcome = word.parse().map_err(|_| refused())?;
    let requeue = match outcome {
        Outcome::Success | Outcome::Requeue => Requeue::NextCycle,
        Outcome::Retry => Requeue::Backoff,
        Outcome::Skip => Requeue::OnChange,
    };
    Ok(WorkResult { outcome, requeue, status: None, reason: WorkReason::Reported(outcome), error: None })
}
