//! Idle detection: derives activity from telemetry, computes the idle status and pauses eligible workers.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::input::{Input, format_time, parse_time};
use super::records::{ChangeKind, Draft, Records};
use super::settings::{AutoPause, IdleRules};
use super::worker::Worker;

/// Telemetry categories that count as user activity.
const ACTIVITY_CATEGORIES: [&str; 10] = [
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

/// Maximum number of activity events in a record.
const MAX_ACTIVITY_EVENTS: usize = 10;

/// Result of idle detection.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IdleReport {
    /// Id of the worker.
    pub worker_id: String,
    /// Time of the check.
    pub checked_at: Value,
    /// Whether the request contained telemetry.
    pub telemetry_fetched: bool,
    /// Whether the telemetry contained activity newer than the record.
    pub activity_updated: bool,
    /// Whether the check was performed.
    pub idle_check_performed: bool,
    /// Whether the server paused the worker.
    pub auto_pause_triggered: bool,
    /// Idle status of the worker after the check.
    #[serde(flatten)]
    pub idle_state: IdleState,
    /// Reason why the check was not performed.
    pub error: Option<String>,
}

/// Idle status of a worker.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IdleState {
    /// Whether there was no activity for the idle timeout.
    pub is_idle: bool,
    /// Time since the last activity.
    pub idle_minutes: Option<f64>,
    /// Whether auto-pause applies: idle, enabled, not snoozed and running.
    pub eligible_for_pause: bool,
    /// Whether the worker was resumed within the snooze period.
    pub in_snooze_period: bool,
    /// Time of the last recorded activity.
    pub last_activity_at: Value,
}

impl Records {
    /// Checks whether a worker is idle.
    ///
    /// A missing or null `raw_telemetry_events` means that telemetry is unavailable; an empty list means no activity.
    /// `suppress_auto_pause` keeps the server from pausing the worker. Without telemetry the result is based on the
    /// record, is marked so, and never pauses the worker.
    ///
    /// # Errors
    /// 404 for an unknown worker, 422 for an invalid field.
    pub fn detect_idle(&self, id: &str, input: &Input) -> Result<IdleReport, ApiError> {
        let suppressed = input.boolean("suppress_auto_pause")?;
        let events = input.list("raw_telemetry_events")?;
        let latest = events.map(|events| latest_activity(events)).transpose()?.flatten();
        let (_, report) = self.change(id, None, |draft| {
            draft.weight = ChangeKind::Measurement;
            let mut report = IdleReport {
                worker_id: id.to_owned(),
                checked_at: format_time(draft.now),
                telemetry_fetched: events.is_some(),
                activity_updated: false,
                idle_check_performed: false,
                auto_pause_triggered: false,
                idle_state: idle_state(&draft.worker, draft.settings.idle, draft.now),
                error: None,
            };
            if !draft.worker.is_enabled("is_idle_detection_enabled") {
                report.error = Some("idle detection is switched off for this worker".to_owned());
                return Ok(report);
            }
            report.activity_updated = latest.as_ref().is_some_and(|(at, event)| draft.set_last_activity(*at, event));
            report.idle_check_performed = true;
            draft.worker.set("last_activity_check_at", format_time(draft.now));
            report.idle_state = idle_state(&draft.worker, draft.settings.idle, draft.now);
            if report.idle_state.eligible_for_pause && report.telemetry_fetched && !suppressed {
                draft.pause()?;
                report.auto_pause_triggered = true;
            }
            Ok(report)
        })?;
        Ok(report)
    }

    /// Idle status of a worker from its record, without new telemetry.
    ///
    /// # Errors
    /// 404 for an unknown worker.
    pub fn idle_status(&self, id: &str) -> Result<Value, ApiError> {
        let worker = self.worker(id)?;
        let rules = self.settings().idle;
        let mut status = serde_json::to_value(idle_state(&worker, rules, self.clock().now())).unwrap_or_default();
        status["worker_id"] = id.into();
        status["last_activity_check_at"] = worker.get("last_activity_check_at").cloned().unwrap_or_default();
        status["idle_timeout_minutes"] = (rules.timeout.as_secs_f64() / 60.0).into();
        Ok(status)
    }
}

impl Draft<'_> {
    pub(super) fn set_last_activity(&mut self, at: DateTime<Utc>, event: &Value) -> bool {
        if self.worker.time("last_activity_at").is_some_and(|known| known >= at) {
            return false;
        }
        self.worker.set("last_activity_at", format_time(at));
        self.worker.append("recent_activity_events", event.clone(), MAX_ACTIVITY_EVENTS);
        true
    }

    fn pause(&mut self) -> Result<(), ApiError> {
        // A pause is a lifecycle change and raises the version, unlike the report it came from.
        self.weight = ChangeKind::Change;
        self.worker.set("last_paused_at", format_time(self.now));
        self.worker.set("pause_reason", "idle_timeout");
        self.worker.set("paused_by", "idle-detection");
        self.worker.increment("auto_pause_count");
        self.add_event("cml_worker.paused.v1", json!({"reason": "idle_timeout"}));
        self.set_desired_status(Some("stopped"))
    }
}

pub(super) fn idle_state(worker: &Worker, rules: IdleRules, now: DateTime<Utc>) -> IdleState {
    let last = ["last_activity_at", "last_resumed_at", "created_at"].iter().find_map(|field| worker.time(field));
    let quiet = last.map(|last| now - last);
    let is_idle = quiet.is_some_and(|quiet| quiet >= delta(rules.timeout));
    let in_snooze_period = worker.time("last_resumed_at").is_some_and(|resumed| now - resumed < delta(rules.snooze));
    let allowed = rules.auto_pause == AutoPause::On && worker.is_enabled("is_auto_pause_enabled");
    IdleState {
        is_idle,
        idle_minutes: quiet.map(|quiet| quiet.num_milliseconds() as f64 / 60_000.0),
        eligible_for_pause: is_idle && allowed && !in_snooze_period && worker.status() == "running",
        in_snooze_period,
        last_activity_at: worker.get("last_activity_at").cloned().unwrap_or_default(),
    }
}

fn delta(duration: std::time::Duration) -> TimeDelta {
    TimeDelta::from_std(duration).unwrap_or(TimeDelta::MAX)
}

/// Latest event that counts as user activity.
pub(super) fn latest_activity(events: &[Value]) -> Result<Option<(DateTime<Utc>, Value)>, ApiError> {
    let mut latest: Option<(DateTime<Utc>, Value)> = None;
    for (index, event) in events.iter().enumerate() {
        let item = Input::from_list_item("raw_telemetry_events", index, event.clone())?;
        let category = item.required_text("category", "an activity category such as start_lab")?;
        let text = item.required_text("timestamp", "an ISO 8601 time")?;
        let at = parse_time(text).ok_or_else(|| item.invalid("timestamp", &text.into(), "an ISO 8601 time"))?;
        let counts =
            ACTIVITY_CATEGORIES.contains(&category) && !(category == "user_activity" && is_built_in_user(event));
        if counts && latest.as_ref().is_none_or(|(known, _)| at > *known) {
            latest = Some((at, event.clone()));
        }
    }
    Ok(latest)
}

/// Activity of built-in users, such as the controller that reads telemetry, does not count.
fn is_built_in_user(event: &Value) -> bool {
    let user = event.pointer("/data/user_id").or_else(|| event.get("user_id")).and_then(Value::as_str);
    user.is_some_and(|user| user.starts_with("00000000-0000-"))
}
