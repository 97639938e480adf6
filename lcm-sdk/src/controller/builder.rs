//! Composes election, watch, sweep and polling into one controller.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::controller::election::{ElectionConfig, ElectionConfigError};
use crate::controller::hash::Shards;
use crate::controller::heartbeat::Heartbeat;
use crate::controller::queue::ResourceState;
use crate::controller::resource::Resource;
use crate::controller::runner::{ControllerConfig, Runner};
use crate::controller::shards::{Candidate, ElectionSetup, ShardOwnership, propagate_panic};
use crate::controller::shutdown::Shutdown;
use crate::controller::sweep::SweepReport;
use crate::controller::timers::{Busy, Timers};
use crate::controller::watch::{ResyncCause, WatchConfig, WatchEvent, WatchHandle, WatchState, Watcher, first_segment};
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::time::Timestamp;
use crate::ports::{Clock, Coordination, SystemClock};
use crate::telemetry::Telemetry;

type KeyReader = Arc<dyn Fn(&str, &[u8]) -> Option<String> + Send + Sync>;
type TermTask<R> = Arc<dyn Fn(LeaderTerm<R>) -> BoxFuture<'static, ()> + Send + Sync>;

/// Sweep at the start of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartupConfig {
    /// Time before the sweep.
    pub delay: Duration,
    /// Longest time that readiness waits for the sweep; `None` skips it.
    pub limit: Option<Duration>,
}

impl StartupConfig {
    /// No sweep and no delay: the first listing is that of the watch, or of the first polling cycle.
    pub const DISABLED: Self = Self { delay: Duration::ZERO, limit: None };

    /// Sets the time before the sweep.
    #[must_use]
    pub fn with_delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Sets the longest time that readiness waits for the sweep.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit: Some(limit), ..self }
    }
}

impl Default for StartupConfig {
    fn default() -> Self {
        Self { delay: Duration::from_secs(2), limit: Some(Duration::from_secs(60)) }
    }
}

/// Progress of a controller.
#[derive(Debug, Clone, PartialEq)]
pub enum Readiness {
    /// The controller does not lead.
    Standby,
    /// The controller leads, and its first sweep is not finished.
    Sweeping,
    /// The controller leads, and every resource was reconciled but those the report names.
    Ready(FinishedSweep),
}

/// A finished sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedSweep {
    /// Result of the sweep.
    pub report: SweepReport,
    /// End of the sweep.
    pub ended_at: Timestamp,
}

/// Why a controller cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The election settings cannot work.
    #[error(transparent)]
    Election(#[from] ElectionConfigError),
    /// A watch was configured without a coordination service.
    #[error("the controller watches {prefixes:?} without a coordination service; accepted: `elect` before `watch`")]
    WatchWithoutCoordination {
        /// The configured prefixes.
        prefixes: Vec<String>,
    },
}

/// Why a controller cannot resign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ResignError {
    /// It does not lead.
    #[error("this controller does not lead")]
    NotLeading,
    /// It leads without an election, so no other controller could take over.
    #[error("this controller leads without an election, so no other one can take over")]
    NoElection,
}

/// Composes a [`Controller`]. Every part but the resource is optional.
#[must_use]
pub struct ControllerBuilder<R: Resource> {
    resource: R,
    config: ControllerConfig,
    startup: StartupConfig,
    election: Option<(Arc<dyn Coordination>, ElectionConfig)>,
    shards: Shards,
    watch: Option<WatchConfig>,
    key_reader: KeyReader,
    clock: Arc<dyn Clock>,
    telemetry: Telemetry,
    while_leading: Option<TermTask<R>>,
    timers: Timers,
}

impl<R: Resource> ControllerBuilder<R> {
    /// Competes for leadership and reconciles only while leading. Without an election the controller leads at once.
    pub fn elect(mut self, coordination: Arc<dyn Coordination>, config: impl Into<ElectionConfig>) -> Self {
        self.election = Some((coordination, config.into()));
        self
    }

    /// Shares the resources with other controllers of the same election. The default is [`Shards::ONE`].
    pub fn shards(mut self, shards: Shards) -> Self {
        self.shards = shards;
        self
    }

    /// Watches key prefixes of the election's coordination service for changes.
    pub fn watch(mut self, config: impl Into<WatchConfig>) -> Self {
        self.watch = Some(config.into());
        self
    }

    /// Reads the names of resources from watched keys. The default is [`first_segment`].
    pub fn key_reader(mut self, reader: impl Fn(&str, &[u8]) -> Option<String> + Send + Sync + 'static) -> Self {
        self.key_reader = Arc::new(reader);
        self
    }

    /// Sets the maximum number of concurrent reconciles.
    pub fn concurrency(mut self, reconciles: usize) -> Self {
        self.config.max_concurrent = reconciles;
        self
    }

    /// Sets all settings of the reconcile loop, concurrency included.
    pub fn config(mut self, config: ControllerConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the sweep at the start of a term. The default is [`StartupConfig::DISABLED`].
    pub fn startup(mut self, startup: StartupConfig) -> Self {
        self.startup = startup;
        self
    }

    /// Sets the clock of reported times. The default is [`SystemClock`].
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Shares the timers of a reconciler.
    pub(crate) fn timers(mut self, timers: Timers) -> Self {
        self.timers = timers;
        self
    }

    /// Publishes metrics here.
    pub fn telemetry(mut self, telemetry: Telemetry) -> Self {
        self.telemetry = telemetry;
        self
    }

    /// Runs a future in every term, beside the reconcile loop. It must return soon after [`LeaderTerm::end_signal`] is
    /// requested: the lease is kept until then.
    pub fn while_leading<F>(mut self, task: impl Fn(LeaderTerm<R>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.while_leading = Some(Arc::new(move |term| task(term).boxed()));
        self
    }

    /// Builds the controller. Nothing runs and no call is made before [`Controller::run`].
    ///
    /// # Errors
    /// If the election settings cannot work, or a watch has no coordination service.
    pub fn build(self) -> Result<Controller<R>, BuildError> {
        let Self { election, shards, .. } = self;
        if let Some((_, config)) = &election {
            config.check()?;
        }
        let watch = match (self.watch, &election) {
            (None, _) => None,
            (Some(config), Some((coordination, _))) => Some((Arc::clone(coordination), config)),
            (Some(config), None) => {
                return Err(BuildError::WatchWithoutCoordination { prefixes: config.prefixes });
            }
        };
        let (readiness, _) = watch::channel(Readiness::Standby);
        let inner = Inner {
            resource: Arc::new(self.resource),
            config: self.config,
            startup: self.startup,
            election: election.map(|(coordination, config)| ElectionSetup { coordination, config, shards }),
            watch,
            key_reader: self.key_reader,
            clock: self.clock,
            telemetry: self.telemetry,
            while_leading: self.while_leading,
            timers: self.timers,
            readiness,
            heartbeat: Heartbeat::default(),
            candidate: Mutex::new(None),
            term: Mutex::new(None),
        };
        Ok(Controller { inner: Arc::new(inner) })
    }
}

/// Reconciles resources of one kind while it leads. Clones share one controller.
///
/// # Flow
/// Elected, watch and sweep, poll and watch; a lost lease ends the term, and the election goes on. With several shards a
/// term begins with the first shard and ends with the last; a shard gained in between is swept as well.
///
/// # Guarantees
/// Reconciles begin only under a valid lease. A stop takes no new item, waits for reconciles in progress, and only then
/// resigns.
pub struct Controller<R: Resource> {
    inner: Arc<Inner<R>>,
}

struct Inner<R: Resource> {
    resource: Arc<R>,
    config: ControllerConfig,
    startup: StartupConfig,
    election: Option<ElectionSetup>,
    watch: Option<(Arc<dyn Coordination>, WatchConfig)>,
    key_reader: KeyReader,
    clock: Arc<dyn Clock>,
    telemetry: Telemetry,
    while_leading: Option<TermTask<R>>,
    timers: Timers,
    readiness: watch::Sender<Readiness>,
    heartbeat: Heartbeat,
    candidate: Mutex<Option<Candidate>>,
    term: Mutex<Option<LeaderTerm<R>>>,
}

/// One term of leadership. Clones share one term.
pub struct LeaderTerm<R: Resource> {
    runner: Runner<R>,
    ownership: ShardOwnership,
    watch: Option<WatchHandle>,
    started_at: Instant,
    resigned: Shutdown,
    ended: Shutdown,
}

impl<R: Resource> Clone for LeaderTerm<R> {
    fn clone(&self) -> Self {
        Self {
            runner: self.runner.clone(),
            ownership: self.ownership.clone(),
            watch: self.watch.clone(),
            started_at: self.started_at,
            resigned: self.resigned.clone(),
            ended: self.ended.clone(),
        }
    }
}

impl<R: Resource> LeaderTerm<R> {
    /// The reconcile loop of the term.
    pub fn runner(&self) -> &Runner<R> {
        &self.runner
    }

    /// The resources that are owned in the term.
    pub fn ownership(&self) -> &ShardOwnership {
        &self.ownership
    }

    /// Start of the term.
    pub fn started_at(&self) -> Instant {
        self.started_at
    }

    /// Requested at the end of the term.
    pub fn end_signal(&self) -> &Shutdown {
        &self.ended
    }
}

impl<R: Resource> Clone for Controller<R> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<R: Resource> Controller<R> {
    /// Begins to compose a controller for one kind of resource.
    pub fn builder(resource: R) -> ControllerBuilder<R> {
        ControllerBuilder {
            resource,
            config: ControllerConfig::default(),
            startup: StartupConfig::DISABLED,
            election: None,
            shards: Shards::ONE,
            watch: None,
            key_reader: Arc::new(first_segment),
            clock: Arc::new(SystemClock),
            telemetry: Telemetry::default(),
            while_leading: None,
            timers: Timers::default(),
        }
    }

    /// Competes, leads and competes again until the shutdown is requested; then finishes reconciles in progress and
    /// resigns.
    ///
    /// # Cancel safety
    /// Dropping the future equals a crash: nothing is revoked, and another controller leads when the lease has expired.
    ///
    /// # Panics
    /// If the election panicked: without it the controller would never lead again, and a supervisor has to notice.
    pub async fn run(&self, shutdown: &Shutdown) {
        self.inner.heartbeat.during(self.compete_and_lead(shutdown)).await;
    }

    async fn compete_and_lead(&self, shutdown: &Shutdown) {
        while self.compete(shutdown).await == Candidacy::Paused {
            // Long enough for a candidate that does not watch the key but polls it.
            let pause = self.inner.election.as_ref().map_or(Duration::ZERO, |setup| setup.config.ttl);
            tokio::select! {
                biased;
                () = shutdown.requested() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Competes and leads until the shutdown or a resignation is requested.
    async fn compete(&self, shutdown: &Shutdown) -> Candidacy {
        let inner = &self.inner;
        // Dropped together with this future: an election that outlives it would hold the lease for nothing.
        let mut tasks = JoinSet::new();
        let candidate = Candidate::spawn(
            inner.election.as_ref(),
            inner.config.grace,
            inner.telemetry.clone(),
            shutdown,
            &mut tasks,
        );
        let candidate = match candidate {
            Ok(candidate) => candidate,
            // Unreachable: `build` validated the settings.
            Err(error) => {
                tracing::error!(target: "lcm::leader", %error, "the election cannot work");
                return Candidacy::Ended;
            }
        };
        *inner.candidate.lock() = Some(candidate.clone());
        let mut candidacy = Candidacy::Ended;
        loop {
            let ownership = tokio::select! {
                biased;
                () = shutdown.requested() => break,
                elected = candidate.elected() => elected,
            };
            let Some(ownership) = ownership else { break };
            if self.lead(ownership, shutdown).await == TermEnd::Resigned {
                candidacy = Candidacy::Paused;
                break;
            }
        }
        candidate.resign().await;
        *inner.candidate.lock() = None;
        if let Some(Err(error)) = tasks.join_next().await {
            propagate_panic(error);
        }
        candidacy
    }

    /// Gives up the lead, so that another controller takes over: takes no new item, finishes reconciles in progress and
    /// revokes the lease. Returns at once. The controller competes again after the time to live of a lease.
    ///
    /// # Errors
    /// If it does not lead, or leads without an election.
    pub fn resign(&self) -> Result<(), ResignError> {
        let term = self.term().ok_or(ResignError::NotLeading)?;
        if self.inner.election.is_none() {
            return Err(ResignError::NoElection);
        }
        term.resigned.request();
        Ok(())
    }

    /// Time since the last sign of life of [`Controller::run`], which gives one every second; `None` while it does not
    /// run. A longer time means that the loop is stuck.
    pub fn heartbeat_age(&self) -> Option<Duration> {
        self.inner.heartbeat.age()
    }

    /// Identity of the leader, as far as this candidate knows; `None` without a leader, without an election, and with
    /// several shards.
    pub fn leader(&self) -> Option<String> {
        self.inner.candidate.lock().as_ref()?.leader()
    }

    async fn lead(&self, ownership: ShardOwnership, shutdown: &Shutdown) -> TermEnd {
        let inner = &self.inner;
        let watcher = inner.watch.as_ref().map(|(coordination, config)| {
            let (watcher, handle) = Watcher::new(Arc::clone(coordination), config.clone(), inner.telemetry.clone());
            let (reader, resource) = (Arc::clone(&inner.key_reader), Arc::clone(&inner.resource));
            let noting = move |prefix: &str, key: &[u8]| {
                let name = reader(prefix, key)?;
                resource.note_key(&name, key);
                Some(name)
            };
            (watcher.with_key_reader(noting), handle, config)
        });
        let runner = Runner::with_timers(
            Arc::clone(&inner.resource),
            ownership.clone(),
            inner.config.clone(),
            inner.telemetry.clone(),
            inner.timers.clone(),
        );
        let handle = watcher.as_ref().map(|(_, handle, _)| handle.clone());
        if let Some(handle) = &handle {
            runner.attach_watch(handle.clone());
        }
        let (resigned, ended) = (Shutdown::new(), Shutdown::new());
        let term = LeaderTerm { runner, ownership, watch: handle, started_at: inner.timers.now(), resigned, ended };
        *inner.term.lock() = Some(term.clone());
        inner.readiness.send_replace(Readiness::Sweeping);

        let LeaderTerm { runner, ownership, resigned, ended, .. } = &term;
        // Until the sweep has listed everything, the beginning of the watch is no reason to list it as well.
        let is_listed = AtomicBool::new(inner.startup.limit.is_none());
        let watching = async {
            let Some((watcher, _, config)) = watcher else { return };
            let handler = |event| match event {
                WatchEvent::Resync(ResyncCause::Began) if !is_listed.load(Ordering::Acquire) => {}
                event => runner.handle(event, config),
            };
            tokio::select! {
                biased;
                () = watcher.run(handler, ended.clone()) => {}
                () = runner.resync() => {}
            }
        };
        let beside = async {
            if let Some(task) = &inner.while_leading {
                task(term.clone()).await;
            }
        };
        let reconciling = runner.run_with(self.sweep_then_poll(&term, &is_listed), ended);
        let ending = async {
            let end = tokio::select! {
                biased;
                () = shutdown.requested() => {
                    tracing::info!(target: "lcm::controller", "stopping: finishing reconciles in progress");
                    TermEnd::Other
                }
                () = ownership.lost() => {
                    tracing::warn!(target: "lcm::controller", "lost the lead: stopping");
                    TermEnd::Other
                }
                () = resigned.requested() => {
                    tracing::info!(target: "lcm::controller", "resigning: finishing reconciles in progress");
                    TermEnd::Resigned
                }
            };
            ended.request();
            end
        };
        let ((), (), (), end) = tokio::join!(watching, beside, reconciling, ending);
        *inner.term.lock() = None;
        inner.telemetry.end_term();
        inner.readiness.send_replace(Readiness::Standby);
        end
    }

    async fn sweep_then_poll(&self, term: &LeaderTerm<R>, is_listed: &AtomicBool) {
        let LeaderTerm { runner, ownership, .. } = term;
        let StartupConfig { delay, limit } = self.inner.startup;
        let mut changes = ownership.changes();
        let timers = &self.inner.timers;
        let busy = timers.sleep(delay).await;
        is_listed.store(true, Ordering::Release);
        let (report, busy) = match limit {
            None => (SweepReport::default(), busy),
            Some(limit) => self.sweep(runner, limit, busy).await,
        };
        self.inner.telemetry.set_ready();
        self.publish_swept(report);
        let polling = async {
            // The sweep was the first cycle.
            let config = &self.inner.config;
            drop(busy);
            let busy = timers.sleep(config.interval.min(config.initial_delay)).await;
            runner.poll(busy).await;
        };
        let taking_over = async {
            loop {
                changes.gained().await;
                // Collects further shards.
                let busy = timers.sleep(delay).await;
                match limit {
                    Some(limit) => self.publish_swept(self.sweep(runner, limit, busy).await.0),
                    None => list_gained(runner).await,
                }
            }
        };
        tokio::join!(polling, taking_over);
    }

    fn publish_swept(&self, report: SweepReport) {
        let ended_at = self.inner.clock.now();
        self.inner.readiness.send_replace(Readiness::Ready(FinishedSweep { report, ended_at }));
    }

    /// Sweeps, and repeats the listing until it succeeds.
    async fn sweep(&self, runner: &Runner<R>, limit: Duration, mut busy: Busy) -> (SweepReport, Busy) {
        let backoff = self.inner.config.backoff;
        for failures in 0.. {
            match runner.sweep(limit).await {
                Ok(report) if report.is_complete() => {
                    tracing::info!(target: "lcm::sweep", resources = report.listed, took = ?report.took, outcomes = ?report.outcomes, "start-up sweep done");
                    return (report, busy);
                }
                Ok(report) => {
                    tracing::error!(target: "lcm::sweep", resources = report.listed, unfinished = ?report.unfinished, "start-up sweep did not reach every resource in time; going on");
                    return (report, busy);
                }
                Err(failure) => {
                    let delay = backoff.delay(failures);
                    tracing::warn!(target: "lcm::sweep", %failure, retry_in = ?delay, "resources could not be listed for the start-up sweep");
                    drop(busy);
                    busy = self.inner.timers.sleep(delay).await;
                }
            }
        }
        (SweepReport::default(), busy)
    }

    /// Waits until no reconcile, listing or other work of the controller is in progress, waiting or due, for a few
    /// milliseconds of real time. A test then moves the clock of its fake cloud and calls [`Controller::skip`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn idle(&self) {
        self.inner.timers.idle(|| self.term().is_none_or(|term| term.runner.is_idle())).await;
    }

    /// Time until the next reconcile or other work is due; `None` if nothing is planned.
    pub fn next_due(&self) -> Option<Duration> {
        let queued = self.term().and_then(|term| term.runner.next_due());
        let due = self.inner.timers.next_due().into_iter().chain(queued).min()?;
        Some(due.saturating_duration_since(self.inner.timers.now()))
    }

    /// Skips time: polling, requeues, retries of reconciles and the loops beside act, and cached responses age, as if it
    /// had passed.
    ///
    /// Leases, retries within a call, rate limits, circuit breakers and time limits stay on real time: the election is
    /// kept, and a call does not time out. Skip a step at a time, each no longer than [`Controller::next_due`] and
    /// followed by [`Controller::idle`], so that everything that is due in between runs in its order.
    pub fn skip(&self, time: Duration) {
        self.inner.timers.skip(time);
    }

    /// The time on which the instants of resources and terms are.
    pub(crate) fn timers(&self) -> &Timers {
        &self.inner.timers
    }

    /// The resource that is reconciled.
    pub fn resource_kind(&self) -> &R {
        &self.inner.resource
    }

    /// The current term, if the controller leads.
    pub fn term(&self) -> Option<LeaderTerm<R>> {
        self.inner.term.lock().clone()
    }

    /// Current readiness and every change of it.
    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.inner.readiness.subscribe()
    }

    /// Reports a change of a resource. Ignored while the controller does not lead: a term begins with a listing.
    pub fn changed(&self, key: &str) {
        if let Some(term) = self.term() {
            term.runner.changed(key);
        }
    }

    /// Requests a reconcile of a resource now, changed or not. Returns false if another controller owns it.
    pub fn enqueue(&self, key: &str) -> bool {
        let term = self.term().filter(|term| term.ownership.owns(key));
        term.map(|term| term.runner.enqueue(key)).is_some()
    }

    /// States of all known resources, ordered by name. Empty while the controller does not lead.
    pub fn resources(&self) -> Vec<ResourceState> {
        self.term().map(|term| term.runner.resources()).unwrap_or_default()
    }

    /// State of one resource.
    pub fn resource(&self, key: &str) -> Option<ResourceState> {
        self.term()?.runner.resource(key)
    }

    /// Number of reconciles in progress, and of waiting resources by priority; `None` while the controller does not lead.
    pub fn load(&self) -> Option<(usize, [(&'static str, usize); 3])> {
        self.term().map(|term| term.runner.load())
    }

    /// State of the watch; `None` without one, or while the controller does not lead.
    pub fn watch_state(&self) -> Option<WatchState> {
        let watch = self.term()?.watch?;
        Some(*watch.state().borrow())
    }
}

/// Whether a controller competes again.
#[derive(PartialEq, Eq)]
enum Candidacy {
    /// After a pause.
    Paused,
    /// Not in this run.
    Ended,
}

/// Why a term ended.
#[derive(PartialEq, Eq)]
enum TermEnd {
    /// An operator requested it.
    Resigned,
    /// Shutdown, or the lease was lost.
    Other,
}

/// Lists gained resources where no sweep is configured.
async fn list_gained<R: Resource>(runner: &Runner<R>) {
    let listed: Result<usize, CallFailure> = runner.cycle().await;
    if let Err(failure) = listed {
        tracing::warn!(target: "lcm::controller", %failure, "the resources of a shard could not be listed; polling will");
    }
}

impl<R: Resource> fmt::Debug for Controller<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller").field("config", &self.inner.config).finish_non_exhaustive()
    }
}
