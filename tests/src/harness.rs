//! Harness of the stories and the demo: a fake cloud, the real providers and controllers on top.

use std::sync::Arc;
use std::time::Duration;

use fake_cloud::control_plane::{Generation, Input, LicenseOperation, LicenseStep};
use fake_cloud::world::{Catalog, Delays, IMAGE_OWNER, World};
use fake_cloud::{FakeCloud, FakeCloudBuilder, Pace, Service};
use lcm_sdk::controller::{ControllerConfig, ElectionConfig, Shutdown, StartupConfig, WatchConfig};
use lcm_sdk::lifecycle::{Changes, ImageOwners};
use lcm_sdk::ports::{Clock, ControlPlane, Coordination, DiscoveryFilter, Events, Fence, Ports};
use lcm_sdk::providers::aws::{Account, CloudWatch, Ec2, Tuning};
use lcm_sdk::providers::cml::{CmlClient, CmlOptions, Security};
use lcm_sdk::providers::control_plane::{ControlPlaneClient, ControlPlaneOptions};
use lcm_sdk::providers::etcd::{Etcd, EtcdNotes, EtcdOptions};
use lcm_sdk::providers::events::{ControlPlaneEvents, FanoutEvents, LogEvents};
use lcm_sdk::providers::notes::NotesControlPlane;
use lcm_sdk::reconciler::{CmlDefaults, Mode, ReconcileResult, Reconciler};
use lcm_sdk::resilience::{BatchSettings, BatchingCompute};
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{Discovery, DiscoveryConfig, OneSweep, WorkerController, WorkerControllerConfig};
use lcm_sdk::{Patch, Policy, RegionConfig, RegionConfigs, Secret, Timestamp, Worker, WorkerStatus};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::log_capture;
use crate::recorded::{RecordedAudits, RecordedEvents};

/// Region of every instance.
pub const REGION: &str = "us-east-1";
/// Access key of the default account.
pub const ACCESS_KEY: &str = "fake";
/// Secret key of the AWS credentials.
pub const AWS_SECRET: &str = "aws-secret-access-key";
/// Password of every CML server.
pub const CML_PASSWORD: &str = "cml-secret-password";

/// A fake cloud with a reconciler over the real providers. Decisions follow the cloud's clock.
///
/// Dropping it fails the test if a secret was logged, unless it was started with [`Harness::without_log_capture`].
pub struct Harness {
    /// The cloud, for requests that bypass the providers.
    pub cloud: FakeCloud,
    /// Policy of the reconciler and of every controller started here.
    pub policy: Policy,
    /// Counters of the reconciler.
    pub telemetry: Telemetry,
    /// Providers of the reconciler.
    pub ports: Ports,
    reconciler: Reconciler,
    access_key: String,
    image_owners: Vec<String>,
    captures_logs: bool,
}

impl Harness {
    /// Starts a cloud on a manual clock.
    pub async fn with_manual_clock(generation: Generation) -> Self {
        Self::start(FakeCloud::builder().control_plane(generation).pace(Pace::Manual)).await
    }

    /// Starts a cloud on the real clock, in which instances change state without a delay.
    pub async fn with_real_clock(generation: Generation) -> Self {
        let harness = Self::start(FakeCloud::builder().control_plane(generation).delays(Delays::none())).await;
        harness.with_policy(|policy| policy.drain_settle = Duration::from_millis(500))
    }

    /// Starts a cloud and captures the logs of this process.
    pub async fn start(builder: FakeCloudBuilder) -> Self {
        log_capture::install();
        let mut harness = Self::without_log_capture(builder).await;
        harness.captures_logs = true;
        harness
    }

    /// Starts a cloud and leaves the logs alone.
    ///
    /// # Panics
    /// If the cloud does not start.
    pub async fn without_log_capture(builder: FakeCloudBuilder) -> Self {
        let builder = builder.cml(|cml| cml.password = CML_PASSWORD.to_owned());
        let cloud = builder.start().await.expect("started");
        let policy = Policy { regions: regions(), ..Policy::default() };
        let telemetry = Telemetry::default();
        let image_owners = vec![IMAGE_OWNER.to_owned()];
        let ports = ports(&cloud, &telemetry, ACCESS_KEY, &image_owners);
        let reconciler = reconciler(&cloud, ports.clone(), policy.clone(), telemetry.clone());
        let access_key = ACCESS_KEY.to_owned();
        Self { cloud, policy, telemetry, ports, reconciler, access_key, image_owners, captures_logs: false }
    }

    /// Changes the policy.
    pub fn with_policy(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        change(&mut self.policy);
        let (ports, policy, telemetry) = (self.ports.clone(), self.policy.clone(), self.telemetry.clone());
        self.reconciler = reconciler(&self.cloud, ports, policy, telemetry);
        self
    }

    /// Replaces the reconciler by one with another access key, as after a deployment.
    pub fn with_access_key(mut self, access_key: &str) -> Self {
        access_key.clone_into(&mut self.access_key);
        self.with_new_ports()
    }

    /// Replaces the reconciler by one that launches AMIs of these owners only.
    pub fn with_image_owners<const N: usize>(mut self, owners: [&str; N]) -> Self {
        self.image_owners = owners.map(str::to_owned).to_vec();
        self.with_new_ports()
    }

    fn with_new_ports(mut self) -> Self {
        self.ports = ports(&self.cloud, &self.telemetry, &self.access_key, &self.image_owners);
        self.with_policy(|_| {})
    }

    /// The reconciler of this harness.
    pub fn reconciler(&self) -> &Reconciler {
        &self.reconciler
    }

    /// Adds a worker record; `fields` override the defaults.
    pub fn add_worker(&self, id: &str, fields: Value) {
        let mut record = json!({
            "id": id, "name": id, "status": "pending", "template_name": "metal", "aws_region": REGION,
            "cml_username": "admin", "cml_password": CML_PASSWORD,
        });
        let record_fields = record.as_object_mut().expect("an object");
        record_fields.extend(fields.as_object().expect("an object").clone());
        self.cloud.add_worker(record).expect("a valid record");
    }

    /// Adds a running worker with its instance and returns the instance id.
    pub async fn add_running_worker(&self, id: &str) -> String {
        let instance = self.cloud.run_instance(REGION, &[("lcm:worker_id", id)]).expect("launched").id.clone();
        self.cloud.advance(Duration::from_secs(60)).await;
        self.add_worker(id, json!({"status": "running", "desired_status": "running", "ec2_instance_id": instance}));
        instance
    }

    /// The record as the control plane client reads it.
    pub async fn worker(&self, id: &str) -> Worker {
        self.ports.control_plane.worker(&id.into()).await.expect("a response").expect("an existing worker")
    }

    /// Status in the record.
    pub async fn status(&self, id: &str) -> WorkerStatus {
        self.worker(id).await.status
    }

    /// Reconciles the current record once.
    pub async fn reconcile(&self, id: &str) -> ReconcileResult {
        let worker = self.worker(id).await;
        let result = self.reconciler.reconcile(&worker).await;
        self.deliver(&self.reconciler).await;
        result
    }

    /// Waits until the events and audits of earlier reconciles are delivered or have failed.
    pub async fn deliver(&self, reconciler: &Reconciler) {
        let _left = reconciler.flush(Duration::from_secs(5)).await;
    }

    /// Reconciles every 10 s of the cloud's clock until the worker has a status; panics after 40 rounds.
    pub async fn reconcile_until(&self, id: &str, status: WorkerStatus) {
        let mut history = Vec::new();
        for _ in 0..40 {
            let result = self.reconcile(id).await;
            history.push(format!("{} → {}: {}", result.from_status, result.to_status, result.reason));
            if self.status(id).await == status {
                return;
            }
            self.cloud.advance(Duration::from_secs(10)).await;
        }
        panic!("{id} never became {status}:\n{}", history.join("\n"));
    }

    /// Requests a license registration, as an operator.
    pub fn request_registration(&self, worker: &str, token: &str) {
        self.request_license(worker, LicenseOperation::Register, json!({"token": token}));
    }

    /// Requests that a new token replaces the registered one, as an operator.
    pub fn request_reregistration(&self, worker: &str, token: &str) {
        self.request_license(worker, LicenseOperation::Register, json!({"token": token, "reregister": true}));
    }

    /// Requests a license deregistration, as an operator.
    pub fn request_deregistration(&self, worker: &str) {
        self.request_license(worker, LicenseOperation::Deregister, json!({}));
    }

    fn request_license(&self, worker: &str, operation: LicenseOperation, fields: Value) {
        let input = Input::from_value(fields).expect("an object");
        self.cloud.records().license_step(worker, None, operation, LicenseStep::Request, &input).expect("accepted");
    }

    /// Notes a scale-down of a worker, as the controller that decided it.
    pub async fn note_scale_down(&self, worker: &str, at: Timestamp) {
        let worker = self.worker(worker).await;
        let changes = Changes { scaled_down_at: Some(at), ..Changes::default() };
        let patch = Patch::from_changes(&worker, changes, self.cloud.now());
        self.ports.control_plane.write(&worker, &patch, Fence(None)).await.expect("written");
    }

    /// Starts a drain, as an operator.
    pub fn drain(&self, worker: &str) {
        self.cloud.records().drain(worker, None, "maintenance", "operator").expect("a running worker");
    }

    /// Adds a session on a worker.
    pub fn add_session(&self, id: &str, worker: &str, status: &str) {
        self.cloud.add_session(json!({"id": id, "worker_id": worker, "status": status})).expect("a valid session");
    }

    /// Moves a session to another state.
    pub fn move_session(&self, id: &str, status: &str) {
        let input = Input::from_value(json!({"status": status})).expect("an object");
        self.cloud.records().transition_session(id, &input).expect("moved");
    }

    /// Ends a session, as its user.
    pub fn end_session(&self, id: &str) {
        self.move_session(id, "stopped");
    }

    /// A string field of a session.
    pub fn session_field(&self, id: &str, field: &str) -> String {
        text(&self.cloud.session(id).expect("an existing session")[field])
    }

    /// Number of requests to CML servers for an operation.
    pub fn cml_calls(&self, operation: &str) -> usize {
        self.cloud.count(Service::Cml, operation)
    }

    /// Number of requests to the control plane for an operation.
    pub fn control_plane_calls(&self, operation: &str) -> usize {
        self.cloud.count(Service::ControlPlane, operation)
    }

    /// Actions in the scaling audit of a worker, oldest first.
    pub fn audit(&self, worker: &str) -> Vec<String> {
        self.cloud.records().audit(Some(worker), None).iter().map(|entry| text(&entry["action"])).collect()
    }

    /// Event types of a worker, oldest first, without record changes published by the control plane itself.
    pub fn events(&self, worker: &str) -> Vec<String> {
        let events = self.cloud.records().events(Some(worker), None);
        let types = events.iter().map(|event| text(&event["type"]));
        types
            .filter(|kind| ![".created.", ".updated.", ".assigned."].iter().any(|recorded| kind.contains(recorded)))
            .collect()
    }

    /// Counters that are not zero.
    pub fn nonzero_counters(&self) -> Vec<(&'static str, u64)> {
        self.telemetry.counters().into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Number of EC2 requests for an operation.
    pub fn ec2_calls(&self, operation: &str) -> usize {
        self.cloud.count(Service::Ec2, operation)
    }

    /// Number of writes to the control plane.
    pub fn control_plane_writes(&self) -> usize {
        let records = self.cloud.requests(&fake_cloud::RequestFilter::default());
        let reads = ["list_", "get_", "idle_status", "imminent_deadlines", "health"];
        records
            .iter()
            .filter(|record| record.service == Service::ControlPlane)
            .filter(|record| !reads.iter().any(|read| record.operation.starts_with(read)))
            .count()
    }

    /// Injects a fault rule, in the format of the admin API, and returns its id.
    pub fn inject(&self, rule: Value) -> u64 {
        self.cloud.inject(serde_json::from_value(rule).expect("a rule")).expect("a valid rule")
    }

    /// Number of requests that the current fault rules applied to.
    pub fn faults_applied(&self) -> u64 {
        self.cloud.world().faults().list().iter().map(|rule| rule.applied).sum()
    }

    /// Instances that are neither terminated nor shutting down.
    pub fn active_instances(&self) -> Vec<String> {
        let now = self.cloud.now();
        let is_active = |name: &str| !matches!(name, "terminated" | "shutting-down");
        let instances = self.cloud.instances(REGION);
        instances.iter().filter(|i| is_active(i.state(now).name())).map(|i| i.id.clone()).collect()
    }

    /// Discovery with the reconciler of this harness.
    pub fn discovery(&self) -> Discovery {
        Discovery::new(self.reconciler.clone(), discovery_config(), |_| {})
    }

    /// Value of a counter.
    pub fn counter(&self, name: &str) -> u64 {
        self.telemetry.counters()[name]
    }

    /// A reconciler with its own providers and cache, as in another process.
    pub fn new_reconciler(&self) -> Reconciler {
        let telemetry = Telemetry::default();
        reconciler(
            &self.cloud,
            ports(&self.cloud, &telemetry, ACCESS_KEY, &self.image_owners),
            self.policy.clone(),
            telemetry,
        )
    }

    /// Starts a controller with its own providers and counters, as in another process, and short intervals.
    pub fn start_controller(&self, name: &str, change: impl FnOnce(&mut WorkerControllerConfig)) -> RunningController {
        let endpoint = self.cloud.endpoints().etcd_endpoint.clone();
        self.start_controller_on(&endpoint, name, |config, _| change(config))
    }

    /// Starts a controller that is elected on the given etcd (endpoints separated by commas); `change` may replace its
    /// providers.
    pub fn start_controller_on(
        &self,
        etcd_endpoints: &str,
        name: &str,
        change: impl FnOnce(&mut WorkerControllerConfig, &mut Ports),
    ) -> RunningController {
        let (controller, telemetry) = self.new_controller(name, Some(etcd(etcd_endpoints)), change);
        RunningController::start(controller, telemetry)
    }

    /// Starts a controller on threads of its own: after a crash its lease expires.
    ///
    /// # Panics
    /// If the machine has no threads left.
    pub fn start_controller_to_crash(&self, name: &str) -> RunningController {
        let endpoint = self.cloud.endpoints().etcd_endpoint.clone();
        let build = || Ok::<_, std::io::Error>(self.new_controller(name, Some(etcd(&endpoint)), |_, _| {}));
        RunningController::start_on_own_threads(build).expect("threads")
    }

    /// Starts a controller without etcd, which leads immediately.
    pub fn start_standalone_controller(&self, change: impl FnOnce(&mut WorkerControllerConfig)) -> RunningController {
        let (controller, telemetry) = self.new_controller("standalone", None, |config, _| change(config));
        RunningController::start(controller, telemetry)
    }

    /// Runs the startup sweep of a new controller.
    pub async fn first_sweep(&self) -> OneSweep {
        let (controller, _) = self.new_controller("sweeper", None, |_, _| {});
        controller.sweep_once(Mode::Real, Duration::ZERO).await.expect("listed workers")
    }

    fn new_controller(
        &self,
        name: &str,
        etcd: Option<Arc<dyn Coordination>>,
        change: impl FnOnce(&mut WorkerControllerConfig, &mut Ports),
    ) -> (WorkerController, Telemetry) {
        let (mut config, telemetry) = (fast_config(name), Telemetry::default());
        let mut ports = ports(&self.cloud, &telemetry, ACCESS_KEY, &self.image_owners);
        change(&mut config, &mut ports);
        let controller = WorkerController::new(ports, self.policy.clone(), etcd, config, telemetry.clone())
            .expect("a valid configuration");
        (controller, telemetry)
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        if self.captures_logs && !std::thread::panicking() {
            log_capture::assert_no_secrets();
        }
    }
}

/// A controller that runs as a task, or on threads of its own.
pub struct RunningController {
    /// The controller, for its lease and its queue.
    pub controller: WorkerController,
    /// Counters of this controller only.
    pub telemetry: Telemetry,
    shutdown: Shutdown,
    task: JoinHandle<()>,
    runtime: Option<Runtime>,
}

impl RunningController {
    /// Starts a controller as a task of the current runtime.
    pub fn start(controller: WorkerController, telemetry: Telemetry) -> Self {
        let shutdown = Shutdown::new();
        let task = tokio::spawn({
            let (controller, shutdown) = (controller.clone(), shutdown.clone());
            async move { controller.run(&shutdown).await }
        });
        Self { controller, telemetry, shutdown, task, runtime: None }
    }

    /// Starts a controller on threads of its own, so that a crash ends all of its work at once. `build` is called on
    /// that runtime.
    ///
    /// # Errors
    /// The runtime cannot be created, or `build` fails.
    pub fn start_on_own_threads<E: From<std::io::Error>>(
        build: impl FnOnce() -> Result<(WorkerController, Telemetry), E>,
    ) -> Result<Self, E> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let running = {
            let _guard = runtime.enter();
            build().map(|(controller, telemetry)| Self::start(controller, telemetry))
        };
        match running {
            Ok(mut running) => {
                running.runtime = Some(runtime);
                Ok(running)
            }
            Err(error) => {
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Stops the controller: work in progress is finished and the lease is released.
    ///
    /// # Panics
    /// If the controller panicked.
    pub async fn stop(mut self) {
        self.shutdown.request();
        (&mut self.task).await.expect("stopped");
    }

    /// Ends the controller at once. On threads of its own the lease expires later; as a task it is released.
    pub fn crash(mut self) {
        match self.runtime.take() {
            Some(runtime) => runtime.shutdown_background(),
            None => self.task.abort(),
        }
    }
}

impl Drop for RunningController {
    fn drop(&mut self) {
        // A runtime must not be dropped inside another one.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Polls a condition until it holds.
///
/// # Panics
/// If it does not hold within 60 s; `condition` is part of the message.
pub async fn eventually<F: Future<Output = bool>>(condition: &str, holds: impl Fn() -> F) {
    let started = tokio::time::Instant::now();
    while !holds().await {
        assert!(started.elapsed() < Duration::from_secs(60), "not within 60 s: {condition}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Configuration with short intervals, for a controller on the real clock.
pub fn fast_config(name: &str) -> WorkerControllerConfig {
    let controller = ControllerConfig::default()
        .with_interval(Duration::from_millis(500))
        .with_initial_delay(Duration::from_millis(100))
        .with_max_concurrent(5);
    let election = ElectionConfig::default()
        .with_identity(name)
        .with_ttl(Duration::from_secs(2))
        .with_margin(Duration::from_millis(300))
        .with_retry_interval(Duration::from_secs(1));
    let watch = WatchConfig::new(["/workers/", "/lcm/workers/"]).with_debounce(Duration::from_millis(50));
    let startup = StartupConfig::default().with_delay(Duration::from_millis(50)).with_limit(Duration::from_secs(30));
    WorkerControllerConfig::default()
        .with_cml(cml_defaults())
        .with_controller(controller)
        .with_election(election)
        .with_watch(watch)
        .with_discovery(
            discovery_config().with_interval(Duration::from_secs(1)).with_min_interval(Duration::from_secs(1)),
        )
        .with_metrics_interval(Duration::from_secs(2))
        .with_startup(startup)
}

/// Credentials for records that show none.
fn cml_defaults() -> CmlDefaults {
    CmlDefaults::new("admin", CML_PASSWORD)
}

/// A reconciler that finds license operations where the control plane requests them.
fn reconciler(cloud: &FakeCloud, ports: Ports, policy: Policy, telemetry: Telemetry) -> Reconciler {
    let builder = Reconciler::builder(ports, policy).telemetry(telemetry).cml_defaults(cml_defaults());
    let endpoints = cloud.endpoints();
    let builder = match endpoints.control_plane_generation {
        Generation::Extended => builder,
        // Its records do not show the operation.
        Generation::Original => builder.license_requests(etcd(&endpoints.etcd_endpoint), ["/lcm/workers/"]),
    };
    builder.build().expect("a supported policy")
}

fn etcd(endpoints: &str) -> Arc<dyn Coordination> {
    Arc::new(Etcd::new(EtcdOptions::new(endpoints.split(','))).expect("valid endpoints"))
}

/// Discovery without an initial delay.
pub fn discovery_config() -> DiscoveryConfig {
    DiscoveryConfig::default()
        .with_initial_delay(Duration::from_millis(100))
        .with_regions([REGION])
        .with_filter(DiscoveryFilter::default().with_ami_name_pattern("cisco-cml2.9*"))
}

fn ports(cloud: &FakeCloud, telemetry: &Telemetry, access_key: &str, image_owners: &[String]) -> Ports {
    let endpoints = cloud.endpoints();
    // No rate limit, and timeouts long enough for a busy machine.
    let mut tuning = Tuning::default();
    tuning.rate_factor = 1000.0;
    tuning.attempt_timeout = Duration::from_secs(20);
    tuning.image_owners = ImageOwners::Named(image_owners.to_vec());
    let account = Account::with_endpoint(&endpoints.aws_url, access_key, &Secret::from(AWS_SECRET), tuning, telemetry);
    let mut cml = CmlOptions::default();
    cml.security = Security::VerifiedWith(endpoints.cml_ca_file.clone());
    cml.port = endpoints.cml_port;
    let key = Secret::from(endpoints.control_plane_api_key.as_str());
    let options = ControlPlaneOptions::new(&endpoints.control_plane_url, key);
    let control_plane = Arc::new(ControlPlaneClient::new(options).expect("a valid address"));
    let control_plane_events: Arc<dyn Events> = Arc::new(ControlPlaneEvents::new(Arc::clone(&control_plane)));
    let clock: Arc<dyn Clock> = Arc::new(CloudClock(Arc::clone(cloud.world())));
    let store = EtcdNotes::new(&EtcdOptions::new([endpoints.etcd_endpoint.as_str()]), "/lcm-notes");
    let store = Arc::new(store.expect("valid endpoints"));
    let compute =
        BatchingCompute::new(Arc::new(Ec2::new(account.clone())), BatchSettings::default(), telemetry.clone());
    let mut events: Vec<Arc<dyn Events>> = vec![Arc::new(LogEvents)];
    let mut control_plane: Arc<dyn ControlPlane> =
        Arc::new(NotesControlPlane::new(control_plane, store, Arc::clone(&clock)));
    match endpoints.control_plane_generation {
        Generation::Extended => events.push(control_plane_events),
        // The server has no endpoints for events and audits.
        Generation::Original => {
            let records = cloud.records().clone();
            control_plane = Arc::new(RecordedAudits { inner: control_plane, records: records.clone() });
            events.push(Arc::new(RecordedEvents(records)));
        }
    }
    Ports::builder()
        .compute(Arc::new(compute))
        .metrics(Arc::new(CloudWatch::new(account)))
        .cml(Arc::new(CmlClient::new(cml).expect("a valid CA file")))
        .control_plane(control_plane)
        .events(Arc::new(FanoutEvents::new(events)))
        .clock(clock)
        .build()
        .expect("all ports")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The clock of a cloud as a port.
#[derive(Debug)]
pub struct CloudClock(pub Arc<World>);

impl Clock for CloudClock {
    fn now(&self) -> Timestamp {
        self.0.clock().now()
    }
}

fn regions() -> RegionConfigs {
    let catalog = Catalog::for_region(REGION);
    let config = RegionConfig::new(&catalog.subnets[0].id, [&catalog.groups[0].id]);
    RegionConfigs::default().with_region(REGION, config).with_default_region(REGION)
}
