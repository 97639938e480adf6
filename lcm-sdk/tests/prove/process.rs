//! A controller that can die between any two calls, and the layer between it and the world.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lcm_sdk::controller::Shutdown;
use lcm_sdk::ports::{DiscoveryFilter, Ports};
use lcm_sdk::providers::memory::MemoryCoordination;
use lcm_sdk::reconciler::CmlDefaults;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{DiscoveryConfig, WorkerController, WorkerControllerConfig};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::call::{Call, Reply};
use super::faults::{Fault, failure};
use super::ports::Door;
use super::world::{HERE, World};

/// One life of a controller.
pub(crate) struct Process {
    pub(crate) world: Arc<World>,
    /// Number of this life, over all controllers of the world.
    pub(crate) number: u32,
    /// Number of the controller.
    pub(crate) slot: usize,
    pub(crate) identity: String,
    pub(crate) etcd: MemoryCoordination,
    lives: AtomicBool,
}

/// A call in flight.
pub(crate) struct Sending {
    pub(crate) way: Duration,
    pub(crate) back: Duration,
    pub(crate) fault: Fault,
    /// Whether it arrives even if its sender dies in the meantime.
    pub(crate) has_left: bool,
}

impl Process {
    /// Starts a controller; it runs until it is aborted.
    pub(crate) fn start(world: &Arc<World>, slot: usize, lives: &AtomicU32) -> (Arc<Self>, JoinHandle<()>) {
        let number = lives.fetch_add(1, Ordering::Relaxed) + 1;
        let process = Arc::new(Self {
            world: Arc::clone(world),
            number,
            slot,
            identity: format!("controller-{slot}-{number}"),
            etcd: world.etcd.another_client(),
            lives: AtomicBool::new(true),
        });
        let door = Arc::new(Door(Arc::clone(&process)));
        let ports = Ports::builder()
            .compute(Arc::clone(&door) as _)
            .metrics(Arc::clone(&door) as _)
            .cml(Arc::clone(&door) as _)
            .control_plane(Arc::clone(&door) as _)
            .events(Arc::clone(&door) as _)
            .clock(Arc::new(world.clock.clone()))
            .build()
            .expect("all ports");
        let coordination = (world.setup.controllers > 1).then(|| Arc::clone(&door) as _);
        let config = process.config();
        let telemetry = Telemetry::default();
        world.telemetries.lock().push(telemetry.clone());
        let controller = WorkerController::new(ports, world.policy.clone(), coordination, config, telemetry);
        let controller = controller.expect("the election works");
        (process, tokio::spawn(async move { controller.run(&Shutdown::new()).await }))
    }

    fn config(&self) -> WorkerControllerConfig {
        let mut config = WorkerControllerConfig::default();
        config.controller = config
            .controller
            .with_jitter(|| 0.5)
            .with_polling(self.world.setup.polling)
            .with_interval(self.world.setup.interval);
        config.election = config.election.with_identity(&self.identity);
        let discovery = DiscoveryConfig::default()
            .with_interval(Duration::from_secs(60))
            .with_regions([HERE])
            .with_filter(DiscoveryFilter::default().with_tag_key("lcm:worker_id"));
        config.with_discovery(discovery).with_cml(CmlDefaults::new("admin", "admin"))
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.lives.load(Ordering::Acquire)
    }

    /// Kills it: all of its tasks stop, but calls in flight still arrive.
    pub(crate) fn die(&self) {
        if self.lives.swap(false, Ordering::AcqRel) {
            self.world.tell(format!("{} dies", self.identity));
            self.world.oracle.lock().fault("controller crash");
            // The receiver is gone once the world ends.
            let _ = self.world.deaths.send(self.slot);
        }
    }

    /// Continues only while it is alive.
    pub(crate) async fn lives(&self) {
        if !self.is_alive() {
            std::future::pending::<()>().await;
        }
    }

    /// Sends a read, or a write that may be lost.
    pub(crate) async fn read<R: Reply>(&self, call: Call, act: impl Future<Output = R> + Send) -> R {
        self.lives().await;
        let sending = self.world.send(self, &call);
        sleep(sending.way).await;
        self.lives().await;
        let reply = match sending.fault {
            Fault::CrashBefore => self.end().await,
            Fault::Fail(kind) => R::failed(&call, failure(kind)),
            fault => {
                let mut reply = act.await;
                if fault == Fault::PartialPages {
                    reply.lose_pages();
                }
                let mut trouble = self.world.trouble.lock();
                let older = if trouble.remembers { trouble.older(&call, &reply) } else { None };
                match (fault, older) {
                    (Fault::Stale, Some(older)) => {
                        drop(trouble);
                        self.world.oracle.lock().struck = true;
                        older
                    }
                    _ => reply,
                }
            }
        };
        self.arrive(&call, sending, reply).await
    }

    /// Sends a change. Once sent, it is carried out even if the sender is gone.
    pub(crate) async fn change<R: Reply>(
        self: &Arc<Self>,
        call: Call,
        act: impl Future<Output = R> + Send + 'static,
    ) -> R {
        self.lives().await;
        let sending = self.world.send(self, &call);
        let (process, sent, fault, has_left) = (Arc::clone(self), call.clone(), sending.fault, sending.has_left);
        let way = sending.way;
        let carried_out = tokio::spawn(async move {
            sleep(way).await;
            if !process.is_alive() && !has_left {
                process.lives().await;
            }
            match fault {
                Fault::CrashBefore => process.end().await,
                Fault::Fail(kind) => R::failed(&sent, failure(kind)),
                fault => {
                    process.world.prepare(&sent, fault);
                    process.world.judge(&process, &sent);
                    let reply = act.await;
                    process.world.carried_out(&sent, reply.is_answer());
                    reply
                }
            }
        });
        let reply = carried_out.await.expect("no panic");
        self.lives().await;
        self.arrive(&call, sending, reply).await
    }

    async fn arrive<R: Reply>(&self, call: &Call, sending: Sending, reply: R) -> R {
        if sending.fault == Fault::CrashAfter {
            self.end().await
        }
        sleep(sending.back).await;
        self.lives().await;
        let reply = match sending.fault {
            Fault::LoseAnswer => R::failed(call, failure(lcm_sdk::FailureKind::Unclear)),
            _ => reply,
        };
        let went = if reply.is_answer() { "ok" } else { "failed" };
        self.world.tell(format!("  {} {} {}: {went}", self.identity, call.name, call.about));
        reply
    }

    async fn end<T>(&self) -> T {
        self.die();
        std::future::pending().await
    }
}
