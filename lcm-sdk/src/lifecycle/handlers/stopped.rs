//! Stopped: parked, with its disks (ADR-043).

use super::HandlerContext;
use super::locate::{Located, NotLocated, adopt, live, locate};
use crate::lifecycle::decision::Decision;
use crate::lifecycle::effect::Effect;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::observation::Lookup;
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};

/// Verifies that the instance is still there and still stopped, then follows the desired status.
pub(crate) fn handle(ctx: HandlerContext<'_>) -> Decision {
    match &ctx.worker.ec2_instance_id {
        None => without_instance(ctx),
        Some(_) => match locate(ctx) {
            Err(waiting) => waiting.decision(),
            Ok(Located::Gone(_) | Located::Nowhere) => ctx.gone(),
            Ok(Located::Here(instance)) => adopt(ctx, instance, observe(ctx, instance)),
        },
    }
}

/// Nothing was ever launched, or the record has lost it: then its tag finds it again.
fn without_instance(ctx: HandlerContext<'_>) -> Decision {
    let found = match &ctx.observation.tagged {
        Lookup::NotRequested => return NotLocated::NotRequested.decision(),
        Lookup::Unknown(failure) => return NotLocated::Unknown(failure).decision(),
        Lookup::Found(instances) => live(instances),
        Lookup::Absent => None,
    };
    match (found, ctx.worker.desired_status) {
        (Some(instance), _) => adopt(ctx, instance, observe(ctx, instance)),
        (None, Some(DesiredStatus::Running)) => ctx.command(WorkerStatus::Pending, ReasonCode::Relaunch),
        (None, Some(DesiredStatus::Terminated)) => {
            ctx.command(WorkerStatus::Terminating, ReasonCode::DesiredTerminated)
        }
        (None, None | Some(DesiredStatus::Stopped)) => Decision::success(ReasonCode::AtRest),
    }
}

fn observe(ctx: HandlerContext<'_>, instance: &Instance) -> Decision {
    use DesiredStatus as Desired;
    match (instance.state, ctx.worker.desired_status) {
        (Ec2State::ShuttingDown | Ec2State::Terminated, _) => ctx.observe(instance, ReasonCode::Drift),
        (
            Ec2State::Pending | Ec2State::Running | Ec2State::Stopping | Ec2State::Stopped | Ec2State::Other,
            Some(Desired::Terminated),
        ) => ctx.command(WorkerStatus::Terminating, ReasonCode::DesiredTerminated),
        (Ec2State::Running, None | Some(Desired::Running | Desired::Stopped)) => {
            ctx.observe(instance, ReasonCode::UnexpectedRestart)
        }
        (Ec2State::Stopped, Some(Desired::Running)) => {
            let start = Effect::StartInstance { instance: instance.id.clone() };
            starting(ctx, ReasonCode::StartRequested).doing(start)
        }
        (Ec2State::Stopped, None | Some(Desired::Stopped)) => Decision::success(ReasonCode::AtRest),
        // Our own start, recorded too late, or somebody else's: either way it is coming up.
        (Ec2State::Pending, Some(Desired::Running)) => starting(ctx, ReasonCode::StartUnderWay),
        (Ec2State::Pending, None | Some(Desired::Stopped)) => Decision::requeue(ReasonCode::ComingUp),
        (Ec2State::Stopping, None | Some(Desired::Running | Desired::Stopped)) => {
            Decision::requeue(ReasonCode::StopUnderWay)
        }
        (Ec2State::Other, None | Some(Desired::Running | Desired::Stopped)) => super::unexpected(instance.state),
    }
}

/// On the way back up; its time to come up begins now.
fn starting(ctx: HandlerContext<'_>, code: ReasonCode) -> Decision {
    ctx.command(WorkerStatus::Starting, code).changing(|changes| changes.start_initiated_at = Some(ctx.now))
}
