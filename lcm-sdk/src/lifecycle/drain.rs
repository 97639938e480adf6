//! Drains a worker without losing a session (ADR-008).
//!
//! # Flow
//! [`initiate`] takes a running worker out of placement. Every reconcile of a draining worker then runs the steps of
//! `draining` from top to bottom, with the sessions in [`progress`]: wait for active ones, hand back those that have
//! not begun, retry failed ones, and stop the worker when none is left or the deadline has passed. [`cancel`] puts it
//! back in service, and so does a desired status of running.
//!
//! # Guarantees
//! A session in an unknown state counts as active, and so does one that the control plane can neither take back nor
//! retry. The sessions are listed at least [`Policy::drain_settle`] after the
//! drain began before the worker is stopped, because the scheduler may have assigned one at the last moment. If the
//! timeout cannot be read, no session is forced; if the template is gone, the timeout that was noted holds. A drain
//! without a start time, or with one in the future, starts its clock now. After the deadline a session that cannot be
//! ended delays the stop at most [`Policy::max_drain_tries`] times.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::capabilities::Support;
use super::context::{HandlerContext, Located};
use super::decision::{Change, Decision};
use super::effect::{Effect, IfFailed, IfRefused};
use super::event::{Event, SessionEnd};
use super::failure::CallFailure;
use super::ids::WorkerId;
use super::instance::Instance;
use super::lookup::Lookup;
use super::outcome::Requeue;
use super::patch::DrainRequest;
use super::policy::Policy;
use super::reason::{Detail, Reason, ReasonCode};
use super::session::{Session, SessionPhase, count_active};
use super::status::{DesiredStatus, Ec2State, WorkerStatus};
use super::template::{DEFAULT_DRAIN_TIMEOUT, Template};
use super::time::{self, Timestamp};
use super::transition::{EdgeKind, Transition};
use super::worker::Worker;

/// The reason on a drain that scale-down begins.
pub const SCALE_DOWN: &str = "scale_down";
/// The requester on a drain that scale-down begins.
pub const CONTROLLER: &str = "worker-controller";
/// The reason on a drain that is canceled because the desired status is running.
pub const DESIRED_RUNNING: &str = "desired_running";

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
        Located::Gone(_) => ctx.gone(),
        Located::Nowhere => ctx.no_instance_named(),
        Located::Here(instance) => {
            let decision = match instance.state {
                // 2. Wanted again: the drain is canceled, and no session is touched.
                Ec2State::Running if is_wanted_again(ctx.worker) => {
                    back_to_running(ctx.worker, CONTROLLER, DESIRED_RUNNING)
                }
                // 3. Sessions, while the instance serves them.
                Ec2State::Running => match &ctx.observation.sessions {
                    Lookup::NotRequested => Decision::not_observed(),
                    // A failed listing is not an empty one: stopping the worker now would end sessions unseen.
                    Lookup::Unknown(failure) => Decision::unanswered(ReasonCode::SessionsUnknown, failure),
                    Lookup::Absent => Decision::retry(ReasonCode::SessionsUnknown),
                    Lookup::Found(sessions) => {
                        let moves = ctx.observation.capabilities.session_moves;
                        progress(ctx.worker, sessions, &ctx.observation.template, moves, ctx.policy, ctx.now)
                    }
                },
                Ec2State::Stopping | Ec2State::Stopped => stopped_from_outside(ctx, instance),
                Ec2State::ShuttingDown | Ec2State::Terminated => ctx.follow(instance, ReasonCode::Drift),
                // Following these would put the worker back in service by a detour. Both states pass.
                Ec2State::Pending | Ec2State::Other => ctx.unexpected(instance.state),
            };
            ctx.adopt(instance, decision)
        }
    };
    // 4. A start time left on the record would put the next drain past its deadline from the first moment.
    if decision.transition.is_some() { clear_notes(ctx.worker, decision) } else { decision }
}

/// Decides what the sessions of a draining worker mean for it. If the control plane does not support `moves`, sessions
/// that have not begun and failed ones count as active until the deadline.
pub fn progress(
    worker: &Worker,
    sessions: &[Session],
    template: &Lookup<Template>,
    moves: Support,
    policy: &Policy,
    now: Timestamp,
) -> Decision {
    if is_wanted_again(worker) {
        return back_to_running(worker, CONTROLLER, DESIRED_RUNNING);
    }
    let with_phase = |phase| sessions.iter().filter(move |session| session.state.phase() == phase);

    // 1. No session left: stop the worker, once no assignment from before the drain can be under way.
    if sessions.iter().all(|session| session.state.phase() == SessionPhase::Over) {
        return match until_settled(worker, policy, now) {
            Some(left) => start_clock(worker, now, settle(left)),
            None => leave(worker, ReasonCode::Drained).with_event(Event::DrainCompleted),
        };
    }

    // 2. Past the deadline: end the rest, or one stuck session would keep the worker draining forever.
    let until_deadline = until_deadline(worker, template, now);
    if until_deadline == Some(Duration::ZERO) {
        return force(worker, sessions, moves, policy);
    }

    // 3. Wait for active sessions. The status stays, and so does the worker.
    let held = match moves {
        Support::No => with_phase(SessionPhase::Waiting).chain(with_phase(SessionPhase::Failed)).count(),
        Support::Yes | Support::Unknown => 0,
    };
    let active = with_phase(SessionPhase::Active).count() + held;
    let mut decision = if active > 0 {
        Decision::requeue(Reason::new(ReasonCode::DrainWaiting).with(Detail::Sessions { active, until_deadline }))
    } else {
        Decision::requeue(ReasonCode::DrainSettling)
    };

    // 4. Start the clock of a drain that the server began without one, or it would never reach a deadline. Note the
    // timeout, which must not change when the template is deleted.
    decision = note_timeout(worker, template, start_clock(worker, now, decision));
    if worker.notes.drain_tries > 0 {
        decision = decision.with_changes(|changes| changes.drain_tries = Some(0));
    }

    match moves {
        Support::No => return decision,
        Support::Yes | Support::Unknown => {}
    }

    // 5. Retry failed sessions on this worker, where they were placed, until the retries are used up.
    for session in with_phase(SessionPhase::Failed) {
        let id = session.id.clone();
        decision = decision.with_effect(match after_failure(worker.status, session, policy.max_session_retries) {
            FailedSession::Retry { attempt } => Effect::RetrySession { session: id, attempt },
            FailedSession::GiveUp(reason) => {
                Effect::TerminateSession { session: id, reason, if_failed: IfFailed::Hold }
            }
        });
    }

    // 6. Hand back sessions that have not begun. One that the server refuses counts as active: ending it would lose it.
    for session in with_phase(SessionPhase::Waiting) {
        decision = decision.with_effect(hand_back(session, IfRefused::KeepWaiting, IfFailed::Hold));
    }
    decision
}

/// When the worker stopped taking sessions, as far as the record tells. A start in the future is from before the clock
/// was set back.
fn started_at(worker: &Worker, now: Timestamp) -> Option<Timestamp> {
    worker.notes.drain_started_at.filter(|started| *started <= now)
}

/// Starts the clock of a drain without a usable start time.
pub(crate) fn start_clock(worker: &Worker, now: Timestamp, decision: Decision) -> Decision {
    match started_at(worker, now) {
        Some(_) => decision,
        None => decision.with_changes(|changes| changes.drain_started_at = Change::Set(now)),
    }
}

/// The time left until a listing of the sessions shows every one that was assigned before the worker stopped taking
/// them; `None` once it has passed.
pub(crate) fn until_settled(worker: &Worker, policy: &Policy, now: Timestamp) -> Option<Duration> {
    let since = started_at(worker, now).map_or(Duration::ZERO, |started| time::age(started, now));
    policy.drain_settle.checked_sub(since).filter(|left| !left.is_zero())
}

/// Waits for the rest of the settle time.
pub(crate) fn settle(left: Duration) -> Decision {
    Decision::requeue(ReasonCode::SettleTime).with_requeue(Requeue::After(left))
}

/// The timeout of a drain without a template: the one that was noted, else the default.
fn noted_timeout(worker: &Worker) -> Duration {
    worker.notes.drain_timeout_seconds.map_or(DEFAULT_DRAIN_TIMEOUT, Duration::from_secs)
}

/// Notes a timeout that an absent template would change.
fn note_timeout(worker: &Worker, template: &Lookup<Template>, decision: Decision) -> Decision {
    let timeout = match (&worker.template_name, template) {
        (Some(_), Lookup::Found(template)) => template.drain_timeout,
        (None, _) | (Some(_), Lookup::Absent | Lookup::NotRequested | Lookup::Unknown(_)) => return decision,
    };
    let seconds = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
    if Duration::from_secs(seconds) == noted_timeout(worker) {
        return decision;
    }
    decision.with_changes(|changes| changes.drain_timeout_seconds = Change::Set(seconds))
}

/// The time left until the deadline, zero once it has passed. `None` if the template cannot be read: a default shorter
/// than its timeout would end sessions early.
fn until_deadline(worker: &Worker, template: &Lookup<Template>, now: Timestamp) -> Option<Duration> {
    let timeout = match (&worker.template_name, template) {
        (None, _) | (Some(_), Lookup::Absent) => noted_timeout(worker),
        (Some(_), Lookup::Found(template)) => template.drain_timeout,
        (Some(_), Lookup::NotRequested | Lookup::Unknown(_)) => return None,
    };
    match started_at(worker, now) {
        Some(started) => Some(timeout.saturating_sub(time::age(started, now))),
        // Starts now, and with a timeout of zero at least one more reconcile looks at the sessions.
        None => Some(timeout.max(Duration::from_nanos(1))),
    }
}

/// Ends or hands back the remaining sessions and stops the worker.
fn force(worker: &Worker, sessions: &[Session], moves: Support, policy: &Policy) -> Decision {
    let remaining: Vec<_> = sessions.iter().filter(|session| session.state.phase() != SessionPhase::Over).collect();
    let mut decision = leave(worker, ReasonCode::DrainTimeout);
    if worker.notes.drain_tries == 0 {
        // Announced before the first session ends: after a crash in between, no session has ended unannounced.
        let event = Event::DrainTimedOut { remaining: remaining.iter().map(|session| session.id.clone()).collect() };
        decision = decision.with_effect(Effect::Announce { event });
    }
    let if_failed = if_failed(worker, policy);
    remaining.into_iter().fold(decision, |decision, session| {
        decision.with_effect(match session.state.phase() {
            // Another worker can take a session that has not begun; it is ended only if the server refuses that.
            SessionPhase::Waiting if moves != Support::No => {
                hand_back(session, IfRefused::Terminate(SessionEnd::DrainTimeout), if_failed)
            }
            SessionPhase::Waiting | SessionPhase::Active | SessionPhase::Failed | SessionPhase::Over => {
                let (session, reason) = (session.id.clone(), SessionEnd::DrainTimeout);
                Effect::TerminateSession { session, reason, if_failed }
            }
        })
    })
}

/// Sessions hold a worker that leaves its drain for a limited number of tries only.
fn if_failed(worker: &Worker, policy: &Policy) -> IfFailed {
    if worker.notes.drain_tries < policy.max_drain_tries { IfFailed::Hold } else { IfFailed::Proceed }
}

fn hand_back(session: &Session, if_refused: IfRefused, if_failed: IfFailed) -> Effect {
    Effect::HandBackSession { session: session.id.clone(), if_refused, if_failed }
}

/// The transition out of a drain.
fn leave(worker: &Worker, code: ReasonCode) -> Decision {
    match worker.desired_status {
        Some(DesiredStatus::Terminated) => Decision::command(worker.status, WorkerStatus::Terminating, code),
        // A worker whose desired status is running has left the drain before.
        Some(DesiredStatus::Running | DesiredStatus::Stopped) => {
            Decision::command(worker.status, WorkerStatus::Stopping, code)
        }
        // A drain that was begun without a desired status would leave a stopped worker without one.
        None => Decision::command(worker.status, WorkerStatus::Stopping, code)
            .with_changes(|changes| changes.desired_status = Some(DesiredStatus::Stopped)),
    }
}

/// Clears the notes of a drain that is over. The server that begins the next one does not know the fields.
pub(crate) fn clear_notes(worker: &Worker, mut decision: Decision) -> Decision {
    if worker.notes.drain_started_at.is_some() {
        decision = decision.with_changes(|changes| changes.drain_started_at = Change::Clear);
    }
    if worker.notes.drain_timeout_seconds.is_some() {
        decision = decision.with_changes(|changes| changes.drain_timeout_seconds = Change::Clear);
    }
    if worker.notes.drain_tries > 0 {
        decision = decision.with_changes(|changes| changes.drain_tries = Some(0));
    }
    decision
}

/// Stopped from outside: the record follows EC2. Sessions that have not begun are handed back, because the server ends
/// them with the worker. Failed ones are ended: a retry would wait for a worker that does not run.
fn stopped_from_outside(ctx: HandlerContext<'_>, instance: &Instance) -> Decision {
    let (worker, if_failed) = (ctx.worker, if_failed(ctx.worker, ctx.policy));
    let blind = match &ctx.observation.sessions {
        Lookup::NotRequested => return Decision::not_observed(),
        Lookup::Found(_) => None,
        Lookup::Unknown(failure) => Some(Decision::unanswered(ReasonCode::SessionsUnknown, failure)),
        Lookup::Absent => Some(Decision::retry(ReasonCode::SessionsUnknown)),
    };
    if let (Some(retry), IfFailed::Hold) = (blind, if_failed) {
        return retry.with_changes(|changes| changes.drain_tries = Some(worker.notes.drain_tries.saturating_add(1)));
    }
    let moves = ctx.observation.capabilities.session_moves;
    let sessions = ctx.observation.sessions.found().map_or(&[][..], Vec::as_slice);
    sessions.iter().fold(ctx.follow(instance, ReasonCode::Drift), |decision, session| match session.state.phase() {
        SessionPhase::Waiting if moves != Support::No => {
            decision.with_effect(hand_back(session, IfRefused::KeepWaiting, if_failed))
        }
        SessionPhase::Failed => {
            let (session, reason) = (session.id.clone(), SessionEnd::WorkerStoppedDuringRetry);
            decision.with_effect(Effect::TerminateSession { session, reason, if_failed })
        }
        SessionPhase::Waiting | SessionPhase::Active | SessionPhase::Over => decision,
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

/// The number of sessions that have not ended.
pub(crate) fn open(sessions: &[Session]) -> usize {
    sessions.iter().filter(|session| session.state.phase() != SessionPhase::Over).count()
}

/// The number of active sessions.
pub fn active(sessions: &[Session]) -> usize {
    count_active(sessions)
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
    Ok(clear_notes(worker, back_to_running(worker, cancelled_by, reason)))
}

/// An operation of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Begins a drain.
    Drain(DrainRequest),
    /// Calls a drain off.
    CancelDrain(DrainRequest),
}

impl Operation {
    /// Decides the operation. Of the sessions, which a drain announces, it needs none to be refused.
    ///
    /// # Errors
    /// Those of [`initiate`] and [`cancel`].
    pub fn decide(&self, worker: &Worker, sessions: &[Session], now: Timestamp) -> Result<Decision, DrainError> {
        match self {
            Self::Drain(DrainRequest { reason, requested_by }) => initiate(worker, sessions, reason, requested_by, now),
            Self::CancelDrain(DrainRequest { reason, requested_by }) => cancel(worker, requested_by, reason),
        }
    }

    /// The request that it carries out.
    pub const fn request(&self) -> &DrainRequest {
        match self {
            Self::Drain(request) | Self::CancelDrain(request) => request,
        }
    }
}

/// The failure of a cancellation that the control plane lacks.
pub fn cancel_unsupported() -> CallFailure {
    let alternative = "request the desired status 'running' from the control plane itself, or let the worker drain and start it again";
    CallFailure::not_supported("canceling a drain", alternative)
}

/// Whether the desired status cancels the drain.
pub(crate) fn is_wanted_again(worker: &Worker) -> bool {
    worker.desired_status == Some(DesiredStatus::Running)
}

fn back_to_running(worker: &Worker, cancelled_by: &str, reason: &str) -> Decision {
    Decision::command(worker.status, WorkerStatus::Running, ReasonCode::DrainCancelled)
        .with_event(Event::DrainCancelled { cancelled_by: cancelled_by.to_owned(), reason: reason.to_owned() })
        .with_changes(|changes| {
            changes.desired_status = Some(DesiredStatus::Running);
            changes.drain_started_at = Change::Clear;
        })
}
