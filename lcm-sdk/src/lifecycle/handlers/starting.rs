//! Starting: up but without an address, or on the way back from stopped.

use super::HandlerContext;
use super::locate::{Located, adopt, locate};
use super::provisioning::up;
use crate::lifecycle::decision::Decision;
use crate::lifecycle::effect::Effect;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};
use crate::lifecycle::time;

/// Waits until the instance runs and has an address, and starts it again if it fell back to stopped.
pub(crate) fn handle(ctx: HandlerContext<'_>) -> Decision {
    match locate(ctx) {
        Err(waiting) => waiting.decision(),
        Ok(Located::Gone(_) | Located::Nowhere) => ctx.gone(),
        Ok(Located::Here(instance)) => adopt(ctx, instance, observe(ctx, instance)),
    }
}

fn observe(ctx: HandlerContext<'_>, instance: &Instance) -> Decision {
    match instance.state {
        Ec2State::Running if instance.address().is_some() => up(ctx, instance),
        Ec2State::Running | Ec2State::Pending if ctx.coming_up_timed_out(instance) => {
            ctx.command(WorkerStatus::Failed, ReasonCode::ProvisioningTimeout)
        }
        Ec2State::Running => Decision::requeue(ReasonCode::AwaitingAddress),
        Ec2State::Pending | Ec2State::Stopping => Decision::requeue(ReasonCode::ComingUp),
        Ec2State::Stopped => match ctx.worker.desired_status {
            // Nobody wants it up any more, so it is not started only to be stopped again.
            Some(DesiredStatus::Stopped | DesiredStatus::Terminated) => ctx.observe(instance, ReasonCode::Drift),
            None | Some(DesiredStatus::Running) if keeps_falling_back(ctx, instance) => {
                ctx.command(WorkerStatus::Failed, ReasonCode::ProvisioningTimeout)
            }
            None | Some(DesiredStatus::Running) => Decision::requeue(ReasonCode::StartRequested)
                .doing(Effect::StartInstance { instance: instance.id.clone() }),
        },
        Ec2State::ShuttingDown | Ec2State::Terminated => ctx.observe(instance, ReasonCode::Drift),
        Ec2State::Other => super::unexpected(instance.state),
    }
}

/// Whether it was started again and again for longer than it may take to come up. EC2 shows the latest start, the
/// record the first; a controller that was merely away sees no distance between the two.
fn keeps_falling_back(ctx: HandlerContext<'_>, instance: &Instance) -> bool {
    match (ctx.worker.start_initiated_at.max(ctx.worker.notes.launched_at), instance.launched_at) {
        (Some(first), Some(latest)) => time::age(first, latest) >= ctx.policy.provisioning_timeout,
        (None, _) | (_, None) => false,
    }
}
