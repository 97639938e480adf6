//! Failed: waiting for an operator.

use super::Pass;
use super::locate::{Located, adopt, locate};
use crate::core::decision::Decision;
use crate::core::observation::Answer;
use crate::core::reason::ReasonCode;
use crate::core::status::{DesiredStatus, WorkerStatus};

/// Cleans up if termination is asked for; everything else is the operator's.
pub(crate) fn handle(pass: Pass<'_>) -> Decision {
    match pass.worker.desired_status {
        None | Some(DesiredStatus::Running | DesiredStatus::Stopped) => Decision::skip(ReasonCode::NeedsOperator),
        Some(DesiredStatus::Terminated) => clean_up(pass),
    }
}

fn clean_up(pass: Pass<'_>) -> Decision {
    if pass.worker.instance_id.is_some() {
        return match &pass.seen.instance {
            Answer::Unknown(failure) => Decision::unanswered(ReasonCode::Ec2Unknown, failure),
            Answer::NotAsked | Answer::Found(_) | Answer::Absent => {
                pass.command(WorkerStatus::Terminating, ReasonCode::DesiredTerminated)
            }
        };
    }
    match locate(pass) {
        Err(waiting) => waiting.decision(),
        Ok(Located::Here(instance)) => {
            adopt(pass, instance, pass.command(WorkerStatus::Terminating, ReasonCode::DesiredTerminated))
        }
        Ok(Located::Gone(_) | Located::Nowhere) => {
            pass.command(WorkerStatus::Terminated, ReasonCode::NothingToTerminate)
        }
    }
}
