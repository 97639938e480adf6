//! Idle detection: when a check is due, and when its report is conclusive.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::policy::ScaleDownPolicy;
use super::time::{self, Timestamp};
use super::worker::Worker;

/// Report of the control plane's idle detection about one worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdleReport {
    /// Whether CML's telemetry could be read.
    pub telemetry_fetched: bool,
    /// Whether the check was carried out.
    pub idle_check_performed: bool,
    /// Whether the control plane paused the worker by itself.
    pub auto_pause_triggered: bool,
    /// Whether the worker has no activity.
    pub is_idle: bool,
    /// Duration of the inactivity, if known.
    pub idle_minutes: Option<f64>,
    /// Whether it may be paused: idle, enabled, not snoozed.
    pub eligible_for_pause: bool,
    /// Whether it is in the snooze period after a resume.
    pub in_snooze_period: bool,
    /// Description of a failed check.
    pub error: Option<String>,
}

impl IdleReport {
    /// Whether the report is conclusive. A failed check, or one without telemetry, must never read as *idle*.
    pub fn is_conclusive(&self) -> bool {
        self.error.is_none() && self.telemetry_fetched && self.idle_check_performed
    }
}

/// Whether an idle check may pause the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AutoPause {
    /// The control plane's own setting decides.
    ServerDecides,
    /// It must not: scale-down takes care of idle workers, and could not act on paused ones.
    Suppressed,
}

impl AutoPause {
    /// The setting under a policy.
    ///
    /// ```
    /// use lcm_sdk::lifecycle::{AutoPause, ScaleDownPolicy};
    ///
    /// let on = ScaleDownPolicy::new(0);
    /// assert_eq!(AutoPause::from_policy(&on), AutoPause::Suppressed);
    /// ```
    pub fn from_policy(policy: &ScaleDownPolicy) -> Self {
        if policy.enabled { Self::Suppressed } else { Self::ServerDecides }
    }
}

/// Whether an idle check is due: detection is on, and the last check is at least `interval` ago. `checked_at` is the
/// caller's own record of the last check, for a server that does not report it.
pub(crate) fn check_is_due(worker: &Worker, checked_at: Option<Timestamp>, interval: Duration, now: Timestamp) -> bool {
    let last = worker.last_activity_check_at.max(checked_at);
    worker.is_idle_detection_enabled && last.is_none_or(|checked| time::age(checked, now) >= interval)
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
        worker.is_idle_detection_enabled = false;
        assert!(!check_is_due(&worker, None, interval, now));
    }
}
