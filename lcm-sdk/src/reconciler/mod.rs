//! Reconciles one worker: observe, decide, apply, record.
//!
//! [`Reconciler`] calls the services through [`Ports`] and returns a [`ReconcileResult`].

// This file has the loop: the order of the steps, and when a decision is made again. `observe` reads, `apply` carries out
// effects, writes the record and publishes, both with the ports, policy, lease and fleet count of `context`. `cache` holds
// state between reconciles, which can be dropped without harm.

mod apply;
pub(crate) mod cache;
mod context;
mod observe;
mod result;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use tracing::Instrument as _;

use self::apply::{CancelFlag, apply, apply_while_counted, persist};
use self::cache::WorkerCache;
use self::context::Context;
use self::observe::{Observed, observe};
use self::result::effect_reports;
use crate::controller::LeaderLease;
use crate::lifecycle::decide;
use crate::lifecycle::decision::Decision;
use crate::lifecycle::event::Event;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::idle::IdleReport;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::observation::Observation;
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::policy::Policy;
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::record::record;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;
use crate::ports::{CmlTarget, Ports};
use crate::telemetry::{Anomaly, Telemetry};

pub use self::context::CmlDefaults;
pub use self::result::{EffectReport, Mode, ReconcileResult};

/// Attempts per reconcile. The record changed during every attempt but the last.
const MAX_ATTEMPTS: usize = 4;

/// Maximum age of a record when an effect relies on it. A listed worker may have waited longer than that for its turn.
const RECORD_MAX_AGE: Duration = Duration::from_secs(10);

/// Holds the lock of one worker. Shared with the task that applies a decision, so that it outlives a dropped caller.
type WorkerLock = Arc<OwnedMutexGuard<()>>;

/// Reconciles workers. Clones share one cache and one set of worker locks.
///
/// # Flow
/// Observe what [`queries`](crate::queries) returns, decide, apply the effects, write the record; then publish and count.
/// A decision that consists of an idle check is applied and followed by a second decision on its report. If the record
/// changed in between, nothing is written: it is read and decided again.
///
/// # Guarantees
/// Reconciles of one worker run one after the other. The cloud is changed only while the lease is valid. Effects that
/// were started are finished and recorded even if the caller is dropped. No effect relies on a record that was read more
/// than ten seconds ago.
///
/// # Cancel safety
/// Dropping the future while it observes stops it there. Once effects are applied, dropping it lets the current effect
/// finish, skips the rest, and still writes the record.
///
/// # Errors
/// None: a failed call is part of the [`ReconcileResult`].
///
/// ```
/// use std::sync::Arc;
/// use lcm_sdk::ports::SystemClock;
/// use lcm_sdk::prelude::*;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let reconciler = Reconciler::new(Ports::in_memory(Arc::new(SystemClock)), Policy::default());
/// let mut worker = Worker::new("w-1", WorkerStatus::Stopped);
/// worker.aws_region = Some("us-east-1".to_owned());
///
/// let result = reconciler.reconcile(&worker).await;
/// assert_eq!((result.outcome, result.to_status), (Outcome::Success, WorkerStatus::Stopped));
/// # });
/// ```
#[derive(Clone)]
pub struct Reconciler {
    context: Context,
}

/// Facts about a worker that the caller already has.
#[derive(Debug, Clone, Default)]
pub struct Hints {
    /// A live instance that discovery found for a record that names none, or is terminated.
    pub instance: Option<Instance>,
    /// When the record was read; now by default.
    pub read_at: Option<Instant>,
}

/// Composes a [`Reconciler`].
#[derive(Clone)]
#[must_use]
pub struct ReconcilerBuilder {
    ports: Ports,
    policy: Policy,
    cml_defaults: CmlDefaults,
    telemetry: Telemetry,
}

impl ReconcilerBuilder {
    /// Sets the credentials for CML of workers whose record has none.
    pub fn cml_defaults(self, cml_defaults: CmlDefaults) -> Self {
        Self { cml_defaults, ..self }
    }

    /// Counts reconciles and effects in this telemetry.
    pub fn telemetry(self, telemetry: Telemetry) -> Self {
        Self { telemetry, ..self }
    }

    /// Creates the reconciler. It acts without an election until [`Reconciler::with_lease`].
    pub fn build(self) -> Reconciler {
        Reconciler { context: Context::new(self.ports, self.policy, self.cml_defaults, self.telemetry) }
    }
}

impl Reconciler {
    /// Creates a reconciler that acts without an election, for scripts, notebooks and single-instance services.
    pub fn new(ports: Ports, policy: Policy) -> Self {
        Self::builder(ports, policy).build()
    }

    /// Creates a reconciler with credentials for CML or with telemetry.
    pub fn builder(ports: Ports, policy: Policy) -> ReconcilerBuilder {
        ReconcilerBuilder { ports, policy, cml_defaults: CmlDefaults::default(), telemetry: Telemetry::default() }
    }

    /// The same reconciler, acting under an elected leader's lease.
    #[must_use]
    pub fn with_lease(&self, lease: LeaderLease) -> Self {
        Self { context: self.context.with_lease(lease) }
    }

    /// Reconciles a worker. See [`Reconciler`] for guarantees and cancel safety.
    pub async fn reconcile(&self, worker: &Worker) -> ReconcileResult {
        self.reconcile_with(worker, Hints::default(), Mode::Real).await
    }

    /// Returns the plan of a reconcile: performs every read and no write.
    ///
    /// A due idle check is listed among the effects; the decision after it is made on the control plane's last verdict.
    pub async fn dry_run(&self, worker: &Worker) -> ReconcileResult {
        self.reconcile_with(worker, Hints::default(), Mode::DryRun).await
    }

    /// Reconciles a worker about which the caller already has some facts.
    pub async fn reconcile_with(&self, worker: &Worker, hints: Hints, mode: Mode) -> ReconcileResult {
        let span = tracing::info_span!(
            target: "lcm::reconcile", "reconcile",
            worker = %worker.id, status = %worker.status, outcome = tracing::field::Empty,
            reason = tracing::field::Empty,
        );
        let result = self.attempt_until_recorded(worker, hints, mode).instrument(span.clone()).await;
        span.record("outcome", result.outcome.as_str());
        span.record("reason", result.reason.code.as_str());
        span.in_scope(|| {
            tracing::debug!(target: "lcm::reconcile", from = %result.from_status, to = %result.to_status, "{}", result.reason);
        });
        result
    }

    async fn attempt_until_recorded(&self, worker: &Worker, hints: Hints, mode: Mode) -> ReconcileResult {
        let mut worker = worker.clone();
        let mut read_at = hints.read_at.unwrap_or_else(Instant::now);
        let lock = match self.cache().try_lock(&worker.id) {
            Some(lock) => Arc::new(lock),
            None => {
                let lock = Arc::new(self.cache().lock(&worker.id).await);
                // The previous holder of the lock may have written the record.
                read_at = Instant::now();
                worker = match self.read_again(&worker, mode).await {
                    Ok(worker) => worker,
                    Err(ended) => return *ended,
                };
                lock
            }
        };
        let mut idle_checks = Vec::new();
        for _ in 0..MAX_ATTEMPTS {
            if mode == Mode::Real {
                self.cache().mark_read(&worker.id, worker.version);
            }
            let now = self.ports().clock.now();
            let known = self.known(&worker, &hints, mode);
            let mut observed = observe(&self.context, &worker, known, mode, now).await;
            let mut decision = decide(&worker, &observed.observation, self.policy(), now);
            if decision.checks_idle() {
                let check = match mode {
                    Mode::Real => self.check_idle(worker, observed.observation, decision, now, &lock).await,
                    Mode::DryRun => self.plan_idle_check(worker, observed.observation, decision).await,
                };
                let IdleChecked { worker: current, observation, effects } = match check {
                    Ok(checked) => checked,
                    Err(ended) => return *ended,
                };
                worker = current;
                idle_checks.extend(effects);
                observed = observe(&self.context, &worker, observation, mode, now).await;
                decision = decide(&worker, &observed.observation, self.policy(), now);
            }
            if mode == Mode::DryRun {
                return ReconcileResult::planned(&worker, decision).after(idle_checks);
            }
            if read_at.elapsed() >= RECORD_MAX_AGE && decision.relies_on_record() {
                read_at = Instant::now();
                let current = match self.read_again(&worker, mode).await {
                    Ok(current) => current,
                    Err(ended) => return *ended,
                };
                let unchanged = match worker.version {
                    Some(version) => current.version == Some(version),
                    None => current == worker,
                };
                if !unchanged {
                    worker = current;
                    continue;
                }
            }
            match self.apply_and_record(&worker, decision, observed, now, &lock).await {
                Ok(result) => return result.after(idle_checks),
                Err(conflict) => {
                    self.telemetry().count_anomaly(Anomaly::Conflict);
                    tracing::debug!(target: "lcm::reconcile", worker = %worker.id, failure = %conflict, "deciding again");
                    read_at = Instant::now();
                    worker = match self.read_again(&worker, mode).await {
                        Ok(worker) => worker,
                        Err(ended) => return *ended,
                    };
                }
            }
        }
        let reason = ReasonCode::RecordKeepsChanging.into();
        ReconcileResult::unchanged(&worker, mode, Outcome::Retry, Requeue::Backoff, reason).after(idle_checks)
    }

    /// The record as it is now, or the result of a reconcile without one.
    async fn read_again(&self, worker: &Worker, mode: Mode) -> Result<Worker, Box<ReconcileResult>> {
        match self.ports().control_plane.worker(&worker.id).await {
            Ok(Some(worker)) => Ok(worker),
            Ok(None) => Err(Box::new(ReconcileResult::record_gone(worker, mode))),
            Err(failure) => Err(Box::new(ReconcileResult::record_unknown(worker, mode, &failure))),
        }
    }

    /// The observation to start from: hints of the caller, and state cached by earlier reconciles.
    fn known(&self, worker: &Worker, hints: &Hints, mode: Mode) -> Observation {
        let cached = self.cache().load(&worker.id, mode);
        let mut observation = Observation {
            idle_checked_at: cached.idle_checked_at,
            metrics_reported_at: cached.metrics_reported_at,
            ..Observation::default()
        };
        if let Some(instance) = &hints.instance {
            if worker.ec2_instance_id.as_ref() == Some(&instance.id) {
                observation.instance = Lookup::Found(instance.clone());
            } else {
                observation.tagged = Lookup::Found(vec![instance.clone()]);
            }
        } else if let (Some((instance, response)), Some(id)) = (cached.describe, &worker.ec2_instance_id)
            // A describe of an earlier instance of this worker does not apply to this one.
            && instance == *id
        {
            observation.instance = response;
        }
        observation
    }

    /// Carries out the idle check that a decision consists of. The check writes to the record: unless its version
    /// directly follows the one that was read, the record is read again.
    async fn check_idle(
        &self,
        mut worker: Worker,
        mut observation: Observation,
        decision: Decision,
        now: Timestamp,
        lock: &WorkerLock,
    ) -> Result<IdleChecked, Box<ReconcileResult>> {
        let (context, read, lock) = (self.context.clone(), worker.clone(), Arc::clone(lock));
        let applied = to_completion(|cancel| async move {
            let _lock = lock;
            Ok(apply(&context, &read, decision, &cancel, now).await)
        });
        let applied = match applied.await {
            Ok(applied) => applied,
            Err(failure) => return Err(Box::new(ReconcileResult::record_unknown(&worker, Mode::Real, &failure))),
        };
        observation.idle = applied.idle_report();
        match (&observation.idle, applied.version) {
            (Lookup::NotRequested | Lookup::Absent, _) => {
                return Err(Box::new(ReconcileResult::lease_lost(&worker, &applied)));
            }
            (Lookup::Found(_), None) if worker.version.is_some() => {
                worker = self.read_again(&worker, Mode::Real).await?;
            }
            (Lookup::Found(_), version) => worker.version = version,
            // If the check was carried out all the same, the next write conflicts and the record is read again.
            (Lookup::Unknown(_), _) => {}
        }
        Ok(IdleChecked { worker, observation, effects: effect_reports(&applied) })
    }

    /// Plans the idle check that a decision consists of, and takes the control plane's last verdict for its report.
    async fn plan_idle_check(
        &self,
        worker: Worker,
        mut observation: Observation,
        decision: Decision,
    ) -> Result<IdleChecked, Box<ReconcileResult>> {
        let telemetry_fetched = observation.telemetry.found().is_some();
        let last = self.ports().control_plane.idle_status(&worker.id).await;
        observation.idle = last.map(|last| IdleReport { telemetry_fetched, idle_check_performed: true, ..last }).into();
        let effects = ReconcileResult::planned(&worker, decision).effects;
        Ok(IdleChecked { worker, observation, effects })
    }

    /// Applies a decision and writes the record.
    ///
    /// # Errors
    /// If the record changed since it was read. Nothing was written.
    async fn apply_and_record(
        &self,
        worker: &Worker,
        decision: Decision,
        observed: Observed,
        now: Timestamp,
        lock: &WorkerLock,
    ) -> Result<ReconcileResult, CallFailure> {
        if decision.does_nothing() {
            self.telemetry().count(decision.counts);
            let Decision { outcome, requeue, reason, .. } = decision;
            return Ok(ReconcileResult::unchanged(worker, Mode::Real, outcome, requeue, reason));
        }
        let (context, worker, lock) = (self.context.clone(), worker.clone(), Arc::clone(lock));
        to_completion(|cancel| async move {
            let _lock = lock;
            let mut fleet = observed.fleet;
            let applied = apply_while_counted(&context, &worker, decision, fleet.as_ref(), &cancel, now).await?;
            let record = record(&worker, &applied);
            let result = persist(&context, &worker, &applied, record).await?;
            if let Some(fleet) = &mut fleet
                && applied.decision.scales_down()
                && result.to_status != result.from_status
            {
                fleet.remove_worker(now);
            }
            Ok(result)
        })
        .await
    }

    /// The ports it calls.
    pub fn ports(&self) -> &Ports {
        self.context.ports()
    }

    /// The policy it decides under.
    pub fn policy(&self) -> &Policy {
        self.context.policy()
    }

    /// The metrics it records.
    pub fn telemetry(&self) -> &Telemetry {
        self.context.telemetry()
    }

    /// The lease it acts under.
    pub fn lease(&self) -> &LeaderLease {
        &self.context.lease
    }

    pub(crate) fn cache(&self) -> &WorkerCache {
        self.context.cache()
    }

    /// The worker's CML at the address of this instance; see [`Context::cml_target`].
    pub(crate) fn cml_target(&self, worker: &Worker, instance: &Instance) -> Option<CmlTarget> {
        self.context.cml_target(worker, Some(instance))
    }

    /// Publishes an event; a failed delivery is logged and counted.
    pub(crate) async fn announce(&self, subject: &str, event: &Event, at: Timestamp) {
        drop(self.context.announce(subject, event, at).await);
    }

    /// Invalidates the cached fleet count after a worker may have left service.
    pub(crate) fn bump_scale_down_epoch(&self) {
        self.context.bump_scale_down_epoch();
    }
}

impl std::fmt::Debug for Reconciler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reconciler").field("lease", self.lease()).finish_non_exhaustive()
    }
}

/// A worker and its observation after an idle check.
struct IdleChecked {
    worker: Worker,
    observation: Observation,
    effects: Vec<EffectReport>,
}

/// Runs a future in its own task. Dropping the caller requests cancellation, which takes effect between two effects and
/// never inside one.
async fn to_completion<T, F>(run: impl FnOnce(Arc<CancelFlag>) -> F) -> Result<T, CallFailure>
where
    T: Send + 'static,
    F: Future<Output = Result<T, CallFailure>> + Send + 'static,
{
    struct CancelOnDrop(Arc<CancelFlag>);

    impl Drop for CancelOnDrop {
        fn drop(&mut self) {
            self.0.request();
        }
    }

    let cancel = Arc::new(CancelFlag::default());
    let _cancel_on_drop = CancelOnDrop(Arc::clone(&cancel));
    match tokio::spawn(run(cancel).in_current_span()).await {
        Ok(result) => result,
        // The caller isolates panics.
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(CallFailure::new(FailureKind::Unclear, error.to_string())),
        },
    }
}
