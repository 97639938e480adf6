//! The fleet as placement and scale-down see it, derived from the records alone so that it survives a change of leader.

use serde::{Deserialize, Serialize};

use super::status::{DesiredStatus, WorkerStatus};
use super::time::Timestamp;
use super::worker::Worker;

/// How many workers run, and when one was last scaled down.
///
/// ```
/// use lcm_sdk::{FleetView, Worker, WorkerStatus};
///
/// let workers = [Worker::new("w-1", WorkerStatus::Running), Worker::new("w-2", WorkerStatus::Draining)];
/// let now = "2026-02-06T08:00:00Z".parse().unwrap();
/// assert_eq!(FleetView::from_workers(&workers, now).running, 1);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetView {
    /// Workers in service. Workers that are draining or have another desired status do not count.
    pub running: usize,
    /// The latest scale-down.
    pub last_scale_down_at: Option<Timestamp>,
}

impl FleetView {
    /// Derives the view from the records. A scale-down in the future does not count: it would hide those since the clock
    /// was set back.
    pub fn from_workers<'a>(workers: impl IntoIterator<Item = &'a Worker>, now: Timestamp) -> Self {
        workers.into_iter().fold(Self::default(), |view, worker| Self {
            running: view.running + usize::from(eligibility(worker) == Eligibility::Eligible),
            last_scale_down_at: view.last_scale_down_at.max(worker.notes.scaled_down_at.filter(|at| *at <= now)),
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
        let workers = [Worker::new("w-1", WorkerStatus::Running), leaving];
        assert_eq!(FleetView::from_workers(&workers, Timestamp::UNIX_EPOCH).running, 1);
    }

    #[test]
    fn future_scale_downs_hide_no_past_one() {
        let scaled_down = |at: &str| {
            let mut worker = Worker::new("w", WorkerStatus::Stopped);
            worker.notes.scaled_down_at = super::super::time::parse(at);
            worker
        };
        let workers = [scaled_down("2026-02-07T08:00:00Z"), scaled_down("2026-02-06T07:59:00Z")];
        let now = super::super::time::parse("2026-02-06T08:00:00Z").expect("valid");
        let last = FleetView::from_workers(&workers, now).last_scale_down_at;
        assert_eq!(last, workers[1].notes.scaled_down_at);
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
