//! Clients for the services that a reconcile calls, created from settings.

use std::collections::BTreeMap;
use std::sync::Arc;

use lcm_sdk::Secret;
use lcm_sdk::from_settings;
use lcm_sdk::history::HistoryWriter;
use lcm_sdk::ports::{Clock, Coordination, Events, Ports};
use lcm_sdk::providers::aws::Account;
use lcm_sdk::providers::events::{FanoutEvents, LogEvents};
use lcm_sdk::reconciler::{Guards, Reconciler};
use lcm_sdk::resilience::{BatchSettings, BatchingCompute};
use lcm_sdk::settings::{Settings, Warning};
use lcm_sdk::telemetry::Telemetry;
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::bridge::Bridge;
use crate::cml::PythonCml;
use crate::compute::PythonCompute;
use crate::control_plane::PythonControlPlane;
use crate::coordination::PythonCoordination;
use crate::events::PythonEvents;
use crate::fake_cloud::FakeCloud;
use crate::metrics::PythonMetrics;
use crate::policy::native_policy;
use crate::python::exception;
use crate::runtime::{block_on, forked};

/// Number of cached reconcilers. Reconciles under the same policy share one, with its worker cache.
const POLICIES: usize = 8;

/// Clients for the services that a reconcile calls.
#[pyclass(frozen, module = "lcm._lcm")]
pub(crate) struct Clients {
    settings: Settings,
    ports: Ports,
    telemetry: Telemetry,
    history: Option<HistoryWriter>,
    /// Where the original control plane requests license operations: its records do not show them.
    requests: Option<Arc<dyn Coordination>>,
    /// Shared by all reconcilers and controllers on these ports.
    guards: Guards,
    reconcilers: Mutex<Vec<Reconciler>>,
    process: u32,
}

#[pymethods]
impl Clients {
    /// Creates clients from variables. AWS clients use the environment of the process, unless the variables include an
    /// endpoint and credentials. `clock` is the fake cloud that provides the time.
    #[new]
    #[pyo3(signature = (
        variables: "Mapping[str, str]",
        clock=None,
        control_plane: "object | None" = None,
        compute: "object | None" = None,
        metrics: "object | None" = None,
        cml: "object | None" = None,
        events: "object | None" = None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "one for each port, by name")]
    fn new(
        py: Python<'_>,
        variables: BTreeMap<String, String>,
        clock: Option<&Bound<'_, FakeCloud>>,
        control_plane: Option<&Bound<'_, PyAny>>,
        compute: Option<&Bound<'_, PyAny>>,
        metrics: Option<&Bound<'_, PyAny>>,
        cml: Option<&Bound<'_, PyAny>>,
        events: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let clock = clock.map(|cloud| cloud.get().clock(py)).transpose()?;
        let explicit = ["AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
        let explicit = explicit.map(|name| variables.get(name).cloned());
        let settings = Settings::from_map(variables).map_err(|error| config_error(py, &error))?;
        crate::logs::listen(py)?;
        // The records of a port written in Python hold the notes, unless the settings say otherwise.
        let has_notes_store = control_plane.is_none() || settings.is_set("notes_store");
        for warning in settings.warnings() {
            match warning {
                // Discovery reports a missing filter itself, when it runs.
                Warning::NothingImported => {}
                Warning::NotesInMemory if !has_notes_store => {}
                warning => tracing::warn!(target: "lcm::settings", "{warning}"),
            }
        }
        let telemetry = Telemetry::new(&settings.reconciliation.metric_prefix);
        let made = match explicit {
            [Some(endpoint), Some(key), Some(secret)] => {
                let mut tuning = from_settings::tuning(&settings);
                if clock.is_some() {
                    // A fake cloud has no quota.
                    tuning.rate_factor = 1000.0;
                }
                let account = Account::with_endpoint(&endpoint, &key, &Secret::from(secret), tuning, &telemetry);
                block_on(py, async { from_settings::ports_with(&settings, account, &telemetry) })?
            }
            _ => block_on(py, from_settings::ports(&settings, &telemetry))?,
        };
        let mut ports = made.map_err(|error| config_error(py, &error))?;
        if let Some(clock) = clock {
            ports.clock = Arc::new(clock) as Arc<dyn Clock>;
        }
        if let Some(bridge) = control_plane {
            ports.control_plane = Arc::new(PythonControlPlane::new(bridge)?);
            if has_notes_store {
                let (inner, clock) = (Arc::clone(&ports.control_plane), Arc::clone(&ports.clock));
                // The etcd client must be created inside the runtime.
                let made = block_on(py, async { from_settings::with_notes(&settings, inner, clock) })?;
                ports.control_plane = made.map_err(|error| config_error(py, &error))?;
            }
        }
        if let Some(bridge) = compute {
            let compute = Arc::new(PythonCompute(Bridge::new(bridge)?));
            ports.compute = Arc::new(BatchingCompute::new(compute, BatchSettings::default(), telemetry.clone()));
        }
        if let Some(bridge) = metrics {
            ports.metrics = Arc::new(PythonMetrics(Bridge::new(bridge)?));
        }
        if let Some(bridge) = cml {
            ports.cml = Arc::new(PythonCml(Bridge::new(bridge)?));
        }
        if let Some(bridge) = events {
            let listener = Arc::new(PythonEvents(Bridge::new(bridge)?));
            ports.events = Arc::new(FanoutEvents::new([Arc::new(LogEvents) as Arc<dyn Events>, listener]));
        }
        let history = from_settings::history(&settings).map_err(|error| config_error(py, &error))?;
        // The records of a port written in Python show the operations.
        let requests = match control_plane {
            None => coordination(py, &settings, None)?,
            Some(_) => None,
        };
        let (guards, reconcilers, process) = (Guards::default(), Mutex::default(), std::process::id());
        Ok(Self { settings, ports, telemetry, history, requests, guards, reconcilers, process })
    }
}

impl Clients {
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn ports(&self) -> &Ports {
        &self.ports
    }

    /// The history that its reconciles are written to.
    pub(crate) fn history(&self) -> Option<&HistoryWriter> {
        self.history.as_ref()
    }

    /// Worker locks and gates of all reconciles on these ports.
    pub(crate) fn guards(&self) -> &Guards {
        &self.guards
    }

    pub(crate) fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// Returns the given policy, or that of the settings.
    pub(crate) fn policy(&self, policy: Option<&Bound<'_, PyAny>>) -> PyResult<lcm_sdk::Policy> {
        let from_settings = self.settings.policy();
        Ok(match native_policy(policy)? {
            None => from_settings,
            Some(policy) => {
                let mut policy = policy.get().policy.clone();
                // Callers seldom change the launch configuration: a policy without regions keeps that of the settings.
                if policy.regions.regions.is_empty() {
                    policy.regions.regions = from_settings.regions.regions;
                }
                policy.regions.default_region = policy.regions.default_region.or(from_settings.regions.default_region);
                policy
            }
        })
    }

    /// Returns the cached reconciler of a policy.
    pub(crate) fn reconciler(&self, py: Python<'_>, policy: Option<&Bound<'_, PyAny>>) -> PyResult<Reconciler> {
        if self.process != std::process::id() {
            return Err(forked(py));
        }
        let policy = self.policy(policy)?;
        let mut known = self.reconcilers.lock();
        if let Some(reconciler) = known.iter().find(|reconciler| *reconciler.policy() == policy) {
            return Ok(reconciler.clone());
        }
        let defaults = from_settings::cml_defaults(&self.settings);
        let mut builder = Reconciler::builder(self.ports.clone(), policy)
            .cml_defaults(defaults)
            .telemetry(self.telemetry.clone())
            .history(self.history.clone())
            .guards(&self.guards);
        if let Some(etcd) = &self.requests {
            builder = builder.license_requests(Arc::clone(etcd), self.settings.watch_prefixes());
        }
        let reconciler = builder.build().map_err(|error| config_error(py, &error))?;
        if known.len() == POLICIES {
            known.remove(0);
        }
        known.push(reconciler.clone());
        Ok(reconciler)
    }
}

/// `ConfigError` for invalid settings.
pub(crate) fn config_error(py: Python<'_>, error: &impl std::fmt::Display) -> PyErr {
    exception(py, "ConfigError", (error.to_string(),))
}

/// Returns the given coordination port, or etcd from the settings.
pub(crate) fn coordination(
    py: Python<'_>,
    settings: &Settings,
    own: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Arc<dyn Coordination>>> {
    if let Some(bridge) = own {
        return Ok(Some(Arc::new(PythonCoordination(Bridge::new(bridge)?))));
    }
    // The etcd client must be created inside the runtime.
    block_on(py, async { from_settings::coordination(settings) })?.map_err(|error| config_error(py, &error))
}
