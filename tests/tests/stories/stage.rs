//! Where the stories play: a fake cloud, the real adapters, and a controller on top.

use std::sync::Arc;
use std::time::Duration;

use fake_cloud::control_plane::{Input, LicenseOperation, LicenseStep};
use fake_cloud::world::{Catalog, Delays, World};
use fake_cloud::{FakeCloud, FakeCloudBuilder, Pace, Service};
use lcm_sdk::controller::ControllerConfig;
use lcm_sdk::controller::ElectionConfig;
use lcm_sdk::controller::Shutdown;
use lcm_sdk::controller::WatchConfig;
use lcm_sdk::ports::{Clock, Coordination, DiscoveryFilter, Events, Ports};
use lcm_sdk::providers::aws::{Account, CloudWatch, Ec2, Tuning};
use lcm_sdk::providers::cml::{self, CmlClient, Security};
use lcm_sdk::providers::control_plane::{self, ControlPlaneClient};
use lcm_sdk::providers::etcd::{Etcd, EtcdOptions};
use lcm_sdk::providers::events::{ControlPlaneEvents, FanoutEvents, LogEvents};
use lcm_sdk::reconciler::{Mode, ReconcileResult, Reconciler};
use lcm_sdk::resilience::{BatchSettings, BatchingCompute};
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{Discovery, DiscoveryConfig, OneSweep, StartupConfig, WorkerController, WorkerControllerConfig};
use lcm_sdk::{Policy, RegionConfig, RegionConfigs, Secret, Timestamp, Worker, WorkerStatus};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

pub(crate) const REGION: &str = "us-east-1";
pub(crate) const AWS_SECRET: &str = "aws-secret-access-key";
const CML_PASSWORD: &str = "cml-secret-password";

/// A fake cloud with the real adapters plugged in. Decisions are made on the cloud's clock.
pub(crate) struct Stage {
    pub(crate) cloud: FakeCloud,
    pub(crate) policy: Policy,
    pub(crate) telemetry: Telemetry,
    pub(crate) ports: Ports,
    reconciler: Reconciler,
}

impl Stage {
    /// A world whose clock stands still until it is moved.
    pub(crate) async fn still() -> Self {
        Self::with(FakeCloud::builder().pace(Pace::Manual)).await
    }

    /// A world on the real clock in which instances take no time.
    pub(crate) async fn live() -> Self {
        Self::with(FakeCloud::builder().delays(Delays::none())).await
    }

    pub(crate) async fn with(builder: FakeCloudBuilder) -> Self {
        crate::eavesdropper::listen();
        let builder = builder.cml(|cml| cml.password = CML_PASSWORD.to_owned());
        let cloud = builder.start().await.expect("the cloud starts");
        let policy = Policy { regions: regions(), ..Policy::default() };
        let telemetry = Telemetry::default();
        let ports = ports(&cloud, &telemetry);
        let reconciler = Reconciler::configured(ports.clone(), policy.clone(), Default::default(), telemetry.clone());
        Self { cloud, policy, telemetry, ports, reconciler }
    }

    /// The same stage under another policy.
    pub(crate) fn under(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        change(&mut self.policy);
        let (ports, policy, telemetry) = (self.ports.clone(), self.policy.clone(), self.telemetry.clone());
        self.reconciler = Reconciler::configured(ports, policy, Default::default(), telemetry);
        self
    }

    pub(crate) fn reconciler(&self) -> &Reconciler {
        &self.reconciler
    }

    /// Adds a worker record; `fields` win over what every worker of these stories has.
    pub(crate) fn add_worker(&self, id: &str, fields: Value) {
        let mut record = json!({
            "id": id, "name": id, "status": "pending", "template_name": "metal", "aws_region": REGION,
            "cml_username": "admin", "cml_password": CML_PASSWORD,
        });
        let record_fields = record.as_object_mut().expect("an object");
        record_fields.extend(fields.as_object().expect("an object").clone());
        self.cloud.add_worker(record).expect("a good record");
    }

    /// Adds a worker that runs, with its instance, both as old as `age`.
    pub(crate) async fn add_running_worker(&self, id: &str) -> String {
        let instance = self.cloud.run_instance(REGION, &[("lcm:worker_id", id)]).expect("it launches").id.clone();
        self.cloud.advance(Duration::from_secs(60)).await;
        self.add_worker(id, json!({"status": "running", "desired_status": "running", "ec2_instance_id": instance}));
        instance
    }

    /// The record as the adapter reads it.
    pub(crate) async fn worker(&self, id: &str) -> Worker {
        self.ports.control_plane.worker(&id.into()).await.expect("it answers").expect("it exists")
    }

    pub(crate) async fn status(&self, id: &str) -> WorkerStatus {
        self.worker(id).await.status
    }

    /// One pass over the record as it is now.
    pub(crate) async fn pass(&self, id: &str) -> ReconcileResult {
        let worker = self.worker(id).await;
        self.reconciler.reconcile(&worker).await
    }

    /// Passes, with time going by between them, until the worker has a status.
    pub(crate) async fn pass_until(&self, id: &str, status: WorkerStatus) {
        let mut told = Vec::new();
        for _ in 0..40 {
            let result = self.pass(id).await;
            told.push(format!("{} → {}: {}", result.from_status, result.to_status, result.reason));
            if self.status(id).await == status {
                return;
            }
            self.cloud.advance(Duration::from_secs(10)).await;
        }
        panic!("{id} never became {status}:\n{}", told.join("\n"));
    }

    /// An operator wants a licence registered.
    pub(crate) fn request_registration(&self, worker: &str, token: &str) {
        self.request_license(worker, LicenseOperation::Register, json!({"token": token}));
    }

    /// An operator wants a licence given back.
    pub(crate) fn request_deregistration(&self, worker: &str) {
        self.request_license(worker, LicenseOperation::Deregister, json!({}));
    }

    fn request_license(&self, worker: &str, operation: LicenseOperation, fields: Value) {
        let input = Input::from_value(fields).expect("an object");
        self.cloud.records().license_step(worker, None, operation, LicenseStep::Request, &input).expect("a good wish");
    }

    /// An operator wants a worker drained.
    pub(crate) fn drain(&self, worker: &str) {
        self.cloud.records().drain(worker, None, "maintenance", "operator").expect("it runs");
    }

    /// Adds a session on a worker.
    pub(crate) fn session(&self, id: &str, worker: &str, status: &str) {
        self.cloud.add_session(json!({"id": id, "worker_id": worker, "status": status})).expect("a good session");
    }

    /// Somebody moves a session to another state.
    pub(crate) fn move_session(&self, id: &str, status: &str) {
        let input = Input::from_value(json!({"status": status})).expect("an object");
        self.cloud.records().transition_session(id, &input).expect("a move");
    }

    /// A session comes to its own end.
    pub(crate) fn end_session(&self, id: &str) {
        self.move_session(id, "stopped");
    }

    /// A field of a session, as text.
    pub(crate) fn session_field(&self, id: &str, field: &str) -> String {
        text(&self.cloud.session(id).expect("it exists")[field])
    }

    /// How often CMLs were asked for something.
    pub(crate) fn cml_calls(&self, operation: &str) -> usize {
        self.cloud.count(Service::Cml, operation)
    }

    /// How often the control plane was asked for something.
    pub(crate) fn control_plane_calls(&self, operation: &str) -> usize {
        self.cloud.count(Service::ControlPlane, operation)
    }

    /// The labels of a worker's scaling audit, oldest first.
    pub(crate) fn audit(&self, worker: &str) -> Vec<String> {
        self.cloud.records().audit(Some(worker), None).iter().map(|entry| text(&entry["action"])).collect()
    }

    /// The types of the events about a worker, oldest first, without the control plane's own bookkeeping.
    pub(crate) fn events(&self, worker: &str) -> Vec<String> {
        let events = self.cloud.records().events(Some(worker), None);
        let types = events.iter().map(|event| text(&event["type"]));
        types.filter(|kind| ![".created.", ".updated.", ".assigned."].iter().any(|own| kind.contains(own))).collect()
    }

    /// Every counter of `/admin/stats` that is not zero.
    pub(crate) fn counted(&self) -> Vec<(&'static str, u64)> {
        self.telemetry.counters().into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// How often an EC2 operation was asked for.
    pub(crate) fn ec2_calls(&self, operation: &str) -> usize {
        self.cloud.count(Service::Ec2, operation)
    }

    /// How often something was written to the control plane.
    pub(crate) fn control_plane_writes(&self) -> usize {
        let records = self.cloud.requests(&fake_cloud::RequestFilter::default());
        let reads = ["list_", "get_", "idle_status", "imminent_deadlines", "health"];
        records
            .iter()
            .filter(|record| record.service == Service::ControlPlane)
            .filter(|record| !reads.iter().any(|read| record.operation.starts_with(read)))
            .count()
    }

    /// Breaks something: a fault rule as the admin API takes it.
    pub(crate) fn fault(&self, rule: Value) {
        self.cloud.inject(serde_json::from_value(rule).expect("a rule")).expect("a good rule");
    }

    /// How often the fault rules that are in force have struck.
    pub(crate) fn strikes(&self) -> u64 {
        self.cloud.world().faults().list().iter().map(|rule| rule.struck).sum()
    }

    /// The instances of the region that are neither terminated nor on their way there.
    pub(crate) fn living_instances(&self) -> Vec<String> {
        let now = self.cloud.now();
        let living = |name: &str| !matches!(name, "terminated" | "shutting-down");
        let instances = self.cloud.instances(REGION);
        instances.iter().filter(|i| living(i.state(now).name())).map(|i| i.id.clone()).collect()
    }

    pub(crate) fn discovery(&self) -> Discovery {
        Discovery::new(self.reconciler.clone(), discovery_config(), |_| {})
    }

    /// A counter of `/admin/stats`.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.telemetry.counters()[name]
    }

    /// A reconciler of its own process, as it were: own adapters, own memory.
    pub(crate) fn another_reconciler(&self) -> Reconciler {
        let telemetry = Telemetry::default();
        Reconciler::configured(ports(&self.cloud, &telemetry), self.policy.clone(), Default::default(), telemetry)
    }

    /// A controller of its own process, as it were: own adapters, own telemetry, quick habits.
    pub(crate) fn controller(&self, name: &str, change: impl FnOnce(&mut WorkerControllerConfig)) -> Actor {
        let endpoint = self.cloud.endpoints().etcd_endpoint.clone();
        self.controller_on(&endpoint, name, |config, _| change(config))
    }

    /// The same, elected on another etcd (or several, with commas between) and with other adapters, where the story needs
    /// them.
    pub(crate) fn controller_on(
        &self,
        etcd_endpoints: &str,
        name: &str,
        change: impl FnOnce(&mut WorkerControllerConfig, &mut Ports),
    ) -> Actor {
        let (controller, telemetry) = self.idle_controller(name, Some(etcd(etcd_endpoints)), change);
        Actor::start(controller, telemetry)
    }

    /// The same without etcd: it leads at once, whoever else does.
    pub(crate) fn lone_controller(&self, change: impl FnOnce(&mut WorkerControllerConfig)) -> Actor {
        let (controller, telemetry) = self.idle_controller("alone", None, |config, _| change(config));
        Actor::start(controller, telemetry)
    }

    /// The first sweep of a controller that has just been started, and nothing after it.
    pub(crate) async fn first_sweep(&self) -> OneSweep {
        let (controller, _) = self.idle_controller("sweeper", None, |_, _| {});
        controller.sweep_once(Mode::Real, Duration::ZERO).await.expect("the workers can be listed")
    }

    fn idle_controller(
        &self,
        name: &str,
        etcd: Option<Arc<dyn Coordination>>,
        change: impl FnOnce(&mut WorkerControllerConfig, &mut Ports),
    ) -> (WorkerController, Telemetry) {
        let (mut config, telemetry) = (quick(name), Telemetry::default());
        let mut ports = ports(&self.cloud, &telemetry);
        change(&mut config, &mut ports);
        let controller = WorkerController::new(ports, self.policy.clone(), etcd, config, telemetry.clone())
            .expect("a good configuration");
        (controller, telemetry)
    }
}

/// No story may have told a secret.
impl Drop for Stage {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            crate::eavesdropper::assert_nothing_was_heard();
        }
    }
}

/// A controller that runs.
pub(crate) struct Actor {
    pub(crate) controller: WorkerController,
    pub(crate) telemetry: Telemetry,
    shutdown: Shutdown,
    running: JoinHandle<()>,
}

impl Actor {
    pub(crate) fn start(controller: WorkerController, telemetry: Telemetry) -> Self {
        let shutdown = Shutdown::new();
        let running = tokio::spawn({
            let (controller, shutdown) = (controller.clone(), shutdown.clone());
            async move { controller.run(&shutdown).await }
        });
        Self { controller, telemetry, shutdown, running }
    }

    /// A clean stop.
    pub(crate) async fn stop(self) {
        self.shutdown.request();
        self.running.await.expect("it stops");
    }

    /// An end in the middle of everything: nothing is waited for, and only the lease is given up.
    pub(crate) fn crash(self) {
        self.running.abort();
    }
}

/// Waits until something holds; a story that waits longer than any busy machine needs has failed.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let began = tokio::time::Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_secs(60), "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Quick habits for a controller on the real clock.
pub(crate) fn quick(name: &str) -> WorkerControllerConfig {
    WorkerControllerConfig {
        controller: ControllerConfig {
            interval: Duration::from_millis(500),
            initial_delay: Duration::from_millis(100),
            max_concurrent: 5,
            ..ControllerConfig::default()
        },
        election: ElectionConfig {
            identity: name.to_owned(),
            ttl: Duration::from_secs(2),
            margin: Duration::from_millis(300),
            retry_interval: Duration::from_secs(1),
            ..ElectionConfig::default()
        },
        watch: Some(WatchConfig {
            debounce: Duration::from_millis(50),
            ..WatchConfig::new(["/workers/", "/lcm/workers/"])
        }),
        discovery: Some(DiscoveryConfig { interval: Duration::from_secs(1), ..discovery_config() }),
        metrics_interval: Duration::from_secs(2),
        startup: StartupConfig { delay: Duration::from_millis(50), limit: Some(Duration::from_secs(30)) },
        ..WorkerControllerConfig::default()
    }
}

fn etcd(endpoints: &str) -> Arc<dyn Coordination> {
    Arc::new(Etcd::new(EtcdOptions::new(endpoints.split(','))).expect("good endpoints"))
}

fn discovery_config() -> DiscoveryConfig {
    DiscoveryConfig {
        initial_delay: Duration::from_millis(100),
        regions: vec![REGION.to_owned()],
        filter: DiscoveryFilter { ami_name_pattern: Some("cisco-cml2.9*".to_owned()), tags: Vec::new() },
        ..DiscoveryConfig::default()
    }
}

fn ports(cloud: &FakeCloud, telemetry: &Telemetry) -> Ports {
    let endpoints = cloud.endpoints();
    // Fast enough never to be held back by our own rates, patient enough for a busy machine.
    let mut tuning = Tuning::default();
    tuning.rate_factor = 1000.0;
    tuning.attempt_timeout = Duration::from_secs(20);
    let account = Account::with_endpoint(&endpoints.aws_url, "fake", &Secret::from(AWS_SECRET), tuning, telemetry);
    let mut cml = cml::Options::default();
    cml.security = Security::VerifiedWith(endpoints.cml_ca_file.clone());
    cml.port = endpoints.cml_port;
    let key = Secret::from(endpoints.control_plane_api_key.as_str());
    let options = control_plane::Options::new(&endpoints.control_plane_url, key);
    let control_plane = Arc::new(ControlPlaneClient::new(options).expect("a good address"));
    let told: Arc<dyn Events> = Arc::new(ControlPlaneEvents::new(Arc::clone(&control_plane)));
    let compute =
        BatchingCompute::new(Arc::new(Ec2::new(account.clone())), BatchSettings::default(), telemetry.clone());
    Ports::builder()
        .compute(Arc::new(compute))
        .metrics(Arc::new(CloudWatch::new(account)))
        .cml(Arc::new(CmlClient::new(cml).expect("a good authority")))
        .control_plane(control_plane)
        .events(Arc::new(FanoutEvents::new([Arc::new(LogEvents) as Arc<dyn Events>, told])))
        .clock(Arc::new(CloudClock(Arc::clone(cloud.world()))))
        .build()
        .expect("all ports")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

struct CloudClock(Arc<World>);

impl Clock for CloudClock {
    fn now(&self) -> Timestamp {
        self.0.clock().now()
    }
}

fn regions() -> RegionConfigs {
    let catalog = Catalog::for_region(REGION);
    let config = RegionConfig {
        security_group_ids: vec![catalog.groups[0].id.clone()],
        subnet_id: catalog.subnets[0].id.clone(),
        key_name: None,
        default_tags: Default::default(),
    };
    RegionConfigs {
        default_region: Some(REGION.to_owned()),
        regions: [(REGION.to_owned(), config)].into_iter().collect(),
    }
}
