//! The dispatch: one status, one handler, no catch-all.

use super::decision::Decision;
use super::handlers::{
    Pass, draining, failed, pending, provisioning, running, starting, stopped, stopping, terminated, terminating,
    unknown,
};
use super::observation::Observation;
use super::policy::Policy;
use super::status::WorkerStatus;
use super::time::Timestamp;
use super::worker::Worker;

/// Decides what to do about a worker, given what was seen of its world.
///
/// # Guarantees
/// Total: any input gives a decision. Deterministic: the same input gives the same one. An answer that is
/// `Unknown` never changes a status. Only edges of the transition table are taken. Nothing is allocated when
/// nothing is to be done.
///
/// # Assumptions
/// `seen` was gathered for this worker in this pass, as [`queries`](super::query::queries) asks for. What is
/// missing is treated as not seen, and waited for.
pub fn decide(worker: &Worker, seen: &Observation, policy: &Policy, now: Timestamp) -> Decision {
    let pass = Pass { worker, seen, policy, now };
    match worker.status {
        WorkerStatus::Pending => pending::handle(pass),
        WorkerStatus::Provisioning => provisioning::handle(pass),
        WorkerStatus::Starting => starting::handle(pass),
        WorkerStatus::Running => running::handle(pass),
        WorkerStatus::Draining => draining::handle(pass),
        WorkerStatus::Stopping => stopping::handle(pass),
        WorkerStatus::Stopped => stopped::handle(pass),
        WorkerStatus::Terminating => terminating::handle(pass),
        WorkerStatus::Terminated => terminated::handle(pass),
        WorkerStatus::Failed => failed::handle(pass),
        WorkerStatus::Unknown => unknown::handle(pass),
    }
}
