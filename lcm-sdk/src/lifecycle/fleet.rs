//! The fleet as placement and scale-down see it, derived from the records alone so that it survives a change of leader.

use serde::Serialize;

use super::status::{DesiredStatus, WorkerStatus};
use super::time::Timestamp;
use super::worker::Worker;

/// How many workers run, and when one was last scaled down.
///
/// ```
/// use lcm_sdk::{FleetView, Worker, WorkerStatus};
///
/// let workers = [Worker::new("w-1", WorkerStatus::Running), Worker::new("w-2", WorkerStatus::Draining)];
/// assert_eq!(FleetView::from_workers(&workers).running, 1);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FleetView {
    /// Workers in service. Workers that are draining or have another desired status do not count.
    pub running: usize,
    /// The latest scale-down.
    pub last_scale_down_at: Option<Timestamp>,
}

impl FleetView {
    /// Derives the view from the records.
    pub fn from_workers<'a>(workers: impl IntoIterator<Item = &'a Worker>) -> Self {
        workers.into_iter().fold(Self::default(), |view, worker| Self {
            running: view.running + usize::from(eligibility(worker) == Eligibility::Eligible),
            last_scale_down_at: view.last_scale_down_at.max(worker.notes.scaled_down_at),
        })
    }

    /// The view after one worker was scaled down, for the rest of the reconcile.
    pub fn after_scale_down(self, now: Timestamp) -> Self {
        Self { running: self.running.saturating_sub(1), last_scale_down_at: self.last_scale_down_at.max(Some(now)) }
    }
}

/// Whether a worker may take a new session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Eligibility {
    /// It takes new sessions.
    Eligible,
    /// It is not running.
    NotRunning(WorkerStatus),
    /// It runs, but its desired status is stopped or terminated: a session placed now would be lost.
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
    fn workers_desired_stopped_are_not_counted() {
        let mut leaving = Worker::new("w-2", WorkerStatus::Running);
        leaving.desired_status = Some(DesiredStatus::Stopped);
        assert_eq!(FleetView::from_workers(&[Worker::new("w-1", WorkerStatus::Running), leaving]).running, 1);
    }

    #[test]
    fn leaving_workers_take_no_sessions() {
        let mut worker = Worker::new("w", WorkerStatus::Running);
        assert_eq!(eligibility(&worker), Eligibility::Eligible);
        worker.desired_status = Some(DesiredStatus::Stopped);
        assert_eq!(eligibility(&worker), Eligibility::Leaving(DesiredStatus::Stopped));
        worker.status = WorkerStatus::Draining;
        assert_eq!(eligibility(&worker), Eligibility::NotRunning(WorkerStatus::Draining));
    }
}
