//! The result of reconciling one worker.

use std::fmt;

use serde::Serialize;

use crate::lifecycle::decision::{Changes, Decision};
use crate::lifecycle::effect::{Effect, EffectResult};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::reason::{Detail, Reason, ReasonCode};
use crate::lifecycle::record::Applied;
use crate::lifecycle::status::WorkerStatus;
use crate::lifecycle::worker::Worker;

/// Whether a reconcile may change anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Effects are carried out and the record is written.
    Real,
    /// Every read is performed and no write; the result lists the planned effects.
    DryRun,
}

/// The result of reconciling one worker.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
#[must_use]
pub struct ReconcileResult {
    /// The worker that was reconciled.
    pub worker_id: WorkerId,
    /// Whether effects were carried out or only planned.
    pub mode: Mode,
    /// Outcome of the reconcile.
    pub outcome: Outcome,
    /// The status before the reconcile.
    pub from_status: WorkerStatus,
    /// The status after it: recorded, or planned in a dry run.
    pub to_status: WorkerStatus,
    /// The effects in order, each with its result.
    pub effects: Vec<EffectReport>,
    /// Fields of the record besides its status, by their names on the record: written, or planned in a dry run.
    pub changes: Box<Changes>,
    /// The reason for the outcome.
    pub reason: Reason,
    /// When to reconcile this worker again.
    pub requeue: Requeue,
    /// The failed call that decided the outcome, if there was one.
    pub error: Option<CallFailure>,
}

/// One effect and its result. Serialized as the effect's own fields plus `result`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EffectReport {
    /// The effect as decided.
    #[serde(flatten)]
    pub effect: Effect,
    /// Its result, or `planned` in a dry run.
    pub result: EffectResult,
}

/// `✓ stop instance i-1`, `would launch instance …`, `✗ start instance i-1: throttled: …`
impl fmt::Display for EffectReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.effect.name().as_str();
        let effect = self.effect.to_string().replacen(name, &name.replace('_', " "), 1);
        match &self.result {
            EffectResult::Planned => write!(f, "would {effect}"),
            EffectResult::Done | EffectResult::IdleChecked(_) => write!(f, "✓ {effect}"),
            EffectResult::Launched(launched) => write!(f, "✓ {effect}: {}", launched.id),
            EffectResult::Failed(failure) => write!(f, "✗ {effect}: {failure}"),
            EffectResult::NotTried => write!(f, "– {effect}: not tried"),
        }
    }
}

impl ReconcileResult {
    /// Whether nothing but measurements changed, or would change in a dry run, and nothing went wrong.
    pub fn is_routine(&self) -> bool {
        let is_fine = |result: &EffectResult| result.is_success() || *result == EffectResult::Planned;
        let is_harmless = |report: &EffectReport| !report.effect.relies_on_record() && is_fine(&report.result);
        self.from_status == self.to_status
            && self.outcome != Outcome::Retry
            && self.changes.is_empty()
            && self.effects.iter().all(is_harmless)
    }

    /// Everything that was or would be done, a line each: the effects in order, and then the fields of the record.
    pub fn steps(&self) -> Vec<String> {
        let mut steps: Vec<String> = self.effects.iter().map(ToString::to_string).collect();
        if !self.changes.is_empty() {
            let done = match self.mode {
                Mode::Real => "✓",
                Mode::DryRun => "would",
            };
            steps.push(format!("{done} {}", self.changes));
        }
        steps
    }

    /// A result without effects that leaves the status as it is.
    pub(super) fn unchanged(worker: &Worker, mode: Mode, outcome: Outcome, requeue: Requeue, reason: Reason) -> Self {
        Self {
            worker_id: worker.id.clone(),
            mode,
            outcome,
            from_status: worker.status,
            to_status: worker.status,
            effects: Vec::new(),
            changes: Box::default(),
            error: failure_of(&reason),
            reason,
            requeue,
        }
    }

    /// The plan of a dry run.
    pub(super) fn planned(worker: &Worker, decision: Decision) -> Self {
        let report = |effect| EffectReport { effect, result: EffectResult::Planned };
        Self {
            to_status: decision.transition.map_or(worker.status, |transition| transition.to()),
            effects: decision.effects.into_iter().map(report).collect(),
            changes: decision.changes.unwrap_or_default(),
            ..Self::unchanged(worker, Mode::DryRun, decision.outcome, decision.requeue, decision.reason)
        }
    }

    /// The same result with the effects of an earlier decision in front of its own.
    pub(super) fn after(mut self, effects: Vec<EffectReport>) -> Self {
        self.effects.splice(0..0, effects);
        self
    }

    /// The record no longer exists.
    pub(super) fn record_gone(worker: &Worker, mode: Mode) -> Self {
        Self::unchanged(worker, mode, Outcome::Skip, Requeue::OnChange, ReasonCode::RecordGone.into())
    }

    /// The record could not be read.
    pub(super) fn record_unknown(worker: &Worker, mode: Mode, failure: &CallFailure) -> Self {
        let reason = Reason::failed(ReasonCode::RecordUnknown, failure);
        Self::unchanged(worker, mode, Outcome::Retry, Requeue::Backoff, reason)
    }

    /// The lease ended before the first effect, and nothing was written.
    pub(super) fn lease_lost(worker: &Worker, applied: &Applied) -> Self {
        let failure = CallFailure::new(FailureKind::Unreachable, "not the leader any more");
        Self::not_recorded(worker, applied, &failure)
    }

    /// The effects were applied, but the record was not written.
    pub(super) fn not_recorded(worker: &Worker, applied: &Applied, failure: &CallFailure) -> Self {
        let reason = Reason::failed(ReasonCode::NotRecorded, failure);
        Self {
            effects: effect_reports(applied),
            ..Self::unchanged(worker, Mode::Real, Outcome::Retry, Requeue::Backoff, reason)
        }
    }
}

/// `w-1: stopped → starting: The instance is stopped and should run: starting it.`
impl fmt::Display for ReconcileResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worker_id, from_status, to_status, reason, .. } = self;
        if from_status == to_status {
            write!(f, "{worker_id}: {from_status}: {reason}")
        } else {
            write!(f, "{worker_id}: {from_status} → {to_status}: {reason}")
        }
    }
}

/// Pairs each effect with its result. A missing result means that the effect was not tried.
pub(super) fn effect_reports(applied: &Applied) -> Vec<EffectReport> {
    let results = applied.results.iter().cloned().chain(std::iter::repeat(EffectResult::NotTried));
    let pairs = applied.decision.effects.iter().cloned().zip(results);
    pairs.map(|(effect, result)| EffectReport { effect, result }).collect()
}

pub(super) fn failure_of(reason: &Reason) -> Option<CallFailure> {
    match &reason.detail {
        Detail::Failure(failure) => Some((**failure).clone()),
        Detail::None | Detail::Ec2(_) | Detail::Since(_) | Detail::Sessions { .. } | Detail::Text(_) => None,
    }
}
