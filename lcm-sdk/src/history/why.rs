//! Explains the status of a worker at a time from a history.

use std::fmt;

use serde::Serialize;

use super::line::{Ending, RecordedReconcile};
use super::read::HistoryError;
use super::replay::named;
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::observed::ObservedPart;
use crate::lifecycle::outcome::Outcome;
use crate::lifecycle::status::WorkerStatus;
use crate::lifecycle::time::Timestamp;

/// A recorded reconcile of a worker, or several in a row that ended the same.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RecordedStep {
    /// The time of the decision; of several, the first.
    pub at: Timestamp,
    /// The time of the latest of them.
    pub last_at: Timestamp,
    /// How many more were recorded that ended the same.
    pub repeats: u32,
    /// The worker.
    pub worker_id: WorkerId,
    /// Outcome of the reconcile.
    pub outcome: Outcome,
    /// Status on the record before it.
    pub from_status: WorkerStatus,
    /// Status after it.
    pub to_status: WorkerStatus,
    /// The reason for the outcome.
    pub reason: StepReason,
    /// The operator who requested it; none if the controller decided it by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// The observation that it was decided on.
    pub observed: Vec<ObservedPart>,
    /// Effects in order, such as `stop_instance i-1`.
    pub effects: Vec<String>,
    /// Result of each effect, such as `done`, `launched i-1`, `not_tried`, or `failed: ` and the failure.
    pub results: Vec<String>,
}

/// The reason of a [`RecordedStep`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepReason {
    /// The stable code; one of another version may be unknown to this one.
    pub code: String,
    /// The sentence, with its details.
    pub sentence: String,
}

impl From<&RecordedReconcile> for RecordedStep {
    fn from(recorded: &RecordedReconcile) -> Self {
        let RecordedReconcile { at, worker, seen, operation, decision, results, ended, .. } = recorded;
        let (outcome, to, reason, sentence) = match ended {
            Some(Ending { outcome, to, reason, sentence }) => (*outcome, *to, reason, sentence),
            None => (decision.outcome, decision.to, &decision.reason, &decision.sentence),
        };
        Self {
            at: *at,
            last_at: *at,
            repeats: 0,
            worker_id: worker.id.clone(),
            outcome,
            from_status: worker.status,
            to_status: to.unwrap_or(worker.status),
            reason: StepReason { code: reason.clone(), sentence: sentence.clone() },
            requested_by: operation.as_ref().map(|operation| operation.request().requested_by.clone()),
            observed: seen.parts(),
            effects: decision.effects().iter().map(named).collect(),
            results: results.clone(),
        }
    }
}

impl RecordedStep {
    /// Whether it ended like an earlier one.
    fn repeats(&self, earlier: &Self) -> bool {
        let ending = |step: &Self| (step.outcome, step.from_status, step.to_status);
        ending(self) == ending(earlier)
            && self.from_status == self.to_status
            && (&self.reason.code, &self.effects, &self.requested_by)
                == (&earlier.reason.code, &earlier.effects, &earlier.requested_by)
    }
}

/// The chain of recorded steps that led to the status of a worker at a time: those since it was last in service or at
/// rest, and the one that took it out of there. Of the reconciles that changed nothing, a history has a sample.
///
/// Empty if the history has no reconcile of the worker up to that time.
///
/// # Errors
/// The first error of the history.
pub fn why(
    history: impl IntoIterator<Item = Result<RecordedReconcile, HistoryError>>,
    worker: &WorkerId,
    at: Timestamp,
) -> Result<Vec<RecordedStep>, HistoryError> {
    let mut steps = Vec::new();
    for recorded in history {
        let recorded = recorded?;
        if recorded.worker.id == *worker && recorded.at <= at {
            steps.push(RecordedStep::from(&recorded));
        }
    }
    // Each process has files of its own.
    steps.sort_by_key(|step: &RecordedStep| step.at);
    Ok(chain(steps))
}

/// The last steps of those of one worker, in order of time: see [`why`].
pub(crate) fn chain(mut steps: Vec<RecordedStep>) -> Vec<RecordedStep> {
    let begin = match steps.split_last() {
        Some((_, earlier)) => {
            let is_settled = |step: &RecordedStep| step.to_status != step.from_status && step.to_status.is_settled();
            earlier.iter().rposition(is_settled).map_or(0, |settled| settled + 1)
        }
        None => 0,
    };
    let mut chain: Vec<RecordedStep> = Vec::new();
    for step in steps.drain(begin..) {
        match chain.last_mut() {
            Some(last) if step.repeats(last) => {
                *last = RecordedStep { at: last.at, repeats: last.repeats + step.repeats + 1, ..step };
            }
            _ => chain.push(step),
        }
    }
    chain
}

/// Time, statuses, reason and effects in one line.
impl fmt::Display for RecordedStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true), self.from_status)?;
        if self.to_status != self.from_status {
            write!(f, " → {}", self.to_status)?;
        }
        write!(f, ": {}", self.reason.sentence)?;
        if let Some(operator) = &self.requested_by {
            write!(f, " (requested by {operator})")?;
        }
        for (index, effect) in self.effects.iter().enumerate() {
            write!(f, " [{effect}: {}]", self.results.get(index).map_or("not_tried", String::as_str))?;
        }
        if self.repeats > 0 { write!(f, " ({} more times)", self.repeats) } else { Ok(()) }
    }
}
