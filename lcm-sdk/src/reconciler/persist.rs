//! Recording: writing down what a pass came to, and telling of it once that is written.

use crate::lifecycle::effect::EffectResult;
use crate::lifecycle::event::Notice;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::record::{Applied, Record};
use crate::lifecycle::status::{DesiredStatus, WorkerStatus};
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;
use crate::reconciler::Reconciler;
use crate::reconciler::cache::WriteKind;
use crate::reconciler::result::{Mode, ReconcileResult, effect_reports, failure_of};
use crate::telemetry::Anomaly;

impl Reconciler {
    pub(crate) async fn persist(
        &self,
        worker: &Worker,
        applied: &Applied,
        record: Record,
    ) -> Result<ReconcileResult, CallFailure> {
        let error = applied.results.iter().find_map(EffectResult::failure).cloned();
        if !applied.did_something() && !self.leadership().is_valid() {
            let failure = CallFailure::new(FailureKind::Unreachable, "not the leader any more");
            return Ok(ReconcileResult::not_recorded(worker, applied, &failure));
        }
        if !record.patch.is_empty() {
            // Also after the right to lead was lost: what was done must be written down, and the version guards it.
            let written = self.ports().control_plane.write(worker, &record.patch, self.leadership().fence()).await;
            let nothing_written = written.as_ref().is_err_and(|failure| failure.kind.did_nothing());
            if !nothing_written && leaves_service(worker, &record) {
                self.bump_scale_down_epoch();
            }
            match written {
                Ok(version) => self.cache().mark_written(&worker.id, version, WriteKind::Conditional),
                Err(failure) if failure.kind == FailureKind::Conflict => return Err(failure),
                Err(failure) => {
                    tracing::warn!(target: "lcm::reconcile", worker = %worker.id, %failure, "the record was not written");
                    return Ok(ReconcileResult::not_recorded(worker, applied, &failure));
                }
            }
        }
        self.telemetry().count(record.counts);
        self.publish(worker, &record, applied.at).await;
        let to = record.patch.status.unwrap_or(worker.status);
        if to != worker.status {
            tracing::info!(target: "lcm::reconcile", worker = %worker.id, from = %worker.status, %to, "{}", record.reason);
        }
        Ok(ReconcileResult {
            worker_id: worker.id.clone(),
            mode: Mode::Real,
            outcome: record.outcome,
            from_status: worker.status,
            to_status: to,
            effects: effect_reports(applied),
            error: error.or_else(|| failure_of(&record.reason)),
            reason: record.reason,
            requeue: record.requeue,
        })
    }

    async fn publish(&self, worker: &Worker, record: &Record, at: Timestamp) {
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
