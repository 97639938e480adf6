//! Draining a worker without losing a session (ADR-008).
//!
//! # Flow
//! [`initiate`] takes a running worker out of placement. Each pass then lists its sessions and calls [`progress`]:
//! it waits for active ones, hands back those that have not begun, retries failed ones, and stops the worker when
//! none is left or the deadline has passed. [`cancel`] puts it back in service.
//!
//! # Guarantees
//! A session in a state we do not know counts as active. If the timeout cannot be read, nothing is forced. A drain
//! without a start time starts its clock now.

use std::time::Duration;

use thiserror::Error;

use super::decision::{Change, Decision};
use super::effect::{Effect, IfRefused};
use super::event::{Event, SessionEnd};
use super::ids::WorkerId;
use super::observation::Lookup;
use super::policy::Policy;
use super::reason::{Detail, Reason, ReasonCode};
use super::session::{Session, SessionStanding};
use super::status::{DesiredStatus, WorkerStatus};
use super::template::{DEFAULT_DRAIN_TIMEOUT, Template};
use super::time::{self, Timestamp};
use super::transition::{EdgeKind, Transition};
use super::worker::Worker;

/// The reason of a drain that scale-down begins.
pub const SCALE_DOWN: &str = "scale_down";
/// Who asks for a drain that scale-down begins.
pub const CONTROLLER: &str = "worker-controller";

/// A drain that cannot begin, or cannot be called off. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DrainError {
    /// Only a running worker can be drained.
    #[error("worker {worker} is {status}; only a running worker can be drained")]
    NotRunning {
        /// The worker.
        worker: WorkerId,
        /// Its status.
        status: WorkerStatus,
    },
    /// Only a draining worker has a drain to call off.
    #[error("worker {worker} is {status}; only a draining worker has a drain to call off")]
    NotDraining {
        /// The worker.
        worker: WorkerId,
        /// Its status.
        status: WorkerStatus,
    },
}

/// Begins a drain. Only a running worker can be drained.
///
/// ```
/// use lcm_sdk::{lifecycle::drain, DesiredStatus, Worker, WorkerStatus};
///
/// let now = "2026-02-06T08:00:00Z".parse().unwrap();
/// let worker = Worker::new("w-1", WorkerStatus::Running);
/// let decision = drain::initiate(&worker, &[], "maintenance", "alice", now)?;
/// let changes = decision.changes.unwrap();
/// // Without this the worker would be started again once it has stopped.
/// assert_eq!(changes.desired_status, Some(DesiredStatus::Stopped));
///
/// let stopped = Worker::new("w-2", WorkerStatus::Stopped);
/// let error = drain::initiate(&stopped, &[], "maintenance", "alice", now).unwrap_err();
/// assert_eq!(error.to_string(), "worker w-2 is stopped; only a running worker can be drained");
/// # Ok::<(), lcm_sdk::lifecycle::drain::DrainError>(())
/// ```
pub fn initiate(
    worker: &Worker,
    sessions: &[Session],
    reason: &str,
    requested_by: &str,
    now: Timestamp,
) -> Result<Decision, DrainError> {
    let transition = Transition::new(worker.status, WorkerStatus::Draining, EdgeKind::Commanded)
        .map_err(|_| DrainError::NotRunning { worker: worker.id.clone(), status: worker.status })?;
    Ok(begin(Decision::taking(transition, ReasonCode::DrainRequested), now).announcing(started(
        active(sessions),
        reason,
        requested_by,
    )))
}

/// Calls a drain off. Only a draining worker can go back this way.
///
/// ```
/// use lcm_sdk::{lifecycle::drain, DesiredStatus, Worker, WorkerStatus};
///
/// let worker = Worker::new("w-1", WorkerStatus::Draining);
/// let decision = drain::cancel(&worker, "alice", "class goes on")?;
/// assert_eq!(decision.transition.unwrap().to(), WorkerStatus::Running);
/// assert_eq!(decision.changes.unwrap().desired_status, Some(DesiredStatus::Running));
/// # Ok::<(), lcm_sdk::lifecycle::drain::DrainError>(())
/// ```
pub fn cancel(worker: &Worker, cancelled_by: &str, reason: &str) -> Result<Decision, DrainError> {
    // Other statuses lead to running too, but not by calling a drain off.
    if worker.status != WorkerStatus::Draining {
        return Err(DrainError::NotDraining { worker: worker.id.clone(), status: worker.status });
    }
    let decision = Decision::command(worker.status, WorkerStatus::Running, ReasonCode::DrainCancelled)
        .announcing(Event::DrainCancelled { cancelled_by: cancelled_by.to_owned(), reason: reason.to_owned() })
        .changing(|changes| {
            changes.desired_status = Some(DesiredStatus::Running);
            changes.drain_started_at = Change::Clear;
        });
    Ok(decision)
}

/// What a draining worker's sessions mean for it: the heart of the draining handler.
pub fn progress(
    worker: &Worker,
    sessions: &[Session],
    template: &Lookup<Template>,
    policy: &Policy,
    now: Timestamp,
) -> Decision {
    let standing = |standing| sessions.iter().filter(move |session| session.state.standing() == standing);
    let left = sessions.iter().filter(|session| session.state.standing() != SessionStanding::Over).count();
    if left == 0 {
        return leave(worker, ReasonCode::Drained).announcing(Event::DrainCompleted);
    }
    let until_deadline = until_deadline(worker, template, now);
    if until_deadline == Some(Duration::ZERO) {
        return force(worker, sessions);
    }
    let active = standing(SessionStanding::Active).count();
    let decision = if active > 0 {
        let detail = Detail::Sessions { active, until_deadline };
        Decision::requeue(Reason::new(ReasonCode::DrainWaiting).with(detail))
    } else {
        Decision::requeue(ReasonCode::DrainSettling)
    };
    let decision = if worker.notes.drain_started_at.is_none() {
        decision.changing(|changes| changes.drain_started_at = Change::Set(now))
    } else {
        decision
    };
    let decision = standing(SessionStanding::Failed).fold(decision, |decision, session| {
        decision.doing(match after_failure(worker.status, session, policy.max_session_retries) {
            FailedSession::Retry { attempt } => Effect::RetrySession { session: session.id.clone(), attempt },
            FailedSession::GiveUp(reason) => Effect::TerminateSession { session: session.id.clone(), reason },
        })
    });
    standing(SessionStanding::Waiting).fold(decision, |decision, session| {
        let session = session.id.clone();
        decision.doing(Effect::HandBackSession { session, if_refused: IfRefused::KeepWaiting })
    })
}

/// What happens to a session that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedSession {
    /// It is tried again on the same worker.
    Retry {
        /// Which attempt, counted from one.
        attempt: u32,
    },
    /// It is ended.
    GiveUp(SessionEnd),
}

/// Decides about a failed session: it was placed on this worker, so while that drains it is tried again there.
///
/// ```
/// use lcm_sdk::lifecycle::SessionEnd;
/// use lcm_sdk::lifecycle::drain::{FailedSession, after_failure};
/// use lcm_sdk::{Session, WorkerStatus};
///
/// let session = Session::new("s-1", "failed");
/// assert_eq!(after_failure(WorkerStatus::Draining, &session, 3), FailedSession::Retry { attempt: 1 });
/// assert_eq!(
///     after_failure(WorkerStatus::Stopping, &session, 3),
///     FailedSession::GiveUp(SessionEnd::WorkerStoppedDuringRetry),
/// );
/// ```
pub fn after_failure(worker: WorkerStatus, session: &Session, max_retries: u32) -> FailedSession {
    if worker != WorkerStatus::Draining {
        FailedSession::GiveUp(SessionEnd::WorkerStoppedDuringRetry)
    } else if session.retry_count < max_retries {
        FailedSession::Retry { attempt: session.retry_count.saturating_add(1) }
    } else {
        FailedSession::GiveUp(SessionEnd::MaxRetriesExceeded)
    }
}

/// How many sessions are active.
pub fn active(sessions: &[Session]) -> usize {
    sessions.iter().filter(|session| session.state.standing() == SessionStanding::Active).count()
}

/// Starts the clock and keeps desired state from starting the worker again.
pub(crate) fn begin(decision: Decision, now: Timestamp) -> Decision {
    decision.changing(|changes| {
        changes.desired_status = Some(DesiredStatus::Stopped);
        changes.drain_started_at = Change::Set(now);
    })
}

/// Clears the start time of a drain that is over. Left on the record it would put the next drain past its deadline
/// from the first moment, because the server that begins one does not know the field.
pub(crate) fn forget(worker: &Worker, decision: Decision) -> Decision {
    match worker.notes.drain_started_at {
        None => decision,
        Some(_) => decision.changing(|changes| changes.drain_started_at = Change::Clear),
    }
}

pub(crate) fn started(running_sessions: usize, reason: &str, requested_by: &str) -> Event {
    Event::DrainStarted { running_sessions, reason: reason.to_owned(), requested_by: requested_by.to_owned() }
}

/// The time left, zero once it is over. `None` while the template cannot be read: then nothing may be forced.
fn until_deadline(worker: &Worker, template: &Lookup<Template>, now: Timestamp) -> Option<Duration> {
    let timeout = match (&worker.template_name, template) {
        (None, _) | (Some(_), Lookup::Absent) => DEFAULT_DRAIN_TIMEOUT,
        (Some(_), Lookup::Found(template)) => template.drain_timeout,
        (Some(_), Lookup::NotRequested | Lookup::Unknown(_)) => return None,
    };
    // A drain whose start nobody noted begins now, however short its timeout: at least one more look at it.
    let Some(started) = worker.notes.drain_started_at else { return Some(timeout.max(Duration::from_nanos(1))) };
    Some(timeout.saturating_sub(time::age(started, now)))
}

fn force(worker: &Worker, sessions: &[Session]) -> Decision {
    let remaining: Vec<_> =
        sessions.iter().filter(|session| session.state.standing() != SessionStanding::Over).collect();
    let notice = Event::DrainTimedOut { remaining: remaining.iter().map(|session| session.id.clone()).collect() };
    let decision = leave(worker, ReasonCode::DrainTimeout).doing(Effect::Announce { event: notice });
    remaining.into_iter().fold(decision, |decision, session| {
        let id = session.id.clone();
        decision.doing(match session.state.standing() {
            // It has not begun, so another worker can take it; ending it is the last resort.
            SessionStanding::Waiting => Effect::HandBackSession { session: id, if_refused: IfRefused::Terminate },
            SessionStanding::Active | SessionStanding::Failed | SessionStanding::Over => {
                Effect::TerminateSession { session: id, reason: SessionEnd::DrainTimeout }
            }
        })
    })
}

fn leave(worker: &Worker, code: ReasonCode) -> Decision {
    let (to, desired) = match worker.desired_status {
        Some(DesiredStatus::Terminated) => (WorkerStatus::Terminating, None),
        Some(DesiredStatus::Running | DesiredStatus::Stopped) => (WorkerStatus::Stopping, None),
        // A drain is a wish to stop, whoever began it without saying so.
        None => (WorkerStatus::Stopping, Some(DesiredStatus::Stopped)),
    };
    let decision = Decision::command(worker.status, to, code);
    match desired {
        Some(_) => decision.changing(|changes| changes.desired_status = desired),
        None => decision,
    }
}

/// Ends the failed sessions of a worker that was stopped under them: nobody can retry them there any more.
pub(crate) fn give_up_failed(sessions: &[Session], decision: Decision) -> Decision {
    let failed = sessions.iter().filter(|session| session.state.standing() == SessionStanding::Failed);
    failed.fold(decision, |decision, session| {
        let reason = SessionEnd::WorkerStoppedDuringRetry;
        decision.doing(Effect::TerminateSession { session: session.id.clone(), reason })
    })
}
