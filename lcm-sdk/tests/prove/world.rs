//! A faulty world in memory: EC2, CML, control plane and etcd, and the changes they make without a call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lcm_sdk::controller::{ElectionConfig, Polling, Shards};
use lcm_sdk::lifecycle::{KnownSessionState, ScaleDownPolicy, SessionPhase, SessionState};
use lcm_sdk::ports::ScanSettings;
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
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep};

use super::accounts::{Credentials, furnish, image};
use super::broken::Broken;
use super::clock::SimClock;
use super::faults::FaultPlan;
use super::oracle::Oracle;
use super::records::Server;
use super::rng::Rng;
use super::schedule::Pace;

/// The region of every instance.
pub(crate) const REGION: &str = "us-east-1";

/// A public image of an unknown account.
pub(crate) const PUBLIC_IMAGE: &str = "ami-666";

/// Our account.
pub(crate) const ACCOUNT: &str = lcm_sdk::simulate::ACCOUNT_ID;

/// A region without instances.
pub(crate) const OTHER_REGION: &str = "eu-west-1";

/// A region that is not configured and does not exist.
pub(crate) const UNKNOWN_REGION: &str = "mars-1";

/// The drain timeout in this world: short enough for deadlines to pass.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(1200);

/// The longest time EC2 does not show a new instance here. Together with twice the largest clock error it stays below
/// the consistency window.
pub(crate) const MAX_LAG: u64 = 55;

/// The minimum fleet where idle workers are scaled down.
pub(crate) const MIN_WORKERS: usize = 2;

/// The largest clock error, in seconds.
pub(crate) const MAX_CLOCK_ERROR: i64 = 30;

/// Time between two steps of the world, and at a quiet pace while no instance changes.
const STEP: Duration = Duration::from_secs(1);
const QUIET_STEP: Duration = Duration::from_secs(15);

/// Longest time between two checks of the rules, besides those after every change.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// How long EC2 shows a terminated instance.
const TERMINATED_VISIBLE: Duration = Duration::from_secs(3600);

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
    pub(crate) discovery_interval: Duration,
    /// How close together events are.
    pub(crate) pace: Pace,
    /// Number of workers above which none is created.
    pub(crate) fleet: usize,
    /// Number of parts of the fleet, each with a leader of its own.
    pub(crate) shards: usize,
    pub(crate) server: Server,
    /// The regions that discovery scans.
    pub(crate) regions: &'static [&'static str],
    pub(crate) discovery: Discovery,
    /// Whether sessions end by themselves.
    pub(crate) ends_sessions: bool,
    /// Whether idle workers are scaled down.
    pub(crate) scales_down: bool,
    /// The deliberate defect of the controllers, if any.
    pub(crate) broken: Option<Broken>,
    /// Whether its controllers record their reconciles.
    pub(crate) is_recorded: bool,
}

/// How instances without a record and records without an instance are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discovery {
    /// By the name of the AMI.
    Filtered,
    /// Without a condition: records are verified by id.
    Unfiltered,
    Off,
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
            discovery_interval: Duration::from_secs(60),
            pace: Pace::Dense,
            fleet: 7,
            shards: 1,
            server: Server::KeepsAll,
            regions: &[REGION],
            discovery: Discovery::Filtered,
            ends_sessions: true,
            scales_down: false,
            broken: None,
            is_recorded: false,
        }
    }
}

pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) clock: SimClock,
    /// EC2 of our account, and of another one.
    pub(crate) compute: Arc<MemoryCompute>,
    pub(crate) other_account: Arc<MemoryCompute>,
    pub(crate) credentials: Mutex<Credentials>,
    /// The default region that a controller is started with.
    pub(crate) default_region: Mutex<&'static str>,
    /// How long CML takes to answer.
    pub(crate) cml_delay: Mutex<Duration>,
    /// Whether events are never accepted.
    pub(crate) events_hang: AtomicBool,
    /// Sessions that the server refuses to end or move.
    pub(crate) stuck_sessions: Mutex<BTreeSet<SessionId>>,
    /// Workers with unreadable fields on their records.
    pub(crate) garbled: Mutex<BTreeSet<WorkerId>>,
    /// The highest fencing token that was accepted for each record.
    pub(crate) fences: Mutex<BTreeMap<WorkerId, i64>>,
    /// Records that lost the name of their instance for a while.
    pub(crate) nameless: Mutex<BTreeSet<WorkerId>>,
    /// How many listings of images still show one that was withdrawn.
    pub(crate) stale_images: AtomicUsize,
    /// Wakes the world before its next step.
    woken: Notify,
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
    /// When an address was last seen on one of our instances.
    pub(crate) addresses: BTreeMap<String, Instant>,
    pub(crate) sessions: BTreeMap<SessionId, Option<Instant>>,
    pub(crate) next_number: u32,
    /// Whether an instance is about to change, or to be shown.
    is_changing: bool,
    /// When sessions last proceeded, and when the rules were last checked.
    sessions_at: Option<Instant>,
    checked_at: Option<Instant>,
    /// Since when instances are terminated. EC2 forgets them after a while.
    terminated_at: BTreeMap<InstanceId, Instant>,
}

impl World {
    pub(crate) fn new(setup: Setup, crashes: UnboundedSender<usize>) -> Self {
        let clock = SimClock::new();
        let shared = || Arc::new(clock.clone());
        let mut scale_down = ScaleDownPolicy::new(MIN_WORKERS).with_cooldown(Duration::from_secs(90));
        scale_down.enabled = setup.scales_down;
        // A server that pauses idle workers by itself checks activity, not sessions: only scale-down checks both.
        let idle_timeout = Duration::from_secs(if setup.scales_down { 300 } else { 86_400 });
        // A server remembers the newest token per record; the one in memory does so for the whole fleet.
        let fencing = if setup.shards > 1 { Fencing::Ignored } else { setup.fencing };
        let control_plane = MemoryControlPlane::new(shared())
            .with_versions(setup.versions)
            .with_fencing(fencing)
            .with_idle_timeout(idle_timeout);
        let world = Self {
            setup,
            compute: Arc::new(MemoryCompute::new(shared())),
            other_account: Arc::new(MemoryCompute::new(shared())),
            credentials: Mutex::new(Credentials::Own),
            default_region: Mutex::new(REGION),
            cml_delay: Mutex::default(),
            events_hang: AtomicBool::new(false),
            stuck_sessions: Mutex::default(),
            garbled: Mutex::default(),
            fences: Mutex::default(),
            nameless: Mutex::default(),
            stale_images: AtomicUsize::new(0),
            woken: Notify::new(),
            metrics: Arc::default(),
            cml: Arc::new(MemoryCml::new(shared())),
            control_plane: Arc::new(control_plane),
            events: Arc::default(),
            etcd: MemoryCoordination::new(),
            policy: Policy {
                regions: RegionConfigs::default()
                    .with_region(REGION, RegionConfig::new("subnet-1", ["sg-1"]))
                    .with_region(OTHER_REGION, RegionConfig::new("subnet-1", ["sg-1"]))
                    .with_default_region(REGION),
                idle_detection_interval: Duration::from_secs(60),
                scale_down,
                consistency_window: match setup.broken {
                    Some(Broken::AbsentIsGone) => Duration::ZERO,
                    _ => Policy::default().consistency_window,
                },
                drain_settle: match setup.broken {
                    Some(Broken::NoSettleTime) => Duration::ZERO,
                    _ => Policy::default().drain_settle,
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
        furnish(&world.compute, &world.other_account);
        world
    }

    pub(crate) fn log(&self, event: impl Into<String>) {
        self.oracle.lock().log(&event.into());
    }

    pub(crate) fn is_broken(&self, defect: Broken) -> bool {
        self.setup.broken == Some(defect)
    }

    pub(crate) fn instance(&self, id: &InstanceId) -> Option<Instance> {
        let find = |region| self.compute.read(region, |ec2| ec2.all().find(|instance| instance.id == *id).cloned());
        [REGION, OTHER_REGION].into_iter().find_map(find)
    }

    /// Calls a function with each instance of our account. The function must not call EC2.
    pub(crate) fn each_instance(&self, mut visit: impl FnMut(&Instance)) {
        [REGION, OTHER_REGION]
            .iter()
            .for_each(|region| self.compute.read(region, |ec2| ec2.all().for_each(&mut visit)));
    }

    /// Number of instances of our account.
    pub(crate) fn instance_count(&self) -> usize {
        let mut count = 0;
        self.each_instance(|_| count += 1);
        count
    }

    /// The worker whose record names an instance, else the one that its tag names.
    pub(crate) fn owner_of(&self, id: &InstanceId) -> Option<String> {
        let mut named = None;
        self.control_plane.each_worker(|worker| {
            if named.is_none() && worker.ec2_instance_id.as_ref() == Some(id) {
                named = Some(worker.id.as_str().to_owned());
            }
        });
        named.or_else(|| self.instance(id)?.owner().map(str::to_owned))
    }

    /// The region of an instance.
    pub(crate) fn region_of(&self, id: &InstanceId) -> &'static str {
        let is_there = self.compute.read(OTHER_REGION, |ec2| ec2.all().any(|instance| instance.id == *id));
        if is_there { OTHER_REGION } else { REGION }
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
        // A worker that was never launched relies on the default region.
        worker.aws_region = (status != WorkerStatus::Pending).then(|| REGION.to_owned());
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
        instance.image_id = Some("ami-1".to_owned());
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
        self.note_addresses();
        self.compute.set_state(self.region_of(id), id, state);
        self.wake();
        let Some(instance) = self.instance(id) else { return };
        if let (Ec2State::Running, Some(address)) = (state, instance.address())
            && self.cml.edit(address, |_| ()).is_none()
        {
            self.cml.install(address, MemoryCmlSystem::default());
        }
    }

    /// Hides an instance in responses of EC2 for a while.
    pub(crate) fn hide(&self, id: &InstanceId, lag: Duration) {
        self.compute.hide(self.region_of(id), id);
        self.background.lock().hidden.insert(id.clone(), Instant::now() + lag);
        self.wake();
    }

    pub(crate) fn show_all(&self) {
        for id in std::mem::take(&mut self.background.lock().hidden).keys() {
            self.compute.show(self.region_of(id), id);
        }
    }

    /// Takes the next step soon, because an instance is about to change.
    pub(crate) fn wake(&self) {
        self.woken.notify_one();
    }

    /// Waits until the next step is due: a second, or longer at a quiet pace while nothing changes.
    pub(crate) async fn until_next_step(&self) {
        let rest = match self.setup.pace {
            Pace::Quiet if !self.background.lock().is_changing => QUIET_STEP,
            Pace::Dense | Pace::Calm | Pace::Quiet => STEP,
        };
        if rest == STEP {
            sleep(STEP).await;
            return;
        }
        tokio::select! {
            biased;
            () = self.woken.notified() => {}
            () = sleep(rest) => {}
        }
    }

    /// Takes a step: changes instance states and sessions that are due, and checks the rules.
    pub(crate) fn step(&self) {
        let now = Instant::now();
        let due: Vec<_> = {
            let mut background = self.background.lock();
            let shown: Vec<_> =
                background.hidden.iter().filter(|(_, at)| **at <= now).map(|(id, _)| id.clone()).collect();
            for id in shown {
                background.hidden.remove(&id);
                self.compute.show(self.region_of(&id), &id);
            }
            let (mut due, mut terminated) = (Vec::new(), Vec::new());
            background.is_changing = !background.hidden.is_empty();
            self.each_instance(|instance| {
                if instance.state == Ec2State::Terminated {
                    terminated.push(instance.id.clone());
                }
                let Some(end) = next_state(instance.state) else { return };
                background.is_changing = true;
                let soon = || (instance.state, now + self.rng.lock().millis(2_000, 25_000));
                let (since, at) = background.changes.entry(instance.id.clone()).or_insert_with(soon);
                if *since != instance.state {
                    (*since, *at) = soon();
                }
                if *at <= now {
                    due.push((instance.id.clone(), end));
                }
            });
            if self.setup.pace == Pace::Quiet {
                self.forget_terminated(&mut background, terminated);
            }
            due
        };
        for (id, end) in due {
            self.background.lock().changes.remove(&id);
            self.enter(&id, end);
        }
        let is_over = |at: Option<Instant>, period| at.is_none_or(|at| now - at >= period);
        let (sessions_proceed, is_check_due) = {
            let mut background = self.background.lock();
            let sessions = is_over(background.sessions_at, self.setup.pace.session_step());
            let check = is_over(background.checked_at, CHECK_INTERVAL);
            background.sessions_at = if sessions { Some(now) } else { background.sessions_at };
            background.checked_at = if check { Some(now) } else { background.checked_at };
            (sessions, check)
        };
        if sessions_proceed {
            self.advance_sessions(now);
        }
        // Every change of a controller is checked at once.
        if is_check_due {
            self.note_addresses();
            self.check();
        }
    }

    /// Removes instances that were terminated long ago, as EC2 does.
    fn forget_terminated(&self, background: &mut Background, terminated: Vec<InstanceId>) {
        let now = Instant::now();
        for id in terminated {
            let since = *background.terminated_at.entry(id.clone()).or_insert(now);
            if now - since > TERMINATED_VISIBLE {
                background.terminated_at.remove(&id);
                background.launched_at.remove(&id);
                background.changes.remove(&id);
                self.compute.remove(self.region_of(&id), &id);
            }
        }
    }

    /// Notes the addresses of our instances: a call to one that was just released is on its way.
    fn note_addresses(&self) {
        let now = Instant::now();
        let addresses = &mut self.background.lock().addresses;
        self.each_instance(|instance| {
            for address in [&instance.public_ip, &instance.private_ip].into_iter().flatten() {
                match addresses.get_mut(address) {
                    Some(at) => *at = now,
                    None => drop(addresses.insert(address.clone(), now)),
                }
            }
        });
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

    /// The etcd key of the leader of a worker, or of a region's name.
    pub(crate) fn leader_key(&self, name: &str) -> String {
        if self.setup.shards == 1 {
            return ElectionConfig::WORKER_CONTROLLER.to_owned();
        }
        let shards = Shards::new(self.setup.shards).expect("a valid number of shards");
        format!("/lcm/worker-controller/shards/{}/{}/leader", shards.count(), shards.shard_of(name))
    }

    /// The keys of all leaders.
    pub(crate) fn leader_keys(&self) -> Vec<String> {
        if self.setup.shards == 1 {
            return vec![ElectionConfig::WORKER_CONTROLLER.to_owned()];
        }
        let count = self.setup.shards;
        (0..count).map(|shard| format!("/lcm/worker-controller/shards/{count}/{shard}/leader")).collect()
    }

    /// The images as a cache shows them: one that was withdrawn may still be among them.
    pub(crate) fn images_shown(&self, mut images: Vec<Image>) -> Vec<Image> {
        let is_stale = |left: usize| left.checked_sub(1);
        if self.stale_images.fetch_update(Ordering::AcqRel, Ordering::Acquire, is_stale).is_ok() {
            images.push(image("ami-0", "cisco-cml2.9.2", "2026-02-01T00:00:00.000Z"));
        }
        images
    }

    /// Sets the switch of discovery in the control plane.
    pub(crate) fn switch_discovery(&self, enabled: Option<bool>, scan_interval: Option<Duration>) {
        self.control_plane.set_discovery(Some(ScanSettings { enabled, scan_interval, ..ScanSettings::default() }));
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
