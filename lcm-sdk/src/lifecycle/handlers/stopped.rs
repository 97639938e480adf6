//! Stopped: parked, with its disks (ADR-043).

use super::Pass;
use super::locate::{Located, NotLocated, adopt, live, locate};
use crate::lifecycle::decision::Decision;
use crate::lifecycle::effect::Effect;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::observation::Answer;
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};

/// Verifies that the instance is still there and still stopped, then follows the desired status.
pub(crate) fn handle(pass: Pass<'_>) -> Decision {
    match &pass.worker.instance_id {
        None => without_instance(pass),
        Some(_) => match locate(pass) {
            Err(waiting) => waiting.decision(),
            Ok(Located::Gone(_) | Located::Nowhere) => pass.gone(),
            Ok(Located::Here(instance)) => adopt(pass, instance, observe(pass, instance)),
        },
    }
}

/// Nothing was ever launched, or the record has lost it: then its tag finds it again.
fn without_instance(pass: Pass<'_>) -> Decision {
    let found = match &pass.seen.tagged {
        Answer::NotAsked => return NotLocated::NotAsked.decision(),
        Answer::Unknown(failure) => return NotLocated::Unknown(failure).decision(),
        Answer::Found(instances) => live(instances),
        Answer::Absent => None,
    };
    match (found, pass.worker.desired_status) {
        (Some(instance), _) => adopt(pass, instance, observe(pass, instance)),
        (None, Some(DesiredStatus::Running)) => pass.command(WorkerStatus::Pending, ReasonCode::Relaunch),
        (None, Some(DesiredStatus::Terminated)) => {
            pass.command(WorkerStatus::Terminating, ReasonCode::DesiredTerminated)
        }
        (None, None | Some(DesiredStatus::Stopped)) => Decision::success(ReasonCode::AtRest),
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
            let start = Effect::StartInstance { instance: instance.id.clone() };
            starting(pass, ReasonCode::StartRequested).doing(start)
        }
        (Ec2State::Stopped, None | Some(Desired::Stopped)) => Decision::success(ReasonCode::AtRest),
        // Our own start, recorded too late, or somebody else's: either way it is coming up.
        (Ec2State::Pending, Some(Desired::Running)) => starting(pass, ReasonCode::StartUnderWay),
        (Ec2State::Pending, None | Some(Desired::Stopped)) => Decision::requeue(ReasonCode::ComingUp),
        (Ec2State::Stopping, None | Some(Desired::Running | Desired::Stopped)) => {
            Decision::requeue(ReasonCode::StopUnderWay)
        }
        (Ec2State::Other, None | Some(Desired::Running | Desired::Stopped)) => super::unexpected(instance.state),
    }
}

/// On the way back up; its time to come up begins now.
fn starting(pass: Pass<'_>, code: ReasonCode) -> Decision {
    pass.command(WorkerStatus::Starting, code).changing(|changes| changes.start_initiated_at = Some(pass.now))
}
