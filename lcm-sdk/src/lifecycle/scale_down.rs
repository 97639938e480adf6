//! Scale-down: five guards and two listings of the sessions stand between an idle worker and its stop.

use serde::Serialize;

use super::fleet::FleetView;
use super::idle::IdleReport;
use super::lookup::Lookup;
use super::policy::ScaleDownPolicy;
use super::session::{KnownSessionState, Session, SessionPhase, SessionState, count_active};
use super::status::DesiredStatus;
use super::time::{self, Timestamp};
use super::worker::Worker;

/// Verdict of scale-down on an idle worker. Each has its label in the audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleDownVerdict {
    /// The control plane paused it already.
    SkippedAutoPause,
    /// The worker is in use.
    SkippedNotIdle,
    /// The worker may not be paused.
    SkippedNotEligible,
    /// The fleet is at its minimum.
    SkippedMinWorkers,
    /// The cooldown since the last scale-down has not passed.
    SkippedCooldown,
    /// A session is about to begin on it.
    SkippedUpcomingSession,
    /// It has no session and is stopped at once.
    StoppedImmediately,
    /// It has sessions, none of them active, and is drained.
    Drained,
}

impl ScaleDownVerdict {
    /// Every verdict, in the order in which they are considered.
    pub const ALL: &'static [Self] = &[
        Self::SkippedAutoPause,
        Self::SkippedNotIdle,
        Self::SkippedNotEligible,
        Self::SkippedMinWorkers,
        Self::SkippedCooldown,
        Self::SkippedUpcomingSession,
        Self::StoppedImmediately,
        Self::Drained,
    ];

    /// The label in the audit.
    pub const fn label(self) -> &'static str {
        match self {
            Self::SkippedAutoPause => "skipped_auto_pause",
            Self::SkippedNotIdle => "skipped_not_idle",
            Self::SkippedNotEligible => "skipped_not_eligible",
            Self::SkippedMinWorkers => "skipped_min_workers",
            Self::SkippedCooldown => "skipped_cooldown",
            Self::SkippedUpcomingSession => "skipped_upcoming_session",
            Self::StoppedImmediately => "stopped_immediately",
            Self::Drained => "drained",
        }
    }
}

/// Evaluates whether an idle worker is taken out of service, and how. `None` is no verdict: scale-down is off, the idle
/// report is inconclusive, or the fleet or the sessions could not be read.
///
/// ```
/// use lcm_sdk::lifecycle::{IdleReport, Lookup, ScaleDownPolicy};
/// use lcm_sdk::lifecycle::scale_down::evaluate;
/// use lcm_sdk::FleetView;
///
/// let policy = ScaleDownPolicy::new(2);
/// let idle = IdleReport {
///     telemetry_fetched: true, idle_check_performed: true, is_idle: true, eligible_for_pause: true,
///     ..IdleReport::default()
/// };
/// let fleet = Lookup::Found(FleetView { running: 2, last_scale_down_at: None });
/// let verdict = evaluate(&idle, &fleet, &Lookup::NotRequested, &policy, "2026-02-06T08:00:00Z".parse().unwrap());
/// assert_eq!(verdict.unwrap().label(), "skipped_min_workers");
/// ```
pub fn evaluate(
    report: &IdleReport,
    fleet: &Lookup<FleetView>,
    sessions: &Lookup<Vec<Session>>,
    policy: &ScaleDownPolicy,
    now: Timestamp,
) -> Option<ScaleDownVerdict> {
    if !policy.enabled || !report.is_conclusive() {
        return None;
    }
    let is_busy = || sessions.found().is_some_and(|sessions| count_active(sessions) > 0);
    worker_guards(report)
        .or_else(|| is_busy().then_some(ScaleDownVerdict::SkippedNotIdle))
        .or_else(|| fleet_guards(fleet.found()?, policy, now))
        .or_else(|| fleet.found().and(sessions.found()).map(|sessions| session_checks(sessions, policy, now)))
}

/// The guard of one worker that keeps it in service, if one does.
pub(crate) fn worker_guards(report: &IdleReport) -> Option<ScaleDownVerdict> {
    if report.auto_pause_triggered {
        Some(ScaleDownVerdict::SkippedAutoPause)
    } else if !report.is_idle {
        Some(ScaleDownVerdict::SkippedNotIdle)
    } else if !report.eligible_for_pause {
        Some(ScaleDownVerdict::SkippedNotEligible)
    } else {
        None
    }
}

/// The guard of the fleet as a whole that keeps every worker in service, if one does.
pub fn fleet_guards(fleet: &FleetView, policy: &ScaleDownPolicy, now: Timestamp) -> Option<ScaleDownVerdict> {
    if fleet.running <= policy.min_workers {
        Some(ScaleDownVerdict::SkippedMinWorkers)
    } else if fleet.last_scale_down_at.is_some_and(|at| time::is_recent(at, now, policy.cooldown)) {
        Some(ScaleDownVerdict::SkippedCooldown)
    } else {
        None
    }
}

fn session_checks(sessions: &[Session], policy: &ScaleDownPolicy, now: Timestamp) -> ScaleDownVerdict {
    let mut open = sessions.iter().filter(|session| session.state.phase() != SessionPhase::Over).peekable();
    if open.peek().is_none() {
        ScaleDownVerdict::StoppedImmediately
    } else if open.any(|session| is_upcoming(session, policy, now)) {
        ScaleDownVerdict::SkippedUpcomingSession
    } else {
        ScaleDownVerdict::Drained
    }
}

/// Whether a scheduled session is about to begin. One without a timeslot may begin at any moment; one whose timeslot
/// has begun is late, not over.
fn is_upcoming(session: &Session, policy: &ScaleDownPolicy, now: Timestamp) -> bool {
    session.state == SessionState::Known(KnownSessionState::Scheduled)
        && session.timeslot_start.is_none_or(|start| time::until(start, now) <= policy.look_ahead)
}

/// Whether a worker is stopped only if it has no session: scale-down left the start of a drain on its record.
pub(crate) fn stop_spares_sessions(worker: &Worker) -> bool {
    let by_scale_down = worker.notes.drain_started_at.is_some();
    match worker.desired_status {
        None | Some(DesiredStatus::Stopped) => by_scale_down,
        Some(DesiredStatus::Running | DesiredStatus::Terminated) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        time::parse("2026-02-06T08:00:00Z").expect("valid")
    }

    fn verdict(
        change: impl FnOnce(&mut IdleReport, &mut FleetView, &mut Vec<Session>, &mut ScaleDownPolicy),
    ) -> Option<&'static str> {
        let mut report = IdleReport {
            telemetry_fetched: true,
            idle_check_performed: true,
            is_idle: true,
            eligible_for_pause: true,
            ..IdleReport::default()
        };
        let mut fleet = FleetView { running: 3, last_scale_down_at: None };
        let mut sessions = Vec::new();
        let mut policy = ScaleDownPolicy::new(1);
        change(&mut report, &mut fleet, &mut sessions, &mut policy);
        evaluate(&report, &Lookup::Found(fleet), &Lookup::Found(sessions), &policy, now()).map(ScaleDownVerdict::label)
    }

    #[test]
    fn guards_apply_in_order() {
        // Every guard would hit; each step removes the first one.
        let hit = |cleared: usize| {
            verdict(|report, fleet, sessions, policy| {
                report.auto_pause_triggered = cleared < 1;
                report.is_idle = cleared >= 2;
                report.eligible_for_pause = cleared >= 3;
                policy.min_workers = if cleared < 4 { 3 } else { 1 };
                fleet.last_scale_down_at = (cleared < 5).then(now);
                if cleared < 6 {
                    sessions.push(Session::new("s-1", "scheduled"));
                }
                if cleared < 7 {
                    sessions.push(Session::new("s-2", "failed"));
                }
            })
        };
        assert_eq!(
            (0..=7).map(hit).collect::<Vec<_>>(),
            [
                "skipped_auto_pause",
                "skipped_not_idle",
                "skipped_not_eligible",
                "skipped_min_workers",
                "skipped_cooldown",
                "skipped_upcoming_session",
                "drained",
                "stopped_immediately",
            ]
            .map(Some)
        );
    }

    #[test]
    fn workers_with_active_sessions_are_not_idle() {
        for state in ["running", "grading", "hibernating"] {
            let busy = verdict(|_, _, sessions, _| sessions.push(Session::new("s-1", state)));
            assert_eq!(busy, Some("skipped_not_idle"), "{state}");
        }
    }

    #[test]
    fn upcoming_sessions_keep_their_worker() {
        let with = |minutes: i64| {
            verdict(|_, _, sessions, _| {
                let mut session = Session::new("s-1", "scheduled");
                session.timeslot_start = Some(now() + chrono::TimeDelta::minutes(minutes));
                sessions.push(session);
            })
        };
        assert_eq!(with(-5), Some("skipped_upcoming_session"));
        assert_eq!(with(30), Some("skipped_upcoming_session"));
        assert_eq!(with(31), Some("drained"));
    }

    #[test]
    fn unchecked_workers_get_no_verdict() {
        assert_eq!(verdict(|_, _, _, policy| policy.enabled = false), None);
        assert_eq!(verdict(|report, _, _, _| report.telemetry_fetched = false), None);
        assert_eq!(verdict(|report, _, _, _| report.error = Some("no route".into())), None);
    }

    #[test]
    fn the_cooldown_ends() {
        let after = |seconds: i64| {
            verdict(|_, fleet, _, _| fleet.last_scale_down_at = Some(now() - chrono::TimeDelta::seconds(seconds)))
        };
        assert_eq!(after(599), Some("skipped_cooldown"));
        assert_eq!(after(600), Some("stopped_immediately"));
        // After the clock was set back, the last scale-down is in the future.
        assert_eq!(after(-86_400), Some("stopped_immediately"));
    }

    #[test]
    fn scale_down_stops_at_the_fleet_minimum() {
        let policy = ScaleDownPolicy::new(2).with_cooldown(std::time::Duration::ZERO);
        let mut fleet = FleetView { running: 5, last_scale_down_at: None };
        let mut gone = 0;
        while fleet_guards(&fleet, &policy, now()).is_none() {
            fleet = fleet.after_scale_down(now());
            gone += 1;
        }
        assert_eq!((gone, fleet.running), (3, 2));
    }
}
