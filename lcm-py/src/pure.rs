//! Decisions without a network.

use std::collections::{BTreeMap, HashMap};

use lcm_sdk::lifecycle::discovery::{Completeness, Scan};
use lcm_sdk::lifecycle::drain::{self, DrainError};
use lcm_sdk::lifecycle::orphans::{self, SubnetSight};
use lcm_sdk::lifecycle::transition;
use lcm_sdk::{CallFailure, FailureKind, InstanceId, Lookup, WorkerStatus};
use pyo3::prelude::*;
use pyo3::types::PyMapping;

use crate::convert::moment_or_now;
use crate::decision::decision_to_python;
use crate::observation::{
    Observation, answer, read_instance, read_list, read_named_instance, read_sessions, read_template,
};
use crate::orphans::verdict_to_python;
use crate::policy::{Policy, policy_or_default};
use crate::python::invalid_transition;
use crate::records::{Known, Reader};
use crate::worker::{Worker, read_worker, read_workers};

/// The transition table: one `(from, to, kind, when)` for each legal edge.
#[pyfunction]
pub(crate) fn transitions() -> Vec<(&'static str, &'static str, &'static str, &'static str)> {
    transition::TABLE.iter().map(|edge| (edge.from.as_str(), edge.to.as_str(), edge.kind.as_str(), edge.when)).collect()
}

/// The table drawn: format name to text.
#[pyfunction]
pub(crate) fn diagrams() -> BTreeMap<&'static str, String> {
    BTreeMap::from([("mermaid", transition::mermaid()), ("dot", transition::dot())])
}

/// Seconds to wait before a retry, counted from zero.
#[pyfunction]
#[pyo3(signature = (retries, policy=None))]
pub(crate) fn backoff_seconds(retries: u32, policy: Option<&Bound<'_, Policy>>) -> f64 {
    policy_or_default(policy).backoff.delay(retries).as_secs_f64()
}

/// The words of every vocabulary that Python repeats as an enum.
#[pyfunction]
pub(crate) fn vocabularies() -> BTreeMap<&'static str, Vec<&'static str>> {
    use lcm_sdk::lifecycle::ExternalStopPolicy;
    use lcm_sdk::{DesiredStatus, Ec2State, Outcome, ReasonCode};
    BTreeMap::from([
        ("WorkerStatus", WorkerStatus::ALL.iter().map(|word| word.as_str()).collect()),
        ("DesiredStatus", DesiredStatus::ALL.iter().map(|word| word.as_str()).collect()),
        ("Ec2State", Ec2State::ALL.iter().map(|word| word.as_str()).collect()),
        ("ExternalStopPolicy", ExternalStopPolicy::ALL.iter().map(|word| word.as_str()).collect()),
        ("FailureKind", FailureKind::ALL.iter().map(|word| word.as_str()).collect()),
        ("Outcome", Outcome::ALL.iter().map(|word| word.as_str()).collect()),
        ("ReasonCode", ReasonCode::ALL.iter().map(|word| word.as_str()).collect()),
    ])
}

/// Decides about one worker.
#[pyfunction]
#[pyo3(signature = (worker, observation, policy=None, now=None))]
pub(crate) fn decide<'py>(
    worker: &Bound<'py, PyAny>,
    observation: &Bound<'py, Observation>,
    policy: Option<&Bound<'py, Policy>>,
    now: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let now = moment_or_now(now)?;
    let about = |worker: &lcm_sdk::Worker| {
        let mut seen = observation.get().seen();
        let decision = match policy {
            Some(policy) => lcm_sdk::decide(worker, seen.of(worker), &policy.get().policy, now),
            None => lcm_sdk::decide(worker, seen.of(worker), &lcm_sdk::Policy::default(), now),
        };
        decision_to_python(observation.py(), worker.id.as_str(), worker.status, &decision)
    };
    match worker.cast::<Worker>() {
        Ok(worker) => about(&worker.get().record),
        Err(_) => {
            let mut reader = Reader::new(worker.py());
            reader.read(worker, Known::Anything)?;
            about(reader.worker())
        }
    }
}

/// Whether each worker may take a new session.
#[pyfunction]
pub(crate) fn eligible(workers: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
    use lcm_sdk::lifecycle::{Eligibility, eligibility};
    let judge = |worker: PyResult<Bound<'_, PyAny>>| Ok(eligibility(&read_worker(&worker?)?) == Eligibility::Eligible);
    workers.try_iter()?.map(judge).collect()
}

/// Begins a drain.
#[pyfunction]
#[pyo3(signature = (worker, sessions, reason, requested_by, now=None))]
pub(crate) fn initiate_drain<'py>(
    worker: &Bound<'py, PyAny>,
    sessions: &Bound<'py, PyAny>,
    reason: &str,
    requested_by: &str,
    now: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = worker.py();
    let worker = read_worker(worker)?;
    let sessions = read_sessions(sessions)?;
    let decision = drain::initiate(&worker, &sessions, reason, requested_by, moment_or_now(now)?);
    let decision = decision.map_err(|error| invalid_transition(py, &error))?;
    decision_to_python(py, worker.id.as_str(), worker.status, &decision)
}

/// Calls a drain off.
#[pyfunction]
pub(crate) fn cancel_drain<'py>(
    worker: &Bound<'py, PyAny>,
    cancelled_by: &str,
    reason: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let py = worker.py();
    let worker = read_worker(worker)?;
    let decision = drain::cancel(&worker, cancelled_by, reason).map_err(|error| invalid_transition(py, &error))?;
    decision_to_python(py, worker.id.as_str(), worker.status, &decision)
}

/// What a draining worker's sessions mean for it.
#[pyfunction]
#[pyo3(signature = (worker, sessions, template, policy=None, now=None))]
pub(crate) fn check_drain<'py>(
    worker: &Bound<'py, PyAny>,
    sessions: &Bound<'py, PyAny>,
    template: &Bound<'py, PyAny>,
    policy: Option<&Bound<'py, Policy>>,
    now: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = worker.py();
    let mut worker = read_worker(worker)?;
    if worker.status != WorkerStatus::Draining {
        let error = DrainError::NotDraining { worker: worker.id, status: worker.status };
        return Err(invalid_transition(py, &error));
    }
    let sessions = read_sessions(sessions)?;
    // Without a template the default timeout counts, as it does for one that does not exist.
    let template = match answer(template, "template", read_template)? {
        Lookup::NotRequested => Lookup::Absent,
        given @ (Lookup::Found(_) | Lookup::Absent | Lookup::Unknown(_)) => given,
    };
    // Whoever gives a template wants to know what it would mean, also for a record that names none.
    worker.template_name = worker.template_name.or_else(|| template.found().map(|template| template.name.clone()));
    let decision = drain::progress(&worker, &sessions, &template, &policy_or_default(policy), moment_or_now(now)?);
    decision_to_python(py, worker.id.as_str(), worker.status, &decision)
}

/// Judges the records of a region whose instances a scan did not show.
#[pyfunction]
#[pyo3(signature = (workers, discovered, verified, region, complete, subnet_visible, policy=None, now=None))]
#[expect(clippy::too_many_arguments, reason = "named in Python, where it has a signature of its own")]
pub(crate) fn find_orphans<'py>(
    workers: &Bound<'py, PyAny>,
    discovered: &Bound<'py, PyAny>,
    verified: &Bound<'py, PyMapping>,
    region: &str,
    complete: bool,
    subnet_visible: bool,
    policy: Option<&Bound<'py, Policy>>,
    now: Option<&Bound<'py, PyAny>>,
) -> PyResult<(Vec<Bound<'py, PyAny>>, Vec<String>)> {
    let py = workers.py();
    let workers = read_workers(workers)?;
    let completeness = if complete {
        Completeness::Complete
    } else {
        Completeness::Partial(CallFailure::new(FailureKind::Unclear, "the scan is not complete"))
    };
    let instances = read_list(discovered, "discovered", read_named_instance)?;
    let scan = Scan { region: region.to_owned(), instances, completeness };
    let mut answers: HashMap<InstanceId, Lookup<lcm_sdk::Instance>> = HashMap::new();
    for pair in verified.items()? {
        let (id, given): (String, Bound<'_, PyAny>) = pair.extract()?;
        let path = format!("verified[{id:?}]");
        let given = answer(&given, &path, |given, path| {
            let found = read_instance(given, path)?;
            Ok(lcm_sdk::Instance { id: id.as_str().into(), ..found })
        })?;
        answers.insert(id.into(), given);
    }
    let subnet = if subnet_visible { SubnetSight::Visible } else { SubnetSight::NotVisible };
    let mut policy = policy_or_default(policy);
    policy.regions.default_region.get_or_insert_with(|| region.to_owned());
    let suspects = orphans::suspects(&scan, &workers, &policy);
    let unverified = suspects.into_iter().filter_map(|worker| worker.ec2_instance_id.as_ref());
    let unverified = unverified.filter(|id| !answers.contains_key(*id)).map(ToString::to_string).collect();
    let judgement = orphans::judge(&scan, &workers, &answers, subnet, &policy, moment_or_now(now)?);
    let verdicts = judgement.verdicts.iter().map(|verdict| verdict_to_python(py, verdict));
    Ok((verdicts.collect::<PyResult<_>>()?, unverified))
}

/// Adds these functions and classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Worker>()?;
    module.add_class::<Observation>()?;
    module.add_class::<Policy>()?;
    module.add_function(wrap_pyfunction!(transitions, module)?)?;
    module.add_function(wrap_pyfunction!(diagrams, module)?)?;
    module.add_function(wrap_pyfunction!(backoff_seconds, module)?)?;
    module.add_function(wrap_pyfunction!(vocabularies, module)?)?;
    module.add_function(wrap_pyfunction!(decide, module)?)?;
    module.add_function(wrap_pyfunction!(eligible, module)?)?;
    module.add_function(wrap_pyfunction!(initiate_drain, module)?)?;
    module.add_function(wrap_pyfunction!(cancel_drain, module)?)?;
    module.add_function(wrap_pyfunction!(check_drain, module)?)?;
    module.add_function(wrap_pyfunction!(find_orphans, module)?)?;
    Ok(())
}
