//! Ends a worker: terminating (on the way), terminated (final), failed (parked until an operator acts).

use crate::lifecycle::context::{HandlerContext, Located, NotLocated};
use crate::lifecycle::counters::Counter;
use crate::lifecycle::decision::Decision;
use crate::lifecycle::effect::{Effect, IfFailed};
use crate::lifecycle::event::Event;
use crate::lifecycle::instance::first_live;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::open_sessions;
use crate::lifecycle::outcome::Requeue;
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};

/// Terminating: terminates the instance and waits until it is gone. The record is not terminated before that.
pub(super) fn terminating(ctx: HandlerContext<'_>) -> Decision {
    match ctx.locate() {
        Err(waiting) => waiting.decision(),
        Ok(Located::Gone(Some(_))) => {
            ctx.command(WorkerStatus::Terminated, ReasonCode::Ec2Terminated).with_counter(Counter::Terminated)
        }
        Ok(Located::Gone(None) | Located::Nowhere) => {
            ctx.command(WorkerStatus::Terminated, ReasonCode::NothingToTerminate)
        }
        Ok(Located::Here(instance)) => match instance.state {
            Ec2State::ShuttingDown => Decision::requeue(ReasonCode::TerminateUnderWay),
            Ec2State::Pending
            | Ec2State::Running
            | Ec2State::Stopping
            | Ec2State::Stopped
            | Ec2State::Terminated
            | Ec2State::Other => {
                let terminate = Effect::TerminateInstance { instance: instance.id.clone() };
                ctx.adopt(instance, Decision::requeue(ReasonCode::TerminateRequested).with_effect(terminate))
            }
        },
    }
}

/// Ends the sessions of a worker that becomes terminated, because not every server does. The instance is gone: neither an
/// unreadable listing nor a failed call delays the record, and the terminated handler tries again.
pub(super) fn end_sessions(ctx: HandlerContext<'_>, decision: Decision) -> Decision {
    match &ctx.observation.sessions {
        Lookup::NotRequested => decision,
        Lookup::Unknown(_) | Lookup::Absent => decision.with_requeue(Requeue::After(open_sessions::RETRY_DELAY)),
        Lookup::Found(sessions) => {
            open_sessions::ends(sessions, ctx.observation.capabilities.session_moves, IfFailed::Proceed)
                .fold(decision, Decision::with_effect)
        }
    }
}

/// Ends the sessions that were left open when the worker was terminated.
fn end_sessions_left_open(ctx: HandlerContext<'_>) -> Decision {
    match &ctx.observation.sessions {
        Lookup::Unknown(failure) if open_sessions::may_be_left_open(ctx.worker, ctx.now) => {
            Decision::unanswered(ReasonCode::SessionsLeftOpen, failure)
        }
        Lookup::Found(sessions) if open_sessions::may_be_left_open(ctx.worker, ctx.now) => {
            let moves = ctx.observation.capabilities.session_moves;
            let mut ends = open_sessions::ends(sessions, moves, IfFailed::Hold).peekable();
            if ends.peek().is_none() {
                return Decision::skip(ReasonCode::Terminated);
            }
            let decision = Decision::success(ReasonCode::SessionsLeftOpen).with_requeue(Requeue::OnChange);
            ends.fold(decision, Decision::with_effect)
        }
        Lookup::Unknown(_) | Lookup::Found(_) | Lookup::NotRequested | Lookup::Absent => {
            Decision::skip(ReasonCode::Terminated)
        }
    }
}

/// Terminated: skips, and for an hour ends sessions that were left open. Discovery may pass a live instance that the record names, or that carries the
/// worker's tag; then the record follows EC2, because a live instance must have an owner.
pub(super) fn terminated(ctx: HandlerContext<'_>) -> Decision {
    if !ctx.policy.resurrect_terminated {
        return end_sessions_left_open(ctx);
    }
    let named = ctx.observation.instance.found().filter(|found| Some(&found.id) == ctx.worker.ec2_instance_id.as_ref());
    let tagged = || first_live(ctx.observation.tagged.found()?);
    match named.filter(|instance| instance.state.is_live()).or_else(tagged) {
        None => end_sessions_left_open(ctx),
        Some(instance) => match instance.state {
            Ec2State::Pending | Ec2State::Running | Ec2State::Stopping | Ec2State::Stopped => {
                let back = ctx.follow(instance, ReasonCode::Resurrected);
                ctx.adopt(instance, back.with_event(Event::Resurrected { instance: instance.id.clone() }))
            }
            Ec2State::ShuttingDown | Ec2State::Terminated | Ec2State::Other => Decision::skip(ReasonCode::Terminated),
        },
    }
}

/// Failed: cleans up if termination is desired; everything else is up to the operator.
pub(super) fn failed(ctx: HandlerContext<'_>) -> Decision {
    match ctx.worker.desired_status {
        None | Some(DesiredStatus::Running | DesiredStatus::Stopped) => keep_failed(ctx),
        Some(DesiredStatus::Terminated) => clean_up(ctx),
    }
}

/// Records an instance that carries the worker's tag, for the operator and for the clean-up: without an id on the record
/// it would have no owner.
fn keep_failed(ctx: HandlerContext<'_>) -> Decision {
    let skip = Decision::skip(ReasonCode::NeedsOperator);
    match (&ctx.worker.ec2_instance_id, &ctx.observation.tagged) {
        (None, Lookup::Found(instances)) => match first_live(instances) {
            Some(instance) => ctx.adopt(instance, skip),
            None => skip,
        },
        (None, Lookup::Unknown(failure)) => NotLocated::Unknown(failure).decision(),
        (None, Lookup::NotRequested | Lookup::Absent) | (Some(_), _) => skip,
    }
}

fn clean_up(ctx: HandlerContext<'_>) -> Decision {
    if let Some(failure) = ctx.ec2_failure() {
        return failure.decision();
    }
    if ctx.worker.ec2_instance_id.is_some() {
        return ctx.command(WorkerStatus::Terminating, ReasonCode::DesiredTerminated);
    }
    match ctx.locate() {
        Err(waiting) => waiting.decision(),
        Ok(Located::Here(instance)) => {
            ctx.adopt(instance, ctx.command(WorkerStatus::Terminating, ReasonCode::DesiredTerminated))
        }
        Ok(Located::Gone(_) | Located::Nowhere) => {
            ctx.command(WorkerStatus::Terminated, ReasonCode::NothingToTerminate)
        }
    }
}
