//! Operations of an operator: a drain, its cancellation, a reconcile at once, and an explanation.

use std::sync::Arc;

use thiserror::Error;
use tokio::time::Instant;

use super::observe::Observed;
use super::{Explanation, Hints, MAX_ATTEMPTS, Mode, ReconcileResult, Reconciler};
use crate::lifecycle::capabilities::Support;
use crate::lifecycle::drain::{self, DrainError, Operation};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::observation::Observation;
use crate::lifecycle::patch::DrainRequest;
use crate::lifecycle::status::WorkerStatus;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;
use crate::telemetry::Anomaly;

/// An operation that was not carried out. The record is unchanged, unless a call failed with an unknown outcome.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum OperationError {
    /// The status of the worker does not allow the operation.
    #[error(transparent)]
    Drain(#[from] DrainError),
    /// The control plane has no such worker.
    #[error("worker {0} does not exist")]
    NoSuchWorker(WorkerId),
    /// The lease is not valid: another controller leads this worker.
    #[error("worker {0} is led by another controller")]
    NotLeading(WorkerId),
    /// The control plane lacks the operation. Nothing was changed.
    #[error("{}", .0.message)]
    NotSupported(CallFailure),
    /// A call failed.
    #[error("the operation failed: {0}")]
    Failed(CallFailure),
}

impl Reconciler {
    /// Takes a running worker out of placement and begins its drain. The following reconciles wait for its sessions and
    /// stop it; see [`drain`](mod@crate::lifecycle::drain).
    ///
    /// # Errors
    /// [`DrainError::NotRunning`] unless the worker is running, and [`OperationError`] for a worker that does not exist, a
    /// lost lease and a failed call.
    ///
    /// # Cancel safety
    /// As for a reconcile: a write that was started is finished.
    pub async fn drain(&self, worker: &WorkerId, request: &DrainRequest) -> Result<ReconcileResult, OperationError> {
        self.operate(worker, Operation::Drain(request.clone())).await
    }

    /// Cancels the drain of a worker and puts it back in service. No session is touched.
    ///
    /// # Errors
    /// [`DrainError::NotDraining`] unless the worker is draining, [`OperationError::NotSupported`] if the control plane
    /// cannot cancel a drain, and [`OperationError`] for a worker that does not exist,
    /// a lost lease and a failed call.
    ///
    /// # Cancel safety
    /// As for a reconcile: a write that was started is finished.
    pub async fn cancel_drain(
        &self,
        worker: &WorkerId,
        request: &DrainRequest,
    ) -> Result<ReconcileResult, OperationError> {
        self.operate(worker, Operation::CancelDrain(request.clone())).await
    }

    /// Reads the record of a worker and reconciles it at once.
    ///
    /// # Errors
    /// [`OperationError::NoSuchWorker`] and [`OperationError::Failed`] if the record cannot be read. A call that fails
    /// later is part of the result.
    ///
    /// # Cancel safety
    /// That of a reconcile.
    pub async fn reconcile_now(&self, id: &WorkerId, mode: Mode) -> Result<ReconcileResult, OperationError> {
        let read_at = Some(self.timers().now());
        let worker = self.read(id).await?;
        Ok(self.reconcile_with(&worker, Hints { read_at, ..Hints::default() }, mode).await)
    }

    /// Reads the record of a worker and explains what a reconcile would do now. See [`Self::explain`].
    ///
    /// # Errors
    /// [`OperationError::NoSuchWorker`] and [`OperationError::Failed`] if the record cannot be read. A call that fails
    /// later is part of the explanation.
    pub async fn explain_now(&self, id: &WorkerId) -> Result<Explanation, OperationError> {
        let worker = self.read(id).await?;
        Ok(self.explain(&worker).await)
    }

    async fn read(&self, id: &WorkerId) -> Result<Worker, OperationError> {
        let read = self.ports().control_plane.worker(id).await.map_err(OperationError::Failed)?;
        read.ok_or_else(|| OperationError::NoSuchWorker(id.clone()))
    }

    async fn operate(&self, id: &WorkerId, operation: Operation) -> Result<ReconcileResult, OperationError> {
        let DrainRequest { reason, requested_by } = operation.request();
        let lock = Arc::new(self.cache().lock(id).await);
        for _ in 0..MAX_ATTEMPTS {
            if !self.lease().is_valid() {
                return Err(OperationError::NotLeading(id.clone()));
            }
            let worker = self.read(id).await?;
            self.cache().mark_read(&worker);
            let (now, started) = (self.ports().clock.now(), Instant::now());
            self.check_support(&worker, &operation)?;
            let observation = self.observe_operation(&worker, &operation, now).await?;
            let sessions = observation.sessions.found().map(Vec::as_slice).unwrap_or_default();
            let decision = operation.decide(&worker, sessions, now)?;
            let to = decision.transition.map_or(worker.status, |transition| transition.to());
            let observed = Observed { observation, fleet: None, operation: Some(operation.clone()) };
            match self.apply_and_record(&worker, decision, observed, now, &lock).await {
                Ok(result) if result.to_status == to => {
                    self.context.recent().note(&result, now, started.elapsed());
                    tracing::info!(
                        target: "lcm::reconcile", worker = %id, by = requested_by, why = reason,
                        "an operator requested this: {}", result.reason
                    );
                    return Ok(result);
                }
                Ok(result) => {
                    let unclear = || CallFailure::new(FailureKind::Unclear, result.reason.to_string());
                    let failure = result.error.clone().unwrap_or_else(unclear);
                    let is_missing = failure.kind == FailureKind::NotSupported;
                    let error = if is_missing { OperationError::NotSupported } else { OperationError::Failed };
                    return Err(error(failure));
                }
                // The record changed since it was read: its status is checked again.
                Err(_) => self.telemetry().count_anomaly(Anomaly::Conflict),
            }
        }
        let message = "the record changed during every attempt to write it";
        Err(OperationError::Failed(CallFailure::new(FailureKind::Conflict, message)))
    }

    /// Refuses a cancellation that the control plane is known to lack. A worker whose desired status is running leaves the
    /// drain without it.
    fn check_support(&self, worker: &Worker, operation: &Operation) -> Result<(), OperationError> {
        let cancels = self.ports().control_plane.capabilities().cancel_drain;
        match (operation, cancels) {
            (Operation::CancelDrain(_), Support::No)
                if worker.status == WorkerStatus::Draining && !drain::is_wanted_again(worker) =>
            {
                Err(OperationError::NotSupported(drain::cancel_unsupported()))
            }
            (Operation::CancelDrain(_) | Operation::Drain(_), _) => Ok(()),
        }
    }

    /// Lists the sessions of a worker that can be drained.
    async fn observe_operation(
        &self,
        worker: &Worker,
        operation: &Operation,
        now: Timestamp,
    ) -> Result<Observation, OperationError> {
        // The status first: a worker that cannot be drained needs no listing.
        let _ = operation.decide(worker, &[], now)?;
        let sessions = match operation {
            Operation::CancelDrain(_) => Lookup::NotRequested,
            Operation::Drain(_) => {
                let sessions = self.ports().control_plane.sessions(&worker.id).await;
                Lookup::Found(sessions.map_err(OperationError::Failed)?)
            }
        };
        Ok(Observation { sessions, ..Observation::default() })
    }
}
