//! Pure decisions: no network, no runtime.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use lcm_sdk::lifecycle::discovery::{Completeness, Scan};
use lcm_sdk::lifecycle::drain::{self, DrainError};
use lcm_sdk::lifecycle::orphans;
use lcm_sdk::lifecycle::trust::Place;
use lcm_sdk::lifecycle::{Eligibility, Support, eligibility, transition};
use lcm_sdk::{CallFailure, FailureKind, InstanceId, Lookup, WorkerStatus};
use pyo3::prelude::*;
use pyo3::types::{PyMapping, PyTuple};

use crate::convert::moment_or_now;
use crate::observation::{
    native_observation, read_instance, read_list, read_lookup, read_named_instance, read_sessions, read_template,
};
use crate::policy::{native_policy, policy_or_default};
use crate::python::invalid_transition;
use crate::results::{Decided, Decision, Verdict, transition_table};
use crate::worker::{Worker, read_worker, read_workers};

/// Returns every legal change of status.
#[pyfunction]
#[pyo3(signature = () -> "tuple[Transition, ...]")]
pub(crate) fn transitions(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    transition_table(py)
}

/// Returns the transition table as diagrams, by format.
#[pyfunction]
pub(crate) fn diagrams() -> BTreeMap<&'static str, String> {
    BTreeMap::from([("mermaid", transition::mermaid()), ("dot", transition::dot())])
}

/// Returns the delay before a retry in seconds. The first retry is number 0.
#[pyfunction]
#[pyo3(signature = (retries, policy: "lcm.policy.Policy | None" = None))]
pub(crate) fn backoff_seconds(retries: u32, policy: Option<&Bound<'_, PyAny>>) -> PyResult<f64> {
    Ok(policy_or_default(policy)?.backoff.delay(retries).as_secs_f64())
}

/// Decides the next step for a worker from an observation. Pure: it calls nothing and changes nothing.
///
/// `worker` is an `lcm.Worker` or the control plane's dict, `policy` defaults to `lcm.Policy()` and `now`, a datetime
/// with a time zone, to the current time.
///
/// Raises `lcm.InvalidRecord` for a record that cannot be parsed.
///
/// >>> import lcm
/// >>> worker = lcm.Worker("w-1", "stopped", desired_status="running", ec2_instance_id="i-1")
/// >>> print(lcm.decide(worker, lcm.Observation(ec2="stopped")))
/// w-1: stopped → starting: The instance is stopped and should run: starting it.
#[pyfunction]
#[pyo3(signature = (
    worker: "AnyWorker",
    observation: "lcm.observation.Observation",
    *,
    policy: "lcm.policy.Policy | None" = None,
    now: "datetime | None" = None,
))]
pub(crate) fn decide(
    worker: &Bound<'_, PyAny>,
    observation: &Bound<'_, PyAny>,
    policy: Option<&Bound<'_, PyAny>>,
    now: Option<&Bound<'_, PyAny>>,
) -> PyResult<Decision> {
    static DEFAULT: LazyLock<lcm_sdk::Policy> = LazyLock::new(lcm_sdk::Policy::default);
    let now = moment_or_now(now)?;
    let policy = native_policy(policy)?;
    let policy = policy.as_ref().map_or(&*DEFAULT, |policy| &policy.get().policy);
    let observation = native_observation(observation)?;
    let decide = |record: &lcm_sdk::Worker| {
        let decision =
            observation.get().with_fitted(record, |observation| lcm_sdk::decide(record, observation, policy, now));
        decided(record, decision)
    };
    match worker.cast::<Worker>() {
        Ok(worker) => Ok(decide(&worker.get().record)),
        Err(_) => Ok(decide(&read_worker(worker)?)),
    }
}

fn decided(worker: &lcm_sdk::Worker, decision: lcm_sdk::Decision) -> Decision {
    Decision::from_decided(Decided { worker_id: worker.id.clone(), status: worker.status, decision })
}

/// Returns for each worker whether it may take a new session.
#[pyfunction]
#[pyo3(signature = (workers: "Iterable[AnyWorker]"))]
pub(crate) fn eligible(workers: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
    let workers = read_workers(workers)?;
    Ok(workers.iter().map(|worker| eligibility(worker) == Eligibility::Eligible).collect())
}

/// Decides to begin a drain.
#[pyfunction]
#[pyo3(signature = (
    worker: "AnyWorker",
    sessions: "Sequence[Any]",
    reason,
    requested_by,
    now: "datetime | None" = None,
))]
pub(crate) fn initiate_drain(
    worker: &Bound<'_, PyAny>,
    sessions: &Bound<'_, PyAny>,
    reason: &str,
    requested_by: &str,
    now: Option<&Bound<'_, PyAny>>,
) -> PyResult<Decision> {
    let py = worker.py();
    let worker = read_worker(worker)?;
    let sessions = read_sessions(sessions)?;
    let decision = drain::initiate(&worker, &sessions, reason, requested_by, moment_or_now(now)?);
    let decision = decision.map_err(|error| invalid_transition(py, &error))?;
    Ok(decided(&worker, decision))
}

/// Decides to cancel a drain.
#[pyfunction]
#[pyo3(signature = (worker: "AnyWorker", cancelled_by, reason))]
pub(crate) fn decide_cancel_drain(worker: &Bound<'_, PyAny>, cancelled_by: &str, reason: &str) -> PyResult<Decision> {
    let py = worker.py();
    let worker = read_worker(worker)?;
    let decision = drain::cancel(&worker, cancelled_by, reason).map_err(|error| invalid_transition(py, &error))?;
    Ok(decided(&worker, decision))
}

/// Decides the next step of a drain.
#[pyfunction]
#[pyo3(signature = (
    worker: "AnyWorker",
    sessions: "Sequence[Any]",
    template: "Any",
    policy: "lcm.policy.Policy | None" = None,
    now: "datetime | None" = None,
))]
pub(crate) fn check_drain(
    worker: &Bound<'_, PyAny>,
    sessions: &Bound<'_, PyAny>,
    template: &Bound<'_, PyAny>,
    policy: Option<&Bound<'_, PyAny>>,
    now: Option<&Bound<'_, PyAny>>,
) -> PyResult<Decision> {
    let py = worker.py();
    let mut worker = read_worker(worker)?;
    if worker.status != WorkerStatus::Draining {
        let error = DrainError::NotDraining { worker: worker.id, status: worker.status };
        return Err(invalid_transition(py, &error));
    }
    let sessions = read_sessions(sessions)?;
    // Without a template the default timeout applies, as it does if the template does not exist.
    let template = match read_lookup(template, "template", read_template)? {
        Lookup::NotRequested => Lookup::Absent,
        given @ (Lookup::Found(_) | Lookup::Absent | Lookup::Unknown(_)) => given,
    };
    // A given template applies to a record that names none too.
    worker.template_name = worker.template_name.or_else(|| template.found().map(|template| template.name.clone()));
    let decision = drain::progress(
        &worker,
        &sessions,
        &template,
        Support::Unknown,
        &policy_or_default(policy)?,
        moment_or_now(now)?,
    );
    Ok(decided(&worker, decision))
}

/// Returns verdicts about the records of a region, and the instances that still need a describe.
#[pyfunction]
#[pyo3(signature = (
    workers: "Iterable[AnyWorker]",
    discovered: "Sequence[Any]",
    verified: "Mapping[str, Any]",
    region,
    complete,
    account_proved,
    policy: "lcm.policy.Policy | None" = None,
    now: "datetime | None" = None,
) -> "tuple[list[Verdict], list[str]]")]
#[expect(clippy::too_many_arguments, reason = "named in Python, where it has a signature of its own")]
pub(crate) fn find_orphans<'py>(
    workers: &Bound<'py, PyAny>,
    discovered: &Bound<'py, PyAny>,
    verified: &Bound<'py, PyMapping>,
    region: &str,
    complete: bool,
    account_proved: bool,
    policy: Option<&Bound<'py, PyAny>>,
    now: Option<&Bound<'py, PyAny>>,
) -> PyResult<(Vec<Bound<'py, Verdict>>, Vec<String>)> {
    let py = workers.py();
    let workers = read_workers(workers)?;
    let completeness = if complete {
        Completeness::Complete
    } else {
        Completeness::Partial(CallFailure::new(FailureKind::Unclear, "the scan is not complete"))
    };
    let instances = read_list(discovered, "discovered", read_named_instance)?;
    let scan = Scan { region: region.to_owned(), instances, completeness };
    let mut lookups: HashMap<InstanceId, Lookup<lcm_sdk::Instance>> = HashMap::new();
    for pair in verified.items()? {
        let (id, given): (String, Bound<'_, PyAny>) = pair.extract()?;
        let path = format!("verified[{id:?}]");
        let given = read_lookup(&given, &path, |given, path| {
            let found = read_instance(given, path)?;
            Ok(lcm_sdk::Instance { id: id.as_str().into(), ..found })
        })?;
        lookups.insert(id.into(), given);
    }
    let now = moment_or_now(now)?;
    let place = if account_proved { Place::default().with_sighting(now) } else { Place::default() };
    let mut policy = policy_or_default(policy)?;
    policy.regions.default_region.get_or_insert_with(|| region.to_owned());
    let candidates = orphans::candidates(&scan, &workers, &policy);
    let unverified = candidates.into_iter().filter_map(|worker| worker.ec2_instance_id.as_ref());
    let unverified = unverified.filter(|id| !lookups.contains_key(*id)).map(ToString::to_string).collect();
    let report = orphans::evaluate(&scan, &workers, &lookups, &place, &policy, now);
    let verdicts = report.verdicts.iter().map(|verdict| Verdict::from_sdk(py, verdict));
    Ok((verdicts.collect::<PyResult<_>>()?, unverified))
}
