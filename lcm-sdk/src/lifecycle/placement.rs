//! Placement: which workers may take a new session.

use serde::Serialize;

use super::status::{DesiredStatus, WorkerStatus};
use super::worker::Worker;

/// Whether a worker may take a new session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Eligibility {
    /// It may.
    Eligible,
    /// It is not running.
    NotRunning(WorkerStatus),
    /// It runs, but is wanted stopped or terminated: a session placed now would be lost.
    Leaving(DesiredStatus),
}

/// Whether one worker may take a new session.
pub fn eligibility(worker: &Worker) -> Eligibility {
    if !worker.status.accepts_sessions() {
        return Eligibility::NotRunning(worker.status);
    }
    match worker.desired_status {
        None | Some(DesiredStatus::Running) => Eligibility::Eligible,
        Some(desired @ (DesiredStatus::Stopped | DesiredStatus::Terminated)) => Eligibility::Leaving(desired),
    }
}

/// The workers that may take a new session.
///
/// ```
/// use lcm_sdk::{eligible_workers, Worker, WorkerStatus};
///
/// let workers = [Worker::new("w-1", WorkerStatus::Running), Worker::new("w-2", WorkerStatus::Draining)];
/// let ids: Vec<_> = eligible_workers(&workers).map(|worker| worker.id.as_str()).collect();
/// assert_eq!(ids, ["w-1"]);
/// ```
pub fn eligible_workers<'a>(workers: impl IntoIterator<Item = &'a Worker>) -> impl Iterator<Item = &'a Worker> {
    workers.into_iter().filter(|worker| eligibility(worker) == Eligibility::Eligible)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_on_its_way_out_takes_no_session() {
        let mut worker = Worker::new("w", WorkerStatus::Running);
        assert_eq!(eligibility(&worker), Eligibility::Eligible);
        worker.desired_status = Some(DesiredStatus::Stopped);
        assert_eq!(eligibility(&worker), Eligibility::Leaving(DesiredStatus::Stopped));
        worker.status = WorkerStatus::Draining;
        assert_eq!(eligibility(&worker), Eligibility::NotRunning(WorkerStatus::Draining));
    }
}
