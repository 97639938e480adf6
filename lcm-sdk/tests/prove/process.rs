//! A controller that can crash between any two calls, and the layer between it and the world.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lcm_sdk::controller::{LeaseClock, Shards, Shutdown, StartupConfig};
use lcm_sdk::lifecycle::discovery::ForeignInstances;
use lcm_sdk::ports::{DiscoveryFilter, Ports};
use lcm_sdk::providers::memory::MemoryCoordination;
use lcm_sdk::reconciler::CmlDefaults;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{DiscoveryConfig, WorkerController, WorkerControllerConfig};
use lcm_sdk::{CallFailure, FailureKind, RegionConfig};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::accounts::unclear_then_refused;
use super::broken::Broken;
use super::call::{Call, Reply};
use super::faults::{Fault, failure};
use super::ports::ProcessPorts;
use super::recordings;
use super::world::{Discovery, UNKNOWN_REGION, World};

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
    /// How long the machine is suspended, and for how long it was in all.
    suspension: Mutex<Suspension>,
    /// Whether the latest scan showed an instance.
    pub(crate) foreign_seen: AtomicBool,
    /// The first address at which it called CML.
    pub(crate) first_address: Mutex<Option<String>>,
}

#[derive(Debug, Default)]
struct Suspension {
    until: Option<Instant>,
    total: Duration,
}

/// How long an injected suspension lasts: longer than a lease.
const SUSPENSION: Duration = Duration::from_secs(40);

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
            suspension: Mutex::default(),
            foreign_seen: AtomicBool::new(false),
            first_address: Mutex::default(),
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
        let mut policy = world.policy.clone();
        policy.regions.default_region = Some((*world.default_region.lock()).to_owned());
        if world.is_broken(Broken::RegionIsAssumed) {
            policy.regions = policy.regions.with_region(UNKNOWN_REGION, RegionConfig::new("subnet-1", ["sg-1"]));
        }
        let telemetry = Telemetry::default();
        world.telemetries.lock().push(telemetry.clone());
        let controller = WorkerController::new(ports, policy, coordination, config, telemetry);
        let controller = controller.expect("the election works");
        (process, tokio::spawn(async move { controller.run(&Shutdown::new()).await }))
    }

    fn config(self: &Arc<Self>) -> WorkerControllerConfig {
        let setup = &self.world.setup;
        let mut config = WorkerControllerConfig::default();
        config.controller =
            config.controller.with_jitter(|| 0.5).with_polling(setup.polling).with_interval(setup.interval);
        if self.world.is_broken(Broken::OneQueue) {
            // A single slot keeps none for changes.
            config.controller = config.controller.with_max_concurrent(1);
        }
        config.election = config.election.with_identity(&self.identity);
        if self.world.is_broken(Broken::LeaseStandsStill) {
            config.election = config.election.with_clock(self.monotonic_clock());
        }
        if self.world.is_broken(Broken::KeyOfTheService) {
            config.election.key = format!("/lcm/service-{}/leader", self.slot);
        }
        config = config
            .with_history(setup.is_recorded.then(recordings::writer).flatten())
            .with_shards(Shards::new(setup.shards).expect("a valid number of shards"))
            .with_startup(StartupConfig::default())
            .with_cml(CmlDefaults::new("admin", "admin"));
        let filter = match setup.discovery {
            Discovery::Filtered => DiscoveryFilter::default().with_ami_name_pattern("cisco-cml*"),
            Discovery::Unfiltered => DiscoveryFilter::default(),
            Discovery::Off => return config.without_discovery(),
        };
        if setup.discovery == Discovery::Unfiltered && self.world.is_broken(Broken::NoDiscoveryWithoutFilter) {
            return config.without_discovery();
        }
        let mut discovery = DiscoveryConfig::default()
            .with_interval(setup.discovery_interval)
            .with_regions(setup.regions.iter().copied())
            .with_filter(filter);
        if self.world.is_broken(Broken::ForeignImported) {
            discovery = discovery.with_foreign(ForeignInstances::Import);
        }
        if self.world.is_broken(Broken::NoIntervalFloor) {
            discovery = discovery.with_min_interval(Duration::ZERO);
        }
        config.with_discovery(discovery)
    }

    /// A lease clock that stands still while the machine is suspended.
    fn monotonic_clock(self: &Arc<Self>) -> LeaseClock {
        // The lease clock can only be ahead of simulated time.
        const AHEAD: Duration = Duration::from_secs(1_000_000);
        let process = Arc::downgrade(self);
        LeaseClock::with_suspended(move || process.upgrade().map_or(AHEAD, |process| AHEAD - process.suspended_for()))
    }

    /// How long the machine was suspended until now.
    fn suspended_for(&self) -> Duration {
        let suspension = self.suspension.lock();
        let left = suspension.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        suspension.total - left
    }

    /// Suspends the machine: it makes no call and receives no response for a while. Its clock goes on.
    pub(crate) fn suspend(&self, period: Duration) {
        self.world.log(format!("{} is suspended for {period:?}", self.identity));
        let mut suspension = self.suspension.lock();
        let now = Instant::now();
        let until = suspension.until.filter(|until| *until > now).unwrap_or(now);
        suspension.until = Some(until + period);
        suspension.total += period;
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

    /// Waits while the machine is suspended, and never returns after a crash.
    pub(crate) async fn stop_if_crashed(&self) {
        loop {
            let until = self.suspension.lock().until.filter(|until| *until > Instant::now());
            let Some(until) = until else { break };
            sleep_until(until).await;
        }
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
        if sending.fault == Fault::Suspend {
            self.suspend(SUSPENSION);
        }
        sleep(sending.response_delay).await;
        self.stop_if_crashed().await;
        let reply = match sending.fault {
            Fault::RefuseAfterLoss => R::failed(call, self.refused_after_loss()),
            Fault::LoseResponse => R::failed(call, failure(lcm_sdk::FailureKind::Unclear)),
            _ => reply,
        };
        let outcome = if reply.is_success() { "ok" } else { "failed" };
        self.world.log(format!("  {} {} {}: {outcome}", self.identity, call.name, call.about));
        reply
    }

    /// The failure of a launch that was carried out, and whose repetition was refused.
    fn refused_after_loss(&self) -> CallFailure {
        let mut failure = unclear_then_refused();
        if self.world.is_broken(Broken::LastAttemptCounts) {
            failure.kind = FailureKind::Refused;
        }
        failure
    }

    async fn crash_and_stop<T>(&self) -> T {
        self.crash();
        std::future::pending().await
    }
}
