//! Changes to a world from outside: by operators, users, strangers and accidents.

use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::lifecycle::LicenseOperation;
use lcm_sdk::{DesiredStatus, Ec2State, Instance, Session, Worker, WorkerId, WorkerStatus};
use tokio::time::{Instant, sleep};

use super::cluster::Cluster;
use super::oracle::Wish;
use super::world::{HERE, LONGEST_LAG, WRONG_CLOCK, World};

/// A change that could not be made.
const NOTHING: &str = "nothing came of it";

impl World {
    /// An operator sets the desired status of a worker.
    pub(crate) fn want(&self, id: &WorkerId, desired: DesiredStatus) {
        let wish = match desired {
            DesiredStatus::Running => Wish::Run,
            DesiredStatus::Stopped | DesiredStatus::Terminated => Wish::Stop,
        };
        // A drain continues until it is called off, regardless of the desired status.
        if wish != Wish::Run || self.worker(id).status != WorkerStatus::Draining {
            self.oracle.lock().wish(id, wish);
        }
        self.edit(id, |worker| worker.desired_status = Some(desired));
    }

    /// An operator drains a worker. Some servers record the start, others leave that to the controller.
    pub(crate) fn drain(&self, id: &WorkerId) {
        if self.worker(id).status != WorkerStatus::Running {
            return;
        }
        self.oracle.lock().wish(id, Wish::Drain);
        let notes = self.rng.lock().roll(2) == 0;
        let now = self.clock.truth();
        self.edit(id, |worker| {
            worker.status = WorkerStatus::Draining;
            worker.desired_status = Some(DesiredStatus::Stopped);
            worker.notes.drain_started_at = notes.then_some(now);
        });
    }

    /// An operator calls a drain off.
    pub(crate) fn cancel_drain(&self, id: &WorkerId) {
        if self.worker(id).status == WorkerStatus::Draining {
            self.oracle.lock().wish(id, Wish::Run);
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
            let mut session = Session::new(format!("s-{}", self.number()), state);
            session.worker_id = Some(id.clone());
            self.nature.lock().sessions.insert(session.id.clone(), None);
            self.control_plane.put_session(session);
        }
    }

    /// An operator requests a license registration or deregistration.
    pub(crate) fn license(&self, id: &WorkerId, operation: LicenseOperation) {
        if self.worker(id).license.pending_operation.is_none() {
            let token = format!("token-{}", self.number());
            self.edit(id, |worker| {
                worker.license.pending_operation = Some(operation);
                worker.license.operation_in_progress = false;
                worker.license.pending_token = (operation == LicenseOperation::Register).then(|| token.as_str().into());
            });
        }
    }

    /// An instance that no controller launched.
    pub(crate) fn add_stranger(&self) {
        let number = self.number();
        let mut instance = Instance::new(format!("i-5{number:04x}"), Ec2State::Pending);
        instance.private_ip = Some(format!("10.0.254.{}", number % 250));
        instance.launched_at = Some(self.clock.truth() - Duration::from_secs(3600));
        instance.tags.insert("lcm:worker_id".to_owned(), format!("stranger-{number}"));
        self.compute.put(HERE, instance.clone());
        self.enter(&instance.id, Ec2State::Running);
    }
}

impl Cluster {
    /// Makes one change.
    pub(crate) fn count_anomaly(&self) {
        let world = &self.world;
        let workers = world.workers();
        let roll = |sides| world.rng.lock().roll(sides);
        let place = usize::try_from(roll(workers.len() as u64)).expect("few");
        let worker = &workers[place];
        world.oracle.lock().disturbed_at = Instant::now();
        let kind = match roll(34) {
            0..4 => self.operator(worker),
            4..9 => self.hands_on_ec2(worker),
            9..12 => {
                let slot = usize::try_from(roll(world.setup.controllers as u64)).expect("few");
                self.process(slot).die();
                return;
            }
            12..16 if world.setup.controllers > 1 => self.etcd_trouble(),
            16 | 17 => {
                let wrong = i64::try_from(roll(2 * WRONG_CLOCK.unsigned_abs() + 1)).expect("few") - WRONG_CLOCK;
                world.clock.set_wrong_by(wrong);
                "clock jump"
            }
            18..22 => {
                let state = world.rng.lock().pick(&["instantiating", "running", "scheduled", "hibernating"]);
                world.place_session(&worker.id, state);
                "session arrives"
            }
            22 => {
                let operation = world.rng.lock().pick(&[LicenseOperation::Register, LicenseOperation::Deregister]);
                world.license(&worker.id, operation);
                "license requested"
            }
            23 => {
                if workers.len() < 7 {
                    world.add_stranger();
                }
                "stranger instance"
            }
            24 => {
                world.edit(&worker.id, |worker| worker.name = Some("renamed".to_owned()));
                "record edited"
            }
            25..28 => {
                world.drain(&worker.id);
                "drain begun"
            }
            28 | 29 => {
                world.cancel_drain(&worker.id);
                "drain called off"
            }
            _ => {
                let permille = world.rng.lock().pick(&[0, 30, 100, 250]);
                world.trouble.lock().permille = permille;
                world.tell(format!("{permille} calls in a thousand go wrong"));
                return;
            }
        };
        world.tell(format!("{kind}: {}", worker.id));
        if kind != NOTHING {
            world.oracle.lock().fault(kind);
        }
    }

    fn operator(&self, worker: &Worker) -> &'static str {
        let world = &self.world;
        let living = |worker: &Worker| worker.status != WorkerStatus::Terminated;
        let is_small = world.workers().iter().filter(|worker| living(worker)).count() < 7;
        let roll = world.rng.lock().roll(12);
        match roll {
            0..3 => world.want(&worker.id, DesiredStatus::Running),
            3 | 4 => world.want(&worker.id, DesiredStatus::Stopped),
            5 if worker.status == WorkerStatus::Failed => {
                world.edit(&worker.id, |worker| worker.status = WorkerStatus::Pending);
            }
            5 => world.want(&worker.id, DesiredStatus::Terminated),
            6 | 7 => {
                world.drain(&worker.id);
                return "drain begun";
            }
            8 => {
                world.cancel_drain(&worker.id);
                return "drain called off";
            }
            _ => {
                let id = format!("w-{}", world.number());
                if is_small {
                    let id = world.add_worker(&id, WorkerStatus::Pending);
                    world.want(&id, DesiredStatus::Running);
                }
                return "worker ordered";
            }
        }
        "desired status changed"
    }

    fn hands_on_ec2(&self, worker: &Worker) -> &'static str {
        let world = &self.world;
        let Some(instance) = worker.ec2_instance_id.as_ref().and_then(|id| world.instance(id)) else {
            return NOTHING;
        };
        let roll = world.rng.lock().roll(8);
        match (roll, instance.state) {
            (0 | 1, Ec2State::Running) => {
                world.enter(&instance.id, Ec2State::Stopping);
                "stopped from outside"
            }
            (2, Ec2State::Running | Ec2State::Stopped | Ec2State::Pending) => {
                world.enter(&instance.id, Ec2State::ShuttingDown);
                "terminated from outside"
            }
            (3 | 4, Ec2State::Stopped) => {
                world.enter(&instance.id, Ec2State::Pending);
                "started from outside"
            }
            (5, Ec2State::Terminated) => {
                world.compute.forget(HERE, &instance.id);
                "forgotten by EC2"
            }
            (_, Ec2State::Pending) => {
                // Only a new instance can be hidden; an old one that starts again is shown.
                let born = world.nature.lock().born.get(&instance.id).copied();
                if born.is_some_and(|born| born.elapsed().as_secs() < 20) {
                    world.hide(&instance.id, Duration::from_secs(LONGEST_LAG - 20));
                }
                "not shown for a while"
            }
            (6, Ec2State::Running) => {
                world.enter(&instance.id, Ec2State::Other);
                "unknown instance state"
            }
            _ => NOTHING,
        }
    }

    fn etcd_trouble(&self) -> &'static str {
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
                    leader.etcd.cut_off();
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
                world.etcd.cut_watches();
                world.etcd.compact();
                "compaction"
            }
            5 => {
                world.etcd.stall_watches();
                later(Box::new(|world| world.etcd.resume_watches()));
                "silent watch"
            }
            _ => {
                world.etcd.cut_watches();
                "watch cut"
            }
        }
    }
}
