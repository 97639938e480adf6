//! A script ends in the same facts in three worlds: the simulator, a reconciler on ports in memory, and the real clients
//! over the sockets of the fake cloud.
//!
//! The worlds share no code but the decisions: the simulator and the memory share a model of EC2, the fake cloud has its
//! own. The script has no service that places sessions, which only the simulator has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fake_cloud::control_plane::Generation;
use fake_cloud::world::Delays;
use fake_cloud::{FakeCloud, Pace};
use lcm_sdk::lifecycle::{DrainRequest, Eligibility, LicenseOperation, eligibility};
use lcm_sdk::ports::Ports;
use lcm_sdk::providers::memory::{
    ComputeOperation, ManualClock, MemoryCml, MemoryCmlSystem, MemoryCompute, MemoryControlPlane, MemoryEvents,
    MemoryMetrics,
};
use lcm_sdk::reconciler::Reconciler;
use lcm_sdk::simulate::{Events, Fleet, run};
use lcm_sdk::{
    CallFailure, DesiredStatus, Ec2State, FailureKind, Instance, Policy, RegionConfig, RegionConfigs, Requeue, Secret,
    Session, Template, Timestamp, Worker, WorkerId, WorkerStatus,
};
use lcm_tests::harness::{Harness, REGION};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Time between two polls.
const CYCLE: Duration = Duration::from_secs(30);
/// Time that an instance takes to start or stop.
const BOOT: Duration = Duration::from_secs(25);
/// How long a drain waits. No event of a script is at that time after another.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(675);
/// Time that CML takes to register a license.
const REGISTRATION: Duration = Duration::from_secs(10);
/// The last minute with an event, and the end: EC2 has forgotten a terminated instance by then.
const LAST: u32 = 40;
const END: u32 = 130;

/// A worker and what happens to it, by minute.
#[derive(Debug, Clone)]
struct Script {
    is_running: bool,
    actions: BTreeMap<u32, Action>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Action {
    Desire(DesiredStatus),
    Console(Console),
    /// A session of some minutes begins, if the worker takes sessions.
    Session(u32),
    Drain,
    CancelDrain,
    License,
    /// Every call to EC2 fails for some minutes.
    Outage(u32, Fault),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Console {
    Start,
    Stop,
    Terminate,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Unreachable,
    Throttled,
}

fn any_script() -> impl Strategy<Value = Script> {
    let action = prop_oneof![
        3 => Just(Action::Desire(DesiredStatus::Running)),
        2 => Just(Action::Desire(DesiredStatus::Stopped)),
        1 => Just(Action::Desire(DesiredStatus::Terminated)),
        1 => Just(Action::Console(Console::Start)),
        2 => Just(Action::Console(Console::Stop)),
        1 => Just(Action::Console(Console::Terminate)),
        4 => (1_u32..25).prop_map(Action::Session),
        4 => Just(Action::Drain),
        2 => Just(Action::CancelDrain),
        2 => Just(Action::License),
        1 => (1_u32..4).prop_map(|minutes| Action::Outage(minutes, Fault::Unreachable)),
        1 => (1_u32..4).prop_map(|minutes| Action::Outage(minutes, Fault::Throttled)),
    ];
    let actions = proptest::collection::btree_map(1..LAST, action, 0..8);
    (any::<bool>(), actions).prop_map(|(is_running, actions)| Script { is_running, actions })
}

/// The end of a script: the record without ids and times, and the sessions.
#[derive(Debug, PartialEq)]
struct Facts {
    status: WorkerStatus,
    desired: Option<DesiredStatus>,
    has_instance: bool,
    has_address: bool,
    launch_generation: u32,
    has_launch_plan: bool,
    has_drain_started: bool,
    drain_timeout_seconds: Option<u64>,
    drain_tries: u32,
    has_scaled_down: bool,
    license_operation: Option<LicenseOperation>,
    license_in_progress: bool,
    has_license_wait: bool,
    served: u64,
    cut_short: u64,
}

impl Facts {
    fn new(worker: &Worker, served: u64, cut_short: u64) -> Self {
        let notes = &worker.notes;
        Self {
            status: worker.status,
            desired: worker.desired_status,
            has_instance: worker.ec2_instance_id.is_some(),
            has_address: worker.address().is_some(),
            launch_generation: notes.launch_generation,
            has_launch_plan: notes.launch_plan.is_some(),
            has_drain_started: notes.drain_started_at.is_some(),
            drain_timeout_seconds: notes.drain_timeout_seconds,
            drain_tries: notes.drain_tries,
            has_scaled_down: notes.scaled_down_at.is_some(),
            license_operation: worker.license.pending_operation,
            license_in_progress: worker.license.operation_in_progress,
            has_license_wait: notes.license_wait.as_ref().is_some_and(|note| !note.is_empty()),
            served,
            cut_short,
        }
    }
}

fn policy() -> Policy {
    let regions = RegionConfigs::default().with_region(REGION, RegionConfig::new("subnet-1", ["sg-1"]));
    Policy { regions: regions.with_default_region(REGION), ..Policy::default() }
}

fn simulated(script: &Script) -> Facts {
    let mut lists: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for (minute, action) in &script.actions {
        let at = minute * 60;
        let (list, event) = match action {
            Action::Desire(desired) => ("desired", json!({"at": at, "worker": "w-1", "desired": desired})),
            Action::Console(action) => {
                let action = match action {
                    Console::Start => "start",
                    Console::Stop => "stop",
                    Console::Terminate => "terminate",
                };
                ("console", json!({"at": at, "worker": "w-1", "action": action}))
            }
            Action::Session(minutes) => ("sessions", json!({"at": at, "worker": "w-1", "lasts": minutes * 60 + 30})),
            Action::Drain => ("drains", json!({"at": at, "worker": "w-1"})),
            Action::CancelDrain => ("drains", json!({"at": at, "worker": "w-1", "action": "cancel"})),
            Action::License => ("licenses", json!({"at": at, "worker": "w-1", "takes": REGISTRATION.as_secs()})),
            Action::Outage(minutes, fault) => {
                let failure = match fault {
                    Fault::Unreachable => "unreachable",
                    Fault::Throttled => "throttled",
                };
                ("outages", json!({"from": at, "to": at + minutes * 60, "failure": failure}))
            }
        };
        lists.entry(list).or_default().push(event);
    }
    let mut events: Events = serde_json::from_value(json!(lists)).expect("events");
    // A session that finds no worker in service is not placed later.
    events.patience = Duration::ZERO;
    let fleet = json!({
        "workers": 1, "running": u32::from(script.is_running), "boot_time": BOOT.as_secs(), "on_demand": false,
        "interval": CYCLE.as_secs(), "drain_timeout": DRAIN_TIMEOUT.as_secs(), "sessions_per_worker": 100,
    });
    let fleet: Fleet = serde_json::from_value(fleet).expect("a fleet");
    let mut history = run(&fleet, &events, &policy(), f64::from(END) / 60.0, 7).expect("valid");
    let sessions = &history.figures.sessions;
    let (served, cut_short) = (sessions.served, sessions.cut_short);
    let worker = history.records.remove(0);
    Facts::new(&worker, served, cut_short)
}

/// A world that a script is played in, cycle by cycle.
trait Stage {
    async fn worker(&self) -> Worker;
    /// Reconciles once.
    async fn reconcile(&self) -> Requeue;
    async fn advance(&self, time: Duration);
    async fn desire(&self, desired: DesiredStatus);
    async fn request_license(&self);
    async fn drain(&self);
    async fn cancel_drain(&self);
    /// Acts in the AWS console. An action that EC2 refuses does nothing.
    fn console(&self, action: Console);
    fn is_instance_running(&self) -> bool;
    fn add_session(&self, id: &str);
    fn is_active(&self, session: &str) -> bool;
    fn end_session(&self, session: &str);
    /// Makes every call to EC2 fail, or none.
    fn fail(&self, fault: Option<Fault>);
}

async fn play(stage: &impl Stage, script: &Script) -> Facts {
    // Sessions with the cycle of their end.
    let mut sessions: BTreeMap<String, u32> = BTreeMap::new();
    let (mut served, mut cut_short) = (0, 0);
    for cycle in 0..END * 2 {
        let now = |session: &&u32| **session == cycle;
        for (session, _) in sessions.iter().filter(|(_, end)| now(end)) {
            if stage.is_active(session) {
                stage.end_session(session);
                served += 1;
            }
        }
        sessions.retain(|_, end| *end > cycle);
        let action = script.actions.get(&(cycle / 2)).filter(|_| cycle % 2 == 0);
        let mut is_due = false;
        let record = stage.worker().await;
        match action {
            Some(Action::Session(minutes)) if eligibility(&record) == Eligibility::Eligible => {
                let session = format!("s-{cycle}");
                stage.add_session(&session);
                // Half a minute later, so that no action happens at the same time.
                sessions.insert(session, cycle + minutes * 2 + 1);
            }
            Some(action) => {
                act(stage, *action).await;
                // A watch reports a write to the record. No controller polls a worker at rest.
                is_due = stage.worker().await != record;
            }
            None => {}
        }
        end_without_instance(stage, &mut sessions, &mut cut_short);
        stage.fail(fault_at(script, cycle));
        let mut left = CYCLE;
        let mut tries = 0;
        while is_due || !stage.worker().await.is_at_rest() {
            is_due = false;
            tries += 1;
            match stage.reconcile().await {
                Requeue::Now if tries < 5 => {}
                Requeue::After(delay) if delay < left => {
                    stage.advance(delay).await;
                    left -= delay;
                }
                _ => break,
            }
        }
        stage.fail(None);
        cut_short += sessions.keys().filter(|session| !stage.is_active(session)).count() as u64;
        sessions.retain(|session, _| stage.is_active(session));
        stage.advance(left).await;
        end_without_instance(stage, &mut sessions, &mut cut_short);
    }
    Facts::new(&stage.worker().await, served, cut_short)
}

async fn act(stage: &impl Stage, action: Action) {
    match action {
        Action::Desire(desired) => stage.desire(desired).await,
        Action::Console(action) => stage.console(action),
        Action::Drain => stage.drain().await,
        Action::CancelDrain => stage.cancel_drain().await,
        Action::License => stage.request_license().await,
        Action::Session(_) | Action::Outage(..) => {}
    }
}

/// Ends the sessions of an instance that does not run.
fn end_without_instance(stage: &impl Stage, sessions: &mut BTreeMap<String, u32>, cut_short: &mut u64) {
    if stage.is_instance_running() {
        return;
    }
    for (session, _) in std::mem::take(sessions) {
        if stage.is_active(&session) {
            stage.end_session(&session);
        }
        *cut_short += 1;
    }
}

fn fault_at(script: &Script, cycle: u32) -> Option<Fault> {
    script.actions.iter().find_map(|(minute, action)| match action {
        Action::Outage(minutes, fault) if (minute * 2..(minute + minutes) * 2).contains(&cycle) => Some(*fault),
        _ => None,
    })
}

fn by_script() -> DrainRequest {
    DrainRequest { reason: "script".to_owned(), requested_by: "operator".to_owned() }
}

struct Memory {
    clock: ManualClock,
    compute: Arc<MemoryCompute>,
    control_plane: Arc<MemoryControlPlane>,
    reconciler: Reconciler,
}

impl Memory {
    fn new(is_running: bool) -> Self {
        let clock = ManualClock::new("2026-01-05T00:00:00Z".parse().expect("a time"));
        let shared = || Arc::new(clock.clone());
        let compute = Arc::new(MemoryCompute::new(shared()));
        let control_plane = Arc::new(MemoryControlPlane::new(shared()));
        let cml = Arc::new(MemoryCml::new(shared()));
        // The addresses of the instance before its first start, and after each other one.
        for address in ["10.0.0.1", "198.18.0.1", "198.19.0.1"] {
            let mut system = MemoryCmlSystem::default();
            system.registration_takes = REGISTRATION;
            cml.install(address, system);
        }
        control_plane.put_template(Template { drain_timeout: DRAIN_TIMEOUT, ..Template::new("agreed", "m5zn.metal") });
        let yesterday: Timestamp = "2026-01-04T00:00:00Z".parse().expect("a time");
        let (status, state, desired) = start(is_running);
        let mut instance = Instance::new("i-1", state);
        instance.launched_at = Some(yesterday);
        instance.private_ip = Some("10.0.0.1".to_owned());
        instance.tags = BTreeMap::from([("lcm:worker_id".to_owned(), "w-1".to_owned())]);
        compute.put(REGION, instance);
        let mut worker = Worker::new("w-1", status);
        worker.desired_status = Some(desired);
        worker.ec2_instance_id = Some("i-1".into());
        worker.aws_region = Some(REGION.to_owned());
        worker.template_name = Some("agreed".to_owned());
        if is_running {
            worker.private_ip = Some("10.0.0.1".to_owned());
            worker.ip_address.clone_from(&worker.private_ip);
        }
        let system = MemoryCmlSystem::default();
        (worker.cml_username, worker.cml_password) = (Some(system.username), Some(system.password));
        worker.created_at = Some(yesterday);
        worker.is_idle_detection_enabled = false;
        control_plane.put_worker(worker);
        let ports = Ports::builder()
            .compute(Arc::clone(&compute) as _)
            .metrics(Arc::new(MemoryMetrics::default()))
            .cml(cml)
            .control_plane(Arc::clone(&control_plane) as _)
            .events(Arc::new(MemoryEvents::default()))
            .clock(shared())
            .build()
            .expect("all ports");
        Self {
            clock,
            compute,
            control_plane,
            reconciler: Reconciler::new(ports, policy()).expect("a supported policy"),
        }
    }

    fn id() -> WorkerId {
        "w-1".into()
    }
}

/// Status of the record, state of the instance and desired status at the start.
fn start(is_running: bool) -> (WorkerStatus, Ec2State, DesiredStatus) {
    match is_running {
        true => (WorkerStatus::Running, Ec2State::Running, DesiredStatus::Running),
        false => (WorkerStatus::Stopped, Ec2State::Stopped, DesiredStatus::Stopped),
    }
}

impl Stage for Memory {
    async fn worker(&self) -> Worker {
        self.control_plane.stored_worker(&Self::id()).expect("an existing worker")
    }

    async fn reconcile(&self) -> Requeue {
        let result = self.reconciler.reconcile(&self.worker().await).await;
        let _left = self.reconciler.flush(Duration::from_secs(1)).await;
        result.requeue
    }

    async fn advance(&self, time: Duration) {
        self.clock.advance(time);
        if time >= BOOT {
            self.compute.settle();
        }
    }

    async fn desire(&self, desired: DesiredStatus) {
        self.control_plane.edit(&Self::id(), |worker| worker.desired_status = Some(desired));
    }

    async fn request_license(&self) {
        self.control_plane.edit(&Self::id(), |worker| {
            worker.license.pending_operation = Some(LicenseOperation::Register);
            worker.license.pending_token = Some(Secret::from("token"));
        });
    }

    async fn drain(&self) {
        let _refused = self.reconciler.drain(&Self::id(), &by_script()).await;
    }

    async fn cancel_drain(&self) {
        let _refused = self.reconciler.cancel_drain(&Self::id(), &by_script()).await;
    }

    fn console(&self, action: Console) {
        let Some(instance) = self.compute.all(REGION).into_iter().next() else { return };
        let state = match (action, instance.state) {
            (Console::Start, Ec2State::Stopped) => Ec2State::Pending,
            (Console::Stop, Ec2State::Running) => Ec2State::Stopping,
            (Console::Terminate, Ec2State::Terminated) | (Console::Start | Console::Stop, _) => return,
            (Console::Terminate, _) => Ec2State::ShuttingDown,
        };
        self.compute.set_state(REGION, &instance.id, state);
    }

    fn is_instance_running(&self) -> bool {
        self.compute.all(REGION).iter().any(|instance| instance.state == Ec2State::Running)
    }

    fn add_session(&self, id: &str) {
        let mut session = Session::new(id, "running");
        session.worker_id = Some(Self::id());
        self.control_plane.put_session(session);
    }

    fn is_active(&self, session: &str) -> bool {
        self.control_plane.stored_session(&session.into()).expect("an existing session").state.to_string() == "running"
    }

    fn end_session(&self, session: &str) {
        self.control_plane.put_session(Session::new(session, "stopped"));
    }

    fn fail(&self, fault: Option<Fault>) {
        use ComputeOperation as Operation;
        self.compute.clear_failures();
        let Some(fault) = fault else { return };
        let operations =
            [Operation::Instances, Operation::Tagged, Operation::Start, Operation::Stop, Operation::Terminate];
        for operation in operations.into_iter().cycle().take(operations.len() * 10) {
            self.compute.fail_next(
                operation,
                match fault {
                    Fault::Unreachable => CallFailure::new(FailureKind::Unreachable, "no response"),
                    Fault::Throttled => {
                        CallFailure::with_code(FailureKind::Throttled, "RequestLimitExceeded", "slow down")
                    }
                },
            );
        }
    }
}

struct Cloud {
    harness: Harness,
    instance: String,
    rule: std::cell::Cell<Option<u64>>,
}

impl Cloud {
    async fn new(is_running: bool) -> Self {
        let mut delays = Delays::default();
        (delays.starting, delays.stopping, delays.terminating) = (BOOT, BOOT, BOOT);
        let builder = FakeCloud::builder()
            .control_plane(Generation::Extended)
            .pace(Pace::Manual)
            .delays(delays)
            .cml(|cml| cml.licensing.registration = REGISTRATION);
        let harness = Harness::start(builder).await;
        let template = json!({"name": "agreed", "instance_type": "m5zn.metal",
            "drain_timeout_hours": DRAIN_TIMEOUT.as_secs_f64() / 3600.0});
        harness.cloud.add_template(template).expect("a valid template");
        let instance = harness.cloud.run_instance(REGION, &[("lcm:worker_id", "w-1")]).expect("launched").id.clone();
        harness.cloud.advance(Duration::from_secs(3600)).await;
        let (status, _, desired) = start(is_running);
        if !is_running {
            harness.cloud.stop_instance(REGION, &instance).expect("it runs");
            harness.cloud.advance(Duration::from_secs(3600)).await;
        }
        let record = json!({"status": status, "desired_status": desired, "ec2_instance_id": instance,
            "template_name": "agreed", "is_idle_detection_enabled": false});
        harness.add_worker("w-1", record);
        Self { harness, instance, rule: std::cell::Cell::new(None) }
    }
}

impl Stage for Cloud {
    async fn worker(&self) -> Worker {
        self.harness.worker("w-1").await
    }

    async fn reconcile(&self) -> Requeue {
        self.harness.reconcile("w-1").await.requeue
    }

    async fn advance(&self, time: Duration) {
        self.harness.cloud.advance(time).await;
    }

    async fn desire(&self, desired: DesiredStatus) {
        self.harness.cloud.update_worker("w-1", json!({"desired_status": desired})).expect("accepted");
    }

    async fn request_license(&self) {
        self.harness.request_registration("w-1", "token");
    }

    async fn drain(&self) {
        let _refused = self.harness.reconciler().drain(&"w-1".into(), &by_script()).await;
    }

    async fn cancel_drain(&self) {
        let _refused = self.harness.reconciler().cancel_drain(&"w-1".into(), &by_script()).await;
    }

    fn console(&self, action: Console) {
        let cloud = &self.harness.cloud;
        let _refused = match action {
            Console::Start => cloud.start_instance(REGION, &self.instance),
            Console::Stop => cloud.stop_instance(REGION, &self.instance),
            Console::Terminate => cloud.terminate_instance(REGION, &self.instance),
        };
    }

    fn is_instance_running(&self) -> bool {
        let now = self.harness.cloud.now();
        self.harness.cloud.instances(REGION).iter().any(|instance| instance.state(now).name() == "running")
    }

    fn add_session(&self, id: &str) {
        self.harness.add_session(id, "w-1", "running");
    }

    fn is_active(&self, session: &str) -> bool {
        self.harness.session_field(session, "status") == "running"
    }

    fn end_session(&self, session: &str) {
        self.harness.end_session(session);
    }

    fn fail(&self, fault: Option<Fault>) {
        if let Some(rule) = self.rule.take() {
            self.harness.cloud.world().faults().remove(rule);
        }
        let action = match fault {
            None => return,
            Some(Fault::Unreachable) => json!({"kind": "reset"}),
            Some(Fault::Throttled) => json!({"kind": "error", "code": "RequestLimitExceeded"}),
        };
        self.rule.set(Some(self.harness.inject(json!({"service": "ec2", "action": action}))));
    }
}

fn in_memory(script: &Script) -> Facts {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async { play(&Memory::new(script.is_running), script).await })
}

fn over_sockets(script: &Script) -> Facts {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async { play(&Cloud::new(script.is_running).await, script).await })
}

/// Outages are not played over sockets: the circuit breaker of the clients counts real time, and stays open for hours of a
/// simulated clock.
fn has_outage(script: &Script) -> bool {
    script.actions.values().any(|action| matches!(action, Action::Outage(..)))
}

fn at(is_running: bool, actions: &[(u32, Action)]) -> Script {
    Script { is_running, actions: actions.iter().copied().collect() }
}

/// One script for each thing that can happen, so that none depends on chance.
#[test]
fn named_scripts_end_in_the_same_facts() {
    let session = Action::Session(20);
    let scripts = [
        ("nothing", at(true, &[])),
        ("start", at(false, &[(2, Action::Desire(DesiredStatus::Running))])),
        ("stop from outside", at(true, &[(2, session), (5, Action::Console(Console::Stop))])),
        ("drain", at(true, &[(2, Action::Session(5)), (4, Action::Drain)])),
        ("drain past its deadline", at(true, &[(2, session), (4, Action::Drain)])),
        ("canceled drain", at(true, &[(2, session), (4, Action::Drain), (6, Action::CancelDrain)])),
        ("license", at(true, &[(3, Action::License)])),
        (
            "license of a stopped worker",
            at(false, &[(3, Action::License), (5, Action::Desire(DesiredStatus::Running))]),
        ),
        ("drain in an outage", at(true, &[(3, Action::Drain), (4, Action::Outage(3, Fault::Unreachable))])),
        (
            "start while throttled",
            at(false, &[(3, Action::Outage(3, Fault::Throttled)), (4, Action::Desire(DesiredStatus::Running))]),
        ),
        ("termination", at(true, &[(2, session), (3, Action::Desire(DesiredStatus::Terminated))])),
        ("termination from outside", at(true, &[(2, session), (3, Action::Console(Console::Terminate))])),
    ];
    for (name, script) in scripts {
        let expected = simulated(&script);
        assert_eq!(expected, in_memory(&script), "{name}, in memory");
        if !has_outage(&script) {
            assert_eq!(expected, over_sockets(&script), "{name}, over sockets");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn simulator_and_memory_end_in_the_same_facts(script in any_script()) {
        prop_assert_eq!(simulated(&script), in_memory(&script));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 12, max_shrink_iters: 20, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn simulator_and_fake_cloud_end_in_the_same_facts(script in any_script()) {
        let mut script = script;
        script.actions.retain(|_, action| !matches!(action, Action::Outage(..)));
        prop_assert_eq!(simulated(&script), over_sockets(&script));
    }
}
