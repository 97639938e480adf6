//! Stops a worker: stopping (on the way), stopped (parked, with its disks; ADR-043).
//!
//! A worker that scale-down or an automatic pause stops arrives here with the start of a drain on its record. The
//! scheduler may have read the record before that write and place a session after it. The sessions are therefore listed
//! once more after the settle time and before EC2 is called, and a session found then brings the worker back.

use crate::lifecycle::capabilities::Support;
use crate::lifecycle::context::{HandlerContext, Located, NotLocated};
use crate::lifecycle::counters::Counter;
use crate::lifecycle::decision::{Addresses, Decision};
use crate::lifecycle::drain;
use crate::lifecycle::effect::Effect;
use crate::lifecycle::instance::{Instance, first_live};
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::outcome::Requeue;
use crate::lifecycle::reason::{Detail, Reason, ReasonCode};
use crate::lifecycle::scale_down;
use crate::lifecycle::session::SessionPhase;
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};

/// Stopping: stops the instance and waits until it is stopped.
pub(super) fn stopping(ctx: HandlerContext<'_>) -> Decision {
    let decision = match ctx.locate() {
        Err(waiting) => waiting.decision(),
        Ok(Located::Nowhere) => park(ctx, ReasonCode::NothingToStop),
        // The stopped handler draws the conclusion, and runs at once because a stopped worker is not polled.
        Ok(Located::Gone(None)) => park(ctx, ReasonCode::NothingToStop).with_requeue(Requeue::Now),
        Ok(Located::Gone(Some(instance))) => ctx.follow(instance, ReasonCode::Drift),
        Ok(Located::Here(instance)) => ctx.adopt(instance, stop_instance(ctx, instance)),
    };
    if decision.transition.is_some() { drain::clear_notes(ctx.worker, decision) } else { decision }
}

fn stop_instance(ctx: HandlerContext<'_>, instance: &Instance) -> Decision {
    let stop = || {
        Decision::requeue(ReasonCode::StopRequested).with_effect(Effect::StopInstance { instance: instance.id.clone() })
    };
    match instance.state {
        Ec2State::Stopped => park(ctx, ReasonCode::Ec2Stopped).with_counter(Counter::Stopped),
        // Stopped and started again from outside, or wanted again: stopping it now would hurt its sessions.
        Ec2State::Running if ctx.worker.desired_status == Some(DesiredStatus::Running) => {
            ctx.follow(instance, ReasonCode::StopOvertaken)
        }
        Ec2State::Running if scale_down::stop_spares_sessions(ctx.worker) => stop_if_empty(ctx, instance, stop),
        Ec2State::Running => stop(),
        Ec2State::Stopping => Decision::requeue(ReasonCode::StopUnderWay),
        Ec2State::ShuttingDown | Ec2State::Terminated => ctx.follow(instance, ReasonCode::Drift),
        Ec2State::Pending | Ec2State::Other => ctx.unexpected(instance.state),
    }
}

/// Stops a worker only if it has no session after the settle time.
fn stop_if_empty(ctx: HandlerContext<'_>, instance: &Instance, stop: impl FnOnce() -> Decision) -> Decision {
    match (drain::until_settled(ctx.worker, ctx.policy, ctx.now), &ctx.observation.sessions) {
        (Some(left), _) => drain::start_clock(ctx.worker, ctx.now, drain::settle(left)),
        (None, Lookup::NotRequested) => Decision::not_observed(),
        (None, Lookup::Unknown(failure)) => Decision::unanswered(ReasonCode::SessionsUnknown, failure),
        // "No such listing" is not "no sessions".
        (None, Lookup::Absent) => Decision::retry(ReasonCode::SessionsUnknown),
        (None, Lookup::Found(sessions))
            if sessions.iter().all(|session| session.state.phase() == SessionPhase::Over) =>
        {
            stop()
        }
        // Running without a desired status of running, it would be stopped under its session.
        (None, Lookup::Found(sessions)) if ctx.observation.capabilities.desired_status == Support::No => {
            let active = drain::open(sessions);
            Decision::requeue(
                Reason::new(ReasonCode::DrainWaiting).with(Detail::Sessions { active, until_deadline: None }),
            )
        }
        (None, Lookup::Found(_)) => ctx
            .follow(instance, ReasonCode::StopOvertaken)
            .with_changes(|changes| changes.desired_status = Some(DesiredStatus::Running)),
    }
}

fn park(ctx: HandlerContext<'_>, code: ReasonCode) -> Decision {
    ctx.command(WorkerStatus::Stopped, code).with_changes(|changes| changes.addresses = Some(Addresses::default()))
}

/// Stopped: verifies that the instance still exists and is still stopped, then follows the desired status.
pub(super) fn stopped(ctx: HandlerContext<'_>) -> Decision {
    match &ctx.worker.ec2_instance_id {
        None => stopped_without_instance(ctx),
        Some(_) => match ctx.locate() {
            Err(waiting) => waiting.decision(),
            Ok(Located::Gone(_) | Located::Nowhere) => ctx.gone(),
            Ok(Located::Here(instance)) => ctx.adopt(instance, stopped_with(ctx, instance)),
        },
    }
}

/// Nothing was ever launched, or the record has lost its instance: then the tag finds it again.
fn stopped_without_instance(ctx: HandlerContext<'_>) -> Decision {
    let found = match &ctx.observation.tagged {
        Lookup::NotRequested => return NotLocated::NotRequested.decision(),
        Lookup::Unknown(failure) => return NotLocated::Unknown(failure).decision(),
        Lookup::Found(instances) => first_live(instances),
        Lookup::Absent => None,
    };
    match (found, ctx.worker.desired_status) {
        (Some(instance), _) => ctx.adopt(instance, stopped_with(ctx, instance)),
        (None, Some(DesiredStatus::Running)) => ctx.command(WorkerStatus::Pending, ReasonCode::Relaunch),
        (None, Some(DesiredStatus::Terminated)) => {
            ctx.command(WorkerStatus::Terminating, ReasonCode::DesiredTerminated)
        }
        (None, None | Some(DesiredStatus::Stopped)) => Decision::success(ReasonCode::AtRest),
    }
}

fn stopped_with(ctx: HandlerContext<'_>, instance: &Instance) -> Decision {
    use DesiredStatus as Desired;
    // The time to come up counts from here.
    let start = |code| {
        ctx.command(WorkerStatus::Starting, code).with_changes(|changes| changes.start_initiated_at = Some(ctx.now))
    };
    match (instance.state, ctx.worker.desired_status) {
        (Ec2State::ShuttingDown | Ec2State::Terminated, _) => ctx.follow(instance, ReasonCode::Drift),
        (
            Ec2State::Pending | Ec2State::Running | Ec2State::Stopping | Ec2State::Stopped | Ec2State::Other,
            Some(Desired::Terminated),
        ) => ctx.command(WorkerStatus::Terminating, ReasonCode::DesiredTerminated),
        (Ec2State::Running, None | Some(Desired::Running | Desired::Stopped)) => {
            ctx.follow(instance, ReasonCode::UnexpectedRestart)
        }
        (Ec2State::Stopped, Some(Desired::Running)) => {
            start(ReasonCode::StartRequested).with_effect(Effect::StartInstance { instance: instance.id.clone() })
        }
        (Ec2State::Stopped, None | Some(Desired::Stopped)) => Decision::success(ReasonCode::AtRest),
        // Our own start that was recorded late, or one from outside: either way it is coming up.
        (Ec2State::Pending, Some(Desired::Running)) => start(ReasonCode::StartUnderWay),
        (Ec2State::Pending, None | Some(Desired::Stopped)) => Decision::requeue(ReasonCode::ComingUp),
        (Ec2State::Stopping, None | Some(Desired::Running | Desired::Stopped)) => {
            Decision::requeue(ReasonCode::StopUnderWay)
        }
        (Ec2State::Other, None | Some(Desired::Running | Desired::Stopped)) => ctx.unexpected(instance.state),
    }
}
