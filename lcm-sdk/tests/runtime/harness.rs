//! In-memory ports around a reconciler. On paused time, every run of a test is identical.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::ports::Ports;
use lcm_sdk::providers::memory::{
    ComputeCall, ManualClock, MemoryCml, MemoryCmlSystem, MemoryCompute, MemoryControlPlane, MemoryEvents,
    MemoryMetrics,
};
use lcm_sdk::reconciler::{ReconcileResult, Reconciler};
use lcm_sdk::{
    Ec2State, Instance, Policy, RegionConfig, RegionConfigs, Session, Template, Timestamp, Worker, WorkerId,
    WorkerStatus,
};

/// The default region of workers and instances.
pub(crate) const REGION: &str = "us-east-1";
/// A second region, for instances that respond slowly.
pub(crate) const OTHER_REGION: &str = "eu-west-1";

pub(crate) struct Harness {
    pub(crate) clock: ManualClock,
    pub(crate) compute: Arc<MemoryCompute>,
    pub(crate) metrics: Arc<MemoryMetrics>,
    pub(crate) cml: Arc<MemoryCml>,
    pub(crate) control_plane: Arc<MemoryControlPlane>,
    pub(crate) events: Arc<MemoryEvents>,
    pub(crate) policy: Policy,
}

impl Harness {
    pub(crate) fn new() -> Self {
        Self::with_control_plane(|control_plane| control_plane)
    }

    /// A harness with a configured control plane.
    pub(crate) fn with_control_plane(control_plane: impl FnOnce(MemoryControlPlane) -> MemoryControlPlane) -> Self {
        let clock = ManualClock::new("2026-02-06T08:00:00Z".parse().expect("a timestamp"));
        let shared = || Arc::new(clock.clone());
        let region_config = RegionConfig::new("subnet-1", ["sg-1"]);
        let harness = Self {
            compute: Arc::new(MemoryCompute::new(shared())),
            metrics: Arc::default(),
            cml: Arc::new(MemoryCml::new(shared())),
            control_plane: Arc::new(control_plane(MemoryControlPlane::new(shared()))),
            events: Arc::default(),
            policy: Policy {
                regions: RegionConfigs::default()
                    .with_region(REGION, region_config.clone())
                    .with_region(OTHER_REGION, region_config)
                    .with_default_region(REGION),
                ..Policy::default()
            },
            clock,
        };
        harness.control_plane.put_template(Template::new("metal", "m5zn.metal"));
        harness
    }

    pub(crate) fn ports(&self) -> Ports {
        Ports::builder()
            .compute(Arc::clone(&self.compute) as _)
            .metrics(Arc::clone(&self.metrics) as _)
            .cml(Arc::clone(&self.cml) as _)
            .control_plane(Arc::clone(&self.control_plane) as _)
            .events(Arc::clone(&self.events) as _)
            .clock(Arc::new(self.clock.clone()))
            .build()
            .expect("all ports")
    }

    pub(crate) fn reconciler(&self) -> Reconciler {
        Reconciler::new(self.ports(), self.policy.clone()).expect("a supported policy")
    }

    /// A worker created yesterday with an instance of its own. Its number is the last part of its address.
    pub(crate) fn worker(&self, number: u8, status: WorkerStatus, ec2: Ec2State) -> Worker {
        self.worker_in(REGION, number, status, ec2)
    }

    pub(crate) fn worker_in(&self, region: &str, number: u8, status: WorkerStatus, ec2: Ec2State) -> Worker {
        let yesterday: Timestamp = "2026-02-05T08:00:00Z".parse().expect("a timestamp");
        let address = format!("10.0.0.{number}");
        let mut instance = Instance::new(format!("i-{number}").as_str(), ec2);
        instance.launched_at = Some(yesterday);
        instance.private_ip = Some(address.clone());
        instance.tags = BTreeMap::from([("lcm:worker_id".to_owned(), format!("w-{number}"))]);
        self.compute.put(region, instance);
        let system = MemoryCmlSystem::default();
        let mut worker = Worker::new(format!("w-{number}").as_str(), status);
        worker.ec2_instance_id = Some(format!("i-{number}").as_str().into());
        worker.aws_region = Some(region.to_owned());
        worker.template_name = Some("metal".to_owned());
        worker.private_ip = Some(address.clone());
        worker.ip_address = Some(address.clone());
        worker.cml_username = Some(system.username.clone());
        worker.cml_password = Some(system.password.clone());
        worker.is_idle_detection_enabled = true;
        worker.created_at = Some(yesterday);
        worker.notes.launched_at = Some(yesterday);
        self.cml.install(&address, system);
        self.control_plane.put_worker(worker.clone());
        self.record(number)
    }

    /// Adds a session to a worker.
    pub(crate) fn session(&self, id: &str, state: &str, number: u8) {
        let mut session = Session::new(id, state);
        session.worker_id = Some(worker_id(number));
        self.control_plane.put_session(session);
    }

    pub(crate) fn session_state(&self, id: &str) -> String {
        self.control_plane.stored_session(&id.into()).expect("an existing session").state.to_string()
    }

    pub(crate) fn record(&self, number: u8) -> Worker {
        self.control_plane.stored_worker(&worker_id(number)).expect("an existing worker")
    }

    /// Reconciles the current record once.
    pub(crate) async fn reconcile(&self, reconciler: &Reconciler, number: u8) -> ReconcileResult {
        let result = reconciler.reconcile(&self.record(number)).await;
        reconciler.flush(Duration::from_secs(1)).await;
        result
    }

    pub(crate) fn starts(&self) -> usize {
        self.count(|call| matches!(call, ComputeCall::Start { .. }))
    }

    pub(crate) fn stops(&self) -> usize {
        self.count(|call| matches!(call, ComputeCall::Stop { .. }))
    }

    fn count(&self, which: impl Fn(&ComputeCall) -> bool) -> usize {
        self.compute.calls().iter().filter(|call| which(call)).count()
    }

    pub(crate) fn ec2_state(&self, region: &str, number: u8) -> Ec2State {
        let id = format!("i-{number}");
        let found = self.compute.all(region).into_iter().find(|instance| instance.id.as_str() == id);
        found.expect("an existing instance").state
    }
}

pub(crate) fn worker_id(number: u8) -> WorkerId {
    format!("w-{number}").as_str().into()
}

/// Advances time in steps small enough for every task to run.
pub(crate) async fn pass_time(seconds: u64) {
    for _ in 0..seconds * 4 {
        tokio::time::advance(Duration::from_millis(250)).await;
        tokio::task::yield_now().await;
    }
}
