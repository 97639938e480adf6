//! `lcm reconcile`: reconciles one worker, or requests it of the leader.

use lcm_sdk::reconciler::{Mode, ReconcileResult};
use lcm_sdk::{Outcome, WorkerId};
use serde_json::{Value, json};

use crate::admin::{AdminClient, AdminError};
use crate::arguments::{LEAD_PATIENCE, ReconcileArguments};
use crate::context::{Context, flush};
use crate::exit::{ExitStatus, Failure};
use crate::output::{Paint, printable};
use crate::progress::Progress;
use crate::summary;

pub(crate) async fn run(arguments: &ReconcileArguments) -> Result<ExitStatus, Failure> {
    let context = Context::new(&arguments.call)?;
    let mode = arguments.mode();
    if mode == Mode::Real
        && let Some(requested) = request(&context, arguments).await?
    {
        return Ok(requested);
    }
    let controller = context.controller().await?;
    let elected = {
        let _progress = Progress::wait("waiting for the lead");
        controller.elect_once(mode, LEAD_PATIENCE).await?
    };
    let reconciler = controller.single_reconciler().with_lease(elected.lease().clone());
    let reconciled = reconciler.reconcile_now(&WorkerId::from(arguments.worker.as_str()), mode).await;
    elected.resign().await;
    flush(&reconciler).await;
    let result = reconciled?;
    context.output.print(&result, [result.worker_id.as_str()], |paint| text(&result, paint))?;
    Ok(if result.outcome == Outcome::Retry { ExitStatus::Retry } else { ExitStatus::Success })
}

/// Requests the reconcile of the controller that leads; `None` if none does.
async fn request(context: &Context, arguments: &ReconcileArguments) -> Result<Option<ExitStatus>, Failure> {
    if context.leaders().await?.is_empty() {
        return Ok(None);
    }
    let admin = context.admin(&arguments.admin)?;
    let (worker, path) = (&arguments.worker, ["admin", "resources", arguments.worker.as_str(), "reconcile"]);
    let queued = request_of_leader(context, &admin, &path, worker, &json!({})).await?;
    context.output.print(&queued, [worker], |_| {
        let (worker, url) = (printable(worker), admin.url());
        format!("{worker}: queued by the controller at {url}; `lcm explain {worker}` shows the result\n")
    })?;
    Ok(Some(ExitStatus::Success))
}

/// Sends a request about a worker to the admin server of the leader.
pub(crate) async fn request_of_leader(
    context: &Context,
    admin: &AdminClient,
    path: &[&str],
    worker: &str,
    body: &Value,
) -> Result<Value, Failure> {
    match admin.post(path, body).await {
        Ok(response) => Ok(response),
        Err(AdminError::Unreachable(problem)) => {
            let leaders = context.leaders().await?;
            let names: Vec<_> = leaders.iter().map(|leader| printable(&leader.identity).into_owned()).collect();
            let message = format!(
                "{} leads, and {problem}; run this command on its host, or name its admin server with --admin",
                names.join(", ")
            );
            Err(Failure::new(ExitStatus::NotLeading, &message))
        }
        Err(AdminError::Refused(status, sentence)) => Err(match status {
            404 => Failure::no_such_worker(worker),
            409 if sentence.contains("lead") => Failure::new(ExitStatus::NotLeading, &sentence),
            409 | 501 => Failure::new(ExitStatus::NotPossible, &sentence),
            _ => Failure::new(ExitStatus::Failure, &format!("the controller at {} refused: {sentence}", admin.url())),
        }),
    }
}

/// The result of one reconcile: a line, the effects, and the time of the next.
pub(crate) fn text(result: &ReconcileResult, paint: Paint) -> String {
    let mut text = format!(
        "{}: {}: {}\n",
        paint.bold(&printable(result.worker_id.as_str())),
        summary::status_change(result),
        printable(&result.reason.to_string())
    );
    for report in &result.effects {
        text += &format!("  {}\n", printable(&report.to_string()));
    }
    text + &format!("  next reconcile: {}\n", result.requeue)
}
