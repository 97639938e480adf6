//! Simulates fleets, and compares policies.

use chrono::{DateTime, TimeDelta, Utc};
use lcm_sdk::simulate::{self as sdk, Events, Fleet, Scenario};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::annotation::{Annotated, JsonObject};
use crate::convert::{to_python, to_value};
use crate::input::to_moment;
use crate::policy::policy_or_default;
use crate::python::invalid_argument;
use crate::results::{Comparison, Figures, Step, frame, html};

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

/// The fleet, the events, the seed, and the entries without a model.
type ReadScenario<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, u64, Vec<String>);

/// Reads a scenario of the fake cloud, from its text or as an object: the fleet, the events, the seed, and the entries
/// without a model.
#[pyfunction]
#[pyo3(signature = (scenario: "str | Mapping[str, Any]") -> "tuple[dict[str, Any], dict[str, Any], int, list[str]]")]
pub(crate) fn read_scenario<'py>(py: Python<'py>, scenario: &Bound<'py, PyAny>) -> PyResult<ReadScenario<'py>> {
    let read = match scenario.extract::<String>() {
        Ok(text) => Scenario::from_yaml(&text),
        Err(_) => Scenario::from_json(to_value(scenario, "scenario")?),
    };
    let Scenario { fleet, events, seed, not_modeled, .. } =
        read.map_err(|error| PyValueError::new_err(format!("scenario: {error}")))?;
    Ok((as_python(py, &fleet)?, as_python(py, &events)?, seed, not_modeled))
}

fn as_python<'py>(py: Python<'py>, fields: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let value = serde_json::to_value(fields).map_err(|error| PyValueError::new_err(error.to_string()))?;
    to_python(py, &value)
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
        let hours = TimeDelta::milliseconds((self.history.inputs.hours * 3_600_000.0) as i64);
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
        self.history.inputs.seed
    }

    /// When the simulation starts, in its own time.
    #[getter]
    fn started_at(&self) -> DateTime<Utc> {
        self.history.started_at
    }

    /// Its duration in hours.
    #[getter]
    fn hours(&self) -> f64 {
        self.history.inputs.hours
    }

    /// Fleet, events, policy, hours and seed, with times in seconds.
    #[getter]
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Annotated<'py, JsonObject>> {
        Ok(as_python(py, &self.history.inputs)?.into())
    }

    /// The first 16 hexadecimal digits of the SHA-256 of the inputs.
    #[getter]
    fn digest(&self) -> String {
        self.history.inputs.digest()
    }

    /// Simulates the same inputs again. The same version gives the same history.
    fn repeat(&self, py: Python<'_>) -> PyResult<Self> {
        let history = py.detach(|| self.history.inputs.run());
        Ok(Self { history: history.map_err(|error| PyValueError::new_err(error.to_string()))? })
    }

    /// Actions of users that were refused, as dicts with the time, the worker, the action and the reason.
    #[pyo3(signature = () -> "list[dict[str, Any]]")]
    fn refused<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let rows = self.history.refused.iter().map(|refusal| {
            let row = PyDict::new(py);
            row.set_item("at", refusal.at)?;
            row.set_item("worker_id", self.history.workers[refusal.worker].as_str())?;
            row.set_item("action", refusal.action)?;
            row.set_item("why", &refusal.why)?;
            Ok(row)
        });
        PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)
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
    ///
    /// Raises `ValueError` for an unknown worker.
    #[pyo3(signature = (worker, at: "datetime | None" = None) -> "list[Step]")]
    fn why<'py>(&self, py: Python<'py>, worker: &str, at: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyList>> {
        let chain = self.history.why(worker, self.moment(at)?);
        let chain = chain.map_err(|error| PyValueError::new_err(error.to_string()))?;
        PyList::new(py, chain.into_iter().map(|step| self.step(py, step)).collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns the status of a worker at a time, by default the end.
    ///
    /// Raises `ValueError` for an unknown worker.
    #[pyo3(signature = (worker, at: "datetime | None" = None) -> "WorkerStatus")]
    fn status<'py>(
        &self,
        py: Python<'py>,
        worker: &str,
        at: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let status = self.history.status(worker, self.moment(at)?);
        let status = status.map_err(|error| PyValueError::new_err(error.to_string()))?;
        crate::python::worker_status(py, status.as_str())
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

    /// Returns the steps as a table, as `lcm.to_frame` does.
    #[pyo3(signature = () -> "lcm.frame.Frame")]
    fn to_frame<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        frame(slf.as_any())
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
        let sdk::History { workers, inputs, steps, version, .. } = &self.history;
        let (workers, steps, hours, seed) = (workers.len(), steps.len(), inputs.hours, inputs.seed);
        format!("<History of {workers} workers over {hours} h: {steps} steps, seed {seed}, version {version}>")
    }

    #[pyo3(signature = () -> "str")]
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        html(slf.as_any(), "history")
    }
}
