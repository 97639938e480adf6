//! A controller that can crash between any two calls, and the layer between it and the world.

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
use super::ports::ProcessPorts;
use super::world::{REGION, World};

/// A controller from its start to its crash.
pub(crate) struct Process {
    pub(crate) world: Arc<World>,
    /// Number of this process, over all controllers of the world.
    pub(crate) number: u32,
    /// Number of the controller.
    pub(crate) slot: usize,
    pub(crate) identity: String,
    pub(crate) etcd: MemoryCoordination,
    alive: AtomicBool,
}

/// A call in flight.
pub(crate) struct Sending {
    /// Delay of the request.
    pub(crate) request_delay: Duration,
    /// Delay of the response.
    pub(crate) response_delay: Duration,
    pub(crate) fault: Fault,
    /// Whether it arrives even if its sender crashes in the meantime.
    pub(crate) has_left: bool,
}

impl Process {
    /// Starts a controller; it runs until it is aborted.
    pub(crate) fn start(world: &Arc<World>, slot: usize, process_count: &AtomicU32) -> (Arc<Self>, JoinHandle<()>) {
        let number = process_count.fetch_add(1, Ordering::Relaxed) + 1;
        let process = Arc::new(Self {
            world: Arc::clone(world),
            number,
            slot,
            identity: format!("controller-{slot}-{number}"),
            etcd: world.etcd.new_client(),
            alive: AtomicBool::new(true),
        });
        let process_ports = Arc::new(ProcessPorts(Arc::clone(&process)));
        let ports = Ports::builder()
            .compute(Arc::clone(&process_ports) as _)
            .metrics(Arc::clone(&process_ports) as _)
            .cml(Arc::clone(&process_ports) as _)
            .control_plane(Arc::clone(&process_ports) as _)
            .events(Arc::clone(&process_ports) as _)
            .clock(Arc::new(world.clock.clone()))
            .build()
            .expect("all ports");
        let coordination = (world.setup.controllers > 1).then(|| Arc::clone(&process_ports) as _);
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
            .with_regions([REGION])
            .with_filter(DiscoveryFilter::default().with_tag_key("lcm:worker_id"));
        config.with_discovery(discovery).with_cml(CmlDefaults::new("admin", "admin"))
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Crashes the controller: its tasks stop, but calls in flight still arrive.
    pub(crate) fn crash(&self) {
        if self.alive.swap(false, Ordering::AcqRel) {
            self.world.log(format!("{} crashes", self.identity));
            self.world.oracle.lock().fault("controller crash");
            // The receiver is gone once the world ends.
            let _ = self.world.crashes.send(self.slot);
        }
    }

    /// Never returns after a crash.
    pub(crate) async fn stop_if_crashed(&self) {
        if !self.is_alive() {
            std::future::pending::<()>().await;
        }
    }

    /// Sends a read, or a write that may be lost.
    pub(crate) async fn read<R: Reply>(&self, call: Call, act: impl Future<Output = R> + Send) -> R {
        self.stop_if_crashed().await;
        let sending = self.world.send(self, &call);
        sleep(sending.request_delay).await;
        self.stop_if_crashed().await;
        let reply = match sending.fault {
            Fault::CrashBefore => self.crash_and_stop().await,
            Fault::Fail(kind) => R::failed(&call, failure(kind)),
            fault => {
                let mut reply = act.await;
                if fault == Fault::PartialPages {
                    reply.lose_pages();
                }
                let mut plan = self.world.fault_plan.lock();
                let older = if plan.keeps_responses { plan.previous_response(&call, &reply) } else { None };
                match (fault, older) {
                    (Fault::Stale, Some(older)) => {
                        drop(plan);
                        self.world.oracle.lock().injected = true;
                        older
                    }
                    _ => reply,
                }
            }
        };
        self.arrive(&call, sending, reply).await
    }

    /// Sends a change. Once it has left, it is carried out even if the sender crashes.
    pub(crate) async fn change<R: Reply>(
        self: &Arc<Self>,
        call: Call,
        act: impl Future<Output = R> + Send + 'static,
    ) -> R {
        self.stop_if_crashed().await;
        let sending = self.world.send(self, &call);
        let (process, sent, fault, has_left) = (Arc::clone(self), call.clone(), sending.fault, sending.has_left);
        let delay = sending.request_delay;
        let carried_out = tokio::spawn(async move {
            sleep(delay).await;
            if !process.is_alive() && !has_left {
                process.stop_if_crashed().await;
            }
            match fault {
                Fault::CrashBefore => process.crash_and_stop().await,
                Fault::Fail(kind) => R::failed(&sent, failure(kind)),
                fault => {
                    process.world.prepare(&sent, fault);
                    process.world.check_change(&process, &sent);
                    let reply = act.await;
                    process.world.record_change(&sent, reply.is_success());
                    reply
                }
            }
        });
        let reply = carried_out.await.expect("no panic");
        self.stop_if_crashed().await;
        self.arrive(&call, sending, reply).await
    }

    async fn arrive<R: Reply>(&self, call: &Call, sending: Sending, reply: R) -> R {
        if sending.fault == Fault::CrashAfter {
            self.crash_and_stop().await
        }
        sleep(sending.response_delay).await;
        self.stop_if_crashed().await;
        let reply = match sending.fault {
            Fault::LoseResponse => R::failed(call, failure(lcm_sdk::FailureKind::Unclear)),
            _ => reply,
        };
        let outcome = if reply.is_success() { "ok" } else { "failed" };
        self.world.log(format!("  {} {} {}: {outcome}", self.identity, call.name, call.about));
        reply
    }

    async fn crash_and_stop<T>(&self) -> T {
        self.crash();
        std::future::pending().await
    }
}
