//! Idle detection: when a check is due, and when its report is conclusive.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::lookup::Lookup;
use super::reason::{Detail, Reason, ReasonCode};
use super::session::{Session, count_active};
use super::time::{self, Timestamp};
use super::worker::Worker;

/// Report of the control plane's idle detection about one worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdleReport {
    /// Whether CML's telemetry could be read.
    #[serde(deserialize_with = "null_is_false")]
    pub telemetry_fetched: bool,
    /// Whether the check was carried out.
    #[serde(deserialize_with = "null_is_false")]
    pub idle_check_performed: bool,
    /// Whether the control plane paused the worker by itself.
    #[serde(deserialize_with = "null_is_false")]
    pub auto_pause_triggered: bool,
    /// Whether the worker has no activity.
    #[serde(deserialize_with = "null_is_false")]
    pub is_idle: bool,
    /// Duration of the inactivity, if known.
    pub idle_minutes: Option<f64>,
    /// Whether it may be paused: idle, enabled, not snoozed.
    #[serde(deserialize_with = "null_is_false")]
    pub eligible_for_pause: bool,
    /// Whether it is in the snooze period after a resume.
    #[serde(deserialize_with = "null_is_false")]
    pub in_snooze_period: bool,
    /// Time without activity after which the control plane counts a worker as idle, if it reports that.
    #[serde(alias = "idle_timeout_minutes")]
    pub idle_threshold_minutes: Option<f64>,
    /// Description of a failed check.
    pub error: Option<String>,
}

/// A server that has no verdict writes null, which is above all not *idle*.
fn null_is_false<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl IdleReport {
    /// Whether the report is conclusive. A failed check, or one without telemetry, must never read as *idle*.
    pub fn is_conclusive(&self) -> bool {
        self.error.is_none() && self.telemetry_fetched && self.idle_check_performed
    }

    /// The reason of a reconcile in which the control plane paused the worker.
    pub(crate) fn pause_reason(&self) -> Option<Reason> {
        let idle = self.idle_minutes.map(|minutes| Detail::Text(format!("idle for {minutes:.0} min").into()));
        self.auto_pause_triggered.then(|| Reason::new(ReasonCode::AutoPaused).with(idle.unwrap_or_default()))
    }
}

/// Telemetry categories that count as user activity.
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

/// Time that may pass between our judgment of telemetry and the control plane's, at most half of its threshold.
const MARGIN: Duration = Duration::from_secs(60);

/// Time of user activity in a telemetry event. Activity of built-in users does not count.
pub(crate) fn activity_at(event: &Value) -> Option<Timestamp> {
    let category = event["category"].as_str()?;
    let user = event["data"]["user_id"].as_str().or_else(|| event["user_id"].as_str()).unwrap_or_default();
    let is_system = category == "user_activity" && user.starts_with("00000000-0000-");
    let counts = ACTIVITY.contains(&category) && !is_system;
    counts.then(|| time::parse(event["timestamp"].as_str()?)).flatten()
}

/// Whether telemetry shows activity inside the control plane's threshold. A check with such telemetry cannot pause the
/// worker. Without a threshold nothing is known.
pub(crate) fn shows_activity(events: &[Value], report: &IdleReport, now: Timestamp) -> bool {
    let threshold = report.idle_threshold_minutes.map(|minutes| Duration::try_from_secs_f64(minutes * 60.0));
    let Some(Ok(threshold)) = threshold else { return false };
    let span = threshold.saturating_sub(MARGIN.min(threshold / 2));
    events.iter().filter_map(activity_at).any(|at| time::is_recent(at, now, span))
}

/// The control plane's last verdict of idle detection, corrected by what was observed since: a worker with active sessions
/// is in use, and so is one with activity that the control plane has not seen. If telemetry could not be read, the verdict on a worker
/// without active sessions is inconclusive.
pub(crate) fn corrected(
    report: &IdleReport,
    sessions: &Lookup<Vec<Session>>,
    telemetry: &Lookup<Vec<Value>>,
    now: Timestamp,
) -> IdleReport {
    let is_busy = sessions.found().is_some_and(|sessions| count_active(sessions) > 0);
    let events = telemetry.found();
    let is_read = match telemetry {
        Lookup::Found(_) | Lookup::NotRequested => true,
        Lookup::Absent | Lookup::Unknown(_) => false,
    };
    let in_use = is_busy || events.is_some_and(|events| contradicts(events, report, now));
    IdleReport {
        telemetry_fetched: report.telemetry_fetched && (is_busy || is_read),
        is_idle: report.is_idle && !in_use,
        eligible_for_pause: report.eligible_for_pause && !in_use,
        ..report.clone()
    }
}

/// Whether telemetry shows activity that the control plane would not call idle. Without a threshold, that is any activity
/// after the latest one it knows.
fn contradicts(events: &[Value], report: &IdleReport, now: Timestamp) -> bool {
    let minutes = report.idle_threshold_minutes.or(report.idle_minutes);
    let span = minutes.and_then(|minutes| Duration::try_from_secs_f64(minutes * 60.0).ok());
    let mut activities = events.iter().filter_map(activity_at);
    activities.any(|at| span.is_none_or(|span| time::is_recent(at, now, span)))
}

/// Whether an idle check may pause the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AutoPause {
    /// The control plane's own setting decides.
    ServerDecides,
    /// It must not. Not every server has the feature, so such a check is made with telemetry only that shows activity.
    Suppressed,
}

/// Whether an idle check is due: detection is on, and the last check is at least `interval` ago. `checked_at` is the
/// caller's own record of the last check, for a server that does not report it or whose clock is ahead.
pub(crate) fn check_is_due(worker: &Worker, checked_at: Option<Timestamp>, interval: Duration, now: Timestamp) -> bool {
    let checks = [worker.last_activity_check_at, checked_at];
    let checked = checks.into_iter().flatten().any(|checked| time::is_recent(checked, now, interval));
    worker.is_idle_detection_enabled && !checked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::status::WorkerStatus;

    #[test]
    fn failed_checks_are_inconclusive() {
        let good = IdleReport { telemetry_fetched: true, idle_check_performed: true, ..IdleReport::default() };
        assert!(good.is_conclusive());
        assert!(!IdleReport { telemetry_fetched: false, ..good.clone() }.is_conclusive());
        assert!(!IdleReport { idle_check_performed: false, ..good.clone() }.is_conclusive());
        assert!(!IdleReport { error: Some("timeout".into()), ..good }.is_conclusive());
    }

    #[test]
    fn null_fields_of_a_report_are_parsed() {
        let report = serde_json::json!({
            "telemetry_fetched": true, "idle_check_performed": true, "auto_pause_triggered": null, "is_idle": null,
            "idle_minutes": null, "eligible_for_pause": null, "in_snooze_period": null, "error": null,
        });
        let report: IdleReport = serde_json::from_value(report).expect("a report");
        assert!(report.idle_check_performed && !report.is_idle && !report.eligible_for_pause);
    }

    #[test]
    fn activity_counts_inside_the_threshold_only() {
        let now = time::parse("2026-02-06T08:00:00Z").expect("valid");
        let shows = |event: Value, minutes: Option<f64>| {
            let report = IdleReport { idle_threshold_minutes: minutes, ..IdleReport::default() };
            shows_activity(&[event], &report, now)
        };
        let start = |at: &str| serde_json::json!({"category": "start_lab", "timestamp": at});
        assert!(shows(start("2026-02-06T07:01:01Z"), Some(60.0)));
        assert!(!shows(start("2026-02-06T07:01:00Z"), Some(60.0)), "the check may take a minute");
        assert!(!shows(start("2026-02-06T07:59:00Z"), None), "the threshold is not known");
        let of = |user: &str| {
            let at = "2026-02-06T07:59:00Z";
            serde_json::json!({"category": "user_activity", "timestamp": at, "data": {"user_id": user}})
        };
        assert!(shows(of("4f6c"), Some(60.0)));
        assert!(!shows(of("00000000-0000-4000-a000-000000000000"), Some(60.0)), "a built-in user");
    }

    #[test]
    fn idle_checks_respect_their_interval() {
        let now = time::parse("2026-02-06T08:05:00Z").expect("valid");
        let interval = Duration::from_secs(300);
        let mut worker = Worker::new("w", WorkerStatus::Running);
        let at = |text| time::parse(text);
        assert!(check_is_due(&worker, None, interval, now));
        worker.last_activity_check_at = at("2026-02-06T08:00:01Z");
        assert!(!check_is_due(&worker, None, interval, now));
        worker.last_activity_check_at = at("2026-02-06T08:00:00Z");
        assert!(check_is_due(&worker, None, interval, now));
        assert!(!check_is_due(&worker, at("2026-02-06T08:01:00Z"), interval, now));
        // After the clock was set back, the last check is in the future.
        worker.last_activity_check_at = at("2026-02-07T08:00:00Z");
        assert!(check_is_due(&worker, at("2026-02-07T08:00:00Z"), interval, now));
        assert!(!check_is_due(&worker, at("2026-02-06T08:04:00Z"), interval, now));
        worker.is_idle_detection_enabled = false;
        assert!(!check_is_due(&worker, None, interval, now));
    }
}
