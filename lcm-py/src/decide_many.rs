//! Decisions about a whole fleet in one call.

use std::collections::BTreeMap;

use lcm_sdk::{Ec2State, Timestamp};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::convert::moment_or_now;
use crate::observation::{Observation, Observed, native_observation, parse_state};
use crate::policy::policy_or_default;
use crate::python::{is_a, observation_class};
use crate::results::{self, Decided};
use crate::worker::{Worker, iterate_workers, read_listed_worker};

/// Workers between two releases of the interpreter lock: a fraction of a millisecond.
const CHUNK: usize = 1024;

/// Decides about many workers. `observations` is one for all workers, or an iterable with one for each. An observation is
/// an `lcm.Observation` or an EC2 state.
#[pyfunction]
#[pyo3(signature = (
    workers: "Iterable[AnyWorker]",
    observations: "lcm.observation.Observation | AnyEc2State | Sequence[lcm.observation.Observation | str]",
    policy: "lcm.policy.Policy | None" = None,
    now: "datetime | None" = None,
))]
pub(crate) fn decide_many(
    workers: &Bound<'_, PyAny>,
    observations: &Bound<'_, PyAny>,
    policy: Option<&Bound<'_, PyAny>>,
    now: Option<&Bound<'_, PyAny>>,
) -> PyResult<Decisions> {
    let (policy, now) = (policy_or_default(policy)?, moment_or_now(now)?);
    let mut fleet = Fleet::new(policy, now, workers.len().unwrap_or(0));
    if is_single(observations)? {
        for worker in iterate_workers(workers)? {
            fleet.decide(&worker?, observations)?;
        }
        // Reports an invalid observation for an empty fleet too.
        fleet.observations.get(observations)?;
    } else {
        let mut remaining = observations.try_iter()?;
        for worker in iterate_workers(workers)? {
            let observation = remaining.next().ok_or_else(|| uneven(workers, observations))?;
            fleet.decide(&worker?, &observation?)?;
        }
        if remaining.next().is_some() {
            return Err(uneven(workers, observations));
        }
    }
    Ok(Decisions { decided: fleet.decided })
}

fn uneven(workers: &Bound<'_, PyAny>, observations: &Bound<'_, PyAny>) -> PyErr {
    let count = |list: &Bound<'_, PyAny>| list.len().map_or_else(|_| "another number of".to_owned(), |n| n.to_string());
    PyValueError::new_err(format!(
        "there are {} observations for {} workers; accepted: one for each, or one for all",
        count(observations),
        count(workers)
    ))
}

/// Whether one observation applies to all workers.
fn is_single(observations: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(observations.is_instance_of::<PyString>() || is_a(observations, observation_class(observations.py())?))
}

/// Decisions in progress.
struct Fleet {
    policy: lcm_sdk::Policy,
    now: Timestamp,
    decided: Vec<Decided>,
    observations: Observations,
}

impl Fleet {
    fn new(policy: lcm_sdk::Policy, now: Timestamp, count: usize) -> Self {
        Self { policy, now, decided: Vec::with_capacity(count), observations: Observations::default() }
    }

    fn decide(&mut self, worker: &Bound<'_, PyAny>, observation: &Bound<'_, PyAny>) -> PyResult<()> {
        let observed = self.observations.get(observation)?;
        let index = self.decided.len();
        let decided = &mut self.decided;
        let decide = |record: &lcm_sdk::Worker| {
            let decide = |observation: &_| lcm_sdk::decide(record, observation, &self.policy, self.now);
            let decision = match observed {
                Given::State(observed) => decide(observed.fit(record)),
                Given::Observation(observation) => observation.get().with_fitted(record, decide),
            };
            decided.push(Decided { worker_id: record.id.clone(), status: record.status, decision });
        };
        match worker.cast::<Worker>() {
            Ok(worker) => decide(&worker.get().record),
            Err(_) => decide(&read_listed_worker(worker, index)?),
        }
        if self.decided.len().is_multiple_of(CHUNK) {
            worker.py().detach(|| {});
        }
        Ok(())
    }
}

/// An observation as given.
enum Given<'o, 'py> {
    State(&'o mut Observed),
    Observation(Bound<'py, Observation>),
}

/// Observations of a state alone: one for each state, shared by all workers in that state.
#[derive(Default)]
struct Observations {
    by_state: [Option<Box<Observed>>; Ec2State::ALL.len()],
}

impl Observations {
    fn get<'py>(&mut self, observation: &Bound<'py, PyAny>) -> PyResult<Given<'_, 'py>> {
        if let Ok(word) = observation.cast::<PyString>() {
            let state = parse_state(word, "an observation")?;
            let observed = &mut self.by_state[state as usize];
            return Ok(Given::State(observed.get_or_insert_with(|| Box::new(Observed::from_state(state)))));
        }
        if !is_a(observation, observation_class(observation.py())?) {
            let found = observation.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
            let accepted = "lcm.Observation, or EC2's word for the state of the instance";
            return Err(PyTypeError::new_err(format!("an observation is a {found}; accepted: {accepted}")));
        }
        native_observation(observation).map(Given::Observation)
    }
}

/// Decisions about a fleet, converted to Python when one is read.
#[pyclass(frozen, module = "lcm._lcm")]
pub(crate) struct Decisions {
    decided: Vec<Decided>,
}

#[pymethods]
impl Decisions {
    fn __len__(&self) -> usize {
        self.decided.len()
    }

    fn __getitem__(&self, index: usize) -> PyResult<results::Decision> {
        let decided = self.decided.get(index);
        let decided = decided.ok_or_else(|| PyIndexError::new_err("there is no such decision"))?;
        Ok(results::Decision::from_decided(decided.clone()))
    }

    /// Returns the indices of the decisions that change a status.
    fn changing(&self) -> Vec<usize> {
        let changes = self.decided.iter().enumerate().filter(|(_, decided)| decided.decision.transition.is_some());
        changes.map(|(index, _)| index).collect()
    }

    /// Returns the number of decisions by reason code.
    fn reasons(&self) -> BTreeMap<&'static str, usize> {
        self.decided.iter().fold(BTreeMap::new(), |mut counts, decided| {
            *counts.entry(decided.decision.reason.code.as_str()).or_default() += 1;
            counts
        })
    }
}
