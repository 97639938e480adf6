//! Starting: up but without an address, or on the way back from stopped.

use super::Pass;
use super::locate::{Located, adopt, locate};
use super::provisioning::up;
use crate::lifecycle::decision::Decision;
use crate::lifecycle::effect::Effect;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};
use crate::lifecycle::time;

/// Waits until the instance runs and has an address, and starts it again if it fell back to stopped.
pub(crate) fn handle(pass: Pass<'_>) -> Decision {
    match locate(pass) {
        Err(waiting) => waiting.decision(),
        Ok(Located::Gone(_) | Located::Nowhere) => pass.gone(),
        Ok(Located::Here(instance)) => adopt(pass, instance, observe(pass, instance)),
    }
}

fn observe(pass: Pass<'_>, instance: &Instance) -> Decision {
    match instance.state {
        Ec2State::Running if instance.address().is_some() => up(pass, instance),
        Ec2State::Running | Ec2State::Pending if pass.coming_up_timed_out(instance) => {
            pass.command(WorkerStatus::Failed, ReasonCode::ProvisioningTimeout)
        }
        Ec2State::Running => Decision::requeue(ReasonCode::AwaitingAddress),
        Ec2State::Pending | Ec2State::Stopping => Decision::requeue(ReasonCode::ComingUp),
        Ec2State::Stopped => match pass.worker.desired_status {
            // Nobody wants it up any more, so it is not started only to be stopped again.
            Some(DesiredStatus::Stopped | DesiredStatus::Terminated) => pass.observe(instance, ReasonCode::Drift),
            None | Some(DesiredStatus::Running) if keeps_falling_back(pass, instance) => {
                pass.command(WorkerStatus::Failed, ReasonCode::ProvisioningTimeout)
            }
            None | Some(DesiredStatus::Running) => Decision::requeue(ReasonCode::StartRequested)
                .doing(Effect::StartInstance { instance: instance.id.clone() }),
        },
        Ec2State::ShuttingDown | Ec2State::Terminated => pass.observe(instance, ReasonCode::Drift),
        Ec2State::Other => super::unexpected(instance.state),
    }
}

/// Whether it was started again and again for longer than it may take to come up. EC2 shows the latest start, the
/// record the first; a controller that was merely away sees no distance between the two.
fn keeps_falling_back(pass: Pass<'_>, instance: &Instance) -> bool {
    match (pass.worker.start_initiated_at.max(pass.worker.notes.launched_at), instance.launched_at) {
        (Some(first), Some(latest)) => time::age(first, latest) >= pass.policy.provisioning_timeout,
        (None, _) | (_, None) => false,
    }
}
