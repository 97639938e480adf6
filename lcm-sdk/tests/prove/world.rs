//! A faulty world in memory: EC2, CML, control plane and etcd, and the changes they make without a call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::controller::Polling;
use lcm_sdk::lifecycle::{KnownSessionState, ScaleDownPolicy, SessionPhase, SessionState};
use lcm_sdk::providers::memory::{
    Fencing, MemoryCml, MemoryCmlSystem, MemoryCompute, MemoryControlPlane, MemoryCoordination, MemoryEvents,
    MemoryMetrics, Versions,
};
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::{
    Ec2State, Image, Instance, InstanceId, Policy, RegionConfig, RegionConfigs, Session, SessionId, Template, Worker,
    WorkerId, WorkerStatus,
};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use super::broken::Broken;
use super::clock::SimClock;
use super::faults::FaultPlan;
use super::oracle::Oracle;
use super::rng::Rng;

/// The region of every instance.
pub(crate) const REGION: &str = "us-east-1";

/// The drain timeout in this world: short enough for deadlines to pass.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(1200);

/// The longest time EC2 does not show a new instance here. Together with twice the largest clock error it stays below
/// the consistency window.
pub(crate) const MAX_LAG: u64 = 55;

/// The minimum fleet where idle workers are scaled down.
pub(crate) const MIN_WORKERS: usize = 2;

/// The largest clock error, in seconds.
pub(crate) const MAX_CLOCK_ERROR: i64 = 30;

/// Configuration of a world.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    /// Number of controllers; a single one needs no etcd.
    pub(crate) controllers: usize,
    pub(crate) versions: Versions,
    pub(crate) fencing: Fencing,
    pub(crate) polling: Polling,
    pub(crate) interval: Duration,
    /// Whether sessions end by themselves.
    pub(crate) ends_sessions: bool,
    /// Whether idle workers are scaled down.
    pub(crate) scales_down: bool,
    /// The deliberate defect of the controllers, if any.
    pub(crate) broken: Option<Broken>,
}

impl Setup {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            controllers: 1,
            versions: Versions::Kept,
            fencing: Fencing::Ignored,
            polling: Polling::Enabled,
            interval: Duration::from_secs(30),
            ends_sessions: true,
            scales_down: false,
            broken: None,
        }
    }
}

pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) clock: SimClock,
    pub(crate) compute: Arc<MemoryCompute>,
    pub(crate) metrics: Arc<MemoryMetrics>,
    pub(crate) cml: Arc<MemoryCml>,
    pub(crate) control_plane: Arc<MemoryControlPlane>,
    pub(crate) events: Arc<MemoryEvents>,
    pub(crate) etcd: MemoryCoordination,
    pub(crate) policy: Policy,
    pub(crate) rng: Mutex<Rng>,
    pub(crate) oracle: Mutex<Oracle>,
    pub(crate) fault_plan: Mutex<FaultPlan>,
    pub(crate) background: Mutex<Background>,
    /// Telemetry of every life of a controller.
    pub(crate) telemetries: Mutex<Vec<Telemetry>>,
    /// Receives the slot of a controller that crashed.
    pub(crate) crashes: UnboundedSender<usize>,
}

/// Changes that occur without a call, and when.
#[derive(Debug, Default)]
pub(crate) struct Background {
    changes: BTreeMap<InstanceId, (Ec2State, Instant)>,
    hidden: BTreeMap<InstanceId, Instant>,
    pub(crate) launched_at: BTreeMap<InstanceId, Instant>,
    pub(crate) sessions: BTreeMap<SessionId, Option<Instant>>,
    pub(crate) next_number: u32,
}

impl World {
    pub(crate) fn new(setup: Setup, crashes: UnboundedSender<usize>) -> Self {
        let clock = SimClock::new();
        let shared = || Arc::new(clock.clone());
        let mut scale_down = ScaleDownPolicy::new(MIN_WORKERS).with_cooldown(Duration::from_secs(90));
        scale_down.enabled = setup.scales_down;
        // A server that pauses idle workers by itself checks activity, not sessions: only scale-down checks both.
        let idle_timeout = Duration::from_secs(if setup.scales_down { 300 } else { 86_400 });
        let control_plane = MemoryControlPlane::new(shared())
            .with_versions(setup.versions)
            .with_fencing(setup.fencing)
            .with_idle_timeout(idle_timeout);
        let world = Self {
            setup,
            compute: Arc::new(MemoryCompute::new(shared())),
            metrics: Arc::default(),
            cml: Arc::new(MemoryCml::new(shared())),
            control_plane: Arc::new(control_plane),
            events: Arc::default(),
            etcd: MemoryCoordination::new(),
            policy: Policy {
                regions: RegionConfigs::default()
                    .with_region(REGION, RegionConfig::new("subnet-1", ["sg-1"]))
                    .with_default_region(REGION),
                idle_detection_interval: Duration::from_secs(60),
                scale_down,
                consistency_window: match setup.broken {
                    Some(Broken::AbsentIsGone) => Duration::ZERO,
                    _ => Policy::default().consistency_window,
                },
                ..Policy::default()
            },
            rng: Mutex::new(Rng::new(setup.seed)),
            oracle: Mutex::new(Oracle::new(&clock)),
            fault_plan: Mutex::default(),
            background: Mutex::default(),
            telemetries: Mutex::default(),
            crashes,
            clock,
        };
        world.control_plane.put_template(template());
        let image = ("ami-1", "cisco-cml2.9.1", "2026-01-01T00:00:00.000Z");
        let (id, name, creation_date) = (image.0.to_owned(), image.1.to_owned(), image.2.to_owned());
        world.compute.put_image(REGION, Image { id, name, creation_date });
        world.compute.put_subnet(REGION, "subnet-1");
        world
    }

    pub(crate) fn log(&self, event: impl Into<String>) {
        self.oracle.lock().log(&event.into());
    }

    pub(crate) fn is_broken(&self, defect: Broken) -> bool {
        self.setup.broken == Some(defect)
    }

    pub(crate) fn instance(&self, id: &InstanceId) -> Option<Instance> {
        self.compute.all(REGION).into_iter().find(|instance| instance.id == *id)
    }

    pub(crate) fn workers(&self) -> Vec<Worker> {
        self.control_plane.stored_workers()
    }

    pub(crate) fn worker(&self, id: &WorkerId) -> Worker {
        self.control_plane.stored_worker(id).expect("an existing worker")
    }

    /// Changes a record as another client, and publishes the change in etcd.
    pub(crate) fn edit(&self, id: &WorkerId, edit: impl FnOnce(&mut Worker)) {
        self.control_plane.edit(id, edit);
        self.publish(id);
    }

    /// Publishes a changed record in etcd, as the control plane does.
    pub(crate) fn publish(&self, id: &WorkerId) {
        if self.setup.controllers > 1 {
            self.etcd.put(&format!("/workers/{id}"), "changed");
        }
    }

    /// Adds a record.
    pub(crate) fn add_worker(&self, id: &str, status: WorkerStatus) -> WorkerId {
        let mut worker = Worker::new(id, status);
        worker.template_name = Some("metal".to_owned());
        worker.cml_username = Some("admin".to_owned());
        worker.cml_password = Some("admin".into());
        worker.is_idle_detection_enabled = self.setup.scales_down;
        self.control_plane.put_worker(worker);
        self.publish(&id.into());
        id.into()
    }

    /// Adds a record with an instance, both created a day ago.
    pub(crate) fn add_settled(&self, id: &str, status: WorkerStatus, ec2: Ec2State) -> WorkerId {
        let number = self.next_number();
        let yesterday = self.clock.true_time() - Duration::from_secs(86_400);
        let mut instance = Instance::new(format!("i-{number:04x}"), Ec2State::Pending);
        instance.launched_at = Some(yesterday);
        instance.private_ip = Some(format!("10.0.255.{number}"));
        instance.tags.insert("lcm:worker_id".to_owned(), id.to_owned());
        self.compute.put(REGION, instance.clone());
        self.enter(&instance.id, ec2);
        let instance = self.instance(&instance.id).expect("just put");
        let worker = self.add_worker(id, status);
        self.edit(&worker, |record| {
            record.ec2_instance_id = Some(instance.id.clone());
            record.created_at = Some(yesterday);
            record.notes.launched_at = Some(yesterday);
            record.public_ip.clone_from(&instance.public_ip);
            record.private_ip.clone_from(&instance.private_ip);
            record.ip_address = instance.address().map(str::to_owned);
        });
        worker
    }

    pub(crate) fn next_number(&self) -> u32 {
        let mut background = self.background.lock();
        background.next_number += 1;
        background.next_number
    }

    /// Sets the state of an instance, and installs CML when it first runs.
    pub(crate) fn enter(&self, id: &InstanceId, state: Ec2State) {
        self.compute.set_state(REGION, id, state);
        let Some(instance) = self.instance(id) else { return };
        if let (Ec2State::Running, Some(address)) = (state, instance.address())
            && self.cml.edit(address, |_| ()).is_none()
        {
            self.cml.install(address, MemoryCmlSystem::default());
        }
    }

    /// Hides an instance in responses of EC2 for a while.
    pub(crate) fn hide(&self, id: &InstanceId, lag: Duration) {
        self.compute.hide(REGION, id);
        self.background.lock().hidden.insert(id.clone(), Instant::now() + lag);
    }

    pub(crate) fn show_all(&self) {
        for id in std::mem::take(&mut self.background.lock().hidden).keys() {
            self.compute.show(REGION, id);
        }
    }

    /// Advances the world by a second: changes instance states and sessions that are due.
    pub(crate) fn tick(&self) {
        let now = Instant::now();
        let due: Vec<_> = {
            let mut background = self.background.lock();
            let shown: Vec<_> =
                background.hidden.iter().filter(|(_, at)| **at <= now).map(|(id, _)| id.clone()).collect();
            for id in shown {
                background.hidden.remove(&id);
                self.compute.show(REGION, &id);
            }
            let mut due = Vec::new();
            for instance in self.compute.all(REGION) {
                let Some(end) = next_state(instance.state) else { continue };
                let soon = || (instance.state, now + self.rng.lock().millis(2_000, 25_000));
                let (since, at) = background.changes.entry(instance.id.clone()).or_insert_with(soon);
                if *since != instance.state {
                    (*since, *at) = soon();
                }
                if *at <= now {
                    due.push((instance.id.clone(), end));
                }
            }
            due
        };
        for (id, end) in due {
            self.background.lock().changes.remove(&id);
            self.enter(&id, end);
        }
        self.advance_sessions(now);
        self.check();
    }

    fn advance_sessions(&self, now: Instant) {
        let mut background = self.background.lock();
        for (id, active_since) in &mut background.sessions {
            let Some(mut session) = self.control_plane.stored_session(id) else { continue };
            let is_active = session.state.phase() == SessionPhase::Active;
            *active_since = if is_active { active_since.or(Some(now)) } else { None };
            let next = match (&session.state, self.rng.lock().roll(240)) {
                // No session proceeds on a stopped instance.
                _ if is_active && !self.runs_on_live_instance(&session) => KnownSessionState::Failed,
                (SessionState::Known(KnownSessionState::Instantiating), 0..20) => KnownSessionState::Running,
                (SessionState::Known(KnownSessionState::Instantiating | KnownSessionState::Running), 20) => {
                    KnownSessionState::Failed
                }
                (SessionState::Known(KnownSessionState::Running) | SessionState::Other(_), 0)
                    if self.setup.ends_sessions =>
                {
                    KnownSessionState::Stopped
                }
                _ => continue,
            };
            session.state = SessionState::Known(next);
            self.control_plane.put_session(session);
        }
    }

    /// Makes sessions old enough that every controller has seen them.
    pub(crate) fn age_sessions(&self) {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(3600));
        self.background.lock().sessions.values_mut().for_each(|since| *since = long_ago);
    }

    fn runs_on_live_instance(&self, session: &Session) -> bool {
        let worker = session.worker_id.as_ref().and_then(|id| self.control_plane.stored_worker(id));
        let instance = worker.and_then(|worker| self.instance(worker.ec2_instance_id.as_ref()?));
        instance.is_some_and(|instance| matches!(instance.state, Ec2State::Running | Ec2State::Other))
    }
}

fn next_state(state: Ec2State) -> Option<Ec2State> {
    match state {
        Ec2State::Pending => Some(Ec2State::Running),
        Ec2State::Stopping => Some(Ec2State::Stopped),
        Ec2State::ShuttingDown => Some(Ec2State::Terminated),
        Ec2State::Other => Some(Ec2State::Running),
        Ec2State::Running | Ec2State::Stopped | Ec2State::Terminated => None,
    }
}

pub(crate) fn template() -> Template {
    let mut template = Template::new("metal", "m5zn.metal");
    template.drain_timeout = DRAIN_TIMEOUT;
    template
}
