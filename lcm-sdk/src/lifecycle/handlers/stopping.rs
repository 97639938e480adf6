//! Stopping: on the way to stopped.
//!
//! A worker that scale-down stops because it has no session comes here with the start of a drain on its record. The
//! scheduler may have placed a session between the look and the write; from that write on it places none. So the
//! sessions are looked at once more before EC2 is told, and one that is there brings the worker back.

use super::HandlerContext;
use super::locate::{Located, adopt, locate};
use crate::lifecycle::counters::Counter;
use crate::lifecycle::decision::{Addresses, Decision};
use crate::lifecycle::drain;
use crate::lifecycle::effect::Effect;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::observation::Lookup;
use crate::lifecycle::outcome::Requeue;
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::session::SessionStanding;
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};
use crate::lifecycle::worker::Worker;

/// Stops the instance and waits until it is.
pub(crate) fn handle(ctx: HandlerContext<'_>) -> Decision {
    let decision = match locate(ctx) {
        Err(waiting) => waiting.decision(),
        Ok(Located::Nowhere) => stopped(ctx, ReasonCode::NothingToStop),
        // The stopped handler draws the conclusion, and is asked at once because a stopped worker is not polled.
        Ok(Located::Gone(None)) => stopped(ctx, ReasonCode::NothingToStop).looking_again(Requeue::Now),
        Ok(Located::Gone(Some(instance))) => ctx.observe(instance, ReasonCode::Drift),
        Ok(Located::Here(instance)) => adopt(ctx, instance, observe(ctx, instance)),
    };
    if decision.transition.is_some() { drain::forget(ctx.worker, decision) } else { decision }
}

/// Whether the stop is only meant for an empty worker.
pub(crate) fn spares_sessions(worker: &Worker) -> bool {
    let by_scale_down = worker.notes.drain_started_at.is_some();
    match worker.desired_status {
        None | Some(DesiredStatus::Stopped) => by_scale_down,
        Some(DesiredStatus::Running | DesiredStatus::Terminated) => false,
    }
}

fn observe(ctx: HandlerContext<'_>, instance: &Instance) -> Decision {
    match instance.state {
        Ec2State::Stopped => stopped(ctx, ReasonCode::Ec2Stopped).counting(Counter::Stopped),
        // Stopped and started again from outside, or wanted again: stopping it now would hurt its sessions.
        Ec2State::Running if ctx.worker.desired_status == Some(DesiredStatus::Running) => {
            ctx.observe(instance, ReasonCode::StopOvertaken)
        }
        Ec2State::Running if spares_sessions(ctx.worker) => stop_if_empty(ctx, instance),
        Ec2State::Running => stop(instance),
        Ec2State::Stopping => Decision::requeue(ReasonCode::StopUnderWay),
        Ec2State::ShuttingDown | Ec2State::Terminated => ctx.observe(instance, ReasonCode::Drift),
        Ec2State::Pending | Ec2State::Other => super::unexpected(instance.state),
    }
}

fn stop(instance: &Instance) -> Decision {
    Decision::requeue(ReasonCode::StopRequested).doing(Effect::StopInstance { instance: instance.id.clone() })
}

fn stop_if_empty(ctx: HandlerContext<'_>, instance: &Instance) -> Decision {
    match &ctx.observation.sessions {
        Lookup::NotRequested => Decision::not_observed(),
        Lookup::Unknown(failure) => Decision::unanswered(ReasonCode::SessionsUnknown, failure),
        // "No such listing" is not "no sessions".
        Lookup::Absent => Decision::retry(ReasonCode::SessionsUnknown),
        Lookup::Found(sessions) if sessions.iter().all(|session| session.state.standing() == SessionStanding::Over) => {
            stop(instance)
        }
        Lookup::Found(_) => ctx
            .observe(instance, ReasonCode::StopOvertaken)
            .changing(|changes| changes.desired_status = Some(DesiredStatus::Running)),
    }
}

fn stopped(ctx: HandlerContext<'_>, code: ReasonCode) -> Decision {
    ctx.command(WorkerStatus::Stopped, code).changing(|changes| changes.addresses = Some(Addresses::default()))
}
