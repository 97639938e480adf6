//! Decisions and outcomes as Python's frozen dataclasses.

use lcm_sdk::lifecycle::Changes;
use lcm_sdk::lifecycle::transition::TABLE;
use lcm_sdk::reconciler::{EffectReport, Mode, ReconcileResult};
use lcm_sdk::{Effect, EffectResult, InstanceId, Reason, Requeue, Transition, WorkerStatus};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use serde::Serialize;
use serde_json::Value;

use crate::convert::{to_frozen, to_timedelta};
use crate::python::{
    decision_class, effect_class, effect_name, effect_result, failure_to_python, frozen_map, outcome, reason_class,
    reason_code, reconcile_result_class, requeue, transition_class, worker_status,
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
    let planned = |effect: &Effect| effect_to_python(py, effect, &EffectResult::Planned);
    decision_class(py)?.call1((
        worker.into_bound_py_any(py)?,
        outcome(py, decision.outcome.as_str())?,
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
    reconcile_result_class(py).map(drop)
}

/// How a pass went as `lcm.Outcome`.
pub(crate) fn outcome_to_python<'py>(py: Python<'py>, result: &ReconcileResult) -> PyResult<Bound<'py, PyAny>> {
    let (look, after) = look_again_to_python(py, result.requeue)?;
    let arguments = PyDict::new(py);
    arguments.set_item("outcome", outcome(py, result.outcome.as_str())?)?;
    arguments.set_item("worker_id", result.worker_id.as_str())?;
    arguments.set_item("from_status", worker_status(py, result.from_status.as_str())?)?;
    arguments.set_item("to_status", worker_status(py, result.to_status.as_str())?)?;
    let action = |EffectReport { effect, result }: &EffectReport| effect_to_python(py, effect, result);
    arguments.set_item("effects", tuple(py, result.effects.iter().map(action))?)?;
    arguments.set_item("reason", reason_to_python(py, &result.reason)?)?;
    arguments.set_item("requeue", look)?;
    arguments.set_item("after", after)?;
    let error = result.error.as_ref().map(|failure| failure_to_python(py, failure)).transpose()?;
    arguments.set_item("error", error)?;
    arguments.set_item("dry_run", result.mode == Mode::DryRun)?;
    reconcile_result_class(py)?.call((), Some(&arguments))
}

fn transition_to_python<'py>(py: Python<'py>, transition: Transition) -> PyResult<Bound<'py, PyAny>> {
    let (from, to, kind) = (transition.from(), transition.to(), transition.kind());
    let edge = TABLE.iter().find(|edge| edge.from == from && edge.to == to && edge.kind == kind);
    let when = edge.map_or("", |edge| edge.when);
    transition_class(py)?.call1((from.as_str(), to.as_str(), kind.as_str(), when))
}

fn effect_to_python<'py>(py: Python<'py>, effect: &Effect, result: &EffectResult) -> PyResult<Bound<'py, PyAny>> {
    let Value::Object(mut details) = json(effect)? else {
        return Err(PyValueError::new_err("an effect is an object"));
    };
    details.remove("effect");
    let failure = result.failure().map(|failure| failure_to_python(py, failure)).transpose()?;
    effect_class(py)?.call1((
        effect_name(py, effect.name())?,
        effect.to_string(),
        to_frozen(py, &Value::Object(details))?,
        effect_result(py, result.as_str())?,
        result.instance().map(InstanceId::as_str),
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

/// The changed fields by their names on the record; None clears a field.
pub(crate) fn changes_to_python<'py>(py: Python<'py>, changes: Option<&Changes>) -> PyResult<Bound<'py, PyAny>> {
    match changes {
        Some(changes) => to_frozen(py, &Value::Object(changes.to_json())),
        None => frozen_map(py, &PyDict::new(py)),
    }
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
