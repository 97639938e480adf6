//! Terminated: over, unless reality disagrees.

use super::Pass;
use crate::core::decision::Decision;
use crate::core::event::Event;
use crate::core::reason::ReasonCode;
use crate::core::status::Ec2State;

/// Skips, and asks nobody. But discovery may hand over a live instance whose record says terminated; then the
/// record follows EC2, because no live instance may be without an owner.
pub(crate) fn handle(pass: Pass<'_>) -> Decision {
    let alive =
        pass.seen.instance.found().filter(|instance| {
            pass.policy.resurrect_terminated && Some(&instance.id) == pass.worker.instance_id.as_ref()
        });
    match alive {
        None => Decision::skip(ReasonCode::Terminated),
        Some(instance) => match instance.state {
            Ec2State::Pending | Ec2State::Running | Ec2State::Stopping | Ec2State::Stopped => pass
                .observe(instance, ReasonCode::Resurrected)
                .announcing(Event::Resurrected { instance: instance.id.clone() }),
            Ec2State::ShuttingDown | Ec2State::Terminated | Ec2State::Other => Decision::skip(ReasonCode::Terminated),
        },
    }
}
