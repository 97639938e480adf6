//! Provisioning: launched, not up yet.

use super::Pass;
use super::locate::{Located, adopt, epitaph, locate};
use crate::lifecycle::counters::Counter;
use crate::lifecycle::decision::{Change, Decision};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::status::{Ec2State, WorkerStatus};

/// Waits until the instance runs and has an address; gives up when it died or took too long.
pub(crate) fn handle(pass: Pass<'_>) -> Decision {
    match locate(pass) {
        Err(waiting) => waiting.decision(),
        Ok(Located::Gone(remains)) => died(pass, remains),
        Ok(Located::Nowhere) => match pass.seen.tagged.found().and_then(|dead| dead.last()) {
            Some(dead) => died(pass, Some(dead)),
            None => pass.command(WorkerStatus::Failed, ReasonCode::InstanceNeverAppeared),
        }
        .outcome(Outcome::Retry, Requeue::Backoff),
        Ok(Located::Here(instance)) => adopt(pass, instance, observe(pass, instance)),
    }
}

fn observe(pass: Pass<'_>, instance: &Instance) -> Decision {
    match instance.state {
        Ec2State::Running if instance.address().is_some() => up(pass, instance),
        Ec2State::Running => pass.command(WorkerStatus::Starting, ReasonCode::AwaitingAddress),
        Ec2State::Pending if pass.coming_up_timed_out(instance) => {
            pass.command(WorkerStatus::Failed, ReasonCode::ProvisioningTimeout)
        }
        Ec2State::Pending => Decision::requeue(ReasonCode::ComingUp),
        Ec2State::ShuttingDown | Ec2State::Terminated => died(pass, Some(instance)),
        // Stopped from outside before we saw it run: from here desired state decides, instead of a retry for ever.
        Ec2State::Stopped => pass.observe_external_stop(instance),
        Ec2State::Stopping | Ec2State::Other => super::unexpected(instance.state),
    }
}

/// Running with an address: in service, and its addresses are recorded in the same write.
pub(super) fn up(pass: Pass<'_>, instance: &Instance) -> Decision {
    pass.command(WorkerStatus::Running, ReasonCode::Up)
        .counting(Counter::Started)
        .changing(|changes| changes.addresses = Some(instance.into()))
}

fn died(pass: Pass<'_>, remains: Option<&Instance>) -> Decision {
    pass.command(WorkerStatus::Failed, epitaph(ReasonCode::LaunchEnded, remains)).changing(|changes| {
        changes.launch_generation = Some(pass.worker.notes.launch_generation.saturating_add(1));
        changes.launch_plan = Change::Clear;
    })
}
