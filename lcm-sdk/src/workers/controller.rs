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

use crate::controller::timers::Timers;
use crate::controller::{
    BuildError, Controller, ControllerConfig, ElectionConfig, ElectionConfigError, ElectionHandle, HeldShard,
    LeaderElection, LeaderLease, LeaderTerm, Polling, Readiness, Runner, ShardOwnership, Shards, Shutdown,
    StartupConfig, SweepReport, WatchConfig, WatchState,
};
use crate::history::HistoryWriter;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::policy::Policy;
use crate::ports::{ControlPlane, Coordination, Ports};
use crate::reconciler::requests::KeyRequests;
use crate::reconciler::{
    CmlDefaults, Explanation, Guards, Mode, OperationError, ReconcileResult, Reconciler, UnsupportedPolicy,
};
use crate::resilience::ServiceStatus;
use crate::resilience::reachability::{MonitoredControlPlane, MonitoredCoordination, Reachability};
use crate::telemetry::Telemetry;
use crate::workers::discovery::{Discovery, DiscoveryConfig, DiscoveryRun, DiscoveryState, DiscoveryStats};
use crate::workers::fleet::{SweepProgress, WorkerFleet};
use crate::workers::metrics::MetricsLoop;
use crate::workers::records::{RecordReports, RecordStats};

/// Delay before a loop that panicked is started again.
const RESTART_DELAY: Duration = Duration::from_secs(5);
/// Longest time for which the end waits for the delivery of events and audits.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);
/// Time from the start of a term to the first collection of notes, in which the sweep ends.
const NOTES_DELAY: Duration = Duration::from_secs(600);
/// Time between two collections of notes.
const NOTES_INTERVAL: Duration = Duration::from_secs(3600);
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
    /// Prefixes of the keys with which the control plane requests synchronizations and license operations. Ignored
    /// without etcd, and without a watch they are listed in every cycle.
    pub request_prefixes: Vec<String>,
    /// Discovery and garbage collection; `None` disables both.
    pub discovery: Option<DiscoveryConfig>,
    /// Time between two rounds of metrics.
    pub metrics_interval: Duration,
    /// The sweep at the start of a term.
    pub startup: StartupConfig,
    /// Credentials for a CML whose record has none.
    pub cml: CmlDefaults,
    /// Files that the decisions and their input are written to; `None` writes no history.
    pub history: Option<HistoryWriter>,
    /// Worker locks and gates, shared with other reconcilers on the same ports.
    pub guards: Guards,
}

impl Default for WorkerControllerConfig {
    fn default() -> Self {
        Self {
            controller: ControllerConfig { max_concurrent: 5, ..ControllerConfig::default() },
            election: ElectionConfig::default(),
            shards: Shards::ONE,
            watch: Some(WatchConfig::default()),
            request_prefixes: WatchConfig::default().prefixes,
            discovery: Some(DiscoveryConfig::default()),
            metrics_interval: Duration::from_secs(60),
            startup: StartupConfig::default(),
            cml: CmlDefaults::default(),
            history: None,
            guards: Guards::default(),
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

    /// Sets the prefixes of the keys with which the control plane requests synchronizations and license operations.
    #[must_use]
    pub fn with_request_prefixes<P: Into<String>>(self, prefixes: impl IntoIterator<Item = P>) -> Self {
        Self { request_prefixes: prefixes.into_iter().map(Into::into).collect(), ..self }
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

    /// Shares worker locks and gates with other reconcilers on the same ports.
    #[must_use]
    pub fn with_guards(self, guards: &Guards) -> Self {
        Self { guards: guards.clone(), ..self }
    }

    /// Writes the decisions with their input to a history, or to none.
    #[must_use]
    pub fn with_history(self, history: impl Into<Option<HistoryWriter>>) -> Self {
        Self { history: history.into(), ..self }
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
    records: Arc<RecordReports>,
    etcd: Option<Arc<Reachability>>,
    control_plane: Arc<Reachability>,
    discovery: Arc<DiscoveryState>,
    requests: Option<KeyRequests>,
}

/// Why a worker controller cannot be created.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WorkerControllerError {
    /// The election settings cannot work.
    #[error(transparent)]
    Election(#[from] ElectionConfigError),
    /// The control plane is configured as one that cannot carry the policy out.
    #[error(transparent)]
    Policy(#[from] UnsupportedPolicy),
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

/// The lead of the fleet for a single action. Dropped without [`ElectedOnce::resign`], the lease expires by itself.
#[derive(Debug)]
#[must_use]
pub struct ElectedOnce {
    lease: LeaderLease,
    election: Option<(ElectionHandle, JoinSet<()>)>,
}

impl ElectedOnce {
    /// The lease to act under.
    pub const fn lease(&self) -> &LeaderLease {
        &self.lease
    }

    /// Gives up the lead.
    pub async fn resign(self) {
        if let Some((handle, _tasks)) = self.election {
            handle.resign().await;
        }
    }
}

impl WorkerController {
    /// Creates a controller that does nothing until it runs. Without `coordination` it leads at once, without election.
    ///
    /// # Errors
    /// If the election settings cannot work, or the control plane is configured as one that cannot carry the policy out.
    pub fn new(
        ports: Ports,
        policy: Policy,
        coordination: Option<Arc<dyn Coordination>>,
        config: WorkerControllerConfig,
        telemetry: Telemetry,
    ) -> Result<Self, WorkerControllerError> {
        config.election.check()?;
        let clock = Arc::clone(&ports.clock);
        let etcd =
            coordination.as_ref().map(|etcd| Arc::new(Reachability::new("etcd", etcd.url(), Arc::clone(&clock))));
        let coordination = coordination.zip(etcd.clone()).map(|(inner, reachability)| {
            Arc::new(MonitoredCoordination::new(inner, reachability)) as Arc<dyn Coordination>
        });
        let control_plane =
            Arc::new(Reachability::new("the control plane", ports.control_plane.url(), Arc::clone(&clock)));
        let monitored = MonitoredControlPlane::new(Arc::clone(&ports.control_plane), Arc::clone(&control_plane));
        let ports = Ports { control_plane: Arc::new(monitored), ..ports };
        let requests = coordination.clone().map(KeyRequests::new);
        // A watch lists them itself, whenever it connects and whenever that is tried.
        let timers = Timers::default();
        let listed = if config.watch.is_some() { Vec::new() } else { config.request_prefixes.clone() };
        let reconciler = Reconciler::builder(ports, policy)
            .cml_defaults(config.cml.clone())
            .telemetry(telemetry.clone())
            .requests(requests.clone())
            .history(config.history.clone())
            .guards(&config.guards)
            .timers(timers.clone())
            .build()?;
        let discovery = Arc::<DiscoveryState>::default();
        let loops = Loops {
            reconciler: reconciler.clone(),
            discovery: config.discovery.clone(),
            discovery_state: Arc::clone(&discovery),
            metrics_interval: config.metrics_interval,
        };
        let fleet = WorkerFleet::new(reconciler.clone(), Mode::Real).with_requests(requests.clone(), listed);
        let records = fleet.records();
        let mut builder = Controller::builder(fleet)
            .config(config.controller.clone())
            .startup(config.startup)
            .clock(clock)
            .timers(timers)
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
            Err(BuildError::Election(error)) => return Err(error.into()),
            // Unreachable: a watch is configured together with its election.
            Err(BuildError::WatchWithoutCoordination { .. }) => return Err(ElectionConfigError::NoKey.into()),
        };
        let inner =
            Inner { reconciler, coordination, config, controller, records, etcd, control_plane, discovery, requests };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The reconciler of the loop, for a single reconcile beside it. It acts without an election, and knows those license
    /// operations in etcd that the watch has reported.
    pub fn reconciler(&self) -> &Reconciler {
        &self.inner.reconciler
    }

    /// The reconciler for a program in which the controller does not run. It acts without an election, and looks the
    /// license operations of a worker up in etcd, below the configured prefixes.
    pub fn single_reconciler(&self) -> Reconciler {
        self.inner.reconciler.with_unwatched_requests(&self.inner.config.request_prefixes)
    }

    /// The generic controller below.
    pub fn controller(&self) -> &Controller<WorkerFleet> {
        &self.inner.controller
    }

    /// Problems of the records at the last listing.
    pub fn record_stats(&self) -> RecordStats {
        self.inner.records.stats()
    }

    /// Competes, leads and competes again until the shutdown is requested; then finishes reconciles in progress and
    /// resigns.
    ///
    /// # Cancel safety
    /// Dropping the future equals a crash: an effect in progress is finished and recorded, nothing is revoked, and
    /// another controller leads when the lease has expired.
    pub async fn run(&self, shutdown: &Shutdown) {
        tokio::select! {
            biased;
            () = self.inner.controller.run(shutdown) => {}
            () = self.probe_on_standby() => {}
        }
        self.flush().await;
    }

    /// Calls the control plane in every cycle of a standby, which would otherwise notice an outage or a wrong key only
    /// when it takes over.
    async fn probe_on_standby(&self) {
        let (control_plane, timers) = (&self.inner.reconciler.ports().control_plane, self.inner.reconciler.timers());
        let mut busy = timers.busy();
        loop {
            if self.term().is_none() {
                // The port notes the result.
                drop(control_plane.discovery_settings().await);
            }
            drop(busy);
            busy = timers.sleep(self.inner.config.controller.interval).await;
        }
    }

    /// Gives the events and audits of the last reconciles a moment to leave.
    async fn flush(&self) {
        let left = self.inner.reconciler.flush(FLUSH_LIMIT).await;
        if left > 0 {
            tracing::warn!(target: "lcm::events", left, "events and audits were not delivered before the end");
        }
    }

    /// Sweeps the whole fleet once, under an election of its own; a dry run needs none. A controller that leads the
    /// fleet or a shard prevents it.
    ///
    /// # Errors
    /// If it does not become leader within `patience`, or the workers cannot be listed.
    pub async fn sweep_once(&self, mode: Mode, patience: Duration) -> Result<OneSweep, OneSweepError> {
        self.sweep_once_with(mode, patience, |_| {}).await
    }

    /// [`WorkerController::sweep_once`] with a function that is called when the workers are listed, and with the result
    /// of every reconcile as it ends.
    ///
    /// # Errors
    /// Those of [`WorkerController::sweep_once`].
    pub async fn sweep_once_with(
        &self,
        mode: Mode,
        patience: Duration,
        on_progress: impl Fn(SweepProgress<'_>) + Send + Sync + 'static,
    ) -> Result<OneSweep, OneSweepError> {
        let (shutdown, telemetry) = (Shutdown::new(), self.inner.reconciler.telemetry().clone());
        let elected = self.elect_once(mode, patience).await?;
        let results = Arc::new(Mutex::new(Vec::new()));
        let (requests, prefixes) = (self.inner.requests.clone(), self.inner.config.request_prefixes.clone());
        let on_progress = {
            let results = Arc::clone(&results);
            move |progress: SweepProgress<'_>| {
                if let SweepProgress::Reconciled(result) = &progress {
                    results.lock().push((*result).clone());
                }
                on_progress(progress);
            }
        };
        let fleet = WorkerFleet::new(self.inner.reconciler.clone(), mode)
            .with_requests(requests, prefixes)
            .on_progress(on_progress);
        let ownership = ShardOwnership::from_lease(elected.lease().clone());
        let runner =
            Runner::with_ownership(Arc::new(fleet), ownership, self.inner.config.controller.clone(), telemetry);
        let limit = self.inner.config.startup.limit.unwrap_or(DEFAULT_SWEEP_LIMIT);
        let mut swept = None;
        let sweeping = async {
            swept = Some(runner.sweep(limit).await);
            shutdown.request();
        };
        tokio::join!(runner.serve(&shutdown), sweeping);
        elected.resign().await;
        self.flush().await;
        let report = match swept {
            Some(swept) => swept?,
            None => SweepReport::default(),
        };
        let results = std::mem::take(&mut *results.lock());
        Ok(OneSweep { report, results })
    }

    /// Becomes leader of the whole fleet for a single action; a dry run needs no election, nor does a controller without
    /// etcd. A controller that leads the fleet or a shard prevents it.
    ///
    /// # Errors
    /// If it does not become leader within `patience`, or the election settings cannot work.
    pub async fn elect_once(&self, mode: Mode, patience: Duration) -> Result<ElectedOnce, OneSweepError> {
        let (Some(etcd), Mode::Real) = (&self.inner.coordination, mode) else {
            return Ok(ElectedOnce { lease: LeaderLease::unfenced(), election: None });
        };
        let (config, telemetry) = (self.inner.config.election.clone(), self.inner.reconciler.telemetry().clone());
        let (election, handle) = LeaderElection::new(Arc::clone(etcd), config, telemetry)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(election.run(Shutdown::new()));
        match tokio::time::timeout(patience, handle.elected()).await {
            Ok(Some(lease)) => Ok(ElectedOnce { lease, election: Some((handle, tasks)) }),
            Ok(None) | Err(_) => {
                handle.resign().await;
                Err(OneSweepError::NotLeader(patience))
            }
        }
    }

    /// Explains what a reconcile of a worker would do now, without doing it, and when the next one follows.
    ///
    /// # Errors
    /// [`OperationError`] if the worker does not exist or its record cannot be read.
    pub async fn explain_now(&self, worker: &WorkerId) -> Result<Explanation, OperationError> {
        let mut explanation = self.single_reconciler().explain_now(worker).await?;
        let ControllerConfig { interval, polling, .. } = self.inner.config.controller;
        explanation.next.in_cycles_of((polling == Polling::Enabled).then_some(interval));
        if explanation.next.at.is_none() {
            let now = (self.inner.reconciler.timers().now(), self.inner.reconciler.ports().clock.now());
            let due = self.inner.controller.resource(worker.as_str()).and_then(|queued| queued.next_retry_at);
            explanation.next.at = due.map(|due| now.1 + due.saturating_duration_since(now.0));
        }
        Ok(explanation)
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

    /// Identity of the leader, as far as this controller knows; `None` without an election and with several shards.
    pub fn leader(&self) -> Option<String> {
        self.inner.controller.leader()
    }

    /// Whether etcd and the control plane can be reached.
    pub fn services(&self) -> Vec<ServiceStatus> {
        self.inner.etcd.iter().chain([&self.inner.control_plane]).map(|service| service.status()).collect()
    }

    /// The outages that keep the controller from its work, as a sentence: etcd or the control plane cannot be reached, or
    /// etcd has not responded yet.
    pub fn outage(&self) -> Option<String> {
        let etcd = self.inner.etcd.as_ref().map(|etcd| etcd.status());
        let etcd = etcd.and_then(|etcd| match etcd.reachable {
            None => Some(format!("{} has not responded yet", etcd.service)),
            Some(_) => etcd.outage(),
        });
        let outages: Vec<String> = etcd.into_iter().chain(self.inner.control_plane.status().outage()).collect();
        (!outages.is_empty()).then(|| outages.join("; "))
    }

    /// Start of the current term.
    pub fn leading_since(&self) -> Option<Instant> {
        self.term().map(|term| term.started_at())
    }

    /// State of the watch; `None` without one, or while the controller does not lead.
    pub fn watch_state(&self) -> Option<WatchState> {
        self.inner.controller.watch_state()
    }

    /// Statistics of discovery and garbage collection since the process started; `None` without discovery.
    pub fn discovery_stats(&self) -> Option<DiscoveryStats> {
        self.inner.config.discovery.is_some().then(|| self.inner.discovery.stats())
    }

    /// The last runs of discovery in this process, the newest first; none without discovery.
    pub fn discovery_runs(&self) -> Vec<DiscoveryRun> {
        self.inner.discovery.runs()
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
    discovery_state: Arc<DiscoveryState>,
    metrics_interval: Duration,
}

impl Loops {
    async fn run(self, term: LeaderTerm<WorkerFleet>) {
        // Another controller may have scaled the fleet down since the last term.
        self.reconciler.forget_scale_downs();
        let _doubts = DoubtsOfTerm(&self.reconciler);
        let (ownership, ended) = (term.ownership(), term.end_signal());
        // With several shards, every action takes the lease of its own shard.
        let reconciler = self.reconciler.with_lease(ownership.fleet_lease().unwrap_or_else(LeaderLease::expired));
        let metrics = MetricsLoop::new(reconciler.clone(), self.metrics_interval).with_ownership(ownership.clone());
        let collecting = restarted("metrics", ended, || metrics.run(ended));
        let control_plane = Arc::clone(&reconciler.ports().control_plane);
        let timers = &reconciler.timers().clone();
        let tidying = restarted("notes", ended, || collect_notes(&*control_plane, ownership, timers, ended));
        let discovering = async {
            let Some(config) = self.discovery else { return };
            let runner = term.runner().clone();
            let discovery = Discovery::new(reconciler, config, move |worker| runner.enqueue(worker.as_str()))
                .with_ownership(ownership.clone())
                .with_state(self.discovery_state);
            restarted("discovery", ended, || discovery.run(ended)).await;
        };
        tokio::join!(collecting, tidying, discovering);
    }
}

/// Drops the doubts about regions when the term ends, however it ends: the next leader has its own.
struct DoubtsOfTerm<'a>(&'a Reconciler);

impl Drop for DoubtsOfTerm<'_> {
    fn drop(&mut self) {
        self.0.forget_doubts();
    }
}

/// Deletes the notes of workers that ended long ago, now and then.
async fn collect_notes(
    control_plane: &dyn ControlPlane,
    ownership: &ShardOwnership,
    timers: &Timers,
    ended: &Shutdown,
) {
    let fence = |id: &WorkerId| {
        let lease = ownership.lease(id.as_str()).filter(LeaderLease::is_valid);
        lease.map(|lease| lease.fence())
    };
    let mut wait = NOTES_DELAY;
    loop {
        let _busy = tokio::select! {
            biased;
            () = ended.requested() => return,
            busy = timers.sleep(wait) => busy,
        };
        wait = NOTES_INTERVAL;
        match control_plane.collect_notes(&fence).await {
            Ok(0) => {}
            Ok(deleted) => tracing::info!(target: "lcm::notes", deleted, "notes of ended workers are deleted"),
            Err(failure) => {
                tracing::warn!(target: "lcm::notes", %failure, "notes of ended workers could not be deleted")
            }
        }
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
