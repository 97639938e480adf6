//! The controller for Python: election, watch, sweep, polling, discovery and metrics.

use std::sync::Arc;

use lcm_sdk::admin::{AdminSource, NotReady};
use lcm_sdk::controller::{Readiness, Shutdown};
use lcm_sdk::from_settings;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{WorkerController, WorkerFleet};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde_json::json;
use tokio::sync::watch;

use crate::clients::{Clients, config_error, coordination as elector};
use crate::convert::to_python;
use crate::results::SweepReport;
use crate::runtime::{Task, spawn};

/// A controller. It can be started once.
#[pyclass(frozen, module = "lcm._lcm")]
pub(crate) struct Controller {
    controller: WorkerController,
    telemetry: Telemetry,
    shutdown: Shutdown,
    /// Whether the run has ended, by itself, by a panic or because it was canceled.
    ended: Arc<watch::Sender<bool>>,
}

/// Marks the run as ended when it is dropped.
struct EndOfRun(Arc<watch::Sender<bool>>);

impl Drop for EndOfRun {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

impl Controller {
    /// The generic controller below.
    pub(crate) fn controller(&self) -> &lcm_sdk::controller::Controller<WorkerFleet> {
        self.controller.controller()
    }
}

#[pymethods]
impl Controller {
    #[new]
    #[pyo3(signature = (clients, policy: "lcm.policy.Policy | None" = None, coordination: "object | None" = None))]
    fn new(
        py: Python<'_>,
        clients: &Bound<'_, Clients>,
        policy: Option<&Bound<'_, PyAny>>,
        coordination: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let clients = clients.get();
        let (settings, telemetry) = (clients.settings(), clients.telemetry().clone());
        let coordination = elector(py, settings, coordination)?;
        let config = from_settings::controller_config(settings);
        let config = config.with_history(clients.history().cloned()).with_guards(clients.guards());
        let (ports, policy) = (clients.ports().clone(), clients.policy(policy)?);
        let controller = WorkerController::new(ports, policy, coordination, config, telemetry.clone());
        let controller = controller.map_err(|error| config_error(py, &error))?;
        Ok(Self { controller, telemetry, shutdown: Shutdown::new(), ended: Arc::default() })
    }

    /// Runs until `stop`, then calls `done(None, None)`.
    #[pyo3(signature = (done: "Callable[[None, BaseException | None], None]"))]
    fn start(&self, py: Python<'_>, done: Py<PyAny>) -> PyResult<Task> {
        let (controller, shutdown) = (self.controller.clone(), self.shutdown.clone());
        let end = EndOfRun(Arc::clone(&self.ended));
        let run = async move {
            let _end = end;
            controller.run(&shutdown).await;
        };
        spawn(py, done, run, |py, ()| Ok(py.None()))
    }

    /// Calls `done(report, None)` after the startup sweep, or `done(None, error)` after a stop or the end of the run.
    #[pyo3(signature = (done: "Callable[[SweepReport | None, BaseException | None], None]"))]
    fn start_ready(&self, py: Python<'_>, done: Py<PyAny>) -> PyResult<Task> {
        let (controller, shutdown) = (self.controller.clone(), self.shutdown.clone());
        let mut run = self.ended.subscribe();
        let ended = async move { drop(run.wait_for(|ended| *ended).await) };
        let ready = async move {
            tokio::select! {
                biased;
                () = shutdown.requested() => Err(PyRuntimeError::new_err("the controller has stopped")),
                () = ended => Err(PyRuntimeError::new_err("the run of the controller has ended")),
                report = controller.ready() => Ok(report),
            }
        };
        spawn(py, done, ready, |py, report| {
            SweepReport::from_sdk(py, &report?).map(|report| report.into_any().unbind())
        })
    }

    /// Requests a stop: reconciles in progress finish, then the lease is released.
    fn stop(&self) {
        self.shutdown.request();
    }

    /// Requests a reconcile of a worker now. False while another controller leads.
    fn trigger(&self, worker: &str) -> bool {
        self.controller.controller().enqueue(worker)
    }

    /// Returns statistics: role, readiness, queue and counters.
    #[pyo3(signature = () -> "dict[str, Any]")]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let readiness = match &*self.controller.readiness().borrow() {
            Readiness::Standby => "standby",
            Readiness::Sweeping => "sweeping",
            Readiness::Ready(_) => "ready",
        };
        let mut shown = serde_json::to_value(AdminSource::stats(&self.controller)).unwrap_or_default();
        shown["readiness"] = readiness.into();
        shown["counters"] = json!(self.telemetry.counters());
        to_python(py, &shown)
    }

    /// Returns why this instance is not ready, or None: see `AdminSource::readiness`.
    fn readiness_problem(&self) -> Option<String> {
        AdminSource::readiness(&self.controller).err().map(|NotReady { reason }| reason)
    }

    /// Returns the metrics in the text format of OpenMetrics.
    fn metrics(&self) -> String {
        self.telemetry.to_prometheus()
    }
}
