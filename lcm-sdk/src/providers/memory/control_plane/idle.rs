//! Idle detection: telemetry, then activity, then idle or not, then a pause if that may be.

use serde_json::Value;

use super::State;
use crate::lifecycle::idle::{AutoPause, IdleReport};
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::status::{DesiredStatus, WorkerStatus};
use crate::lifecycle::time::{self, Timestamp};
use crate::lifecycle::worker::Worker;

/// Telemetry categories that mean that somebody is there.
const ACTIVITY: [&str; 10] = [
    "start_lab",
    "stop_lab",
    "wipe_lab",
    "import_lab",
    "export_lab",
    "start_node",
    "stop_node",
    "queue_node",
    "boot_node",
    "user_activity",
];

impl State {
    /// Remembers the latest activity on a worker.
    pub(super) fn saw_activity(&mut self, id: &WorkerId, at: Timestamp) {
        let known = self.activity.entry(id.clone()).or_insert(at);
        *known = at.max(*known);
    }

    /// How idle a worker is.
    pub(super) fn standing(&self, worker: &Worker, timeout: std::time::Duration, now: Timestamp) -> IdleReport {
        let last = self.activity.get(&worker.id).copied().or(worker.created_at);
        let quiet = last.map(|last| time::age(last, now));
        let is_idle = quiet.is_some_and(|quiet| quiet >= timeout);
        IdleReport {
            is_idle,
            idle_minutes: quiet.map(|quiet| quiet.as_secs_f64() / 60.0),
            eligible_for_pause: is_idle && worker.status == WorkerStatus::Running,
            ..IdleReport::default()
        }
    }

    /// Checks a worker. Gives the verdict, and whether the worker was paused.
    pub(super) fn check(
        &mut self,
        id: &WorkerId,
        telemetry: Option<&[Value]>,
        auto_pause: AutoPause,
        timeout: std::time::Duration,
        now: Timestamp,
    ) -> Option<IdleReport> {
        if !self.workers.get(id)?.is_idle_detection_enabled {
            let error = Some("idle detection is switched off for this worker".to_owned());
            return Some(IdleReport { telemetry_fetched: telemetry.is_some(), error, ..IdleReport::default() });
        }
        for at in telemetry.unwrap_or_default().iter().filter_map(activity) {
            self.saw_activity(id, at);
        }
        let standing = self.standing(self.workers.get(id)?, timeout, now);
        let worker = self.workers.get_mut(id)?;
        worker.last_activity_check_at = Some(now);
        let pauses = match auto_pause {
            AutoPause::ServerDecides => standing.eligible_for_pause && telemetry.is_some(),
            AutoPause::Suppressed => false,
        };
        if pauses {
            worker.desired_status = Some(DesiredStatus::Stopped);
        }
        Some(IdleReport {
            telemetry_fetched: telemetry.is_some(),
            idle_check_performed: true,
            auto_pause_triggered: pauses,
            ..standing
        })
    }
}

/// When somebody was there, if the event says so. What the built-in users do is nobody's activity.
fn activity(event: &Value) -> Option<Timestamp> {
    let category = event["category"].as_str()?;
    let user = event["data"]["user_id"].as_str().unwrap_or_default();
    let system = category == "user_activity" && user.starts_with("00000000-0000-");
    let counts = ACTIVITY.contains(&category) && !system;
    counts.then(|| time::parse(event["timestamp"].as_str()?)).flatten()
}
