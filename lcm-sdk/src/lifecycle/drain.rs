//! Drains a worker without losing a session (ADR-008).
//!
//! # Flow
//! [`initiate`] takes a running worker out of placement. Every reconcile of a draining worker then runs the steps of
//! `draining` from top to bottom, with the sessions in [`progress`]: wait for active ones, hand back those that have
//! not begun, retry failed ones, and stop the worker when none is left or the deadline has passed. [`cancel`] puts it
//! back in service.
//!
//! # Guarantees
//! A session in an unknown state counts as active. If the timeout cannot be read, no session is forced. A drain without
//! a start time starts its clock now.

use std::time::Duration;

use thiserror::Error;

use super::context::{HandlerContext, Located};
use super::decision::{Change, Decision};
use super::effect::{Effect, IfRefused};
use super::event::{Event, SessionEnd};
use super::ids::WorkerId;
use super::lookup::Lookup;
use super::policy::Policy;
use super::reason::{Detail, Reason, ReasonCode};
use super::session::{Session, SessionPhase};
use super::status::{DesiredStatus, Ec2State, WorkerStatus};
use super::template::{DEFAULT_DRAIN_TIMEOUT, Template};
use super::time::{self, Timestamp};
use super::transition::{EdgeKind, Transition};
use super::worker::Worker;

/// The reason on a drain that scale-down begins.
pub const SCALE_DOWN: &str = "scale_down";
/// The requester on a drain that scale-down begins.
pub const CONTROLLER: &str = "worker-controller";

/// A drain that cannot begin, or cannot be called off. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DrainError {
    /// Only a running worker can be drained.
    #[error("worker {worker} is {status}; only a running worker can be drained")]
    NotRunning {
        /// Id of the worker.
        worker: WorkerId,
        /// Its current status.
        status: WorkerStatus,
    },
    /// Only a draining worker has a drain to call off.
    #[error("worker {worker} is {status}; only a draining worker has a drain to call off")]
    NotDraining {
        /// Id of the worker.
        worker: WorkerId,
        /// Its current status.
        status: WorkerStatus,
    },
}

/// Begins a drain.
///
/// # Errors
/// [`DrainError::NotRunning`] unless the worker is running.
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
    Ok(begin(Decision::from_transition(transition, ReasonCode::DrainRequested), sessions, reason, requested_by, now))
}

/// Turns a transition to draining into the beginning of a drain.
pub(crate) fn begin(
    decision: Decision,
    sessions: &[Session],
    reason: &str,
    requested_by: &str,
    now: Timestamp,
) -> Decision {
    decision
        .with_changes(|changes| {
            // A desired status of running would start the worker again once it has stopped.
            changes.desired_status = Some(DesiredStatus::Stopped);
            changes.drain_started_at = Change::Set(now);
        })
        .with_event(Event::DrainStarted {
            running_sessions: active(sessions),
            reason: reason.to_owned(),
            requested_by: requested_by.to_owned(),
        })
}

/// One reconcile of a draining worker, in order. A handler of its own and never the one that stops workers: stopping
/// here would end sessions.
pub(crate) fn draining(ctx: HandlerContext<'_>) -> Decision {
    // 1. EC2. An unanswered call must not end a drain, so nothing is concluded without a response.
    let located = match ctx.locate() {
        Ok(located) => located,
        Err(waiting) => return waiting.decision(),
    };
    let decision = match located {
        // Sessions end with the instance. Waiting for them would keep the record draining forever.
        Located::Gone(_) | Located::Nowhere => ctx.gone(),
        Located::Here(instance) => {
            let decision = match instance.state {
                // 2. Sessions, while the instance serves them.
                Ec2State::Running => match &ctx.observation.sessions {
                    Lookup::NotRequested => Decision::not_observed(),
                    // A failed listing is not an empty one: stopping the worker now would end sessions unseen.
                    Lookup::Unknown(failure) => Decision::unanswered(ReasonCode::SessionsUnknown, failure),
                    Lookup::Absent => Decision::retry(ReasonCode::SessionsUnknown),
                    Lookup::Found(sessions) => {
                        progress(ctx.worker, sessions, &ctx.observation.template, ctx.policy, ctx.now)
                    }
                },
                // Stopped from outside. Failed sessions are ended: a retry would wait for a worker that does not run.
                Ec2State::Stopping | Ec2State::Stopped => {
                    let sessions = ctx.observation.sessions.found().map_or(&[][..], Vec::as_slice);
                    end_failed(sessions, ctx.follow(instance, ReasonCode::Drift))
                }
                Ec2State::ShuttingDown | Ec2State::Terminated => ctx.follow(instance, ReasonCode::Drift),
                // Following these would put the worker back in service by a detour. Both states pass.
                Ec2State::Pending | Ec2State::Other => ctx.unexpected(instance.state),
            };
            ctx.adopt(instance, decision)
        }
    };
    // 3. A start time left on the record would put the next drain past its deadline from the first moment.
    if decision.transition.is_some() { clear_start(ctx.worker, decision) } else { decision }
}

/// Decides what the sessions of a draining worker mean for it.
pub fn progress(
    worker: &Worker,
    sessions: &[Session],
    template: &Lookup<Template>,
    policy: &Policy,
    now: Timestamp,
) -> Decision {
    let with_phase = |phase| sessions.iter().filter(move |session| session.state.phase() == phase);

    // 1. No session left: stop the worker.
    if sessions.iter().all(|session| session.state.phase() == SessionPhase::Over) {
        return leave(worker, ReasonCode::Drained).with_event(Event::DrainCompleted);
    }

    // 2. Past the deadline: end the rest, or one stuck session would keep the worker draining forever.
    let until_deadline = until_deadline(worker, template, now);
    if until_deadline == Some(Duration::ZERO) {
        return force(worker, sessions);
    }

    // 3. Wait for active sessions. The status stays, and so does the worker.
    let active = with_phase(SessionPhase::Active).count();
    let mut decision = if active > 0 {
        Decision::requeue(Reason::new(ReasonCode::DrainWaiting).with(Detail::Sessions { active, until_deadline }))
    } else {
        Decision::requeue(ReasonCode::DrainSettling)
    };

    // 4. Start the clock of a drain that the server began without one, or it would never reach a deadline.
    if worker.notes.drain_started_at.is_none() {
        decision = decision.with_changes(|changes| changes.drain_started_at = Change::Set(now));
    }

    // 5. Retry failed sessions on this worker, where they were placed, until the retries are used up.
    for session in with_phase(SessionPhase::Failed) {
        let id = session.id.clone();
        decision = decision.with_effect(match after_failure(worker.status, session, policy.max_session_retries) {
            FailedSession::Retry { attempt } => Effect::RetrySession { session: id, attempt },
            FailedSession::GiveUp(reason) => Effect::TerminateSession { session: id, reason },
        });
    }

    // 6. Hand back sessions that have not begun. One that the server refuses counts as active: ending it would lose it.
    for session in with_phase(SessionPhase::Waiting) {
        let (session, if_refused) = (session.id.clone(), IfRefused::KeepWaiting);
        decision = decision.with_effect(Effect::HandBackSession { session, if_refused });
    }
    decision
}

/// The time left until the deadline, zero once it has passed. `None` if the template cannot be read: a default shorter
/// than its timeout would end sessions early.
fn until_deadline(worker: &Worker, template: &Lookup<Template>, now: Timestamp) -> Option<Duration> {
    let timeout = match (&worker.template_name, template) {
        (None, _) | (Some(_), Lookup::Absent) => DEFAULT_DRAIN_TIMEOUT,
        (Some(_), Lookup::Found(template)) => template.drain_timeout,
        (Some(_), Lookup::NotRequested | Lookup::Unknown(_)) => return None,
    };
    match worker.notes.drain_started_at {
        Some(started) => Some(timeout.saturating_sub(time::age(started, now))),
        // Starts now, and with a timeout of zero at least one more reconcile looks at the sessions.
        None => Some(timeout.max(Duration::from_nanos(1))),
    }
}

/// Ends or hands back the remaining sessions and stops the worker.
fn force(worker: &Worker, sessions: &[Session]) -> Decision {
    let remaining: Vec<_> = sessions.iter().filter(|session| session.state.phase() != SessionPhase::Over).collect();
    // Announced before the first session ends: after a crash in between, no session has ended unannounced.
    let event = Event::DrainTimedOut { remaining: remaining.iter().map(|session| session.id.clone()).collect() };
    let decision = leave(worker, ReasonCode::DrainTimeout).with_effect(Effect::Announce { event });
    remaining.into_iter().fold(decision, |decision, session| {
        let id = session.id.clone();
        decision.with_effect(match session.state.phase() {
            // Another worker can take a session that has not begun; it is ended only if the server refuses that.
            SessionPhase::Waiting => Effect::HandBackSession { session: id, if_refused: IfRefused::Terminate },
            SessionPhase::Active | SessionPhase::Failed | SessionPhase::Over => {
                Effect::TerminateSession { session: id, reason: SessionEnd::DrainTimeout }
            }
        })
    })
}

/// The transition out of a drain.
fn leave(worker: &Worker, code: ReasonCode) -> Decision {
    match worker.desired_status {
        Some(DesiredStatus::Terminated) => Decision::command(worker.status, WorkerStatus::Terminating, code),
        Some(DesiredStatus::Running | DesiredStatus::Stopped) => {
            Decision::command(worker.status, WorkerStatus::Stopping, code)
        }
        // A drain that was begun without a desired status would leave a stopped worker without one.
        None => Decision::command(worker.status, WorkerStatus::Stopping, code)
            .with_changes(|changes| changes.desired_status = Some(DesiredStatus::Stopped)),
    }
}

/// Clears the start time of a drain that is over. The server that begins the next one does not know the field.
pub(crate) fn clear_start(worker: &Worker, decision: Decision) -> Decision {
    match worker.notes.drain_started_at {
        None => decision,
        Some(_) => decision.with_changes(|changes| changes.drain_started_at = Change::Clear),
    }
}

/// Ends the failed sessions of a worker that was stopped under them.
fn end_failed(sessions: &[Session], decision: Decision) -> Decision {
    let failed = sessions.iter().filter(|session| session.state.phase() == SessionPhase::Failed);
    failed.fold(decision, |decision, session| {
        let reason = SessionEnd::WorkerStoppedDuringRetry;
        decision.with_effect(Effect::TerminateSession { session: session.id.clone(), reason })
    })
}

/// Next step for a failed session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedSession {
    /// Retried on the same worker.
    Retry {
        /// Number of the attempt, counted from one.
        attempt: u32,
    },
    /// Ended, for this reason.
    GiveUp(SessionEnd),
}

/// Decides about a failed session: while the worker it was placed on drains, it is retried there.
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

/// The number of active sessions.
pub fn active(sessions: &[Session]) -> usize {
    sessions.iter().filter(|session| session.state.phase() == SessionPhase::Active).count()
}

/// Calls a drain off and puts the worker back in service.
///
/// # Errors
/// [`DrainError::NotDraining`] unless the worker is draining.
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
    // The table has other edges to running, none of which calls a drain off.
    if worker.status != WorkerStatus::Draining {
        return Err(DrainError::NotDraining { worker: worker.id.clone(), status: worker.status });
    }
    let decision = Decision::command(worker.status, WorkerStatus::Running, ReasonCode::DrainCancelled)
        .with_event(Event::DrainCancelled { cancelled_by: cancelled_by.to_owned(), reason: reason.to_owned() })
        .with_changes(|changes| {
            changes.desired_status = Some(DesiredStatus::Running);
            changes.drain_started_at = Change::Clear;
        });
    Ok(decision)
}
