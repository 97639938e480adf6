//! `lcm replay`: decides a history again.

use std::fmt::Write as _;
use std::path::Path;

use lcm_sdk::history::{HistoryError, Replay, ReplayPolicy, replay_path};
use serde_json::Value;

use crate::arguments::ReplayArguments;
use crate::exit::{ExitStatus, Failure};
use crate::output::{Output, Paint, Table};

/// Number of differences that the text shows; JSON and YAML have all.
const SHOWN: usize = 50;

pub(crate) fn run(arguments: &ReplayArguments) -> Result<ExitStatus, Failure> {
    let policy = match &arguments.policy {
        Some(file) => ReplayPolicy::Changed(fields(file)?),
        None => ReplayPolicy::AsRecorded,
    };
    let replay = replay_path(&arguments.history, &policy).map_err(|error| match error {
        HistoryError::Policy(_) => Failure::new(ExitStatus::Usage, &error),
        _ => Failure::new(ExitStatus::Failure, &error),
    })?;
    let names = replay.by_worker().into_keys().map(|worker| worker.to_string()).collect::<Vec<_>>();
    Output::new(arguments.output).print(&replay, names, |paint| text(&replay, paint))?;
    let is_expected = replay.is_same() || (arguments.expect_changes && replay.undecided.is_empty());
    Ok(if is_expected { ExitStatus::Success } else { ExitStatus::Changes })
}

/// The fields of a YAML file.
pub(crate) fn fields(file: &Path) -> Result<Value, Failure> {
    let invalid =
        |error: &dyn std::fmt::Display| Failure::new(ExitStatus::Usage, &format!("{}: {error}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| invalid(&error))?;
    serde_yaml_ng::from_str(&text).map_err(|error| invalid(&error))
}

fn text(replay: &Replay, paint: Paint) -> String {
    let mut table = Table::new(["TIME", "WORKER", "RECORDED", "REPLAYED"]);
    for difference in replay.differences.iter().take(SHOWN) {
        table.row([
            difference.at.to_rfc3339_opts(lcm_sdk::chrono::SecondsFormat::Secs, true).into(),
            difference.worker.as_str().into(),
            difference.recorded.reason.as_str().into(),
            difference.replayed.reason.as_str().into(),
        ]);
        let text = difference.to_string();
        // Without the time, worker and reasons, which the columns have.
        table.detail(text.splitn(3, ": ").last().unwrap_or_default().to_owned());
    }
    let mut text = if replay.differences.is_empty() { String::new() } else { table.render(paint) };
    if replay.differences.len() > SHOWN {
        let _ = writeln!(text, "… and {} more", replay.changed - SHOWN as u64);
    }
    let _ = write!(text, "{} decisions: {} differ", replay.decisions, replay.changed);
    for (query, decisions) in &replay.undecided {
        let _ = write!(text, ", {decisions} need an observation of {query} that the history lacks");
    }
    text.push('\n');
    text
}
