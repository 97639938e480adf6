//! Draining: serving the last sessions. Its own handler, never the stop handler: stopping here would end sessions.

use super::HandlerContext;
use super::locate::{Located, adopt, locate};
use crate::lifecycle::decision::Decision;
use crate::lifecycle::drain;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::observation::Lookup;
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::status::Ec2State;

/// EC2 first, then sessions. That EC2 runs is what a draining worker is expected to be.
pub(crate) fn handle(ctx: HandlerContext<'_>) -> Decision {
    let decision = match locate(ctx) {
        Err(waiting) => waiting.decision(),
        Ok(Located::Gone(_) | Located::Nowhere) => ctx.gone(),
        Ok(Located::Here(instance)) => adopt(ctx, instance, observe(ctx, instance)),
    };
    if decision.transition.is_some() { drain::forget(ctx.worker, decision) } else { decision }
}

fn observe(ctx: HandlerContext<'_>, instance: &Instance) -> Decision {
    match instance.state {
        Ec2State::Running => await_sessions(ctx),
        Ec2State::Stopping | Ec2State::Stopped => {
            let sessions = ctx.observation.sessions.found().map_or(&[][..], Vec::as_slice);
            drain::give_up_failed(sessions, ctx.observe(instance, ReasonCode::Drift))
        }
        Ec2State::ShuttingDown | Ec2State::Terminated => ctx.observe(instance, ReasonCode::Drift),
        // Following these would un-drain the worker by a detour; they ctx.
        Ec2State::Pending | Ec2State::Other => super::unexpected(instance.state),
    }
}

fn await_sessions(ctx: HandlerContext<'_>) -> Decision {
    match &ctx.observation.sessions {
        Lookup::NotRequested => Decision::not_observed(),
        Lookup::Unknown(failure) => Decision::unanswered(ReasonCode::SessionsUnknown, failure),
        // "No such listing" is not "no sessions".
        Lookup::Absent => Decision::retry(ReasonCode::SessionsUnknown),
        Lookup::Found(sessions) => {
            drain::progress(ctx.worker, sessions, &ctx.observation.template, ctx.policy, ctx.now)
        }
    }
}
