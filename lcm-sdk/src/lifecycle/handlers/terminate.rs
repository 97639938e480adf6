//! Ends a worker: terminating (on the way), terminated (final), failed (parked until an operator acts).

use crate::lifecycle::context::{HandlerContext, Located};
use crate::lifecycle::counters::Counter;
use crate::lifecycle::decision::Decision;
use crate::lifecycle::effect::Effect;
use crate::lifecycle::event::Event;
use crate::lifecycle::instance::first_live;
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

/// Terminated: skips without a query. Discovery may pass a live instance that the record names, or that carries the
/// worker's tag; then the record follows EC2, because a live instance must have an owner.
pub(super) fn terminated(ctx: HandlerContext<'_>) -> Decision {
    if !ctx.policy.resurrect_terminated {
        return Decision::skip(ReasonCode::Terminated);
    }
    let named = ctx.observation.instance.found().filter(|found| Some(&found.id) == ctx.worker.ec2_instance_id.as_ref());
    let tagged = || first_live(ctx.observation.tagged.found()?);
    match named.filter(|instance| instance.state.is_live()).or_else(tagged) {
        None => Decision::skip(ReasonCode::Terminated),
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

/// Records an instance that discovery found, for the operator and for the clean-up.
fn keep_failed(ctx: HandlerContext<'_>) -> Decision {
    let skip = Decision::skip(ReasonCode::NeedsOperator);
    match (&ctx.worker.ec2_instance_id, ctx.observation.tagged.found().and_then(|instances| first_live(instances))) {
        (None, Some(instance)) => ctx.adopt(instance, skip),
        (Some(_), _) | (None, None) => skip,
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
