//! `lcm plan`: what a sweep over the whole fleet would change.

use std::time::Duration;

use lcm_sdk::reconciler::Mode;

use crate::arguments::PlanArguments;
use crate::context::Context;
use crate::exit::{ExitStatus, Failure};
use crate::progress::Progress;
use crate::summary;

pub(crate) async fn run(arguments: &PlanArguments) -> Result<ExitStatus, Failure> {
    let context = Context::new(&arguments.call)?;
    let controller = context.controller().await?;
    let sweep = {
        let progress = Progress::sweep("workers decided");
        // A dry run needs no lead.
        controller.sweep_once_with(Mode::DryRun, Duration::ZERO, move |now| progress.note(now)).await?
    };
    let changes = summary::changes(&sweep.results);
    let unfinished = &sweep.report.unfinished;
    let names = changes.iter().map(|result| result.worker_id.as_str());
    context.output.print(&changes, names, |paint| {
        let rows = match changes.is_empty() && unfinished.is_empty() {
            true => "Nothing would change.\n".to_owned(),
            false => summary::rows(&changes, unfinished, paint),
        };
        rows + &summary::counts(&sweep)
    })?;
    for name in unfinished {
        eprintln!("lcm: worker {} was not decided in time", crate::output::printable(name));
    }
    let is_changed = arguments.exit_code && !changes.is_empty();
    Ok(match summary::needs_retry(&sweep) {
        true => ExitStatus::Retry,
        false if is_changed => ExitStatus::Changes,
        false => ExitStatus::Success,
    })
}
