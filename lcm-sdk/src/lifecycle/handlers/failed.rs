//! Failed: waiting for an operator.

use super::Pass;
use super::locate::{Located, adopt, live, locate, silence};
use crate::lifecycle::decision::Decision;
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::status::{DesiredStatus, WorkerStatus};

/// Cleans up if termination is asked for; everything else is the operator's.
pub(crate) fn handle(pass: Pass<'_>) -> Decision {
    match pass.worker.desired_status {
        None | Some(DesiredStatus::Running | DesiredStatus::Stopped) => keep(pass),
        Some(DesiredStatus::Terminated) => clean_up(pass),
    }
}

/// Nothing to do, but an instance that was handed over is written down, for the operator and for the clean-up.
fn keep(pass: Pass<'_>) -> Decision {
    let skip = Decision::skip(ReasonCode::NeedsOperator);
    match (&pass.worker.instance_id, pass.seen.tagged.found().and_then(|instances| live(instances))) {
        (None, Some(instance)) => adopt(pass, instance, skip),
        (Some(_), _) | (None, None) => skip,
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
