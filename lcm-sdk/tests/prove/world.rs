//! A faulty world in memory: EC2, CML, control plane and etcd, and what they do by themselves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::controller::Polling;
use lcm_sdk::lifecycle::{KnownSessionState, ScaleDownPolicy, SessionStanding, SessionState};
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
use super::faults::Trouble;
use super::oracle::Oracle;
use super::rng::Rng;

/// The region of every instance.
pub(crate) const HERE: &str = "us-east-1";

/// The drain timeout in this world: short enough for deadlines to pass.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(1200);

/// The longest time EC2 does not show a new instance here. Together with twice the largest clock error it stays below
/// the consistency window.
pub(crate) const LONGEST_LAG: u64 = 55;

/// The minimum fleet where idle workers are scaled down.
pub(crate) const MIN_WORKERS: usize = 2;

/// The largest clock error, in seconds.
pub(crate) const WRONG_CLOCK: i64 = 30;

/// Configuration of a world.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    /// Number of competing controllers; one alone needs no etcd.
    pub(crate) controllers: usize,
    pub(crate) versions: Versions,
    pub(crate) fencing: Fencing,
    pub(crate) polling: Polling,
    pub(crate) interval: Duration,
    /// Whether sessions end by themselves.
    pub(crate) ends_sessions: bool,
    /// Whether idle workers are scaled down.
    pub(crate) scales_down: bool,
    /// The flaw of the controllers, if they are broken on purpose.
    pub(crate) broken: Option<Broken>,
}

impl Setup {
    pub(crate) fn of(seed: u64) -> Self {
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
    pub(crate) trouble: Mutex<Trouble>,
    pub(crate) nature: Mutex<Nature>,
    /// Telemetry of every life of a controller.
    pub(crate) telemetries: Mutex<Vec<Telemetry>>,
    /// Receives the number of a controller that died.
    pub(crate) deaths: UnboundedSender<usize>,
}

/// Events that occur by themselves, and when.
#[derive(Debug, Default)]
pub(crate) struct Nature {
    changes: BTreeMap<InstanceId, (Ec2State, Instant)>,
    hidden: BTreeMap<InstanceId, Instant>,
    pub(crate) born: BTreeMap<InstanceId, Instant>,
    pub(crate) sessions: BTreeMap<SessionId, Option<Instant>>,
    pub(crate) next_number: u32,
}

impl World {
    pub(crate) fn new(setup: Setup, deaths: UnboundedSender<usize>) -> Self {
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
                    .with_region(HERE, RegionConfig::new("subnet-1", ["sg-1"]))
                    .with_default_region(HERE),
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
            trouble: Mutex::default(),
            nature: Mutex::default(),
            telemetries: Mutex::default(),
            deaths,
            clock,
        };
        world.control_plane.put_template(template());
        let image = ("ami-1", "cisco-cml2.9.1", "2026-01-01T00:00:00.000Z");
        let (id, name, creation_date) = (image.0.to_owned(), image.1.to_owned(), image.2.to_owned());
        world.compute.put_image(HERE, Image { id, name, creation_date });
        world.compute.put_subnet(HERE, "subnet-1");
        world
    }

    pub(crate) fn tell(&self, happened: impl Into<String>) {
        self.oracle.lock().tell(&happened.into());
    }

    pub(crate) fn is_broken(&self, how: Broken) -> bool {
        self.setup.broken == Some(how)
    }

    pub(crate) fn instance(&self, id: &InstanceId) -> Option<Instance> {
        self.compute.all(HERE).into_iter().find(|instance| instance.id == *id)
    }

    pub(crate) fn workers(&self) -> Vec<Worker> {
        self.control_plane.look_at_all()
    }

    pub(crate) fn worker(&self, id: &WorkerId) -> Worker {
        self.control_plane.look(id).expect("it exists")
    }

    /// Another client writes to a record, and every watcher receives the change.
    pub(crate) fn edit(&self, id: &WorkerId, edit: impl FnOnce(&mut Worker)) {
        self.control_plane.edit(id, edit);
        self.publish(id);
    }

    /// The control plane publishes a changed record in etcd.
    pub(crate) fn publish(&self, id: &WorkerId) {
        if self.setup.controllers > 1 {
            self.etcd.put(&format!("/workers/{id}"), "changed");
        }
    }

    /// A new record, for a template of this world.
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

    /// A record with an instance, from before this world began.
    pub(crate) fn add_settled(&self, id: &str, status: WorkerStatus, ec2: Ec2State) -> WorkerId {
        let number = self.number();
        let yesterday = self.clock.truth() - Duration::from_secs(86_400);
        let mut instance = Instance::new(format!("i-{number:04x}"), Ec2State::Pending);
        instance.launched_at = Some(yesterday);
        instance.private_ip = Some(format!("10.0.255.{number}"));
        instance.tags.insert("lcm:worker_id".to_owned(), id.to_owned());
        self.compute.put(HERE, instance.clone());
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

    pub(crate) fn number(&self) -> u32 {
        let mut nature = self.nature.lock();
        nature.next_number += 1;
        nature.next_number
    }

    /// Brings an instance into a state, and its CML with it.
    pub(crate) fn enter(&self, id: &InstanceId, state: Ec2State) {
        self.compute.set_state(HERE, id, state);
        let Some(instance) = self.instance(id) else { return };
        if let (Ec2State::Running, Some(address)) = (state, instance.address())
            && self.cml.edit(address, |_| ()).is_none()
        {
            self.cml.install(address, MemoryCmlSystem::default());
        }
    }

    /// EC2 does not show a young instance for a while.
    pub(crate) fn hide(&self, id: &InstanceId, lag: Duration) {
        self.compute.hide(HERE, id);
        self.nature.lock().hidden.insert(id.clone(), Instant::now() + lag);
    }

    pub(crate) fn show_all(&self) {
        for id in std::mem::take(&mut self.nature.lock().hidden).keys() {
            self.compute.show(HERE, id);
        }
    }

    /// A second passes: instances come up and go down, sessions proceed.
    pub(crate) fn pass(&self) {
        let now = Instant::now();
        let due: Vec<_> = {
            let mut nature = self.nature.lock();
            let shown: Vec<_> = nature.hidden.iter().filter(|(_, at)| **at <= now).map(|(id, _)| id.clone()).collect();
            for id in shown {
                nature.hidden.remove(&id);
                self.compute.show(HERE, &id);
            }
            let mut due = Vec::new();
            for instance in self.compute.all(HERE) {
                let Some(end) = end_of(instance.state) else { continue };
                let soon = || (instance.state, now + self.rng.lock().millis(2_000, 25_000));
                let (since, at) = nature.changes.entry(instance.id.clone()).or_insert_with(soon);
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
            self.nature.lock().changes.remove(&id);
            self.enter(&id, end);
        }
        self.sessions_go_on(now);
        self.check();
    }

    fn sessions_go_on(&self, now: Instant) {
        let mut nature = self.nature.lock();
        for (id, active_since) in &mut nature.sessions {
            let Some(mut session) = self.control_plane.look_at_session(id) else { continue };
            let is_active = session.state.standing() == SessionStanding::Active;
            *active_since = if is_active { active_since.or(Some(now)) } else { None };
            let next = match (&session.state, self.rng.lock().roll(240)) {
                // No session proceeds on a stopped instance.
                _ if is_active && !self.has_power(&session) => KnownSessionState::Failed,
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

    /// Sessions that every controller had the time to see.
    pub(crate) fn sessions_are_old(&self) {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(3600));
        self.nature.lock().sessions.values_mut().for_each(|since| *since = long_ago);
    }

    fn has_power(&self, session: &Session) -> bool {
        let worker = session.worker_id.as_ref().and_then(|id| self.control_plane.look(id));
        let instance = worker.and_then(|worker| self.instance(worker.ec2_instance_id.as_ref()?));
        instance.is_some_and(|instance| matches!(instance.state, Ec2State::Running | Ec2State::Other))
    }
}

fn end_of(state: Ec2State) -> Option<Ec2State> {
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
