//! Admin data of a worker controller.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::source::{
    AdminSource, ControllerStats, ExternalStopStatus, LastOutcome, NotReady, Operation, OperationRequest,
    OutcomeReason, QueueStats, Refusal, ResourceSummary, Role, SweepSummary, Triggered, Waiting, WorkerReport,
};
use crate::controller::{self, Readiness};
use crate::lifecycle::outcome::Outcome;
use crate::lifecycle::patch::DrainRequest;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;
use crate::reconciler::{Explanation, KnownWorker, OperationError, RecentEvents, RecordSummary, WorkerHistory};
use crate::workers::DiscoveryRun;
use crate::workers::controller::WorkerController;

#[async_trait]
impl AdminSource for WorkerController {
    fn stats(&self) -> ControllerStats {
        let (active, waiting) = self.controller().load().unwrap_or_default();
        let capabilities = self.reconciler().ports().control_plane.capabilities();
        let configured = self.reconciler().policy().external_stop_policy;
        let effective = configured.effective(&capabilities);
        ControllerStats {
            instance_id: self.identity().to_owned(),
            role: if self.is_leading() { Role::Leader } else { Role::Standby },
            leader: self.leader(),
            services: self.services(),
            fencing_token: self.lease().and_then(|lease| lease.fence().0),
            shards: self.shards(),
            queue: QueueStats { active, waiting: waiting.into_iter().filter(|(lane, _)| !lane.is_empty()).collect() },
            watch: self.watch_state(),
            last_sweep: self.last_sweep(),
            records: self.record_stats(),
            notes: self.reconciler().ports().control_plane.notes_status(),
            discovery: self.discovery_stats(),
            control_plane: capabilities,
            external_stop_policy: ExternalStopStatus { configured, effective },
            untrusted_regions: self.reconciler().untrusted_regions(),
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

    fn known_workers(&self) -> Vec<Arc<KnownWorker>> {
        let Some(term) = self.controller().term() else { return Vec::new() };
        let mut workers = self.reconciler().last_known().all();
        workers.retain(|worker| term.ownership().owns(worker.id.as_str()));
        workers
    }

    fn discovery_runs(&self) -> Vec<DiscoveryRun> {
        WorkerController::discovery_runs(self)
    }

    fn lease_remaining(&self) -> Option<Duration> {
        self.lease()?.remaining()
    }

    fn now(&self) -> Timestamp {
        self.reconciler().ports().clock.now()
    }

    /// Reads the record of a worker that was not listed yet.
    async fn trigger(&self, id: &str) -> Triggered {
        if !self.owns(id) {
            return Triggered::NotLeading;
        }
        if self.controller().resource(id).is_none() {
            match self.reconciler().ports().control_plane.worker(&id.into()).await {
                Ok(Some(_)) => {}
                Ok(None) => return Triggered::NoSuchResource,
                Err(failure) => return Triggered::Unknown(failure.to_string()),
            }
        }
        match self.controller().enqueue(id) {
            true => Triggered::Queued,
            false => Triggered::NotLeading,
        }
    }

    fn resign(&self) -> Result<(), Refusal> {
        self.controller().resign().map_err(|error| Refusal::NotAllowed(error.to_string()))
    }

    fn heartbeat_age(&self) -> Option<Duration> {
        self.controller().heartbeat_age()
    }

    async fn operate(&self, id: &str, operation: Operation, request: OperationRequest) -> Result<(), Refusal> {
        let lease = self.controller().term().and_then(|term| term.ownership().lease(id));
        let not_leading = || Refusal::NotAllowed(OperationError::NotLeading(id.into()).to_string());
        let reconciler = self.reconciler().with_lease(lease.ok_or_else(not_leading)?);
        let OperationRequest { reason, requested_by } = request;
        let (worker, request) = (id.into(), DrainRequest { reason, requested_by });
        let operated = match operation {
            Operation::Drain => reconciler.drain(&worker, &request).await,
            Operation::CancelDrain => reconciler.cancel_drain(&worker, &request).await,
        };
        operated.map(drop).map_err(|error| refusal(&error))?;
        // The watch hides our own write.
        self.controller().enqueue(id);
        Ok(())
    }

    async fn worker(&self, id: &str) -> Result<WorkerReport, Refusal> {
        let worker_id = id.into();
        let sessions = self.reconciler().ports().control_plane.sessions(&worker_id);
        let (record, sessions) = tokio::join!(self.read_record(id), sessions);
        let record = record?;
        let (queue, history) = (self.resource(id), self.reconciler().recent(&worker_id));
        if record.is_none() && history.is_empty() {
            return Err(refusal(&OperationError::NoSuchWorker(id.into())));
        }
        let record = record.as_ref().map(RecordSummary::from);
        let known = self.owns(id).then(|| self.reconciler().last_known().of(&worker_id)).flatten();
        let (sessions, sessions_error) = match sessions {
            Ok(sessions) => (sessions, None),
            Err(failure) => (Vec::new(), Some(failure.to_string())),
        };
        Ok(WorkerReport { id: id.to_owned(), record, queue, history, known, sessions, sessions_error })
    }

    async fn explain(&self, id: &str) -> Result<Explanation, Refusal> {
        WorkerController::explain_now(self, &id.into()).await.map_err(|error| refusal(&error))
    }

    async fn history(&self, id: &str, at: Timestamp) -> Result<WorkerHistory, Refusal> {
        self.reconciler().why(&id.into(), at).await.map_err(|error| Refusal::Failed(error.to_string()))
    }

    fn events(&self, from: u64) -> RecentEvents {
        self.reconciler().recent_events(from)
    }

    fn readiness(&self) -> Result<Role, NotReady> {
        if let Some(reason) = self.outage() {
            return Err(NotReady { reason });
        }
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

fn refusal(error: &OperationError) -> Refusal {
    let said = error.to_string();
    match error {
        OperationError::NoSuchWorker(_) => Refusal::NoSuchResource(said),
        OperationError::Drain(_) | OperationError::NotLeading(_) => Refusal::NotAllowed(said),
        OperationError::NotSupported(_) => Refusal::NotSupported(said),
        OperationError::Failed(_) => Refusal::Failed(said),
    }
}

impl WorkerController {
    async fn read_record(&self, id: &str) -> Result<Option<Worker>, Refusal> {
        let read = self.reconciler().ports().control_plane.worker(&id.into()).await;
        read.map_err(|failure| Refusal::Failed(format!("the record of worker {id} could not be read: {failure}")))
    }

    fn owns(&self, id: &str) -> bool {
        self.controller().term().is_some_and(|term| term.ownership().owns(id))
    }

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
        Self { instant: controller.controller().timers().now(), time: controller.reconciler().ports().clock.now() }
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
            waiting: state.waiting.map(|(priority, since)| Waiting {
                priority: priority.as_str(),
                requested: state.is_requested,
                since: self.to_timestamp(since),
            }),
            retry_count: state.retry_count,
            next_retry_at: state.next_retry_at.map(|due| self.to_timestamp(due)),
            last_reconciled_at: state.last_reconciled_at.map(|at| self.to_timestamp(at)),
            last_outcome: ended.map(|(ending, at)| LastOutcome {
                outcome: ending.outcome,
                reason: OutcomeReason {
                    code: ending.reason.as_str().to_owned(),
                    sentence: ending.reason.sentence(ending.error.as_deref()),
                },
                at: self.to_timestamp(at),
            }),
        }
    }
}
