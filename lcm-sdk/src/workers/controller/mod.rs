//! A controller for the fleet of workers: election, watch, sweep, polling, discovery and metrics, put together.

mod config;
mod startup;
mod watch_events;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::controller::Controller;
use crate::controller::election::{ElectionConfigError, ElectionHandle, LeaderElection};
use crate::controller::lease::LeaderLease;
use crate::controller::shards::{Candidate, HeldShard, ShardOwnership, Shards};
use crate::controller::shutdown::Shutdown;
use crate::controller::sweep::SweepReport;
use crate::controller::watch::{WatchHandle, WatchState, Watcher, first_segment};
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::policy::Policy;
use crate::lifecycle::time::Timestamp;
use crate::ports::{Coordination, Ports};
use crate::reconciler::{Mode, ReconcileResult, Reconciler};
use crate::telemetry::Telemetry;
use crate::workers::discovery::Discovery;
use crate::workers::fleet::{Hooks, WorkerFleet};
use crate::workers::metrics::MetricsLoop;
use watch_events::{heed, supervised};

pub use config::{StartupConfig, WorkerControllerConfig};

/// How far a controller is.
#[derive(Debug, Clone, PartialEq)]
pub enum Readiness {
    /// Somebody else leads, or nobody does yet.
    Standby,
    /// It leads, and has not looked at everything yet.
    Sweeping,
    /// It leads and has looked at everything, or at all but those the report names.
    Ready(Swept),
}

/// A sweep that came to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Swept {
    /// What it came to.
    pub report: SweepReport,
    /// When it ended.
    pub ended_at: Timestamp,
}

/// Keeps a fleet of workers honest, as long as it leads, or the part of it that it leads.
///
/// # Flow
/// Elected → watch, metrics and discovery start → after a short delay everything is swept → polling and watching go on.
/// A lost lease ends all of it, and the election goes on. With several shards this begins with the first that it leads,
/// and ends with the last; one that it gains in between is swept as well. What then concerns the whole fleet is described
/// in [`crate::controller::shards`].
///
/// # Guarantees
/// Nothing changes the cloud but under a valid leadership. A stop takes nothing new, lets what is under way finish and
/// be recorded, and only then gives the lease up.
///
/// Clones are the same controller.
#[derive(Clone)]
pub struct WorkerController {
    inner: Arc<Inner>,
}

struct Inner {
    reconciler: Reconciler,
    coordination: Option<Arc<dyn Coordination>>,
    config: WorkerControllerConfig,
    hooks: Hooks,
    readiness: watch::Sender<Readiness>,
    term: Mutex<Option<Term>>,
}

/// What exists only while leading.
#[derive(Clone)]
struct Term {
    mandate: ShardOwnership,
    controller: Controller<WorkerFleet>,
    watch: Option<WatchHandle>,
    since: Instant,
}

/// What a single sweep came to.
#[derive(Debug, Clone)]
pub struct OneSweep {
    /// Counts, and who was not looked at in time.
    pub report: SweepReport,
    /// Every pass, in the order they ended.
    pub passes: Vec<ReconcileResult>,
}

/// Why a single sweep was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OneSweepError {
    /// The election cannot work.
    #[error(transparent)]
    Election(#[from] ElectionConfigError),
    /// Somebody else leads, or etcd cannot be reached.
    #[error(
        "did not become leader within {0:?}: another controller leads, or etcd cannot be reached; a dry run needs no lead"
    )]
    NotLeader(Duration),
    /// The workers could not be listed.
    #[error("the workers could not be listed: {0}")]
    Listing(#[from] CallFailure),
}

impl WorkerController {
    /// A controller that does nothing until it runs. Without `coordination` it leads at once, alone.
    ///
    /// # Errors
    /// If the election cannot work.
    pub fn new(
        ports: Ports,
        policy: Policy,
        coordination: Option<Arc<dyn Coordination>>,
        config: WorkerControllerConfig,
        telemetry: Telemetry,
    ) -> Result<Self, ElectionConfigError> {
        config.election.check()?;
        let reconciler = Reconciler::configured(ports, policy, config.cml.clone(), telemetry);
        let (readiness, _) = watch::channel(Readiness::Standby);
        let inner =
            Inner { reconciler, coordination, config, hooks: Hooks::default(), readiness, term: Mutex::new(None) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The reconciler, for a pass by hand. It acts without a lead of its own.
    pub fn reconciler(&self) -> &Reconciler {
        &self.inner.reconciler
    }

    /// Competes, leads and competes again until asked to stop; then finishes what is under way and gives the lease up.
    ///
    /// # Cancel safety
    /// Dropping it is a crash: an effect under way is finished and recorded, nothing is given back, and somebody else
    /// leads when the lease has ended.
    pub async fn run(&self, shutdown: &Shutdown) {
        // Not for longer than this: an election nobody listens to would hold the lease and keep everybody else out.
        let mut electing = JoinSet::new();
        let candidacy = match self.compete(shutdown, &mut electing) {
            Ok(candidacy) => candidacy,
            // Checked when this was made.
            Err(error) => return tracing::error!(target: "lcm::leader", %error, "the election cannot work"),
        };
        loop {
            let mandate = tokio::select! {
                biased;
                () = shutdown.requested() => break,
                elected = candidacy.elected() => elected,
            };
            let Some(mandate) = mandate else { break };
            self.lead(mandate, shutdown).await;
        }
        candidacy.resign().await;
        if let Some(Err(error)) = electing.join_next().await {
            tracing::error!(target: "lcm::leader", %error, "the election ended badly");
        }
    }

    fn compete(&self, shutdown: &Shutdown, tasks: &mut JoinSet<()>) -> Result<Candidate, ElectionConfigError> {
        let (config, telemetry) = (&self.inner.config, self.inner.reconciler.telemetry().clone());
        match &self.inner.coordination {
            None => Ok(Candidate::alone(telemetry, shutdown, tasks)),
            Some(etcd) => {
                let election = (config.election.clone(), config.shards);
                Candidate::over(Arc::clone(etcd), election, config.controller.grace, telemetry, shutdown, tasks)
            }
        }
    }

    /// One sweep over the whole fleet under an election of its own, or none for a dry run. Whoever leads a shard keeps
    /// it from being elected.
    ///
    /// # Errors
    /// If it does not become leader within `patience`, or the workers cannot be listed.
    pub async fn sweep_once(&self, mode: Mode, patience: Duration) -> Result<OneSweep, OneSweepError> {
        let (shutdown, telemetry) = (Shutdown::new(), self.inner.reconciler.telemetry().clone());
        let mut resigns: Option<ElectionHandle> = None;
        let mut electing = JoinSet::new();
        let leadership = match (&self.inner.coordination, mode) {
            (None, _) | (_, Mode::DryRun) => LeaderLease::unfenced(),
            (Some(etcd), Mode::Real) => {
                let config = self.inner.config.election.clone();
                let (election, handle) = LeaderElection::over(Arc::clone(etcd), config, telemetry.clone())?;
                electing.spawn(election.run(shutdown.clone()));
                let elected = tokio::time::timeout(patience, handle.elected()).await;
                match elected {
                    Ok(Some(leadership)) => {
                        resigns = Some(handle);
                        leadership
                    }
                    Ok(None) | Err(_) => {
                        handle.resign().await;
                        return Err(OneSweepError::NotLeader(patience));
                    }
                }
            }
        };
        let passes = Arc::new(Mutex::new(Vec::new()));
        let hooks = Hooks {
            on_pass: Some(Arc::new({
                let passes = Arc::clone(&passes);
                move |pass| passes.lock().push(pass.clone())
            })),
            on_cycle: None,
        };
        let fleet = WorkerFleet::new(self.inner.reconciler.with_lease(leadership), mode, hooks);
        let controller = Controller::new(fleet, self.inner.config.controller.clone(), telemetry);
        let limit = self.inner.config.startup.limit.unwrap_or(Duration::from_secs(60));
        let mut swept = None;
        let sweeping = async {
            swept = Some(controller.sweep(limit).await);
            shutdown.request();
        };
        tokio::join!(controller.serve(&shutdown), sweeping);
        if let Some(handle) = resigns {
            handle.resign().await;
        }
        let report = match swept {
            Some(swept) => swept?,
            None => SweepReport::default(),
        };
        let passes = std::mem::take(&mut *passes.lock());
        Ok(OneSweep { report, passes })
    }

    /// How far it is, and every change of that.
    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.inner.readiness.subscribe()
    }

    /// Waits until the first sweep is done: what other controllers wait for before they rely on the records. It does
    /// not wait for a worker that hangs.
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

    /// The right it leads the whole fleet under, if it does. With several shards each has one of its own: see
    /// [`WorkerController::shards`].
    pub fn leadership(&self) -> Option<LeaderLease> {
        self.inner.term.lock().as_ref().and_then(|term| term.mandate.leadership())
    }

    /// Whether it leads the fleet or a part of it.
    pub fn is_leading(&self) -> bool {
        self.inner.term.lock().as_ref().is_some_and(|term| term.mandate.is_valid())
    }

    /// The shards it leads, in their order; `None` where the fleet is not divided.
    pub fn shards(&self) -> Option<Vec<HeldShard>> {
        match self.inner.config.shards {
            Shards::ONE => None,
            _ => {
                let held = self.inner.term.lock().as_ref().and_then(|term| term.mandate.held());
                Some(held.unwrap_or_default())
            }
        }
    }

    /// Who it is in the election.
    pub fn identity(&self) -> &str {
        &self.inner.config.election.identity
    }

    /// Since when it leads.
    pub fn leading_since(&self) -> Option<Instant> {
        self.inner.term.lock().as_ref().map(|term| term.since)
    }

    /// The reconcile loop, while it leads.
    pub fn controller(&self) -> Option<Controller<WorkerFleet>> {
        self.inner.term.lock().as_ref().map(|term| term.controller.clone())
    }

    /// How the watch is doing, while it leads and watches.
    pub fn watch_state(&self) -> Option<WatchState> {
        let term = self.inner.term.lock();
        term.as_ref().and_then(|term| term.watch.as_ref()).map(|watch| *watch.state().borrow())
    }

    async fn lead(&self, mandate: ShardOwnership, shutdown: &Shutdown) {
        let inner = &self.inner;
        let (config, telemetry) = (&inner.config, inner.reconciler.telemetry());
        // Of several shards each pass has the right of its own.
        let reconciler = inner.reconciler.with_lease(mandate.leadership().unwrap_or_else(LeaderLease::ended));
        let ended = Shutdown::new();

        let watcher = config
            .watch
            .as_ref()
            .zip(inner.coordination.as_ref())
            .map(|(config, etcd)| Watcher::new(Arc::clone(etcd), config.clone(), telemetry.clone(), first_segment));
        let watch = watcher.as_ref().map(|(_, handle, _)| handle.clone());
        let mut hooks = inner.hooks.clone();
        if let Some(watch) = watch.clone() {
            hooks.on_cycle = Some(Arc::new(move || watch.revive()));
        }
        let fleet = WorkerFleet::new(reconciler.clone(), Mode::Real, hooks).within(mandate.clone());
        let controller = Controller::new(fleet, config.controller.clone(), telemetry.clone());
        *inner.term.lock() =
            Some(Term { mandate: mandate.clone(), controller: controller.clone(), watch, since: Instant::now() });
        inner.readiness.send_replace(Readiness::Sweeping);

        // Without a sweep nobody looks at everything, so the beginning of the watch is the occasion.
        let listed = AtomicBool::new(config.startup.limit.is_none());
        let watching = async {
            match watcher {
                None => {}
                Some((watcher, _, notices)) => {
                    let heeding = heed(notices, &controller, &listed, config.controller.backoff);
                    tokio::join!(watcher.run(ended.clone()), async {
                        tokio::select! {
                            biased;
                            () = ended.requested() => {}
                            () = heeding => {}
                        }
                    });
                }
            }
        };
        let metrics = MetricsLoop::new(reconciler.clone(), config.metrics_interval).within(mandate.clone());
        let collecting = supervised("metrics", &ended, || metrics.run(&ended));
        let discovering = async {
            if let Some(config) = &config.discovery {
                let demand = controller.clone();
                let discovery =
                    Discovery::new(reconciler.clone(), config.clone(), move |worker| demand.demand(worker.as_str()))
                        .within(mandate.clone());
                supervised("discovery", &ended, || discovery.run(&ended)).await;
            }
        };
        let keeping = controller.run_with(self.sweep_then_poll(&controller, &mandate, &listed), &ended);
        let ending = async {
            tokio::select! {
                biased;
                () = shutdown.requested() => tracing::info!(target: "lcm::controller", "stopping: finishing what is under way"),
                () = mandate.ended() => tracing::warn!(target: "lcm::controller", "not the leader any more: stopping"),
            }
            ended.request();
        };
        tokio::join!(watching, collecting, discovering, keeping, ending);
        *inner.term.lock() = None;
        inner.readiness.send_replace(Readiness::Standby);
    }
}

impl std::fmt::Debug for WorkerController {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerController").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles only as long as a controller can be spawned.
    #[expect(dead_code, reason = "being compiled is all it is for")]
    fn a_controller_can_run_in_a_task(controller: WorkerController, shutdown: Shutdown) {
        tokio::spawn(async move { controller.run(&shutdown).await });
    }
}
