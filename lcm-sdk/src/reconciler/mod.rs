//! Reconciles one worker: observe, decide, apply, record.
//!
//! [`Reconciler`] calls the services through [`Ports`] and returns a [`ReconcileResult`].

// This file has the loop: the order of the steps, and when a decision is made again. `observe` reads, `apply` carries out
// effects, writes the record and publishes, both with the ports, policy, lease and fleet count of `context`. `outbox`
// delivers events and audits. `cache` holds state between reconciles, which can be dropped without harm.

mod apply;
pub(crate) mod cache;
mod context;
mod explain;
pub(crate) mod gate;
mod guards;
pub(crate) mod last_known;
mod observe;
mod operations;
mod outbox;
mod recent;
pub(crate) mod requests;
mod result;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use tracing::Instrument as _;

use self::apply::{CancelFlag, apply, apply_while_counted, persist};
use self::cache::WorkerCache;
use self::context::Context;
use self::last_known::LastKnown;
use self::observe::{Observed, observe};
use self::requests::KeyRequests;
use self::result::effect_reports;
use crate::controller::LeaderLease;
use crate::controller::timers::Timers;
use crate::history::{self, HistoryError, HistoryReader, HistoryWriter};
use crate::lifecycle::capabilities::Support;
use crate::lifecycle::decide;
use crate::lifecycle::decision::Decision;
use crate::lifecycle::effect::{EffectResult, IfFailed};
use crate::lifecycle::event::Event;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::idle::IdleReport;
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::observation::Observation;
use crate::lifecycle::open_sessions;
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::policy::{ExternalStopPolicy, Policy};
use crate::lifecycle::query::{Query, queries};
use crate::lifecycle::reason::{Reason, ReasonCode};
use crate::lifecycle::record::{Applied, record};
use crate::lifecycle::status::{DesiredStatus, WorkerStatus};
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::trust::{Caller, Doubt, LastFound, Place, prove_absence};
use crate::lifecycle::worker::{NotesOnRecord, Worker};
use crate::ports::{CmlTarget, ControlPlane, Coordination, Ports};
use crate::telemetry::{Anomaly, Telemetry};

pub use self::context::CmlDefaults;
pub use self::explain::{Explanation, NextReconcile, RecordSummary, WhatIf};
pub use self::gate::UntrustedRegion;
pub use self::guards::Guards;
pub use self::last_known::{KnownCml, KnownInstance, KnownWorker};
pub use self::operations::OperationError;
pub use self::recent::{HistorySource, RecentEvents, RecentReason, RecentReconcile, WorkerEvent, WorkerHistory};
pub use self::result::{EffectReport, Mode, ReconcileResult};

/// Attempts per reconcile. The record changed during every attempt but the last.
const MAX_ATTEMPTS: usize = 4;

/// Maximum age of a record when an effect relies on it. A listed worker may have waited longer than that for its turn.
const RECORD_MAX_AGE: Duration = Duration::from_secs(10);

/// The same for a record without a version, whose writes nothing guards.
const UNGUARDED_RECORD_MAX_AGE: Duration = Duration::from_secs(1);

/// Longest time that a reader of the recording waits for the reconciles in the queue.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// Holds the lock of one worker. Shared with the task that applies a decision, so that it outlives a dropped caller.
type WorkerLock = Arc<OwnedMutexGuard<()>>;

/// Reconciles workers. Clones share one cache and one set of worker locks.
///
/// # Flow
/// Observe what [`queries`] returns, decide, apply the effects, write the record; then publish and count.
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
/// let reconciler = Reconciler::new(Ports::in_memory(Arc::new(SystemClock)), Policy::default()).unwrap();
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
    /// A live instance that discovery found for a record that is terminated or names none.
    pub instance: Option<Instance>,
    /// When the record was read; now by default.
    pub read_at: Option<Instant>,
    /// Which metrics are collected; those that are due by default.
    pub metrics: MetricsScope,
}

/// Which metrics a reconcile of a running worker collects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MetricsScope {
    /// Those that are older than the metrics interval.
    #[default]
    Due,
    /// All, however recent they are.
    All,
}

/// The policy respects stops from outside, which is recorded as a desired status, and the control plane is configured as
/// one that stores none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "invalid external stop policy 'respect': it writes a desired status, which this control plane does not store; \
     expected 'restart'"
)]
#[non_exhaustive]
pub struct UnsupportedPolicy;

impl UnsupportedPolicy {
    fn check(policy: &Policy, control_plane: &dyn ControlPlane) -> Result<(), Self> {
        let pinned = control_plane.pinned_capabilities().map(|pinned| pinned.desired_status);
        match policy.external_stop_policy {
            ExternalStopPolicy::Respect if pinned == Some(Support::No) => Err(Self),
            ExternalStopPolicy::Respect | ExternalStopPolicy::Restart => Ok(()),
        }
    }
}

/// Composes a [`Reconciler`].
#[derive(Clone)]
#[must_use]
pub struct ReconcilerBuilder {
    ports: Ports,
    policy: Policy,
    cml_defaults: CmlDefaults,
    telemetry: Telemetry,
    requests: Option<KeyRequests>,
    history: Option<HistoryWriter>,
    guards: Guards,
    timers: Timers,
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

    /// Reads license operations that the control plane requests in etcd, below `{prefix}{id}/license`, before every
    /// reconcile of a record that shows none. The prefix of the original control plane is `/lcm/workers/`.
    ///
    /// A worker controller that runs needs no prefix: its watch reports the keys. For one that does not, see
    /// [`WorkerController::single_reconciler`](crate::workers::WorkerController::single_reconciler).
    pub fn license_requests<P: Into<String>>(
        self,
        coordination: Arc<dyn Coordination>,
        prefixes: impl IntoIterator<Item = P>,
    ) -> Self {
        let prefixes: Vec<String> = prefixes.into_iter().map(Into::into).collect();
        self.requests(Some(KeyRequests::new(coordination).unwatched(&prefixes)))
    }

    /// Reads license operations that the control plane requests beside the record.
    pub(crate) fn requests(self, requests: Option<KeyRequests>) -> Self {
        Self { requests, ..self }
    }

    /// Writes the decisions with their input to a history. A reconcile never waits for it.
    pub fn history(self, history: impl Into<Option<HistoryWriter>>) -> Self {
        Self { history: history.into(), ..self }
    }

    /// Shares worker locks, gates and the memory of last found instances with the other reconcilers on these ports.
    pub fn guards(self, guards: &Guards) -> Self {
        Self { guards: guards.clone(), ..self }
    }

    /// Uses the timers of a controller.
    pub(crate) fn timers(self, timers: Timers) -> Self {
        Self { timers, ..self }
    }

    /// Creates the reconciler. It acts without an election until [`Reconciler::with_lease`].
    ///
    /// # Errors
    /// If the control plane is configured as one that cannot carry the policy out.
    pub fn build(self) -> Result<Reconciler, UnsupportedPolicy> {
        let Self { ports, policy, cml_defaults, telemetry, requests, history, guards, timers } = self;
        UnsupportedPolicy::check(&policy, &*ports.control_plane)?;
        let cache = WorkerCache::new(guards, timers);
        Ok(Reconciler { context: Context::new(ports, policy, cml_defaults, telemetry, requests, history, cache) })
    }
}

impl Reconciler {
    /// Creates a reconciler that acts without an election, for scripts, notebooks and single-instance services.
    ///
    /// # Errors
    /// If the control plane is configured as one that cannot carry the policy out.
    pub fn new(ports: Ports, policy: Policy) -> Result<Self, UnsupportedPolicy> {
        Self::builder(ports, policy).build()
    }

    /// Creates a reconciler with credentials for CML or with telemetry.
    pub fn builder(ports: Ports, policy: Policy) -> ReconcilerBuilder {
        ReconcilerBuilder {
            ports,
            policy,
            cml_defaults: CmlDefaults::default(),
            telemetry: Telemetry::default(),
            requests: None,
            history: None,
            guards: Guards::default(),
            timers: Timers::default(),
        }
    }

    /// The same reconciler, which reads license operations below these prefixes although no watch reports them.
    pub(crate) fn with_unwatched_requests(&self, prefixes: &[String]) -> Self {
        Self { context: self.context.with_unwatched_requests(prefixes) }
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
            reason = tracing::field::Empty, otel.status_code = tracing::field::Empty,
        );
        let (at, started) = (self.ports().clock.now(), Instant::now());
        let result = self.attempt_until_recorded(worker, hints, mode).instrument(span.clone()).await;
        self.context.recent().note(&result, at, started.elapsed());
        if mode == Mode::Real {
            self.last_known().recorded(&result, self.timers().now(), self.ports().clock.now());
        }
        span.record("outcome", result.outcome.as_str());
        if result.outcome == Outcome::Retry {
            span.record("otel.status_code", "error");
        }
        span.record("reason", result.reason.code.as_str());
        span.in_scope(|| {
            tracing::debug!(target: "lcm::reconcile", from = %result.from_status, to = %result.to_status, "{}", result.reason);
        });
        result
    }

    async fn attempt_until_recorded(&self, given: &Worker, hints: Hints, mode: Mode) -> ReconcileResult {
        let begun = match self.begin(given, &hints, mode).await {
            Ok(begun) => begun,
            Err(ended) => return *ended,
        };
        let Begun { mut worker, mut read_at, mut is_dated, lock } = begun;
        let mut idle_checks = Vec::new();
        for _ in 0..MAX_ATTEMPTS {
            if mode == Mode::Real {
                self.cache().mark_read(&worker);
                if is_dated {
                    self.report_unkept(&worker, read_at);
                }
            }
            let Decided { worker: current, observed, decision, checks, now } =
                match self.observe_and_decide(worker, &hints, mode, &lock).await {
                    Ok(decided) => decided,
                    Err(ended) => return *ended,
                };
            worker = current;
            idle_checks.extend(checks);
            if mode == Mode::DryRun {
                return ReconcileResult::planned(&worker, decision).after(idle_checks);
            }
            let max_age = if is_dated && worker.version.is_none() { UNGUARDED_RECORD_MAX_AGE } else { RECORD_MAX_AGE };
            if self.timers().elapsed(read_at) >= max_age && decision.relies_on_record() {
                read_at = self.timers().now();
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
                    is_dated = true;
                    continue;
                }
            }
            self.conclude_trust(&worker, &observed.observation, &decision.reason, now);
            let launches = decision.launches();
            match self.apply_and_record(&worker, decision, observed, now, &lock).await {
                Ok(result) => {
                    if let (true, ReasonCode::RegionNotTrusted, Ok(region)) =
                        (launches, result.reason.code, self.context.region(&worker))
                    {
                        self.doubt(region, None, &result.reason, now);
                    }
                    return result.after(idle_checks);
                }
                Err(conflict) => {
                    self.telemetry().count_anomaly(Anomaly::Conflict);
                    tracing::debug!(target: "lcm::reconcile", worker = %worker.id, failure = %conflict, "deciding again");
                    read_at = self.timers().now();
                    is_dated = true;
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

    /// Completes the record, waits for the worker's lock and reads the record again if that took a while.
    async fn begin(&self, given: &Worker, hints: &Hints, mode: Mode) -> Result<Begun, Box<ReconcileResult>> {
        // A caller may have read the record from its own database, without the notes of LCM.
        let mut worker = match self.ports().control_plane.with_notes(given.clone()).await {
            Ok(worker) => worker,
            Err(failure) => return Err(Box::new(ReconcileResult::record_unknown(given, mode, &failure))),
        };
        self.context.add_requests(&mut worker).await;
        let read_at = hints.read_at.unwrap_or_else(|| self.timers().now());
        if let Some(lock) = self.context.guards().try_lock(&worker.id) {
            // A record from a caller that does not tell when it was read may be older than our last write.
            return Ok(Begun { worker, read_at, is_dated: hints.read_at.is_some(), lock: Arc::new(lock) });
        }
        let lock = Arc::new(self.cache().lock(&worker.id).await);
        // The previous holder of the lock may have written the record.
        let read_at = self.timers().now();
        let worker = self.read_again(&worker, mode).await?;
        Ok(Begun { worker, read_at, is_dated: true, lock })
    }

    /// Observes and decides, with an idle check in between if one is due.
    async fn observe_and_decide(
        &self,
        worker: Worker,
        hints: &Hints,
        mode: Mode,
        lock: &WorkerLock,
    ) -> Result<Decided, Box<ReconcileResult>> {
        let now = self.ports().clock.now();
        let known = self.known(&worker, hints, mode, now);
        let observed = observe(&self.context, &worker, known, mode, now).await;
        if mode == Mode::Real && observed.observation.idle.found().is_some() {
            self.cache().mark_idle_checked(&worker.id, now);
        }
        if mode == Mode::Real {
            self.last_known().observed(&worker, &observed.observation, now);
        }
        let decision = decide(&worker, &observed.observation, self.policy(), now);
        if !decision.checks_idle() {
            return Ok(Decided { worker, observed, decision, checks: Vec::new(), now });
        }
        let checked = match mode {
            Mode::Real => self.check_idle(worker, observed.observation, decision, now, lock).await?,
            Mode::DryRun => self.plan_idle_check(worker, observed.observation, decision).await?,
        };
        let IdleChecked { worker, observation, effects: checks } = checked;
        let observed = observe(&self.context, &worker, observation, mode, now).await;
        let decision = decide(&worker, &observed.observation, self.policy(), now);
        Ok(Decided { worker, observed, decision, checks, now })
    }

    /// The record as it is now, or the result of a reconcile without one.
    async fn read_again(&self, worker: &Worker, mode: Mode) -> Result<Worker, Box<ReconcileResult>> {
        match self.ports().control_plane.worker(&worker.id).await {
            Ok(Some(mut worker)) => {
                self.context.add_requests(&mut worker).await;
                Ok(worker)
            }
            Ok(None) => Err(Box::new(ReconcileResult::record_gone(worker, mode))),
            Err(failure) => Err(Box::new(ReconcileResult::record_unknown(worker, mode, &failure))),
        }
    }

    /// The observation to start from: hints of the caller, and state cached by earlier reconciles. If CML is to be called,
    /// the instance is looked up anew: passwords and tokens go only to an address that EC2 showed in this reconcile.
    fn known(&self, worker: &Worker, hints: &Hints, mode: Mode, now: Timestamp) -> Observation {
        let cached = self.cache().load(&worker.id, mode);
        let capabilities = self.ports().control_plane.capabilities();
        self.context.warn_of_lapsed_policy(&capabilities);
        let mut observation = Observation {
            idle_checked_at: cached.idle_checked_at,
            capabilities,
            metrics_reported_at: match hints.metrics {
                MetricsScope::All => None,
                // The round under way reports them in batches.
                MetricsScope::Due if self.cache().is_collecting_metrics() => Some(now),
                MetricsScope::Due => cached.metrics_reported_at,
            },
            ..Observation::default()
        };
        if worker.status == WorkerStatus::Running && worker.desired_status == Some(DesiredStatus::Stopped) {
            observation.idle = cached.pause;
        }
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
        } else if let (Some(tagged), None) = (cached.tagged, &worker.ec2_instance_id) {
            observation.tagged = Lookup::Found(tagged);
        }
        let due = queries(worker, &observation, self.policy(), now);
        // The sessions of a running worker are listed before its telemetry is read.
        let reads_telemetry = worker.status == WorkerStatus::Running && due.contains(Query::Sessions);
        if reads_telemetry || due.iter().any(Query::sends_credentials) {
            (observation.instance, observation.tagged) = (Lookup::NotRequested, Lookup::NotRequested);
        }
        observation
    }

    /// Reports fields of our last write that a record read after it does not show, once per worker and field. Those that
    /// the control plane is known not to keep are not reported.
    fn report_unkept(&self, worker: &Worker, read_at: Instant) {
        let mut unkept = self.cache().confirm(worker, read_at);
        let known = self.ports().control_plane.capabilities();
        unkept.retain(|field| match *field {
            "desired_status" => known.desired_status != Support::No,
            "start_initiated_at" => known.notes != Support::No,
            note if NotesOnRecord::FIELDS.contains(&note) => known.notes != Support::No,
            _ => true,
        });
        if unkept.is_empty() {
            return;
        }
        for _ in &unkept {
            self.telemetry().count_anomaly(Anomaly::WriteNotKept);
        }
        tracing::warn!(target: "lcm::reconcile", worker = %worker.id, fields = ?unkept, "written, but not there on the next read: the control plane does not keep these fields");
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
        self.context.write_history(&worker, &observation, None, &applied, None);
        observation.idle = applied.idle_report();
        // A session may have begun since; scale-down lists them again.
        observation.sessions = Lookup::NotRequested;
        match (&observation.idle, applied.version) {
            (Lookup::NotRequested | Lookup::Absent, _) => {
                return Err(Box::new(ReconcileResult::lease_lost(&worker, &applied)));
            }
            (Lookup::Found(report), _) if report.auto_pause_triggered => {
                worker = self.read_again(&worker, Mode::Real).await?;
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

    /// Notes what a decision says about the region: it is trusted again, or not any more.
    fn conclude_trust(&self, worker: &Worker, observation: &Observation, reason: &Reason, now: Timestamp) {
        let Ok(region) = self.context.region(worker) else { return };
        let named = observation.instance.found().filter(|found| Some(&found.id) == worker.ec2_instance_id.as_ref());
        if let Some(instance) = named {
            let found = LastFound { region: region.to_owned(), account_id: instance.account_id.clone() };
            self.context.guards().mark_found(&worker.id, &instance.id, found);
            self.context.trust(region, Some(&worker.id));
        }
        let expected = self.policy().aws_account_id.as_deref();
        match (&observation.place, reason.code) {
            (Lookup::NotRequested, _) | (_, ReasonCode::RegionUnknown) => {}
            // One record of another account says nothing about the others, but is in doubt itself.
            (Lookup::Found(place), ReasonCode::RegionNotTrusted) => {
                let is_alone = place.proves_region(expected, now)
                    || matches!(prove_absence(worker, place, expected, now), Err(Doubt::OtherAccount { .. }));
                self.doubt(region, is_alone.then_some(&worker.id), reason, now);
            }
            (Lookup::Absent | Lookup::Unknown(_), ReasonCode::RegionNotTrusted) => {
                self.doubt(region, None, reason, now);
            }
            (Lookup::Found(place), _) => {
                if place.proves_region(expected, now) || prove_absence(worker, place, expected, now).is_ok() {
                    self.context.trust(region, Some(&worker.id));
                }
            }
            (Lookup::Absent | Lookup::Unknown(_), _) => {}
        }
    }

    /// Begins the distrust of a region. After the end of a lease, the next leader announces its own.
    fn doubt(&self, region: &str, worker: Option<&WorkerId>, reason: &Reason, now: Timestamp) {
        if self.lease().is_valid() {
            self.context.distrust(region, worker, &reason.to_string(), now);
        }
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
            let applied = Applied { decision, results: Vec::new(), at: now, version: None };
            self.context.write_history(worker, &observed.observation, observed.operation, &applied, None);
            let Decision { outcome, requeue, reason, .. } = applied.decision;
            return Ok(ReconcileResult::unchanged(worker, Mode::Real, outcome, requeue, reason));
        }
        let (context, worker, lock) = (self.context.clone(), worker.clone(), Arc::clone(lock));
        to_completion(|cancel| async move {
            let _lock = lock;
            let Observed { observation, mut fleet, operation } = observed;
            let applied = apply_while_counted(&context, &worker, decision, fleet.as_ref(), &cancel, now).await?;
            let record = record(&worker, &applied);
            context.write_history(&worker, &observation, operation, &applied, Some(&record));
            let result = persist(&context, &worker, &applied, record).await?;
            if let Some(fleet) = &mut fleet
                && applied.decision.scales_down()
                && result.to_status != result.from_status
            {
                context.scale_downs().note(Some(now), now);
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

    /// The last reconciles of a worker that changed something or went wrong, the oldest first, and how it has been since.
    /// Bounded, in memory, and empty for a worker at which nothing happened since the process started.
    pub fn recent(&self, worker: &WorkerId) -> Vec<RecentReconcile> {
        self.context.recent().of(worker)
    }

    /// The chain of reconciles that led to the status of a worker at a time: from the recording, else from the last
    /// reconciles in memory.
    ///
    /// # Errors
    /// If the recording cannot be read.
    pub async fn why(&self, worker: &WorkerId, at: Timestamp) -> Result<WorkerHistory, HistoryError> {
        let Some(directory) = self.context.history_directory().map(Path::to_owned) else {
            let recent = self.recent(worker).into_iter().filter(|entry| entry.at <= at);
            let steps = history::chain(recent.map(|entry| entry.into_step(worker)).collect());
            return Ok(WorkerHistory { source: HistorySource::Memory, at, steps });
        };
        self.context.flush_history(FLUSH_LIMIT).await;
        let id = worker.clone();
        let read = tokio::task::spawn_blocking(move || match HistoryReader::open(&directory) {
            Ok(reader) => history::why(reader, &id, at),
            // Nothing was recorded yet.
            Err(HistoryError::Empty { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        });
        let steps = match read.await {
            Ok(steps) => steps?,
            Err(error) => return Err(HistoryError::Interrupted(error.to_string())),
        };
        Ok(WorkerHistory { source: HistorySource::Recording, at, steps })
    }

    /// The entries of the histories of all workers from a number on, as far as they are still held.
    pub fn recent_events(&self, from: u64) -> RecentEvents {
        self.context.recent().since(from)
    }

    /// The state that other reconcilers on the same ports can share.
    pub fn guards(&self) -> &Guards {
        self.context.guards()
    }

    /// The regions whose absences are not believed, because nothing proves the account of the credentials.
    pub fn untrusted_regions(&self) -> Vec<UntrustedRegion> {
        self.context.gate().untrusted()
    }

    /// The facts about a region that a scan or its describes did not show a recorded instance of.
    pub(crate) async fn region_evidence(&self, region: &str, caller: Caller) -> Place {
        self.context.with_evidence(region, Place::new(caller)).await
    }

    /// Ends the distrust of a region.
    pub(crate) fn trust_region(&self, region: &str) {
        self.context.trust(region, None);
    }

    /// Drops the doubts about regions and workers that are not among the records.
    pub(crate) fn retain_doubts(&self, workers: &[Worker]) {
        self.context.retain_doubts(workers);
    }

    /// Drops all doubts about regions: another controller leads, and announces its own.
    pub(crate) fn forget_doubts(&self) {
        self.context.forget_doubts();
    }

    /// Begins the distrust of a region, and announces it once.
    pub(crate) fn distrust_region(&self, region: &str, doubt: &Doubt, now: Timestamp) {
        self.context.distrust(region, None, &doubt.reason().to_string(), now);
    }

    /// The time of the instants of this reconciler.
    pub(crate) fn timers(&self) -> &Timers {
        self.cache().timers()
    }

    pub(crate) fn cache(&self) -> &WorkerCache {
        self.context.cache()
    }

    /// The last known state of each listed worker.
    pub(crate) fn last_known(&self) -> &LastKnown {
        self.context.last_known()
    }

    /// The worker's CML at the address of this instance; see [`Context::cml_target`].
    pub(crate) fn cml_target(&self, worker: &Worker, instance: &Instance) -> Option<CmlTarget> {
        self.context.cml_target(worker, Some(instance))
    }

    /// Queues an event for delivery; a failed delivery is logged and counted.
    pub(crate) fn announce(&self, subject: &str, event: &Event, at: Timestamp) {
        drop(self.context.announce(subject, event, at));
    }

    /// Waits until the events and audits of earlier reconciles are delivered or have failed, up to a limit. Returns the
    /// number of those left. A reconcile does not wait for them: a process that ends should call this first. The history
    /// is written to its file as well.
    pub async fn flush(&self, limit: Duration) -> usize {
        if !self.context.flush_history(limit).await {
            tracing::warn!(target: "lcm::history", "the last reconciles may be missing in the history");
        }
        self.context.outbox().flush(limit).await
    }

    /// Notes the latest scale-down on the records of a listing.
    pub(crate) fn note_scale_down(&self, at: Option<Timestamp>, now: Timestamp) {
        self.context.scale_downs().note(at, now);
    }

    /// Forgets earlier scale-downs: the next count reads them from all records.
    pub(crate) fn forget_scale_downs(&self) {
        self.context.scale_downs().clear();
    }

    /// Ends the sessions of a worker whose instance is gone, unless its record names another one by now. Returns whether
    /// none is left open; a reconcile of the terminated worker ends the rest.
    pub(crate) async fn end_sessions(&self, worker: &Worker, at: Timestamp) -> bool {
        let Ok(sessions) = self.ports().control_plane.sessions(&worker.id).await else { return false };
        let moves = self.ports().control_plane.capabilities().session_moves;
        let decision = Decision::skip(ReasonCode::Terminated);
        let decision = open_sessions::ends(&sessions, moves, IfFailed::Proceed).fold(decision, Decision::with_effect);
        if decision.effects.is_empty() {
            return true;
        }
        // No version guards the sessions.
        let current = self.ports().control_plane.worker(&worker.id).await;
        let names_same = |current: Worker| current.ec2_instance_id == worker.ec2_instance_id;
        if !current.is_ok_and(|current| current.is_some_and(names_same)) {
            return false;
        }
        let applied = apply(&self.context, worker, decision, &CancelFlag::default(), at).await;
        applied.results.iter().all(EffectResult::is_success)
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

/// A reconcile that has its record and the worker's lock.
struct Begun {
    worker: Worker,
    read_at: Instant,
    /// Whether `read_at` is known, rather than assumed.
    is_dated: bool,
    lock: WorkerLock,
}

/// A decision with its observation.
struct Decided {
    worker: Worker,
    observed: Observed,
    decision: Decision,
    /// The idle check before the decision, if there was one.
    checks: Vec<EffectReport>,
    now: Timestamp,
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
