//! Dispatches on the status: one handler for each, no catch-all.

mod launch;
mod running;
mod stop;
mod terminate;

use super::context::{HandlerContext, Located};
use super::decision::Decision;
use super::drain;
use super::observation::Observation;
use super::policy::Policy;
use super::reason::ReasonCode;
use super::status::{Ec2State, WorkerStatus};
use super::time::Timestamp;
use super::worker::Worker;

/// Decides what to do about a worker, given an observation of its cloud.
///
/// # Guarantees
/// Total: any input gives a decision. Deterministic: the same input gives the same decision. A lookup that is `Unknown`
/// never changes a status. Only edges of the transition table are taken. Nothing is allocated when nothing is to be done.
///
/// # Assumptions
/// `observation` was gathered for this worker in this reconcile, as [`queries`](super::query::queries) returned. A
/// missing part counts as not observed, and the decision is to wait for it.
///
/// ```
/// use lcm_sdk::{DesiredStatus, Ec2State, Effect, Observation, Policy, Worker, WorkerStatus, decide};
///
/// let mut worker = Worker::new("w-1", WorkerStatus::Stopped);
/// worker.ec2_instance_id = Some("i-1".into());
/// worker.desired_status = Some(DesiredStatus::Running);
/// let observation = Observation::with_instance_state("i-1", Ec2State::Stopped);
///
/// let decision = decide(&worker, &observation, &Policy::default(), "2026-02-06T08:00:00Z".parse().unwrap());
/// assert_eq!(decision.effects, [Effect::StartInstance { instance: "i-1".into() }]);
/// assert_eq!(decision.transition.unwrap().to(), WorkerStatus::Starting);
/// ```
pub fn decide(worker: &Worker, observation: &Observation, policy: &Policy, now: Timestamp) -> Decision {
    let ctx = HandlerContext { worker, observation, policy, now };
    let decision = ctx.note_image(decide_by_status(ctx));
    if decision.terminates() { terminate::end_sessions(ctx, decision) } else { decision }
}

fn decide_by_status(ctx: HandlerContext<'_>) -> Decision {
    match ctx.worker.status {
        WorkerStatus::Pending => launch::pending(ctx),
        WorkerStatus::Provisioning => launch::provisioning(ctx),
        WorkerStatus::Starting => launch::starting(ctx),
        WorkerStatus::Running => running::running(ctx),
        WorkerStatus::Draining => drain::draining(ctx),
        WorkerStatus::Stopping => stop::stopping(ctx),
        WorkerStatus::Stopped => stop::stopped(ctx),
        WorkerStatus::Terminating => terminate::terminating(ctx),
        WorkerStatus::Terminated => terminate::terminated(ctx),
        WorkerStatus::Failed => terminate::failed(ctx),
        WorkerStatus::Unknown => unknown(ctx),
    }
}

/// EC2 showed a state without a name here. The record follows as soon as it shows a known one.
fn unknown(ctx: HandlerContext<'_>) -> Decision {
    match ctx.locate() {
        Err(waiting) => waiting.decision(),
        Ok(Located::Gone(_)) => ctx.gone(),
        Ok(Located::Nowhere) => ctx.no_instance_named(),
        Ok(Located::Here(instance)) => {
            let decision = match instance.state {
                Ec2State::Other => Decision::requeue(ReasonCode::StillUnknown),
                Ec2State::Pending
                | Ec2State::Running
                | Ec2State::Stopping
                | Ec2State::Stopped
                | Ec2State::ShuttingDown
                | Ec2State::Terminated => ctx.follow(instance, ReasonCode::Reidentified),
            };
            ctx.adopt(instance, decision)
        }
    }
}
