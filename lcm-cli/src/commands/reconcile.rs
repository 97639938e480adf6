//! `lcm reconcile`: reconciles one worker, or requests it of the leader.

use std::time::{Duration, Instant};

use lcm_sdk::controller::ResourceStatus;
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

/// Longest time for which the result of the controller is awaited: reconciles in front of it may take their whole timeout.
const RESULT_PATIENCE: Duration = Duration::from_secs(120);

/// Time between two looks at the controller.
const POLL: Duration = Duration::from_millis(200);

pub(crate) async fn run(arguments: &ReconcileArguments) -> Result<ExitStatus, Failure> {
    let context = Context::new(&arguments.call)?;
    let mode = arguments.mode();
    if mode == Mode::Real
        && let Some(requested) = request(&context, arguments).await?
    {
        return Ok(requested);
    }
    let (reason, requested_by) = (&arguments.author.reason, arguments.author.requested_by());
    if mode == Mode::Real {
        tracing::info!(
            target: "lcm::reconcile", worker = arguments.worker, why = reason, requested_by, "reconcile requested"
        );
    }
    let controller = context.controller().await?;
    let elected = {
        let _progress = Progress::wait_at_most("waiting for the lead", LEAD_PATIENCE);
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
    let body = json!({"reason": arguments.author.reason, "requested_by": arguments.author.requested_by()});
    let queued = request_of_leader(context, &admin, &path, worker, &body).await?;
    if arguments.no_wait {
        context.output.print(&queued, [worker], |_| {
            let (worker, url) = (printable(worker), admin.url());
            format!("{worker}: queued by the controller at {url}; `lcm explain {worker}` shows the result\n")
        })?;
        return Ok(Some(ExitStatus::Success));
    }
    let ended = {
        let _progress = Progress::wait_at_most("waiting for the controller", RESULT_PATIENCE);
        ended(&admin, worker).await?
    };
    let last = &ended["last_outcome"];
    let word = |value: &Value| printable(value.as_str().unwrap_or("unknown")).into_owned();
    context.output.print(&ended, [worker], |paint| {
        let (name, outcome) = (printable(worker), word(&last["outcome"]));
        let sentence = word(&last["reason"]["sentence"]);
        format!("{}: {outcome}: {sentence}\n  by the controller at {}\n", paint.bold(&name), admin.url())
    })?;
    let is_retry = last["outcome"] == Outcome::Retry.as_str();
    Ok(Some(if is_retry { ExitStatus::Retry } else { ExitStatus::Success }))
}

/// Waits until a requested reconcile has ended, and returns the state of the worker in the controller.
async fn ended(admin: &AdminClient, worker: &str) -> Result<Value, Failure> {
    let deadline = Instant::now() + RESULT_PATIENCE;
    loop {
        let state = admin.get(&["admin", "resources", worker], &[]).await;
        let state = state.map_err(|error| {
            let (AdminError::Unreachable(problem) | AdminError::Refused(_, problem)) = error;
            let message = format!("worker {worker} is queued, but its result is not known: {problem}");
            Failure::new(ExitStatus::Failure, &message)
        })?;
        // The request was queued before its response: a worker that neither waits nor is at work has its result.
        let is_at_work = state["status"] == ResourceStatus::InProgress.as_str();
        if !is_at_work && state["waiting"].is_null() && !state["last_outcome"].is_null() {
            return Ok(state);
        }
        if Instant::now() >= deadline {
            let limit = RESULT_PATIENCE.as_secs();
            let message = format!("worker {worker} is queued, and was not reconciled within {limit} s");
            return Err(Failure::new(ExitStatus::Retry, &message));
        }
        tokio::time::sleep(POLL).await;
    }
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
    for step in result.steps() {
        text += &format!("  {}\n", printable(&step));
    }
    text + &format!("  next reconcile: {}\n", result.requeue)
}
