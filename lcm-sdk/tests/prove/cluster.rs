//! The controllers of a world. A crashed controller is restarted after a delay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lcm_sdk::telemetry::Anomaly;
use lcm_sdk::{DesiredStatus, Ec2State, Worker, WorkerStatus};
use parking_lot::Mutex;
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::accounts::{Credentials, OTHER_ACCOUNT};
use super::process::Process;
use super::rules::Rule;
use super::summary::HistoryResult;
use super::world::{REGION, Setup, World};

type Running = (Arc<Process>, JoinHandle<()>);

pub(crate) struct Cluster {
    pub(crate) world: Arc<World>,
    slots: Arc<Mutex<Vec<Running>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Cluster {
    /// Starts a world with workers and the number of controllers in its setup.
    pub(crate) fn start(setup: Setup, add_workers: impl FnOnce(&World)) -> Self {
        let (deaths, mut died) = unbounded_channel();
        let world = Arc::new(World::new(setup, deaths));
        add_workers(&world);
        let process_count = Arc::new(AtomicU32::new(0));
        let running = (0..setup.controllers).map(|slot| Process::start(&world, slot, &process_count)).collect();
        let slots: Arc<Mutex<Vec<Running>>> = Arc::new(Mutex::new(running));
        let restarter = {
            let (world, slots) = (Arc::clone(&world), Arc::clone(&slots));
            tokio::spawn(async move {
                while let Some(slot) = died.recv().await {
                    slots.lock()[slot].1.abort();
                    let pause = world.rng.lock().millis(200, 9_000);
                    sleep(pause).await;
                    let restarted = Process::start(&world, slot, &process_count);
                    world.log(format!("{} starts", restarted.0.identity));
                    slots.lock()[slot] = restarted;
                }
            })
        };
        let ticker = {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                loop {
                    world.until_next_step().await;
                    world.step();
                }
            })
        };
        Self { world, slots, tasks: vec![restarter, ticker] }
    }

    pub(crate) fn process(&self, slot: usize) -> Arc<Process> {
        Arc::clone(&self.slots.lock()[slot].0)
    }

    /// Lets simulated time pass.
    pub(crate) async fn run_for(&self, seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }

    /// Stops all faults and all new requests.
    pub(crate) fn stop_faults(&self) {
        let world = &self.world;
        world.log("faults stop");
        let mut plan = world.fault_plan.lock();
        (plan.permille, plan.lag_permille) = (0, 0);
        drop(plan);
        world.use_credentials(Credentials::Own);
        *world.cml_delay.lock() = Duration::ZERO;
        world.events_hang.store(false, Ordering::Release);
        world.nameless.lock().clear();
        world.etcd.make_available();
        world.etcd.resume_watches();
        self.slots.lock().iter().for_each(|(process, _)| process.etcd.reconnect());
        world.clock.set_error(0);
        world.show_all();
        // A controller with another default region is replaced by one with the right one.
        if *world.default_region.lock() != REGION {
            *world.default_region.lock() = REGION;
            if world.setup.regions.len() > 1 {
                (0..world.setup.controllers).for_each(|slot| self.process(slot).crash());
            }
        }
    }

    /// Waits, then checks that every worker has its desired status and that no further change is made.
    pub(crate) async fn settle(&self, seconds: u64, quiet_seconds: u64) {
        self.run_for(seconds).await;
        self.check_final_states();
        self.world.oracle.lock().effects = 0;
        self.run_for(quiet_seconds).await;
        let panics: u64 =
            self.world.telemetries.lock().iter().map(|telemetry| telemetry.anomalies(Anomaly::Panic)).sum();
        let mut oracle = self.world.oracle.lock();
        oracle.rule(Rule::NoPanic, panics == 0, || format!("{panics} reconciles panicked"));
        let effects = oracle.effects;
        oracle.rule(Rule::SettledFleetIsLeftAlone, effects == 0, || {
            format!("a settled fleet was changed {effects} times in {quiet_seconds} s")
        });
    }

    fn check_final_states(&self) {
        let world = &self.world;
        // Only the credentials of its own account can tell about an instance.
        let is_ours = |worker: &Worker| worker.notes.ec2_account_id.as_deref() != Some(OTHER_ACCOUNT);
        for worker in world.workers().into_iter().filter(is_ours) {
            let ec2 = worker.ec2_instance_id.as_ref().and_then(|id| world.instance(id)).map(|instance| instance.state);
            let is_settled = match (worker.status, worker.desired_status) {
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
            let is_licensed = worker.status != WorkerStatus::Running || intent.is_none();
            let (id, status, desired) = (&worker.id, worker.status, worker.desired_status);
            let mut oracle = world.oracle.lock();
            oracle.rule(Rule::DesiredStatusIsReached, is_settled, || {
                format!("{id} ended as {status}; desired: {desired:?}, EC2: {ec2:?}")
            });
            oracle.rule(Rule::LicenseOperationEnds, is_licensed, || {
                format!("{id} has an unfinished license operation: {intent:?}")
            });
        }
    }

    /// The result of the history so far.
    pub(crate) fn result(&self) -> HistoryResult {
        let oracle = self.world.oracle.lock();
        HistoryResult {
            setup: self.world.setup,
            steps: oracle.steps,
            checks: oracle.checks,
            faults: oracle.faults.clone(),
            slowest_start: oracle.slowest_start,
            simulated: Duration::from_secs_f64(self.world.clock.seconds()),
            violations: oracle.violations.clone(),
            digest: oracle.digest(),
            log: if oracle.violations.is_empty() { String::new() } else { oracle.log_text() },
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
