//! Recording: writing down what a pass came to, and telling of it once that is written.

use crate::lifecycle::event::Notice;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::reason::{Reason, ReasonCode};
use crate::lifecycle::record::{Applied, EffectResult, Record};
use crate::lifecycle::status::{DesiredStatus, WorkerStatus};
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;
use crate::reconciler::Reconciler;
use crate::reconciler::cache::Write;
use crate::reconciler::result::{ActionResult, Mode, ReconcileResult, actions, ended, failure_of};
use crate::telemetry::Anomaly;

impl Reconciler {
    pub(crate) async fn write_down(
        &self,
        worker: &Worker,
        applied: &Applied,
        record: Record,
    ) -> Result<ReconcileResult, CallFailure> {
        let actions = actions(&applied.decision.effects, |index| {
            applied.results.get(index).map_or(ActionResult::NotTried, ActionResult::from)
        });
        let error = applied.results.iter().find_map(|result| match result {
            EffectResult::Failed(failure) => Some(failure.clone()),
            EffectResult::Done | EffectResult::Launched(_) | EffectResult::NotTried => None,
        });
        if !applied.did_something() && !self.leadership().is_valid() {
            let failure = CallFailure::new(FailureKind::Unreachable, "not the leader any more");
            let reason = Reason::failed(ReasonCode::NotRecorded, &failure);
            let result = ended(worker, Mode::Real, Outcome::Retry, Requeue::Backoff, reason, Some(failure));
            return Ok(ReconcileResult { actions, ..result });
        }
        if !record.patch.is_empty() {
            // Also after the right to lead was lost: what was done must be written down, and the version guards it.
            let written = self.ports().control_plane.write(worker, &record.patch, self.leadership().fence()).await;
            let nothing_written = written.as_ref().is_err_and(|failure| failure.kind.did_nothing());
            if !nothing_written && leaves_service(worker, &record) {
                self.departed();
            }
            match written {
                Ok(version) => self.memory().wrote(&worker.id, version, Write::Conditional),
                Err(failure) if failure.kind == FailureKind::Conflict => return Err(failure),
                Err(failure) => {
                    tracing::warn!(target: "lcm::reconcile", worker = %worker.id, %failure, "the record was not written");
                    let reason = Reason::failed(ReasonCode::NotRecorded, &failure);
                    let result = ended(worker, Mode::Real, Outcome::Retry, Requeue::Backoff, reason, Some(failure));
                    return Ok(ReconcileResult { actions, ..result });
                }
            }
        }
        self.telemetry().count(record.counts);
        self.tell(worker, &record, applied.at).await;
        let to = record.patch.status.unwrap_or(worker.status);
        if to != worker.status {
            tracing::info!(target: "lcm::reconcile", worker = %worker.id, from = %worker.status, %to, "{}", record.reason);
        }
        Ok(ReconcileResult {
            worker_id: worker.id.clone(),
            mode: Mode::Real,
            outcome: record.outcome,
            from: worker.status,
            to,
            actions,
            error: error.or_else(|| failure_of(&record.reason)),
            reason: record.reason,
            requeue: record.requeue,
        })
    }

    async fn tell(&self, worker: &Worker, record: &Record, at: Timestamp) {
        for notice in &record.notices {
            match notice {
                // A failure is logged and counted there.
                Notice::Event(event) => drop(self.announce(worker.id.as_str(), event, at).await),
                Notice::Audit(audit) => {
                    let detail = record.reason.to_string();
                    let fence = self.leadership().fence();
                    let told = self.ports().control_plane.audit(&worker.id, *audit, &detail, fence).await;
                    if let Err(failure) = told {
                        let label = audit.label();
                        tracing::warn!(target: "lcm::events", worker = %worker.id, label, %failure, "not audited");
                        self.telemetry().count_anomaly(Anomaly::AuditUndelivered);
                    }
                }
            }
        }
    }
}

/// Whether a record that is written takes a worker out of service.
fn leaves_service(worker: &Worker, record: &Record) -> bool {
    let changes = &record.patch.changes;
    worker.status == WorkerStatus::Running
        && (record.patch.status.is_some_and(|status| status != WorkerStatus::Running)
            || changes.desired_status.is_some_and(|desired| desired != DesiredStatus::Running))
}
