//! Idle detection of the memory control plane.

use serde_json::Value;

use super::State;
use crate::lifecycle::idle::{AutoPause, IdleReport, activity_at};
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::status::{DesiredStatus, WorkerStatus};
use crate::lifecycle::time::{self, Timestamp};
use crate::lifecycle::worker::Worker;

impl State {
    /// Records activity on a worker.
    pub(super) fn record_activity(&mut self, id: &WorkerId, at: Timestamp) {
        let known = self.activity.entry(id.clone()).or_insert(at);
        *known = at.max(*known);
    }

    /// Computes how long a worker has been idle.
    pub(super) fn idle_report(&self, worker: &Worker, timeout: std::time::Duration, now: Timestamp) -> IdleReport {
        let last = self.activity.get(&worker.id).copied().or(worker.created_at);
        let idle = last.map(|last| time::age(last, now));
        let is_idle = idle.is_some_and(|idle| idle >= timeout);
        IdleReport {
            is_idle,
            idle_minutes: idle.map(|idle| idle.as_secs_f64() / 60.0),
            eligible_for_pause: is_idle && worker.status == WorkerStatus::Running,
            idle_threshold_minutes: Some(timeout.as_secs_f64() / 60.0),
            ..IdleReport::default()
        }
    }

    /// Runs idle detection, and sets the desired status to stopped if the worker may be paused. Returns `None` for an
    /// unknown worker.
    pub(super) fn detect_idle(
        &mut self,
        id: &WorkerId,
        telemetry: Option<&[Value]>,
        auto_pause: AutoPause,
        timeout: std::time::Duration,
        now: Timestamp,
    ) -> Option<IdleReport> {
        if !self.workers.get(id)?.is_idle_detection_enabled {
            let error = Some("idle detection is disabled for this worker".to_owned());
            return Some(IdleReport { telemetry_fetched: telemetry.is_some(), error, ..IdleReport::default() });
        }
        for at in telemetry.unwrap_or_default().iter().filter_map(activity_at) {
            self.record_activity(id, at);
        }
        let report = self.idle_report(self.workers.get(id)?, timeout, now);
        let worker = self.workers.get_mut(id)?;
        worker.last_activity_check_at = Some(now);
        let pauses = match auto_pause {
            AutoPause::ServerDecides => report.eligible_for_pause && telemetry.is_some(),
            AutoPause::Suppressed => false,
        };
        if pauses {
            worker.desired_status = Some(DesiredStatus::Stopped);
        }
        Some(IdleReport {
            telemetry_fetched: telemetry.is_some(),
            idle_check_performed: true,
            auto_pause_triggered: pauses,
            ..report
        })
    }
}
