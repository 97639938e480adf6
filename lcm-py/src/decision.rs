//! Decisions and outcomes as Python's frozen dataclasses.

use lcm_sdk::lifecycle::decision::Changes;
use lcm_sdk::lifecycle::transition::TABLE;
use lcm_sdk::reconciler::{Action, ActionResult, Mode, ReconcileResult};
use lcm_sdk::{Effect, Reason, Requeue, Transition, WorkerStatus};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::convert::{to_frozen, to_timedelta};
use crate::python::{
    action_class, action_name, action_result, decision_class, failure_to_python, frozen_map, outcome_class,
    outcome_kind, reason_class, reason_code, requeue, transition_class, worker_status,
};

/// A decision about a worker as `lcm.Decision`.
pub(crate) fn decision_to_python<'py>(
    py: Python<'py>,
    worker: impl IntoPyObject<'py>,
    status: WorkerStatus,
    decision: &lcm_sdk::Decision,
) -> PyResult<Bound<'py, PyAny>> {
    let target = decision.transition.map_or(status, |transition| transition.to());
    let (look, after) = look_again_to_python(py, decision.requeue)?;
    let planned = |effect: &Effect| action_to_python(py, effect, &ActionResult::Planned);
    decision_class(py)?.call1((
        worker.into_bound_py_any(py)?,
        outcome_kind(py, decision.outcome.as_str())?,
        worker_status(py, status.as_str())?,
        worker_status(py, target.as_str())?,
        decision.transition.map(|transition| transition_to_python(py, transition)).transpose()?,
        tuple(py, decision.effects.iter().map(planned))?,
        reason_to_python(py, &decision.reason)?,
        look,
        after,
        changes_to_python(py, decision.changes.as_deref())?,
        tuple(py, decision.notices.iter().map(|notice| to_frozen(py, &json(notice)?)))?,
        tuple(py, decision.counts.iter().map(|counter| Ok(counter.as_str().into_pyobject(py)?.into_any())))?,
    ))
}

/// Imports what [`outcome_to_python`] will need.
pub(crate) fn import_outcomes(py: Python<'_>) -> PyResult<()> {
    outcome_class(py).map(drop)
}

/// How a pass went as `lcm.Outcome`.
pub(crate) fn outcome_to_python<'py>(py: Python<'py>, result: &ReconcileResult) -> PyResult<Bound<'py, PyAny>> {
    let (look, after) = look_again_to_python(py, result.requeue)?;
    let arguments = PyDict::new(py);
    arguments.set_item("kind", outcome_kind(py, result.outcome.as_str())?)?;
    arguments.set_item("worker_id", result.worker_id.as_str())?;
    arguments.set_item("source", worker_status(py, result.from.as_str())?)?;
    arguments.set_item("target", worker_status(py, result.to.as_str())?)?;
    let action = |Action { effect, result }: &Action| action_to_python(py, effect, result);
    arguments.set_item("actions", tuple(py, result.actions.iter().map(action))?)?;
    arguments.set_item("reason", reason_to_python(py, &result.reason)?)?;
    arguments.set_item("requeue", look)?;
    arguments.set_item("after", after)?;
    let error = result.error.as_ref().map(|failure| failure_to_python(py, failure)).transpose()?;
    arguments.set_item("error", error)?;
    arguments.set_item("dry_run", result.mode == Mode::DryRun)?;
    outcome_class(py)?.call((), Some(&arguments))
}

fn transition_to_python<'py>(py: Python<'py>, transition: Transition) -> PyResult<Bound<'py, PyAny>> {
    let (from, to, kind) = (transition.from(), transition.to(), transition.kind());
    let edge = TABLE.iter().find(|edge| edge.from == from && edge.to == to && edge.kind == kind);
    let when = edge.map_or("", |edge| edge.when);
    transition_class(py)?.call1((from.as_str(), to.as_str(), kind.as_str(), when))
}

fn action_to_python<'py>(py: Python<'py>, effect: &Effect, result: &ActionResult) -> PyResult<Bound<'py, PyAny>> {
    let Value::Object(mut details) = json(effect)? else {
        return Err(PyValueError::new_err("an effect is an object"));
    };
    details.remove("effect");
    let (word, instance, failure) = match result {
        ActionResult::Planned => ("planned", None, None),
        ActionResult::Done => ("done", None, None),
        ActionResult::Launched(instance) => ("launched", Some(instance.as_str()), None),
        ActionResult::Failed(failure) => ("failed", None, Some(failure_to_python(py, failure)?)),
        ActionResult::NotTried => ("not_tried", None, None),
    };
    action_class(py)?.call1((
        action_name(py, effect.name())?,
        effect.to_string(),
        to_frozen(py, &Value::Object(details))?,
        action_result(py, word)?,
        instance,
        failure,
    ))
}

fn reason_to_python<'py>(py: Python<'py>, reason: &Reason) -> PyResult<Bound<'py, PyAny>> {
    reason_class(py)?.call1((reason_code(py, reason.code.as_str())?, reason.to_string()))
}

fn look_again_to_python<'py>(
    py: Python<'py>,
    when: Requeue,
) -> PyResult<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>)> {
    let (word, after) = match when {
        Requeue::Now => ("now", None),
        Requeue::After(delay) => ("after", Some(to_timedelta(py, delay)?)),
        Requeue::NextCycle => ("next_cycle", None),
        Requeue::Backoff => ("backoff", None),
        Requeue::OnChange => ("on_change", None),
    };
    Ok((requeue(py, word)?, after))
}

/// Only what changes: a field that is cleared is None, one that stays is not there.
pub(crate) fn changes_to_python<'py>(py: Python<'py>, changes: Option<&Changes>) -> PyResult<Bound<'py, PyAny>> {
    let Some(changes) = changes else { return frozen_map(py, &PyDict::new(py)) };
    let Value::Object(fields) = json(changes)? else { return frozen_map(py, &PyDict::new(py)) };
    let changed = |(name, value): (String, Value)| match value {
        Value::Null => None,
        Value::String(word) if word == "keep" => None,
        Value::String(word) if word == "clear" => Some((name, Value::Null)),
        Value::Object(mut map) => Some((name, map.remove("set").unwrap_or(Value::Object(map)))),
        plain @ (Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => Some((name, plain)),
    };
    let changed: Map<_, _> = fields.into_iter().filter_map(changed).collect();
    to_frozen(py, &Value::Object(changed))
}

fn tuple<'py>(
    py: Python<'py>,
    items: impl Iterator<Item = PyResult<Bound<'py, PyAny>>>,
) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, items.collect::<PyResult<Vec<_>>>()?)
}

fn json(value: &impl Serialize) -> PyResult<Value> {
    serde_json::to_value(value).map_err(|error| PyValueError::new_err(error.to_string()))
}
