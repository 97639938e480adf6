//! The dispatch: one status, one handler, no catch-all.

use super::decision::Decision;
use super::handlers::{
    HandlerContext, draining, failed, pending, provisioning, running, starting, stopped, stopping, terminated,
    terminating, unknown,
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
/// `observation` was gathered for this worker in this ctx, as [`queries`](super::query::queries) asks for. What is
/// missing is treated as not seen, and waited for.
pub fn decide(worker: &Worker, observation: &Observation, policy: &Policy, now: Timestamp) -> Decision {
    let ctx = HandlerContext { worker, observation, policy, now };
    match worker.status {
        WorkerStatus::Pending => pending::handle(ctx),
        WorkerStatus::Provisioning => provisioning::handle(ctx),
        WorkerStatus::Starting => starting::handle(ctx),
        WorkerStatus::Running => running::handle(ctx),
        WorkerStatus::Draining => draining::handle(ctx),
        WorkerStatus::Stopping => stopping::handle(ctx),
        WorkerStatus::Stopped => stopped::handle(ctx),
        WorkerStatus::Terminating => terminating::handle(ctx),
        WorkerStatus::Terminated => terminated::handle(ctx),
        WorkerStatus::Failed => failed::handle(ctx),
        WorkerStatus::Unknown => unknown::handle(ctx),
    }
}
