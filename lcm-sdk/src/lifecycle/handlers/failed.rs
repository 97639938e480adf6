//! Failed: waiting for an operator.

use super::HandlerContext;
use super::locate::{Located, adopt, live, locate, unanswered};
use crate::lifecycle::decision::Decision;
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::status::{DesiredStatus, WorkerStatus};

/// Cleans up if termination is asked for; everything else is the operator's.
pub(crate) fn handle(ctx: HandlerContext<'_>) -> Decision {
    match ctx.worker.desired_status {
        None | Some(DesiredStatus::Running | DesiredStatus::Stopped) => keep(ctx),
        Some(DesiredStatus::Terminated) => clean_up(ctx),
    }
}

/// Nothing to do, but an instance that was handed over is written down, for the operator and for the clean-up.
fn keep(ctx: HandlerContext<'_>) -> Decision {
    let skip = Decision::skip(ReasonCode::NeedsOperator);
    match (&ctx.worker.ec2_instance_id, ctx.observation.tagged.found().and_then(|instances| live(instances))) {
        (None, Some(instance)) => adopt(ctx, instance, skip),
        (Some(_), _) | (None, None) => skip,
    }
}

fn clean_up(ctx: HandlerContext<'_>) -> Decision {
    if let Some(unanswered) = unanswered(ctx) {
        return unanswered.decision();
    }
    if ctx.worker.ec2_instance_id.is_some() {
        return ctx.command(WorkerStatus::Terminating, ReasonCode::DesiredTerminated);
    }
    match locate(ctx) {
        Err(waiting) => waiting.decision(),
        Ok(Located::Here(instance)) => {
            adopt(ctx, instance, ctx.command(WorkerStatus::Terminating, ReasonCode::DesiredTerminated))
        }
        Ok(Located::Gone(_) | Located::Nowhere) => {
            ctx.command(WorkerStatus::Terminated, ReasonCode::NothingToTerminate)
        }
    }
}
