//! The result of a replay.
#![expect(clippy::too_many_arguments, reason = "fields of Python classes")]

use std::collections::BTreeMap;

use lcm_sdk::history;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use serde_json::Value;

use super::{ResultClass, create, html};
use crate::convert::to_frozen;
use crate::python::{frozen_map, worker_status};

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
    }

    /// Whether every decision could be made again and is the same.
    #[getter]
    fn is_same(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.value(py, "changed")?.eq(0)? && self.value(py, "undecided")?.len()? == 0)
    }

    /// Number of differences by worker.
    #[getter]
    fn by_worker(&self, py: Python<'_>) -> PyResult<BTreeMap<String, u64>> {
        count(&self.value(py, "differences")?, |difference| difference.getattr("worker_id")?.extract())
    }

    /// Number of differences by recorded and replayed reason, as `drift → external_stop`.
    #[getter]
    fn by_reason(&self, py: Python<'_>) -> PyResult<BTreeMap<String, u64>> {
        count(&self.value(py, "differences")?, |difference| {
            let reason = |field| difference.getattr(field)?.extract::<String>();
            Ok(format!("{} → {}", reason("recorded_reason")?, reason("replayed_reason")?))
        })
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

fn count(
    items: &Bound<'_, PyAny>,
    key: impl Fn(&Bound<'_, PyAny>) -> PyResult<String>,
) -> PyResult<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for item in items.try_iter()? {
        *counts.entry(key(&item?)?).or_default() += 1;
    }
    Ok(counts)
}

impl Difference {
    fn from_sdk<'py>(py: Python<'py>, difference: &history::Difference) -> PyResult<Bound<'py, Self>> {
        let effects = |effects: &mut dyn Iterator<Item = &Value>| {
            let effects = effects.map(|effect| to_frozen(py, effect)).collect::<PyResult<Vec<_>>>()?;
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
                effects(&mut difference.no_longer())?,
                effects(&mut difference.newly())?,
                difference.to_string(),
            ),
        )
    }
}

impl Replay {
    pub(crate) fn from_sdk<'py>(py: Python<'py>, replay: &history::Replay) -> PyResult<Bound<'py, Self>> {
        let undecided = PyDict::new(py);
        for (query, decisions) in &replay.undecided {
            undecided.set_item(query, decisions)?;
        }
        let differences = replay.differences.iter().map(|difference| Difference::from_sdk(py, difference));
        let differences = differences.collect::<PyResult<Vec<_>>>()?;
        create(py, (replay.decisions, replay.changed, frozen_map(py, &undecided)?, PyTuple::new(py, differences)?))
    }
}
