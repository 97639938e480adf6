//! Provisioning: launched, not up yet.

use super::HandlerContext;
use super::locate::{Located, adopt, locate, termination_reason};
use crate::lifecycle::counters::Counter;
use crate::lifecycle::decision::{Change, Decision};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::status::{Ec2State, WorkerStatus};

/// Waits until the instance runs and has an address; gives up when it died or took too long.
pub(crate) fn handle(ctx: HandlerContext<'_>) -> Decision {
    match locate(ctx) {
        Err(waiting) => waiting.decision(),
        Ok(Located::Gone(remains)) => died(ctx, remains),
        Ok(Located::Nowhere) => match ctx.observation.tagged.found().and_then(|dead| dead.last()) {
            Some(dead) => died(ctx, Some(dead)),
            None => ctx.command(WorkerStatus::Failed, ReasonCode::InstanceNeverAppeared),
        }
        .outcome(Outcome::Retry, Requeue::Backoff),
        Ok(Located::Here(instance)) => adopt(ctx, instance, observe(ctx, instance)),
    }
}

fn observe(ctx: HandlerContext<'_>, instance: &Instance) -> Decision {
    match instance.state {
        Ec2State::Running if instance.address().is_some() => up(ctx, instance),
        Ec2State::Running => ctx.command(WorkerStatus::Starting, ReasonCode::AwaitingAddress),
        Ec2State::Pending if ctx.coming_up_timed_out(instance) => {
            ctx.command(WorkerStatus::Failed, ReasonCode::ProvisioningTimeout)
        }
        Ec2State::Pending => Decision::requeue(ReasonCode::ComingUp),
        Ec2State::ShuttingDown | Ec2State::Terminated => died(ctx, Some(instance)),
        // Stopped from outside before we saw it run: from here desired state decides, instead of a retry for ever.
        Ec2State::Stopped => ctx.observe_external_stop(instance),
        Ec2State::Stopping | Ec2State::Other => super::unexpected(instance.state),
    }
}

/// Running with an address: in service, and its addresses are recorded in the same write.
pub(super) fn up(ctx: HandlerContext<'_>, instance: &Instance) -> Decision {
    ctx.command(WorkerStatus::Running, ReasonCode::Up)
        .counting(Counter::Started)
        .changing(|changes| changes.addresses = Some(instance.into()))
}

fn died(ctx: HandlerContext<'_>, remains: Option<&Instance>) -> Decision {
    ctx.command(WorkerStatus::Failed, termination_reason(ReasonCode::LaunchEnded, remains)).changing(|changes| {
        changes.launch_generation = Some(ctx.worker.notes.launch_generation.saturating_add(1));
        changes.launch_plan = Change::Clear;
    })
}
