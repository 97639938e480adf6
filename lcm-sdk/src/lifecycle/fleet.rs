//! The fleet as scale-down sees it, derived from the records alone so that it survives a change of leader.

use serde::Serialize;

use super::placement::{Eligibility, eligibility};
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
    /// Workers in service. Those on their way out, draining or wanted stopped, do not count.
    pub running: usize,
    /// The latest scale-down.
    pub last_scale_down_at: Option<Timestamp>,
}

impl FleetView {
    /// Reads the view off the records.
    pub fn from_workers<'a>(workers: impl IntoIterator<Item = &'a Worker>) -> Self {
        workers.into_iter().fold(Self::default(), |view, worker| Self {
            running: view.running + usize::from(eligibility(worker) == Eligibility::Eligible),
            last_scale_down_at: view.last_scale_down_at.max(worker.notes.scaled_down_at),
        })
    }

    /// The view after one worker was scaled down, for the rest of the pass.
    pub fn after_scale_down(self, now: Timestamp) -> Self {
        Self { running: self.running.saturating_sub(1), last_scale_down_at: self.last_scale_down_at.max(Some(now)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::status::{DesiredStatus, WorkerStatus};

    #[test]
    fn a_worker_that_is_wanted_stopped_is_not_counted_on() {
        let mut leaving = Worker::new("w-2", WorkerStatus::Running);
        leaving.desired_status = Some(DesiredStatus::Stopped);
        assert_eq!(FleetView::from_workers(&[Worker::new("w-1", WorkerStatus::Running), leaving]).running, 1);
    }
}
