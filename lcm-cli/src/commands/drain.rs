//! `lcm drain` and `lcm cancel-drain`.

use lcm_sdk::WorkerId;
use lcm_sdk::admin::Operation;
use lcm_sdk::lifecycle::DrainRequest;
use lcm_sdk::reconciler::Mode;
use serde_json::json;

use crate::arguments::{DrainArguments, LEAD_PATIENCE};
use crate::commands::reconcile;
use crate::context::{Context, flush};
use crate::exit::{ExitStatus, Failure};
use crate::output::printable;
use crate::progress::Progress;

pub(crate) async fn run(arguments: &DrainArguments, operation: Operation) -> Result<ExitStatus, Failure> {
    let context = Context::new(&arguments.call)?;
    let (reason, requested_by) = (arguments.author.reason.clone(), arguments.author.requested_by());
    let request = DrainRequest { reason, requested_by };
    match context.leaders().await?.is_empty() {
        true => operate(&context, &arguments.worker, operation, &request).await,
        false => request_operation(&context, arguments, operation, &request).await,
    }
}

/// Requests the operation of the controller that leads.
async fn request_operation(
    context: &Context,
    arguments: &DrainArguments,
    operation: Operation,
    request: &DrainRequest,
) -> Result<ExitStatus, Failure> {
    let admin = context.admin(&arguments.admin)?;
    let path = ["admin", "workers", arguments.worker.as_str(), operation.as_str()];
    let body = json!({"reason": request.reason, "requested_by": request.requested_by});
    let done = reconcile::request_of_leader(context, &admin, &path, &arguments.worker, &body).await?;
    context.output.print(&done, [&arguments.worker], |_| {
        let said = match operation {
            Operation::Drain => "is drained",
            Operation::CancelDrain => "is back in service",
        };
        format!("{}: {said}, by the controller at {}\n", printable(&arguments.worker), admin.url())
    })?;
    Ok(ExitStatus::Success)
}

/// Carries the operation out under a lead of its own.
async fn operate(
    context: &Context,
    worker: &str,
    operation: Operation,
    request: &DrainRequest,
) -> Result<ExitStatus, Failure> {
    let controller = context.controller().await?;
    let elected = {
        let _progress = Progress::wait_at_most("waiting for the lead", LEAD_PATIENCE);
        controller.elect_once(Mode::Real, LEAD_PATIENCE).await?
    };
    let reconciler = controller.reconciler().with_lease(elected.lease().clone());
    let worker = WorkerId::from(worker);
    let operated = match operation {
        Operation::Drain => reconciler.drain(&worker, request).await,
        Operation::CancelDrain => reconciler.cancel_drain(&worker, request).await,
    };
    elected.resign().await;
    flush(&reconciler).await;
    let result = operated?;
    context.output.print(&result, [result.worker_id.as_str()], |paint| reconcile::text(&result, paint))?;
    Ok(ExitStatus::Success)
}
