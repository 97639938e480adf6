//! `lcm sessions`: the lab sessions of a worker.

use anstyle::{AnsiColor, Style};
use lcm_sdk::Session;
use lcm_sdk::lifecycle::SessionPhase;

use crate::arguments::SessionsArguments;
use crate::context::{Context, read_worker};
use crate::exit::{ExitStatus, Failure};
use crate::output::{Cell, Paint, Table, color};

pub(crate) async fn run(arguments: &SessionsArguments) -> Result<ExitStatus, Failure> {
    let context = Context::new(&arguments.call)?;
    let control_plane = context.control_plane()?;
    let worker = read_worker(&*control_plane, &arguments.worker).await?;
    let listed = control_plane.sessions(&worker.id).await;
    let listed = listed.map_err(|failure| {
        Failure::call(&format!("the sessions of worker {} could not be listed", arguments.worker), &failure)
    });
    let mut sessions = listed?;
    sessions.sort_by(|a, b| a.id.cmp(&b.id));
    let ids = sessions.iter().map(|session| session.id.as_str());
    context.output.print(&sessions, ids, |paint| table(&sessions, paint))?;
    Ok(ExitStatus::Success)
}

fn table(sessions: &[Session], paint: Paint) -> String {
    let mut table = Table::new(["SESSION", "STATE", "TIMESLOT", "RETRIES", "IN A DRAIN"]);
    for session in sessions {
        let (meaning, style) = match session.state.phase() {
            SessionPhase::Waiting => ("handed back if the server can, else waited for", color(AnsiColor::Cyan)),
            SessionPhase::Active => ("waited for", color(AnsiColor::Green)),
            SessionPhase::Failed => ("retried or ended", color(AnsiColor::Red)),
            SessionPhase::Over => ("nothing to do", Style::new().dimmed()),
        };
        table.row([
            session.id.as_str().into(),
            Cell::styled(&session.state, style),
            Cell::optional(session.timeslot_start.map(|at| at.format("%Y-%m-%d %H:%M UTC").to_string())),
            session.retry_count.into(),
            meaning.into(),
        ]);
    }
    table.render(paint)
}
