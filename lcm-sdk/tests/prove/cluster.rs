//! Controllers over a world: started, killed and started again while events are injected.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use lcm_sdk::telemetry::Anomaly;
use lcm_sdk::{DesiredStatus, Ec2State, WorkerStatus};
use parking_lot::Mutex;
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::process::Process;
use super::summary::Verdict;
use super::world::{Setup, World};

type Running = (Arc<Process>, JoinHandle<()>);

pub(crate) struct Cluster {
    pub(crate) world: Arc<World>,
    slots: Arc<Mutex<Vec<Running>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Cluster {
    /// A world with these workers, and as many controllers as it asks for.
    pub(crate) fn start(setup: Setup, people: impl FnOnce(&World)) -> Self {
        let (deaths, mut died) = unbounded_channel();
        let world = Arc::new(World::new(setup, deaths));
        people(&world);
        let lives = Arc::new(AtomicU32::new(0));
        let running = (0..setup.controllers).map(|slot| Process::start(&world, slot, &lives)).collect();
        let slots: Arc<Mutex<Vec<Running>>> = Arc::new(Mutex::new(running));
        let undertaker = {
            let (world, slots) = (Arc::clone(&world), Arc::clone(&slots));
            tokio::spawn(async move {
                while let Some(slot) = died.recv().await {
                    slots.lock()[slot].1.abort();
                    let pause = world.rng.lock().millis(200, 9_000);
                    sleep(pause).await;
                    let reborn = Process::start(&world, slot, &lives);
                    world.tell(format!("{} begins", reborn.0.identity));
                    slots.lock()[slot] = reborn;
                }
            })
        };
        let nature = {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                loop {
                    sleep(Duration::from_secs(1)).await;
                    world.pass();
                }
            })
        };
        Self { world, slots, tasks: vec![undertaker, nature] }
    }

    pub(crate) fn process(&self, slot: usize) -> Arc<Process> {
        Arc::clone(&self.slots.lock()[slot].0)
    }

    pub(crate) async fn live(&self, seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }

    /// Stops all faults and all new requests.
    pub(crate) fn calm_down(&self) {
        let world = &self.world;
        world.tell("quiet from here on");
        let mut trouble = world.trouble.lock();
        (trouble.permille, trouble.lag_permille) = (0, 0);
        drop(trouble);
        world.etcd.make_available();
        world.etcd.resume_watches();
        self.slots.lock().iter().for_each(|(process, _)| process.etcd.reconnect());
        world.clock.set_wrong_by(0);
        world.show_all();
    }

    /// Checks that every worker is in the status it should be in, stays there, and causes no more calls.
    pub(crate) async fn settle(&self, seconds: u64, rest: u64) {
        self.live(seconds).await;
        self.check_the_end();
        self.world.oracle.lock().effects = 0;
        self.live(rest).await;
        let panics: u64 = self.world.telemetries.lock().iter().map(|told| told.anomalies(Anomaly::Panic)).sum();
        let mut oracle = self.world.oracle.lock();
        oracle.rule(panics == 0, || format!("{panics} passes panicked"));
        let effects = oracle.effects;
        oracle.rule(effects == 0, || format!("a fleet at rest was changed {effects} times in {rest} s"));
    }

    fn check_the_end(&self) {
        let world = &self.world;
        for worker in world.workers() {
            let ec2 = worker.ec2_instance_id.as_ref().and_then(|id| world.instance(id)).map(|instance| instance.state);
            let fine = match (worker.status, worker.desired_status) {
                (WorkerStatus::Running, None | Some(DesiredStatus::Running)) => ec2 == Some(Ec2State::Running),
                (WorkerStatus::Stopped, None | Some(DesiredStatus::Stopped)) => ec2 == Some(Ec2State::Stopped),
                // Held back by its desired status.
                (WorkerStatus::Pending, Some(DesiredStatus::Stopped)) => ec2.is_none(),
                (WorkerStatus::Terminated, _) => ec2.is_none_or(|state| state == Ec2State::Terminated),
                // An operator has to act.
                (WorkerStatus::Failed, desired) => desired != Some(DesiredStatus::Terminated),
                _ => false,
            };
            let intent = worker.license.pending_operation;
            let carried_out = worker.status != WorkerStatus::Running || intent.is_none();
            let (id, status, desired) = (&worker.id, worker.status, worker.desired_status);
            let mut oracle = world.oracle.lock();
            oracle.rule(fine, || format!("{id} ended {status}, wanted {desired:?}, EC2 says {ec2:?}"));
            oracle.rule(carried_out, || format!("{id} still waits for {intent:?}"));
        }
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let oracle = self.world.oracle.lock();
        Verdict {
            setup: self.world.setup,
            steps: oracle.steps,
            checks: oracle.checks,
            faults: oracle.faults.clone(),
            simulated: Duration::from_secs_f64(self.world.clock.seconds()),
            violations: oracle.violations.clone(),
            digest: oracle.digest(),
            story: if oracle.violations.is_empty() { String::new() } else { oracle.story() },
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.slots.lock().iter().for_each(|(_, running)| running.abort());
    }
}

/// Runs a history on its own clock, which advances whenever every task waits.
pub(crate) fn on_paused_time<T>(history: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(history)
}
