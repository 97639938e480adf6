//! External changes to a world: by operators, by users, in the AWS console, and by faults.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lcm_sdk::lifecycle::LicenseOperation;
use lcm_sdk::{DesiredStatus, Ec2State, Instance, Session, SessionId, Worker, WorkerId, WorkerStatus};
use tokio::time::{Instant, sleep};

use super::accounts::Credentials;
use super::cluster::Cluster;
use super::oracle::OperatorRequest;
use super::schedule::Pace;
use super::world::{MAX_CLOCK_ERROR, MAX_LAG, OTHER_REGION, REGION, World};

/// Label of a change that did not apply.
const NO_CHANGE: &str = "no change";

fn is_live(worker: &Worker) -> bool {
    worker.status != WorkerStatus::Terminated
}

impl World {
    /// An operator sets the desired status of a worker.
    pub(crate) fn set_desired(&self, id: &WorkerId, desired: DesiredStatus) {
        let request = match desired {
            DesiredStatus::Running => OperatorRequest::Run,
            DesiredStatus::Stopped | DesiredStatus::Terminated => OperatorRequest::Stop,
        };
        self.oracle.lock().request(id, request);
        self.edit(id, |worker| worker.desired_status = Some(desired));
    }

    /// An operator drains a worker. Some servers record the start, others leave that to the controller.
    pub(crate) fn drain(&self, id: &WorkerId) {
        if self.worker(id).status != WorkerStatus::Running {
            return;
        }
        self.oracle.lock().request(id, OperatorRequest::Drain);
        let notes = self.rng.lock().roll(2) == 0;
        let now = self.clock.true_time();
        self.edit(id, |worker| {
            worker.status = WorkerStatus::Draining;
            worker.desired_status = Some(DesiredStatus::Stopped);
            worker.notes.drain_started_at = notes.then_some(now);
        });
    }

    /// An operator cancels a drain.
    pub(crate) fn cancel_drain(&self, id: &WorkerId) {
        if self.worker(id).status == WorkerStatus::Draining {
            self.oracle.lock().request(id, OperatorRequest::Run);
            self.edit(id, |worker| {
                worker.status = WorkerStatus::Running;
                worker.desired_status = Some(DesiredStatus::Running);
                worker.notes.drain_started_at = None;
            });
        }
    }

    /// The scheduler places a session on a worker that accepts one.
    pub(crate) fn place_session(&self, id: &WorkerId, state: &str) {
        if self.worker(id).status.accepts_sessions() {
            self.assign_session(id, state);
        }
    }

    /// An operator requests a license registration or deregistration.
    pub(crate) fn license(&self, id: &WorkerId, operation: LicenseOperation) {
        if self.worker(id).license.pending_operation.is_none() {
            let token = format!("token-{}", self.next_number());
            self.edit(id, |worker| {
                worker.license.pending_operation = Some(operation);
                worker.license.operation_in_progress = false;
                worker.license.pending_token = (operation == LicenseOperation::Register).then(|| token.as_str().into());
            });
        }
    }

    /// An instance that no controller launched.
    pub(crate) fn add_unmanaged_instance(&self) {
        let number = self.next_number();
        let mut instance = Instance::new(format!("i-5{number:04x}"), Ec2State::Pending);
        instance.private_ip = Some(format!("10.0.254.{}", number % 250));
        instance.launched_at = Some(self.clock.true_time() - Duration::from_secs(3600));
        instance.image_id = Some("ami-1".to_owned());
        self.compute.put(REGION, instance.clone());
        self.enter(&instance.id, Ec2State::Running);
    }

    /// An instance of another control plane in our account.
    pub(crate) fn add_foreign_instance(&self) {
        let number = self.next_number();
        let mut instance = Instance::new(format!("i-6{number:04x}"), Ec2State::Pending);
        instance.private_ip = Some(format!("10.0.253.{}", number % 250));
        instance.launched_at = Some(self.clock.true_time() - Duration::from_secs(3600));
        instance.image_id = Some("ami-1".to_owned());
        instance.tags.insert("lcm:worker_id".to_owned(), format!("staging-{number}"));
        instance.tags.insert("lcm:managed_by".to_owned(), "lcm".to_owned());
        self.compute.put(REGION, instance.clone());
        self.enter(&instance.id, Ec2State::Running);
    }

    /// The scheduler assigns a session, although the worker may have stopped taking them a moment ago.
    pub(crate) fn assign_session(&self, id: &WorkerId, state: &str) -> SessionId {
        let mut session = Session::new(format!("s-{}", self.next_number()), state);
        session.worker_id = Some(id.clone());
        let session_id = session.id.clone();
        self.background.lock().sessions.insert(session_id.clone(), None);
        self.control_plane.put_session(session);
        session_id
    }

    /// Whether the fleet may become larger.
    fn has_room(&self, workers: &[Worker]) -> bool {
        let counts = |worker: &&Worker| self.setup.pace != Pace::Quiet || is_live(worker);
        workers.iter().filter(counts).count() < self.setup.fleet
    }

    /// Does something after a while.
    pub(crate) fn later(self: &Arc<Self>, seconds: u64, act: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let world = Arc::clone(self);
        tokio::spawn(async move {
            sleep(Duration::from_secs(seconds)).await;
            act(&world);
        });
    }
}

impl Cluster {
    /// Makes one random change and counts it.
    pub(crate) fn change_world(&self) {
        let world = &self.world;
        let mut workers = world.workers();
        let has_room = world.has_room(&workers);
        if world.setup.pace == Pace::Quiet && workers.iter().any(is_live) {
            // Terminated records only become more.
            workers.retain(is_live);
        }
        let roll = |sides| world.rng.lock().roll(sides);
        let place = usize::try_from(roll(workers.len() as u64)).expect("few");
        let worker = &workers[place];
        world.oracle.lock().disturbed_at = Instant::now();
        let kind = match roll(48) {
            0..4 => self.change_by_operator(worker),
            4..9 => self.change_in_console(worker),
            9..12 => {
                let slot = usize::try_from(roll(world.setup.controllers as u64)).expect("few");
                self.process(slot).crash();
                return;
            }
            12..16 if world.setup.controllers > 1 => self.etcd_fault(),
            16 | 17 => {
                let error = i64::try_from(roll(2 * MAX_CLOCK_ERROR.unsigned_abs() + 1)).expect("few") - MAX_CLOCK_ERROR;
                world.clock.set_error(error);
                "clock jump"
            }
            18..22 => {
                let state = world.rng.lock().pick(&["instantiating", "running", "scheduled", "hibernating"]);
                world.place_session(&worker.id, state);
                "session placed"
            }
            22 => {
                let operation = world.rng.lock().pick(&[LicenseOperation::Register, LicenseOperation::Deregister]);
                world.license(&worker.id, operation);
                "license requested"
            }
            23 => {
                if has_room {
                    world.add_unmanaged_instance();
                }
                "unmanaged instance"
            }
            24 => {
                world.edit(&worker.id, |worker| worker.name = Some("renamed".to_owned()));
                "record edited"
            }
            25..28 => {
                world.drain(&worker.id);
                "drain started"
            }
            28 | 29 => {
                world.cancel_drain(&worker.id);
                "drain canceled"
            }
            30..33 => self.change_credentials(),
            33..42 => self.change_surroundings(worker),
            _ => {
                let permille = world.rng.lock().pick(&[0, 30, 100, 250]);
                world.fault_plan.lock().permille = permille;
                if world.setup.pace == Pace::Quiet {
                    let seconds = world.rng.lock().roll(3_600) + 60;
                    world.later(seconds, |world| world.fault_plan.lock().permille = 0);
                }
                world.log(format!("{permille} of 1,000 calls fail"));
                return;
            }
        };
        world.log(format!("{kind}: {}", worker.id));
        if kind != NO_CHANGE {
            world.oracle.lock().fault(kind);
        }
    }

    /// Credentials are replaced or expire, and a controller is deployed with another default region.
    fn change_credentials(&self) -> &'static str {
        let world = &self.world;
        let (roll, pause) = {
            let mut rng = world.rng.lock();
            (rng.roll(6), (rng.roll(60) + 5) * u64::from(world.setup.pace.outage()))
        };
        let until = |credentials| {
            world.use_credentials(credentials);
            world.later(pause, |world| world.use_credentials(Credentials::Own));
        };
        match roll {
            0 | 1 => {
                for _ in 0..roll {
                    world.add_instance_of_other_account();
                }
                until(Credentials::OtherAccount);
                "credentials of another account"
            }
            2 | 3 => {
                until(Credentials::Expired);
                "credentials expired"
            }
            _ if world.setup.regions.len() > 1 => {
                let mut region = world.default_region.lock();
                *region = if *region == REGION { OTHER_REGION } else { REGION };
                drop(region);
                (0..world.setup.controllers).for_each(|slot| self.process(slot).crash());
                "default region changed"
            }
            _ => NO_CHANGE,
        }
    }

    /// Other services and machines misbehave.
    fn change_surroundings(&self, worker: &Worker) -> &'static str {
        let world = &self.world;
        let (roll, pause) = {
            let mut rng = world.rng.lock();
            (rng.roll(9), rng.roll(60) + 5)
        };
        match roll {
            0 => {
                if world.has_room(&world.workers()) {
                    let session = world.assign_session(&worker.id, "running");
                    world.stuck_sessions.lock().insert(session);
                }
                "session that cannot be ended"
            }
            1 => {
                world.events_hang.store(true, Ordering::Release);
                world.later(pause, |world| world.events_hang.store(false, Ordering::Release));
                "events not accepted"
            }
            2 | 3 => {
                *world.cml_delay.lock() = Duration::from_secs(pause / 4);
                world.later(pause, |world| *world.cml_delay.lock() = Duration::ZERO);
                "slow CML"
            }
            4 => {
                world.clock.set_back(i64::try_from(pause * 2).expect("small"));
                "clock set back"
            }
            5 | 6 => {
                let slot = usize::try_from(world.rng.lock().roll(world.setup.controllers as u64)).expect("few");
                self.process(slot).suspend(Duration::from_secs(pause.min(40)));
                "machine suspended"
            }
            7 => {
                world.garbled.lock().insert(worker.id.clone());
                "record with unreadable fields"
            }
            _ => {
                if world.instance_count() < world.setup.fleet + 13 {
                    world.add_foreign_instance();
                }
                "instance of another control plane"
            }
        }
    }

    fn change_by_operator(&self, worker: &Worker) -> &'static str {
        let world = &self.world;
        let is_small = world.workers().iter().filter(|worker| is_live(worker)).count() < world.setup.fleet;
        let roll = world.rng.lock().roll(12);
        match roll {
            0..3 => world.set_desired(&worker.id, DesiredStatus::Running),
            3 | 4 => world.set_desired(&worker.id, DesiredStatus::Stopped),
            5 if worker.status == WorkerStatus::Failed => {
                world.edit(&worker.id, |worker| worker.status = WorkerStatus::Pending);
            }
            5 => world.set_desired(&worker.id, DesiredStatus::Terminated),
            6 | 7 => {
                world.drain(&worker.id);
                return "drain started";
            }
            8 => {
                world.cancel_drain(&worker.id);
                return "drain canceled";
            }
            _ => {
                let id = format!("w-{}", world.next_number());
                if is_small {
                    let id = world.add_worker(&id, WorkerStatus::Pending);
                    world.set_desired(&id, DesiredStatus::Running);
                }
                return "worker created";
            }
        }
        "desired status changed"
    }

    fn change_in_console(&self, worker: &Worker) -> &'static str {
        let world = &self.world;
        let Some(instance) = worker.ec2_instance_id.as_ref().and_then(|id| world.instance(id)) else {
            return NO_CHANGE;
        };
        let roll = world.rng.lock().roll(8);
        match (roll, instance.state) {
            (0 | 1, Ec2State::Running) => {
                world.enter(&instance.id, Ec2State::Stopping);
                "external stop"
            }
            (2, Ec2State::Running | Ec2State::Stopped | Ec2State::Pending) => {
                world.enter(&instance.id, Ec2State::ShuttingDown);
                "external termination"
            }
            (3 | 4, Ec2State::Stopped) => {
                world.enter(&instance.id, Ec2State::Pending);
                "external start"
            }
            (5, Ec2State::Terminated) => {
                world.compute.remove(world.region_of(&instance.id), &instance.id);
                "instance removed from EC2"
            }
            (_, Ec2State::Pending) => {
                // Only a new instance can be hidden; an old one that starts again is shown.
                let launched_at = world.background.lock().launched_at.get(&instance.id).copied();
                if launched_at.is_some_and(|launched_at| launched_at.elapsed().as_secs() < 20) {
                    world.hide(&instance.id, Duration::from_secs(MAX_LAG - 20));
                }
                "instance hidden"
            }
            (6, Ec2State::Running) => {
                world.enter(&instance.id, Ec2State::Other);
                "unknown instance state"
            }
            _ => NO_CHANGE,
        }
    }

    fn etcd_fault(&self) -> &'static str {
        let world = &self.world;
        let (roll, pause) = {
            let mut rng = world.rng.lock();
            (rng.roll(7), rng.millis(2_000, 40_000) * world.setup.pace.outage())
        };
        let later = |act: Box<dyn FnOnce(&World) + Send>| {
            let world = Arc::clone(world);
            tokio::spawn(async move {
                sleep(pause).await;
                act(&world);
            });
        };
        match roll {
            0 => {
                world.oracle.lock().leases_lost_at = Some(Instant::now());
                world.etcd.lose_leases();
                "lease lost"
            }
            1 | 2 => {
                // The leader does not notice that its lease is gone, while another controller takes over.
                let leader = (0..world.setup.controllers).map(|slot| self.process(slot)).find(|process| {
                    let leads = |key: &String| world.etcd.value(key).as_deref() == Some(&process.identity);
                    world.leader_keys().iter().any(leads)
                });
                if let Some(leader) = leader {
                    leader.etcd.disconnect();
                    world.oracle.lock().leases_lost_at = Some(Instant::now());
                    world.etcd.lose_leases();
                    later(Box::new(move |_| leader.etcd.reconnect()));
                }
                "two leaders overlap"
            }
            3 => {
                world.etcd.make_unavailable();
                later(Box::new(|world| world.etcd.make_available()));
                "etcd unavailable"
            }
            4 => {
                world.etcd.disconnect_watches();
                world.etcd.compact();
                "compaction"
            }
            5 => {
                world.etcd.stall_watches();
                later(Box::new(|world| world.etcd.resume_watches()));
                "stalled watch"
            }
            _ => {
                world.etcd.disconnect_watches();
                "watch closed"
            }
        }
    }
}
