//! Stopping: on the way to stopped.

use super::Pass;
use super::locate::{Located, adopt, locate};
use crate::core::counters::Counter;
use crate::core::decision::{Addresses, Decision};
use crate::core::effect::Effect;
use crate::core::instance::Instance;
use crate::core::outcome::LookAgain;
use crate::core::reason::ReasonCode;
use crate::core::status::{DesiredStatus, Ec2State, WorkerStatus};

/// Stops the instance and waits until it is.
pub(crate) fn handle(pass: Pass<'_>) -> Decision {
    match locate(pass) {
        Err(waiting) => waiting.decision(),
        Ok(Located::Nowhere) => stopped(pass, ReasonCode::NothingToStop),
        // The stopped handler draws the conclusion, and is asked at once because a stopped worker is not polled.
        Ok(Located::Gone(None)) => stopped(pass, ReasonCode::NothingToStop).looking_again(LookAgain::Now),
        Ok(Located::Gone(Some(instance))) => pass.observe(instance, ReasonCode::Drift),
        Ok(Located::Here(instance)) => adopt(pass, instance, observe(pass, instance)),
    }
}

fn observe(pass: Pass<'_>, instance: &Instance) -> Decision {
    match instance.state {
        Ec2State::Stopped => stopped(pass, ReasonCode::Ec2Stopped).counting(Counter::Stopped),
        // Stopped and started again from outside, or wanted again: stopping it now would hurt its sessions.
        Ec2State::Running if pass.worker.desired_status == Some(DesiredStatus::Running) => {
            pass.observe(instance, ReasonCode::StopOvertaken)
        }
        Ec2State::Running => {
            Decision::requeue(ReasonCode::StopRequested).doing(Effect::StopInstance { instance: instance.id.clone() })
        }
        Ec2State::Stopping => Decision::requeue(ReasonCode::StopUnderWay),
        Ec2State::ShuttingDown | Ec2State::Terminated => pass.observe(instance, ReasonCode::Drift),
        Ec2State::Pending | Ec2State::Other => super::unexpected(instance.state),
    }
}

fn stopped(pass: Pass<'_>, code: ReasonCode) -> Decision {
    pass.command(WorkerStatus::Stopped, code).changing(|changes| changes.addresses = Some(Addresses::default()))
}
