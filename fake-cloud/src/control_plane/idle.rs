//! Idle detection: telemetry → activity → idle status → pause if eligible.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::input::{Input, parse_moment, written};
use super::records::{ChangeKind, Draft, Records};
use super::settings::{AutoPause, IdleRules};
use super::worker::Worker;

/// Telemetry categories that mean somebody is there.
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

/// How many activity events a record remembers.
const REMEMBERED: usize = 10;

/// What idle detection found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IdleReport {
    /// Whose.
    pub worker_id: String,
    /// When it was checked.
    pub checked_at: Value,
    /// Whether there was telemetry at all.
    pub telemetry_fetched: bool,
    /// Whether it showed something newer than what was known.
    pub activity_updated: bool,
    /// Whether the check was made.
    pub idle_check_performed: bool,
    /// Whether the server paused the worker.
    pub auto_pause_triggered: bool,
    /// The state of things, as the rules see it.
    #[serde(flatten)]
    pub standing: IdleState,
    /// Why the check was not made.
    pub error: Option<String>,
}

/// How idle a worker is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IdleState {
    /// Whether nobody was there for the timeout.
    pub is_idle: bool,
    /// For how long nobody was there.
    pub idle_minutes: Option<f64>,
    /// Idle, allowed to be paused, not snoozed, running.
    pub eligible_for_pause: bool,
    /// Whether it was resumed a short while ago.
    pub in_snooze_period: bool,
    /// When somebody was there last, as far as the record knows.
    pub last_activity_at: Value,
}

impl Records {
    /// Checks whether a worker is idle. `raw_telemetry_events` null or absent: there is no telemetry; an empty list:
    /// there was no activity. `suppress_auto_pause` keeps the server from pausing the worker.
    ///
    /// Without telemetry the answer rests on what was known before, says so, and never pauses.
    ///
    /// # Errors
    /// 404, 422.
    pub fn detect_idle(&self, id: &str, input: &Input) -> Result<IdleReport, ApiError> {
        let suppressed = input.switch("suppress_auto_pause")?;
        let events = input.list("raw_telemetry_events")?;
        let latest = events.map(|events| latest_activity(events)).transpose()?.flatten();
        let (_, report) = self.change(id, None, |draft| {
            draft.weight = ChangeKind::Measurement;
            let mut report = IdleReport {
                worker_id: id.to_owned(),
                checked_at: written(draft.now),
                telemetry_fetched: events.is_some(),
                activity_updated: false,
                idle_check_performed: false,
                auto_pause_triggered: false,
                standing: standing(&draft.worker, draft.settings.idle, draft.now),
                error: None,
            };
            if !draft.worker.is_on("is_idle_detection_enabled") {
                report.error = Some("idle detection is switched off for this worker".to_owned());
                return Ok(report);
            }
            report.activity_updated = latest.as_ref().is_some_and(|(at, event)| draft.saw_activity(*at, event));
            report.idle_check_performed = true;
            draft.worker.set("last_activity_check_at", written(draft.now));
            report.standing = standing(&draft.worker, draft.settings.idle, draft.now);
            if report.standing.eligible_for_pause && report.telemetry_fetched && !suppressed {
                draft.pause()?;
                report.auto_pause_triggered = true;
            }
            Ok(report)
        })?;
        Ok(report)
    }

    /// How idle a worker is, without checking anew.
    ///
    /// # Errors
    /// 404.
    pub fn idle_status(&self, id: &str) -> Result<Value, ApiError> {
        let worker = self.worker(id)?;
        let rules = self.settings().idle;
        let mut status = serde_json::to_value(standing(&worker, rules, self.clock().now())).unwrap_or_default();
        status["worker_id"] = id.into();
        status["last_activity_check_at"] = worker.get("last_activity_check_at").cloned().unwrap_or_default();
        status["idle_timeout_minutes"] = (rules.timeout.as_secs_f64() / 60.0).into();
        Ok(status)
    }
}

impl Draft<'_> {
    fn saw_activity(&mut self, at: DateTime<Utc>, event: &Value) -> bool {
        if self.worker.moment("last_activity_at").is_some_and(|known| known >= at) {
            return false;
        }
        self.worker.set("last_activity_at", written(at));
        self.worker.append("recent_activity_events", event.clone(), REMEMBERED);
        true
    }

    fn pause(&mut self) -> Result<(), ApiError> {
        // A decision others must see, unlike the measurement it came from.
        self.weight = ChangeKind::Change;
        self.worker.set("last_paused_at", written(self.now));
        self.worker.set("pause_reason", "idle_timeout");
        self.worker.set("paused_by", "idle-detection");
        self.worker.count("auto_pause_count");
        self.announce("cml_worker.paused.v1", json!({"reason": "idle_timeout"}));
        self.desire(Some("stopped"))
    }
}

fn standing(worker: &Worker, rules: IdleRules, now: DateTime<Utc>) -> IdleState {
    let last = ["last_activity_at", "last_resumed_at", "created_at"].iter().find_map(|field| worker.moment(field));
    let quiet = last.map(|last| now - last);
    let is_idle = quiet.is_some_and(|quiet| quiet >= delta(rules.timeout));
    let in_snooze_period = worker.moment("last_resumed_at").is_some_and(|resumed| now - resumed < delta(rules.snooze));
    let allowed = rules.auto_pause == AutoPause::On && worker.is_on("is_auto_pause_enabled");
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

/// The latest event that means somebody was there.
fn latest_activity(events: &[Value]) -> Result<Option<(DateTime<Utc>, Value)>, ApiError> {
    let mut latest: Option<(DateTime<Utc>, Value)> = None;
    for (index, event) in events.iter().enumerate() {
        let item = Input::from_list_item("raw_telemetry_events", index, event.clone())?;
        let category = item.required_text("category", "an activity category such as start_lab")?;
        let text = item.required_text("timestamp", "an ISO 8601 time")?;
        let at = parse_moment(text).ok_or_else(|| item.invalid("timestamp", &text.into(), "an ISO 8601 time"))?;
        let counts = ACTIVITY.contains(&category) && !(category == "user_activity" && is_of_the_system(event));
        if counts && latest.as_ref().is_none_or(|(known, _)| at > *known) {
            latest = Some((at, event.clone()));
        }
    }
    Ok(latest)
}

/// Activity of the built-in users, such as the controller reading telemetry, is nobody's activity.
fn is_of_the_system(event: &Value) -> bool {
    let user = event.pointer("/data/user_id").or_else(|| event.get("user_id")).and_then(Value::as_str);
    user.is_some_and(|user| user.starts_with("00000000-0000-"))
}
