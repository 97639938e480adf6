//! Decisions and reconcile results.
#![expect(clippy::too_many_arguments, clippy::wrong_self_convention, reason = "fields of Python classes")]

use lcm_sdk::lifecycle::Changes;
use lcm_sdk::lifecycle::transition::TABLE;
use lcm_sdk::reconciler::{EffectReport, Mode};
use lcm_sdk::{EffectResult, InstanceId, ReasonCode, Requeue};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use serde_json::Value;

use super::{Decided, ResultClass, UNSET, create, html};
use crate::convert::{to_frozen, to_timedelta};
use crate::port_results::json;
use crate::python::{
    effect_name, effect_result, failure_to_python, frozen_map, outcome, reason_code, requeue, worker_status,
};

result_class! {
    /// The reason for a decision: a stable code for programs and a sentence for people.
    Reason in "lcm" {
        /// Stable code (`ReasonCode`). Logs, metrics and the audit log use the same codes.
        code: "ReasonCode",
        /// The reason as an English sentence, with the values that led to it.
        sentence: "str",
    }

    /// Address of the documentation of this code: its meaning, and the next step of an operator.
    #[getter]
    fn url(&self, py: Python<'_>) -> PyResult<&'static str> {
        let code = self.text(py, "code")?;
        let code: ReasonCode = code.parse().map_err(|error| PyValueError::new_err(format!("{error}")))?;
        Ok(code.url())
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        self.text(py, "sentence")
    }
}

result_class! {
    /// One effect that is planned or was carried out.
    Effect in "lcm" {
        /// Kind of effect (`EffectName`).
        name: "EffectName",
        /// The effect and its subject in a few words, such as `start_instance i-1`.
        text: "str",
        /// Parameters of the effect, as an immutable mapping.
        details: "FrozenMap" = UNSET,
        /// Result (`EffectResult`): `planned` in a decision or a dry run.
        result: "EffectResult" = UNSET,
        /// Instance that a launch created, or None.
        ec2_instance_id: "str | None" = None,
        /// The failed call (`CallFailure`) of a failed effect, or None.
        error: "CallFailure | None" = None,
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        ResultClass::text(self, py, "text")
    }
}

result_class! {
    /// One legal change of a worker's status.
    Transition in "lcm" {
        /// Status before the change.
        from_status: "str",
        /// Status after the change.
        to_status: "str",
        /// `commanded` by the lifecycle, or `observed` in EC2.
        kind: "str",
        /// Condition of the change, in a few words.
        when: "str",
    }
}

result_class! {
    /// The next step for a worker, and the reason. Deciding has no effect: nothing was called or written.
    Decision in "lcm" {
        /// Id of the worker.
        worker_id: "str",
        /// Outcome of the reconcile if every effect succeeds (`Outcome`).
        outcome: "Outcome",
        /// Status the worker is in (`WorkerStatus`).
        from_status: "WorkerStatus",
        /// Status the worker gets (`WorkerStatus`); equal to `from_status` if it stays.
        to_status: "WorkerStatus",
        /// The change of status (`Transition`), or None if the status stays.
        transition: "Transition | None",
        /// Effects to carry out, in order (`Effect`).
        effects: "tuple[Effect, ...]",
        /// Reason for the decision (`Reason`).
        reason: "Reason",
        /// When to reconcile the worker again (`Requeue`).
        requeue: "Requeue",
        /// Delay as a timedelta if `requeue` is `after`, else None.
        after: "timedelta | None",
        /// Other record fields to write, by their names on the record; None clears a field.
        changes: "FrozenMap",
        /// Events to publish after the record is written.
        notices: "tuple[FrozenMap, ...]",
        /// Counters to raise after the record is written.
        counts: "tuple[str, ...]",
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        summary(self, py)
    }

    #[pyo3(signature = () -> "str")]
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        html(slf.as_any(), "card")
    }
}

result_class! {
    /// The result of reconciling one worker.
    ReconcileResult in "lcm" {
        /// Id of the worker.
        worker_id: "str",
        /// How the reconcile ended (`Outcome`).
        outcome: "Outcome",
        /// Status before the reconcile (`WorkerStatus`).
        from_status: "WorkerStatus",
        /// Status after the reconcile (`WorkerStatus`): recorded, or planned in a dry run.
        to_status: "WorkerStatus",
        /// Effects in order (`Effect`), each with its result.
        effects: "tuple[Effect, ...]",
        /// Reason for the outcome (`Reason`).
        reason: "Reason",
        /// When to reconcile the worker again (`Requeue`).
        requeue: "Requeue",
        /// Delay as a timedelta if `requeue` is `after`, else None.
        after: "timedelta | None" = None,
        /// The failed call (`CallFailure`) that decided the outcome, or None.
        error: "CallFailure | None" = None,
        /// Whether this was a dry run, in which no effect is carried out.
        dry_run: "bool" = UNSET,
        /// Other record fields that were written or are planned, by their names on the record; None clears a field.
        changes: "FrozenMap" = UNSET,
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        summary(self, py)
    }

    /// Raises `lcm.PortError` if a failed call decided the outcome; otherwise returns this result.
    ///
    /// An exception that a port written in Python raised is its `__cause__`.
    fn raise_for_error<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let error = slf.get().value(slf.py(), "error")?;
        if error.is_none() {
            return Ok(slf.clone());
        }
        Err(PyErr::from_value(error.call_method0("to_exception")?))
    }

    #[pyo3(signature = () -> "str")]
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        html(slf.as_any(), "card")
    }
}

result_class! {
    /// The plan of a reconcile of one worker, the observations it rests on, and changes that would lead to another one.
    Explanation in "lcm" {
        /// When the worker was observed.
        at: "datetime",
        /// The record, without secrets and free-form data.
        record: "FrozenMap",
        /// The lookups that the decision needed, each with its response in short.
        observed: "FrozenMap",
        /// The plan (`ReconcileResult`): a dry run.
        plan: "ReconcileResult",
        /// Changes that would lead to another decision, each with `if`, `then` and `to_status`.
        what_if: "tuple[FrozenMap, ...]",
        /// When the worker is reconciled next and what it waits for: `requeue`, `when`, `at` and `awaits`.
        next: "FrozenMap",
    }

    /// Several lines: the plan, the observations, the next reconcile, and what would change the decision.
    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        let mut lines = vec![self.value(py, "plan")?.str()?.to_string()];
        for effect in self.value(py, "plan")?.getattr("effects")?.try_iter()? {
            lines.push(format!("  would {}", effect?.str()?));
        }
        for item in self.value(py, "observed")?.call_method0("items")?.try_iter()? {
            let (query, found): (String, String) = item?.extract()?;
            lines.push(format!("  {}: {found}", query.replace('_', " ")));
        }
        let next = self.value(py, "next")?;
        lines.push(format!("  next: {}; it waits for {}", next.get_item("when")?, next.get_item("awaits")?));
        for what_if in self.value(py, "what_if")?.try_iter()? {
            let what_if = what_if?;
            lines.push(format!("  if {}: {}", what_if.get_item("if")?, what_if.get_item("then")?));
        }
        Ok(lines.join("\n"))
    }
}

impl Explanation {
    /// Converts the SDK's explanation.
    pub(crate) fn from_sdk<'py>(
        py: Python<'py>,
        explanation: &lcm_sdk::reconciler::Explanation,
    ) -> PyResult<Bound<'py, Self>> {
        let observed = PyDict::new(py);
        for part in &explanation.observed {
            observed.set_item(part.query.as_str(), &part.found)?;
        }
        create(
            py,
            (
                explanation.at,
                to_frozen(py, &json(&explanation.record))?,
                frozen_map(py, &observed)?,
                ReconcileResult::from_sdk(py, &explanation.plan)?,
                tuple(py, explanation.what_if.iter().map(|what_if| to_frozen(py, &json(what_if))))?,
                to_frozen(py, &json(&explanation.next))?,
            ),
        )
    }
}

/// `w-1: running → stopped: Reason.`
fn summary(result: &impl ResultClass, py: Python<'_>) -> PyResult<String> {
    let (from, to) = (result.text(py, "from_status")?, result.text(py, "to_status")?);
    let statuses = if from == to { from } else { format!("{from} → {to}") };
    Ok(format!("{}: {statuses}: {}", result.text(py, "worker_id")?, result.text(py, "reason")?))
}

impl Decision {
    /// A decision whose fields are converted when one is first read.
    pub(crate) fn from_decided(decided: Decided) -> Self {
        Self(super::Fields::from_decided(decided))
    }
}

/// The field values of a decision.
pub(super) fn decision_values<'py>(py: Python<'py>, decided: &Decided) -> PyResult<Bound<'py, PyTuple>> {
    let Decided { worker_id, status, decision } = decided;
    let to_status = decision.transition.map_or(*status, |transition| transition.to());
    let (requeue, after) = requeue_to_python(py, decision.requeue)?;
    let planned = |effect| effect_to_python(py, effect, &EffectResult::Planned);
    (
        worker_id.as_str(),
        outcome(py, decision.outcome.as_str())?,
        worker_status(py, status.as_str())?,
        worker_status(py, to_status.as_str())?,
        decision.transition.map(|transition| transition_to_python(py, transition)).transpose()?,
        tuple(py, decision.effects.iter().map(planned))?,
        reason_to_python(py, &decision.reason)?,
        requeue,
        after,
        changes_to_python(py, decision.changes.as_deref())?,
        tuple(py, decision.notices.iter().map(|notice| to_frozen(py, &json(notice))))?,
        PyTuple::new(py, decision.counts.iter().map(|counter| counter.as_str()).collect::<Vec<_>>())?,
    )
        .into_pyobject(py)
}

impl ReconcileResult {
    /// Converts the SDK's result.
    pub(crate) fn from_sdk<'py>(
        py: Python<'py>,
        result: &lcm_sdk::reconciler::ReconcileResult,
    ) -> PyResult<Bound<'py, Self>> {
        let (requeue, after) = requeue_to_python(py, result.requeue)?;
        let report = |EffectReport { effect, result }: &EffectReport| effect_to_python(py, effect, result);
        create(
            py,
            (
                result.worker_id.as_str(),
                outcome(py, result.outcome.as_str())?,
                worker_status(py, result.from_status.as_str())?,
                worker_status(py, result.to_status.as_str())?,
                tuple(py, result.effects.iter().map(report))?,
                reason_to_python(py, &result.reason)?,
                requeue,
                after,
                result.error.as_ref().map(|failure| failure_to_python(py, failure)).transpose()?,
                result.mode == Mode::DryRun,
                changes_to_python(py, Some(&*result.changes))?,
            ),
        )
    }
}

fn transition_to_python(py: Python<'_>, transition: lcm_sdk::Transition) -> PyResult<Bound<'_, Transition>> {
    let (from, to, kind) = (transition.from(), transition.to(), transition.kind());
    let edge = TABLE.iter().find(|edge| edge.from == from && edge.to == to && edge.kind == kind);
    create(py, (from.as_str(), to.as_str(), kind.as_str(), edge.map_or("", |edge| edge.when)))
}

/// Every legal change of status.
pub(crate) fn transition_table(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    let edge = |edge: &lcm_sdk::lifecycle::transition::Edge| {
        create::<Transition>(py, (edge.from.as_str(), edge.to.as_str(), edge.kind.as_str(), edge.when))
    };
    PyTuple::new(py, TABLE.iter().map(edge).collect::<PyResult<Vec<_>>>()?)
}

fn effect_to_python<'py>(
    py: Python<'py>,
    effect: &lcm_sdk::Effect,
    result: &EffectResult,
) -> PyResult<Bound<'py, PyAny>> {
    let details = match json(effect) {
        Value::Object(mut details) => {
            details.remove("effect");
            Value::Object(details)
        }
        other => other,
    };
    let failure = result.failure().map(|failure| failure_to_python(py, failure)).transpose()?;
    let values = (
        effect_name(py, effect.name().as_str())?,
        effect.to_string(),
        to_frozen(py, &details)?,
        effect_result(py, result.as_str())?,
        result.instance().map(InstanceId::as_str),
        failure,
    );
    create::<Effect>(py, values).map(Bound::into_any)
}

fn reason_to_python<'py>(py: Python<'py>, reason: &lcm_sdk::Reason) -> PyResult<Bound<'py, Reason>> {
    create(py, (reason_code(py, reason.code.as_str())?, reason.to_string()))
}

fn requeue_to_python(py: Python<'_>, when: Requeue) -> PyResult<(Bound<'_, PyAny>, Option<Bound<'_, PyAny>>)> {
    let after = match when {
        Requeue::After(delay) => Some(to_timedelta(py, delay)?),
        Requeue::Now | Requeue::NextCycle | Requeue::Backoff | Requeue::OnChange => None,
    };
    Ok((requeue(py, when.kind().as_str())?, after))
}

/// The changed fields by their names on the record; None clears a field.
pub(super) fn changes_to_python<'py>(py: Python<'py>, changes: Option<&Changes>) -> PyResult<Bound<'py, PyAny>> {
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
