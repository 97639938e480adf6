//! The open sessions of a worker that is terminated.

use std::time::Duration;

use super::capabilities::Support;
use super::effect::{Effect, IfFailed, IfRefused};
use super::event::SessionEnd;
use super::session::{Session, SessionPhase};
use super::time::{self, Timestamp};
use super::worker::Worker;

/// Delay before the sessions of a terminated worker that could not be ended are tried again.
pub(crate) const RETRY_DELAY: Duration = Duration::from_secs(30);

/// How long after its termination the open sessions of a worker are ended.
const RETRY_WINDOW: Duration = Duration::from_secs(3600);

/// Whether sessions of a terminated worker may still be open, because they could not be ended before.
pub(crate) fn may_be_left_open(worker: &Worker, now: Timestamp) -> bool {
    worker.terminated_at.is_some_and(|at| time::is_recent(at, now, RETRY_WINDOW))
}

/// Effects that end the open sessions of a terminated worker. Those that have not begun are handed back, and ended only
/// if the server refuses that or cannot move sessions.
pub(crate) fn ends(sessions: &[Session], moves: Support, if_failed: IfFailed) -> impl Iterator<Item = Effect> {
    let reason = SessionEnd::WorkerTerminated;
    sessions.iter().filter_map(move |session| match session.state.phase() {
        SessionPhase::Over => None,
        SessionPhase::Waiting if moves != Support::No => {
            let (session, if_refused) = (session.id.clone(), IfRefused::Terminate(reason));
            Some(Effect::HandBackSession { session, if_refused, if_failed })
        }
        SessionPhase::Waiting | SessionPhase::Active | SessionPhase::Failed => {
            Some(Effect::TerminateSession { session: session.id.clone(), reason, if_failed })
        }
    })
}
