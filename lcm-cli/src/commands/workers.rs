//! `lcm workers`: lists the workers, and follows their changes.

use lcm_sdk::lifecycle::time;
use lcm_sdk::ports::{Clock as _, Scope, SystemClock};
use lcm_sdk::prelude::Shutdown;
use lcm_sdk::reconciler::RecordSummary;
use lcm_sdk::{Timestamp, WorkerStatus};

use crate::arguments::WorkersArguments;
use crate::context::{Context, stop_signals};
use crate::exit::{ExitStatus, Failure};
use crate::follow::{RecordChange, Records};
use crate::output::{Cell, Paint, Table, printable, status_style};

pub(crate) async fn run(arguments: &WorkersArguments) -> Result<ExitStatus, Failure> {
    let context = Context::new(&arguments.call)?;
    let scope = Scope {
        region: arguments.region.clone(),
        with_terminated: arguments.all || arguments.status == Some(WorkerStatus::Terminated),
    };
    match arguments.watch {
        true => watch(&context, arguments.status, scope).await,
        false => list(&context, arguments.status, &scope).await,
    }
}

async fn list(context: &Context, status: Option<WorkerStatus>, scope: &Scope) -> Result<ExitStatus, Failure> {
    let listing = context.control_plane()?.workers(scope).await;
    let listing = listing.map_err(|failure| Failure::call("the workers could not be listed", &failure))?;
    for unreadable in &listing.unreadable {
        eprintln!("lcm: a record cannot be read: {}", printable(&unreadable.error.to_string()));
    }
    let mut records: Vec<RecordSummary> = listing.workers.iter().map(RecordSummary::from).collect();
    records.retain(|record| status.is_none_or(|status| record.status == status));
    records.sort_by(|a, b| a.id.cmp(&b.id));
    let ids = records.iter().map(|record| &record.id);
    context.output.print(&records, ids, |paint| table(&records, SystemClock.now(), paint))?;
    Ok(ExitStatus::Success)
}

/// Prints each worker, and then each change, until a stop signal. A worker that leaves the status is printed once more.
async fn watch(context: &Context, status: Option<WorkerStatus>, scope: Scope) -> Result<ExitStatus, Failure> {
    let shutdown: Shutdown = stop_signals()?;
    let started = Records::start(&context.settings, context.control_plane()?, context.coordination()?, scope).await;
    let mut records = started.map_err(|failure| Failure::call("the workers could not be listed", &failure))?;
    let is_selected = |change: &RecordChange| {
        let has_status = change.record.as_ref().is_some_and(|record| Some(record.status) == status);
        let had_status =
            change.changed.get("status").is_some_and(|(before, _)| before.as_str() == status.map(WorkerStatus::as_str));
        status.is_none() || has_status || had_status
    };
    let mut changes: Vec<RecordChange> = records.listed().collect();
    loop {
        for change in changes.iter().filter(|change| is_selected(change)) {
            context.output.print_item(change, &change.worker_id, |paint| change.line(paint))?;
        }
        changes = tokio::select! {
            biased;
            () = shutdown.requested() => return Ok(ExitStatus::Success),
            changes = records.changes() => changes,
        };
    }
}

fn table(records: &[RecordSummary], now: Timestamp, paint: Paint) -> String {
    let mut table =
        Table::new(["WORKER", "STATUS", "DESIRED", "INSTANCE", "TYPE", "REGION", "ADDRESS", "UPDATED", "NAME"]);
    for record in records {
        table.row([
            record.id.as_str().into(),
            Cell::styled(record.status, status_style(record.status)),
            Cell::optional(record.desired_status),
            Cell::optional(record.ec2_instance_id.as_ref()),
            Cell::optional(record.instance_type.as_ref()),
            Cell::optional(record.aws_region.as_ref()),
            Cell::optional(record.address.as_ref()),
            Cell::optional(record.updated_at.map(|at| format!("{} ago", time::spoken(time::age(at, now))))),
            Cell::optional(record.name.as_ref()),
        ]);
    }
    table.render(paint)
}
