//! Clients for everything that a pass asks, as settings say.

use std::collections::BTreeMap;
use std::sync::Arc;

use lcm_sdk::Secret;
use lcm_sdk::adapters::aws::{Account, CloudWatch, Ec2, Tuning};
use lcm_sdk::adapters::cml::{self, CmlClient, Security};
use lcm_sdk::adapters::control_plane::{self, ControlPlaneClient};
use lcm_sdk::adapters::events::{ControlPlaneEvents, Fanout, LogEvents};
use lcm_sdk::assembly::{self, AssemblyError};
use lcm_sdk::ports::{Clock, Events, Ports, SystemClock};
use lcm_sdk::runtime::batcher::{BatchSettings, Batched};
use lcm_sdk::runtime::reconcile::Reconciler;
use lcm_sdk::runtime::telemetry::Telemetry;
use lcm_sdk::settings::Settings;
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::bridge::Bridge;
use crate::compute::PythonCompute;
use crate::door::{block_on, forked};
use crate::fake_cloud::FakeCloud;
use crate::policy::Policy;
use crate::ports::{PythonControlPlane, PythonEvents};
use crate::python::exception;

/// Different policies remembered at the same time. Passes under one policy share what they remember of a worker.
const POLICIES: usize = 8;

/// Clients for everything that a pass asks.
#[pyclass(frozen, module = "lcm._lcm")]
pub(crate) struct Clients {
    settings: Settings,
    ports: Ports,
    telemetry: Telemetry,
    reconcilers: Mutex<Vec<Reconciler>>,
    process: u32,
}

#[pymethods]
impl Clients {
    /// Clients as these variables say. AWS is reached as the process's own environment says, unless the variables
    /// name an endpoint and credentials. `clock` is the fake cloud whose time counts.
    #[new]
    #[pyo3(signature = (variables, clock=None, control_plane=None, compute=None, events=None))]
    fn new(
        py: Python<'_>,
        variables: BTreeMap<String, String>,
        clock: Option<&Bound<'_, FakeCloud>>,
        control_plane: Option<Py<PyAny>>,
        compute: Option<Py<PyAny>>,
        events: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let clock = clock.map(|cloud| cloud.get().clock(py)).transpose()?;
        let explicit = ["AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
        let explicit = explicit.map(|name| variables.get(name).cloned());
        let settings = Settings::from_map(variables).map_err(|error| config_error(py, &error))?;
        crate::logs::listen(py)?;
        for warning in settings.warnings() {
            tracing::warn!(target: "lcm::settings", "{warning}");
        }
        let telemetry = Telemetry::new(&settings.reconciliation.metric_prefix);
        let made = match explicit {
            [Some(endpoint), Some(key), Some(secret)] => {
                // A fake cloud has no quota to be careful with.
                let speed = if clock.is_some() { 1000.0 } else { 1.0 };
                let tuning = Tuning { speed, ..Tuning::default() };
                let account = Account::at(&endpoint, &key, &Secret::from(secret), tuning, &telemetry);
                block_on(py, async { ports_at(account, &settings, &telemetry) })?
            }
            _ => block_on(py, assembly::ports(&settings, &telemetry))?,
        };
        let mut ports = made.map_err(|error| config_error(py, &error))?;
        if let Some(clock) = clock {
            ports.clock = Arc::new(clock) as Arc<dyn Clock>;
        }
        if let Some(bridge) = control_plane {
            ports.control_plane = Arc::new(PythonControlPlane(Bridge::new(bridge)));
        }
        if let Some(bridge) = compute {
            ports.compute = Arc::new(PythonCompute(Bridge::new(bridge)));
        }
        if let Some(bridge) = events {
            ports.events = Arc::new(Fanout::new([
                Arc::new(LogEvents) as Arc<dyn Events>,
                Arc::new(PythonEvents(Bridge::new(bridge))),
            ]));
        }
        let (reconcilers, process) = (Mutex::default(), std::process::id());
        Ok(Self { settings, ports, telemetry, reconcilers, process })
    }
}

impl Clients {
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn ports(&self) -> &Ports {
        &self.ports
    }

    pub(crate) fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// The policy given, or that of the settings.
    pub(crate) fn policy(&self, policy: Option<&Bound<'_, Policy>>) -> lcm_sdk::Policy {
        let from_settings = self.settings.policy();
        match policy {
            None => from_settings,
            Some(policy) => {
                let mut policy = policy.get().policy.clone();
                // Where workers are launched is seldom what a caller wants to try another value of.
                if policy.regions.regions.is_empty() {
                    policy.regions.regions = from_settings.regions.regions;
                }
                policy.regions.default_region = policy.regions.default_region.or(from_settings.regions.default_region);
                policy
            }
        }
    }

    /// The reconciler for a policy: the same one for the same policy.
    pub(crate) fn reconciler(&self, py: Python<'_>, policy: Option<&Bound<'_, Policy>>) -> PyResult<Reconciler> {
        if self.process != std::process::id() {
            return Err(forked(py));
        }
        let policy = self.policy(policy);
        let mut known = self.reconcilers.lock();
        if let Some(reconciler) = known.iter().find(|reconciler| *reconciler.policy() == policy) {
            return Ok(reconciler.clone());
        }
        let defaults = assembly::cml_defaults(&self.settings);
        let reconciler = Reconciler::configured(self.ports.clone(), policy, defaults, self.telemetry.clone());
        if known.len() == POLICIES {
            known.remove(0);
        }
        known.push(reconciler.clone());
        Ok(reconciler)
    }
}

/// The real adapters with AWS at an endpoint of its own. The environment of the process is not looked at, nor is the
/// metadata service of the machine, which the AWS SDK asks for a region wherever none is configured.
fn ports_at(account: Account, settings: &Settings, telemetry: &Telemetry) -> Result<Ports, AssemblyError> {
    let client = |whom| move |source| AssemblyError::Client { whom, source };
    let security = match (&settings.cml.cml_ca_file, settings.cml.cml_verify_tls) {
        (_, false) => Security::Unverified,
        (Some(file), true) => Security::VerifiedWith(file.clone()),
        (None, true) => Security::Verified,
    };
    let cml = cml::Options {
        security,
        port: settings.cml.cml_port,
        timeout: settings.cml.cml_timeout,
        ..cml::Options::default()
    };
    let key = settings.control_plane.control_plane_api_key.clone().unwrap_or_else(|| Secret::from(""));
    let mut options = control_plane::Options::new(&settings.control_plane.control_plane_api_url, key);
    options.timeout = settings.control_plane.control_plane_api_timeout;
    options.retries.truncate(settings.control_plane.control_plane_api_retries as usize);
    let control_plane = Arc::new(ControlPlaneClient::new(options).map_err(client("the control plane"))?);
    let told: Arc<dyn Events> = Arc::new(ControlPlaneEvents::new(Arc::clone(&control_plane)));
    let ec2 = Arc::new(Ec2::new(account.clone()));
    Ok(Ports {
        compute: Arc::new(Batched::new(ec2, BatchSettings::default(), telemetry.clone())),
        metrics: Arc::new(CloudWatch::new(account)),
        cml: Arc::new(CmlClient::new(cml).map_err(client("CML"))?),
        control_plane,
        events: Arc::new(Fanout::new([Arc::new(LogEvents) as Arc<dyn Events>, told])),
        clock: Arc::new(SystemClock),
    })
}

/// Settings that cannot be used.
pub(crate) fn config_error(py: Python<'_>, error: &impl std::fmt::Display) -> PyErr {
    exception(py, "ConfigError", (error.to_string(),))
}
