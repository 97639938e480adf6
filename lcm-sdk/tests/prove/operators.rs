//! External changes to a world: by operators, by users, in the AWS console, and by faults.

use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::lifecycle::LicenseOperation;
use lcm_sdk::{DesiredStatus, Ec2State, Instance, Session, Worker, WorkerId, WorkerStatus};
use tokio::time::{Instant, sleep};

use super::cluster::Cluster;
use super::oracle::OperatorRequest;
use super::world::{MAX_CLOCK_ERROR, MAX_LAG, REGION, World};

/// Label of a change that did not apply.
const NO_CHANGE: &str = "no change";

impl World {
    /// An operator sets the desired status of a worker.
    pub(crate) fn set_desired(&self, id: &WorkerId, desired: DesiredStatus) {
        let request = match desired {
            DesiredStatus::Running => OperatorRequest::Run,
            DesiredStatus::Stopped | DesiredStatus::Terminated => OperatorRequest::Stop,
        };
        // A drain continues until it is canceled, regardless of the desired status.
        if request != OperatorRequest::Run || self.worker(id).status != WorkerStatus::Draining {
            self.oracle.lock().request(id, request);
        }
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
            let mut session = Session::new(format!("s-{}", self.next_number()), state);
            session.worker_id = Some(id.clone());
            self.background.lock().sessions.insert(session.id.clone(), None);
            self.control_plane.put_session(session);
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
        instance.tags.insert("lcm:worker_id".to_owned(), format!("unmanaged-{number}"));
        self.compute.put(REGION, instance.clone());
        self.enter(&instance.id, Ec2State::Running);
    }
}

impl Cluster {
    /// Makes one random change and counts it.
    pub(crate) fn change_world(&self) {
        let world = &self.world;
        let workers = world.workers();
        let roll = |sides| world.rng.lock().roll(sides);
        let place = usize::try_from(roll(workers.len() as u64)).expect("few");
        let worker = &workers[place];
        world.oracle.lock().disturbed_at = Instant::now();
        let kind = match roll(34) {
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
                if workers.len() < 7 {
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
            _ => {
                let permille = world.rng.lock().pick(&[0, 30, 100, 250]);
                world.fault_plan.lock().permille = permille;
                world.log(format!("{permille} of 1,000 calls fail"));
                return;
            }
        };
        world.log(format!("{kind}: {}", worker.id));
        if kind != NO_CHANGE {
            world.oracle.lock().fault(kind);
        }
    }

    fn change_by_operator(&self, worker: &Worker) -> &'static str {
        let world = &self.world;
        let is_live = |worker: &Worker| worker.status != WorkerStatus::Terminated;
        let is_small = world.workers().iter().filter(|worker| is_live(worker)).count() < 7;
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
                world.compute.remove(REGION, &instance.id);
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
            (rng.roll(7), rng.millis(2_000, 40_000))
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
                    let key = lcm_sdk::controller::ElectionConfig::WORKER_CONTROLLER;
                    world.etcd.value(key).as_deref() == Some(&process.identity)
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
