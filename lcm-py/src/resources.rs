//! A controller over resources written in Python: election, watch, debounce, backoff, single flight and metrics come
//! from Rust; what is listed and what is done about each is Python's business.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::controller::election::ElectionConfig;
use lcm_sdk::controller::queue::WorkResult;
use lcm_sdk::controller::shards::{Candidate, ShardOwnership, ShardedResource, Shards};
use lcm_sdk::controller::shutdown::Shutdown;
use lcm_sdk::controller::watch::{WatchConfig, WatchHandle, WatchNotice, Watcher, first_segment};
use lcm_sdk::controller::{Controller, ControllerConfig, Fetched, ListScope, Listing, Reconcile};
use lcm_sdk::from_settings;
use lcm_sdk::ports::Coordination;
use lcm_sdk::settings::Settings;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::{CallFailure, Outcome, Requeue};
use parking_lot::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDelta, PyTuple};
use serde_json::json;
use tokio::task::JoinSet;

use crate::bridge::Bridge;
use crate::clients::{config_error, coordination as elector};
use crate::convert::to_python;
use crate::door::{Task, spawn};
use crate::python::log_failure;

/// A controller that does nothing until it is started, and is started once.
#[pyclass(frozen, module = "lcm._lcm")]
pub(crate) struct ResourceController {
    inner: Arc<Inner>,
    shutdown: Shutdown,
}

struct Inner {
    resources: Resources,
    coordination: Option<Arc<dyn Coordination>>,
    election: ElectionConfig,
    shards: Shards,
    config: ControllerConfig,
    watch: Option<WatchConfig>,
    telemetry: Telemetry,
    /// The loop, while it leads.
    leading: Mutex<Option<Controller<ShardedResource<Resources>>>>,
}

#[pymethods]
impl ResourceController {
    #[new]
    #[pyo3(signature = (variables, bridge, key, prefixes, coordination=None))]
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
        config.election.check().map_err(|error| config_error(py, &error))?;
        let watch = config.watch.filter(|_| !prefixes.is_empty());
        let inner = Inner {
            resources: Resources { bridge: Arc::new(Bridge::new(bridge)?), key: Arc::new(key), watch: None },
            coordination,
            election: config.election,
            shards: config.shards,
            config: config.controller,
            watch: watch.map(|watch| WatchConfig { prefixes, ..watch }),
            telemetry: Telemetry::new(&settings.reconciliation.metric_prefix),
            leading: Mutex::new(None),
        };
        Ok(Self { inner: Arc::new(inner), shutdown: Shutdown::new() })
    }

    /// Runs until asked to stop, then calls `done(None, None)`.
    fn start(&self, py: Python<'_>, done: Py<PyAny>) -> PyResult<Task> {
        let (inner, shutdown) = (Arc::clone(&self.inner), self.shutdown.clone());
        spawn(py, done, async move { inner.run(&shutdown).await }, |py, ()| Ok(py.None()))
    }

    /// Asks it to finish what is under way and give the lease up.
    fn stop(&self) {
        self.shutdown.request();
    }

    /// Asks for a look at a resource now. False while somebody else leads.
    fn trigger(&self, key: &str) -> bool {
        self.inner.leading.lock().as_ref().map(|controller| controller.demand(key)).is_some()
    }

    /// What it is doing.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let leading = self.inner.leading.lock().clone();
        let (active, waiting) = leading.as_ref().map(Controller::load).unwrap_or_default();
        let shown = |state: lcm_sdk::controller::queue::ResourceState| {
            let last = state.last.map(|last| json!({"outcome": last.outcome, "code": last.code, "error": last.error}));
            (state.resource_id.to_string(), json!({"retry_count": state.retry_count, "last": last}))
        };
        let resources = leading.as_ref().map(Controller::resources).unwrap_or_default();
        let shown = json!({
            "instance_id": self.inner.election.identity,
            "role": if leading.is_some() { "leader" } else { "standby" },
            "queue": {"active": active, "waiting": waiting.into_iter().collect::<BTreeMap<_, _>>()},
            "resources": resources.into_iter().map(shown).collect::<BTreeMap<_, _>>(),
        });
        to_python(py, &shown)
    }

    /// Its metrics as Prometheus reads them.
    fn metrics(&self) -> String {
        self.inner.telemetry.to_prometheus()
    }
}

impl Inner {
    async fn run(&self, shutdown: &Shutdown) {
        let telemetry = self.telemetry.clone();
        let mut electing = JoinSet::new();
        let candidacy = match &self.coordination {
            None => Ok(Candidate::alone(telemetry, shutdown, &mut electing)),
            Some(etcd) => {
                let election = (self.election.clone(), self.shards);
                Candidate::over(Arc::clone(etcd), election, self.config.grace, telemetry, shutdown, &mut electing)
            }
        };
        let candidacy = match candidacy {
            Ok(candidacy) => candidacy,
            // Checked when this was made.
            Err(error) => return tracing::error!(target: "lcm::leader", %error, "the election cannot work"),
        };
        loop {
            let mandate = tokio::select! {
                () = shutdown.requested() => break,
                elected = candidacy.elected() => elected,
            };
            let Some(mandate) = mandate else { break };
            self.lead(&mandate, shutdown).await;
        }
        candidacy.resign().await;
        if let Some(Err(error)) = electing.join_next().await {
            tracing::error!(target: "lcm::leader", %error, "the election ended badly");
        }
    }

    async fn lead(&self, mandate: &ShardOwnership, shutdown: &Shutdown) {
        let ended = Shutdown::new();
        let watcher = self.watch.as_ref().zip(self.coordination.as_ref()).map(|(config, etcd)| {
            Watcher::new(Arc::clone(etcd), config.clone(), self.telemetry.clone(), first_segment)
        });
        let watch = watcher.as_ref().map(|(_, handle, _)| handle.clone());
        let resources = ShardedResource::new(Resources { watch, ..self.resources.clone() }, mandate.clone());
        let controller = Controller::new(resources, self.config.clone(), self.telemetry.clone());
        *self.leading.lock() = Some(controller.clone());
        let watching = async {
            if let Some((watcher, _, notices)) = watcher {
                tokio::join!(watcher.run(ended.clone()), heed(notices, &controller, &ended));
            }
        };
        let ending = async {
            tokio::select! {
                () = shutdown.requested() => {}
                () = mandate.ended() => tracing::warn!(target: "lcm::controller", "not the leader any more: stopping"),
            }
            ended.request();
        };
        let taking_over = async {
            let mut gains = mandate.gains();
            loop {
                tokio::select! {
                    () = ended.requested() => return,
                    () = gains.next() => look_at_all(&controller).await,
                }
            }
        };
        tokio::join!(watching, controller.run(&ended), taking_over, ending);
        *self.leading.lock() = None;
    }
}

/// Passes what the watch tells on to the controller.
async fn heed(
    mut notices: tokio::sync::mpsc::Receiver<WatchNotice<String>>,
    controller: &Controller<ShardedResource<Resources>>,
    ended: &Shutdown,
) {
    loop {
        let notice = tokio::select! {
            () = ended.requested() => return,
            notice = notices.recv() => notice,
        };
        match notice {
            None => return,
            Some(WatchNotice::Changed(keys)) => keys.iter().for_each(|key| controller.changed(key)),
            Some(WatchNotice::Resync(_)) => look_at_all(controller).await,
        }
    }
}

async fn look_at_all(controller: &Controller<ShardedResource<Resources>>) {
    if let Err(failure) = controller.cycle().await {
        tracing::warn!(target: "lcm::controller", %failure, "resources could not be listed; polling will");
    }
}

/// Resources that Python lists, reads and reconciles.
#[derive(Clone)]
struct Resources {
    bridge: Arc<Bridge>,
    /// Names a resource.
    key: Arc<Py<PyAny>>,
    /// The watch, while it leads and watches.
    watch: Option<WatchHandle>,
}

/// A resource of Python's, with its name.
struct Resource {
    key: String,
    value: Py<PyAny>,
}

impl Reconcile for Resources {
    type Resource = Resource;

    fn key<'a>(&self, resource: &'a Resource) -> &'a str {
        &resource.key
    }

    async fn list(&self, scope: ListScope) -> Result<Listing<Resource>, CallFailure> {
        let everything = scope == ListScope::Everything;
        let key = Arc::clone(&self.key);
        let read = move |answer: &Bound<'_, PyAny>| {
            answer.try_iter()?.map(|resource| named(&key, &resource?)).collect::<PyResult<Vec<_>>>()
        };
        let resources = self.bridge.ask("list", move |py| PyTuple::new(py, [everything]), read).await?;
        Ok(Listing { resources, resting: Vec::new() })
    }

    async fn fetch(&self, key: &str) -> Result<Fetched<Resource>, CallFailure> {
        let (wanted, name) = (key.to_owned(), Arc::clone(&self.key));
        let read = move |answer: &Bound<'_, PyAny>| {
            if answer.is_none() { Ok(Fetched::Gone) } else { named(&name, answer).map(Fetched::Resource) }
        };
        self.bridge.ask("fetch", move |py| PyTuple::new(py, [wanted]), read).await
    }

    async fn reconcile(&self, resource: Resource) -> WorkResult {
        let ending = self.bridge.ask("reconcile", move |py| PyTuple::new(py, [resource.value]), read_result).await;
        ending.unwrap_or_else(|failure| {
            log_failure("lcm.controller", &format!("the reconcile of {} raised", resource.key), &failure);
            WorkResult::retry("raised", failure.to_string())
        })
    }

    fn on_cycle(&self) {
        // A watch that gave up is tried again.
        if let Some(watch) = &self.watch {
            watch.revive();
        }
    }
}

fn named(key: &Py<PyAny>, resource: &Bound<'_, PyAny>) -> PyResult<Resource> {
    let key = key.bind(resource.py()).call1((resource,))?.extract()?;
    Ok(Resource { key, value: resource.clone().unbind() })
}

/// None is a success, a timedelta says when to look again, and a word is an outcome.
fn read_result(answer: &Bound<'_, PyAny>) -> PyResult<WorkResult> {
    const ACCEPTED: &str = "None, a timedelta from 0 up, or one of success, requeue, retry, skip";
    if answer.is_none() {
        return Ok(WorkResult::success());
    }
    let refused = || PyTypeError::new_err(format!("reconcile gave {answer}; accepted: {ACCEPTED}"));
    if answer.is_instance_of::<PyDelta>() {
        let delay: Duration = answer.extract().map_err(|_| refused())?;
        let requeue = Requeue::After(delay);
        return Ok(WorkResult { outcome: Outcome::Requeue, requeue, code: "requeue", error: None });
    }
    let word: String = answer.extract().map_err(|_| refused())?;
    let outcome: Outcome = word.parse().map_err(|_| refused())?;
    let requeue = match outcome {
        Outcome::Success | Outcome::Requeue => Requeue::NextCycle,
        Outcome::Retry => Requeue::Backoff,
        Outcome::Skip => Requeue::OnChange,
    };
    Ok(WorkResult { outcome, requeue, code: outcome.as_str(), error: None })
}
