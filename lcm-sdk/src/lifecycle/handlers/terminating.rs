//! Terminating: on the way to terminated.

use super::HandlerContext;
use super::locate::{Located, adopt, locate};
use crate::lifecycle::counters::Counter;
use crate::lifecycle::decision::Decision;
use crate::lifecycle::effect::Effect;
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::status::{Ec2State, WorkerStatus};

/// Terminates the instance and waits until it is gone: the record never says terminated before.
pub(crate) fn handle(ctx: HandlerContext<'_>) -> Decision {
    match locate(ctx) {
        Err(waiting) => waiting.decision(),
        Ok(Located::Gone(Some(_))) => {
            ctx.command(WorkerStatus::Terminated, ReasonCode::Ec2Terminated).counting(Counter::Terminated)
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
                adopt(ctx, instance, Decision::requeue(ReasonCode::TerminateRequested).doing(terminate))
            }
        },
    }
}
