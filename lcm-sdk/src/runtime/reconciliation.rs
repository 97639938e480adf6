//! How a pass went, as its caller is told.

use serde::Serialize;

use crate::core::decision::Decision;
use crate::core::effect::Effect;
use crate::core::failure::CallFailure;
use crate::core::ids::{InstanceId, WorkerId};
use crate::core::outcome::{LookAgain, Outcome};
use crate::core::reason::{Detail, Reason, ReasonCode};
use crate::core::record::EffectResult;
use crate::core::status::WorkerStatus;
use crate::core::worker::Worker;

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
pub struct Reconciliation {
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
    pub look_again: LookAgain,
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

pub(super) fn actions(effects: &[Effect], result: impl Fn(usize) -> ActionResult) -> Vec<Action> {
    let with_result = |(index, effect): (usize, &Effect)| Action { effect: effect.clone(), result: result(index) };
    effects.iter().enumerate().map(with_result).collect()
}

pub(super) fn planned(worker: &Worker, decision: Decision) -> Reconciliation {
    Reconciliation {
        worker_id: worker.id.clone(),
        mode: Mode::DryRun,
        outcome: decision.outcome,
        from: worker.status,
        to: decision.transition.map_or(worker.status, |transition| transition.to()),
        actions: actions(&decision.effects, |_| ActionResult::Planned),
        error: failure_of(&decision.reason),
        reason: decision.reason,
        look_again: decision.look_again,
    }
}

pub(super) fn ended(
    worker: &Worker,
    mode: Mode,
    outcome: Outcome,
    look_again: LookAgain,
    reason: Reason,
    error: Option<CallFailure>,
) -> Reconciliation {
    Reconciliation {
        worker_id: worker.id.clone(),
        mode,
        outcome,
        from: worker.status,
        to: worker.status,
        actions: Vec::new(),
        error: error.or_else(|| failure_of(&reason)),
        reason,
        look_again,
    }
}

pub(super) fn failure_of(reason: &Reason) -> Option<CallFailure> {
    match &reason.detail {
        Detail::Failure(failure) => Some((**failure).clone()),
        Detail::None | Detail::Ec2(_) | Detail::Since(_) | Detail::Sessions { .. } | Detail::Text(_) => None,
    }
}

pub(super) fn gone(worker: &Worker, mode: Mode) -> Reconciliation {
    ended(worker, mode, Outcome::Skip, LookAgain::OnChange, Reason::new(ReasonCode::RecordGone), None)
}

pub(super) fn unread(worker: &Worker, mode: Mode, failure: CallFailure) -> Reconciliation {
    let reason = Reason::failed(ReasonCode::RecordUnknown, &failure);
    ended(worker, mode, Outcome::Retry, LookAgain::Backoff, reason, Some(failure))
}
