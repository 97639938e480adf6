//! Stopped: parked, with its disks (ADR-043).

use super::Pass;
use super::locate::{Located, locate, silence};
use super::starting::start;
use crate::core::decision::Decision;
use crate::core::instance::Instance;
use crate::core::reason::ReasonCode;
use crate::core::status::{DesiredStatus, Ec2State, WorkerStatus};

/// Verifies that the instance is still there and still stopped, then follows the desired status.
pub(crate) fn handle(pass: Pass<'_>) -> Decision {
    if let Some(silence) = silence(pass) {
        return silence.decision();
    }
    if pass.worker.instance_id.is_none() {
        return match pass.worker.desired_status {
            Some(DesiredStatus::Running) => pass.command(WorkerStatus::Pending, ReasonCode::Relaunch),
            Some(DesiredStatus::Terminated) => pass.command(WorkerStatus::Terminating, ReasonCode::DesiredTerminated),
            None | Some(DesiredStatus::Stopped) => Decision::success(ReasonCode::AtRest),
        };
    }
    match locate(pass) {
        Err(waiting) => waiting.decision(),
        Ok(Located::Gone(_) | Located::Nowhere) => pass.gone(),
        Ok(Located::Here(instance)) => observe(pass, instance),
    }
}

fn observe(pass: Pass<'_>, instance: &Instance) -> Decision {
    use DesiredStatus as Desired;
    match (instance.state, pass.worker.desired_status) {
        (Ec2State::ShuttingDown | Ec2State::Terminated, _) => pass.observe(instance, ReasonCode::Drift),
        (
            Ec2State::Pending | Ec2State::Running | Ec2State::Stopping | Ec2State::Stopped | Ec2State::Other,
            Some(Desired::Terminated),
        ) => pass.command(WorkerStatus::Terminating, ReasonCode::DesiredTerminated),
        (Ec2State::Running, None | Some(Desired::Running | Desired::Stopped)) => {
            pass.observe(instance, ReasonCode::UnexpectedRestart)
        }
        (Ec2State::Stopped, Some(Desired::Running)) => {
            start(pass, instance, pass.command(WorkerStatus::Starting, ReasonCode::StartRequested))
        }
        (Ec2State::Stopped, None | Some(Desired::Stopped)) => Decision::success(ReasonCode::AtRest),
        // Our own start, recorded too late, or somebody else's: either way it is coming up.
        (Ec2State::Pending, Some(Desired::Running)) => pass.command(WorkerStatus::Starting, ReasonCode::StartUnderWay),
        (Ec2State::Pending, None | Some(Desired::Stopped)) => Decision::requeue(ReasonCode::ComingUp),
        (Ec2State::Stopping, None | Some(Desired::Running | Desired::Stopped)) => {
            Decision::requeue(ReasonCode::StopUnderWay)
        }
        (Ec2State::Other, None | Some(Desired::Running | Desired::Stopped)) => super::unexpected(instance.state),
    }
}
