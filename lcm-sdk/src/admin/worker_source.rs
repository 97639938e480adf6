//! What operators see of a worker controller.

use tokio::time::Instant;

use super::source::{
    AdminSource, ControllerStats, LastOutcome, QueueStats, Readiness, ResourceState, Role, SweepSummary, Triggered,
    WatchState,
};
use crate::controller::queue;
use crate::controller::watch;
use crate::lifecycle::outcome::Outcome;
use crate::lifecycle::time::Timestamp;
use crate::workers::controller::{self, WorkerController};

impl AdminSource for WorkerController {
    fn stats(&self) -> ControllerStats {
        let (active, waiting) = self.controller().map(|controller| controller.load()).unwrap_or_default();
        ControllerStats {
            instance_id: self.identity().to_owned(),
            role: if self.is_leading() { Role::Leader } else { Role::Standby },
            fencing_token: self.leadership().and_then(|leadership| leadership.fence().0),
            shards: self.shards(),
            queue: QueueStats { active, waiting: waiting.into_iter().filter(|(lane, _)| !lane.is_empty()).collect() },
            watch: match self.watch_state() {
                Some(watch::WatchState::Connected) => WatchState::Connected,
                Some(watch::WatchState::Connecting) => WatchState::Connecting,
                Some(watch::WatchState::GivenUp) => WatchState::GivenUp,
                None => WatchState::Off,
            },
            last_sweep: self.last_sweep(),
        }
    }

    fn resources(&self) -> Vec<ResourceState> {
        let states = self.controller().map(|controller| controller.resources()).unwrap_or_default();
        let moments = Moments::now(self);
        states.into_iter().map(|state| moments.shown(state)).collect()
    }

    fn resource(&self, id: &str) -> Option<ResourceState> {
        let state = self.controller()?.resource(id)?;
        Some(Moments::now(self).shown(state))
    }

    /// A worker that is not known yet may exist all the same: it is fetched, and forgotten if it does not.
    fn trigger(&self, id: &str) -> Triggered {
        match self.controller() {
            None => Triggered::NotLeading,
            Some(controller) if !controller.reconciler().includes(id) => Triggered::NotLeading,
            Some(controller) => {
                controller.demand(id);
                Triggered::Queued
            }
        }
    }

    fn readiness(&self) -> Readiness {
        match &*WorkerController::readiness(self).borrow() {
            controller::Readiness::Standby => Readiness::Standby,
            controller::Readiness::Ready(_) => Readiness::Ready,
            controller::Readiness::Sweeping => {
                let (active, waiting) = self.controller().map(|controller| controller.load()).unwrap_or_default();
                let left = active + waiting.iter().map(|(_, depth)| depth).sum::<usize>();
                Readiness::NotReady { reason: format!("the first sweep is under way, {left} workers to go") }
            }
        }
    }
}

impl WorkerController {
    fn last_sweep(&self) -> Option<SweepSummary> {
        match &*WorkerController::readiness(self).borrow() {
            controller::Readiness::Ready(swept) => Some(SweepSummary {
                started_at: swept.ended_at - swept.report.took,
                finished_at: swept.ended_at,
                resources: swept.report.listed,
                failed: swept.report.outcomes.get(Outcome::Retry.as_str()).copied().unwrap_or_default()
                    + swept.report.unfinished.len(),
            }),
            controller::Readiness::Standby | controller::Readiness::Sweeping => None,
        }
    }
}

/// The same moment on both clocks, to put what the queue knows into the time of day.
struct Moments {
    instant: Instant,
    time: Timestamp,
}

impl Moments {
    fn now(controller: &WorkerController) -> Self {
        Self { instant: Instant::now(), time: controller.reconciler().ports().clock.now() }
    }

    fn of(&self, instant: Instant) -> Timestamp {
        match instant.checked_duration_since(self.instant) {
            Some(ahead) => self.time + ahead,
            None => self.time - self.instant.saturating_duration_since(instant),
        }
    }

    fn shown(&self, state: queue::ResourceState) -> ResourceState {
        let ended = state.last.zip(state.last_ended_at);
        ResourceState {
            resource_id: state.resource_id.to_string(),
            status: state.status,
            retry_count: state.retry_count,
            next_retry_at: state.next_retry_at.map(|due| self.of(due)),
            last_reconciled_at: state.last_reconciled_at.map(|at| self.of(at)),
            last_outcome: ended.map(|(ending, at)| LastOutcome {
                outcome: ending.outcome,
                reason_code: ending.code.to_owned(),
                reason: ending.error.map_or_else(|| ending.code.to_owned(), String::from),
                at: self.of(at),
            }),
        }
    }
}
