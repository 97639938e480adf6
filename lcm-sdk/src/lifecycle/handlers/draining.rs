//! Draining: serving the last sessions. Its own handler, never the stop handler: stopping here would end sessions.

use super::Pass;
use super::locate::{Located, adopt, locate};
use crate::lifecycle::decision::Decision;
use crate::lifecycle::drain;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::observation::Answer;
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::status::Ec2State;

/// EC2 first, then sessions. That EC2 runs is what a draining worker is expected to be.
pub(crate) fn handle(pass: Pass<'_>) -> Decision {
    let decision = match locate(pass) {
        Err(waiting) => waiting.decision(),
        Ok(Located::Gone(_) | Located::Nowhere) => pass.gone(),
        Ok(Located::Here(instance)) => adopt(pass, instance, observe(pass, instance)),
    };
    if decision.transition.is_some() { drain::forget(pass.worker, decision) } else { decision }
}

fn observe(pass: Pass<'_>, instance: &Instance) -> Decision {
    match instance.state {
        Ec2State::Running => await_sessions(pass),
        Ec2State::Stopping | Ec2State::Stopped => {
            let sessions = pass.seen.sessions.found().map_or(&[][..], Vec::as_slice);
            drain::give_up_failed(sessions, pass.observe(instance, ReasonCode::Drift))
        }
        Ec2State::ShuttingDown | Ec2State::Terminated => pass.observe(instance, ReasonCode::Drift),
        // Following these would un-drain the worker by a detour; they pass.
        Ec2State::Pending | Ec2State::Other => super::unexpected(instance.state),
    }
}

fn await_sessions(pass: Pass<'_>) -> Decision {
    match &pass.seen.sessions {
        Answer::NotAsked => Decision::not_observed(),
        Answer::Unknown(failure) => Decision::unanswered(ReasonCode::SessionsUnknown, failure),
        // "No such listing" is not "no sessions".
        Answer::Absent => Decision::retry(ReasonCode::SessionsUnknown),
        Answer::Found(sessions) => drain::progress(pass.worker, sessions, &pass.seen.template, pass.policy, pass.now),
    }
}
