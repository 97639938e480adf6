//! How a pass went, as its caller is told.

use serde::Serialize;

use crate::lifecycle::decision::Decision;
use crate::lifecycle::effect::Effect;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::reason::{Detail, Reason, ReasonCode};
use crate::lifecycle::record::EffectResult;
use crate::lifecycle::status::WorkerStatus;
use crate::lifecycle::worker::Worker;

/// Whether a pass does anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It does.
    Real,
    /// It reads everything and writes nothing: the result is the plan.
    DryRun,
}

/// How a pass went.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[must_use]
pub struct ReconcileResult {
    /// Whose.
    pub worker_id: WorkerId,
    /// Whether anything was done.
    pub mode: Mode,
    /// How it ended.
    pub outcome: Outcome,
    /// The status at the beginning.
    pub from: WorkerStatus,
    /// The status at the end: recorded, or planned in a dry run.
    pub to: WorkerStatus,
    /// What was done or is planned, in order.
    pub actions: Vec<Action>,
    /// Why.
    pub reason: Reason,
    /// When to look again.
    pub requeue: Requeue,
    /// The call that failed, if one decided the outcome.
    pub error: Option<CallFailure>,
}

/// One thing that was done, or is planned.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Action {
    /// What.
    #[serde(flatten)]
    pub effect: Effect,
    /// How it went.
    pub result: ActionResult,
}

/// How an action went.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionResult {
    /// A dry run would do it.
    Planned,
    /// Done.
    Done,
    /// It launched this instance.
    Launched(InstanceId),
    /// It failed.
    Failed(CallFailure),
    /// It was not tried.
    NotTried,
}

impl From<&EffectResult> for ActionResult {
    fn from(result: &EffectResult) -> Self {
        match result {
            EffectResult::Done => Self::Done,
            EffectResult::Launched(instance) => Self::Launched(instance.clone()),
            EffectResult::Failed(failure) => Self::Failed(failure.clone()),
            EffectResult::NotTried => Self::NotTried,
        }
    }
}

pub(crate) fn actions(effects: &[Effect], result: impl Fn(usize) -> ActionResult) -> Vec<Action> {
    let with_result = |(index, effect): (usize, &Effect)| Action { effect: effect.clone(), result: result(index) };
    effects.iter().enumerate().map(with_result).collect()
}

pub(crate) fn planned(worker: &Worker, decision: Decision) -> ReconcileResult {
    ReconcileResult {
        worker_id: worker.id.clone(),
        mode: Mode::DryRun,
        outcome: decision.outcome,
        from: worker.status,
        to: decision.transition.map_or(worker.status, |transition| transition.to()),
        actions: actions(&decision.effects, |_| ActionResult::Planned),
        error: failure_of(&decision.reason),
        reason: decision.reason,
        requeue: decision.requeue,
    }
}

pub(crate) fn ended(
    worker: &Worker,
    mode: Mode,
    outcome: Outcome,
    requeue: Requeue,
    reason: Reason,
    error: Option<CallFailure>,
) -> ReconcileResult {
    ReconcileResult {
        worker_id: worker.id.clone(),
        mode,
        outcome,
        from: worker.status,
        to: worker.status,
        actions: Vec::new(),
        error: error.or_else(|| failure_of(&reason)),
        reason,
        requeue,
    }
}

pub(crate) fn failure_of(reason: &Reason) -> Option<CallFailure> {
    match &reason.detail {
        Detail::Failure(failure) => Some((**failure).clone()),
        Detail::None | Detail::Ec2(_) | Detail::Since(_) | Detail::Sessions { .. } | Detail::Text(_) => None,
    }
}

pub(crate) fn gone(worker: &Worker, mode: Mode) -> ReconcileResult {
    ended(worker, mode, Outcome::Skip, Requeue::OnChange, Reason::new(ReasonCode::RecordGone), None)
}

pub(crate) fn unread(worker: &Worker, mode: Mode, failure: CallFailure) -> ReconcileResult {
    let reason = Reason::failed(ReasonCode::RecordUnknown, &failure);
    ended(worker, mode, Outcome::Retry, Requeue::Backoff, reason, Some(failure))
}
