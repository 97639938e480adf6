//! Decisions about a whole fleet at once.

use std::collections::BTreeMap;

use lcm_sdk::{Decision, DesiredStatus, Ec2State, ReasonCode, Timestamp, WorkerStatus};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::convert::moment_or_now;
use crate::decision::decision_to_python;
use crate::observation::{Observation, Seen, read_state};
use crate::policy::{Policy, policy_or_default};
use crate::python::{is_a, observation_class};
use crate::records::{Known, Reader, Substance};

/// Workers after which other threads get their turn: a fraction of a millisecond.
const AT_ONCE: usize = 1024;

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
    let py = workers.py();
    let mut deciding = Deciding::new(py, policy_or_default(policy), moment_or_now(now)?, workers.len().unwrap_or(0));
    let mut words = Words::default();
    if is_one(observations)? {
        let of_all = words.sight(observations)?;
        for worker in workers.try_iter()? {
            deciding.add(&worker?, &of_all)?;
        }
    } else {
        let mut sights = observations.try_iter()?;
        for worker in workers.try_iter()? {
            let sight = sights.next().ok_or_else(|| uneven(workers, observations))?;
            deciding.add(&worker?, &words.sight(&sight?)?)?;
        }
        if sights.next().is_some() {
            return Err(uneven(workers, observations));
        }
    }
    Ok(deciding.decisions)
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
    fn known(&self) -> Known {
        match self {
            Self::State(state) => Known::State(*state),
            Self::Whole(_) => Known::Anything,
        }
    }
}

/// Whether one sight is meant for all workers: it is no list of them.
fn is_one(observations: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(observations.is_instance_of::<PyString>() || is_a(observations, observation_class(observations.py())?))
}

/// Words that were read before: a fleet is told about in a few, which are often the very same objects.
#[derive(Default)]
struct Words(Vec<(Py<PyString>, Ec2State)>);

impl Words {
    fn sight(&mut self, given: &Bound<'_, PyAny>) -> PyResult<Sight> {
        if let Ok(word) = given.cast::<PyString>() {
            return self.state(word).map(Sight::State);
        }
        if is_a(given, observation_class(given.py())?) {
            return Ok(Sight::Whole(given.getattr("_native")?.cast_into::<Observation>()?.unbind()));
        }
        let found = given.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
        let accepted = "lcm.Observation, or EC2's word for the state of the instance";
        Err(PyTypeError::new_err(format!("an observation is a {found}; accepted: {accepted}")))
    }

    fn state(&mut self, word: &Bound<'_, PyString>) -> PyResult<Ec2State> {
        if let Some((_, state)) = self.0.iter().find(|(known, _)| known.is(word)) {
            return Ok(*state);
        }
        let state = read_state(word, "an observation")?;
        if self.0.len() < Ec2State::ALL.len() {
            self.0.push((word.clone().unbind(), state));
        }
        Ok(state)
    }
}

/// A fleet on its way.
struct Deciding {
    policy: lcm_sdk::Policy,
    now: Timestamp,
    reader: Reader,
    views: Views,
    decisions: Decisions,
    standard: Standard,
}

impl Deciding {
    fn new(py: Python<'_>, policy: lcm_sdk::Policy, now: Timestamp, count: usize) -> Self {
        let (reader, views, standard) = (Reader::new(py), Views::default(), Standard::default());
        Self { policy, now, reader, views, decisions: Decisions::with_capacity(count), standard }
    }

    fn add(&mut self, record: &Bound<'_, PyAny>, sight: &Sight) -> PyResult<()> {
        let (id, substance) = self.reader.read(record, sight.known())?;
        let status = self.reader.worker().status;
        let place = match (substance, sight) {
            (Substance::Standard, Sight::State(state)) => self.standard(record, *state, sight),
            (Substance::Standard | Substance::Own, _) => self.own(sight),
        };
        self.decisions.decided.push(Decided { worker: id, status, decision: place });
        if self.decisions.decided.len().is_multiple_of(AT_ONCE) {
            record.py().detach(|| {});
        }
        Ok(())
    }

    /// Decides about the worker that was read last.
    fn own(&mut self, sight: &Sight) -> u32 {
        let worker = self.reader.worker();
        let decision = lcm_sdk::decide(worker, self.views.of(sight).of(worker), &self.policy, self.now);
        self.decisions.keep(decision)
    }

    /// The same, where other workers may have had the same decision.
    fn standard(&mut self, record: &Bound<'_, PyAny>, state: Ec2State, sight: &Sight) -> u32 {
        let verdict = self.standard.of(self.reader.worker(), state);
        if let Verdict::Shared(place) = *verdict {
            return place;
        }
        let is_new = matches!(std::mem::replace(verdict, Verdict::Own), Verdict::NotYet);
        self.reader.name_instance(record);
        let place = self.own(sight);
        if is_new {
            let mut twin = self.reader.worker().clone();
            twin.ec2_instance_id = Some("i-of-a-twin".into());
            let of_twin = lcm_sdk::decide(&twin, self.views.of(sight).of(&twin), &self.policy, self.now);
            if of_twin == self.decisions.different[place as usize] {
                *self.standard.of(&twin, state) = Verdict::Shared(place);
            }
        }
        place
    }
}

/// What was decided about workers of which nothing counts but status, wish, instance and the state of that.
///
/// The same input gives the same decision, so that one decision serves all of them, unless it speaks of the instance.
/// Whether it does is found out by deciding about the same worker with another instance.
struct Standard([Verdict; WorkerStatus::ALL.len() * WISHES * Ec2State::ALL.len()]);

/// What a worker can be wanted to be: a desired status, or nothing in particular.
const WISHES: usize = DesiredStatus::ALL.len() + 1;

#[derive(Clone, Copy)]
enum Verdict {
    NotYet,
    /// It speaks of the instance, and is made for each worker.
    Own,
    /// Alike for all of them, whatever their instance: where it is among the different ones.
    Shared(u32),
}

impl Default for Standard {
    fn default() -> Self {
        Self([Verdict::NotYet; _])
    }
}

impl Standard {
    fn of(&mut self, worker: &lcm_sdk::Worker, state: Ec2State) -> &mut Verdict {
        let wish = worker.desired_status.map_or(0, |desired| desired as usize + 1);
        &mut self.0[(worker.status as usize * WISHES + wish) * Ec2State::ALL.len() + state as usize]
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
    worker: Py<PyString>,
    status: WorkerStatus,
    /// Where its decision is among the different ones.
    decision: u32,
}

/// Decisions that become Python objects when somebody looks at them.
#[pyclass(frozen, module = "lcm._lcm")]
pub(crate) struct Decisions {
    decided: Vec<Decided>,
    /// Those that differ: most workers of a fleet are fine, and for the same few reasons.
    different: Vec<Decision>,
    /// For each reason, the latest decision that was made for it.
    latest: [Option<u32>; ReasonCode::ALL.len()],
}

impl Decisions {
    fn with_capacity(count: usize) -> Self {
        Self { decided: Vec::with_capacity(count), different: Vec::new(), latest: [None; ReasonCode::ALL.len()] }
    }

    /// Keeps a decision, unless the latest for the same reason is the same, and says where it is.
    fn keep(&mut self, decision: Decision) -> u32 {
        let latest = &mut self.latest[decision.reason.code as usize];
        let place = match *latest {
            Some(place) if self.different[place as usize] == decision => place,
            Some(_) | None => {
                let place = u32::try_from(self.different.len()).expect("fewer workers than fit into memory");
                self.different.push(decision);
                place
            }
        };
        *latest = Some(place);
        place
    }

    fn of(&self, decided: &Decided) -> &Decision {
        &self.different[decided.decision as usize]
    }
}

#[pymethods]
impl Decisions {
    fn __len__(&self) -> usize {
        self.decided.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        let found = self.decided.get(index);
        let decided = found.ok_or_else(|| PyIndexError::new_err("there is no such decision"))?;
        decision_to_python(py, decided.worker.bind(py), decided.status, self.of(decided))
    }

    /// The places of those that change a status.
    fn changing(&self) -> Vec<usize> {
        let changes = self.decided.iter().enumerate().filter(|(_, decided)| self.of(decided).transition.is_some());
        changes.map(|(place, _)| place).collect()
    }

    /// How many there are of each reason.
    fn reasons(&self) -> BTreeMap<&'static str, usize> {
        self.decided.iter().fold(BTreeMap::new(), |mut counts, decided| {
            *counts.entry(self.of(decided).reason.code.as_str()).or_default() += 1;
            counts
        })
    }
}
