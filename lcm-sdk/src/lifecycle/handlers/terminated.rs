//! Terminated: over, unless reality disagrees.

use super::HandlerContext;
use super::locate::{adopt, live};
use crate::lifecycle::decision::Decision;
use crate::lifecycle::event::Event;
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::status::Ec2State;

/// Skips, and asks nobody. But discovery may hand over a live instance that the record names, or that carries the
/// worker's tag; then the record follows EC2, because no live instance may be without an owner.
pub(crate) fn handle(ctx: HandlerContext<'_>) -> Decision {
    if !ctx.policy.resurrect_terminated {
        return Decision::skip(ReasonCode::Terminated);
    }
    let named = ctx.observation.instance.found().filter(|found| Some(&found.id) == ctx.worker.ec2_instance_id.as_ref());
    let tagged = || live(ctx.observation.tagged.found()?);
    match named.filter(|instance| instance.state.is_live()).or_else(tagged) {
        None => Decision::skip(ReasonCode::Terminated),
        Some(instance) => match instance.state {
            Ec2State::Pending | Ec2State::Running | Ec2State::Stopping | Ec2State::Stopped => {
                let back = ctx.observe(instance, ReasonCode::Resurrected);
                adopt(ctx, instance, back.announcing(Event::Resurrected { instance: instance.id.clone() }))
            }
            Ec2State::ShuttingDown | Ec2State::Terminated | Ec2State::Other => Decision::skip(ReasonCode::Terminated),
        },
    }
}
