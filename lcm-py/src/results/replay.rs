//! The result of a replay.
#![expect(clippy::too_many_arguments, clippy::wrong_self_convention, reason = "fields of Python classes")]

use std::collections::BTreeMap;

use lcm_sdk::history;
use pyo3::IntoPyObjectExt as _;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use serde_json::Value;

use super::{Fields, ResultClass, create, html};
use crate::convert::to_frozen;
use crate::python::{frozen_map, outcome, worker_status};

result_class! {
    /// A decision of a history that another version or policy makes differently.
    Difference in "lcm" {
        /// The time of the decision.
        at: "datetime",
        /// Id of the worker.
        worker_id: "str",
        /// Status on its record.
        status: "WorkerStatus",
        /// Reason code of the recorded decision.
        recorded_reason: "str",
        /// Reason code of the replayed decision.
        replayed_reason: "str",
        /// Status after the recorded decision.
        recorded_status: "WorkerStatus",
        /// Status after the replayed decision.
        replayed_status: "WorkerStatus",
        /// Effects of the recorded decision only, as dicts.
        no_longer: "tuple[Mapping[str, Any], ...]",
        /// Effects of the replayed decision only, as dicts.
        newly: "tuple[Mapping[str, Any], ...]",
        /// Everything that differs, in one line.
        text: "str",
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        self.value(py, "text")?.extract()
    }
}

result_class! {
    /// The decisions of a history, made again.
    Replay in "lcm" {
        /// Number of decisions made again.
        decisions: "int",
        /// Number of decisions that differ.
        changed: "int",
        /// Number of decisions that need an observation that the history lacks, by its name.
        undecided: "Mapping[str, int]",
        /// The first 10,000 decisions that differ, in order of the history.
        differences: "tuple[Difference, ...]",
        /// Number of decisions that differ by worker.
        by_worker: "Mapping[str, int]",
        /// Number of decisions that differ by recorded and replayed reason, as `drift → external_stop`.
        by_reason: "Mapping[str, int]",
        /// Parts of the history that this version does not know and skipped, as sentences.
        warnings: "tuple[str, ...]",
    }

    /// Whether every decision could be made again and is the same.
    #[getter]
    fn is_same(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.value(py, "changed")?.eq(0)? && self.value(py, "undecided")?.len()? == 0)
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        let number = |field| self.value(py, field)?.extract::<u64>();
        let undecided: BTreeMap<String, u64> = self.value(py, "undecided")?.call_method0("items")?.try_iter()?
            .map(|item| item?.extract()).collect::<PyResult<_>>()?;
        let mut text = format!("{} decisions, {} differ", number("decisions")?, number("changed")?);
        for (query, decisions) in undecided {
            text.push_str(&format!(", {decisions} need {query}"));
        }
        Ok(text)
    }

    #[pyo3(signature = () -> "str")]
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        html(slf.as_any(), "replay")
    }
}

result_class! {
    /// A recorded reconcile of a worker, or several in a row that ended the same.
    RecordedStep in "lcm" {
        /// The time of the decision; of several, the first.
        at: "datetime",
        /// The time of the latest of them.
        last_at: "datetime",
        /// How many more were recorded that ended the same.
        repeats: "int",
        /// Id of the worker.
        worker_id: "str",
        /// Outcome of the reconcile.
        outcome: "Outcome",
        /// Status on the record before it.
        from_status: "WorkerStatus",
        /// Status after it.
        to_status: "WorkerStatus",
        /// Stable code of the reason; one of another version may be unknown to this one.
        reason: "str",
        /// The reason as a sentence.
        sentence: "str",
        /// The operator who requested it; None if the controller decided it by itself.
        requested_by: "str | None",
        /// The observation that it was decided on, in words, by the name of the lookup.
        observed: "Mapping[str, str]",
        /// Effects in order, such as `stop_instance i-1`.
        effects: "tuple[str, ...]",
        /// Result of each effect, such as `done`, `launched i-1`, `not_tried`, or `failed: ` and the failure.
        results: "tuple[str, ...]",
        /// Time, statuses, reason and effects in one line.
        text: "str",
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        self.value(py, "text")?.extract()
    }
}

impl RecordedStep {
    pub(crate) fn from_sdk<'py>(py: Python<'py>, step: &history::RecordedStep) -> PyResult<Bound<'py, Self>> {
        let observed = PyDict::new(py);
        for part in &step.observed {
            observed.set_item(part.query.as_str(), &part.found)?;
        }
        let values = [
            step.at.into_bound_py_any(py)?,
            step.last_at.into_bound_py_any(py)?,
            step.repeats.into_bound_py_any(py)?,
            step.worker_id.as_str().into_bound_py_any(py)?,
            outcome(py, step.outcome.as_str())?,
            worker_status(py, step.from_status.as_str())?,
            worker_status(py, step.to_status.as_str())?,
            step.reason.code.as_str().into_bound_py_any(py)?,
            step.reason.sentence.as_str().into_bound_py_any(py)?,
            step.requested_by.as_deref().into_bound_py_any(py)?,
            frozen_map(py, &observed)?,
            PyTuple::new(py, &step.effects)?.into_any(),
            PyTuple::new(py, &step.results)?.into_any(),
            step.to_string().into_bound_py_any(py)?,
        ];
        Bound::new(py, Self::from(Fields::from_values(&PyTuple::new(py, values)?)))
    }
}

impl Difference {
    fn from_sdk<'py>(py: Python<'py>, difference: &history::Difference) -> PyResult<Bound<'py, Self>> {
        let effects = |effects: Vec<Value>| {
            let effects = effects.iter().map(|effect| to_frozen(py, effect)).collect::<PyResult<Vec<_>>>()?;
            PyTuple::new(py, effects)
        };
        let after =
            |decision: &history::RecordedDecision| worker_status(py, decision.to.unwrap_or(difference.status).as_str());
        create(
            py,
            (
                difference.at,
                difference.worker.as_str(),
                worker_status(py, difference.status.as_str())?,
                difference.recorded.reason.as_str(),
                difference.replayed.reason.as_str(),
                after(&difference.recorded)?,
                after(&difference.replayed)?,
                effects(difference.no_longer())?,
                effects(difference.newly())?,
                difference.to_string(),
            ),
        )
    }
}

impl Replay {
    pub(crate) fn from_sdk<'py>(py: Python<'py>, replay: &history::Replay) -> PyResult<Bound<'py, Self>> {
        let counts = |counts: &mut dyn Iterator<Item = (String, u64)>| {
            let dict = PyDict::new(py);
            for (name, decisions) in counts {
                dict.set_item(name, decisions)?;
            }
            frozen_map(py, &dict)
        };
        let differences = replay.differences.iter().map(|difference| Difference::from_sdk(py, difference));
        let differences = differences.collect::<PyResult<Vec<_>>>()?;
        let (by_worker, by_reason) = (replay.by_worker(), replay.by_reason());
        create(
            py,
            (
                replay.decisions,
                replay.changed,
                counts(&mut replay.undecided.iter().map(|(query, decisions)| ((*query).to_owned(), *decisions)))?,
                PyTuple::new(py, differences)?,
                counts(&mut by_worker.iter().map(|(worker, decisions)| (worker.to_string(), *decisions)))?,
                counts(&mut by_reason.iter().map(|((old, new), decisions)| (format!("{old} → {new}"), *decisions)))?,
                PyTuple::new(py, &replay.warnings)?,
            ),
        )
    }
}
