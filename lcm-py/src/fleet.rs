//! Decisions about a whole fleet at once.

use std::collections::BTreeMap;

use lcm_sdk::{Decision, Ec2State, Timestamp, WorkerId, WorkerStatus};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::convert::moment_or_now;
use crate::decision::decision_to_python;
use crate::observation::{Observation, Seen, read_state};
use crate::policy::{Policy, policy_or_default};
use crate::python::{is_a, observation_class};
use crate::records::{self, Known, Reading};

/// Workers that are read before the interpreter is let go of to decide about them.
const AT_ONCE: usize = 256;

/// Decides about many workers at once. `observations` is one for all of them, or a list with one for each; each is an
/// observation or just EC2's word for the instance's state.
#[pyfunction]
#[pyo3(signature = (workers, observations, policy=None, now=None))]
pub(crate) fn decide_many(
    workers: &Bound<'_, PyAny>,
    observations: &Bound<'_, PyAny>,
    policy: Option<&Bound<'_, Policy>>,
    now: Option<&Bound<'_, PyAny>>,
) -> PyResult<Decisions> {
    let mut deciding = Deciding::new(policy_or_default(policy), moment_or_now(now)?, workers.len().unwrap_or(0));
    if let Some(of_all) = Sight::one(observations)? {
        for worker in workers.try_iter()? {
            deciding.add(&worker?, of_all.another(workers.py()))?;
        }
    } else {
        let mut sights = observations.try_iter()?;
        for worker in workers.try_iter()? {
            let sight = sights.next().ok_or_else(|| uneven(workers, observations))?;
            deciding.add(&worker?, Sight::read(&sight?)?)?;
        }
        if sights.next().is_some() {
            return Err(uneven(workers, observations));
        }
    }
    Ok(deciding.finish(workers.py()))
}

fn uneven(workers: &Bound<'_, PyAny>, observations: &Bound<'_, PyAny>) -> PyErr {
    let count = |of: &Bound<'_, PyAny>| of.len().map_or_else(|_| "another number of".to_owned(), |n| n.to_string());
    PyValueError::new_err(format!(
        "there are {} observations for {} workers; accepted: one for each, or one for all",
        count(observations),
        count(workers)
    ))
}

/// What was seen of a worker.
enum Sight {
    State(Ec2State),
    Whole(Py<Observation>),
}

impl Sight {
    /// One that is meant for all workers, if it is no list of them.
    fn one(given: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let is_one = given.is_instance_of::<PyString>() || is_a(given, observation_class(given.py())?);
        if is_one { Self::read(given).map(Some) } else { Ok(None) }
    }

    fn read(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(state) = given.cast::<PyString>() {
            return read_state(state, "an observation").map(Self::State);
        }
        if is_a(given, observation_class(given.py())?) {
            return Ok(Self::Whole(given.getattr("_native")?.cast_into::<Observation>()?.unbind()));
        }
        let found = given.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
        let accepted = "lcm.Observation, or EC2's word for the state of the instance";
        Err(PyTypeError::new_err(format!("an observation is a {found}; accepted: {accepted}")))
    }

    fn known(&self) -> Known {
        match self {
            Self::State(_) => Known::State,
            Self::Whole(_) => Known::Anything,
        }
    }

    fn another(&self, py: Python<'_>) -> Self {
        match self {
            Self::State(state) => Self::State(*state),
            Self::Whole(observation) => Self::Whole(observation.clone_ref(py)),
        }
    }
}

/// A fleet on its way: read with the interpreter, decided without.
struct Deciding {
    policy: lcm_sdk::Policy,
    now: Timestamp,
    /// Those read so far; the rooms of earlier ones behind them.
    readings: Vec<Reading>,
    sights: Vec<Sight>,
    views: Views,
    decided: Vec<Decided>,
}

impl Deciding {
    fn new(policy: lcm_sdk::Policy, now: Timestamp, count: usize) -> Self {
        Self {
            policy,
            now,
            readings: Vec::with_capacity(AT_ONCE.min(count)),
            sights: Vec::with_capacity(AT_ONCE.min(count)),
            views: Views::default(),
            decided: Vec::with_capacity(count),
        }
    }

    fn add(&mut self, worker: &Bound<'_, PyAny>, sight: Sight) -> PyResult<()> {
        let place = self.sights.len();
        if self.readings.len() == place {
            self.readings.push(Reading::default());
        }
        records::read(worker, sight.known(), &mut self.readings[place])?;
        self.sights.push(sight);
        if self.sights.len() == AT_ONCE {
            self.decide(worker.py());
        }
        Ok(())
    }

    fn decide(&mut self, py: Python<'_>) {
        let Self { policy, now, readings, sights, views, decided, .. } = self;
        py.detach(|| {
            for (Reading { worker, .. }, sight) in readings.iter_mut().zip(&*sights) {
                let decision = lcm_sdk::decide(worker, views.of(sight).of(worker), policy, *now);
                let id = std::mem::replace(&mut worker.id, String::new().into());
                decided.push(Decided { worker: id, status: worker.status, decision });
            }
        });
        sights.clear();
    }

    fn finish(mut self, py: Python<'_>) -> Decisions {
        self.decide(py);
        Decisions { decided: self.decided }
    }
}

/// Views that fit themselves to one worker after the other: one for each state, and one of the latest observation.
#[derive(Default)]
struct Views {
    of_states: [Option<Box<Seen>>; Ec2State::ALL.len()],
    of_latest: Option<(usize, Box<Seen>)>,
}

impl Views {
    fn of(&mut self, sight: &Sight) -> &mut Seen {
        match sight {
            Sight::State(state) => {
                self.of_states[*state as usize].get_or_insert_with(|| Box::new(Seen::of_state(*state)))
            }
            Sight::Whole(observation) => {
                let identity = observation.as_ptr() as usize;
                let latest = self.of_latest.take().filter(|(known, _)| *known == identity);
                let fresh = || (identity, Box::new(observation.get().seen()));
                &mut self.of_latest.insert(latest.unwrap_or_else(fresh)).1
            }
        }
    }
}

struct Decided {
    worker: WorkerId,
    status: WorkerStatus,
    decision: Decision,
}

/// Decisions that become Python objects when somebody looks at them.
#[pyclass(frozen, module = "lcm._lcm")]
pub(crate) struct Decisions {
    decided: Vec<Decided>,
}

#[pymethods]
impl Decisions {
    fn __len__(&self) -> usize {
        self.decided.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        let found = self.decided.get(index);
        let Decided { worker, status, decision } =
            found.ok_or_else(|| PyIndexError::new_err("there is no such decision"))?;
        decision_to_python(py, worker, *status, decision)
    }

    /// The places of those that change a status.
    fn changing(&self) -> Vec<usize> {
        let changes = self.decided.iter().enumerate().filter(|(_, decided)| decided.decision.transition.is_some());
        changes.map(|(place, _)| place).collect()
    }

    /// How many there are of each reason.
    fn reasons(&self) -> BTreeMap<&'static str, usize> {
        self.decided.iter().fold(BTreeMap::new(), |mut counts, decided| {
            *counts.entry(decided.decision.reason.code.as_str()).or_default() += 1;
            counts
        })
    }
}
