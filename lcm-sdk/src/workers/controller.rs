//! Controller of a fleet of workers: election, watch, sweep and polling, with discovery and metrics beside.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::controller::{
    BuildError, Controller, ControllerConfig, ElectionConfig, ElectionConfigError, ElectionHandle, HeldShard,
    LeaderElection, LeaderLease, LeaderTerm, Readiness, Runner, ShardOwnership, Shards, Shutdown, StartupConfig,
    SweepReport, WatchConfig, WatchState,
};
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::policy::Policy;
use crate::ports::{Coordination, Ports};
use crate::reconciler::{CmlDefaults, Mode, ReconcileResult, Reconciler};
use crate::telemetry::Telemetry;
use crate::workers::discovery::{Discovery, DiscoveryConfig};
use crate::workers::fleet::WorkerFleet;
use crate::workers::metrics::MetricsLoop;

/// Delay before a loop that panicked is started again.
const RESTART_DELAY: Duration = Duration::from_secs(5);
/// Limit of a single sweep where no limit is configured.
const DEFAULT_SWEEP_LIMIT: Duration = Duration::from_secs(60);

/// Settings of a worker controller.
///
/// ```
/// use lcm_sdk::workers::{DiscoveryConfig, WorkerControllerConfig};
///
/// let config = WorkerControllerConfig::default()
///     .with_discovery(DiscoveryConfig::default().with_regions(["us-east-1"]))
///     .without_watch();
/// assert!(config.watch.is_none());
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkerControllerConfig {
    /// The reconcile loop.
    pub controller: ControllerConfig,
    /// The election. Ignored without etcd.
    pub election: ElectionConfig,
    /// Number of shards, each led by one of several controllers. All of them need the same number. Ignored without
    /// etcd.
    pub shards: Shards,
    /// The watch; `None` relies on polling. Ignored without etcd.
    pub watch: Option<WatchConfig>,
    /// Discovery and garbage collection; `None` disables both.
    pub discovery: Option<DiscoveryConfig>,
    /// Time between two rounds of metrics.
    pub metrics_interval: Duration,
    /// The sweep at the start of a term.
    pub startup: StartupConfig,
    /// Credentials for a CML whose record has none.
    pub cml: CmlDefaults,
}

impl Default for WorkerControllerConfig {
    fn default() -> Self {
        Self {
            controller: ControllerConfig { max_concurrent: 5, ..ControllerConfig::default() },
            election: ElectionConfig::default(),
            shards: Shards::ONE,
            watch: Some(WatchConfig::new(["/workers/", "/lcm/workers/"])),
            discovery: Some(DiscoveryConfig::default()),
            metrics_interval: Duration::from_secs(60),
            startup: StartupConfig::default(),
            cml: CmlDefaults::default(),
        }
    }
}

impl WorkerControllerConfig {
    /// Sets the reconcile loop.
    #[must_use]
    pub fn with_controller(self, controller: ControllerConfig) -> Self {
        Self { controller, ..self }
    }

    /// Sets the election.
    #[must_use]
    pub fn with_election(self, election: ElectionConfig) -> Self {
        Self { election, ..self }
    }

    /// Sets the number of shards, which must be the same in all controllers.
    #[must_use]
    pub fn with_shards(self, shards: Shards) -> Self {
        Self { shards, ..self }
    }

    /// Sets the watch.
    #[must_use]
    pub fn with_watch(self, watch: WatchConfig) -> Self {
        Self { watch: Some(watch), ..self }
    }

    /// Disables the watch: changes are noticed by polling.
    #[must_use]
    pub fn without_watch(self) -> Self {
        Self { watch: None, ..self }
    }

    /// Sets discovery and garbage collection.
    #[must_use]
    pub fn with_discovery(self, discovery: DiscoveryConfig) -> Self {
        Self { discovery: Some(discovery), ..self }
    }

    /// Disables discovery and garbage collection.
    #[must_use]
    pub fn without_discovery(self) -> Self {
        Self { discovery: None, ..self }
    }

    /// Sets the time between two rounds of metrics.
    #[must_use]
    pub fn with_metrics_interval(self, metrics_interval: Duration) -> Self {
        Self { metrics_interval, ..self }
    }

    /// Sets the sweep at the start of a term.
    #[must_use]
    pub fn with_startup(self, startup: StartupConfig) -> Self {
        Self { startup, ..self }
    }

    /// Sets the credentials for a CML whose record has none.
    #[must_use]
    pub fn with_cml(self, cml: CmlDefaults) -> Self {
        Self { cml, ..self }
    }
}

/// Keeps a fleet of workers, or the owned shards of it, in agreement with the records while it leads. Clones share one
/// controller.
///
/// # Flow
/// That of [`Controller`]. Discovery and metrics run beside the reconcile loop in every term. For work that concerns the
/// whole fleet see [`ShardedElection`](crate::controller::ShardedElection).
///
/// # Guarantees
/// The cloud is changed only under a valid lease. A stop takes no new worker, lets reconciles in progress finish and be
/// recorded, and only then resigns.
#[derive(Clone)]
pub struct WorkerController {
    inner: Arc<Inner>,
}

struct Inner {
    reconciler: Reconciler,
    coordination: Option<Arc<dyn Coordination>>,
    config: WorkerControllerConfig,
    controller: Controller<WorkerFleet>,
}

/// Result of a single sweep.
#[derive(Debug, Clone)]
pub struct OneSweep {
    /// Counts, and the workers that were not reconciled in time.
    pub report: SweepReport,
    /// Every reconcile, in the order they ended.
    pub results: Vec<ReconcileResult>,
}

/// Why a single sweep was not possible.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OneSweepError {
    /// The election settings cannot work.
    #[error(transparent)]
    Election(#[from] ElectionConfigError),
    /// Another controller leads, or etcd cannot be reached.
    #[error(
        "did not become leader within {0:?}: another controller leads, or etcd cannot be reached; a dry run needs no lead"
    )]
    NotLeader(Duration),
    /// The workers could not be listed.
    #[error("the workers could not be listed: {0}")]
    Listing(#[from] CallFailure),
}

impl WorkerController {
    /// Creates a controller that does nothing until it runs. Without `coordination` it leads at once, without election.
    ///
    /// # Errors
    /// If the election settings cannot work.
    pub fn new(
        ports: Ports,
        policy: Policy,
        coordination: Option<Arc<dyn Coordination>>,
        config: WorkerControllerConfig,
        telemetry: Telemetry,
    ) -> Result<Self, ElectionConfigError> {
        config.election.check()?;
        let clock = Arc::clone(&ports.clock);
        let reconciler =
            Reconciler::builder(ports, policy).cml_defaults(config.cml.clone()).telemetry(telemetry.clone()).build();
        let loops = Loops {
            reconciler: reconciler.clone(),
            discovery: config.discovery.clone(),
            metrics_interval: config.metrics_interval,
        };
        let mut builder = Controller::builder(WorkerFleet::new(reconciler.clone(), Mode::Real))
            .config(config.controller.clone())
            .startup(config.startup)
            .clock(clock)
            .telemetry(telemetry)
            .while_leading(move |term| loops.clone().run(term));
        if let Some(coordination) = &coordination {
            builder = builder.elect(Arc::clone(coordination), config.election.clone()).shards(config.shards);
            if let Some(watch) = &config.watch {
                builder = builder.watch(watch.clone());
            }
        }
        let controller = match builder.build() {
            Ok(controller) => controller,
            Err(BuildError::Election(error)) => return Err(error),
            // Unreachable: a watch is configured together with its election.
            Err(BuildError::WatchWithoutCoordination { .. }) => return Err(ElectionConfigError::NoKey),
        };
        Ok(Self { inner: Arc::new(Inner { reconciler, coordination, config, controller }) })
    }

    /// The reconciler, for a single reconcile outside the loop. It acts without an election.
    pub fn reconciler(&self) -> &Reconciler {
        &self.inner.reconciler
    }

    /// The generic controller below.
    pub fn controller(&self) -> &Controller<WorkerFleet> {
        &self.inner.controller
    }

    /// Competes, leads and competes again until the shutdown is requested; then finishes reconciles in progress and
    /// resigns.
    ///
    /// # Cancel safety
    /// Dropping the future equals a crash: an effect in progress is finished and recorded, nothing is revoked, and
    /// another controller leads when the lease has expired.
    pub async fn run(&self, shutdown: &Shutdown) {
        self.inner.controller.run(shutdown).await;
    }

    /// Sweeps the whole fleet once, under an election of its own; a dry run needs none. A controller that leads the
    /// fleet or a shard prevents it.
    ///
    /// # Errors
    /// If it does not become leader within `patience`, or the workers cannot be listed.
    pub async fn sweep_once(&self, mode: Mode, patience: Duration) -> Result<OneSweep, OneSweepError> {
        let (shutdown, telemetry) = (Shutdown::new(), self.inner.reconciler.telemetry().clone());
        let mut elected: Option<ElectionHandle> = None;
        let mut tasks = JoinSet::new();
        let lease = match (&self.inner.coordination, mode) {
            (None, _) | (_, Mode::DryRun) => LeaderLease::unfenced(),
            (Some(etcd), Mode::Real) => {
                let config = self.inner.config.election.clone();
                let (election, handle) = LeaderElection::new(Arc::clone(etcd), config, telemetry.clone())?;
                tasks.spawn(election.run(shutdown.clone()));
                match tokio::time::timeout(patience, handle.elected()).await {
                    Ok(Some(lease)) => {
                        elected = Some(handle);
                        lease
                    }
                    Ok(None) | Err(_) => {
                        handle.resign().await;
                        return Err(OneSweepError::NotLeader(patience));
                    }
                }
            }
        };
        let results = Arc::new(Mutex::new(Vec::new()));
        let fleet = WorkerFleet::new(self.inner.reconciler.clone(), mode).on_result({
            let results = Arc::clone(&results);
            move |result| results.lock().push(result.clone())
        });
        let ownership = ShardOwnership::from_lease(lease);
        let runner =
            Runner::with_ownership(Arc::new(fleet), ownership, self.inner.config.controller.clone(), telemetry);
        let limit = self.inner.config.startup.limit.unwrap_or(DEFAULT_SWEEP_LIMIT);
        let mut swept = None;
        let sweeping = async {
            swept = Some(runner.sweep(limit).await);
            shutdown.request();
        };
        tokio::join!(runner.serve(&shutdown), sweeping);
        if let Some(handle) = elected {
            handle.resign().await;
        }
        let report = match swept {
            Some(swept) => swept?,
            None => SweepReport::default(),
        };
        let results = std::mem::take(&mut *results.lock());
        Ok(OneSweep { report, results })
    }

    /// Current readiness and every change of it.
    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.inner.controller.readiness()
    }

    /// Waits until the first sweep is done. Other controllers wait for this before they rely on the records. A worker
    /// that hangs does not delay it beyond the limit of the sweep.
    pub async fn ready(&self) -> SweepReport {
        let mut readiness = self.readiness();
        loop {
            if let Readiness::Ready(swept) = &*readiness.borrow_and_update() {
                return swept.report.clone();
            }
            if readiness.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Lease over the whole fleet, if the controller leads it. With several shards each has a lease of its own: see
    /// [`WorkerController::shards`].
    pub fn lease(&self) -> Option<LeaderLease> {
        self.term()?.ownership().fleet_lease()
    }

    /// Whether the controller leads the fleet or a shard.
    pub fn is_leading(&self) -> bool {
        self.term().is_some_and(|term| term.ownership().is_valid())
    }

    /// The shards it leads, in ascending order; `None` where the fleet is not divided.
    pub fn shards(&self) -> Option<Vec<HeldShard>> {
        if self.inner.config.shards == Shards::ONE {
            return None;
        }
        Some(self.term().and_then(|term| term.ownership().held()).unwrap_or_default())
    }

    /// Identity in the election.
    pub fn identity(&self) -> &str {
        &self.inner.config.election.identity
    }

    /// Start of the current term.
    pub fn leading_since(&self) -> Option<Instant> {
        self.term().map(|term| term.started_at())
    }

    /// State of the watch; `None` without one, or while the controller does not lead.
    pub fn watch_state(&self) -> Option<WatchState> {
        self.inner.controller.watch_state()
    }

    fn term(&self) -> Option<LeaderTerm<WorkerFleet>> {
        self.inner.controller.term()
    }
}

impl fmt::Debug for WorkerController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerController").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

/// Loops that run beside the reconcile loop while the controller leads.
#[derive(Clone)]
struct Loops {
    reconciler: Reconciler,
    discovery: Option<DiscoveryConfig>,
    metrics_interval: Duration,
}

impl Loops {
    async fn run(self, term: LeaderTerm<WorkerFleet>) {
        let (ownership, ended) = (term.ownership(), term.end_signal());
        // With several shards, every action takes the lease of its own shard.
        let reconciler = self.reconciler.with_lease(ownership.fleet_lease().unwrap_or_else(LeaderLease::expired));
        let metrics = MetricsLoop::new(reconciler.clone(), self.metrics_interval).with_ownership(ownership.clone());
        let collecting = restarted("metrics", ended, || metrics.run(ended));
        let discovering = async {
            let Some(config) = self.discovery else { return };
            let runner = term.runner().clone();
            let discovery = Discovery::new(reconciler, config, move |worker| runner.enqueue(worker.as_str()))
                .with_ownership(ownership.clone());
            restarted("discovery", ended, || discovery.run(ended)).await;
        };
        tokio::join!(collecting, discovering);
    }
}

/// Runs a loop and starts it again after a panic, so that it neither stops others nor stays stopped.
async fn restarted<F: Future<Output = ()>>(name: &str, ended: &Shutdown, run: impl Fn() -> F) {
    while std::panic::AssertUnwindSafe(run()).catch_unwind().await.is_err() {
        tracing::error!(target: "lcm::controller", name, "a loop panicked; starting it again");
        tokio::select! {
            biased;
            () = ended.requested() => return,
            () = tokio::time::sleep(RESTART_DELAY) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles only as long as a controller can be spawned.
    #[expect(dead_code, reason = "compiling it is the test")]
    fn controller_can_run_in_a_task(controller: WorkerController, shutdown: Shutdown) {
        tokio::spawn(async move { controller.run(&shutdown).await });
    }
}
