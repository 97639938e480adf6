//! Failed: waiting for an operator.

use super::Pass;
use super::locate::{Located, adopt, locate, silence};
use crate::core::decision::Decision;
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
    if let Some(silence) = silence(pass) {
        return silence.decision();
    }
    if pass.worker.instance_id.is_some() {
        return pass.command(WorkerStatus::Terminating, ReasonCode::DesiredTerminated);
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
