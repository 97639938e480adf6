//! Simulates fleets, and compares policies.

use chrono::{DateTime, TimeDelta, Utc};
use lcm_sdk::simulate::{self as sdk, Events, Fleet};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use serde::de::DeserializeOwned;

use crate::convert::to_value;
use crate::input::to_moment;
use crate::policy::policy_or_default;
use crate::python::invalid_argument;
use crate::results::{Comparison, Figures, Step, html};

/// Everything that happened in a simulation.
#[pyclass(frozen, module = "lcm")]
pub(crate) struct History {
    history: sdk::History,
}

/// Simulates a fleet for some hours.
#[pyfunction]
#[pyo3(signature = (
    fleet: "Mapping[str, Any]",
    events: "Mapping[str, Any]",
    policy: "lcm.policy.Policy | None",
    hours,
    seed,
))]
pub(crate) fn simulate(
    py: Python<'_>,
    fleet: &Bound<'_, PyAny>,
    events: &Bound<'_, PyAny>,
    policy: Option<&Bound<'_, PyAny>>,
    hours: f64,
    seed: u64,
) -> PyResult<History> {
    let (fleet, events): (Fleet, Events) = (read(fleet, "fleet")?, read(events, "events")?);
    let policy = policy_or_default(policy)?;
    let history = py.detach(|| sdk::run(&fleet, &events, &policy, hours, seed));
    Ok(History { history: history.map_err(|error| PyValueError::new_err(error.to_string()))? })
}

/// Simulates the same fleet and events under several policies.
#[pyfunction]
#[pyo3(signature = (
    policies: "Mapping[str, lcm.policy.Policy]",
    fleet: "Mapping[str, Any]",
    events: "Mapping[str, Any]",
    hours,
    seed,
))]
pub(crate) fn compare<'py>(
    py: Python<'py>,
    policies: &Bound<'py, PyDict>,
    fleet: &Bound<'py, PyAny>,
    events: &Bound<'py, PyAny>,
    hours: f64,
    seed: u64,
) -> PyResult<Bound<'py, Comparison>> {
    let (fleet, events): (Fleet, Events) = (read(fleet, "fleet")?, read(events, "events")?);
    let named = |(name, policy): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        Ok((name.extract::<String>()?, policy_or_default(Some(&policy))?))
    };
    let policies = policies.iter().map(named).collect::<PyResult<Vec<_>>>()?;
    let compared = py.detach(|| {
        let policies = policies.iter().map(|(name, policy)| (name.as_str(), policy));
        sdk::compare(policies, &fleet, &events, hours, seed)
    });
    Comparison::from_sdk(py, &compared.map_err(|error| PyValueError::new_err(error.to_string()))?)
}

fn read<T: DeserializeOwned>(fields: &Bound<'_, PyAny>, path: &str) -> PyResult<T> {
    serde_json::from_value(to_value(fields, path)?).map_err(|error| invalid_argument(path, &error))
}

impl History {
    fn step<'py>(&self, py: Python<'py>, step: &sdk::Step) -> PyResult<Bound<'py, Step>> {
        Step::from_sdk(py, step, self.history.workers[step.worker].as_str())
    }

    /// The given time, or the end of the simulation.
    fn moment(&self, at: Option<&Bound<'_, PyAny>>) -> PyResult<DateTime<Utc>> {
        let hours = TimeDelta::milliseconds((self.history.hours * 3_600_000.0) as i64);
        at.map_or_else(|| Ok(self.history.started_at + hours), |at| to_moment(at, "at"))
    }
}

#[pymethods]
impl History {
    /// Version of LCM that decided.
    #[getter]
    fn version(&self) -> &'static str {
        self.history.version
    }

    /// Seed of the random numbers. The same version, arguments and seed give the same history.
    #[getter]
    fn seed(&self) -> u64 {
        self.history.seed
    }

    /// When the simulation starts, in its own time.
    #[getter]
    fn started_at(&self) -> DateTime<Utc> {
        self.history.started_at
    }

    /// Its duration in hours.
    #[getter]
    fn hours(&self) -> f64 {
        self.history.hours
    }

    /// Ids of the workers.
    #[getter]
    fn workers(&self) -> Vec<&str> {
        self.history.workers.iter().map(|worker| worker.as_str()).collect()
    }

    /// Totals of the simulation.
    #[getter]
    fn figures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Figures>> {
        Figures::from_sdk(py, &self.history.figures)
    }

    /// Returns the steps of all workers or of one, in order of time.
    #[pyo3(signature = (worker: "str | None" = None) -> "list[Step]")]
    fn steps<'py>(&self, py: Python<'py>, worker: Option<&str>) -> PyResult<Bound<'py, PyList>> {
        let position = worker.map(|worker| self.history.workers.iter().position(|id| id.as_str() == worker));
        let chosen = self.history.steps.iter().filter(|step| position.is_none_or(|chosen| chosen == Some(step.worker)));
        let steps = chosen.map(|step| self.step(py, step)).collect::<PyResult<Vec<_>>>()?;
        PyList::new(py, steps)
    }

    /// Returns the chain of steps that led to the status of a worker at a time, by default the end.
    #[pyo3(signature = (worker, at: "datetime | None" = None) -> "list[Step]")]
    fn why<'py>(&self, py: Python<'py>, worker: &str, at: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyList>> {
        let chain = self.history.why(worker, self.moment(at)?);
        PyList::new(py, chain.into_iter().map(|step| self.step(py, step)).collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns the status of a worker at a time, by default the end; None for an unknown worker.
    #[pyo3(signature = (worker, at: "datetime | None" = None) -> "WorkerStatus | None")]
    fn status<'py>(
        &self,
        py: Python<'py>,
        worker: &str,
        at: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let status = self.history.status(worker, self.moment(at)?);
        status.map(|status| crate::python::worker_status(py, status.as_str())).transpose()
    }

    /// Returns the steps as dicts, for a table.
    #[pyo3(signature = () -> "list[dict[str, Any]]")]
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let rows = self.history.steps.iter().map(|step| {
            let row = PyDict::new(py);
            row.set_item("at", step.at)?;
            row.set_item("worker_id", self.history.workers[step.worker].as_str())?;
            row.set_item("from_status", step.from.as_str())?;
            row.set_item("to_status", step.to.as_str())?;
            row.set_item("outcome", step.outcome.as_str())?;
            row.set_item("reason", step.reason.code.as_str())?;
            row.set_item("ec2", step.ec2)?;
            row.set_item("sessions", step.sessions)?;
            row.set_item("effects", PyTuple::new(py, step.effects.iter().map(|effect| effect.as_str()))?)?;
            row.set_item("repeats", step.repeats)?;
            Ok(row)
        });
        PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.history == other.history
    }

    fn __len__(&self) -> usize {
        self.history.steps.len()
    }

    fn __str__(&self) -> String {
        self.history.figures.to_string()
    }

    fn __repr__(&self) -> String {
        let sdk::History { workers, hours, seed, steps, version, .. } = &self.history;
        let (workers, steps) = (workers.len(), steps.len());
        format!("<History of {workers} workers over {hours} h: {steps} steps, seed {seed}, version {version}>")
    }

    #[pyo3(signature = () -> "str")]
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        html(slf.as_any(), "history")
    }
}
