//! Python class over `fake_cloud::FakeCloud`. Each method calls one of its methods.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use fake_cloud::admin::{ResetTo, parse_pace};
use fake_cloud::control_plane::{Input, Worker};
use fake_cloud::world::{Catalog, Instance, REGIONS, World};
use fake_cloud::{Clock, Scenario};
use lcm_sdk::Timestamp;
use parking_lot::RwLock;
use pyo3::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::convert::{to_python, to_value};
use crate::python::exception;
use crate::runtime::{block_on, forked};

/// A running fake cloud.
#[pyclass(frozen, module = "lcm._lcm")]
pub(crate) struct FakeCloud {
    cloud: RwLock<Option<fake_cloud::FakeCloud>>,
    process: u32,
}

#[pymethods]
impl FakeCloud {
    /// Starts a fake cloud on free ports.
    #[new]
    #[pyo3(signature = (clock, seed, delays, scenario=None, control_plane=None))]
    fn new(
        py: Python<'_>,
        clock: &str,
        seed: u64,
        delays: &str,
        scenario: Option<&str>,
        control_plane: Option<&str>,
    ) -> PyResult<Self> {
        let scenario = scenario.map(Scenario::find).transpose().map_err(|error| refused(py, error))?;
        let clock = Clock::new(parse_pace(clock).map_err(|hint| refused(py, hint))?);
        let delays = delays.parse().map_err(|error| refused(py, error))?;
        let generation = control_plane.map(str::parse).transpose().map_err(|error| refused(py, error))?;
        let builder = fake_cloud::FakeCloud::builder().clock(clock).seed(seed).delays(delays);
        let builder = builder.api_version(generation).scenario(scenario);
        let started = block_on(py, builder.start())?.map_err(|error| refused(py, error))?;
        Ok(Self { cloud: RwLock::new(Some(started)), process: std::process::id() })
    }

    /// Stops every service. Repeated calls have no effect.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        if self.process != std::process::id() {
            return Err(forked(py));
        }
        let running = self.cloud.write().take();
        running.map_or(Ok(()), |running| block_on(py, running.stop()))
    }

    #[getter]
    fn is_running(&self) -> bool {
        self.cloud.read().is_some()
    }

    /// Returns the URLs of the services.
    fn endpoints<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.show(py, |cloud| serde_json::to_value(cloud.endpoints()).unwrap_or_default())
    }

    /// Returns the environment variables that direct real clients and `lcm` to this cloud.
    fn environment<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.show(py, |cloud| {
            let endpoints = cloud.endpoints();
            let mut environment = endpoints.environment();
            environment["CML_PORT"] = endpoints.cml_port.to_string().into();
            environment["CML_CA_FILE"] = endpoints.cml_ca_file.to_string_lossy().into();
            environment["CML_DEFAULT_PASSWORD"] = fake_cloud::cml::Options::default().password.into();
            environment["AWS_REGION_CONFIGS"] = region_configs().to_string().into();
            environment
        })
    }

    fn now(&self, py: Python<'_>) -> PyResult<DateTime<Utc>> {
        self.with(py, fake_cloud::FakeCloud::now)
    }

    fn advance(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let step = Duration::try_from_secs_f64(seconds)
            .map_err(|_| refused(py, "seconds must be a number from 0 up that a clock can count to"))?;
        self.with(py, |cloud| cloud.world().clock().advance(step))?;
        self.settle(py)
    }

    /// Waits until every CML server matches the state of its instance.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        let handle = crate::runtime::runtime(py)?;
        py.detach(|| {
            let running = self.cloud.read();
            if let Some(cloud) = running.as_ref() {
                handle.block_on(cloud.settle());
            }
        });
        Ok(())
    }

    /// Restores the scenario of the start, or an empty cloud.
    fn reset(&self, py: Python<'_>, empty: bool) -> PyResult<()> {
        let to = if empty { ResetTo::Empty } else { ResetTo::Scenario };
        self.with(py, |cloud| cloud.reset(to))?.map_err(|error| refused(py, error))
    }

    fn run<'py>(&self, py: Python<'py>, region: &str, tags: Vec<(String, String)>) -> PyResult<Bound<'py, PyAny>> {
        let tags: Vec<_> = tags.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        self.call(py, |cloud| cloud.run_instance(region, &tags).map(|instance| shown(&instance, cloud.now())))
    }

    fn start_instance(&self, py: Python<'_>, region: &str, id: &str) -> PyResult<()> {
        self.with(py, |cloud| cloud.start_instance(region, id).map(drop))?.map_err(|error| refused(py, error))
    }

    fn stop_instance(&self, py: Python<'_>, region: &str, id: &str) -> PyResult<()> {
        self.with(py, |cloud| cloud.stop_instance(region, id).map(drop))?.map_err(|error| refused(py, error))
    }

    fn terminate_instance(&self, py: Python<'_>, region: &str, id: &str) -> PyResult<()> {
        self.with(py, |cloud| cloud.terminate_instance(region, id).map(drop))?.map_err(|error| refused(py, error))
    }

    fn tag(&self, py: Python<'_>, region: &str, id: &str, key: &str, value: &str) -> PyResult<()> {
        self.with(py, |cloud| cloud.tag_instance(region, id, key, value))?.map_err(|error| refused(py, error))
    }

    fn instances<'py>(&self, py: Python<'py>, region: &str) -> PyResult<Bound<'py, PyAny>> {
        self.show(py, |cloud| {
            let now = cloud.now();
            cloud.instances(region).iter().map(|instance| shown(instance, now)).collect()
        })
    }

    fn set_metric(
        &self,
        py: Python<'_>,
        region: &str,
        namespace: &str,
        name: &str,
        instance: &str,
        value: f64,
    ) -> PyResult<()> {
        self.with(py, |cloud| cloud.set_metric(region, namespace, name, instance, value))?
            .map_err(|error| refused(py, error))
    }

    fn inject(&self, py: Python<'_>, rule: &Bound<'_, PyAny>) -> PyResult<u64> {
        let rule = parsed(py, rule, "rule")?;
        self.with(py, |cloud| cloud.inject(rule))?.map_err(|error| refused(py, error))
    }

    fn clear_faults(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, fake_cloud::FakeCloud::clear_faults)
    }

    fn requests<'py>(&self, py: Python<'py>, filter: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let filter = parsed(py, filter, "filter")?;
        self.show(py, |cloud| serde_json::to_value(cloud.requests(&filter)).unwrap_or_default())
    }

    fn count(&self, py: Python<'_>, filter: &Bound<'_, PyAny>) -> PyResult<usize> {
        let filter = parsed(py, filter, "filter")?;
        self.with(py, |cloud| cloud.world().request_log().count(&filter))
    }

    fn forget_requests(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |cloud| cloud.world().request_log().clear())
    }

    fn add_worker<'py>(&self, py: Python<'py>, fields: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let fields = to_value(fields, "worker")?;
        self.call(py, |cloud| cloud.add_worker(fields).map(|worker| record(&worker)))
    }

    fn update_worker<'py>(&self, py: Python<'py>, id: &str, fields: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let fields = to_value(fields, "worker")?;
        self.call(py, |cloud| cloud.update_worker(id, fields).map(|worker| record(&worker)))
    }

    fn worker<'py>(&self, py: Python<'py>, id: &str) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, |cloud| cloud.worker(id).map(|worker| record(&worker)))
    }

    fn workers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.show(py, |cloud| cloud.workers().iter().map(|worker| record(worker)).collect())
    }

    fn drain<'py>(&self, py: Python<'py>, id: &str, reason: &str, requested_by: &str) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, |cloud| {
            let drained = cloud.records().drain(id, None, reason, requested_by);
            drained.map(|worker| record(&worker))
        })
    }

    fn cancel_drain<'py>(
        &self,
        py: Python<'py>,
        id: &str,
        reason: &str,
        cancelled_by: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, |cloud| {
            let cancelled = cloud.records().cancel_drain(id, None, reason, cancelled_by);
            cancelled.map(|worker| record(&worker))
        })
    }

    fn add_session<'py>(&self, py: Python<'py>, fields: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let fields = to_value(fields, "session")?;
        self.call(py, |cloud| cloud.add_session(fields).map(|session| object(&session)))
    }

    fn move_session<'py>(&self, py: Python<'py>, id: &str, status: &str) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, |cloud| {
            let input = Input::from_value(json!({"status": status}))?;
            cloud.records().transition_session(id, &input).map(|session| object(&session))
        })
    }

    fn sessions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.show(py, |cloud| cloud.sessions().iter().map(object).collect())
    }

    fn add_template<'py>(&self, py: Python<'py>, fields: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let fields = to_value(fields, "template")?;
        self.call(py, |cloud| cloud.add_template(fields).map(|template| object(&template)))
    }

    fn audit<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.show(py, |cloud| cloud.audit().iter().map(object).collect())
    }

    fn events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.show(py, |cloud| cloud.events().iter().map(object).collect())
    }
}

impl FakeCloud {
    fn with<T>(&self, py: Python<'_>, act: impl FnOnce(&fake_cloud::FakeCloud) -> T) -> PyResult<T> {
        if self.process != std::process::id() {
            return Err(forked(py));
        }
        let running = self.cloud.read();
        running.as_ref().map(act).ok_or_else(|| refused(py, "the fake cloud is not running"))
    }

    fn show<'py>(
        &self,
        py: Python<'py>,
        act: impl FnOnce(&fake_cloud::FakeCloud) -> Value,
    ) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.with(py, act)?)
    }

    fn call<'py, E: std::fmt::Display>(
        &self,
        py: Python<'py>,
        act: impl FnOnce(&fake_cloud::FakeCloud) -> Result<Value, E>,
    ) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.with(py, act)?.map_err(|error| refused(py, error))?)
    }

    /// Returns the clock of the cloud as a port.
    pub(crate) fn clock(&self, py: Python<'_>) -> PyResult<CloudClock> {
        self.with(py, |cloud| CloudClock(Arc::clone(cloud.world())))
    }
}

/// Clock of a fake cloud.
pub(crate) struct CloudClock(Arc<World>);

impl lcm_sdk::ports::Clock for CloudClock {
    fn now(&self) -> Timestamp {
        self.0.clock().now()
    }
}

fn refused(py: Python<'_>, error: impl std::fmt::Display) -> PyErr {
    exception(py, "FakeCloudError", (error.to_string(),))
}

fn parsed<T: DeserializeOwned>(py: Python<'_>, given: &Bound<'_, PyAny>, what: &str) -> PyResult<T> {
    serde_json::from_value(to_value(given, what)?).map_err(|error| refused(py, format!("{what}: {error}")))
}

fn record(worker: &Worker) -> Value {
    Value::Object(worker.fields().clone())
}

fn object(fields: &Arc<Map<String, Value>>) -> Value {
    Value::Object(Map::clone(fields))
}

fn shown(instance: &Instance, now: DateTime<Utc>) -> Value {
    json!({
        "id": instance.id,
        "state": instance.state(now).name(),
        "public_ip": instance.public_ip(now),
        "private_ip": instance.private_ip,
        "launched_at": instance.launched_at,
        "client_token": instance.client_token.as_deref(),
        "instance_type": &*instance.instance_type,
        "image_id": &*instance.image_id,
        "tags": &*instance.tags,
    })
}

/// Returns the launch configuration of every region.
fn region_configs() -> Value {
    let config = |region: &&str| {
        let catalog = Catalog::for_region(region);
        let subnet = catalog.subnets.first().map(|subnet| subnet.id.clone());
        let group = catalog.groups.first().map(|group| group.id.clone());
        ((*region).to_owned(), json!({"subnet_id": subnet, "security_group_ids": group.as_slice()}))
    };
    Value::Object(REGIONS.iter().map(config).collect())
}
