//! One pass over one worker: observe, decide, apply, record.

mod apply;
pub(crate) mod cache;
mod observe;
mod persist;
mod result;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument as _;

use crate::controller::lease::LeaderLease;
use crate::controller::shards::{Hold, ShardGuard};
use crate::lifecycle::decide::decide;
use crate::lifecycle::decision::Decision;
use crate::lifecycle::effect::Effect;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::idle::IdleReport;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::observation::{Lookup, Observation};
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::policy::Policy;
use crate::lifecycle::reason::{Reason, ReasonCode};
use crate::lifecycle::record::record;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;
use crate::ports::Ports;
use crate::reconciler::apply::{CancelFlag, run_while_leased};
use crate::reconciler::cache::WorkerCache;
use crate::reconciler::result::effect_reports;
use crate::reconciler::observe::{CachedFleet, FleetSnapshot, Observed};
use crate::telemetry::{Anomaly, Telemetry};

pub use self::observe::CmlDefaults;
pub use self::result::{EffectReport, Mode, ReconcileResult};

/// How often a pass is made anew because the record changed under it.
const MAX_ATTEMPTS: usize = 4;

/// How old a record may be when something is done because of it. Listed ones may have waited long for their pass.
const RECORD_FRESHNESS: Duration = Duration::from_secs(10);

/// Reconciles workers, one pass at a time. Clones are the same reconciler.
///
/// # Flow
/// Look at what the core asks for, decide, carry the effects out, write the record; then announce and count. If
/// somebody wrote to the record in between, nothing is written: it is read and decided anew.
///
/// # Guarantees
/// Passes over one worker follow each other, whoever asks for them. A cloud is changed only while the right to lead
/// holds. What was begun is finished and written down even if the caller goes away. Nothing is done because of a record
/// that has changed in the seconds before.
///
/// # Cancel safety
/// Dropping the future while it looks stops it there. Once it does things, dropping it lets the effect under way
/// finish, skips the others, and still writes the record.
///
/// # Errors
/// None: a call that fails is part of the result.
#[derive(Clone)]
pub struct Reconciler {
    inner: Arc<Inner>,
    leadership: LeaderLease,
    /// Kept for as long as anything is under way: the shard is not handed over before.
    hold: Option<Hold>,
}

struct Inner {
    ports: Ports,
    policy: Policy,
    telemetry: Telemetry,
    cml_defaults: CmlDefaults,
    cache: WorkerCache,
    fleet: Arc<tokio::sync::Mutex<CachedFleet>>,
    fleet_freshness: Duration,
    scale_down_epoch: AtomicU64,
}

/// What a caller knows already about a worker's world.
#[derive(Debug, Clone, Default)]
pub struct Hints {
    /// An instance that discovery found alive, for a record that does not know, or says that it is over.
    pub instance: Option<Instance>,
    /// When the record was read; just now if it is not said.
    pub read_at: Option<Instant>,
}

impl Reconciler {
    /// A reconciler that needs no election: for scripts, notebooks and services that run alone.
    pub fn new(ports: Ports, policy: Policy) -> Self {
        Self::configured(ports, policy, CmlDefaults::default(), Telemetry::default())
    }

    /// A reconciler with all there is to set.
    pub fn configured(ports: Ports, policy: Policy, cml_defaults: CmlDefaults, telemetry: Telemetry) -> Self {
        let inner = Inner {
            ports,
            policy,
            telemetry,
            cml_defaults,
            cache: WorkerCache::default(),
            fleet: Arc::default(),
            fleet_freshness: Duration::from_secs(5),
            scale_down_epoch: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner), leadership: LeaderLease::unfenced(), hold: None }
    }

    /// The same reconciler, acting under an elected leader's right.
    #[must_use]
    pub fn with_lease(&self, leadership: LeaderLease) -> Self {
        Self { inner: Arc::clone(&self.inner), leadership, hold: None }
    }

    /// The same reconciler, acting on one worker under the right over its shard.
    #[must_use]
    pub(crate) fn with_guard(&self, guard: ShardGuard) -> Self {
        Self { inner: Arc::clone(&self.inner), leadership: guard.leadership, hold: guard.hold }
    }

    /// One pass over a worker.
    pub async fn reconcile(&self, worker: &Worker) -> ReconcileResult {
        self.reconcile_with(worker, Hints::default(), Mode::Real).await
    }

    /// What a pass would do: performs every read and no write.
    pub async fn dry_run(&self, worker: &Worker) -> ReconcileResult {
        self.reconcile_with(worker, Hints::default(), Mode::DryRun).await
    }

    /// One pass over a worker about which something is known already.
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
                // Whoever had the lock may have changed everything.
                read_at = Instant::now();
                worker = match self.read_again(&worker, mode).await {
                    Ok(worker) => worker,
                    Err(unread) => return *unread,
                };
                lock
            }
        };
        let mut effects = Vec::new();
        for _ in 0..MAX_ATTEMPTS {
            if mode == Mode::Real {
                self.cache().mark_read(&worker.id, worker.version);
            }
            let now = self.ports().clock.now();
            let mut observed = self.observe(&worker, self.starting_point(&worker, &hints, mode), mode, now).await;
            let mut decision = decide(&worker, &observed.seen, self.policy(), now);
            if decision.checks_idle() {
                let check = match mode {
                    Mode::Real => self.check_idle(worker, observed.seen, decision, now, Arc::clone(&lock)).await,
                    Mode::DryRun => self.expect_idle(worker, observed.seen, decision).await,
                };
                let seen;
                (worker, seen) = match check {
                    Ok(IdleChecked { worker, seen, effects: checked }) => {
                        effects.extend(checked);
                        (worker, seen)
                    }
                    Err(ended) => return *ended,
                };
                observed = self.observe(&worker, seen, mode, now).await;
                decision = decide(&worker, &observed.seen, self.policy(), now);
            }
            if mode == Mode::DryRun {
                return ReconcileResult::planned(&worker, decision).after(effects);
            }
            if read_at.elapsed() >= RECORD_FRESHNESS && decision.effects.iter().any(relies_on_the_record) {
                read_at = Instant::now();
                let current = match self.read_again(&worker, mode).await {
                    Ok(current) => current,
                    Err(unread) => return *unread,
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
            match self.carry_through(&worker, decision, observed, now, Arc::clone(&lock)).await {
                Ok(result) => return result.after(effects),
                Err(conflict) => {
                    self.telemetry().count_anomaly(Anomaly::Conflict);
                    tracing::debug!(target: "lcm::reconcile", worker = %worker.id, failure = %conflict, "deciding anew");
                    read_at = Instant::now();
                    worker = match self.read_again(&worker, mode).await {
                        Ok(worker) => worker,
                        Err(unread) => return *unread,
                    };
                }
            }
        }
        let reason = Reason::new(ReasonCode::RecordKeepsChanging);
        ReconcileResult::unchanged(&worker, mode, Outcome::Retry, Requeue::Backoff, reason).after(effects)
    }

    /// The record as it is now, or how the pass ends without one.
    async fn read_again(&self, worker: &Worker, mode: Mode) -> Result<Worker, Box<ReconcileResult>> {
        match self.ports().control_plane.worker(&worker.id).await {
            Ok(Some(worker)) => Ok(worker),
            Ok(None) => Err(Box::new(ReconcileResult::record_gone(worker, mode))),
            Err(failure) => Err(Box::new(ReconcileResult::record_unknown(worker, mode, &failure))),
        }
    }

    fn starting_point(&self, worker: &Worker, hints: &Hints, mode: Mode) -> Observation {
        let remembered = self.cache().load(&worker.id, mode);
        let mut seen = Observation {
            idle_checked_at: remembered.idle_checked_at,
            metrics_reported_at: remembered.metrics_reported_at,
            ..Observation::default()
        };
        if let Some(instance) = &hints.instance {
            if worker.ec2_instance_id.as_ref() == Some(&instance.id) {
                seen.instance = Lookup::Found(instance.clone());
            } else {
                seen.tagged = Lookup::Found(vec![instance.clone()]);
            }
        } else if let (Some((instance, answer)), Some(id)) = (remembered.describe, &worker.ec2_instance_id)
            // What was seen of an earlier instance of this worker says nothing about this one.
            && instance == *id
        {
            seen.instance = answer;
        }
        seen
    }

    /// Carries out the idle check that a decision consists of. The check writes to the record: if its version does not
    /// directly follow the one that was read, or the server does not report it, the record is read again.
    async fn check_idle(
        &self,
        mut worker: Worker,
        mut seen: Observation,
        decision: Decision,
        now: Timestamp,
        lock: Arc<tokio::sync::OwnedMutexGuard<()>>,
    ) -> Result<IdleChecked, Box<ReconcileResult>> {
        let (reconciler, read) = (self.clone(), worker.clone());
        let applied = to_completion(|cancel| async move {
            let _lock = lock;
            Ok(reconciler.apply(&read, decision, &cancel, now).await)
        });
        let applied = match applied.await {
            Ok(applied) => applied,
            Err(failure) => return Err(Box::new(ReconcileResult::record_unknown(&worker, Mode::Real, &failure))),
        };
        seen.idle = applied.idle_report();
        match (&seen.idle, applied.version) {
            (Lookup::NotRequested | Lookup::Absent, _) => {
                let failure = CallFailure::new(FailureKind::Unreachable, "not the leader any more");
                return Err(Box::new(ReconcileResult::not_recorded(&worker, &applied, &failure)));
            }
            (Lookup::Found(_), None) if worker.version.is_some() => {
                worker = self.read_again(&worker, Mode::Real).await?;
            }
            (Lookup::Found(_), version) => worker.version = version,
            // A write that was carried out all the same is found by the version of the next one.
            (Lookup::Unknown(_), _) => {}
        }
        Ok(IdleChecked { worker, seen, effects: effect_reports(&applied) })
    }

    /// The last verdict on the record, in place of the check that a dry run does not make.
    async fn expect_idle(
        &self,
        worker: Worker,
        mut seen: Observation,
        decision: Decision,
    ) -> Result<IdleChecked, Box<ReconcileResult>> {
        let telemetry_fetched = seen.telemetry.found().is_some();
        let last = self.ports().control_plane.idle_status(&worker.id).await;
        seen.idle = last.map(|last| IdleReport { telemetry_fetched, idle_check_performed: true, ..last }).into();
        let effects = ReconcileResult::planned(&worker, decision).effects;
        Ok(IdleChecked { worker, seen, effects })
    }

    /// Applies and records in a task of its own, so that a caller who goes away leaves nothing half done.
    /// `Err` means that the record changed under us and nothing was written.
    async fn carry_through(
        &self,
        worker: &Worker,
        decision: Decision,
        observed: Observed,
        now: Timestamp,
        lock: Arc<tokio::sync::OwnedMutexGuard<()>>,
    ) -> Result<ReconcileResult, CallFailure> {
        let Observed { mut fleet, scale_down, .. } = observed;
        if decision.does_nothing() {
            self.telemetry().count(decision.counts);
            let Decision { outcome, requeue, reason, .. } = decision;
            return Ok(ReconcileResult::unchanged(worker, Mode::Real, outcome, requeue, reason));
        }
        let (reconciler, worker) = (self.clone(), worker.clone());
        to_completion(|cancel| async move {
            let _lock = lock;
            let applying = reconciler.apply(&worker, decision, &cancel, now);
            let applied = run_while_leased(scale_down.as_ref(), &cancel, applying).await?;
            let record = record(&worker, &applied);
            let result = reconciler.persist(&worker, &applied, record).await;
            if let (Ok(result), Some(fleet)) = (&result, fleet.as_mut()) {
                let left = applied.decision.changes.as_ref().is_some_and(|changes| changes.scaled_down_at.is_some());
                if left && result.to_status != result.from_status {
                    // Our own departure is in this view; if there was another, it does not count any more.
                    fleet.view = fleet.view.map(|seen| FleetSnapshot {
                        view: seen.view.after_scale_down(now),
                        scale_down_epoch: seen.scale_down_epoch + 1,
                        ..seen
                    });
                }
            }
            result
        })
        .await
    }

    /// The ports it asks.
    pub fn ports(&self) -> &Ports {
        &self.inner.ports
    }

    /// The policy it decides under.
    pub fn policy(&self) -> &Policy {
        &self.inner.policy
    }

    /// What it measures.
    pub fn telemetry(&self) -> &Telemetry {
        &self.inner.telemetry
    }

    pub(crate) fn hold(&self) -> Option<&Hold> {
        self.hold.as_ref()
    }

    /// The right it acts under.
    pub fn leadership(&self) -> &LeaderLease {
        &self.leadership
    }

    pub(crate) fn cache(&self) -> &WorkerCache {
        &self.inner.cache
    }

    pub(crate) fn cml_defaults(&self) -> &CmlDefaults {
        &self.inner.cml_defaults
    }

    pub(crate) fn fleet_gate(&self) -> &Arc<tokio::sync::Mutex<CachedFleet>> {
        &self.inner.fleet
    }

    /// Notes that a worker was, or may have been, taken out of service: what was counted before is too much.
    pub(crate) fn bump_scale_down_epoch(&self) {
        self.inner.scale_down_epoch.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn scale_down_epoch(&self) -> u64 {
        self.inner.scale_down_epoch.load(Ordering::Acquire)
    }

    pub(crate) fn fleet_freshness(&self) -> Duration {
        self.inner.fleet_freshness
    }
}

impl std::fmt::Debug for Reconciler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reconciler").field("leadership", &self.leadership).finish_non_exhaustive()
    }
}

/// An idle check that was made, with the record and the observation for the decision after it.
struct IdleChecked {
    worker: Worker,
    seen: Observation,
    effects: Vec<EffectReport>,
}

/// Runs a future in a task of its own, so that a caller that is dropped cancels it between two effects and never
/// inside one.
async fn to_completion<T, F>(run: impl FnOnce(Arc<CancelFlag>) -> F) -> Result<T, CallFailure>
where
    T: Send + 'static,
    F: Future<Output = Result<T, CallFailure>> + Send + 'static,
{
    let cancel = Arc::new(CancelFlag::default());
    let _cancel_on_drop = CancelOnDrop(Arc::clone(&cancel));
    match tokio::spawn(run(cancel).in_current_span()).await {
        Ok(result) => result,
        // Let the panic surface in the caller, who isolates it.
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(CallFailure::new(FailureKind::Unclear, error.to_string())),
        },
    }
}

struct CancelOnDrop(Arc<CancelFlag>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.request();
    }
}

/// Whether an effect would do harm if the record said something else by now. Reports and announcements do not.
const fn relies_on_the_record(effect: &Effect) -> bool {
    match effect {
        Effect::RecordLaunchPlan { .. }
        | Effect::LaunchInstance { .. }
        | Effect::StartInstance { .. }
        | Effect::StopInstance { .. }
        | Effect::TerminateInstance { .. }
        | Effect::RecordLicenseAttempt { .. }
        | Effect::ReportLicense { .. }
        | Effect::SubmitLicense { .. }
        | Effect::HandBackSession { .. }
        | Effect::RetrySession { .. }
        | Effect::TerminateSession { .. } => true,
        Effect::ReportMetrics { .. } | Effect::DetectIdle { .. } | Effect::Announce { .. } => false,
    }
}
