//! Admin data of a worker controller.

use tokio::time::Instant;

use super::source::{
    AdminSource, ControllerStats, LastOutcome, NotReady, QueueStats, ResourceSummary, Role, SweepSummary, Triggered,
};
use crate::controller::{self, Readiness};
use crate::lifecycle::outcome::Outcome;
use crate::lifecycle::time::Timestamp;
use crate::workers::controller::WorkerController;

impl AdminSource for WorkerController {
    fn stats(&self) -> ControllerStats {
        let (active, waiting) = self.controller().load().unwrap_or_default();
        ControllerStats {
            instance_id: self.identity().to_owned(),
            role: if self.is_leading() { Role::Leader } else { Role::Standby },
            fencing_token: self.lease().and_then(|lease| lease.fence().0),
            shards: self.shards(),
            queue: QueueStats { active, waiting: waiting.into_iter().filter(|(lane, _)| !lane.is_empty()).collect() },
            watch: self.watch_state(),
            last_sweep: self.last_sweep(),
        }
    }

    fn resources(&self) -> Vec<ResourceSummary> {
        let states = self.controller().resources();
        let clocks = ClockPair::now(self);
        states.into_iter().map(|state| clocks.convert(state)).collect()
    }

    fn resource(&self, id: &str) -> Option<ResourceSummary> {
        let state = self.controller().resource(id)?;
        Some(ClockPair::now(self).convert(state))
    }

    /// Queues unknown workers too: a worker that does not exist is dropped when it is fetched.
    fn trigger(&self, id: &str) -> Triggered {
        match self.controller().enqueue(id) {
            true => Triggered::Queued,
            false => Triggered::NotLeading,
        }
    }

    fn readiness(&self) -> Result<Role, NotReady> {
        match &*WorkerController::readiness(self).borrow() {
            Readiness::Standby => Ok(Role::Standby),
            Readiness::Ready(_) => Ok(Role::Leader),
            Readiness::Sweeping => {
                let (active, waiting) = self.controller().load().unwrap_or_default();
                let left = active + waiting.iter().map(|(_, depth)| depth).sum::<usize>();
                Err(NotReady { reason: format!("the first sweep is under way, {left} workers to go") })
            }
        }
    }
}

impl WorkerController {
    fn last_sweep(&self) -> Option<SweepSummary> {
        match &*WorkerController::readiness(self).borrow() {
            Readiness::Ready(swept) => Some(SweepSummary {
                started_at: swept.ended_at - swept.report.took,
                finished_at: swept.ended_at,
                resources: swept.report.listed,
                failed: swept.report.outcomes.get(Outcome::Retry.as_str()).copied().unwrap_or_default()
                    + swept.report.unfinished.len(),
            }),
            Readiness::Standby | Readiness::Sweeping => None,
        }
    }
}

/// One point in time on the monotonic clock and on the wall clock, to convert between them.
struct ClockPair {
    instant: Instant,
    time: Timestamp,
}

impl ClockPair {
    fn now(controller: &WorkerController) -> Self {
        Self { instant: Instant::now(), time: controller.reconciler().ports().clock.now() }
    }

    fn to_timestamp(&self, instant: Instant) -> Timestamp {
        match instant.checked_duration_since(self.instant) {
            Some(ahead) => self.time + ahead,
            None => self.time - self.instant.saturating_duration_since(instant),
        }
    }

    fn convert(&self, state: controller::ResourceState) -> ResourceSummary {
        let ended = state.last.zip(state.last_ended_at);
        ResourceSummary {
            resource_id: state.resource_id.to_string(),
            status: state.status,
            retry_count: state.retry_count,
            next_retry_at: state.next_retry_at.map(|due| self.to_timestamp(due)),
            last_reconciled_at: state.last_reconciled_at.map(|at| self.to_timestamp(at)),
            last_outcome: ended.map(|(ending, at)| LastOutcome {
                outcome: ending.outcome,
                reason_code: ending.reason.as_str().to_owned(),
                reason: ending.error.map_or_else(|| ending.reason.as_str().to_owned(), String::from),
                at: self.to_timestamp(at),
            }),
        }
    }
}
