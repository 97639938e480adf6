//! Results of simulations.
#![expect(clippy::too_many_arguments, clippy::wrong_self_convention, reason = "fields of Python classes")]

use std::fmt::Display;

use lcm_sdk::simulate;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use super::{Fields, ResultClass, create, frame, html};
use crate::python::{effect_name, frozen_map, outcome, reason_code, worker_status};

result_class! {
    /// A simulated reconcile that changed something or failed.
    Step in "lcm" {
        /// The time of the reconcile.
        at: "datetime",
        /// Id of the worker.
        worker_id: "str",
        /// Status before the reconcile.
        from_status: "WorkerStatus",
        /// Status after the reconcile.
        to_status: "WorkerStatus",
        /// The outcome (`Outcome`).
        outcome: "Outcome",
        /// Stable code of the reason (`ReasonCode`).
        reason: "ReasonCode",
        /// The reason as a sentence.
        sentence: "str",
        /// Observed state of the instance: a state of EC2, `absent`, `unknown` or `not requested`.
        ec2: "str",
        /// Number of sessions assigned to the worker.
        sessions: "int",
        /// Names of the effects that were tried.
        effects: "tuple[EffectName, ...]",
        /// How many more followed that were the same.
        repeats: "int",
        /// Time, statuses, reason and effects in one line.
        text: "str",
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        self.value(py, "text")?.extract()
    }
}

result_class! {
    /// Totals of a simulation. Times are seconds.
    Figures in "lcm" {
        /// Sessions that were requested.
        requested: "int",
        /// Sessions that ran to their end.
        served: "int",
        /// Sessions that began more than a minute late.
        delayed: "int",
        /// Sessions that were given up while they waited.
        given_up: "int",
        /// Sessions that were ended by the end of their worker or of its drain.
        cut_short: "int",
        /// How often a drain handed a session back before it began.
        handed_back: "int",
        /// Mean delay of the sessions that began.
        mean_delay: "float",
        /// Longest delay of a session that began.
        longest_delay: "float",
        /// Hours that instances were running.
        instance_hours: "float",
        /// Price of these hours.
        cost: "float",
        /// Mean time from the wish for a worker to its being in service; None if none came up.
        mean_time_to_running: "float | None",
        /// Longest time from the wish for a worker to its being in service.
        longest_time_to_running: "float | None",
        /// Number of workers that came into service.
        starts: "int",
        /// Number of reconciles that were carried out.
        reconciles: "int",
        /// Number of calls that describe instances, polls included.
        describes: "int",
        /// How often a leader was replaced or restarted.
        leader_changes: "int",
        /// Number of effects by name.
        calls: "Mapping[EffectName, int]",
        /// Number of evaluations by scale-down, by the label of the verdict.
        scale_down: "Mapping[str, int]",
        /// Number of reconciles by reason.
        reasons: "Mapping[ReasonCode, int]",
        /// Sessions, hours and cost in one line.
        text: "str",
    }

    /// Sessions that were given up or cut short.
    #[getter]
    fn lost(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.value(py, "given_up")?.extract::<u64>()? + self.value(py, "cut_short")?.extract::<u64>()?)
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        self.value(py, "text")?.extract()
    }
}

result_class! {
    /// The same fleet and events under several policies.
    Comparison in "lcm" {
        /// Version of LCM that decided.
        version: "str",
        /// Seed of the random numbers.
        seed: "int",
        /// Duration in hours.
        hours: "float",
        /// The first 16 hexadecimal digits of the SHA-256 of fleet, events, policies, hours and seed.
        digest: "str",
        /// Figures by the name of the policy.
        figures: "Mapping[str, Figures]",
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        let items = self.value(py, "figures")?.call_method0("items")?;
        let line = |item: PyResult<Bound<'_, PyAny>>| {
            let (name, figures): (String, Bound<'_, PyAny>) = item?.extract()?;
            Ok(format!("{name}: {figures}"))
        };
        Ok(items.try_iter()?.map(line).collect::<PyResult<Vec<_>>>()?.join("\n"))
    }

    /// Returns the figures of each policy as a table, as `lcm.to_frame` does.
    #[pyo3(signature = () -> "lcm.frame.Frame")]
    fn to_frame<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        frame(slf.as_any())
    }

    #[pyo3(signature = () -> "str")]
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        html(slf.as_any(), "comparison")
    }
}

impl Step {
    pub(crate) fn from_sdk<'py>(py: Python<'py>, step: &simulate::Step, worker: &str) -> PyResult<Bound<'py, Self>> {
        let effects = step.effects.iter().map(|effect| effect_name(py, effect.as_str()));
        let effects = effects.collect::<PyResult<Vec<_>>>()?;
        let values = [
            step.at.into_pyobject(py)?.into_any(),
            worker.into_pyobject(py)?.into_any(),
            worker_status(py, step.from.as_str())?,
            worker_status(py, step.to.as_str())?,
            outcome(py, step.outcome.as_str())?,
            reason_code(py, step.reason.code.as_str())?,
            step.reason.to_string().into_pyobject(py)?.into_any(),
            step.ec2.into_pyobject(py)?.into_any(),
            step.sessions.into_pyobject(py)?.into_any(),
            PyTuple::new(py, effects)?.into_any(),
            step.repeats.into_pyobject(py)?.into_any(),
            step.to_string().into_pyobject(py)?.into_any(),
        ];
        Bound::new(py, Self::from(Fields::from_values(&PyTuple::new(py, values)?)))
    }
}

impl Figures {
    pub(crate) fn from_sdk<'py>(py: Python<'py>, figures: &simulate::Figures) -> PyResult<Bound<'py, Self>> {
        fn counts<'a, 'py, K: Display + 'a>(
            py: Python<'py>,
            counts: impl IntoIterator<Item = (&'a K, &'a u64)>,
            member: impl Fn(Python<'py>, &str) -> PyResult<Bound<'py, PyAny>>,
        ) -> PyResult<Bound<'py, PyAny>> {
            let dict = PyDict::new(py);
            for (key, count) in counts {
                dict.set_item(member(py, &key.to_string())?, count)?;
            }
            frozen_map(py, &dict)
        }
        let sessions = &figures.sessions;
        let verdicts = PyDict::new(py);
        for (verdict, count) in &figures.scale_down {
            verdicts.set_item(verdict.label(), count)?;
        }
        let values = [
            sessions.requested.into_pyobject(py)?.into_any(),
            sessions.served.into_pyobject(py)?.into_any(),
            sessions.delayed.into_pyobject(py)?.into_any(),
            sessions.given_up.into_pyobject(py)?.into_any(),
            sessions.cut_short.into_pyobject(py)?.into_any(),
            sessions.handed_back.into_pyobject(py)?.into_any(),
            sessions.mean_delay.into_pyobject(py)?.into_any(),
            sessions.longest_delay.into_pyobject(py)?.into_any(),
            figures.instance_hours.into_pyobject(py)?.into_any(),
            figures.cost.into_pyobject(py)?.into_any(),
            figures.mean_time_to_running.into_pyobject(py)?.into_any(),
            figures.longest_time_to_running.into_pyobject(py)?.into_any(),
            figures.starts.into_pyobject(py)?.into_any(),
            figures.reconciles.into_pyobject(py)?.into_any(),
            figures.describes.into_pyobject(py)?.into_any(),
            figures.leader_changes.into_pyobject(py)?.into_any(),
            counts(py, &figures.calls, effect_name)?,
            frozen_map(py, &verdicts)?,
            counts(py, &figures.reasons, reason_code)?,
            figures.to_string().into_pyobject(py)?.into_any(),
        ];
        Bound::new(py, Self::from(Fields::from_values(&PyTuple::new(py, values)?)))
    }
}

impl Comparison {
    pub(crate) fn from_sdk<'py>(py: Python<'py>, comparison: &simulate::Comparison) -> PyResult<Bound<'py, Self>> {
        let figures = PyDict::new(py);
        for (name, of_policy) in &comparison.rows {
            figures.set_item(name, Figures::from_sdk(py, of_policy)?)?;
        }
        create(
            py,
            (comparison.version, comparison.seed, comparison.hours, &comparison.digest, frozen_map(py, &figures)?),
        )
    }
}
