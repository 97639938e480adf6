//! Unknown: EC2 said something that has no name here. Verified again every cycle.

use super::HandlerContext;
use super::locate::{Located, adopt, locate};
use crate::lifecycle::decision::Decision;
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::status::Ec2State;

/// Maps the worker back as soon as EC2 shows a state we know.
pub(crate) fn handle(ctx: HandlerContext<'_>) -> Decision {
    match locate(ctx) {
        Err(waiting) => waiting.decision(),
        Ok(Located::Gone(_) | Located::Nowhere) => ctx.gone(),
        Ok(Located::Here(instance)) => {
            let decision = match instance.state {
                Ec2State::Other => Decision::requeue(ReasonCode::StillUnknown),
                Ec2State::Pending
                | Ec2State::Running
                | Ec2State::Stopping
                | Ec2State::Stopped
                | Ec2State::ShuttingDown
                | Ec2State::Terminated => ctx.observe(instance, ReasonCode::Reidentified),
            };
            adopt(ctx, instance, decision)
        }
    }
}
