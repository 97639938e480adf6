//! Python class over `fake_cloud::FakeCloud`. Each method calls one of its methods.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use fake_cloud::admin::{ResetTo, parse_pace};
use fake_cloud::control_plane::{Input, Worker};
use fake_cloud::world::{ACCOUNT, Account, Catalog, IMAGE_OWNER, Image, Instance, REGIONS, World};
use fake_cloud::{
    Advancer, Clock, LeaseClock, NotIdle, RequestFilter, Scenario, Secrets, Snapshot, TimeFollower, with_suggestion,
};
use lcm_sdk::Timestamp;
use lcm_sdk::controller::Resource;
use parking_lot::RwLock;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::controller::Controller;
use crate::convert::{to_python, to_value};
use crate::python::exception;
use crate::resources::ResourceController;
use crate::runtime::{Task, block_on, forked, spawn};

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
    #[pyo3(signature = (clock, seed, delays, leases, scenario: "str | Mapping[str, Any] | None"=None, control_plane=None, restore=None))]
    #[expect(clippy::too_many_arguments, reason = "one for each option of a cloud")]
    fn new(
        py: Python<'_>,
        clock: &str,
        seed: u64,
        delays: &str,
        leases: &str,
        scenario: Option<&Bound<'_, PyAny>>,
        control_plane: Option<&str>,
        restore: Option<&str>,
    ) -> PyResult<Self> {
        let scenario = scenario.map(|given| read_scenario(py, given)).transpose()?;
        let leases: LeaseClock = leases.parse().map_err(|error| refused(py, error))?;
        let clock = Clock::new(parse_pace(clock).map_err(|hint| refused(py, hint))?);
        let delays = delays.parse().map_err(|error| refused(py, error))?;
        let generation = control_plane.map(str::parse).transpose().map_err(|error| refused(py, error))?;
        let snapshot = restore.map(Snapshot::parse).transpose().map_err(|error| refused(py, error))?;
        let builder = fake_cloud::FakeCloud::builder().restore(snapshot).clock(clock).seed(seed).delays(delays);
        let builder = builder.lease_clock(leases).control_plane(generation).scenario(scenario);
        let started = block_on(py, builder.start())?.map_err(|error| refused(py, error))?;
        Ok(Self { cloud: RwLock::new(Some(started)), process: std::process::id() })
    }

    /// Returns the whole cloud as JSON.
    fn snapshot(&self, py: Python<'_>, secrets: bool) -> PyResult<String> {
        let secrets = if secrets { Secrets::Included } else { Secrets::Masked };
        let taken =
            self.with(py, |cloud| py.detach(|| cloud.snapshot(secrets).map(|snapshot| snapshot.to_string())))?;
        taken.map_err(|error| refused(py, error))
    }

    /// Replaces the whole cloud, and returns the secrets that the snapshot does not hold.
    #[pyo3(signature = (snapshot) -> "list[dict[str, Any]]")]
    fn restore<'py>(&self, py: Python<'py>, snapshot: &str) -> PyResult<Bound<'py, PyAny>> {
        let snapshot = Snapshot::parse(snapshot).map_err(|error| refused(py, error))?;
        let handle = crate::runtime::runtime(py)?;
        let restored = self.with(py, |cloud| py.detach(|| handle.block_on(cloud.restore(&snapshot))))?;
        to_python(py, &json!(restored.map_err(|error| refused(py, error))?.masked))
    }

    /// Returns the secrets that the snapshot did not hold from which the cloud started.
    #[pyo3(signature = () -> "list[dict[str, Any]]")]
    fn masked<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.show(py, |cloud| json!(cloud.restored().masked))
    }

    /// Starts another cloud that goes on from this one.
    fn branch(&self, py: Python<'_>) -> PyResult<Self> {
        let handle = crate::runtime::runtime(py)?;
        let started = self.with(py, |cloud| py.detach(|| handle.block_on(cloud.branch())))?;
        let started = started.map_err(|error| refused(py, error))?;
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
    #[pyo3(signature = () -> "dict[str, Any]")]
    fn endpoints<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.show(py, |cloud| serde_json::to_value(cloud.endpoints()).unwrap_or_default())
    }

    /// Returns the environment variables that direct real clients and `lcm` to this cloud.
    #[pyo3(signature = () -> "dict[str, str]")]
    fn environment<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.show(py, |cloud| {
            let endpoints = cloud.endpoints();
            let mut environment = endpoints.environment();
            environment["CML_PORT"] = endpoints.cml_port.to_string().into();
            environment["CML_CA_FILE"] = endpoints.cml_ca_file.to_string_lossy().into();
            environment["AWS_REGION_CONFIGS"] = region_configs(ACCOUNT).to_string().into();
            environment
        })
    }

    fn now(&self, py: Python<'_>) -> PyResult<DateTime<Utc>> {
        self.with(py, fake_cloud::FakeCloud::now)
    }

    /// Advances the clock, with the timers of controllers.
    #[pyo3(signature = (seconds, controllers: "Sequence[Controller | ResourceController]"))]
    fn advance(&self, py: Python<'_>, seconds: f64, controllers: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let (advancer, step, followers) = self.journey(py, seconds, &controllers)?;
        let moved = block_on(py, async move { advance(&advancer, step, &followers).await })?;
        moved.map_err(|error| refused(py, error))
    }

    /// Advances the clock as `advance` does, then calls `done(None, None)`.
    #[pyo3(signature = (
        seconds,
        controllers: "Sequence[Controller | ResourceController]",
        done: "Callable[[None, BaseException | None], None]",
    ))]
    fn start_advance(
        &self,
        py: Python<'_>,
        seconds: f64,
        controllers: Vec<Bound<'_, PyAny>>,
        done: Py<PyAny>,
    ) -> PyResult<Task> {
        let (advancer, step, followers) = self.journey(py, seconds, &controllers)?;
        spawn(py, done, async move { advance(&advancer, step, &followers).await }, |py, moved| {
            moved.map_err(|error| refused(py, error))?;
            Ok(py.None())
        })
    }

    /// Returns the region and the id of an instance, by its id or name, or by its worker.
    #[pyo3(signature = (region, instance) -> "tuple[str, str]")]
    fn find_instance(&self, py: Python<'_>, region: Option<&str>, instance: &str) -> PyResult<(String, String)> {
        self.with(py, |cloud| cloud.find_instance(region, instance))?.map_err(|error| refused(py, error))
    }

    /// Describes the cloud in a few lines.
    fn summary(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, fake_cloud::FakeCloud::summary)
    }

    /// Returns why a request was not made as often as expected; None if it was.
    #[pyo3(signature = (filter: "Mapping[str, Any]", times) -> "str | None")]
    fn check_called(
        &self,
        py: Python<'_>,
        filter: &Bound<'_, PyAny>,
        times: Option<usize>,
    ) -> PyResult<Option<String>> {
        let filter = self.checked_filter(py, filter)?;
        self.with(py, |cloud| cloud.check_called(&filter, times).err())
    }

    /// Returns the latest requests, one line each, and the number of all.
    fn request_lines(&self, py: Python<'_>, limit: usize) -> PyResult<(Vec<String>, u64)> {
        self.with(py, |cloud| {
            let filter = RequestFilter { limit: Some(limit), ..RequestFilter::default() };
            let lines = cloud.requests(&filter).iter().map(ToString::to_string).collect();
            (lines, cloud.world().request_log().total())
        })
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

    /// Adds an account and returns the environment variables that replace those of the default account.
    #[pyo3(signature = (id, access_key) -> "dict[str, str]")]
    fn add_account<'py>(&self, py: Python<'py>, id: &str, access_key: &str) -> PyResult<Bound<'py, PyAny>> {
        let account = Account::new(id, access_key).map_err(|error| refused(py, error))?;
        self.show(py, |cloud| {
            cloud.add_account(&account);
            json!({
                "AWS_ACCESS_KEY_ID": account.access_key(),
                "AWS_SECRET_ACCESS_KEY": "fake",
                "AWS_REGION_CONFIGS": region_configs(account.id()).to_string(),
            })
        })
    }

    #[pyo3(signature = (region, tags: "Sequence[tuple[str, str]]", account=None) -> "dict[str, Any]")]
    fn run<'py>(
        &self,
        py: Python<'py>,
        region: &str,
        tags: Vec<(String, String)>,
        account: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let tags: Vec<_> = tags.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let account = account.unwrap_or(ACCOUNT);
        self.call(py, |cloud| {
            cloud.run_instance_in(account, region, &tags).map(|instance| shown(&instance, cloud.now()))
        })
    }

    #[expect(clippy::too_many_arguments, reason = "one for each field of an image")]
    fn add_image(
        &self,
        py: Python<'_>,
        region: &str,
        id: &str,
        name: &str,
        creation_date: Option<DateTime<Utc>>,
        owner: Option<&str>,
        sharing: &str,
    ) -> PyResult<()> {
        let sharing = sharing.parse().map_err(|error| refused(py, error))?;
        self.with(py, |cloud| {
            let creation_date = creation_date.unwrap_or_else(|| cloud.now());
            let image = Image {
                id: id.to_owned(),
                name: name.to_owned(),
                description: name.to_owned(),
                creation_date: creation_date.to_rfc3339_opts(SecondsFormat::Millis, true),
                owner: owner.unwrap_or(IMAGE_OWNER).to_owned(),
                sharing,
                tags: Default::default(),
            };
            cloud.world().console_put_image(region, image)
        })?
        .map_err(|error| refused(py, error))
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

    #[pyo3(signature = (region) -> "list[dict[str, Any]]")]
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

    #[pyo3(signature = (rule: "Mapping[str, Any]"))]
    fn inject(&self, py: Python<'_>, rule: &Bound<'_, PyAny>) -> PyResult<u64> {
        let rule = parsed(py, rule, "rule")?;
        self.with(py, |cloud| cloud.inject(rule))?.map_err(|error| refused(py, error))
    }

    fn clear_faults(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, fake_cloud::FakeCloud::clear_faults)
    }

    #[pyo3(signature = (filter: "Mapping[str, Any]") -> "list[dict[str, Any]]")]
    fn requests<'py>(&self, py: Python<'py>, filter: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let filter = self.checked_filter(py, filter)?;
        self.show(py, |cloud| serde_json::to_value(cloud.requests(&filter)).unwrap_or_default())
    }

    #[pyo3(signature = (filter: "Mapping[str, Any]"))]
    fn count(&self, py: Python<'_>, filter: &Bound<'_, PyAny>) -> PyResult<usize> {
        let filter = self.checked_filter(py, filter)?;
        self.with(py, |cloud| cloud.count_matching(&filter))
    }

    fn forget_requests(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |cloud| cloud.world().request_log().clear())
    }

    #[pyo3(signature = (fields: "Mapping[str, Any]") -> "dict[str, Any]")]
    fn add_worker<'py>(&self, py: Python<'py>, fields: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let fields = to_value(fields, "worker")?;
        self.call(py, |cloud| cloud.add_worker(fields).map(|worker| record(&worker)))
    }

    #[pyo3(signature = (id, fields: "Mapping[str, Any]") -> "dict[str, Any]")]
    fn update_worker<'py>(&self, py: Python<'py>, id: &str, fields: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let fields = to_value(fields, "worker")?;
        self.call(py, |cloud| cloud.update_worker(id, fields).map(|worker| record(&worker)))
    }

    #[pyo3(signature = (id) -> "dict[str, Any]")]
    fn worker<'py>(&self, py: Python<'py>, id: &str) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, |cloud| cloud.worker(id).map(|worker| record(&worker)))
    }

    #[pyo3(signature = () -> "list[dict[str, Any]]")]
    fn workers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.show(py, |cloud| cloud.workers().iter().map(|worker| record(worker)).collect())
    }

    #[pyo3(signature = (id, reason, requested_by) -> "dict[str, Any]")]
    fn drain<'py>(&self, py: Python<'py>, id: &str, reason: &str, requested_by: &str) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, |cloud| {
            let drained = cloud.records().drain(&cloud.records().worker_id(id)?, None, reason, requested_by);
            drained.map(|worker| record(&worker))
        })
    }

    #[pyo3(signature = (id, reason, cancelled_by) -> "dict[str, Any]")]
    fn cancel_drain<'py>(
        &self,
        py: Python<'py>,
        id: &str,
        reason: &str,
        cancelled_by: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, |cloud| {
            let cancelled = cloud.records().cancel_drain(&cloud.records().worker_id(id)?, None, reason, cancelled_by);
            cancelled.map(|worker| record(&worker))
        })
    }

    #[pyo3(signature = (fields: "Mapping[str, Any]") -> "dict[str, Any]")]
    fn add_session<'py>(&self, py: Python<'py>, fields: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let fields = to_value(fields, "session")?;
        self.call(py, |cloud| cloud.add_session(fields).map(|session| object(&session)))
    }

    #[pyo3(signature = (id, status) -> "dict[str, Any]")]
    fn move_session<'py>(&self, py: Python<'py>, id: &str, status: &str) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, |cloud| {
            let input = Input::from_value(json!({"status": status}))?;
            cloud.records().transition_session(id, &input).map(|session| object(&session))
        })
    }

    #[pyo3(signature = () -> "list[dict[str, Any]]")]
    fn sessions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.show(py, |cloud| cloud.sessions().iter().map(object).collect())
    }

    #[pyo3(signature = (fields: "Mapping[str, Any]") -> "dict[str, Any]")]
    fn add_template<'py>(&self, py: Python<'py>, fields: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let fields = to_value(fields, "template")?;
        self.call(py, |cloud| cloud.add_template(fields).map(|template| object(&template)))
    }

    #[pyo3(signature = () -> "list[dict[str, Any]]")]
    fn audit<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.show(py, |cloud| cloud.audit().iter().map(object).collect())
    }

    #[pyo3(signature = () -> "list[dict[str, Any]]")]
    fn events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.show(py, |cloud| cloud.events().iter().map(object).collect())
    }
}

impl FakeCloud {
    /// Reads a filter of the request log. Operations, regions and subjects that do not exist are refused.
    fn checked_filter(&self, py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<RequestFilter> {
        let filter = parsed(py, given, "filter")?;
        self.with(py, |cloud| cloud.checked_filter(filter))?.map_err(|error| refused(py, error))
    }

    /// Reads the arguments of `advance`.
    fn journey(
        &self,
        py: Python<'_>,
        seconds: f64,
        controllers: &[Bound<'_, PyAny>],
    ) -> PyResult<(Advancer, Duration, Followers)> {
        let step = Duration::try_from_secs_f64(seconds)
            .map_err(|_| refused(py, "seconds must be a number from 0 up that a clock can count to"))?;
        let followers = controllers.iter().map(follower).collect::<PyResult<_>>()?;
        Ok((self.with(py, fake_cloud::FakeCloud::advancer)?, step, followers))
    }

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
    let invalid = |error: serde_json::Error| refused(py, with_suggestion(format!("{what}: {error}")));
    serde_json::from_value(to_value(given, what)?).map_err(invalid)
}

/// A controller whose timers are moved with the clock.
struct Followed<R: Resource>(lcm_sdk::controller::Controller<R>);

impl<R: Resource> TimeFollower for Followed<R> {
    fn idle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.0.idle())
    }

    fn next_due(&self) -> Option<Duration> {
        self.0.next_due()
    }

    fn skip(&self, time: Duration) {
        self.0.skip(time);
    }
}

/// Reads a controller that moves with the clock.
fn follower(given: &Bound<'_, PyAny>) -> PyResult<Box<dyn TimeFollower>> {
    if let Ok(controller) = given.cast::<Controller>() {
        return Ok(Box::new(Followed(controller.get().controller().clone())));
    }
    if let Ok(controller) = given.cast::<ResourceController>() {
        return Ok(Box::new(Followed(controller.get().controller().clone())));
    }
    Err(PyTypeError::new_err(format!("controllers contains {given}; accepted: Controller and ResourceController")))
}

type Followers = Vec<Box<dyn TimeFollower>>;

async fn advance(advancer: &Advancer, step: Duration, followers: &Followers) -> Result<(), NotIdle> {
    let followers: Vec<&dyn TimeFollower> = followers.iter().map(AsRef::as_ref).collect();
    if followers.is_empty() {
        advancer.advance(step).await;
        return Ok(());
    }
    advancer.advance_with(step, &followers).await
}

/// Reads a scenario: the name of a built-in one, a path, or the content of a file.
fn read_scenario(py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<Scenario> {
    let read = match given.extract::<String>() {
        Ok(name) => Scenario::find(&name),
        // JSON is YAML, too.
        Err(_) => Scenario::parse("scenario", &to_value(given, "scenario")?.to_string()),
    };
    read.map_err(|error| refused(py, error))
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

/// Returns the launch configuration of an account in every region.
fn region_configs(account: &str) -> Value {
    let config = |region: &&str| {
        let catalog = Catalog::for_account(region, account);
        let subnet = catalog.subnets.first().map(|subnet| subnet.id.clone());
        let group = catalog.groups.first().map(|group| group.id.clone());
        ((*region).to_owned(), json!({"subnet_id": subnet, "security_group_ids": group.as_slice()}))
    };
    Value::Object(REGIONS.iter().map(config).collect())
}
